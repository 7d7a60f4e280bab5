"""Stage *node*: the node's timeline on a real GPU: how fast its rows fill, what a reader takes, what programs learn by
it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest import mock

from gpu.parts import Figures, Kit, Part, apart
from gpu.programs import record
from gpu.sensors import children, load
from gpu.truth import analysed

#: Lengths of what is watched, and of each program.
_IDLE_S, _BUSY_S, _READ_S, _PROGRAM_S = 4.0, 6.0, 4.0, 8.0


@contextmanager
def exporter(kit: Kit, *options: str) -> Iterator[Path]:
    """An exporter that keeps the timeline; its folder, once there is a table in it."""
    with TemporaryDirectory() as work:
        folder = Path(work) / "timeline"
        command = [sys.executable, "-m", "gpu_profile_exporter", "--driver", kit.backend, "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(
            [*command, "--timeline", str(folder), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            end = time.monotonic() + 20
            while not list(folder.glob("*.ring")):
                if time.monotonic() > end or process.poll() is not None:
                    raise RuntimeError("the exporter makes no timeline")
                time.sleep(0.1)
            yield folder
        finally:
            for each in [process.pid, *children(process.pid)]:
                subprocess.run(["kill", "-9", str(each)], check=False)
            process.wait()


def _rows(folder: Path) -> tuple[float, dict[str, tuple[int, int]]]:
    """When it was asked, and of each stream of the first file how many rows were written and how many it keeps."""
    from gpu_profile.driver.node.layout import LONGEST_HEAD, read_head

    path = min(folder.glob("*.ring"))
    data, now = path.read_bytes(), time.monotonic()
    found = {}
    for stream in read_head(data[:LONGEST_HEAD], len(data)).streams:
        slots = range(stream.offset, stream.end, stream.row.size)
        found[stream.name] = max(struct.unpack_from("<Q", data, at)[0] for at in slots), stream.slots
    return now, found


def timeline(kit: Kit) -> Figures:
    """Rows a second of each stream, the GPU idle and busy, and for how many seconds such rows are kept."""
    found: dict[str, Any] = {}
    for name, options in {"default": (), "everything": ("--collect", "all")}.items():
        with exporter(kit, *options) as folder:
            time.sleep(kit.seconds(3))
            before = _rows(folder)
            time.sleep(kit.seconds(_IDLE_S))
            idle = _rows(folder)
            with load(kit):
                time.sleep(kit.seconds(1))
                loaded = _rows(folder)
                time.sleep(kit.seconds(_BUSY_S))
                busy = _rows(folder)
            mib = sum(path.stat().st_size for path in folder.glob("*.ring")) / (1 << 20)
            streams = {
                stream: {
                    "slots": slots,
                    **_paced("idle", slots, before[1][stream][0], idle[1][stream][0], idle[0] - before[0]),
                    **_paced("busy", slots, loaded[1][stream][0], busy[1][stream][0], busy[0] - loaded[0]),
                }
                for stream, (_, slots) in busy[1].items()
            }
            found[name] = {"mib": round(mib, 2), "streams": streams}
    return found


def _paced(phase: str, slots: int, before: int, after: int, seconds: float) -> dict[str, float | None]:
    rows = (after - before) / seconds
    return {f"{phase}_rows_per_s": round(rows, 2), f"{phase}_keeps_s": round(slots / rows) if rows else None}


def reader(spec: str, seconds: float) -> Figures:
    """What a session's sampler takes of a core with this driver, and how many samples it is given."""
    from gpu_profile.driver.grammar import open_driver
    from gpu_profile.sampling.sampler import Sampler

    sampler = Sampler(lambda: open_driver(spec), interval_s=0.1)
    sampler.start()
    time.sleep(2.0)
    began, cpu, samples = time.monotonic(), time.process_time(), sampler.stats.samples
    time.sleep(seconds)
    whole = time.monotonic() - began
    found = {
        "cores": round((time.process_time() - cpu) / whole, 5),
        "samples_per_s": round((sampler.stats.samples - samples) / whole, 1),
    }
    sampler.stop()
    return found


def readers(kit: Kit) -> Figures:
    """A sampler by NVML and one by the timeline, the GPU busy, by turns."""
    with exporter(kit) as folder, load(kit):
        specs = {"nvml": kit.backend, "node": f"node:{folder}"}
        return {
            f"{name} {turn}": apart(reader, spec, kit.seconds(_READ_S))
            for turn in (1, 2)
            for name, spec in specs.items()
        }


def programs(kit: Kit) -> Figures:
    """The same program by NVML, by the timeline, and by what `auto` takes: what its regions are told."""
    found = {}
    with exporter(kit) as folder, mock.patch.dict(os.environ, GPU_PROFILE_TIMELINE=str(folder)):
        for name, spec in {"nvml": kit.backend, "node": f"node:{folder}", "auto": "auto"}.items():
            out = kit.out / name
            record(kit.worker(), "shuffled", kit.seconds(_PROGRAM_S), out, spec)
            found[name] = analysed(out)
    return found


PARTS: Final = {
    "timeline": Part("rows of the node's timeline, idle and busy", 120, timeline),
    "programs": Part("a program's regions by NVML and by the timeline", 90, programs),
    "readers": Part("a sampler by NVML and by the timeline", 90, readers),
}

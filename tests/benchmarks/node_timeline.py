"""What the node's timeline costs: eight processes that read it, the files, and the exporter that keeps it.

An exporter on the C stub reads 8 GPUs ten times a second and keeps a timeline. Eight processes are joined from it, each
with a GPU of its own, as the ranks of a job are; their samplers' CPU together stands beside that of one sampler that
reads the same 8 GPUs through NVML, in the same minute.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(root / "tests"), str(root / "instrumentation"), str(root / "exporter")]

from benchmarks.exporter_children import Bench, bench, cpu_s, tree
from benchmarks.rows import Row

_GPUS: Final = 8
_PROCESSES_REACH: Final = 1.3
_REACH_MIB: Final = 8.0
_RETENTION_S: Final = 600


def rows(bed: Bench, seconds: float = 6.0, turns: int = 2) -> Iterator[Row]:
    """The rows of the timeline."""
    folder = Path(bed.environment["LD_LIBRARY_PATH"]) / "timeline"
    with bed.exporter("--timeline", str(folder)) as with_it, bed.exporter() as without:
        time.sleep(3)
        yield _processes(bed, folder, seconds, turns)
        yield _keeping(with_it.process.pid, without.process.pid, seconds)
        yield _files(folder, "8 GPUs without activity counters", reach=True)
    with bed.exporter("--timeline", str(folder := folder.with_name("gpm")), gpm=1):
        time.sleep(3)
        yield _files(folder, "8 GPUs with activity counters", reach=False)


def _processes(bed: Bench, folder: Path, seconds: float, turns: int) -> Row:
    ours, theirs = [], []
    loaded = False
    for _ in range(turns):
        theirs.append(sum(float(told["cpu"]) for told in _run(bed, ["nvml"], seconds)))
        found = _run(bed, [f"node:{folder}#{index}" for index in range(_GPUS)], seconds)
        ours.append(sum(float(told["cpu"]) for told in found))
        loaded |= any(told["nvml"] for told in found)
        fewest = min(int(told["samples"]) for told in found) / seconds
    each = ", ".join(f"{a / b:.2f}" for a, b in zip(ours, theirs, strict=True))
    ratio = min(ours) / min(theirs)
    return Row(
        "8 processes that read the node's timeline at 10 Hz, a GPU each, C stub",
        f"{min(ours) * 100:.3f} % CPU together, {fewest:.0f} samples/s each, {'NVML loaded' if loaded else 'no NVML'}",
        f"one sampler that reads 8 GPUs through NVML: {min(theirs) * 100:.3f} %",
        f"{ratio:.2f}x (turns: {each})",
        f"<={_PROCESSES_REACH}x, NVML not loaded",
        ratio <= _PROCESSES_REACH and not loaded and fewest > 0,
        ratio,
    )


def _run(bed: Bench, specs: list[str], seconds: float) -> list[dict[str, Any]]:
    """Samplers, each a process of its own, at the same time."""
    with ExitStack() as stack:
        running = [stack.enter_context(bed.python(str(Path(__file__).resolve()), spec, str(seconds))) for spec in specs]
        found = []
        for process in running:
            assert process.stdout is not None
            found.append(json.loads(process.stdout.readline()))
        return found


def _keeping(with_it: int, without: int, seconds: float) -> Row:
    before = [sum(map(cpu_s, tree(pid))) for pid in (with_it, without)]
    time.sleep(3 * seconds)
    spent = [sum(map(cpu_s, tree(pid))) - told for pid, told in zip((with_it, without), before, strict=True)]
    ours, theirs = (cpu / (3 * seconds) * 100 for cpu in spent)
    return Row(
        "an exporter that keeps the node's timeline, 8 GPUs, 10 Hz, C stub, not scraped",
        f"{ours:.2f} % CPU",
        f"without it {theirs:.2f} %",
        f"{ours / theirs:.2f}x",
        "-",
        cost=ours / theirs,
    )


def _files(folder: Path, what: str, *, reach: bool) -> Row:
    files = list(folder.glob("*.ring"))
    mib = sum(path.stat().st_size for path in files) / (1 << 20)
    return Row(
        f"files of the node's timeline, {what}, 10 Hz, {_RETENTION_S} s",
        f"{mib:.1f} MiB when full, in {len(files)} files",
        reach=f"<={_REACH_MIB:g} MiB" if reach else "-",
        ok=len(files) == _GPUS and (mib <= _REACH_MIB or not reach),
        cost=mib,
    )


# ---------------------------------------------------------------------- in the child


def _child(spec: str, seconds: float) -> None:
    from gpu_profile.driver.grammar import open_driver
    from gpu_profile.sampling.sampler import Sampler

    spec, _, index = spec.partition("#")
    sampler = Sampler(
        lambda: open_driver(spec),
        interval_s=0.1,
        choose=None if not index else lambda _, devices: {devices[int(index)].uuid},
    )
    sampler.start()
    time.sleep(2.0)
    started, cpu, samples = time.monotonic(), time.process_time(), sampler.stats.samples
    time.sleep(seconds)
    share = (time.process_time() - cpu) / (time.monotonic() - started)
    told = {
        "cpu": share,
        "samples": sampler.stats.samples - samples,
        "nvml": "libnvidia-ml" in Path("/proc/self/maps").read_text(),
    }
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _child(sys.argv[1], float(sys.argv[2]))
    with bench() as bed:
        for row in rows(bed):
            print(row, flush=True)

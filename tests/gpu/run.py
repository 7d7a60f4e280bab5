"""`make gpu`: what a GPU's sensors say, how right this project is on it and what it costs; one folder, in 9 minutes.

It sets nothing on the card. Each stage is a process of its own; a part that hangs or ends it is given up, and the stage
goes on with the part after it.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

_TESTS: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_TESTS.parent / part) for part in ("instrumentation", "exporter", "tests")]

from gpu.folder import Folder  # noqa: E402
from gpu.stage import STAGES, parts_of  # noqa: E402

#: Seconds that a process may take to start, or a part beyond its limit.
_GRACE_S: Final = 30.0
#: An end of the budget leaves so much to pack what there is.
_PACKING_S: Final = 15.0


class Run:
    """The stages, one after the other, within a budget of seconds."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self._options, self._work = options, work
        self._end = time.monotonic() + options.budget_s - _PACKING_S
        self._folder = Folder(options.out)
        # Stages of an earlier call stay.
        before = self._folder.read()
        self._stages: dict[str, dict[str, Any]] = before.get("stages", {})
        self._record: dict[str, Any] = {
            **before,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "backend": options.backend.partition(":")[0],
            "scale": options.scale,
            "device": before.get("device", ""),
            "stages": self._stages,
        }

    def play(self, stage: str) -> None:
        """All parts of a stage that there is time for; its archive and the record are replaced at the end, however that
        comes."""
        parts = parts_of(stage)
        found = self._stages[stage] = {}
        left = [name for name in parts if not self._options.parts or name in self._options.parts]
        try:
            while left and time.monotonic() < self._end:
                left = self._process(stage, left)
        finally:
            for name in (name for name in left if name not in found):
                found[name] = {"about": parts[name].about, "skipped": "no time was left"}
            directory = self._work / stage
            if directory.is_dir():
                left_out = self._folder.pack(stage, directory)
                if left_out:
                    self._record.setdefault("left_out", {})[stage] = left_out
            self._write()

    def _process(self, stage: str, names: list[str]) -> list[str]:
        """One process for these parts; returns those that it did not come to."""
        parts, found, directory = parts_of(stage), self._stages[stage], self._work / stage
        command = [sys.executable, "-m", "gpu.stage", stage, str(directory), self._options.backend]
        command += [str(self._options.scale), *names]
        path = os.pathsep.join([*sys.path[:3], *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "GPU_PROFILE_CACHE": str(self._work / "cache")}
        directory.mkdir(parents=True, exist_ok=True)
        log = (directory / "log.txt").open("ab")
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, start_new_session=True
        )
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        left, running, why, limit, since = list(names), names[0], "", self._options.grace_s, time.monotonic()
        try:
            while not why:
                wait = min(since + limit, self._end) - time.monotonic()
                try:
                    line = lines.get(timeout=max(wait, 0.01))
                except queue.Empty:
                    why = f"no answer within {time.monotonic() - since:.0f} s; killed"
                    break
                word, _, name = line.strip().partition(" ")
                if word == "begin" and name in parts:
                    running, since = name, time.monotonic()
                    limit = parts[name].limit_s * self._options.scale + self._options.grace_s
                    print(f"{stage}: {name} …", flush=True)
                elif word == "end" and name in parts:
                    found[name] = json.loads((directory / f"{name}.json").read_text())
                    left.remove(name)
                    running, since = left[0] if left else "", time.monotonic()
                    limit = self._options.grace_s
                    self._write()
                elif not line:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(5.0)
                    why = f"its process ended with {process.returncode}"
        finally:
            _kill(process)
            log.close()
        if running in left:
            found[running] = {"about": parts[running].about, "failed": f"{why}: {_end_of(Path(log.name))}"}
            left.remove(running)
        return left

    def _write(self) -> None:
        machine = self._stages.get("sensors", {}).get("machine", {}).get("figures", {})
        for key in ("device", "driver", "cuda", "python"):
            if key in machine:
                self._record[key] = machine[key]
        self._folder.write(self._record)


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


def _kill(process: subprocess.Popen[str]) -> None:
    """The process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # One that the driver holds is left behind.
    with suppress(subprocess.TimeoutExpired):
        process.wait(5.0)


def _end_of(path: Path) -> str:
    return path.read_text(errors="replace").strip()[-500:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder for the results")
    parser.add_argument("--stages", default=",".join(STAGES), help="some of them, in this order")
    parser.add_argument("--parts", default="", help="only these parts of them")
    parser.add_argument("--backend", default="nvml", help="nvml, or simulated:DIR for a rehearsal")
    parser.add_argument("--scale", type=float, default=1.0, help="of all lengths")
    parser.add_argument("--budget-s", type=float, default=525.0, help="for everything")
    parser.add_argument("--grace-s", type=float, default=_GRACE_S, help="for a process to start, or a part to end late")
    options = parser.parse_args()
    stages, options.parts = options.stages.split(","), [each for each in options.parts.split(",") if each]
    if unknown := set(stages) - set(STAGES):
        parser.error(f"no stage {', '.join(sorted(unknown))}: there are {', '.join(STAGES)}")
    if unknown := set(options.parts) - {name for stage in stages for name in parts_of(stage)}:
        parser.error(f"no part {', '.join(sorted(unknown))} in {', '.join(stages)}")
    if not options.scale > 0:
        parser.error(f"--scale must be above 0, not {options.scale:g}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as work:
        run = Run(options, Path(work))
        for stage in stages:
            run.play(stage)
    print(f"results are in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

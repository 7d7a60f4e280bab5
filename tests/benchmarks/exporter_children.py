"""Exporters on the C stub as processes of their own, and what such processes use of the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple

from support.nvml_stub.build import build
from support.programs import ROOT, Exporter, environment, exporter

#: `stub.h` and `counts.c` say what it does.
_COUNT_SIGNAL: Final = signal.SIGRTMIN + 3


class Memory(NamedTuple):
    """MiB: what lies in RAM, and of that what no file holds."""

    resident: float
    anonymous: float


class Bench:
    """A directory with the stub, and processes that run on it. CannotBuildError without a compiler."""

    def __init__(self, directory: Path) -> None:
        self._counts = directory / "counts"
        self._counts.mkdir(parents=True, exist_ok=True)
        self.environment = {
            "LD_LIBRARY_PATH": os.fspath(build(directory / "stub").parent),
            "NVML_STUB_COUNTS": os.fspath(self._counts),
            # As installed: compiled. To compile at each start takes memory that stays.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": os.fspath(directory / "compiled"),
        }

    @contextmanager
    def exporter(self, *arguments: str, **stub: object) -> Iterator[Exporter]:
        """An exporter on the stub, which has 8 GPUs; `stub` are its settings, in lower case (`gpm=1`)."""
        variables = {f"NVML_STUB_{name.upper()}": str(value) for name, value in stub.items()}
        with exporter("--driver", "nvml", *arguments, **self.environment, **variables) as running:
            yield running

    def compile(self, *arguments: str) -> None:
        """Start such an exporter once, so that what it loads is compiled; those that are measured find it so."""
        with self.exporter(*arguments) as running:
            time.sleep(3)
            running.get("/metrics")

    @contextmanager
    def python(
        self, *arguments: str, errors: IO[str] | None = None, packages: str = "", **settings: str
    ) -> Iterator[subprocess.Popen[str]]:
        """Another Python process on the stub; its standard output is read by the caller.

        `packages` is a directory of packages that come before the installed ones.
        """
        variables = environment(**self.environment, **settings)
        variables["PYTHONPATH"] = f"{packages}{os.pathsep}{variables['PYTHONPATH']}{os.pathsep}{ROOT / 'tests'}"
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True, env=variables
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def calls(self, pid: int) -> dict[str, int]:
        """How often a process and its children have called each function of NVML."""
        found: dict[str, int] = {}
        for one in tree(pid):
            if not _counts_calls(one):
                continue
            told = self._counts / str(one)
            told.unlink(missing_ok=True)
            os.kill(one, _COUNT_SIGNAL)
            deadline = time.monotonic() + 5
            while not told.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            for line in told.read_text().splitlines() if told.exists() else ():
                name, n = line.split()
                found[name] = found.get(name, 0) + int(n)
        return found


@contextmanager
def bench() -> Iterator[Bench]:
    """A bench in a directory that is gone afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        yield Bench(Path(directory))


def _counts_calls(pid: int) -> bool:
    """Whether a process has the stub loaded, and a hand for the signal: it would end one that has none."""
    try:
        caught = next(
            line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")
        )
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (_COUNT_SIGNAL - 1) & 1)


def tree(pid: int) -> list[int]:
    """A process and all that come of it. A thread's children are listed with the thread that made them."""
    found = [pid]
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [one for child in listed.read_text().split() for one in tree(int(child))]
    return found


def machine_cpu_s() -> float:
    """CPU time of all processes of the machine since it started, in seconds."""
    fields = Path("/proc/stat").read_text().split(maxsplit=9)
    user, nice, system, _, _, irq, softirq = map(int, fields[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """CPU time of one process in seconds, threads that ended included: its clock, as Linux numbers them."""
    return time.clock_gettime((~pid << 3) | 2)


def memory(pids: Iterable[int]) -> Memory:
    """Of these processes; a page that several of them have counts once, as it lies in RAM once.

    What no file holds is shared by forked processes alone: the sum of the shares. Of a file, the process counts that
    has most of it: others that run the same program do not make it smaller.
    """
    anonymous, files = 0.0, dict[tuple[str, ...], float]()
    for pid in pids:
        place: tuple[str, ...] = ()
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            anonymous += int(line.split()[1]) / 1024 if line.startswith("Pss_Anon:") else 0.0
        for word, *words in map(str.split, Path(f"/proc/{pid}/smaps").read_text().splitlines()):
            if not word.endswith(":"):
                _, offset, device, inode, *_ = words
                place = (device, inode, offset)
            elif word == "Rss:":
                resident = int(words[0])
            elif word == "Anonymous:":
                files[place] = max(files.get(place, 0.0), (resident - int(words[0])) / 1024)
    return Memory(anonymous + sum(files.values()), anonymous)

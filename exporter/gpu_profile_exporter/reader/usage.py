"""What processes use of the machine, as Linux counts it: this one, and those that it started to read drivers."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from gpu_profile_exporter.naming.series import Series, TextFamily

_PROC: Final = Path("/proc")


class Usage(NamedTuple):
    """CPU time in seconds since the process started, memory in bytes."""

    cpu_s: float
    resident_bytes: int
    virtual_bytes: int
    start_ticks: int


def usage(pid: int | str = "self") -> Usage | None:
    """What a process uses; None if it is gone, or the system does not tell."""
    try:
        # The name of the program, in brackets, may hold anything.
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        user, system, start, virtual, pages = (int(fields[i]) for i in (11, 12, 19, 20, 21))
    except (OSError, ValueError, IndexError):
        return None
    return Usage((user + system) / _ticks_per_s(), pages * resource.getpagesize(), virtual, start)


def total(pids: Iterable[int]) -> Usage | None:
    """What these processes use together; None if there are none. `start_ticks` is the youngest's."""
    found = [use for pid in pids if (use := usage(pid)) is not None]
    if not found:
        return None
    cpu, resident, virtual, start = zip(*found, strict=True)
    return Usage(sum(cpu), sum(resident), sum(virtual), max(start))


def shared_bytes(pids: Iterable[int]) -> int | None:
    """Memory in RAM of these processes: a page that several processes of the machine have counts for each in part.

    None if there are none, or the system does not tell. It takes the kernel 0.5 ms a process.
    """
    found = [size for pid in pids if (size := _proportional_bytes(pid)) is not None]
    return sum(found) if found else None


def _proportional_bytes(pid: int) -> int | None:
    with suppress(OSError, StopIteration):
        lines = (_PROC / str(pid) / "smaps_rollup").read_bytes().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(b"Pss:"))
    return None


def ended_cpu_s() -> float:
    """CPU time of the processes that this one started and that have ended, in seconds."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def _gauge(name: str, unit: str, brief: str) -> Series:
    return Series(TextFamily(name, "gauge", brief, unit), (), 1.0)


#: The names under which every exporter tells what it uses itself.
PROCESS: Final = (
    Series(
        TextFamily("process_cpu_seconds_total", "counter", "CPU time of the exporter's own process", "seconds"), (), 1.0
    ),
    _gauge("process_resident_memory_bytes", "bytes", "Memory of the exporter's own process that lies in RAM"),
    _gauge("process_virtual_memory_bytes", "bytes", "Address space of the exporter's own process"),
    _gauge("process_start_time_seconds", "seconds", "When the exporter's process started, since the epoch"),
    _gauge("process_open_fds", "", "Files and sockets that the exporter's process holds open"),
    _gauge("process_max_fds", "", "Files and sockets that it may hold open"),
)


def process_values() -> tuple[float, ...]:
    """The values of `PROCESS`, in its order; empty if the system does not tell."""
    own = usage()
    if own is None:
        return ()
    try:
        boot_s = _boot_s()
        # The listing itself holds one open.
        files = len(os.listdir(_PROC / "self" / "fd")) - 1  # noqa: PTH208 - names alone are a third of the cost
    except (OSError, ValueError, StopIteration):
        return ()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    start_s = boot_s + own.start_ticks / _ticks_per_s()
    limit = float("inf") if most == resource.RLIM_INFINITY else float(most)
    return own.cpu_s, float(own.resident_bytes), float(own.virtual_bytes), start_s, float(files), limit


@cache
def _ticks_per_s() -> int:
    return os.sysconf("SC_CLK_TCK")


@cache
def _boot_s() -> float:
    """When the machine started, since the epoch; asked for again while the system does not tell."""
    lines = (_PROC / "stat").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("btime "))

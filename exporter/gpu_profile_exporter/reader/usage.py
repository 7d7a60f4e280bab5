"""CPU time and memory of processes, from /proc: of this one and of its reader processes."""

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
    """The usage of a process. None if it has ended or /proc is not readable."""
    try:
        # The program's name, in brackets, may contain any characters.
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        user, system, start, virtual, pages = (int(fields[i]) for i in (11, 12, 19, 20, 21))
    except (OSError, ValueError, IndexError):
        return None
    return Usage((user + system) / _ticks_per_s(), pages * resource.getpagesize(), virtual, start)


def blocked(pid: int) -> bool:
    """Whether a process waits for anything but a CPU. False if it has ended or /proc is not readable."""
    return _state(pid) in (b"S", b"D")


def stopped(pid: int) -> bool:
    """Whether a signal has stopped a process. False if it has ended or /proc is not readable."""
    return _state(pid) == b"T"


def _state(pid: int) -> bytes:
    try:
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return b""


def total(pids: Iterable[int]) -> Usage | None:
    """The sums over these processes. None if all have ended. `start_ticks` is that of the youngest."""
    uses = [use for pid in pids if (use := usage(pid)) is not None]
    if not uses:
        return None
    cpu, resident, virtual, start = zip(*uses, strict=True)
    return Usage(sum(cpu), sum(resident), sum(virtual), max(start))


def shared_bytes(pids: Iterable[int]) -> int | None:
    """Memory in RAM of these processes (PSS): a page shared by n processes counts as 1/n for each of them.

    None if all have ended, or /proc is not readable. The kernel needs 0.5 ms for each process.
    """
    sizes = [size for pid in pids if (size := _proportional_bytes(pid)) is not None]
    return sum(sizes) if sizes else None


def _proportional_bytes(pid: int) -> int | None:
    with suppress(OSError, StopIteration):
        lines = (_PROC / str(pid) / "smaps_rollup").read_bytes().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(b"Pss:"))
    return None


def ended_cpu_s() -> float:
    """CPU time in seconds of this process's children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def _gauge(name: str, unit: str, brief: str) -> Series:
    return Series(TextFamily(name, "gauge", brief, unit), (), 1.0)


#: The metrics of its own process that every Prometheus exporter publishes.
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
    """The values of `PROCESS`, in its order. Empty if /proc is not readable."""
    own = usage()
    if own is None:
        return ()
    try:
        boot_s = _boot_s()
        # The listing itself opens one.
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
    """The machine's start, in seconds since the epoch. An exception is not cached."""
    lines = (_PROC / "stat").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("btime "))

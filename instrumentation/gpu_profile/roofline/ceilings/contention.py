"""How long this process's threads waited for a processor that others had: Linux's own count."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns
from typing import Final

PROCESS: Final = Path("/proc/self")


class Contention:
    """Counts from when it is made. `process` is the process's folder in `/proc`."""

    def __init__(self, process: Path = PROCESS) -> None:
        self._process = process
        self._before, self._since_ns = _waited(process), perf_counter_ns()

    def share(self) -> float:
        """The part of the time since then that the thread that waited most has waited; 0 if Linux does not count it."""
        passed_ns = max(1, perf_counter_ns() - self._since_ns)
        longest = max((ns - self._before.get(thread, 0) for thread, ns in _waited(self._process).items()), default=0)
        return min(1.0, longest / passed_ns)


def _waited(process: Path) -> dict[str, int]:
    """Nanoseconds by thread: the second number of `schedstat` is the time spent ready, but not running."""
    found = {}
    for thread in process.glob("task/[0-9]*"):
        try:
            found[thread.name] = int((thread / "schedstat").read_text().split()[1])
        except (OSError, ValueError, LookupError):  # ended meanwhile, or a kernel without these counts
            continue
    return found

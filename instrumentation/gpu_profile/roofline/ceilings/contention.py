"""How long this process's threads waited for a processor that other programs used, as Linux counts it."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns
from typing import Final

PROCESS: Final = Path("/proc/self")


class Contention:
    """Counts from its creation on. `process`: the process's folder in `/proc`."""

    def __init__(self, process: Path = PROCESS) -> None:
        self._process = process
        self._before, self._since_ns = _waited(process), perf_counter_ns()

    def share(self) -> float:
        """The share of the time since creation that the longest waiting thread waited. 0 if Linux does not count it."""
        passed_ns = max(1, perf_counter_ns() - self._since_ns)
        longest = max((ns - self._before.get(thread, 0) for thread, ns in _waited(self._process).items()), default=0)
        return min(1.0, longest / passed_ns)


def _waited(process: Path) -> dict[str, int]:
    """Thread -> nanoseconds ready but not running, the second number of `schedstat`."""
    waited = {}
    for thread in process.glob("task/[0-9]*"):
        try:
            waited[thread.name] = int((thread / "schedstat").read_text().split()[1])
        except (OSError, ValueError, LookupError):  # the thread has ended, or the kernel has no such counts
            continue
    return waited

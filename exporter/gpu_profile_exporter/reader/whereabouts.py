"""Where a reader process is right now, in memory that it shares with its keeper: what hangs cannot send anything.

One word of three numbers: the GPU that is being talked to (its NVML index), since when (monotonic ns; 0: none)
and for how long that may take (ns). The writer puts the moment last and takes it away first, so that a reader never
pairs one GPU with another's moment.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import Any, Final, NamedTuple

_SIZE: Final = 24
_PLACE, _SINCE, _LIMIT = range(3)
#: Not a GPU: the driver as a whole is being started or asked.
DRIVER: Final = -1
#: The look for events of all GPUs.
EVENTS: Final = -3
#: A device that has no index.
ELSEWHERE: Final = -2


class Where(NamedTuple):
    """What is being talked to: the NVML index of a GPU, or `DRIVER`; for how long, and whether that is too long.

    `slow`: half as long as that, which is long enough for others not to wait any more.
    """

    gpu: int
    seconds: float
    late: bool
    slow: bool = False


class Whereabouts:
    """The shared word. `create()` makes one, `Whereabouts(fd)` opens what another process made."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, _SIZE)
        self._words: Any = memoryview(self._map).cast("q")

    @classmethod
    def create(cls) -> Whereabouts:
        """A new word in anonymous memory."""
        fd = os.memfd_create("gpu-profile-reader")
        os.ftruncate(fd, _SIZE)
        return cls(fd)

    def enter(self, index: int, limit_s: float) -> None:
        """From now on, this is being talked to, which should take no longer than `limit_s`."""
        words = self._words
        words[_SINCE] = 0
        words[_PLACE] = index
        words[_LIMIT] = int(limit_s * 1e9)
        words[_SINCE] = time.monotonic_ns()

    def leave(self) -> None:
        """Nothing is being talked to."""
        self._words[_SINCE] = 0

    def now(self) -> Where | None:
        """What is being talked to; None if nothing is."""
        words = self._words
        since, index, limit = words[_SINCE], words[_PLACE], words[_LIMIT]
        if not since or words[_SINCE] != since:
            return None
        waited = time.monotonic_ns() - since
        return Where(index, waited / 1e9, waited > limit, 2 * waited > limit)

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._map.close()
        os.close(self.fd)

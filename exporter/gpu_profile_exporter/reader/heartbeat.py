"""The call in progress of a reader process, in memory shared with the supervisor: a hanging process sends no messages.

Four 64-bit integers: the NVML index of the GPU that is being called, the start of the call (monotonic ns; 0: none), its
time limit (ns), and the end of the last turn (monotonic ns; 0: none yet). The writer clears the start first and sets it
last, so that a reader never pairs one GPU with another's start.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

_SIZE: Final = 32
_PLACE, _SINCE, _LIMIT, _TURNED = range(4)
#: Not a GPU: a call that starts or queries the driver as a whole.
DRIVER: Final = -1
#: Not a GPU: the poll for events of all GPUs.
EVENTS: Final = -3
#: A device without an index.
ELSEWHERE: Final = -2


class CallInProgress(NamedTuple):
    """A call in progress: the NVML index of a GPU, or `DRIVER`, and the duration so far. `late`: above its limit.

    `slow`: other GPUs should not wait for it any more.
    """

    gpu: int
    seconds: float
    late: bool
    slow: bool = False


class Heartbeat:
    """The shared memory. `create()` allocates it, `Heartbeat(fd)` opens that of another process."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, _SIZE)
        self._words: Any = memoryview(self._map).cast("q")

    @classmethod
    def create(cls) -> Heartbeat:
        """Allocate anonymous memory."""
        fd = os.memfd_create("gpu-profile-reader")
        os.ftruncate(fd, _SIZE)
        return cls(fd)

    def enter(self, index: int, limit_s: float) -> None:
        """Publish the start of a call to this GPU, with its time limit in seconds."""
        words = self._words
        words[_SINCE] = 0
        words[_PLACE] = index
        words[_LIMIT] = int(limit_s * 1e9)
        words[_SINCE] = time.monotonic_ns()

    def leave(self) -> None:
        """Publish that no call is in progress."""
        self._words[_SINCE] = 0

    def turn(self) -> None:
        """Publish the end of a turn. A message would wake the supervisor, which costs more than the turn."""
        self._words[_TURNED] = time.monotonic_ns()

    @property
    def turned(self) -> float:
        """The end of the last turn, in monotonic seconds. 0 before the first."""
        return float(self._words[_TURNED] / 1e9)

    def now(self, blocked: Callable[[], bool] = lambda: False) -> CallInProgress | None:
        """The call in progress. None if there is none.

        It is slow above half its limit, and above a fifth if `blocked()`: its process waits, and not for a CPU.
        """
        words = self._words
        since, index, limit = words[_SINCE], words[_PLACE], words[_LIMIT]
        if not since or words[_SINCE] != since:
            return None
        waited = time.monotonic_ns() - since
        slow = 2 * waited > limit or (5 * waited > limit and blocked())
        return CallInProgress(index, waited / 1e9, waited > limit, slow)

    def close(self) -> None:
        """Unmap the memory and close its file descriptor."""
        self._words.release()
        self._map.close()
        os.close(self.fd)

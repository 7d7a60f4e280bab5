"""Who records GPU operations while a program runs: PyTorch's profiler, or CUPTI by itself."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

from gpu_profile.errors import GpuBackendError
from gpu_profile.kernels.records import Record

#: What ends the recordings that are still open when the process ends.
ENDERS: Final[set[Callable[[], None]]] = set()


def _end_all() -> None:
    for end in tuple(ENDERS):
        with suppress(Exception):
            end()


# Here, as what is registered later is called earlier: who stops a source at the exit still gets its records.
atexit.register(_end_all)


class WrongThreadError(GpuBackendError):
    """The profiler goes on, for only the thread that started it may stop it."""


class ProfilerSource(Protocol):
    """A profiler that records from `start` to `stop`, as often as it is asked to.

    `dropped` is how many records it lost in the last recording (None: it cannot tell), and `problem` what else went
    wrong ("": nothing); both are known once the records are read. `pushes`: `push` and `pop` do something.
    """

    name: str
    problem: str
    pushes: bool

    @property
    def dropped(self) -> int | None:
        """As above."""
        ...

    def start(self) -> None:
        """Record from now on; GpuBackendError with the reason, and what to do, if it cannot."""
        ...

    def stop(self) -> Iterable[Record]:
        """End, and give the records, once; they may be read in another thread.

        Raises WrongThreadError in a thread that may not end it, GpuBackendError if the records are lost; reading raises
        UsageError where records cannot be read.
        """
        ...

    def push(self, range_id: int) -> None:
        """The calling thread's calls are made inside this range, from now until the matching `pop`."""
        ...

    def pop(self) -> None:
        """The calling thread leaves the range that it entered last."""
        ...


def has_driver() -> bool:
    """Whether the CUDA driver's library can be loaded; nothing in it is called."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True

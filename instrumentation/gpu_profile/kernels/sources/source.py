"""The interface of sources, which record GPU operations while a program runs."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

from gpu_profile.errors import GpuBackendError
from gpu_profile.kernels.records import Record

#: Functions that end the recordings that are still open when the process ends.
ENDERS: Final[set[Callable[[], None]]] = set()


def _end_all() -> None:
    for end in tuple(ENDERS):
        with suppress(Exception):
            end()


# At import, because later registrations run earlier: a caller that stops a source at exit still gets its records.
atexit.register(_end_all)


class WrongThreadError(GpuBackendError):
    """The profiler continues: only the thread that started it may stop it."""


class ProfilerSource(Protocol):
    """A profiler that records from `start` to `stop`, any number of times.

    `dropped` is the number of records that it lost in the last recording (None: unknown). `problem` describes any other
    failure ("": none). Both are complete once the records are read. `pushes`: `push` and `pop` have an effect.
    """

    name: str
    problem: str
    pushes: bool

    @property
    def dropped(self) -> int | None:
        """See the class."""
        ...

    def start(self) -> None:
        """Record from now on; GpuBackendError with the reason and the remedy if it cannot."""
        ...

    def stop(self) -> Iterable[Record]:
        """End, and return the records, once; they may be read in another thread.

        Raises WrongThreadError in a thread that may not end it, GpuBackendError if the records are lost. Reading raises
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

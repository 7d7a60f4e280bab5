"""Who records GPU operations while a program runs: PyTorch's profiler, or CUPTI by itself."""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

from gpu_profile.errors import GpuBackendError, UsageError
from gpu_profile.kernels.records import Record

#: What can be asked for by name.
SPECS: Final = ("auto", "torch", "cupti")
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


class Source(Protocol):
    """A profiler that records from `start` to `stop`, as often as it is asked to.

    `dropped` is how many records it lost in the last recording, known once that is read; None: it cannot tell.
    `pushes`: `push` and `pop` do something.
    """

    name: str
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


def check_spec(spec: str) -> None:
    """UsageError for a name that is none."""
    if spec not in SPECS:
        raise UsageError(f"no source of kernel records is named {spec!r}: choose among {', '.join(SPECS)}")


def open_source(spec: str = "auto") -> Source:
    """The source of this name; `auto` is PyTorch's profiler if the program has imported PyTorch, else CUPTI.

    Raises UsageError for a name that is none, GpuBackendError with what is missing and what to install.
    """
    check_spec(spec)
    if spec == "torch" or (spec == "auto" and "torch" in sys.modules):
        from gpu_profile.kernels.sources.torch_source import TorchSource

        return TorchSource()
    if spec == "auto":
        _require_cupti()
    from gpu_profile.kernels.sources.cupti import CuptiSource

    return CuptiSource()


def _require_cupti() -> None:
    if importlib.util.find_spec("cupti") is None:
        missing = "cupti-python is not installed"
    elif not has_driver():
        missing = "there is no CUDA driver (libcuda.so.1)"
    else:
        return
    raise GpuBackendError(
        f"nothing can record kernels: the program has not imported PyTorch, and {missing}; "
        "import torch first, or pip install 'gpu-profile[cupti]' where there is an NVIDIA driver"
    )


def has_driver() -> bool:
    """Whether the CUDA driver's library can be loaded; nothing in it is called."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True

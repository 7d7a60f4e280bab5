"""The host as a machine for plain callables, timed by its own clock. Needs neither PyTorch nor NumPy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from resource import RUSAGE_SELF, getrusage
from time import perf_counter
from typing import Final, TypeVar

from gpu_profile.errors import UsageError
from gpu_profile.roofline.machines import processor
from gpu_profile.roofline.machines.machine import Memory, Timing
from gpu_profile.units import MIB

T = TypeVar("T")

#: Variables that limit the threads of NumPy's libraries for linear algebra.
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
#: Bytes of one copy. Copies of this size go through the caches, large ones write past them.
_PIECE: Final = 64 << 10


class Host:
    """The processor of this process as a `Machine`. The constructor reads its cores and caches once.

    `device`: its name for `devices.machine`.
    """

    kind = "host"
    device = "host"
    uuid: str | None = None
    region_device: int | str | None = None

    def __init__(self) -> None:
        self.processor: Final = processor.processor()
        self._buffer: bytearray | None = None

    @property
    def name(self) -> str:
        """The processor's name."""
        return self.processor.name

    @property
    def key(self) -> Mapping[str, str]:
        """The processor, the cores that this process may use, NumPy's version, and its numbers of threads if set."""
        key = {"processor": self.processor.name, "cores": f"{self.processor.cores:g}"}
        key |= {name: os.environ[name] for name in _THREADS if name in os.environ}
        return key | ({"numpy": version} if (version := _version("numpy")) else {})

    @property
    def cache_bytes(self) -> int | None:
        """Bytes of the last-level caches of all the process's cores together. None if unknown."""
        return self.processor.cache_bytes

    def run(self, call: Callable[[], T]) -> tuple[T, Timing]:
        """Call once and time it by the host's clock; `device_s` and `host_s` are equal. Exceptions propagate."""
        faults = getrusage(RUSAGE_SELF).ru_minflt
        before = perf_counter()
        result = call()
        took = perf_counter() - before
        return result, Timing(took, took, getrusage(RUSAGE_SELF).ru_minflt - faults)

    def flush(self) -> None:
        """Overwrite the caches of the calling thread's core, and shared caches, through a buffer that is kept.

        Raises UsageError if there is no memory for the buffer.
        """
        if self._buffer is None:
            self._buffer = allocated(bytearray, flush_bytes(self.cache_bytes), self.device)
        piece = bytes(_PIECE)
        with memoryview(self._buffer) as view:
            for start in range(0, len(view), _PIECE):
                view[start : start + _PIECE] = piece[: len(view) - start]

    def memory(self) -> Memory | None:
        """The host's memory and this process's part; see `processor.memory`."""
        return processor.memory()


def flush_bytes(cache_bytes: int | None) -> int:
    """Bytes that displace a cache's content: 4 times its size, as it replaces lines in any order; at least 128 MiB."""
    return max(4 * (cache_bytes or 0), 128 * MIB)


def allocated(allocate: Callable[[int], T], size: int, device: str) -> T:
    """The result of `allocate(size)`. Raises UsageError if `device` has no memory for it."""
    try:
        return allocate(size)
    # PyTorch and CuPy raise one or the other if there is no memory.
    except (MemoryError, RuntimeError) as error:
        reason = str(error).partition("\n")[0] or "no memory"
        raise UsageError(
            f"{device}: no {size // MIB} MiB to overwrite its caches with: {reason}; free memory, or leave out flush"
        ) from error


@cache
def _version(package: str) -> str:
    """The version of an installed package, without importing it; '' if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""

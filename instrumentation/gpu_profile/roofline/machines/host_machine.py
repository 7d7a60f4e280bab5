"""The host as a machine for plain callables: its own clock, its own memory; neither PyTorch nor NumPy is needed."""

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

#: How many threads NumPy's libraries for linear algebra may use.
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
#: In pieces of this size a copy goes through the caches; large ones write past them.
_PIECE: Final = 64 << 10


class Host:
    """The processor that this process runs on, as `Machine`; what it has is found once, when it is made.

    `device` is what `machines.machine` takes for it.
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
        """The processor's."""
        return self.processor.name

    @property
    def key(self) -> Mapping[str, str]:
        """The processor, the cores that this process may use, NumPy's version and its number of threads where set."""
        found = {"processor": self.processor.name, "cores": f"{self.processor.cores:g}"}
        found |= {name: os.environ[name] for name in _THREADS if name in os.environ}
        return found | ({"numpy": version} if (version := _version("numpy")) else {})

    @property
    def cache_bytes(self) -> int | None:
        """The last-level cache, of all the process's cores together."""
        return self.processor.cache_bytes

    def run(self, call: Callable[[], T]) -> tuple[T, Timing]:
        """Call once and time it by the host's clock: both times are the same. Its exceptions pass through."""
        faults = getrusage(RUSAGE_SELF).ru_minflt
        before = perf_counter()
        result = call()
        took = perf_counter() - before
        return result, Timing(took, took, getrusage(RUSAGE_SELF).ru_minflt - faults)

    def flush(self) -> None:
        """Overwrite the caches of the calling thread's core, and those that it shares, through a buffer that is kept.

        UsageError if there is no memory for it.
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
    """How many bytes displace a cache of so many, which replaces in no order: 4 times as many, at least 128 MiB."""
    return max(4 * (cache_bytes or 0), 128 * MIB)


def allocated(allocate: Callable[[int], T], size: int, device: str) -> T:
    """The buffer of `size` bytes that `allocate` gives. UsageError if `device` has no room for it."""
    try:
        return allocate(size)
    # PyTorch's and CuPy's errors of this kind are one or the other.
    except (MemoryError, RuntimeError) as error:
        reason = str(error).partition("\n")[0] or "no memory"
        raise UsageError(
            f"{device}: no {size // MIB} MiB to overwrite its caches with: {reason}; free memory, or leave out flush"
        ) from error


@cache
def _version(package: str) -> str:
    """Looked up among what is installed, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""

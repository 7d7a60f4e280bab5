"""What operations run on, as the profiler needs it: one protocol for PyTorch's devices, CuPy's, and the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Timing(NamedTuple):
    """How long one call took, in seconds.

    `device_s`: on the device, by its own events; by the host's clock where the host is the device.
    `host_s`: until the call returned; what it launched may have run on. `faults`: pages of the host's memory that the
    process touched for the first time meanwhile, each of which the kernel had to find and clear; counted where the host
    is the device.
    """

    device_s: float
    host_s: float
    faults: int = 0


class Memory(NamedTuple):
    """Device memory now, in bytes. `allocated` and `peak` are this process's allocator's, `reserved` what it holds.

    `total` and `free` are the device's, whoever uses it.
    """

    allocated: int
    reserved: int
    peak: int
    free: int
    total: int


class Machine(Protocol):
    """A device that calls are timed on."""

    @property
    def kind(self) -> str:
        """`cuda`, `cpu`, … as PyTorch says it, or `cupy`, `host`."""
        ...

    @property
    def device(self) -> str:
        """The kind with the device's number, if it has one: `cuda:0`."""
        ...

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def uuid(self) -> str | None:
        """As NVML gives it, `GPU-…`; None if it is no GPU or the framework does not tell."""
        ...

    @property
    def region_device(self) -> int | str | None:
        """What `region(device=...)` takes; None for the host."""
        ...

    @property
    def key(self) -> Mapping[str, str]:
        """Everything that calibrated ceilings hold for, by name: UUID, driver, clocks, versions, threads."""
        ...

    @property
    def cache_bytes(self) -> int | None:
        """The last-level cache; None if not known."""
        ...

    def run(self, call: Callable[[], T]) -> tuple[T, Timing]:
        """Call once, wait until the device has done it, and say how long it took. Its exceptions pass through."""
        ...

    def flush(self) -> None:
        """Overwrite the caches, so that what is read next comes from memory, and wait until that is done.

        A call behind one that still runs would be launched meanwhile, and its launch would cost nothing.
        """
        ...

    def memory(self) -> Memory | None:
        """Device memory now; None if the framework does not tell."""
        ...

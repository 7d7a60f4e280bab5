"""The profiler's view of a device: one protocol for PyTorch's devices, CuPy's, and the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Timing(NamedTuple):
    """The duration of one call, in seconds.

    `device_s`: on the device, by its own events; by the host's clock if the host is the device. `host_s`: until the
    call returned; its kernels may still have been running. `faults`: pages of host memory that the process touched for
    the first time in the call, each of which the operating system had to find and clear. They are counted only if the
    host is the device.
    """

    device_s: float
    host_s: float
    faults: int = 0


class Memory(NamedTuple):
    """Device memory at present, in bytes.

    `allocated`: in use in this process's allocator; `peak`: the highest value of that. `reserved`: all memory of the
    allocator, with unused blocks. `total` and `free`: of the device, for all processes.
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
        """PyTorch's type of device (`cuda`, `cpu`, …), or `cupy`, or `host`."""
        ...

    @property
    def device(self) -> str:
        """The kind with the device's number, if it has one: `cuda:0`."""
        ...

    @property
    def name(self) -> str:
        """The product's name."""
        ...

    @property
    def uuid(self) -> str | None:
        """NVML's UUID, `GPU-…` or `MIG-…`. None if the machine is no NVIDIA GPU or its UUID is unknown."""
        ...

    @property
    def region_device(self) -> int | str | None:
        """The value for `region(device=...)`. None if regions cannot read the device, such as the host."""
        ...

    @property
    def key(self) -> Mapping[str, str]:
        """The conditions for which calibrated ceilings are valid, by name: UUID, driver, clocks, versions, threads."""
        ...

    @property
    def cache_bytes(self) -> int | None:
        """Bytes of the last-level cache. None if unknown."""
        ...

    def run(self, call: Callable[[], T]) -> tuple[T, Timing]:
        """Call once and wait until the device is done. Returns the result and the timing. Exceptions propagate."""
        ...

    def flush(self) -> None:
        """Overwrite the caches, so that the next reads come from memory, and wait until the device is done.

        Without the wait, the next call would be launched while the device is busy, and its launch would cost nothing.
        """
        ...

    def memory(self) -> Memory | None:
        """Device memory at present. None if the framework does not report it."""
        ...

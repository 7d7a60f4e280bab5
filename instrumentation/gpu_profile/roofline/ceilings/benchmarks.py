"""The operations that a calibration runs on a device: one protocol for all libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

from gpu_profile.roofline.precision import Precision

Call = Callable[[], object]

#: Bytes of the two factors and the product together, per element of one of them.
ELEMENT_BYTES: Final = {
    Precision.FP64: 24,
    Precision.FP32: 12,
    Precision.TF32: 12,
    Precision.BF16: 6,
    Precision.FP16: 6,
    Precision.FP8: 4,
    Precision.INT8: 6,
}
#: Rows and columns of a block of random numbers. Matrices repeat it; all their sizes are multiples of it. Equal numbers
#: would draw less power, so that the clocks stayed higher than with a user's data.
BLOCK: Final = 256


class BenchmarkCall(NamedTuple):
    """A call and the bytes that it moves, as STREAM counts them: only those of the arrays, without write-allocate."""

    bytes: int
    call: Call


class Benchmarks(Protocol):
    """The operations of one library on a device. Arrays on the device live as long as the calls that use them."""

    def caches(self) -> list[tuple[str, int]]:
        """`(name, bytes)` of the caches that `traffic` passes, smallest first, if the system reports them."""
        ...

    def precisions(self) -> Mapping[Precision, str]:
        """All number formats, each with the reason why it cannot be measured, or ''."""
        ...

    def undisturbed(self) -> AbstractContextManager[None]:
        """A context in which the user's settings do not affect the benchmarks. It restores settings that it changes.

        At its end, memory that was allocated in it returns to the device, not to an allocator of this process.
        """
        ...

    def arithmetic(self, precision: Precision) -> AbstractContextManager[None]:
        """A context in which products are computed in this format and in no cheaper one."""
        ...

    def traffic(self, size: int) -> list[BenchmarkCall]:
        """Calls that move data within three arrays of `size` bytes together."""
        ...

    def product(self, precision: Precision, n: int) -> Call:
        """A product of two matrices of `n` rows and columns: 2 n³ operations."""
        ...

    def nothing(self) -> Call:
        """An operation on one element."""
        ...

    def small(self) -> list[Call]:
        """Typical operations on so few elements that neither FLOPs nor bytes take noticeable time."""
        ...

    def fresh(self, size: int) -> Call:
        """A call that creates and writes an array of `size` bytes."""
        ...

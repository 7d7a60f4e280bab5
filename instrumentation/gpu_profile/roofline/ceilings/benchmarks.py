"""What a device is given to do while it is calibrated: one protocol for the libraries that can do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

from gpu_profile.roofline.precision import Precision

Call = Callable[[], object]

#: Bytes of the two factors and the product, per element of one.
ELEMENT_BYTES: Final = {
    Precision.FP64: 24,
    Precision.FP32: 12,
    Precision.TF32: 12,
    Precision.BF16: 6,
    Precision.FP16: 6,
    Precision.FP8: 4,
    Precision.INT8: 6,
}
#: Random numbers are made for so many rows and columns and repeated; all sizes of matrices are multiples of it. Equal
#: numbers would not do: they need less power, so that the clocks stay higher than with a user's data.
BLOCK: Final = 256


class BenchmarkCall(NamedTuple):
    """A call and the bytes that it moves, as STREAM counts them: what is read and written, not what the caches do."""

    bytes: int
    call: Call


class Benchmarks(Protocol):
    """What one library can have a device do. What it makes on the device lives as long as the calls that it returns."""

    def caches(self) -> list[tuple[str, int]]:
        """Names and bytes of the caches that `traffic` goes through, the smallest first, as far as they are known."""
        ...

    def precisions(self) -> Mapping[Precision, str]:
        """All number formats, and why one cannot be measured; '' for those that can."""
        ...

    def undisturbed(self) -> AbstractContextManager[None]:
        """While this lasts, no setting of the user's changes what is run, nor is one changed for longer.

        What was allocated meanwhile goes back to the device at its end, not to an allocator of this process.
        """
        ...

    def arithmetic(self, precision: Precision) -> AbstractContextManager[None]:
        """While this lasts, products are computed in this format and no cheaper one."""
        ...

    def traffic(self, size: int) -> list[BenchmarkCall]:
        """Ways to move data within three arrays of `size` bytes in all."""
        ...

    def product(self, precision: Precision, n: int) -> Call:
        """A product of two matrices of `n` rows and columns: 2 n³ operations."""
        ...

    def nothing(self) -> Call:
        """An operation on one element."""
        ...

    def small(self) -> list[Call]:
        """Operations as users have them, on so few elements that neither FLOPs nor bytes take any time."""
        ...

    def fresh(self, size: int) -> Call:
        """An array of `size` bytes that is made and written."""
        ...

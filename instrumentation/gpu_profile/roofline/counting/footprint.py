"""The amount of distinct memory that operations touch: addresses with extents, overlaps counted once. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: The largest number of addresses. Beyond it, overlapping stretches are joined.
ADDRESSES: Final = 1 << 16


class Footprint:
    """Touched addresses. Each has a span, in bytes up to the end of the last element, and the bytes touched in it."""

    def __init__(self, addresses: int = ADDRESSES) -> None:
        self._most = addresses
        self._touched: dict[int, tuple[int, int]] = {}
        self._lost = False

    def touch(self, addresses: Iterable[int], extents: list[tuple[int, int]]) -> None:
        """Record memory at these addresses. An address that is already recorded keeps the larger extent."""
        touched = self._touched
        for address, extent in zip(addresses, extents, strict=True):
            if (recorded := touched.get(address)) is None or recorded < extent:
                touched[address] = extent
        if len(touched) > self._most:
            self._join()

    def lose(self) -> None:
        """From now on the size is unknown."""
        self._lost = True
        self._touched.clear()

    def size(self) -> int | None:
        """Bytes of all distinct memory. None if there were too many addresses, or if some are unknown."""
        if self._lost:
            return None
        return sum(distinct for _, _, distinct in self._joined())

    def _joined(self) -> list[tuple[int, int, int]]:
        """`(address, end, distinct bytes)` of each stretch. Parts that overlap or touch are one stretch."""
        joined: list[tuple[int, int, int]] = []
        for address, (span, distinct) in sorted(self._touched.items()):
            if joined and address <= joined[-1][1]:
                start, end, before = joined[-1]
                end = max(end, address + span)
                joined[-1] = start, end, min(end - start, before + distinct)
            else:
                joined.append((address, address + span, distinct))
        return joined

    def _join(self) -> None:
        joined = self._joined()
        self._touched = {start: (end - start, distinct) for start, end, distinct in joined}
        if len(self._touched) > self._most // 2:
            self.lose()

"""A set of hashes that numpy looks up many at a time, so that they wait for memory together."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

_FIRST_BITS: Final = 12
#: Places in the table for each hash, at least.
_SPARSE: Final = 4


class HashSet:
    """A growing set of hashes of 64 bits, with room for `expected` ones from the beginning."""

    def __init__(self, expected: int = 0) -> None:
        self._n = 0
        self._clear(expected)

    def __len__(self) -> int:
        """How many were added, repeated ones included."""
        return self._n

    def _clear(self, expected: int) -> None:
        bits = max(_FIRST_BITS, (expected * _SPARSE).bit_length())
        self._shift = np.uint64(64 - bits)
        #: The first hash of each place, 0 for none. A place is the highest bits of a hash.
        self._table: Hashes = np.zeros(1 << bits, np.uint64)
        #: Hashes whose places are taken.
        self._others = set[int]()

    def overlaps(self, hashes: Hashes) -> bool:
        """Whether any of these was added. A hash of 0 counts as 1, because 0 is an empty place."""
        hashes = np.maximum(hashes, 1)
        present = self._table[hashes >> self._shift]
        if (present == hashes).any():
            return True
        return bool(self._others) and not self._others.isdisjoint(hashes[present != 0].tolist())

    def add(self, hashes: Hashes) -> None:
        """Add these."""
        self._n += len(hashes)
        hashes = np.maximum(hashes, 1)
        if self._n * _SPARSE > len(self._table):
            others = np.fromiter(self._others, np.uint64, len(self._others))
            hashes = np.concatenate((self._table[self._table != 0], others, hashes))
            self._clear(self._n)
        places = hashes >> self._shift
        free = self._table[places] == 0
        self._table[places[free]] = hashes[free]
        self._others.update(hashes[self._table[places] != hashes].tolist())

"""Searches the bytes of requests with numpy, which compares many at once. `bytes.find` takes ten times as long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Ints


class RareText(NamedTuple):
    """A text to search for, and two adjacent bytes of it that few requests contain."""

    text: bytes
    pair: bytes

    def is_in(self, data: bytes) -> bool:
        """Whether `data` contains the text."""
        return any(equal.any() for equal in _equal(data, self.pair)) and self.text in data


def places_of(text: bytes, data: bytes) -> Ints:
    """The offsets in `data` of a text of at least two bytes, in order."""
    even, odd = (2 * np.flatnonzero(equal) for equal in _equal(data, text[:2]))
    places = np.sort(np.concatenate((even, odd + 1)))
    places = places[places <= len(data) - len(text)]
    octets = np.frombuffer(data, np.uint8)
    for i, byte in enumerate(text[2:], 2):
        places = places[octets[places + i] == byte]
    return places


def _equal(data: bytes, pair: bytes) -> Iterator[npt.NDArray[np.bool_]]:
    """Whether the two bytes at each even offset, then at each odd one, are `pair`."""
    wanted = int.from_bytes(pair, "little")
    for first in (0, 1):
        if len(data) < 2 + first:
            yield np.zeros(0, np.bool_)
        else:
            yield np.frombuffer(data, "<u2", (len(data) - first) // 2, first) == wanted

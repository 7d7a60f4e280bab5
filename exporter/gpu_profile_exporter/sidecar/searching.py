"""Searches the bytes of requests with numpy, which compares many at once. `bytes.find` takes ten times as long."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpu_profile.history.timeline import Ints


class RareText(NamedTuple):
    """A text of at least two bytes. `pair`: the place in it of two adjacent bytes that requests rarely contain."""

    text: bytes
    pair: int = 0

    def is_in(self, data: bytes) -> bool:
        """Whether `data` contains the text."""
        return len(self.places(data)) > 0

    def places(self, data: bytes) -> Ints:
        """The offsets of the text in `data`, in order."""
        octets = np.frombuffer(data, np.uint8)
        pair = int.from_bytes(self.text[self.pair : self.pair + 2], "little")
        at_pair = []
        for first in (0, 1):
            equal = octets[first : first + (len(data) - first) // 2 * 2].view("<u2") == pair
            if equal.any():  # a tenth of the time of `flatnonzero`
                at_pair.append(2 * np.flatnonzero(equal) + (first - self.pair))
        if not at_pair:
            return np.zeros(0, np.int64)
        places = np.sort(np.concatenate(at_pair))
        places = places[(places >= 0) & (places <= len(data) - len(self.text))]
        for i, byte in enumerate(self.text):
            if i - self.pair not in (0, 1):
                places = places[octets[places + i] == byte]
        return places

"""A series of ratios as a line of text, one character for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: The characters of the eight heights.
HEIGHTS: Final = "▁▂▃▄▅▆▇█"


def sparkline(ratios: Iterable[float | None]) -> str:
    """Each ratio of 0-1 as a height; a blank for an unknown one. Ratios outside are drawn at the nearest edge."""
    return "".join(" " if ratio is None else _height(ratio) for ratio in ratios)


def _height(ratio: float) -> str:
    return HEIGHTS[min(len(HEIGHTS) - 1, max(0, int(ratio * len(HEIGHTS))))]

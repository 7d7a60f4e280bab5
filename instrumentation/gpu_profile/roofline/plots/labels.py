"""Where labels go beside the points of a plot, so that none covers another, a point or the edge. Pure geometry."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

_DIRECTIONS: Final = 16
#: Steps away from a point, in the label's own heights: near ones first, since a label far away needs a line.
_STEPS: Final = (0.25, 0.6, 1.2, 2.0, 3.0, 4.5, 6.5, 9.0, 12.0, 16.0, 21.0, 27.0)
#: What a label that lies on a line costs, in steps for its whole area: rather some steps away than on a line.
_ON_LINE: Final = 5.0


class Box(NamedTuple):
    """A rectangle."""

    left: float
    bottom: float
    right: float
    top: float

    def shared(self, other: Box) -> float:
        """The area that is in both."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return width * height if width > 0 and height > 0 else 0.0

    def within(self, other: Box) -> bool:
        """Whether none of it is outside of the other."""
        return (
            self.left >= other.left
            and self.bottom >= other.bottom
            and self.right <= other.right
            and self.top <= other.top
        )


class Anchor(NamedTuple):
    """A round point and the size of its label."""

    x: float
    y: float
    radius: float
    width: float
    height: float

    @property
    def box(self) -> Box:
        """What the point itself covers."""
        return Box(self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius)


def places(
    anchors: Sequence[Anchor], *, bounds: Box, blocked: Sequence[Box] = (), lines: Sequence[Box] = ()
) -> list[Box | None]:
    """A place for the label of each anchor, those first that come first; None where there is none.

    No label covers another one, any anchor's point or anything of `blocked`, or leaves `bounds`. `lines` are avoided
    where that costs little.
    """
    taken = [*blocked, *(anchor.box for anchor in anchors)]
    found: list[Box | None] = []
    for anchor in anchors:
        free = (
            (cost + _ON_LINE * sum(map(box.shared, lines)) / (anchor.width * anchor.height), box)
            for cost, box in _around(anchor)
            if box.within(bounds) and not any(map(box.shared, taken))
        )
        best = min(free, key=lambda each: each[0], default=(0.0, None))[1]
        found.append(best)
        if best is not None:
            taken.append(best)
    return found


def spread(wanted: Sequence[float], *, gap: float) -> list[float]:
    """Places as near as can be to those wanted, the highest first, each at least `gap` below the one before."""
    blocks: list[tuple[float, int]] = []
    for i, place in enumerate(wanted):
        mean, count = place + i * gap, 1
        while blocks and blocks[-1][0] < mean:
            other, more = blocks.pop()
            mean, count = (mean * count + other * more) / (count + more), count + more
        blocks.append((mean, count))
    return [mean - i * gap for i, mean in enumerate(mean for mean, count in blocks for _ in range(count))]


def _around(anchor: Anchor) -> Iterator[tuple[float, Box]]:
    """Boxes around the point, each with its distance in steps; to the right is best."""
    for distance, step in enumerate(_STEPS):
        gap = anchor.radius + step * anchor.height
        for turn in range(_DIRECTIONS):
            angle = 2 * math.pi * turn / _DIRECTIONS
            across, up = math.cos(angle), math.sin(angle)
            left = anchor.x + gap * across + (across - 1) / 2 * anchor.width
            bottom = anchor.y + gap * up + (up - 1) / 2 * anchor.height
            yield distance + 0.4 * (1 - across), Box(left, bottom, left + anchor.width, bottom + anchor.height)

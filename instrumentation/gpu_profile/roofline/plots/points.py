"""Draws the points of a roofline and their names. The limits of the axes must be set before.

Close points share one name if their names differ only by a number, such as those of layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from gpu_profile.roofline.plots.theme import SMALL, Theme, colour, halo, literally, marker
from gpu_profile.roofline.precision import Precision

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox, BboxBase

_NUMBER: Final = re.compile(r"(\d+)")
#: The largest number of names. The points or groups that take most of the time get one.
_MOST_LABELS: Final = 12
#: Points of similar names that are closer than this, in pixels, share one name.
_CLOSE: Final = 5.0
#: Candidate positions of a name: directions from its point, and distances in heights of the text.
_DIRECTIONS: Final = 16
_STEPS: Final = (0.25, 0.6, 1.2, 2.0, 3.0, 4.5, 6.5, 9.0, 12.0, 16.0, 21.0, 27.0)
#: How many of the nearest free positions are tested for one that crosses no line.
_NEAR: Final = 8
#: Areas of marks in square points: for a share of 0, the addition for a share of 1, and for an unknown share.
_LEAST_AREA, _AREA, _USUAL_AREA = 34.0, 560.0, 90.0


class Point(NamedTuple):
    """An operation: FLOPs per byte, FLOPs per second, regime, and share of the time from 0 to 1. None: unknown.

    `precision`: the format of the roof that the point is under.
    """

    name: str
    intensity: float | None
    flops_per_s: float | None
    regime: str
    share: float | None = None
    precision: Precision | None = None


def drawable(point: Point) -> bool:
    """Whether a logarithmic plot can show the point: both coordinates are numbers, positive and finite."""
    return all(value is not None and 0 < value < math.inf for value in (point.intensity, point.flops_per_s))


def _area(point: Point) -> float:
    return _USUAL_AREA if point.share is None else _LEAST_AREA + _AREA * min(1.0, max(0.0, point.share))


def draw_points(axes: Axes, points: Sequence[Point], theme: Theme) -> None:
    """Draw a mark for each point. Its area grows with the share of the time."""
    # The largest first, so that they do not hide small ones.
    for point in sorted(points, key=_area, reverse=True):
        axes.scatter(
            [point.intensity or 1.0],
            [point.flops_per_s or 1.0],
            s=_area(point),
            marker=marker(point.regime),
            color=colour(point.regime, theme),
            edgecolor=theme.surface,
            linewidth=0.5,
            alpha=0.9,
            zorder=4,
        )


def name_points(axes: Axes, points: Sequence[Point], theme: Theme) -> bool:
    """Write the names of the points that take most of the time beside them, with a line to a name that is far away.

    No name covers another name, a point or an existing text. Returns whether some points have no name.
    """
    from matplotlib.path import Path

    places = [_place(axes, point) for point in points]
    groups = together([point.name for point in points], places, apart=_CLOSE)
    groups.sort(key=lambda group: -sum(points[i].share or 0.0 for i in group))
    taken = [*(text.get_window_extent() for text in axes.texts), *places]
    lines = [Path(axes.transData.transform(line.get_xydata())) for line in axes.lines]
    back = axes.transData.inverted().transform
    nameless = len(groups) > _MOST_LABELS
    for group in groups[:_MOST_LABELS]:
        name = common_name([points[i].name for i in group])
        text = axes.text(0, 0, name, fontsize=SMALL, color=theme.ink, zorder=7, va="bottom")
        halo(text, theme)
        place = max((places[i] for i in group), key=lambda each: each.width)
        free = [box for box in _around(place, text.get_window_extent()) if _fits(box, axes, taken)]
        if not free:
            text.remove()
            nameless = True
            continue
        clear = (box for box in free[:_NEAR] if not any(line.intersects_bbox(box, filled=False) for line in lines))
        box = next(clear, free[0])
        taken.append(box)
        text.set(position=back(box.p0))
        x, y = (place.p0 + place.p1) / 2
        end = (min(max(x, box.x0), box.x1), min(max(y, box.y0), box.y1))
        if math.dist(end, (x, y)) > place.width / 2 + 0.8 * box.height:
            (x0, y0), (x1, y1) = back([(x, y), end])
            axes.plot([x0, x1], [y0, y1], color=theme.soft, linewidth=0.6, zorder=3.5)
    return nameless


def _place(axes: Axes, point: Point) -> Bbox:
    """The box of a point's mark, in pixels."""
    from matplotlib.transforms import Bbox

    centre = axes.transData.transform((point.intensity or 1.0, point.flops_per_s or 1.0))
    # A diamond is a square on its corner.
    wider = math.sqrt(2) if marker(point.regime) == "D" else 1.1
    radius = wider * math.sqrt(_area(point)) / 2 * axes.figure.dpi / 72
    return Bbox([centre - radius, centre + radius])


def _around(place: Bbox, size: BboxBase) -> Iterator[Bbox]:
    """Boxes of this size around the place, the nearest first, and at each distance beginning on the right."""
    from matplotlib.transforms import Bbox

    x, y = (place.p0 + place.p1) / 2
    for step in _STEPS:
        gap = place.width / 2 + step * size.height
        for turn in sorted(range(_DIRECTIONS), key=lambda turn: min(turn, _DIRECTIONS - turn)):
            angle = 2 * math.pi * turn / _DIRECTIONS
            across, up = math.cos(angle), math.sin(angle)
            left = x + gap * across + (across - 1) / 2 * size.width
            bottom = y + gap * up + (up - 1) / 2 * size.height
            yield Bbox.from_bounds(left, bottom, size.width, size.height)


def _fits(box: Bbox, axes: Axes, taken: Sequence[BboxBase]) -> bool:
    inside = axes.get_window_extent()
    return inside.contains(*box.p0) and inside.contains(*box.p1) and not box.count_overlaps(taken)


def alike(names: Sequence[str]) -> list[list[int]]:
    """Groups of indices of names that differ only by numbers, in the order of their first members."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, name in enumerate(names):
        groups.setdefault(tuple(_NUMBER.split(name)[::2]), []).append(i)
    return list(groups.values())


def together(names: Sequence[str], places: Sequence[Bbox], *, apart: float) -> list[list[int]]:
    """Like `alike`, but each group is a chain of places with gaps of less than `apart`."""
    groups = []
    for same in alike(names):
        left = sorted(same, key=lambda i: places[i].x0)
        while left:
            group = [left.pop(0)]
            for member in group:
                around = places[member].padded(apart)
                near = [i for i in left if around.overlaps(places[i])]
                group += near
                left = [i for i in left if i not in near]
            groups.append(group)
    return groups


def common_name(names: Sequence[str]) -> str:
    """One name for names that differ only by numbers, with stars for these and the count: `layers.*.mlp ×6`."""
    if len(names) == 1:
        return literally(names[0])
    parts = zip(*map(_NUMBER.split, names), strict=True)
    return f"{literally(''.join(each[0] if len(set(each)) == 1 else '*' for each in parts))} ×{len(names)}"

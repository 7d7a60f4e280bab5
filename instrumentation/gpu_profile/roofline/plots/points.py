"""The points of a roofline and their names, drawn on axes whose limits are set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpu_profile.roofline.plots.labels import Anchor, Box, places
from gpu_profile.roofline.plots.names import common_name, together
from gpu_profile.roofline.plots.theme import SMALL, Theme, colour, halo, marker
from gpu_profile.roofline.precision import Precision

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: How many points, or groups of points alike, are named, those that take most of the time.
_MOST_LABELS: Final = 12
#: Pixels: points alike that are closer have one name.
_CLOSE: Final = 5.0
#: Points², for an operation that takes no time, and what is added for one that takes all of it; of unknown share.
_LEAST_AREA, _AREA, _USUAL_AREA = 34.0, 560.0, 90.0


class Point(NamedTuple):
    """An operation: FLOPs per byte, FLOPs per second, its regime and its share of the time (0-1). None: not known.

    `precision`: whose roof it is under.
    """

    name: str
    intensity: float | None
    flops_per_s: float | None
    regime: str
    share: float | None = None
    precision: Precision | None = None


def drawable(point: Point) -> bool:
    """Whether a logarithmic plot has a place for it."""
    return all(value is not None and 0 < value < math.inf for value in (point.intensity, point.flops_per_s))


def _area(point: Point) -> float:
    return _USUAL_AREA if point.share is None else _LEAST_AREA + _AREA * min(1.0, max(0.0, point.share))


def draw_points(axes: Axes, points: Sequence[Point], theme: Theme) -> None:
    """Draw a mark for each, as large as its share of the time."""
    # The largest first, so that small ones lie on top of them.
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


def name_points(axes: Axes, points: Sequence[Point], blocked: Sequence[Box], theme: Theme) -> bool:
    """Write the names of the points that take most of the time beside them, with a line where that is not near.

    Whether some have no name.
    """
    discs = [_disc(axes, point) for point in points]
    groups = together([point.name for point in points], discs, apart=_CLOSE)
    groups.sort(key=lambda group: -sum(points[i].share or 0.0 for i in group))
    per_point = axes.figure.dpi / 72
    texts, anchors, pointed = [], [], set()
    for group in groups[:_MOST_LABELS]:
        name = common_name([points[i].name for i in group])
        text = axes.text(0, 0, name, fontsize=SMALL, color=theme.ink, zorder=7, va="bottom")
        halo(text, theme)
        size = text.get_window_extent()
        texts.append(text)
        largest = max(group, key=lambda i: discs[i].radius)
        pointed.add(largest)
        anchors.append(discs[largest]._replace(width=size.width + 2 * per_point, height=size.height))
    blocked = [*blocked, *(disc.box for i, disc in enumerate(discs) if i not in pointed)]
    lines = [box for line in axes.lines for box in _pieces(axes, line)]
    found = places(anchors, bounds=Box(*axes.get_window_extent().extents), blocked=blocked, lines=lines)
    back = axes.transData.inverted().transform
    for text, anchor, box in zip(texts, anchors, found, strict=True):
        if box is None:
            text.remove()
            continue
        x, y = back((box.left + per_point, box.bottom))
        text.set_position((float(x), float(y)))
        end = (min(max(anchor.x, box.left), box.right), min(max(anchor.y, box.bottom), box.top))
        if math.dist(end, (anchor.x, anchor.y)) > anchor.radius + 0.8 * anchor.height:
            (x0, y0), (x1, y1) = back([(anchor.x, anchor.y), end])
            axes.plot([x0, x1], [y0, y1], color=theme.soft, linewidth=0.6, zorder=3.5)
    return len(groups) > _MOST_LABELS or None in found


def _disc(axes: Axes, point: Point) -> Anchor:
    """The point as it lies on the figure, in pixels, without a label."""
    x, y = axes.transData.transform((point.intensity or 1.0, point.flops_per_s or 1.0))
    # A diamond is a square on its corner.
    wider = math.sqrt(2) if marker(point.regime) == "D" else 1.1
    return Anchor(float(x), float(y), wider * math.sqrt(_area(point)) / 2 * axes.figure.dpi / 72, 0, 0)


def _pieces(axes: Axes, line: Any) -> list[Box]:
    """A line of two ends as a chain of small boxes."""
    ends = axes.transData.transform(line.get_xydata())
    if len(ends) != 2:
        return []
    (x0, y0), (x1, y1) = ends
    count = max(1, int(math.hypot(x1 - x0, y1 - y0) / 6))
    centres = [(x0 + (x1 - x0) * i / count, y0 + (y1 - y0) * i / count) for i in range(count + 1)]
    return [Box(x - 3, y - 3, x + 3, y + 3) for x, y in centres]

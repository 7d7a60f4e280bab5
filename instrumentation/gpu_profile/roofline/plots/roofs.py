"""Operations under the roofs of their machine, as a matplotlib figure. matplotlib is loaded when one is drawn."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpu_profile.roofline.ceilings import Ceiling, Ceilings, Level
from gpu_profile.roofline.plots.labels import Anchor, Box, places
from gpu_profile.roofline.plots.theme import (
    DARK,
    LIGHT,
    SMALL,
    Theme,
    blank,
    colour,
    decade,
    halo,
    legend,
    literally,
    marker,
    plain,
)
from gpu_profile.roofline.precision import Precision
from gpu_profile.units import NS_PER_S, si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches, and the axes' place as shares of the figure.
_WIDTH, _HEIGHT = 10.0, 6.4
_LEFT, _ACROSS, _TOP = 0.082, 0.695, 0.86
#: How many points are named, those that take most of the time.
_MOST_LABELS: Final = 12
#: Points², for an operation that takes no time, and what is added for one that takes all of it.
_LEAST_AREA, _AREA = 34.0, 560.0


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


def roofline_figure(ceilings: Ceilings, points: Sequence[Point], *, dark: bool = False) -> Figure:
    """Every operation as a point of FLOPs per second over FLOPs per byte, beneath the roofs of the machine.

    Points of which one is not known, or 0, are listed beneath. The figure belongs to nobody (no pyplot): show it as a
    notebook's value, or `savefig` it. UsageError if matplotlib is not installed.
    """
    theme = DARK if dark else LIGHT
    figure = blank(_WIDTH, _HEIGHT, theme)
    beneath = _beneath(ceilings, points)
    bottom = 0.1 + 0.026 * len(beneath)
    axes = figure.add_axes((_LEFT, bottom, _ACROSS, _TOP - bottom))
    plain(axes, theme)
    drawn = [point for point in points if _drawable(point)]
    _limits(axes, ceilings, drawn)
    blocked = [*_memory_roofs(axes, ceilings, theme), *_ridge(axes, ceilings, drawn, theme)]
    _compute_roofs(axes, ceilings, drawn, theme)
    _points(axes, drawn, theme)
    _name(axes, drawn, blocked, theme)
    _words(figure, axes, ceilings, points, theme)
    figure.text(_LEFT, bottom - 0.09, "\n".join(beneath), fontsize=SMALL, color=theme.soft, va="top", linespacing=1.35)
    return figure


def _limits(axes: Axes, ceilings: Ceilings, points: Sequence[Point]) -> None:
    ridges = [ridge for ridge in map(ceilings.ridge, ceilings.compute) if ridge is not None]
    across = [*(point.intensity or 1.0 for point in points), *ridges] or [0.1, 100.0]
    left, right = min(across) / 6, max(across) * 6
    up = [point.flops_per_s or 1.0 for point in points] + [each.value for each in ceilings.compute.values()]
    if ceilings.memory is not None:
        up.append(ceilings.memory.value * (left if not points else min(p.intensity or left for p in points)))
    up = up or [1e9, 1e12]
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(min(up) / 3, max(up) * 2.2))
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for axis, form in (
        (axes.xaxis, FuncFormatter(lambda x, _: f"{x:g}" if 1e-4 <= x < 1e6 else f"{x:.0e}")),
        (axes.yaxis, FuncFormatter(lambda y, _: decade(y))),
    ):
        axis.set_major_formatter(form)
        axis.set_minor_formatter(NullFormatter())


def _memory_roofs(axes: Axes, ceilings: Ceilings, theme: Theme) -> list[Box]:
    """The slanted roofs with their names along them; what the names cover."""
    top = max((each.value for each in ceilings.compute.values()), default=axes.get_ylim()[1])
    left, right = axes.get_xlim()
    low = axes.get_ylim()[0]
    covered: list[Box] = []
    above, start = math.inf, 0.0
    for level in sorted(ceilings.levels, key=lambda each: -each.bandwidth.value):
        speed = level.bandwidth.value
        begin, end = max(left, low / speed), min(right, top / speed)
        if begin >= end:
            continue
        strong = level.up_to is None
        tint, width = (theme.ink, 1.6) if strong else (theme.soft, 0.9)
        axes.plot([begin, end], [speed * begin, speed * end], color=tint, linewidth=width, zorder=2)
        (x0, y0), (x1, y1) = axes.transData.transform([(begin, speed * begin), (end, speed * end)])
        text = axes.text(0, 0, _level_name(level), fontsize=SMALL + 0.5 * strong, color=tint, zorder=6, va="bottom")
        halo(text, theme)
        size = text.get_window_extent()
        height = float(axes.transData.transform((1.0, speed))[1])
        # Roofs that lie close have their names one after the other, not one over the other.
        start = start if above - height < 2.5 * size.height else 0.0
        length = math.hypot(x1 - x0, y1 - y0)
        along = 10.0 + start if start + size.width + 20 < length else 10.0
        across, up = (x1 - x0) / length, (y1 - y0) / length
        foot = (x0 + across * along - 3 * up, y0 + up * along + 3 * across)
        text.set(position=axes.transData.inverted().transform(foot), rotation=math.degrees(math.atan2(up, across)))
        text.set_rotation_mode("anchor")
        covered += _tiles(foot, (across, up), size.width, size.height)
        above, start = height, along + size.width + 10
    return covered


def _tiles(foot: tuple[float, float], direction: tuple[float, float], width: float, height: float) -> list[Box]:
    """A slanted text as upright squares."""
    across, up = direction
    middle = (foot[0] - up * height / 2, foot[1] + across * height / 2)
    steps = [step * height for step in range(math.ceil(width / height) + 1)]
    centres = [(middle[0] + across * step, middle[1] + up * step) for step in steps]
    return [Box(x - height / 2, y - height / 2, x + height / 2, y + height / 2) for x, y in centres]


def _level_name(level: Level) -> str:
    return f"{literally(level.name)} {si(level.bandwidth.value, 'B/s')}{_origin(level.bandwidth)}"


def _origin(ceiling: Ceiling) -> str:
    """What is to be said of a ceiling that was not measured."""
    return {"measured": "", "datasheet": ", data sheet", "formula": ", by formula"}[ceiling.source]


def _compute_roofs(axes: Axes, ceilings: Ceilings, points: Sequence[Point], theme: Theme) -> None:
    """The level roofs, named right of the axes; those that no point is under are thin."""
    left, right = axes.get_xlim()
    used = {point.precision for point in points} - {None} or {_main(points, ceilings.compute)}
    fastest = max((level.bandwidth.value for level in ceilings.levels), default=math.inf)
    least = math.inf
    for precision, ceiling in sorted(ceilings.compute.items(), key=lambda row: -row[1].value):
        strong = precision in used
        tint, width = (theme.ink, 1.6) if strong else (theme.soft, 0.9)
        memory = ceilings.memory
        begin = left if memory is None else max(left, ceiling.value / memory.value)
        axes.plot([begin, right], [ceiling.value] * 2, color=tint, linewidth=width, zorder=2)
        # Only what stays in a cache gets this far to the left.
        if begin > (cached := max(left, ceiling.value / fastest)):
            axes.plot([cached, begin], [ceiling.value] * 2, color=theme.soft, linewidth=0.7, linestyle=(0, (4, 3)))
        place = float(axes.transData.transform((right, ceiling.value))[1])
        least = min(place, least - 1.45 * SMALL * axes.figure.dpi / 72)
        at = axes.transData.inverted().transform((0, least))[1]
        unit = "OP/s" if precision is Precision.INT8 else "FLOP/s"
        axes.annotate(
            f"{precision}  {si(ceiling.value, unit)}{_origin(ceiling)}",
            xy=(right, ceiling.value),
            xytext=(right * 10 ** (0.018 * math.log10(right / left)), at),
            color=tint,
            fontsize=SMALL,
            fontweight="bold" if strong else "normal",
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": theme.soft, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 0},
        )


def _ridge(axes: Axes, ceilings: Ceilings, points: Sequence[Point], theme: Theme) -> list[Box]:
    """Each ridge as a ring, and that of the main precision's down to the axis; what its name covers."""
    ridges = {each: ridge for each in ceilings.compute if (ridge := ceilings.ridge(each)) is not None}
    for precision, ridge in ridges.items():
        at = [ridge], [ceilings.compute[precision].value]
        axes.scatter(*at, s=25, marker="o", facecolor=theme.surface, edgecolor=theme.ink, linewidth=1, zorder=3)
    if (main := _main(points, ridges)) is None:
        return []
    low = axes.get_ylim()[0]
    axes.plot([ridges[main]] * 2, [low, ceilings.compute[main].value], color=theme.soft, linewidth=0.8, linestyle=":")
    foot = axes.transData.transform((ridges[main], low))
    x, y = axes.transData.inverted().transform((foot[0] + 5, foot[1] + 5))
    name = f"ridge of {main}: {ridges[main]:.3g} FLOP/B"
    text = axes.text(float(x), float(y), name, fontsize=SMALL, color=theme.soft, zorder=6)
    halo(text, theme)
    return [Box(*text.get_window_extent().extents)]


def _main(points: Sequence[Point], known: Collection[Precision]) -> Precision | None:
    """Of the known precisions that most of the time is spent in; fp32, or the first, if the points do not tell."""
    spent: dict[Precision, float] = {}
    for point in points:
        if point.precision is not None and point.precision in known:
            spent[point.precision] = spent.get(point.precision, 0.0) + (point.share or 1e-9)
    usual = Precision.FP32 if Precision.FP32 in known else next(iter(known), None)
    return max(spent, key=lambda each: spent[each], default=usual)


def _drawable(point: Point) -> bool:
    """Whether a logarithmic plot has a place for it."""
    return all(value is not None and 0 < value < math.inf for value in (point.intensity, point.flops_per_s))


def _area(point: Point) -> float:
    return _LEAST_AREA + _AREA * min(1.0, max(0.0, point.share or 0.0))


def _points(axes: Axes, points: Sequence[Point], theme: Theme) -> None:
    # The largest first, so that small ones lie on top of them.
    for point in sorted(points, key=_area, reverse=True):
        axes.scatter(
            [point.intensity or 1.0],
            [point.flops_per_s or 1.0],
            s=_area(point),
            marker=marker(point.regime),
            color=colour(point.regime, theme),
            edgecolor=theme.surface,
            linewidth=0.9,
            alpha=0.92,
            zorder=4,
        )


def _name(axes: Axes, points: Sequence[Point], blocked: Sequence[Box], theme: Theme) -> None:
    """Write the names of the points that take most of the time beside them, with a line where that is not near."""
    chosen = sorted(points, key=lambda point: -(point.share or 0.0))[:_MOST_LABELS]
    per_point = axes.figure.dpi / 72
    texts, anchors = [], []
    for point in chosen:
        text = axes.text(0, 0, literally(point.name), fontsize=SMALL, color=theme.ink, zorder=7, va="bottom")
        halo(text, theme)
        size = text.get_window_extent()
        texts.append(text)
        anchors.append(_disc(axes, point)._replace(width=size.width + 2 * per_point, height=size.height))
    blocked = [*blocked, *(_disc(axes, point).box for point in points if point not in chosen)]
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


def _disc(axes: Axes, point: Point) -> Anchor:
    """The point as it lies on the figure, in pixels, without a label."""
    x, y = axes.transData.transform((point.intensity or 1.0, point.flops_per_s or 1.0))
    return Anchor(float(x), float(y), math.sqrt(_area(point)) / 2 * axes.figure.dpi / 72, 0, 0)


def _pieces(axes: Axes, line: Any) -> list[Box]:
    """A line of two ends as a chain of small boxes."""
    ends = axes.transData.transform(line.get_xydata())
    if len(ends) != 2:
        return []
    (x0, y0), (x1, y1) = ends
    count = max(1, int(math.hypot(x1 - x0, y1 - y0) / 6))
    centres = [(x0 + (x1 - x0) * i / count, y0 + (y1 - y0) * i / count) for i in range(count + 1)]
    return [Box(x - 3, y - 3, x + 3, y + 3) for x, y in centres]


def _words(figure: Figure, axes: Axes, ceilings: Ceilings, points: Sequence[Point], theme: Theme) -> None:
    axes.set_xlabel("operational intensity, FLOP/B", fontsize=9, color=theme.ink)
    axes.set_ylabel("throughput, FLOP/s", fontsize=9, color=theme.ink)
    figure.text(
        _LEFT, 0.955, f"Roofline of {literally(ceilings.machine, 80)}", fontsize=12, color=theme.ink, va="center"
    )
    figure.text(_LEFT, 0.918, _subtitle(ceilings, points), fontsize=SMALL, color=theme.soft, va="center")
    legend(
        figure,
        (point.regime for point in points if _drawable(point)),
        theme,
        loc="center left",
        bbox_to_anchor=(_LEFT - 0.01, 0.884),
    )


def _beneath(ceilings: Ceilings, points: Sequence[Point]) -> list[str]:
    """What is not drawn, and why."""
    unknown = [p.name for p in points if p.intensity is None or p.flops_per_s is None]
    nothing = [p.name for p in points if p.intensity == 0 or p.flops_per_s == 0]
    needed = {"memory", *(str(point.precision) for point in points)}
    return [
        *_listed("Not drawn, since FLOPs or bytes are not known", unknown),
        *_listed("Not drawn, since they do no FLOPs", nothing),
        *(
            f"No roof for {literally(name)}: {literally(why, 110)}"
            for name, why in ceilings.missing.items()
            if name in needed or not ceilings.compute
        ),
    ]


def _subtitle(ceilings: Ceilings, points: Sequence[Point]) -> str:
    roofs = "The roofs" if ceilings.levels or ceilings.compute else "No roof is known"
    if ceilings.calibrated_ns:
        roofs += f" were measured on {datetime.fromtimestamp(ceilings.calibrated_ns / NS_PER_S, UTC):%Y-%m-%d}"
    elif roofs == "The roofs":
        roofs += " are not measured"
    drawn = sum(map(_drawable, points))
    more = f"; the {_MOST_LABELS} largest of {drawn} are named" if drawn > _MOST_LABELS else ""
    return f"{roofs}. Each point is an operation, its area its share of the time{more}."


def _listed(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    text = f"{what}: {', '.join(literally(name) for name in names[:12])}"
    return textwrap.wrap(text + (f" and {len(names) - 12} more" if len(names) > 12 else ""), 150)[:2]

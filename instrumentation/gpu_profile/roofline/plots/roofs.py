"""The roofline figure: operations under the roofs of their machine. Drawing it loads matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gpu_profile.report.notebook_figure import notebook_figure
from gpu_profile.roofline.ceilings.ceilings import Ceiling, Ceilings, Level
from gpu_profile.roofline.plots.points import Point, alike, common_name, draw_points, drawable, name_points
from gpu_profile.roofline.plots.theme import DARK, LIGHT, SMALL, Theme, decade, halo, legend, literally, plain
from gpu_profile.roofline.precision import Precision
from gpu_profile.units import NS_PER_S, si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The figure's size in inches, and the position of its axes as shares of the figure.
_WIDTH, _HEIGHT = 10.0, 6.4
_LEFT, _TOP = 0.082, 0.86
#: Pixels between the axes and the names of the level roofs, and right of these names.
_BESIDE, _MARGIN = 16.0, 12.0
#: Pixels along a slanted roof from its lower end to its name.
_FOOT: Final = 16.0
#: Names listed beneath the figure; with the longest names these are two lines.
_MOST_LISTED: Final = 7


def roofline_figure(
    ceilings: Ceilings,
    points: Sequence[Point],
    *,
    title: str | None = None,
    what: str = "operation",
    dark: bool = False,
) -> Figure:
    """Every operation as a point of FLOPs per second over FLOPs per byte, beneath the roofs of the machine.

    Points with an unknown value, or with 0, are listed beneath the figure. `what`: the noun for a point. The figure
    does not belong to pyplot: display it as a notebook's value, or use `savefig`. Raises UsageError if matplotlib is
    not installed.
    """
    theme = DARK if dark else LIGHT
    figure = notebook_figure(_WIDTH, _HEIGHT, facecolor=theme.surface)
    beneath = _beneath(ceilings, points)
    bottom = 0.1 + 0.026 * len(beneath)
    beside = _BESIDE + _widest(figure, map(_roof_name, ceilings.compute.items())) + _MARGIN
    axes = figure.add_axes((_LEFT, bottom, 1 - _LEFT - beside / figure.bbox.x1, _TOP - bottom))
    plain(axes, theme)
    drawn = [point for point in points if drawable(point)]
    _limits(axes, ceilings, drawn)
    _memory_roofs(axes, ceilings, theme)
    _ridge(axes, ceilings, drawn, theme)
    _compute_roofs(axes, ceilings, drawn, theme)
    draw_points(axes, drawn, theme)
    some = name_points(axes, drawn, theme)
    _words(axes, theme)
    title = title or f"Roofline of {ceilings.machine}"
    figure.text(_LEFT, 0.955, literally(title, 110), fontsize=12, color=theme.ink, va="center")
    figure.text(
        _LEFT, 0.918, _subtitle(ceilings, drawn, what, some=some), fontsize=SMALL, color=theme.soft, va="center"
    )
    legend(figure, (point.regime for point in drawn), theme, loc="center left", bbox_to_anchor=(_LEFT - 0.01, 0.884))
    figure.text(_LEFT, bottom - 0.09, "\n".join(beneath), fontsize=SMALL, color=theme.soft, va="top", linespacing=1.35)
    return figure


def _limits(axes: Axes, ceilings: Ceilings, points: Sequence[Point]) -> None:
    ridges = [ridge for ridge in map(ceilings.ridge, ceilings.compute) if ridge is not None]
    across = [*(point.intensity or 1.0 for point in points), *ridges] or [0.1, 100.0]
    left, right = min(across) / 6, max(across) * 6
    up = [point.flops_per_s or 1.0 for point in points] + [each.value for each in ceilings.compute.values()]
    if ceilings.memory is not None:
        lowest = ceilings.memory.value * min((point.intensity or left for point in points), default=left)
        up.append(min([lowest, *up]))
    up = up or [1e9, 1e12]
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(min(up) / 3, max(up) * 2.2))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}" if 1e-4 <= x < 1e6 else f"{x:.0e}")
    axes.yaxis.set_major_formatter(lambda y, _: decade(y))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter("")


def _memory_roofs(axes: Axes, ceilings: Ceilings, theme: Theme) -> None:
    """Draw the slanted roofs with their names along them."""
    top = max((each.value for each in ceilings.compute.values()), default=axes.get_ylim()[1])
    left, right = axes.get_xlim()
    low = axes.get_ylim()[0]
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
        # The names of close roofs follow each other along the roofs, so that they do not overlap.
        start = start if above - height < 2.5 * size.height else 0.0
        length = math.hypot(x1 - x0, y1 - y0)
        along = _FOOT + start if start + size.width + 20 < length else _FOOT
        across, up = (x1 - x0) / length, (y1 - y0) / length
        foot = (x0 + across * along - 3 * up, y0 + up * along + 3 * across)
        text.set(position=axes.transData.inverted().transform(foot), rotation=math.degrees(math.atan2(up, across)))
        text.set_rotation_mode("anchor")
        above, start = height, along + size.width + 10


def _level_name(level: Level) -> str:
    return f"{literally(level.name)} {si(level.bandwidth.value, 'B/s')}{_origin(level.bandwidth)}"


def _origin(ceiling: Ceiling) -> str:
    """The source of a ceiling, if it was not measured."""
    return {"measured": "", "datasheet": ", data sheet", "formula": ", by formula"}[ceiling.source]


def _roof_name(roof: tuple[Precision, Ceiling]) -> str:
    precision, ceiling = roof
    unit = "OP/s" if precision is Precision.INT8 else "FLOP/s"
    return f"{precision}  {si(ceiling.value, unit)}{_origin(ceiling)}"


def _widest(figure: Figure, texts: Iterable[str]) -> float:
    """Pixels of the longest text in bold; 0 if there is none."""
    widths = [0.0]
    for each in texts:
        text = figure.text(0, 0, each, fontsize=SMALL, fontweight="bold")
        widths.append(text.get_window_extent().width)
        text.remove()
    return max(widths)


def _compute_roofs(axes: Axes, ceilings: Ceilings, points: Sequence[Point], theme: Theme) -> None:
    """Draw the level roofs with their names right of the axes. Roofs above no point are pale."""
    left, right = axes.get_xlim()
    used = _used(points, ceilings)
    fastest = max((level.bandwidth.value for level in ceilings.levels), default=math.inf)
    roofs = sorted(ceilings.compute.items(), key=lambda row: -row[1].value)
    wanted = [float(axes.transData.transform((right, ceiling.value))[1]) for _, ceiling in roofs]
    for roof, place in zip(roofs, spread(wanted, gap=1.45 * SMALL * axes.figure.dpi / 72), strict=True):
        precision, ceiling = roof
        strong = precision in used
        tint, width = (theme.ink, 1.6) if strong else (theme.faint, 0.8)
        under = 2.0 if strong else 1.5
        memory = ceilings.memory
        begin = left if memory is None else max(left, ceiling.value / memory.value)
        axes.plot([begin, right], [ceiling.value] * 2, color=tint, linewidth=width, zorder=under)
        # Left of the memory's ridge, only data in a cache reaches this roof.
        if begin > (cached := max(left, ceiling.value / fastest)):
            dashes: dict[str, Any] = {"linewidth": 0.7, "linestyle": (0, (4, 3)), "zorder": under}
            axes.plot([cached, begin], [ceiling.value] * 2, color=theme.soft if strong else theme.faint, **dashes)
        beyond = axes.transData.transform((right, ceiling.value))[0] + _BESIDE
        x, y = axes.transData.inverted().transform((beyond, place))
        axes.annotate(
            _roof_name(roof),
            xy=(right, ceiling.value),
            xytext=(float(x), float(y)),
            color=theme.ink if strong else theme.soft,
            fontsize=SMALL,
            fontweight="bold" if strong else "normal",
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": theme.soft if strong else theme.faint,
                "linewidth": 0.6,
                "relpos": (0, 0.5),
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )


def spread(wanted: Sequence[float], *, gap: float) -> list[float]:
    """Positions nearest to the wanted ones, which descend, each at least `gap` below the one before."""
    blocks: list[tuple[float, int]] = []
    for i, place in enumerate(wanted):
        mean, count = place + i * gap, 1
        while blocks and blocks[-1][0] < mean:
            other, more = blocks.pop()
            mean, count = (mean * count + other * more) / (count + more), count + more
        blocks.append((mean, count))
    return [mean - i * gap for i, mean in enumerate(mean for mean, count in blocks for _ in range(count))]


def _ridge(axes: Axes, ceilings: Ceilings, points: Sequence[Point], theme: Theme) -> None:
    """Draw the ridges of the used precisions as rings, with a line from the main one's down to the axis."""
    ridges = {each: ridge for each in ceilings.compute if (ridge := ceilings.ridge(each)) is not None}
    for precision in _used(points, ceilings) & set(ridges):
        at = [ridges[precision]], [ceilings.compute[precision].value]
        axes.scatter(*at, s=25, marker="o", facecolor=theme.surface, edgecolor=theme.ink, linewidth=1, zorder=3)
    if (main := _main(points, ridges)) is None:
        return
    low = axes.get_ylim()[0]
    axes.plot([ridges[main]] * 2, [low, ceilings.compute[main].value], color=theme.soft, linewidth=0.8, linestyle=":")
    foot = axes.transData.transform((ridges[main], low))
    x, y = axes.transData.inverted().transform((foot[0] + 5, foot[1] + 5))
    name = f"ridge of {main}: {ridges[main]:.3g} FLOP/B"
    text = axes.text(float(x), float(y), name, fontsize=SMALL, color=theme.soft, zorder=6)
    halo(text, theme)


def _used(points: Sequence[Point], ceilings: Ceilings) -> set[Precision]:
    """The precisions of the points. If they have none, the main one."""
    used = {point.precision for point in points if point.precision is not None}
    main = _main(points, ceilings.compute)
    return used or ({main} if main is not None else set())


def _main(points: Sequence[Point], available: Collection[Precision]) -> Precision | None:
    """The available precision with most of the time. If the points have none: fp32 if available, else the first."""
    spent: dict[Precision, float] = {}
    for point in points:
        if point.precision is not None and point.precision in available:
            spent[point.precision] = spent.get(point.precision, 0.0) + (point.share or 1e-9)
    usual = Precision.FP32 if Precision.FP32 in available else next(iter(available), None)
    return max(spent, key=lambda each: spent[each], default=usual)


def _words(axes: Axes, theme: Theme) -> None:
    axes.set_xlabel("operational intensity, FLOP/B", fontsize=9, color=theme.ink)
    axes.set_ylabel("throughput, FLOP/s", fontsize=9, color=theme.ink)


def _beneath(ceilings: Ceilings, points: Sequence[Point]) -> list[str]:
    """The lines beneath the figure: points and roofs that are not drawn, with the reason."""
    undrawn = [point for point in points if not drawable(point)]
    nothing = [p.name for p in undrawn if 0 in (p.intensity, p.flops_per_s)]
    unknown = [p.name for p in undrawn if 0 not in (p.intensity, p.flops_per_s)]
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


def _subtitle(ceilings: Ceilings, drawn: Sequence[Point], what: str, *, some: bool) -> str:
    roofs = "The roofs" if ceilings.levels or ceilings.compute else "No roof is known"
    if ceilings.calibrated_ns:
        roofs += f" were measured on {datetime.fromtimestamp(ceilings.calibrated_ns / NS_PER_S, UTC):%Y-%m-%d}"
    elif roofs == "The roofs":
        roofs += " are not measured"
    if len(drawn) < 2:
        return f"{roofs}."
    area = ", its area its share of the time" if any(point.share is not None for point in drawn) else ""
    stars = "; × counts those alike" if len(alike([point.name for point in drawn])) < len(drawn) else ""
    more = "; the largest are named" if some else ""
    return f"{roofs}. Each point is {'an' if what[0] in 'aeiou' else 'a'} {what}{area}{more}{stars}."


def _listed(heading: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    groups = alike(names)
    shown = ", ".join(common_name([names[i] for i in group]) for group in groups[:_MOST_LISTED])
    more = f" and {sum(map(len, groups[_MOST_LISTED:]))} more" if len(groups) > _MOST_LISTED else ""
    return textwrap.wrap(f"{heading}: {shown}{more}", 150)

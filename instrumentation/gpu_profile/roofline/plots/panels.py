"""Time, throughput, bandwidth and regime of operations over their sizes: one dark figure with four panels."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpu_profile.report.notebook_figure import notebook_figure
from gpu_profile.roofline.ceilings.ceilings import Ceilings
from gpu_profile.roofline.plots.theme import (
    DARK,
    SMALL,
    check_file,
    colour,
    decade,
    legend,
    literally,
    marker,
    plain,
    save,
)
from gpu_profile.roofline.precision import Precision
from gpu_profile.roofline.sweep import Row, sweep
from gpu_profile.units import percent, si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gpu_profile.roofline.profiler import GPUProfiler

_WIDTH, _HEIGHT = 12.0, 8.8
#: The share of the time from which first touches of memory pages are shown.
_NOTABLE: Final = 0.2
#: Colour and dashes of each operation's lines, in order. The colours differ in lightness.
_LINES: Final = (
    ("#8ab4f8", "-"),
    ("#fdd663", (0, (5, 2))),
    ("#7ddba3", (0, (2, 1.5))),
    ("#ff9ec7", "-."),
    ("#d7aefb", (0, (6, 2, 1, 2))),
    ("#e8eaed", ":"),
)


class _PanelSeries(NamedTuple):
    """One operation's rows, the small sizes first, with the style of its line."""

    name: str
    rows: Sequence[Row]
    colour: str
    dashes: Any


def panels_figure(rows: Sequence[Row], *, machine: str, ceilings: Ceilings) -> Figure:
    """Four panels over the elements of the input, on a logarithmic scale, with a line for each operation.

    An unknown value leaves a gap. Sizes that were not measured are listed beneath, with the reason. Raises UsageError
    if matplotlib is not installed.
    """
    figure = notebook_figure(_WIDTH, _HEIGHT, facecolor=DARK.surface)
    grid: Any = figure.subplots(2, 2)
    beneath = _beneath(rows)
    bottom = 0.075 + 0.019 * len(beneath)
    figure.subplots_adjust(left=0.075, right=0.975, top=0.845, bottom=bottom, hspace=0.36, wspace=0.18)
    names = list(dict.fromkeys(row.operation for row in rows))
    series = []
    for i, name in enumerate(names):
        own = sorted((row for row in rows if row.operation == name), key=lambda row: row.size)
        series.append(_PanelSeries(name, own, *_LINES[i % len(_LINES)]))
    for axes in grid.flat:
        plain(axes, DARK)
        _across(axes, rows)
    _time(grid[0, 0], series, ceilings)
    _throughput(grid[0, 1], series, ceilings)
    _bandwidth(grid[1, 0], series, ceilings)
    _regimes(grid[1, 1], series)
    figure.text(0.075, 0.962, f"Performance of {literally(machine, 80)}", fontsize=14, color=DARK.ink, va="center")
    figure.text(0.075, 0.93, _subtitle(rows, ceilings), fontsize=9, color=DARK.soft, va="center")
    _operations(figure, series)
    figure.text(0.075, bottom - 0.058, "\n".join(beneath), fontsize=SMALL, color=DARK.soft, va="top", linespacing=1.35)
    return figure


def _across(axes: Axes, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import LogLocator

    sizes = [row.size for row in rows] or [1_000, 100_000_000]
    axes.set_xscale("log")
    axes.set_xlim(min(sizes) / 1.6, max(sizes) * 1.6)
    axes.xaxis.set_major_locator(LogLocator(10, numticks=12))
    axes.xaxis.set_major_formatter(lambda x, _: decade(x))
    axes.minorticks_off()
    axes.set_xlabel("elements of the input", fontsize=SMALL + 0.5, color=DARK.soft)


def _titled(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=DARK.ink, pad=9)
    axes.set_ylabel(unit, fontsize=SMALL + 0.5, color=DARK.soft)


def _lines(axes: Axes, series: Sequence[_PanelSeries], value: Callable[[Mapping[str, Any]], float | None]) -> bool:
    """Draw a line for each operation, with gaps for unknown values. False if there is nothing to draw."""
    some = False
    for each in series:
        values = [_positive(value(row.profile)) for row in each.rows]
        some = some or not all(map(math.isnan, values))
        sizes = [row.size for row in each.rows]
        axes.plot(sizes, values, color=each.colour, linestyle=each.dashes, linewidth=1.4, zorder=3)
        for x, y, row in zip(sizes, values, each.rows, strict=True):
            # Data in a cache: a ring.
            ring = row.profile.get("residency") not in (None, "memory")
            face = DARK.surface if ring else each.colour
            axes.plot([x], [y], marker="o", markersize=4.5, color=each.colour, markerfacecolor=face, zorder=4)
    if not some:
        reasons = [str(why) for each in series for row in each.rows for why in row.profile.get("reasons", {}).values()]
        _nothing(axes, f": {reasons[0]}" if reasons else "")
    return some


def _nothing(axes: Axes, why: str) -> None:
    text = "\n".join(textwrap.wrap(f"not known{literally(why, 150)}", 48))
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=9, color=DARK.soft)
    axes.set_yticks([])


def _positive(value: float | None) -> float:
    """The value, or NaN, which is not drawn, if it is unknown or has no place on a logarithmic scale."""
    return value if value is not None and value > 0 else float("nan")


def _dashed(axes: Axes, at: float, meaning: str) -> None:
    """A dashed level line, with its meaning above the axes."""
    axes.axhline(at, color=DARK.ink, linewidth=0.8, linestyle=(0, (4, 3)), zorder=2)
    axes.set_title(meaning, loc="right", fontsize=SMALL, color=DARK.soft, pad=9)


def _time(axes: Axes, series: Sequence[_PanelSeries], ceilings: Ceilings) -> None:
    _titled(axes, "Execution time scaling", "time per call")
    if not _lines(axes, series, lambda profile: _scaled(profile.get("runtime_ms"), 1e-3)):
        return
    for each in series:
        runs = [(row.size, row.profile["runs"]) for row in each.rows if row.profile.get("runs")]
        low, high = ([run[key] / 1e3 for _, run in runs] for key in ("low_ms", "high_ms"))
        axes.fill_between([size for size, _ in runs], low, high, color=each.colour, alpha=0.22, linewidth=0)
    axes.set_yscale("log")
    if ceilings.launch_s is not None:
        axes.set_ylim(bottom=min(axes.get_ylim()[0], ceilings.launch_s / 2))
        _dashed(axes, ceilings.launch_s, f"dashed: an empty launch, {si(ceilings.launch_s, 's')}")
    axes.yaxis.set_major_formatter(lambda y, _: si(y, "s", 1))
    axes.minorticks_off()


def _throughput(axes: Axes, series: Sequence[_PanelSeries], ceilings: Ceilings) -> None:
    _titled(axes, "Throughput efficiency", "FLOP/s, share of the compute ceiling")
    if not _lines(axes, series, lambda profile: _scaled(profile.get("flops_utilization"), 100)):
        return
    axes.set_yscale("log")
    axes.set_ylim(top=max(300.0, axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g} %")
    axes.minorticks_off()
    used = {row.profile.get("precision") for each in series for row in each.rows} - {None}
    ceiling_names = [
        f"{name} {si(ceilings.compute[Precision(name)].value, 'FLOP/s')}"
        for name in sorted(map(str, used))
        if Precision(name) in ceilings.compute
    ]
    _dashed(axes, 100, f"100 %: {', '.join(ceiling_names) or 'the ceiling'}")


def _bandwidth(axes: Axes, series: Sequence[_PanelSeries], ceilings: Ceilings) -> None:
    rows = [row for each in series for row in each.rows]
    _titled(axes, "Memory bandwidth utilisation", "B/s, share of the bandwidth ceiling")
    if not _lines(axes, series, lambda profile: _scaled(profile.get("bandwidth_utilization"), 100)):
        return
    for each in series:
        for row in filter(_fresh, each.rows):
            reached = 100 * row.profile["bandwidth_utilization"]
            without = reached / max(1e-9, 1 - row.profile["first_touch_ratio"])
            axes.plot([row.size] * 2, [reached, without], color=each.colour, linewidth=1, alpha=0.8, zorder=2)
            axes.plot([row.size], [without], color=each.colour, marker="_", markersize=8, markeredgewidth=1.4, zorder=4)
    axes.set_ylim(0, max(125.0, 1.02 * axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g} %")
    memory = "the ceiling" if ceilings.memory is None else f"memory {si(ceilings.memory.value, 'B/s')}"
    _dashed(axes, 100, f"100 %: {memory}" + (", or the cache's" if _caches(rows, ceilings) else ""))


def _fresh(row: Row) -> bool:
    """Whether first touches of memory take a notable share of the row's time."""
    measured = row.profile.get("bandwidth_utilization") is not None
    return measured and (row.profile.get("first_touch_ratio") or 0.0) >= _NOTABLE


def _caches(rows: Sequence[Row], ceilings: Ceilings) -> list[str]:
    """Name and bandwidth of the caches that held the data of some operation."""
    within = {row.profile.get("residency") for row in rows}
    return [
        f"{literally(each.name)} {si(each.bandwidth.value, 'B/s')}"
        for each in ceilings.levels
        if each.up_to is not None and each.name in within
    ]


def _regimes(axes: Axes, series: Sequence[_PanelSeries]) -> None:
    _titled(axes, "Performance regime classification", "")
    axes.grid(visible=False, axis="y")
    for lane, each in enumerate(series):
        axes.axhline(lane, color=DARK.grid, linewidth=0.8, zorder=1)
        for row in each.rows:
            if row.skipped:
                axes.plot([row.size], [lane], marker="_", markersize=7, color=DARK.soft, linestyle="", zorder=2)
                continue
            regime = str(row.profile.get("regime") or "UNKNOWN")
            sure = row.profile.get("confidence")
            axes.scatter(
                [row.size],
                [lane],
                s=105,
                marker=marker(regime),
                color=colour(regime, DARK),
                alpha=0.35 + 0.65 * min(1.0, sure) if sure is not None else 0.85,
                edgecolor=DARK.surface,
                linewidth=0.8,
                zorder=3,
            )
    axes.set_yticks(range(len(series)), [literally(each.name) for each in series], fontsize=9)
    for label, each in zip(axes.get_yticklabels(), series, strict=True):
        label.set_color(each.colour)
    axes.set_ylim(len(series) + 0.1, -0.6)
    regimes = [str(row.profile.get("regime") or "UNKNOWN") for each in series for row in each.rows if not row.skipped]
    legend(axes, regimes, DARK, columns=3, loc="lower center", borderpad=0.2)
    if not regimes:
        _nothing(axes, "")


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else float(value) * factor


def _operations(figure: Figure, series: Sequence[_PanelSeries]) -> None:
    from matplotlib.lines import Line2D

    look: dict[str, Any] = {"linewidth": 1.6, "marker": "o", "markersize": 4.5}
    handles = [Line2D([], [], color=s.colour, linestyle=s.dashes, label=literally(s.name), **look) for s in series]
    if handles:
        figure.legend(
            handles=handles,
            ncols=len(handles),
            loc="center left",
            bbox_to_anchor=(0.066, 0.9),
            frameon=False,
            fontsize=9,
            labelcolor=DARK.ink,
            handlelength=3.2,
            columnspacing=2,
        )


def _subtitle(rows: Sequence[Row], ceilings: Ceilings) -> str:
    parts = [] if ceilings.memory is None else [f"memory {si(ceilings.memory.value, 'B/s')}"]
    if (fp32 := ceilings.compute.get(Precision.FP32)) is not None:
        parts.append(f"fp32 {si(fp32.value, 'FLOP/s')}")
    words = [f"{sum(not row.skipped for row in rows)} measurements", "bands: 95 % intervals"]
    if parts:
        words.append(f"ceilings: {', '.join(parts)}")
    if caches := _caches(rows, ceilings):
        words.append(f"rings: data in a cache ({', '.join(caches)})")
    return "; ".join(words)


def _beneath(rows: Sequence[Row]) -> list[str]:
    """The lines beneath the panels: the share of first touches, and the sizes that were not measured, by operation."""
    lines = []
    if fresh := [row for row in rows if _fresh(row)]:
        shares = [row.profile["first_touch_ratio"] for row in fresh]
        names = " and ".join(dict.fromkeys(literally(row.operation) for row in fresh))
        lines.append(
            f"New memory: up to {percent(max(shares), 0)} of the time of {names} goes to pages of the result that are "
            "touched for the first time; stems lead to the bandwidth without that."
        )
    for name in dict.fromkeys(row.operation for row in rows if row.skipped):
        own = [row for row in rows if row.operation == name and row.skipped]
        sizes = ", ".join(si(row.size, "").strip() for row in own)
        lines.append(f"Not measured: {literally(name)} of {sizes} elements: {literally(own[0].skipped, 110)}")
    return lines[:5]


def create_performance_plots(
    path: str | Path = "gpu_performance_analysis.png",
    *,
    device: Any = None,
    profiler: GPUProfiler | None = None,
    budget_s: float = 20.0,
) -> Path:
    """Sweep the device in about `budget_s` seconds, write the dark figure with four panels, and print one line.

    `device`: as for `GPUProfiler`; or pass a `profiler`. Before it measures anything, it raises UsageError if the file
    cannot be written, matplotlib does not support its format, or matplotlib is not installed.
    """
    target = check_file(path)
    if profiler is None:
        from gpu_profile.roofline.profiler import GPUProfiler

        profiler = GPUProfiler(device)
    rows = sweep(profiler, budget_s=budget_s)
    figure = panels_figure(rows, machine=profiler.machine.name, ceilings=profiler.ceilings)
    save(figure, target)
    print(f"Performance figure written to {target}")  # noqa: T201 - as GPURegimeProfiler's function does
    return target

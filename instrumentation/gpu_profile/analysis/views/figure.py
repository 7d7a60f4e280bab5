"""An analysis as a matplotlib figure, for notebooks and papers. `draw` imports matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from gpu_profile.analysis.account import Analysis
from gpu_profile.analysis.views.drawing import stretches
from gpu_profile.analysis.views.labels import labels
from gpu_profile.analysis.views.lanes import by_region
from gpu_profile.history.timeline import Column, Floats
from gpu_profile.report.blocks import blocks, round_up
from gpu_profile.report.devices import CHARTS, Chart, title
from gpu_profile.report.notebook_figure import notebook_figure
from gpu_profile.units import NS_PER_S, si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The page's colours: of signals, and of regions in their order.
_SIGNALS: Final = {"busy": "#3e63dd", "power": "#c2600a"}
_REGIONS: Final = (
    *("#3e63dd", "#c2600a", "#2a7e3b", "#c2298a", "#0f7f76"),
    *("#8347b9", "#a18600", "#ce2c31", "#0d74ce", "#7d5e54"),
)
_SOFT, _GAP, _HATCH = "#60646c", "#f3f0e9", "#c9bfa8"
_MOST_ROWS: Final = 2_000
_MOST_BLOCKS: Final = 4_000
_MOST_REGIONS: Final = 20
#: Inches.
_WIDTH, _PANEL, _LANE = 10.0, 1.0, 0.24


def draw(analysis: Analysis) -> Figure:
    """Utilisation and power of the devices with regions, and the regions below, over seconds.

    Hatched: not measured. The figure is not registered with pyplot: make it a cell's last value, or call `savefig`.
    UsageError if matplotlib is not installed.
    """
    used = {use.summary.device.uuid for use in analysis.regions}
    devices = [use for use in analysis.devices if use.device.uuid in used] or list(analysis.devices)
    shown = [(use, chart, use.timeline.best(chart.sources)) for use in devices for chart in CHARTS[:2]]
    panels = [(use, chart, column) for use, chart, column in shown if column is not None]
    names = list(analysis.runs)[:_MOST_REGIONS]
    heights = [_PANEL] * len(panels) + ([_LANE * len(names) + 0.1] if names else [])
    figure = notebook_figure(_WIDTH, sum(heights) + 0.9, layout="constrained")
    if not heights:
        figure.text(0.5, 0.5, "no samples and no executions", ha="center", color=_SOFT)
        return figure
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    names_of = labels(analysis)
    for axis, (use, chart, column) in zip(axes, panels, strict=False):
        _panel(axis, column, chart, analysis)
        if chart is CHARTS[0] or len(panels) == 1:
            axis.set_title(title(use.device, names_of[use.device.uuid]), loc="left", fontsize=9)
    if names:
        _lanes(axes[-1], analysis, names)
    axes[-1].set_xlim(0, max((analysis.end_ns - analysis.start_ns) / NS_PER_S, 1e-9))
    axes[-1].set_xlabel("seconds", fontsize=8)
    for axis in axes:
        axis.tick_params(labelsize=8, length=2)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _panel(axis: Axes, column: Column, chart: Chart, analysis: Analysis) -> None:
    start, end = analysis.start_ns, analysis.end_ns
    rows = stretches(column, start, end, _MOST_ROWS)
    colour = _SIGNALS[chart.key]
    factor = 100.0 if chart.key == "busy" else 1.0
    # Each row is flat; nothing is drawn across a gap.
    at = (np.stack((rows.starts, rows.starts, rows.ends), axis=1).ravel() - start) / NS_PER_S
    apart = np.concatenate(([False], rows.starts[1:] > rows.ends[:-1]))
    low, mean, high = (_flat(values * factor, apart) for values in (rows.low, rows.mean, rows.high))
    axis.fill_between(at, mean, color=colour, alpha=0.3, linewidth=0)
    axis.fill_between(at, low, high, color=colour, alpha=0.35, linewidth=0)
    axis.plot(at, mean, color=colour, linewidth=0.9)
    for a, b in rows.gaps:
        left, right = (a - start) / NS_PER_S, (b - start) / NS_PER_S
        axis.axvspan(left, right, facecolor=_GAP, edgecolor=_HATCH, hatch="////", linewidth=0)
    top = 1.0 if chart.key == "busy" else round_up(float(rows.high.max(initial=0.0)))
    axis.set_ylim(0, top * factor)
    axis.set_ylabel("GPU busy, %" if chart.key == "busy" else "power, W", fontsize=8)


def _flat(values: Floats, apart: npt.NDArray[np.bool_]) -> Floats:
    """Each value at its row's start and end. After a gap, NaN comes first."""
    return np.stack((np.where(apart, np.nan, values), values, values), axis=1).ravel()


def _lanes(axis: Axes, analysis: Analysis, names: list[str]) -> None:
    lanes = by_region(analysis)
    if lanes is None:
        return
    drawn = blocks(lanes.columns, lanes.starts, lanes.ends, lanes.columns, _MOST_BLOCKS)
    ticks = []
    for place, name in enumerate(names):
        mine = drawn.lanes == place
        left = (drawn.starts[mine] - analysis.start_ns) / NS_PER_S
        width = (drawn.ends[mine] - drawn.starts[mine]) / NS_PER_S
        # At least as wide as a thin line: short executions must stay visible.
        least = (analysis.end_ns - analysis.start_ns) / NS_PER_S / 1500
        colours = [(_REGIONS[place % len(_REGIONS)], 0.2 + 0.75 * fill) for fill in drawn.fills[mine].tolist()]
        stretch = list(zip(left.tolist(), width.clip(min=least).tolist(), strict=True))
        axis.broken_barh(stretch, (place - 0.375, 0.75), facecolors=colours, linewidth=0)
        runs = analysis.runs[name]
        regimes = dict.fromkeys(str(use.verdict.regime) for use in analysis.of(name))
        ticks.append(
            f"{name}  ({len(runs.starts_ns):,} × {si(float(runs.durations_s.mean()), 's')}, {'/'.join(regimes)})"
        )
    axis.set_yticks(range(len(names)), [_plain(tick) for tick in ticks])
    axis.set_ylim(len(names) - 0.5, -0.5)


def _plain(text: str) -> str:
    """Shortened, with `$` escaped: matplotlib would take it for mathematics."""
    return (text if len(text) <= 60 else text[:59] + "…").replace("$", r"\$")

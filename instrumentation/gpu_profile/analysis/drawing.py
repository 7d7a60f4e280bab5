"""The picture of a recording: each device's utilisation and power over time, and beneath them the regions. SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.analysis.account import Analysis, DeviceUse
from gpu_profile.analysis.runs import Runs
from gpu_profile.analysis.text import labels
from gpu_profile.catalogue import BUSY_SOURCES, Kind
from gpu_profile.catalogue import signals as rows
from gpu_profile.timeline import Column, Floats, Ints
from gpu_profile.units import NS_PER_S, si

_LEFT, _PLOT, _RIGHT = 190, 780, 150
_WIDTH: Final = _LEFT + _PLOT + _RIGHT
_CHART, _LANE, _GAP, _AXIS = 48, 18, 10, 26
#: Stretches of time that a curve is drawn from: two pixels each.
_BINS: Final = 390
#: A region with more executions than this is drawn by how much of each pixel it fills.
_MOST_BARS: Final = 400
_SHADES: Final = 5
_POWER: Final = (rows.POWER, rows.POWER_AVERAGE, rows.ENERGY)


class Scale(NamedTuple):
    """Where moments of the recording lie on the picture."""

    start_ns: int
    length_ns: int

    def x(self, t_ns: float) -> float:
        """Pixels from the left edge."""
        return _LEFT + (t_ns - self.start_ns) / self.length_ns * _PLOT


def draw(analysis: Analysis) -> str:
    """The picture; empty if nothing has a length."""
    scale = Scale(analysis.start_ns, analysis.end_ns - analysis.start_ns)
    if scale.length_ns <= 0:
        return ""
    names = labels(use.device for use in analysis.devices)
    parts: list[str] = []
    y = 4
    for use in analysis.devices:
        for chart in _charts(use, names[use.device.uuid], scale, y):
            parts.append(chart)
            y += _CHART + _GAP
    y += _GAP
    for region, runs in analysis.runs.items():
        verdicts = dict.fromkeys(str(use.verdict.regime) for use in analysis.of(region))
        parts.append(_lane(region, runs, list(verdicts), scale, y))
        y += _LANE + 4
    grid = "".join(_grid(scale, y))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {y + _AXIS}" role="img" aria-label="devices and regions over time">'
        f"{grid}{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, *, kind: str = "", most: int = 28) -> str:
    short = text if len(text) <= most else text[: most - 1] + "…"
    title = f"<title>{escape(text)}</title>" if short != text else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{title}{escape(short)}</text>'


def _grid(scale: Scale, bottom: int) -> Iterator[str]:
    length_s = scale.length_ns / NS_PER_S
    step = _step(length_s)
    for i in range(int(length_s / step + 1e-9) + 1):
        x = scale.x(scale.start_ns + i * step * NS_PER_S)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}" class="grid"/>'
        yield _text(x, bottom + 16, _moment(i * step), kind="tick")


def _step(length_s: float) -> float:
    """A round step that cuts the length into five to ten."""
    step = 10.0 ** np.floor(np.log10(length_s))
    return float(next((step / part for part in (1, 2, 5) if length_s / (step / part) >= 5), step / 10))


def _moment(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def _charts(use: DeviceUse, label: str, scale: Scale, y: int) -> Iterator[str]:
    """Utilisation and power of a device, as far as there are any."""
    title = f"{label} {use.device.name}".strip()
    busy = use.timeline.best(BUSY_SOURCES)
    power = use.timeline.best(_POWER)
    if busy is None and power is None:
        yield _text(_LEFT - 8, y + 20, title, kind="name") + _text(_LEFT, y + 20, "neither utilisation nor power")
        return
    if busy is not None:
        yield _chart(_means(busy, scale), 1.0, "busy", title, "GPU busy, 0 to 100 %", y)
        y += _CHART + _GAP
        title = ""
    if power is not None:
        values = _means(power, scale)
        most = float(np.nanmax(values)) if np.isfinite(values).any() else 0.0
        top = _round_up(most)
        yield _chart(values, top, "power", title, f"power, 0 to {si(top, 'W')}", y)


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    size = 10.0 ** np.floor(np.log10(value))
    return float(next(size * part for part in (1, 1.5, 2, 3, 4, 5, 7.5, 10) if size * part >= value * 0.999))


def _means(column: Column, scale: Scale) -> Floats:
    """The signal's mean in each bin, in base units (a counter's growth per second); NaN where nothing covers it."""
    edges = [scale.start_ns + scale.length_ns * i // _BINS for i in range(_BINS + 1)]
    unit = NS_PER_S if column.signal.kind is Kind.COUNTER else 1
    means = np.full(_BINS, np.nan)
    for i, (a, b) in enumerate(pairwise(edges)):
        mass, covered = column.integral(a, b)
        if covered > 0:
            means[i] = column.signal.base(mass) * unit / covered
    return means


def _chart(values: Floats, top: float, kind: str, title: str, legend: str, y: int) -> str:
    base = y + _CHART
    step = _PLOT / len(values)
    path = []
    for first, last in _covered(values):
        path.append(f"M{_LEFT + first * step:.1f} {base}")
        for i in range(first, last):
            height = base - min(1.0, max(0.0, float(values[i]) / top)) * _CHART
            path.append(f"V{height:.1f}H{_LEFT + (i + 1) * step:.1f}")
        path.append(f"V{base}Z")
    return (
        (_text(_LEFT - 8, y + 14, title, kind="name") if title else "")
        + _text(_LEFT + _PLOT + 8, y + 14, legend, kind="note")
        + f'<line x1="{_LEFT}" x2="{_LEFT + _PLOT}" y1="{base}" y2="{base}" class="base"/>'
        + f'<path d="{"".join(path)}" class="{kind}"/>'
    )


def _covered(values: Floats) -> Iterator[tuple[int, int]]:
    """Stretches `[first, last)` without a gap."""
    known = np.isfinite(values).astype(np.int8)
    edges = np.flatnonzero(np.diff(known, prepend=0, append=0)).tolist()
    yield from zip(edges[::2], edges[1::2], strict=True)


def _lane(region: str, runs: Runs, verdicts: Sequence[str], scale: Scale, y: int) -> str:
    bars = _bars(runs, scale, y) if len(runs.starts_ns) <= _MOST_BARS else _shades(runs, scale, y)
    mean = float(runs.durations_s.mean())
    title = f"{region}: {len(runs.starts_ns):,} executions, {si(mean, 's')} on average"
    verdict = verdicts[0] if len(verdicts) == 1 else "differs by device"
    return (
        _text(_LEFT - 8, y + 13, region, kind="name")
        + f'<g class="lane {escape(verdicts[0])}"><title>{escape(title)}</title>{"".join(bars)}</g>'
        + _text(_LEFT + _PLOT + 8, y + 13, verdict, kind="note")
    )


def _bar(x: float, width: float, y: int, opacity: str = "") -> str:
    return f'<rect x="{x:.2f}" y="{y}" width="{max(0.6, width):.2f}" height="{_LANE}"{opacity}/>'


def _bars(runs: Runs, scale: Scale, y: int) -> Iterator[str]:
    for a, b in zip(runs.on_starts_ns.tolist(), runs.on_ends_ns.tolist(), strict=True):
        yield _bar(scale.x(a), scale.x(b) - scale.x(a), y)


def _shades(runs: Runs, scale: Scale, y: int) -> Iterator[str]:
    """One rectangle for each run of pixels that are filled alike."""
    edges = np.linspace(0, scale.length_ns, _PLOT + 1)
    began, ended = runs.on_starts_ns - scale.start_ns, runs.on_ends_ns - scale.start_ns
    running = _elapsed(began, edges) - _elapsed(ended, edges)
    share = np.clip(np.diff(running) / (scale.length_ns / _PLOT), 0.0, 1.0)
    shade = np.ceil(share * _SHADES).astype(np.int64)
    cuts = [0, *(np.flatnonzero(np.diff(shade)) + 1).tolist(), _PLOT]
    for first, last in pairwise(cuts):
        if shade[first]:
            yield _bar(_LEFT + first, last - first, y, f' opacity="{shade[first] / _SHADES:g}"')


def _elapsed(moments: Ints, at: Floats) -> Floats:
    """The sum, over all moments, of the time since then, at each of `at`."""
    ordered = np.sort(moments.astype(np.float64))
    before = np.concatenate(([0.0], np.cumsum(ordered)))
    count = np.searchsorted(ordered, at)
    return np.asarray(count * at - before[count], np.float64)

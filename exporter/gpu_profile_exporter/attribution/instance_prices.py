"""The energy of each MIG instance of a GPU, from the GPU's energy and the instances' activities. Pure.

A GPU has one energy counter. Its growth in a window is the idle power times the time, plus for each instance and
activity a price times the activity. Least squares gives the idle power and the prices. Each instance has prices of its
own, because the same activity costs up to twice as much with other instructions or other data. Prices are not below 0.

The counter is up to 0.1 s behind the activities, or ahead of them. The shift with the smallest residuals counts.

A part of the energy is refused if its interval is wide. Intervals cover noise, errors that neighbouring windows share,
activities that hardly differ in their course, other prices in the latest windows than in all, energy that is not
proportional to the activity, and energy of the latest windows that the prices do not explain.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.least_squares import bounded
from gpu_profile.join.unmixing.solving.rate import WIDEST_HALF_WIDTH, Z95, t95
from gpu_profile.join.unmixing.solving.unmix import WINDOWS_PER_RATE
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.attribution.instance_windows import ACTIVITIES, REFUSED, EnergyParts, PowerWindow

#: Windows older than this do not count: the prices change with the instances' programs.
HORIZON_NS: Final = 600 * NS_PER_S
#: Most windows. They are at least 0.9 s long.
_MOST_WINDOWS: Final = 700
#: Windows must cover this share of a time: its ends may cut the first and the last one.
_COVERED: Final = 0.5
#: Windows in a block. Errors are alike within a block, and independent of other blocks.
_BLOCK: Final = 10
_FEWEST_BLOCKS: Final = 6
#: A direction of the activities that varies by less than this share of their size says nothing: the readings of the
#: counter and of GPM are up to 0.1 s apart, which is a few per cent of a window's change.
_CONTRAST: Final = 0.03
#: Residuals of windows above this share of the power above idle mean that an activity does not show its energy. The
#: shift between the counter and GPM leaves up to half of it.
_UNEXPLAINED: Final = 0.1
#: Residuals of blocks up to this many standard deviations are chance.
_CHANCE: Final = 2.0
#: Shifts of the counter against the activities, as shares of a window: the earlier or the later window has this part.
_SHIFTS: Final = (-0.1, -0.05, 0.05, 0.1)
#: Prices of the latest windows are compared with all: of the last half, and of the last quarter.
_TAILS: Final = (2, 4)
#: The median of the absolute values of a normal distribution, in standard deviations.
_MEDIAN: Final = 0.6745
#: No half-width is below this share of its part: prices are never quite constant.
_LEAST_WIDTH: Final = 0.02


class InstancePrices:
    """The windows of one GPU of the last 10 minutes, and its prices."""

    def __init__(self) -> None:
        self._windows: deque[PowerWindow] = deque(maxlen=_MOST_WINDOWS)

    def add(self, windows: Iterable[PowerWindow]) -> None:
        """Add later windows."""
        for window in windows:
            if self._windows and window.start_ns < self._windows[-1].start_ns:
                self._windows.clear()  # the clock was set back
            self._windows.append(window)
        while self._windows and self._windows[0].end_ns < self._windows[-1].end_ns - HORIZON_NS:
            self._windows.popleft()

    def parts(self, since_ns: int, until_ns: int, groups: Mapping[str, Hashable]) -> EnergyParts:
        """The parts of the energy of `(since, until]`, from the windows in it. `groups`: the group of each instance."""
        latest = [w for w in self._windows if since_ns <= w.start_ns and w.end_ns <= until_ns]
        covered_ns = sum(window.end_ns - window.start_ns for window in latest)
        if not latest or covered_ns < _COVERED * (until_ns - since_ns):
            return REFUSED
        fit = _PriceFit.of(self._windows)
        if fit is None:
            return REFUSED
        rows: dict[Hashable, Floats] = {}
        for uuid, group in groups.items():
            rows[group] = rows.get(group, 0.0) + fit.row(uuid, latest)
        seconds, joules = covered_ns / NS_PER_S, sum(window.joules for window in latest)
        idle_row = fit.row("", [])
        idle_row[0] = seconds
        idle_j = fit.joules(idle_row)
        parts = {group: fit.joules(row) for group, row in rows.items()}
        modelled_j = idle_j + sum(parts.values())
        if not fit.fits or modelled_j <= 0 or joules <= 0:
            return REFUSED
        # Chance evens out over time. A difference beyond chance may be all of one part.
        chance_j = _CHANCE * fit.block_w * seconds * math.sqrt(_BLOCK / len(latest))
        beyond_j = max(0.0, abs(joules - modelled_j) - chance_j)
        usual_j = sum(parts.values()) / max(1, sum(part > 0 for part in parts.values()))
        given: dict[Hashable, float] = {}
        widths: dict[Hashable, float] = {}
        for group, part in parts.items():
            width = max(fit.half_width(rows[group]), _LEAST_WIDTH * part, fit.unexplained * part) + beyond_j
            # Activity without any energy is a wrong model, too.
            if width <= WIDEST_HALF_WIDTH * max(part, usual_j) and (part > 0 or not rows[group].any()):
                given[group] = part / modelled_j
                widths[group] = width / modelled_j
        certain = fit.half_width(idle_row) + beyond_j <= WIDEST_HALF_WIDTH * idle_j
        return EnergyParts(idle_j / modelled_j if certain else None, given, widths)


class _PriceFit:
    """Prices in J per unit of each column: time in s, and then each activity of each instance that was active.

    The other columns have no price. They grow with the root of each instance's first activity, to detect that energy is
    not proportional to it.
    """

    def __init__(self, columns: dict[str, Ints], every: Floats, joules: Floats) -> None:
        self._columns = columns
        size = 1 + len(ACTIVITIES) * len(columns)
        rows, n = every[:, :size], len(every)
        # Columns of about the same size, so that no unit decides which direction is weak.
        self._scale = np.sqrt(np.maximum((rows**2).mean(axis=0), 1e-300))
        scaled = rows / self._scale
        gram = scaled.T @ scaled / n
        solution = bounded(gram, scaled.T @ joules / n)
        self.prices: Floats = solution / self._scale
        left = joules - scaled @ solution
        noise = float(left @ left) / (n - size)
        strengths, self._directions = np.linalg.eigh(gram)
        clear = strengths - _CONTRAST**2
        # Of a direction without contrast, only physics bounds the price: all of the energy.
        most = float((joules**2).mean())
        self._variances = np.where(clear > 0, np.minimum(most, noise / n / np.maximum(clear, 1e-300)), most)
        # By how much each block of windows moves the prices, along the directions with contrast.
        blocks = n // _BLOCK
        starts = np.arange(blocks) * (n // blocks)
        scores = np.add.reduceat(scaled * left[:, None], starts) @ self._directions / n
        self._moved: Floats = np.where(clear > 0, scores / np.maximum(clear, 1e-300), 0.0)
        # By how much other models differ, along the directions with contrast: of the latest windows only, and with
        # roots. All of them allow negative prices.
        self._every_scale = np.sqrt(np.maximum((every**2).mean(axis=0), 1e-300))
        free = np.append(_ridge(scaled, left), np.zeros(len(columns)))
        tails = [_ridge(scaled[-(n // tail) :], left[-(n // tail) :]) for tail in _TAILS]
        others = [np.append(tail, np.zeros(len(columns))) for tail in tails]
        others.append(_ridge(every / self._every_scale, left))
        self._others: Floats = np.array(others) - free
        lengths = np.add.reduceat(rows[:, 0], starts)
        means = np.add.reduceat(left, starts) / lengths
        block_w = math.sqrt(float((means**2).sum()) / max(1, blocks - size // 2))
        #: The usual residual power of a block of windows, in W: without the few blocks of a program with other prices.
        self.block_w = min(block_w, float(np.median(np.abs(means))) / _MEDIAN)
        above_idle = joules - rows[:, 0] * self.prices[0]
        mean_w, square = float(above_idle.sum() / rows[:, 0].sum()), float((above_idle**2).mean())
        steady = noise <= _UNEXPLAINED**2 * square and _CHANCE * block_w <= WIDEST_HALF_WIDTH * mean_w
        #: The residuals as a share of the variation. Prices are too low by up to this share if activities are in error.
        self.unexplained = math.sqrt(noise / max(float(joules.var()), 1e-300))
        #: Whether constant prices explain the windows. They do not if they need an idle power of 0.
        self.fits = steady and solution[0] > 0

    @classmethod
    def of(cls, windows: Collection[PowerWindow]) -> _PriceFit | None:
        """From windows. None if there are too few for the number of active instances."""
        used = sorted({uuid for window in windows for uuid, values in window.activity.items() if any(values)})
        width = len(ACTIVITIES)
        size = 1 + width * len(used)
        columns = {
            uuid: np.append(np.arange(1 + width * i, 1 + width * (i + 1)), size + i) for i, uuid in enumerate(used)
        }
        if len(windows) < max(WINDOWS_PER_RATE * size, _BLOCK * _FEWEST_BLOCKS):
            return None
        rows = np.zeros((len(windows), size + len(used)))
        for row, window in zip(rows, windows, strict=True):
            row[0] = (window.end_ns - window.start_ns) / NS_PER_S
            for uuid in window.activity.keys() & columns.keys():
                row[columns[uuid]] = _values(window, uuid)
        joules = np.array([window.joules for window in windows])
        return cls(columns, min(_shifted(rows, windows), key=lambda each: _residual(each[:, :size], joules)), joules)

    def row(self, uuid: str, windows: Iterable[PowerWindow]) -> Floats:
        """The sums of an instance's activities over windows, in the columns of this fit."""
        result = np.zeros(len(self._every_scale))
        if (place := self._columns.get(uuid)) is not None:
            for window in windows:
                if uuid in window.activity:
                    result[place] += _values(window, uuid)
        return result

    def joules(self, row: Floats) -> float:
        """The energy of a sum of columns."""
        return float(row[: len(self.prices)] @ self.prices)

    def half_width(self, row: Floats) -> float:
        """The half-width of the energy of a sum of columns, in J."""
        own = row[: len(self.prices)] / self._scale
        along = own @ self._directions
        drawn = Z95 * math.sqrt(float((along**2) @ self._variances))
        moved = self._moved @ along
        apart = float(np.abs(self._others @ (row / self._every_scale)).max())
        return max(drawn, t95(len(self._moved) - 1) * math.sqrt(float(moved @ moved))) + apart


def _values(window: PowerWindow, uuid: str) -> tuple[float, ...]:
    """An instance's activities in a window, and the time multiplied by the root of the mean of the first one."""
    activity, seconds = window.activity[uuid], (window.end_ns - window.start_ns) / NS_PER_S
    return (*activity, math.sqrt(max(0.0, activity[0]) * seconds))


def _residual(rows: Floats, joules: Floats) -> float:
    """The sum of the squares that no prices explain, negative ones included, without a constant."""
    moments = rows.T @ joules
    return -float(moments @ np.linalg.lstsq(rows.T @ rows, moments, rcond=None)[0])


def _ridge(rows: Floats, left: Floats) -> Floats:
    """The coefficients that explain residuals by columns of size 1, and 0 along directions without contrast."""
    n, size = rows.shape
    return np.asarray(np.linalg.solve(rows.T @ rows / n + _CONTRAST**2 * np.eye(size), rows.T @ left / n))


def _shifted(rows: Floats, windows: Collection[PowerWindow]) -> Iterator[Floats]:
    """The rows, and rows of the activities a part of a window earlier or later."""
    yield rows
    follows = np.array([a.end_ns == b.start_ns for a, b in pairwise(windows)])
    before = np.where(np.append(False, follows)[:, None], np.roll(rows, 1, axis=0), rows)
    after = np.where(np.append(follows, False)[:, None], np.roll(rows, -1, axis=0), rows)
    for shift in _SHIFTS:
        yield rows + abs(shift) * ((before if shift > 0 else after) - rows)

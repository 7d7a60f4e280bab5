"""The energy of each MIG instance of a GPU, from the GPU's energy and the instances' activities. Pure.

A GPU has one energy counter. Its growth in a window is the idle power times the time, plus for each instance and
activity a price times the activity. Least squares gives the idle power and the prices. Each instance has prices of its
own, because the same activity costs up to twice as much with other instructions or other data. Prices are not below 0.

A part of the energy is refused if its interval is wide. Intervals cover noise, errors that neighbouring windows share,
activities that hardly differ in their course, other prices in the first half of the windows than in the last, and
energy of the latest windows that the prices do not explain.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.least_squares import nnls
from gpu_profile.join.unmixing.rate import WIDEST_HALF_WIDTH
from gpu_profile.join.unmixing.unmix import WINDOWS_PER_RATE, Z95, t95
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
        idle_row = np.zeros(len(fit.prices))
        idle_row[0] = seconds
        idle_j = float(idle_row @ fit.prices)
        parts = {group: float(row @ fit.prices) for group, row in rows.items()}
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
            width = max(fit.half_width(rows[group]), _LEAST_WIDTH * part) + beyond_j
            # Activity without any energy is a wrong model, too.
            if width <= WIDEST_HALF_WIDTH * max(part, usual_j) and (part > 0 or not rows[group].any()):
                given[group] = part / modelled_j
                widths[group] = width / modelled_j
        certain = fit.half_width(idle_row) + beyond_j <= WIDEST_HALF_WIDTH * idle_j
        return EnergyParts(idle_j / modelled_j if certain else None, given, widths)


class _PriceFit:
    """Prices in J per unit of each column: time in s, and then each activity of each instance that was active."""

    def __init__(self, columns: dict[str, slice], rows: Floats, joules: Floats) -> None:
        self._columns = columns
        n, size = rows.shape
        # Columns of about the same size, so that no unit decides which direction is weak.
        self._scale = np.sqrt(np.maximum((rows**2).mean(axis=0), 1e-300))
        scaled = rows / self._scale
        gram = scaled.T @ scaled / n
        solution = nnls(gram, scaled.T @ joules / n)
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
        # Prices of the first and the last half, which are the whole's where a half has no contrast.
        ridge, halves = _CONTRAST**2 * np.eye(size), (slice(n // 2), slice(n // 2, n))
        self._halves: Floats = np.array(
            [
                np.linalg.solve(
                    scaled[half].T @ scaled[half] / (n / 2) + ridge,
                    scaled[half].T @ joules[half] / (n / 2) + ridge @ solution,
                )
                for half in halves
            ]
        )
        lengths = np.add.reduceat(rows[:, 0], starts)
        means = np.add.reduceat(left, starts) / lengths
        #: The residual power of a block of windows, in W.
        self.block_w = math.sqrt(float((means**2).sum()) / max(1, blocks - size // 2))
        above_idle = joules - rows[:, 0] * self.prices[0]
        mean_w, square = float(above_idle.sum() / rows[:, 0].sum()), float((above_idle**2).mean())
        steady = noise <= _UNEXPLAINED**2 * square and _CHANCE * self.block_w <= WIDEST_HALF_WIDTH * mean_w
        #: Whether constant prices explain the windows. They do not if they need an idle power of 0.
        self.fits = steady and solution[0] > 0

    @classmethod
    def of(cls, windows: Collection[PowerWindow]) -> _PriceFit | None:
        """From windows. None if there are too few for the number of active instances."""
        used = sorted({uuid for window in windows for uuid, values in window.activity.items() if any(values)})
        width = len(ACTIVITIES)
        columns = {uuid: slice(1 + width * i, 1 + width * (i + 1)) for i, uuid in enumerate(used)}
        size = 1 + width * len(used)
        if len(windows) < max(WINDOWS_PER_RATE * size, _BLOCK * _FEWEST_BLOCKS):
            return None
        rows = np.zeros((len(windows), size))
        for row, window in zip(rows, windows, strict=True):
            row[0] = (window.end_ns - window.start_ns) / NS_PER_S
            for uuid in window.activity.keys() & columns.keys():
                row[columns[uuid]] = window.activity[uuid]
        return cls(columns, rows, np.array([window.joules for window in windows]))

    def row(self, uuid: str, windows: Iterable[PowerWindow]) -> Floats:
        """The sums of an instance's activities over windows, in the columns of this fit."""
        result = np.zeros(len(self.prices))
        if (place := self._columns.get(uuid)) is not None:
            for window in windows:
                result[place] += window.activity.get(uuid, 0.0)
        return result

    def half_width(self, row: Floats) -> float:
        """The half-width of the energy of a sum of columns, in J."""
        along = (row / self._scale) @ self._directions
        drawn = Z95 * math.sqrt(float((along**2) @ self._variances))
        moved = self._moved @ along
        halves = self._halves @ (row / self._scale)
        apart = abs(float(halves[0] - halves[1])) / 2
        return max(drawn, t95(len(self._moved) - 1) * math.sqrt(float(moved @ moved))) + apart

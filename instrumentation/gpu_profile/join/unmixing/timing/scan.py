"""A rough trial of many timings of a sensor at once: the beginning of the search. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.design import Windows
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.pauses import yield_to_program
from gpu_profile.join.unmixing.windows.sensor import Sensor, clear_of, moments_of
from gpu_profile.units import NS_PER_S

#: The grid of active time.
_STEP_NS: Final = 2_000_000
#: Moments that are looked up at once.
_AT_ONCE: Final = 30_000
#: Residuals are clipped to this multiple of the median. A wrong renewal in one of twenty windows may otherwise hide the
#: right timing.
_FAR: Final = 4.0
#: A ridge, as a share of the strongest column, that keeps equations solvable if they lack a column.
_RIDGE: Final = 1e-9
_TINY: Final = 1e-300


class Scan:
    """Windows, of which only the first signal counts, and active time on a grid of moments.

    `reach_ns` is how far before a window's stamps a timing may look. `counts`: the masses are a counter's growth.
    The grid leaves out pauses at which no timing looks: between two runs there may be months.
    """

    def __init__(self, active: ActiveTime, windows: Windows, columns: int, reach_ns: int, *, counts: bool) -> None:
        self._windows = windows
        self._counts = counts
        stamps = np.sort(np.concatenate((windows.starts, windows.ends)))
        apart = np.flatnonzero(np.diff(stamps) > 2 * reach_ns)
        #: By stretch of the grid: its first moment, and that moment's place.
        self._firsts: Ints = np.append(stamps[:1], stamps[apart + 1]) - reach_ns
        lasts = np.append(stamps[apart], stamps[-1:]) + reach_ns
        grid = [np.arange(a, b + 2 * _STEP_NS, _STEP_NS) for a, b in zip(self._firsts, lasts, strict=True)]
        self._offsets: Ints = np.cumsum([0, *(len(each) for each in grid[:-1])])
        sums = active.until(np.concatenate(grid), columns)
        #: By column and moment of the grid, without column 0, which is the rest.
        self._passed: Floats = (sums - sums[:, :1])[1:]
        self._transform: npt.NDArray[np.complex128] | None = None
        self._responses: dict[int, Floats] = {}

    def residuals(self, sensors: Sequence[Sensor]) -> Floats:
        """The mean squared error under each timing, with unbounded rates."""
        errors = np.zeros(len(sensors))
        # Smoothed active time depends on the time constant. Sensors that do not smooth share one table.
        shapes = [sensor.window_ns if sensor.smooth else 0 for sensor in sensors]
        most = max(1, _AT_ONCE // max(1, len(self._windows.ends)))
        for constant_ns in dict.fromkeys(shapes):
            places = [i for i, each in enumerate(shapes) if each == constant_ns]
            for at in range(0, len(places), most):
                yield_to_program()
                part = places[at : at + most]
                errors[part] = self._of_shape([sensors[i] for i in part], constant_ns)
        return errors

    def _of_shape(self, sensors: Sequence[Sensor], constant_ns: int) -> Floats:
        windows = self._windows
        sensors = [sensor.placed(windows.ends) for sensor in sensors]
        ends = moments_of(sensors, windows.ends)
        lengths = np.broadcast_to(windows.ends - windows.starts, ends.shape)
        if constant_ns:
            active = self._at(self._smoothed(constant_ns), ends)
        else:
            window_ns, starts = np.array([[each.window_ns] for each in sensors]), moments_of(sensors, windows.starts)
            if self._counts:
                lengths = ends - starts
            starts = np.where(window_ns, ends - window_ns, starts)
            active = self._at(self._passed, ends)
            active -= self._at(self._passed, starts)
            active /= np.maximum(ends - starts, 1)
        unclear = self._unclear(sensors)
        keep = ((lengths > 0) & ~unclear).astype(np.float64)
        values = windows.masses[:, 0] * NS_PER_S / np.maximum(lengths, 1) * keep
        shares = np.empty((len(sensors), 1 + len(active), ends.shape[1]))
        np.multiply(active.transpose(1, 0, 2), keep[:, None, :], out=shares[:, 1:])
        shares[:, 0] = keep - shares[:, 1:].sum(axis=1)
        missed = (values - self._solved(shares, values)) ** 2
        n = np.maximum(keep.sum(axis=1), 1).astype(np.int64)
        # The median of the windows in use: the others have residual 0 and sort first.
        middle = np.take_along_axis(np.sort(missed, axis=1), keep.shape[1] - (n[:, None] + 1) // 2, axis=1)
        far = _FAR**2 * middle
        near = missed <= far
        missed = (values - self._solved(shares, values, near)) ** 2
        # Fewer clear windows have smaller residuals, since the unknowns fit some: divide by degrees of freedom.
        left = np.minimum(missed, far).sum(axis=1) / np.maximum(n - shares.shape[1], 1)
        # Windows left out are predicted by their mean, and contradict the timing if a counter grew.
        whole = windows.masses[:, 0] * NS_PER_S / (windows.ends - windows.starts)
        out = float((whole**2).mean() if self._counts else whole.var())
        result: Floats = left + (1 - (n + unclear.sum(axis=1)) / len(whole)) * out
        return result

    def _unclear(self, sensors: Sequence[Sensor]) -> npt.NDArray[np.bool_]:
        """By timing: the windows with an edge so near to a renewal that a step of the grid moves it across. No window,
        if that is so for most."""
        clear = clear_of(sensors, self._windows.starts) & clear_of(sensors, self._windows.ends)
        # Readings in step are as far from renewals as possible.
        clear[[each.in_step for each in sensors]] = True
        unclear: npt.NDArray[np.bool_] = ~clear & (2 * (~clear).sum(axis=1) <= clear.shape[1])[:, None]
        return unclear

    def _solved(self, shares: Floats, values: Floats, near: npt.NDArray[np.bool_] | None = None) -> Floats:
        """The predictions of every window by the rates that fit the `near` ones best, `[timings, windows]`. Shares are
        by timing, column and window."""
        fitted = shares if near is None else shares * near[:, None, :]
        gram = fitted @ shares.transpose(0, 2, 1)
        moment = fitted @ values[:, :, None]
        size = shares.shape[1]
        gram += (_RIDGE * np.trace(gram, axis1=1, axis2=2)[:, None, None] + _TINY) * np.eye(size)
        solved = np.linalg.solve(gram, moment)
        predicted: Floats = (solved.transpose(0, 2, 1) @ shares)[:, 0]
        return predicted

    def _at(self, values: Floats, moments: Ints) -> Floats:
        if len(self._firsts) == 1:
            place = (moments - self._firsts[0]) / _STEP_NS
        else:
            stretch = np.maximum(self._firsts.searchsorted(moments, side="right") - 1, 0)
            place = (moments - self._firsts[stretch]) / _STEP_NS + self._offsets[stretch]
        place = np.clip(place, 0.0, values.shape[1] - 1.001)
        low = place.astype(np.int64)
        place -= low
        result: Floats = values.take(low + 1, axis=1)
        before = values.take(low, axis=1)
        result -= before
        result *= place
        result += before
        return result

    def _smoothed(self, constant_ns: int) -> Floats:
        """A smoothing sensor's readings at every moment of the grid: `[columns, moments]`."""
        if constant_ns not in self._responses:
            moments = self._passed.shape[1]
            size = 1 << (2 * moments - 1).bit_length()
            if self._transform is None:
                grown = np.diff(self._passed, axis=1, prepend=0.0)
                # A reading after a pause has forgotten the time before it.
                grown[:, self._offsets] = 0.0
                self._transform = np.fft.rfft(grown, size)
            weights = np.exp(-np.arange(moments) * _STEP_NS / constant_ns)
            weights /= weights.sum() * _STEP_NS
            response = np.fft.irfft(self._transform * np.fft.rfft(weights, size))
            self._responses[constant_ns] = response[:, :moments]
        return self._responses[constant_ns]

"""Many timings of a sensor tried at once, roughly: where the search for the right one begins. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.active_time import ActiveTime
from gpu_profile.join.unmixing.design import Windows
from gpu_profile.join.unmixing.sensor import Sensor
from gpu_profile.units import NS_PER_S

#: Active time is looked up at moments so far apart.
_STEP_NS: Final = 2_000_000
#: Moments that are looked up at once.
_AT_ONCE: Final = 40_000
#: A window that misses by more than this many times the median is no better known: with a wrong renewal, one in twenty
#: may hide which of the timings is right.
_FAR: Final = 4.0
#: Keeps equations solvable that have nothing to say of some column, as a share of the strongest.
_RIDGE: Final = 1e-9
_TINY: Final = 1e-300


class Scan:
    """Windows, of which only the first signal counts, beside active time at moments of a grid.

    `reach_ns` is how far before a window's stamps a timing may look. `counts`: the masses are a counter's growth.
    """

    def __init__(self, active: ActiveTime, windows: Windows, columns: int, reach_ns: int, *, counts: bool) -> None:
        self._windows = windows
        self._counts = counts
        self._origin_ns = int(windows.starts[0]) - reach_ns
        sampled = active.sampled(self._origin_ns, int(windows.ends[-1]) + reach_ns, _STEP_NS, columns)
        self._passed = sampled.sums - sampled.sums[:, :1]
        self._responses: dict[tuple[int, bool], Floats] = {}

    def residuals(self, sensors: Sequence[Sensor]) -> Floats:
        """The mean squared error that each timing leaves, with rates that may be anything."""
        found = np.zeros(len(sensors))
        shapes = [(sensor.window_ns, sensor.smooth) for sensor in sensors]
        most = max(1, _AT_ONCE // max(1, len(self._windows.ends)))
        for shape in dict.fromkeys(shapes):
            places = [i for i, each in enumerate(shapes) if each == shape]
            for at in range(0, len(places), most):
                part = places[at : at + most]
                found[part] = self._of_shape([sensors[i] for i in part], shape)
        return found

    def _of_shape(self, sensors: Sequence[Sensor], shape: tuple[int, bool]) -> Floats:
        windows = self._windows
        sensors = [sensor.placed(windows.ends) for sensor in sensors]
        ends = np.array([sensor.moments(windows.ends) for sensor in sensors])
        lengths = np.broadcast_to(windows.ends - windows.starts, ends.shape)
        if shape[0]:
            shares = self._at(self._response(shape), ends)
        else:
            starts = np.array([sensor.moments(windows.starts) for sensor in sensors])
            if self._counts:
                lengths = ends - starts
            shares = (self._at(self._passed, ends) - self._at(self._passed, starts)) / np.maximum(ends - starts, 1)
        keep = (lengths > 0).astype(np.float64)
        values = windows.masses[:, 0] * NS_PER_S / np.maximum(lengths, 1) * keep
        shares = shares * keep
        shares[0] = keep - shares[1:].sum(axis=0)
        missed = (values - self._solved(shares, values)) ** 2
        far = _FAR**2 * np.median(missed, axis=1, keepdims=True)
        near = missed <= far
        missed = (values - self._solved(shares * near, values * near, shares)) ** 2
        n = np.maximum(keep.sum(axis=1), 1)
        left = np.minimum(missed, far).sum(axis=1) / n
        # Windows that a timing makes nothing of are no better than their mean, and contradict it where a counter grew.
        whole = windows.masses[:, 0] * NS_PER_S / (windows.ends - windows.starts)
        out = float((whole**2).mean() if self._counts else whole.var())
        result: Floats = left + (1 - n / len(whole)) * out
        return result

    def _solved(self, shares: Floats, values: Floats, whole: Floats | None = None) -> Floats:
        """What the rates that fit best say of every window, `[timings, windows]`."""
        gram = np.einsum("kcn,lcn->ckl", shares, shares, optimize=True)
        moment = np.einsum("kcn,cn->ck", shares, values, optimize=True)
        gram += (_RIDGE * np.trace(gram, axis1=1, axis2=2)[:, None, None] + _TINY) * np.eye(len(shares))
        solved = np.linalg.solve(gram, moment[:, :, None])[:, :, 0]
        told: Floats = np.einsum("kcn,ck->cn", shares if whole is None else whole, solved, optimize=True)
        return told

    def _at(self, values: Floats, moments: Ints) -> Floats:
        place = np.clip((moments - self._origin_ns) / _STEP_NS, 0.0, values.shape[1] - 1.001)
        low = place.astype(np.int64)
        part = place - low
        result: Floats = values[:, low] * (1.0 - part) + values[:, low + 1] * part
        return result

    def _response(self, shape: tuple[int, bool]) -> Floats:
        """What a sensor with a window of its own shows at every moment of the grid: `[columns, moments]`."""
        if shape not in self._responses:
            window_ns, smooth = shape
            cells = np.arange(self._passed.shape[1])
            if smooth:
                rising = np.diff(self._passed, axis=1, prepend=0.0)
                weights = np.exp(-cells * _STEP_NS / window_ns)
                size = 2 * len(cells)
                transform = np.fft.rfft(rising, size) * np.fft.rfft(weights / (weights.sum() * _STEP_NS), size)
                response = np.fft.irfft(transform, size)[:, : len(cells)]
            else:
                before = self._at(self._passed, self._origin_ns + cells * _STEP_NS - window_ns)
                response = (self._passed - before) / window_ns
            self._responses[shape] = response
        return self._responses[shape]

"""A sensor's response to a given load: its period, lag, window and gains, with 95 % intervals. Pure.

The model: a sensor shows `base + sum of gains * share of its window at each level`. Its window ends `lag` before the
moment of the renewal. The reading is a mean over `window`, or weighted by an exponential with that time constant. A
counter's window reaches back to the renewal before, or less far for a part-time sensor. A search on a coarse grid
starts least squares in these continuous unknowns. The intervals are those of a linear model at the minimum, by blocks
of neighbours (Liang and Zeger, 1986). Half the distance between two polls is added: it may hide a renewal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.calibration.load import Load, LoadTime, Renewed, Shape
from gpu_profile.calibration.renewals import Z95, Estimate, period_of, placed
from gpu_profile.history.timeline import Floats, Ints

_MS: Final = 1e6
#: A sensor with fewer changes than this, while the load changes all the time, does not respond to it.
_FEWEST: Final = 40
#: The coarse grid: lags in ms, windows and time constants in ms, on at most about this many observations.
_LAGS: Final = np.arange(0.0, 1000.1, 10.0)
_WINDOWS: Final = 5.0 * 1.25 ** np.arange(27)
_COARSE: Final = 800
#: The first and the last step of the refinement, in ms.
_STEP: Final = 8.0
_LAST_STEP: Final = 0.02
#: After this many time constants, an exponential has forgotten the load.
_REACH: Final = 6.0
#: The best shape is sure if it is more likely than the others by this much (twice the natural logarithm).
_CLEAR: Final = 10.0
#: A counter with a window longer than this share of its period measures all of it.
_WHOLE: Final = 0.98
#: The number of neighbours with errors that may depend on one another.
_BLOCK: Final = 20
#: A free-form response has `_FREE` steps. A fit with `_MISFIT` times its variance has the wrong shape.
_FREE: Final = 40
_MISFIT: Final = 1.5
#: Lags and windows of two parts of a calibration that differ by less than twice this, in ms, are the same: a
#: level's power is not quite constant. Ours.
_CHANGED: Final = 1.0
#: Means between two calls are exact: more of their variance is left only by other renewals than assumed. Ours.
_LEFT: Final = 0.02
#: Changes that are this many polls apart show their period if they have one.
_RESOLVED: Final = 3


class SensorResponse(NamedTuple):
    """A sensor's response, times in ms. `period` is 0 without a steady period that polls can resolve, `window` is 0 for
    a mean since the renewal before. `gains` are each level's addition to `base`, in the readings' unit.

    `sure`: other shapes are much less likely. `reason`: why there is no response, or the evidence against it.
    """

    n: int
    period: Estimate
    jitter_ms: float
    shape: Shape
    sure: bool
    lag: Estimate
    window: Estimate
    base: Estimate
    gains: tuple[Estimate, ...]
    noise: float
    reason: str = ""

    @property
    def part_time(self) -> float | None:
        """The share of the time that the sensor measures; None without a steady period, or for an exponential."""
        if self.shape == "exponential" or not self.period.value:
            return None
        return 1.0 if not self.window.value else min(1.0, self.window.value / self.period.value)


def find(load: Load, stamps: Ints, values: Floats, *, counter: bool) -> SensorResponse | None:
    """The response of a sensor that was polled at `stamps` and returned `values`; a counter's are totals in unit·s.

    None if it has too few readings, or does not respond to the load.
    """
    new = np.flatnonzero(np.diff(values) != 0) + 1
    if len(new) < _FEWEST or not load.kinds:
        return None
    origin = int(stamps[0])
    at = (stamps - origin) / _MS
    gap = float(np.median(np.diff(at)))
    # A renewal lies between the last poll with the old value and the first with the new one.
    changes, edge = (at[new - 1] + at[new]) / 2, gap / 2
    period, jitter = period_of(changes, gap)
    if period.value:
        changes, edge, period = placed(at[new - 1], at[new], period)
    else:
        changes = at[new]
    seen = Renewed.of(changes[1:], values[new][1:], changes[:-1])
    if counter:
        seen = seen._replace(values=np.diff(values[new]) / (np.diff(changes) / 1e3))
    # After a pause of the polls, the moment of the renewal is unknown.
    clear = at[new] - at[new - 1] < (period.value or 2 * _RESOLVED * gap) / 2
    seen = seen.where(clear[1:] & clear[:-1])
    tried = _tried(LoadTime(load, origin), seen, ("interval", "mean") if counter else ("mean", "exponential"))
    best = min(tried, key=lambda fit: fit.score)
    sure = max(fit.score for fit in tried) - best.score > _CLEAR
    if counter and tried[1].window >= _WHOLE * period.value > 0:
        # A mean over at least the whole interval is a mean over the interval.
        best, sure = tried[0], True
    response = _response(best, period, jitter, edge, sure=sure)
    unsteady = not period.value and float(np.median(np.diff(changes))) >= _RESOLVED * gap
    return response._replace(reason="it is renewed at no steady period" if unsteady else response.reason)


def find_stamped(load: Load, stamps: Ints, values: Floats) -> SensorResponse | None:
    """The response of a sensor if its driver stamps every reading with the moment of its renewal."""
    if len(stamps) < _FEWEST or not load.kinds or not np.ptp(values):
        return None
    origin = int(stamps[0])
    at = (stamps - origin) / _MS
    period, jitter = period_of(at, 1.0)
    seen = Renewed.of(at[1:], values[1:], at[:-1])
    tried = _tried(LoadTime(load, origin), seen, ("mean", "exponential"))
    best = min(tried, key=lambda fit: fit.score)
    response = _response(best, period, jitter, 0.0, sure=max(fit.score for fit in tried) - best.score > _CLEAR)
    lag, window = best.by_level()
    return response._replace(lag=response.lag.wider(lag), window=response.window.wider(window))


def find_windows(load: Load, starts: Ints, stamps: Ints, values: Floats, period_ms: float) -> SensorResponse | None:
    """The response of a sensor that returns means between two calls, each read at the latest renewal. It renews every
    `period_ms`, at a phase that no call shows: the fit searches for it."""
    if len(stamps) < _FEWEST or not load.kinds or not np.ptp(values):
        return None
    origin = int(starts[0])
    passed, (begin, at) = LoadTime(load, origin), ((part - origin) / _MS for part in (starts, stamps))

    def observed(phase: float) -> Renewed:
        end, start = (part - (part - phase) % period_ms for part in (at, begin))
        keep = end > start
        return Renewed.of(end[keep], values[keep], start[keep])

    def best(phases: Floats) -> tuple[float, float, float]:
        tried = []
        for phase in phases.tolist():
            fit = _fitted(passed, observed(phase), "interval")
            tried.append((fit.left / max(1, len(fit.seen.at) - 4), phase, fit.lag))
        return min(tried)

    _, phase, _ = best(np.arange(0.0, period_ms, period_ms / 20))
    _, phase, _ = best(phase + np.linspace(-period_ms / 20, period_ms / 20, 21))
    fit = _fitted(passed, observed(phase), "interval")
    response = _response(fit, Estimate(period_ms, 0.0), 0.0, period_ms / 200, sure=True)
    left = fit.left / float(np.square(fit.seen.values - fit.seen.values.mean()).sum())
    reason = f"renewals every {period_ms:g} ms leave {left:.0%} of the variance of its readings"
    return response._replace(reason=reason if left > _LEFT else response.reason)


def _response(fit: _Fit, period: Estimate, jitter: float, edge: float, *, sure: bool) -> SensorResponse:
    reason = fit.misfit() or fit.change()
    return SensorResponse(len(fit.seen.at), period, jitter, fit.shape, sure, *fit.response(edge), reason=reason)


def _tried(passed: LoadTime, seen: Renewed, shapes: Sequence[Shape]) -> list[_Fit]:
    """The best fit of each shape. A level's power may vary (a board caps products at its limit after some time). So
    the weights follow the noise under each level."""
    rough = [_fitted(passed, seen, shape) for shape in shapes]
    weighted = seen._replace(weights=min(rough, key=lambda fit: fit.score).weights())
    return [_refined(_Fit(passed, weighted, fit.shape, fit.lag, fit.window), _STEP / 4) for fit in rough]


def _fitted(passed: LoadTime, seen: Renewed, shape: Shape) -> _Fit:
    """The best lag and window of a shape."""
    some = slice(None, None, max(1, len(seen.at) // _COARSE))
    few = seen.where(some)
    windows = [0.0] if shape == "interval" else _WINDOWS.tolist()
    starts = []
    for window in windows:
        shares = passed.shares(few, shape, _LAGS, window)
        left = _left(shares, few)
        starts.append((float(left.min()), float(_LAGS[int(left.argmin())]), window))
    fits = []
    for _, lag, window in sorted(starts)[:3]:
        fits.append(_refined(_Fit(passed, few, shape, lag, window), _STEP))
    best = min(fits, key=lambda f: f.left)
    return _refined(_Fit(passed, seen, shape, best.lag, best.window), _STEP / 16)


def _refined(fit: _Fit, step: float) -> _Fit:
    """The best fit near this one."""
    while step >= _LAST_STEP:
        tried = (_Fit(fit.passed, fit.seen, fit.shape, *place) for place in fit.around(step))
        near = min(tried, key=lambda f: f.left)
        if near.left < fit.left:
            fit = near
        else:
            step /= 2
    return fit


def _solved(shares: Floats, seen: Renewed) -> tuple[float, Floats, Floats]:
    """The weighted residual sum of squares, the coefficients, and the weighted equations. A slope in time absorbs
    warming."""
    age = (seen.at - seen.at.mean()) / max(float(np.ptp(seen.at)), 1.0)
    rows: Floats = np.column_stack((np.ones(len(age)), *shares, age * shares.sum(axis=0))) * seen.weights[:, None]
    values: Floats = seen.values * seen.weights
    coefficients = np.asarray(np.linalg.lstsq(rows, values, rcond=None)[0], np.float64)
    missed = values - rows @ coefficients
    return float(missed @ missed), coefficients, rows


def _left(shares: Floats, seen: Renewed) -> Floats:
    """The approximate residual sums of squares of many timings: `shares` are `[levels, timings, n]`."""
    age = (seen.at - seen.at.mean()) / max(float(np.ptp(seen.at)), 1.0)
    some = np.concatenate((np.ones((1, *shares.shape[1:])), shares, (age * shares.sum(axis=0))[None]))
    values = seen.values - seen.values.mean()
    gram = np.einsum("atn,btn->tab", some, some, optimize=True)
    gram += 1e-9 * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(len(some))
    moment = np.einsum("atn,n->ta", some, values, optimize=True)
    left: Floats = values @ values - (moment * np.linalg.solve(gram, moment[..., None])[..., 0]).sum(axis=1)
    return left


class _Fit:
    """A shape with a lag and a window, and its residuals."""

    def __init__(self, passed: LoadTime, seen: Renewed, shape: Shape, lag: float, window: float) -> None:
        self.passed, self.seen, self.shape, self.lag, self.window = passed, seen, shape, lag, window
        self.left, self.coefficients, self.rows = _solved(passed.shares(seen, shape, lag, window), seen)

    @property
    def score(self) -> float:
        """Minus twice the log likelihood, plus log n for a shape with a window of its own: one unknown more."""
        n = len(self.seen.at)
        return n * math.log(max(self.left, 1e-300) / n) + (0.0 if self.shape == "interval" else math.log(n))

    def part(self, part: slice | npt.NDArray[np.bool_]) -> _Fit:
        """The same lag and window, with the rates of a part of the renewals."""
        return _Fit(self.passed, self.seen.where(part), self.shape, self.lag, self.window)

    def better(self, other: _Fit) -> float:
        """Twice the difference of the log likelihoods of this fit and another one to the same renewals."""
        return len(self.seen.at) * math.log(max(other.left, 1e-300) / max(self.left, 1e-300))

    def by_level(self) -> tuple[float, float]:
        """The errors of lag and window, by fits to readings of one level: a level's power is not quite constant."""
        reach = self.lag + self.window * (_REACH if self.shape == "exponential" else 1.0)
        recent = self.passed.until(self.seen.at) - self.passed.until(self.seen.at - reach)
        lag = window = 0.0
        for level in range(self.passed.count):
            alone = np.delete(recent, level, axis=0).sum(axis=0) == 0.0
            if np.count_nonzero(alone & (recent[level] > 0)) >= 3 * _FEWEST:
                common = self.part(alone)
                own = _refined(common, _STEP / 4)
                # A small improvement of the likelihood is no disagreement.
                if own.better(common) > _CLEAR:
                    lag, window = max(lag, abs(own.lag - self.lag)), max(window, abs(own.window - self.window))
        return lag, window

    def weights(self) -> Floats:
        """Weights of the observations by the noise under each level: its inverse deviation, of mean square 1."""
        missed = np.square(self.seen.values - self.rows @ self.coefficients)
        shares = self.rows[:, 1 : self.passed.count + 1]
        kinds = np.column_stack((1.0 - shares.sum(axis=1), shares)).clip(0.0, 1.0)
        # Each observation counts for its main level: a level's mean square needs enough of them.
        own = kinds.argmax(axis=1)
        variances = np.full(kinds.shape[1], float(missed.mean()))
        for kind in range(kinds.shape[1]):
            if np.count_nonzero(own == kind) >= _FEWEST:
                variances[kind] = float(missed[own == kind].mean())
        weights = 1.0 / np.sqrt(np.maximum(kinds @ variances, 1e-4 * variances.max() + 1e-300))
        whole: Floats = weights / math.sqrt(float(np.square(weights).mean()))
        return whole

    def around(self, step: float) -> Iterator[tuple[float, float]]:
        """Neighbours: another lag, another window, and both with the window's middle kept."""
        for move in (-step, step):
            yield self.lag + move, self.window
            if self.shape != "interval" and self.window + move > 1.0:
                yield self.lag, self.window + move
                yield self.lag - move * (1.0 if self.shape == "exponential" else 0.5), self.window + move

    def response(self, edge: float) -> tuple[Estimate, Estimate, Estimate, tuple[Estimate, ...], float]:
        """Lag, window, base and gains with their intervals, and the noise. `edge` is the renewals' common error."""
        n, levels = len(self.seen.at), self.passed.count
        predicted = self.rows @ self.coefficients
        ways = [(0.1, 0.0)] if self.shape == "interval" else [(0.1, 0.0), (0.0, 0.1)]
        slopes = [
            (self._predicted(self.lag + a, self.window + b) - self._predicted(self.lag - a, self.window - b)) / 0.2
            for a, b in ways
        ]
        rows = np.column_stack((self.rows, *slopes))
        inverse = np.linalg.pinv(rows.T @ rows)
        missed = self.seen.values * self.seen.weights - predicted
        scores = np.add.reduceat(rows * missed[:, None], np.arange(0, n, _BLOCK), axis=0)
        covariance = inverse @ (scores.T @ scores) @ inverse
        noise = math.sqrt(self.left / max(1, n - rows.shape[1]))
        widths = Z95 * np.sqrt(np.maximum(np.diag(covariance), np.diag(inverse) * noise * noise))
        estimates = [Estimate(float(v), float(w)) for v, w in zip(self.coefficients, widths, strict=False)]
        lag, window = widths[levels + 2], widths[-1] if len(ways) > 1 else 0.0
        plain = missed / self.seen.weights
        return (
            Estimate(self.lag, float(lag) + edge),
            Estimate(self.window, float(window) + (edge if self.window else 0.0)),
            estimates[0],
            tuple(estimates[1 : levels + 1]),
            math.sqrt(float(plain @ plain) / max(1, n - rows.shape[1])),
        )

    def _predicted(self, lag: float, window: float) -> Floats:
        shares = self.passed.shares(self.seen, self.shape, lag, max(window, 0.01))
        rows = np.column_stack((self.rows[:, 0], *(shares * self.seen.weights), self.rows[:, -1]))
        predicted: Floats = rows @ self.coefficients
        return predicted

    def change(self) -> str:
        """How lag and window changed; empty if the first and the last third of the renewals have the same."""
        third = len(self.seen.at) // 3
        common = [self.part(slice(third)), self.part(slice(-third, None))]
        one, other = thirds = [_fitted(self.passed, part.seen, self.shape) for part in common]
        if sum(own.better(part) for own, part in zip(thirds, common, strict=True)) <= _CLEAR:
            return ""
        timings = zip(one.response(_CHANGED)[:2], other.response(_CHANGED)[:2], strict=True)
        if all(abs(a.value - b.value) <= a.half_width + b.half_width for a, b in timings):
            return ""
        lags, windows = (f"{a:.0f} to {b:.0f} ms" for a, b in ((one.lag, other.lag), (one.window, other.window)))
        return f"its timing changed: lag {lags}, window {windows}"

    def misfit(self) -> str:
        """Why the shape does not fit; empty if no free-form response explains much more."""
        length = self.window * (_REACH if self.shape == "exponential" else 1.0)
        reach = self.lag + 1.5 * max(length, float(np.median(self.seen.at - self.seen.before)))
        n = len(self.seen.at)
        # Finely around the window, and roughly for the longest lag beyond it.
        fine, rough = np.linspace(min(0.0, self.lag), reach, _FREE), reach + _LAGS[-1] * np.linspace(0, 1, _FREE // 2)
        edges = np.concatenate((fine, rough[1:]))
        if n < 3 * len(edges):
            return ""
        gains = np.maximum(self.coefficients[1 : self.passed.count + 1], 0.0)
        # A counter's readings are means between two renewals: of the time itself, or of earlier times.
        shape: Shape = "interval" if self.shape == "interval" else "mean"
        steps = [gains @ self.passed.shares(self.seen, shape, a, b - a) for a, b in pairwise(edges.tolist())]
        values = self.seen.values * self.seen.weights
        rows = np.column_stack((self.rows[:, 0], *(step * self.seen.weights for step in steps), self.rows[:, -1]))
        coefficients, *_ = np.linalg.lstsq(rows, values, rcond=None)
        missed = values - rows @ coefficients
        free, own = float(missed @ missed) / (n - len(edges) - 1), self.left / (n - self.rows.shape[1] - 2)
        floor = 1e-6 * float(np.square(self.seen.values).mean())
        if own <= _MISFIT * max(free, floor):
            return ""
        given = "not the mean of its periods" if shape == "interval" else "neither a mean nor an exponential"
        return f"{given}: another response leaves {1 - free / own:.0%} less of the variance"

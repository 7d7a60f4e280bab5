"""A sensor's timing: how far its readings lag behind their stamps, and over what time they average. Pure.

A driver stamps a reading with the time of the call, but the value is older. GPM and the energy counter are renewed
every 100 ms at a phase that no reader gets. Power is an average over a window that differs between models. Other
sensors lag. No documentation of this is reliable, so the timing is determined from the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.history.timeline import Floats, Ints

_MS: Final = 1_000_000
#: Steps of the search near a timing, coarse to fine.
FINE_STEPS_NS: Final = (2 * _MS, _MS // 2, _MS // 10)
#: The likeness of phases (the length of the mean unit vector) from which stamps are in step with a period, and from
#: which they may be: for 100 ms, within about 5 ms and within 20 ms.
IN_STEP: Final = 0.95
NEAR_STEP: Final = 0.5
#: The longest driver call. A stamp may therefore be on the other side of a renewal than its reading.
GUARD_NS: Final = 2 * _MS
#: The relative difference of neighbouring windows in the search.
_WINDOW_STEP: Final = 0.08
#: Windows of known boards (Yang et al., "Part-time Power Measurements", SC24), and the relative difference within which
#: a window is one of them.
USUAL_NS: Final = (25 * _MS, 100 * _MS, 1000 * _MS // 6, 1000 * _MS)
_USUAL: Final = 0.04
#: The shortest and longest window and time constant that the search tries, and a little more.
_SHORTEST_NS: Final = 12 * _MS
_LONGEST_NS: Final = 1_500 * _MS
#: Corners of the staircase that approximates an exponential. Each step carries the same weight.
_STEPS: Final = 24
#: The end of its last step, in time constants.
_LAST_CORNER: Final = float(np.log(_STEPS)) + 2.0
#: The most moments at which an uncertain stamp is tried.
_MOST_TRIES: Final = 16
#: Consecutive new readings that show how often a counter is renewed, and the fewest that suffice.
_RUN: Final = 20
_SHORTEST_RUN: Final = 4
#: ... and with which the search for their period begins.
_LONG_RUN: Final = 100
#: Number of trial periods over a stretch of time, from one turn fewer to one turn more in it.
_TURNS: Final = 41
#: Of more readings than this, evenly spread ones suffice for a period.
_ENOUGH: Final = 4096
#: Histogram bins of the phases in a period, and the weight of the distance from their mean, as a share of the readings.
_BINS: Final = 40
_BREADTH: Final = 0.02
#: The largest correction of a lag and, as a share, of a window at a time, and the smallest of both.
_FARTHEST_NS: Final = 3 * _MS
_FARTHEST: Final = 0.2
_NEGLIGIBLE_NS: Final = 50_000
_MINUTE_NS: Final = 60_000 * _MS


class Sensor(NamedTuple):
    """The time that a reading stamped `t` describes. It ends `lag_ns` before `t`, or before the sensor's last renewal.

    Renewals come every `period_ns` at `phase_ns`; a period of 0 means none. The reading is the mean since the previous
    reading (`window_ns` 0), over the last `window_ns`, or, with `smooth`, weighted by an exponential of that time
    constant. `blur_ns` is the remaining uncertainty of the end, `jitter_ns` the half-width of the stamps' own error.
    `in_step`: readings come once a period, always at about the same phase. `follows`: renewals are faster than in the
    catalogue. With a period, `placed` gets their phase from readings; until then `lag_ns` counts from the mean phase.
    """

    lag_ns: int = 0
    period_ns: int = 0
    phase_ns: int = 0
    window_ns: int = 0
    smooth: bool = False
    blur_ns: int = 0
    jitter_ns: int = 0
    in_step: bool = False
    follows: bool = False

    def placed(self, stamps: Ints) -> Sensor:
        """The sensor with a renewal for each reading, at the phase that the readings' `stamps` show."""
        if not (self.follows and self.period_ns and len(stamps)):
            return self
        period, phases = self.period_ns, stamps % self.period_ns
        mean = float(np.angle(turn(stamps, period))) / (2 * np.pi)
        counts = np.bincount(phases * _BINS // period, minlength=_BINS)
        near = sum(np.roll(counts, move) for move in (-1, 0, 1)) / len(stamps)
        middles = (np.arange(_BINS) + 0.5) / _BINS
        # The phase between the last reading of one renewal and the first of the next: few readings, far from the mean.
        apart = float(middles[(near + _BREADTH * np.cos(2 * np.pi * (middles - mean))).argmin()])
        phase = round(apart * period)
        since = round(float(((stamps - phase) % period).mean()))
        return self._replace(phase_ns=phase, lag_ns=self.lag_ns - since, follows=False)

    def corrected(self, lag_ms: float, window_ms: float, drift: float, now_ns: int) -> Sensor:
        """The sensor with its lag and window changed, or itself for negligible changes. `drift` is the growth of the
        lag in ms per minute, so it shortens the period. The renewal next to `now_ns` stays in place."""
        lag = float(np.clip(lag_ms * _MS, -_FARTHEST_NS, _FARTHEST_NS))
        far = _FARTHEST * self.window_ns
        window = float(np.clip(window_ms * _MS, -far, far))
        lag, window, drift = (part if abs(part) >= _NEGLIGIBLE_NS else 0.0 for part in (lag, window, drift * _MS))
        shorter = drift * self.period_ns / _MINUTE_NS if self.period_ns else 0.0
        if not (lag or window or drift):
            return self
        sensor = self._replace(lag_ns=self.lag_ns + round(lag), window_ns=self.window_ns + round(window))
        if round(shorter):
            renewal = now_ns - (now_ns - self.phase_ns) % self.period_ns
            period = self.period_ns - round(shorter)
            sensor = sensor._replace(period_ns=period, phase_ns=renewal % period)
        return sensor

    def shifted(self, by_ns: int) -> Sensor:
        """The sensor on a clock that shows times this much later."""
        return self._replace(phase_ns=(self.phase_ns + by_ns) % self.period_ns) if self.period_ns else self

    def differs_in_lag(self, other: Sensor, most_ns: int) -> bool:
        """Whether the two sensors' lags differ by at most `most_ns`, and nothing else does."""
        return self._replace(lag_ns=other.lag_ns) == other and abs(self.lag_ns - other.lag_ns) <= most_ns

    def refuted(self, signal: Signal, stamps: Ints) -> bool:
        """Whether new readings with these `stamps` come faster than this sensor's renewals."""
        return bool(self.period_ns) and not self.follows and renews_faster(signal, stamps)

    def moments(self, stamps: Ints) -> Ints:
        """The moments at which the contents of readings with these `stamps` end."""
        if not self.period_ns:
            return stamps - self.lag_ns
        return stamps - (stamps - self.phase_ns) % self.period_ns - self.lag_ns

    def middles(self, stamps: Ints) -> Ints:
        """The moments of readings with these `stamps`, moved to the mean age of their contents."""
        return self.moments(stamps) - (self.window_ns if self.smooth else self.window_ns // 2)

    def clear(self, stamps: Ints) -> npt.NDArray[np.bool_]:
        """Which stamps are so far from a renewal that its side is certain, given the time that a call takes."""
        if not self.period_ns:
            return np.ones(len(stamps), bool)
        since = (stamps - self.phase_ns) % self.period_ns
        clear: npt.NDArray[np.bool_] = (since >= self.guard_ns) & (since < self.period_ns - self.guard_ns)
        return clear

    @property
    def guard_ns(self) -> int:
        """The distance from a renewal within which a stamp may be on its other side."""
        return GUARD_NS + self.jitter_ns + self.blur_ns // 2

    @property
    def usual(self) -> bool:
        """Whether any known board averages over such a window."""
        return not self.smooth and any(abs(self.window_ns / window - 1) <= _USUAL for window in USUAL_NS)

    @property
    def extreme(self) -> bool:
        """Whether its window is none that the search tries: corrections have left the range of all boards."""
        return self.window_ns > 0 and not _SHORTEST_NS <= self.window_ns <= _LONGEST_NS

    @property
    def length_ns(self) -> int:
        """The length of time with most of a reading's weight; 0 for the time since the previous reading."""
        return self.window_ns * (2 if self.smooth else 1)

    @property
    def reach_ns(self) -> int:
        """How far before its stamp a reading may look, apart from its own row."""
        back = math.ceil(self.window_ns * _LAST_CORNER) if self.smooth else self.window_ns
        return max(self.lag_ns, 0) + self.period_ns + back + self.jitter_ns + self.blur_ns

    @property
    def ahead_ns(self) -> int:
        """How far after its stamp the moment of a reading may be, because the stamp was late or inaccurate."""
        half = max(self.jitter_ns, self.blur_ns // 2)
        if self.follows:
            return max(0, -self.lag_ns) + half
        # In step, renewals are counted half a period away from the readings.
        return max(0, -self.lag_ns - (self.period_ns * 3 // 10 if self.in_step else 0)) + half

    @lru_cache(64)  # noqa: B019 - a frozen value: the same sensor is asked for every window
    def spread(self) -> Ints:
        """Equally likely offsets of a reading's moment from `moments`."""
        # Stamps near renewals are not used, so with renewals a stamp's error does not move the moment.
        half = self.blur_ns // 2 if self.period_ns else max(self.jitter_ns, self.blur_ns // 2)
        # Two moments represent half of a grid's step well enough, but not an error of the stamps.
        fewest = 1 if half <= _MS // 5 or self.smooth else 2
        tries = fewest if half > self.jitter_ns else min(_MOST_TRIES, max(fewest, 2 * -(-half // _MS)))
        return np.rint((np.arange(tries) + 0.5) * 2 * half / tries - half).astype(np.int64)

    @lru_cache(64)  # noqa: B019
    def kernel(self) -> tuple[Ints, Floats]:
        """Offsets from a reading's moment, and factors of the active time up to them. The weighted sum is the reading's
        share. Without a window of its own, it is the active time, and the last half of the offsets is from the moment
        of the previous reading."""
        if not self.smooth:
            offsets, factors = np.array([0, -self.window_ns]), np.array([1.0, -1.0]) / max(1, self.window_ns)
        else:
            left = 1 - np.arange(_STEPS) / _STEPS
            # The last step has no end of its own: it ends at its mean.
            edges = np.append(-np.log(left), _LAST_CORNER) * self.window_ns
            heights = 1 / _STEPS / np.diff(edges)
            offsets = -np.rint(edges).astype(np.int64)
            factors = np.append(heights, 0.0) - np.append(0.0, heights)
        spread = self.spread()
        return (offsets[:, None] + spread).ravel(), np.repeat(factors / len(spread), len(spread))

    def moved(self, by_ns: int) -> Iterator[Sensor]:
        """The sensors with a lag, renewals or both this much earlier or later."""
        for move in (-by_ns, by_ns):
            if self.period_ns or self.lag_ns + move >= 0:
                yield self._replace(lag_ns=self.lag_ns + move)
            if self.period_ns and not self.in_step:
                phase = (self.phase_ns + move) % self.period_ns
                yield self._replace(phase_ns=phase)
                # The same moments, except for readings that now belong to another renewal.
                yield self._replace(phase_ns=phase, lag_ns=self.lag_ns + move)

    def around(self, step_ns: int) -> Iterator[Sensor]:
        """This sensor and its neighbours on a finer grid, within the coarser grid's step."""
        most = -(-self.blur_ns // (2 * step_ns))
        finer = self._replace(blur_ns=step_ns)
        yield finer
        for move in range(step_ns, most * step_ns + 1, step_ns):
            yield from finer.moved(move)
        if self.window_ns:
            # A longer window looks further back on average, so the lag must be shorter.
            for share in (-2, -1, 1, 2):
                longer = round(self.window_ns * share * _WINDOW_STEP * min(1.0, step_ns / FINE_STEPS_NS[0]))
                lag = self.lag_ns - (longer if self.smooth else longer // 2)
                yield self._replace(window_ns=self.window_ns + longer, lag_ns=lag, blur_ns=step_ns)
                yield self._replace(window_ns=self.window_ns + longer, blur_ns=step_ns)


def moments_of(sensors: Sequence[Sensor], stamps: Ints) -> Ints:
    """The moments of readings with these `stamps` under each sensor: `[sensors, stamps]`."""
    if len(sensors) == 1:
        return sensors[0].moments(stamps)[None]
    lag, period, phase = _columns([(s.lag_ns, s.period_ns, s.phase_ns) for s in sensors])
    moments: Ints = stamps - _since(stamps, period, phase) - lag
    return moments


def clear_of(sensors: Sequence[Sensor], stamps: Ints) -> npt.NDArray[np.bool_]:
    """Which stamps are `clear` under each sensor: `[sensors, stamps]`."""
    if len(sensors) == 1:
        return sensors[0].clear(stamps)[None]
    guard, period, phase = _columns([(s.guard_ns, s.period_ns, s.phase_ns) for s in sensors])
    since = _since(stamps, period, phase)
    clear: npt.NDArray[np.bool_] = (period == 0) | (since >= guard) & (since < period - guard)
    return clear


def _columns(some: Sequence[tuple[int, int, int]]) -> Ints:
    """Three numbers per sensor, shaped to broadcast with stamps: `[3, sensors, 1]`."""
    columns: Ints = np.array(some, np.int64).reshape(-1, 3).T[:, :, None]
    return columns


def _since(stamps: Ints, period: Ints, phase: Ints) -> Ints:
    """The time from the last renewal to each stamp; 0 without renewals."""
    return (stamps - phase) % np.maximum(period, 1) if period.any() else np.zeros_like(stamps - phase)


def renews_faster(signal: Signal, stamps: Ints) -> bool:
    """Whether new readings with these `stamps` come faster than the counter's nominal renewals.

    At least `m - 1` whole periods lie between the first and the last of `m + 1` new readings.
    """
    most = len(stamps) - 1
    if signal.kind is not Kind.COUNTER or most < _SHORTEST_RUN:
        return False
    missing = max((m - 1) * signal.refresh_ns - int((stamps[m:] - stamps[:-m]).min()) for m in (min(_RUN, most), most))
    return missing > 0 and missing > 2 * unsteadiness_ns(stamps)


def shown_period_ns(stamps: Ints) -> int:
    """The period of new readings, first where they come fastest, and then over more and more of them.

    It is the sensor's period if the reader was faster than the sensor, else the reader's.
    """
    m = min(_LONG_RUN, len(stamps) - 1)
    spans = stamps[m:] - stamps[:-m]
    low = int(spans.argmin())
    high, period = low + m + 1, max(1.0, float(spans[low]) / m)
    while True:
        at = stamps[low : high : max(1, (high - low) // _ENOUGH)] - stamps[low]
        # The phases of a period that is one turn off over all readings cancel out.
        for turns in (1.0, 2 / _TURNS):
            rates = 1 / period + np.linspace(-turns, turns, _TURNS) / max(1, int(at[-1]))
            tried = 1 / rates[rates > 0]
            period = float(tried[np.abs([np.exp(2j * np.pi * at / each).mean() for each in tried]).argmax()])
        if high - low == len(stamps):
            return round(period)
        more = high - low
        low, high = max(0, low - more // 2), min(len(stamps), high + more)


def in_step(signal: Signal, stamps: Ints) -> float:
    """How well readings are in step with the signal's renewals: 0 for not at all or no renewals, up to 1."""
    period = signal.refresh_ns
    return float(abs(turn(stamps, period))) if period else 0.0


def turn(stamps: Ints, period_ns: int) -> complex:
    """The mean unit vector of the stamps' phases in a period."""
    return complex(np.exp(2j * np.pi * (stamps % period_ns) / period_ns).mean())


def unsteadiness_ns(stamps: Ints) -> int:
    """The largest error of stamps, estimated from their uneven intervals under a uniform distribution of errors. An
    even reader makes no larger errors."""
    if len(stamps) < 3:
        return 0
    steps = np.diff(stamps)
    # 95 % of the differences of two such errors are within 1.55 times the bound.
    return int(np.quantile(np.abs(steps - np.median(steps)), 0.95) / 1.55)

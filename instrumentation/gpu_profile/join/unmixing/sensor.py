"""What a reading is of: how far behind its stamp a sensor is, and over how long it averages. Pure.

A driver stamps a reading with the moment of the call, but what it hands out is older: GPM and the energy counter renew
themselves every 100 ms at a phase that no reader is told, power is an average over a window that differs between
models, other sensors lag. None of it is documented well enough to rely on, so it is looked for in the data.
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
#: Steps in which a timing is looked for near another, coarse to fine.
FINE_STEPS_NS: Final = (2 * _MS, _MS // 2, _MS // 10)
#: Stamps are in step with a period if their phases are this much alike (the length of the mean of unit vectors): for
#: 100 ms, within about 5 ms, and may be if within 20 ms.
IN_STEP: Final = 0.95
NEAR_STEP: Final = 0.5
#: A driver call takes up to this long, so that its stamp may be on the other side of a renewal than its reading.
GUARD_NS: Final = 2 * _MS
#: By what share a window is changed for its neighbours.
_WINDOW_STEP: Final = 0.08
#: Windows that boards are known to have (Yang et al., "Part-time Power Measurements", SC24), and how near to one is one
#: of them.
USUAL_NS: Final = (25 * _MS, 100 * _MS, 1000 * _MS // 6, 1000 * _MS)
_USUAL: Final = 0.04
#: Corners of the staircase that stands for an exponential: each step holds as much of it.
_STEPS: Final = 24
#: So many time constants back, and a little more, its last step ends.
_LAST_CORNER: Final = float(np.log(_STEPS)) + 2.0
#: Moments at which an uncertain stamp is tried, at most.
_MOST_TRIES: Final = 16
#: New readings in a row that show how often a counter is renewed, and the fewest that do.
_RUN: Final = 20
_SHORTEST_RUN: Final = 4
#: ... and in which their period is looked for at first.
_LONG_RUN: Final = 100
#: Periods that are tried over a stretch of time, from one turn less in it to one turn more.
_TURNS: Final = 41
#: Phases are counted in so many parts of a period, and all in all are worth as much as this share of the readings.
_BINS: Final = 40
_BREADTH: Final = 0.02
#: A timing is corrected by no more than this at a time, a window by no more than this share, and neither by less.
_FARTHEST_NS: Final = 3 * _MS
_FARTHEST: Final = 0.2
_NEGLIGIBLE_NS: Final = 50_000
_MINUTE_NS: Final = 60_000 * _MS


class Sensor(NamedTuple):
    """What moment a reading stamped `t` is of: `lag_ns` before `t`, or before the sensor's last renewal, which comes
    every `period_ns` at `phase_ns` (0 for no such period).

    It is the mean since the reading before (`window_ns` 0), over the last `window_ns`, or, `smooth`, weighted by an
    exponential of that time constant. `blur_ns` is how far the search leaves the moment open, `jitter_ns` the
    half-width of the stamps' own error. `in_step`: readings come once a period, always at about the same phase of it.
    `follows`: renewals come faster than the catalogue has it. With a period, they are where the readings themselves
    show them, and `lag_ns` is how far before the readings' mean phase, until `placed` has found that.
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
        """The sensor with its renewals where readings stamped `stamps` show them, each of another one."""
        if not (self.follows and self.period_ns and len(stamps)):
            return self
        period, phases = self.period_ns, stamps % self.period_ns
        mean = float(np.angle(turn(stamps, period))) / (2 * np.pi)
        counts = np.bincount(phases * _BINS // period, minlength=_BINS)
        near = sum(np.roll(counts, move) for move in (-1, 0, 1)) / len(stamps)
        middles = (np.arange(_BINS) + 0.5) / _BINS
        # Between the last reading of one renewal and the first of the next: where few are, far from their mean.
        apart = float(middles[(near + _BREADTH * np.cos(2 * np.pi * (middles - mean))).argmin()])
        phase = round(apart * period)
        since = round(float(((stamps - phase) % period).mean()))
        return self._replace(phase_ns=phase, lag_ns=self.lag_ns - since, follows=False)

    def corrected(self, lag_ms: float, window_ms: float, drift: float, now_ns: int) -> Sensor:
        """The sensor with so much more lag and window, and with a lag that grows by `drift` ms a minute, which is a
        period that is shorter; itself if that is next to nothing. The renewal next to `now_ns` stays where it is."""
        lag = float(np.clip(lag_ms * _MS, -_FARTHEST_NS, _FARTHEST_NS))
        far = _FARTHEST * self.window_ns
        window = float(np.clip(window_ms * _MS, -far, far))
        lag, window, drift = (part if abs(part) >= _NEGLIGIBLE_NS else 0.0 for part in (lag, window, drift * _MS))
        shorter = drift * self.period_ns / _MINUTE_NS if self.period_ns else 0.0
        if not (lag or window or drift):
            return self
        found = self._replace(lag_ns=self.lag_ns + round(lag), window_ns=self.window_ns + round(window))
        if round(shorter):
            renewal = now_ns - (now_ns - self.phase_ns) % self.period_ns
            period = self.period_ns - round(shorter)
            found = found._replace(period_ns=period, phase_ns=renewal % period)
        return found

    def refuted(self, signal: Signal, stamps: Ints) -> bool:
        """Whether new readings, stamped `stamps`, come faster than the renewals that this sensor was taken to have."""
        return bool(self.period_ns) and not self.follows and renews_faster(signal, stamps)

    def moments(self, stamps: Ints) -> Ints:
        """The moments that the readings stamped `stamps` are of."""
        if not self.period_ns:
            return stamps - self.lag_ns
        return stamps - (stamps - self.phase_ns) % self.period_ns - self.lag_ns

    def middles(self, stamps: Ints) -> Ints:
        """The same, moved to the mean age of what the readings are of."""
        return self.moments(stamps) - (self.window_ns if self.smooth else self.window_ns // 2)

    def clear(self, stamps: Ints) -> npt.NDArray[np.bool_]:
        """Which stamps are far enough from a renewal to tell which side of it they are on: a call takes time."""
        clear: npt.NDArray[np.bool_] = clear_of([self], stamps)[0]
        return clear

    @property
    def usual(self) -> bool:
        """Whether boards are known that average over such a window."""
        return not self.smooth and any(abs(self.window_ns / known - 1) <= _USUAL for known in USUAL_NS)

    @property
    def length_ns(self) -> int:
        """How long a stretch of time most of a reading is of; 0 if that is since the reading before."""
        return self.window_ns * (2 if self.smooth else 1)

    @property
    def reach_ns(self) -> int:
        """How far before its stamp a reading may look, its own row aside."""
        back = math.ceil(self.window_ns * _LAST_CORNER) if self.smooth else self.window_ns
        return max(self.lag_ns, 0) + self.period_ns + back + self.jitter_ns + self.blur_ns

    @property
    def ahead_ns(self) -> int:
        """How far after its stamp the moment of a reading may be: the stamp came late, or was off."""
        half = max(self.jitter_ns, self.blur_ns // 2)
        if self.follows:
            return max(0, -self.lag_ns) + half
        # In step, half a period lies between a renewal and the readings that are counted from it.
        return max(0, -self.lag_ns - (self.period_ns * 3 // 10 if self.in_step else 0)) + half

    @lru_cache(64)  # noqa: B019 - a frozen value: the same sensor is asked for every window
    def spread(self) -> Ints:
        """Offsets, equally likely, by which a reading's moment may differ from `moments`."""
        # Stamps of renewals are not used near them, so their error does not move the moment.
        half = self.blur_ns // 2 if self.period_ns else max(self.jitter_ns, self.blur_ns // 2)
        # Half of a grid's step is as well stood for by two moments; an error of the stamps is not.
        fewest = 1 if half <= _MS // 5 or self.smooth else 2
        tries = fewest if half > self.jitter_ns else min(_MOST_TRIES, max(fewest, 2 * -(-half // _MS)))
        return np.rint((np.arange(tries) + 0.5) * 2 * half / tries - half).astype(np.int64)

    @lru_cache(64)  # noqa: B019
    def kernel(self) -> tuple[Ints, Floats]:
        """Offsets from a reading's moment and the factors of the active time up to them whose sum is the share of the
        reading: only for a sensor with a window of its own."""
        if not self.smooth:
            offsets, factors = np.array([0, -self.window_ns]), np.array([1.0, -1.0]) / self.window_ns
        else:
            left = 1 - np.arange(_STEPS) / _STEPS
            # The last step has no end of its own: it gets the place of its mean.
            edges = np.append(-np.log(left), _LAST_CORNER) * self.window_ns
            heights = 1 / _STEPS / np.diff(edges)
            offsets = -np.rint(edges).astype(np.int64)
            factors = np.append(heights, 0.0) - np.append(0.0, heights)
        spread = self.spread()
        return (offsets[:, None] + spread).ravel(), np.repeat(factors / len(spread), len(spread))

    def moved(self, by_ns: int) -> Iterator[Sensor]:
        """Those whose lag, renewals or both are that much earlier or later."""
        for move in (-by_ns, by_ns):
            if self.period_ns or self.lag_ns + move >= 0:
                yield self._replace(lag_ns=self.lag_ns + move)
            if self.period_ns and not self.in_step:
                phase = (self.phase_ns + move) % self.period_ns
                yield self._replace(phase_ns=phase)
                # The same moments, but for the readings that are taken for those of another renewal.
                yield self._replace(phase_ns=phase, lag_ns=self.lag_ns + move)

    def around(self, step_ns: int) -> Iterator[Sensor]:
        """This one and its neighbours on a finer grid, as far as the coarser one leaves it open."""
        most = -(-self.blur_ns // (2 * step_ns))
        finer = self._replace(blur_ns=step_ns)
        yield finer
        for move in range(step_ns, most * step_ns + 1, step_ns):
            yield from finer.moved(move)
        if self.window_ns:
            # A longer window looks further back on average: the lag makes up for that.
            for share in (-2, -1, 1, 2):
                longer = round(self.window_ns * share * _WINDOW_STEP * min(1.0, step_ns / FINE_STEPS_NS[0]))
                lag = self.lag_ns - (longer if self.smooth else longer // 2)
                yield self._replace(window_ns=self.window_ns + longer, lag_ns=lag, blur_ns=step_ns)
                yield self._replace(window_ns=self.window_ns + longer, blur_ns=step_ns)


def moments_of(sensors: Sequence[Sensor], stamps: Ints) -> Ints:
    """The moments that the readings stamped `stamps` are of under each sensor: `[sensors, stamps]`."""
    lag, period, phase = _columns([(s.lag_ns, s.period_ns, s.phase_ns) for s in sensors])
    moments: Ints = stamps - _since(stamps, period, phase) - lag
    return moments


def clear_of(sensors: Sequence[Sensor], stamps: Ints) -> npt.NDArray[np.bool_]:
    """Which stamps are `clear` under each sensor: `[sensors, stamps]`."""
    if not any(sensor.period_ns for sensor in sensors):
        return np.ones((len(sensors), len(stamps)), bool)
    guards = (GUARD_NS + s.jitter_ns + s.blur_ns // 2 for s in sensors)
    guard, period, phase = _columns([(g, s.period_ns, s.phase_ns) for g, s in zip(guards, sensors, strict=True)])
    since = _since(stamps, period, phase)
    clear: npt.NDArray[np.bool_] = (period == 0) | (since >= guard) & (since < period - guard)
    return clear


def _columns(some: Sequence[tuple[int, int, int]]) -> Ints:
    """Three numbers of each sensor, as columns beside stamps: `[3, sensors, 1]`."""
    columns: Ints = np.array(some, np.int64).reshape(-1, 3).T[:, :, None]
    return columns


def _since(stamps: Ints, period: Ints, phase: Ints) -> Ints:
    """How long before each stamp the last renewal came; 0 where none come."""
    return (stamps - phase) % np.maximum(period, 1) if period.any() else np.zeros_like(stamps - phase)


def renews_faster(signal: Signal, stamps: Ints) -> bool:
    """Whether new readings, stamped `stamps`, come faster than a counter is known to renew itself.

    Of `m + 1` new readings, `m - 1` whole periods at least lie between the first and the last.
    """
    most = len(stamps) - 1
    if signal.kind is not Kind.COUNTER or most < _SHORTEST_RUN:
        return False
    missing = max((m - 1) * signal.refresh_ns - int((stamps[m:] - stamps[:-m]).min()) for m in (min(_RUN, most), most))
    return missing > 0 and missing > 2 * unsteadiness_ns(stamps)


def shown_period_ns(stamps: Ints) -> int:
    """The period that new readings come once in, found where they come the fastest, and then over ever more of them.

    It is the sensor's if it was asked more often than that, and the reader's if not.
    """
    m = min(_LONG_RUN, len(stamps) - 1)
    spans = stamps[m:] - stamps[:-m]
    low = int(spans.argmin())
    high, period = low + m + 1, max(1.0, float(spans[low]) / m)
    while True:
        at = stamps[low:high] - stamps[low]
        # Phases of a period that is one turn off over all of them cancel out.
        for turns in (1.0, 2 / _TURNS):
            tried = 1 / (1 / period + np.linspace(-turns, turns, _TURNS) / max(1, int(at[-1])))
            period = float(tried[np.abs([np.exp(2j * np.pi * at / each).mean() for each in tried]).argmax()])
        if high - low == len(stamps):
            return round(period)
        more = high - low
        low, high = max(0, low - more // 2), min(len(stamps), high + more)


def in_step(signal: Signal, stamps: Ints) -> float:
    """How much readings come in step with the signal's renewals: from 0, for not at all or no renewals, to 1."""
    period = signal.refresh_ns
    return float(abs(turn(stamps, period))) if period else 0.0


def turn(stamps: Ints, period_ns: int) -> complex:
    """The mean of the stamps' phases in a period, as unit vectors."""
    return complex(np.exp(2j * np.pi * (stamps % period_ns) / period_ns).mean())


def unsteadiness_ns(stamps: Ints) -> int:
    """How far stamps may be off by themselves, judged by how unevenly they come (for errors that are alike likely up to
    a bound, near that bound). A reader that keeps time does not err by more."""
    if len(stamps) < 3:
        return 0
    steps = np.diff(stamps)
    # Differences of two such errors lie within 1.55 times the bound in 95 % of cases.
    return int(np.quantile(np.abs(steps - np.median(steps)), 0.95) / 1.55)

"""What a reading is of: how far behind its stamp a sensor is, and over how long it averages. Pure.

A driver stamps a reading with the moment of the call, but what it hands out is older: GPM and the energy counter renew
themselves every 100 ms at a phase that no reader is told, power is an average over a window that differs between
models, other sensors lag. None of it is documented well enough to rely on, so it is looked for in the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.history.timeline import Floats, Ints

_MS: Final = 1_000_000
#: Steps of the grid, coarse to fine.
STEP_NS: Final = 5 * _MS
FINE_STEPS_NS: Final = (2 * _MS, _MS // 2, _MS // 10)
LONGEST_LAG_NS: Final = 120 * _MS
_LAGS_NS: Final = range(0, LONGEST_LAG_NS + 1, STEP_NS)
#: Stamps are in step with a period if their phases are this much alike (the length of the mean of unit vectors): for
#: 100 ms, within about 5 ms, and may be if within 20 ms.
IN_STEP: Final = 0.95
NEAR_STEP: Final = 0.5
#: A driver call takes up to this long, so that its stamp may be on the other side of a renewal than its reading.
GUARD_NS: Final = 2 * _MS
#: Half-widths of the stamps' errors that are tried.
JITTERS_NS: Final = tuple(ms * _MS for ms in (1, 2, 5, 10, 20, 50))
#: Windows and time constants of power sensors that are tried: 25 of every 100 ms (A100, H100), 100 ms, 1 s (Yang et
#: al., "Part-time Power Measurements", SC24), what lies between, and the smoothing of older boards.
MEANS_NS: Final = tuple(ms * _MS for ms in (25, 50, 100, 200, 500, 1000))
SMOOTHINGS_NS: Final = tuple(ms * _MS for ms in (25, 50, 100, 200, 500))
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
#: Readings are told apart by renewals they are of if their phases are this much alike: within 80 % of the period.
_CLEAR_STEP: Final = 0.2
#: Readings come once a period if what lies between them is, on average, within this share of it.
_ONCE: Final = 0.01


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
        mean = float(np.angle(_turn(stamps, period))) / (2 * np.pi)
        counts = np.bincount(phases * _BINS // period, minlength=_BINS)
        near = sum(np.roll(counts, move) for move in (-1, 0, 1)) / len(stamps)
        middles = (np.arange(_BINS) + 0.5) / _BINS
        # Between the last reading of one renewal and the first of the next: where few are, far from their mean.
        apart = float(middles[(near + _BREADTH * np.cos(2 * np.pi * (middles - mean))).argmin()])
        phase = round(apart * period)
        since = round(float(((stamps - phase) % period).mean()))
        return self._replace(phase_ns=phase, lag_ns=self.lag_ns - since, follows=False)

    def refuted(self, signal: Signal, stamps: Ints) -> bool:
        """Whether new readings, stamped `stamps`, come faster than the renewals that this sensor was taken to have."""
        return bool(self.period_ns) and not self.follows and renews_faster(signal, stamps)

    def moments(self, stamps: Ints) -> Ints:
        """The moments that the readings stamped `stamps` are of."""
        if not self.period_ns:
            return stamps - self.lag_ns
        return stamps - (stamps - self.phase_ns) % self.period_ns - self.lag_ns

    def clear(self, stamps: Ints) -> npt.NDArray[np.bool_]:
        """Which stamps are far enough from a renewal to tell which side of it they are on: a call takes time."""
        if not self.period_ns:
            return np.ones(len(stamps), bool)
        guard, since = GUARD_NS + self.jitter_ns + self.blur_ns // 2, (stamps - self.phase_ns) % self.period_ns
        return (since >= guard) & (since < self.period_ns - guard)

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

    def around(self, step_ns: int) -> Iterator[Sensor]:
        """This one and its neighbours on a finer grid, as far as the coarser one leaves it open."""
        most = self.blur_ns // 2 // step_ns + 1
        for move in range(-most * step_ns, most * step_ns + 1, step_ns):
            if self.period_ns or self.lag_ns + move >= 0:
                yield self._replace(lag_ns=self.lag_ns + move, blur_ns=step_ns)
            if self.period_ns and not self.in_step:
                phase = (self.phase_ns + move) % self.period_ns
                yield self._replace(phase_ns=phase, blur_ns=step_ns)
                # The same moments, but for the readings that are taken for those of another renewal.
                yield self._replace(phase_ns=phase, lag_ns=self.lag_ns + move, blur_ns=step_ns)


def shapes(signal: Signal) -> Iterator[Sensor]:
    """The windows that are tried for a signal. Only power averages over one that its stamps do not tell."""
    if signal is not rows.POWER_AVERAGE:
        yield Sensor()
        return
    yield from (Sensor(window_ns=window) for window in MEANS_NS)
    yield from (Sensor(window_ns=window, smooth=True) for window in SMOOTHINGS_NS)


def renews_faster(signal: Signal, stamps: Ints) -> bool:
    """Whether new readings, stamped `stamps`, come faster than a counter is known to renew itself.

    Of `m + 1` new readings, `m - 1` whole periods at least lie between the first and the last.
    """
    most = len(stamps) - 1
    if signal.kind is not Kind.COUNTER or most < _SHORTEST_RUN:
        return False
    slack = 2 * unsteadiness_ns(stamps)
    return any(
        int((stamps[m:] - stamps[:-m]).min()) + slack < (m - 1) * signal.refresh_ns for m in {min(_RUN, most), most}
    )


def shown_period_ns(stamps: Ints) -> int:
    """The period that new readings come once in, found where they come the fastest, and then over ever more of them.

    It is the sensor's if it was asked more often than that, and the reader's if not.
    """
    m = min(_LONG_RUN, len(stamps) - 1)
    spans = stamps[m:] - stamps[:-m]
    low = int(spans.argmin())
    high, period = low + m + 1, float(spans[low]) / m
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
    return float(abs(_turn(stamps, period))) if period else 0.0


def _turn(stamps: Ints, period_ns: int) -> complex:
    return complex(np.exp(2j * np.pi * (stamps % period_ns) / period_ns).mean())


def unsteadiness_ns(stamps: Ints) -> int:
    """How far stamps may be off by themselves, judged by how unevenly they come (for errors that are alike likely up to
    a bound, near that bound). A reader that keeps time does not err by more."""
    if len(stamps) < 3:
        return 0
    steps = np.diff(stamps)
    # Differences of two such errors lie within 1.55 times the bound in 95 % of cases.
    return int(np.quantile(np.abs(steps - np.median(steps)), 0.95) / 1.55)


def lagging(some: Iterable[Sensor]) -> list[Sensor]:
    """The grid of lags, for sensors of some shapes."""
    return [s._replace(lag_ns=lag, blur_ns=STEP_NS) for s, lag in product(some, _LAGS_NS)]


def following(some: Iterable[Sensor], starts: Ints, stamps: Ints) -> list[Sensor]:
    """The grid of lags behind the renewals that new readings show, which came at `stamps`, and the ones before each at
    `starts`; none if they do not come once a period.

    No phase is looked for: a clock that drifts by some millionths loses that of a period of 10 ms within minutes.
    """
    period = shown_period_ns(stamps)
    # A reader that is hardly faster than the sensor is in step with itself, but now and then finds nothing new; or new
    # readings come at every phase of the sensor's period, so that it is not clear which renewal they are of.
    once = abs(float((stamps - starts).mean()) / period - 1) <= _ONCE + 1 / len(stamps)
    if not once or abs(_turn(stamps, period)) < _CLEAR_STEP:
        return []
    step = min(STEP_NS, max(FINE_STEPS_NS[1], period // 5))
    return [
        s._replace(period_ns=period, lag_ns=lag, blur_ns=step, in_step=True, follows=True)
        for s, lag in product(some, range(0, LONGEST_LAG_NS + 1, step))
    ]


def renewing(some: Iterable[Sensor], signal: Signal, stamps: Ints) -> list[Sensor]:
    """The grid of renewals, for sensors of some shapes.

    Readings that come in step with the renewals do not tell their phase, only how far before the readings they are.
    """
    period, turn = signal.refresh_ns, _turn(stamps, signal.refresh_ns)
    if abs(turn) < NEAR_STEP:
        # Stamps that are far off may be of a renewal that is still to come, or of one that was long ago.
        far = unsteadiness_ns(stamps) > STEP_NS
        lags = (0, *range(-period // 2, period // 2 + 1, 4 * STEP_NS)) if far else (0,)
        phases = range(0, period, 2 * STEP_NS if far else STEP_NS)
        return [
            s._replace(period_ns=period, phase_ns=phase, lag_ns=lag, blur_ns=STEP_NS)
            for s, phase, lag in product(some, phases, lags)
        ]
    # As far from the readings as can be, so that each is taken for the renewal that it is meant to be.
    phase = round((np.angle(turn) / (2 * np.pi) + 0.5) % 1 * period)
    return [
        s._replace(period_ns=period, phase_ns=phase, lag_ns=lag - period // 2, blur_ns=STEP_NS, in_step=True)
        for s, lag in product(some, _LAGS_NS)
    ]

"""The moments at which an energy counter is renewed, from its readings. Pure.

A driver renews the counter every 20 to 100 ms or so. A reading has the energy up to the last renewal, so a reader that
is faster than the counter gets values twice. A reading of renewal `k` is at `t` with `origin + k period <= t < origin +
(k + 1) period`. Many readings leave one period and one origin, far more closely than the time between two of them.
"""

from __future__ import annotations

import bisect
import math
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Ints
from gpu_profile.serving.work import Bools

#: The first readings wait until a value comes twice, at most for so long: prices need more of them anyway. From then
#: on, the first search for a period waits as long, at most until there are so many readings, and so many renewals.
_PATIENCE_NS: Final = 25_000_000_000
_FIRST, _FEWEST = 128, 24
#: The most readings before that: without a repeated value, they bound the period too.
_BEFORE: Final = 512
#: The next search comes after this share of new readings, at the latest after so many. The most readings that it uses.
_MORE, _MOST_MORE, _KEPT = 0.1, 128, 4096
#: Trial periods and phases of the first search, and the error of the readings' times that it allows for.
_PERIODS, _PHASES, _STAMP_NS = 400, 48, 1_000_000
#: The readings of a search after a contradiction.
_AGAIN: Final = 256
#: A later search is within this share of the last period. Its steps leave 1e-9 of it.
_NEAR, _STEPS = 0.1, 40
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
#: A fit is repeated early if ages are outside the period by this share.
_SLIGHT: Final = 0.01
#: The ages of values in a period may have a range that is this share longer than it.
_CONTRADICTS: Final = 0.02
#: After so many periods with one value, the counter stands still. After so many without readings, a search begins anew.
_STILL, _LONGEST = 1.1, 200.0
#: A value with ages so near the end of its period, and beyond it, belongs to the next renewal.
_LATER: Final = 0.2


class _RenewalFit(NamedTuple):
    """Renewal `k` comes at `origin + k period`, in ns since some time."""

    period: float
    origin: float

    def age(self, at: float, number: int) -> float:
        """The age of a renewal at a time, in periods."""
        return (at - self.origin) / self.period - number


class Renewals:
    """Gives readings of one counter the times of their renewals. Leaves repeated values out.

    The readings of a counter that is renewed faster than it is read keep their times: no value comes twice.
    """

    def __init__(self) -> None:
        self._fit: _RenewalFit | None = None
        #: Readings: times in ns since `_zero_ns`, values, and the numbers of their renewals once there is a fit.
        self._zero_ns, self._times, self._values, self._numbers = 0, list[int](), list[int](), list[int]()
        #: Whether the first readings wait, and the place of the first one with the value of the one before.
        self._undecided = True
        self._first_repeated: int | None = None
        #: The numbers of readings at the last fit and for the next one, and the last time given.
        self._fitted, self._due, self._given_ns = 0, 0, 0

    def add(self, time_ns: int, value: int) -> list[tuple[int, int]]:
        """Add a reading at a time in ns, later than all earlier ones. Returns readings with their final times."""
        if self._fit is not None and time_ns - self._zero_ns - self._times[-1] > _LONGEST * self._fit.period:
            self.restart()
        if not self._times:
            self._zero_ns = time_ns
        fresh = not self._values or value != self._values[-1]
        self._times.append(time_ns - self._zero_ns)
        self._values.append(value)
        if self._fit is not None:
            self._number(self._fit, len(self._times) - 1, fresh=fresh)
            return self._refined(1)
        if self._first_repeated is None and not fresh:
            self._first_repeated = len(self._times) - 1
        if self._first_repeated is not None:
            return self._begin(self._first_repeated)
        if self._undecided and self._times[-1] <= _PATIENCE_NS:
            return []
        # The counter is faster.
        result = self._given(len(self._times) if self._undecided else 1)
        self._undecided = False
        del self._times[:-_BEFORE], self._values[:-_BEFORE]
        return result

    def restart(self) -> None:
        """Forget all readings: the next ones are of other renewals."""
        self._fit, self._undecided, self._first_repeated, self._due = None, False, None, 0
        self._times, self._values, self._numbers = [], [], []

    def _begin(self, first: int) -> list[tuple[int, int]]:
        """Look for the first fit if there are enough readings, of which the one at place `first` was a repeated one."""
        changed, count = np.diff(self._values) != 0, len(self._times) - first
        if (count < _FIRST or changed.sum() < _FEWEST) and self._times[-1] - self._times[first] < _PATIENCE_NS:
            return []
        self._fit = self._fit_anew()
        return self._refined(len(self._times) if self._undecided else count)

    def _refined(self, count: int) -> list[tuple[int, int]]:
        """Fit all readings again if it is due, and give the last ones. If they contradict each other, begin anew."""
        if self._fit is not None and len(self._times) >= self._due:
            if len(self._times) > _KEPT:
                self._keep(_KEPT // 2)
            self._fit = self._fit_of_all(self._fit)
            if self._fit is None and count == 1:
                self._keep(_AGAIN)
                self._fit = self._fit_anew()
            self._fitted = len(self._times)
            self._due = self._fitted + min(round(_MORE * self._fitted), _MOST_MORE)
        result = self._given(count)
        if self._fit is None:
            self.restart()
        return result

    def _keep(self, count: int) -> None:
        del self._times[:-count], self._values[:-count], self._numbers[:-count]

    def _fit_of_all(self, fit: _RenewalFit) -> _RenewalFit | None:
        times, numbers = np.array(self._times), np.array(self._numbers)
        # Only the last reading of a value shows how long the counter stood still.
        first, last = (np.searchsorted(numbers, numbers, side) for side in ("left", "right"))
        moving = (times[last - 1] - times[first] <= _STILL * fit.period) & (last < len(times))
        moving[first] = True
        return _fit_of(times[moving], numbers[moving], fit.period)

    def _fit_anew(self) -> _RenewalFit | None:
        """A fit without an earlier one, and the numbers that go with it."""
        changed = np.diff(self._values) != 0
        fit = _first_fit(np.array(self._times), changed)
        if fit is None:
            return None
        self._numbers = []
        for place, fresh in enumerate([True, *changed.tolist()]):
            self._number(fit, place, fresh=fresh)
        return self._fit_of_all(fit)

    def _given(self, count: int) -> list[tuple[int, int]]:
        """The last readings with their final times, of each renewal the first one, if there is a fit."""
        result = []
        for place in range(len(self._times) - count, len(self._times)):
            at: float = self._times[place]
            if self._fit is not None:
                number = self._numbers[place]
                if not self._stands_still(self._fit, place):
                    if place and number == self._numbers[place - 1]:
                        continue
                    at = self._fit.origin + number * self._fit.period
            time_ns = self._zero_ns + round(at)
            if time_ns > self._given_ns:
                self._given_ns = time_ns
                result.append((time_ns, self._values[place]))
        return result

    def _number(self, fit: _RenewalFit, place: int, *, fresh: bool) -> None:
        """Find the number of the renewal that the reading at a place shows."""
        at = self._times[place]
        number = math.floor((at - fit.origin) / fit.period)
        if place:
            last, before = self._numbers[-1], self._times[place - 1]
            if not fresh:
                first = bisect.bisect_left(self._numbers, last)
                if fit.age(at, last) > 1 + _LATER and fit.age(self._times[first], last) > 1 - _LATER:
                    # The value was that of one renewal more.
                    last += 1
                    self._numbers[first:] = [last] * (place - first)
                number = last
            elif self._stands_still(fit, place - 1):
                number = max(number, last + 1)
            else:
                most = last + math.ceil((at - before) / fit.period)
                number = min(max(number, last + 1), most)
        if not -_SLIGHT < fit.age(at, number) < 1 + _SLIGHT:
            # The fit is not close enough.
            self._due = min(self._due, self._fitted + len(self._times) // 32)
        self._numbers.append(number)

    def _stands_still(self, fit: _RenewalFit, place: int) -> bool:
        """Whether the value of a reading was there for longer than a counter that is renewed shows it."""
        first = bisect.bisect_left(self._numbers, self._numbers[place])
        return self._times[place] - self._times[first] > _STILL * fit.period


def _fit_of(times: Ints, numbers: Ints, period: float) -> _RenewalFit | None:
    """The fit near a period that readings contradict least: the range of their ages is longest within the period."""

    def excess(tried: float) -> float:
        """By how much the range of the ages is longer than the period: a convex function."""
        return float(np.ptp(times - tried * numbers)) - tried

    low, high = (1 - _NEAR) * period, (1 + _NEAR) * period
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    scores = [excess(each) for each in inner]
    for _ in range(_STEPS):
        if scores[0] < scores[1]:
            high, inner[1], scores[1] = inner[1], inner[0], scores[0]
            inner[0] = high - _GOLDEN * (high - low)
            scores[0] = excess(inner[0])
        else:
            low, inner[0], scores[0] = inner[0], inner[1], scores[1]
            inner[1] = low + _GOLDEN * (high - low)
            scores[1] = excess(inner[1])
    best = (low + high) / 2
    if excess(best) > _CONTRADICTS * best:
        return None
    since = times - best * numbers
    return _RenewalFit(best, float(since.min() + since.max() - best) / 2)


def _first_fit(times: Ints, changed: Bools) -> _RenewalFit | None:
    """A fit of readings at these times, of which `changed` ones have another value than the one before. None if there
    is none."""
    first = np.concatenate(([0], np.flatnonzero(changed) + 1))
    last = np.append(first[1:] - 1, len(times) - 1)
    shortest = max(1, int((times[last] - times[first]).max()) - _STAMP_NS)
    # At least one renewal lies between two values, so `n` periods end before the next value but n.
    starts, ends = times[last[:-1]], times[first[1:]]
    apart = np.arange(len(starts)) - np.arange(len(starts))[:, None]
    longest = float(((ends - starts[:, None] + _STAMP_NS)[apart > 0] / apart[apart > 0]).min())
    if longest < shortest:
        return None
    phases = (np.arange(_PHASES) + 0.5)[:, None] / _PHASES
    periods = np.linspace(shortest, longest, _PERIODS)
    wrong = np.array([
        ((np.diff(np.floor(times / period - phases)) > 0) != changed).sum(axis=1) for period in periods.tolist()
    ])  # fmt: skip
    least = int(wrong.min())
    if 2 * least > int((~changed).sum()):
        return None
    best = np.flatnonzero(wrong.min(axis=1) == least)
    place = int(best[len(best) // 2])
    likely = np.flatnonzero(wrong[place] == least)
    period = float(periods[place])
    return _RenewalFit(period, float(phases[likely[len(likely) // 2], 0]) * period)

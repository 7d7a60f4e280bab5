"""Readings of the energy counters of an engine's GPUs as one sum, from the samples that readers send.

A reading has the energy up to its counter's last renewal. Repeated values show the time of the renewal.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np

from gpu_profile.catalogue import SIGNALS
from gpu_profile.catalogue.signals import ENERGY
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.serving.pricing.renewals import Renewals
from gpu_profile.serving.streams.pass_times import CLOCK_STEP_NS

_NUMBER: Final = SIGNALS.index(ENERGY)
#: Most readings of a GPU that wait for the other GPUs: 10 minutes at 10 Hz.
_MOST_WAITING: Final = 6_000
#: The least time between two readings: the usual interval, less the unsteadiness of its rounds. If no value repeats,
#: the ages of values are unknown, and would be a large part of shorter windows.
_APART_NS: Final = 92_000_000


class _Counter:
    """The readings of one GPU's counter, made continuous over resets: quanta since the first reading. `renewals` gives
    them their times."""

    def __init__(self, renewals: Renewals | None) -> None:
        self.times: list[int] = []
        self.totals: list[int] = []
        #: The time of the last reading, 0 without one.
        self.last_ns = 0
        self._renewals = renewals
        self._last: int | None = None
        self._total = 0

    def add(self, end_ns: int, value: int) -> bool:
        """Add a reading. Returns whether the counter was reset since the one before it."""
        if end_ns <= self.last_ns:
            return False
        reset = self._last is not None and value < self._last
        if self._last is not None and not reset:
            self._total += value - self._last
        self._last, self.last_ns = value, end_ns
        if self._renewals is None:
            self.times.append(end_ns)
            self.totals.append(self._total)
            return reset
        if reset:
            self._renewals.restart()
        for time_ns, total in self._renewals.add(end_ns, self._total):
            self.times.append(time_ns)
            self.totals.append(total)
        return reset

    def restart(self) -> None:
        """Drop the readings. Later ones continue their sum."""
        self.times, self.totals, self.last_ns = [], [], 0
        if self._renewals is not None:
            self._renewals = Renewals()
            # The estimator has to notice the new time at once.
            self._renewals.restart()

    def drop(self, before_ns: int) -> None:
        """Drop the readings that no later moment needs: all but the last one up to `before_ns`."""
        n = max(0, int(np.searchsorted(self.times, before_ns, side="right")) - 1, len(self.times) - _MOST_WAITING)
        del self.times[:n], self.totals[:n]


class EnergySum:
    """The energy of some GPUs at the moments of the first one's readings. The others are interpolated.

    `renewals`: readings get the times of the counters' renewals if repeated values show these, and are at least 92 ms
    apart.
    `take` may be called by another thread than the other methods.
    """

    def __init__(self, uuids: Sequence[str], *, renewals: bool = False) -> None:
        self._counters = {uuid: _Counter(Renewals() if renewals else None) for uuid in uuids}
        self._apart_ns = _APART_NS if renewals else 1
        self._lock = threading.Lock()
        self._given_ns = 0
        self._resets: list[tuple[int, int]] = []

    def take(self, uuid: str, values: Sequence[int]) -> None:
        """Take a device's samples: number of the signal, start in ns, end in ns and value, for each one in turn."""
        counter = self._counters.get(uuid)
        if counter is None:
            return
        with self._lock:
            for number, end_ns, value in zip(values[::4], values[2::4], values[3::4], strict=True):
                before_ns = counter.last_ns or end_ns
                if end_ns < before_ns - CLOCK_STEP_NS:
                    # The clock was set back. The other GPUs' readings follow.
                    counter.restart()
                    before_ns, self._given_ns = end_ns, 0
                if number == _NUMBER and counter.add(end_ns, value):
                    self._resets.append((before_ns, end_ns))

    @property
    def last_ns(self) -> int:
        """The time up to which all GPUs were read, in ns since the epoch. 0 before."""
        return min(each.last_ns for each in self._counters.values())

    def readings(self) -> tuple[Ints, Floats, list[tuple[int, int]]]:
        """The readings since the last call: times in ns since the epoch, J since the first reading.
        Also the stretches of time in which a counter was reset."""
        with self._lock:
            first, *others = self._counters.values()
            if not all(each.times for each in self._counters.values()):
                return np.zeros(0, np.int64), np.zeros(0), []
            from_ns = max(self._given_ns + 1, *(each.times[0] for each in self._counters.values()))
            to_ns = min(each.times[-1] for each in self._counters.values())
            times, last_ns = np.array(first.times, np.int64), self._given_ns
            chosen = (times >= from_ns) & (times <= to_ns)
            for place in np.flatnonzero(chosen).tolist():
                chosen[place] = first.times[place] >= last_ns + self._apart_ns
                last_ns = first.times[place] if chosen[place] else last_ns
            times, quanta = times[chosen], np.array(first.totals, np.int64)[chosen].astype(float)
            if len(times):
                for each in others:
                    since = np.array(each.times, np.int64) - times[0]
                    quanta += np.interp(times - times[0], since, np.array(each.totals, np.int64))
                self._given_ns = int(times[-1])
            for each in self._counters.values():
                each.drop(self._given_ns or to_ns)
            resets, self._resets = self._resets, []
            return times, quanta * ENERGY.quantum, resets

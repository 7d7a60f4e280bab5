"""The energy of a GPU, beside the activity of its MIG instances, in windows of about a second. Pure, and without numpy.

The exporter has no history, so the windows are made of the samples as readers send them. A window ends with a reading
of GPM of one instance, the first after a second. The energy counter is read more often and interpolated at both ends.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Final, NamedTuple

from gpu_profile.catalogue import SIGNALS, Signal
from gpu_profile.catalogue.activity import DRAM, SM, TENSOR
from gpu_profile.catalogue.signals import ENERGY
from gpu_profile.history.ledger import CLOCK_STEP_NS
from gpu_profile.units import NS_PER_S

#: The quantities of an instance that its power depends on. Group.GPM reads all of them.
ACTIVITIES: Final[tuple[Signal, ...]] = (SM, TENSOR, DRAM)
_NUMBERS: Final = {SIGNALS.index(signal): place for place, signal in enumerate(ACTIVITIES)}
_ENERGY: Final = SIGNALS.index(ENERGY)
#: Samples of a signal that wait for the end of their window: a minute at 50 Hz.
_MOST_WAITING: Final = 3_000
#: The shortest and the longest window. In shorter ones, the counter's own period of 0.1 s matters too much.
_SHORTEST_NS, _LONGEST_NS = NS_PER_S * 9 // 10, 30 * NS_PER_S
#: A window of which an instance's samples cover less than this share is left out.
_COVERED: Final = 0.98


class PowerWindow(NamedTuple):
    """A window of a GPU: its energy, and for each MIG instance the integral of each of `ACTIVITIES`, in s."""

    start_ns: int
    end_ns: int
    joules: float
    activity: Mapping[str, tuple[float, ...]]


class EnergyParts(NamedTuple):
    """The parts of a GPU's energy as shares of it: at idle, and by group of instances. The rest is refused.

    `half_widths` are those of 95 % intervals, in the same unit and of the same groups. `idle` is None if it is refused.
    """

    idle: float | None
    groups: Mapping[Hashable, float]
    half_widths: Mapping[Hashable, float]


#: No part is certain enough.
REFUSED: Final = EnergyParts(None, {}, {})


class _WaitingRows:
    """Samples of one activity of an instance: start, end and value in quanta. They follow each other in time.

    `began_ns` is the start of the first one, which is kept when it is dropped.
    """

    def __init__(self) -> None:
        self.rows: deque[tuple[int, int, int]] = deque(maxlen=_MOST_WAITING)
        self.began_ns: int | None = None

    @property
    def end_ns(self) -> int:
        """The end of the newest sample; 0 without one."""
        return self.rows[-1][1] if self.rows else 0

    def add(self, start_ns: int, end_ns: int, value: int) -> None:
        if end_ns < self.end_ns - CLOCK_STEP_NS:
            self.rows.clear()  # the clock was set back
            self.began_ns = None
        if start_ns < end_ns and end_ns > self.end_ns:
            if self.began_ns is None:
                self.began_ns = start_ns
            self.rows.append((max(start_ns, self.end_ns), end_ns, value))

    def integral(self, a_ns: int, b_ns: int) -> tuple[int, int]:
        """The sum of value x ns within `(a, b]`, and the ns that samples cover."""
        mass = covered = 0
        for start, end, value in self.rows:
            inside = min(end, b_ns) - max(start, a_ns)
            if inside > 0:
                mass += value * inside
                covered += inside
        return mass, covered

    def pauses(self, a_ns: int, b_ns: int) -> bool:
        """Whether there are samples before and after `(a, b]`, so that the instance existed in it."""
        return self.began_ns is not None and self.began_ns < a_ns and b_ns < self.end_ns

    def drop(self, before_ns: int) -> None:
        while self.rows and self.rows[0][1] <= before_ns:
            self.rows.popleft()


class GpuWindows:
    """The windows of one GPU. `add_energy` and `add_activity` may be called by another thread than `settled`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._energy: deque[tuple[int, int]] = deque(maxlen=_MOST_WAITING)
        self._instances: dict[str, tuple[_WaitingRows, ...]] = {}
        self._until_ns = 0

    def add_energy(self, values: Sequence[int]) -> None:
        """Add the GPU's samples: number of the signal, start in ns, end in ns and value, for each one in turn."""
        with self._lock:
            for number, end_ns, value in zip(values[::4], values[2::4], values[3::4], strict=True):
                if number != _ENERGY:
                    continue
                last_ns, last = self._energy[-1] if self._energy else (0, 0)
                if last_ns - CLOCK_STEP_NS <= end_ns <= last_ns:
                    continue
                if end_ns < last_ns or value < last:
                    self._energy.clear()  # the clock was set back, or the counter began anew
                    self._until_ns = end_ns
                self._energy.append((end_ns, value))

    def add_activity(self, uuid: str, values: Sequence[int]) -> None:
        """Add an instance's samples, in the same form."""
        with self._lock:
            rows = self._instances.get(uuid)
            if rows is None:
                rows = self._instances[uuid] = tuple(_WaitingRows() for _ in ACTIVITIES)
            for number, start, end, value in zip(values[::4], values[1::4], values[2::4], values[3::4], strict=True):
                if (place := _NUMBERS.get(number)) is not None:
                    rows[place].add(start, end, value)

    def settled(self, listed: Collection[str]) -> list[PowerWindow]:
        """The windows that are complete since the last call. `listed`: the GPU's instances now.

        There are none while a listed instance has no samples of each activity.
        """
        with self._lock:
            return self._settled(listed)

    def _settled(self, listed: Collection[str]) -> list[PowerWindow]:
        present = [self._instances.get(uuid) for uuid in listed]
        if not self._energy or not present or any(rows is None for rows in present):
            return []
        until_ns = min(self._energy[-1][0], *(row.end_ns for rows in present if rows is not None for row in rows))
        first = self._instances[min(listed)][0]
        windows, moments = [], [ns for ns, _ in self._energy]
        start_ns = max(self._until_ns, moments[0])
        for row_start_ns, end_ns, _ in first.rows:
            if end_ns - start_ns > _LONGEST_NS:
                start_ns = max(row_start_ns, start_ns)
            if end_ns > until_ns or end_ns - start_ns < _SHORTEST_NS:
                continue
            activity = self._activity(start_ns, end_ns)
            if activity is not None:
                joules = (self._at(end_ns, moments) - self._at(start_ns, moments)) * ENERGY.quantum
                windows.append(PowerWindow(start_ns, end_ns, joules, activity))
            start_ns = end_ns
        self._drop(start_ns, listed)
        return windows

    def _activity(self, start_ns: int, end_ns: int) -> dict[str, tuple[float, ...]] | None:
        """The integrals of each instance that existed.

        None if one existed for a part of the window only, or was not read in all of it.
        """
        result = {}
        for uuid, rows in self._instances.items():
            parts = [row.integral(start_ns, end_ns) for row in rows]
            least = min(covered for _, covered in parts)
            if least < _COVERED * (end_ns - start_ns):
                if any(covered for _, covered in parts) or any(row.pauses(start_ns, end_ns) for row in rows):
                    return None
                continue
            result[uuid] = tuple(
                mass / covered * (end_ns - start_ns) * signal.quantum / NS_PER_S
                for (mass, covered), signal in zip(parts, ACTIVITIES, strict=True)
            )
        return result

    def _at(self, moment_ns: int, moments: Sequence[int]) -> float:
        """The counter at a moment between its first and its last reading."""
        place = bisect_left(moments, moment_ns)
        end_ns, value = self._energy[place]
        start_ns, before = self._energy[max(0, place - 1)]
        return value if end_ns == start_ns else before + (value - before) * (moment_ns - start_ns) / (end_ns - start_ns)

    def _drop(self, until_ns: int, listed: Collection[str]) -> None:
        """Forget the samples of settled windows, and the instances that are gone."""
        self._until_ns = until_ns
        for rows in self._instances.values():
            for row in rows:
                row.drop(until_ns)
        self._instances = {uuid: rows for uuid, rows in self._instances.items() if uuid in listed or rows[0].rows}
        while len(self._energy) > 1 and self._energy[1][0] <= until_ns:
            self._energy.popleft()

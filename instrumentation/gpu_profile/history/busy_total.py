"""The busy time of a device, counted from the best of several sources. Pure, and without numpy."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue import BUSY_SOURCES, Signal
from gpu_profile.units import NS_PER_S

#: A source that is this much behind another source of the same quantity has stopped: sources answer within a second.
SILENCE_NS: Final = 5 * NS_PER_S
#: The same in periods of the source, if it is read less often.
_SILENT_PERIODS: Final = 3


class BusyTotal:
    """Busy time, from the best source that covers each moment. The total never decreases when the source changes.

    `masses` are the counted masses by source, in its quanta·ns. `covered_ns` is the time that they cover together.
    `signal` is the latest source, and `until_ns` the end of its newest counted row.
    """

    def __init__(self) -> None:
        self.masses: dict[Signal, int] = {}
        self.covered_ns = 0
        self.signal: Signal | None = None
        #: By source: up to which moment a lesser source waits for it. None before its first row.
        self._waits: dict[Signal, int | None] = {}
        self.restart()

    def restart(self) -> None:
        """Continue after the clock was set back: the last counted row lies in the future now."""
        self.until_ns: int | None = None
        self._first_ns: int | None = None
        self._waits = dict.fromkeys(self._waits)

    def skip(self, ahead_ns: int) -> None:
        """The clock was set ahead: the last counted rows ended this much later by it."""
        self.until_ns, self._first_ns = _later(self.until_ns, ahead_ns), _later(self._first_ns, ahead_ns)
        self._waits = {signal: _later(until_ns, ahead_ns) for signal, until_ns in self._waits.items()}

    def expect(self, signal: Signal) -> None:
        """Announce a source that the device should have."""
        self._waits[signal] = None

    def take(self, signal: Signal, start: int, end: int, mass: int) -> None:
        """Add a row. Its part after `until_ns` counts, unless a better source covers its end or is still awaited."""
        self._waits[signal] = end + max(SILENCE_NS, _SILENT_PERIODS * (end - start))
        if self._first_ns is None:
            self._first_ns = start
        for better in BUSY_SOURCES[: BUSY_SOURCES.index(signal)]:
            if better in self._waits and end <= (self._waits[better] or self._first_ns + SILENCE_NS):
                return
        new = start if self.until_ns is None else max(start, self.until_ns)
        if new < end:
            self.masses[signal] = self.masses.get(signal, 0) + mass * (end - new) // (end - start)
            self.covered_ns += end - new
            self.signal, self.until_ns = signal, end


def _later(moment: int | None, ahead_ns: int) -> int | None:
    return None if moment is None else moment + ahead_ns

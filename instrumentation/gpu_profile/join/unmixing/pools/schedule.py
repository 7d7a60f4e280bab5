"""When the search for a sensor's timing is repeated, and when the timing is kept. Pure."""

from __future__ import annotations

from typing import Final

#: Number of windows after which a timing is locked: 30 or 100 s at 10 Hz. The smaller one needs a sure timing.
_LOCK_AT: Final = 300
_LOCK_UNSURE_AT: Final = 1000
#: The search is repeated when the number of windows has grown by this factor, and once more at the end. A search makes
#: many fits. Rivals that few windows could not rule out remain candidates.
_GROWTH: Final = 4.0
_GROWTH_AT_LAST: Final = 1.25
#: Least number of windows per column for a search, and for the one at the end. Before the first, no rate is given.
_LEAST_PER_COLUMN: Final = 8
_LEAST_AT_LAST: Final = 3


class SearchSchedule:
    """The number of windows since the timing was last locked, and at the latest search since."""

    def __init__(self) -> None:
        self._added = self._searched = 0

    def add(self, windows: int) -> None:
        """Count further windows."""
        self._added += windows

    def restart(self) -> None:
        """Begin anew: the timing, or the windows, are no longer valid."""
        self._added = self._searched = 0

    def due(self, kept: int, columns: int, *, final: bool) -> bool:
        """Whether the timing should be searched in the `kept` windows, for this number of columns."""
        least = columns * (_LEAST_AT_LAST if final else _LEAST_PER_COLUMN)
        grown = self._added >= max(self._searched * (_GROWTH_AT_LAST if final else _GROWTH), least)
        return columns > 1 and kept >= least and (grown or self._added >= _LOCK_UNSURE_AT)

    def searched(self) -> None:
        """Note that a search uses the windows so far."""
        self._searched = self._added

    def locks(self, *, sure: bool) -> bool:
        """Whether the timing that was found is kept. `sure`: it has no rivals, and its lag is narrow."""
        return self._added >= (_LOCK_AT if sure else _LOCK_UNSURE_AT)

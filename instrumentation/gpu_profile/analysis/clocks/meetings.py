"""Times at which the ranks of a job meet: a rank leaves a collective only after the last rank has entered it. Pure.

Times are ns as floats, relative to a base that all share: they count whole ns over a hundred days.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats, Ints

#: The fewest meetings that are evidence of waiting, and of an offset. Ours.
LEAST: Final = 8
#: The most meetings and ranks that are looked at. More improve nothing and cost time. Ours.
_MOST: Final = 2_000
_MOST_TESTED: Final = 500
_MOST_RANKS: Final = 64
#: Ranks that wait stay shorter by the delay of their entry, a slope of -1. Without waiting the slope is 0.
_SLOPE: Final = -0.7
_SURE_SLOPE: Final = -0.4
#: Three standard errors.
_SURE: Final = 3.0
#: The share of the meetings on one clock that a rank may leave before the last has entered, by errors of time stamps.
_EARLY: Final = 0.05
_ROUNDS: Final = 3
#: Executions that a recording may lack at its begin although it has more at its end. Ours.
_MISSED: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """The entries and exits of some ranks at the same meetings.

    `ranks[R]` and `clocks[R]` are the ranks and the number of the clock of each. `entries[R, K]` and `exits[R, K]` are
    in ns by the rank's clock, NaN where a rank took no part.
    """

    name: str
    ranks: Ints
    clocks: Ints
    entries: Floats
    exits: Floats

    def some(self, most: int = _MOST, ranks: int | None = None) -> Meetings:
        """At most `most` of the meetings and `ranks` of the ranks, evenly spread."""
        at = _spread(self.entries.shape[1], most)
        of = _spread(len(self.ranks), ranks or len(self.ranks))
        return replace(
            self,
            ranks=self.ranks[of],
            clocks=self.clocks[of],
            entries=self.entries[np.ix_(of, at)],
            exits=self.exits[np.ix_(of, at)],
        )

    def shifted(self, offsets: Floats) -> Meetings:
        """The same by clocks that are ahead by `offsets[R, K]` ns less."""
        return replace(self, entries=self.entries - offsets, exits=self.exits - offsets)

    @property
    def waits(self) -> bool:
        """Whether the ranks wait for one another in them: the later a rank enters, the shorter it stays."""
        few = self.some(_MOST_TESTED, _MOST_RANKS)
        if few.entries.size < 2 * LEAST or few.entries.shape[1] < LEAST or few._leave_early:
            return False
        trends = np.array([trend(exits, few.exits[0])[0] for exits in few.exits])
        times = few.exits[0] - _middle(few.exits[0])
        few = few.shifted(np.nan_to_num(trends[:, None] * times[None, :]))
        entries, exits = _apart(few.entries, few.clocks), _apart(few.exits, few.clocks)
        kept = np.isfinite(entries) & np.isfinite(exits)
        late, longer = entries[kept], (exits - entries)[kept]
        # A pause of one rank must not decide.
        limit = 10 * float(np.median(np.abs(late))) if len(late) else 0.0
        late, longer = late[np.abs(late) <= limit], longer[np.abs(late) <= limit]
        power = float(late @ late)
        if len(late) < 2 * LEAST or power <= 0:
            return False
        slope = float(late @ longer) / power
        error = sqrt(float(np.mean((longer - slope * late) ** 2)) / power)
        return slope < _SLOPE and slope + _SURE * error < _SURE_SLOPE

    @property
    def _leave_early(self) -> bool:
        """Whether ranks on one clock leave before others there have entered."""
        entries, exits = self.by_clock()
        several = [np.count_nonzero(self.clocks == clock) > 1 for clock in np.unique(self.clocks)]
        early = (exits < entries)[several]
        return bool(early.size) and float(early.mean()) > _EARLY

    def by_clock(self) -> tuple[Floats, Floats]:
        """The last entry and the first exit of each clock's ranks, [C, K]."""
        order = np.unique(self.clocks)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a meeting without the clock's ranks
            entries = np.array([np.nanmax(self.entries[self.clocks == clock], axis=0) for clock in order])
            exits = np.array([np.nanmin(self.exits[self.clocks == clock], axis=0) for clock in order])
        return entries, exits


def _spread(size: int, most: int) -> Ints:
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.int64))


def _middle(times: Floats) -> float:
    return float(np.nanmedian(times)) if np.isfinite(times).any() else 0.0


def _apart(times: Floats, clocks: Ints) -> Floats:
    """The times less each meeting's median and each clock's: how far apart the ranks are."""
    apart = times.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(_ROUNDS):
            for clock in np.unique(clocks):
                apart[clocks == clock] -= np.nanmedian(apart[clocks == clock])
            apart -= np.nanmedian(apart, axis=0)
    return apart


def trend(times: Floats, reference: Floats) -> tuple[float, float]:
    """How fast a clock runs ahead of another, as a share, with a standard error, from simultaneous times.

    The median slope of pairs of times half of the run apart. Half of the times may be wrong. (0, 0) with too few.
    """
    ahead, at = times - reference, reference
    both = np.isfinite(ahead)
    ahead, at = ahead[both], at[both]
    half = len(ahead) // 2
    if half < LEAST:
        return 0.0, 0.0
    length = at[half:] - at[: len(at) - half]
    kept = length > 0
    slopes = (ahead[half:] - ahead[: len(ahead) - half])[kept] / length[kept]
    if len(slopes) < LEAST:
        return 0.0, 0.0
    slope = float(np.median(slopes))
    # The standard error of a median is 1.25 times the mean's; 1.48 median deviations are a standard deviation.
    return slope, 1.25 * 1.48 * float(np.median(np.abs(slopes - slope))) / sqrt(len(slopes))


def meetings(
    name: str, runs: Mapping[int, tuple[Floats, Floats]], clocks: Mapping[int, int], left_out: dict[int, str]
) -> Meetings | None:
    """The executions of one region on ranks that ran it, as meetings by their number; None for fewer than two ranks.

    `runs` has each rank's starts and ends. Ranks with another number of executions take part from the place where their
    rhythm agrees with the reference's. Ranks without such a place get a reason in `left_out`.
    """
    whole = {rank: edges for rank, edges in runs.items() if len(edges[0]) >= LEAST}
    if len(whole) < 2:
        return None
    sizes = np.array([len(starts) for starts, _ in whole.values()])
    usual = int(np.bincount(sizes).argmax())
    reference = next(rank for rank, (starts, _) in whole.items() if len(starts) == usual)
    places: dict[int, int] = {}
    for rank, (starts, _) in whole.items():
        same = clocks[rank] == clocks[reference]
        if len(starts) == usual:
            lag: int | None = 0 if rank == reference else _shift(whole[rank], whole[reference])
        else:
            lag = _lag(whole[rank], whole[reference], same_clock=same)
        if lag is None:
            left_out[rank] = f"its {len(starts):,} executions of {name} cannot be matched with the others' {usual:,}"
        else:
            places[rank] = lag
    shape = len(places), usual
    entries, exits = np.full(shape, np.nan), np.full(shape, np.nan)
    for row, (rank, lag) in enumerate(places.items()):
        first, last = max(0, lag), min(usual, lag + len(whole[rank][0]))
        entries[row, first:last] = whole[rank][0][first - lag : last - lag]
        exits[row, first:last] = whole[rank][1][first - lag : last - lag]
    ranks = np.array(list(places), np.int64)
    return Meetings(name, ranks, np.array([clocks[rank] for rank in places], np.int64), entries, exits)


def _shift(own: tuple[Floats, Floats], reference: tuple[Floats, Floats]) -> int:
    """The lag of a rank with as many executions as the reference: 0 unless their rhythm clearly agrees elsewhere.

    A rank that began to record a step later and ended a step later has as many executions, but others.
    """
    first = max(0, (len(own[0]) - _MOST_TESTED) // 2)
    part = slice(first, first + _MOST_TESTED)
    return _lag((own[0][part], own[1][part]), (reference[0][part], reference[1][part]), same_clock=False) or 0


def _lag(own: tuple[Floats, Floats], reference: tuple[Floats, Floats], *, same_clock: bool) -> int | None:
    """The number of the reference's execution at the same time as the first of a rank's own. None if uncertain.

    At the right place the steps are as long as the reference's. On the same clock they also begin at the same times.
    """
    # Ranks start a step together, but leave a collective together.
    for times, others in zip(own, reference, strict=True):
        spare = len(others) - len(times)
        spreads: list[tuple[float, int]] = []
        for lag in range(min(0, spare) - _MISSED, max(0, spare) + _MISSED + 1):
            first, last = max(0, lag), min(len(others), lag + len(times))
            if last - first < LEAST:
                continue
            mine, beside = times[first - lag : last - lag], others[first:last]
            apart = mine - beside if same_clock else np.diff(mine) - np.diff(beside)
            spreads.append((float(np.median(np.abs(apart))), lag))
        spreads.sort()
        if len(spreads) == 1 or (len(spreads) > 1 and 2 * spreads[0][0] < spreads[1][0]):
            return spreads[0][1]
    return None

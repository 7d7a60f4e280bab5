"""Which requests are in decode in which iteration: their places, corrected by the iterations' counts. Pure.

A request is in decode in as many iterations as it has tokens after the first one, in a row. Its place may be off by an
iteration. Then one iteration has a request too many and another one too few, and the request moves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection
from typing import Any, Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Ints
from gpu_profile.serving.streams.stamp_delay import StampDelay
from gpu_profile.serving.work import Bools, DecodeRuns, WorkQuantity

#: The most that an iteration's context may differ from its requests': engines count the current token or not.
_CONTEXT_PER_REQUEST, _CONTEXT_SHARE = 2, 0.02
#: The rows of a table of iterations with decode, and its columns that are looked at together.
_AT_ONCE: Final = 256
_COUNT, _PLACED, _CONTEXT, _STATED, _ALONE, _COLUMNS = range(6)


class _Placed(NamedTuple):
    """A request, and its iterations of decode: numbers from `first` to `last`."""

    number: int
    prompt: int
    first: int
    last: int


def _runs_of(placed: Collection[_Placed]) -> DecodeRuns:
    """The requests as runs of iterations with decode."""
    return DecodeRuns(*np.array([(each.number, each.first, each.last + 1, each.prompt) for each in placed]).T)


def _agree(columns: Any) -> Any:
    """Whether the contexts of placed requests agree with the stated ones: by iteration, or of one."""
    counts, _, contexts, stated, _ = columns
    most = _CONTEXT_PER_REQUEST * counts + _CONTEXT_SHARE * stated
    return (stated == 0) | (abs(stated - contexts) <= most)


class DecodeFit(NamedTuple):
    """How the placed requests fit an iteration: those beyond its count, 0 if its message was lost, and whether their
    contexts agree with its own."""

    excess: int
    agrees: bool


class Decoding:
    """The iterations with decode that have not left, in order, and the requests in them. Places in the list count from
    the first iteration that has not left."""

    def __init__(self) -> None:
        #: The delay of requests' stamps.
        self.delay = StampDelay()
        #: By iteration: its end in ns, and its position among all iterations.
        self._ends: list[int] = []
        self._at: list[int] = []
        #: By iteration, as `_COLUMNS`: its requests in decode (-1: lost), those with a place, the sum of their
        #: contexts, the stated one, and whether its parts are of placed decode alone.
        self._columns: Ints = np.zeros((_COLUMNS, 0), np.int64)
        #: The iterations that left. Requests' iterations are numbered from the first one of all.
        self._gone = 0
        #: The placed requests by number, and by their first and last iteration.
        self._running: dict[int, _Placed] = {}
        self._by_first: dict[int, set[_Placed]] = defaultdict(set)
        self._by_last: dict[int, set[_Placed]] = defaultdict(set)
        #: Placed requests that `_columns` does not count yet: to add many together costs a fraction.
        self._fresh: list[_Placed] = []
        #: By iteration, from a place on: how many in a row from there need no look of their own. None: to be counted
        #: anew.
        self._runs: list[int] | None = None
        self._runs_from = 0

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def requests(self) -> int:
        """The requests with a place."""
        return len(self._running)

    def add(self, at: Ints, starts: Ints, ends: Ints, counts: Ints, contexts: Ints, alone: Bools) -> None:
        """Add later iterations at these positions: their times in ns, requests in decode (-1: lost), the context of
        these, and whether placed requests alone have parts in them."""
        self._at += at.tolist()
        self._ends += ends.tolist()
        none = np.zeros(len(at), np.int64)
        fresh = np.array((counts, none, none, contexts, alone), np.int64)
        self._columns = np.concatenate((self._columns, fresh), axis=1)
        self.delay.add(starts, ends, counts, contexts)

    # ------------------------------------------------------------------ placing

    def learn_delay(self, end_ns: int) -> None:
        """Correct the delay of stamps by a request that ended at a time."""
        self.delay.learn(end_ns, self._ends)

    def nearest(self, end_ns: int) -> int:
        """The place of the iteration that ended nearest to a time, -1 if there is none."""
        ends = self._ends
        after = bisect_left(ends, end_ns)
        if after == len(ends) or (after and end_ns - ends[after - 1] <= ends[after] - end_ns):
            return after - 1
        return after

    def after(self, position: int) -> int:
        """The place of the first iteration after a position among all iterations."""
        return bisect_right(self._at, position)

    def position(self, place: int) -> int:
        """The position among all iterations of the one at a place."""
        return self._at[place]

    def place(self, number: int, prompt: int, first: int, tokens: int) -> None:
        """Put a request into so many iterations from the place `first` on, which may be below 0."""
        first += self._gone
        placed = _Placed(number, prompt, first, first + tokens - 1)
        self._fresh.append(placed)
        self._register(placed)

    def _register(self, placed: _Placed) -> None:
        self._by_first[placed.first].add(placed)
        self._by_last[placed.last].add(placed)
        self._running[placed.number] = placed

    def _remove(self, placed: _Placed) -> None:
        del self._running[placed.number]
        for places, at in ((self._by_first, placed.first), (self._by_last, placed.last)):
            places[at].discard(placed)
            if not places[at]:
                del places[at]

    def count(self) -> None:
        """Count the requests that got a place since the last call. The methods below need that."""
        if self._fresh:
            n = len(self._at)
            work = _runs_of(self._fresh).of(self._gone, self._gone + n).work(n)
            self._columns[_PLACED] += work[:, WorkQuantity.REQUESTS].astype(np.int64)
            self._columns[_CONTEXT] += work[:, WorkQuantity.DECODE_CONTEXT].astype(np.int64)
            self._fresh, self._runs = [], None

    # ------------------------------------------------------------------ correcting

    def _put(self, placed: _Placed, sign: int) -> None:
        """Add a request to its iterations, or take it away (-1)."""
        first = max(placed.first, self._gone)
        some = slice(first - self._gone, placed.last - self._gone + 1)
        context = placed.prompt + first - placed.first
        self._columns[_PLACED, some] += sign
        self._columns[_CONTEXT, some] += sign * np.arange(context, context + placed.last - first + 1)
        self._runs = None
        if sign > 0:
            self._register(placed)
        else:
            self._remove(placed)

    def _excess(self, number: int) -> int:
        """Placed requests beyond the count of an iteration, 0 if it has none."""
        place = number - self._gone
        if not 0 <= place < len(self._at) or self._columns[_COUNT, place] < 0:
            return 0
        return int(self._columns[_PLACED, place] - self._columns[_COUNT, place])

    def _repaired(self, number: int) -> bool:
        """Move a request by one iteration if that meets the count of this iteration and of another one better. No
        earlier iteration changes."""
        excess = self._excess(number)
        if excess > 0:
            # A request that begins here moves later, into an iteration that has too few.
            for placed in self._by_first.get(number, ()):
                if self._excess(placed.last + 1) < 0:
                    return self._move(placed, 1)
            # One that ends here could move earlier only into an iteration that has left, unless it begins later.
            for placed in self._by_last.get(number, ()):
                if placed.first > number and self._excess(placed.first - 1) < 0:
                    return self._move(placed, -1)
        for placed in self._by_first.get(number + 1, ()) if excess < 0 else ():
            if self._excess(placed.last) > 0:
                return self._move(placed, -1)
        return False

    def _move(self, placed: _Placed, shift: int) -> bool:
        if placed.last + shift - self._gone >= len(self._at):
            return False
        self._put(placed, -1)
        self._put(placed._replace(first=placed.first + shift, last=placed.last + shift), 1)
        return True

    def fitted(self, place: int) -> DecodeFit:
        """Correct the requests of an iteration, the first one that has not left."""
        row: list[int] = self._columns[:, place].tolist()
        if row[_COUNT] >= 0 and row[_PLACED] != row[_COUNT]:
            number = self._gone + place
            while (excess := self._excess(number)) and (self._repaired(number) or self._recut(number)):
                pass
            if excess:
                return DecodeFit(excess, agrees=True)
            row = self._columns[:, place].tolist()
        return DecodeFit(0, agrees=_agree(row))

    def _recut(self, number: int) -> bool:
        """Make a request shorter or longer by one iteration, if moves do not help. A missing request is one that ended
        just before or begins just after, if the next iteration has all of its requests: others would be in that too."""
        excess, place = self._excess(number), number - self._gone
        if excess > 0:
            for placed in (*self._by_last.get(number, ()), *self._by_first.get(number, ())):
                self._put(placed, -1)
                cut = placed._replace(last=number - 1) if placed.last == number else placed._replace(first=number + 1)
                if cut.first <= cut.last:
                    self._put(cut, 1)
                return True
        elif place + 1 < len(self._at) and self._columns[_COUNT, place + 1] > 0 and self._excess(number + 1) == 0:
            for placed in (*self._by_last.get(number - 1, ()), *self._by_first.get(number + 1, ())):
                self._put(placed, -1)
                self._put(placed._replace(first=min(placed.first, number), last=max(placed.last, number)), 1)
                return True
        return False

    # ------------------------------------------------------------------ leaving

    def _is_whole(self, some: slice) -> Bools:
        """Whether iterations have all of their requests and nothing else."""
        counts, placed, _, _, alone = columns = self._columns[:, some]
        result: Bools = (placed == counts) & (alone > 0) & _agree(columns)
        return result

    def ended_at(self, until_ns: int) -> int:
        """The position of the last iterations in a row with all of their requests, before a time: all requests of
        earlier iterations have ended. One without a place was aborted, or its span is lost."""
        good = self._is_whole(slice(bisect_left(self._ends, until_ns)))
        rows = np.flatnonzero(good[2:] & good[1:-1] & good[:-2])
        return self._at[int(rows[-1])] if len(rows) else 0

    def clear_run(self, place: int, position: int) -> int:
        """The number of iterations in a row that have all of their requests and nothing else, from this one at this
        position among all.

        Most iterations have the same requests as the one before, and so need no look of their own.
        """
        if place >= len(self._at) or self._at[place] != position:
            return 0  # it has no decode
        if self._runs is None or place >= self._runs_from + len(self._runs):
            some = slice(place, place + _AT_ONCE)
            good, at_once = self._is_whole(some), np.array(self._at[some], np.int64)
            ends, rows = np.ones(len(good), bool), np.arange(len(good))
            ends[:-1] = ~good[:-1] | (at_once[1:] - at_once[:-1] != 1)
            bad = np.flatnonzero(ends)
            end = bad[np.searchsorted(bad, rows)]
            self._runs, self._runs_from = (end + good[end] - rows).tolist(), place
        return self._runs[place - self._runs_from]

    def leave(self, usable: Ints) -> DecodeRuns:
        """Drop the first iterations, which have these indices (-1: not to be used). Returns the requests in them."""
        gone, left, runs = self._gone, len(usable), DecodeRuns.none()
        if not left:
            return runs
        if self._running:
            runs = _runs_of(self._running.values()).of(gone, gone + left).moved(usable)
            for placed in [each for each in self._running.values() if each.last < gone + left]:
                self._remove(placed)
        self.delay.forget(self._ends[left - 1])
        del self._ends[:left], self._at[:left]
        self._columns, self._runs = self._columns[:, left:], None
        self._gone += left
        return runs

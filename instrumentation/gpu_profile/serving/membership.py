"""Which requests were in which iteration, from the requests' spans and the iterations' counts. Pure.

A request is in decode in as many iterations as it has tokens after the first one, in a row. They are chosen by the
times of its first and its last token. Stamps are uncertain by some ms, so that a choice may be off by one. Then one
iteration has a request too many and another one too few, and the request moves. Iterations leave in order, with parts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Ints
from gpu_profile.serving.forward_pass import BatchedRequest, ForwardPass
from gpu_profile.serving.pass_parts import PassBatch, prefill_work
from gpu_profile.serving.pass_times import PassCounts, TimedPasses
from gpu_profile.serving.prefill import Chunk, Prefilling
from gpu_profile.serving.request_spans import ServedRequest
from gpu_profile.serving.stamp_delay import StampDelay
from gpu_profile.serving.work import Bools, DecodeRuns, RequestPhase
from gpu_profile.serving.workers import WorkerRole

#: Tokens after the first one, per iteration in which a request could have been in decode: above the first ratio,
#: several tokens come from one iteration. Below the second one, the request was interrupted. A few are uncertain.
_SPECULATIVE, _INTERRUPTED, _EDGES = 1.2, 0.8, 3
#: The most iterations by which the first decode after a prefill may contradict the place of the last token.
_NEAR = 2
#: Requests with this many tokens count for the detection of speculative decoding, from this many requests on. Only the
#: latest ones do.
_LONG_ENOUGH, _ENOUGH, _MOST_RATIOS = 12, 10, 101
#: The most that an iteration's context may differ from its requests': engines count the current token or not.
_CONTEXT_PER_REQUEST, _CONTEXT_SHARE = 2, 0.02
#: The least share of an iteration's tokens of prefill that its requests have.
_COMPUTED = 0.99
#: The weights of a new iteration and of a new request in the shares that do not fit, and the share from which no
#: request has a place in decode.
_NEW_MISFIT, _NEW_FAULT, _MOST_MISFIT = 0.01, 0.03, 0.1
#: Stamps may be so much too early.
_EARLY_NS = 20_000_000
#: The rows of a table of iterations with decode, and its columns that are looked at together.
_AT_ONCE: Final = 256
_COUNT, _PLACED, _CONTEXT, _STATED, _ALONE, _COLUMNS = range(6)
#: The most requests and iterations that wait.
MOST_REQUESTS, MOST_PASSES = 20_000, 100_000


class PlacingFault(StrEnum):
    """Why a request has no place in the iterations. Values of the label `reason`."""

    TOO_OLD = "iterations_gone"
    SPECULATIVE = "speculative_decoding"
    INTERRUPTED = "interrupted"
    FULL = "too_many_requests"
    STAGES = "pipeline_stages"


class _Placed(NamedTuple):
    """A request, and its iterations of decode: positions from `first` to `last`."""

    number: int
    prompt: int
    first: int
    last: int


def _agree(columns: Any) -> Any:
    """Whether the contexts of placed requests agree with the stated ones: by iteration, or of one."""
    counts, _, contexts, stated, _ = columns
    most = _CONTEXT_PER_REQUEST * counts + _CONTEXT_SHARE * stated
    return (stated == 0) | (abs(stated - contexts) <= most)


def _is_exact(message: ForwardPass, chunks: list[Chunk]) -> bool:
    """Whether prompts with these parts have all of an iteration's tokens of prefill."""
    return len(chunks) == message.prefills and sum(each.tokens for each in chunks) >= _COMPUTED * message.prefill_tokens


class Membership:
    """The iterations that wait for their requests. Requests are numbered by the caller, each with its own number.
    `role` is the part of requests that they compute."""

    def __init__(self, role: WorkerRole = WorkerRole.WHOLE) -> None:
        self._passes = TimedPasses.of((), (), [])
        #: The position of the first of them among all iterations, and among iterations with decode.
        self._gone, self._decodes_gone = 0, 0
        #: By iteration with decode: its times and position. As `_COLUMNS`: its requests in decode (-1: lost), those
        #: with a place, the sum of their contexts, the stated one, and whether its parts are of placed decode alone.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._at: list[int] = []
        self._columns: Ints = np.zeros((_COLUMNS, 0), np.int64)
        #: The placed requests by number, and by their first and last position.
        self._running: dict[int, _Placed] = {}
        self._by_first: dict[int, set[_Placed]] = defaultdict(set)
        self._by_last: dict[int, set[_Placed]] = defaultdict(set)
        self._prefills = Prefilling(apart=role is WorkerRole.PREFILL)
        self.delay = StampDelay()
        #: The tokens and iterations of the latest requests, and their sums.
        self._ratios: deque[tuple[int, int]] = deque()
        self._sums = 0, 0
        #: By iteration with decode, from an index on: how many in a row from there need no look of their own. None: to
        #: be counted anew.
        self._runs: list[int] | None = None
        self._runs_from = 0
        #: Iterations without parts for decode, because their requests disagree with their counts.
        self.disagreeing = 0
        #: The share of iterations that disagree, and of requests with more tokens than iterations.
        self._misfit, self._impossible = 0.0, 0.0

    def __len__(self) -> int:
        return len(self._passes.messages)

    @property
    def first_start_ns(self) -> int | None:
        """The start of the first iteration that waits."""
        return int(self._passes.starts[0]) if len(self) else None

    @property
    def speculative(self) -> bool:
        """Whether requests get several tokens from one iteration."""
        tokens, iterations = self._sums
        return len(self._ratios) >= _ENOUGH and tokens > _SPECULATIVE * iterations

    def add(self, passes: TimedPasses, counts: PassCounts) -> None:
        """Add iterations, later than all earlier ones, and their counts."""
        if not passes.messages:
            return
        before = self._gone + len(self)
        self._passes = self._passes.followed_by(passes)
        for at in np.flatnonzero(counts.prefills).tolist():
            self._prefills.add(before + at, int(passes.starts[at]), int(passes.ends[at]), passes.messages[at])
        some = np.flatnonzero(counts.decodes)
        self._at += (before + some).tolist()
        self._starts += passes.starts[some].tolist()
        self._ends += passes.ends[some].tolist()
        none, alone = np.zeros(len(some), np.int64), (counts.reported == 0) & (counts.prefills == 0)
        fresh = np.array((counts.decodes[some], none, none, counts.context[some], alone[some]), np.int64)
        self._columns = np.concatenate((self._columns, fresh), axis=1)

    # ------------------------------------------------------------------ placing

    def place(self, number: int, request: ServedRequest) -> PlacingFault | None:
        """Find the iterations of a request, all of which have been added."""
        start_ns = self.first_start_ns
        if start_ns is None or request.end_ns < start_ns:
            return PlacingFault.TOO_OLD
        if request.completion > 1:
            counts, contexts = self._columns[_COUNT], self._columns[_STATED]
            self.delay.learn(request.end_ns, self._starts, self._ends, counts, contexts)
        delay_ns = self.delay.ns
        first_ns, end_ns = request.first_token_ns - delay_ns, request.end_ns - delay_ns
        if len(self._running) >= MOST_REQUESTS:
            return PlacingFault.FULL
        # If the prefill has left, it can be nobody's any more. Decode still has its place. Iterations leave with all of
        # their requests, so that a stamp just before the first one means that one.
        left = first_ns < start_ns - _EARLY_NS
        prefill_at = None if left else self._prefills.ended_at(first_ns)
        tokens = request.completion - 1
        if tokens:
            last = self._nearest(end_ns)
            if prefill_at is not None:
                possible = max(1, last + 1 - bisect_right(self._at, prefill_at))
                if tokens >= _LONG_ENOUGH:
                    self._add_ratio(tokens, possible)
                impossible = tokens > _SPECULATIVE * possible + _EDGES
                self._impossible += _NEW_FAULT * (impossible - self._impossible)
                if self.speculative or impossible:
                    return PlacingFault.SPECULATIVE
                if tokens < _INTERRUPTED * possible - _EDGES:
                    return PlacingFault.INTERRUPTED
                last = min(max(last, tokens - 1), len(self._ends) - 1)
            if last < 0:
                return PlacingFault.TOO_OLD
            first = last - tokens + 1
            if prefill_at is not None:
                # Decode follows the prefill directly. Few iterations have prefill, so that its place is surer.
                follows = bisect_right(self._at, prefill_at)
                first = follows if abs(follows - first) <= _NEAR and follows + tokens <= len(self._ends) else first
            first += self._decodes_gone
            self._put(_Placed(number, request.prompt, first, first + tokens - 1), 1)
        if prefill_at is not None:
            self._prefills.put(number, request, prefill_at)
        return None

    def _add_ratio(self, tokens: int, iterations: int) -> None:
        self._ratios.append((tokens, iterations))
        gone = self._ratios.popleft() if len(self._ratios) > _MOST_RATIOS else (0, 0)
        self._sums = self._sums[0] + tokens - gone[0], self._sums[1] + iterations - gone[1]

    def _nearest(self, end_ns: int) -> int:
        """The index of the iteration with decode that ended nearest to a time."""
        after = bisect_left(self._ends, end_ns)
        near = [each for each in (after - 1, after) if 0 <= each < len(self._ends)]
        return min(near, key=lambda each: abs(self._ends[each] - end_ns), default=-1)

    def _put(self, placed: _Placed, sign: int) -> None:
        """Add a request to its iterations, or take it away (-1)."""
        first = max(placed.first, self._decodes_gone)
        some = slice(first - self._decodes_gone, placed.last - self._decodes_gone + 1)
        context = placed.prompt + first - placed.first
        self._columns[_PLACED, some] += sign
        self._columns[_CONTEXT, some] += sign * np.arange(context, context + placed.last - first + 1)
        self._runs = None
        if sign > 0:
            self._by_first[placed.first].add(placed)
            self._by_last[placed.last].add(placed)
            self._running[placed.number] = placed
        else:
            self._remove(placed)

    def _excess(self, at: int) -> int:
        """Placed requests beyond the count of an iteration, 0 if it has none."""
        place = at - self._decodes_gone
        if not 0 <= place < len(self._at) or self._columns[_COUNT, place] < 0:
            return 0
        return int(self._columns[_PLACED, place] - self._columns[_COUNT, place])

    def _repaired(self, at: int) -> bool:
        """Move a request by one iteration if that meets the count of this iteration and of another one better. No
        iteration before `at` changes."""
        excess = self._excess(at)
        if excess > 0:
            # A request that begins here moves later, into an iteration that has too few.
            for placed in self._by_first.get(at, ()):
                if self._excess(placed.last + 1) < 0:
                    return self._move(placed, 1)
            # One that ends here could move earlier only into an iteration that has left, unless it begins later.
            for placed in self._by_last.get(at, ()):
                if placed.first > at and self._excess(placed.first - 1) < 0:
                    return self._move(placed, -1)
        for placed in self._by_first.get(at + 1, ()) if excess < 0 else ():
            if self._excess(placed.last) > 0:
                return self._move(placed, -1)
        return False

    def _move(self, placed: _Placed, shift: int) -> bool:
        if placed.last + shift - self._decodes_gone >= len(self._ends):
            return False
        self._put(placed, -1)
        self._put(placed._replace(first=placed.first + shift, last=placed.last + shift), 1)
        return True

    def _fitted(self, at: int) -> int:
        """Repair the requests of an iteration, the first one that waits. Returns the excess that remains."""
        while (excess := self._excess(at)) and (self._repaired(at) or self._recut(at)):
            pass
        return excess

    def _recut(self, at: int) -> bool:
        """Make a request shorter or longer by one iteration, if moves do not help. A missing request is one that ended
        just before or begins just after, if the next iteration has all of its requests: others would be in that too."""
        excess, place = self._excess(at), at - self._decodes_gone
        if excess > 0:
            for placed in (*self._by_last.get(at, ()), *self._by_first.get(at, ())):
                self._put(placed, -1)
                cut = placed._replace(last=at - 1) if placed.last == at else placed._replace(first=at + 1)
                if cut.first <= cut.last:
                    self._put(cut, 1)
                return True
        elif place + 1 < len(self._at) and self._columns[_COUNT, place + 1] > 0 and self._excess(at + 1) == 0:
            for placed in (*self._by_last.get(at - 1, ()), *self._by_first.get(at + 1, ())):
                self._put(placed, -1)
                self._put(placed._replace(first=min(placed.first, at), last=max(placed.last, at)), 1)
                return True
        return False

    # ------------------------------------------------------------------ leaving

    def leave(
        self, before_ns: int, number_of: Callable[[BatchedRequest], int], *, phases_only: bool, spans_until_ns: int = 0
    ) -> PassBatch:
        """The first iterations with all their requests, and all iterations that ended before a time.

        `number_of` numbers requests that the engine reports. `phases_only`: there are no requests, so that each
        iteration has a part for each phase. `spans_until_ns`: the spans of requests that ended before have come.
        """
        batch, usable, passes = PassBatch(), list[int](), self._passes
        ended_at: int | None = None
        while (place := len(batch)) < len(passes.messages):
            if not phases_only and (run := self._clear_run(self._decodes_gone + len(usable))) > 0 and self._is_clear:
                usable += range(place, place + run)
                self._misfit *= (1 - _NEW_MISFIT) ** run
                batch.add(run, whole=True)
                self._gone += run
                continue
            message, end_ns = passes.messages[place], int(passes.ends[place])
            index, chunks = -1, list[Chunk]()
            if message is None:
                batch.add(1, whole=False)
            elif message.requests is not None:
                batch.add(1, whole=True)
                for request in message.requests:
                    batch.request(place, number_of(request), request)
            elif phases_only:
                if end_ns > before_ns:
                    break
                batch.add(1, whole=False)
                batch.phases(place, message)
            else:
                late = end_ns <= before_ns or len(passes.messages) - place > MOST_PASSES
                excess = self._fitted(self._decodes_gone + len(usable)) if message.decodes else 0
                chunks = self._prefills.chunks(self._gone)
                if not late and (excess or not self._has_prompts(message, chunks)):
                    ended_at = self._ended_at(spans_until_ns) if ended_at is None else ended_at
                    if self._gone >= ended_at:
                        break
                index = self._add_shared(batch, message, chunks, len(usable), excess)
            if message is None or message.decodes:
                usable.append(index)
            self._prefills.leave(self._gone, chunks)
            self._gone += 1
        self._passes = passes.cut(len(batch))
        batch.close(passes.cut(0, len(batch)), self._left_decodes(np.array(usable, np.int64)))
        return batch

    def _has_prompts(self, message: ForwardPass, chunks: list[Chunk]) -> bool:
        """Whether no other prompt can have a part in the first iteration."""
        whole = len(chunks) == message.prefills
        # Of an iteration in which all of its prompts end, no other span can come.
        return whole and (_is_exact(message, chunks) or all(chunk.prompt.at == self._gone for chunk in chunks))

    def _ended_at(self, until_ns: int) -> int:
        """The position of the last iterations in a row with all of their requests, before a time: all requests of
        earlier iterations have ended. One without a place was aborted, or its span is lost."""
        n = bisect_left(self._ends, until_ns)
        good = self._is_whole(slice(n))
        rows = np.flatnonzero(good[2:] & good[1:-1] & good[:-2])
        return self._at[int(rows[-1])] if len(rows) else 0

    def _add_shared(
        self, batch: PassBatch, message: ForwardPass, chunks: list[Chunk], place: int, excess: int
    ) -> int:  # fmt: skip
        """Add an iteration with prompts that have these parts. Returns its index, -1: without decode."""
        agrees = excess != 0 or not message.decodes or _agree(self._columns[:, place].tolist())
        fits = agrees and excess <= 0
        self.disagreeing += not fits
        self._misfit += _NEW_MISFIT * ((not fits) - self._misfit)
        index = batch.add(1, whole=agrees and not excess and _is_exact(message, chunks))
        for chunk in chunks:
            batch.part(index, chunk.number, RequestPhase.PREFILL, prefill_work(chunk.tokens, chunk.context))
            if chunk.unsure:
                batch.unsure.append((chunk.number, chunk.unsure, chunk.tenant_unsure))
        # Where many do not fit, the engine's clock is off, so that the others fit by chance.
        return index if fits and self._is_clear else -1

    @property
    def _is_clear(self) -> bool:
        return max(self._misfit, self._impossible) <= _MOST_MISFIT

    def _is_whole(self, some: slice) -> Bools:
        """Whether iterations with decode have all of their requests and nothing else."""
        counts, placed, _, _, alone = columns = self._columns[:, some]
        result: Bools = (placed == counts) & (alone > 0) & _agree(columns)
        return result

    def _clear_run(self, at: int) -> int:
        """The number of iterations in a row from this one with decode that have all of their requests and nothing else.

        Most iterations have the same requests as the one before, and so need no look of their own.
        """
        place = at - self._decodes_gone
        if place >= len(self._at) or self._at[place] != self._gone:
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

    def _left_decodes(self, usable: Ints) -> DecodeRuns:
        """The requests in decode in the iterations with these indices (-1: not to be used), which are dropped."""
        gone, left, runs = self._decodes_gone, len(usable), DecodeRuns.none()
        if not left:
            return runs
        rows = np.array([(each.number, each.first, each.last + 1, each.prompt) for each in self._running.values()])
        if len(rows):
            runs = DecodeRuns(*rows.T).of(gone, gone + left).moved(usable)
            for placed in [each for each in self._running.values() if each.last < gone + left]:
                self._remove(placed)
        del self._starts[:left], self._ends[:left], self._at[:left]
        self._columns, self._runs = self._columns[:, left:], None
        self._decodes_gone += left
        return runs

    def _remove(self, placed: _Placed) -> None:
        del self._running[placed.number]
        for places, at in ((self._by_first, placed.first), (self._by_last, placed.last)):
            places[at].discard(placed)
            if not places[at]:
                del places[at]

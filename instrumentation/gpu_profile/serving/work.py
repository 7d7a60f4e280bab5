"""The iterations of an engine, and the work in each of them by request. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats, Ints

Bools = npt.NDArray[np.bool_]
#: The request of a part without information on its request.
UNKNOWN_REQUEST: Final = -1


class WorkQuantity(IntEnum):
    """The kinds of work. Each quantity of an iteration is the sum over its requests."""

    TOKENS = 0  #: tokens through the dense layers, of prefill and of decode
    PREFILL_CONTEXT = 1  #: over the tokens of prefill: the tokens before each, which it attends to
    DECODE_CONTEXT = 2  #: over the requests in decode: the tokens of stored keys and values that each reads
    PREFILL_KV = 3  #: over the requests in prefill: the same
    REQUESTS = 4


QUANTITIES: Final = len(WorkQuantity)


class RequestPhase(IntEnum):
    """The work of a request in one iteration is of one phase."""

    PREFILL = 0
    DECODE = 1


PHASES: Final = len(RequestPhase)


class BatchedRequest(NamedTuple):
    """A request in an iteration, from an engine that reports them. No two requests have one `id`. `tenant` is None if
    there is none. `tokens` are computed in the iteration, and `context` are the tokens before them."""

    id: str
    tenant: str | None
    phase: RequestPhase
    tokens: int
    context: int


class Parts(NamedTuple):
    """The work of requests in iterations, one row each, in order of iterations.

    `iteration[m]` is an index into the iterations, `request[m]` a number of the caller's (or
    `UNKNOWN_REQUEST`), `phase[m]` a `RequestPhase`, and `work[m, QUANTITIES]` the request's own quantities.
    """

    iteration: Ints
    request: Ints
    phase: Ints
    work: Floats

    @classmethod
    def none(cls) -> Parts:
        """No rows."""
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, empty, np.zeros((0, QUANTITIES)))

    def of(self, first: int, last: int) -> Parts:
        """The rows of the iterations from index `first` to before `last`, numbered from 0."""
        low, high = np.searchsorted(self.iteration, (first, last)).tolist()
        some = self.rows(low, high)
        return some._replace(iteration=some.iteration - first)

    def rows(self, low: int, high: int) -> Parts:
        """The rows from index `low` to before `high`."""
        cut = slice(low, high)
        return Parts(self.iteration[cut], self.request[cut], self.phase[cut], self.work[cut])


class DecodeRuns(NamedTuple):
    """Requests in decode in iterations in a row, one row each: a token in each iteration, and a context that grows by a
    token from one to the next.

    `request[r]` is a number as in `Parts`. `first[r]` and `last[r]` are indices into the iterations, the last one
    exclusive. `context[r]` are the tokens that the first iteration reads.
    """

    request: Ints
    first: Ints
    last: Ints
    context: Ints

    @classmethod
    def none(cls) -> DecodeRuns:
        """No rows."""
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, empty, empty)

    def of(self, first: int, last: int) -> DecodeRuns:
        """The runs in the iterations from index `first` to before `last`, numbered from 0."""
        low, high = np.maximum(self.first, first), np.minimum(self.last, last)
        some = low < high
        return DecodeRuns(
            self.request[some], low[some] - first, high[some] - first, (self.context + low - self.first)[some]
        )

    def moved(self, places: Ints) -> DecodeRuns:
        """The runs after iteration `i` got the index `places[i]`, or was dropped (-1). Gaps cut runs."""
        good = places >= 0
        joins = good[1:] & good[:-1] & (np.diff(places) == 1)
        begins = np.flatnonzero(good & ~np.concatenate(([False], joins)))
        ends = np.flatnonzero(good & ~np.concatenate((joins, [False]))) + 1
        if not len(begins):
            return DecodeRuns.none()
        after = np.searchsorted(ends, self.first, side="right")
        counts = np.maximum(np.searchsorted(begins, self.last) - after, 0)
        run = np.repeat(np.arange(len(counts)), counts)
        stretch = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts - after, counts)
        low, high = np.maximum(self.first[run], begins[stretch]), np.minimum(self.last[run], ends[stretch])
        shift = (places[begins] - begins)[stretch]
        context = self.context[run] + low - self.first[run]
        return DecodeRuns(self.request[run], low + shift, high + shift, context)

    def work(self, iterations: int) -> Floats:
        """The quantities of each iteration over its runs: `[iterations, QUANTITIES]`."""

        def running(values: Ints) -> Floats:
            begin, end = (np.bincount(at, values, iterations + 1) for at in (self.first, self.last))
            return np.cumsum(begin - end)[:iterations]

        result = np.zeros((iterations, QUANTITIES))
        if len(self.request):
            counts = running(np.ones_like(self.first))
            result[:, WorkQuantity.TOKENS] = result[:, WorkQuantity.REQUESTS] = counts
            result[:, WorkQuantity.DECODE_CONTEXT] = running(self.context - self.first) + counts * np.arange(iterations)
        return result


class Iterations(NamedTuple):
    """Iterations of one engine in order of time, without overlaps.

    `starts` and `ends` are in ns since the epoch, and `work[n, QUANTITIES]` holds the quantities. A request's work is
    in `parts` or in `runs`. Both may leave out work of unknown requests.
    """

    starts: Ints
    ends: Ints
    work: Floats
    parts: Parts
    runs: DecodeRuns = DecodeRuns.none()

    @classmethod
    def none(cls) -> Iterations:
        """No iterations."""
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, np.zeros((0, QUANTITIES)), Parts.none())

    @classmethod
    def joined(cls, some: Sequence[Iterations]) -> Iterations:
        """Several batches as one, in the order given."""
        some = [each for each in some if len(each.starts)] or some[:1]
        if len(some) == 1:
            return some[0]
        before = np.cumsum([0, *(len(each.starts) for each in some)]).tolist()
        parts = Parts(
            np.concatenate([each.parts.iteration + n for each, n in zip(some, before, strict=False)]),
            np.concatenate([each.parts.request for each in some]),
            np.concatenate([each.parts.phase for each in some]),
            np.concatenate([each.parts.work for each in some]),
        )
        runs = DecodeRuns(
            np.concatenate([each.runs.request for each in some]),
            np.concatenate([each.runs.first + n for each, n in zip(some, before, strict=False)]),
            np.concatenate([each.runs.last + n for each, n in zip(some, before, strict=False)]),
            np.concatenate([each.runs.context for each in some]),
        )
        starts, ends = (np.concatenate([each[i] for each in some]) for i in (0, 1))
        return cls(starts, ends, np.concatenate([each.work for each in some]), parts, runs)

    def cut(self, first: int, last: int) -> Iterations:
        """The iterations from index `first` to before `last`."""
        cut = slice(first, last)
        parts, runs = self.parts.of(first, last), self.runs.of(first, last)
        return Iterations(self.starts[cut], self.ends[cut], self.work[cut], parts, runs)

    def since(self, first: int) -> Iterations:
        """The iterations from index `first` on."""
        return self.cut(first, len(self.starts))

    def between(self, start_ns: int, end_ns: int) -> Iterations:
        """The iterations that overlap a time."""
        first = int(np.searchsorted(self.ends, start_ns, side="right"))
        return self.cut(first, int(np.searchsorted(self.starts, end_ns)))

    @property
    def requests(self) -> set[int]:
        """The numbers of the requests with parts or runs."""
        return {*self.parts.request.tolist(), *self.runs.request.tolist()}

    @property
    def seconds(self) -> Floats:
        """The duration of each in s."""
        return (self.ends - self.starts) / 1e9

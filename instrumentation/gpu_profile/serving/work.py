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


class Iterations(NamedTuple):
    """Iterations of one engine in order of time, without overlaps.

    `starts` and `ends` are in ns since the epoch, and `work[n, QUANTITIES]` holds the quantities. Their `parts` may
    leave out work of unknown requests.
    """

    starts: Ints
    ends: Ints
    work: Floats
    parts: Parts

    @classmethod
    def none(cls) -> Iterations:
        """No iterations."""
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, np.zeros((0, QUANTITIES)), Parts.none())

    @classmethod
    def joined(cls, some: Sequence[Iterations]) -> Iterations:
        """Several batches as one, in the order given."""
        if len(some) == 1:
            return some[0]
        before = np.cumsum([0, *(len(each.starts) for each in some)]).tolist()
        parts = Parts(
            np.concatenate([each.parts.iteration + n for each, n in zip(some, before, strict=False)]),
            np.concatenate([each.parts.request for each in some]),
            np.concatenate([each.parts.phase for each in some]),
            np.concatenate([each.parts.work for each in some]),
        )
        starts, ends = (np.concatenate([each[i] for each in some]) for i in (0, 1))
        return cls(starts, ends, np.concatenate([each.work for each in some]), parts)

    def cut(self, first: int, last: int) -> Iterations:
        """The iterations from index `first` to before `last`."""
        cut = slice(first, last)
        return Iterations(self.starts[cut], self.ends[cut], self.work[cut], self.parts.of(first, last))

    def since(self, first: int) -> Iterations:
        """The iterations from index `first` on."""
        return self.cut(first, len(self.starts))

    def between(self, start_ns: int, end_ns: int) -> Iterations:
        """The iterations that overlap a time."""
        first = int(np.searchsorted(self.ends, start_ns, side="right"))
        return self.cut(first, int(np.searchsorted(self.starts, end_ns)))

    @property
    def seconds(self) -> Floats:
        """The duration of each in s."""
        return (self.ends - self.starts) / 1e9

"""The fields of a scope's spans that the join needs, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from operator import add, attrgetter, methodcaller
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Ints

if TYPE_CHECKING:
    from gpu_profile_exporter.sidecar.trace_request import Scope

_FIELDS: Final = attrgetter(
    *("kind", "name", "trace_id", "span_id", "parent_span_id"),
    *("start_time_unix_nano", "end_time_unix_nano", "trace_state"),
)
_HAS_STATUS: Final = methodcaller("HasField", "status")
_FAILED: Final = 2


class SpanFields(NamedTuple):
    """Columns by span. A key is a trace's id followed by a span's id. A key in `parents` is empty without a parent.

    `starts` and `ends` are in ns; times of more than 63 bits are negative. `states`: the spans that have a trace state.
    `failed`: the spans with a status of failure.
    """

    kinds: Sequence[int]
    names: Sequence[str]
    keys: Sequence[bytes]
    parents: Sequence[bytes]
    starts: Ints
    ends: Ints
    states: Sequence[int]
    failed: Sequence[int]

    @classmethod
    def of(cls, scope: Scope) -> SpanFields:
        """The fields of a scope with spans."""
        spans = list(scope.spans)  # once: each look at a span makes an object for it
        kinds, names, traces, ids, parents, starts, ends, states = zip(*map(_FIELDS, spans), strict=True)
        if any(parents):
            parents = tuple(parent and trace + parent for trace, parent in zip(traces, parents, strict=True))
        return cls(
            kinds,
            names,
            list(map(add, traces, ids)),
            parents,
            np.array(starts, np.uint64).view(np.int64),
            np.array(ends, np.uint64).view(np.int64),
            [i for i, state in enumerate(states) if state] if any(states) else (),
            # To ask for the code of a status that was not sent would make an empty one, at five times the cost.
            [i for i in compress(range(len(spans)), map(_HAS_STATUS, spans)) if spans[i].status.code == _FAILED],
        )

    def distinct(self) -> Iterator[tuple[int, int]]:
        """Ranges of rows without equal keys in a range: nearly always one."""
        n = len(self.keys)
        if len(set(self.keys)) == n:
            yield 0, n
            return
        first, seen = 0, set[bytes]()
        for i, key in enumerate(self.keys):
            if key in seen:
                yield first, i
                first = i
                seen.clear()
            seen.add(key)
        yield first, n

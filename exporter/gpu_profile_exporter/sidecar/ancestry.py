"""Finds the parent execution of each execution, for spans in any order of arrival."""

from __future__ import annotations

from array import array
from collections.abc import Sequence, Set
from itertools import count
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Ints
from gpu_profile.regions.execution import Execution
from gpu_profile_exporter.sidecar.hash_set import Hashes, HashSet

#: Most levels of spans in the search for a parent execution.
_MOST_DEEP: Final = 64
#: Most nested executions. The cost of the join per execution grows with this depth.
MOST_NESTED: Final = 32
#: Bytes of a trace's id at the start of a key. A key of this length contains no span id.
_TRACE_ID: Final = 16
_NO_ID: Final = bytes(8)
_KEY: Final = _TRACE_ID + len(_NO_ID)
#: Most recent spans: of those in dictionaries, each of 400 bytes with a missing parent, and of all, each of 65 bytes.
_MOST_LINKED: Final = 200_000
_MOST_ROWS: Final = 1_000_000
#: Fewer spans are looked up one by one: for them, numpy's cost per call dominates.
_FEW: Final = 60


class RecentSpans:
    """The spans that arrived in some time: rows of spans with executions, and the parents of other spans.

    The rows are columns, because an object for each would cost more than all the rest: `executions`, which many rows
    share, with their times in ns, numbered from `first` on.

    Many keys that arrive at once are in `queue` until a key or a parent is looked up: a dictionary of hundreds of
    thousands of keys does not fit in the processor's cache, so that each span would wait for memory several times.
    """

    __slots__ = ("ends", "executions", "first", "hashes", "numbers", "queue", "skipped", "starts", "waiting")

    def __init__(self, first: int, expected: int = 0) -> None:
        self.first = first
        self.executions: list[Execution] = []
        self.starts, self.ends = array("q"), array("q")
        #: The hashes of the keys in `queue`. `expected`: how many may come.
        self.hashes = HashSet(expected)
        #: The number of a row by the key of its span, without the rows in `queue`.
        self.numbers: dict[bytes, int] = {}
        #: Keys, one after the other, with the number of the first one's row.
        self.queue: list[tuple[int, bytes]] = []
        self.skipped: dict[bytes, bytes] = {}
        #: The numbers of rows by the missing parent.
        self.waiting: dict[bytes, list[int]] = {}

    @property
    def full(self) -> bool:
        """Whether it takes as much memory as it may."""
        linked = len(self.numbers) + len(self.skipped) + len(self.waiting)
        return linked >= _MOST_LINKED or len(self.ends) >= _MOST_ROWS

    def settle(self) -> None:
        """Move the keys in `queue` to `numbers`."""
        # Before the dictionary grows, which reuses their memory.
        queue, self.queue, self.hashes = self.queue, [], HashSet()
        for first, keys in queue:
            self.numbers.update(zip(np.frombuffer(keys, f"V{_KEY}").tolist(), count(first), strict=False))

    def find(self, span: bytes) -> int | None:
        """The number of the row of a span, or None."""
        if self.queue:
            self.settle()
        return self.numbers.get(span)


class Ancestry:
    """Recent spans: executions by key, and the parents of spans without executions.

    A key is a trace's id followed by a span's id. A child usually arrives before its parent, because it ends first, and
    often in another request.
    """

    def __init__(self, *, keep_ns: int) -> None:
        self._keep_ns = keep_ns
        self._renewed_ns = 0
        #: The spans since the last renewal, and the ones before it.
        self.recent = self._before = RecentSpans(0)
        #: Levels of nested executions in an execution, itself included, by its `id`.
        self._heights: dict[int, int] = {}
        #: The spans that arrived last, and their hashes.
        self._hashed: tuple[Sequence[bytes], Hashes] | None = None
        #: Executions with a parent or a child, and with times, by the number of their row.
        self.nested: list[tuple[int, Execution]] = []

    def expire(self, now_ns: int) -> None:
        """Remove spans that arrived more than twice `keep_ns` ago. If there are too many, remove the oldest ones."""
        if self.recent.full or not 0 <= now_ns - self._renewed_ns < self._keep_ns:
            self._renewed_ns = now_ns
            self._before = self.recent
            self.recent = RecentSpans(self._before.first + len(self._before.ends), len(self._before.hashes))
            self._heights = {}

    def find(self, span: bytes) -> int | None:
        """The number of a recent span with an execution, or None."""
        number = self.recent.find(span)
        return self._before.find(span) if number is None else number

    def row(self, number: int) -> tuple[Execution, int, int]:
        """The execution of a recent row, its start and its end in ns."""
        recent = self.recent if number >= self.recent.first else self._before
        i = number - recent.first
        return recent.executions[i], recent.starts[i], recent.ends[i]

    def arrive(self, spans: Sequence[bytes]) -> Set[bytes]:
        """The spans that arrived recently, with or without an execution: nearly always none.

        `add` or `skip` must follow for each of `spans`, which do not change until then.
        """
        both = self.recent, self._before
        if any(each.queue for each in both):
            hashes = self._hashes(spans)
            for each in both:
                if each.queue and each.hashes.overlaps(hashes):
                    each.settle()
        present = [keys.keys() for each in both for keys in (each.numbers, each.skipped) if keys]
        if all(keys.isdisjoint(spans) for keys in present):
            return frozenset()
        return {span for span in spans if any(span in keys for keys in present)}

    def _hashes(self, spans: Sequence[bytes]) -> Hashes:
        """The hashes of spans, computed once if all that arrived are added together, as nearly always."""
        if self._hashed is None or self._hashed[0] is not spans:
            self._hashed = spans, np.fromiter(map(hash, spans), np.int64, len(spans)).view(np.uint64)
        return self._hashed[1]

    def add(
        self,
        spans: Sequence[bytes],
        parents: Sequence[bytes],
        executions: Sequence[Execution],
        starts: Ints,
        ends: Ints,
    ) -> Ints:
        """Add spans of different keys with their executions and times. Returns the numbers of their rows."""
        recent = self.recent
        first = recent.first + len(recent.executions)
        numbers = range(first, first + len(spans))
        recent.executions += executions
        recent.starts.frombytes(starts.tobytes())
        recent.ends.frombytes(ends.tobytes())
        keys = b"".join(spans)
        every, children = _all_have_ids(spans, keys), any(parents)
        # To look up one parent would take all keys out of the queue at once.
        if every and not children and len(spans) >= _FEW:
            recent.queue.append((first, keys))
            recent.hashes.add(self._hashes(spans))
            self._hashed = None
        else:
            recent.numbers.update(zip(spans, numbers, strict=True))
            for span in () if every else spans:
                if len(span) <= _TRACE_ID or span.endswith(_NO_ID):
                    del recent.numbers[span]
        if recent.waiting:
            for number, span in zip(numbers, spans, strict=True):
                for inside in recent.waiting.pop(span, ()):
                    self._set_parent(inside, number)
        if children:
            for number, parent in zip(numbers, parents, strict=True):
                if parent:
                    self._find_parent(number, parent)
        return np.arange(numbers.start, numbers.stop)

    def skip(self, span: bytes, parent: bytes) -> None:
        """Add a span without an execution. Its children get its nearest ancestor's execution as parent."""
        if parent:
            self.recent.skipped[span] = parent
        if self.recent.waiting:
            for inside in self.recent.waiting.pop(span, ()):
                if parent:
                    self._find_parent(inside, parent)

    def _find_parent(self, number: int, parent: bytes) -> None:
        for _ in range(_MOST_DEEP):
            around = self.find(parent)
            if around is not None:
                self._set_parent(number, around)
                return
            above = self.recent.skipped.get(parent) or self._before.skipped.get(parent)
            if above is None:
                self.recent.waiting.setdefault(parent, []).append(number)
                return
            parent = above

    def _nested(self, number: int) -> Execution:
        """The execution of a row, which is shared by no other row from now on."""
        execution, start_ns, end_ns = self.row(number)
        if not execution.end_ns:
            execution = execution.at(start_ns, end_ns)
            recent = self.recent if number >= self.recent.first else self._before
            recent.executions[number - recent.first] = execution
            self.nested.append((number, execution))
        return execution

    def _set_parent(self, inside: int, number: int) -> None:
        """Set the parent of the row `inside` to the row `number`, unless that nests too deep or in a cycle."""
        execution, around = self._nested(inside), self._nested(number)
        chain = [around]
        while chain[-1].parent is not None and len(chain) <= MOST_NESTED:
            chain.append(chain[-1].parent)
        height = self._heights.get(id(execution), 1)
        # Spans that are each other's parents would make the join loop forever.
        if execution in chain or height + len(chain) > MOST_NESTED:
            return
        execution.parent = around
        for above in chain:
            height += 1
            self._heights[id(above)] = max(height, self._heights.get(id(above), 1))


def _all_have_ids(spans: Sequence[bytes], keys: bytes) -> bool:
    """Whether all spans have ids of a trace and of a span, as nearly always. `keys`: them, one after the other."""
    if set(map(len, spans)) != {_KEY}:
        return False
    # The part of a key after the trace's id, as a number.
    return bool(np.frombuffer(keys, np.uint64)[_TRACE_ID // 8 :: _KEY // 8].all())

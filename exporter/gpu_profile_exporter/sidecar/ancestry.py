"""Finds the parent execution of each execution, for spans in any order of arrival."""

from __future__ import annotations

from typing import Final

from gpu_profile.regions.execution import Execution

#: Most levels of spans in the search for a parent execution.
_MOST_DEEP: Final = 64
#: Most nested executions. The cost of the join per execution grows with this depth.
MOST_NESTED: Final = 32
#: Bytes of a trace's id at the start of a key. A key of this length contains no span id.
_TRACE_ID: Final = 16
_NO_ID: Final = bytes(8)


class Ancestry:
    """Recent spans: executions by key, and the parents of spans without executions.

    A key is a trace's id followed by a span's id. A child usually arrives before its parent, because it ends first, and
    often in another request.
    """

    def __init__(self, *, keep_ns: int) -> None:
        self._keep_ns = keep_ns
        self._renewed_ns = 0
        self._executions: dict[bytes, Execution] = {}
        self._skipped: dict[bytes, bytes] = {}
        self._waiting: dict[bytes, list[Execution]] = {}
        #: Levels of nested executions in an execution, itself included, by its `id`.
        self._heights: dict[int, int] = {}
        self._executions_before: dict[bytes, Execution] = {}
        self._skipped_before: dict[bytes, bytes] = {}

    def expire(self, now_ns: int) -> None:
        """Remove spans that arrived more than twice `keep_ns` ago."""
        if not 0 <= now_ns - self._renewed_ns < self._keep_ns:
            self._renewed_ns = now_ns
            self._executions_before, self._skipped_before = self._executions, self._skipped
            self._executions, self._skipped, self._waiting, self._heights = {}, {}, {}, {}

    def find(self, span: bytes) -> Execution | None:
        """The execution of a recent span, or None."""
        return self._executions.get(span) or self._executions_before.get(span)

    def add(self, span: bytes, parent: bytes, execution: Execution) -> None:
        """Add a span with its execution."""
        if len(span) > _TRACE_ID and not span.endswith(_NO_ID):
            self._executions[span] = execution
        if self._waiting:
            for inside in self._waiting.pop(span, ()):
                self._set_parent(inside, execution)
        if parent:
            self._find_parent(execution, parent)

    def skip(self, span: bytes, parent: bytes) -> None:
        """Add a span without an execution. Its children get its nearest ancestor's execution as parent."""
        if parent:
            self._skipped[span] = parent
        if self._waiting:
            for inside in self._waiting.pop(span, ()):
                if parent:
                    self._find_parent(inside, parent)

    def _find_parent(self, execution: Execution, parent: bytes) -> None:
        for _ in range(_MOST_DEEP):
            around = self.find(parent)
            if around is not None:
                self._set_parent(execution, around)
                return
            above = self._skipped.get(parent) or self._skipped_before.get(parent)
            if above is None:
                self._waiting.setdefault(parent, []).append(execution)
                return
            parent = above

    def _set_parent(self, execution: Execution, around: Execution) -> None:
        """Set the parent of `execution` to `around`, unless that nests too deep or in a cycle."""
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

"""Which of the executions that spans became is inside which, in whatever order they come."""

from __future__ import annotations

from typing import Final

from gpu_profile.regions.execution import Execution

#: How many spans deep an execution around another is looked for.
_MOST_DEEP: Final = 64
#: How many executions may be inside one another: what the join takes for each grows with it.
MOST_NESTED: Final = 32
#: What begins a key: a trace's id. A key that is no longer has no span's id in it.
_TRACE_ID: Final = 16
_NO_ID: Final = bytes(8)


class Ancestry:
    """Spans of the last while: executions by their span's id, and the parents of those that became none.

    A child mostly comes before its parent, as it ends first, and often in another request. A key is a trace's id and a
    span's, one after the other.
    """

    def __init__(self, *, keep_ns: int) -> None:
        self._keep_ns = keep_ns
        self._turned_ns = 0
        self._taken: dict[bytes, Execution] = {}
        self._passed: dict[bytes, bytes] = {}
        self._waiting: dict[bytes, list[Execution]] = {}
        #: How many executions are inside one another at most in an execution, by its `id`.
        self._heights: dict[int, int] = {}
        self._before: tuple[dict[bytes, Execution], dict[bytes, bytes]] = {}, {}

    def turn(self, now_ns: int) -> None:
        """Forget what came more than twice `keep_ns` ago."""
        if not 0 <= now_ns - self._turned_ns < self._keep_ns:
            self._turned_ns = now_ns
            self._before = self._taken, self._passed
            self._taken, self._passed, self._waiting, self._heights = {}, {}, {}, {}

    def find(self, span: bytes) -> Execution | None:
        """The execution that a span became which has come before."""
        return self._taken.get(span) or self._before[0].get(span)

    def take(self, span: bytes, parent: bytes, execution: Execution) -> None:
        """A span became an execution."""
        if len(span) > _TRACE_ID and not span.endswith(_NO_ID):
            self._taken[span] = execution
        if self._waiting:
            for inside in self._waiting.pop(span, ()):
                self._put(inside, execution)
        if parent:
            self._place(execution, parent)

    def leave(self, span: bytes, parent: bytes) -> None:
        """A span became none."""
        if parent:
            self._passed[span] = parent
        if self._waiting:
            for inside in self._waiting.pop(span, ()):
                if parent:
                    self._place(inside, parent)

    def _place(self, execution: Execution, parent: bytes) -> None:
        for _ in range(_MOST_DEEP):
            around = self.find(parent)
            if around is not None:
                self._put(execution, around)
                return
            above = self._passed.get(parent) or self._before[1].get(parent)
            if above is None:
                self._waiting.setdefault(parent, []).append(execution)
                return
            parent = above

    def _put(self, execution: Execution, around: Execution) -> None:
        """Have one be inside the other, if that does not nest too many."""
        chain = [around]
        while chain[-1].parent is not None and len(chain) <= MOST_NESTED:
            chain.append(chain[-1].parent)
        height = self._heights.get(id(execution), 1)
        # Spans that name each other as parents would have the join go round for ever.
        if execution in chain or height + len(chain) > MOST_NESTED:
            return
        execution.parent = around
        for above in chain:
            height += 1
            self._heights[id(above)] = max(height, self._heights.get(id(above), 1))

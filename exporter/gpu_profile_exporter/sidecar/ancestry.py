"""Which of the executions that spans became is inside which, in whatever order they come."""

from __future__ import annotations

from typing import Final

from gpu_profile.regions.execution import Execution

#: How many spans deep an execution around another is looked for.
_MOST_DEEP: Final = 64


class Ancestry:
    """Spans of the last while: executions by their span's id, and the parents of those that became none.

    A child mostly comes before its parent, as it ends first, and often in another request.
    """

    def __init__(self, *, keep_ns: int) -> None:
        self._keep_ns = keep_ns
        self._turned_ns = 0
        self._taken: dict[bytes, Execution] = {}
        self._passed: dict[bytes, bytes] = {}
        self._waiting: dict[bytes, list[Execution]] = {}
        self._before: tuple[dict[bytes, Execution], dict[bytes, bytes]] = {}, {}

    def turn(self, now_ns: int) -> None:
        """Forget what came more than twice `keep_ns` ago."""
        if not 0 <= now_ns - self._turned_ns < self._keep_ns:
            self._turned_ns = now_ns
            self._before = self._taken, self._passed
            self._taken, self._passed, self._waiting = {}, {}, {}

    def find(self, span_id: bytes) -> Execution | None:
        """The execution that a span became which has come before."""
        return self._taken.get(span_id) or self._before[0].get(span_id)

    def take(self, span_id: bytes, parent_id: bytes, execution: Execution) -> None:
        """A span became an execution."""
        self._taken[span_id] = execution
        if self._waiting:
            for inside in self._waiting.pop(span_id, ()):
                inside.parent = execution
        if parent_id:
            self._place(execution, parent_id)

    def leave(self, span_id: bytes, parent_id: bytes) -> None:
        """A span became none."""
        if parent_id:
            self._passed[span_id] = parent_id
        if self._waiting:
            for inside in self._waiting.pop(span_id, ()):
                if parent_id:
                    self._place(inside, parent_id)

    def _place(self, execution: Execution, parent_id: bytes) -> None:
        for _ in range(_MOST_DEEP):
            around = self.find(parent_id)
            if around is not None:
                # Spans that name each other as parents would have the join go round for ever.
                if not _inside(around, execution):
                    execution.parent = around
                return
            above = self._passed.get(parent_id) or self._before[1].get(parent_id)
            if above is None:
                self._waiting.setdefault(parent_id, []).append(execution)
                return
            parent_id = above


def _inside(execution: Execution | None, other: Execution) -> bool:
    """Whether an execution is the other one, or inside it."""
    while execution is not None and execution is not other:
        execution = execution.parent
    return execution is other

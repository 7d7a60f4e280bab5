"""Reports the executions that run, to an object that records or counts beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu_profile.kernels.claim import forget_in_children
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.running import Running
from gpu_profile.regions.session import process
from gpu_profile.regions.session.inbox import Watcher
from gpu_profile.regions.session.session import Session

#: Executions that are collected at once; further ones are only counted.
MOST_EXECUTIONS: Final = 20_000


class ExecutionWatch:
    """Reports executions of this process's session, and of every later one, to `watcher` from `begin` to `end`."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._sessions: list[Session] = []
        forget_in_children(self)

    def begin(self) -> None:
        """Report from now on."""
        process.on_start(self._join)

    def _join(self, session: Session) -> None:
        self._sessions.append(session)
        session.watch(self._watcher)

    def end(self) -> None:
        """Report no more. Ending it again does nothing."""
        process.off_start(self._join)
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            session.unwatch(self._watcher)

    def forget(self) -> None:
        """Drop the sessions, which are the parent process's."""
        self._sessions = []
        process.off_start(self._join)


def running_from(execution: Execution | None) -> Iterator[Running]:
    """The regions that run, from this execution outwards. Spans that are not regions are left out."""
    while execution is not None:
        if isinstance(execution, Running) and not execution.end_ns:
            yield execution
        execution = execution.parent

"""Long computations in short turns, so that a program in the same interpreter is never held up for long.

A search for timings takes tenths of a second of calls to numpy, some microseconds each. A program that launches kernels
gives Python's lock away at every launch, and gets it back only when the search lets go: beside it, it stood still.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from threading import Event
from typing import Final

#: A turn, in seconds of the thread's processor time, and the share of the time that turns make up.
_TURN_S: Final = 0.001
_SHARE: Final = 0.2


class Turns:
    """The turns of one thread, which calls `begin` first. While `hurry` is set, or work is `pressing`, it computes
    without a pause. `used_s` is the thread's processor time."""

    def __init__(
        self, pressing: Callable[[], bool] = lambda: False, *, used_s: Callable[[], float] = time.thread_time
    ) -> None:
        self.hurry = Event()
        self._pressing, self._used_s = pressing, used_s
        self._since_s = 0.0

    def begin(self) -> None:
        """Have this thread take turns from now on."""
        self._since_s = self._used_s()
        _turns.set(self)

    def give_way(self) -> None:
        """Pause, if a turn is over: the longer it was, the longer."""
        turn_s = self._used_s() - self._since_s
        if turn_s >= _TURN_S and not self._pressing():
            self.hurry.wait(turn_s * (1 / _SHARE - 1))
            self._since_s = self._used_s()


_turns: ContextVar[Turns | None] = ContextVar("turns", default=None)


def give_way() -> None:
    """Let the program run, if this thread computes beside one."""
    turns = _turns.get()
    if turns is not None:
        turns.give_way()

"""Long computations in short turns, so that they never block the program's threads for long.

A search for timings takes tenths of a second of calls to numpy, some microseconds each. A program that launches kernels
releases the GIL at every launch and waits until the search releases it. Without pauses it makes no progress.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from gpu_profile.join.unmixing.windows.pauses import pause

#: A turn, in seconds of the thread's processor time, the share of the time that turns make up, and the longest pause.
_TURN_S: Final = 0.001
_SHARE: Final = 0.1
_LONGEST_S: Final = 0.1


class Turns:
    """Splits the computations of one thread, which calls `begin` first, into turns with pauses between them.

    There are no pauses while another thread waits for it (`hurried`) or `pressing()` is true. `between` is called after
    every turn for which no other thread waits. `used_s()` is the thread's processor time in seconds.
    """

    def __init__(
        self,
        pressing: Callable[[], bool] = lambda: False,
        between: Callable[[], None] = lambda: None,
        *,
        used_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._pressing, self._between, self._used_s = pressing, between, used_s
        #: Whether `between` runs: the computation is half done, and what it changes must not be read.
        self.interrupted = False
        self._since_s = 0.0
        self._begun = False
        self._awaited = threading.Event()
        self._waiting = 0
        self._guard = threading.RLock()  # a signal's handler may wait too

    def begin(self) -> None:
        """Begin the first turn. The calling thread pauses between turns from now on."""
        self._begun = True
        self._since_s = self._used_s()
        pause.set(self.yield_to_program)

    def used_s(self) -> float:
        """The processor time of the calling thread in seconds; 0 before the first `begin`."""
        return self._used_s() if self._begun else 0.0

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """A block in which the thread computes without pauses, because the caller waits for it."""
        with self._guard:
            self._waiting += 1
            self._awaited.set()
        try:
            yield
        finally:
            with self._guard:
                self._waiting -= 1
                if not self._waiting:
                    self._awaited.clear()

    def yield_to_program(self) -> None:
        """Pause if the turn is over: 9 times its processor time, at most `_LONGEST_S`."""
        turn_s = self._used_s() - self._since_s
        if turn_s >= _TURN_S and not self.interrupted:
            if not self._waiting:
                self.interrupted = True
                try:
                    self._between()
                finally:
                    self.interrupted = False
            if not self._pressing():
                self._awaited.wait(min(_LONGEST_S, turn_s * (1 / _SHARE - 1)))
            self._since_s = self._used_s()


class HurryingLock:
    """A reentrant lock that the thread of `turns` holds while it computes. Waiting for the lock suspends the pauses."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            with self._turns.hurried():
                self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lock.release()

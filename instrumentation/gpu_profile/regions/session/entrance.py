"""Where regions come in: what a thread that runs one looks at, and the queue that it leaves it in."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.frameworks import find_stream, torch_profiler
from gpu_profile.regions.streams import Stream

#: Where device intervals come from: see `Entrance.use_stream`.
StreamSetting = Stream | Callable[[], Stream | None] | Literal["auto"] | None


class Watcher(Protocol):
    """Who is told of executions in the threads that run them, so it must neither wait nor raise."""

    def begun(self, execution: Execution, *, nested: bool) -> None:
        """It has begun; `nested`: what begins in this thread or task before its end is inside it."""
        ...

    def ended(self, execution: Execution) -> None:
        """It has ended, perhaps in another thread, after its beginning was told."""
        ...


class Entrance:
    """What a region meets of a session, in slots: it is looked at for every one."""

    __slots__ = (
        "__weakref__",
        "_seeks_stream",
        "_showing",
        "_watches_spans",
        "active",
        "began",
        "clock",
        "make_range",
        "now_ns",
        "shows",
        "stream",
        "watchers",
    )

    #: Whether regions can just go on: the session runs, or ignores them. Whoever drives it by hand sets it.
    active: bool
    #: Executions as they begin; the join watches them until they have ended.
    began: deque[Execution]
    #: The clock as regions call it: without a Python frame where it is the system's.
    now_ns: Callable[[], int]
    #: Whose marks give device intervals.
    stream: Stream | Callable[[], Stream | None] | None
    #: Whether a region has more to do than to note the time, also if it is no span.
    shows: bool
    #: Who is told of executions: nobody but while a profiler's window is open, or about to be.
    watchers: tuple[Watcher, ...]
    #: Makes a region's range in the trace of PyTorch's profiler; None while none runs.
    make_range: torch_profiler.MakeRange | None

    def __init__(self, clock: Clock, stream: StreamSetting) -> None:
        self.clock = clock
        self.now_ns = time.time_ns if clock is SYSTEM_CLOCK else clock.now_ns
        self.began = deque()
        self.active = False
        self._watches_spans = False
        self._showing = threading.RLock()  # a signal's handler may run a region meanwhile
        self.watchers = ()
        self.make_range = None
        self.use_stream(stream)

    def use_stream(self, stream: StreamSetting) -> None:
        """Take device intervals from this stream, or from what the function returns in the calling thread.

        `auto`: from the framework that the program uses a GPU with, as soon as it does.
        """
        with self._showing:
            self._seeks_stream = stream == "auto"
            self.stream = None if isinstance(stream, str) else stream
            self._look()

    def seek_stream(self) -> None:
        """Look whether the program uses a GPU by now."""
        found = find_stream(clock=self.clock) if self._seeks_stream else None
        if found is not None:
            self.use_stream(found)

    def seek_profiler(self) -> None:
        """Look whether the program has PyTorch by now, whose profiler may run."""
        torch_profiler.follow(self)

    def make_ranges(self, make: torch_profiler.MakeRange | None) -> None:
        """Regions are ranges that this function makes from now on; None: they are none."""
        with self._showing:
            self.make_range = make
            self._look()

    def watch_spans(self) -> None:
        """Regions look which spans are around them from now on."""
        with self._showing:
            self._watches_spans = True
            self._look()

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` of executions that begin from now on, and of their ends."""
        with self._showing:
            self.watchers = (*self.watchers, watcher)
            self._look()

    def unwatch(self, watcher: Watcher) -> None:
        """Tell it of no more beginnings; the ends of those that it was told of are still to come."""
        with self._showing:
            self.watchers = tuple(each for each in self.watchers if each is not watcher)
            self._look()

    def _look(self) -> None:
        more = self.stream is not None or bool(self.watchers) or self.make_range is not None
        self.shows = self._watches_spans or more

"""The part of a session that every region touches: the flags that its thread reads, and the queue of executions."""

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

#: The source of device intervals: see `Inbox.use_stream`.
StreamSetting = Stream | Callable[[], Stream | None] | Literal["auto"] | None


class Watcher(Protocol):
    """Notified of executions in the threads that run them, so it must neither wait nor raise."""

    def begun(self, execution: Execution, *, nested: bool) -> None:
        """`execution` has begun. `nested`: it is the parent of executions that begin here before its end."""
        ...

    def ended(self, execution: Execution) -> None:
        """`execution` has ended, perhaps in another thread. `begun` was called for it before."""
        ...


class Inbox:
    """The part of a session that every region touches. Slots only, because it is read on each call."""

    __slots__ = (
        "__weakref__",
        "_changing",
        "_seeks_stream",
        "_watches_spans",
        "active",
        "began",
        "clock",
        "make_range",
        "needs_slow_path",
        "now_ns",
        "stream",
        "watchers",
    )

    #: Whether the session runs or ignores regions, so that none has to start it. Code that calls its steps sets this.
    active: bool
    #: Executions that have begun, in order, until the join takes them.
    began: deque[Execution]
    #: The clock that regions read, in ns since the epoch. The system's clock is called without a Python frame.
    now_ns: Callable[[], int]
    #: The stream that marks are recorded on, or a function that returns the calling thread's.
    stream: Stream | Callable[[], Stream | None] | None
    #: True while marks, outer spans, watchers or profiler ranges are wanted: regions then take the slow path.
    needs_slow_path: bool
    #: Notified of executions. Empty unless a profiler's window is open or about to open.
    watchers: tuple[Watcher, ...]
    #: Makes a region's range in the trace of PyTorch's profiler; None while none runs.
    make_range: torch_profiler.MakeRange | None

    def __init__(self, clock: Clock, stream: StreamSetting) -> None:
        self.clock = clock
        self.now_ns = time.time_ns if clock is SYSTEM_CLOCK else clock.now_ns
        self.began = deque()
        self.active = False
        self._watches_spans = False
        self._changing = threading.RLock()  # a signal's handler may run a region meanwhile
        self.watchers = ()
        self.make_range = None
        self.use_stream(stream)

    def use_stream(self, stream: StreamSetting) -> None:
        """Take device intervals from this stream, or from the stream that the function returns in the calling thread.

        `auto`: use the current stream of the program's framework, as soon as the program uses a GPU.
        """
        with self._changing:
            self._seeks_stream = stream == "auto"
            self.stream = None if isinstance(stream, str) else stream
            self._update_slow_path()

    def seek_stream(self) -> None:
        """With `auto`: take the framework's stream if the program uses a GPU by now."""
        stream = find_stream(clock=self.clock) if self._seeks_stream else None
        if stream is not None:
            self.use_stream(stream)

    def seek_profiler(self) -> None:
        """Follow PyTorch's profiler if the program has imported PyTorch by now."""
        torch_profiler.follow(self)

    def make_ranges(self, make: torch_profiler.MakeRange | None) -> None:
        """From now on open a profiler range, made by `make`, for each region; None: open none."""
        with self._changing:
            self.make_range = make
            self._update_slow_path()

    def watch_spans(self) -> None:
        """Have regions look for the spans around them from now on."""
        with self._changing:
            self._watches_spans = True
            self._update_slow_path()

    def watch(self, watcher: Watcher) -> None:
        """Notify `watcher` of executions that begin from now on, and of their ends."""
        with self._changing:
            self.watchers = (*self.watchers, watcher)
            self._update_slow_path()

    def unwatch(self, watcher: Watcher) -> None:
        """Notify it of no more beginnings. It still gets the ends of the executions that it has seen begin."""
        with self._changing:
            self.watchers = tuple(each for each in self.watchers if each is not watcher)
            self._update_slow_path()

    def _update_slow_path(self) -> None:
        more = self.stream is not None or bool(self.watchers) or self.make_range is not None
        self.needs_slow_path = self._watches_spans or more

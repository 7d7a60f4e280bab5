"""Where regions come in: what a thread that runs one looks at, and the queue that it leaves it in."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.executions import Execution
from gpu_profile.frameworks import find_stream
from gpu_profile.streams import Stream

#: Where device intervals come from: see `Entrance.use_stream`.
StreamSetting = Stream | Callable[[], Stream | None] | Literal["auto"] | None


class Entrance:
    """What a region meets of a session, in slots: it is looked at for every one."""

    __slots__ = ("_seeks_stream", "_watches_spans", "active", "began", "clock", "now_ns", "shows", "stream")

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

    def __init__(self, clock: Clock, stream: StreamSetting) -> None:
        self.clock = clock
        self.now_ns = time.time_ns if clock is SYSTEM_CLOCK else clock.now_ns
        self.began = deque()
        self.active = False
        self._watches_spans = False
        self.use_stream(stream)

    def use_stream(self, stream: StreamSetting) -> None:
        """Take device intervals from this stream, or from what the function returns in the calling thread.

        `auto`: from the framework that the program uses a GPU with, as soon as it does.
        """
        self._seeks_stream = stream == "auto"
        self.stream = None if isinstance(stream, str) else stream
        self.shows = self._watches_spans or self.stream is not None

    def seek_stream(self) -> None:
        """Look whether the program uses a GPU by now."""
        found = find_stream(clock=self.clock) if self._seeks_stream else None
        if found is not None:
            self.use_stream(found)

    def watch_spans(self) -> None:
        """Regions look which spans are around them from now on."""
        self._watches_spans = self.shows = True

"""Regions that one callback begins and another ends, as frameworks' hooks do."""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable
from types import FrameType
from typing import Any

from gpu_profile.regions.region import Region, region

#: What it is known by, the region, and the call that is to end it, if there is such a call. A plain tuple: this is most
#: of what a hook costs.
_Opened = tuple[Hashable, Region, FrameType | None]


class _Local(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Opened] = []


class OpenRegions:
    """A stack for each thread. What is opened is inside what was opened before and is still open.

    A framework that raises does not always call the second callback. So closing a region also ends those that were
    opened in it and left, and `sweep` ends those whose call is over.
    """

    def __init__(self) -> None:
        self._local = _Local()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenRegions, ()  # in a copy, or another process, nothing is open

    def __len__(self) -> int:
        return len(self._local.stack)

    def open(
        self, name: str, *, key: Hashable = None, items: float | None = None, span: bool = True, callers: int = 0
    ) -> None:
        """Begin a region, known by `key` or else by its name.

        With `callers`, the call so many frames above this one's is the one that is to end it.
        """
        begun = region(name, items=items, span=span).__enter__()
        self._local.stack.append((key or name, begun, sys._getframe(callers) if callers else None))

    def is_open(self, key: Hashable) -> bool:
        """Whether it is open in this thread."""
        return any(opened == key for opened, _, _ in self._local.stack)

    def close(self, key: Hashable, error: BaseException | None = None) -> None:
        """End the innermost region of this key, and what is open in it; nothing if there is none.

        An error that was raised outside the call that ends here is one that the program handles by this call.
        """
        stack = self._local.stack
        if (stack and stack[-1][0] == key) or self.is_open(key):
            while True:
                opened, begun, frame = stack.pop()
                begun.end(None if error is None or (frame and not _raised_in(frame, error)) else error)
                if opened == key:
                    return

    def sweep(self) -> None:
        """End the innermost regions whose call has ended by an exception."""
        stack = self._local.stack
        while stack and (frame := stack[-1][2]) is not None and not _runs(frame):
            stack.pop()[1].end(RuntimeError("left by an exception"))

    def close_all(self, error: BaseException | None = None) -> None:
        """End all that are open in this thread."""
        stack = self._local.stack
        while stack:
            stack.pop()[1].end(error)


def _runs(frame: FrameType) -> bool:
    caller: FrameType | None = sys._getframe(1)
    while caller is not None and caller is not frame:
        caller = caller.f_back
    return caller is not None


def _raised_in(frame: FrameType, error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame is not frame:
        trace = trace.tb_next
    return trace is not None

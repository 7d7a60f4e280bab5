"""Regions that one callback of a framework begins and another ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable
from types import FrameType
from typing import Any

from gpu_profile.regions.region import Region, region

#: The key, the region, and the frame of the call that ends it, if any. A plain tuple, because creating it is most of a
#: hook's cost.
_Opened = tuple[Hashable, Region, FrameType | None]


class _Local(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Opened] = []


class OpenRegions:
    """A stack of regions for each thread. A region is inside the ones that were opened before it and are still open.

    A framework that raises does not always call the second callback. So closing a region also ends the regions opened
    inside it, and `sweep` ends the regions of calls that are over.
    """

    def __init__(self) -> None:
        self._local = _Local()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenRegions, ()  # a copy, or another process, has no open regions

    def __len__(self) -> int:
        return len(self._local.stack)

    def open(
        self, name: str, *, key: Hashable = None, items: float | None = None, span: bool = True, callers: int = 0
    ) -> None:
        """Begin a region with this key, by default its name. `callers`: the call this many frames above ends it."""
        begun = region(name, items=items, span=span).__enter__()
        self._local.stack.append((key or name, begun, sys._getframe(callers) if callers else None))

    def is_open(self, key: Hashable) -> bool:
        """Whether a region with this key is open in this thread."""
        return any(opened == key for opened, _, _ in self._local.stack)

    def close(self, key: Hashable, error: BaseException | None = None) -> None:
        """End the innermost region with this key and all regions inside it; does nothing if there is none.

        An `error` raised outside the call that ends here does not count: the program is handling it with this call.
        """
        stack = self._local.stack
        if (stack and stack[-1][0] == key) or self.is_open(key):
            while True:
                opened, begun, frame = stack.pop()
                begun.end(None if error is None or (frame and not _raised_in(frame, error)) else error)
                if opened == key:
                    return

    def sweep(self) -> None:
        """End the innermost regions of calls that an exception has ended."""
        stack = self._local.stack
        while stack and (frame := stack[-1][2]) is not None and not _runs(frame):
            stack.pop()[1].end(RuntimeError("left by an exception"))

    def close_all(self, error: BaseException | None = None) -> None:
        """End all regions that are open in this thread."""
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

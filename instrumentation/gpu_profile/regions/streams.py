"""Device intervals: what a framework must offer so that a region knows when the GPU did its work.

A mark is recorded on the stream like a CUDA event, costs the host microseconds, and is resolved later, never by
waiting. Floor of the clock: it is time as the device tells it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Any, Protocol


class Stream(Protocol):
    """An in-order queue of work on one device, as the calling thread sees it."""

    @property
    def device_uuid(self) -> str:
        """The device that the stream runs on."""
        ...

    def record(self) -> object:
        """A mark at the end of what has been queued so far. Must not block and must not synchronise."""
        ...

    def resolve(self, mark: Any) -> int | None:
        """When the device passed the mark (ns since the epoch); None while it has not."""
        ...


def resolving(streams: Iterable[Stream | None]) -> ExitStack:
    """A block in which many marks of these are resolved. A stream that has a method of this name may make that cheaper;
    one whose method fails says so when its marks are resolved."""
    block = ExitStack()
    for stream in streams:
        enter = getattr(stream, "resolving", None)
        if enter is not None:
            with suppress(Exception):
                block.enter_context(enter())
    return block

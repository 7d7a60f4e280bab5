"""Device intervals: what a framework must offer so that a region knows when the GPU did its work.

A mark is recorded on the stream like a CUDA event, costs the host microseconds, and is resolved later, never by
waiting. Floor of the clock: it is time as the device tells it.
"""

from __future__ import annotations

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

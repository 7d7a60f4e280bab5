"""Device intervals: what a framework must offer so that a region knows when the GPU did its work.

A mark is recorded on the stream like a CUDA event, costs the host microseconds, and is resolved later, never by
waiting. Floor of the clock: it is time as the device tells it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final, Protocol


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


class Unmarked:
    """What `record` gives where there can be no mark."""

    def __repr__(self) -> str:
        return "UNMARKED"


#: To resolve it raises LookupError, upon which the execution has the host's interval.
UNMARKED: Final = Unmarked()


@contextmanager
def resolving(streams: Iterable[Stream | None]) -> Iterator[None]:
    """A block in which many marks of these are resolved. A stream that has a method of this name, which returns a
    context manager, may make that cheaper, and one that has `moments`, which takes a list of marks and returns each
    one's, None while the device has not passed it. One that fails says so when its marks are resolved one by one."""
    entered: list[AbstractContextManager[None]] = []
    for stream in streams:
        with suppress(Exception):
            block = stream.resolving()  # type: ignore[union-attr]
            block.__enter__()
            entered.append(block)
    try:
        yield
    finally:
        for block in reversed(entered):
            with suppress(Exception):
                block.__exit__(None, None, None)

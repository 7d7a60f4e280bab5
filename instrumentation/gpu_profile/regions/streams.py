"""Device intervals: the interface of a framework's stream from which a region gets its begin and end on the GPU.

A mark is recorded on the stream like a CUDA event, costs the host microseconds, and is resolved later without waiting
for the device. Its precision is limited by the device's clock.
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
        """A mark at the end of the work queued so far. Must not block and must not synchronise."""
        ...

    def resolve(self, mark: Any) -> int | None:
        """When the device passed the mark (ns since the epoch); None while it has not."""
        ...


class Unmarked:
    """Returned by `record` where no mark is possible."""

    def __repr__(self) -> str:
        return "UNMARKED"


#: Resolving it raises LookupError. The execution then has the host interval.
UNMARKED: Final = Unmarked()


@contextmanager
def resolving(streams: Iterable[Stream | None]) -> Iterator[None]:
    """A block in which many marks of these streams are resolved.

    Two optional methods of a stream make this cheaper: `resolving()`, a context manager, and `moments(marks)`. The
    latter returns each mark's time in ns, None until the device has passed it. An error is ignored here: resolving the
    marks one by one raises it.
    """
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

"""A resource with one holder at a time in a process, such as its profiler; and state that forked children reset.

A child has none of the parent's threads and records, nor the state of its GPUs. Nothing records there until the child
itself asks for it.
"""

from __future__ import annotations

import threading
import weakref
from typing import Final, Generic, Protocol, TypeVar

from gpu_profile.regions.session import process

T = TypeVar("T")


class ForkAware(Protocol):
    """An object with state that is invalid in a forked child."""

    def forget(self) -> None:
        """Reset to the initial state. Called in a forked child, where the present state is the parent's."""
        ...


_forgetful: Final[weakref.WeakSet[ForkAware]] = weakref.WeakSet()


def forget_in_children(each: ForkAware) -> None:
    """Call `each.forget()` in every forked child, as long as `each` is referenced elsewhere."""
    _forgetful.add(each)


@process.in_child
def _forget() -> None:
    for each in list(_forgetful):
        each.forget()


class Claim(Generic[T]):
    """A slot for one holder at a time. `holder` is None while the slot is free, and in a forked child."""

    def __init__(self) -> None:
        # Reentrant, since a signal's handler may run a region.
        self._lock = threading.RLock()
        self.holder: T | None = None
        forget_in_children(self)

    def take(self, asking: T) -> bool:
        """Become the holder; False if there is one already."""
        with self._lock:
            if self.holder is not None:
                return False
            self.holder = asking
            return True

    def release(self, done: T) -> None:
        """Free the slot if `done` is its holder; else nothing."""
        with self._lock:
            if self.holder is done:
                self.holder = None

    def forget(self) -> None:
        """A forked child starts with a free slot."""
        self._lock, self.holder = threading.RLock(), None

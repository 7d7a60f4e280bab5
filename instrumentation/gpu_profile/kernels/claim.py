"""What one holder at a time has in a process, such as its profiler, and what a forked child must forget.

A child has none of the parent's threads and records, nor the state of its GPUs: nothing records there until the child
itself asks for it.
"""

from __future__ import annotations

import threading
import weakref
from typing import Final, Generic, Protocol, TypeVar

from gpu_profile.regions.session import process

T = TypeVar("T")


class Forgetful(Protocol):
    """Something that holds what a forked child must not use."""

    def forget(self) -> None:
        """Begin anew: this is a forked child, and what was held is the parent's."""
        ...


_forgetful: Final[weakref.WeakSet[Forgetful]] = weakref.WeakSet()


def forget_in_children(each: Forgetful) -> None:
    """Call `each.forget()` in every forked child, for as long as somebody uses it."""
    _forgetful.add(each)


@process.in_child
def _forget() -> None:
    for each in list(_forgetful):
        each.forget()


class Claim(Generic[T]):
    """A place that one holder at a time takes. `holder` is None while nobody has it, and in a forked child."""

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
        """Be the holder no more; nothing if it is another one."""
        with self._lock:
            if self.holder is done:
                self.holder = None

    def forget(self) -> None:
        """Nobody holds it in a forked child."""
        self._lock, self.holder = threading.RLock(), None

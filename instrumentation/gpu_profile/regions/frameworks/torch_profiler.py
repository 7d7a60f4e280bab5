"""Ranges for PyTorch's profiler: while one runs, each region is one of its `record_function` ranges.

PyTorch calls its functions `torch.autograd.profiler._run_on_profiler_start` and `_run_on_profiler_stop` when a profiler
starts and stops. This module wraps them, so that regions cost nothing more while no profiler runs. In releases without
these functions, regions are absent from the traces.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol, Self
from weakref import WeakSet

#: Makes the range of a region from its name. The threads that run the region enter and leave it.
MakeRange = Callable[[str], AbstractContextManager[Any]]

_STARTS: Final = "_run_on_profiler_start"
_STOPS: Final = "_run_on_profiler_stop"
#: The attribute of a wrapper with the function that it replaces.
_ORIGINAL: Final = "_gpu_profile_original"


class Ranged(Protocol):
    """A session with regions that become ranges."""

    def make_ranges(self, make: MakeRange | None) -> None:
        """Open a range made by `make` for each region from now on; None: open none."""
        ...


_ranged: Final[WeakSet[Ranged]] = WeakSet()
#: Whether gpu-profile itself starts the profiler: then it needs no ranges.
_ours = False


def follow(ranged: Ranged) -> None:
    """Make the regions of `ranged` ranges whenever a profiler runs. Another call costs a few dictionary look-ups."""
    profiler = sys.modules.get("torch.autograd.profiler")
    if ranged in _ranged and hasattr(getattr(profiler, _STARTS, None), _ORIGINAL):
        return
    # During the import of PyTorch some parts are missing. The next call sees them.
    if not all(hasattr(profiler, name) for name in (_STARTS, _STOPS, "record_function", "_is_profiler_enabled")):
        return
    _ranged.add(ranged)
    _wrap(profiler, _STARTS, _started)
    _wrap(profiler, _STOPS, _stopped)
    if getattr(profiler, "_is_profiler_enabled", None) is True:  # gpu-profile's own profiler sets a number instead
        ranged.make_ranges(_Range)


@contextmanager
def without_ranges() -> Iterator[None]:
    """A block in which a profiler starts without ranges of regions, because its trace is not the user's."""
    global _ours  # noqa: PLW0603 - PyTorch runs one profiler at a time
    _ours = True
    try:
        yield
    finally:
        _ours = False


def _wrap(profiler: Any, name: str, also: Callable[[], None]) -> None:
    original = getattr(profiler, name)
    if hasattr(original, _ORIGINAL):
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        also()
        return result

    setattr(wrapper, _ORIGINAL, original)
    setattr(profiler, name, wrapper)


class _Range:
    """A range of PyTorch's profiler. PyTorch can end a range only in the thread that began it.

    A range left in another thread ends when the next range begins in its own thread, or with the profiler.
    """

    #: By thread: ranges that were left in another thread.
    _left: Final[dict[int, list[Any]]] = {}

    def __init__(self, name: str) -> None:
        self._thread = threading.get_ident()
        self._inner = sys.modules["torch.autograd.profiler"].record_function(name)

    def __enter__(self) -> Self:
        for inner in self._left.pop(self._thread, ()):
            inner.__exit__(None, None, None)
        self._inner.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() == self._thread:
            self._inner.__exit__(None, None, None)
        else:
            self._left.setdefault(self._thread, []).append(self._inner)


def _started() -> None:
    for ranged in [] if _ours else list(_ranged):
        ranged.make_ranges(_Range)


def _stopped() -> None:
    _Range._left.clear()
    for ranged in list(_ranged):
        ranged.make_ranges(None)

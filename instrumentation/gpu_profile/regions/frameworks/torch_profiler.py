"""Ranges for PyTorch's profiler: while one runs, each region is one of its `record_function` ranges.

PyTorch calls two functions of its own, `torch.autograd.profiler._run_on_profiler_start` and `_run_on_profiler_stop`,
when a profiler starts and stops. They are wrapped, so that regions ask nothing while no profiler runs. Where a release
has no such functions, regions are not in its traces.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol, Self
from weakref import WeakSet

#: Makes the range of a region by its name; to be entered and left by whoever runs the region.
MakeRange = Callable[[str], AbstractContextManager[Any]]

_STARTS: Final = "_run_on_profiler_start"
_STOPS: Final = "_run_on_profiler_stop"
#: The attribute of a wrapper that names the function in whose place it is.
_ORIGINAL: Final = "_gpu_profile_original"


class Ranged(Protocol):
    """Whose regions are to be ranges."""

    def make_ranges(self, make: MakeRange | None) -> None:
        """From now on, by this function; None: they are no ranges any more."""
        ...


_ranged: Final[WeakSet[Ranged]] = WeakSet()
#: Whether the profiler that starts is one of gpu-profile's, which has no use for ranges.
_ours = False


def follow(ranged: Ranged) -> None:
    """Have its regions be ranges whenever a profiler runs. To call it again costs some look-ups in dictionaries."""
    profiler = sys.modules.get("torch.autograd.profiler")
    if ranged in _ranged and hasattr(getattr(profiler, _STARTS, None), _ORIGINAL):
        return
    # While PyTorch is being imported its parts are missing: the next call finds them.
    if not all(hasattr(profiler, name) for name in (_STARTS, _STOPS, "record_function", "_is_profiler_enabled")):
        return
    _ranged.add(ranged)
    _wrap(profiler, _STARTS, _started)
    _wrap(profiler, _STOPS, _stopped)
    if getattr(profiler, "_is_profiler_enabled", None) is True:  # not a number, by which ours are known
        ranged.make_ranges(_Range)


@contextmanager
def without_ranges() -> Iterator[None]:
    """The profiler that starts in this block is not for the user to look at: regions are no ranges of it."""
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
    """A range of PyTorch's, which only the thread that it began in can end.

    One that is left in another thread ends when the next one begins in its own, or with the profiler.
    """

    #: By thread, those that have been left elsewhere.
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

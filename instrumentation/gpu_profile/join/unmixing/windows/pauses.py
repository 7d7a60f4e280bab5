"""A hook that long computations call regularly. A background thread sets it, to pause while the program works."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

#: Called by `yield_to_program`, in threads that set it.
pause: Final[ContextVar[Callable[[], None] | None]] = ContextVar("pause", default=None)


def yield_to_program() -> None:
    """Call this thread's hook, if it set one."""
    wanted = pause.get()
    if wanted is not None:
        wanted()

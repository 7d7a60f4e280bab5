"""Where a long computation may pause, which whoever runs it beside a program decides."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

#: Called by `give_way`, in threads that set it.
pause: Final[ContextVar[Callable[[], None] | None]] = ContextVar("pause", default=None)


def give_way() -> None:
    """Pause, if this thread's computation is one that pauses."""
    wanted = pause.get()
    if wanted is not None:
        wanted()

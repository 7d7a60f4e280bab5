"""The signals that end a long-running command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def end_signals() -> Iterator[list[int]]:
    """The numbers of the SIGINT, SIGTERM and SIGHUP signals so far, in a list that grows.

    A list, because a handler may run at any moment and must not take a lock. SIGHUP stays ignored if it was
    (`nohup`).
    """
    ended: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        ended.append(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

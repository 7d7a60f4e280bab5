"""Support for tests of code that uses gpu-profile: a clock that moves only on command."""

from __future__ import annotations

import threading
from typing import Final

from gpu_profile.clock import Waitable
from gpu_profile.units import NS_PER_S, nanoseconds

#: 2026-01-01 00:00:00 UTC: a whole number of days, so that grids of any period start on it.
START_NS: Final = 1_767_225_600 * NS_PER_S


class FakeClock:
    """A `Clock` that moves only by `advance`, `wait`, `suspend`, `set_back` and `set_forward`. Threads may share it."""

    def __init__(self, now_ns: int = START_NS) -> None:
        self._now_ns = now_ns
        self._elapsed_ns = self._suspended_ns = 0
        self._lock = threading.Lock()

    def now_ns(self) -> int:
        """Nanoseconds since the epoch."""
        with self._lock:
            return self._now_ns

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`. ValueError if negative."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds} s")
        with self._lock:
            self._now_ns += nanoseconds(seconds)
            self._elapsed_ns += nanoseconds(seconds)

    def elapsed_ns(self) -> int:
        """Nanoseconds that passed so far, without changes of the clock's setting."""
        with self._lock:
            return self._elapsed_ns

    def suspended_ns(self) -> int:
        """Nanoseconds of all calls of `suspend`."""
        with self._lock:
            return self._suspended_ns

    def suspend(self, seconds: float) -> None:
        """Pass time while the machine is suspended: `elapsed_ns` does not contain it."""
        with self._lock:
            self._now_ns += nanoseconds(seconds)
            self._suspended_ns += nanoseconds(seconds)

    def set_back(self, seconds: float) -> None:
        """Set the clock back, as an administrator does."""
        self.set_forward(-seconds)

    def set_forward(self, seconds: float) -> None:
        """Set the clock forward without time passing, as an administrator does."""
        with self._lock:
            self._now_ns += round(seconds * NS_PER_S)

    def wait(self, event: Waitable, timeout_s: float) -> bool:
        """True at once if `event` is set. Else the clock moves on by `timeout_s`, without a real wait."""
        if event.is_set():
            return True
        self.advance(max(0.0, timeout_s))
        return event.is_set()

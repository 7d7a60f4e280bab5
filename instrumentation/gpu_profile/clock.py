"""Time as a dependency: the system's clock, and the protocol for it and for fake clocks."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Final, Protocol


class Waitable(Protocol):
    """An event that threads wait for, such as a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether it has happened."""
        ...

    def wait(self, timeout: float) -> bool:
        """Wait until it happens (True) or `timeout` seconds have passed (False)."""
        ...


class Alarm:
    """A `threading.Event` for one thread that waits often. A bare lock: its timed wait costs half of an Event's."""

    __slots__ = ("_unset",)

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Wake the waiting thread, or let its next wait return at once."""
        # It may be set already.
        with suppress(RuntimeError):
            self._unset.release()

    def clear(self) -> None:
        """Make the next wait block again."""
        self._unset.acquire(blocking=False)

    def is_set(self) -> bool:
        """Whether it is set."""
        return not self._unset.locked()

    def wait(self, timeout: float) -> bool:
        """Wait until it is set (True) or `timeout` seconds have passed (False)."""
        if not self._unset.acquire(timeout=min(max(0.0, timeout), threading.TIMEOUT_MAX)):
            return False
        self.set()
        return True


class Clock(Protocol):
    """The time source of all parts that act in time."""

    def now_ns(self) -> int:
        """Nanoseconds since the epoch."""
        ...

    def elapsed_ns(self) -> int:
        """Nanoseconds since an arbitrary moment, which no clock setting changes. Durations are measured with it."""
        ...

    def wait(self, event: Waitable, timeout_s: float) -> bool:
        """Wait until `event` is set (True) or `timeout_s` has passed (False)."""
        ...


class SystemClock:
    """CLOCK_REALTIME, the base that NVML, OpenTelemetry and CUPTI share."""

    # The functions themselves: a method around them takes twice as long, and a sampler asks often.
    now_ns = staticmethod(time.time_ns)
    elapsed_ns = staticmethod(time.monotonic_ns)

    def wait(self, event: Waitable, timeout_s: float) -> bool:
        """Wait until `event` is set (True) or `timeout_s` has passed (False)."""
        return event.wait(max(0.0, timeout_s))


SYSTEM_CLOCK: Final = SystemClock()

"""Time as a dependency: the system's clock, and the protocol that a fake one fulfils."""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol


class Clock(Protocol):
    """What the parts that act in time need."""

    def now_ns(self) -> int:
        """Nanoseconds since the epoch."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until `event` is set (True) or `timeout_s` has passed (False)."""
        ...


class SystemClock:
    """CLOCK_REALTIME, the base that NVML, OpenTelemetry and CUPTI share."""

    def now_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return time.time_ns()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until `event` is set (True) or `timeout_s` has passed (False)."""
        return event.wait(max(0.0, timeout_s))


SYSTEM_CLOCK: Final = SystemClock()

"""Time as a dependency: the system's clock, and the protocol for it and for fake clocks."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

#: Changes of a clock's distance to elapsed time below this are no step: neither clock is read at the same moment. Ours.
_LEAST_STEP_NS: Final = 1_000_000
#: Readings of both clocks, of which one is quick enough. Ours.
_TRIES: Final = 5


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

    def suspended_ns(self) -> int:
        """Nanoseconds for which the machine was suspended. They are not in `elapsed_ns`."""
        ...

    def wait(self, event: Waitable, timeout_s: float) -> bool:
        """Wait until `event` is set (True) or `timeout_s` has passed (False)."""
        ...


class SystemClock:
    """CLOCK_REALTIME, the base that NVML, OpenTelemetry and CUPTI share."""

    # The functions themselves: a method around them takes twice as long, and a sampler asks often.
    now_ns = staticmethod(time.time_ns)
    elapsed_ns = staticmethod(time.monotonic_ns)

    def suspended_ns(self) -> int:
        """CLOCK_BOOTTIME less CLOCK_MONOTONIC, which is read a little later: the largest of some differences."""
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return max(time.clock_gettime_ns(clock) - time.monotonic_ns() for _ in range(_TRIES))

    def wait(self, event: Waitable, timeout_s: float) -> bool:
        """Wait until `event` is set (True) or `timeout_s` has passed (False)."""
        return event.wait(max(0.0, timeout_s))


SYSTEM_CLOCK: Final = SystemClock()


class Moment(NamedTuple):
    """A moment in ns: by a clock, by elapsed time, and how long the machine was suspended until then."""

    now_ns: int
    elapsed_ns: int
    suspended_ns: int

    @property
    def setting_ns(self) -> int:
        """How far the clock is ahead of the time that passed, suspensions included."""
        return self.now_ns - self.elapsed_ns - self.suspended_ns


class ClockStep(NamedTuple):
    """A clock that was set between two moments, or a suspension of the machine, which elapsed time does not contain."""

    before: Moment
    after: Moment

    @property
    def ahead_ns(self) -> int:
        """By how much the clock was set ahead (back, if negative) or the machine was suspended."""
        return self.after.now_ns - self.before.now_ns - (self.after.elapsed_ns - self.before.elapsed_ns)

    @property
    def between_ns(self) -> tuple[int, int]:
        """What started by the first time and ended from the second one on lasted during the step."""
        first, last = sorted((self.before.now_ns + self.ahead_ns, self.after.now_ns - self.ahead_ns))
        return first, last

    @property
    def set_ns(self) -> int:
        """`ahead_ns` without suspensions."""
        return self.after.setting_ns - self.before.setting_ns


class StepWatch:
    """Notices that a clock was set, by its distance to elapsed time. For one thread; any may read `last`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._suspended_ns = clock.suspended_ns()
        self._last = self._read()
        #: Earlier times may have been shown before the clock was set. 0 before it was.
        self.set_ns = 0

    @property
    def last(self) -> Moment:
        """The newest moment at which the clock was read."""
        now_ns, elapsed_ns = self._last or (self._clock.now_ns(), self._clock.elapsed_ns())
        return Moment(now_ns, elapsed_ns, self._suspended_ns)

    def step(self) -> ClockStep | None:
        """The step since the last call; None without one."""
        last, now = self._last, self._read()
        if now is None:
            return None
        self._last = now
        if last is None or abs(now[0] - last[0] - (now[1] - last[1])) < _LEAST_STEP_NS:
            return None
        before = Moment(*last, self._suspended_ns)
        self._suspended_ns = self._clock.suspended_ns()
        step = ClockStep(before, self.last)
        self.set_ns = max(step.after.now_ns, step.between_ns[1])
        return step

    def _read(self) -> tuple[int, int] | None:
        """Both clocks at one moment; None if this thread was interrupted in between, again and again."""
        now_ns, elapsed_ns = self._clock.now_ns, self._clock.elapsed_ns
        before = elapsed_ns()
        for _ in range(_TRIES):
            now, after = now_ns(), elapsed_ns()
            if after - before < _LEAST_STEP_NS // 2:
                return now, before
            before = after
        return None

"""Device intervals from CUDA events: recorded on the stream that a framework uses, resolved later by asking.

An event's time is known only as its distance from another event. So now and then one is recorded on an idle stream of
our own, between two readings of the host's clock; marks count from the newest of these. Nothing synchronises.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from gpu_profile.clock import Clock
from gpu_profile.regions.frameworks.libcuda import Cuda, CudaError
from gpu_profile.units import NS_PER_S

_log = logging.getLogger("gpu_profile")

#: The two clocks drift apart by up to 1e-4, and a distance is a 32 bit number of milliseconds: marks count from a
#: base that is not much older than this, which keeps both errors below half a millisecond.
RENEW_S: Final = 5.0
#: Who records against a base of this age renews it at once. Where that fails, the old one must do up to `LAST_S`.
STALE_S: Final = 10.0
LAST_S: Final = 60.0
#: A base that could not be had is not tried again within this time.
RETRY_S: Final = 1.0
#: A base is the best of so many attempts, and one of this width is good enough.
ATTEMPTS: Final = 4
NARROW_NS: Final = 20_000
#: How often an attempt looks whether the device has passed the event, about 0.1 ms in all: then the device is busy.
LOOKS: Final = 150
#: Events in existence for one device. With more executions unresolved than that, some have the host's interval.
MOST_EVENTS: Final = 16_384
#: So many calls that fail in a row mean that the context is lost for good.
MOST_FAILURES: Final = 8


class Base:
    """An event that the device passed at `ns` by the host's clock; given back when no mark counts from it any more."""

    __slots__ = ("_free", "event", "ns")

    def __init__(self, event: int, ns: int, free: list[int]) -> None:
        self.event, self.ns, self._free = event, ns, free

    def __del__(self) -> None:
        self._free.append(self.event)


class Mark:
    """An event and the base that it counts from, until it is resolved; then its moment."""

    __slots__ = ("_free", "base", "event", "moment_ns")

    def __init__(self, event: int, base: Base, free: list[int]) -> None:
        self.event: int | None = event
        self.base = base
        self.moment_ns = 0
        self._free = free

    def __del__(self) -> None:
        if self.event is not None:  # nobody asked: an execution that was left out
            self._free.append(self.event)


class Unmarked:
    """What `record` gives where there can be no mark."""

    def __repr__(self) -> str:
        return "UNMARKED"


#: To resolve it raises LookupError, upon which the execution has the host's interval.
UNMARKED: Final = Unmarked()


class EventStream:
    """The calling thread's current stream on one device, as `gpu_profile.regions.streams.Stream`.

    `stream_of(ordinal)` is the handle of that stream, None where it cannot be told. `record` costs the host the event's
    record and one question (about 3 µs); it gives `UNMARKED` inside a CUDA graph's capture, without a base to count
    from, with `MOST_EVENTS` unresolved, and once the context is lost. Raises CudaError if there can be no stream.
    """

    def __init__(self, cuda: Cuda, ordinal: int, stream_of: Callable[[int], int | None], clock: Clock) -> None:
        self._cuda = cuda
        self._ordinal = ordinal
        self._stream_of = stream_of
        self._now_ns = clock.now_ns
        self._context = cuda.context(ordinal)
        self.device_uuid = cuda.uuid(ordinal)
        with cuda.inside(self._context):
            self._idle = cuda.stream()
        self._free: list[int] = []
        self._made = 0
        self._failures = 0
        self._base: Base | None = None
        self._tried_ns: int | None = None
        self._lock = threading.Lock()
        self._renew(self._now_ns())

    @property
    def lost(self) -> bool:
        """Whether the device's context has failed too often to be asked again."""
        return self._failures >= MOST_FAILURES

    def record(self) -> Mark | Unmarked:
        """A mark at the end of what the calling thread's current stream has queued."""
        if self._failures >= MOST_FAILURES:
            return UNMARKED
        try:
            stream = self._stream_of(self._ordinal)
            if stream is None or self._cuda.capturing(stream, self._context):
                return UNMARKED
            base = self._base
            now = self._now_ns()
            if base is None or not -NS_PER_S < now - base.ns < STALE_S * NS_PER_S:
                base = self._renewed(now)
            if base is None:
                return UNMARKED
            try:
                event = self._free.pop()
            except IndexError:
                if self._made >= MOST_EVENTS:
                    return UNMARKED
                event = self._new_event()
            mark = Mark(event, base, self._free)
            self._cuda.record(event, stream, self._context)
        except Exception as error:  # noqa: BLE001 - a framework's or device's failure must not fail the user's region
            self._fail(error)
            return UNMARKED
        return mark

    def resolve(self, mark: Mark | Unmarked) -> int | None:
        """When the device passed the mark (ns since the epoch), None while it has not.

        Raises LookupError for `UNMARKED`, CudaError if the device cannot tell any more.
        """
        if isinstance(mark, Unmarked):
            raise LookupError("there is no mark: recorded in a graph's capture, or without a base")
        if mark.event is None:
            return mark.moment_ns
        with self._lock:
            if mark.event is None:
                return mark.moment_ns
            try:
                with self._cuda.inside(self._context):
                    if not self._cuda.passed(mark.event):
                        return None
                    distance_ns = self._cuda.elapsed_ns(mark.base.event, mark.event)
            except CudaError as error:
                self._fail(error)
                raise
            self._failures = 0
            mark.moment_ns = mark.base.ns + distance_ns
            event, mark.event = mark.event, None
            self._free.append(event)
            now = self._now_ns()
            if self._base is None or not 0 <= now - self._base.ns < RENEW_S * NS_PER_S:
                self._renew(now)
            return mark.moment_ns

    def _renewed(self, now: int) -> Base | None:
        """A base for a mark that is recorded now, as new as can be had without waiting for another thread."""
        if self._lock.acquire(blocking=False):
            try:
                self._renew(now)
            finally:
                self._lock.release()
        base = self._base
        return base if base is not None and -NS_PER_S < now - base.ns < LAST_S * NS_PER_S else None

    def _renew(self, now: int) -> None:
        if self._tried_ns is not None and 0 <= now - self._tried_ns < RETRY_S * NS_PER_S:
            return
        self._tried_ns = now
        try:
            with self._cuda.inside(self._context):
                base = self._calibrate()
        except CudaError as error:
            self._fail(error)
            return
        if base is not None:
            self._base = base

    def _calibrate(self) -> Base | None:
        """The narrowest of a few readings of both clocks; None if the device is too busy to pass an event at once."""
        best: Base | None = None
        best_ns = 0
        for _ in range(ATTEMPTS):
            event = self._free.pop() if self._free else self._new_event()
            before = self._now_ns()
            self._cuda.record(event, self._idle, self._context)
            if not any(self._cuda.passed(event) for _ in range(LOOKS)):
                self._free.append(event)
                break
            width_ns = self._now_ns() - before
            base = Base(event, before + width_ns // 2, self._free)
            if width_ns >= 0 and (best is None or width_ns < best_ns):
                best, best_ns = base, width_ns
                if width_ns <= NARROW_NS:
                    break
        return best

    def _new_event(self) -> int:
        with self._cuda.inside(self._context):
            event = self._cuda.event()
        self._made += 1
        return event

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        if self._failures == MOST_FAILURES:
            _log.warning("gpu-profile: no more device intervals on %s: %s", self.device_uuid, error)

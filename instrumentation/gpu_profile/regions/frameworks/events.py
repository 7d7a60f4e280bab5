"""Device intervals from CUDA events: recorded on the stream that a framework uses, resolved later by asking.

An event's time is known only as its distance from another event. So now and then one is recorded on an idle stream of
our own, and looked at until the device has passed it. That was between two readings of the host's clock, and marks
count from the newest of these, at the pace of the device's clock, which two of them tell. Nothing synchronises. A
device that other processes share may take milliseconds to pass it: who resolves marks waits for that, who records them
never.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from gpu_profile.clock import Alarm, Clock
from gpu_profile.regions.frameworks.libcuda import Cuda, CudaError
from gpu_profile.regions.streams import UNMARKED, Unmarked
from gpu_profile.units import NS_PER_S, nanoseconds

_log = logging.getLogger("gpu_profile")

#: The two clocks drift apart by up to 1e-4, and a distance is a 32 bit number of milliseconds: marks count from a
#: base that is not much older than this, which keeps both errors below half a millisecond where the drift is unknown.
RENEW_S: Final = 5.0
#: Two bases so far apart tell the drift, if the widths of both leave less than `SURE` of it open.
APART_S: Final = 1.0
SURE: Final = 2e-5
#: Crystals are within 1e-4. More is a clock that is slewed or was set, and so is what a drift that is known does not
#: explain, for it changes slowly: then marks are not corrected until two bases tell it anew.
FASTEST: Final = 3e-4
STEADY: Final = 2e-5
STEP_NS: Final = 50_000
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
#: Who resolves marks goes on looking for so long: processes that share a device have it in turn, for some 2 ms each.
PATIENCE_S: Final = 0.05
#: Between two of those looks, in which the device passed the event at a moment that is not known; 0.1 ms in practice.
PAUSE_S: Final = 20e-6
#: Events in existence for one device. With more executions unresolved than that, some have the host's interval.
MOST_EVENTS: Final = 16_384
#: So many marks are resolved before another thread may resolve one.
_AT_ONCE: Final = 512
#: So many calls that fail in a row mean that the context is lost for good.
MOST_FAILURES: Final = 8


class Base:
    """An event that the device passed at `ns` by the host's clock, give or take half of `width_ns`; given back when
    nothing counts from it any more. `per_ns` is the drift by which marks are corrected that count from it: one for all,
    so that none seems to end before it began."""

    __slots__ = ("_free", "event", "ns", "per_ns", "width_ns")

    def __init__(self, event: int, ns: int, free: list[int]) -> None:
        self.event, self.ns, self._free = event, ns, free
        self.width_ns = 0
        self.per_ns: float | None = None

    def __del__(self) -> None:
        self._free.append(self.event)


class Drift:
    """How much longer a distance between two events is by the host's clock: `per_ns` of it; None while unknown."""

    def __init__(self) -> None:
        self.per_ns: float | None = None
        self._bases: deque[Base] = deque()

    def take(self, base: Base, elapsed_ns: Callable[[int, int], int | None]) -> None:
        """Tell it of a new base. The oldest of the last `LAST_S` and the newest tell the drift best, while no clock was
        set between any two."""
        bases = self._bases
        if bases and not self._explains(bases[-1], base, elapsed_ns):
            bases.clear()
            self.per_ns = None
        while bases and base.ns - bases[0].ns > LAST_S * NS_PER_S:
            bases.popleft()
        if bases and base.ns - bases[0].ns >= APART_S * NS_PER_S:
            first = bases[0]
            distance_ns = elapsed_ns(first.event, base.event) or 0
            if distance_ns > 0 and first.width_ns + base.width_ns <= 2 * SURE * distance_ns:
                self.per_ns = (base.ns - first.ns) / distance_ns - 1
        bases.append(base)

    def _explains(self, before: Base, base: Base, elapsed_ns: Callable[[int, int], int | None]) -> bool:
        """Whether drift alone may be between two bases, and that which is known if one is."""
        distance_ns = elapsed_ns(before.event, base.event) or 0
        rest_ns = base.ns - before.ns - distance_ns * (1 + (self.per_ns or 0.0))
        widths_ns = (before.width_ns + base.width_ns) / 2
        most = FASTEST * distance_ns if self.per_ns is None else STEADY * distance_ns + STEP_NS
        return distance_ns > 0 and base.ns > before.ns and abs(rest_ns) <= most + widths_ns


class EventMark:
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


class _Here(threading.local):
    """Whether this thread is in a block of `resolving`."""

    within = False


class EventStream:
    """The calling thread's current stream on one device, as `gpu_profile.regions.streams.Stream`.

    `stream_of(ordinal)` is the handle of that stream, None where it cannot be told. `record` costs the host the event's
    record and one question (about 3 µs), without a new base about 0.1 ms once in `RETRY_S`; it gives `UNMARKED` inside
    a CUDA graph's capture, without a base to count from, with `MOST_EVENTS` unresolved, and once the context is lost.
    `resolve` takes up to `PATIENCE_S`, once in `RETRY_S`, where the device does not pass a new base at once. Raises
    CudaError if there can be no stream.
    """

    def __init__(self, cuda: Cuda, ordinal: int, stream_of: Callable[[int], int | None], clock: Clock) -> None:
        self._cuda = cuda
        self._ordinal = ordinal
        self._stream_of = stream_of
        self._clock = clock
        self._now_ns = clock.now_ns
        self._context = cuda.context(ordinal)
        self.device_uuid = cuda.uuid(ordinal)
        with cuda.inside(self._context):
            self._idle = cuda.stream()
        self._free: list[int] = []
        self._made = 0
        self._failures = 0
        self._base: Base | None = None
        self._drift = Drift()
        #: When a base was last tried to be had, at once or by waiting for it.
        self._tried_ns: int | None = None
        self._waited_ns: int | None = None
        #: Never set: what there is to wait for is on the device.
        self._never = Alarm()
        self._lock = threading.RLock()  # a signal's handler may resolve a mark meanwhile
        self._here = _Here()
        #: Held while a base is sought. Only ever tried, not waited for: it may be held for `PATIENCE_S`.
        self._seeking = threading.Lock()
        self._renew(self._now_ns())

    @property
    def lost(self) -> bool:
        """Whether the device's context has failed too often to be asked again."""
        return self._failures >= MOST_FAILURES

    def record(self) -> EventMark | Unmarked:
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
            mark = EventMark(event, base, self._free)
            self._cuda.record(event, stream, self._context)
        except Exception as error:  # noqa: BLE001 - a framework's or device's failure must not fail the user's region
            self._fail(error)
            return UNMARKED
        return mark

    @contextmanager
    def resolving(self) -> Iterator[None]:
        """A block in which the calling thread resolves many marks: what all of them need is done once."""
        self._keep_base()
        if self._here.within or self.lost:
            yield
            return
        with self._cuda.inside(self._context):
            self._here.within = True
            try:
                yield
            finally:
                self._here.within = False

    def resolve(self, mark: EventMark | Unmarked) -> int | None:
        """When the device passed the mark (ns since the epoch), None while it has not.

        Raises LookupError for `UNMARKED`, CudaError if the device cannot tell any more. Also sees to it that marks
        which follow have a base.
        """
        alone = not self._here.within
        if isinstance(mark, Unmarked):
            if alone:
                self._keep_base()  # else none might ever be had, and so no mark
            raise LookupError("there is no mark: recorded in a graph's capture, or without a base")
        if mark.event is None:
            return mark.moment_ns
        if alone and self._drift.per_ns is None:
            self._keep_base()
        with self._lock:
            if mark.event is None:
                return mark.moment_ns
            try:
                if alone:
                    with self._cuda.inside(self._context):
                        distance_ns = self._cuda.elapsed_ns(mark.base.event, mark.event)
                else:
                    distance_ns = self._cuda.elapsed_ns(mark.base.event, mark.event)
            except CudaError as error:
                self._fail(error)
                raise
            self._failures = 0
            if distance_ns is None:
                return None
            self._settle(mark, distance_ns)
        if alone:
            self._keep_base()
        return mark.moment_ns

    def moments(self, marks: Sequence[object]) -> list[int | None]:
        """When the device passed each of some marks, in a block of `resolving`: None while it has not, and where there
        is no mark. At a fraction of what `resolve` costs. Raises CudaError if the device cannot tell."""
        for some in range(0, len(marks), _AT_ONCE):
            with self._lock:
                asked = [(m, m.event) for m in marks[some : some + _AT_ONCE] if isinstance(m, EventMark) and m.event]
                distances = self._cuda.elapsed_each((mark.base.event, event) for mark, event in asked)
                self._failures = 0 if asked else self._failures
                for (mark, _), distance_ns in zip(asked, distances, strict=True):
                    if distance_ns is not None:
                        self._settle(mark, distance_ns)
        return [mark.moment_ns if isinstance(mark, EventMark) and mark.event is None else None for mark in marks]

    def _settle(self, mark: EventMark, distance_ns: int) -> None:
        """The device passed the mark so long after its base, if nobody has found that out meanwhile."""
        event, base = mark.event, mark.base
        if event is None:
            return
        if base.per_ns is None:
            base.per_ns = self._drift.per_ns
        mark.moment_ns = base.ns + round(distance_ns * (1 + (base.per_ns or 0.0)))
        mark.event = None
        self._free.append(event)

    def _keep_base(self) -> None:
        """In a thread that may wait: have a base that is new enough, if the device lets us."""
        base, now = self._base, self._now_ns()
        if self.lost:
            return
        if base is None or not 0 <= now - base.ns < RENEW_S * NS_PER_S:
            self._renew(now, patient=True)
        elif self._drift.per_ns is None and now - base.ns >= APART_S * NS_PER_S:
            self._renew(now)  # a second base, if it can be had at once

    def _renewed(self, now: int) -> Base | None:
        """A base for a mark that is recorded now, as new as can be had without waiting for another thread."""
        self._renew(now)
        base = self._base
        return base if base is not None and -NS_PER_S < now - base.ns < LAST_S * NS_PER_S else None

    def _renew(self, now: int, *, patient: bool = False) -> None:
        if not self._seeking.acquire(blocking=False):
            return
        try:
            # Each way has its turns: attempts to have one at once, which may all fail, must not take the patient ones'.
            tried_ns = self._waited_ns if patient else self._tried_ns
            if tried_ns is not None and 0 <= now - tried_ns < RETRY_S * NS_PER_S:
                return
            self._tried_ns = now
            if patient:
                self._waited_ns = now
            with self._cuda.inside(self._context):
                base = self._calibrate(PATIENCE_S if patient else 0.0)
                if base is not None:
                    self._drift.take(base, self._cuda.elapsed_ns)
        except CudaError as error:
            self._fail(error)
            return
        finally:
            self._seeking.release()
        if base is not None:
            self._base = base

    def _calibrate(self, patience_s: float) -> Base | None:
        """The narrowest of a few readings of both clocks; None if the device is too busy to pass an event in time."""
        best: Base | None = None
        until_ns = self._clock.elapsed_ns() + nanoseconds(patience_s)
        for _ in range(ATTEMPTS):
            # A second attempt makes the first more precise; that is not worth another wait.
            base = self._read_both(until_ns if best is None else 0)
            if base is None:
                break
            # Below 0 if the clock was set back meanwhile.
            if base.width_ns >= 0 and (best is None or base.width_ns < best.width_ns):
                best = base
                if base.width_ns <= NARROW_NS:
                    break
        return best

    def _read_both(self, until_ns: int) -> Base | None:
        """An event that the device passed, at the middle of a time of the host's that is `width_ns` long.

        Passed after the last look that found it was not had begun, before the look that found it was had ended: so it
        costs no precision to wait for it, which is done up to `until_ns` by the clock that nobody sets.
        """
        base = Base(self._any_event(), 0, self._free)
        asked = self._now_ns()
        self._cuda.record(base.event, self._idle, self._context)
        looks = 0
        while True:
            before, asked = asked, self._now_ns()
            if self._cuda.passed(base.event):
                base.width_ns = self._now_ns() - before
                base.ns = before + base.width_ns // 2
                return base
            looks += 1
            if looks >= LOOKS:
                if self._clock.elapsed_ns() >= until_ns:
                    return None
                self._clock.wait(self._never, PAUSE_S)

    def _any_event(self) -> int:
        try:
            return self._free.pop()
        except IndexError:
            return self._new_event()

    def _new_event(self) -> int:
        with self._cuda.inside(self._context):
            event = self._cuda.event()
        self._made += 1
        return event

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        if self._failures == MOST_FAILURES:
            _log.warning("gpu-profile: no more device intervals on %s: %s", self.device_uuid, error)

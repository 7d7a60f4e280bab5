"""Device intervals from CUDA events: recorded on the framework's stream, resolved later by a query.

CUDA reports only the time between two events. So from time to time a base event is recorded on a separate, idle stream
and queried until the device has passed it. Two readings of the host's clock enclose that moment. Marks count from the
newest base, and two bases give the drift between the two clocks. Nothing synchronises. On a device shared with other
processes a base may take milliseconds: `resolve` waits for that, `record` never does.
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

#: The age at which a base is renewed. The clocks drift apart by up to 1e-4, and CUDA's distances are 32-bit floats of
#: milliseconds. This age keeps both errors below 0.5 ms while the drift is unknown.
RENEW_S: Final = 5.0
#: Two bases at least this far apart give the drift, if their widths leave an uncertainty below `SURE`.
APART_S: Final = 1.0
SURE: Final = 2e-5
#: The largest drift of two clocks: crystals are within 1e-4. A larger one means that the clock is slewed or was set. A
#: known drift changes slowly: it must explain a new base within `STEADY` and `STEP_NS`. Otherwise marks are not
#: corrected until two later bases give the drift.
FASTEST: Final = 3e-4
STEADY: Final = 2e-5
STEP_NS: Final = 50_000
#: `record` renews a base of this age at once. If that fails, the old base remains in use up to `LAST_S`.
STALE_S: Final = 10.0
LAST_S: Final = 60.0
#: The pause after an attempt to get a base.
RETRY_S: Final = 1.0
#: A base is the best of this many attempts; a width of `NARROW_NS` ends them early.
ATTEMPTS: Final = 4
NARROW_NS: Final = 20_000
#: Queries of the event in one attempt, about 0.1 ms in all. After that the device counts as busy.
LOOKS: Final = 150
#: `resolve` queries for this long: processes that share a device get it in turn, for about 2 ms each.
PATIENCE_S: Final = 0.05
#: The pause between two of those queries, 0.1 ms in practice. It limits the precision of the base.
PAUSE_S: Final = 20e-6
#: Events in existence for one device. With more unresolved executions, some have the host interval.
MOST_EVENTS: Final = 16_384
#: Marks that are resolved under one acquisition of the lock.
_AT_ONCE: Final = 512
#: After this many failed calls in a row the context counts as lost for good.
MOST_FAILURES: Final = 8


class Base:
    """An event that the device passed at `ns` by the host's clock, plus or minus half of `width_ns`.

    `per_ns` is the drift that corrects its marks: the same for all, so that no execution ends before it begins. The
    event returns to the free list when no mark refers to the base any more.
    """

    __slots__ = ("_free", "event", "ns", "per_ns", "width_ns")

    def __init__(self, event: int, ns: int, free: list[int]) -> None:
        self.event, self.ns, self._free = event, ns, free
        self.width_ns = 0
        self.per_ns: float | None = None

    def __del__(self) -> None:
        self._free.append(self.event)


class Drift:
    """The drift between the clocks: a distance is longer by `per_ns` times itself on the host. None while unknown."""

    def __init__(self) -> None:
        self.per_ns: float | None = None
        self._bases: deque[Base] = deque()

    def take(self, base: Base, elapsed_ns: Callable[[int, int], int | None]) -> None:
        """Add a base. The drift comes from the oldest base of the last `LAST_S` and this one.

        If the clock was set between two bases, the older ones are dropped. `elapsed_ns(first, second)` is the distance
        between two events on the device.
        """
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
        """Whether drift alone explains the distance between two bases, within the limits above."""
        distance_ns = elapsed_ns(before.event, base.event) or 0
        rest_ns = base.ns - before.ns - distance_ns * (1 + (self.per_ns or 0.0))
        widths_ns = (before.width_ns + base.width_ns) / 2
        most = FASTEST * distance_ns if self.per_ns is None else STEADY * distance_ns + STEP_NS
        return distance_ns > 0 and base.ns > before.ns and abs(rest_ns) <= most + widths_ns


class EventMark:
    """An event and its base until it is resolved; then `moment_ns`, in ns since the epoch."""

    __slots__ = ("_free", "base", "event", "moment_ns")

    def __init__(self, event: int, base: Base, free: list[int]) -> None:
        self.event: int | None = event
        self.base = base
        self.moment_ns = 0
        self._free = free

    def __del__(self) -> None:
        if self.event is not None:  # never resolved: its execution was dropped
            self._free.append(self.event)


class _Here(threading.local):
    """Whether this thread is in a block of `resolving`."""

    within = False


class EventStream:
    """The calling thread's current stream on one device, as `gpu_profile.regions.streams.Stream`.

    `stream_of(ordinal)` returns the handle of that stream, None if unknown.

    `record` costs the host the event's record and one query, about 3 µs; without a recent base about 0.1 ms once in
    `RETRY_S`. It returns `UNMARKED` during the capture of a CUDA graph, without a base, with `MOST_EVENTS` unresolved,
    and once the context is lost. `resolve` takes up to `PATIENCE_S`, once in `RETRY_S`, if the device does not pass a
    new base at once. The constructor raises CudaError if no stream can be made.
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
        #: The last attempt at a base: any, and with `PATIENCE_S`.
        self._tried_ns: int | None = None
        self._waited_ns: int | None = None
        #: Never set: a wait for the device has no other end than its time.
        self._never = Alarm()
        self._lock = threading.RLock()  # a signal's handler may resolve a mark meanwhile
        self._here = _Here()
        #: Held for up to `PATIENCE_S` while a base is sought, so it is only acquired without blocking.
        self._seeking = threading.Lock()
        self._renew(self._now_ns())

    @property
    def lost(self) -> bool:
        """Whether `MOST_FAILURES` calls in a row have failed: the context is not used any more."""
        return self._failures >= MOST_FAILURES

    def record(self) -> EventMark | Unmarked:
        """A mark at the end of the work queued on the calling thread's current stream."""
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
        """A block in which the calling thread resolves many marks: it enters the context and keeps a base only once."""
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
        """When the device passed the mark (ns since the epoch), None until it has.

        Raises LookupError for `UNMARKED`, CudaError if the query fails. Also renews the base for later marks.
        """
        alone = not self._here.within
        if isinstance(mark, Unmarked):
            if alone:
                self._keep_base()  # otherwise there might never be a base, and so no mark
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
        """`resolve` for many marks, in a block of `resolving`, at a fraction of the cost.

        None for a mark that the device has not passed, and for `UNMARKED`. Raises CudaError if a query fails.
        """
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
        """Set the mark's time, `distance_ns` after its base, unless another thread has. Frees its event."""
        event, base = mark.event, mark.base
        if event is None:
            return
        if base.per_ns is None:
            base.per_ns = self._drift.per_ns
        mark.moment_ns = base.ns + round(distance_ns * (1 + (base.per_ns or 0.0)))
        mark.event = None
        self._free.append(event)

    def _keep_base(self) -> None:
        """Renew the base if it is too old. Called in threads that may wait."""
        base, now = self._base, self._now_ns()
        if self.lost:
            return
        if base is None or not 0 <= now - base.ns < RENEW_S * NS_PER_S:
            self._renew(now, patient=True)
        elif self._drift.per_ns is None and now - base.ns >= APART_S * NS_PER_S:
            self._renew(now)  # a second base for the drift, without waiting

    def _renewed(self, now: int) -> Base | None:
        """A base for a mark that is recorded now: a new one if possible without waiting, else at most `LAST_S` old."""
        self._renew(now)
        base = self._base
        return base if base is not None and -NS_PER_S < now - base.ns < LAST_S * NS_PER_S else None

    def _renew(self, now: int, *, patient: bool = False) -> None:
        if not self._seeking.acquire(blocking=False):
            return
        try:
            # Patient attempts have a time of their own: impatient ones, which may all fail, must not postpone them.
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
        """The narrowest of `ATTEMPTS` bases; None if the device is too busy to pass an event in time."""
        best: Base | None = None
        until_ns = self._clock.elapsed_ns() + nanoseconds(patience_s)
        for _ in range(ATTEMPTS):
            # Further attempts only improve the precision, which is not worth another wait.
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
        """An event that the device passed, with `ns` in the middle of an interval of `width_ns` on the host's clock.

        The interval reaches from the start of the last unsuccessful query to the end of the first successful one. So a
        wait costs no precision. It ends at `until_ns` by the monotonic clock; then the result is None.
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

"""`GpuSpanProcessor`: delays ended spans until samples cover them, adds the joined attributes, and passes them on.

It wraps a span processor of the OpenTelemetry SDK: `GpuSpanProcessor(BatchSpanProcessor(exporter))`. An ended span is
immutable, so the inner processor gets a copy with more attributes. No span is dropped: a span that cannot wait, or does
not fit in the queue, is passed on without joined attributes and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet

from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor

from gpu_profile.catalogue import attributes as names
from gpu_profile.regions.execution import AWAIT_S, Execution
from gpu_profile.regions.session import process
from gpu_profile.regions.session.joiner import DEADLINE_S
from gpu_profile.regions.session.session import Session
from gpu_profile.regions.telemetry import server_spans
from gpu_profile.regions.telemetry.enrichment import AttributeValues, Enricher
from gpu_profile.units import NS_PER_S

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Span

_log = logging.getLogger("gpu_profile")

#: Spans that may wait at once. Any more are passed on without joined attributes.
QUEUE: Final = 20_000
#: Spans passed on in one step. The batch processor's own queue has 2,048 places and drops spans beyond them.
BATCH: Final = 512
#: When all spans are passed on, the inner processor is flushed after every batch, for at most this long in all.
FLUSH_S: Final = 5.0


class _HeldSpan(NamedTuple):
    span: JoinedSpan
    execution: Execution
    session: Session
    since_ns: int

    def in_time(self, most_ns: int) -> bool:
        """Whether it has waited for less than `most_ns`."""
        # Below 0 if the clock was set back meanwhile.
        return 0 <= self.session.clock.now_ns() - self.since_ns < most_ns


class GpuSpanProcessor(SpanProcessor):
    """Adds GPU attributes to the spans of regions, then passes them to `inner`.

    Other spans are passed on at once. At most `queue` spans wait, each at most `deadline_s`. The span of an execution
    in a profiler's window waits, out of order, until the window is read, at most `AWAIT_S`.
    `overflowed` counts the spans that did not fit in the queue, `unjoined` the spans passed on without joined values.
    """

    def __init__(self, inner: SpanProcessor, *, queue: int = QUEUE, deadline_s: float = DEADLINE_S) -> None:
        self.inner = inner
        self.overflowed = 0
        self.unjoined = 0
        self._queue = queue
        self._deadline_ns = int(deadline_s * NS_PER_S)
        self._held: deque[_HeldSpan] = deque()
        #: Spans that wait for their execution's kernels.
        self._awaiting: list[_HeldSpan] = []
        self._lock = threading.RLock()
        self._releasing = False
        self._session: Session | None = None
        self._enricher: Enricher | None = None
        _processors.add(self)
        process.on_start(self._attach)

    def _attach(self, session: Session) -> None:
        self._session, self._enricher = session, Enricher(session.joiner)
        session.on_step.append(self._release)
        session.on_interrupt.append(self._release_between)

    def forget(self) -> None:
        """In a forked child: drop the waiting spans, which the parent exports."""
        self._held.clear()
        self._awaiting.clear()
        self._lock = threading.RLock()
        self._releasing = False
        self._session = None

    # ------------------------------------------------------------------ the SDK's side

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Report the span to `server_spans` and pass it on."""
        others = server_spans.current
        if others is not None:
            others.started(span)
        self.inner.on_start(span, parent_context=parent_context)

    def _on_ending(self, span: Span) -> None:
        ending = getattr(self.inner, "_on_ending", None)  # absent before SDK 1.39
        if ending is not None:
            ending(span)

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a region's span until samples cover it; pass any other span on."""
        session, others, execution = self._session, server_spans.current, None
        if session is not None and span.context is not None:
            execution = session.spans.get(span.context.span_id)
        if execution is None and others is not None:
            execution = others.ended(span)
        if session is None or execution is None:
            self.inner.on_end(span)
        elif session.ignoring or not session.active:
            self._pass_unjoined(span, execution, "this process does not sample")
        elif len(self._held) + len(self._awaiting) >= self._queue:
            self.overflowed += 1
            self._pass_unjoined(span, execution, "the queue is full")
        else:
            try:
                copy = JoinedSpan(span)
            except Exception as error:  # noqa: BLE001 - a span of another class must not fail the program, nor be lost
                self._failed(session, error)
                self.inner.on_end(span)
            else:
                self._held.append(_HeldSpan(copy, execution, session, session.clock.now_ns()))

    def _pass_unjoined(self, span: ReadableSpan, execution: Execution, why: str) -> None:
        self.unjoined += 1
        self.inner.on_end(JoinedSpan(span).joined(_unjoined(execution, why), execution))

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Take a last sample, join and pass on all waiting spans, then flush `inner`. False if time runs out."""
        end_s = time.monotonic() + timeout_millis / 1000
        session = self._session
        if session is not None and self._held:
            session.flush(min(DEADLINE_S, timeout_millis / 1000))
        self._release(final=True, flush_s=end_s - time.monotonic())
        return self.inner.force_flush(max(0, int((end_s - time.monotonic()) * 1000)))

    def shutdown(self) -> None:
        """Pass on all waiting spans, then shut `inner` down. Spans that end later go to `inner` directly."""
        session, self._session = self._session, None
        process.off_start(self._attach)
        if session is not None:
            if self._held and session.active:
                session.flush()
            if self._release in session.on_step:
                session.on_step.remove(self._release)
                session.on_interrupt.remove(self._release_between)
        self._release(final=True)
        self.inner.shutdown()

    # ------------------------------------------------------------------ the session's side

    def _release(self, final: bool, flush_s: float = FLUSH_S) -> bool:
        """Pass on, in the order of their ends, the spans that are covered or have waited long enough.

        Spans that wait for kernels are set aside, and are first to be passed on once the kernels are there.

        `final`: all spans, with a flush of `inner` after every batch for at most `flush_s` in all. Otherwise at most
        one batch. Returns whether more spans may be due.
        """
        end_s = time.monotonic() + flush_s
        with self._lock:
            self._releasing = True
            try:
                return self._pass_on(final, end_s)
            finally:
                self._releasing = False

    def _pass_on(self, final: bool, end_s: float) -> bool:
        ready: list[_HeldSpan] = []
        aside, self._awaiting = self._awaiting, []
        for held in aside:
            (self._awaiting if not final and _awaited(held) else ready).append(held)
        self._held.extendleft(reversed(ready))
        for passed in range(1, 1 + (len(self._held) if final else min(BATCH, len(self._held)))):
            held = self._held[0]
            if not final and _awaited(held):
                self._awaiting.append(self._held.popleft())
                continue
            if not (final or self._due(held)):
                return False
            self._held.popleft()
            self.inner.on_end(self._joined(held))
            if final and passed % BATCH == 0 and (left_s := end_s - time.monotonic()) > 0:
                self.inner.force_flush(int(left_s * 1000))
        return bool(self._held)

    def _release_between(self) -> None:
        """The same between two turns of a computation, unless a release is under way: the next one follows in 10 ms."""
        # Another thread's release may wait for the computation, so that waiting for it here would never end.
        if self._lock.acquire(blocking=False):
            try:
                if not self._releasing:
                    self._release(final=False)
            finally:
                self._lock.release()

    def _due(self, held: _HeldSpan) -> bool:
        return held.session.joiner.covered(held.execution) or not held.in_time(self._deadline_ns)

    @staticmethod
    def _failed(session: Session, error: Exception) -> None:
        if not session.counts["join errors"]:
            _log.error("gpu-profile: a span could not be joined", exc_info=error)
        session.counts["join errors"] += 1

    def _joined(self, held: _HeldSpan) -> ReadableSpan:
        try:
            enricher = self._enricher
            if enricher is None or enricher.joiner is not held.session.joiner:
                enricher = Enricher(held.session.joiner)  # its session ended while the span waited
            added = enricher.attributes(held.execution)
        except Exception as error:  # noqa: BLE001 - an internal error must not lose a span
            self._failed(held.session, error)
            added = _unjoined(held.execution, f"the join failed: {type(error).__name__}")
        self.unjoined += names.UNJOINED.name in added
        return held.span.joined(added, held.execution)


def _unjoined(execution: Execution, why: str) -> dict[str, AttributeValues]:
    """The attributes of an execution without samples."""
    return {names.REGION.name: execution.name, names.UNJOINED.name: why, **execution.profiled()}


def _awaited(held: _HeldSpan) -> bool:
    """Whether its execution's kernels are pending and `AWAIT_S` has not passed."""
    return held.execution.awaits_kernels and held.in_time(int(AWAIT_S * NS_PER_S))


class JoinedSpan(ReadableSpan):
    """A copy of an ended span that takes more attributes and events. Its counts of dropped items stay as they were."""

    _dropped_events: int | None = None

    def __init__(self, span: ReadableSpan) -> None:
        # Copies all fields of the SDK's span: its constructor takes ten times as long and reads each value through a
        # lock.
        vars(self).update(vars(span))
        self._dropped = span.dropped_attributes
        own: Any = span.attributes
        self._attributes: dict[str, Any] = own.copy() if own else {}
        # The SDK's containers are most of a waiting span's objects, and each costs time in Python's garbage collector.
        if not self._events and not span.dropped_events:
            self._events = ()
        if not self._links and not span.dropped_links:
            self._links = ()

    def joined(self, more: Mapping[str, AttributeValues], execution: Execution) -> JoinedSpan:
        """Itself with these attributes and one span event for each of the execution's longest kernels."""
        self._attributes |= more
        if execution.kernels is not None:
            self._dropped_events = super().dropped_events
            events = (Event(names.KERNEL_EVENT, each, self.end_time) for each in execution.kernels.events())
            self._events = (*self._events, *events)
        return self

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The span's own attributes and the joined ones."""
        return MappingProxyType(self._attributes)

    @property
    def dropped_attributes(self) -> int:
        """The number of attributes that the original span dropped."""
        return self._dropped

    @property
    def dropped_events(self) -> int:
        """The number of events that the original span dropped."""
        return super().dropped_events if self._dropped_events is None else self._dropped_events


#: Processors that a forked child must empty.
_processors: Final[WeakSet[GpuSpanProcessor]] = WeakSet()


@process.in_child
def _forget() -> None:
    for processor in list(_processors):
        processor.forget()


@process.at_finish
def _flush() -> None:
    """Flush the inner processors: children of `multiprocessing` do not run the SDK's `atexit`, and would lose spans."""
    for processor in list(_processors):
        processor.inner.force_flush(int(FLUSH_S * 1000))

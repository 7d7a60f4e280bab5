"""`GpuSpanProcessor`: holds ended spans until the samples are there, adds the joined attributes, and passes them on.

It stands before a span processor of the OpenTelemetry SDK: `GpuSpanProcessor(BatchSpanProcessor(exporter))`. An ended
span is immutable, so the inner processor gets a copy with more attributes. Nothing is ever dropped: what cannot wait,
or does not fit in the queue, goes on as it is, and is counted.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from gpu_profile import process
from gpu_profile.catalogue import attributes as names
from gpu_profile.enrichment import AttributeValues, attributes_of
from gpu_profile.executions import Execution
from gpu_profile.session import DEADLINE_S, Session
from gpu_profile.units import NS_PER_S

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Span

#: Spans that wait at once; more are passed on without joined attributes.
QUEUE: Final = 20_000
#: Spans passed on in one go: the batch processor's own queue holds 2,048 and drops what comes faster than it exports.
BATCH: Final = 512


class _Held(NamedTuple):
    span: ReadableSpan
    execution: Execution
    deadline_ns: int


class GpuSpanProcessor(SpanProcessor):
    """Adds what GPUs did during a region to the region's span, then hands the span to `inner`.

    Spans that are no region's pass straight through. `queue` bounds the spans that wait; `deadline_s` bounds how long.
    """

    def __init__(self, inner: SpanProcessor, *, queue: int = QUEUE, deadline_s: float = DEADLINE_S) -> None:
        self.inner = inner
        self.overflowed = 0
        self.unjoined = 0
        self._queue = queue
        self._deadline_ns = int(deadline_s * NS_PER_S)
        self._held: deque[_Held] = deque()
        self._lock = threading.Lock()
        self._session: Session | None = None
        process.on_start(self._attach)
        os.register_at_fork(after_in_child=self._after_fork)

    def _attach(self, session: Session) -> None:
        self._session = session
        session.on_step.append(self._release)

    def _after_fork(self) -> None:
        # The parent still holds these spans, and exports them.
        self._held.clear()
        self._lock = threading.Lock()
        self._session = None

    # ------------------------------------------------------------------ the SDK's side

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Pass through."""
        self.inner.on_start(span, parent_context=parent_context)

    def _on_ending(self, span: Span) -> None:
        ending = getattr(self.inner, "_on_ending", None)  # absent before SDK 1.39
        if ending is not None:
            ending(span)

    def on_end(self, span: ReadableSpan) -> None:
        """Hold a region's span until its samples are there; pass any other on."""
        session = self._session
        execution = None
        if session is not None and span.context is not None and names.REGION.name in (span.attributes or {}):
            execution = session.executions.get(span.context.span_id)
        if session is None or execution is None or not session.running:
            self.inner.on_end(span)
            return
        if len(self._held) >= self._queue:
            self.overflowed += 1
            self.inner.on_end(_copy(span, {names.UNJOINED.name: "the queue is full"}))
            return
        self._held.append(_Held(span, execution, session.clock.now_ns() + self._deadline_ns))

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Take a last sample, join and pass on what waits, then flush the inner processor."""
        session = self._session
        if session is not None and self._held:
            session.flush(min(DEADLINE_S, timeout_millis / 1000))
        self._release(final=True)
        return self.inner.force_flush(timeout_millis)

    def shutdown(self) -> None:
        """As `force_flush`, then shut the inner processor down."""
        session = self._session
        if session is not None and self._held and session.running:
            session.flush()
        self._release(final=True)
        self.inner.shutdown()

    # ------------------------------------------------------------------ the session's side

    def _release(self, final: bool) -> None:
        """Pass on, in the order in which they ended, the spans that are covered or have waited long enough."""
        session = self._session
        if session is None:
            return
        with self._lock:
            now = session.clock.now_ns()
            for _ in range(len(self._held) if final else min(BATCH, len(self._held))):
                held = self._held[0]
                due = final or now >= held.deadline_ns
                if not due and not session.covered(held.execution):
                    break
                self._held.popleft()
                added = attributes_of(session, held.execution)
                if names.UNJOINED.name in added:
                    self.unjoined += 1
                session.executions.pop(held.execution.span_id, None)
                self.inner.on_end(_copy(held.span, added))


def _copy(span: ReadableSpan, more: Mapping[str, AttributeValues]) -> ReadableSpan:
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes={**(span.attributes or {}), **more},
        events=span.events,
        links=span.links,
        kind=span.kind,
        instrumentation_scope=span.instrumentation_scope,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
    )

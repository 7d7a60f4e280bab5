"""An execution of a region while it runs: it records the time, marks the stream and starts a span."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from contextvars import ContextVar
from math import inf
from numbers import Real
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from gpu_profile.catalogue import attributes as names
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session import process
from gpu_profile.regions.session.inbox import Watcher
from gpu_profile.regions.session.session import Session
from gpu_profile.regions.telemetry import server_spans

_log = logging.getLogger("gpu_profile")

#: The execution that began last in this thread or task. It stays here after its end, because resetting it would be a
#: fifth of a region's cost. Readers call `innermost` to skip executions that have ended.
begun: Final[ContextVar[Execution | None]] = ContextVar("gpu_profile_region", default=None)
#: The API's proxy finds a provider that is set later.
tracer: Tracer = trace.get_tracer("gpu_profile")


def innermost(execution: Execution | None) -> Execution | None:
    """The execution itself or, if it has ended (perhaps in another thread), its innermost ancestor that still runs."""
    while execution is not None and execution.end_ns:
        execution = execution.parent
    return execution


def amount(items: float) -> float:
    """`items` as a float. Raises ValueError unless it is a finite number of at least 0."""
    if not isinstance(items, Real) or not 0 <= items < inf:
        raise ValueError(f"items is a finite number of at least 0, not {items!r}")
    return float(items)


def report(session: Session, kind: str, error: Exception) -> None:
    """Count an error of the measurement under `kind`, and log the first of each kind."""
    if not session.counts[kind]:
        _log.warning("gpu-profile: a region goes on without its %s: %r", kind.removesuffix(" errors"), error)
    session.counts[kind] += 1


class Running(Execution):
    """An execution from `begin` to `end`. The threads that run it call both."""

    __slots__ = ("session",)

    _span: Span | None = None
    #: The OpenTelemetry context around it, if it has attached its own.
    _outside: Context | None = None
    #: When `stop` was called; `end` may follow later.
    _stopped_ns: int = 0
    #: The watchers that saw its beginning and are to see its end.
    _watchers: tuple[Watcher, ...] = ()
    #: Its open range in the trace of PyTorch's profiler.
    _range: AbstractContextManager[Any] | None = None
    #: Whether each step of its body has a range of its own, because other code runs between two steps.
    in_steps: bool = False

    session: Session

    # A call of a Python function is a tenth of a region's cost, so the code that creates an instance sets its fields.
    __init__ = object.__init__

    @property
    def span(self) -> Span | None:
        """The execution's span; None without a span and after its end."""
        return self._span

    def add_items(self, items: float) -> None:
        """Add `items` units of work to this execution."""
        self.items = (self.items or 0.0) + amount(items)

    def begin(self, *, nested: bool, span: bool, in_steps: bool = False) -> None:
        """Start the execution.

        `nested`: it becomes the parent of executions that start in this thread or task before its end. `span`: start an
        OpenTelemetry span. `in_steps`: the caller enters its range at each step of its body.

        The decorator and the block inline this, because a call would be a tenth of their cost.
        """
        session = process.current
        if session is None or not session.active:
            session = process.session()
        self.session = session
        self.parent = innermost(begun.get())
        if nested:
            begun.set(self)
        now = session.now_ns  # a call in method form would look the attribute up the slow way
        self.start_ns = now()
        session.began.append(self)
        if span or session.needs_slow_path:
            if in_steps:
                self.in_steps = True
            self.show(session, nested=nested, span=span)

    def show(self, session: Session, *, nested: bool, span: bool) -> None:
        """The slow path of a start: find the spans around it, mark the stream, start the span, notify watchers."""
        self.session = session
        spans = server_spans.current
        if spans is not None:
            self.parent = spans.around(self.parent)
        stream = session.stream
        if stream is not None:
            try:
                here = stream() if callable(stream) else stream
                if here is not None:
                    self.mark_start(here)
            except Exception as error:  # noqa: BLE001 - a framework's failing event must not fail the user's region
                report(session, "mark errors", error)
        if span:
            try:
                self._start_span(nested)
            except Exception as error:  # noqa: BLE001 - nor must a failing sampler or processor
                report(session, "span errors", error)
        if session.watchers:
            self._notify_begin(session, nested=nested)
        if session.make_range is not None and not self.in_steps:
            self.enter_range(session)

    def enter_range(self, session: Session) -> None:
        """Open its range in this thread if PyTorch's profiler runs."""
        make = session.make_range
        try:
            if make is not None:
                self._range = make(self.name)
                self._range.__enter__()
        except Exception as error:  # noqa: BLE001 - PyTorch's profiler must not fail the user's region
            self._range = None
            report(session, "range errors", error)

    def leave_range(self) -> None:
        """Close its range, if one is open."""
        left, self._range = self._range, None
        try:
            if left is not None:
                left.__exit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - as at the start
            report(self.session, "range errors", error)

    def _notify_begin(self, session: Session, *, nested: bool) -> None:
        watchers = self._watchers = session.watchers
        for watcher in watchers:
            try:
                watcher.begun(self, nested=nested)
            except Exception as error:  # noqa: BLE001 - a profiler's window must not fail the user's region
                report(session, "kernel errors", error)

    def _notify_end(self) -> None:
        for watcher in self._watchers:
            try:
                watcher.ended(self)
            except Exception as error:  # noqa: BLE001 - as at the start
                report(self.session, "kernel errors", error)

    def _start_span(self, nested: bool) -> None:
        # The region's attribute is added with the joined ones: its scope and name identify the span until then.
        span = self._span = tracer.start_span(self.name, start_time=self.start_ns)
        context = span.get_span_context()
        if context.is_valid:
            self.span_id, self.trace_id, self.sampled = context.span_id, context.trace_id, span.is_recording()
            if self.sampled:
                self.session.spans[self.span_id] = self
            if nested:
                self._outside = outside = otel_context.get_current()
                otel_context.attach(trace.set_span_in_context(span, outside))

    def stop(self) -> None:
        """Its work is over: record the time and mark the stream. `end` follows, once its items and error are set."""
        if self.end_ns or not self.start_ns or self._stopped_ns:
            return
        if self._range is not None:
            self.leave_range()
        if self.stream is not None:
            try:
                self.end_mark = self.stream.record()
            except Exception as failure:  # noqa: BLE001 - as at the start; it then has the host interval
                self.stream = None
                report(self.session, "mark errors", failure)
        now = self.session.now_ns
        self._stopped_ns = now()

    def end(self, error: BaseException | None = None) -> None:
        """End; a second call does nothing. `error` is recorded on the span and the execution counts as failed.

        GeneratorExit does not count as a failure.
        """
        if self.end_ns or not self.start_ns:
            return
        if not self._stopped_ns:
            self.stop()
        end_ns = self._stopped_ns
        if error is not None:
            self.failed = not isinstance(error, GeneratorExit)
        span = self._span
        # False if it ends in another thread or task: that has its own context.
        inside = span is not None and innermost(begun.get()) is self
        # Set last: the join reads the other fields once this is set.
        self.end_ns = end_ns
        if span is not None:
            self._end_span(span, error, inside)
        if self._watchers:
            self._notify_end()

    def _end_span(self, span: Span, error: BaseException | None, inside: bool) -> None:
        self._span = None
        session = self.session
        try:
            if inside and self._outside is not None:
                outside, around = self._outside, self.parent
                while around is not None and around.end_ns:  # a parent that ended before its child
                    context = getattr(around, "_outside", None)  # an empty context is false
                    outside, around = outside if context is None else context, around.parent
                # Not detach(): its token belongs to one thread or task, and a generator's body may run in several.
                otel_context.attach(outside)
            if session.forked:
                return  # the parent process ends and exports it
            if self.items is not None:
                span.set_attribute(names.ITEMS.name, self.items)
            if self.failed and isinstance(error, Exception):
                span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            span.end(end_time=max(self.start_ns, self.end_ns))  # the clock may have been set back
        except Exception as failure:  # noqa: BLE001 - as at the start
            report(session, "span errors", failure)
        session.spans.pop(self.span_id, None)

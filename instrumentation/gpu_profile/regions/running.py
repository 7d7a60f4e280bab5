"""An execution of a region while it runs: it notes the time, marks the stream, and is a span."""

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
from gpu_profile.regions.session.entrance import Watcher
from gpu_profile.regions.session.session import Session
from gpu_profile.regions.telemetry import server_spans

_log = logging.getLogger("gpu_profile")

#: The execution that began last in this thread or task. It stays here when it ends: setting it twice would be a fifth
#: of what a region costs, and whoever asks looks for the innermost around it that still runs.
begun: Final[ContextVar[Execution | None]] = ContextVar("gpu_profile_region", default=None)
#: The API's proxy finds a provider that is set later.
tracer: Tracer = trace.get_tracer("gpu_profile")


def innermost(execution: Execution | None) -> Execution | None:
    """The execution or, if it has ended, for instance in another thread, the innermost around it that has not."""
    while execution is not None and execution.end_ns:
        execution = execution.parent
    return execution


def amount(items: float) -> float:
    """Units of work; ValueError if there can be no such number of them."""
    if not isinstance(items, Real) or not 0 <= items < inf:
        raise ValueError(f"items is a finite number of at least 0, not {items!r}")
    return float(items)


def report(session: Session, what: str, error: Exception) -> None:
    """Count a failure that is not the user's, and log the first of its kind."""
    if not session.counts[what]:
        _log.warning("gpu-profile: a region goes on without its %s: %r", what.removesuffix(" errors"), error)
    session.counts[what] += 1


class Running(Execution):
    """An execution from `begin` to `end`, which the threads that it runs in call."""

    __slots__ = ("session",)

    _span: Span | None = None
    #: OpenTelemetry's context around it, where it has set its own.
    _outside: Context | None = None
    #: When it stopped, if that was before its end is told.
    _stopped_ns: int = 0
    #: Who was told of its beginning, and is to be told of its end.
    _watchers: tuple[Watcher, ...] = ()
    #: Its range in the trace of PyTorch's profiler, while it is in it.
    _range: AbstractContextManager[Any] | None = None
    #: Whether it is in a range for each step of its body only: others run between two steps.
    in_steps: bool = False

    session: Session

    # A call of Python's own is a tenth of what a region costs: whoever makes one sets what there is to set.
    __init__ = object.__init__

    @property
    def span(self) -> Span | None:
        """The execution's span, while it runs and if it has one."""
        return self._span

    def add_items(self, items: float) -> None:
        """This execution did `items` more units of work than it was started with."""
        self.items = (self.items or 0.0) + amount(items)

    def begin(self, *, nested: bool, span: bool, in_steps: bool = False) -> None:
        """Start; `nested`: what starts in this thread or task before the end is inside it. `span`: it is one.

        `in_steps`: whoever runs it enters its range for each step of its body.

        The decorator and the block do the same in their own frames, for a call would be a tenth of what they cost.
        """
        session = process.current
        if session is None or not session.active:
            session = process.session()
        self.session = session
        self.parent = innermost(begun.get())
        if nested:
            begun.set(self)
        now = session.now_ns  # an attribute that is called as a method is looked up the slow way
        self.start_ns = now()
        session.began.append(self)
        if span or session.shows:
            if in_steps:
                self.in_steps = True
            self.show(session, nested=nested, span=span)

    def show(self, session: Session, *, nested: bool, span: bool) -> None:
        """Look which spans are around it, mark the stream and, if asked to, start the span."""
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
            except Exception as error:  # noqa: BLE001 - nor may a sampler or processor that fails
                report(session, "span errors", error)
        if session.watchers:
            self._tell_begin(session, nested=nested)
        if session.make_range is not None and not self.in_steps:
            self.enter_range(session)

    def enter_range(self, session: Session) -> None:
        """What follows in this thread is in its range, if a profiler of PyTorch's runs."""
        make = session.make_range
        try:
            if make is not None:
                self._range = make(self.name)
                self._range.__enter__()
        except Exception as error:  # noqa: BLE001 - nor may PyTorch's profiler fail the user's region
            self._range = None
            report(session, "range errors", error)

    def leave_range(self) -> None:
        """And what follows from here on is not."""
        left, self._range = self._range, None
        try:
            if left is not None:
                left.__exit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - as at the start
            report(self.session, "range errors", error)

    def _tell_begin(self, session: Session, *, nested: bool) -> None:
        watchers = self._watchers = session.watchers
        for watcher in watchers:
            try:
                watcher.begun(self, nested=nested)
            except Exception as error:  # noqa: BLE001 - nor may a profiler's window
                report(session, "kernel errors", error)

    def _tell_end(self) -> None:
        for watcher in self._watchers:
            try:
                watcher.ended(self)
            except Exception as error:  # noqa: BLE001 - as at the start
                report(self.session, "kernel errors", error)

    def _start_span(self, nested: bool) -> None:
        # Whose region it is, its scope and its name tell; the attribute comes with the joined ones, at no cost here.
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
        """Its work is over: note the time and mark the stream. `end` follows, when all is known that goes with it."""
        if self.end_ns or not self.start_ns or self._stopped_ns:
            return
        if self._range is not None:
            self.leave_range()
        if self.stream is not None:
            try:
                self.end_mark = self.stream.record()
            except Exception as failure:  # noqa: BLE001 - as at the start: the host's interval must do then
                self.stream = None
                report(self.session, "mark errors", failure)
        now = self.session.now_ns
        self._stopped_ns = now()

    def end(self, error: BaseException | None = None) -> None:
        """End; ending twice is fine. `error` is recorded on the span and the execution counts as failed."""
        if self.end_ns or not self.start_ns:
            return
        if not self._stopped_ns:
            self.stop()
        end_ns = self._stopped_ns
        if error is not None:
            self.failed = not isinstance(error, GeneratorExit)
        span = self._span
        # Else it ends in another thread or task, which has a context of its own.
        inside = span is not None and innermost(begun.get()) is self
        # Last of what the join reads. A clock that was set back makes no negative interval.
        self.end_ns = end_ns if end_ns > self.start_ns else self.start_ns  # noqa: FURB136
        if span is not None:
            self._end_span(span, error, inside)
        if self._watchers:
            self._tell_end()

    def _end_span(self, span: Span, error: BaseException | None, inside: bool) -> None:
        self._span = None
        session = self.session
        try:
            if inside and self._outside is not None:
                outside, around = self._outside, self.parent
                while around is not None and around.end_ns:  # it ended before what had begun inside it
                    found = getattr(around, "_outside", None)  # an empty context is false
                    outside, around = outside if found is None else found, around.parent
                # Not detach(): its token is of one thread or task, and a generator's body may run in several.
                otel_context.attach(outside)
            if session.forked:
                return  # the parent ends and exports it
            if self.items is not None:
                span.set_attribute(names.ITEMS.name, self.items)
            if self.failed and isinstance(error, Exception):
                span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            span.end(end_time=self.end_ns)
        except Exception as failure:  # noqa: BLE001 - as at the start
            report(session, "span errors", failure)
        session.spans.pop(self.span_id, None)

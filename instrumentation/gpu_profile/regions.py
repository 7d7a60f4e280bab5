"""Named parts of a program: `with region("prefill"):`, `@region`, `handle = region.start("step")`.

Each execution is an OpenTelemetry span (if the service has a tracer provider) and an interval for the join. The user's
function runs exactly once, its result and its exceptions pass through, and our own failures stay ours.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import ContextVar
from math import inf
from numbers import Real
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast, overload

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from gpu_profile import process
from gpu_profile.catalogue import attributes as names
from gpu_profile.executions import Execution
from gpu_profile.session import Session

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("gpu_profile")
_current: Final[ContextVar[Execution | None]] = ContextVar("gpu_profile_region", default=None)
#: The API's proxy finds a provider that is set later.
_tracer: Tracer = trace.get_tracer("gpu_profile")


def current_name() -> str | None:
    """The name of the innermost region that runs in this thread or task."""
    execution = _running(_current.get())
    return None if execution is None else execution.name


def _running(execution: Execution | None) -> Execution | None:
    """The execution or, if it has ended, for instance in another thread, the innermost around it that has not."""
    while execution is not None and execution.end_ns:
        execution = execution.parent
    return execution


class Region(Execution):
    """One execution of a region: a context manager, or what `region.start` returned until `end()`.

    As a decorator it runs none itself, but one for every call. Used in `with` once more, it makes another.
    """

    __slots__ = ("_again", "_given", "_outside", "_session", "_span", "_strict", "_wants_span")

    # Positional, and without super(): this and the two methods below are most of what a region costs.
    def __init__(
        self, name: str, items: float | None = None, device: str | None = None, span: bool = True, strict: bool = False
    ) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"a region's name is a non-empty string, not {name!r}")
        self.name = name
        self.items = self._given = None if items is None else _amount(items)
        self.device = device
        self.start_ns = self.end_ns = self.span_id = self.trace_id = 0
        self.failed = False
        self.stream = None
        self._wants_span = span
        self._strict = strict
        self._span: Span | None = None
        self._again: list[Region] | None = None

    @property
    def span(self) -> Span | None:
        """The execution's span, while it runs and if it has one."""
        return self._span

    def add_items(self, items: float) -> None:
        """This execution did `items` more units of work than it was started with."""
        self.items = (self.items or 0.0) + _amount(items)

    # ------------------------------------------------------------------ one execution

    def _begin(self, nested: bool = True) -> None:
        """Start; `nested`: what starts in this thread or task before the end is inside it."""
        session = process.current
        if session is None or not session.active:
            session = process.session()
        self._session = session
        parent = _current.get()
        self.parent = parent if parent is None or not parent.end_ns else _running(parent)
        if nested:
            _current.set(self)
        clock = session.now_ns  # an attribute that is called as a method is looked up the slow way
        self.start_ns = clock()
        session.began.append(self)
        if session.stream is not None:
            self._mark_start(session.stream)
        if self._wants_span:
            self._start_span(nested)

    def end(self, error: BaseException | None = None) -> None:
        """End; ending twice is fine. `error` is recorded on the span and the execution counts as failed."""
        if self.end_ns or not self.start_ns:
            return
        if self.stream is not None:
            try:
                self.end_mark = self.stream.record()
            except Exception as failure:  # noqa: BLE001 - as at the start: the host's interval must do then
                self.stream = None
                _report(self._session, "mark errors", failure)
        clock = self._session.now_ns
        now = clock()
        if error is not None:
            self.failed = not isinstance(error, GeneratorExit)
        inside = _current.get() is self  # else it ends in another thread or task, which has its own
        if inside:
            _current.set(self.parent)
        # Last of what the join reads. A clock that was set back makes no negative interval.
        self.end_ns = now if now > self.start_ns else self.start_ns  # noqa: FURB136
        if self._span is not None:
            self._end_span(self._span, error, inside)

    def _mark_start(self, stream: Any) -> None:
        try:
            self.mark_start(stream() if callable(stream) else stream)
        except Exception as error:  # noqa: BLE001 - a framework's failing event must not fail the user's region
            _report(self._session, "mark errors", error)

    def _start_span(self, nested: bool) -> None:
        try:
            attributes = {names.REGION.name: self.name}
            span = _tracer.start_span(self.name, attributes=attributes, start_time=self.start_ns)
            self._outside, self._span = None, span
            if (context := span.get_span_context()).is_valid:
                self.span_id, self.trace_id = context.span_id, context.trace_id
                if nested:
                    self._outside = otel_context.get_current()
                    otel_context.attach(trace.set_span_in_context(span, self._outside))
        except Exception as error:  # noqa: BLE001 - a sampler or processor that fails must not fail the user's region
            _report(self._session, "span errors", error)

    def _end_span(self, span: Span, error: BaseException | None, inside: bool) -> None:
        self._span = None
        session = self._session
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
            if session.on_step:
                session.ending[self.span_id] = self
            span.end(end_time=self.end_ns)
        except Exception as failure:  # noqa: BLE001 - as at the start
            _report(session, "span errors", failure)
        finally:
            session.ending.pop(self.span_id, None)

    # ------------------------------------------------------------------ in use

    def _fresh(self) -> Region:
        """Another execution of the same region, which has not begun."""
        if self._strict:
            process.require_driver()
        return Region(self.name, self._given, self.device, self._wants_span)

    def __enter__(self) -> Region:
        if self.start_ns or self._strict:
            return self._enter_another()
        self.start_ns = 1  # taken, should another thread come to use it too
        self._begin()
        return self

    def _enter_another(self) -> Region:
        another = self._fresh()
        if self._again is None:
            self._again = []
        self._again.append(another)
        another._begin()
        return another

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        (self._ending(self._again) if self._again else self).end(error)

    def _ending(self, again: list[Region]) -> Region:
        """Which of this object's executions a `with` block ends that ends now."""
        running = [execution for execution in (self, *again) if execution.start_ns and not execution.end_ns]
        execution: Execution | None = _current.get()
        while execution is not None and execution not in running:
            execution = execution.parent
        found = next((one for one in running if one is execution), running[-1] if running else self)
        if found in again:
            again.remove(found)
        return found

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make every call of `function` (plain, async, generator or async generator) an execution of the region."""
        return _decorate(self, function)


def _amount(items: float) -> float:
    if not isinstance(items, Real) or not 0 <= items < inf:
        raise ValueError(f"items is a finite number of at least 0, not {items!r}")
    return float(items)


def _report(session: Session, what: str, error: Exception) -> None:
    """Count a failure that is not the user's, and log the first of its kind."""
    if not session.counts[what]:
        _log.warning("gpu-profile: a region goes on without its %s: %r", what.removesuffix(" errors"), error)
    session.counts[what] += 1


# ---------------------------------------------------------------------- decorated functions


class _Body:
    """A generator's body runs inside its region; what its caller does between two steps does not.

    A context variable that a generator sets stays set while it is suspended, so both sides' values are kept apart.
    """

    __slots__ = ("_inside", "_outside", "_outside_spans", "_spans", "region")

    def __init__(self, template: Region) -> None:
        self.region = template._fresh()
        self.region._begin(nested=False)
        self._inside: Execution | None = self.region
        span = self.region.span if self.region.span_id else None
        self._spans: Context | None = None if span is None else trace.set_span_in_context(span)

    def __enter__(self) -> None:
        self._outside, self._outside_spans = _current.get(), otel_context.get_current()
        _current.set(self._inside)
        if self._spans is not None:
            otel_context.attach(self._spans)

    def __exit__(self, *_: object) -> None:
        self._inside = _current.get()
        _current.set(self._outside)
        if self._spans is not None:
            self._spans = otel_context.get_current()
            otel_context.attach(self._outside_spans)


def _decorate(region: Region, function: Callable[P, R]) -> Callable[P, R]:
    if isinstance(function, (type, property, staticmethod, classmethod)) or not callable(function):
        raise TypeError(f"@region decorates functions, not {function!r}: put it on the function inside")
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            with region._fresh():
                return await function(*args, **kwargs)

        return cast("Callable[P, R]", run_async)
    if inspect.isasyncgenfunction(function):
        return cast("Callable[P, R]", _async_generator(region, function))
    if inspect.isgeneratorfunction(function):
        return cast("Callable[P, R]", _generator(region, function))
    name, items, device, span, strict = region.name, region.items, region.device, region._wants_span, region._strict

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if strict:
            process.require_driver()
        execution = Region(name, items, device, span)
        execution._begin()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            execution.end(error)
            raise
        execution.end()
        return result

    return run


def _generator(region: Region, function: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        body, inner, error = _Body(region), function(*args, **kwargs), None
        step, value = inner.send, None
        try:
            while True:
                with body:
                    item = step(value)
                try:
                    step, value = inner.send, (yield item)
                except GeneratorExit:
                    with body:
                        inner.close()
                    raise
                except BaseException as thrown:  # noqa: BLE001 - it is the body's to handle
                    step, value = inner.throw, thrown
        except StopIteration as stop:
            return stop.value
        except BaseException as raised:
            error = raised
            raise
        finally:
            body.region.end(error)

    return run


def _async_generator(region: Region, function: Callable[..., AsyncGenerator[Any, Any]]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        body, inner, error = _Body(region), function(*args, **kwargs), None
        step, value = inner.asend, None
        try:
            while True:
                with body:
                    item = await step(value)
                try:
                    step, value = inner.asend, (yield item)
                except GeneratorExit:
                    with body:
                        await inner.aclose()
                    raise
                except BaseException as thrown:  # noqa: BLE001 - it is the body's to handle
                    step, value = inner.athrow, thrown
        except StopAsyncIteration:
            return
        except BaseException as raised:
            error = raised
            raise
        finally:
            body.region.end(error)

    return run


# ---------------------------------------------------------------------- what users import


class _RegionEntry(Protocol):
    """`region`: callable in three ways, and `region.start`."""

    @overload
    def __call__(self, name: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def __call__(
        self, name: str, /, *, items: float | None = ..., device: str | None = ..., span: bool = ..., strict: bool = ...
    ) -> Region: ...
    @staticmethod
    def start(
        name: str, *, items: float | None = ..., device: str | None = ..., span: bool = ..., strict: bool = ...
    ) -> Region: ...


def _region(
    name: str | Callable[P, R],
    /,
    *,
    items: float | None = None,
    device: str | None = None,
    span: bool = True,
    strict: bool = False,
) -> Region | Callable[P, R]:
    """Name a part of the program, as a context manager or a decorator.

    `items` are the units of work of an execution (tokens, images). `device` is the UUID of the GPU that it uses,
    where that is not the process's default. `span=False` emits no OpenTelemetry span. `strict` raises
    GpuBackendError if no GPU driver can be used; without it the region runs and is simply not joined.
    Raises TypeError for a name that is empty or a thing that is no function, ValueError for items below 0.
    """
    if isinstance(name, str):
        return Region(name, items, device, span, strict)
    if callable(name):
        return Region(getattr(name, "__qualname__", "region"))(name)
    raise TypeError(f"region takes a name or a function, not {name!r}")


def _start(
    name: str, *, items: float | None = None, device: str | None = None, span: bool = True, strict: bool = False
) -> Region:
    """Begin an execution now and end it with `.end()`, in this thread or another. It is nobody's parent."""
    begun = Region(name, items, device, span, strict)._fresh()
    begun._begin(nested=False)
    return begun


# A function costs a caller half of what an object with `__call__` does; the type checker is told what it carries.
_region.start, _region.__name__ = _start, "region"  # type: ignore[attr-defined]
region: Final = cast(_RegionEntry, _region)

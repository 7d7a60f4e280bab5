"""Named parts of a program: `with region("prefill"):`, `@region`, `handle = region.start("step")`.

Each execution is an OpenTelemetry span (if the service has a tracer provider) and an interval for the join. The user's
function runs exactly once, its result and its exceptions pass through, and our own failures stay ours.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Generator
from contextvars import ContextVar, Token
from time import time_ns
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from gpu_profile import process
from gpu_profile.catalogue import attributes as names
from gpu_profile.executions import Execution

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("gpu_profile")
_current: Final[ContextVar[Execution | None]] = ContextVar("gpu_profile_region", default=None)
_tracer: Tracer | None = None


def _get_tracer() -> Tracer:
    global _tracer  # noqa: PLW0603 - looked up once; the API's proxy finds a provider that is set later
    if _tracer is None:
        _tracer = trace.get_tracer("gpu_profile")
    return _tracer


def current_name() -> str | None:
    """The name of the innermost region that runs in this thread or task."""
    execution = _current.get()
    return None if execution is None else execution.name


class RegionHandle:
    """One execution of a region: a context manager, or what `region.start` returned until `end()`."""

    __slots__ = ("_context", "_execution", "_items", "_name", "_session", "_span", "_token", "_wants_span", "device")

    def __init__(self, name: str, *, items: float | None, device: str | None, span: bool) -> None:
        self._name = name
        self._items = items
        self.device = device
        self._wants_span = span
        self._execution: Execution | None = None
        self._span: Span | None = None
        self._context: Token[Any] | None = None
        self._token: Token[Execution | None] | None = None

    @property
    def span(self) -> Span | None:
        """The execution's span, while it runs and if it has one."""
        return self._span

    def add_items(self, items: float) -> None:
        """This execution did `items` more units of work than it was started with."""
        self._items = (self._items or 0.0) + items

    def begin(self, *, nested: bool = True) -> None:
        """Start; `nested`: what starts in this thread or task before the end is inside it."""
        if self._execution is not None:
            raise RuntimeError(f"region {self._name!r} runs already: make a new one for each execution")
        self._session = session = process.session()
        execution = Execution(self._name, _current.get(), self._items, self.device)
        self._execution = execution
        if nested:
            self._token = _current.set(execution)
        execution.start_ns = time_ns()
        session.open[execution] = None
        stream = process.settings().stream
        if stream is not None:
            self._mark_start(execution, stream() if callable(stream) else stream)
        if self._wants_span:
            self._start_span(execution, nested=nested)

    def _mark_start(self, execution: Execution, stream: Any) -> None:
        try:
            execution.start_mark = stream.record()
            execution.stream = stream
        except Exception:  # noqa: BLE001 - a framework's failing event must not fail the user's region
            self._session.counts["mark errors"] += 1
            _log.debug("gpu-profile: no device mark for %s", self._name, exc_info=True)

    def _start_span(self, execution: Execution, *, nested: bool) -> None:
        attributes = {names.REGION.name: self._name}
        span = _get_tracer().start_span(self._name, attributes=attributes, start_time=execution.start_ns)
        self._span = span
        context = span.get_span_context()
        if context.is_valid:
            execution.span_id, execution.trace_id = context.span_id, context.trace_id
            if span.is_recording() and self._session.holds_spans:
                self._session.executions[context.span_id] = execution
            if nested:
                self._context = otel_context.attach(trace.set_span_in_context(span))

    def end(self, error: BaseException | None = None) -> None:
        """End; ending twice is fine. `error` is recorded on the span and the execution counts as failed."""
        execution, self._execution = self._execution, None
        if execution is None:
            return
        execution.items = self._items
        execution.failed = error is not None and not isinstance(error, GeneratorExit)
        if execution.stream is not None:
            try:
                execution.end_mark = execution.stream.record()
            except Exception:  # noqa: BLE001 - as at the start: the host's interval must do then
                execution.stream = None
                self._session.counts["mark errors"] += 1
        execution.end_ns = time_ns()
        if self._token is not None:
            _reset(_current, self._token)
            self._token = None
        self._session.open.pop(execution, None)
        self._session.ended.append(execution)
        if self._span is not None:
            self._end_span(self._span, execution, error)

    def _end_span(self, span: Span, execution: Execution, error: BaseException | None) -> None:
        if self._context is not None:
            otel_context.detach(self._context)
            self._context = None
        if execution.items is not None:
            span.set_attribute(names.ITEMS.name, execution.items)
        if execution.failed and isinstance(error, Exception):
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        span.end(end_time=execution.end_ns)
        self._span = None

    def __enter__(self) -> RegionHandle:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(error)


def _reset(variable: ContextVar[Execution | None], token: Token[Execution | None]) -> None:
    try:
        variable.reset(token)
    except ValueError:
        # Ended in another task or thread than it was started in: that context keeps its own value.
        _log.debug("gpu-profile: a region ended in another context than it began in")


class Region:
    """A region with its settings: a context manager for one execution at a time, and a decorator."""

    __slots__ = ("_device", "_handles", "_items", "_span", "_strict", "name")

    def __init__(
        self,
        name: str,
        *,
        items: float | None = None,
        device: str | None = None,
        span: bool = True,
        strict: bool = False,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"a region's name is a non-empty string, not {name!r}")
        self.name = name
        self._items = items
        self._device = device
        self._span = span
        self._strict = strict
        self._handles: list[RegionHandle] = []

    def handle(self) -> RegionHandle:
        """A new execution that has not begun."""
        if self._strict:
            process.require_driver()
        return RegionHandle(self.name, items=self._items, device=self._device, span=self._span)

    def __enter__(self) -> RegionHandle:
        handle = self.handle()
        handle.begin()
        self._handles.append(handle)
        return handle

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._handles.pop().end(error)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make every call of `function` (plain, async, generator or async generator) an execution of the region."""
        return _decorate(self, function)


def _decorate(region: Region, function: Callable[P, R]) -> Callable[P, R]:
    if isinstance(function, (type, property, staticmethod, classmethod)) or not callable(function):
        kind = type(function).__name__
        raise TypeError(f"@region decorates functions, not a {kind}: put it on the function inside")
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            with region.handle():
                return await function(*args, **kwargs)

        return cast("Callable[P, R]", run_async)
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def run_async_generator(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Any]:
            handle = region.handle()
            handle.begin(nested=False)
            error: BaseException | None = None
            try:
                async for item in function(*args, **kwargs):
                    yield item
            except BaseException as raised:
                error = raised
                raise
            finally:
                handle.end(error)

        return cast("Callable[P, R]", run_async_generator)
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def run_generator(*args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, Any]:
            handle = region.handle()
            # A generator is left and entered again: what its caller does in between is not inside the region.
            handle.begin(nested=False)
            error: BaseException | None = None
            try:
                return (yield from function(*args, **kwargs))
            except BaseException as raised:
                error = raised
                raise
            finally:
                handle.end(error)

        return cast("Callable[P, R]", run_generator)

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with region.handle():
            return function(*args, **kwargs)

    return run


class _RegionEntry:
    """What users import as `region`: callable in three ways, and `region.start`."""

    __name__ = "region"

    @overload
    def __call__(self, name: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def __call__(
        self,
        name: str,
        /,
        *,
        items: float | None = None,
        device: str | None = None,
        span: bool = True,
        strict: bool = False,
    ) -> Region: ...
    def __call__(
        self,
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
        """
        if callable(name):
            return Region(getattr(name, "__qualname__", "region"))(name)
        return Region(name, items=items, device=device, span=span, strict=strict)

    def start(
        self,
        name: str,
        *,
        items: float | None = None,
        device: str | None = None,
        span: bool = True,
        strict: bool = False,
    ) -> RegionHandle:
        """Begin an execution now and end it with `.end()`, in this thread or another. It is nobody's parent."""
        handle = Region(name, items=items, device=device, span=span, strict=strict).handle()
        handle.begin(nested=False)
        return handle


region: Final = _RegionEntry()

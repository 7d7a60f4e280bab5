"""Generators as regions, and coroutines that enter their profiler range at each step."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from gpu_profile.regions.execution import Execution
from gpu_profile.regions.running import Running, begun
from gpu_profile.regions.session.session import Session


class _GeneratorBody:
    """Entered at each step: the generator's body runs inside its region, its caller's code between two steps does not.

    A context variable that a generator sets stays set while it is suspended. So both sides' values are swapped at each
    step.
    """

    __slots__ = ("_inside", "_outside", "_outside_spans", "_session", "_spans", "region")

    def __init__(self, region: Running) -> None:
        self.region = region
        self._inside: Execution | None = self.region
        self._session: Session | None = region.session if region.start_ns else None  # else regions are disabled
        span = self.region.span if self.region.span_id else None
        self._spans: Context | None = None if span is None else trace.set_span_in_context(span)

    def __enter__(self) -> None:
        self._outside, self._outside_spans = begun.get(), otel_context.get_current()
        begun.set(self._inside)
        if self._spans is not None:
            otel_context.attach(self._spans)
        if self._session is not None and self._session.make_range is not None:
            self.region.enter_range(self._session)

    def __exit__(self, *_: object) -> None:
        if self.region._range is not None:
            self.region.leave_range()
        self._inside = begun.get()
        begun.set(self._outside)
        if self._spans is not None:
            self._spans = otel_context.get_current()
            otel_context.attach(self._outside_spans)


class Steps:
    """Wraps a coroutine. Each step runs inside the region's profiler range, which is left while it is suspended."""

    def __init__(self, region: Running, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._region = region
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        region, inner = self._region, self._coroutine
        step: Callable[[Any], Any] = inner.send
        value: Any = None
        while True:
            region.enter_range(region.session)
            try:
                item = step(value)
            except StopIteration as stop:
                return stop.value
            finally:
                region.leave_range()
            try:
                step, value = inner.send, (yield item)
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - the coroutine handles it
                step, value = inner.throw, thrown


def generator(start: Callable[[], Running], function: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Any]:
    """Wrap a generator function: every generator is an execution, from its first step to its last.

    `start` begins an execution that is not yet the parent of others.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        body, inner, error = _GeneratorBody(start()), function(*args, **kwargs), None
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
                except BaseException as thrown:  # noqa: BLE001 - the body handles it
                    step, value = inner.throw, thrown
        except StopIteration as stop:
            return stop.value
        except BaseException as raised:
            error = raised
            raise
        finally:
            body.region.end(error)

    return run


def async_generator(
    start: Callable[[], Running], function: Callable[..., AsyncGenerator[Any, Any]]
) -> Callable[..., Any]:
    """`generator` for an async generator function."""

    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        body, inner, error = _GeneratorBody(start()), function(*args, **kwargs), None
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
                except BaseException as thrown:  # noqa: BLE001 - the body handles it
                    step, value = inner.athrow, thrown
        except StopAsyncIteration:
            return
        except BaseException as raised:
            error = raised
            raise
        finally:
            body.region.end(error)

    return run

"""`gpu_profile`: every call of a function as a monitored run, and as a region."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast, overload

from gpu_profile.monitor.gpu_summary import GpuSummary, ProfiledResult
from gpu_profile.monitor.options import Options, SyncFn, options
from gpu_profile.monitor.pauses import await_through, sleep_through
from gpu_profile.monitor.run import Run
from gpu_profile.regions.session import process

P = ParamSpec("P")
R = TypeVar("R")
Y = TypeVar("Y")
S = TypeVar("S")

Report = bool | Callable[[GpuSummary], object]


class _How(TypedDict, total=False):
    """The keywords that do not change the return type, for the overloads."""

    device: Any
    interval_s: float
    backend: str
    strict: bool
    sync_fn: SyncFn
    warmup_s: float
    report: Report


class Unchanged(Protocol):
    """A decorator that leaves types as they are."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """The function, measured."""
        ...


class Profiled(Protocol):
    """A decorator that makes a function return its result together with the summary."""

    @overload
    def __call__(  # type: ignore[overload-overlap] # a plain function that returns a coroutine is R below
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, ProfiledResult[R]]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap] # as above
        self, function: Callable[P, Generator[Y, S, R]], /
    ) -> Callable[P, Generator[Y, S, ProfiledResult[R]]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, ProfiledResult[R]]: ...


@overload
def gpu_profile(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def gpu_profile(*, return_profile: Literal[False] = False, **how: Unpack[_How]) -> Unchanged: ...
@overload
def gpu_profile(*, return_profile: Literal[True], **how: Unpack[_How]) -> Profiled: ...
def gpu_profile(
    function: Callable[..., Any] | None = None,
    /,
    *,
    device: Any = 0,
    interval_s: float = 0.2,
    backend: str = "auto",
    strict: bool = True,
    sync_fn: SyncFn = None,
    warmup_s: float = 0.0,
    report: Report = True,
    return_profile: bool = False,
) -> Any:
    """Measure the GPU during every call of a function: plain, async, generator or async generator.

    `device`, `interval_s`, `backend`, `strict`, `sync_fn` and `warmup_s` are as in `GpuMonitor`. `report`: print each
    summary (True), print none (False), or call this function with it. `return_profile`: return a `ProfiledResult`
    instead of the function's result; for a generator, instead of its return value. Bare `@gpu_profile` has all
    defaults.

    A call is also a region, named after the function, if the process's own driver measures it. With `report=False` and
    without `return_profile` it is only a region, and nothing waits for the GPU or the driver.
    The function's exceptions pass through after the summary is reported. An error of `sync_fn` or `report` is then
    added to them as a note. Raises ValueError and TypeError as `GpuMonitor` does, and TypeError for an object that is
    not a function. With `strict`, a call that cannot be measured raises GpuBackendError or UsageError before the
    function runs.
    """
    if not (isinstance(report, bool) or callable(report)):
        raise TypeError(f"report is True, False or a function that takes a GpuSummary, not {report!r}")
    asked = options(device, interval_s, backend, strict, sync_fn, warmup_s)
    profile = _Profile(asked, report, return_profile)
    return profile if function is None else profile(function)


class _Profile:
    """The decorator with its options."""

    def __init__(self, asked: Options, report: Report, returns: bool) -> None:
        self._options = asked
        self._report = _print if report is True else report or None
        self._returns = returns
        self._off = not (report or returns)

    def __call__(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        if isinstance(function, (type, property, staticmethod, classmethod)) or not callable(function):
            raise TypeError(f"@gpu_profile decorates functions, not {function!r}: put it on the function inside")
        name = getattr(function, "__qualname__", None) or "gpu_profile"
        if inspect.iscoroutinefunction(function):
            return self._coroutine(function, name)
        if inspect.isasyncgenfunction(function):
            if self._returns:
                raise TypeError("return_profile: an async generator has no return value to replace; use report")
            return self._async_generator(function, name)
        if inspect.isgeneratorfunction(function):
            return self._generator(function, name)
        return self._function(function, name)

    # ------------------------------------------------------------------ one call

    def _run(self) -> Run:
        return Run(self._options, reads=not self._off)

    @property
    def _idle(self) -> bool:
        """Whether calls are plain calls: measuring is disabled and the result needs no profile."""
        return process.disabled and not self._returns

    def _ending(self, run: Run, error: BaseException | None = None) -> Generator[float, None, None]:
        """Summarise and report. An exception here is raised, or added as a note to the function's own `error`."""
        try:
            yield from run.closing(error)
            if self._report is not None and not run.abandoned and not process.disabled:
                for summary in run.summaries:
                    self._report(summary)
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"gpu-profile: the report failed too: {failure!r}")

    def _result(self, run: Run, value: Any) -> Any:
        return ProfiledResult(value, run.summaries[0], run.summaries) if self._returns else value

    # ------------------------------------------------------------------ kinds of functions

    def _function(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._idle:
                return function(*args, **kwargs)
            run = self._run()
            sleep_through(run.opening())
            try:
                with run.region(name):
                    value = function(*args, **kwargs)
                    run.synchronise()
            except BaseException as error:
                sleep_through(self._ending(run, error))
                raise
            sleep_through(self._ending(run))
            return self._result(run, value)

        return call

    def _coroutine(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._idle:
                return await function(*args, **kwargs)
            run = self._run()
            await await_through(run.opening())
            try:
                with run.region(name):
                    value = await function(*args, **kwargs)
                    run.synchronise()
            except BaseException as error:
                await await_through(self._ending(run, error))
                raise
            await await_through(self._ending(run))
            return self._result(run, value)

        return call

    def _generator(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def steps(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            if self._idle:
                return (yield from function(*args, **kwargs))
            run = self._run()
            sleep_through(run.opening())
            try:
                value = yield from _as_region(run, name, function)(*args, **kwargs)
                run.synchronise()
            except BaseException as error:
                sleep_through(self._ending(run, _own(error)))
                raise
            sleep_through(self._ending(run))
            return self._result(run, value)

        return steps

    def _async_generator(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        async def steps(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            run = self._run()
            if not self._idle:
                await await_through(run.opening())
            inner = _as_region(run, name, function)(*args, **kwargs)
            step, value = inner.asend, None
            try:
                while True:
                    item = await step(value)
                    try:
                        step, value = inner.asend, (yield item)
                    except GeneratorExit:
                        await inner.aclose()
                        raise
                    except BaseException as thrown:  # noqa: BLE001 - the function handles it
                        step, value = inner.athrow, thrown
            except StopAsyncIteration:
                run.synchronise()
            except BaseException as error:
                if run.start_ns:
                    await await_through(self._ending(run, _own(error)))
                raise
            if run.start_ns:
                await await_through(self._ending(run))

        return steps


def _as_region(run: Run, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The generator function as a region. Its caller's code between two steps is not inside the region."""
    template = run.as_region(name)
    return function if template is None else cast("Callable[..., Any]", template(function))


def _own(error: BaseException) -> BaseException | None:
    """The error of a generator, None for GeneratorExit: closing is no failure, and a note on it would be lost."""
    return None if isinstance(error, GeneratorExit) else error


def _print(summary: GpuSummary) -> None:
    text = summary.format()
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    # A terminal that cannot show the trace must not fail the measured function.
    print(text.encode(encoding, "replace").decode(encoding))  # noqa: T201 - `report=True` prints

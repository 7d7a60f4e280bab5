"""The ranges of a profiler: blocks, decorated functions, and pairs of push and pop. Each is a region as well."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, ParamSpec, TypeVar, cast

from gpu_profile.errors import UsageError
from gpu_profile.kernels.gmp.collecting import Collecting
from gpu_profile.kernels.gmp.results import ProfileType
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.generators import async_generator, generator
from gpu_profile.regions.region import Region, region
from gpu_profile.regions.running import Running
from gpu_profile.regions.session import process

P = ParamSpec("P")
R = TypeVar("R")


class ProfiledRange:
    """What `profile_range` returns: a context manager, or a decorator. It may be used again and in several threads."""

    __slots__ = ("_region", "kind", "name", "told")

    def __init__(self, told: Collecting, name: str, kind: ProfileType) -> None:
        self.told, self.name, self.kind = told, name, kind
        self._region = region(name)

    def __enter__(self) -> Region:
        thread = self.told.begin(self.name, self.kind)
        try:
            return self._region.__enter__()
        except BaseException:
            self.told.end(thread)
            raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self._region.__exit__(kind, error, traceback)
        finally:
            self.told.end(threading.get_ident())  # a block ends in the thread in which it began

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make every call of `function` a range of this name and type."""
        return decorate(self.told, function, self.name, self.kind)


# ---------------------------------------------------------------------- decorated functions


def decorate(told: Collecting, function: Callable[P, R], given: str | None, kind: ProfileType) -> Callable[P, R]:
    """Make every call of a function (plain, async, generator or async generator) a range, by default of its name."""
    name: str = given or cast("str", getattr(function, "__qualname__", "range"))
    inner = region(name)(function)  # it also says what cannot be decorated
    if inspect.isasyncgenfunction(function):
        return cast("Callable[P, R]", async_generator(lambda: _GeneratorRange(told, name, kind), function))
    if inspect.isgeneratorfunction(function):
        return cast("Callable[P, R]", generator(lambda: _GeneratorRange(told, name, kind), function))
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def later(*args: P.args, **kwargs: P.kwargs) -> Any:
            with _around(told, name, kind):
                return await cast(Any, inner(*args, **kwargs))

        return cast("Callable[P, R]", later)

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with _around(told, name, kind):
            return inner(*args, **kwargs)

    return run


@contextmanager
def _around(told: Collecting, name: str, kind: ProfileType) -> Iterator[None]:
    thread = told.begin(name, kind)
    try:
        yield
    finally:
        told.end(thread)


class _GeneratorRange(Running):
    """The execution of a generator, from its first step to its last, which may be in several threads."""

    __slots__ = ("_thread", "_told")

    def __init__(self, told: Collecting, name: str, kind: ProfileType) -> None:
        Execution.__init__(self, name)
        self._told: Collecting | None = told
        self._thread = told.begin(name, kind)
        if not process.disabled:
            self.begin(nested=False, span=True)

    def end(self, error: BaseException | None = None) -> None:
        """As any execution ends; who is told is told once."""
        super().end(error)
        told, self._told = self._told, None
        if told is not None:
            told.end(self._thread)


# ---------------------------------------------------------------------- push and pop

#: What was pushed in this thread or task and not popped yet.
_pushed: Final[ContextVar[tuple[ProfiledRange, ...]]] = ContextVar("gpu_profile_pushed", default=())


def push(block: ProfiledRange) -> None:
    """Begin a range that `pop` ends."""
    block.__enter__()
    _pushed.set((*_pushed.get(), block))


def pop(told: Collecting, kind: ProfileType) -> None:
    """End the range of this type that was pushed last in this thread or task; UsageError if there is none."""
    pushed = _pushed.get()
    mine = [block for block in pushed if block.told is told]
    found = next((block for block in reversed(mine) if block.kind is kind), None)
    if found is None:
        other = f"; {mine[-1].name!r} is of type {mine[-1].kind}" if mine else ""
        raise UsageError(f"pop_range({kind}): no range of this type was pushed in this thread or task{other}")
    _pushed.set(tuple(block for block in pushed if block is not found))
    found.__exit__(None, None, None)

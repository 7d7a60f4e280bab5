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
    """The result of `profile_range`: a context manager, or a decorator. Reusable, also in several threads."""

    __slots__ = ("_region", "collecting", "kind", "name")

    def __init__(self, collecting: Collecting, name: str, kind: ProfileType) -> None:
        self.collecting, self.name, self.kind = collecting, name, kind
        self._region = region(name)

    def __enter__(self) -> Region:
        thread = self.collecting.begin(self.name, self.kind)
        try:
            return self._region.__enter__()
        except BaseException:
            self.collecting.end(thread)
            raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self._region.__exit__(kind, error, traceback)
        finally:
            self.collecting.end(threading.get_ident())  # a block ends in the thread in which it began

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make every call of `function` a range of this name and type."""
        return decorate(self.collecting, function, self.name, self.kind)


# ---------------------------------------------------------------------- decorated functions


def decorate(collecting: Collecting, function: Callable[P, R], given: str | None, kind: ProfileType) -> Callable[P, R]:
    """Make every call of a function (plain, async, generator or async generator) a range, by default of its name."""
    name: str = given or cast("str", getattr(function, "__qualname__", "range"))
    inner = region(name)(function)  # it also rejects objects that cannot be decorated
    if inspect.isasyncgenfunction(function):
        return cast("Callable[P, R]", async_generator(lambda: _GeneratorRange(collecting, name, kind), function))
    if inspect.isgeneratorfunction(function):
        return cast("Callable[P, R]", generator(lambda: _GeneratorRange(collecting, name, kind), function))
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def later(*args: P.args, **kwargs: P.kwargs) -> Any:
            with _around(collecting, name, kind):
                return await cast(Any, inner(*args, **kwargs))

        return cast("Callable[P, R]", later)

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with _around(collecting, name, kind):
            return inner(*args, **kwargs)

    return run


@contextmanager
def _around(collecting: Collecting, name: str, kind: ProfileType) -> Iterator[None]:
    thread = collecting.begin(name, kind)
    try:
        yield
    finally:
        collecting.end(thread)


class _GeneratorRange(Running):
    """The execution of a generator, from its first step to its last, which may be in several threads."""

    __slots__ = ("_collecting", "_thread")

    def __init__(self, collecting: Collecting, name: str, kind: ProfileType) -> None:
        Execution.__init__(self, name)
        self._collecting: Collecting | None = collecting
        self._thread = collecting.begin(name, kind)
        if not process.disabled:
            self.begin(nested=False, span=True)

    def end(self, error: BaseException | None = None) -> None:
        """End the execution, and the range once."""
        super().end(error)
        collecting, self._collecting = self._collecting, None
        if collecting is not None:
            collecting.end(self._thread)


# ---------------------------------------------------------------------- push and pop

#: Ranges that were pushed in this thread or task and not popped yet.
_pushed: Final[ContextVar[tuple[ProfiledRange, ...]]] = ContextVar("gpu_profile_pushed", default=())


def push(block: ProfiledRange) -> None:
    """Begin a range that `pop` ends."""
    block.__enter__()
    _pushed.set((*_pushed.get(), block))


def pop(collecting: Collecting, kind: ProfileType) -> None:
    """End the range of this type that was pushed last in this thread or task; UsageError if there is none."""
    pushed = _pushed.get()
    own = [block for block in pushed if block.collecting is collecting]
    last = next((block for block in reversed(own) if block.kind is kind), None)
    if last is None:
        other = f"; {own[-1].name!r} is of type {own[-1].kind}" if own else ""
        raise UsageError(f"pop_range({kind}): no range of this type was pushed in this thread or task{other}")
    _pushed.set(tuple(block for block in pushed if block is not last))
    last.__exit__(None, None, None)

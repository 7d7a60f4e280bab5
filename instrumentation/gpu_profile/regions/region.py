"""Named parts of a program: `with region("prefill"):`, `@region`, `handle = region.start("step")`.

Each execution is an OpenTelemetry span (if the service has a tracer provider) and an interval for the join. The user's
function runs exactly once, and its result and its exceptions pass through. Errors of the measurement never reach it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast, overload

from gpu_profile.regions.execution import Execution
from gpu_profile.regions.generators import Steps, async_generator, generator
from gpu_profile.regions.running import Running, amount, begun, innermost
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import Session
from gpu_profile.regions.telemetry import providers

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Running)

# Bound once: Python 3.11 creates a new bound method for every call of a method of an imported name.
_get, _set = begun.get, begun.set
#: Names of devices: see `gpu_profile.driver.visible.Visible.resolve`.
DeviceSpec = Any


def current_name() -> str | None:
    """The name of the innermost region that runs in this thread or task."""
    execution = innermost(_get())
    return None if execution is None else execution.name


class Region(Running):
    """One execution of a region: a context manager, or the result of `region.start` until `end()`.

    As a decorator it creates another execution for every call. So does every further `with` block of the same object.
    """

    __slots__ = ("_plain", "wants_span")

    #: Further executions of this object that have not ended.
    _reentered: list[Region] | None = None
    #: Its `items` argument: `add_items` changes `items`.
    _initial_items: float | None = None
    strict: bool = False

    wants_span: bool
    #: Whether its end only has to record the time.
    _plain: bool

    def _fresh(self) -> Region:
        """Another execution of the same region that has not begun."""
        if self.strict:
            process.require_driver()
        fresh: Region = _named(self.name, items=self._initial_items, device=self.device, span=self.wants_span)
        return fresh

    def _begun(self) -> Region:
        """Another execution that has begun and is not yet the parent of others."""
        fresh = self._fresh()
        if not process.disabled:
            fresh.begin(nested=False, span=self.wants_span, in_steps=True)
        return fresh

    def __enter__(self) -> Region:
        session = process.current
        if session is None or not session.active or self.start_ns or process.disabled:
            return self._enter_slowly()
        self.start_ns = 1  # reserved, in case another thread enters it too
        # Inlined from `begin`.
        self.session = session
        around = _get()
        if around is not None and around.end_ns:
            around = around.parent
            if around is not None and around.end_ns:
                around = innermost(around)
        self.parent = around
        _set(self)
        now = session.now_ns
        self.start_ns = now()
        session.began.append(self)
        if self.wants_span or session.needs_slow_path:
            self._plain = False
            self.show(session, nested=True, span=self.wants_span)
        return self

    def _enter_slowly(self) -> Region:
        if process.disabled:
            self._plain = False
            return self
        if not self.start_ns and not self.strict:
            self.start_ns, self._plain = 1, False
            self.begin(nested=True, span=self.wants_span)
            return self
        another = self._fresh()
        reentered = self._reentered
        if reentered is None:
            reentered = self._reentered = []
            self._plain = False
        reentered.append(another)
        another.begin(nested=True, span=self.wants_span)
        return another

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None and self._plain:
            end_ns = self.session.now_ns()
            if not self.end_ns:  # another thread may have ended it
                self.end_ns = end_ns
        else:
            (self._ending(self._reentered) if self._reentered else self).end(error)

    def _ending(self, reentered: list[Region]) -> Region:
        """The execution of this object that belongs to the `with` block now ending."""
        last = _get()
        if last in reentered and last is not None and not last.end_ns:
            reentered.remove(last)
            return last
        running = [execution for execution in (self, *reentered) if execution.start_ns and not execution.end_ns]
        execution: Execution | None = _get()
        while execution is not None and execution not in running:
            execution = execution.parent
        ending = next((one for one in running if one is execution), running[-1] if running else self)
        if ending in reentered:
            reentered.remove(ending)
        return ending

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make every call of `function` (plain, async, generator or async generator) an execution of the region."""
        return _decorate(self, function)


class _Strict(Region):
    """A region that raises GpuBackendError instead of beginning where no driver can be used."""

    __slots__ = ()

    strict = True

    def __enter__(self) -> Region:
        return self._enter_slowly()


# ---------------------------------------------------------------------- decorated functions


def _decorate(region: Region, function: Callable[P, R]) -> Callable[P, R]:
    if isinstance(function, (type, property, staticmethod, classmethod)) or not callable(function):
        raise TypeError(f"@region decorates functions, not {function!r}: put it on the function inside")
    if inspect.iscoroutinefunction(function):
        return cast("Callable[P, R]", _coroutine(region, function))
    if inspect.isasyncgenfunction(function):
        return cast("Callable[P, R]", async_generator(region._begun, function))
    if inspect.isgeneratorfunction(function):
        return cast("Callable[P, R]", generator(region._begun, function))
    return _function(region, function)


def _function(region: Region, function: Callable[P, R]) -> Callable[P, R]:
    name, items, device, span, strict = region.name, region.items, region.device, region.wants_span, region.strict
    make = _maker(name, items, device, strict=strict)

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if process.disabled:
            return function(*args, **kwargs) if kwargs else function(*args)  # type: ignore[call-arg]
        session = process.current
        if session is None or not session.active:
            session = process.session()
        execution = make()
        # Inlined from `begin`.
        execution.name = name
        execution.end_ns = 0
        around = _get()
        if around is not None and around.end_ns:
            around = around.parent
            if around is not None and around.end_ns:
                around = innermost(around)
        execution.parent = around
        _set(execution)
        now = session.now_ns
        execution.start_ns = now()
        session.began.append(execution)
        shown = span or session.needs_slow_path
        if shown:
            execution.show(session, nested=True, span=span)
        try:
            # Passing an empty `**kwargs` would copy it.
            result = function(*args, **kwargs) if kwargs else function(*args)  # type: ignore[call-arg]
        except BaseException as error:
            execution.session = session
            execution.end(error)
            raise
        if shown:
            execution.end()
        else:
            execution.end_ns = now()
        return result

    return run


def _maker(name: str, items: float | None, device: Hashable, *, strict: bool) -> Callable[[], Running]:
    """The factory of an execution for each call. Without options it is the class, the cheapest."""
    if items is None and device is None and not strict:
        return cast("Callable[[], Running]", Running)
    create: Callable[[], Running] = functools.partial(_create, Running, name, items, device, strict=strict)
    return create


def _coroutine(region: Region, function: Callable[..., Any]) -> Callable[..., Any]:
    name, items, device, span, strict = region.name, region.items, region.device, region.wants_span, region.strict
    make = _maker(name, items, device, strict=strict)

    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        # Repeated from `_function`: a shared helper's call would cost more than all of this.
        if process.disabled:
            return await function(*args, **kwargs)
        session = process.current
        if session is None or not session.active:
            session = process.session()
        execution = make()
        execution.name = name
        execution.end_ns = 0
        around = _get()
        if around is not None and around.end_ns:
            around = around.parent
            if around is not None and around.end_ns:
                around = innermost(around)
        execution.parent = around
        _set(execution)
        now = session.now_ns
        execution.start_ns = now()
        session.began.append(execution)
        shown = span or session.needs_slow_path
        if shown:
            execution.in_steps = session.make_range is not None
            execution.show(session, nested=True, span=span)
        try:
            calling = function(*args, **kwargs) if kwargs else function(*args)
            result = await (Steps(execution, calling) if shown and execution.in_steps else calling)
        except BaseException as error:
            execution.session = session
            execution.end(error)
            raise
        if shown:
            execution.end()
        else:
            execution.end_ns = now()
        return result

    return run


# ---------------------------------------------------------------------- the user's interface


class _RegionEntry(Protocol):
    """`region`: callable in three ways, and `region.start`."""

    @overload
    def __call__(self, name: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def __call__(
        self, name: str, /, *, items: float | None = ..., device: DeviceSpec = ..., span: bool = ..., strict: bool = ...
    ) -> Region: ...
    @staticmethod
    def start(
        name: str, *, items: float | None = ..., device: DeviceSpec = ..., span: bool = ..., strict: bool = ...
    ) -> Region: ...


def _named(
    name: str | Callable[P, R],
    /,
    *,
    items: float | None = None,
    device: DeviceSpec = None,
    span: bool = True,
    strict: bool = False,
) -> Any:
    """Name a part of the program, as a context manager or a decorator.

    `items`: the units of work of an execution (tokens, images). `device`: the GPUs that it uses, if not the process's
    default: a CUDA ordinal, a UUID, `nvml:N`, or several of them. `span=False` emits no OpenTelemetry span. `strict`
    raises GpuBackendError if no GPU driver can be used; without `strict` the region runs but is not joined.
    Raises TypeError for an empty name or a decorated object that is not a function. Raises ValueError for `items` that
    are negative, infinite or not a number.
    """
    if type(name) is not str:
        if callable(name):
            return _decorate(_make(getattr(name, "__qualname__", "region")), name)
        if not isinstance(name, str):
            raise TypeError(f"region takes a name or a function, not {name!r}")
    if items is not None or device is not None or strict or not name:
        return _make(name, items, device, span, strict)
    # Inlined from `_make`: this and the block's two methods are the whole cost of a region.
    made = Region()
    made.name = name
    made.start_ns = made.end_ns = 0
    made.wants_span = span
    made._plain = not span
    return made


def _make(
    name: str, items: float | None = None, device: DeviceSpec = None, span: bool = True, strict: bool = False
) -> Region:
    if not isinstance(name, str) or not name:
        raise TypeError(f"a region's name is a non-empty string, not {name!r}")
    items = None if items is None else amount(items)
    made: Region = _create(
        _Strict if strict else Region, name, items, device if isinstance(device, Hashable) else tuple(device)
    )
    made.wants_span = span
    made._plain = not span
    if items is not None:
        made._initial_items = items
    return made


def _create(kind: type[T], name: str, items: float | None, device: Hashable, *, strict: bool = False) -> T:
    if strict:
        process.require_driver()
    made: T = kind()
    Execution.__init__(made, name, None, items, device)
    return made


def _start(
    name: str, *, items: float | None = None, device: DeviceSpec = None, span: bool = True, strict: bool = False
) -> Region:
    """Begin an execution now and end it with `.end()`, in this thread or another. It never becomes a parent."""
    made = _make(name, items, device, span, strict)
    if strict:
        process.require_driver()
    if not process.disabled:
        made.begin(nested=False, span=span)
    return made


# Calling a function costs half as much as calling an object with `__call__`. The cast declares its attributes.
_named.start = _start  # type: ignore[attr-defined]
_named.__name__ = _named.__qualname__ = "region"  # Python's own TypeErrors name it too
region: Final = cast(_RegionEntry, _named)


def _join_provider(session: Session) -> None:
    if process.settings().spans:
        providers.auto(session)


# A program with a region needs no other code to have its spans joined.
process.on_start(_join_provider)

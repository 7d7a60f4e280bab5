"""A function bound to its arguments, with its work if that can be computed before it runs."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, Generic, TypeVar

from gpu_profile.errors import UsageError
from gpu_profile.roofline.counting import known
from gpu_profile.roofline.machines import devices
from gpu_profile.roofline.machines.machine import Machine
from gpu_profile.roofline.work import MOST, Work, unknown_work

T = TypeVar("T")
_log = logging.getLogger("gpu_profile")

#: Result types of calls that defer their work -> the reason, with a function to profile instead.
_DEFERRED: Final[dict[type, str]] = {
    CoroutineType: "makes a coroutine, which runs when it is awaited: profile lambda: asyncio.run(f(...))",
    GeneratorType: "makes a generator, which runs when it is iterated: profile lambda: list(f(...))",
    AsyncGeneratorType: "makes a generator, which runs when it is iterated: profile a function that does so",
}


class BoundCall(Generic[T]):
    """A function bound to its arguments. `work` is None if it can only be counted while the call runs.

    The constructor runs none of the user's code. It raises TypeError if `function` is not callable or `name` is not a
    string, and ValueError if `flops` or `bytes` is not a whole number from 0 to 2**63 - 1.
    """

    def __init__(
        self,
        function: Callable[..., T],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        name: str | None = None,
        flops: int | None = None,
        bytes: int | None = None,  # noqa: A002 - the word of the field
    ) -> None:
        if not callable(function):
            raise TypeError(f"an operation is a function that can be called, not {function!r}")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"an operation's name is text, not {name!r}")
        self.function = function
        self.args = tuple(args)
        self.kwargs = dict(kwargs)
        self.name = name or name_of(function)
        self.work = _given(flops, bytes) or known_work(function, self.args, self.kwargs)

    def __call__(self) -> T:
        """Call the function with the arguments."""
        return self.function(*self.args, **self.kwargs)

    def check_device(self, machine: Machine) -> None:
        """Raise UsageError if the call runs on another device than this machine's.

        A PyTorch operation runs on the device of its arguments, unless it has `device=` or moves them. A user's
        function may run anywhere, so it is not checked.
        """
        on_devices = devices.devices_of((self.args, self.kwargs))
        # A machine without a number is the only one of its kind, but PyTorch may number it: "cpu:0".
        here = on_devices | {each.partition(":")[0] for each in on_devices}
        if not on_devices or machine.device in here or "device" in self.kwargs or not _of_pytorch(self.function):
            return
        raise UsageError(
            f"{self.name}: its arguments are on {', '.join(sorted(on_devices))}, this profiler is for "
            f"{machine.device} ({machine.name}): make a GPUProfiler for their device, or move them"
        )


def name_of(function: Callable[..., Any]) -> str:
    """The default name of an operation: the function's, without partials, else its type's."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        name = getattr(function, "__name__", None)
    except Exception:  # noqa: BLE001 - a property or `__getattr__` of the user's may raise anything
        name = None
    return name if isinstance(name, str) and name else type(function).__name__


def known_work(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Work | None:
    """The work of a call, computed without running any of the user's code. None: it has to be counted in a run."""
    try:
        return known.known_work(function, args, kwargs)
    except Exception as error:  # noqa: BLE001 - the user's function must run even if counting fails
        return not_counted(error)


def not_counted(error: Exception) -> Work:
    """Unknown work, because the profiler's own counting failed with `error`, which is logged."""
    _log.warning("gpu-profile: an operation's FLOPs and bytes could not be counted: %r", error)
    return unknown_work(f"counting failed: {error!r}")


def why_deferred(result: object) -> str | None:
    """Why a call that returned `result` has not done its work yet, such as a coroutine. None otherwise."""
    reason = _DEFERRED.get(type(result))
    return None if reason is None else f"a call of it only {reason}"


def _of_pytorch(function: Callable[..., Any]) -> bool:
    if "torch" not in sys.modules or name_of(function) == "to":
        return False
    from gpu_profile.roofline.counting.builtins import plain

    try:
        return plain(function)
    except Exception:  # noqa: BLE001 - as in `name_of`
        return False


def _given(flops: int | None, moved: int | None) -> Work | None:
    if flops is None and moved is None:
        return None
    for name, value in (("flops", flops), ("bytes", moved)):
        # NumPy's whole numbers are Integral as well.
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= value <= MOST):
            raise ValueError(f"{name} is a whole number from 0 to 2**63 - 1, not {value!r:.40}")
    reasons = {name: "not given" for name, value in (("flops", flops), ("bytes", moved)) if value is None}
    return Work(
        flops=None if flops is None else int(flops),
        bytes=None if moved is None else int(moved),
        method="given",
        reasons=reasons,
    )

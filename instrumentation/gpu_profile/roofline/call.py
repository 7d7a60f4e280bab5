"""A function with its arguments, as the profiler is given it, and what is known of its work before it runs."""

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

#: What a call gives that has not done its work yet, and how it would have.
_LATER: Final[dict[type, str]] = {
    CoroutineType: "makes a coroutine, which runs when it is awaited: profile lambda: asyncio.run(f(...))",
    GeneratorType: "makes a generator, which runs when it is iterated: profile lambda: list(f(...))",
    AsyncGeneratorType: "makes a generator, which runs when it is iterated: profile a function that does so",
}


class BoundCall(Generic[T]):
    """A function with its arguments, and what is known beforehand of the work that it does.

    `work` is None if it can only be counted while it runs. Making one runs nothing of the user's. TypeError for what
    cannot be called and for a name that is no text, ValueError for `flops` and `bytes` that are no counts.
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
        """Run it."""
        return self.function(*self.args, **self.kwargs)

    def check_device(self, machine: Machine) -> None:
        """UsageError if it runs elsewhere than on this machine.

        An operation of PyTorch's runs where its arguments are, unless it says `device=` or moves them. A user's
        function may do anything.
        """
        found = devices.devices_of((self.args, self.kwargs))
        # A machine without a number is the only one of its kind, which PyTorch may number all the same.
        here = found | {each.partition(":")[0] for each in found}
        if not found or machine.device in here or "device" in self.kwargs or not _of_pytorch(self.function):
            return
        raise UsageError(
            f"{self.name}: its arguments are on {', '.join(sorted(found))}, this profiler is for "
            f"{machine.device} ({machine.name}): make a GPUProfiler for their device, or move them"
        )


def name_of(function: Callable[..., Any]) -> str:
    """What an operation is called where its caller does not say."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        found = getattr(function, "__name__", None)
    except Exception:  # noqa: BLE001 - a property or `__getattr__` of the user's may raise anything
        found = None
    return found if isinstance(found, str) and found else type(function).__name__


def known_work(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Work | None:
    """What a call will do, as far as that can be told without running anything of the user's; None: count it."""
    try:
        return known.known_work(function, args, kwargs)
    except Exception as error:  # noqa: BLE001 - whatever counting meets, the user's function runs
        return not_counted(error)


def not_counted(error: Exception) -> Work:
    """Work that could not be counted for a reason that is ours."""
    _log.warning("gpu-profile: an operation's FLOPs and bytes could not be counted: %r", error)
    return unknown_work(f"counting failed: {error!r}")


def undone(result: object) -> str | None:
    """Why a call that returned `result` has not done its work yet; None if it has, as far as one can tell."""
    later = _LATER.get(type(result))
    return None if later is None else f"a call of it only {later}"


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

"""Formulas by operation: the project's own tables, and what users have registered."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gpu_profile.roofline.counting.arithmetic import arithmetic
from gpu_profile.roofline.counting.operands import OperatorCall
from gpu_profile.roofline.counting.products import PRODUCTS
from gpu_profile.roofline.work import MOST

Count = Callable[..., int]
_log = logging.getLogger("gpu_profile")


class Registered(NamedTuple):
    """What a user has registered for one operation; None where there is nothing."""

    flops: Count | None
    bytes: Count | None


#: By the name of an operation, `library.name` or `library.name.overload`.
_operations: Final[dict[str, Registered]] = {}
#: By the callable itself: what is profiled as a whole.
_callables: Final[dict[Any, Registered]] = {}
#: Formulas that failed, told once each.
_failed: Final[set[tuple[str, int]]] = set()
_registrations = 0


def register_formula(operation: Any, *, flops: Count | None = None, bytes: Count | None = None) -> None:  # noqa: A002
    """Tell how many floating-point operations and bytes an operation takes. A later formula replaces an earlier one.

    `operation`: an operation of PyTorch (`torch.ops.library.name`, or one overload of it, or what
    `torch.library.custom_op` gives), wherever it runs; or any other callable, which is then counted as a whole when it
    is profiled. Both formulas take what the operation takes and return an int, at least 0. For an operation of PyTorch,
    tensors come without data: `shape`, `strides`, `ndim`, `dtype` (a name, such as `float32`), `itemsize`, `numel()`;
    a formula whose parameters have the names of the operation's is called by these, any other by place, with as many
    arguments as it takes, which is at least one. A formula that raises, or returns something else, leaves that call
    unknown and never fails it; a warning tells so once.

    Raises TypeError for what cannot be called, ValueError if neither formula is given.
    """
    for given in (operation, *(each for each in (flops, bytes) if each is not None)):
        if not callable(given):
            raise TypeError(f"register_formula takes callables, not {given!r}")
    if flops is None and bytes is None:
        raise ValueError("register_formula needs flops=, bytes= or both")
    global _registrations  # noqa: PLW0603
    _registrations += 1
    found = Registered(flops, bytes)
    if (name := _operation_name(operation)) is not None:
        _operations[name] = found
        return
    try:
        _callables[operation] = found
    except TypeError:
        raise TypeError(f"register_formula needs a hashable operation, not {operation!r}") from None


def registrations() -> int:
    """How often something was registered: what was counted before may come out otherwise now."""
    return _registrations


def asked(count: Count, values: Mapping[str, Any], operation: str) -> int | None:
    """What a user's formula says of a call with these arguments; None if it fails, which a warning tells once."""
    try:
        return checked(_applied(count, values))
    except Exception as error:  # noqa: BLE001 - a user's formula must not fail the user's call
        if (operation, _registrations) not in _failed:
            _failed.add((operation, _registrations))
            _log.warning(
                "gpu-profile: a formula registered for %s failed, and its calls are unknown: %r", operation, error
            )
        return None


def _applied(count: Count, values: Mapping[str, Any]) -> Any:
    try:
        parameters = inspect.signature(count).parameters.values()
    except (TypeError, ValueError):  # what is built in may not tell
        return count(**values)
    named = {each.name for each in parameters if each.kind not in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL)}
    places = sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)
    rest = {each.name for each in parameters if each.kind is each.VAR_KEYWORD}
    if named >= values.keys() or (rest and named - rest <= values.keys()):
        return count(**values)
    if rest:
        by_place, by_name = list(values.values())[:places], list(values.items())[places:]
        return count(*by_place, **dict(by_name))
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return count(*values.values())
    if named and named <= values.keys() and len(named) == len(parameters):  # by name, what it asks for
        return count(**{name: values[name] for name in named})
    # One that takes nothing is no formula of what it is asked about: the call says so.
    return count(*list(values.values())[: max(1, places)])


def registered_operation(name: str, overload: str) -> Registered | None:
    """What a user has registered for an operation of PyTorch, its overload before all of them."""
    return _operations.get(f"{name}.{overload}") or _operations.get(name) if _operations else None


def registered_callable(function: Any) -> Registered | None:
    """What a user has registered for a callable as a whole, a method's for all its objects."""
    if not _callables:
        return None
    for each in (function, getattr(function, "__func__", None), getattr(function, "_torchdynamo_orig_callable", None)):
        try:
            if each is not None and (found := _callables.get(each)) is not None:
                return found
        except TypeError:  # not hashable
            continue
    return None


def formula(name: str) -> Callable[[OperatorCall], int] | None:
    """The project's own formula for an operation such as `aten.mm`; None if there is none."""
    return PRODUCTS.get(name) or arithmetic(name)


def checked(count: Any) -> int:
    """What a formula has returned. ValueError if it is no count."""
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST:
        raise ValueError(f"{count!r} is no count")
    return count


def _operation_name(operation: Any) -> str | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    custom = getattr(operation, "_opoverload", None)  # torch.library.custom_op
    if isinstance(custom, torch._ops.OpOverload):
        return _packet_name(custom)
    if isinstance(operation, torch._ops.OpOverload):
        return f"{_packet_name(operation)}.{operation._overloadname}"
    if isinstance(operation, torch._ops.OpOverloadPacket):
        return str(operation._qualified_op_name).replace("::", ".")
    if isinstance(operation, torch._ops.HigherOrderOperator):
        return f"{operation.namespace}.{operation.name()}"
    return None


def _packet_name(overload: Any) -> str:
    return str(overload.overloadpacket._qualified_op_name).replace("::", ".")

"""Formulas by operation: the user's registered ones, and the project's own tables."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gpu_profile.roofline.counting.arithmetic import arithmetic
from gpu_profile.roofline.counting.decompositions import DECOMPOSITIONS
from gpu_profile.roofline.counting.operands import OperatorCall
from gpu_profile.roofline.counting.products import PRODUCTS
from gpu_profile.roofline.work import MOST

Count = Callable[..., int]
_log = logging.getLogger("gpu_profile")


class Registered(NamedTuple):
    """A user's formulas for one operation; None if not registered."""

    flops: Count | None
    bytes: Count | None


#: By the name of an operation, `library.name` or `library.name.overload`.
_operations: Final[dict[str, Registered]] = {}
#: By the callable itself, for callables that are counted as a whole.
_callables: Final[dict[Any, Registered]] = {}
#: Logged failures, as (operation, number of registrations).
_failed: Final[set[tuple[str, int]]] = set()
_registrations = 0


def register_formula(operation: Any, *, flops: Count | None = None, bytes: Count | None = None) -> None:  # noqa: A002
    """Register formulas for the floating-point operations and bytes of an operation. A later call replaces both.

    `operation`: an operation of PyTorch (`torch.ops.library.name`, one of its overloads, or the result of
    `torch.library.custom_op`), which is then counted wherever it runs. Any other callable is counted as a whole when it
    is profiled. Both formulas receive the operation's arguments and return an int of at least 0.

    For an operation of PyTorch, tensors have no data, but `shape`, `strides`, `ndim`, `dtype` (a name such as
    `float32`), `itemsize` and `numel()`. A formula is called with keywords if its parameters have the names of the
    operation's. Any other is called by position, with as many arguments as it has parameters, at least one.
    If a formula raises or returns another value, the work of that call is unknown, and a warning is logged once.

    Raises TypeError if an argument is not callable or the operation not hashable, ValueError without any formula.
    """
    for given in (operation, *(each for each in (flops, bytes) if each is not None)):
        if not callable(given):
            raise TypeError(f"register_formula takes callables, not {given!r}")
    if flops is None and bytes is None:
        raise ValueError("register_formula needs flops=, bytes= or both")
    global _registrations  # noqa: PLW0603
    _registrations += 1
    formulas = Registered(flops, bytes)
    if (name := _operation_name(operation)) is not None:
        _operations[name] = formulas
        return
    try:
        _callables[operation] = formulas
    except TypeError:
        raise TypeError(f"register_formula needs a hashable operation, not {operation!r}") from None


def registrations() -> int:
    """How many times `register_formula` was called. Counts from before a call may be outdated."""
    return _registrations


def asked(count: Count, values: Mapping[str, Any], operation: str) -> int | None:
    """The result of a user's formula for a call with these arguments. None if it fails, which is logged once."""
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
    except (TypeError, ValueError):  # some built-in functions have no signature
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
    if named and named <= values.keys() and len(named) == len(parameters):  # by name, a subset of the arguments
        return count(**{name: values[name] for name in named})
    # A formula without parameters is a mistake: called with one argument, it raises.
    return count(*list(values.values())[: max(1, places)])


def registered_operation(name: str, overload: str) -> Registered | None:
    """The user's formulas for this overload of a PyTorch operation, else for all its overloads, else None."""
    return _operations.get(f"{name}.{overload}") or _operations.get(name) if _operations else None


def registered_callable(function: Any) -> Registered | None:
    """The user's formulas for a callable as a whole, or None. A method's formulas apply to all objects."""
    if not _callables:
        return None
    for each in (function, getattr(function, "__func__", None), getattr(function, "_torchdynamo_orig_callable", None)):
        try:
            if each is not None and (formulas := _callables.get(each)) is not None:
                return formulas
        except TypeError:  # not hashable
            continue
    return None


def formula(name: str) -> Callable[[OperatorCall], int] | None:
    """The project's own formula for an operation such as `aten.mm`. None if there is none."""
    return PRODUCTS.get(name) or DECOMPOSITIONS.get(name) or arithmetic(name)


def checked(count: Any) -> int:
    """The result of a formula. Raises ValueError unless it is an int from 0 to `MOST`."""
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

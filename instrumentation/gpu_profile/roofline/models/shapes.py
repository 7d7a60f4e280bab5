"""The arguments of a call without their data: to tell calls apart, and to count one again after it has run.

Kept in place of the tensors, which would otherwise live until the model has run.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

import torch

_PLAIN: Final = frozenset({int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size})
_TENSORS: Final = (torch.Tensor, torch.nn.Parameter)


class Indescribable(Exception):  # noqa: N818 - what an argument is
    """An argument is neither a dense tensor nor a plain value; the text says what it is."""


class Shape(NamedTuple):
    """A dense tensor without its data."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    device: Any
    requires_grad: bool


class Same(NamedTuple):
    """The tensor of this number among the call's, given once more."""

    number: int


class Plain(NamedTuple):
    """A value that is its own description. Its type counts: 1 is not True."""

    kind: type
    value: Hashable


class Several(NamedTuple):
    """A tuple, list or dictionary of descriptions; `keys` of a dictionary."""

    kind: type
    keys: tuple[Hashable, ...]
    values: tuple[Any, ...]


class Setting(NamedTuple):
    """PyTorch's modes that decide which operations a module runs. `autocast` is its data type, None where it is off."""

    grad: bool
    inference: bool
    autocast: Any


def describe(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    """What `stand_in` makes the like of, equal for calls that do the same work. Raises Indescribable."""
    seen: dict[int, int] = {}
    return _describe(args, seen), _describe(dict(kwargs), seen)


def stand_in(description: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments like those that were described; tensors have memory of their own, which is not written."""
    made: list[Any] = []
    args, kwargs = description
    return _like(args, made), _like(kwargs, made)


def _describe(value: Any, seen: dict[int, int]) -> Hashable:
    kind = type(value)
    if kind in _TENSORS:
        if (number := seen.get(id(value))) is not None:
            return Same(number)
        if value.layout is not torch.strided or value.is_nested or value.is_quantized:
            raise Indescribable("a tensor that is not dense")
        seen[id(value)] = len(seen)
        return Shape(tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad)
    if kind in _PLAIN:
        return Plain(kind, value)
    if kind is tuple or kind is list:
        return Several(kind, (), tuple([_describe(each, seen) for each in value]))
    if kind is dict:
        return Several(kind, tuple(value), tuple([_describe(each, seen) for each in value.values()]))
    raise Indescribable(f"a {kind.__name__}")


def _like(description: Any, made: list[Any]) -> Any:
    if isinstance(description, Shape):
        size, stride, dtype, device, requires_grad = description
        tensor = torch.empty_strided(size, stride, dtype=dtype, device=device)
        made.append(tensor.requires_grad_() if requires_grad else tensor)
        return made[-1]
    if isinstance(description, Same):
        return made[description.number]
    if isinstance(description, Several):
        values = [_like(each, made) for each in description.values]
        return (
            dict(zip(description.keys, values, strict=True)) if description.kind is dict else description.kind(values)
        )
    return description.value


def setting(kind: str) -> Setting:
    """What holds now, on devices of this kind."""
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return Setting(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)


@contextmanager
def under(held: Setting, kind: str) -> Iterator[None]:
    """Have a setting hold again, on devices of this kind, for a while."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(held.inference))
        stack.enter_context(torch.set_grad_enabled(held.grad))
        # Without its cache, which would keep what was cast from stand-ins.
        stack.enter_context(
            torch.autocast(kind, dtype=held.autocast, enabled=held.autocast is not None, cache_enabled=False)
        )
        yield

"""Arguments for twice the work, for the test that tells overhead: what is bound by it takes hardly longer then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_profile.errors import UsageError


def doubled(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments of twice the size, the likeliest first: try the next ones if a call refuses them.

    The first array is repeated once along its first dimension, and so is every other one of the same shape: the
    operands of an elementwise operation, queries, keys and values. Where that does not fit, as in a product of two
    square matrices, the first alone is. UsageError if no argument is an array with a dimension.
    """
    arrays = [value for value in (*args, *kwargs.values()) if _is_array(value)]
    if not arrays:
        raise UsageError("the doubling test needs an argument that is a tensor with at least one dimension")
    first = arrays[0]
    like = [each for each in arrays if tuple(each.shape) == tuple(first.shape)]
    choices = [like] if len(like) == 1 else [like, [first]]
    return [_replaced(args, kwargs, [id(each) for each in choice]) for choice in choices]


def _replaced(
    args: Sequence[Any], kwargs: Mapping[str, Any], which: list[int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    twice = {id(value): _twice(value) for value in (*args, *kwargs.values()) if id(value) in which}
    return (
        tuple(twice.get(id(value), value) for value in args),
        {name: twice.get(id(value), value) for name, value in kwargs.items()},
    )


def _is_array(value: Any) -> bool:
    return bool(getattr(value, "shape", ())) and hasattr(value, "dtype")


def _twice(array: Any) -> Any:
    """The array two times along its first dimension, in memory of its own."""
    if hasattr(array, "detach"):
        copy = array.detach().repeat(2, *(1,) * (array.dim() - 1))
        return copy.requires_grad_(array.requires_grad)
    return array.repeat(2, axis=0)

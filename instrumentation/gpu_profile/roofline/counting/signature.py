"""The signature of a call: the properties of its arguments that determine its work. It keeps no tensor alive."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

import torch

from gpu_profile.roofline.counting.recorder import tf32

_Tensor: Final = torch.Tensor
_Parameter: Final = torch.nn.Parameter
_dense: Final = torch.strided

_grad_enabled: Final = torch.is_grad_enabled
_inference: Final = torch.is_inference_mode_enabled
_default_dtype: Final = torch.get_default_dtype
_function_modes: Final = torch._C._len_torch_function_stack
_cuda_used: Final = torch.cuda.is_initialized
_any_autocast: Final = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
_AUTOCAST: Final = ("cuda", "cpu", "xpu")

#: Types of arguments that a signature contains by value, with the type, because 1 == True. Others would stay alive.
_VALUES: Final = frozenset(
    {bool, int, float, complex, str, bytes, type(None), type(Ellipsis)}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format}
)
#: Marks a tensor's row.
_TENSOR: Final = object()


class Indescribable(Exception):  # noqa: N818 - names a property of an argument
    """An argument is neither a dense tensor nor a plain value. The text describes it."""


class Signature(NamedTuple):
    """The properties that determine the work of PyTorch's functions. Calls with equal signatures do the same work.

    `values` describe all arguments; `names` are the keywords of the last ones. A tensor has its shape, strides, type,
    device, `requires_grad`, and a number that tensors at the same address share. Lists, tuples and dictionaries have
    their elements, plain values are themselves. The modes follow: gradients, inference, the default type, autocast by
    device, TF32, and the default device.
    """

    values: tuple[Hashable, ...]
    names: tuple[str, ...]
    grad: bool
    inference: bool
    dtype: Any
    autocast: tuple[tuple[str, Any], ...]
    tf32: Any
    device: Any


def describe(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Signature:
    """The signature of a call with these arguments in the present modes. Raises Indescribable."""
    return Signature(
        _row((*args, *kwargs.values()) if kwargs else args, {}),
        tuple(kwargs),
        _grad_enabled(),
        _inference(),
        _default_dtype(),
        _autocast() if _any_autocast() else (),
        tf32() if _cuda_used() else None,
        torch.get_default_device() if _function_modes() else None,
    )


def _autocast() -> tuple[tuple[str, Any], ...]:
    return tuple((each, torch.get_autocast_dtype(each)) for each in _AUTOCAST if torch.is_autocast_enabled(each))


def _row(values: Any, addresses: dict[int, int]) -> tuple[Any, ...]:
    row: list[Any] = []
    for each in values:
        kind = type(each)
        if kind is _Tensor or kind is _Parameter:
            row.append(_tensor(each, addresses))
        elif kind in _VALUES:
            row.append((kind, each))
        elif kind is list or kind is tuple or kind is torch.Size:
            row.append((kind, _row(each, addresses)))
        elif kind is dict:
            row.append((kind, _row(each.values(), addresses), *each))
        elif kind is slice:
            row.append((kind, _row((each.start, each.stop, each.step), addresses)))
        else:
            raise Indescribable(f"a {kind.__name__}")
    return tuple(row)


def _tensor(tensor: Any, addresses: dict[int, int]) -> tuple[Any, ...]:
    try:
        if tensor.layout is not _dense or tensor.is_nested or tensor.is_quantized:
            raise Indescribable("a tensor that is not dense")
        number = addresses.setdefault(tensor.data_ptr() or -id(tensor), len(addresses))
    except RuntimeError:  # PyTorch's own wrappers, as in `vmap`
        raise Indescribable("a tensor without memory of its own") from None
    return _TENSOR, tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad, number


def stand_in(signature: Signature) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with this signature. Their tensors have new, uninitialised memory."""
    values, names = _like(signature.values, {}), signature.names
    positional = len(values) - len(names)
    return values[:positional], dict(zip(names, values[positional:], strict=True))


def _like(row: tuple[Any, ...], made: dict[Any, Any]) -> tuple[Any, ...]:
    return tuple(_one_like(each, made) for each in row)


def _one_like(described: tuple[Any, ...], made: dict[Any, Any]) -> Any:
    kind, first, *rest = described
    if kind is _TENSOR:
        if described not in made:
            strides, dtype, device, wanted, _ = rest
            tensor = torch.empty_strided(first, strides, dtype=dtype, device=device)
            made[described] = tensor.requires_grad_() if wanted else tensor
        return made[described]
    if kind in _VALUES:
        return first
    values = _like(first, made)
    if kind is dict:
        return dict(zip(rest, values, strict=True))
    return slice(*values) if kind is slice else kind(values)


@contextmanager
def under(signature: Signature, device: str) -> Iterator[None]:
    """A context with the gradient, inference and autocast modes of a signature, on devices of this kind."""
    autocast = dict(signature.autocast).get(device)
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(signature.inference))
        stack.enter_context(torch.set_grad_enabled(signature.grad))
        # Without autocast's cache, which would keep the cast copies of stand-ins.
        enabled = autocast is not None
        stack.enter_context(torch.autocast(device, dtype=autocast, enabled=enabled, cache_enabled=False))
        yield

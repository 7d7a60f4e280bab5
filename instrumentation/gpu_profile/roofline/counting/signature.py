"""A call's arguments without their data: what its work depends on, kept in place of tensors that should not live on."""

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

#: Arguments that are kept as they are, with their type, as 1 is not True. Others would be kept alive.
_VALUES: Final = frozenset(
    {bool, int, float, complex, str, bytes, type(None), type(Ellipsis)}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format}
)
#: Marks a tensor's row.
_TENSOR: Final = object()


class Indescribable(Exception):  # noqa: N818 - what an argument is
    """An argument is neither a dense tensor nor a plain value; the text says what it is."""


class Signature(NamedTuple):
    """What the work of PyTorch's functions depends on. Equal for calls that do the same work.

    `values` describe all arguments, `names` belong to the last of them. Of tensors: shape, strides, type, device,
    whether gradients are wanted, and which begin at the same address; of lists, tuples and dictionaries their elements;
    plain values as they are. Then the modes: gradients, inference, the default type, autocast by device, TF32, and the
    default device.
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
    """The signature of a call with these arguments, now. Raises Indescribable."""
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
    """Arguments like those of the call; tensors have memory of their own, which is not written."""
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
    """Have the modes of a signature that decide what a module runs hold again, on devices of this kind, for a while."""
    autocast = dict(signature.autocast).get(device)
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(signature.inference))
        stack.enter_context(torch.set_grad_enabled(signature.grad))
        # Without its cache, which would keep what was cast from stand-ins.
        enabled = autocast is not None
        stack.enter_context(torch.autocast(device, dtype=autocast, enabled=enabled, cache_enabled=False))
        yield

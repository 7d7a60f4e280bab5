"""The operations that can be profiled by name, with inputs of a given size. Preparing one loads PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from math import isqrt
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from gpu_profile.errors import UsageError, few
from gpu_profile.roofline.machines.machine import Machine
from gpu_profile.roofline.machines.torch_machine import load_torch

#: Accepted names of data types -> PyTorch's names.
_DTYPES: Final = {
    **{name: name for name in ("float64", "float32", "bfloat16", "float16")},
    "fp64": "float64",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
}
_FEATURES: Final = 1024
_HEADS, _HEAD, _SEQUENCE = 8, 64, 1024
_CHANNELS, _SIDE = 64, 56
#: Inputs repeat after this many random values: enough that a GPU draws as much power as for real data.
_RANDOM: Final = 1 << 20
_SEED: Final = 20260


class Workload(NamedTuple):
    """An operation ready to be called: `function(*args, **kwargs)`.

    `shape`: the shapes of all inputs as text. `dtype`: their data type. `size`: the number of elements of the first.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shape: str
    dtype: str
    size: int


class Inputs:
    """Makes tensors of reproducible values from 0 to 1 on one device, without using the program's random generator."""

    def __init__(self, torch: Any, device: str, dtype: str) -> None:
        self.torch = torch
        self._device = device
        self._dtype = getattr(torch, dtype)
        self._values = torch.rand(_RANDOM, generator=torch.Generator().manual_seed(_SEED)).to(device, self._dtype)

    def __call__(self, *shape: int) -> Any:
        """A tensor of this shape."""
        tensor = self.torch.empty(*shape, device=self._device, dtype=self._dtype)
        flat, values = tensor.view(-1), self._values
        whole = len(flat) // len(values) * len(values)
        flat[:whole].view(-1, len(values)).copy_(values)
        flat[whole:].copy_(values[: len(flat) - whole])
        return tensor


#: `(inputs, elements) -> (function, arguments, keyword arguments)`.
_Make = Callable[[Inputs, int], tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]]


def _unary(name: str) -> _Make:
    return lambda inputs, size: (_function(inputs, name), (inputs(size),), {})


def _binary(name: str) -> _Make:
    return lambda inputs, size: (_function(inputs, name), (inputs(size), inputs(size)), {})


def _function(inputs: Inputs, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(inputs.torch, name, None) or getattr(inputs.torch.nn.functional, name)
    return function


def _rows(inputs: Inputs, size: int) -> Any:
    return inputs(max(1, round(size / _FEATURES)), min(size, _FEATURES))


def _softmax(inputs: Inputs, size: int) -> Any:
    return inputs.torch.softmax, (_rows(inputs, size),), {"dim": -1}


def _layernorm(inputs: Inputs, size: int) -> Any:
    rows = _rows(inputs, size)
    width = rows.shape[1]
    function = inputs.torch.nn.functional.layer_norm
    return function, (rows, (width,)), {"weight": inputs(width), "bias": inputs(width)}


def _matmul(inputs: Inputs, size: int) -> Any:
    side = max(1, round(size**0.5))
    return inputs.torch.matmul, (inputs(side, side), inputs(side, side)), {}


def _linear(inputs: Inputs, size: int) -> Any:
    rows = _rows(inputs, size)
    function = inputs.torch.nn.functional.linear
    return function, (rows, inputs(_FEATURES, rows.shape[1]), inputs(_FEATURES)), {}


def _conv2d(inputs: Inputs, size: int) -> Any:
    side = min(_SIDE, max(1, isqrt(size // _CHANNELS)))
    images = max(1, round(size / (_CHANNELS * side * side)))
    weight = inputs(_CHANNELS, _CHANNELS, 3, 3)
    return inputs.torch.nn.functional.conv2d, (inputs(images, _CHANNELS, side, side), weight), {"padding": 1}


def _attention(inputs: Inputs, size: int) -> Any:
    length = min(_SEQUENCE, max(1, size // (_HEADS * _HEAD)))
    shape = (max(1, round(size / (_HEADS * _HEAD * length))), _HEADS, length, _HEAD)
    function = inputs.torch.nn.functional.scaled_dot_product_attention
    return function, (inputs(*shape), inputs(*shape), inputs(*shape)), {}


#: Name -> maker of its function and inputs. The size is the number of elements of the first input.
WORKLOADS: Final[Mapping[str, _Make]] = MappingProxyType(
    {
        **{
            name: _unary(name)
            for name in ("cos", "sin", "exp", "log", "sqrt", "tanh", "sigmoid", "relu", "gelu", "silu")
        },
        **{name: _binary(name) for name in ("add", "mul")},
        **{name: _unary(name) for name in ("sum", "mean")},
        "softmax": _softmax,
        "layernorm": _layernorm,
        "matmul": _matmul,
        "linear": _linear,
        "conv2d": _conv2d,
        "attention": _attention,
    }
)


def check_workload(name: str, dtype: str = "float32") -> None:
    """Raise UsageError if there is no operation or no data type of that name."""
    if name not in WORKLOADS:
        near = get_close_matches(name, WORKLOADS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"unknown operation {name!r}: there are {few(WORKLOADS, 80)}, see --list{hint}")
    if dtype not in _DTYPES:
        raise UsageError(f"unknown data type {dtype!r}: there are {', '.join(_DTYPES)}")


def prepare(name: str, size: int, *, device: str = "cpu", dtype: str = "float32") -> Workload:
    """An operation with an input of about `size` elements; the exact number depends on the shape.

    Raises UsageError for an unknown name or data type, for a size below 1, and if PyTorch cannot be imported.
    """
    check_workload(name, dtype)
    if size < 1:
        raise UsageError(f"the size of an input is at least 1, not {size}")
    function, args, kwargs = WORKLOADS[name](Inputs(load_torch("a named operation"), device, _DTYPES[dtype]), size)
    shapes = [tuple(each.shape) for each in (*args, *kwargs.values()) if hasattr(each, "shape")]
    shape = ", ".join("×".join(map(str, each)) for each in shapes)
    return Workload(name, function, args, kwargs, shape, _DTYPES[dtype], args[0].numel())


def torch_device(machine: Machine) -> str:
    """PyTorch's name of a machine's device. Raises UsageError if PyTorch does not run on it or cannot be imported."""
    load_torch("a named operation")
    if machine.kind in ("host", "cupy"):
        raise UsageError(f"named operations are PyTorch's, which does not run on {machine.kind!r}: try --device cpu")
    return machine.device

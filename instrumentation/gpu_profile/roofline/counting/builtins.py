"""Recognises PyTorch's own callables. They can run on tensors without data, without running the user's code."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Iterator
from typing import Any, Final

import torch

from gpu_profile.roofline.counting.operands import words

#: Modules whose functions compute on tensors and call none of the user's code.
_MODULES: Final = words("""
        torch torch.functional torch.nn.functional torch.linalg torch.special torch.fft torch.signal torch._tensor
        torch._C._nn torch._C._linalg torch._C._special torch._C._fft torch._C._sparse
        torch._jit_internal
        """)  # the last has boolean_dispatch, for max_pool2d and the like

#: Functions of these modules that do other things than to compute.
_OTHERS: Final = words("""
        save load compile set_default_device set_default_dtype manual_seed seed set_grad_enabled
        use_deterministic_algorithms set_num_threads backward register_hook numpy tolist item __array__
        __reduce_ex__ __reduce__ __deepcopy__ share_memory_ cond vmap from_dlpack from_numpy cuda cpu set_ resize_
        map_ map2_ apply_ requires_grad_ detach_ data_ptr pin_memory manual_seed_all set_printoptions set_rng_state
        get_rng_state set_float32_matmul_precision set_warn_always storage untyped_storage retain_grad
        register_post_accumulate_grad_hook __setstate__ __repr__ __format__
        """)

_OPERATORS: Final = frozenset(getattr(operator, name) for name in operator.__all__)
_DESCRIPTORS: Final = (types.MethodDescriptorType, types.WrapperDescriptorType)
_TENSORS: Final = (torch.Tensor, torch.nn.Parameter)
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_TORCH: Final = "torch.nn.modules."


def plain(function: Any) -> bool:
    """Whether this is a function or method of PyTorch, or a module of PyTorch's modules only, without hooks."""
    if isinstance(function, torch.nn.Module):
        return not _global_hooks() and all(_plain_module(each) for each in function.modules())
    if isinstance(function, functools.partial):
        return plain(function.func)
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(function).startswith(("aten.", "prims."))
    if getattr(function, "__name__", None) in _OTHERS or hasattr(function, "_torchdynamo_orig_callable"):
        return False
    return _plain_function(function)


def _plain_function(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    if isinstance(function, (types.MethodType, types.MethodWrapperType)):
        return type(owner) in _TENSORS
    if isinstance(function, types.BuiltinFunctionType):
        # The owner of `torch.mm` is None, of `torch.set_num_threads` a module, of `x.mm` a tensor.
        of_torch = function.__module__ in _MODULES and (owner is None or function.__module__ != "torch")
        return type(owner) in _TENSORS or of_torch or function in _OPERATORS
    if isinstance(function, _DESCRIPTORS):
        return function.__objclass__ in (torch.Tensor, torch._C.TensorBase)
    return isinstance(function, types.FunctionType) and function.__module__ in _MODULES


def _plain_module(module: Any) -> bool:
    own = vars(module)
    return (
        type(module).__module__.startswith(_OF_TORCH)
        and "forward" not in own
        and not any(own.get(name) for name in _HOOKS)
        and all(plain(each) or isinstance(each, type) for each in own.values() if callable(each))
        and not any(isinstance(each, torch.nn.UninitializedParameter) for each in own["_parameters"].values())
    )


def _global_hooks() -> bool:
    return any(getattr(torch.nn.modules.module, f"_global{name}", None) for name in _HOOKS)


def tensors_of(module: Any) -> Iterator[Any]:
    """The parameters and buffers of a module and its submodules."""
    for each in module.modules():
        for held in (each._parameters, each._buffers):
            yield from (tensor for tensor in held.values() if tensor is not None)

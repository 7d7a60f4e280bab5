"""Copies without data of tensors, arguments, and PyTorch's own modules: a call on them computes and changes nothing.

Uses `FakeTensorMode`, not the device `meta`: a fake tensor keeps its device, which determines PyTorch's kernels. On
`meta`, scaled_dot_product_attention would count as separate products and a softmax, which no device runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

#: The types of tensors in a run on copies.
WITHOUT_DATA: Final = frozenset({torch.Tensor, torch.nn.Parameter, FakeTensor})

_log: Final = logging.getLogger(FakeTensor.__module__)


@contextmanager
def unlogged() -> Iterator[None]:
    """Suppress this thread's log of fake tensors. PyTorch logs operations that fail; the real call raises anyway."""
    here = threading.get_ident()

    def of_another_thread(record: logging.LogRecord) -> bool:
        return record.thread != here

    _log.addFilter(of_another_thread)
    try:
        yield
    finally:
        _log.removeFilter(of_another_thread)


class NotCopiedError(Exception):
    """A tensor that cannot be copied without data."""


class FakeTensors:
    """Makes copies. Tensors that begin at the same address become views of one copy."""

    def __init__(self) -> None:
        self.mode: Any = FakeTensorMode(allow_non_fake_inputs=False)
        self._made: dict[int, Any] = {}
        self._memory: dict[tuple[int, Any], Any] = {}

    def value(self, value: Any) -> Any:
        """The copy of an argument that has a signature: tensors in it are copied, other values are returned as is."""
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, (tuple, list)):
            return type(value)(self.value(each) for each in value)
        return {name: self.value(each) for name, each in value.items()} if isinstance(value, dict) else value

    def tensor(self, tensor: Any) -> Any:
        """A fake tensor of the same shape, strides, type and device."""
        if id(tensor) not in self._made:
            self._made[id(tensor)] = self._copy(tensor)
        return self._made[id(tensor)]

    def _copy(self, tensor: Any) -> Any:
        kind = type(tensor)
        if kind not in (torch.Tensor, torch.nn.Parameter):
            raise NotCopiedError(kind.__name__)
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            raise NotCopiedError(f"{tensor.layout}")
        if tensor.is_conj() or tensor.is_neg() or tensor.device.type == "meta":
            raise NotCopiedError("a lazy view")
        span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        key = (tensor.data_ptr() or -id(tensor), tensor.dtype)
        with self.mode, torch.no_grad():
            base = self._memory.get(key)
            if base is None or base.numel() < span:
                base = self._memory[key] = torch.empty(max(span, 0), dtype=tensor.dtype, device=tensor.device)
            made = base.as_strided(tensor.shape, tensor.stride())
        wanted = tensor.requires_grad and not torch.is_inference_mode_enabled()
        if kind is torch.nn.Parameter:
            return torch.nn.Parameter(made, requires_grad=wanted)
        return made.requires_grad_(True) if wanted else made

    def module(self, module: Any) -> Any:
        """A copy of a PyTorch module with copies of its parameters, buffers and submodules."""
        made = module.__class__.__new__(module.__class__)
        held = {name: self._held(each) for name, each in vars(module).items()}
        held["_parameters"] = {name: self._optional(each) for name, each in module._parameters.items()}
        held["_buffers"] = {name: self._optional(each) for name, each in module._buffers.items()}
        held["_modules"] = {name: self.module(each) for name, each in module._modules.items() if each is not None}
        made.__dict__.update(held)
        return made

    def _optional(self, tensor: Any) -> Any:
        return None if tensor is None else self.tensor(tensor)

    def _held(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if type(value) in (list, tuple) and any(isinstance(each, torch.Tensor) for each in value):
            return type(value)(self._held(each) for each in value)  # a recurrent layer's flat weights
        return dict(value) if type(value) is dict else value

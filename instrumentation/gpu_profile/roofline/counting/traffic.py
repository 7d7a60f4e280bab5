"""Bytes that one operation moves: each input read once, each output written once. Pure.

The distinct elements of each tensor count: broadcast dimensions once, overlapping windows once, a tensor that is passed
twice once. In-place operations read and write, fills only write, `out=` is only written. Indexing reads only the
selected elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final, NamedTuple

from gpu_profile.roofline.counting.operands import Operand, OperatorCall, operands, words

#: Views, sizes and allocations that cannot be recognised by their schema: no byte moves, no kernel is launched.
STILL: Final = frozenset(
    f"aten.{name}"
    for name in words("""
        _unsafe_view unsafe_split unsafe_split_with_sizes unsafe_chunk empty empty_like empty_strided empty_permuted
        empty_quantized new_empty new_empty_strided resize_ resize_as_ set_ set_data _reshape_alias lift_fresh lift
        requires_grad_ _version is_pinned is_same_size size stride sym_size sym_stride sym_numel sym_storage_offset
        storage_offset numel dim is_contiguous is_non_overlapping_and_dense is_coalesced retain_grad record_stream
        _nested_tensor_size _efficientzerotensor _has_same_storage_numel is_set_to output_nr is_leaf _is_zerotensor
        _cudnn_init_dropout_state _fused_sdp_choice
        """)
)

#: In-place operations that overwrite their target without reading it.
_OVERWRITES: Final = frozenset(
    f"aten.{name}_"
    for name in words("""
        copy fill zero normal uniform random bernoulli exponential log_normal cauchy geometric _foreach_copy
        _foreach_zero
        """)
)

#: Operation -> the argument of which it reads only the selected elements.
_SELECTS: Final = {
    "aten.index": "self",
    "aten._unsafe_index": "self",
    "aten.index_select": "self",
    "aten.gather": "self",
    "aten.take": "self",
    "aten.embedding": "weight",
    "aten._embedding_bag": "weight",
    "aten._embedding_bag_forward_only": "weight",
}

#: Operations that read places of an image, and how many elements along each axis: linear, nearest, cubic.
_SAMPLERS: Final = frozenset({"aten.grid_sampler_2d", "aten.grid_sampler_3d", "aten.cudnn_grid_sampler"})
_SAMPLED: Final = {0: 2, 1: 1, 2: 4}

#: In-place operation -> (argument with as many elements as it changes of `self`, whether it also reads these).
_SCATTERS: Final = {
    "aten.scatter_": ("index", False),
    "aten.scatter_add_": ("index", True),
    "aten.scatter_reduce_": ("index", True),
    "aten.index_add_": ("source", True),
    "aten.index_copy_": ("source", False),
    "aten.put_": ("index", False),
}


#: Operation -> the number of its results, without the internal buffers of a library that follow them.
_RESULTS: Final = {"aten.mkldnn_rnn_layer": 3, "aten._cudnn_rnn": 3}

#: Arguments that are internal buffers, or that contain another argument's values again.
_BUFFERS: Final = frozenset({"workspace", "reserve", "weight_buf", "dropout_state"})


class Traffic(NamedTuple):
    """Bytes read and written by one operation."""

    read: int
    written: int

    @property
    def moved(self) -> int:
        """Bytes read plus bytes written."""
        return self.read + self.written


def traffic(call: OperatorCall) -> Traffic:
    """The traffic of the operation."""
    if (scattered := _scattered(call)) is not None:
        return scattered
    overwrites = call.name in _OVERWRITES
    unread = call.out | _BUFFERS | (call.written if overwrites else frozenset())
    read: dict[int, int] = {}
    for name, each in call.inputs():
        if name not in unread:
            _note(read, each, _selected(call, name, each))
    written: dict[int, int] = {}
    for each in _changed(call):
        _note(written, each, each.touched)
    arguments = {each.memory for _, each in call.inputs()}
    for each in call.outputs[: _RESULTS.get(call.name)]:
        if each.memory not in arguments:
            _note(written, each, each.touched)
    return Traffic(sum(read.values()), sum(written.values()))


def _note(memory: dict[int, int], operand: Operand, touched: int) -> None:
    memory[operand.memory] = max(memory.get(operand.memory, 0), touched)


def _changed(call: OperatorCall) -> Iterator[Operand]:
    return (each for name, each in call.inputs() if name in call.written)


def _selected(call: OperatorCall, name: str, operand: Operand) -> int:
    selected: int
    if name in ("input", "self") and call.name in _SAMPLERS:
        selected = call.result.numel() * _SAMPLED[call.get("interpolation_mode", 0)] ** (call.result.ndim - 2)
        return min(operand.touched, selected * operand.itemsize)
    if _SELECTS.get(call.name) != name:
        return operand.touched
    if call.name.startswith("aten._embedding_bag"):
        selected = call["indices"].numel() * operand.shape[-1]
    else:
        selected = call.result.numel()
    return min(operand.touched, selected * operand.itemsize)


def _scattered(call: OperatorCall) -> Traffic | None:
    if call.name in ("aten.index_put_", "aten._index_put_impl_"):
        elements, reads = _put(call), bool(call["accumulate"])
    elif call.name in _SCATTERS:
        argument, reads = _SCATTERS[call.name]
        if not isinstance(call.get(argument), Operand):
            return None
        elements = call[argument].numel()
    else:
        return None
    target = call["self"]
    changed = min(target.touched, elements * target.itemsize)
    others: dict[int, int] = {}
    for name, each in call.inputs():
        if name != "self":
            _note(others, each, each.touched)
    return Traffic(sum(others.values()) + (changed if reads else 0), changed)


def _put(call: OperatorCall) -> int:
    """How many elements `self[indices] = values` changes: the selected ones, or all of `self` if indices are masks."""
    indices = call["indices"]
    given = list(operands(indices))
    target: Operand = call["self"]
    if any(each.dtype in ("bool", "uint8") for each in given):
        return target.numel()
    kept = prod(size for i, size in enumerate(target.shape) if i >= len(indices) or not isinstance(indices[i], Operand))
    return _broadcast(given) * kept


def _broadcast(given: list[Operand]) -> int:
    rank = max((each.ndim for each in given), default=0)
    shapes = [(1,) * (rank - each.ndim) + each.shape for each in given]
    return prod(0 if 0 in sizes else max(sizes) for sizes in zip(*shapes, strict=True))

"""Floating-point operations of matrix products, convolutions, attention and recurrent layers. Pure.

A multiplication and the following addition are two operations, as vendors count them. The first addition of a sum
counts, although it adds to 0: 2·m·n·k, not (2k−1)·m·n. So do torch.utils.flop_counter, LAPACK's working note 41 and
data sheets. A complex multiplication and addition are 6 and 2.

| operation | floating-point operations |
|---|---|
| mm, bmm, linear, dot, mv, … | 2 · results · length of the sum; complex: 8 instead of 2 |
| addmm, baddbmm, addmv, linear with bias | as above; + 1 per result, unless beta is 0 |
| convolution | 2 · results · channels in / groups · elements of the kernel; + 1 per result for a bias |
| transposed convolution | 2 · inputs · channels out / groups · elements of the kernel; bias as above |
| convolution, backward | one forward for each of input and weight; bias: one sum over the gradient |
| attention | per query head: 2 · pairs · (width of a key + width of a value) |
| attention, backward | per query head: 2 · pairs · (3 · key + 2 · value); scores once more, then four products |
| recurrent layers | per step and direction: 2 · gates · hidden · (inputs + hidden); biases; arithmetic of the cell |
| recurrent layers, backward | twice the forward |
| multi-head attention and encoder layers, fused | their linear layers, attention, and for an encoder layer the rest |
| bilinear layer | 2 · (products of the first input with the weight) + 2 · (those of that with the second input) |
| cdist by products | 2 · pairs · (width + 2) + 2 · elements in + 2 · pairs: |x|² − 2xy + |y|², limited to 0, its root |
| affine grid | 2 · results · (dimensions + 1) |

At the borders of a convolution all elements of the kernel count. The pairs of attention are queries · keys; if it is
causal, only keys at or before the query. If attention runs as one operation, its softmax and dropout do not count
(FlashAttention, Dao 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Final

from gpu_profile.roofline.counting.operands import Operand, OperatorCall

Formula = Callable[[OperatorCall], int]


def _complex(count: int, operand: Operand) -> int:
    return count * 4 if operand.is_complex else count


def _summed(count: int, operand: Operand) -> int:
    return count * 2 if operand.is_complex else count


def _product(left: str, right: str, *, summand: str | None = None) -> Formula:
    """`left` (…, m, k) times `right` (…, k, n) or (k,), plus `summand` if beta is not 0."""

    def flops(call: OperatorCall) -> int:
        a, b = call.operand(left), call.operand(right)
        columns: int = b.shape[-1] if b.ndim > 1 else 1
        count = _complex(2 * a.numel() * columns, a)
        if summand is not None and call.get(summand) is not None and call.get("beta", 1) != 0:
            count += _summed(prod(a.shape[:-1]) * columns, a)
        return count

    return flops


def _addbmm(call: OperatorCall) -> int:
    batches, added = call["batch1"], call["self"].numel() if call["beta"] != 0 else 0
    return _complex(2 * batches.numel() * call["batch2"].shape[-1], batches) + _summed(added, batches)


def _linear(call: OperatorCall) -> int:
    x, w = call.operand("input", "self"), call["weight"]
    rows = prod(x.shape[:-1])
    added = rows * (w.numel() // w.shape[-1]) if call.get("bias") is not None else 0
    return _complex(2 * rows * w.numel(), x) + _summed(added, x)


def _grouped(call: OperatorCall) -> int:
    a, b = call.operand("self"), call.operand("mat2")
    if a.ndim == 2 and b.ndim == 2:  # the groups divide the length of the sum
        return 2 * a.numel() * b.shape[-1]
    rows = a.shape[-2] if a.ndim == 2 or b.ndim == 2 else prod(a.shape[:-1])
    return 2 * rows * a.shape[-1] * b.shape[-1]


def _convolved(x: Operand, weight: Operand, out: tuple[int, ...], transposed: bool) -> int:
    # A weight is (out, in / groups, …), a transposed one (in, out / groups, …). In both cases, one slice along its
    # first dimension is multiplied for each element of the output, or of the input if transposed.
    return _complex(2 * (x.numel() if transposed else prod(out)) * prod(weight.shape[1:]), x)


def _convolution(call: OperatorCall) -> int:
    x, weight, out = call.operand("input", "self"), call["weight"], call.result
    count = _convolved(x, weight, out.shape, bool(call.get("transposed", "transpose" in call.name)))
    return count + (_summed(out.numel(), x) if call.get("bias") is not None else 0)


def _convolution_backward(call: OperatorCall) -> int:
    gradient, mask = call["grad_output"], call["output_mask"]
    once = _convolved(call["input"], call["weight"], gradient.shape, bool(call["transposed"]))
    bias = gradient.numel() - gradient.shape[1] if mask[2] else 0
    return once * (bool(mask[0]) + bool(mask[1])) + _summed(bias, gradient)


def _pairs(queries: int, keys: int, causal: bool) -> int:
    if not causal:
        return queries * keys
    full = min(queries, keys)
    return full * (full + 1) // 2 + max(0, queries - keys) * keys


def _attention(key_products: int, value_products: int, *, heads_first: bool = True) -> Formula:
    """For each pair of a query and a key, `key_products` of a key's width and `value_products` of a value's width."""
    length = -2 if heads_first else -3

    def flops(call: OperatorCall) -> int:
        if call.get("cum_seq_q") is not None or call.get("cu_seqlens_q") is not None:
            raise LookupError("the lengths of the sequences are data")
        q, k, v = call["query"], call["key"], call["value"]
        causal = bool(call.get("is_causal") or call.get("custom_mask_type"))
        queries, keys = q.shape[length], k.shape[length]
        # A mask from the lower right corner has as many pairs as one from the upper left with queries and keys swapped.
        lower_right = call.get("custom_mask_type") == 2
        pairs = _pairs(keys, queries, causal) if lower_right else _pairs(queries, keys, causal)
        heads = q.numel() // (q.shape[length] * q.shape[-1]) if q.numel() else 0
        products: int = 2 * heads * pairs * (key_products * q.shape[-1] + value_products * v.shape[-1])
        return products

    return flops


#: PyTorch's numbers of cells (ReLU, tanh, LSTM, GRU) -> gates, and arithmetic per hidden unit without biases: the sum
#: of the two products, and activations. LSTM: also c = f·c + i·g, h = o·tanh(c). GRU: also h = n + z·(h − n), r·h.
_CELLS: Final = {0: (1, 2), 1: (1, 2), 2: (4, 13), 3: (3, 10)}


def _cell(mode: int, rows: int, inputs: int, hidden: int, recurrent: int, biases: bool) -> int:
    gates, arithmetic = _CELLS[mode]
    products = 2 * gates * hidden * (inputs + recurrent) + (2 * gates * hidden if biases else 0)
    projected = 2 * hidden * recurrent if recurrent != hidden else 0
    return rows * (products + arithmetic * hidden + projected)


def _recurrent(call: OperatorCall) -> int:
    x, mode, hidden = call["input"], int(call["mode"]), int(call["hidden_size"])
    rows, width = prod(x.shape[:-1]), x.shape[-1]
    directions = 2 if call["bidirectional"] else 1
    recurrent = int(call.get("proj_size") or 0) or hidden
    if call.name.startswith("aten.mkldnn_rnn_layer"):  # one layer and direction of several
        return _cell(mode, rows, width, hidden, hidden, bool(call["has_biases"]))
    biases = call.get("weight_stride0") == 4
    layers = [width] + [recurrent * directions] * (int(call["num_layers"]) - 1)
    return directions * sum(_cell(mode, rows, each, hidden, recurrent, biases) for each in layers)


def _cell_arithmetic(mode: int) -> Formula:
    def flops(call: OperatorCall) -> int:
        gates, arithmetic = _CELLS[mode]
        biased = 2 * gates if call.get("input_bias") is not None else 0
        return int(call["hidden_gates"].numel()) // gates * (arithmetic + biased)

    return flops


def _multi_head_attention(call: OperatorCall) -> int:
    query, key, heads = call["query"], call["key"], int(call["num_head"])
    (queries, width), keys = query.shape[-2:], key.shape[-2]
    rows, others = prod(query.shape[:-1]), prod(key.shape[:-1])
    projected = (rows + 2 * others) * (2 * width * width + width) + rows * (2 * width * width + width)
    attention = 2 * (rows // queries if queries else 0) * heads * queries * keys * 2 * (width // heads)
    averaged = rows * heads * keys if call["need_weights"] and call["average_attn_weights"] else 0
    return int(projected + attention + averaged)


def _broadcast(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [b if a == 1 else a for a, b in zip(left, right, strict=True)]


def _trilinear(call: OperatorCall) -> int:
    """The sum over the first two factors, then the one over their result and the third, as PyTorch computes it."""
    factors = []
    for name, expanded in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        shape = list(call[name].shape)
        for dimension in sorted(call[expanded]):
            shape.insert(dimension, 1)
        factors.append(shape)
    first, second, third = factors
    both = _broadcast(first, second)
    summed = set(call["sumdim"]) & set(call["expand3"])
    left = [1 if dimension in summed else size for dimension, size in enumerate(both)]
    products = prod(both) + prod(_broadcast(left, third))
    return _complex(2 * products, call["i1"])


def _distances(call: OperatorCall) -> int:
    x, y, pairs = call["x1"], call["x2"], call.result.numel()
    return int(2 * pairs * (x.shape[-1] + 2) + 2 * (x.numel() + y.numel()) + 2 * pairs)


def _affine_grid(call: OperatorCall) -> int:
    return 2 * call.result.numel() * (call.result.shape[-1] + 1)


def _encoder_layer(call: OperatorCall) -> int:
    src, heads = call["src"], int(call["num_heads"])
    length, width = src.shape[-2:]
    rows = prod(src.shape[:-1])
    weights = [call[f"{name}_weight{end}"] for name, end in (("qkv", ""), ("proj", ""), ("ffn", "_1"), ("ffn", "_2"))]
    linear = sum(2 * rows * each.numel() + rows * each.shape[0] for each in weights)
    attention = 2 * (rows // length if length else 0) * heads * length * length * 2 * (width // heads)
    activation = rows * weights[2].shape[0] * (5 if call["use_gelu"] else 1)
    norms_and_sums = 2 * 7 * src.numel() + 2 * src.numel()
    return int(linear + attention + activation + norms_and_sums)


#: Kernels of `scaled_dot_product_attention`.
_ATTENTIONS: Final = (
    "flash_attention",
    "flash_attention_for_cpu",
    "efficient_attention",
    "cudnn_attention",
    "fused_attention_overrideable",
)

#: Operations, and the formula that they share. They compute in the precision of their operands, or in TF32 if PyTorch's
#: settings allow it.
_FORMULAS: Final[tuple[tuple[str, Formula], ...]] = (
    ("mm bmm _int_mm _scaled_mm _scaled_mm_v2", _product("self", "mat2")),
    ("_grouped_mm _scaled_grouped_mm", _grouped),
    ("matmul vdot", _product("self", "other")),
    ("dot", _product("self", "tensor")),
    ("mv", _product("self", "vec")),
    ("addmm _addmm_activation", _product("mat1", "mat2", summand="self")),
    ("addmv", _product("mat", "vec", summand="self")),
    ("baddbmm", _product("batch1", "batch2", summand="self")),
    ("addbmm", _addbmm),
    ("linear mkldnn_linear _mkl_linear", _linear),
    ("convolution _convolution convolution_overrideable mkldnn_convolution miopen_convolution", _convolution),
    ("cudnn_convolution cudnn_convolution_relu cudnn_convolution_transpose", _convolution),
    ("_slow_conv2d_forward slow_conv3d_forward _conv_depthwise2d conv_depthwise3d", _convolution),
    ("convolution_backward", _convolution_backward),
    *((f"_scaled_dot_product_{kernel}", _attention(1, 1)) for kernel in _ATTENTIONS),
    *((f"_scaled_dot_product_{kernel}_backward", _attention(3, 2)) for kernel in _ATTENTIONS),
    ("_flash_attention_forward _efficient_attention_forward", _attention(1, 1, heads_first=False)),
    ("_flash_attention_backward _efficient_attention_backward", _attention(3, 2, heads_first=False)),
    ("mkldnn_rnn_layer _cudnn_rnn", _recurrent),
    ("mkldnn_rnn_layer_backward _cudnn_rnn_backward", lambda call: 2 * _recurrent(call)),
    ("_thnn_fused_lstm_cell", _cell_arithmetic(2)),
    ("_thnn_fused_gru_cell", _cell_arithmetic(3)),
    ("_transformer_encoder_layer_fwd", _encoder_layer),
    ("_native_multi_head_attention", _multi_head_attention),
    ("_trilinear", _trilinear),
    ("_euclidean_dist", _distances),
    ("affine_grid_generator", _affine_grid),
)

#: Full name of an operation -> its formula.
PRODUCTS: Final[Mapping[str, Formula]] = {f"aten.{name}": flops for names, flops in _FORMULAS for name in names.split()}

#: Operations that use TF32 if the setting for convolutions allows it, not the one for products.
CONVOLUTIONS: Final = frozenset(name for name in PRODUCTS if "conv" in name or "rnn" in name)

#: Names of arguments, in the order of search: the first one's data type is the format of a product's arithmetic.
FACTORS: Final = (
    "mat1",
    "mat",
    "batch1",
    "query",
    "input",
    "src",
    "self",
    "hidden_gates",
    "grad_output",
    "i1",
    "x1",
    "theta",
)


def factor(call: OperatorCall) -> Operand | None:
    """The operand that determines the format of a product's arithmetic. None if there is none."""
    try:
        return call.operand(*FACTORS)
    except LookupError:
        return None

"""Floating-point operations other than products: elementwise, sums, normalisations, pooling, FFTs. Pure.

An addition, multiplication, division, root or transcendental function is one operation, as in roofline toolkits and the
successors of torch.utils.flop_counter; hardware needs more for some. Copies, casts, fills, comparisons, indexing,
sorting and random numbers are none, and neither is arithmetic on integers.

| operation | floating-point operations; n: elements in, m: elements out |
|---|---|
| add, mul, exp, relu, … | m; add and sub with alpha: 2 m |
| addcmul, addcdiv | 2 m, 3 m with a factor; lerp 3 m; silu 2 m; gelu 5 m, by tanh 9 m |
| sum, product, maximum | n − m; mean n; variance and deviation 4 n; norm 2 n |
| softmax, log_softmax, logsumexp | 5 n, 5 n, 4 n; backward 4 n |
| layer, group and batch norm | 5 n, RMS norm 3 n; + n for each of weight and bias; batch norm of kept statistics 2 n |
| norms, backward | 10 n; + 2 n for the weight's gradient, n for the bias's |
| pooling | each output: the elements of its window, one less for the maximum; backward likewise |
| interpolation | linear 3 m, bilinear 7 m, trilinear 15 m, bicubic 31 m; nearest none |
| grid_sample | as interpolation; + for the place and weights of each point 22, nearest 10, bicubic 66; volumes 55, 15 |
| cdist by pairs, pdist | per pair of d numbers: p = 2 3 d, p = 1 or infinite 3 d - 1, p = 0 d - 1, other p 4 d |
| FFT | 5 n log2 n of complex numbers (van Loan 1992); half of it if one side is real |
| Adam, fused | 12 per parameter; + 2 for weight decay, + 1 for AMSGrad; SGD 2, + 2 for decay, + 2 for momentum |

A complex addition is 2 real ones, a multiplication 6, a division 11; complex transcendental functions have no formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, log2, prod
from typing import Any, Final

from gpu_profile.roofline.counting.operands import Operand, OperatorCall, operands
from gpu_profile.roofline.counting.products import Formula

_COMPLEX: Final = {"add": 2, "sub": 2, "rsub": 2, "neg": 2, "sum": 2, "mul": 6, "div": 11}


def _alpha(call: OperatorCall) -> int:
    return 0 if call.get("alpha", 1) in (1, None) else 1


def _each(call: OperatorCall, count: int) -> int:
    """`count` for each floating-point element of the result, or of all results of a `_foreach_` operation."""
    results = call.results if "_foreach_" in call.name else call.results[:1]
    return sum(each.numel() for each in results if each.is_floating) * count


def _complex(base: str, call: OperatorCall, inputs: list[Operand]) -> int:
    if base == "abs":
        return 4  # two squares, their sum and its root
    if base in ("mul", "div"):
        number = any(isinstance(each, complex) for each in call.values.values())
        if not number and (len(inputs) == 1 or not all(each.is_complex for each in inputs)):
            return 2  # by a real number
    return _COMPLEX[base]


def _elementwise(count: int) -> Formula:
    """`count` for each element of the result, one more with alpha; for complex numbers the counts of `_COMPLEX`."""

    def flops(call: OperatorCall) -> int:
        base, inputs = _base(call.name), [each for _, each in call.inputs()]
        if any(each.is_complex for each in inputs):
            return _each(call, _complex(base, call, inputs))
        return _each(call, count + (_alpha(call) if base in ("add", "sub", "rsub") else 0))

    return flops


def _weighted(call: OperatorCall) -> int:
    return _each(call, 2 if call.get("value", 1) == 1 and call.get("scalars") is None else 3)


def _gelu(call: OperatorCall) -> int:
    return _each(call, 9 if call["approximate"] == "tanh" else 5)


def _gelu_backward(call: OperatorCall) -> int:
    return _each(call, 18 if call["approximate"] == "tanh" else 11)


def _first(call: OperatorCall) -> Operand:
    return next(each for _, each in call.inputs())


def _floating(call: OperatorCall) -> int:
    """The number of floating-point elements of the first argument, also in lists."""
    return sum(each.numel() for each in operands(next(iter(call.values.values()))) if each.is_floating)


def _fold(call: OperatorCall) -> int:
    """Operations of a sum or a maximum: for each result, one less than the elements that it combines."""
    if isinstance(call.get("other"), Operand):  # max(a, b)
        return _each(call, 1)
    results = call.results if "_foreach_" in call.name else call.results[:1]
    return max(0, _floating(call) - sum(each.numel() for each in results)) * (2 if _first(call).is_complex else 1)


def _of_inputs(count: int, *, once_more: int = 0) -> Formula:
    """`count` for each element of the input, plus `once_more` for the weight and again for the bias, if present."""

    def flops(call: OperatorCall) -> int:
        affine = sum(call.get(name) is not None for name in ("weight", "bias")) * once_more
        return _floating(call) * (count + affine) * (2 if _first(call).is_complex else 1)

    return flops


def _batch_norm(call: OperatorCall) -> int:
    trained = call.get("training", "with_update" in call.name)
    return _of_inputs(5 if trained else 2, once_more=1 if trained else 0)(call)


def _norm_backward(call: OperatorCall) -> int:
    mask = call.get("output_mask") or (True, True, True)
    gradient = _first(call).numel()
    return gradient * (10 * bool(mask[0]) + 2 * bool(mask[1]) + (bool(mask[2]) if len(mask) > 2 else 0))


def _lengths(size: Any, count: int) -> tuple[int, ...]:
    values = tuple(size) if isinstance(size, tuple) else (size,)
    return values * count if len(values) == 1 else values


def _window(dimensions: int, less: int, *, backward: bool = False) -> Formula:
    def flops(call: OperatorCall) -> int:
        window = prod(_lengths(call["kernel_size"], dimensions))
        of = call["grad_output"] if backward else call.result
        return int(of.numel()) * (window - less)

    return flops


def _adaptive(less: int) -> Formula:
    def flops(call: OperatorCall) -> int:
        x, out = _first(call), call.result
        size = call["output_size"]
        taken = x.numel() // prod(x.shape[-len(size) :])
        for before, after in zip(x.shape[-len(size) :], out.shape[-len(size) :], strict=True):
            taken *= sum(-(-(i + 1) * before // after) - i * before // after for i in range(after))
        return taken - less * out.numel()

    return flops


#: Modes of interpolation (linear, nearest, cubic) -> operations for each output, and for each point. A place is scaled
#: with 4 operations per axis and rounded. A weight is a product of differences, or of cubic polynomials.
_PLANE: Final = {0: (7, 22), 1: (0, 10), 2: (31, 66)}
_VOLUME: Final = {0: (15, 55), 1: (0, 15)}


def _grid_sample(call: OperatorCall) -> int:
    grid, outputs = call["grid"], call.result.numel()
    each, point = (_PLANE if grid.shape[-1] == 2 else _VOLUME)[call.get("interpolation_mode", 0)]
    return outputs * each + int(prod(grid.shape[:-1])) * point


def _distance(p: float, width: int) -> int:
    return {0.0: width - 1, 1.0: 3 * width - 1, inf: 3 * width - 1, 2.0: 3 * width}.get(p, 4 * width) if width else 0


def _distances(call: OperatorCall) -> int:
    width = call.operand("x1", "self").shape[-1]
    return int(call.result.numel() * _distance(float(call["p"]), width))


def _fft(share: float) -> Formula:
    def flops(call: OperatorCall) -> int:
        x, out = _first(call), call.result
        full = out if share < 1 and not out.is_complex else x  # a one-sided spectrum lacks elements: take the real side
        length = prod(full.shape[each] for each in call["dim"])
        return round(share * 5 * full.numel() * log2(length)) if length else 0

    return flops


def _loss(count: int) -> Formula:
    return lambda call: _first(call).numel() * (count + (1 if call.get("reduction", 0) else 0))


def _adam(call: OperatorCall) -> int:
    parameters = sum(each.numel() for each in operands(call["self"]))
    return parameters * (12 + (2 if call["weight_decay"] else 0) + (1 if call["amsgrad"] else 0))


def _sgd(call: OperatorCall) -> int:
    parameters = sum(each.numel() for each in operands(call["self"]))
    return parameters * (2 + (2 if call["weight_decay"] else 0) + (2 if call["momentum"] else 0))


def _numel(name: str) -> Formula:
    """One for each element of an argument."""
    return lambda call: int(call[name].numel())


def _results(count: int) -> Formula:
    """`count` for each element of the result."""
    return lambda call: _each(call, count)


def _bag(call: OperatorCall) -> int:
    return int(call["indices"].numel() * call["weight"].shape[-1])


#: Operations, and the formula that they share. Names are without `aten.`, `_foreach_`, and the final `_` of in-place
#: operations.
_FORMULAS: Final[tuple[tuple[str, Formula], ...]] = (
    (
        """
        add sub rsub mul div neg abs sign reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin
        acos atan sinh cosh tanh asinh acosh atanh atan2 hypot sigmoid erf erfc erfinv lgamma digamma floor ceil round
        trunc frac fmod remainder floor_divide pow maximum minimum fmax fmin clamp clamp_min clamp_max relu hardtanh
        leaky_relu prelu _prelu_kernel threshold threshold_backward heaviside copysign ldexp i0 sinc logaddexp xlogy
        special_xlog1py deg2rad rad2deg hardtanh_backward leaky_relu_backward
        """,
        _elementwise(1),
    ),
    ("silu softplus hardsigmoid elu hardswish celu logit softshrink hardshrink", _elementwise(2)),
    ("sigmoid_backward tanh_backward lerp log_sigmoid_forward mish softplus_backward", _elementwise(3)),
    ("silu_backward", _elementwise(6)),
    ("addcmul addcdiv", _weighted),
    ("gelu", _gelu),
    ("gelu_backward", _gelu_backward),
    ("glu", _results(2)),
    ("sum nansum prod max min amax amin argmax argmin aminmax trace", _fold),
    ("cumsum cumprod logcumsumexp cummax cummin", _results(1)),
    ("mean", _of_inputs(1)),
    ("var std var_mean std_mean", _of_inputs(4)),
    ("norm linalg_vector_norm _weight_norm", _of_inputs(2)),
    ("logsumexp", _of_inputs(4)),
    ("_softmax softmax _log_softmax log_softmax _safe_softmax _masked_softmax", _of_inputs(5)),
    ("_softmax_backward_data _log_softmax_backward_data _masked_softmax_backward", _of_inputs(4)),
    ("native_layer_norm native_group_norm layer_norm group_norm", _of_inputs(5, once_more=1)),
    ("_fused_rms_norm rms_norm", _of_inputs(3, once_more=1)),
    ("native_batch_norm cudnn_batch_norm miopen_batch_norm _batch_norm_with_update", _batch_norm),
    ("_native_batch_norm_legit _native_batch_norm_legit_functional", _batch_norm),
    ("_native_batch_norm_legit_no_training", _batch_norm),
    ("native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward", _norm_backward),
    ("native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward", _norm_backward),
    *((f"avg_pool{d}d", _window(d, 0)) for d in (1, 2, 3)),
    *((f"avg_pool{d}d_backward", _window(d, 0, backward=True)) for d in (2, 3)),
    *((f"max_pool{d}d_with_indices max_pool{d}d", _window(d, 1)) for d in (1, 2, 3)),
    ("max_pool2d_with_indices_backward max_pool3d_with_indices_backward", _numel("grad_output")),
    *((f"adaptive_avg_pool{d}d _adaptive_avg_pool{d}d", _adaptive(0)) for d in (1, 2, 3)),
    ("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d", _adaptive(1)),
    ("_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward", _of_inputs(1)),
    ("upsample_linear1d", _results(3)),
    ("upsample_bilinear2d _upsample_bilinear2d_aa", _results(7)),
    ("upsample_trilinear3d", _results(15)),
    ("upsample_bicubic2d _upsample_bicubic2d_aa", _results(31)),
    ("grid_sampler_2d grid_sampler_3d cudnn_grid_sampler", _grid_sample),
    ("_cdist_forward _pdist_forward", _distances),
    ("_fft_c2c", _fft(1.0)),
    ("_fft_r2c _fft_c2r", _fft(0.5)),
    ("native_dropout _fused_dropout native_dropout_backward", lambda call: 2 * call.result.numel()),
    ("nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward", _numel("target")),
    ("mse_loss l1_loss", _loss(2)),
    ("mse_loss_backward", _results(3)),
    ("binary_cross_entropy", _loss(8)),
    ("binary_cross_entropy_with_logits", _loss(9)),
    ("embedding_dense_backward", _numel("grad_output")),
    ("_embedding_bag _embedding_bag_forward_only", _bag),
    ("_fused_adam _fused_adamw", _adam),
    ("_fused_sgd", _sgd),
    ("_amp_foreach_non_finite_check_and_unscale", _of_inputs(1)),
    ("linalg_cross", lambda call: 3 * call.result.numel()),
    ("scatter_add scatter_reduce", _numel("src")),
    ("index_add", lambda call: int(call["source"].numel()) * (1 + _alpha(call))),
    # Operations without floating-point arithmetic.
    (
        """
        copy clone _to_copy to contiguous fill zero zeros ones full zeros_like ones_like full_like new_zeros new_ones
        new_full scalar_tensor arange linspace eye range rand randn randint randperm rand_like randn_like randint_like
        normal uniform random bernoulli exponential log_normal cauchy geometric multinomial cat stack concat hstack
        vstack repeat repeat_interleave roll flip fliplr tril triu tril_indices triu_indices where masked_fill
        masked_select masked_scatter index index_select index_copy index_fill index_put _index_put_impl_ _unsafe_index
        _unsafe_index_put gather scatter take put embedding slice_scatter select_scatter diagonal_scatter
        as_strided_scatter slice_backward select_backward diagonal_backward unfold_backward _unsafe_masked_index
        constant_pad_nd pad reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
        replication_pad3d im2col pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle eq ne lt le gt ge
        equal isnan isinf isfinite isposinf isneginf signbit logical_and logical_or logical_not logical_xor bitwise_and
        bitwise_or bitwise_not bitwise_xor bitwise_left_shift bitwise_right_shift any all is_nonzero nonzero
        nonzero_static count_nonzero sort topk kthvalue median argsort searchsorted bucketize _unique2 unique_dim
        unique_consecutive isin bincount histc _local_scalar_dense real imag view_as_real complex polar resolve_conj
        _linalg_check_errors diag_embed lu_unpack
        resolve_neg conj_physical _conj_physical _pin_memory pin_memory upsample_nearest1d upsample_nearest2d
        upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d max_unpool2d
        max_unpool3d block_diag _reshape_copy view_copy expand_copy permute_copy transpose_copy t_copy as_strided_copy
        unsqueeze_copy squeeze_copy slice_copy split_copy split_with_sizes_copy unbind_copy select_copy _foreach_copy
        _amp_update_scale
        """,
        lambda _: 0,
    ),
)


_BY_NAME: Final[Mapping[str, Formula]] = {name: formula for names, formula in _FORMULAS for name in names.split()}


def _base(name: str) -> str:
    return name.removeprefix("aten.").removeprefix("_foreach_").removesuffix("_")


def arithmetic(name: str) -> Formula | None:
    """The formula of an operation such as `aten.add_` or `aten._foreach_mul`. None if there is none."""
    if not name.startswith("aten."):
        return None
    whole = name.removeprefix("aten.")
    return _BY_NAME.get(whole) or _BY_NAME.get(whole.removesuffix("_")) or _BY_NAME.get(_base(name))

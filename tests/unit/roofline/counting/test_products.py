"""Formulas and traffic of operations that only GPUs have, on calls made by hand: no PyTorch is needed."""

from math import prod
from typing import Any

import pytest

from gpu_profile.roofline.counting.operands import Operand, OperatorCall
from gpu_profile.roofline.counting.registry import formula
from gpu_profile.roofline.counting.totals import Tf32, Totals
from gpu_profile.roofline.counting.traffic import traffic
from gpu_profile.roofline.precision import Precision

_addresses = iter(range(10**6))


def tensor(*shape: int, dtype: str = "float32", itemsize: int = 4) -> Operand:
    strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    return Operand(shape, strides, dtype, itemsize, True, next(_addresses))


def flops(name: str, *outputs: Operand, **values: Any) -> int:
    count = formula(f"aten.{name}")
    assert count is not None
    return count(OperatorCall(f"aten.{name}", "default", values, outputs))


@pytest.mark.parametrize(
    "name",
    [
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    ],
)
def test_every_kernel_of_attention_counts_the_same(name: str) -> None:
    q, k, v = tensor(2, 8, 16, 64), tensor(2, 2, 32, 64), tensor(2, 2, 32, 48)
    assert flops(name, query=q, key=k, value=v, is_causal=False) == 2 * 16 * 16 * 32 * (64 + 48)
    causal = 16 * 17 // 2
    assert flops(name, query=q, key=k, value=v, is_causal=True) == 2 * 16 * causal * (64 + 48)
    backward = flops(f"{name}_backward", query=q, key=k, value=v, is_causal=True)
    assert backward == 2 * 16 * causal * (3 * 64 + 2 * 48)


def test_attention_over_more_queries_than_keys_is_causal_by_position() -> None:
    q, k = tensor(1, 1, 5, 8), tensor(1, 1, 3, 8)
    name = "_scaled_dot_product_flash_attention"
    assert flops(name, query=q, key=k, value=k, is_causal=True) == 4 * 8 * (1 + 2 + 3 + 3 + 3)


@pytest.mark.parametrize(("mask", "pairs"), [(0, 15), (1, 1 + 2 + 3), (2, 3 + 4 + 5)])
def test_efficient_attention_is_causal_from_either_corner(mask: int, pairs: int) -> None:
    q, k = tensor(1, 3, 1, 8), tensor(1, 5, 1, 8)
    found = flops("_efficient_attention_forward", query=q, key=k, value=k, bias=None, custom_mask_type=mask)
    assert found == 4 * 8 * pairs


def test_attention_with_the_heads_behind_the_positions() -> None:
    q = tensor(2, 16, 8, 64)
    assert flops("_flash_attention_forward", query=q, key=q, value=q, is_causal=False) == 4 * 16 * 16 * 16 * 64


def test_attention_whose_lengths_are_data_has_no_count() -> None:
    q = tensor(100, 8, 64)
    totals = Totals(Tf32())
    values = {"query": q, "key": q, "value": q, "cum_seq_q": tensor(4, dtype="int32"), "is_causal": True}
    totals.add(OperatorCall("aten._flash_attention_forward", "default", values, (tensor(100, 8, 64),)), 1)
    assert totals.work("counted", working_set=0).unknown == {"aten._flash_attention_forward": 1}


def test_cudnns_recurrent_layers_count_directions_layers_and_projections() -> None:
    x, weight = tensor(7, 2, 4), tensor(20, 4)
    common = {"input": x, "weight": (weight,), "weight_stride0": 4, "mode": 2, "hidden_size": 5, "num_layers": 2}
    rows = 14

    def layer(inputs: int, recurrent: int) -> int:
        return rows * (2 * 20 * (inputs + recurrent) + 2 * 20 + 13 * 5)

    assert flops("_cudnn_rnn", bidirectional=False, **common) == layer(4, 5) + layer(5, 5)
    assert flops("_cudnn_rnn", bidirectional=True, **common) == 2 * (layer(4, 5) + layer(10, 5))
    projected = flops("_cudnn_rnn", bidirectional=False, proj_size=3, **common)
    assert projected == layer(4, 3) + layer(3, 3) + 2 * rows * 2 * 5 * 3
    assert flops("_cudnn_rnn_backward", bidirectional=False, **common) == 2 * (layer(4, 5) + layer(5, 5))


def test_what_a_library_keeps_for_itself_is_no_traffic() -> None:
    x, out, state = tensor(7, 2, 4), tensor(7, 2, 5), tensor(2, 5)
    values = {"input": x, "weight": (tensor(20, 4),), "weight_buf": tensor(80), "hx": tensor(2, 5)}
    call = OperatorCall("aten._cudnn_rnn", "default", values, (out, state, tensor(2, 5), tensor(10**6), tensor(80)))
    assert traffic(call) == (4 * (56 + 80 + 10), 4 * (70 + 10 + 10))


def test_convolutions_of_cudnn_count_like_any_other() -> None:
    x, weight = tensor(1, 64, 56, 56), tensor(64, 64, 3, 3)
    out = tensor(1, 64, 56, 56)
    assert flops("cudnn_convolution", out, self=x, weight=weight) == 231_211_008
    wide = tensor(1, 32, 112, 112)
    assert flops("cudnn_convolution_transpose", wide, self=x, weight=tensor(64, 32, 2, 2)) == 2 * x.numel() * 32 * 4


@pytest.mark.parametrize(
    ("a", "b"),
    [(tensor(60, 5), tensor(4, 5, 3)), (tensor(4, 15, 5), tensor(4, 5, 3))],
    ids=["rows in groups", "a batch"],
)
def test_grouped_products_count_the_rows_of_all_groups(a: Operand, b: Operand) -> None:
    assert flops("_grouped_mm", self=a, mat2=b) == 2 * 60 * 5 * 3


def test_scaled_products_of_fp8_are_in_fp8() -> None:
    totals = Totals(Tf32(products=True))
    a, b = tensor(16, 32, dtype="float8_e4m3fn", itemsize=1), tensor(32, 8, dtype="float8_e4m3fn", itemsize=1)
    totals.add(OperatorCall("aten._scaled_mm", "default", {"self": a, "mat2": b}, (tensor(16, 8),)), 3)
    work = totals.work("counted", working_set=0)
    assert dict(work.by_precision) == {Precision.FP8: 3 * 2 * 16 * 32 * 8}
    assert work.bytes == 3 * (16 * 32 + 32 * 8 + 4 * 16 * 8)


@pytest.mark.parametrize("allowed", [Tf32(True, False), Tf32(False, True)])
def test_float32_on_cuda_is_tf32_where_pytorch_allows_it(allowed: Tf32) -> None:
    totals = Totals(allowed)
    totals.add(OperatorCall("aten.mm", "default", {"self": tensor(4, 4), "mat2": tensor(4, 4)}, (tensor(4, 4),)), 1)
    values = {"input": tensor(1, 2, 8), "weight": tensor(2, 2, 1), "transposed": False}
    totals.add(OperatorCall("aten.convolution", "default", values, (tensor(1, 2, 8),)), 1)
    totals.add(OperatorCall("aten.relu", "default", {"self": tensor(4, 4)}, (tensor(4, 4),)), 1)
    product, convolution = 2 * 64, 2 * 16 * 2
    tf32, fp32 = (product, convolution) if allowed.products else (convolution, product)
    assert dict(totals.work("counted", working_set=0).by_precision) == {Precision.TF32: tf32, Precision.FP32: fp32 + 16}

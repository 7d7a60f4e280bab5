"""FLOPs and bytes of PyTorch's operations against closed forms, counted beside the run and in it."""

import functools
import operator
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpu_profile.roofline.counting.counter import Counting  # noqa: E402
from gpu_profile.roofline.counting.dry_run import count_without_running  # noqa: E402
from gpu_profile.roofline.precision import Precision  # noqa: E402
from gpu_profile.roofline.work import Work  # noqa: E402

F = torch.nn.functional
nn = torch.nn
r = torch.randn


def counted(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Work:
    with Counting(share=inf) as counting:
        function(*args, **kwargs)
    return counting.work()


def longs(*shape: int) -> Any:
    return torch.zeros(*shape, dtype=torch.long)


ATTENTION = F.scaled_dot_product_attention
q, few = r(2, 4, 64, 32), r(2, 2, 64, 32)

#: Name -> call, FLOPs, bytes in elements of 4 bytes.
CASES: dict[str, tuple[functools.partial[Any], int, float]] = {
    "mm": (functools.partial(torch.mm, r(7, 5), r(5, 3)), 2 * 7 * 5 * 3, 35 + 15 + 21),
    "mm of a tensor and itself": (functools.partial(torch.mm, *[r(6, 6)] * 2), 2 * 6**3, 2 * 36),
    "addmm": (
        functools.partial(torch.addmm, r(1024), r(512, 1024), r(1024, 1024)),
        1_073_741_824 + 512 * 1024,
        1024 + 512 * 1024 + 1024 * 1024 + 512 * 1024,
    ),
    "addmm without its summand": (
        functools.partial(torch.addmm, r(3), r(7, 5), r(5, 3), beta=0),
        2 * 7 * 5 * 3,
        3 + 35 + 15 + 21,
    ),
    "bmm": (functools.partial(torch.bmm, r(4, 7, 5), r(4, 5, 3)), 4 * 210, 4 * 71),
    "baddbmm": (functools.partial(torch.baddbmm, r(4, 7, 3), r(4, 7, 5), r(4, 5, 3)), 4 * 231, 4 * 92),
    "mv": (functools.partial(torch.mv, r(7, 5), r(5)), 70, 35 + 5 + 7),
    "addmv": (functools.partial(torch.addmv, r(7), r(7, 5), r(5)), 77, 7 + 35 + 5 + 7),
    "dot": (functools.partial(torch.dot, r(9), r(9)), 18, 19),
    "matmul of a batch with a matrix": (functools.partial(torch.matmul, r(8, 7, 5), r(5, 3)), 8 * 210, 8 * 56 + 15),
    "operator.matmul": (functools.partial(operator.matmul, r(7, 5), r(5, 3)), 210, 71),
    "a method of a tensor": (functools.partial(r(7, 5).mm, r(5, 3)), 210, 71),
    "linear with bias": (functools.partial(F.linear, r(2, 7, 5), r(3, 5), r(3)), 2 * 231, 70 + 15 + 3 + 42),
    "einsum": (functools.partial(torch.einsum, "bij,bjk->bik", r(4, 7, 5), r(4, 5, 3)), 4 * 210, 4 * 71),
    "conv2d": (
        functools.partial(F.conv2d, r(1, 64, 56, 56), r(64, 64, 3, 3), padding=1),
        231_211_008,
        2 * 64 * 56 * 56 + 64 * 64 * 9,
    ),
    "conv1d, groups, dilation, bias": (
        functools.partial(F.conv1d, r(2, 6, 17), r(4, 3, 3), r(4), dilation=2, groups=2),
        2 * 4 * 13 * (2 * 9 + 1),
        2 * 6 * 17 + 36 + 4 + 2 * 4 * 13,
    ),
    "conv3d, stride": (
        functools.partial(F.conv3d, r(1, 2, 9, 9, 9), r(3, 2, 3, 3, 3), stride=2),
        2 * 3 * 64 * 54,
        2 * 729 + 3 * 54 + 3 * 64,
    ),
    "transposed convolution": (
        functools.partial(F.conv_transpose2d, r(1, 6, 7, 7), r(6, 2, 3, 3), r(4), stride=2, groups=2),
        2 * 6 * 49 * 18 + 4 * 225,
        6 * 49 + 6 * 18 + 4 + 4 * 225,
    ),
    "attention": (functools.partial(ATTENTION, q, q, q), 4 * 8 * 64 * 64 * 32, 2 * 8 * 64 * 32 + 2 * 4 * 64),
    "causal attention": (
        functools.partial(ATTENTION, q, q, q, is_causal=True),
        4 * 8 * (64 * 65 // 2) * 32,
        2 * 8 * 64 * 32 + 2 * 4 * 64,
    ),
    "grouped attention": (
        functools.partial(ATTENTION, q, few, few, enable_gqa=True),
        4 * 8 * 64 * 64 * 32,
        2 * 8 * 64 * 32 + 4 * 64 * 32 + 2 * 4 * 64,
    ),
    "add, broadcast": (functools.partial(torch.add, r(8, 8), r(8)), 64, 64 + 8 + 64),
    "add, expanded": (functools.partial(torch.add, r(8, 8), r(8, 1).expand(8, 8)), 64, 64 + 8 + 64),
    "add with a factor": (functools.partial(torch.add, r(8, 8), r(8, 8), alpha=2), 128, 192),
    "add in place": (functools.partial(torch.Tensor.add_, r(8, 8), r(8)), 64, 64 + 8 + 64),
    "add into out=": (functools.partial(torch.add, r(8, 8), r(8, 8), out=r(8, 8)), 64, 192),
    "a part of a tensor": (functools.partial(torch.cos, r(8, 8)[:, ::2]), 32, 64),
    "cos": (functools.partial(torch.cos, r(8, 8)), 64, 128),
    "addcmul": (functools.partial(torch.addcmul, r(8), r(8), r(8)), 16, 32),
    "lerp": (functools.partial(torch.lerp, r(8), r(8), 0.5), 24, 24),
    "gelu": (functools.partial(F.gelu, r(8, 8)), 5 * 64, 128),
    "silu": (functools.partial(F.silu, r(8, 8)), 2 * 64, 128),
    "sum": (functools.partial(torch.sum, r(8, 8)), 63, 65),
    "mean of rows": (functools.partial(torch.mean, r(8, 8), 1), 64, 72),
    "maximum": (functools.partial(torch.amax, r(8, 8), 1), 56, 72),
    "variance": (functools.partial(torch.var, r(8, 8)), 4 * 64, 65),
    "norm": (functools.partial(torch.linalg.vector_norm, r(8, 8)), 2 * 64, 65),
    "softmax": (functools.partial(torch.softmax, r(8, 8), -1), 5 * 64, 128),
    "layer norm": (functools.partial(nn.LayerNorm(8), r(6, 8)), 7 * 48, 48 + 16 + 48 + 12),
    "group norm": (functools.partial(F.group_norm, r(2, 4, 8), 2), 5 * 64, 128 + 8),
    "batch norm of kept statistics": (functools.partial(nn.BatchNorm1d(4).eval(), r(2, 4, 8)), 128, 128 + 16),
    "average pooling": (functools.partial(F.avg_pool2d, r(2, 4, 8, 8), 2), 512, 512 + 128),
    "adaptive pooling": (functools.partial(F.adaptive_avg_pool1d, r(1, 8), 3), 8 + 2, 11),
    "bilinear": (functools.partial(F.interpolate, r(1, 1, 4, 4), scale_factor=2, mode="bilinear"), 7 * 64, 80),
    "embedding": (functools.partial(F.embedding, longs(5), r(1000, 16)), 0, 2 * 5 + 2 * 5 * 16),
    "index_select": (functools.partial(torch.index_select, r(100, 8), 0, longs(4)), 0, 2 * 4 + 2 * 32),
    "index_put_": (functools.partial(r(100, 8).index_put_, (longs(2),), r(2, 8)), 0, 2 * 2 + 2 * 16),
    "scatter_add_": (functools.partial(r(100, 8).scatter_add_, 0, longs(2, 8), r(2, 8)), 16, 2 * 16 + 3 * 16),
    "a copy": (functools.partial(torch.clone, r(8, 8)), 0, 128),
    "copy_": (functools.partial(torch.Tensor.copy_, r(8, 8), r(8)), 0, 64 + 8),
    "a fill": (functools.partial(torch.Tensor.zero_, r(8, 8)), 0, 64),
    "a new tensor of ones": (functools.partial(torch.ones, 8, 8), 0, 64),
    "a comparison": (functools.partial(torch.gt, r(8, 8), 0), 0, 64 + 16),
    "cat": (functools.partial(torch.cat, [r(8, 8), r(8, 8)]), 0, 256),
    "fft": (functools.partial(torch.fft.fft, torch.zeros(4, 8, dtype=torch.complex64)), 5 * 32 * 3, 2 * 64),
    "rfft": (functools.partial(torch.fft.rfft, r(4, 8)), 5 * 32 * 3 // 2, 32 + 2 * 20),
}


@pytest.mark.parametrize("name", CASES)
def test_flops_and_bytes_are_the_closed_forms_beside_the_run_and_in_it(name: str) -> None:
    call, flops, elements = CASES[name]
    work = count_without_running(call)
    assert work is not None
    assert (work.flops, work.bytes, work.unknown, work.method) == (flops, 4 * elements, {}, "meta")
    in_run = counted(call)
    assert (in_run.flops, in_run.bytes, in_run.operations) == (flops, 4 * elements, work.operations)


@pytest.mark.parametrize(
    ("dtype", "precision"), [("float64", Precision.FP64), ("bfloat16", Precision.BF16), ("float16", Precision.FP16)]
)
def test_flops_are_in_the_precision_of_the_operands(dtype: str, precision: Precision) -> None:
    x = torch.ones(4, 4, dtype=getattr(torch, dtype))
    work = counted(lambda: torch.relu(x @ x))
    assert dict(work.by_precision) == {precision: 128 + 16}


def test_products_of_bytes_are_in_int8_and_arithmetic_on_integers_is_no_flops() -> None:
    x = torch.ones(32, 32, dtype=torch.int8)
    assert dict(counted(torch._int_mm, x, x).by_precision) == {Precision.INT8: 2 * 32**3}
    assert counted(torch.add, longs(4), 1).flops == 0


def test_complex_arithmetic_counts_its_real_operations() -> None:
    z = torch.ones(4, 4, dtype=torch.complex64)
    assert counted(torch.mm, z, z).flops == 8 * 64
    assert counted(torch.mul, z, z).flops == 6 * 16
    assert counted(torch.mul, z, 2.0).flops == 2 * 16
    assert counted(torch.add, z, z).flops == 2 * 16
    assert counted(torch.abs, z).flops == 4 * 16
    assert counted(torch.sin, z).unknown == {"aten.sin": 1}


def test_backward_of_a_convolution_is_one_forward_for_the_input_and_one_for_the_weight() -> None:
    x, weight, bias = r(1, 6, 7, 7, requires_grad=True), r(4, 6, 3, 3, requires_grad=True), r(4, requires_grad=True)
    out = F.conv2d(x, weight, bias)
    gradient = torch.ones_like(out)
    work = counted(out.backward, gradient)
    assert work.flops == 2 * (2 * 4 * 25 * 54) + (4 * 25 - 4)


def test_backward_of_attention_is_five_products() -> None:
    x = r(2, 4, 16, 8, requires_grad=True)
    out = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    work = counted(torch.autograd.grad, out, (x,), torch.ones_like(out))
    assert work.flops == 5 * 2 * 8 * (16 * 17 // 2) * 8 + 2 * x.numel()  # and the sum of three gradients


def test_attention_that_runs_as_products_counts_its_softmax_and_its_dropout() -> None:
    scores = 8 * 64 * 64
    work = counted(ATTENTION, q, q, q, dropout_p=0.1)
    assert work.flops == 4 * scores * 32 + 2 * q.numel() + 5 * scores + 2 * scores


@pytest.mark.parametrize(("layer", "gates", "cell"), [(nn.LSTM, 4, 13), (nn.GRU, 3, 10), (nn.RNN, 1, 2)])
def test_a_recurrent_layer_is_its_products_its_biases_and_its_cell(layer: Any, gates: int, cell: int) -> None:
    rows, inputs, hidden = 7 * 2, 4, 5
    expected = rows * (2 * gates * hidden * (inputs + hidden) + 2 * gates * hidden + cell * hidden)
    module, x = layer(inputs, hidden), r(7, 2, inputs)
    assert counted(module, x).flops == expected
    work = count_without_running(module, (x,))
    assert work is not None
    assert work.flops == expected


def test_optimisers_are_counted_fused_and_by_lists() -> None:
    parameters = [nn.Parameter(r(4, 4)), nn.Parameter(r(3))]
    for each in parameters:
        each.grad = torch.ones_like(each)
    fused = torch.optim.AdamW(parameters, fused=True, weight_decay=0.1)
    fused.step()
    assert counted(fused.step).flops == 19 * 14 + 2  # and the steps of two parameters
    lists = torch.optim.SGD(parameters, foreach=True, lr=0.1)
    assert counted(lists.step).flops == 19 * 2


def test_windows_that_overlap_count_the_memory_that_they_span_once() -> None:
    x = r(100).unfold(0, 3, 1)
    assert counted(torch.mul, x, 2).bytes == 4 * (100 + 3 * 98)


def test_views_and_allocations_are_no_operations() -> None:
    work = count_without_running(torch.Tensor.view, (r(8, 8), 64))
    assert work is not None
    assert (work.flops, work.bytes, work.operations) == (0, 0, 0)
    work = counted(lambda: torch.empty(8, 8).t().unsqueeze(0).cos())
    assert (work.flops, work.bytes, work.operations) == (64, 512, 1)


def test_inference_mode_counts_what_other_modes_count() -> None:
    layer, x = nn.LSTM(4, 5), r(7, 2, 4)
    image = r(1, 3, 8, 8)
    convolution = nn.Conv2d(3, 4, 3, padding="same")
    outside = counted(lambda: (layer(x), convolution(image)))
    with torch.inference_mode():
        inside = counted(lambda: (layer(x), convolution(image)))
    assert (inside.flops, inside.unknown) == (outside.flops, {})


@pytest.mark.parametrize(
    "copies",
    [
        lambda x: x.t().reshape(-1),
        lambda x: x.t().contiguous(),
        lambda x: x.t().flatten(),
        lambda x: x.to(torch.float64),
    ],
    ids=["reshape", "contiguous", "flatten", "to"],
)
def test_what_may_be_a_view_moves_bytes_where_it_copies_in_inference_mode_too(copies: Callable[[Any], Any]) -> None:
    x = r(8, 4)
    outside = counted(lambda: copies(x))
    with torch.inference_mode():
        inside = counted(lambda: copies(x))
        viewed = counted(lambda: x.reshape(-1).cos())
    assert outside.bytes == inside.bytes
    assert inside.bytes is not None
    assert inside.bytes >= 2 * 8 * 4 * 4
    assert viewed.operations == 1


def test_the_working_set_is_the_distinct_memory_and_the_largest_operation_is_named_in_bytes() -> None:
    x, y = r(64, 64), r(64, 64)
    out = torch.empty(64, 64)
    work = counted(lambda: [torch.add(x, y, out=out) for _ in range(10)])
    assert (work.working_set, work.largest, work.bytes) == (3 * 16384, 3 * 16384, 30 * 16384)


def test_operations_without_a_formula_are_named_and_their_bytes_counted() -> None:
    x = r(8, 8)
    work = counted(lambda: torch.linalg.lstsq(x @ x, x))
    assert work.unknown == {"aten.linalg_lstsq": 1}
    assert (work.flops, work.at_least) == (None, 2 * 8**3)
    assert work.bytes is not None
    assert work.bytes >= 4 * (3 * 64 + 2 * 64)
    alone = counted(torch.linalg.lstsq, x, x)
    assert alone.flops is None
    assert alone.reasons["flops"] == "no formula for aten.linalg_lstsq"

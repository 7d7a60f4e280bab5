"""Counting against closed forms and against enumeration, for any shape."""

from itertools import product
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_profile.roofline.counting.operands import Operand

torch = pytest.importorskip("torch")

from gpu_profile.roofline.counting.counter import Counting  # noqa: E402
from gpu_profile.roofline.counting.dry_run import count_without_running  # noqa: E402

few = settings(max_examples=40)
size = st.integers(1, 7)


def counted(function: Any, *args: Any, **kwargs: Any) -> tuple[int | None, int | None]:
    with Counting(share=inf) as counting:
        function(*args, **kwargs)
    work = counting.work()
    beside = count_without_running(function, args, kwargs)
    assert beside is not None
    assert (beside.flops, beside.bytes) == (work.flops, work.bytes)
    return work.flops, work.bytes


@few
@given(size, size, size, size)
def test_products_are_twice_their_three_lengths_and_move_each_matrix_once(b: int, m: int, k: int, n: int) -> None:
    x, y = torch.ones(b, m, k), torch.ones(b, k, n)
    assert counted(torch.bmm, x, y) == (2 * b * m * k * n, 4 * b * (m * k + k * n + m * n))
    added = counted(torch.addmm, torch.ones(n), x[0], y[0])
    assert added == (2 * m * k * n + m * n, 4 * (n + m * k + k * n + m * n))


@few
@given(size, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2))
def test_convolutions_are_twice_results_by_channels_by_kernel(
    batch: int, groups: int, channels: int, kernel: int, stride: int, dilation: int
) -> None:
    x = torch.ones(batch, groups * channels, 9)
    weight = torch.ones(2 * groups, channels, kernel)
    length = (9 - dilation * (kernel - 1) - 1) // stride + 1
    results = batch * 2 * groups * length
    flops, moved = counted(torch.conv1d, x, weight, None, stride, 0, dilation, groups)
    assert flops == 2 * results * channels * kernel
    assert moved == 4 * (x.numel() + weight.numel() + results)


@few
@given(size, st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.sampled_from([8, 16]), st.booleans())
def test_attention_is_two_products_of_the_pairs(
    batch: int, heads: int, groups: int, length: int, width: int, causal: bool
) -> None:
    q, k = torch.ones(batch, heads * groups, length, width), torch.ones(batch, heads, length, width)
    pairs = length * (length + 1) // 2 if causal else length * length
    flops, _ = counted(
        torch.nn.functional.scaled_dot_product_attention, q, k, k, is_causal=causal, enable_gqa=groups > 1
    )
    assert flops == 4 * batch * heads * groups * pairs * width


@few
@given(st.lists(st.tuples(size, st.booleans()), min_size=1, max_size=3))
def test_broadcasting_reads_each_element_once_and_writes_each_result_once(dimensions: list[tuple[int, bool]]) -> None:
    full = torch.ones([n for n, _ in dimensions])
    narrow = torch.ones([1 if broadcast else n for n, broadcast in dimensions])
    assert counted(torch.mul, full, narrow) == (full.numel(), 4 * (2 * full.numel() + narrow.numel()))
    assert counted(torch.mul, full, narrow.expand(full.shape)) == counted(torch.mul, full, narrow)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=3))
def test_touched_bytes_are_exact_where_elements_do_not_overlap_and_never_too_many(
    dimensions: list[tuple[int, int]],
) -> None:
    operand = Operand(tuple(n for n, _ in dimensions), tuple(s for _, s in dimensions), "float32", 4)
    places = [
        sum(i * s for i, (_, s) in zip(at, dimensions, strict=True)) for at in product(*map(range, operand.shape))
    ]
    distinct = 4 * len(set(places))
    assert operand.span == (4 * (max(places) + 1) if places else 0)
    assert distinct <= operand.touched <= operand.span
    if len(set(places)) == operand.numel():
        assert operand.touched == distinct


@few
@given(st.lists(st.sampled_from(["mm", "relu", "add_", "view"]), max_size=30))
def test_work_adds_up_over_the_operations_of_a_run(names: list[str]) -> None:
    x = torch.ones(4, 4)
    calls: dict[str, Any] = {
        "mm": lambda: torch.mm(x, x),
        "relu": lambda: torch.relu(x),
        "add_": lambda: x.add_(1),
        "view": lambda: x.view(16),
    }
    flops = {"mm": 128, "relu": 16, "add_": 16, "view": 0}
    with Counting(share=inf) as counting:
        for each in names:
            calls[each]()
    work = counting.work()
    dispatched = [each for each in names if each != "view"]
    assert work.operations == len(dispatched)
    if dispatched:
        assert work.flops == sum(flops[each] for each in dispatched)
        assert work.bytes == 128 * len(dispatched)
        assert work.coverage == 1.0

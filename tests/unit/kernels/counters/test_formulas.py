"""What counters mean: which add up, and what their sums make."""

import pytest
from support.traces import PCT, counted, joined, kernels

from gpu_profile.kernels.counters.formulas import adds_up
from gpu_profile.kernels.records import RangeCounters


@pytest.mark.parametrize(
    ("metric", "sums"),
    [
        ("gpu__time_duration.sum", True),
        ("sm__cycles_active.avg", True),
        ("sm__cycles_active.max", False),
        ("dram__bytes.sum.per_second", False),
        ("l1tex__t_sector_hit_rate.pct", False),
        ("smsp__thread_inst_executed_per_inst_executed.ratio", False),
        (PCT, False),
        ("achieved_occupancy", False),
    ],
)
def test_only_counts_add_up(metric: str, sums: bool) -> None:
    assert adds_up(metric) is sums


def test_operations_count_a_fused_multiply_and_add_twice() -> None:
    whole = kernels(gemm=[50])
    found = joined([counted("gemm", ADD=1, MUL=10, FMA=100, DRAM=422)], whole, whole).figures()
    assert found["flop.fp32"] == (211, "{FLOP}", 1, True)
    assert found["flop_rate.fp32"].value == pytest.approx(211 / 50e-9)
    assert found["intensity.fp32"].value == pytest.approx(0.5)
    assert found["dram.bandwidth"].value == pytest.approx(422 / 50e-9)
    assert {"flop.fp16", "flop.fp64", "intensity"}.isdisjoint(found)


def test_a_figure_with_a_metric_missing_is_absent() -> None:
    whole = kernels(gemm=[50])
    assert joined([counted("gemm", ADD=1, FMA=100)], whole, whole).figures() == {}


def test_a_rate_takes_the_time_of_the_run_that_counted() -> None:
    whole = kernels(gemm=[50])
    found = joined([counted("gemm", DRAM=100, TIME=200)], whole, whole).figures()
    assert found["dram.bandwidth"].value == pytest.approx(100 / 200e-9)


def test_metrics_of_unlike_kernels_make_no_ratio() -> None:
    whole = kernels(gemm=[50], relu=[50])
    records = [counted("gemm", DRAM=100, TIME=200), counted("relu", DRAM=100)]
    found = joined(records, whole, whole).figures()
    assert found["dram.bytes"].value == 200
    assert "dram.bandwidth" not in found


@pytest.mark.parametrize(
    "values",
    [
        {"dram__bytes.sum": 640},
        {"dram__bytes_read.sum": 600, "dram__bytes_write.sum": 40},
        {"dram__sectors.sum": 20},
        {"dram__sectors_read.sum": 15, "dram__sectors_write.sum": 5},
        {"dram__bytes.sum": 640, "dram__sectors.sum": 999},
    ],
)
def test_bytes_of_memory_are_told_by_any_of_the_metrics(values: dict[str, float]) -> None:
    whole = kernels(gemm=[50])
    assert joined([RangeCounters("gemm", 0, values)], whole, whole).figures()["dram.bytes"].value == 640


def test_tensor_and_cache_shares_are_made_of_cycles_and_sectors() -> None:
    values = {
        "sm__pipe_tensor_cycles_active.sum": 25,
        "sm__inst_executed_pipe_tensor.sum": 10,
        "sm__cycles_active.sum": 100,
        "l1tex__t_sectors_lookup_hit.sum": 3,
        "l1tex__t_sectors_lookup_miss.sum": 1,
        "lts__t_sectors_lookup_hit.sum": 0,
        "lts__t_sectors_lookup_miss.sum": 0,
    }
    whole = kernels(gemm=[50])
    found = joined([RangeCounters("gemm", 0, values)], whole, whole).figures()
    assert {name: figure.value for name, figure in found.items()} == {
        "tensor.active": 0.25,
        "tensor.instructions_per_cycle": 0.1,
        "l1.hit_ratio": 0.75,
    }

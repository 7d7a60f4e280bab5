"""What the profiler of ranges shows: numbers under each reduction, the console's layout, and the files."""

import csv
import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.errors import UsageError
from gpu_profile.kernels.counters.sums import Counters
from gpu_profile.kernels.gmp import results
from gpu_profile.kernels.gmp.profiler import _print
from gpu_profile.kernels.gmp.results import ProfileType, Reduction, Results, kernel_text, memory_text, one_of, write
from gpu_profile.kernels.gmp.totals import RangeTotals
from gpu_profile.kernels.joining.columns import RecordArrays
from gpu_profile.kernels.memory.region import RegionMemory
from gpu_profile.kernels.records import RangeCounters
from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.sums import CopySum, KernelSum
from gpu_profile.kernels.views import KernelReport, report_of

EMPTY = RegionKernels("empty", 2, 5_000_000)
KERNELS = {"gemm": KernelSum(3, 1_200_450, 500_000), "relu": KernelSum(1, 50_000, 50_000)}
BUSY = replace(
    EMPTY,
    name="matrix_operations",
    devices=(0,),
    kernels=KERNELS,
    copies={"HtoD": CopySum(2, 900, 4096, 900), "DtoH": CopySum(1, 100, 0, 0)},
    occupancy_ns=0.5 * 1_000_000,
    occupancy_of_ns=1_250_000,
)
HELD = RegionMemory("torch", 0, 5, 104_857_600, 5, 104_857_600, 209_715_200, 104_857_600)


def numbers(region: RegionKernels, how: str) -> dict[str, str]:
    return dict(str(value).split(": ") for value in Results().values(region, how))


def with_memory(*memory: RegionMemory) -> Results:
    return Results(memory={"memory_ops": replace(EMPTY, memory=memory)}, with_memory=frozenset({"empty"}))


# ---------------------------------------------------------------------- numbers


def test_each_reduction_is_over_the_range_s_kernels() -> None:
    assert numbers(BUSY, "SUM")["gpu__time_duration.sum"] == "1250.45 us"
    assert numbers(BUSY, "MAX")["gpu__time_duration.sum"] == "500.00 us"
    assert numbers(BUSY, "mean")["gpu__time_duration.sum"] == "312.61 us"


def test_ratios_are_weighted_means_and_never_sums_or_maxima() -> None:
    name = "kernels.estimated_occupancy"
    assert numbers(BUSY, "SUM")[name] == numbers(BUSY, "MEAN")[name] == "40.00 %"
    assert name not in numbers(BUSY, "MAX")


def test_counts_are_the_same_under_each_reduction() -> None:
    for how in Reduction:
        found = numbers(BUSY, how)
        counts = [found[key] for key in ("kernels.count", "executions.count", "copies.count", "copies.bytes")]
        assert counts == ["4", "2", "3", "4096 B"]


def test_the_host_s_time_is_whole_or_by_execution_and_has_no_maximum() -> None:
    assert numbers(EMPTY, "SUM")["host__time_duration.sum"] == "5000.00 us"
    assert numbers(EMPTY, "MEAN")["host__time_duration.sum"] == "2500.00 us"
    assert "host__time_duration.sum" not in numbers(EMPTY, "MAX")


def test_a_range_without_kernels_has_no_longest_and_no_mean_one() -> None:
    assert numbers(EMPTY, "SUM")["gpu__time_duration.sum"] == "0.00 us"
    for how in ("MAX", "MEAN"):
        assert "gpu__time_duration.sum" not in numbers(EMPTY, how)


def test_what_nobody_recorded_is_absent_and_the_host_s_time_is_told() -> None:
    found = [value.metric for value in Results(unrecorded={"empty": 2}).values(EMPTY)]
    assert found == ["executions.count", "host__time_duration.sum"]


def test_operators_of_the_cpu_have_names_of_their_own() -> None:
    found = numbers(replace(BUSY, on_host=True), "SUM")
    assert found["cpu__time_duration.sum"] == "1250.45 us"
    assert found["operators.count"] == "4"
    assert not any(key.startswith(("gpu", "kernels.count")) for key in found)


def test_hardware_counters_have_their_units_and_their_time_is_not_shown_twice() -> None:
    counted = [
        RangeCounters(
            "relu", 0, {"smsp__inst_executed.sum": 2048576.0, "dram__bytes.sum": 0.5, "gpu__time_duration.sum": 9.0}
        )
    ]
    kernels = {"relu": KERNELS["relu"]}
    region = replace(BUSY, kernels=kernels, counters=Counters(counted).of(kernels, kernels, "matrix_operations"))
    lines = [str(value) for value in Results().values(region)]
    assert "smsp__inst_executed.sum: 2048576" in lines
    assert "dram__bytes.sum: 0.50 B" in lines
    assert [line for line in lines if line.startswith("gpu__time")] == ["gpu__time_duration.sum: 50.00 us"]


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
        ("dram__bytes.sum.per_second", "B/s"),
        ("smsp__inst_executed.sum", ""),
        ("gpc__cycle_active_duration.avg", "ns"),
    ],
)
def test_a_counter_s_name_tells_its_unit(metric: str, unit: str) -> None:
    assert results._unit(metric) == unit


@given(st.text())
def test_only_the_names_there_are_are_taken_in_any_case(name: str) -> None:
    if name.upper() in set(Reduction):
        assert one_of(Reduction, name) == name.upper()
    else:
        with pytest.raises(UsageError, match="there is no reduction"):
            one_of(Reduction, name)


# ---------------------------------------------------------------------- the console


def test_the_console_looks_as_in_the_document() -> None:
    found = Results(kernels={"matrix_operations": BUSY})
    assert kernel_text(found).splitlines() == [
        "🔥 Kernel Profiling Results (SUM):",
        "Number of ranges: 1",
        "Range 1: matrix_operations",
        "  gpu__time_duration.sum: 1250.45 us",
        "  kernels.count: 4",
        "  kernels.estimated_occupancy: 40.00 %",
        "  executions.count: 2",
        "  host__time_duration.sum: 5000.00 us",
        "  copies.count: 3",
        "  copies.bytes: 4096 B",
    ]
    assert memory_text(with_memory(HELD)).splitlines() == [
        "💾 Memory Activity Results:",
        "Range 1: memory_ops",
        "  Allocations: 5 operations, 104857600 bytes (100.00 MB)",
        "  Deallocations: 5 operations, 104857600 bytes (100.00 MB)",
        "  Peak: 209715200 bytes (200.00 MB)",
    ]


def test_several_allocators_and_the_host_s_are_named() -> None:
    host = RegionMemory("torch", -1, 1, 1, 0, 0, None, 1)
    lines = memory_text(with_memory(replace(HELD, source="driver", device=1), host)).splitlines()
    assert lines[2].endswith("(100.00 MB) [driver, GPU 1]")
    assert lines[5:] == [
        "  Allocations: 1 operations, 1 bytes (0.00 MB) [torch, CPU]",
        "  Deallocations: 0 operations, 0 bytes (0.00 MB) [torch, CPU]",
        "  Peak above the start: 1 bytes (0.00 MB) [torch, CPU]",
    ]


def test_no_allocation_is_zero_and_no_record_is_not() -> None:
    assert "Allocations: 0 operations, 0 bytes (0.00 MB)" in memory_text(with_memory())
    for unknown in (EMPTY, None):
        assert memory_text(Results(memory={"empty": unknown})).splitlines()[2:] == ["  not recorded"]


def test_everything_that_makes_the_numbers_doubtful_is_told() -> None:
    found = Results(
        kernels={"on the CPU": replace(BUSY, on_host=True), "nowhere": None},
        problems=("Somebody else did.",),
        notes={"operations without a call": 3},
        dropped=7,
    )
    lines = kernel_text(found).splitlines()
    assert lines[2] == "No GPU operation was recorded: these are operators of the CPU."
    assert lines[-5:] == [
        "Range 2: nowhere",
        "  not recorded",
        "Somebody else did.",
        "7 records were lost: the numbers are too low.",
        "Note: operations without a call: 3",
    ]


def test_a_console_without_such_signs_shows_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    _print(kernel_text(Results()))
    assert raw.getvalue().startswith(b"? Kernel Profiling Results (SUM):\nNumber of ranges: 0\n")


# ---------------------------------------------------------------------- files


def test_files_have_a_header_units_and_full_precision(tmp_path: Path) -> None:
    name = 'a, "quoted"\nname'
    region = replace(BUSY, kernels={name: KernelSum(3, 1_000_001, 7)})
    write(Results(kernels={name: region}, memory=with_memory(HELD).memory, with_memory=frozenset({"empty"})), tmp_path)
    with (tmp_path / "result.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["range", "metric", "unit", "reduction", "value"]
    assert rows[1] == [name, "gpu__time_duration.sum", "us", "SUM", "1000.001"]
    assert [name, "kernels.estimated_occupancy", "%", "MEAN", "40.0"] in rows
    assert ["memory_ops", "memory.torch.gpu0.allocated_bytes", "B", "SUM", "104857600"] in rows
    assert ["memory_ops", "memory.torch.gpu0.peak_bytes", "B", "MAX", "209715200"] in rows
    with (tmp_path / "kernels.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["range", "kernel", "count", "total_us", "mean_us", "max_us"]
    assert rows[1][:4] == [name, name, "3", "1000.001"]
    assert float(rows[1][4]) == 1000.001 / 3


def test_text_that_is_no_unicode_is_written_escaped(tmp_path: Path) -> None:
    write(Results(kernels={"a": replace(BUSY, kernels={"lone \udc80": KERNELS["gemm"]})}), tmp_path)
    assert b"a,lone \\udc80,3," in (tmp_path / "kernels.csv").read_bytes()


def test_a_file_that_cannot_be_replaced_leaves_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "result.csv").mkdir()
    with pytest.raises(OSError, match="directory"):
        write(Results(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["result.csv"]


# ---------------------------------------------------------------------- sums of windows


def window(*regions: RegionKernels) -> KernelReport:
    return replace(report_of([], source="fake"), regions=regions, columns=RecordArrays())


def added(*windows: KernelReport, name: str = "empty") -> RegionKernels:
    totals = RangeTotals()
    totals.names[ProfileType.CONCURRENT_KERNEL][name] = None
    for each in windows:
        totals.add(each, recorded=True, memory=True)
    found = totals.results().kernels[name]
    assert found is not None
    return found


def test_where_one_window_has_the_gpu_s_work_the_cpu_s_operators_of_another_are_left_out() -> None:
    gpu = replace(BUSY, name="empty")
    cpu = replace(gpu, on_host=True, memory=(HELD,), operations=9)
    for order in ((gpu, cpu), (cpu, gpu)):
        found = added(*map(window, order))
        assert not found.on_host
        assert (found.kernels, found.copies, found.operations) == (gpu.kernels, gpu.copies, gpu.operations)
        assert (found.executions, found.host_ns, found.memory) == (4, 10_000_000, (HELD,))
        assert found.occupancy == gpu.occupancy
    both = added(window(cpu), window(cpu))
    assert both.on_host
    assert both.kernel_count == 8


def test_ranges_in_threads_that_were_not_recorded_are_not_told_as_zero() -> None:
    totals = RangeTotals()
    for kind in ProfileType:
        totals.names[kind]["empty"] = None
    report = window(replace(EMPTY, on_host=True))
    totals.add(report, recorded=True, memory=True, elsewhere={"empty"})
    found = totals.results()
    assert "not recorded" in memory_text(found)
    assert "cpu__" not in kernel_text(found)

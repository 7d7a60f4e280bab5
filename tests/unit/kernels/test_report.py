"""What a report of a recording holds beside the sums of its regions."""

from pathlib import Path

import pytest
from support.traces import MAIN, launch, report

from gpu_profile.errors import UsageError
from gpu_profile.kernels import region_sums
from gpu_profile.kernels.records import Allocation, Operator, Range, Record
from gpu_profile.kernels.sums import KernelSum
from gpu_profile.recording import KernelStamps
from gpu_profile.regimes import Regime


def test_sums_of_two_recordings_of_a_region_add_up() -> None:
    one = report(Range("a", MAIN, 0, 100), launch(1, 1, 10, 20), launch(2, 30, 40, 50, name="relu")).region("a")
    two = report(Range("a", MAIN, 0, 50), launch(1, 1, 10, 30, device=1)).region("a")
    both = one + two
    assert (both.executions, both.devices, both.span_ns, both.busy_ns) == (2, (0, 1), 150, 40)
    assert both.kernels == {"gemm": KernelSum(2, 30, 20), "relu": KernelSum(1, 10, 10)}
    assert both.idle == one.idle + two.idle


def test_sums_of_different_regions_do_not_add_up() -> None:
    found = report(Range("a", MAIN, 0, 100), Range("b", MAIN, 200, 300))
    with pytest.raises(ValueError, match="not the same region"):
        found.regions[0] + found.regions[1]


def test_each_execution_by_itself_by_its_id() -> None:
    found = report(
        Range("a", MAIN, 0, 100, id=1),
        Range("a", MAIN, 200, 300, id=2),
        launch(1, 10, 20, 30),
        launch(2, 210, 220, 250),
    )
    each = found.executions()
    assert {number: (r.name, r.executions, r.busy_ns) for number, r in each.items()} == {
        1: ("a", 1, 10),
        2: ("a", 1, 30),
    }


def test_the_kernels_of_an_execution_are_its_own_ones_by_their_start() -> None:
    found = report(
        Range("a", MAIN, 0, 100, id=1),
        Range("b", MAIN, 20, 60, id=2),
        Range("c", MAIN, 200, 300, id=3),
        launch(1, 10, 30, 45),
        launch(2, 30, 50, 60, name="relu"),
        launch(3, 70, 80, 95),
        launch(4, 210, 220, 230),
        launch(5, 220, 230, 240, device=1),
    )
    assert found.kernel_stamps({1: -5, 2: 20, 3: 200}) == {
        1: KernelStamps(("gemm",), (0, 0), (35, 50), (15, 15)),
        2: KernelStamps(("relu",), (0,), (30,), (10,)),
    }
    starts, ends = found.kernel_stamps({1: 0})[1].edges(1_000)
    assert (starts.tolist(), ends.tolist()) == ([1_030, 1_080], [1_045, 1_095])


def test_an_execution_with_too_many_kernels_has_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_sums, "MOST_STAMPED", 1)
    found = report(Range("a", MAIN, 0, 100, id=1), launch(1, 10, 30, 45), launch(2, 30, 50, 60))
    assert found.kernel_stamps({1: 0}) == {}


def test_without_a_gpu_s_operations_the_host_s_operators_are_the_work() -> None:
    found = report(
        Range("a", MAIN, 0, 100),
        Operator("aten::linear", MAIN, 10, 50),
        Operator("aten::addmm", MAIN, 20, 45),
        Operator("aten::relu", MAIN, 60, 70),
    )
    a = found.region("a")
    assert found.on_host
    assert found.activity is None
    # Each by the time that is its own.
    assert a.kernels == {
        "aten::linear": KernelSum(1, 15, 15),
        "aten::addmm": KernelSum(1, 25, 25),
        "aten::relu": KernelSum(1, 10, 10),
    }
    assert found.kernels == a.kernels
    assert (a.busy_ns, a.kernel_ns) == (50, 50)
    assert (a.devices, a.on_host) == ((-1,), True)
    assert a.verdict().regime is Regime.UNKNOWN


def test_an_unknown_region_is_an_error_that_names_the_nearest() -> None:
    found = report(Range("forward", MAIN, 0, 100))
    with pytest.raises(UsageError, match="a trace: no region 'foward'; did you mean 'forward'"):
        found.region("foward")
    with pytest.raises(UsageError, match="no region 'x': there are no regions in it"):
        report().region("x")


def test_a_recording_of_nothing_says_nothing() -> None:
    found = report()
    assert (found.activity, found.regions, found.outside, dict(found.notes)) == (None, (), None, {})


def test_a_hundred_regions_inside_one_another_each_have_what_is_inside_them() -> None:
    ranges: list[Record] = [Range(f"level {i}", MAIN, i, 1000 - i) for i in range(100)]
    found = report(ranges, launch(1, 500, 600, 700), launch(2, 50, 900, 905))
    assert [r.operations for r in found.regions] == [2] * 51 + [1] * 49
    assert found.region("level 99").own == 1


@pytest.mark.parametrize(
    ("suffix", "begins"),
    [
        (".txt", b"a trace: "),
        (".json", b"{"),
        (".csv", b"region,"),
        (".html", b"<!doctype html>"),
        (".pftrace", b"\x0a"),
    ],
)
def test_a_report_is_saved_in_the_form_that_the_file_s_name_says(suffix: str, begins: bytes, tmp_path: Path) -> None:
    found = report(Range("step", MAIN, 0, 100), launch(1, 1, 10, 20))
    path = found.save(tmp_path / f"report{suffix}")
    assert path.read_bytes().startswith(begins)


def test_a_report_that_cannot_be_saved_says_why_in_one_line(tmp_path: Path) -> None:
    found = report(Range("step", MAIN, 0, 100), launch(1, 1, 10, 20))
    with pytest.raises(UsageError, match=r"report.xls: it is written as .txt, .json, .csv, .html, .pftrace, not .xls"):
        found.save("report.xls")
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        found.save(tmp_path / "none" / "report.txt")


def test_a_report_as_text_and_as_values_can_be_of_one_region() -> None:
    found = report(Range("step", MAIN, 0, 100), Range("validate", MAIN, 200, 300), launch(1, 1, 10, 20))
    assert "validate" in found.text()
    assert "validate" not in found.text("step")
    assert [each["name"] for each in found.to_dict("step")["regions"]] == ["step"]


def test_memory_over_time_is_told_for_the_whole_and_for_each_execution_of_a_region() -> None:
    found = report(
        Range("step", MAIN, 10, 30),
        Range("step", MAIN, 40, 60),
        Allocation(5, MAIN, 0, 100, 100, 1),
        Allocation(20, MAIN, 0, 50, 150, 2),
        Allocation(45, MAIN, 0, -100, 50, 1),
        Allocation(70, MAIN, 0, -50, 0, 2),
    )
    ((whole,),) = found.memory_timelines()
    assert (whole.times.tolist(), whole.totals.tolist()[1:]) == ([5, 5, 20, 45, 70], [100, 150, 50, 0])
    steps = [(one.times.tolist(), one.totals.tolist()) for (one,) in found.memory_timelines("step")]
    assert steps == [([10, 20], [100, 150]), ([40, 45], [150, 50])]
    with pytest.raises(UsageError, match="no region"):
        found.memory_timelines("walk")

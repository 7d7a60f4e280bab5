"""What a profiler gives and writes."""

import csv
import logging
import os
import sys
from pathlib import Path

import pytest
from unit.kernels.gmp.profilers import FakeGpu

from gpu_profile.errors import UsageError
from gpu_profile.kernels.gmp import profiler
from gpu_profile.kernels.gmp.profiler import GmpProfiler, create_profiler
from gpu_profile.regions.session import process

#: What the original tells of an allocation.
RECORD = {
    *("name", "memory_operation_type", "memory_kind", "correlation_id", "address", "bytes", "timestamp"),
    *("process_id", "device_id", "context_id", "stream_id", "is_async", "source"),
}


def test_memory_comes_as_plain_values_with_the_original_s_keys(ready: GmpProfiler, gpu: FakeGpu) -> None:
    with ready.profile_memory("memory_ops"):
        gpu.allocate(100, source="driver")
        gpu.allocate(-100, source="driver")
    (entry,) = ready.get_memory_activity()
    records = entry.pop("records")
    allocators = entry.pop("allocators")
    assert entry == {
        "name": "memory_ops",
        "executions": 1,
        "allocations": 1,
        "allocated_bytes": 100,
        "deallocations": 1,
        "deallocated_bytes": 100,
    }
    assert [(each["source"], each["device_id"], each["peak_bytes"]) for each in allocators] == [("driver", 0, 100)]
    first, second = records
    assert set(first) == RECORD
    assert (first["memory_operation_type"], second["memory_operation_type"]) == ("ALLOC", "FREE")
    assert (second["bytes"], second["memory_kind"], second["process_id"]) == (100, "DEVICE", os.getpid())
    assert (second["correlation_id"], second["context_id"]) == (7, None)


def test_memory_records_are_kept_to_a_bound_and_counted_beyond(
    ready: GmpProfiler, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_profile.kernels.gmp.totals.MOST_RECORDS", 3)
    with ready.profile_memory("m"):
        for _ in range(5):
            gpu.allocate(1)
    (entry,) = ready.get_memory_activity()
    assert (entry["allocations"], len(entry["records"])) == (5, 3)
    assert list(ready.results().notes.values()) == [2]


def test_each_printing_writes_the_file_anew(ready: GmpProfiler, gpu: FakeGpu) -> None:
    for name in ("a", "b"):
        with ready.profile_range(name):
            gpu.launch(1.5)
        ready.print_profiler_ranges()
    with Path("output/result.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    times = [row for row in rows if row["metric"] == "gpu__time_duration.sum"]
    assert [(row["range"], row["unit"], row["reduction"], row["value"]) for row in times] == [
        ("a", "us", "SUM", "1.5"),
        ("b", "us", "SUM", "1.5"),
    ]


def test_a_folder_of_ones_own_or_none(gpu: FakeGpu, tmp_path: Path) -> None:
    made = create_profiler(output=None)
    made.init()
    with made.profile_range("a"):
        pass
    made.print_profiler_ranges()
    assert not Path("output").exists()
    made.write_results(tmp_path / "deep" / "er")
    assert {path.name for path in (tmp_path / "deep" / "er").iterdir()} == {"result.csv", "kernels.csv"}


def test_a_disk_that_fails_is_one_warning_and_the_results_are_printed(
    ready: GmpProfiler, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("output").write_text("a file, not a folder")
    with ready.profile_range("a"):
        pass
    with caplog.at_level(logging.WARNING, "gpu_profile"):
        ready.print_profiler_ranges()
        ready.print_profiler_ranges()
    assert [record.getMessage() for record in caplog.records if "written" in record.getMessage()] == [
        "gpu-profile: output: the results cannot be written: File exists"
    ]
    assert capsys.readouterr().out.count("Range 1: a\n") == 2
    with pytest.raises(UsageError, match="output: the results cannot be written"):
        ready.write_results("output")


def test_the_global_profiler_takes_ranges_functions_and_memory(
    gpu: FakeGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    @profiler.profile_function("function")
    def function() -> None:
        gpu.launch(2)

    function()
    made = profiler.init_global_profiler(output=None)
    assert profiler.init_global_profiler() is made
    with profiler.profile_range("operations"):
        gpu.launch(1)
    function()
    profiler.print_results()
    out = capsys.readouterr().out
    assert "Number of ranges: 2\nRange 1: operations\n  gpu__time_duration.sum: 1.00 us\n" in out
    assert "💾" not in out
    with profiler.profile_memory("memory"):
        gpu.allocate(1)
    profiler.print_results("max")
    assert "💾 Memory Activity Results:\nRange 1: memory\n" in capsys.readouterr().out
    assert not Path("output").exists()


def test_nothing_recorded_is_told_not_raised(gpu: FakeGpu, capsys: pytest.CaptureFixture[str]) -> None:
    made = create_profiler()
    made.print_profiler_ranges()
    made.print_memory_activity()
    profiler.print_results()
    out = capsys.readouterr().out
    assert out.count("Number of ranges: 0\nNo range was recorded: call init(), and run code in profile_range().") == 2
    assert "No range was recorded: call init(), and run code in profile_memory()." in out


def test_a_program_without_a_console_goes_on(ready: GmpProfiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    ready.print_profiler_ranges()
    ready.print_memory_activity()
    assert Path("output/result.csv").exists()


def test_process_settings_are_left_alone(ready: GmpProfiler) -> None:
    before = process.settings()
    with ready.profile_range("a"):
        pass
    ready.results()
    assert process.settings() is before

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.kernels import ADD, GEMM, INSTRUCTIONS, counted, on_cpu, steps
from support.programs import environment
from support.traces import MS, TRACES, US, Program, write

from gpu_profile.cli import run
from gpu_profile.kernels.records import Kind, Operation

Capture = pytest.CaptureFixture[str]

DDP = TRACES / "hta" / "ddp_a100_nccl_rank0.json.gz"


@pytest.fixture
def program() -> Program:
    """A data loader of 20 ms before each millisecond of work, ten times."""
    found = Program()
    for _ in range(10):
        found.host(20 * MS)
        found.launch(MS, Kind.TRANSFER)
        found.launch(4 * MS)
        found.join()
    return found


def printed(capsys: Capture) -> Any:
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_json_has_the_totals_at_its_top(capsys: Capture) -> None:
    assert run(["kernels", str(DDP), "--json"]) == 0
    found = printed(capsys)
    assert found["operations"] == 3774
    assert found["span_s"] == pytest.approx(0.660551, abs=1e-6)
    assert found["busy_s"] == pytest.approx(0.157500, abs=1e-6)
    assert found["busy_ratio"] == pytest.approx(0.238, abs=1e-3)
    assert found["communication_s"] == pytest.approx(0.046876, abs=1e-6)
    assert found["overlap_ratio"] == pytest.approx(0.156, abs=1e-3)
    assert (found["regime"], found["runner_up"], found["basis"]) == ("HOST_BOUND", "COMMUNICATION_BOUND", "kernels")
    assert [stream["operations"] for stream in found["streams"]] == [21, 3753]
    assert "problem" not in found


def test_the_table_names_what_each_share_is_of(capsys: Capture) -> None:
    assert run(["kernels", str(DDP)]) == 0
    text = capsys.readouterr().out
    assert "3,774 GPU operations on 1 device; 2,700 kernels, mean 60.2 µs" in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "busy 158 ms 23.8 % the span" in lines
    assert "beside other kernels 7.32 ms 15.6 % communication" in lines
    assert "regime: HOST_BOUND, confidence 95 %" in lines
    assert "next: COMMUNICATION_BOUND" in lines


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace"])
def test_the_content_says_whether_a_file_is_packed(
    name: str, program: Program, tmp_path: Path, capsys: Capture
) -> None:
    assert run(["kernels", str(write(tmp_path / name, program.records)), "--json"]) == 0
    assert printed(capsys)["regime"] == "HOST_BOUND"


def test_of_a_truncated_trace_what_can_be_read_is_shown_and_the_exit_code_says_so(
    program: Program, tmp_path: Path, capsys: Capture
) -> None:
    path = write(tmp_path / "trace.json", program.records)
    path.write_bytes(path.read_bytes()[:-1500])
    assert run(["kernels", str(path), "--json"]) == 2
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert 0 < found["operations"] < 20
    assert "truncated?" in found["problem"]
    assert err.startswith(f"gpu-profile: {path}: byte ")
    assert err.endswith("; the output covers the part before\n")
    assert err.count("\n") == 1


def test_a_trace_that_was_cut_before_its_gpu_operations_says_so_everywhere(
    program: Program, tmp_path: Path, capsys: Capture
) -> None:
    path = write(tmp_path / "trace.json", [*on_cpu(), *program.records])
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b'"cat": "kernel"') - 30])
    assert run(["kernels", str(path)]) == 2
    text = capsys.readouterr().out
    assert text.startswith(f"CUT SHORT: {path}: byte ")
    assert "truncated?; all sums cover only the part before" in text
    assert "record it with" not in text
    page = tmp_path / "page.html"
    assert run(["kernels", str(path), "--html", str(page)]) == 2
    assert re.search(r'<p role="alert"><strong>CUT SHORT: .*truncated\?', page.read_text())
    assert "record it with" not in page.read_text()


def test_events_that_cannot_be_used_are_told(tmp_path: Path, capsys: Capture) -> None:
    records = [Operation(Kind.KERNEL, 0, 7, i * US, i * US + (5 if i else -5), "gemm", None) for i in range(9)]
    path = write(tmp_path / "trace.json", records)
    assert run(["kernels", str(path)]) == 0
    assert "left out: 1 events (negative duration)" in capsys.readouterr().out
    assert run(["kernels", str(path), "--json"]) == 0
    assert printed(capsys)["skipped"] == {"negative duration": 1}


def test_without_calls_the_causes_of_idle_time_are_absent_and_not_zero(tmp_path: Path, capsys: Capture) -> None:
    records = [Operation(Kind.KERNEL, 0, "odd\ud800\n", 9 * US * i, 9 * US * i + 5, "gemm", None) for i in range(9)]
    path = write(tmp_path / "trace.json", records)
    assert run(["kernels", str(path), "--json"]) == 0
    found = printed(capsys)
    assert found["idle"] == {
        "host_wait_s": None,
        "launch_s": None,
        "kernel_wait_s": None,
        "other_s": None,
        "unknown_s": pytest.approx(found["span_s"] - found["busy_s"]),
    }
    assert (found["regime"], found["overlap_ratio"]) == ("UNKNOWN", None)
    assert run(["kernels", str(path)]) == 0
    text = capsys.readouterr().out
    assert "waiting for the host – –" in " ".join(text.split())
    assert "0:odd?\\n" in text
    assert "regime: UNKNOWN\n  the trace holds no calls of the host" in text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "{path}: No such file or directory"),
        (b"", "{path}: byte 0: the file is empty"),
        (b"\x1f\x8b", "{path}: byte 0: the compressed data end early: truncated?"),
        (b'{"traceEvents": []}', "{path}: no GPU operations in it: record it with ProfilerActivity.CUDA"),
        (b'{"traceEvents": [{"ph": "X"', "{path}: byte 27: it ends inside a value: truncated?"),
        (b'{"resourceSpans": []}', "{path}: no traceEvents: it is not a trace of PyTorch's profiler"),
    ],
)
def test_what_is_no_trace_is_told_in_one_line(
    content: bytes | None, says: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_bytes(content)
    assert run(["kernels", str(path)]) == 2
    assert capsys.readouterr() == ("", f"gpu-profile: {says.format(path=path)}\n")


# ---------------------------------------------------------------------- regions


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "steps.json", steps())


def test_regions_of_a_file_are_those_of_its_annotations(trace: Path, capsys: Capture) -> None:
    assert run(["kernels", str(trace), "--json"]) == 0
    found = printed(capsys)
    assert [(row["name"], row["executions"]) for row in found["regions"]] == [("step", 2), ("load", 2), ("forward", 2)]
    assert run(["kernels", str(trace)]) == 0
    text = capsys.readouterr().out
    assert "forward" in text
    assert "cutlass::Kernel2" in text


def test_one_region_can_be_asked_for(trace: Path, capsys: Capture) -> None:
    assert run(["kernels", str(trace), "--region", "forward", "--json", "--top", "1"]) == 0
    (row,) = printed(capsys)["regions"]
    assert (row["name"], len(row["kernels"]["top"])) == ("forward", 1)
    assert run(["kernels", str(trace), "--region", "forward"]) == 0
    assert capsys.readouterr().out.startswith("forward: 2 executions, 40.0 ms on the host; GPU 0\n")


def test_an_unknown_region_is_one_line_with_the_nearest_names_and_nothing_is_written(
    trace: Path, tmp_path: Path, capsys: Capture
) -> None:
    csv = tmp_path / "a.csv"
    assert run(["kernels", str(trace), "--region", "foward", "--csv", str(csv)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"gpu-profile: {trace}: no region 'foward'; did you mean 'forward'")
    assert err.count("\n") == 1
    assert not csv.exists()


def test_files_are_written_instead_of_the_text(trace: Path, tmp_path: Path, capsys: Capture) -> None:
    names = {"--html": "a.html", "--csv": "a.csv", "--perfetto": "a.pftrace"}
    options = [word for option, name in names.items() for word in (option, str(tmp_path / name))]
    assert run(["kernels", str(trace), *options]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split()[0] for line in err.splitlines()] == ["wrote"] * 3
    assert (tmp_path / "a.html").read_text("utf-8").startswith("<!doctype html>")
    assert ADD in (tmp_path / "a.csv").read_text("utf-8")
    assert GEMM.encode() in (tmp_path / "a.pftrace").read_bytes()


def test_a_file_that_cannot_be_written_is_told_in_one_line(trace: Path, capsys: Capture) -> None:
    assert run(["kernels", str(trace), "--csv", "/nowhere/a.csv"]) == 2
    assert capsys.readouterr().err == "gpu-profile: /nowhere/a.csv: cannot be written: No such file or directory\n"


def test_times_in_a_trace_for_perfetto_count_from_the_epoch(tmp_path: Path) -> None:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    base = 1_767_225_600_000_000_000
    trace = write(tmp_path / "steps.json", steps(), baseTimeNanoseconds=base)
    assert run(["kernels", str(trace), "--perfetto", str(tmp_path / "a.pftrace")]) == 0
    parsed = protos.Trace()
    parsed.ParseFromString((tmp_path / "a.pftrace").read_bytes())
    times = [packet.timestamp for packet in parsed.packet if packet.HasField("track_event")]
    assert (min(times), max(times)) == (base, base + 96 * MS)


def test_counters_of_another_run_are_joined_by_name(trace: Path, tmp_path: Path, capsys: Capture) -> None:
    other = write(tmp_path / "counters.json", counted())
    assert run(["kernels", str(trace), "--counters", str(other), "--json"]) == 0
    found = {row["name"]: row["counters"] for row in printed(capsys)["regions"]}
    assert found["forward"]["sums"][INSTRUCTIONS]["value"] == 2000
    assert found["load"] is None
    assert run(["kernels", str(trace), "--counters", str(trace)]) == 2
    assert "no hardware counters in it" in capsys.readouterr().err


def test_a_trace_of_a_cpu_shows_operators_and_says_that_they_are_the_cpus(tmp_path: Path, capsys: Capture) -> None:
    trace = write(tmp_path / "cpu.json", on_cpu())
    assert run(["kernels", str(trace)]) == 0
    text = capsys.readouterr().out
    assert "no GPU operation in it: the operators below ran on the CPU" in text
    assert "aten::mm" in text
    assert run(["kernels", str(trace), "--json"]) == 0
    found = printed(capsys)
    assert (found["on_host"], found["operations"], found["busy_s"]) == (True, 0, None)


def test_a_trace_without_usable_operations_says_why(tmp_path: Path, capsys: Capture) -> None:
    counters = write(tmp_path / "counters.json", counted())
    assert run(["kernels", str(counters)]) == 2
    says = "only hardware counters in it: give it as --counters with a trace of the same program"
    assert capsys.readouterr().err == f"gpu-profile: {counters}: {says}\n"
    late = write(tmp_path / "late.json", [Operation(Kind.KERNEL, 0, 7, 9, 4, "gemm", None)])
    assert run(["kernels", str(late)]) == 2
    assert "no GPU operations in it (1 events left out: negative duration): record it" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "x"])
def test_how_many_kernels_must_be_a_number_from_one(number: str, trace: Path, capsys: Capture) -> None:
    assert run(["kernels", str(trace), "--top", number]) == 2
    assert capsys.readouterr().err.startswith("gpu-profile: Invalid value for '--top'")


def test_a_console_without_the_letters_of_a_table_gets_the_table_all_the_same(trace: Path) -> None:
    program = "from gpu_profile.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "kernels", str(trace)],
        env=environment(PYTHONIOENCODING="latin-1"),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"5.00 ms" in done.stdout
    assert b"????" in done.stdout


def test_a_file_and_a_folder_named_like_standard_input_are_given_with_their_folder(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "file").mkdir()
    monkeypatch.chdir(tmp_path / "file")
    write(Path("-"), program.records)
    assert run(["kernels", "./-", "--json"]) == 0
    assert printed(capsys)["source"] == "./-"
    monkeypatch.chdir(tmp_path)
    Path("-").mkdir()
    write(Path("-") / "rank0.json", program.records)
    write(Path("-") / "rank1.json", program.records)
    assert run(["kernels", "./-", "--json"]) == 0
    assert [each["rank"] for each in printed(capsys)["ranks"]] == ["0", "1"]
    before = os.dup(0)
    try:
        with Path("-/rank0.json").open("rb") as source:
            os.dup2(source.fileno(), 0)
        assert run(["kernels", "-", "--json"]) == 0
    finally:
        os.dup2(before, 0)
        os.close(before)
    assert printed(capsys)["source"] == "-"


def test_standard_input_cannot_be_read_twice(capsys: Capture) -> None:
    assert run(["kernels", "-", "--counters", "-"]) == 2
    assert capsys.readouterr().err == (
        "gpu-profile: -: standard input can be read once: give a file as TRACE or --counters\n"
    )

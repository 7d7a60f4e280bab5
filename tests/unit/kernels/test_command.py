from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_support import MS, TRACES, US, Program, write

from gpu_profile.cli import run
from gpu_profile.kernels import Kind, Operation

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


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_json_has_the_totals_at_its_top(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_the_table_names_what_each_share_is_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", str(DDP)]) == 0
    text = capsys.readouterr().out
    assert "3,774 GPU operations on 1 device; 2,700 kernels, mean 60.2 µs" in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "busy 158 ms 23.8 % the span" in lines
    assert "beside other kernels 7.32 ms 15.6 % communication" in lines
    assert "regime: HOST_BOUND, sure 95 %" in lines
    assert "next: COMMUNICATION_BOUND" in lines


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace"])
def test_the_content_says_whether_a_file_is_packed(
    name: str, program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["kernels", str(write(tmp_path / name, program.records)), "--json"]) == 0
    assert printed(capsys)["regime"] == "HOST_BOUND"


def test_of_a_truncated_trace_what_can_be_read_is_shown_and_the_exit_code_says_so(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "trace.json", program.records)
    path.write_bytes(path.read_bytes()[:-1500])
    assert run(["kernels", str(path), "--json"]) == 2
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert 0 < found["operations"] < 20
    assert "truncated?" in found["problem"]
    assert err.startswith(f"gpu-profile: {path}: byte ")
    assert err.endswith("; what is shown is what came before\n")
    assert err.count("\n") == 1


def test_events_that_cannot_be_used_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [Operation(Kind.KERNEL, 0, 7, i * US, i * US + (5 if i else -5), "gemm", None) for i in range(9)]
    path = write(tmp_path / "trace.json", records)
    assert run(["kernels", str(path)]) == 0
    assert "left out: 1 events (negative duration)" in capsys.readouterr().out
    assert run(["kernels", str(path), "--json"]) == 0
    assert printed(capsys)["skipped"] == {"negative duration": 1}


def test_without_calls_the_causes_of_idle_time_are_absent_and_not_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert "0:odd??" in text
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
    content: bytes | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_bytes(content)
    assert run(["kernels", str(path)]) == 2
    assert capsys.readouterr() == ("", f"gpu-profile: {says.format(path=path)}\n")

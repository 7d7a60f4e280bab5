"""What a trace holds beside GPU operations and calls: ranges, operators, memory, counters, and its header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.traces import US

from gpu_profile.kernels.records import HOST, Allocation, Counted, Operator, Range, Record
from gpu_profile.kernels.trace import Trace

OPERATOR: dict[str, Any] = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::conv2d",
    "pid": 100,
    "tid": 101,
    "ts": 4,
    "dur": 1,
    "args": {"External id": 2, "Ev Idx": 1},
}
MEMORY: dict[str, Any] = {
    "ph": "i",
    "cat": "cpu_instant_event",
    "s": "t",
    "name": "[memory]",
    "pid": 100,
    "tid": 101,
    "ts": 4,
    "args": {"Device Type": 1, "Device Id": 2, "Bytes": 512, "Addr": 4096, "Total Allocated": 1536},
}
COUNTERS: dict[str, Any] = {
    "ph": "X",
    "cat": "cuda_profiler_range",
    "name": "gemm",
    "pid": 0,
    "tid": 0,
    "ts": 4,
    "dur": 121431,
    "args": {"dram__bytes.sum": 1024, "sm__cycles_active.avg": 10.5},
}


def trace(tmp_path: Path, *events: Any, ranges_named: str | None = None, **top: Any) -> Trace:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, **top}))
    return Trace(path, ranges_named=ranges_named)


def one(tmp_path: Path, event: Any) -> Record:
    (record,) = trace(tmp_path, event)
    return record


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("forward", "forward"),
        ("ProfilerStep#7", "ProfilerStep"),
        ("ProfilerStep#last", "ProfilerStep#last"),
        ("## backward ##", "## backward ##"),
        ("Optimizer.step#SGD.step", "Optimizer.step#SGD.step"),
        (
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        ),
    ],
)
def test_annotations_are_ranges_and_steps_are_one_region(written: str, read: str, tmp_path: Path) -> None:
    event = OPERATOR | {"cat": "user_annotation", "name": written}
    assert one(tmp_path, event) == Range(read, 101, 4 * US, 5 * US)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("ProfilerStep#551", "ProfilerStep"),
        ("Optimizer.zero_grad#SGD.zero_grad", "Optimizer.zero_grad#SGD.zero_grad"),
        ("Optimizer.step#SGD.step", "Optimizer.step#SGD.step"),
        ("enumerate(DataLoader)#x", "enumerate(DataLoader)#x"),
    ],
)
def test_old_traces_have_annotations_among_the_operators(written: str, read: str, tmp_path: Path) -> None:
    event = OPERATOR | {"cat": "Operator", "name": written, "tid": "101"}
    assert one(tmp_path, event) == Range(read, 101, 4 * US, 5 * US)


@pytest.mark.parametrize("category", ["cpu_op", "Operator"])
def test_operators_are_known_with_what_joins_backward_with_forward(category: str, tmp_path: Path) -> None:
    plain = OPERATOR | {"cat": category}
    forward = plain | {"args": {"Sequence number": 7, "Fwd thread id": 0}}
    backward = plain | {"args": {"Sequence number": 7, "Fwd thread id": 1}}
    old = plain | {"args": {"Sequence number": 0}}
    none = plain | {"args": {"Sequence number": -1, "Fwd thread id": 0}}
    assert list(trace(tmp_path, plain, forward, backward, old, none)) == [
        Operator("aten::conv2d", 101, 4 * US, 5 * US, sequence, going_back)
        for sequence, going_back in [(None, False), (7, False), (7, True), (0, False), (None, False)]
    ]


@pytest.mark.parametrize("category", ["cpu_op", "Operator"])
def test_operators_of_a_name_are_ranges_too_if_asked_for(category: str, tmp_path: Path) -> None:
    events = [OPERATOR | {"cat": category, "name": name} for name in ("aten::conv2d", "aten::relu")]
    assert list(trace(tmp_path, *events, ranges_named="aten::relu")) == [
        Operator("aten::conv2d", 101, 4 * US, 5 * US),
        Operator("aten::relu", 101, 4 * US, 5 * US),
        Range("aten::relu", 101, 4 * US, 5 * US),
    ]


@pytest.mark.parametrize(("kind", "number", "device"), [(0, -1, HOST), (0, 0, HOST), (1, 2, 2), (6, 1, 1), (12, 0, 0)])
def test_memory_is_the_host_s_or_a_device_s(kind: int, number: int, device: int, tmp_path: Path) -> None:
    event = MEMORY | {"args": MEMORY["args"] | {"Device Type": kind, "Device Id": number}}
    assert one(tmp_path, event) == Allocation(4 * US, 101, device, 512, 1536, 4096)


def test_old_memory_events_have_no_category_no_total_and_no_address(tmp_path: Path) -> None:
    event = {key: value for key, value in MEMORY.items() if key != "cat"}
    freed = event | {"args": {"Device Type": 1, "Device Id": 0, "Bytes": -512}}
    assert one(tmp_path, freed) == Allocation(4 * US, 101, 0, -512, None, 0)


def test_counters_are_numbers_by_their_names(tmp_path: Path) -> None:
    assert one(tmp_path, COUNTERS) == Counted("gemm", 0, {"dram__bytes.sum": 1024.0, "sm__cycles_active.avg": 10.5})
    more = COUNTERS["args"] | {
        "device": 1,
        "stream": 7,
        "why": "text",
        "none": None,
        "a": float("inf"),
        "b": "inf",
        "c": [1],
    }
    assert one(tmp_path, COUNTERS | {"args": more}) == Counted(
        "gemm", 1, {"dram__bytes.sum": 1024.0, "sm__cycles_active.avg": 10.5}
    )


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (OPERATOR | {"ts": None}, "no start time"),
        (OPERATOR | {"dur": -1}, "negative duration"),
        (OPERATOR | {"name": "ProfilerStep#1", "dur": None}, "no duration"),
        (OPERATOR | {"cat": "user_annotation", "name": ""}, "no name"),
        (OPERATOR | {"cat": "user_annotation", "name": 7}, "no name"),
        (MEMORY | {"ts": "soon"}, "no start time"),
        (MEMORY | {"args": None}, "no bytes"),
        (MEMORY | {"args": MEMORY["args"] | {"Bytes": 0}}, "no bytes"),
        (MEMORY | {"args": MEMORY["args"] | {"Bytes": 1 << 63}}, "no bytes"),
        (MEMORY | {"args": MEMORY["args"] | {"Device Id": -1}}, "no device"),
        (MEMORY | {"args": MEMORY["args"] | {"Device Type": False, "Device Id": None}}, "no device"),
        (COUNTERS | {"args": {"device": 0}}, "no counters"),
        (COUNTERS | {"args": COUNTERS["args"] | {"device": "all"}}, "no device"),
    ],
)
def test_an_event_that_cannot_be_used_is_left_out_and_counted(event: Any, reason: str, tmp_path: Path) -> None:
    source = trace(tmp_path, event, OPERATOR)
    assert list(source) == [Operator("aten::conv2d", 101, 4 * US, 5 * US)]
    assert source.skipped == {reason: 1}


def test_the_header_tells_the_devices_and_the_rank(tmp_path: Path) -> None:
    devices = [{"id": 0, "name": "NVIDIA A100", "numSms": 108}, {"id": 1, "name": "AMD"}, {"id": 2, "numSms": 104}]
    source = trace(tmp_path, OPERATOR, deviceProperties=devices, distributedInfo={"rank": 3, "world_size": 8})
    for _ in range(2):
        assert len(list(source)) == 1
        assert source.multiprocessors == {0: 108, 2: 104}
        assert source.device_names == {0: "NVIDIA A100", 1: "AMD"}
        assert source.rank == 3


@pytest.mark.parametrize(
    "top",
    [
        {},
        {"deviceProperties": [], "distributedInfo": {}},
        {"deviceProperties": {"id": 0, "numSms": 108}, "distributedInfo": [0]},
        {"deviceProperties": [7, {}, {"id": "0", "numSms": 1}, {"id": 0, "numSms": 0, "name": ""}]},
        {"deviceProperties": [{"id": 0, "numSms": "108", "name": None}], "distributedInfo": {"rank": -1}},
        {"deviceProperties": None, "distributedInfo": {"rank": True}, "baseTimeNanoseconds": "17"},
    ],
)
def test_a_header_that_does_not_tell_leaves_both_out(top: Any, tmp_path: Path) -> None:
    source = trace(tmp_path, OPERATOR, **top)
    assert len(list(source)) == 1
    assert (source.multiprocessors, source.device_names, source.rank, source.base_ns) == ({}, {}, None, 0)
    assert not source.skipped

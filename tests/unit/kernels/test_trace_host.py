"""What a trace holds beside GPU operations and calls: ranges, operators, memory, counters, and its header."""

from pathlib import Path
from typing import Any

import pytest
from support.traces import US, event_trace, one_record

from gpu_profile.kernels.records import HOST, Allocation, Operator, Range, RangeCounters

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
    assert one_record(tmp_path, event) == Range(read, 101, 4 * US, 5 * US)


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
    assert one_record(tmp_path, event) == Range(read, 101, 4 * US, 5 * US)


@pytest.mark.parametrize("category", ["cpu_op", "Operator"])
def test_operators_are_known_with_what_joins_backward_with_forward(category: str, tmp_path: Path) -> None:
    plain = OPERATOR | {"cat": category}
    forward = plain | {"args": {"Sequence number": 7, "Fwd thread id": 0}}
    backward = plain | {"args": {"Sequence number": 7, "Fwd thread id": 1}}
    old = plain | {"args": {"Sequence number": 0}}
    none = plain | {"args": {"Sequence number": -1, "Fwd thread id": 0}}
    assert list(event_trace(tmp_path, plain, forward, backward, old, none)) == [
        Operator("aten::conv2d", 101, 4 * US, 5 * US, sequence, going_back)
        for sequence, going_back in [(None, False), (7, False), (7, True), (0, False), (None, False)]
    ]


@pytest.mark.parametrize("category", ["cpu_op", "Operator"])
def test_operators_of_a_name_are_ranges_too_if_asked_for(category: str, tmp_path: Path) -> None:
    events = [OPERATOR | {"cat": category, "name": name} for name in ("aten::conv2d", "aten::relu")]
    assert list(event_trace(tmp_path, *events, ranges_named="aten::relu")) == [
        Operator("aten::conv2d", 101, 4 * US, 5 * US),
        Operator("aten::relu", 101, 4 * US, 5 * US),
        Range("aten::relu", 101, 4 * US, 5 * US),
    ]


@pytest.mark.parametrize(("kind", "number", "device"), [(0, -1, HOST), (0, 0, HOST), (1, 2, 2), (6, 1, 1), (12, 0, 0)])
def test_memory_is_the_host_s_or_a_device_s(kind: int, number: int, device: int, tmp_path: Path) -> None:
    event = MEMORY | {"args": MEMORY["args"] | {"Device Type": kind, "Device Id": number}}
    assert one_record(tmp_path, event) == Allocation(4 * US, 101, device, 512, 1536, 4096)


def test_old_memory_events_have_no_category_no_total_and_no_address(tmp_path: Path) -> None:
    event = {key: value for key, value in MEMORY.items() if key != "cat"}
    freed = event | {"args": {"Device Type": 1, "Device Id": 0, "Bytes": -512}}
    assert one_record(tmp_path, freed) == Allocation(4 * US, 101, 0, -512, None, 0)


def test_counters_are_numbers_by_their_names(tmp_path: Path) -> None:
    assert one_record(tmp_path, COUNTERS) == RangeCounters(
        "gemm", 0, {"dram__bytes.sum": 1024.0, "sm__cycles_active.avg": 10.5}
    )
    more = COUNTERS["args"] | {
        "device": 1,
        "stream": 7,
        "why": "text",
        "none": None,
        "a": float("inf"),
        "b": "inf",
        "c": [1],
    }
    assert one_record(tmp_path, COUNTERS | {"args": more}) == RangeCounters(
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
    source = event_trace(tmp_path, event, OPERATOR)
    assert list(source) == [Operator("aten::conv2d", 101, 4 * US, 5 * US)]
    assert source.skipped == {reason: 1}

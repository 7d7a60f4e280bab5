import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.traces import CALL, KERNEL, US, event_trace, one_record, write

from gpu_profile.errors import UsageError
from gpu_profile.kernels import trace_events
from gpu_profile.kernels.records import Call, Kind, Operation, Operator
from gpu_profile.kernels.trace import Trace
from gpu_profile.kernels.trace_events import UnusableError, nanoseconds


def operation(tmp_path: Path, change: Any) -> Operation:
    record = one_record(tmp_path, KERNEL | change)
    assert isinstance(record, Operation)
    return record


def test_a_kernel_and_its_call_are_read_with_times_in_nanoseconds(tmp_path: Path) -> None:
    assert list(event_trace(tmp_path, KERNEL, CALL)) == [
        Operation(Kind.KERNEL, 0, 7, 10 * US, 12 * US, "gemm", 5),
        Call(5, 4 * US, 5 * US, 101, "cudaLaunchKernel"),
    ]


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("kernel", "void at::native::elementwise_kernel<4>()", Kind.KERNEL),
        ("Kernel", "volta_sgemm", Kind.KERNEL),
        ("kernel", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", Kind.COMMUNICATION),
        ("kernel", "rcclGenericKernel<2>", Kind.COMMUNICATION),
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", Kind.TRANSFER),
        ("Memcpy", "Memcpy DtoH (Device -> Pinned)", Kind.TRANSFER),
        ("gpu_memcpy", "Memcpy PtoP (Device -> Device)", Kind.TRANSFER),
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", Kind.COPY),
        ("gpu_memcpy", "CopyDeviceToDevice", Kind.COPY),
        ("gpu_memset", "Memset (Device)", Kind.SET),
        ("Memset", "Memset (Device)", Kind.SET),
    ],
)
def test_old_and_new_categories_of_both_makers_are_known(category: str, name: str, kind: Kind, tmp_path: Path) -> None:
    assert operation(tmp_path, {"cat": category, "name": name}).kind is kind


@pytest.mark.parametrize(
    ("category", "name"),
    [("cuda_runtime", "cudaGraphLaunch"), ("Runtime", "cudaMemcpyAsync"), ("cuda_driver", "cuLaunchKernel")],
)
def test_calls_of_runtime_and_driver_are_known_with_their_names(category: str, name: str, tmp_path: Path) -> None:
    assert one_record(tmp_path, CALL | {"cat": category, "name": name}) == Call(5, 4 * US, 5 * US, 101, name)


def test_what_a_copy_moved_is_read_from_the_operation_or_from_hip_s_call(tmp_path: Path) -> None:
    copy = {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)"}
    assert operation(tmp_path, {**copy, "args": KERNEL["args"] | {"bytes": 4096}}).bytes == 4096
    assert operation(tmp_path, copy).bytes is None
    call = CALL | {"name": "hipMemcpyWithStream", "args": {"correlation": 117, "size": "2560", "kind": "1"}}
    assert one_record(tmp_path, call) == Call(117, 4 * US, 5 * US, 101, "hipMemcpyWithStream", 2560)
    for name, size in [("hipMalloc", "2560"), ("hipMemcpy", "0x0"), ("hipMemcpy", -1), ("hipMemcpy", None)]:
        record = one_record(tmp_path, CALL | {"name": name, "args": {"correlation": 1, "size": size}})
        assert isinstance(record, Call)
        assert record.bytes is None


def test_what_the_profiler_says_of_a_kernel_is_read(tmp_path: Path) -> None:
    said = {"est. achieved occupancy %": 25, "blocks per SM": 5.925926, "graph id": 3, "graph node id": (3 << 32) + 1}
    found = operation(tmp_path, {"args": KERNEL["args"] | said})
    assert found == Operation(Kind.KERNEL, 0, 7, 10 * US, 12 * US, "gemm", 5, None, 0.25, 5.925926, True)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"est. achieved occupancy %": None, "blocks per SM": "inf", "graph node id": 0, "graph id": 0},
        {"est. achieved occupancy %": 250, "blocks per SM": -1, "graph node id": -1},
        {"est. achieved occupancy %": "some", "blocks per SM": [1], "graph id": "none", "bytes": -5},
        {"est. achieved occupancy %": 10**400, "blocks per SM": 1 << 62, "bytes": 1 << 62},
        {"bytes": 1 << 50},
    ],
)
def test_what_the_profiler_does_not_know_of_a_kernel_is_absent(said: Any, tmp_path: Path) -> None:
    found = operation(tmp_path, {"args": KERNEL["args"] | said})
    assert (found.bytes, found.occupancy, found.blocks, found.graph) == (None, None, None, False)


def test_a_thread_is_the_same_as_number_and_as_text(tmp_path: Path) -> None:
    threads = [5, "5", "stream 5", 10**30, None, 5.5]
    calls = list(event_trace(tmp_path, *(CALL | {"tid": thread} for thread in threads)))
    assert [c.thread for c in calls if isinstance(c, Call)] == [5, 5, "stream 5", "", "", "5.5"]
    hip = {"args": {"device": 0, "stream": "0"}}
    assert operation(tmp_path, hip).stream == 0


def test_names_that_no_file_could_hold_are_made_such(tmp_path: Path) -> None:
    assert operation(tmp_path, {"name": "kärnel \ud83d"}).name == "kärnel ?"
    assert operation(tmp_path, {"name": ["k"]}).name == ""


def test_what_is_of_no_interest_is_passed_over(tmp_path: Path) -> None:
    categories: list[Any] = ["gpu_user_annotation", "ac2g", "cuda_sync", "Trace", None, 3, [], {}]
    phases: list[Any] = ["s", "i", None, []]
    others = [KERNEL | {"cat": category} for category in categories] + [KERNEL | {"ph": phase} for phase in phases]
    calls = [CALL | {"args": {"correlation": 0}}, CALL | {"args": 1}]
    source = event_trace(tmp_path, *others, *calls, {}, {"ph": "i", "name": "Iteration Start: PyTorch Profiler"})
    assert list(source) == []
    assert not source.skipped


def test_a_gpu_operation_may_lack_what_only_some_tracers_write(tmp_path: Path) -> None:
    bare = {key: value for key, value in KERNEL.items() if key not in {"args", "name"}} | {"tid": "stream 7"}
    assert one_record(tmp_path, bare) == Operation(Kind.KERNEL, 0, "stream 7", 10 * US, 12 * US, "", None)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1695835542514261.123", 1_695_835_542_514_261_123),
        ("4458676522690.655", 4_458_676_522_690_655),
        ("0.5", 500),
        ("7.0", 7000),
        ("1.0004", 1000),
        ("1.5e3", 1_500_000),
        ("-2.500", -2500),
        ("123456789012345.678", 123_456_789_012_345_678),
        ("4611686018427387.903", (1 << 62) - 1),
        ("-2.5", -2500),
        ("12", 12_000),
    ],
)
def test_times_are_exact_to_the_nanosecond(text: str, ns: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [KERNEL | {"ts": 0}]}).replace('"ts": 0', f'"ts": {text}'))
    (record,) = Trace(path)
    assert isinstance(record, Operation)
    assert (record.start_ns, record.end_ns) == (ns, ns + 2000)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ts": None}, "no start time"),
        ({"ts": "soon"}, "no start time"),
        ({"ts": "1.2.345"}, "no start time"),
        ({"ts": True}, "no start time"),
        ({"ts": [1]}, "no start time"),
        ({"dur": None}, "no duration"),
        ({"dur": float("nan")}, "no duration"),
        ({"dur": float("inf")}, "no duration"),
        ({"dur": -1}, "negative duration"),
        ({"dur": 10**13}, "time out of range"),
        ({"ts": 10**30}, "time out of range"),
        ({"ts": 1e300}, "time out of range"),
        ({"ts": "9" * 17 + ".123"}, "time out of range"),
        ({"args": {"device": "cuda"}}, "no device"),
        ({"args": {"device": -1}}, "no device"),
        ({"args": {}, "pid": "GPU"}, "no device"),
    ],
)
def test_an_event_that_cannot_be_used_is_left_out_and_counted(change: Any, reason: str, tmp_path: Path) -> None:
    source = event_trace(tmp_path, KERNEL | change, KERNEL)
    assert len(list(source)) == 1
    assert source.skipped == {reason: 1}


def test_elements_that_are_no_events_are_counted(tmp_path: Path) -> None:
    source = event_trace(tmp_path, 3, "x", None, [], KERNEL)
    assert len(list(source)) == 1
    assert source.skipped == {"not an object": 4}


def test_the_base_of_the_times_is_found_before_and_after_the_events(tmp_path: Path) -> None:
    after = event_trace(tmp_path, KERNEL, baseTimeNanoseconds=1711964646000000000)
    list(after)
    assert after.base_ns == 1711964646000000000
    before = Trace(write(tmp_path / "before.json", [], baseTimeNanoseconds=17))
    list(before)
    assert before.base_ns == 17
    for value in ("17", None, -1, 1 << 63, [17]):
        untold = event_trace(tmp_path, KERNEL, baseTimeNanoseconds=value, distributedInfo={"rank": True})
        assert len(list(untold)) == 1
        assert (untold.base_ns, untold.skipped) == (0, {})


def test_the_plain_array_form_of_chrome_traces_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([KERNEL, CALL]))
    assert len(list(Trace(path))) == 2


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for count in (5_000, 40_000):
        path = tmp_path / f"{count}.json"
        event = json.dumps(KERNEL | {"cat": "cpu_op"})
        path.write_text(f'{{"traceEvents": [{", ".join([event] * count)}]}}')
        tracemalloc.start()
        assert sum(isinstance(record, Operator) for record in Trace(path)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert peaks[-1] < 4 << 20
    assert peaks[1] < 1.2 * peaks[0]


def test_a_trace_can_be_read_again(tmp_path: Path) -> None:
    source = event_trace(tmp_path, KERNEL, 3)
    assert list(source) == list(source)
    assert source.skipped == {"not an object": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "byte 0: the file is empty"),
        ("  \n", "byte 3: the file is empty"),
        ("hello", "byte 0: neither a JSON object nor an array"),
        ("{}", "no traceEvents: it is not a trace of PyTorch's profiler"),
        ('{"resourceSpans": []}', "no traceEvents: it is not a trace of PyTorch's profiler"),
        ('{"traceEvents": {}}', "byte 16: '[' was expected"),
        ('{"traceEvents": []', "byte 18: it ends where ',' or '}' was expected: truncated?"),
        ('{"traceEvents": [], ', "byte 20: it ends early: truncated?"),
        ('{"traceEvents": [], 3', "byte 20: a name in quotes was expected"),
        ('{"traceEvents" []}', "byte 15: ':' was expected"),
        ('{"traceEvents": []} {}', "byte 20: something follows the end of the JSON text"),
    ],
)
def test_what_is_no_trace_is_refused_with_place_and_reason(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        list(Trace(path))
    assert str(caught.value) == f"{path}: {says}"


def test_a_trace_may_be_named_by_text(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [CALL, KERNEL]}))
    assert [*Trace(str(path))] == [*Trace(path)] != []


@pytest.mark.parametrize(
    "ts", ["12.345", "1_2.345", "-12.345", "12._45", "12.34 ", "1.2.345", "1e2.345", ".345", "12", 12]
)
@pytest.mark.parametrize("dur", ["6.789", "0.000", "-6.789", "6.7e9", "6.78 ", "9" * 20 + ".000", "", 6])
def test_an_interval_is_exactly_its_start_and_its_duration_in_whatever_form(ts: object, dur: object) -> None:
    def told(read: Callable[[], object]) -> object:
        try:
            return read()
        except UnusableError as problem:
            return str(problem)

    def apart() -> object:
        start, length = nanoseconds(ts, "no start time"), nanoseconds(dur, "no duration")
        if length < 0:
            raise UnusableError("negative duration")
        return start, start + length

    assert told(lambda: trace_events._interval({"ts": ts, "dur": dur})) == told(apart)

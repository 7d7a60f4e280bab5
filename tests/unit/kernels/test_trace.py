from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from trace_support import US, write

from gpu_profile.errors import UsageError
from gpu_profile.kernels import Kind, Launch, Operation, Trace

KERNEL: dict[str, Any] = {
    "ph": "X",
    "cat": "kernel",
    "name": "gemm",
    "pid": 0,
    "tid": 7,
    "ts": 10,
    "dur": 2,
    "args": {"device": 0, "stream": 7, "correlation": 5},
}
CALL: dict[str, Any] = {
    "ph": "X",
    "cat": "cuda_runtime",
    "name": "cudaLaunchKernel",
    "pid": 100,
    "tid": 101,
    "ts": 4,
    "dur": 1,
    "args": {"correlation": 5},
}


def trace(tmp_path: Path, *events: Any, **top: Any) -> Trace:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, **top}))
    return Trace(path)


def one(tmp_path: Path, event: Any) -> Operation | Launch:
    (record,) = trace(tmp_path, event)
    return record


def test_a_kernel_and_its_call_are_read_with_times_in_nanoseconds(tmp_path: Path) -> None:
    assert list(trace(tmp_path, KERNEL, CALL)) == [
        Operation(Kind.KERNEL, 0, 7, 10 * US, 12 * US, "gemm", 5),
        Launch(5, 4 * US, 5 * US, 101),
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
    record = one(tmp_path, KERNEL | {"cat": category, "name": name})
    assert isinstance(record, Operation)
    assert record.kind is kind


@pytest.mark.parametrize("category", ["cuda_runtime", "Runtime", "cuda_driver"])
def test_calls_of_runtime_and_driver_are_known(category: str, tmp_path: Path) -> None:
    assert isinstance(one(tmp_path, CALL | {"cat": category}), Launch)


def test_what_is_neither_on_the_gpu_nor_a_call_is_passed_over(tmp_path: Path) -> None:
    categories: list[Any] = ["cpu_op", "Operator", "user_annotation", "gpu_user_annotation", "ac2g", None, 3, []]
    others = [KERNEL | {"cat": category} for category in categories]
    source = trace(tmp_path, *others, {}, KERNEL | {"ph": "s"}, CALL | {"args": {"correlation": 0}}, CALL | {"args": 1})
    assert list(source) == []
    assert not source.skipped


def test_a_gpu_operation_may_lack_what_only_some_tracers_write(tmp_path: Path) -> None:
    bare = {key: value for key, value in KERNEL.items() if key not in {"args", "name"}} | {"tid": "stream 7"}
    assert one(tmp_path, bare) == Operation(Kind.KERNEL, 0, "stream 7", 10 * US, 12 * US, "", None)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1695835542514261.123", 1_695_835_542_514_261_123),
        ("4458676522690.655", 4_458_676_522_690_655),
        ("0.5", 500),
        ("7.0", 7000),
        ("1.0004", 1000),
        ("1.5e3", 1_500_000),
        ("-2.5", -2500),
        ("12", 12_000),
    ],
)
def test_times_are_exact_to_the_nanosecond(text: str, ns: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [KERNEL | {"ts": 0}]}).replace('"ts": 0', f'"ts": {text}'))
    (record,) = Trace(path)
    assert (record.start_ns, record.end_ns) == (ns, ns + 2000)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ts": None}, "no start time"),
        ({"ts": "soon"}, "no start time"),
        ({"ts": True}, "no start time"),
        ({"ts": [1]}, "no start time"),
        ({"dur": None}, "no duration"),
        ({"dur": float("nan")}, "no duration"),
        ({"dur": float("inf")}, "no duration"),
        ({"dur": -1}, "negative duration"),
        ({"ts": 10**30}, "time out of range"),
        ({"ts": 1e300}, "time out of range"),
        ({"args": {"device": "cuda"}}, "no device"),
        ({"args": {"device": -1}}, "no device"),
        ({"args": {}, "pid": "GPU"}, "no device"),
    ],
)
def test_an_event_that_cannot_be_used_is_left_out_and_counted(change: Any, reason: str, tmp_path: Path) -> None:
    source = trace(tmp_path, KERNEL | change, KERNEL)
    assert len(list(source)) == 1
    assert source.skipped == {reason: 1}


def test_elements_that_are_no_events_are_counted(tmp_path: Path) -> None:
    source = trace(tmp_path, 3, "x", None, [], KERNEL)
    assert len(list(source)) == 1
    assert source.skipped == {"not an object": 4}


def test_the_base_of_the_times_is_found_before_and_after_the_events(tmp_path: Path) -> None:
    after = trace(tmp_path, KERNEL, baseTimeNanoseconds=1711964646000000000)
    list(after)
    assert after.base_ns == 1711964646000000000
    before = Trace(write(tmp_path / "before.json", [], baseTimeNanoseconds=17))
    list(before)
    assert before.base_ns == 17


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
        assert list(Trace(path)) == []
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert peaks[-1] < 4 << 20
    assert peaks[1] < 1.2 * peaks[0]


def test_a_trace_can_be_read_again(tmp_path: Path) -> None:
    source = trace(tmp_path, KERNEL, 3)
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

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernels import ADD, COPY, EVIL, FILL, GEMM, MAIN, MIB, MS, hostile, on_cpu, operation, report  # fmt: skip
from support.perfetto import Trace, protos
from support.perfetto import read as parsed

from gpu_profile.kernels.records import Kind, Range, Record
from gpu_profile.kernels.render.perfetto import perfetto_trace
from gpu_profile.kernels.views import KernelReport

T0 = 1_767_225_600_000_000_000


def read(found: KernelReport, **more: Any) -> Trace:
    return parsed(perfetto_trace(found, **more))


def test_streams_have_their_operations_with_exact_times_since_the_epoch() -> None:
    trace = read(report(), base_ns=T0)
    on_7 = trace.on("GPU 0/stream 7")
    assert [each.name for each in on_7] == [COPY, GEMM, ADD, FILL, FILL] * 2
    assert (on_7[1].start, on_7[1].end) == (T0 + 12 * MS, T0 + 20 * MS)
    assert [(each.start, each.end) for each in trace.on("GPU 0/stream 20")] == [
        (T0 + 24 * MS, T0 + 34 * MS), (T0 + 74 * MS, T0 + 84 * MS)
    ]  # fmt: skip
    assert on_7[0].args == {"kind": "transfer", "bytes": 20 * MIB}
    assert on_7[1].args == {"kind": "kernel", "estimated occupancy": pytest.approx(0.5)}


def test_threads_have_their_regions_inside_one_another_with_their_verdicts() -> None:
    found = read(report()).on("a.json (1)/regions, thread 100")
    assert [(each.name, each.depth) for each in found] == [("step", 0), ("load", 1), ("forward", 1)] * 2
    assert found[2].args["regime"] == "COMMUNICATION_BOUND"
    assert found[2].args["region busy ratio of span"] == pytest.approx(44 / 48)
    assert "confidence" not in found[1].args


def test_an_arrow_leads_from_each_launch_to_what_it_launched_and_from_nothing_else() -> None:
    trace = read(report())
    calls = trace.on("a.json (1)/calls, thread 100")
    begun = {flow: each for each in calls for flow in each.flows}
    ended = {flow: each for lane in ("7", "20") for each in trace.on(f"GPU 0/stream {lane}") for flow in each.ends}
    assert begun.keys() == ended.keys()
    assert len(begun) == 12
    assert all(begun[flow].start < ended[flow].start for flow in begun)
    assert "cudaDeviceSynchronize" not in {each.name for each in calls}


def test_an_operation_whose_call_is_not_recorded_has_no_arrow() -> None:
    trace = read(report([operation(Kind.KERNEL, 1, 2, "k", 77)]))
    assert trace.on("GPU 0/stream 7")[0].ends == []


def test_memory_is_a_counter_in_bytes() -> None:
    trace = read(report())
    (values,) = trace.counters.values()
    assert (12 * MS, 4.0 * MIB) in values
    assert (25 * MS, 3.0 * MIB) in values
    (track,) = [each for each in trace.tracks.values() if each.HasField("counter")]
    assert track.counter.unit == protos.CounterDescriptor.UNIT_SIZE_BYTES


def test_a_cpus_operators_have_tracks() -> None:
    operators = read(report(on_cpu())).on("a.json (1)/operators, thread 100")
    assert [each.name for each in operators] == ["aten::mm", "aten::relu", "aten::relu"]


def test_names_hold_no_control_characters() -> None:
    trace = read(report(hostile()))
    told = EVIL.encode("unicode_escape", "backslashreplace").decode("ascii")
    assert [each.name for each in trace.on("a.json (1)/regions, thread 100")] == [told]
    assert all(trace.path(each.track).isprintable() for each in trace.slices)


_spans = st.lists(st.tuples(st.integers(-40, 40), st.integers(0, 30), st.integers(0, 2), st.booleans()), max_size=40)


@settings(max_examples=60)
@given(_spans)
def test_whatever_overlaps_slices_lie_inside_one_another_and_none_is_lost(
    spans: list[tuple[int, int, int, bool]],
) -> None:
    records: list[Record] = []
    for start, length, place, on_gpu in spans:
        if on_gpu:
            records.append(operation(Kind.KERNEL, start, start + length, "k", None, stream=place))
        else:
            records.append(Range("r", MAIN + place, start * MS, (start + length) * MS))
    trace = read(report(records), base_ns=T0)
    assert len(trace.slices) == len(spans)
    lengths = sorted((each.name, each.end - each.start) for each in trace.slices)
    assert lengths == sorted((("r", "k")[on_gpu], length * MS) for _, length, _, on_gpu in spans)

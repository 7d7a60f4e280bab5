from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.analysis import (
    EMPTY,
    EVIL,
    GPU,
    ITEMS,
    MS,
    T0,
    B,
    Run,
    analysed,
    hostile,
    one,
    to_columns,
    two_devices,
    with_gap,
)
from support.perfetto import Trace, protos, read

from gpu_profile.analysis import Analysis
from gpu_profile.analysis.views.perfetto import perfetto_packets, perfetto_trace
from gpu_profile.catalogue.samples import Sample
from gpu_profile.catalogue.signals import CLOCK_SM, GRAPHICS, MEMORY_USED
from gpu_profile.recording import ProcessInfo, Recording, SpanRecord


def made(recording: Recording, devices: Sequence[str] = ()) -> tuple[Trace, Analysis]:
    analysis = analysed(recording, devices=devices)
    return read(perfetto_trace(recording, analysis)), analysis


HOST = "node-a (42)/regions"
ON_GPU = "GPU 0 NVIDIA H200/regions on the device"


def test_every_execution_is_a_slice_by_the_host_and_one_on_its_device_with_exact_times() -> None:
    run = Run()
    trace, _ = made(run.recording())
    expected = sorted((span.name, span.start_ns, span.end_ns) for span in run.spans)
    for path in (HOST, ON_GPU):
        assert sorted((each.name, each.start, each.end) for each in trace.on(path)) == expected


def test_executions_are_nested_as_they_ran() -> None:
    trace, _ = made(Run().recording())
    for path in (HOST, ON_GPU):
        assert {each.name: each.depth for each in trace.on(path)} == {"load": 0, "step": 0, "forward": 1}


def test_slices_carry_the_verdict_the_joined_values_and_the_items() -> None:
    trace, analysis = made(Run().recording())
    steps = [each for each in trace.on(HOST) if each.name == "step"]
    use = one(analysis, "step")
    assert {each.args["gpu_profile.regime"] for each in steps} == {str(use.verdict.regime)}
    assert {each.args["gpu_profile.items"] for each in steps} == {ITEMS}
    # Windows of 100 ms are too wide for executions of 200 ms: the region's values stand for each.
    assert {each.args["gpu_profile.scope"] for each in steps} == {"pooled"}
    assert {each.args["gpu_profile.busy.ratio"] for each in steps} == {use.summary.busy}
    assert {each.args["gpu_profile.energy.joules"] for each in steps} == {use.summary.call_energy_j}


def test_an_execution_that_samples_resolve_has_its_own_values() -> None:
    run = Run()
    first, last = run.spans[0].start_ns, max(span.end_ns for span in run.spans)
    run.spans.append(SpanRecord("epoch", first, last, span_id="f" * 16, devices=(GPU.uuid,), failed=True))
    trace, analysis = made(run.recording())
    (epoch,) = [each for each in trace.on(HOST) if each.name == "epoch"]
    assert (epoch.args["gpu_profile.scope"], epoch.args["failed"]) == ("span", True)
    use = analysis.devices[0]
    assert epoch.args["gpu_profile.busy.ratio"] == pytest.approx(use.utilization, rel=0.01)
    assert epoch.args["gpu_profile.energy.joules"] == pytest.approx(use.energy_j, rel=0.01)
    assert epoch.args["gpu_profile.coverage"] == pytest.approx(1.0, abs=0.01)


def test_each_signal_is_a_counter_in_a_unit_that_people_read() -> None:
    run = Run()
    recording = run.recording()
    more = {
        "memory_used": to_columns([Sample(MEMORY_USED, T0 + i * MS, T0 + i * MS, 1024) for i in (0, 900, 1800)]),
        "clock_sm": to_columns(
            [Sample(CLOCK_SM, T0 + i * MS, T0 + i * MS, CLOCK_SM.quanta(1.5e9)) for i in (0, 900, 1800)]
        ),
    }
    recording = replace(recording, samples={GPU.uuid: {**recording.samples[GPU.uuid], **more}})
    trace, _ = made(recording)
    kind, busy = trace.counter("GPU 0 NVIDIA H200/graphics")
    assert kind.unit_name == "%"
    graphics = recording.samples[GPU.uuid]["graphics"]
    assert [at for at, _ in busy] == graphics.t_start.tolist()
    assert [v for _, v in busy] == pytest.approx([100 * GRAPHICS.base(int(each)) for each in graphics.value])
    kind, power = trace.counter("GPU 0 NVIDIA H200/energy")
    assert kind.unit_name == "W"
    assert 80 <= min(v for _, v in power) < max(v for _, v in power) <= 601
    kind, memory = trace.counter("GPU 0 NVIDIA H200/memory_used")
    assert (kind.unit, {v for _, v in memory}) == (protos.CounterDescriptor.UNIT_SIZE_BYTES, {1024 * 2**20})
    kind, clock = trace.counter("GPU 0 NVIDIA H200/clock_sm")
    assert (kind.unit_name, {v for _, v in clock}) == ("MHz", {1500.0})


def test_what_happened_is_an_instant_and_what_was_not_sampled_a_slice() -> None:
    trace, _ = made(with_gap(Run()))
    (event,) = trace.instants
    assert (event.name, event.start) == ("xid", T0 + 5_000 * MS)
    assert event.args == {"code": 79, "message": "GPU has fallen off the bus"}
    assert trace.path(event.track) == "GPU 0 NVIDIA H200"
    (gap,) = trace.on("GPU 0 NVIDIA H200/gaps of graphics")
    assert (gap.name, gap.end - gap.start) == ("not measured", 4_000 * MS)


def test_ranks_are_processes_of_their_own() -> None:
    run = Run(calls=8)
    spans = tuple(span._replace(rank=rank, trace_id=f"{rank:032x}") for span in run.spans for rank in (0, 1))
    processes = tuple(ProcessInfo("0.1.0", "node-a", 42 + rank, T0, rank=rank) for rank in (0, 1))
    trace, _ = made(replace(run.recording(), spans=spans, processes=processes))
    for rank in (0, 1):
        assert len(trace.on(f"rank {rank}, node-a ({42 + rank})/regions")) == 24


def test_of_several_processes_without_ranks_nobody_is_told_to_have_run_anything() -> None:
    run = Run(calls=8)
    processes = tuple(ProcessInfo("0.1.0", "node-a", pid, T0) for pid in (1, 2))
    trace, _ = made(replace(run.recording(), processes=processes))
    assert len(trace.on("regions")) == 24
    assert {trace.path(uuid) for uuid in trace.tracks} >= {"node-a (1)", "node-a (2)"}


def test_executions_that_name_their_devices_are_apart_by_device() -> None:
    recording = two_devices(Run(calls=8))
    spans = [
        span._replace(device_intervals=(), devices=(uuid,))
        for uuid in (GPU.uuid, B.uuid)
        for span in Run(calls=8).spans
    ]
    trace, _ = made(replace(recording, spans=tuple(spans)))
    for index in (0, 1):
        assert len(trace.on(f"node-a (42)/regions using GPU {index}")) == 24


def test_hostile_names_and_nothing_at_all_are_traces_too() -> None:
    trace, _ = made(hostile(Run(calls=8)))
    assert EVIL.encode("unicode_escape", "backslashreplace").decode("ascii") in {each.name for each in trace.slices}
    trace, _ = made(EMPTY)
    assert (trace.tracks, trace.slices) == ({}, [])


SPANS = st.lists(
    st.tuples(
        st.sampled_from(("a", "b")),
        st.integers(T0, T0 + 100),
        st.integers(0, 60),
        st.sampled_from(("", "1", "2", "3")),
        st.sampled_from((None, "1", "2")),
        st.none() | st.floats(),
        st.sampled_from((None, None, 0, 1)),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(SPANS)
def test_whatever_overlaps_each_execution_has_a_slice_with_its_own_times(rows: list[Any]) -> None:
    spans = tuple(
        SpanRecord(name, start, start + length, span_id=own, parent_span_id=parent, items=items, rank=rank)
        for name, start, length, own, parent, items, rank in rows
    )
    recording = Recording((), (), {}, spans, (), ())
    trace = read(perfetto_trace(recording, analysed(recording)))
    assert sorted((each.name, each.start, each.end) for each in trace.slices) == sorted(
        (span.name, span.start_ns, span.end_ns) for span in spans
    )


def test_a_trace_comes_in_pieces_that_are_each_a_packet() -> None:
    recording = Run(calls=8).recording()
    analysis = analysed(recording)
    pieces = [piece for piece in perfetto_packets(recording, analysis) if piece]
    assert b"".join(pieces) == perfetto_trace(recording, analysis)
    for piece in pieces:
        trace = protos.Trace()
        trace.ParseFromString(piece)
        assert len(trace.packet) == 1


def test_time_stamps_are_told_to_be_wall_clock_time() -> None:
    recording = Run(calls=8).recording()
    trace = protos.Trace()
    trace.ParseFromString(perfetto_trace(recording, analysed(recording)))
    clocks = {each.clock_id: each.timestamp for each in trace.packet[0].clock_snapshot.clocks}
    assert clocks == {6: T0, 1: T0}

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from support.analysis import EMPTY, EVIL, GPU, MS, T0, TRACE, Run, analysed, hostile, one, two_devices
from support.pprof import read_otlp, read_pprof, total

from gpu_profile.analysis import Analysis
from gpu_profile.analysis.profile import call_paths, values
from gpu_profile.analysis.profile.kernel_times import OTHERS
from gpu_profile.analysis.profile.values import (
    ENERGY,
    GPU_TIME,
    KERNEL_TIME,
    NO_NAME,
    OUTSIDE,
    REMAINDER,
    UNCERTAIN,
    profile_of,
)
from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.catalogue.signals import SM
from gpu_profile.cli import run
from gpu_profile.errors import UsageError
from gpu_profile.recording import Columns, ProcessInfo, Recording, RecordingWriter, SpanRecord, read_recording
from gpu_profile.regimes.evidence import Evidence
from gpu_profile.regimes.kernel_work import KernelWork
from gpu_profile.report.otlp_profiles import otlp_profiles
from gpu_profile.report.pprof import pprof
from gpu_profile.report.stacks import SpanLink, StackProfile

HOST = "node-a (pid 42)"


def made(recording: Recording) -> tuple[StackProfile, Analysis]:
    analysis = analysed(recording)
    return profile_of(recording, analysis), analysis


def by_stack(made_of: StackProfile, place: int) -> Counter[tuple[str, ...]]:
    sums: Counter[tuple[str, ...]] = Counter()
    for each in made_of.samples:
        sums[each.stack] += each.values[place]
    return +sums


def works(spans: list[SpanRecord], tops: dict[str, tuple[int, dict[str, int]]]) -> list[SpanRecord]:
    """The spans, with kernels in those of some regions: in all, and of each name, in ns."""
    attributes = {}
    for region, (ns, names) in tops.items():
        top = tuple((name, 1, each) for name, each in names.items())
        work = KernelWork(evidence=Evidence("kernels", {}, 1, 1.0), kernels=9, kernel_ns=ns, span_ns=ns, top=top)
        attributes[region] = work.attributes()
    return [span._replace(attributes=attributes.get(span.name, {})) for span in spans]


def test_stacks_are_the_process_and_the_regions_and_add_up_to_the_device() -> None:
    found, analysis = made(Run().recording())
    assert found.kinds == (GPU_TIME, ENERGY)
    (use,) = analysis.devices
    assert use.energy_j is not None
    assert total(found.samples, 1) == round(use.energy_j * 1e3)
    energy = by_stack(found, 1)
    assert set(energy) == {(HOST, "load"), (HOST, "step"), (HOST, "step", "forward"), ("GPU 0 NVIDIA H200", OUTSIDE)}
    busy = by_stack(found, 0)
    for stack in [(HOST, "step"), (HOST, "step", "forward")]:
        summary = one(analysis, stack[-1]).summary
        assert summary.energy_j is not None
        assert summary.busy_s is not None
        assert energy[stack] == pytest.approx(summary.energy_j * 1e3, abs=2)
        assert busy[stack] == pytest.approx(summary.busy_s * 1e9, abs=2)


def test_each_span_has_its_part_of_its_region_by_time_and_a_link() -> None:
    run_of = Run()
    found, analysis = made(run_of.recording())
    summary = one(analysis, "forward").summary
    own = {each.link: each for each in found.samples if each.stack[-1] == "forward"}
    spans = [span for span in run_of.spans if span.name == "forward"]
    assert set(own) == {SpanLink(TRACE, span.span_id) for span in spans}
    whole = sum(span.end_ns - span.start_ns for span in spans)
    assert summary.energy_j is not None
    first = own[SpanLink(TRACE, spans[0].span_id)]
    # The device's samples end a little before the last execution.
    part = (spans[0].end_ns - spans[0].start_ns) / whole
    assert first.values[1] == pytest.approx(summary.energy_j * 1e3 * part, rel=0.02)
    assert dict(first.labels)["share"] == "certain"
    assert dict(first.labels)["gpu_profile.regime"] == "COMPUTE_BOUND"


def test_only_the_longest_spans_have_links_and_no_value_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = made(Run().recording())
    monkeypatch.setattr(values, "MOST_LINKED", 10)
    found, _ = made(Run().recording())
    assert sum(each.link is not None for each in found.samples) == 10
    assert len(found.samples) == 10 + 4
    assert [total(found.samples, i) for i in (0, 1)] == [total(whole.samples, i) for i in (0, 1)]
    assert by_stack(found, 1) == pytest.approx(by_stack(whole, 1), abs=2)
    assert any(each.startswith("10 of 180 spans") for each in found.comments)


def test_uncertain_parts_are_frames_that_say_so() -> None:
    recording = Run().recording()
    analysis = analysed(recording)
    regions = [
        replace(use, summary=replace(use.summary, energy_half_width=None)) if use.summary.region == "step" else use
        for use in analysis.regions
    ]
    unsure = replace(analysis, regions=tuple(regions))
    found = profile_of(recording, unsure)
    energy, busy = by_stack(found, 1), by_stack(found, 0)
    assert (HOST, "step") not in energy
    assert energy[HOST, "step", f"step {UNCERTAIN}"] > 0
    assert (HOST, "step", f"step {UNCERTAIN}") not in busy
    assert analysis.devices[0].energy_j is not None
    assert total(found.samples, 1) == round(analysis.devices[0].energy_j * 1e3)


def test_a_rest_that_may_be_of_regions_is_not_called_outside() -> None:
    recording = Run().recording()
    analysis = analysed(recording)
    (device,) = analysis.devices
    found = profile_of(recording, replace(analysis, devices=(replace(device, unattributed_j=None),)))
    assert by_stack(found, 1)["GPU 0 NVIDIA H200", REMAINDER] > 0
    assert any("Some parts of the rest may be of regions" in each for each in found.comments)


def test_lost_executions_and_those_of_mig_instances_may_have_the_rest() -> None:
    run_of = Run(calls=8)
    whole = run_of.recording()
    backwards = SpanRecord("lost", T0 + 900 * MS, T0, devices=(GPU.uuid,))
    mig = Device("MIG-a", parent=GPU.uuid, kind=DeviceKind.MIG)
    inside = tuple(span._replace(device_intervals=(), devices=(mig.uuid,)) for span in whole.spans)
    for recording, note in (
        (replace(whole, spans=(*whole.spans, backwards)), "1 execution of lost left out"),
        (replace(whole, processes=(replace(whole.processes[0], end_ns=None),)), "24 executions of 3 regions"),
        (replace(whole, lost_bytes=9, problems=("a.gpr: byte 7: 9 bytes lost",)), "a.gpr: byte 7: 9 bytes lost"),
        (replace(whole, devices=(GPU, mig), spans=inside), "GPU 0 NVIDIA H200: energy"),
    ):
        found, _ = made(recording)
        assert {each.stack for each in found.samples if each.stack[0] != HOST} == {("GPU 0 NVIDIA H200", REMAINDER)}
        assert any(each.startswith(note) for each in found.comments)
    damaged = replace(whole, problems=tuple(f"problem {i}" for i in range(30)))
    found, analysis = made(damaged)
    assert found.comments[-1] == f"{len(analysis.notes) - 20} more notes are printed by gpu-profile analyze."


def test_an_energy_counter_that_was_read_once_measured_no_energy() -> None:
    recording = Run(calls=8).recording()
    columns = recording.samples[GPU.uuid]
    once = {**columns, "energy": Columns(*(each[:1] for each in columns["energy"]))}
    found, _ = made(replace(recording, samples={GPU.uuid: once}))
    assert found.kinds == (GPU_TIME,)


def test_without_a_device_total_regions_alone_are_listed() -> None:
    recording = Run().recording()
    analysis = analysed(recording)
    (device,) = analysis.devices
    found = profile_of(recording, replace(analysis, devices=(replace(device, energy_j=None),)))
    assert any("there is no total by the same signal" in each for each in found.comments)
    assert not [each for each in found.samples if each.values[1] and each.stack[-1] in (OUTSIDE, REMAINDER)]


def test_signals_that_were_not_measured_are_no_zeros() -> None:
    recording = Run().recording()
    without = replace(recording, samples={GPU.uuid: {"graphics": recording.samples[GPU.uuid]["graphics"]}})
    found, _ = made(without)
    assert found.kinds == (GPU_TIME,)
    assert any("energy was not measured" in each for each in found.comments)


def test_nothing_measured_is_an_error_with_its_cause() -> None:
    for recording in (EMPTY, replace(Run(calls=2).recording(), samples={})):
        with pytest.raises(UsageError, match="needs GPU time, energy or kernels, and the recording has none"):
            made(recording)


def test_kernels_are_below_their_regions_without_those_of_inner_regions() -> None:
    run_of = Run()
    tops = {"forward": (90, {"gemm": 60, "copy": 30}), "step": (150, {"gemm": 70, "adam": 50})}
    run_of.spans = works(run_of.spans, tops)
    found, analysis = made(run_of.recording())
    assert found.kinds == (GPU_TIME, ENERGY, KERNEL_TIME)
    assert by_stack(found, 2) == {
        (HOST, "step", "forward", "gemm"): 60 * 60,
        (HOST, "step", "forward", "copy"): 60 * 30,
        (HOST, "step", "gemm"): 60 * 10,
        (HOST, "step", "adam"): 60 * 50,
    }
    assert analysis.devices[0].energy_j is not None
    assert total(found.samples, 1) == round(analysis.devices[0].energy_j * 1e3)
    assert not any(each.values[0] or each.values[1] for each in found.samples if each.values[2])


def test_an_outer_kernel_has_no_name_if_inner_ones_have_none() -> None:
    run_of = Run(calls=8)
    run_of.spans = works(run_of.spans, {"forward": (90, {"gemm": 60}), "step": (150, {"gemm": 150})})
    found, _ = made(run_of.recording())
    assert by_stack(found, 2) == {
        (HOST, "step", "forward", "gemm"): 8 * 60,
        (HOST, "step", "forward", OTHERS): 8 * 30,
        (HOST, "step", OTHERS): 8 * 60,
    }


def test_names_of_kernels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    run_of = Run(calls=8, identified=False)
    some = works(run_of.spans, {"forward": (9, {"a": 2, "b": 3, "c": 4})})
    more = works(run_of.spans, {"forward": (9, {"d": 9})})
    run_of.spans = [one if i % 2 else other for i, (one, other) in enumerate(zip(some, more, strict=True))]
    monkeypatch.setattr(values, "_MOST_KERNELS", 2)
    found, _ = made(run_of.recording())
    sums = by_stack(found, 2)
    assert sums.total() == 8 * 9
    assert len(sums) == 3
    assert sums[HOST, "step", "forward", OTHERS] > 0


def test_a_damaged_record_of_kernels_hides_no_other() -> None:
    run_of = Run(calls=8)
    spans = works(run_of.spans, {"forward": (90, {"gemm": 90})})
    broken = {"gpu_profile.kernels.n": "many"}
    run_of.spans = [span._replace(attributes=broken) if span.name == "step" else span for span in spans]
    found, _ = made(run_of.recording())
    assert by_stack(found, 2) == {(HOST, "step", "forward", "gemm"): 8 * 90}


def test_kernels_without_samples_are_a_profile_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run_of = Run(calls=8)
    run_of.spans = works(run_of.spans, {"forward": (90, {"gemm": 60})})
    monkeypatch.setattr(values, "MOST_LINKED", 3)
    found, _ = made(replace(run_of.recording(), samples={}, devices=()))
    assert found.kinds == (KERNEL_TIME,)
    assert by_stack(found, 0) == {(HOST, "step", "forward", "gemm"): 8 * 60, (HOST, "step", "forward", OTHERS): 8 * 30}
    assert len(found.samples) <= 2 * 4


def test_ranks_are_processes_and_unknown_processes_are_no_ones() -> None:
    run_of = Run(calls=8)
    spans = tuple(span._replace(rank=rank, trace_id=f"{rank + 1:032x}") for span in run_of.spans for rank in (0, 1))
    ranks = tuple(ProcessInfo("0.1.0", "node-a", 42 + rank, T0, rank=rank) for rank in (0, 1))
    found, _ = made(replace(run_of.recording(), spans=spans, processes=ranks))
    roots = {each.stack[0] for each in found.samples}
    assert {"rank 0, node-a (pid 42)", "rank 1, node-a (pid 43)"} <= roots
    two = tuple(ProcessInfo("0.1.0", "node-a", pid, T0) for pid in (1, 2))
    found, _ = made(replace(run_of.recording(), processes=two))
    assert "one of 2 processes" in {each.stack[0] for each in found.samples}


def test_a_recorded_process_has_its_own_executions_even_without_ranks(tmp_path: Path) -> None:
    Run(calls=8).write(tmp_path / "a")
    with RecordingWriter(tmp_path / "a", now_ns=lambda: T0) as writer:
        other = SpanRecord("other", T0 + 1, T0 + 900 * MS, TRACE, "f" * 16, devices=(GPU.uuid,))
        writer.span(other)
    recording = read_recording(tmp_path / "a")
    assert sorted(Counter(span.process for span in recording.spans).values()) == [1, 24]
    found, _ = made(recording)
    roots = {each.stack[1]: each.stack[0] for each in found.samples}
    assert roots["step"] == HOST
    assert roots["other"] not in (HOST, "one of 2 processes")


def test_gpu_time_of_one_other_signal_has_its_own_total() -> None:
    recording = Run().recording()
    analysis = analysed(recording)
    regions = [replace(use, summary=replace(use.summary, busy_source="sm")) for use in analysis.regions]
    found = profile_of(recording, replace(analysis, regions=tuple(regions)))
    column = analysis.devices[0].timeline.column(SM)
    assert column is not None
    whole = SM.base(column.integral(found.start_ns, found.end_ns)[0])
    in_regions = sum(use.summary.busy_s or 0.0 for use in analysis.regions)
    assert total(found.samples, 0) == pytest.approx(max(whole, in_regions * 1e9), rel=0.01)
    one_other = (replace(regions[1], summary=replace(regions[1].summary, busy_source="dram")), *regions[2:])
    found = profile_of(recording, replace(analysis, regions=(regions[0], *one_other)))
    assert any("there is no total by the same signal" in each for each in found.comments)


def test_a_span_without_a_name_is_a_frame_too() -> None:
    run_of = Run(calls=8)
    run_of.spans = [
        span._replace(name="" if span.name == "forward" else span.name)
        for span in works(run_of.spans, {"forward": (90, {"": 60, "gemm": 30})})
    ]
    found, _ = made(run_of.recording())
    assert by_stack(found, 2) == {(HOST, "step", NO_NAME, OTHERS): 8 * 60, (HOST, "step", NO_NAME, "gemm"): 8 * 30}
    assert [*read_otlp(otlp_profiles(found))] == [*found.kinds]


def test_long_and_many_paths_are_cut_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = {f"{i + 1:016x}": f"{i:016x}" for i in range(150)}
    deep = [
        SpanRecord("r", T0 + i, T0 + 1_700 * MS - i, TRACE, span, parent, devices=(GPU.uuid,))
        for i, (span, parent) in enumerate(parents.items())
    ]
    found, _ = made(replace(Run(calls=8).recording(), spans=tuple(deep)))
    assert max(len(each.stack) for each in found.samples) <= 101
    assert any(each.startswith("51 executions are listed below a part") for each in found.comments)
    monkeypatch.setattr(call_paths, "MOST_PATHS", 2)
    found, analysis = made(Run().recording())
    assert (HOST, "forward") in by_stack(found, 1)
    assert analysis.devices[0].energy_j is not None
    assert total(found.samples, 1) == round(analysis.devices[0].energy_j * 1e3)


def test_both_formats_have_all_samples() -> None:
    recordings = [hostile(Run(calls=8)), two_devices(Run(calls=8))]
    named = Run(calls=8)
    named.spans = works(named.spans, {"forward": (90, {EVIL: 60})})
    for recording in [*recordings, named.recording()]:
        found = profile_of(recording, analysed(recording), name=EVIL)
        message, samples = read_pprof(pprof(found))
        assert samples == list(found.samples)
        texts = message.string_table
        assert [(texts[each.type], texts[each.unit]) for each in message.sample_type] == list(found.kinds)
        assert texts[message.default_sample_type] == found.kinds[0].name
        assert (message.time_nanos, message.duration_nanos) == (found.start_ns, found.end_ns - found.start_ns)
        assert tuple(texts[each] for each in message.comment) == found.comments
        data = otlp_profiles(found, version="1.2.3")
        by_kind = read_otlp(data)
        assert tuple(by_kind) == found.kinds
        sent = ExportProfilesServiceRequest()
        sent.ParseFromString(data)  # a receiver reads the same fields
        (of_scope,) = sent.resource_profiles[0].scope_profiles
        assert (of_scope.scope.name, of_scope.scope.version) == ("gpu_profile", "1.2.3")
        for each in of_scope.profiles:
            assert (each.time_unix_nano, each.duration_nano) == (found.start_ns, found.end_ns - found.start_ns)
            (remarks,) = [sent.dictionary.attribute_table[place] for place in each.attribute_indices]
            assert [one.string_value for one in remarks.value.array_value.values] == list(found.comments)
        for place, samples in enumerate(by_kind.values()):
            assert samples == [
                each._replace(values=(each.values[place],)) for each in found.samples if each.values[place]
            ]


SPANS = st.lists(
    st.tuples(
        st.sampled_from(("a", "b")),
        st.integers(-300, 2_000),
        st.integers(0, 900),
        st.sampled_from(("", "1" * 16, "2" * 16, "z" * 16, "0" * 16)),
        st.sampled_from((None, "1" * 16, "2" * 16)),
        st.sampled_from(((), (GPU.uuid,), ("GPU-other",))),
    ),
    max_size=5,
)


@settings(max_examples=8)
@given(SPANS)
def test_the_sum_is_the_devices_energy_wherever_executions_lie(rows: list[Any]) -> None:
    spans = tuple(
        SpanRecord(name, T0 + start * MS, T0 + (start + length) * MS, TRACE, own, parent, devices=devices)
        for name, start, length, own, parent, devices in rows
    )
    found, analysis = made(replace(Run(calls=6).recording(), spans=spans))
    (use,) = analysis.devices
    parts = [each.summary.energy_j or 0.0 for each in analysis.regions]
    assert use.energy_j is not None
    assert total(found.samples, 1) == pytest.approx(1e3 * max(use.energy_j, sum(parts)), abs=1.5)
    read_pprof(pprof(found))
    read_otlp(otlp_profiles(found))


def test_the_command_writes_both_even_of_a_recording_that_is_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Run(calls=8).write(tmp_path / "a")
    (file,) = (tmp_path / "a").iterdir()
    file.write_bytes(file.read_bytes()[:-40])
    targets = [tmp_path / "out.pb.gz", tmp_path / "out.otlp"]
    assert run(["analyze", str(tmp_path / "a"), "--pprof", str(targets[0]), "--otlp-profiles", str(targets[1])]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "".join(f"wrote {target}\n" for target in targets))
    message, samples = read_pprof(targets[0].read_bytes())
    assert samples
    assert any("damaged and left out" in message.string_table[each] for each in message.comment)
    assert len(read_otlp(targets[1].read_bytes())) == 2

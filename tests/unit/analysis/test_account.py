import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from laboratory.mixes import draw
from laboratory.programs import Stamps, Unmarked
from laboratory.recordings import Case, recorded
from laboratory.rows import ROWS, outcomes, program
from laboratory.run import EVERY
from laboratory.sensors import COUNTER, GPM
from support.analysis import EMPTY, GPU, ITEMS, MS, RATES, T0, B, Run, one, to_columns, two_devices

from gpu_profile.analysis import analyse
from gpu_profile.analysis.views.text import device_row, reasons, render
from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Event, Sample
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, MEMORY_USED, POWER, TEMPERATURE
from gpu_profile.errors import RecordingError, UsageError
from gpu_profile.join.remedies import DOCTOR
from gpu_profile.join.unmixing.solving.region_columns import MOST_REGIONS, OTHER
from gpu_profile.recording import Columns, DeviceInterval, Recording, RecordingWriter, SpanRecord, read_recording
from gpu_profile.regimes import Regime, Thresholds

NAMES = ("load", "step", "forward")


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.mark.parametrize("identified", [True, False])
@pytest.mark.parametrize("marked", [True, False])
def test_regions_get_what_they_used_whatever_the_spans_tell(marked: bool, identified: bool) -> None:
    run = Run(marked=marked, identified=identified)
    analysis = analyse(run.recording())
    assert [use.summary.region for use in analysis.regions] == list(NAMES)
    for name in NAMES:
        summary = one(analysis, name).summary
        assert summary.durations.calls == summary.executions == run.calls
        assert summary.interval_source == ("device" if marked else "host")
        assert summary.busy_s == pytest.approx(RATES[name][0] * run.active_s[name], rel=0.02, abs=0.01)
        assert summary.energy_j == pytest.approx(run.watts(name) * run.active_s[name], rel=0.02)
    inside = run.watts("forward") * run.active_s["forward"]
    step = run.watts("step") * run.active_s["step"] + inside
    assert one(analysis, "step").summary.call_energy_j == pytest.approx(step / run.calls, rel=0.02)
    assert one(analysis, "forward").summary.call_energy_j == pytest.approx(inside / run.calls, rel=0.02)


def test_a_device_is_described_by_its_own_samples_and_its_energy_adds_up(run: Run) -> None:
    analysis = analyse(run.recording())
    (use,) = analysis.devices
    energy = [sample.value for sample in run.samples[ENERGY]]
    busy = [sample.value for sample in run.samples[GRAPHICS]]
    assert use.energy_j == pytest.approx((energy[-1] - energy[0]) / 1000)
    assert use.utilization == pytest.approx(sum(busy) / len(busy) * 1e-4, rel=1e-6)
    assert (use.utilization_source, use.energy_source, use.reasons) == ("graphics", "energy", ())
    shares = sum(region.summary.energy_j or 0.0 for region in analysis.regions)
    assert shares + (use.unattributed_j or 0.0) == pytest.approx(use.energy_j)


def steady(seconds: int, watts: int = 500) -> Recording:
    """Busy for half of the time at the same power, read ten times a second, the memory once."""
    tenths = [T0 + k * 100 * MS for k in range(10 * seconds + 1)]
    samples: dict[Signal, list[Sample]] = {
        ENERGY: [Sample(ENERGY, t, t, k * watts * 100) for k, t in enumerate(tenths)],
        POWER: [Sample(POWER, t - 25 * MS, t, watts * 1000) for t in tenths[1:]],
        GRAPHICS: [Sample(GRAPHICS, t - 100 * MS, t, 5000) for t in tenths[1:]],
        MEMORY_USED: [Sample(MEMORY_USED, t, t, 1 << 10) for t in tenths[::10]],
    }
    columns = {row.key: to_columns(each) for row, each in samples.items()}
    return replace(EMPTY, devices=(GPU,), samples={GPU.uuid: columns})


@given(st.integers(10, 300), st.integers(80, 700))
@example(26, 282)
@example(40, 537)
@example(139, 500)
@settings(max_examples=15)
def test_energy_is_mean_power_times_the_time_however_long_the_recording_is(seconds: int, watts: int) -> None:
    (use,) = analyse(steady(seconds, watts)).devices
    assert use.energy_j == pytest.approx(watts * seconds)
    assert use.power_w == pytest.approx(watts)
    assert use.utilization == pytest.approx(0.5)
    assert (use.coverage, use.energy_coverage) == pytest.approx((1.0, 1.0))
    power = use.timeline.columns[POWER]
    assert len(power) == 10 * seconds
    assert device_row(use, "0")[3] == "100 %"


def test_energy_in_no_region_is_told_with_its_share() -> None:
    (use,) = analyse(steady(100)).devices
    some = replace(use, unattributed_j=0.05 * 50_000.0, unattributed_half_width_j=9.0)
    assert device_row(some, "0")[6] == "2.50 kJ (5.0 %)"
    assert device_row(replace(some, unattributed_half_width_j=None), "0")[6] == "~2.50 kJ (5.0 %)"
    assert device_row(replace(use, unattributed_j=None), "0")[6] == "–"


def test_energy_that_samples_cover_too_little_of_is_not_told_and_coverage_is_told_by_quantity() -> None:
    recording = steady(100)
    held = recording.samples[GPU.uuid]
    late = replace(recording, samples={GPU.uuid: {**held, "energy": Columns(*(part[60:] for part in held["energy"]))}})
    (use,) = analyse(late).devices
    assert use.energy_coverage == pytest.approx(0.94)
    assert (use.energy_j, use.unattributed_j) == (None, None)
    assert use.power_w == pytest.approx(500)
    assert "energy: energy covers 94.0 % of the time" in use.reasons
    assert device_row(use, "0")[3] == "busy 100 %, energy 94 %"


def test_units_of_work_are_told_per_second_of_the_region_and_in_joules(run: Run) -> None:
    analysis = analyse(run.recording())
    step = one(analysis, "step")
    seconds = run.active_s["step"] + run.active_s["forward"]
    assert step.items_per_s == pytest.approx(ITEMS * run.calls / seconds, rel=0.001)
    assert step.summary.call_energy_j is not None
    assert step.item_energy_j == pytest.approx(step.summary.call_energy_j / ITEMS)
    assert (one(analysis, "load").items_per_s, one(analysis, "load").item_energy_j) == (None, None)


def test_items_that_only_some_executions_told_are_set_beside_nothing(run: Run) -> None:
    first = next(i for i, span in enumerate(run.spans) if span.name == "step")
    run.spans[first] = run.spans[first]._replace(items=None)
    step = one(analyse(run.recording()), "step")
    assert (step.items_per_s, step.item_energy_j) == (None, None)
    assert step.summary.durations.items == ITEMS * (run.calls - 1)
    assert "per item: only some of the executions reported their items" in step.reasons


def test_the_order_in_which_spans_were_recorded_makes_no_difference(run: Run) -> None:
    there = analyse(run.recording())
    run.spans.reverse()
    back = analyse(run.recording())
    assert [use.summary for use in back.regions] == [use.summary for use in there.regions]


def test_thresholds_of_the_callers_judge() -> None:
    recording = Run().recording()
    assert Regime.UNKNOWN not in {use.verdict.regime for use in analyse(recording).regions}
    lax = analyse(recording, thresholds=Thresholds(least_n=10**6))
    assert {use.verdict.regime for use in lax.regions} == {Regime.UNKNOWN}


# ---------------------------------------------------------------------- what is missing


def test_an_empty_recording_has_no_numbers_and_says_so() -> None:
    analysis = analyse(EMPTY)
    assert (analysis.devices, analysis.regions) == ((), ())
    assert analysis.notes == (
        f"no samples of any device ({DOCTOR})",
        "no executions of regions: only devices are shown",
    )
    assert "0 devices" in render(analysis)


def test_without_spans_there_are_devices() -> None:
    analysis = analyse(replace(Run().recording(), spans=()))
    assert analysis.regions == ()
    (use,) = analysis.devices
    assert use.energy_j is not None
    assert use.unattributed_j == use.energy_j
    assert "NVIDIA H200" in render(analysis)


@pytest.mark.parametrize("marked", [True, False])
def test_without_samples_there_are_durations_and_reasons(marked: bool) -> None:
    run = Run(marked=marked)
    analysis = analyse(replace(run.recording(), samples={}, devices=()))
    step = one(analysis, "step")
    assert step.summary.durations.calls == run.calls
    assert step.verdict.regime is Regime.UNKNOWN
    known = (step.summary.busy, step.summary.busy_s, step.summary.energy_j, step.summary.call_energy_j)
    assert known == (None, None, None, None)
    assert any(f"the recording has no samples of this device ({DOCTOR})" in line for line in reasons(analysis))
    assert step.verdict.explanation == "the recording has no samples of this device"


def test_a_device_without_energy_and_utilisation_says_so_and_gives_no_zero(run: Run) -> None:
    samples = [Sample(TEMPERATURE, T0 + i, T0 + i, 40) for i in range(5)]
    analysis = analyse(replace(run.recording(), samples={GPU.uuid: {"temperature": to_columns(samples)}}))
    (use,) = analysis.devices
    assert (use.utilization, use.energy_j, use.power_w, use.unattributed_j) == (None, None, None, None)
    assert use.reasons == (
        "GPU busy: the device reported no utilisation",
        "energy: the device reported neither energy nor power",
    )
    assert one(analysis, "step").summary.busy is None


def test_one_reading_of_a_counter_is_no_energy(run: Run) -> None:
    samples = {"energy": to_columns(run.samples[ENERGY][:1]), "graphics": to_columns(run.samples[GRAPHICS])}
    (use,) = analyse(replace(run.recording(), samples={GPU.uuid: samples})).devices
    assert use.energy_j is None
    assert use.reasons == ("energy: 1 samples of energy cover no time",)


def test_spans_that_end_before_they_start_are_left_out_and_counted(run: Run) -> None:
    whole = analyse(run.recording())
    run.spans += [SpanRecord("step", T0 + 5, T0 + 4), SpanRecord("late", T0, 1 << 63), SpanRecord("step", -9, T0)]
    analysis = analyse(run.recording())
    assert [use.summary for use in analysis.regions] == [use.summary for use in whole.regions]
    assert [note.partition(":")[0] for note in analysis.notes] == [
        "2 executions of step left out",
        "1 execution of late left out",
    ]


def test_a_device_interval_that_ends_before_it_starts_gives_way_to_the_hosts(run: Run) -> None:
    broken = DeviceInterval(GPU.uuid, 0, T0 + 9, T0 + 3)
    run.spans = [span._replace(device_intervals=(broken,)) for span in run.spans]
    analysis = analyse(run.recording())
    assert {use.summary.interval_source for use in analysis.regions} == {"host"}
    assert any("180 executions end before they start" in note for note in analysis.notes)


def test_parents_that_run_in_a_ring_do_not_hang(run: Run) -> None:
    a, b = (f"{n:016x}" for n in (901, 902))
    run.spans += [
        SpanRecord("x", T0, T0 + 10**9, trace_id="t", span_id=a, parent_span_id=b),
        SpanRecord("y", T0, T0 + 10**9, trace_id="t", span_id=b, parent_span_id=a),
        SpanRecord("z", T0, T0 + 10**9, trace_id="t", span_id=f"{903:016x}", parent_span_id=f"{903:016x}"),
    ]
    assert len(analyse(run.recording()).regions) == 6


def test_a_stray_time_stamp_does_not_take_for_ever(run: Run) -> None:
    run.spans.append(SpanRecord("stray", 0, 10))
    assert one(analyse(run.recording()), "stray").summary.durations.calls == 1


def test_executions_outside_the_samples_are_told(run: Run) -> None:
    run.spans += [
        SpanRecord("early", T0 - 9_000_000_000, T0 - 8_000_000_000),
        SpanRecord("late", T0 + 10**12, T0 + 2 * 10**12),
    ]
    analysis = analyse(run.recording())
    assert "2 executions ran on GPU-a before its first sample or after its last" in analysis.notes
    early = one(analysis, "early")
    assert (early.summary.durations.calls, early.summary.energy_j, early.summary.busy_s) == (1, None, None)
    assert early.verdict.regime is Regime.UNKNOWN
    assert "GPU busy: the device was not sampled while it ran" in early.reasons
    assert analysis.devices[0].unattributed_j is not None
    assert one(analysis, "step").summary.busy is not None


def test_samples_out_of_order_give_what_they_give_in_order(tmp_path: Path, run: Run) -> None:
    with RecordingWriter(tmp_path) as writer:
        for samples in run.samples.values():
            half = len(samples) // 2
            for part in (samples[half:], samples[:half], samples[3:5]):
                writer.samples(GPU.uuid, part)
                writer.flush()
    there, back = analyse(run.recording()), analyse(replace(run.recording(), samples=read_recording(tmp_path).samples))
    assert [use.summary for use in back.regions] == [use.summary for use in there.regions]
    assert back.devices[0].reasons == ()


def test_samples_that_cannot_be_are_left_out_and_counted(run: Run) -> None:
    recording = run.recording()
    backwards = [Sample(GRAPHICS, s.t_end_ns, s.t_start_ns, s.value) for s in run.samples[GRAPHICS][10:13]]
    wild = Sample(GRAPHICS, T0 + 10**8, T0 + 2 * 10**8 + 7, 1 << 40)
    samples = {
        **recording.samples[GPU.uuid],
        "graphics": to_columns(sorted([*run.samples[GRAPHICS], *backwards, wild], key=lambda s: s.t_end_ns)),
    }
    analysis = analyse(replace(recording, samples={GPU.uuid: samples}))
    assert "3 samples of graphics of GPU-a left out: they end before they start, or lie beyond all calendars" in (
        analysis.notes
    )
    assert "graphics: 1 samples have values that the device cannot have" in analysis.devices[0].reasons


def test_items_that_are_no_numbers_count_as_not_told(run: Run) -> None:
    run.spans = [span._replace(items=float("nan") if span.name == "step" else None) for span in run.spans]
    step = one(analyse(run.recording()), "step")
    assert (step.summary.durations.items, step.items_per_s, step.item_energy_j) == (None, None, None)


def test_samples_beyond_all_calendars_are_left_out(run: Run) -> None:
    recording = run.recording()
    wild = to_columns([Sample(ENERGY, -5, -5, 0), *run.samples[ENERGY], Sample(ENERGY, 1 << 62, 1 << 62, 9)])
    samples = {**recording.samples[GPU.uuid], "energy": wild}
    there, wilder = analyse(recording), analyse(replace(recording, samples={GPU.uuid: samples}))
    assert wilder.devices[0].energy_j == there.devices[0].energy_j


def test_more_regions_than_can_be_told_apart_are_pooled_by_time_and_counted(run: Run) -> None:
    run.spans += [SpanRecord(f"rare{i}", T0 + i, T0 + i + 1000) for i in range(100)]
    analysis = analyse(run.recording())
    assert one(analysis, "step").summary.durations.calls == run.calls
    assert one(analysis, OTHER).summary.durations.calls == 100 + len(NAMES) - MOST_REGIONS
    assert f"39 regions beyond the {MOST_REGIONS} with most time are one, {OTHER!r}" in analysis.notes


# ---------------------------------------------------------------------- several devices


def test_executions_that_name_no_device_are_on_the_first_gpu_unless_the_caller_knows_better() -> None:
    run = Run(marked=False)
    analysis = analyse(two_devices(run))
    assert {use.summary.device for use in analysis.regions} == {GPU}
    assert any("180 executions name no device: taken to have run on GPU-a" in note for note in analysis.notes)
    told = analyse(two_devices(run), devices=[B.uuid])
    assert {use.summary.device for use in told.regions} == {B}
    assert told.notes == ()


def test_a_device_that_the_recording_does_not_have_is_told_with_those_that_it_has() -> None:
    with pytest.raises(UsageError, match="no samples of GPU-x; it has GPU-a"):
        analyse(Run().recording(), devices=["GPU-x"])


def test_devices_come_by_index_and_the_idle_ones_energy_is_nobodys() -> None:
    analysis = analyse(two_devices(Run()))
    assert [use.device.uuid for use in analysis.devices] == ["GPU-a", "GPU-b"]
    assert analysis.devices[1].unattributed_j == analysis.devices[1].energy_j


def test_events_are_told_with_their_time() -> None:
    event = Event(GPU.uuid, T0 + 2_500_000_000, "xid", 79, "GPU has fallen\noff the bus")
    text = render(analyse(replace(Run().recording(), events=(event,))))
    assert "2.5 s: device 0: xid 79 GPU has fallen\\noff the bus" in text


# ---------------------------------------------------------------------- files


def test_a_truncated_recording_is_analysed_as_far_as_it_goes_and_says_how_much_is_lost(tmp_path: Path) -> None:
    Run().write(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-700])
    analysis = analyse(read_recording(tmp_path))
    assert analysis.lost_bytes > 0
    assert len(analysis.devices) == 1
    assert sum(use.summary.durations.calls for use in analysis.regions) == 120
    assert f"{analysis.lost_bytes} bytes lost" in render(analysis)


def test_files_and_memory_give_the_same_analysis(tmp_path: Path, run: Run) -> None:
    run.write(tmp_path / "recording")
    analysis = analyse(read_recording(tmp_path / "recording"))
    expected = {use.summary.region: use.summary for use in analyse(run.recording()).regions}
    assert {use.summary.region: use.summary for use in analysis.regions} == expected


def test_what_is_no_recording_is_one_line(tmp_path: Path) -> None:
    shutil.copy(__file__, tmp_path / "x.gpr")
    with pytest.raises(RecordingError, match="not a recording"):
        read_recording(tmp_path)


# ---------------------------------------------------------------------- whose work it is


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_work_that_no_region_marks_is_told_of(share: float) -> None:
    case = Case(program(0, unmarked=Unmarked(share)), (COUNTER, GPM), 40.0, 0)
    told = [note for note in analyse(recorded(case.run())).notes if "is in no region" in note]
    assert len(told) == (1 if share else 0)
    if share:
        value, half_width = (float(part) for part in told[0].split(" of ")[0].replace("%", "").split("±"))
        assert half_width < 3
        assert value == pytest.approx(100 * share, abs=1.5 * half_width)


def test_regions_that_work_in_a_third_of_their_time_are_not_confidently_wrong() -> None:
    """In an order that hardly varies, the wrong part of an execution is explained almost as well by the wrong lag."""
    (row,) = (row for row in ROWS if "work in a third of each region" in row.name)
    told = [outcome for outcome in row.outcomes(2) if outcome.quantity in ("power", "energy")]
    assert len(told) == 13
    assert [(outcome.region, outcome.quantity) for outcome in told if outcome.confidently_wrong] == []


@pytest.mark.parametrize(
    ("row", "seed"),
    [
        # Idle windows were left out, because a renewal was near their edges.
        ("found: loop of 88.4 ms, counter measures 67.8 ms", 9),
        # The right part of the period was tried at one lag only.
        ("found: loop of 88.4 ms, counter measures 67.8 ms", 14),
        # Errors of stamps made the right timing's residuals look like those of a timing with outliers.
        ("1: loop of 99.5 ms, late stamps", 18),
        # A part of a period hid that errors of stamps leave the rates undetermined.
        ("1: loop of 99.5 ms, late stamps", 2),
        # Work in a part of regions was taken for work in the pauses between them.
        ("more: loops of 40 to 210 ms, each of another length, work in a part", 13),
        # Lags near the best timing were not tried, because the search had begun far from it.
        ("kind: loop near a rational", 7),
        # In a loop of 11 ms, the grid of lags had no point near the right one.
        ("found: loop of 11 ms, work in gaps", 3),
        # The same for a sensor whose mean is over 100 ms.
        ("found: loop of 122 ms, mean power", 2),
    ],
)
def test_loops_have_no_confident_errors(row: str, seed: int) -> None:
    (case,) = (each for each in EVERY if each.name == row)
    wrong = [outcome for outcome in case.outcomes(seed) if outcome.confidently_wrong]
    assert [(outcome.region, outcome.quantity) for outcome in wrong] == []


def test_a_lag_is_found_closely_where_exact_readings_show_it_closely() -> None:
    """Half a millisecond gives a short region a tenth of its neighbour's work."""
    (row,) = (row for row in ROWS if "work in a third of each region" in row.name)
    told = [outcome for outcome in row.outcomes(0) if outcome.quantity == "busy" and outcome.answer.value is not None]
    assert len(told) >= 5
    for outcome in told:
        assert outcome.answer.half_width is not None
        assert outcome.answer.value == pytest.approx(outcome.target.truth, abs=1.5 * outcome.answer.half_width)


def test_readings_within_milliseconds_of_a_renewal_leave_narrow_intervals() -> None:
    """Of readings as often as the counter renews itself, most lie there."""
    (row,) = (row for row in ROWS if "utilisation over 1000.0 ms renewed each 167" in row.name)
    case = row.build(0)
    # Stamps of the device: a host's may be late, which widens intervals for another reason.
    marked = replace(case, program=replace(case.program, stamps=Stamps(marks_us=5.0)))
    told = [outcome for outcome in outcomes(row.name, marked) if outcome.quantity == "power"]
    assert len(told) == 6
    for outcome in told:
        assert outcome.answer.half_width is not None
        assert outcome.answer.half_width < 10
        assert outcome.answer.value == pytest.approx(outcome.target.truth, abs=2 * outcome.answer.half_width)


def test_a_half_width_includes_the_executions_before_the_first_window() -> None:
    """One region ran for 1.5 s in all, 65 ms of them in a window that had begun before any region."""
    told = {outcome.region: outcome for outcome in draw(668).outcomes() if outcome.quantity == "energy"}
    for region in ("r3", "r4"):
        half_width = told[region].answer.half_width
        assert half_width is not None
        assert told[region].answer.value == pytest.approx(told[region].target.truth, abs=half_width)
        assert half_width < 0.1 * told[region].target.truth


def test_a_correction_that_takes_readings_for_those_of_another_renewal_is_undone() -> None:
    """Few windows show a drift of the renewals roughly, and most readings lie within milliseconds of a renewal."""
    (row,) = (row for row in ROWS if "renewed every 100.5 ms" in row.name)
    case = row.build(5)
    short = replace(case, sensors=case.sensors[:1], seconds=12.0)
    told = {outcome.region: outcome for outcome in outcomes(row.name, short) if outcome.quantity == "power"}
    half_width = told["r3"].answer.half_width
    assert half_width is not None
    assert half_width < 25
    assert told["r3"].answer.value == pytest.approx(told["r3"].target.truth, abs=half_width)
    assert told["r4"].answer.value is not None

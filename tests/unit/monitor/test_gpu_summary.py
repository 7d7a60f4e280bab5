import dataclasses
import json
from collections.abc import Sequence

import pytest

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, Interval, Sample
from gpu_profile.history.timeline import Timeline
from gpu_profile.monitor.gpu_summary import GpuSample, GpuSummary, ProfiledResult, samples_of, summarise_run
from gpu_profile.report.sparkline import HEIGHTS
from gpu_profile.units import MIB, NS_PER_S, nanoseconds

T0 = 1_767_225_600 * NS_PER_S
A10G = Device("GPU-A", index=0, name="NVIDIA A10G", memory_bytes=8192 * MIB)
#: The keys that the documents' own JSON has.
SEED_KEYS = {
    *("device", "name", "duration_s", "interval_s", "n_samples", "notes", "sparkline", "busy_time_est_s"),
    *("util_gpu_mean", "util_gpu_p50", "util_gpu_p95", "util_gpu_max", "util_mem_mean"),
    *("mem_used_max_mb", "mem_total_mb", "power_mean_w", "power_max_w", "temp_max_c"),
}
WHOLE = GpuSummary(
    device=0,
    name="NVIDIA A10G",
    duration_s=12.34,
    interval_s=0.2,
    n_samples=61,
    util_gpu_mean=87.2,
    util_gpu_p50=90.0,
    util_gpu_p95=98.0,
    util_gpu_max=99.0,
    util_mem_mean=40.0,
    mem_used_max_mb=6000.0,
    mem_total_mb=8192.0,
    power_mean_w=180.0,
    power_max_w=250.0,
    temp_max_c=75.0,
    busy_time_est_s=6.5,
    sparkline="▁▃▅▇",
    notes="warmup ignored: first 0.20s | sampling stopped early: the GPU is lost",
    coverage=0.985,
    energy_j=2221.2,
    energy_source="energy",
    resolution_s=0.167,
)


def timeline(*samples: Sample, device: Device = A10G) -> Timeline:
    made = Timeline(device)
    made.append(samples)
    return made


def windows(row: Signal, values: Sequence[float], length_s: float = 0.2, start_s: float = 0.0) -> list[Sample]:
    """Window means one after the other, in base units."""
    edges = [T0 + nanoseconds(start_s + i * length_s) for i in range(len(values) + 1)]
    return [Sample(row, edges[i], edges[i + 1], row.quanta(value)) for i, value in enumerate(values)]


def readings(row: Signal, *points: tuple[float, float]) -> list[Sample]:
    """Readings `(second, value in base units)` of a counter or an instant."""
    return [Sample(row, T0 + nanoseconds(s), T0 + nanoseconds(s), row.quanta(value)) for s, value in points]


def summary(found: Timeline, end_s: float, start_s: float = 0.0, *, warmup_s: float = 0.0) -> GpuSummary:
    run = Interval(T0 + nanoseconds(start_s), T0 + nanoseconds(end_s))
    return summarise_run(found, run, device=0, interval_s=0.2, warmup_s=warmup_s)


# ---------------------------------------------------------------------- what people see


def test_report_has_the_lines_of_the_documents_in_their_order_and_then_ours() -> None:
    assert WHOLE.format() == (
        "[GPU 0] NVIDIA A10G\n"
        "  duration: 12.340s | samples: 61 @ 0.200s\n"
        "  util.gpu: mean 87.2% | p50 90.0% | p95 98.0% | max 99.0%\n"
        "  util.mem: mean 40.0%\n"
        "  memory: max used 6000 MB / total 8192 MB\n"
        "  power: mean 180.0 W | max 250.0 W\n"
        "  temp: max 75 °C\n"
        "  busy time (est): 6.500s\n"
        "  util trace: ▁▃▅▇\n"
        "  energy: 2221.2 J (counter)\n"
        "  coverage: 98.5% | resolution: 0.167s\n"
        "  notes: warmup ignored: first 0.20s | sampling stopped early: the GPU is lost"
    )


def test_what_is_missing_is_not_available_and_a_line_without_content_is_left_out() -> None:
    assert GpuSummary(3, "n/a", 1.0, 0.2).format() == (
        "[GPU 3] n/a\n"
        "  duration: 1.000s | samples: 0 @ 0.200s\n"
        "  util.gpu: mean n/a | p50 n/a | p95 n/a | max n/a\n"
        "  util.mem: mean n/a\n"
        "  memory: max used n/a / total n/a\n"
        "  power: mean n/a | max n/a\n"
        "  temp: max n/a\n"
        "  busy time (est): n/a\n"
        "  energy: n/a\n"
        "  coverage: 0.0% | resolution: n/a"
    )


def test_integrated_power_is_told_from_the_counter() -> None:
    said = dataclasses.replace(WHOLE, energy_source="power_average").format()
    assert "  energy: 2221.2 J (from power)\n" in said


def test_a_counter_that_never_moved_is_not_believed() -> None:
    stuck = readings(rows.ENERGY, *((at / 10, 5_000) for at in range(101)))
    found = summary(timeline(*stuck, *windows(rows.POWER_AVERAGE, [600] * 50)), 10)
    assert found.energy_source == "power_average"
    assert found.energy_j == pytest.approx(6_000)
    assert found.power_mean_w == pytest.approx(600)
    alone = summary(timeline(*stuck), 10)
    assert (alone.energy_source, alone.energy_j, alone.power_mean_w) == (None, None, None)
    moved = readings(rows.ENERGY, *((at / 10, 5_000 + at) for at in range(101)))
    assert summary(timeline(*moved), 10).energy_source == "energy"


def test_keys_are_the_documents_and_ours_and_json_is_valid() -> None:
    keys = SEED_KEYS | {"coverage", "energy_j", "energy_source", "resolution_s"}
    assert set(WHOLE.to_dict()) == keys == set(vars(WHOLE))
    assert json.loads(WHOLE.to_json()) == WHOLE.to_dict()
    nothing = json.loads(GpuSummary(0, "n/a", 1.0, 0.2).to_json())
    assert nothing["util_gpu_mean"] is None
    assert "NaN" not in json.dumps(nothing)


def test_summary_and_sample_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        WHOLE.name = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        GpuSample(0.0).t_s = 1.0  # type: ignore[misc]


def test_result_of_one_device_has_its_summary_under_both_names() -> None:
    result = ProfiledResult(value=3, gpu=WHOLE)
    assert (result.value, result.gpu, result.gpus) == (3, WHOLE, (WHOLE,))


# ---------------------------------------------------------------------- numbers


def test_run_is_summed_up_by_what_its_samples_overlap() -> None:
    found = timeline(
        *windows(rows.UTILIZATION, [0.0, 0.5, 1.0, 1.0, 0.2, 0.0]),
        *windows(rows.MEMORY_CONTROLLER, [0.0, 0.2, 0.4, 0.4, 0.0, 0.0]),
        *windows(rows.POWER, [50, 100, 200, 250, 100, 50]),
        *readings(rows.MEMORY_USED, (0, 0), (0.4, 1000 * MIB), (0.8, 6000 * MIB), (1.2, 2000 * MIB)),
        *readings(rows.TEMPERATURE, (0, 40), (0.4, 75), (0.9, 60)),
        *readings(rows.ENERGY, (0, 0), (0.2, 10), (1.0, 140), (1.2, 150)),
    )
    got = summary(found, 1.0, 0.2)
    assert (got.device, got.name, got.interval_s) == (0, "NVIDIA A10G", 0.2)
    assert got.duration_s == pytest.approx(0.8)
    assert got.n_samples == 4
    assert (got.util_gpu_mean, got.util_gpu_max) == pytest.approx(((50 + 100 + 100 + 20) / 4, 100), abs=0.2)
    assert (got.util_gpu_p50, got.util_gpu_p95) == pytest.approx((50, 100))
    assert got.util_mem_mean == pytest.approx(25)
    assert (got.mem_used_max_mb, got.mem_total_mb) == (6000, 8192)
    assert (got.power_mean_w, got.power_max_w) == pytest.approx((130 / 0.8, 250))
    assert got.temp_max_c == 75
    assert got.busy_time_est_s == pytest.approx((0.5 + 1 + 1 + 0.2) * 0.2, abs=0.002)
    assert got.energy_j == pytest.approx(130)
    assert got.energy_source == "energy"
    assert got.coverage == 1.0
    assert got.resolution_s is not None
    assert got.resolution_s < 0.1


def test_warmup_is_left_out_of_everything_but_the_duration() -> None:
    found = timeline(
        *windows(rows.UTILIZATION, [0.0, 0.0, 1.0, 0.5]), *windows(rows.POWER_AVERAGE, [300, 300, 100, 100])
    )
    got = summary(found, 0.8, warmup_s=0.4)
    assert (got.duration_s, got.n_samples, got.coverage) == pytest.approx((0.8, 2, 1.0))
    assert got.util_gpu_mean == pytest.approx(75, abs=0.2)
    assert got.busy_time_est_s == pytest.approx((0.8 - 0.4) * 0.75, abs=0.001)
    assert got.energy_j == pytest.approx(40)
    assert got.energy_source == "power_average"
    assert got.notes.startswith("warmup ignored: first 0.40s")


@pytest.mark.parametrize("warmup_s", [1.0, 5.0])
def test_warmup_that_outlasts_the_run_leaves_nothing_to_measure_and_says_so(warmup_s: float) -> None:
    got = summary(timeline(*windows(rows.UTILIZATION, [1.0] * 5)), 1.0, warmup_s=warmup_s)
    assert (got.util_gpu_mean, got.busy_time_est_s, got.energy_j, got.coverage) == (None, None, None, 0.0)
    assert got.duration_s == pytest.approx(1.0)
    assert (got.mem_total_mb, got.sparkline) == (8192, "")
    assert got.notes == (
        f"warmup ignored: first {warmup_s:.2f}s | the warmup is longer than the run: nothing was measured"
    )
    json.loads(got.to_json())


def test_device_that_tells_nothing_has_no_numbers() -> None:
    got = summary(timeline(device=Device("MIG-A", name="")), 3.0)
    assert got.name == "MIG-A"
    assert got.notes == "no utilisation samples"
    absent = [value for key, value in got.to_dict().items() if key in SEED_KEYS and value is None]
    assert len(absent) == 11
    assert got.n_samples == 0


def test_busy_time_and_energy_are_of_the_part_that_samples_cover_and_a_note_says_so() -> None:
    found = timeline(*windows(rows.UTILIZATION, [1.0] * 5), *readings(rows.ENERGY, (0, 0), (1.0, 100)))
    got = summary(found, 2.0)
    assert got.coverage == pytest.approx(0.5)
    assert (got.util_gpu_mean, got.busy_time_est_s, got.energy_j) == pytest.approx((100, 1.0, 100))
    assert "samples cover 50% of the run" in got.notes


@pytest.mark.parametrize(("run_s", "noted"), [(0.9, True), (1.1, False)])
def test_energy_whose_readings_look_far_beyond_the_run_is_noted(run_s: float, noted: bool) -> None:
    steps = [(at / 10, at * 10) for at in range(31)]
    found = timeline(*windows(rows.UTILIZATION, [1.0] * 15), *readings(rows.ENERGY, *steps))
    got = summary(found, 1.0 + run_s, 1.0)
    assert got.energy_j == pytest.approx(100 * run_s)
    note = "energy and mean power may include up to 0.100s before or after the measured time"
    assert (note in got.notes) == noted


def test_busy_time_of_a_run_that_is_short_for_the_sensor_is_bounded_and_a_note_says_why() -> None:
    found = timeline(*windows(rows.UTILIZATION, [0.0] * 10 + [0.6] + [0.0] * 5, length_s=1 / 6))
    got = summary(found, 11 / 6 - 0.02, 10 / 6)
    assert got.busy_time_est_s is not None
    assert got.resolution_s is not None
    assert got.notes.startswith("busy time may be 0.0")
    low, high = (float(part) for part in got.notes.split(" ")[4].removesuffix("s:").split("-"))
    assert low <= got.busy_time_est_s <= high
    assert got.resolution_s == pytest.approx((high - low) / 2, abs=0.001)
    assert summary(timeline(*windows(rows.UTILIZATION, [1.0] * 20)), 4.0).notes == ""


def test_sample_count_is_of_values_that_the_driver_renewed_not_of_readings() -> None:
    asked_often = timeline(*windows(rows.UTILIZATION, [0.5] * 100, length_s=0.02))
    assert summary(asked_often, 2.0).n_samples <= 2.0 / (1 / 6) + 2
    told_twice = timeline(*(windows(rows.UTILIZATION, [0.5] * 10) * 2))
    assert summary(told_twice, 2.0).n_samples == 10


def test_activity_of_the_engine_is_preferred_to_the_coarser_utilisation() -> None:
    found = timeline(*windows(rows.UTILIZATION, [1.0] * 10), *windows(rows.GRAPHICS, [0.25] * 20, length_s=0.1))
    got = summary(found, 2.0)
    assert (got.util_gpu_mean, got.n_samples) == pytest.approx((25, 20))


def test_highest_power_is_never_below_the_mean() -> None:
    lagging = timeline(*windows(rows.POWER_AVERAGE, [50, 60, 70, 80]), *readings(rows.ENERGY, (0, 0), (0.8, 240)))
    got = summary(lagging, 0.8)
    assert (got.power_mean_w, got.power_max_w) == pytest.approx((300, 300))


# ---------------------------------------------------------------------- the trace


def test_trace_of_a_flat_load_is_flat_at_its_own_height() -> None:
    assert summary(timeline(*windows(rows.UTILIZATION, [0.99, 1.0] * 20)), 8.0).sparkline == "█" * 40
    assert summary(timeline(*windows(rows.UTILIZATION, [0.5] * 40)), 8.0).sparkline == HEIGHTS[4] * 40
    assert summary(timeline(*windows(rows.UTILIZATION, [0.0] * 40)), 8.0).sparkline == "▁" * 40


def test_trace_rises_with_the_load_and_is_blank_where_nothing_is_known() -> None:
    rising = timeline(*windows(rows.UTILIZATION, [i / 39 for i in range(40)]))
    assert summary(rising, 8.0).sparkline == "".join(height * 5 for height in HEIGHTS)
    half = timeline(*windows(rows.UTILIZATION, [1.0] * 20))
    assert summary(half, 8.0).sparkline == "█" * 20 + " " * 20


# ---------------------------------------------------------------------- samples


def test_samples_hold_what_was_in_force_when_the_utilisation_was_told() -> None:
    found = timeline(
        *windows(rows.UTILIZATION, [0.1, 0.2, 0.3]),
        *windows(rows.MEMORY_CONTROLLER, [0.5, 0.6, 0.7]),
        *windows(rows.POWER, [100, 200], length_s=0.3),
        *readings(rows.MEMORY_USED, (0, 10 * MIB), (0.5, 20 * MIB)),
        *readings(rows.TEMPERATURE, (0, 50), (1, 60)),
        *readings(rows.CLOCK_SM, (0, 1.4e9), (1, 1.5e9)),
    )
    assert samples_of(found, Interval(T0, T0 + NS_PER_S)) == [
        GpuSample(0.2, 10, 50, 20, 8192, 100, 60, 1500, None),
        GpuSample(0.4, 20, 60, 20, 8192, 200, 60, 1500, None),
        GpuSample(0.6, 30, 70, None, 8192, 200, 60, 1500, None),
    ]


def test_a_sample_has_the_average_power_until_the_buffered_one_has_come_and_zero_is_a_power() -> None:
    found = timeline(
        *windows(rows.UTILIZATION, [0.1, 0.2, 0.3]),
        *windows(rows.POWER_AVERAGE, [90, 90, 90]),
        *windows(rows.POWER, [0, 200], start_s=0.2),
    )
    assert [sample.power_w for sample in samples_of(found, Interval(T0, T0 + NS_PER_S))] == [90, 0, 200]


def test_samples_of_a_device_without_utilisation_are_those_of_its_power_and_of_nothing_none() -> None:
    found = timeline(*windows(rows.POWER, [100, 200]))
    assert [(s.t_s, s.power_w, s.util_gpu) for s in samples_of(found, Interval(T0, T0 + NS_PER_S))] == [
        (0.2, 100, None),
        (0.4, 200, None),
    ]
    assert samples_of(timeline(), Interval(T0, T0 + NS_PER_S)) == []

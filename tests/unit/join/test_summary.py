import math
from dataclasses import replace

import numpy as np
import pytest

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, Interval, Sample
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.summary import Durations, pooled_evidence, read_span, span_evidence, summarise
from gpu_profile.join.unmixing.pools.meter import Metered
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.solving.rate import Rate
from gpu_profile.join.unmixing.timing.expected import DevicePrior
from gpu_profile.join.unmixing.windows.activities import DeviceExecution
from gpu_profile.units import NS_PER_S

MS = 1_000_000
T0 = 1_700_000_000 * NS_PER_S
DEVICE = Device("GPU-a", clock_max_hz=2_000_000_000, pcie_bytes_per_s=32_000_000_000)
#: A region that keeps the GPU four fifths busy at 400 W, streams from memory and copies 8 GB/s in.
LEVELS: dict[Signal, int] = {rows.GRAPHICS: 8000, rows.SM: 7600, rows.DRAM: 6000, rows.FP32: 1500}


def during(a_ms: int, b_ms: int) -> Interval:
    return Interval(T0 + a_ms * MS, T0 + b_ms * MS)


def timeline(*, seconds: int = 20, device: Device = DEVICE, without: tuple[Signal, ...] = ()) -> Timeline:
    """Ten windows a second: the device works in every other second, and is quiet in between."""
    result = Timeline(device, capacity=10_000)
    joules = received = 0
    for i in range(seconds * 10):
        start, end = T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS
        works = i // 10 % 2 == 0
        joules += 40_000 if works else 9_000
        received += 800_000_000 if works else 0
        samples = [Sample(row, start, end, level if works else 0) for row, level in LEVELS.items()]
        samples += [
            Sample(rows.ENERGY, end, end, joules),
            Sample(rows.PCIE_RX, end, end, received),
            Sample(rows.PCIE_TX, end, end, 0),
        ]
        if i % 10 == 0:
            samples += [
                Sample(rows.MEMORY_USED, end, end, 1000 + i),
                Sample(rows.POWER_LIMIT, end, end, 500_000),
                Sample(rows.CLOCK_SM, end, end, 1900 if works else 300),
            ]
        result.append(sample for sample in samples if sample.signal not in without)
    return result


def pool(source: Timeline, seconds: int = 20) -> Pool:
    # All executions are in step with the counter, so it must be known to measure all of the time.
    result = Pool(source, start_ns=T0, prior=DevicePrior(measured=True))
    work = [
        DeviceExecution(i, None, "work", T0 + 2 * i * NS_PER_S, T0 + (2 * i + 1) * NS_PER_S)
        for i in range(seconds // 2)
    ]
    result.advance(work, T0 + seconds * NS_PER_S)
    for _ in work:
        result.count("work")
    return result


# ---------------------------------------------------------------------- one execution


def test_an_execution_is_described_by_its_own_readings_where_samples_resolve_it() -> None:
    own = read_span(timeline(), during(4_000, 5_000))
    assert not own.resolved, "its first and last windows may be those before"
    own = read_span(timeline(), during(4_000, 6_000))
    assert own.resolved
    busy, energy = own.get([rows.GRAPHICS]), own.get([rows.ENERGY])
    assert busy is not None
    assert energy is not None
    assert (busy.mean, energy.total, energy.mean) == pytest.approx((0.4, 490, 245))


@pytest.mark.parametrize(
    ("a", "b"), [(4_000, 4_500), (-2_000, 1_000), (19_000, 25_000), (30_000, 31_000)],
    ids=["shorter than ten windows", "begins before the samples", "ends after them", "not covered"],
)  # fmt: skip
def test_an_execution_that_samples_do_not_resolve_is_not_described_by_them(a: int, b: int) -> None:
    assert not read_span(timeline(), during(a, b)).resolved


def test_a_source_that_was_not_measured_is_absent() -> None:
    own = read_span(timeline(without=(rows.ENERGY,)), during(4_000, 5_000))
    assert own.get([rows.ENERGY]) is None
    assert rows.ENERGY not in own.readings
    assert own.get([rows.UTILIZATION, rows.GRAPHICS]) is not None


def test_evidence_of_an_execution_holds_ratios_of_what_was_measured_and_nothing_else() -> None:
    source = timeline()
    evidence = span_evidence(source, read_span(source, during(4_000, 5_000)), 0.4)
    assert evidence.basis == "counters"
    assert dict(evidence.values) == {
        "device_busy": 0.4,
        "busy": pytest.approx(0.8),
        "sm": pytest.approx(0.76),
        "dram": pytest.approx(0.6),
        "fp32": pytest.approx(0.15),
        "power": pytest.approx(0.8),
        "clock": pytest.approx(0.95),
        "pcie": pytest.approx(0.25),
        "staged": 1.0,
        "both_ways": 0.0,
        "uneven": pytest.approx(0.0, abs=1e-6),
    }
    assert (evidence.n, evidence.coverage) == (10, 1.0)


def test_the_busier_way_over_all_nvlinks_is_a_share_of_what_they_carry_if_that_is_known() -> None:
    for device, expected in ((replace(DEVICE, nvlink_bytes_per_s=400_000_000_000), 0.25), (DEVICE, None)):
        source = timeline(device=device)
        for i in range(200):
            end = T0 + (i + 1) * 100 * MS
            sent = i * 10_000_000_000 // 1024
            source.append([Sample(rows.NVLINK_TX, end, end, sent), Sample(rows.NVLINK_RX, end, end, sent // 2)])
        evidence = span_evidence(source, read_span(source, during(4_000, 5_000)), None)
        assert evidence.get("nvlink") == (None if expected is None else pytest.approx(expected, rel=1e-3))


def test_the_reason_that_held_the_clocks_down_longest_is_told_and_none_without_counters() -> None:
    source = timeline()
    assert span_evidence(source, read_span(source, during(4_000, 5_000)), None).get("throttled") is None
    for i in range(200):
        end = T0 + (i + 1) * 100 * MS
        source.append(
            [Sample(rows.THROTTLES[0], end, end, i * 30 * MS), Sample(rows.THROTTLES[2], end, end, i * 10 * MS)]
        )
    throttled = span_evidence(source, read_span(source, during(4_000, 5_000)), None).get("throttled")
    assert throttled == pytest.approx(0.3, abs=0.01)


def test_a_regions_share_of_throttling_is_that_of_its_own_time() -> None:
    source = timeline()
    held = np.cumsum([90 * MS if i // 10 % 2 == 0 else 10 * MS for i in range(200)]).tolist()
    for i, total in enumerate(held):
        end = T0 + (i + 1) * 100 * MS
        source.append([Sample(rows.THROTTLES[0], end, end, total), Sample(rows.THROTTLES[2], end, end, 0)])
    summary = summarise(pool(source), "work", Durations(calls=10), interval_source="host")
    # The device's clocks were held down for half of the time: by 90 % while the region ran, by 10 % in the pauses.
    assert summary.throttled == {"sw_power_cap": pytest.approx(0.9, abs=0.01), "hw_thermal": 0.0}
    assert summary.evidence.get("throttled") == pytest.approx(0.9, abs=0.01)
    assert summarise(pool(timeline()), "work", Durations(), interval_source="host").throttled == {}


def test_noise_on_a_device_that_does_nothing_is_known_to_be_next_to_nothing() -> None:
    source, rng = Timeline(DEVICE, capacity=1_000), np.random.default_rng(3)
    for i in range(200):
        start, end = T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS
        noise = 40 if rng.random() < 0.05 else 0
        source.append([Sample(rows.GRAPHICS, start, end, noise), Sample(rows.DRAM, start, end, 0)])
    summary = summarise(pool(source), "work", Durations(calls=10), interval_source="host")
    assert 0.0 < known(summary.evidence.get("busy")) < 0.01
    assert 0.0 < known(summary.evidence.get("device_busy")) < 0.01


def known(value: float | None) -> float:
    assert value is not None
    return value


def test_evidence_without_a_reading_of_busy_time_says_why() -> None:
    source = timeline(without=(rows.GRAPHICS,))
    evidence = span_evidence(source, read_span(source, during(4_000, 5_000)), None)
    assert ("busy" in evidence.values, evidence.reason) == (False, "no samples cover the region")


@pytest.mark.parametrize(
    ("without", "device", "missing"),
    [
        ((rows.POWER_LIMIT,), DEVICE, "power"),
        ((rows.CLOCK_SM,), DEVICE, "clock"),
        ((), replace(DEVICE, clock_max_hz=None), "clock"),
        ((), replace(DEVICE, pcie_bytes_per_s=None), "pcie"),
        ((rows.PCIE_RX, rows.PCIE_TX), DEVICE, "pcie"),
        ((rows.DRAM,), DEVICE, "dram"),
    ],
)
def test_a_share_of_an_unknown_ceiling_is_absent(without: tuple[Signal, ...], device: Device, missing: str) -> None:
    source = timeline(device=device, without=without)
    evidence = span_evidence(source, read_span(source, during(4_000, 5_000)), None)
    assert missing not in evidence.values
    assert "busy" in evidence.values


def test_without_dram_activity_evidence_is_coarse() -> None:
    source = timeline(without=(rows.DRAM,))
    assert span_evidence(source, read_span(source, during(4_000, 5_000)), None).basis == "coarse"


# ---------------------------------------------------------------------- a region


def test_a_region_is_summed_up_over_its_executions() -> None:
    durations = Durations(calls=10, total_s=10.0)
    summary = summarise(pool(timeline()), "work", durations, interval_source="host")
    assert (summary.region, summary.executions, summary.interval_s) == ("work", 10, 10.0)
    assert (summary.busy_source, summary.energy_source, summary.reason) == ("graphics", "energy", "")
    assert summary.busy == pytest.approx(0.8, rel=0.02)
    assert summary.power_w == pytest.approx(400, rel=0.02)
    assert summary.busy_s == pytest.approx(0.8 * 10, rel=0.05)
    assert summary.energy_j == pytest.approx(400 * 10, rel=0.05)
    # A reading holds back to the one before it, so the one just after the last execution counts.
    assert summary.memory_max == (1000 + 190) << 20
    assert summary.durations is durations
    dram = summary.rates["dram"]
    assert dram.value == pytest.approx(0.6, rel=0.02)
    assert 0 < dram.half_width < 0.1


def test_evidence_of_a_region_tells_how_much_of_the_time_was_covered() -> None:
    evidence = summarise(pool(timeline()), "work", Durations(), interval_source="host").evidence
    assert evidence.coverage == pytest.approx(1.0, abs=0.011)
    assert evidence.values["busy"] == pytest.approx(0.8, rel=0.02)
    assert evidence.values["device_busy"] == pytest.approx(0.4, rel=0.03)
    assert evidence.values["pcie"] == pytest.approx(0.25, rel=0.03)
    assert evidence.half_width is not None


def test_what_was_not_measured_of_a_region_is_none_with_a_reason() -> None:
    nothing = Pool(Timeline(DEVICE), start_ns=T0)
    nothing.advance([DeviceExecution(1, None, "work", T0, T0 + NS_PER_S)], T0 + NS_PER_S)
    summary = summarise(nothing, "work", Durations(), interval_source="host")
    assert (summary.busy, summary.busy_s, summary.power_w, summary.energy_j, summary.memory_max) == (None,) * 5
    assert (summary.busy_half_width, summary.power_half_width, summary.rates) == (None, None, {})
    assert (summary.reason, summary.busy_source) == ("the device reports no utilisation", "")
    assert "busy" not in summary.evidence.values


def test_a_region_whose_samples_have_not_come_yet_says_so() -> None:
    early = Pool(Timeline(DEVICE, [rows.GRAPHICS, rows.ENERGY]), start_ns=T0)
    early.advance([DeviceExecution(1, None, "work", T0, T0 + NS_PER_S)], T0 + NS_PER_S)
    summary = summarise(early, "work", Durations(), interval_source="host")
    assert (summary.busy, summary.busy_s, summary.energy_j) == (None, None, None)
    assert summary.reason == "no samples yet"


def test_rates_that_cannot_be_told_are_none_with_the_reason() -> None:
    source = Timeline(DEVICE, capacity=1000)
    for i in range(200):
        source.append([Sample(rows.GRAPHICS, T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS, 5000)])
    locked = Pool(source, start_ns=T0)
    loop = [
        DeviceExecution((i, part), None, part, T0 + (50 * i + at) * MS, T0 + (50 * i + at + 20) * MS)
        for i in range(400)
        for part, at in (("a", 0), ("b", 25))
    ]
    locked.advance(loop, T0 + 20 * NS_PER_S)
    summary = summarise(locked, "a", Durations(), interval_source="host")
    assert (summary.busy, summary.busy_half_width) == (None, None)
    assert "not identifiable" in summary.reason
    assert summary.evidence.reason == summary.reason
    assert "graphics" not in summary.rates


@pytest.mark.parametrize(
    ("power_w", "half_width", "total_s", "told"),
    [(400.0, 2.0, 20.0, False), (425.0, 16.0, 20.0, False), (440.0, 2.0, 20.0, True), (440.0, 2.0, 5.0, False)],
)
def test_an_unmixed_power_that_contradicts_the_counter_says_so(
    power_w: float, half_width: float, total_s: float, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = pool(timeline())
    pooled = replace(
        source.pooled("work"),
        rates={rows.ENERGY: Rate(power_w, half_width, 100)},
        inclusive_s=20.0,
        metered=Metered(4, total_s, 400 * total_s, 10 * total_s),
    )
    monkeypatch.setattr(source, "pooled", lambda _: pooled)
    summary = summarise(source, "work", Durations(), interval_source="host")
    assert summary.metered == pooled.metered
    assert bool(summary.contradiction) is told
    assert not told or summary.contradiction.startswith("440 W ±2 by unmixing contradicts 400 W ±10")


def test_a_region_that_launched_nothing_used_nothing() -> None:
    idle = pool(timeline())
    idle.count("empty")
    summary = summarise(idle, "empty", Durations(calls=1), interval_source="device")
    assert (summary.busy, summary.busy_s, summary.energy_j, summary.reason) == (0.0, 0.0, 0.0, "")
    assert summary.power_w is None


def test_a_host_interval_without_active_time_is_not_taken_for_a_launch_of_nothing() -> None:
    unknown = pool(timeline())
    unknown.count("empty")
    summary = summarise(unknown, "empty", Durations(calls=1), interval_source="host")
    assert (summary.busy, summary.energy_j) == (None, None)
    assert summary.reason


def test_a_rate_that_noise_lifts_over_the_ceiling_is_evidence_of_the_ceiling() -> None:
    rng = np.random.default_rng(0)
    noisy = Timeline(DEVICE, capacity=10_000)
    for i in range(200):
        value = 10_000 + int(abs(rng.normal(0, 50))) if i // 10 % 2 == 0 else 0
        noisy.append([Sample(rows.GRAPHICS, T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS, value)])
    evidence = summarise(pool(noisy), "work", Durations(), interval_source="host").evidence
    assert evidence.values["busy"] <= 1.0


def test_a_pipe_that_is_counted_and_has_no_rate_may_be_as_active_as_its_interval_allows() -> None:
    source = timeline()
    told = pool(source)
    pooled = told.pooled("work")

    def highest(rate: Rate | None) -> dict[str, float]:
        rates = {signal: own for signal, own in pooled.rates.items() if signal is not rows.FP32}
        rates |= {} if rate is None else {rows.FP32: rate}
        return dict(pooled_evidence(told, replace(pooled, rates=rates)).highest)

    assert highest(Rate(0.2, 0.05, 100)) == {}
    assert highest(Rate(0.2, 0.15, 100, "not identifiable yet")) == {"fp32": pytest.approx(0.35)}
    assert highest(Rate(0.2, math.inf, 3, "too few samples (3)")) == {"fp32": 1.0}
    assert highest(None) == {"fp32": 1.0}, "and those that this device does not count are absent"


def test_a_pipe_without_a_reading_in_an_execution_may_be_as_active_as_it_can() -> None:
    source = timeline()
    reading = read_span(source, during(4_000, 5_000))
    assert span_evidence(source, reading, None).highest == {}
    lost = replace(reading, readings={s: own for s, own in reading.readings.items() if s is not rows.FP32})
    assert span_evidence(source, lost, None).highest == {"fp32": 1.0}

"""What is said beside signals: who is who, XID errors, the sampler's own state; what stays from moment to moment."""

from dataclasses import replace
from typing import Any

import pytest
from support.exporter import IDENTITY, FakeDriver, read_all, scrape, series, step_for

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.metrics import BUSY, DEVICE_INFO, DRIVER_INFO, STATUS
from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.catalogue.self_metrics import (
    LAG,
    ROUNDS,
    SELF_METRICS,
    STALE,
    XID_ANY,
    XID_ERRORS,
    XID_LAST,
    XID_LAST_TIME,
)
from gpu_profile.catalogue.xids import XIDS
from gpu_profile.history.ledger import Ledger
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.readings.readings import Identity, MetricReading, readings

A = Device("GPU-a", index=0, name="NVIDIA A", memory_bytes=80 << 30)
MIG = Device("MIG-c", parent="GPU-a", kind=DeviceKind.MIG, index=0, name="NVIDIA A MIG 1g", memory_bytes=10 << 30)
VALUES: dict[Signal, int] = {rows.POWER: 100_000, rows.UTILIZATION: 50, rows.ENERGY: 1, rows.MEMORY_USED: 2}


def node(*devices: Device, values: dict[Signal, int] = VALUES) -> tuple[Sampler, FakeClock, FakeDriver]:
    clock = FakeClock()
    driver = FakeDriver(clock, devices or (A,), dict(values))
    sampler = Sampler(lambda: driver, clock=clock, retention_s=60)
    step_for(sampler, clock, 2)
    return sampler, clock, driver


def values(found: list[MetricReading], name: str) -> dict[tuple[str, str], float]:
    return {
        (r.attributes.get("hw.id", ""), r.attributes.get("nvidia.gpu.xid", "")): r.value
        for r in found
        if r.metric.otel == name
    }


def test_a_device_is_told_with_all_that_is_known_of_it_and_nothing_else() -> None:
    mig = replace(MIG, mig_profile="1g.10gb", mig_instance=7, minor=0, compute_capability="9.0")
    gpu = replace(A, vbios_version="96.00", part_number="692-2G", pci_bus_id="00000000:18:00.0", minor=0)
    sampler, clock, _ = node(gpu, mig)
    first, second = (r.attributes for r in read_all(sampler, clock) if r.metric is DEVICE_INFO)
    sources = {"hw.driver_version": "1.2.3", "busy.source": "utilization", "energy.source": "energy"}
    assert first == gpu.identity | sources
    assert second == mig.identity | sources
    assert (second["mig.profile"], second["mig.instance"], second["index"]) == ("1g.10gb", "7", "0")
    assert (first["hw.firmware_version"], first["board.part_number"]) == ("96.00", "692-2G")
    assert "mig.instance" not in first
    assert set(first) | set(second) <= set(DEVICE_INFO.labels)


def energies(sampler: Sampler, clock: FakeClock) -> tuple[list[float], set[str | None]]:
    """The devices' joules, and where they come from."""
    found = read_all(sampler, clock)
    sources = {r.attributes.get("energy.source") for r in found if r.metric is DEVICE_INFO}
    return [r.value for r in found if r.metric.otel == "hw.energy"], sources


def test_readings_of_a_device_that_is_read_seldom_live_for_three_of_its_own_periods() -> None:
    sampler, clock, driver = node()
    sampler.states["GPU-a"].period_s = 1.5
    driver.frozen = set(VALUES)
    told = []
    for _ in range(6):
        step_for(sampler, clock, 1)
        told.append({"hw.power", "gpu_profile.busy"} <= {reading.metric.otel for reading in read_all(sampler, clock)})
    assert told == [True] * 4 + [False] * 2


def test_a_counter_that_never_moves_is_none_and_energy_is_the_integral_of_power() -> None:
    sampler, clock, driver = node(values={rows.POWER_AVERAGE: 100_000, rows.ENERGY: 7_000})
    assert energies(sampler, clock) == ([7.0], {"energy"})
    step_for(sampler, clock, 8)
    (first,), sources = energies(sampler, clock)
    assert sources == {"power_average"}
    assert first == pytest.approx(1000, abs=21)
    step_for(sampler, clock, 10)
    assert energies(sampler, clock)[0] == [pytest.approx(first + 1000, abs=11)]
    driver.values[rows.ENERGY] = 8_000  # it moves after all
    step_for(sampler, clock, 1)
    assert energies(sampler, clock) == ([8.0], {"energy"})


def test_energy_that_the_device_does_not_count_is_the_integral_of_its_power_and_says_so() -> None:
    sampler, clock, driver = node(values={rows.POWER_AVERAGE: 100_000, rows.POWER: 300_000})
    step_for(sampler, clock, 8)
    (first,), sources = energies(sampler, clock)
    assert sources == {"power_average"}
    assert first == pytest.approx(1000, abs=21)
    driver.lost = {"GPU-a"}
    step_for(sampler, clock, 10)
    assert energies(sampler, clock) == ([], {"power_average"})
    driver.lost = set()
    driver.last.clear()  # the first window after a loss is short
    driver.values[rows.POWER_AVERAGE] = 200_000
    step_for(sampler, clock, 12)
    (second,), _ = energies(sampler, clock)
    assert first < second == pytest.approx(first + 2200, abs=250)
    driver.frozen = {rows.POWER_AVERAGE}
    step_for(sampler, clock, 4)
    assert energies(sampler, clock)[0] == []


def test_energy_is_never_integrated_where_the_device_counts_it_nor_made_up_where_it_has_no_power() -> None:
    sampler, clock, driver = node(values={rows.POWER_AVERAGE: 100_000, rows.ENERGY: 7_000})
    assert energies(sampler, clock) == ([7.0], {"energy"})
    driver.frozen = {rows.ENERGY}
    step_for(sampler, clock, 4)
    assert energies(sampler, clock) == ([], {"energy"})
    assert energies(*node(values={rows.UTILIZATION: 50})[:2]) == ([], {None})


def test_versions_are_told_while_the_driver_tells_them() -> None:
    sampler, clock, _ = node()

    def told(identity: Identity) -> list[dict[str, str]]:
        found = readings(sampler, identity, clock.now_ns())
        return [dict(r.attributes) for r in found if r.metric is DRIVER_INFO]

    versions = (("cuda.version", "13.0"), ("nvml.version", "13.580"))
    assert told(IDENTITY._replace(versions=versions)) == [{"hw.driver_version": "1.2.3", **dict(versions)}]
    assert told(IDENTITY) == [{"hw.driver_version": "1.2.3"}]
    assert told(IDENTITY._replace(driver_version="")) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "ok"),
        ({rows.RECOVERY_ACTION: 0, rows.REMAP_PENDING: 0, rows.REMAP_FAILURE: 0, rows.ECC_UNCORRECTED: 0}, "ok"),
        ({rows.ECC_UNCORRECTED: 1}, "degraded"),
        ({rows.RECOVERY_ACTION: 3}, "degraded"),
        ({rows.RECOVERY_ACTION: 4}, "degraded"),
        ({rows.RECOVERY_ACTION: 5}, "degraded"),
        ({rows.RECOVERY_ACTION: 99}, "degraded"),
        ({rows.REMAP_PENDING: 1}, "predicted_failure"),
        ({rows.REMAP_FAILURE: 1, rows.ECC_UNCORRECTED: 7, rows.RECOVERY_ACTION: 4}, "predicted_failure"),
        ({rows.RECOVERY_ACTION: 1}, "failed"),
        ({rows.RECOVERY_ACTION: 2, rows.REMAP_PENDING: 1}, "failed"),
        ({rows.RECOVERY_ACTION: 6}, "failed"),
        ({rows.RECOVERY_ACTION: 7}, "failed"),
    ],
)
def test_the_state_of_a_device_is_the_worst_that_it_tells(values: dict[Signal, int], expected: str) -> None:
    sampler, clock, driver = node()
    driver.values.update(values)
    sampler.states.clear()
    step_for(sampler, clock, 11)
    assert state(sampler, clock) == expected
    driver.lost = {"GPU-a"}
    step_for(sampler, clock, 0.3)
    assert state(sampler, clock) == "failed"


def test_a_state_is_not_kept_when_what_it_came_from_is_told_no_more() -> None:
    sampler, clock, driver = node()
    driver.values[rows.RECOVERY_ACTION] = 1
    sampler.states.clear()
    step_for(sampler, clock, 6)
    assert state(sampler, clock) == "failed"
    driver.frozen = {rows.RECOVERY_ACTION}
    step_for(sampler, clock, 6)
    assert state(sampler, clock) == "ok"


def state(sampler: Sampler, clock: FakeClock) -> str:
    """The one state that is 1."""
    (found,) = (r.attributes["hw.state"] for r in read_all(sampler, clock) if r.metric is STATUS and r.value)
    return found


def test_errors_of_any_code_are_counted_from_0_on_and_those_of_a_code_from_its_first() -> None:
    sampler, clock, _ = node()
    found = read_all(sampler, clock)
    assert values(found, XID_ANY.otel) == {("GPU-a", ""): 0}
    assert values(found, XID_ERRORS.otel) == values(found, XID_LAST_TIME.otel) == {}
    assert values(found, XID_LAST.otel) == {("GPU-a", ""): 0}  # which dcgm-exporter's names need
    assert not any("xid" in name and "any" not in name for name in series(scrape(sampler, clock)))


def test_xid_errors_are_counted_by_code_with_the_last_one_and_its_time() -> None:
    sampler, clock, _ = node()
    state = sampler.states["GPU-a"]
    state.xids.update({79: 1, 999: 2})
    state.last_xid = (79, 1_700_000_000_500_000_000)
    found = read_all(sampler, clock)
    counts = values(found, XID_ERRORS.otel)
    assert counts == {("GPU-a", "79"): 1, ("GPU-a", "999"): 2}
    assert values(found, XID_ANY.otel) == {("GPU-a", ""): 3}
    assert values(found, XID_LAST.otel) == {("GPU-a", "79"): 79}
    assert values(found, XID_LAST_TIME.otel) == {("GPU-a", ""): 1_700_000_000.5}


def test_a_lost_gpus_xid_errors_are_still_told() -> None:
    sampler, clock, driver = node()
    sampler.states["GPU-a"].xids[79] += 1
    driver.lost = {"GPU-a"}
    step_for(sampler, clock, 0.3)
    found = read_all(sampler, clock)
    assert values(found, XID_ERRORS.otel)["GPU-a", "79"] == 1
    assert values(found, rows.POWER.otel) == {}


def test_a_mig_instance_has_no_xid_series_of_its_own_until_it_has_an_error() -> None:
    sampler, clock, _ = node(A, MIG)
    assert {device for device, _ in values(read_all(sampler, clock), XID_ANY.otel)} == {"GPU-a"}
    sampler.states["MIG-c"].xids[94] += 1
    found = read_all(sampler, clock)
    assert values(found, XID_ERRORS.otel) == {("MIG-c", "94"): 1}
    assert values(found, XID_ANY.otel) == {("GPU-a", ""): 0, ("MIG-c", ""): 1}


def test_a_driver_that_never_hears_of_xid_errors_says_nothing_of_them() -> None:
    sampler, clock, _ = node()
    found = list(readings(sampler, IDENTITY._replace(driver="smi"), clock.now_ns()))
    assert not any(r.metric in (XID_ANY, XID_ERRORS, XID_LAST) for r in found)


def test_no_xid_code_is_listed_twice_and_each_has_a_meaning() -> None:
    assert len({xid.code for xid in XIDS}) == len(XIDS)
    assert all(xid.meaning and not xid.meaning.endswith(".") for xid in XIDS)


def test_signals_that_fell_silent_are_counted() -> None:
    sampler, clock, driver = node()
    assert values(read_all(sampler, clock), STALE.otel) == {("GPU-a", ""): 0}
    driver.frozen = {rows.POWER, rows.UTILIZATION}
    step_for(sampler, clock, 3)
    assert values(read_all(sampler, clock), STALE.otel) == {("GPU-a", ""): 2}


def test_rounds_and_lag_of_the_sampler_are_told() -> None:
    sampler, clock, _ = node()
    found = read_all(sampler, clock)
    assert values(found, ROUNDS.otel)["", ""] == sampler.stats.rounds > 10
    sampler.stats.late_ns = 20_000_000
    assert values(read_all(sampler, clock), LAG.otel) == {("", ""): 0.02}


def test_attributes_are_the_same_objects_at_every_moment() -> None:
    sampler, clock, _ = node(A, MIG)
    before = read_all(sampler, clock)
    step_for(sampler, clock, 1)
    after = read_all(sampler, clock)
    assert [r.metric.otel for r in before] == [r.metric.otel for r in after]
    assert all(a.attributes is b.attributes for a, b in zip(before, after, strict=True))


def test_what_the_exporter_says_of_itself_is_never_called_hw() -> None:
    assert all(metric.otel.startswith(("gpu_profile.", "nvidia.gpu.")) for metric in SELF_METRICS)
    assert len({metric.prometheus for metric in SELF_METRICS}) == len(SELF_METRICS)


@pytest.mark.parametrize("comes", [True, False])
def test_the_busy_counter_waits_for_a_better_source_and_not_for_ever(comes: bool, clock: FakeClock) -> None:
    driver = FakeDriver(clock, (A,), {**VALUES, rows.GRAPHICS: 5_000}, frozen={rows.GRAPHICS})
    sampler = Sampler(lambda: driver, clock=clock, retention_s=60)
    step_for(sampler, clock, 0.1)
    state: Any = sampler.states[A.uuid]
    state.timeline = Ledger((rows.GRAPHICS, rows.UTILIZATION))  # as the exporter's own process keeps it
    seen: list[float] = []
    for _ in range(60):
        step_for(sampler, clock, 0.1)
        if comes and clock.now_ns() - driver.start_ns > 1_000_000_000:
            driver.frozen.clear()
        seen += [r.value for r in read_all(sampler, clock) if r.metric is BUSY]
    # From the one source or the other, but never first from one and then, with less, from the other.
    assert seen == sorted(seen)
    assert len(seen) in (range(45, 52) if comes else range(5, 13))


def test_a_device_with_one_source_of_busy_time_waits_for_none() -> None:
    sampler, clock, _ = node()
    assert [r for r in read_all(sampler, clock) if r.metric is BUSY]

"""How many series each model of GPU brings, and that what is read of it is what the simulation says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_profile.catalogue import ALL_GROUPS, DEFAULT_GROUPS, SIGNALS, Group, Kind, Tier, signal
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.driver.simulated import SimulatedQueue, Work
from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.driver.simulated.nvml_board import THRESHOLDS
from gpu_profile.testing import FakeClock
from gpu_profile.units import MIB

Install = Callable[..., Path]
#: Signals by default, and with every group on. A change here is a change of what a node costs its Prometheus.
COUNTS = {
    "H200 SXM": (36, 236),
    "H100 SXM": (36, 236),
    "A100 80 SXM": (32, 164),
    "A10G": (25, 83),
    "L4": (25, 88),
    "GB200": (36, 286),
    "GB10": (18, 52),
    "RTX 4090": (19, 58),
}
#: A slice of an H100: memory and activity.
SLICE = (5, 14)


def scenario(model: str, more: str = "") -> str:
    return f'[[device]]\nmodel = "{model}"\n{more}'


def read(driver: NvmlDriver, device: Device, clock: FakeClock) -> dict[str, Sample]:
    """Everything once, two GPM windows included."""
    driver.boundary(device)
    clock.advance(0.2)
    samples = [one for tier in (Tier.FAST, Tier.SLOW, Tier.RARE) for one in driver.read(device, tier)]
    samples += [*driver.drain(device), *driver.boundary(device)]
    return {one.signal.key: one for one in samples}


def available(driver: NvmlDriver, device: Device) -> set[str]:
    return {row.key for row, one in driver.capabilities(device).items() if one.available}


def test_every_model_is_counted() -> None:
    assert set(COUNTS) == set(MODELS)


@pytest.mark.parametrize(("model", "counts"), COUNTS.items())
def test_a_model_brings_as_many_signals_as_it_always_did(
    install: Install, clock: FakeClock, model: str, counts: tuple[int, int]
) -> None:
    install(scenario(model))
    clock.advance(2)
    found = []
    for groups in (DEFAULT_GROUPS, ALL_GROUPS):
        driver = NvmlDriver(clock=clock, groups=groups)
        device = driver.devices()[0]
        samples = read(driver, device, clock)
        assert set(samples) == available(driver, device)
        assert driver.errors == {}
        found.append(len(samples))
        driver.close()
    assert tuple(found) == counts


def test_a_slice_brings_as_many_signals_as_it_always_did(install: Install, clock: FakeClock) -> None:
    install(scenario("H100 SXM", '[[device.mig]]\nprofile = "3g.40gb"\n'))
    clock.advance(2)
    found = []
    for groups in (DEFAULT_GROUPS, ALL_GROUPS):
        driver = NvmlDriver(clock=clock, groups=groups)
        _, mig = driver.devices()
        samples = read(driver, mig, clock)
        assert set(samples) == available(driver, mig)
        found.append(len(samples))
        driver.close()
    assert tuple(found) == SLICE
    assert (mig.mig_profile, mig.mig_instance, mig.compute_capability) == ("3g.40gb", 1, "9.0")


def test_slices_have_the_places_that_a_dra_driver_names(install: Install, clock: FakeClock) -> None:
    profiles = ("3g.40gb", "1g.10gb", "2g.20gb")
    install(scenario("H100 SXM", "".join(f'[[device.mig]]\nprofile = "{each}"\n' for each in profiles)))
    driver = NvmlDriver(clock=clock)
    assert [each.mig_placement for each in driver.devices()] == ["", "9-0", "19-4", "14-5"]
    driver.close()


@pytest.mark.parametrize("model", MODELS)
def test_what_is_read_is_what_the_model_says(install: Install, clock: FakeClock, model: str) -> None:
    directory, truth = install(scenario(model, "memory_used_mib = 1000\n")), MODELS[model]
    driver = NvmlDriver(clock=clock, groups=ALL_GROUPS)
    device = driver.devices()[0]
    with SimulatedQueue(directory, clock=clock) as queue:
        queue.launch(Work(seconds=3.0, pcie_bytes=5e9))
        clock.advance(2)
        samples = read(driver, device, clock)
    values = {key: one.signal.base(one.value) for key, one in samples.items()}
    expected = {
        "clock_sm": truth.sm_clock_mhz * 1e6,
        "clock_memory_max": truth.memory_clock_mhz * 1e6,
        "clock_graphics_max": truth.sm_clock_mhz * 1e6,
        "power_limit": truth.tdp_w,
        "power_limit_default": truth.tdp_w,
        "power_limit_max": truth.tdp_w,
        "pcie_link_generation": truth.pcie_generation,
        "pcie_link_width": 16,
        "pstate": 0,
        "utilization": 1.0,
        "temperature_limit_shutdown": THRESHOLDS[0],
        "recovery_action": 0,
    }
    assert {key: values[key] for key in expected} == pytest.approx(expected)
    if not truth.unified_memory:
        assert values["memory_used"] == 1000 * MIB
        memory = values["memory_used"] + values["memory_free"] + values["memory_reserved"]
        assert memory == device.memory_bytes == truth.memory_mib * MIB
    assert ("memory_used" in values) == ("bar1_total" in values) == (not truth.unified_memory)
    assert ("nvlink_rx" in values) == (truth.nvlinks > 0)
    assert sum(key.startswith("nvlink_") and key.endswith("_state") for key in values) == truth.nvlinks
    assert sum(key.startswith("c2c_") and key.endswith("_state") for key in values) == truth.c2c_links
    assert ("fabric_state" in values) == (values.get("fabric_health_summary") == 1) == truth.fabric
    assert (values.get("spare_rows_max"), values.get("spare_rows_none")) == ((2560, 0) if truth.ecc else (None, None))
    assert values["addressing_mode"] == (2 if truth.c2c_links else 0)
    assert (values["confidential_compute"], "power_smoothing" in values) == (0, truth.c2c_links > 0)
    assert ("tensor_stall" in values) == ("remapped_banks_pending" in values) == (truth.c2c_links > 0)
    assert ("fan" in values) == truth.fan
    assert ("ecc_uncorrected" in values) == ("remap_failure" in values) == truth.ecc
    assert ("temperature_memory" in values) == truth.memory_temperature
    assert ("jpeg" in values) == truth.jpeg
    assert ("sm" in values) == ("pcie_rx_rate" in values) == truth.gpm
    if truth.temperature_margin:
        assert values["temperature_margin"] == THRESHOLDS[1] - values["temperature"]
        assert values["temperature_margin_limit_shutdown"] == THRESHOLDS[1] - THRESHOLDS[0]
    if truth.gpm:
        assert values["pcie_rx_rate"] == pytest.approx(5e9 / 3, rel=1e-3)
    if truth.c2c_links:
        assert values["power_module"] == pytest.approx(values["power"] + 120)


def test_at_idle_a_board_that_saves_power_lowers_its_link_and_its_state(install: Install, clock: FakeClock) -> None:
    install(scenario("A10G") + scenario("H100 SXM"))
    clock.advance(2)
    driver = NvmlDriver(clock=clock, groups=[Group.CORE_DETAIL, Group.PCIE_DETAIL])
    a10g, h100 = (read(driver, device, clock) for device in driver.devices())
    assert (a10g["pcie_link_generation"].value, a10g["pcie_link_generation_max"].value) == (1, 4)
    assert (h100["pcie_link_generation"].value, h100["pcie_link_generation_max"].value) == (5, 5)
    assert (a10g["pstate"].value, h100["pstate"].value) == (8, 0)


def test_throttle_time_is_integrated_where_a_driver_does_not_count_it(install: Install, clock: FakeClock) -> None:
    lacking = 'unsupported = ["NVML_FI_DEV_PERF_POLICY_POWER"]\n'
    directory = install(scenario("H100 SXM") + scenario("H100 SXM", lacking))
    driver = NvmlDriver(clock=clock)
    counted, seen = driver.devices()
    totals = []
    with SimulatedQueue(directory, 0, clock=clock) as first, SimulatedQueue(directory, 1, clock=clock) as second:
        for queue in (first, second):
            queue.launch(Work(flops=989.4e12 * 3, bytes=12e12, seconds=3.0))
        for _ in range(50):
            clock.advance(0.1)
            totals = [
                one.value
                for device, key in ((counted, "throttle_sw_power_cap"), (seen, "throttle_seen_sw_power_cap"))
                for one in driver.read(device, Tier.FAST)
                if one.signal is signal(key)
            ]
    assert totals[0] == pytest.approx(3e9, rel=0.01)
    assert totals[1] == pytest.approx(totals[0], rel=0.1)


def test_a_signal_is_read_in_the_tier_that_its_row_says(install: Install, clock: FakeClock) -> None:
    install(scenario("GB200"))
    clock.advance(2)
    driver = NvmlDriver(clock=clock, groups=ALL_GROUPS)
    device = driver.devices()[0]
    for tier in (Tier.FAST, Tier.SLOW, Tier.RARE):
        assert {one.signal.tier for one in driver.read(device, tier)} == {tier}


def test_the_fast_tier_holds_only_what_is_lost_between_two_reads() -> None:
    assert all(row.kind is not Kind.INSTANT for row in SIGNALS if row.tier is Tier.FAST)
    assert {row.group for row in SIGNALS if row.tier is Tier.FAST} == {
        Group.CORE,
        Group.CORE_DETAIL,
        Group.PCIE,
        Group.NVLINK,
    }

"""Which time a polled reading covers."""

from collections.abc import Sequence
from typing import Any

import pynvml
import pytest

from gpu_profile.catalogue import Group, Kind, Tier, signal
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.catalogue.signals import POWER, UTILIZATION
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.testing import FakeClock

MS = 1_000_000


def _of(samples: Sequence[Sample], key: str) -> Sample:
    return next(sample for sample in samples if sample.signal.key == key)


@pytest.mark.parametrize("key", ["utilization", "memory_controller", "power", "power_average"])
def test_the_first_window_mean_covers_its_window_and_the_next_joins_on(stub: Any, clock: FakeClock, key: str) -> None:
    driver = NvmlDriver(clock=clock, groups=[Group.CORE_DETAIL])
    device = driver.devices()[0]
    first = _of(driver.read(device, Tier.FAST), key)
    clock.advance(0.1)
    second = _of(driver.read(device, Tier.FAST), key)
    assert first.t_end_ns - first.t_start_ns == signal(key).window_ns
    assert (second.t_start_ns, second.t_end_ns) == (first.t_end_ns, clock.now_ns())


@pytest.mark.parametrize(
    ("key", "longest_ns"), [("utilization", 1000 * MS), ("power_average", 1000 * MS), ("power", 2 * POWER.refresh_ns)]
)
def test_a_reading_after_a_long_pause_covers_no_more_than_it_can_know(
    clock: FakeClock, key: str, longest_ns: int, driver: NvmlDriver, device: Device
) -> None:
    driver.read(device, Tier.FAST)
    clock.advance(30)
    late = _of(driver.read(device, Tier.FAST), key)
    assert late.t_end_ns - late.t_start_ns == longest_ns


def test_a_reading_that_the_driver_repeats_is_not_given_twice(stub: Any, clock: FakeClock, driver: NvmlDriver) -> None:
    stamp = clock.now_ns() // 1000
    field = pynvml.NVML_FI_DEV_POWER_INSTANT
    stub.gpus[0].fields[field] = (0, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 500_000, stamp)
    device = driver.devices()[0]
    assert _of(driver.read(device, Tier.FAST), "power").value == 500_000
    clock.advance(0.05)
    assert "power" not in {sample.signal.key for sample in driver.read(device, Tier.FAST)}


def test_a_clock_that_is_set_back_starts_the_coverage_anew(stub: Any, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    driver.read(device, Tier.FAST)
    earlier = FakeClock(clock.now_ns() - 3600 * 1000 * MS)
    driver._open[device.uuid]._clock = earlier
    sample = _of(driver.read(device, Tier.FAST), "utilization")
    assert sample.t_end_ns == earlier.now_ns()
    assert sample.t_end_ns - sample.t_start_ns == UTILIZATION.window_ns


def test_counters_and_instants_are_points_in_time(clock: FakeClock, driver: NvmlDriver, device: Device) -> None:
    samples = [*driver.read(device, Tier.FAST), *driver.read(device, Tier.SLOW)]
    points = [sample for sample in samples if sample.signal.kind is not Kind.WINDOW_MEAN]
    assert len(points) > 15
    assert all(sample.t_start_ns == sample.t_end_ns == clock.now_ns() for sample in points)


def test_the_slow_tier_gives_its_rows_in_their_quanta(stub: Any, driver: NvmlDriver, device: Device) -> None:
    driver.capabilities(device)
    stub.count.clear()
    values = {sample.signal.key: sample.value for sample in driver.read(device, Tier.SLOW)}
    assert values == {
        "encoder": 3,
        "decoder": 4,
        "jpeg": 5,
        "optical_flow": 6,
        "tensor_stall": 30,
        "memory_used": 5000,
        "memory_free": 4000,
        "memory_reserved": 600,
        "power_limit": 700_000,
        "temperature": 55,
        "temperature_memory": 61,
        "clock_sm": 1980,
        "clock_memory": 1980,
        "pstate": 2,
        "recovery_action": 4,
        "pcie_replays": 1094,
        "ecc_corrected": 1003,
        "ecc_uncorrected": 1004,
    }
    assert stub.count["nvmlDeviceGetMemoryInfo_v2"] == 1  # one call for both rows


def test_power_average_falls_back_on_the_older_call(stub: Any, clock: FakeClock) -> None:
    del stub.gpus[0].fields[pynvml.NVML_FI_DEV_POWER_AVERAGE]
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    assert _of(driver.read(device, Tier.FAST), "power_average").value == 351_000
    assert driver.capabilities(device)[signal("power_average")].available


def test_a_value_that_cannot_be_true_is_left_out_and_counted(stub: Any, driver: NvmlDriver) -> None:
    stub.gpus[0].rates = (4_000_000_000, 12)
    keys = {sample.signal.key for sample in driver.read(driver.devices()[0], Tier.FAST)}
    assert "utilization" not in keys
    assert "memory_controller" in keys
    assert driver.errors == {"IMPLAUSIBLE_VALUE": 1}


def test_no_signal_is_ever_asked_of_the_gpm_tier_by_read(driver: NvmlDriver) -> None:
    assert driver.read(driver.devices()[0], Tier.GPM) == []

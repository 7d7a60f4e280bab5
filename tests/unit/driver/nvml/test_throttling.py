"""Throttle time for drivers that lack a counter of it."""

from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.catalogue import Tier, signal
from gpu_profile.catalogue.samples import Device
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.driver.nvml.throttling import LONGEST_NS, ThrottleTimes
from gpu_profile.testing import FakeClock

MS = 1_000_000
THERMAL = 0x20
ROW = signal("throttle_seen_sw_thermal")
LACKING = ("SW_THERM_SLOWDOWN", "HW_THERM_SLOWDOWN", "HW_POWER_BRAKE_SLOWDOWN")
COUNTED = ("throttle_sw_thermal", "throttle_hw_thermal", "throttle_hw_power_brake")


def seen(samples: Any) -> dict[str, int]:
    return {one.signal.key: one.value for one in samples if one.signal.key.startswith("throttle_seen")}


@pytest.fixture
def older(stub: Any) -> Any:
    """A driver that has three of the five counters not."""
    for name in LACKING:
        del stub.gpus[0].fields[getattr(pynvml, f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{name}")]
    return stub


def test_a_driver_with_counters_is_never_asked_for_reasons(stub: Any, driver: NvmlDriver, device: Device) -> None:
    assert seen(driver.read(device, Tier.FAST)) == {}
    assert stub.count["nvmlDeviceGetCurrentClocksEventReasons"] == 0
    assert driver.capabilities(device)[ROW].reason == "not needed: the driver counts it"


@pytest.mark.parametrize(
    ("version", "first"),
    [
        (b"550.163.01", None),
        (b"570.211.01", None),
        (b"575.57.08", 251),
        (b"580.65.06", 251),
        (b"580.76.05", None),  # no header says
        (b"580.82.07", 269),
        (b"580.159.04", 269),
        (b"615.23", 269),
        (b"unreadable", None),
    ],
)
@pytest.mark.parametrize("of_the_binding", [251, 269])
def test_the_numbers_of_counters_are_the_drivers_not_the_bindings(
    stub: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, version: bytes, first: int | None, of_the_binding: int
) -> None:
    stub.driver_version = version
    wide, fields = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, stub.gpus[0].fields
    for i, name in enumerate(LACKING):
        del fields[getattr(pynvml, f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{name}")]
        monkeypatch.setattr(pynvml, f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{name}", of_the_binding + i)
    # Every number is answered: with another field's value, where it is not this driver's for these counters.
    for number in (251, 252, 253, 269, 270, 271):
        own = first is not None and first <= number < first + 3
        fields[number] = (0, wide, (number - first + 1) * MS if own and first is not None else 250_250, 0)
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    clock.advance(0.1)
    counted = {one.signal.key: one.value for one in driver.read(device, Tier.FAST) if one.signal.key in COUNTED}
    assert counted == ({} if first is None else dict(zip(COUNTED, (MS, 2 * MS, 3 * MS), strict=True)))
    assert len(seen(driver.read(device, Tier.FAST))) == (3 if first is None else 0)
    if first is None:
        assert driver.capabilities(device)[signal(COUNTED[0])].reason == "not known to this driver"


def test_time_that_was_counted_here_goes_on_when_the_device_is_opened_anew(
    older: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    older.gpus[0].reasons = THERMAL
    driver.read(device, Tier.FAST)
    clock.advance(0.1)
    assert seen(driver.read(device, Tier.FAST))[ROW.key] == 100 * MS
    driver._close_device(device.uuid)
    clock.advance(0.1)
    assert seen(driver.read(device, Tier.FAST))[ROW.key] == 100 * MS
    clock.advance(0.1)
    assert seen(driver.read(device, Tier.FAST))[ROW.key] == 200 * MS


def test_only_the_reasons_without_a_counter_are_integrated(older: Any, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    older.gpus[0].reasons = THERMAL | 0x4
    assert set(seen(driver.read(device, Tier.FAST)).values()) == {0}
    clock.advance(0.1)
    assert seen(driver.read(device, Tier.FAST)) == {
        "throttle_seen_sw_thermal": 100 * MS,
        "throttle_seen_hw_thermal": 0,
        "throttle_seen_hw_power_brake": 0,
    }
    capabilities = driver.capabilities(device)
    assert not capabilities[signal("throttle_sw_thermal")].available
    assert capabilities[signal("throttle_sw_power_cap")].available


@pytest.mark.parametrize("interval_s", [0.1, 1.9, 2.1, 5.0, 60.0])
def test_time_is_counted_at_any_interval_between_readings(interval_s: float) -> None:
    throttling, step = ThrottleTimes([(ROW, THERMAL)]), round(interval_s * 1000) * MS
    for n in range(12):
        (found,) = throttling.read(n * step, THERMAL)
    # The first of two long gaps may be a pause.
    assert found.value in (11 * step, 10 * step)
    (after,) = throttling.read(11 * step + 3600 * 1000 * MS, THERMAL)
    assert after.value == found.value


def test_a_pause_in_the_readings_is_not_counted_as_throttled(older: Any, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    older.gpus[0].reasons = THERMAL
    driver.read(device, Tier.FAST)
    clock.advance(60)
    assert seen(driver.read(device, Tier.FAST))["throttle_seen_sw_thermal"] == 0
    clock.advance(0.1)
    assert seen(driver.read(device, Tier.FAST))["throttle_seen_sw_thermal"] == 100 * MS


def test_a_driver_from_before_the_new_name_is_asked_by_the_old_one(older: Any, clock: FakeClock) -> None:
    del older.nvmlDeviceGetCurrentClocksEventReasons
    driver = NvmlDriver(clock=clock)
    assert len(seen(driver.read(driver.devices()[0], Tier.FAST))) == 3
    assert older.count["nvmlDeviceGetCurrentClocksThrottleReasons"] >= 1


def test_a_gpu_that_tells_neither_has_none_and_is_not_asked_again(older: Any, driver: NvmlDriver) -> None:
    older.code["nvmlDeviceGetCurrentClocksEventReasons"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    device = driver.devices()[0]
    assert seen(driver.read(device, Tier.FAST)) == {}
    asked = older.count["nvmlDeviceGetCurrentClocksEventReasons"]
    driver.read(device, Tier.FAST)
    assert older.count["nvmlDeviceGetCurrentClocksEventReasons"] == asked
    assert driver.capabilities(device)[ROW].reason == "not supported by this GPU"


def test_reasons_that_are_no_longer_told_are_not_asked_for_again(older: Any, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    driver.read(device, Tier.FAST)
    older.code["nvmlDeviceGetCurrentClocksEventReasons"] = pynvml.NVML_ERROR_NO_PERMISSION
    driver.read(device, Tier.FAST)
    asked = older.count["nvmlDeviceGetCurrentClocksEventReasons"]
    assert seen(driver.read(device, Tier.FAST)) == {}
    assert older.count["nvmlDeviceGetCurrentClocksEventReasons"] == asked
    assert driver.capabilities(device)[ROW].reason == "not permitted for this user"


@given(st.lists(st.tuples(st.integers(1, 2 * LONGEST_NS), st.booleans()), min_size=1, max_size=50))
def test_totals_only_grow_and_never_beyond_the_time_that_passed(steps: list[tuple[int, bool]]) -> None:
    throttling = ThrottleTimes([(ROW, THERMAL)])
    now, before, throttled_at_most = 1, 0, 0
    throttling.read(now, 0)
    was = False
    for passed, on in steps:
        now += passed
        (sample,) = throttling.read(now, THERMAL if on else 0)
        assert sample.t_start_ns == sample.t_end_ns == now
        assert before <= sample.value
        throttled_at_most += passed if on or was else 0
        assert sample.value <= throttled_at_most
        before, was = sample.value, on


def test_a_clock_that_is_set_back_takes_nothing_away() -> None:
    throttling = ThrottleTimes([(ROW, THERMAL)])
    throttling.read(1_000 * MS, THERMAL)
    throttling.read(1_100 * MS, THERMAL)
    assert throttling.read(500 * MS, THERMAL)[0].value == 100 * MS
    assert throttling.read(600 * MS, THERMAL)[0].value == 200 * MS

"""Draining the driver's own sample buffers."""

from itertools import pairwise
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_profile.catalogue import Group, Tier, signal
from gpu_profile.catalogue.samples import Sample
from gpu_profile.driver.nvml import NvmlDriver, buffers
from gpu_profile.testing import START_NS, FakeClock

UTIL = pynvml.NVML_GPU_UTILIZATION_SAMPLES
MEM = pynvml.NVML_MEMORY_UTILIZATION_SAMPLES
POWER = pynvml.NVML_TOTAL_POWER_SAMPLES
T0 = START_NS // 1000
STEP = 166_667


def _buffered(stub: Any, *rows: tuple[int, int]) -> None:
    stub.gpus[0].buffers = {UTIL: list(rows), MEM: list(rows)}


def _add(stub: Any, *rows: tuple[int, int]) -> None:
    for held in stub.gpus[0].buffers.values():
        held.extend(rows)


def test_a_sample_covers_the_time_since_the_one_before(stub: Any, driver: NvmlDriver) -> None:
    _buffered(stub, (T0 - 2 * STEP, 10))
    got = driver.drain(driver.devices()[0])
    _add(stub, (T0 - STEP, 20), (T0, 30))
    got = [one for one in [*got, *driver.drain(driver.devices()[0])] if one.signal is signal("utilization")]
    assert [one.value for one in got] == [10, 20, 30]
    assert got[0].t_end_ns - got[0].t_start_ns == signal("utilization").window_ns
    assert got[1].t_start_ns == got[0].t_end_ns
    assert (got[2].t_start_ns, got[2].t_end_ns) == ((T0 - STEP) * 1000, T0 * 1000)


def test_of_what_a_driver_kept_from_before_only_the_newest_counts(stub: Any, driver: NvmlDriver) -> None:
    _buffered(stub, *((T0 - k * STEP, k) for k in range(100, -1, -1)))
    assert [one.value for one in driver.drain(driver.devices()[0])] == [0, 0]


def test_what_was_drained_is_not_given_again_and_the_next_joins_on(stub: Any, clock: FakeClock) -> None:
    _buffered(stub, (T0 - STEP, 20), (T0, 30))
    driver = NvmlDriver(clock=clock, groups=[Group.CORE_DETAIL])
    device = driver.devices()[0]
    assert len(driver.drain(device)) == 2
    assert driver.drain(device) == []
    clock.advance(0.2)
    _add(stub, (T0 + STEP, 40))
    again = driver.drain(device)
    assert [(one.t_start_ns, one.value) for one in again] == [(T0 * 1000, 40)] * 2


def test_a_clock_that_is_set_back_does_not_silence_a_buffer(stub: Any, clock: FakeClock, driver: NvmlDriver) -> None:
    _buffered(stub, (T0 - STEP, 20), (T0, 30))
    device = driver.devices()[0]
    driver.drain(device)
    clock.set_back(60)
    earlier = T0 - 60_000_000
    _add(stub, (earlier, 40))
    again = [one for one in driver.drain(device) if one.signal is signal("utilization")]
    assert [(one.t_end_ns, one.value) for one in again] == [(earlier * 1000, 40)]


@pytest.mark.parametrize("step_s", [20, 3600])
def test_a_clock_that_is_set_forward_makes_no_time_that_has_not_passed(
    stub: Any, clock: FakeClock, driver: NvmlDriver, step_s: int
) -> None:
    """Whatever stamps the driver gives what it kept: here those of the new clock."""
    _buffered(stub, *((T0 - k * STEP, 50) for k in range(100, -1, -1)))
    device = driver.devices()[0]
    driver.drain(device)
    clock.advance(0.5)
    clock.set_forward(step_s)
    now_us = clock.now_ns() // 1000
    _buffered(stub, *((now_us - k * STEP, 50) for k in range(100, -1, -1)))
    found = [one for one in driver.drain(device) if one.signal is signal("utilization")]
    assert sum(one.t_end_ns - one.t_start_ns for one in found) <= 2.5e9
    assert found[-1].t_end_ns == now_us * 1000
    assert all(a.t_end_ns <= b.t_start_ns for a, b in pairwise(found))


def test_what_a_driver_held_back_for_as_long_as_nobody_asked_counts(
    stub: Any, clock: FakeClock, driver: NvmlDriver
) -> None:
    _buffered(stub, (T0, 50))
    device = driver.devices()[0]
    driver.drain(device)
    clock.advance(10.0)
    _add(stub, *((T0 + k * STEP, 50) for k in range(1, 61)))
    found = [one for one in driver.drain(device) if one.signal is signal("utilization")]
    assert len(found) == 60


def test_a_drained_signal_is_never_polled(stub: Any, driver: NvmlDriver) -> None:
    _buffered(stub, (T0, 30))
    stub.gpus[0].buffers[MEM] = pynvml.NVML_ERROR_NOT_SUPPORTED
    device = driver.devices()[0]
    drained = {one.signal.key for one in driver.drain(device)}
    polled = {one.signal.key for one in driver.read(device, Tier.FAST)}
    assert drained == {"utilization"}
    assert "memory_controller" in polled
    assert not drained & polled


def test_without_buffers_both_are_polled_in_one_call(stub: Any, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock, groups=[Group.CORE_DETAIL])
    device = driver.devices()[0]
    driver.read(device, Tier.FAST)
    before = stub.count["nvmlDeviceGetUtilizationRates"]
    clock.advance(0.1)
    values = {one.signal.key: one.value for one in driver.read(device, Tier.FAST)}
    assert (values["utilization"], values["memory_controller"]) == (37, 12)
    assert stub.count["nvmlDeviceGetUtilizationRates"] == before + 1
    assert driver.drain(device) == []


def test_a_value_outside_0_to_100_is_dropped_and_leaves_its_time_uncovered(stub: Any, driver: NvmlDriver) -> None:
    _buffered(stub, (T0 - 2 * STEP, 10))
    driver.drain(driver.devices()[0])
    _add(stub, (T0 - STEP, 101), (T0, 30))
    got = [one for one in driver.drain(driver.devices()[0]) if one.signal is signal("utilization")]
    assert [(one.value, one.t_start_ns) for one in got] == [(30, (T0 - STEP) * 1000)]
    assert driver.errors["IMPLAUSIBLE_VALUE"] == 2


def test_a_sample_after_a_gap_covers_at_most_the_longest_documented_period(stub: Any, driver: NvmlDriver) -> None:
    _buffered(stub, (T0 - 60_000_000, 10))
    driver.drain(driver.devices()[0])
    _add(stub, (T0, 30))
    got = driver.drain(driver.devices()[0])
    assert max(one.t_end_ns - one.t_start_ns for one in got) == 1_000_000_000


def test_a_sample_from_the_future_is_not_one(stub: Any, driver: NvmlDriver) -> None:
    _buffered(stub, (T0, 30), (T0 + 3_600_000_000, 90))
    device = driver.devices()[0]
    assert [one.value for one in driver.drain(device)] == [30, 30]


def test_a_buffer_that_stays_empty_is_given_up_for_polling(stub: Any, clock: FakeClock, driver: NvmlDriver) -> None:
    _buffered(stub)
    device = driver.devices()[0]
    for _ in range(12):
        assert driver.drain(device) == []
        assert "utilization" not in {one.signal.key for one in driver.read(device, Tier.FAST)}
        clock.advance(0.25)
    driver.drain(device)
    assert "utilization" in {one.signal.key for one in driver.read(device, Tier.FAST)}
    calls = stub.count["nvmlDeviceGetSamples"]
    driver.drain(device)
    assert stub.count["nvmlDeviceGetSamples"] == calls


def test_a_buffer_that_gave_something_is_never_given_up(stub: Any, clock: FakeClock, driver: NvmlDriver) -> None:
    _buffered(stub, (T0, 30))
    device = driver.devices()[0]
    driver.drain(device)
    for _ in range(50):
        clock.advance(1)
        driver.drain(device)
    assert "utilization" not in {one.signal.key for one in driver.read(device, Tier.FAST)}


def test_a_buffer_that_the_device_loses_is_polled_for(stub: Any, driver: NvmlDriver) -> None:
    _buffered(stub, (T0, 30))
    device = driver.devices()[0]
    driver.drain(device)
    stub.gpus[0].buffers = {}
    driver.drain(device)
    assert "utilization" in {one.signal.key for one in driver.read(device, Tier.FAST)}
    stub.gpus[0].calls["nvmlDeviceGetUtilizationRates"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    driver.read(device, Tier.FAST)
    assert driver.capabilities(device)[signal("utilization")].reason == "not supported by this GPU"


def test_the_buffer_of_another_type_is_not_asked_for(stub: Any, driver: NvmlDriver) -> None:
    _buffered(stub, (T0, 30))
    stub.gpus[0].buffers |= {pynvml.NVML_PROCESSOR_CLK_SAMPLES: [(T0, 1_980)]}
    assert {one.signal.key for one in driver.drain(driver.devices()[0])} == {"utilization", "memory_controller"}


@settings(max_examples=40)
@given(steps=st.lists(st.integers(1, 900_000), min_size=1, max_size=12), cuts=st.sets(st.integers(0, 11)))
def test_however_often_it_is_drained_the_coverage_is_seamless(stub: Any, steps: list[int], cuts: set[int]) -> None:
    clock = FakeClock(START_NS)
    _buffered(stub, (T0, 0))
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    stamp = T0
    got: list[Sample] = [*driver.drain(device)]
    for place, step in enumerate(steps, start=1):
        stamp += step
        clock.advance(step / 1e6)
        _add(stub, (stamp, place))
        if place in cuts:
            got += driver.drain(device)
    got += driver.drain(device)
    driver.close()
    own = [one for one in got if one.signal is signal("utilization")]
    assert [one.value for one in own] == list(range(len(steps) + 1))
    assert all(a.t_end_ns == b.t_start_ns for a, b in pairwise(own))
    assert sum(one.t_end_ns - one.t_start_ns for one in own[1:]) == sum(steps) * 1000


def _power(driver: NvmlDriver) -> tuple[list[int], list[int]]:
    """What a drain and a read say of power, in mW; the fields beside it are read all along."""
    device = driver.devices()[0]
    drained, polled = driver.drain(device), driver.read(device, Tier.FAST)
    assert signal("energy") in {one.signal for one in polled}
    assert signal("power") in driver.capabilities(device)
    return tuple([one.value for one in some if one.signal is signal("power")] for some in (drained, polled))  # type: ignore[return-value]


def test_power_is_what_the_driver_buffers_of_it_and_its_field_is_not_read(stub: Any, driver: NvmlDriver) -> None:
    stub.gpus[0].buffers = {POWER: [(T0 - 20_000, 650_000)]}
    assert _power(driver) == ([650_000], [])
    _add(stub, (T0, 690_000))
    assert _power(driver) == ([690_000], [])


def test_power_is_read_from_its_field_where_the_driver_buffers_none(
    stub: Any, clock: FakeClock, driver: NvmlDriver
) -> None:
    field = [stub.gpus[0].fields[pynvml.NVML_FI_DEV_POWER_INSTANT][2]]
    # Refused from the first on.
    assert _power(driver) == ([], field)
    # It has a buffer, which stays empty; or one that is gone after a while.
    for gone in (0, pynvml.NVML_ERROR_NOT_SUPPORTED):
        stub.gpus[0].buffers = {POWER: [(T0, 650_000)] if gone else []}
        other = NvmlDriver(clock=clock)
        assert _power(other) == ([650_000] if gone else [], [])
        stub.gpus[0].buffers[POWER] = gone or []
        clock.advance(3.1)
        assert _power(other) == ([], field)


def test_a_buffer_of_values_that_cannot_be_is_given_up(stub: Any, clock: FakeClock, driver: NvmlDriver) -> None:
    field = [stub.gpus[0].fields[pynvml.NVML_FI_DEV_POWER_INSTANT][2]]
    stub.gpus[0].buffers = {POWER: [(T0, 2**32 - 1)]}
    assert _power(driver) == ([], [])
    clock.advance(3.1)
    _add(stub, (T0 + 3_000_000, 2**32 - 1))
    assert _power(driver) == ([], field)


def test_a_buffer_of_a_type_that_the_binding_does_not_know_is_not_asked_again(
    stub: Any, driver: NvmlDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = [stub.gpus[0].fields[pynvml.NVML_FI_DEV_POWER_INSTANT][2]]
    monkeypatch.setattr(buffers, "decoders", lambda _: {})
    stub.gpus[0].buffers = {POWER: [(T0, 650_000)]}
    assert _power(driver) == ([], field)


def test_power_that_neither_has_is_absent_with_the_reason(stub: Any, clock: FakeClock) -> None:
    stub.gpus[0].buffers = {POWER: []}
    del stub.gpus[0].fields[pynvml.NVML_FI_DEV_POWER_INSTANT]
    driver = NvmlDriver(clock=clock)
    assert _power(driver) == ([], [])
    clock.advance(3.1)
    assert _power(driver) == ([], [])
    assert driver.capabilities(driver.devices()[0])[signal("power")].reason

"""Field values: one array per device and tier, every type of the union, every field judged by itself."""

import struct
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.driver.nvml.conftest import GROUPS

from gpu_profile.catalogue import Group, Tier, signal
from gpu_profile.catalogue.samples import Device
from gpu_profile.catalogue.signals import THROTTLES
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.driver.nvml.fields import decoders
from gpu_profile.testing import START_NS, FakeClock

POWER = pynvml.NVML_FI_DEV_POWER_INSTANT
ENERGY = pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
US = 1_000


@given(low=st.integers(0, 2**32 - 1), garbage=st.integers(0, 2**32 - 1))
def test_a_32_bit_value_ignores_what_lies_beyond_it_in_the_union(low: int, garbage: int) -> None:
    raw = garbage << 32 | low
    get = decoders(pynvml)
    assert get[pynvml.NVML_VALUE_TYPE_UNSIGNED_INT](raw) == low
    assert get[pynvml.NVML_VALUE_TYPE_SIGNED_INT](raw) == (low if low < 2**31 else low - 2**32)
    assert get[pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT](raw) == low % 2**16


@given(value=st.integers(0, 2**64 - 1), real=st.floats(allow_nan=False))
def test_a_64_bit_value_keeps_all_its_bits(value: int, real: float) -> None:
    get = decoders(pynvml)
    assert get[pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG](value) == value
    assert get[pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG](value) == value
    assert get[pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG](value) == (value if value < 2**63 else value - 2**64)
    assert get[pynvml.NVML_VALUE_TYPE_DOUBLE](struct.unpack("@Q", struct.pack("@d", real))[0]) == real


def test_every_value_type_of_this_nvidia_ml_py_can_be_read() -> None:
    named = {value for name, value in vars(pynvml).items() if name.startswith("NVML_VALUE_TYPE_")}
    assert set(decoders(pynvml)) == named - {pynvml.NVML_VALUE_TYPE_COUNT}


def test_the_value_type_decides_which_member_is_read(stub: Any, driver: NvmlDriver) -> None:
    fields = stub.gpus[0].fields
    fields[POWER] = (0, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 698_123, 0)
    fields[pynvml.NVML_FI_DEV_POWER_AVERAGE] = (0, pynvml.NVML_VALUE_TYPE_DOUBLE, 650_000.4, 0)
    fields[ENERGY] = (0, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 2**40, 0)
    values = {sample.signal.key: sample.value for sample in driver.read(driver.devices()[0], Tier.FAST)}
    assert (values["power"], values["power_average"], values["energy"]) == (698_123, 650_000, 2**40)


def test_one_read_of_a_tier_is_one_call_for_all_its_fields(stub: Any, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock, groups=GROUPS)
    device = driver.devices()[0]
    driver.read(device, Tier.FAST)
    stub.asked.clear()
    for _ in range(3):
        driver.read(device, Tier.FAST)
        clock.advance(0.1)
    assert len(stub.asked) == 3
    assert len(stub.asked[0]) == 12
    assert (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 2**32 - 1) in stub.asked[0]


def test_a_field_that_is_not_supported_is_absent_and_never_asked_for_again(stub: Any, clock: FakeClock) -> None:
    del stub.gpus[0].fields[ENERGY]
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    capability = driver.capabilities(device)[signal("energy")]
    assert (capability.available, capability.reason) == (False, "not supported by this GPU")
    stub.asked.clear()
    keys = {sample.signal.key for sample in driver.read(device, Tier.FAST)}
    assert "power" in keys
    assert "energy" not in keys
    assert all(field != ENERGY for call in stub.asked for field, _ in call)


def test_a_field_that_ceases_to_be_supported_is_dropped_while_the_others_go_on(stub: Any, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    driver.read(device, Tier.FAST)
    stub.gpus[0].fields[ENERGY] = (pynvml.NVML_ERROR_NOT_SUPPORTED, 0, 0, 0)
    driver.read(device, Tier.FAST)
    stub.asked.clear()
    clock.advance(0.1)
    assert "power" in {sample.signal.key for sample in driver.read(device, Tier.FAST)}
    assert all(field != ENERGY for call in stub.asked for field, _ in call)
    assert not driver.capabilities(device)[signal("energy")].available


def test_a_field_that_fails_for_now_is_counted_and_read_again_later(stub: Any, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    good = stub.gpus[0].fields[ENERGY]
    driver.read(device, Tier.FAST)
    stub.gpus[0].fields[ENERGY] = (pynvml.NVML_ERROR_UNKNOWN, 0, 0, 0)
    assert "energy" not in {sample.signal.key for sample in driver.read(device, Tier.FAST)}
    assert driver.errors == {"UNKNOWN": 1}
    stub.gpus[0].fields[ENERGY] = good
    assert "energy" in {sample.signal.key for sample in driver.read(device, Tier.FAST)}


def test_a_field_that_the_driver_leaves_untouched_is_absent_not_zero(
    stub: Any, monkeypatch: pytest.MonkeyPatch, driver: NvmlDriver, device: Device
) -> None:
    assert driver.read(device, Tier.FAST)
    monkeypatch.setattr(stub.gpus[0], "fields", _Untouched(stub.gpus[0].fields))
    assert driver.read(device, Tier.FAST) == []


class _Untouched(dict[int, Any]):
    """Answers with what is already in the array, as a driver that skips the field would."""

    def get(self, key: Any, default: Any = None) -> Any:
        return (pynvml.NVML_ERROR_NO_DATA, 0, 0, 0)


@pytest.mark.parametrize(
    ("stamp_us", "expected_ns"),
    [
        (START_NS // US - 40_000, START_NS - 40_000 * US),
        (START_NS // US + 1_000, START_NS + 1_000 * US),
        (0, START_NS),
        (START_NS // US - 6_000_000, START_NS),
        (START_NS // US + 6_000_000, START_NS),
        (-1, START_NS),
    ],
)
def test_the_drivers_time_stamp_counts_if_it_is_within_five_seconds_of_the_clock(
    stub: Any, stamp_us: int, expected_ns: int, driver: NvmlDriver
) -> None:
    stub.gpus[0].fields[ENERGY] = (0, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 5, stamp_us)
    samples = driver.read(driver.devices()[0], Tier.FAST)
    energy = next(sample for sample in samples if sample.signal.key == "energy")
    assert (energy.t_start_ns, energy.t_end_ns) == (expected_ns, expected_ns)


def test_a_constant_that_the_binding_lacks_is_absent_with_that_reason(
    stub: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(pynvml, "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST")
    monkeypatch.delattr(pynvml, "NVML_GPM_METRIC_FP16_UTIL")
    monkeypatch.delattr(pynvml, "nvmlDeviceGetDecoderUtilization")
    driver = NvmlDriver(clock=clock, groups=GROUPS)
    capabilities = driver.capabilities(driver.devices()[0])
    for key in ("throttle_sync_boost", "fp16", "decoder"):
        assert capabilities[signal(key)].reason == "not known to this nvidia-ml-py"
    assert capabilities[signal("throttle_sw_thermal")].available


def test_fields_are_absent_if_the_driver_has_no_such_function(stub: Any, clock: FakeClock) -> None:
    del stub.nvmlDeviceGetFieldValues
    driver = NvmlDriver(clock=clock, groups=[Group.CORE_DETAIL])
    device = driver.devices()[0]
    capabilities = driver.capabilities(device)
    assert capabilities[signal("energy")].reason == "not known to this driver"
    values = {sample.signal.key: sample.value for sample in driver.read(device, Tier.FAST)}
    polled = {key: value for key, value in values.items() if not key.startswith("throttle_seen")}
    assert polled == {"power_average": 351_000, "utilization": 37, "memory_controller": 12}


def test_the_fields_are_found_without_the_bindings_private_look_up(
    stub: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = NvmlDriver(clock=clock)
    expected = driver.read(driver.devices()[0], Tier.FAST)
    cache = {name: getattr(stub, name) for name in dir(stub) if name.startswith("nvml")}
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", cache.__getitem__)
    library = driver._library
    monkeypatch.delattr(pynvml, "_nvmlGetFunctionPointer")
    assert library._resolve("nvmlDeviceGetFieldValues") is stub.nvmlDeviceGetFieldValues
    assert expected


def test_a_field_for_which_a_driver_refuses_the_whole_call_takes_no_other_with_it(
    stub: Any, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    answer = stub.nvmlDeviceGetFieldValues

    def strict(handle: Any, count: Any, out: Any) -> int:
        if any(cell.fieldId == pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION for cell in out._obj):
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        code: int = answer(handle, count, out)
        return code

    monkeypatch.setattr(stub, "nvmlDeviceGetFieldValues", strict)
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    capabilities = driver.capabilities(device)
    assert capabilities[signal("recovery_action")].reason == "not known to this driver"
    assert capabilities[signal("energy")].available
    assert capabilities[signal("remap_failure")].available
    assert {sample.signal.key for sample in driver.read(device, Tier.SLOW)} >= {"ecc_corrected", "pcie_replays"}


def test_a_count_below_0_is_left_out(stub: Any, driver: NvmlDriver) -> None:
    stub.gpus[0].fields[ENERGY] = (0, pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG, -5, 0)
    assert "energy" not in {sample.signal.key for sample in driver.read(driver.devices()[0], Tier.FAST)}
    assert driver.errors == {"IMPLAUSIBLE_VALUE": 1}


def test_counters_that_take_a_driver_long_are_read_no_more_often_than_asked(stub: Any, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock, counters_s=1.0)
    device = driver.devices()[0]
    assert driver.capabilities(device)[signal("energy")].available
    slow = {"energy", *(row.key for row in THROTTLES)}
    told: list[set[str]] = []
    for _ in range(25):
        found = {sample.signal.key for sample in driver.read(device, Tier.FAST)}
        told.append(found & slow)
        assert "pcie_rx" in found
        clock.advance(0.1)
    assert [n for n, keys in enumerate(told) if keys] == [0, 10, 20]
    assert all({"energy", "throttle_sw_power_cap"} <= keys for keys in told if keys)

"""What is not a measurement is absent: codes in place of numbers, parts that are not there, memory of the host."""

from typing import Any

import pynvml
import pytest

from gpu_profile.catalogue import Group, Tier, signal
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.driver.nvml.errors import NOT_KNOWN_TO_BINDING
from gpu_profile.testing import FakeClock

PLAIN, WIDE = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
MEMORY = ["memory_used", "memory_free", "memory_reserved"]
EVERY_TIER = (Tier.FAST, Tier.SLOW, Tier.RARE)


def read(driver: NvmlDriver) -> dict[str, int]:
    device = driver.devices()[0]
    return {one.signal.key: one.value for tier in EVERY_TIER for one in driver.read(device, tier)}


def test_a_gpu_that_shares_the_hosts_memory_has_none_of_its_own(stub: Any, driver: NvmlDriver) -> None:
    stub.gpus[0].memory = (0, 0, 0, 0)
    device = driver.devices()[0]
    assert device.memory_bytes is None
    assert not set(MEMORY) & set(read(driver))
    reasons = {driver.capabilities(device)[signal(key)].reason for key in MEMORY}
    assert reasons == {"not supported by this GPU"}


def test_so_has_one_whose_driver_says_that_it_cannot_tell(stub: Any, driver: NvmlDriver) -> None:
    not_supported = pynvml.NVML_ERROR_NOT_SUPPORTED
    stub.gpus[0].calls = dict.fromkeys(("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"), not_supported)
    assert driver.devices()[0].memory_bytes is None
    assert not set(MEMORY) & set(read(driver))
    assert driver.errors == {}


def test_memory_at_0_degrees_has_no_sensor(stub: Any, driver: NvmlDriver) -> None:
    stub.gpus[0].fields[pynvml.NVML_FI_DEV_MEMORY_TEMP] = (0, PLAIN, 0, 0)
    assert "temperature_memory" not in read(driver)
    capability = driver.capabilities(driver.devices()[0])[signal("temperature_memory")]
    assert capability.reason == "not there: the driver says 0"
    assert driver.errors == {}


@pytest.mark.parametrize("code", [2**32 - 1, 2**64 - 1])
def test_all_bits_set_is_no_count(stub: Any, code: int, driver: NvmlDriver) -> None:
    stub.gpus[0].fields[pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION] = (0, WIDE, code, 0)
    stub.gpus[0].fields[pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL] = (0, WIDE, code, 0)
    assert not {"energy", "ecc_uncorrected"} & set(read(driver))
    assert driver.errors == {"IMPLAUSIBLE_VALUE": 2}


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("NVML_FI_DEV_POWER_INSTANT", "power"),
        ("NVML_FI_DEV_POWER_AVERAGE", "power_average"),
        ("NVML_FI_DEV_MEMORY_TEMP", "temperature_memory"),
        ("NVML_FI_DEV_REMAPPED_PENDING", "remap_pending"),
        ("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", "recovery_action"),
    ],
)
def test_a_code_in_place_of_a_reading_is_left_out(stub: Any, field: str, key: str, driver: NvmlDriver) -> None:
    stub.gpus[0].fields[getattr(pynvml, field)] = (0, PLAIN, 2**32 - 1, 0)
    assert key not in read(driver)
    assert driver.errors == {"IMPLAUSIBLE_VALUE": 1}


@pytest.mark.parametrize(
    ("call", "key"),
    [
        ("nvmlDeviceGetTemperature", "temperature"),
        ("nvmlDeviceGetFanSpeed", "fan"),
        ("nvmlDeviceGetClockInfo", "clock_sm"),
    ],
)
def test_a_sensor_that_is_not_supported_is_absent_not_0(stub: Any, clock: FakeClock, call: str, key: str) -> None:
    stub.gpus[0].calls = {call: pynvml.NVML_ERROR_NOT_SUPPORTED}
    driver = NvmlDriver(clock=clock, groups=[Group.LIMITS])
    assert key not in read(driver)
    asked = stub.count[call]
    assert key not in read(driver)
    assert stub.count[call] == asked


def test_margins_below_0_are_measurements(stub: Any, clock: FakeClock) -> None:
    stub.gpus[0].margin = -3
    driver = NvmlDriver(clock=clock, groups=[Group.LIMITS])
    values = read(driver)
    assert (values["temperature_margin"], values["temperature_margin_limit_shutdown"]) == (-3, -2)


@pytest.mark.parametrize(
    ("fabric", "expected"),
    [
        ((3, 0, 0xAA), {"fabric_state": 3, "fabric_status": 0, "fabric_health": 0xAA, "fabric_health_summary": 1}),
        ((2, 0, 0), {"fabric_state": 2, "fabric_health": 0, "fabric_health_summary": 1}),
        ((0, 0, 0), {}),
    ],
)
def test_the_result_of_joining_a_fabric_is_told_once_that_is_done(
    stub: Any, clock: FakeClock, fabric: tuple[int, int, int], expected: dict[str, int]
) -> None:
    stub.gpus[0].fabric = fabric
    values = read(NvmlDriver(clock=clock, groups=[Group.FABRIC]))
    assert {key: value for key, value in values.items() if key.startswith("fabric")} == expected


def test_a_fabric_without_a_summary_of_its_health_has_one_later_and_an_older_driver_has_the_rest(
    stub: Any, clock: FakeClock
) -> None:
    stub.gpus[0].fabric_summary = 0
    driver = NvmlDriver(clock=clock, groups=[Group.FABRIC])
    assert "fabric_health_summary" not in read(driver)
    stub.gpus[0].fabric_summary = 2
    assert read(driver)["fabric_health_summary"] == 2
    stub.gpus[0].fabric_summary = None
    older = read(NvmlDriver(clock=clock, groups=[Group.FABRIC]))
    assert {key for key in older if key.startswith("fabric")} == {"fabric_state", "fabric_status", "fabric_health"}


def test_a_binding_that_lacks_functions_fields_and_structures_leaves_their_signals_out_alone(
    stub: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = {
        "c_nvmlGpuFabricInfo_v3_t": ("fabric_health_summary",),
        "nvmlDeviceGetRowRemapperHistogram": ("spare_rows_max", "spare_rows_none"),
        "nvmlDeviceGetRepairStatus": ("repair_pending_channel", "repair_pending_tpc"),
        "nvmlDeviceGetAddressingMode": ("addressing_mode",),
        "nvmlSystemGetConfComputeState": ("confidential_compute",),
        "NVML_FI_PWR_SMOOTHING_ENABLED": ("power_smoothing",),
        "NVML_FI_DEV_MMA_STALL_PERCENT": ("tensor_stall",),
        "NVML_FI_DEV_PENDING_BANK_REMAPPING": ("remapped_banks_pending",),
    }
    keys = {key for each in newer.values() for key in each}
    groups = [Group.FABRIC, Group.ECC_DETAIL, Group.MODES, Group.GPM_DETAIL]
    with_them = read(NvmlDriver(clock=clock, groups=groups))
    assert keys <= set(with_them)
    assert (with_them["spare_rows_max"], with_them["spare_rows_none"]) == (630, 1)
    assert (with_them["repair_pending_channel"], with_them["repair_pending_tpc"]) == (1, 0)
    assert (with_them["addressing_mode"], with_them["confidential_compute"], with_them["tensor_stall"]) == (1, 1, 30)
    for name in newer:
        monkeypatch.delattr(pynvml, name)
    driver = NvmlDriver(clock=clock, groups=groups)
    assert set(with_them) - set(read(driver)) == keys | {f"spare_rows_{spare}" for spare in ("high", "partial", "low")}
    reasons = {driver.capabilities(driver.devices()[0])[signal(key)].reason for key in keys}
    assert reasons == {NOT_KNOWN_TO_BINDING}
    driver.close()


def test_a_gpu_without_links_to_its_cpu_has_no_count_of_them(stub: Any, clock: FakeClock) -> None:
    stub.gpus[0].fields[pynvml.NVML_FI_DEV_C2C_LINK_COUNT] = (0, PLAIN, 0, 0)
    assert "c2c_links" not in read(NvmlDriver(clock=clock, groups=[Group.C2C]))


def test_an_unknown_performance_state_is_absent(stub: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPerformanceState", lambda _: pynvml.NVML_PSTATE_UNKNOWN)
    driver = NvmlDriver(clock=clock)
    assert "pstate" not in read(driver)
    assert driver.errors == {}


def test_a_slice_has_nothing_of_its_gpu_that_it_does_not_own(stub: Any, new_gpu: Any, driver: NvmlDriver) -> None:
    stub.gpus[0].mig = [new_gpu("MIG-1", instance=5)]
    gpu, mig = driver.devices()
    assert {one.signal.key for tier in EVERY_TIER for one in driver.read(mig, tier)} == {"memory_used", "memory_free"}
    assert (mig.mig_profile, mig.mig_instance, mig.minor) == ("3g.40gb", 5, gpu.minor)
    assert (gpu.mig_profile, gpu.mig_instance) == ("", None)


# ---------------------------------------------------------------------- what a device is


def test_a_device_says_what_it_is_in_the_attributes_of_its_info(driver: NvmlDriver) -> None:
    assert driver.devices()[0].identity == {
        "hw.id": "GPU-0",
        "hw.name": "NVIDIA H100 80GB HBM3",
        "hw.firmware_version": "96.00.89.00.01",
        "pci.bus_id": "00000000:17:00.0",
        "index": "0",
        "minor": "3",
        "kind": "gpu",
        "board.part_number": "692-2G520-0200-000",
        "cuda.compute_capability": "9.0",
    }
    assert driver.versions == {
        "hw.driver_version": "580.126.09",
        "nvml.version": "13.580.126.09",
        "cuda.version": "12.8",
    }


def test_what_never_changes_is_asked_once(stub: Any, driver: NvmlDriver) -> None:
    first = driver.devices()
    assert driver.devices() == first
    assert stub.count["nvmlDeviceGetVbiosVersion"] == stub.count["nvmlDeviceGetBoardPartNumber"] == 1


def test_facts_that_are_not_to_be_had_are_left_out(stub: Any, clock: FakeClock) -> None:
    for call in ("nvmlDeviceGetVbiosVersion", "nvmlDeviceGetBoardPartNumber", "nvmlDeviceGetCudaComputeCapability"):
        stub.code[call] = pynvml.NVML_ERROR_NOT_SUPPORTED
    stub.code["nvmlSystemGetNVMLVersion"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    driver = NvmlDriver(clock=clock)
    assert not {"hw.firmware_version", "board.part_number", "cuda.compute_capability"} & set(
        driver.devices()[0].identity
    )
    assert "nvml.version" not in driver.versions
    assert driver.errors == {}

"""The driver as a whole: devices, errors, events, fork and close."""

import logging
import sys
from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from support.concurrency import in_child
from support.programs import python
from unit.driver.nvml.conftest import GROUPS

from gpu_profile.catalogue import SIGNALS, Tier, signal
from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.driver import Driver
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.driver.nvml.errors import RULES, Action, ErrorPolicy
from gpu_profile.errors import DeviceLost, GpuBackendError
from gpu_profile.testing import FakeClock

XID = pynvml.nvmlEventTypeXidCriticalError
LOST = [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND]


def test_importing_the_driver_does_not_import_pynvml_or_numpy() -> None:
    code = "import sys, gpu_profile.driver.nvml; sys.exit(bool({'pynvml', 'numpy'} & set(sys.modules)))"
    assert python("-c", code).returncode == 0


def test_it_fulfils_the_protocol(stub: Any, clock: FakeClock) -> None:
    driver: Driver = NvmlDriver(clock=clock, name="simulated")
    assert (driver.name, driver.version) == ("simulated", "580.126.09")


def test_devices_are_gpus_each_followed_by_its_instances(stub: Any, clock: FakeClock, new_gpu: Any) -> None:
    stub.gpus[0].mig = [new_gpu("MIG-1", memory=(10 << 30, 0, 0, 0)), new_gpu("MIG-2", name="NVIDIA H100 MIG 1g.10gb")]
    stub.gpus.append(new_gpu("GPU-1", name="NVIDIA A10G"))
    devices = NvmlDriver(clock=clock).devices()
    assert [device.uuid for device in devices] == ["GPU-0", "MIG-1", "MIG-2", "GPU-1"]
    assert [device.index for device in devices] == [0, 0, 0, 1]
    assert [device.parent for device in devices] == [None, "GPU-0", "GPU-0", None]
    assert [device.kind is DeviceKind.MIG for device in devices] == [False, True, True, False]
    gpu, mig = devices[0], devices[1]
    assert (gpu.name, gpu.pci_bus_id, gpu.memory_bytes) == ("NVIDIA H100 80GB HBM3", "00000000:17:00.0", 80 << 30)
    assert (gpu.clock_max_hz, gpu.pcie_bytes_per_s) == (1_980_000_000, 63_015_384_608)
    assert (mig.name, mig.memory_bytes) == ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 10 << 30)
    assert devices[2].name == "NVIDIA H100 MIG 1g.10gb"


def test_only_the_devices_that_were_asked_for_are_listed(stub: Any, clock: FakeClock, new_gpu: Any) -> None:
    stub.gpus += [new_gpu("GPU-1"), new_gpu("GPU-2", mig=[new_gpu("MIG-1")])]
    driver = NvmlDriver(clock=clock, devices=["GPU-1", "MIG-1"])
    assert [device.uuid for device in driver.devices()] == ["GPU-1", "MIG-1"]


def test_every_signal_has_a_capability_and_every_absence_a_reason(stub: Any, new_gpu: Any, driver: NvmlDriver) -> None:
    stub.gpus[0].mig = [new_gpu("MIG-1")]
    stub.gpus.append(new_gpu("GPU-1", fields={}, gpm=False))
    for device in driver.devices():
        capabilities = driver.capabilities(device)
        assert list(capabilities) == list(SIGNALS)
        assert all(bool(one.reason) != one.available for one in capabilities.values())


def test_a_mig_instance_has_only_what_belongs_to_it(stub: Any, new_gpu: Any, driver: NvmlDriver) -> None:
    stub.gpus[0].mig = [new_gpu("MIG-1")]
    mig = driver.devices()[1]
    capabilities = driver.capabilities(mig)
    assert {row for row, one in capabilities.items() if one.available} == {
        row for row in SIGNALS if row.mig and row.group in GROUPS
    }
    assert capabilities[signal("energy")].reason == "not available on a MIG instance"
    assert driver.read(mig, Tier.FAST) == []
    assert driver.drain(mig) == []
    assert [one.signal.key for one in driver.read(mig, Tier.SLOW)] == ["memory_used", "memory_free"]


def test_a_device_can_be_read_without_having_been_listed(stub: Any, clock: FakeClock, new_gpu: Any) -> None:
    stub.gpus[0].mig = [new_gpu("MIG-1", instance=3)]
    gpu, mig = NvmlDriver(clock=clock).devices()
    other = NvmlDriver(clock=clock)
    assert other.read(gpu, Tier.FAST)
    other.boundary(mig)
    assert stub.gpm_slices == [("GPU-0", 3)]


@pytest.mark.parametrize("code", LOST)
def test_a_lost_device_raises_and_the_others_go_on(stub: Any, new_gpu: Any, code: int, driver: NvmlDriver) -> None:
    stub.gpus.append(new_gpu("GPU-1"))
    first, second = driver.devices()
    driver.read(first, Tier.FAST)
    stub.gpus[0].code = code
    methods: list[Callable[[], object]] = [
        lambda: driver.read(first, Tier.FAST),
        lambda: driver.boundary(first),
        lambda: driver.drain(first),
    ]
    for method in methods:
        with pytest.raises(DeviceLost, match="GPU-0") as caught:
            method()
        assert "\n" not in str(caught.value)
    assert driver.read(second, Tier.FAST)
    assert [device.uuid for device in driver.devices()] == ["GPU-1"]
    assert driver.processes(first) == []
    assert not any(one.available for one in driver.capabilities(first).values())
    stub.gpus[0].code = 0
    assert driver.read(first, Tier.FAST)


def test_a_stale_handle_means_that_the_device_was_lost(stub: Any, driver: NvmlDriver, device: Device) -> None:
    driver.read(device, Tier.FAST)
    stub.gpus[0].calls = {"nvmlDeviceGetFieldValues": pynvml.NVML_ERROR_INVALID_ARGUMENT}
    with pytest.raises(DeviceLost, match="no longer valid"):
        driver.read(device, Tier.FAST)
    stub.gpus[0].calls = {}
    assert driver.read(device, Tier.FAST)


def test_a_device_that_the_driver_does_not_know_is_lost(stub: Any, clock: FakeClock, new_gpu: Any) -> None:
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    stub.gpus[0].uuid = "GPU-replaced"
    driver.devices()
    with pytest.raises(DeviceLost, match="GPU-0"):
        driver.read(device, Tier.FAST)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "kernel driver is not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "different versions"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "not permitted"),
        (pynvml.NVML_ERROR_UNKNOWN, "nvidia-smi"),
    ],
)
def test_nvml_that_cannot_start_says_why_in_one_line(stub: Any, clock: FakeClock, code: int, words: str) -> None:
    stub.code["nvmlInitWithFlags"] = code
    with pytest.raises(GpuBackendError, match=words) as caught:
        NvmlDriver(clock=clock)
    assert "\n" not in str(caught.value)
    assert stub.live == 0


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", absent)
    with pytest.raises(GpuBackendError, match=r"libnvidia-ml\.so\.1 was not found; install"):
        NvmlDriver(clock=clock)


def test_a_missing_binding_is_named(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(GpuBackendError, match="pip install nvidia-ml-py"):
        NvmlDriver(clock=clock)


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH], ids=str
)
def test_a_driver_that_goes_away_stops_nvml_fully_and_the_next_call_starts_it_anew(
    stub: Any, code: int, driver: NvmlDriver, device: Device
) -> None:
    driver.read(device, Tier.FAST)
    stub.code["nvmlDeviceGetFieldValues"] = code
    with pytest.raises(GpuBackendError):
        driver.read(device, Tier.FAST)
    assert stub.live == 0
    stub.code["nvmlInitWithFlags"] = code
    with pytest.raises(GpuBackendError):
        driver.read(device, Tier.FAST)
    stub.code.clear()
    assert driver.read(device, Tier.FAST)
    driver.close()
    assert stub.live == 0


def test_nvml_that_was_shut_down_by_others_is_started_again_once(stub: Any, driver: NvmlDriver, device: Device) -> None:
    driver.read(device, Tier.FAST)
    stub.live = 0
    assert driver.read(device, Tier.FAST)
    assert stub.count["nvmlInitWithFlags"] == 2
    assert driver.errors == {"UNINITIALIZED": 1}


def test_nvml_that_does_not_stay_started_is_an_error_not_a_loop(stub: Any, driver: NvmlDriver, device: Device) -> None:
    stub.code["nvmlDeviceGetFieldValues"] = pynvml.NVML_ERROR_UNINITIALIZED
    with pytest.raises(GpuBackendError, match="does not stay started"):
        driver.read(device, Tier.FAST)


def test_gpus_that_cannot_be_counted_are_an_error_not_an_empty_node(stub: Any, driver: NvmlDriver) -> None:
    stub.code["nvmlDeviceGetCount_v2"] = pynvml.NVML_ERROR_UNKNOWN
    with pytest.raises(GpuBackendError, match="could not be counted"):
        driver.devices()


def test_a_repeated_problem_is_logged_once_and_counted_each_time(
    stub: Any, caplog: pytest.LogCaptureFixture, driver: NvmlDriver, device: Device
) -> None:
    driver.read(device, Tier.FAST)
    stub.code["nvmlDeviceGetFieldValues"] = pynvml.NVML_ERROR_UNKNOWN
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            driver.read(device, Tier.FAST)
    assert driver.errors == {"UNKNOWN": 5}
    assert len(caplog.records) == 1


def test_what_is_not_permitted_is_absent_with_one_warning(
    stub: Any, caplog: pytest.LogCaptureFixture, driver: NvmlDriver
) -> None:
    denied = (pynvml.NVML_ERROR_NO_PERMISSION, 0, 0, 0)
    stub.gpus[0].fields |= dict.fromkeys(stub.gpus[0].fields, denied)
    with caplog.at_level(logging.WARNING):
        capabilities = driver.capabilities(driver.devices()[0])
    assert capabilities[signal("energy")].reason == "not permitted for this user"
    assert len(caplog.records) == 1


def test_every_row_of_the_error_table_is_a_code_of_nvml() -> None:
    known = {name.removeprefix("NVML_ERROR_") for name in dir(pynvml) if name.startswith("NVML_ERROR_")}
    assert set(RULES) <= known


@pytest.mark.parametrize("name", [name for name in dir(pynvml) if name.startswith("NVML_ERROR_")])
def test_every_code_of_nvml_has_an_action(name: str) -> None:
    errors = ErrorPolicy(pynvml)
    short = name.removeprefix("NVML_ERROR_")
    action = RULES[short].action if short in RULES else Action.TRANSIENT
    raised: type[Exception] | None = {Action.LOST: DeviceLost, Action.GONE: GpuBackendError}.get(action)
    code = getattr(pynvml, name)
    if raised:
        with pytest.raises(raised):
            errors.judge(code, "a call", "GPU-0")
    elif action is not Action.RESTART:
        assert errors.judge(pynvml.NVMLError(code), "a call", "GPU-0").action is action
    assert errors.name(code) == short
    assert errors.counts[short] == (action in {Action.LOST, Action.GONE, Action.TRANSIENT, Action.DENIED})


def test_events_are_xids_with_their_device_and_come_once(stub: Any, clock: FakeClock, new_gpu: Any) -> None:
    stub.gpus.append(new_gpu("GPU-1"))
    driver = NvmlDriver(clock=clock)
    driver.devices()
    assert driver.events() == []
    stub.xids += [("GPU-1", 31), ("GPU-0", 79)]
    events = driver.events()
    assert [(one.device, one.kind, one.code, one.t_ns) for one in events] == [
        ("GPU-1", "xid", 31, clock.now_ns()),
        ("GPU-0", "xid", 79, clock.now_ns()),
    ]
    assert driver.events() == []


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_NOT_SUPPORTED])
@pytest.mark.parametrize("call", ["nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes", "nvmlEventSetCreate"])
def test_a_gpu_whose_events_could_not_be_registered_is_tried_again_ever_more_seldom(
    stub: Any, clock: FakeClock, new_gpu: Any, driver: NvmlDriver, call: str, code: int
) -> None:
    stub.code[call] = code
    for _ in range(300):
        driver.devices()
        clock.advance(1.0)
    assert not driver.watched
    assert 8 <= stub.count[call] <= 10
    del stub.code[call]
    clock.advance(300)
    driver.devices()
    driver.devices()
    assert driver.watched == {"GPU-0"}
    assert stub.count["nvmlDeviceRegisterEvents"] <= 11
    stub.xids.append(("GPU-0", 31))
    assert [event.code for event in driver.events()] == [31]


def test_a_driver_without_events_registers_none(stub: Any, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock, events=False)
    driver.read(driver.devices()[0], Tier.FAST)
    assert (driver.events(), stub.count["nvmlEventSetCreate"], stub.count["nvmlEventSetWait_v2"]) == ([], 0, 0)


def test_a_lost_gpu_can_still_tell_its_xid(stub: Any, driver: NvmlDriver) -> None:
    driver.devices()
    stub.gpus[0].code = pynvml.NVML_ERROR_GPU_IS_LOST
    stub.xids.append(("GPU-0", 79))
    assert [(one.device, one.code) for one in driver.events()] == [("GPU-0", 79)]


@pytest.mark.parametrize("call", ["nvmlDeviceGetSupportedEventTypes", "nvmlEventSetCreate", "nvmlDeviceRegisterEvents"])
def test_without_event_support_there_are_silently_none(
    stub: Any, call: str, caplog: pytest.LogCaptureFixture, driver: NvmlDriver
) -> None:
    stub.code[call] = pynvml.NVML_ERROR_NOT_SUPPORTED
    driver.devices()
    assert driver.events() == []
    assert driver.errors == {}
    assert caplog.records == []


def test_a_library_that_cannot_wait_for_events_has_none(stub: Any, clock: FakeClock) -> None:
    del stub.nvmlEventSetWait_v2
    stub.xids.append(("GPU-0", 79))
    driver = NvmlDriver(clock=clock)
    driver.devices()
    assert (driver.events(), driver.errors) == ([], {})


def test_an_event_set_that_fails_does_not_stop_the_sampler(stub: Any, driver: NvmlDriver) -> None:
    driver.devices()
    stub.code["nvmlEventSetWait_v2"] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert driver.events() == []


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_UNINITIALIZED])
def test_events_before_an_error_are_not_lost(
    stub: Any, driver: NvmlDriver, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    driver.devices()
    wait = driver._library.event_wait
    monkeypatch.setattr(driver._library, "event_wait", lambda *told: wait(*told) if stub.xids else error)
    stub.xids += [("GPU-0", 31), ("GPU-0", 79)]
    assert [event.code for event in driver.events()] == [31, 79]
    if error == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        with pytest.raises(GpuBackendError):
            driver.events()


def test_a_device_is_looked_at_anew_when_its_instances_change(stub: Any, new_gpu: Any, driver: NvmlDriver) -> None:
    gpu = driver.devices()[0]
    assert driver.capabilities(gpu)[signal("utilization")].available
    stub.gpus[0].mig = [new_gpu("MIG-1")]
    stub.gpus[0].calls = {"nvmlDeviceGetUtilizationRates": pynvml.NVML_ERROR_NOT_SUPPORTED}
    assert [device.uuid for device in driver.devices()] == ["GPU-0", "MIG-1"]
    reason = driver.capabilities(gpu)[signal("utilization")].reason
    assert reason == "not supported by this GPU, which is cut into MIG instances"


def test_closing_twice_shuts_nvml_down_once_and_frees_all(stub: Any, driver: NvmlDriver) -> None:
    driver.boundary(driver.devices()[0])
    driver.close()
    driver.close()
    assert (stub.count["nvmlShutdown"], stub.live, stub.gpm_buffers) == (1, 0, set())
    assert stub.count["nvmlEventSetFree"] == 1
    with pytest.raises(GpuBackendError, match="closed"):
        driver.devices()


def test_closing_does_not_raise_if_the_driver_is_gone(stub: Any, driver: NvmlDriver) -> None:
    driver.boundary(driver.devices()[0])
    for call in ("nvmlShutdown", "nvmlGpmSampleFree", "nvmlEventSetFree"):
        stub.code[call] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    driver.close()
    assert driver.errors == {"DRIVER_NOT_LOADED": 3}


def test_a_forked_child_starts_nvml_itself_and_touches_nothing_of_its_parents(stub: Any, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    driver.boundary(device)
    clock.advance(1)
    stub.count.clear()

    def child() -> None:
        assert driver.boundary(device) == []  # the parent's window is not continued
        assert driver.read(device, Tier.FAST)
        driver.close()
        # Its own GPM buffer and event set are freed.
        for call in ("nvmlInitWithFlags", "nvmlShutdown", "nvmlGpmSampleFree", "nvmlEventSetFree"):
            assert stub.count[call] == 1, call

    in_child(child)
    assert len(driver.boundary(device)) == 4


def test_a_forked_child_that_only_closes_calls_nothing(stub: Any, driver: NvmlDriver) -> None:
    driver.boundary(driver.devices()[0])
    stub.count.clear()

    def child() -> int:
        driver.close()
        return int(stub.count.total())

    assert in_child(child) == "0"


def test_facts_that_a_driver_does_not_tell_for_a_while_are_asked_for_until_it_does(
    stub: Any, new_gpu: Any, driver: NvmlDriver
) -> None:
    stub.gpus[0].mig = [new_gpu("MIG-1"), new_gpu("MIG-2")]
    name, part = "nvmlDeviceGetName", "nvmlDeviceGetBoardPartNumber"
    stub.code = {name: pynvml.NVML_ERROR_UNKNOWN, part: pynvml.NVML_ERROR_NOT_SUPPORTED}
    first = driver.devices()
    assert [device.name for device in first] == [""] * 3
    stub.code = {part: pynvml.NVML_ERROR_NOT_SUPPORTED}
    gpu, *slices = driver.devices()
    assert gpu.name == "NVIDIA H100 80GB HBM3"
    assert all(device.name.startswith("NVIDIA H100 80GB HBM3 MIG") for device in slices)
    # What it will never tell is not asked for again, nor what is known.
    asked = stub.count[part]
    assert driver.devices() == [gpu, *slices]
    assert stub.count[part] == asked


def test_an_instance_that_does_not_tell_its_name_is_not_called_as_its_gpu(
    stub: Any, new_gpu: Any, driver: NvmlDriver
) -> None:
    stub.gpus[0].mig = [new_gpu("MIG-1"), new_gpu("MIG-2")]
    whole = driver.devices()
    stub.code = {"nvmlDeviceGetName": pynvml.NVML_ERROR_UNKNOWN}
    holes = driver.devices()
    assert [(device.name, device.mig_profile) for device in holes[1:]] == [("", "")] * 2
    assert [device.filled_from(before) for device, before in zip(holes, whole, strict=True)] == whole

"""Who uses a device: memory once, utilisation since the last call or none, and each process where it really is."""

from typing import Any

import pynvml
import pytest

from gpu_profile.catalogue.samples import ProcessUse
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.testing import FakeClock

GIB = 1 << 30
UTILIZATION = "nvmlDeviceGetProcessUtilization"


def us(clock: FakeClock) -> int:
    return clock.now_ns() // 1000


def test_processes_carry_their_memory_or_none(stub: Any, driver: NvmlDriver) -> None:
    stub.gpus[0].processes = [(4242, 7 * GIB), (4243, 2**64 - 1)]
    device = driver.devices()[0]
    assert driver.processes(device) == [ProcessUse(4242, 7 * GIB), ProcessUse(4243, None)]
    stub.gpus[0].processes = []
    assert driver.processes(device) == []


def test_a_process_that_computes_and_draws_is_listed_once_with_its_memory(stub: Any, driver: NvmlDriver) -> None:
    stub.gpus[0].processes = [(1, 7 * GIB), (2, 2**64 - 1), (3, GIB)]
    stub.gpus[0].drawing = [(1, 7 * GIB), (2, 5 * GIB), (3, 2**64 - 1), (4, 3 * GIB)]
    found = driver.processes(driver.devices()[0])
    assert [(use.pid, use.memory_bytes) for use in found] == [(1, 7 * GIB), (2, 5 * GIB), (3, GIB), (4, 3 * GIB)]


def test_one_list_that_a_driver_lacks_is_not_asked_for_again_and_hides_no_other(stub: Any, driver: NvmlDriver) -> None:
    stub.gpus[0].processes, stub.gpus[0].drawing = [(1, GIB)], [(2, GIB)]
    stub.code["nvmlDeviceGetGraphicsRunningProcesses_v3"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    device = driver.devices()[0]
    for _ in range(3):
        assert driver.processes(device) == [ProcessUse(1, GIB)]
    assert stub.count["nvmlDeviceGetGraphicsRunningProcesses_v3"] == 1
    assert driver.errors == {}


def test_utilisation_is_the_mean_since_the_call_before_and_none_at_the_first(stub: Any, clock: FakeClock) -> None:
    gpu = stub.gpus[0]
    gpu.processes = [(1, GIB), (2, GIB), (3, GIB)]
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    gpu.shares = [(1, us(clock) - 10, 99)]
    assert [use.utilization for use in driver.processes(device)] == [None, None, None]
    clock.advance(5)
    gpu.shares += [(1, us(clock) - 100_000, 25), (2, us(clock) - 200_000, 50), (9, us(clock) - 100_000, 5)]
    assert [use.utilization for use in driver.processes(device)] == [0.25, 0.5, None]
    clock.advance(5)
    assert [use.utilization for use in driver.processes(device)] == [None, None, None]


def test_samples_one_by_one_are_averaged_over_all_of_them(stub: Any, clock: FakeClock, driver: NvmlDriver) -> None:
    gpu = stub.gpus[0]
    gpu.processes = [(1, GIB), (2, GIB)]
    device = driver.devices()[0]
    driver.processes(device)
    start = us(clock)
    clock.advance(4)
    gpu.shares = [(1, start + 1_000_000 * k, 80) for k in (1, 2, 3)] + [(2, start + 4_000_000, 40)]
    assert [use.utilization for use in driver.processes(device)] == pytest.approx([0.6, 0.1])


@pytest.mark.parametrize("row", [(1, 0, 50), (1, 5_000_000, 101), (1, 5_000_000, 2**32 - 1), (1, 60_000_000, 50)])
def test_rows_that_cannot_be_true_say_nothing(stub: Any, clock: FakeClock, row: tuple[int, int, int]) -> None:
    gpu = stub.gpus[0]
    gpu.processes = [(1, GIB)]
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    driver.processes(device)
    pid, after_us, percent = row
    gpu.shares = [(pid, us(clock) + after_us, percent)]
    clock.advance(5)
    assert driver.processes(device) == [ProcessUse(1, GIB)]


def test_after_a_pause_that_the_drivers_samples_do_not_span_there_is_no_utilisation(
    stub: Any, clock: FakeClock, driver: NvmlDriver
) -> None:
    gpu = stub.gpus[0]
    gpu.processes = [(1, GIB)]
    device = driver.devices()[0]
    driver.processes(device)
    clock.advance(60)
    gpu.shares = [(1, us(clock), 50)]
    assert [use.utilization for use in driver.processes(device)] == [None]
    assert stub.count[UTILIZATION] == 0
    clock.advance(5)
    gpu.shares = [(1, us(clock), 50)]
    assert [use.utilization for use in driver.processes(device)] == [0.5]


def test_without_utilisation_there_is_still_memory(stub: Any, clock: FakeClock, driver: NvmlDriver) -> None:
    stub.gpus[0].processes = [(1, GIB)]
    stub.code[UTILIZATION] = pynvml.NVML_ERROR_NOT_SUPPORTED
    device = driver.devices()[0]
    for _ in range(3):
        assert driver.processes(device) == [ProcessUse(1, GIB)]
        clock.advance(5)
    assert stub.count[UTILIZATION] == 1


def test_on_a_gpu_that_is_cut_each_process_is_listed_by_its_instance_alone(
    stub: Any, clock: FakeClock, new_gpu: Any, driver: NvmlDriver
) -> None:
    first, second = new_gpu("MIG-1"), new_gpu("MIG-2")
    first.instance, second.instance = 1, 2
    stub.gpus[0].mig = [first, second]
    stub.gpus[0].processes = [(10, GIB, 1), (20, 2 * GIB, 2), (21, GIB, 2)]
    first.processes, second.processes = [(10, GIB, 1), (20, 2 * GIB, 2)], [(20, 2 * GIB, 2), (21, GIB, 2)]
    listed = {device.uuid: [use.pid for use in driver.processes(device)] for device in driver.devices()}
    assert listed == {"GPU-0": [], "MIG-1": [10], "MIG-2": [20, 21]}
    clock.advance(5)
    for device in driver.devices():
        driver.processes(device)
    assert stub.count[UTILIZATION] == 0

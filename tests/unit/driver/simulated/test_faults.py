import time
from collections.abc import Callable
from pathlib import Path

import pynvml as nv
import pytest

from gpu_profile.driver.simulated import SimulatedQueue, Work
from gpu_profile.testing import FakeClock

NODE = '[[device]]\nmodel = "H200 SXM"\n[[device]]\nmodel = "L4"\n'


def test_lost_gpu_fails_every_call_and_the_other_stays(install: Callable[..., Path], clock: FakeClock) -> None:
    install(NODE + '[[fault]]\nkind = "gpu_lost"\nfrom_s = 1\nto_s = 2\n')
    lost, well = nv.nvmlDeviceGetHandleByIndex(0), nv.nvmlDeviceGetHandleByIndex(1)
    assert nv.nvmlDeviceGetPowerUsage(lost)
    clock.advance(1.0)
    for call in (nv.nvmlDeviceGetPowerUsage, nv.nvmlDeviceGetName, nv.nvmlDeviceGetUtilizationRates):
        with pytest.raises(nv.NVMLError_GpuIsLost):
            call(lost)
    with pytest.raises(nv.NVMLError_GpuIsLost):
        nv.nvmlDeviceGetHandleByIndex(0)
    assert nv.nvmlDeviceGetCount() == 2
    assert nv.nvmlDeviceGetPowerUsage(well)
    clock.advance(1.0)
    assert nv.nvmlDeviceGetPowerUsage(lost)


def test_a_removed_gpu_is_listed_again_only_by_an_nvml_that_is_started_afterwards(
    install: Callable[..., Path], clock: FakeClock
) -> None:
    install(NODE + '[[fault]]\nkind = "gpu_removed"\ndevice = 0\nfrom_s = 1\nto_s = 3\n')
    uuid = nv.nvmlDeviceGetUUID(first := nv.nvmlDeviceGetHandleByIndex(0))
    assert nv.nvmlDeviceGetCount() == 2
    for _ in range(3):
        clock.advance(1.0)
        assert nv.nvmlDeviceGetCount() == 2
        for call, argument in ((nv.nvmlDeviceGetHandleByIndex, 0), (nv.nvmlDeviceGetName, first)):
            with pytest.raises(nv.NVMLError_GpuIsLost):
                call(argument)
    nv.nvmlShutdown()
    nv.nvmlInit()
    assert nv.nvmlDeviceGetUUID(nv.nvmlDeviceGetHandleByIndex(0)) == uuid


def test_who_starts_nvml_while_a_gpu_is_removed_counts_the_others(
    install: Callable[..., Path], clock: FakeClock
) -> None:
    install(NODE + '[[fault]]\nkind = "gpu_removed"\ndevice = 0\nfrom_s = 1\nto_s = 3\n')
    first, second = (nv.nvmlDeviceGetUUID(nv.nvmlDeviceGetHandleByIndex(index)) for index in range(2))
    clock.advance(2.0)
    nv.nvmlShutdown()
    nv.nvmlInit()
    clock.advance(2.0)
    assert nv.nvmlDeviceGetCount() == 1
    assert nv.nvmlDeviceGetUUID(nv.nvmlDeviceGetHandleByIndex(0)) == second
    with pytest.raises(nv.NVMLError_NotFound):
        nv.nvmlDeviceGetHandleByUUID(first)


def test_reload_needs_new_init_and_handles_and_restarts_energy(install: Callable[..., Path], clock: FakeClock) -> None:
    directory = install(NODE + '[[fault]]\nkind = "driver_reload"\nfrom_s = 100\nto_s = 101\n')
    queue = SimulatedQueue(directory, clock=clock)
    old = nv.nvmlDeviceGetHandleByIndex(0)
    for _ in range(90):
        queue.launch(Work(flops=1e14))
        clock.advance(1.0)
        before = nv.nvmlDeviceGetTotalEnergyConsumption(old)
    clock.advance(10.0)
    with pytest.raises(nv.NVMLError_Uninitialized):
        nv.nvmlDeviceGetName(old)
    with pytest.raises(nv.NVMLError_DriverNotLoaded):
        nv.nvmlInit()
    clock.advance(1.0)
    with pytest.raises(nv.NVMLError_Uninitialized):
        nv.nvmlDeviceGetCount()
    nv.nvmlInit()
    with pytest.raises(nv.NVMLError_InvalidArgument):
        nv.nvmlDeviceGetName(old)
    new = nv.nvmlDeviceGetHandleByIndex(0)
    clock.advance(60.0)
    queue.launch(Work(flops=1e14))
    clock.advance(10.0)
    # 69.9 s of idle power up to the last refresh, and one kernel; the 90 before the reload no longer count.
    kernel = (before - 89.9 * 75_000) / 90
    assert nv.nvmlDeviceGetTotalEnergyConsumption(new) == pytest.approx(69.9 * 75_000 + kernel, abs=2)


def test_mismatch_outlives_a_new_init(install: Callable[..., Path], clock: FakeClock) -> None:
    install(NODE + '[[fault]]\nkind = "driver_reload"\nfrom_s = 1\nto_s = 2\nmismatch = true\n')
    clock.advance(5.0)
    for call in (nv.nvmlDeviceGetCount, nv.nvmlInit):
        with pytest.raises(nv.NVMLError_LibRmVersionMismatch):
            call()


def test_hang_holds_up_the_call_it_names_and_no_other(install: Callable[..., Path], clock: FakeClock) -> None:
    text = '[[fault]]\nkind = "hang"\nfrom_s = 0\nto_s = 50\nhang_s = 30\nfunction = "nvmlDeviceGetPowerUsage"\n'
    install(NODE + text)
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    before = clock.now_ns()
    nv.nvmlDeviceGetName(handle)
    nv.nvmlDeviceGetPowerUsage(nv.nvmlDeviceGetHandleByIndex(1))
    assert clock.now_ns() == before
    nv.nvmlDeviceGetPowerUsage(handle)
    assert clock.now_ns() == before + 30_000_000_000


def test_events_arrive_once_after_registration(install: Callable[..., Path], clock: FakeClock) -> None:
    install(
        NODE
        + '[[fault]]\nkind = "xid"\nfrom_s = 1\nxid = 31\n'
        + '[[fault]]\nkind = "xid"\nfrom_s = 5\nxid = 48\n'
        + '[[fault]]\nkind = "gpu_lost"\ndevice = 1\nfrom_s = 7\n'
    )
    clock.advance(2.0)
    chosen = nv.nvmlEventSetCreate()
    uuids = []
    for i in range(2):
        handle = nv.nvmlDeviceGetHandleByIndex(i)
        uuids.append(nv.nvmlDeviceGetUUID(handle))
        assert nv.nvmlDeviceGetSupportedEventTypes(handle) == nv.nvmlEventTypeXidCriticalError
        nv.nvmlDeviceRegisterEvents(handle, nv.nvmlEventTypeXidCriticalError, chosen)
    with pytest.raises(nv.NVMLError_Timeout):
        nv.nvmlEventSetWait_v2(chosen, 1000)
    waited_from = clock.now_ns()
    event = nv.nvmlEventSetWait_v2(chosen, 60_000)
    assert (event.eventData, nv.nvmlDeviceGetUUID(event.device)) == (48, uuids[0])
    assert clock.now_ns() == waited_from + 2_000_000_000
    event = nv.nvmlEventSetWait_v2(chosen, 60_000)
    assert event.eventData == 79
    with pytest.raises(nv.NVMLError_GpuIsLost):
        nv.nvmlDeviceGetUUID(event.device)
    with pytest.raises(nv.NVMLError_Timeout):
        nv.nvmlEventSetWait_v2(chosen, 0)
    nv.nvmlEventSetFree(chosen)
    with pytest.raises(nv.NVMLError_InvalidArgument):
        nv.nvmlEventSetFree(chosen)


def test_wait_for_events_ends_even_if_time_stands_still(install: Callable[..., Path], clock: FakeClock) -> None:
    class Stopped(FakeClock):
        def wait(self, event: object, timeout_s: float) -> bool:
            return False

    install(NODE)
    nv.nvmlLib.node.clock = Stopped()
    began = time.monotonic()
    with pytest.raises(nv.NVMLError_Timeout):
        nv.nvmlEventSetWait_v2(nv.nvmlEventSetCreate(), 60_000)
    assert time.monotonic() - began < 30

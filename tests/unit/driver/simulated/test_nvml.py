import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml as nv
import pytest

from gpu_profile.driver import simulated
from gpu_profile.driver.simulated import SimulatedQueue, Work
from gpu_profile.errors import ScenarioError
from gpu_profile.testing import START_NS, FakeClock

MIB = 1 << 20
ALL = 0xFFFFFFFF


def field(handle: Any, *fields: int | tuple[int, int]) -> list[int]:
    values = nv.nvmlDeviceGetFieldValues(handle, list(fields))
    assert all(value.nvmlReturn == nv.NVML_SUCCESS for value in values)
    wide = nv.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    return [value.value.ullVal if value.valueType == wide else value.value.uiVal for value in values]


def codes(handle: Any, *fields: int) -> list[int]:
    return [value.nvmlReturn for value in nv.nvmlDeviceGetFieldValues(handle, list(fields))]


def test_identity_of_the_built_in_node(install: Callable[..., Path]) -> None:
    install()
    handles = [nv.nvmlDeviceGetHandleByIndex(i) for i in range(nv.nvmlDeviceGetCount())]
    assert [nv.nvmlDeviceGetName(h) for h in handles] == ["NVIDIA H200", "NVIDIA A10G", "NVIDIA H100 80GB HBM3"]
    assert [nv.nvmlDeviceGetIndex(h) for h in handles] == [nv.nvmlDeviceGetMinorNumber(h) for h in handles] == [0, 1, 2]
    for handle in handles:
        again = nv.nvmlDeviceGetHandleByUUID(nv.nvmlDeviceGetUUID(handle))
        assert nv.nvmlDeviceGetUUID(again) == nv.nvmlDeviceGetUUID(handle)
    assert nv.nvmlDeviceGetPciInfo(handles[1]).busId == "00000000:28:00.0"
    assert nv.nvmlSystemGetDriverVersion() == "580.126.09"
    assert nv.nvmlSystemGetNVMLVersion() == "13.580.126.09"
    assert nv.nvmlSystemGetCudaDriverVersion() == nv.nvmlSystemGetCudaDriverVersion_v2() == 13000
    assert nv.nvmlDeviceGetEnforcedPowerLimit(handles[0]) == 700_000
    assert nv.nvmlDeviceGetMaxClockInfo(handles[0], nv.NVML_CLOCK_SM) == 1980
    assert nv.nvmlDeviceGetClockInfo(handles[0], nv.NVML_CLOCK_MEM) == 3201


def test_unknown_devices_and_arguments_have_the_driver_s_codes(install: Callable[..., Path]) -> None:
    install()
    with pytest.raises(nv.NVMLError_InvalidArgument):
        nv.nvmlDeviceGetHandleByIndex(3)
    with pytest.raises(nv.NVMLError_NotFound):
        nv.nvmlDeviceGetHandleByUUID("GPU-none")
    with pytest.raises(nv.NVMLError_FunctionNotFound):
        nv.nvmlDeviceGetPcieThroughput(nv.nvmlDeviceGetHandleByIndex(0), nv.NVML_PCIE_UTIL_TX_BYTES)
    with pytest.raises(nv.NVMLError_InvalidArgument):
        nv.nvmlDeviceGetClockInfo(nv.nvmlDeviceGetHandleByIndex(0), 99)
    with pytest.raises(nv.NVMLError_InvalidArgument):
        nv.nvmlDeviceGetName(nv.c_nvmlDevice_t())
    assert nv.nvmlErrorString(nv.NVML_ERROR_GPU_IS_LOST) == "GPU is lost"
    assert nv.nvmlErrorString(12345) == "Unknown Error"


def test_calls_before_init_and_after_shutdown_are_uninitialized(install: Callable[..., Path]) -> None:
    install()
    nv.nvmlShutdown()
    for call in (nv.nvmlDeviceGetCount, nv.nvmlShutdown, nv.nvmlGpmSampleAlloc):
        with pytest.raises(nv.NVMLError_Uninitialized):
            call()


def test_one_busy_second_shows_in_every_sensor(install: Callable[..., Path], clock: FakeClock) -> None:
    queue = SimulatedQueue(install(), clock=clock)
    queue.launch(Work(flops=500e12, bytes=1.2e12, pcie_bytes=1e9, nvlink_bytes=1e9, seconds=1.0))
    queue.copy(5e8, "to_host")
    clock.advance(0.9)
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    rates = nv.nvmlDeviceGetUtilizationRates(handle)
    assert (rates.gpu, rates.memory) == (100, 100)
    # 15 % for all multiprocessors, 85 % of the tensor pipe's share, 55 % of the memory's; see physics.
    watts = 75 + 625 * (0.15 + 0.85 * 500 / 989.4 + 0.55 * (1.2e12 + 1e9) / 4.8e12)
    instant, energy = field(handle, nv.NVML_FI_DEV_POWER_INSTANT, nv.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION)
    assert instant == pytest.approx(watts * 1000, abs=1)
    assert energy == pytest.approx(watts * 800, rel=1e-4)
    assert nv.nvmlDeviceGetTotalEnergyConsumption(handle) == energy
    # The last second ended at 0.8 s, so a fifth of it was idle.
    assert nv.nvmlDeviceGetPowerUsage(handle) == pytest.approx((0.8 * watts + 0.2 * 75) * 1000, rel=1e-3)
    assert nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM) == 1980
    clock.advance(1.0)
    received, sent, nvlink, one_link = field(
        handle,
        nv.NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
        nv.NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
        (nv.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL),
        (nv.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 3),
    )
    assert (received, sent, nvlink, one_link) == (10**9, 5 * 10**8, 10**9 // 1024, 10**9 // 1024 // 18)
    assert nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM) == 345


def test_utilisation_is_a_trailing_mean_that_refreshes_in_steps(install: Callable[..., Path], clock: FakeClock) -> None:
    queue = SimulatedQueue(install(), clock=clock)
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    clock.advance(0.5)
    queue.launch(Work(seconds=0.15))
    seen = []
    for _ in range(8):
        clock.advance(0.05)
        seen.append(nv.nvmlDeviceGetUtilizationRates(handle).gpu)
    # Busy from 0.5 s to 0.65 s: nothing shows before the refresh at 0.667 s, and it stays until the one at 0.833 s.
    assert seen == [0, 0, 0, 90, 90, 90, 0, 0]


def test_sample_buffers_give_what_is_new_with_its_own_time(install: Callable[..., Path], clock: FakeClock) -> None:
    queue = SimulatedQueue(install(), clock=clock)
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(nv.NVMLError_NotFound):
        nv.nvmlDeviceGetSamples(handle, nv.NVML_GPU_UTILIZATION_SAMPLES, 0)
    queue.launch(Work(seconds=0.5, bytes=1e9))
    clock.advance(1.01)
    kind, samples = nv.nvmlDeviceGetSamples(handle, nv.NVML_GPU_UTILIZATION_SAMPLES, 0)
    assert kind == nv.NVML_VALUE_TYPE_UNSIGNED_INT
    assert [sample.sampleValue.uiVal for sample in samples] == [100, 100, 100, 0, 0, 0]
    stamps = [sample.timeStamp - START_NS // 1000 for sample in samples]
    assert stamps == [166_666, 333_333, 499_999, 666_666, 833_333, 999_999]
    assert [s.timeStamp for s in nv.nvmlDeviceGetSamples(handle, 1, samples[3].timeStamp)[1]] == [
        s.timeStamp for s in samples[4:]
    ]
    with pytest.raises(nv.NVMLError_NotFound):
        nv.nvmlDeviceGetSamples(handle, nv.NVML_GPU_UTILIZATION_SAMPLES, samples[-1].timeStamp)
    power = nv.nvmlDeviceGetSamples(handle, nv.NVML_TOTAL_POWER_SAMPLES, 0)[1]
    assert len(power) == 50
    assert power[-1].sampleValue.uiVal == 75_000
    clocks = nv.nvmlDeviceGetSamples(handle, nv.NVML_PROCESSOR_CLK_SAMPLES, 0)[1]
    # Started 5 µs after its launch, the kernel still ran just after 0.5 s.
    assert [sample.sampleValue.uiVal for sample in clocks] == [1980] * 4 + [345] * 2
    memory = nv.nvmlDeviceGetSamples(handle, nv.NVML_MEMORY_UTILIZATION_SAMPLES, 0)[1]
    assert [sample.sampleValue.uiVal for sample in memory] == [100, 100, 100, 0, 0, 0]
    assert nv.nvmlDeviceGetSamples(handle, nv.NVML_MEMORY_CLK_SAMPLES, 0)[1][0].sampleValue.uiVal == 3201
    with pytest.raises(nv.NVMLError_NotSupported):
        nv.nvmlDeviceGetSamples(handle, nv.NVML_ENC_UTILIZATION_SAMPLES, 0)


def test_sample_buffers_hold_only_the_newest(install: Callable[..., Path], clock: FakeClock) -> None:
    install()
    clock.advance(60)
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    assert len(nv.nvmlDeviceGetSamples(handle, nv.NVML_TOTAL_POWER_SAMPLES, 0)[1]) == 120


def test_models_lack_what_the_real_ones_lack(install: Callable[..., Path]) -> None:
    install('[[device]]\nmodel = "A100 80 SXM"\n[[device]]\nmodel = "L4"\n')
    a100, l4 = nv.nvmlDeviceGetHandleByIndex(0), nv.nvmlDeviceGetHandleByIndex(1)
    asked = (
        nv.NVML_FI_DEV_POWER_AVERAGE,
        nv.NVML_FI_DEV_POWER_INSTANT,
        nv.NVML_FI_DEV_MEMORY_TEMP,
        nv.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
        nv.NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX,
    )
    assert codes(a100, *asked) == [3, 0, 0, 0, 3]
    assert codes(l4, *asked) == [0, 0, 3, 3, 3]
    assert not nv.nvmlGpmQueryDeviceSupport(l4).isSupportedDevice
    with pytest.raises(nv.NVMLError_NotSupported):
        nv.nvmlGpmSampleGet(l4, nv.nvmlGpmSampleAlloc())


def test_scenario_can_take_away_any_reading(install: Callable[..., Path], clock: FakeClock) -> None:
    names = (
        '"nvmlDeviceGetPowerUsage", "NVML_FI_DEV_POWER_INSTANT", "NVML_TOTAL_POWER_SAMPLES", "NVML_GPM_METRIC_SM_UTIL"'
    )
    install(f'[[device]]\nmodel = "H200 SXM"\nunsupported = [{names}]\n')
    clock.advance(1)
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(nv.NVMLError_NotSupported):
        nv.nvmlDeviceGetPowerUsage(handle)
    with pytest.raises(nv.NVMLError_NotSupported):
        nv.nvmlDeviceGetSamples(handle, nv.NVML_TOTAL_POWER_SAMPLES, 0)
    assert codes(handle, nv.NVML_FI_DEV_POWER_INSTANT, nv.NVML_FI_DEV_POWER_AVERAGE) == [3, 0]
    first, last = gpm(handle), gpm(handle)
    clock.advance(0.2)
    nv.nvmlGpmSampleGet(handle, last)
    assert [code for code, _ in metrics(first, last, 1, 2)] == [0, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('unsupported = ["nvmlDeviceGetPowerUse"]\n', "device 0.unsupported.: unknown .*'nvmlDeviceGetPow"),
        ('[[fault]]\nkind="hang"\nfrom_s=0\nhang_s=1\nfunction="nvmlDeviceGetNam"\n', "fault 0.function.*GetName'"),
    ],
)
def test_names_in_a_scenario_must_exist(install: Callable[..., Path], text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        install('[[device]]\nmodel = "L4"\n' + text)


def test_memory_and_processes_follow_the_logs(install: Callable[..., Path], clock: FakeClock) -> None:
    directory = install()
    handle = nv.nvmlDeviceGetHandleByIndex(1)
    assert nv.nvmlDeviceGetComputeRunningProcesses(handle) == []
    with SimulatedQueue(directory, 1, clock=clock) as queue:
        queue.allocate(3 * MIB)
        queue.free(MIB)
        clock.advance(0.1)
        memory = nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2)
        assert (memory.total, memory.reserved, memory.used) == (23_028 * MIB, 491 * MIB, 2 * MIB)
        assert memory.total == memory.reserved + memory.used + memory.free
        assert nv.nvmlDeviceGetMemoryInfo(handle).used == memory.used + memory.reserved
        [process] = nv.nvmlDeviceGetComputeRunningProcesses(handle)
        assert (process.pid, process.usedGpuMemory, process.gpuInstanceId) == (os.getpid(), 2 * MIB, ALL)
    clock.advance(0.1)
    assert nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2).used == 0
    assert nv.nvmlDeviceGetComputeRunningProcesses(handle) == []


def test_work_is_never_on_a_device_that_follows_a_script(install: Callable[..., Path], clock: FakeClock) -> None:
    directory = install()
    with SimulatedQueue(directory, clock=clock) as queue:
        queue.launch(Work())
    (directory / "scenario.toml").write_text('[[device]]\nmodel = "L4"\n[[device.phase]]\nduration_s = 1\n')
    simulated.install(directory, clock=clock)
    nv.nvmlInit()
    with pytest.raises(ScenarioError, match=r"work-\d+-0.log: \[byte 64\]: work for GPU-.* follows a script"):
        nv.nvmlDeviceGetName(nv.nvmlDeviceGetHandleByIndex(0))


def gpm(handle: Any) -> Any:
    return nv.nvmlGpmSampleGet(handle, nv.nvmlGpmSampleAlloc())


def metrics(first: Any, last: Any, *ids: int) -> list[tuple[int, float]]:
    request = nv.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = nv.NVML_GPM_METRICS_GET_VERSION, len(ids)
    request.sample1, request.sample2 = first, last
    for i, metric in enumerate(ids):
        request.metrics[i].metricId = metric
    nv.nvmlGpmMetricsGet(request)
    return [(request.metrics[i].nvmlReturn, request.metrics[i].value) for i in range(len(ids))]


def test_gpm_reports_means_between_internal_refreshes(install: Callable[..., Path], clock: FakeClock) -> None:
    queue = SimulatedQueue(install(), clock=clock)
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    clock.advance(0.102)
    first = gpm(handle)
    queue.launch(Work(flops=98.94e12, bytes=0.48e12, sms=0.5, seconds=0.2))
    clock.advance(0.05)
    assert metrics(first, gpm(handle), 2) == [(nv.NVML_ERROR_NOT_READY, 0.0)]
    clock.advance(0.45)
    answers = metrics(first, gpm(handle), 1, 2, 3, 5, 10, 11, 12, 13, 20, 300)
    assert [code for code, _ in answers] == [0] * 9 + [3]
    # 200 ms of work in the 500 ms between the refreshes at 0.1 s and 0.6 s.
    assert [value for _, value in answers[:9]] == pytest.approx([40, 20, 10, 20, 20, 0, 0, 0, 0], abs=1e-9)


def test_gpm_wants_two_samples_of_one_device(install: Callable[..., Path], clock: FakeClock) -> None:
    install()
    first, other = gpm(nv.nvmlDeviceGetHandleByIndex(0)), gpm(nv.nvmlDeviceGetHandleByIndex(2))
    clock.advance(1)
    with pytest.raises(nv.NVMLError_InvalidArgument):
        metrics(first, other, 1)
    nv.nvmlGpmSampleFree(first)
    with pytest.raises(nv.NVMLError_InvalidArgument):
        nv.nvmlGpmSampleFree(first)
    with pytest.raises(nv.NVMLError_InvalidArgument):
        metrics(first, other, 1)


def test_instances_answer_what_instances_can(install: Callable[..., Path], clock: FakeClock) -> None:
    directory = install()
    gpu = nv.nvmlDeviceGetHandleByIndex(2)
    assert nv.nvmlDeviceGetMigMode(gpu) == [1, 1]
    with pytest.raises(nv.NVMLError_NotSupported):
        nv.nvmlDeviceGetMigMode(nv.nvmlDeviceGetHandleByIndex(1))
    assert nv.nvmlDeviceGetMaxMigDeviceCount(gpu) == 7
    with pytest.raises(nv.NVMLError_NotFound):
        nv.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 2)
    part = nv.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 1)
    assert nv.nvmlDeviceIsMigDeviceHandle(part).value == 1
    assert nv.nvmlDeviceIsMigDeviceHandle(gpu).value == 0
    parent = nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
    assert nv.nvmlDeviceGetUUID(parent) == nv.nvmlDeviceGetUUID(gpu)
    assert (nv.nvmlDeviceGetGpuInstanceId(part), nv.nvmlDeviceGetComputeInstanceId(part)) == (2, 0)
    attributes = nv.nvmlDeviceGetAttributes(part)
    assert (attributes.gpuInstanceSliceCount, attributes.memorySizeMB) == (3, 81_559 // 2)
    for call in (
        nv.nvmlDeviceGetUtilizationRates,
        nv.nvmlDeviceGetPowerUsage,
        nv.nvmlDeviceGetTotalEnergyConsumption,
        nv.nvmlDeviceGetEncoderUtilization,
        lambda handle: nv.nvmlDeviceGetSamples(handle, 0, 0),
        lambda handle: nv.nvmlDeviceGetFieldValues(handle, [83]),
    ):
        with pytest.raises(nv.NVMLError_NotSupported):
            call(part)
    with pytest.raises(nv.NVMLError_NotSupported):
        nv.nvmlDeviceGetSamples(gpu, nv.NVML_GPU_UTILIZATION_SAMPLES, 0)
    queue = SimulatedQueue(directory, nv.nvmlDeviceGetUUID(part), clock=clock)
    queue.allocate(MIB)
    samples = [gpm(part), gpm(gpu), nv.nvmlGpmMigSampleGet(gpu, 2, nv.nvmlGpmSampleAlloc())]
    queue.launch(Work(seconds=1.0, sms=1.0))
    clock.advance(0.6)
    after = [gpm(part), gpm(gpu), nv.nvmlGpmMigSampleGet(gpu, 2, nv.nvmlGpmSampleAlloc())]
    busy = [metrics(before, now, 2)[0][1] for before, now in zip(samples, after, strict=True)]
    share = 100 * attributes.multiprocessorCount / 132
    assert busy == pytest.approx([100, share, 100], rel=1e-4)
    assert nv.nvmlDeviceGetMemoryInfo(part, version=nv.nvmlMemory_v2).used == MIB
    assert nv.nvmlDeviceGetMemoryInfo(gpu, version=nv.nvmlMemory_v2).used == MIB
    [process] = nv.nvmlDeviceGetComputeRunningProcesses(gpu)
    assert (process.gpuInstanceId, process.computeInstanceId) == (2, 0)
    assert nv.nvmlDeviceGetPowerUsage(gpu) > 70_000


def test_power_limit_holds_and_is_counted_as_throttling(install: Callable[..., Path], clock: FakeClock) -> None:
    queue = SimulatedQueue(install(), clock=clock)
    queue.launch(Work(flops=989.4e12, bytes=4e12, seconds=1.0))
    clock.advance(0.55)
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    [watts, throttled] = field(handle, nv.NVML_FI_DEV_POWER_INSTANT, nv.NVML_FI_DEV_PERF_POLICY_POWER)
    assert watts == 700_000
    assert throttled == 500_000_000 - 5_000
    assert nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM) < 1980


def test_noise_is_the_same_for_every_reader(install: Callable[..., Path], clock: FakeClock) -> None:
    directory = install('noise = 0.05\n[[device]]\nmodel = "L4"\n')
    seen = []
    for _ in range(2):
        simulated.install(directory, clock=FakeClock(START_NS))
        readings = []
        for _ in range(20):
            nv.nvmlLib.node.clock.advance(0.1)
            nv.nvmlInit()
            readings.append(nv.nvmlDeviceGetPowerUsage(nv.nvmlDeviceGetHandleByIndex(0)))
        seen.append(readings)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 10


def test_install_clears_what_pynvml_remembers_and_remove_undoes_it(
    install: Callable[..., Path], clock: FakeClock
) -> None:
    before = nv.nvmlLib
    install('[[device]]\nmodel = "L4"\n')
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    assert nv.nvmlDeviceGetName(handle) == "NVIDIA L4"
    other = simulated.create(nv.nvmlLib.node.directory / "other", '[[device]]\nmodel = "A10G"\n', clock=clock)
    with simulated.installed(other, clock=clock) as library:
        assert nv.nvmlLib is library
        nv.nvmlInit()
        assert nv.nvmlDeviceGetName(nv.nvmlDeviceGetHandleByIndex(0)) == "NVIDIA A10G"
    assert nv.nvmlLib is before
    assert not nv._nvmlGetFunctionPointer_cache
    simulated.remove()
    assert nv.nvmlLib is before


def test_reader_that_comes_late_sees_the_same_device(install: Callable[..., Path], clock: FakeClock) -> None:
    directory = install()
    queues = [SimulatedQueue(directory, clock=clock) for _ in range(2)]
    early = nv.nvmlLib
    for step in range(40):
        queues[step % 2].launch(Work(flops=(step % 7) * 1e13))
        clock.advance(0.02)
        early.node.refresh(clock.now_ns())
    late = simulated.install(directory, clock=clock)
    late.node.refresh(clock.now_ns())
    for t in range(START_NS, clock.now_ns(), 3_333_333):
        assert early.node.sensors[0].totals(t) == pytest.approx(late.node.sensors[0].totals(t), rel=1e-9)

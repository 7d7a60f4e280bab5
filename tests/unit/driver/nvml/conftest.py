"""A stand-in for libnvidia-ml.so.1 beneath nvidia-ml-py: just enough of NVML for each promise, all answers in sight."""

# ruff: noqa: N802 - the functions have the names that NVIDIA gave them

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

from gpu_profile.catalogue import DEFAULT_GROUPS, LIBRARY_GROUPS, Group
from gpu_profile.catalogue.samples import Device
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.testing import FakeClock

#: More than any of the product's parts reads by default, so that each kind of source is met.
GROUPS = DEFAULT_GROUPS | LIBRARY_GROUPS | {Group.MEDIA, Group.FABRIC, Group.GPM_DETAIL}
MIB = 1 << 20
OK: int = pynvml.NVML_SUCCESS
UNINITIALIZED: int = pynvml.NVML_ERROR_UNINITIALIZED
NOT_FOUND: int = pynvml.NVML_ERROR_NOT_FOUND
NOT_SUPPORTED: int = pynvml.NVML_ERROR_NOT_SUPPORTED
INVALID_ARGUMENT: int = pynvml.NVML_ERROR_INVALID_ARGUMENT
INSUFFICIENT_SIZE: int = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
TIMEOUT: int = pynvml.NVML_ERROR_TIMEOUT
UNKNOWN_FIELD = (NOT_SUPPORTED, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 0, 0)
MEMBERS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}


@dataclass
class StubGpu:
    """A GPU or MIG instance. `code` is what every call on it returns; `calls` overrides single functions."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    code: int = OK
    calls: dict[str, int] = field(default_factory=dict)
    #: field id -> (nvmlReturn, valueType, value, time stamp in µs)
    fields: dict[int, tuple[int, int, float, int]] = field(default_factory=dict)
    #: sampling type -> (time stamp in µs, value); an int is the return code
    buffers: dict[int, Any] = field(default_factory=dict)
    rates: tuple[int, int] = (37, 12)
    #: total, reserved, used, free
    memory: tuple[int, int, int, int] = (80 * 1024 * MIB, 600 * MIB, 5000 * MIB, 4000 * MIB)
    #: NVML's mask of the reasons for the present clocks
    reasons: int = 0
    #: state, status and health of the fabric
    fabric: tuple[int, int, int] = (3, 0, 0xAA)
    #: None: the driver lacks version 3 of the structure
    fabric_summary: int | None = 1
    margin: int = 21
    gpm: bool = True
    #: metric id -> (nvmlReturn, value in per cent)
    metrics: dict[int, tuple[int, float]] = field(default_factory=dict)
    mig: list[StubGpu] = field(default_factory=list)
    instance: int = 0
    #: (pid, bytes) or (pid, bytes, id of the GPU instance), of those that compute and of those that draw
    processes: list[tuple[int, ...]] = field(default_factory=list)
    drawing: list[tuple[int, ...]] = field(default_factory=list)
    #: (pid, time stamp in µs, per cent)
    shares: list[tuple[int, int, int]] = field(default_factory=list)


class StubNvml:
    """Plain functions as attributes, as nvidia-ml-py expects; `count` says how often each was called."""

    def __init__(self) -> None:
        self.gpus: list[StubGpu] = []
        self.code: dict[str, int] = {}
        self.count: Counter[str] = Counter()
        self.asked: list[list[tuple[int, int]]] = []
        self.asked_metrics: list[list[int]] = []
        self.gpm_pairs: list[tuple[int, int]] = []
        self.gpm_slices: list[tuple[str, int]] = []
        self.gpm_buffers: set[int] = set()
        self.xids: list[tuple[str, int]] = []
        self.live = 0
        self.driver_version = b"580.126.09"
        for name, function in _FUNCTIONS.items():
            setattr(self, name, self._entry(name, function))

    def _entry(self, name: str, function: Any) -> Any:
        def entry(*args: Any) -> int:
            self.count[name] += 1
            if name in self.code:
                return self.code[name]
            if name not in {"nvmlInitWithFlags", "nvmlShutdown"} and not self.live:
                return UNINITIALIZED
            return int(function(self, *args) or OK)

        return entry

    def everything(self) -> list[StubGpu]:
        """GPUs and instances; a device's handle is its place in this list plus one."""
        return [one for gpu in self.gpus for one in (gpu, *gpu.mig)]

    def at(self, handle: Any) -> StubGpu:
        return self.everything()[_address(handle) - 1]

    def handle(self, out: Any, gpu: StubGpu) -> None:
        ctypes.c_void_p.from_buffer(out._obj).value = self.everything().index(gpu) + 1


_FUNCTIONS: dict[str, Any] = {}


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _function(of: Any) -> Any:
    _FUNCTIONS[of.__name__] = of
    return of


def _on_device(of: Any) -> Any:
    """A function whose first argument is a device."""

    def entry(stub: StubNvml, handle: Any, *args: Any) -> int:
        gpu = stub.at(handle)
        code = gpu.code or gpu.calls.get(of.__name__, OK)
        return int(code or of(stub, gpu, *args) or OK)

    _FUNCTIONS[of.__name__] = entry
    return of


def _scalars(name: str, *values: int) -> None:
    """A function that answers with fixed numbers through its last arguments."""

    def entry(stub: StubNvml, handle: Any, *args: Any) -> int:
        gpu = stub.at(handle)
        for out, value in zip(args[len(args) - len(values) :], values, strict=True):
            out._obj.value = value
        return gpu.code or gpu.calls.get(name, OK)

    _FUNCTIONS[name] = entry


_scalars("nvmlDeviceGetEncoderUtilization", 3, 100_000)
_scalars("nvmlDeviceGetDecoderUtilization", 4, 100_000)
_scalars("nvmlDeviceGetJpgUtilization", 5, 100_000)
_scalars("nvmlDeviceGetOfaUtilization", 6, 100_000)
_scalars("nvmlDeviceGetPowerUsage", 351_000)
_scalars("nvmlDeviceGetEnforcedPowerLimit", 700_000)
_scalars("nvmlDeviceGetTemperature", 55)
_scalars("nvmlDeviceGetClockInfo", 1980)
_scalars("nvmlDeviceGetMaxClockInfo", 1980)
_scalars("nvmlDeviceGetMaxPcieLinkGeneration", 5)
_scalars("nvmlDeviceGetMaxPcieLinkWidth", 16)
_scalars("nvmlDeviceGetCurrPcieLinkGeneration", 4)
_scalars("nvmlDeviceGetCurrPcieLinkWidth", 8)
_scalars("nvmlDeviceGetPerformanceState", 2)
_scalars("nvmlDeviceGetFanSpeed", 41)
_scalars("nvmlDeviceGetTemperatureThreshold", 90)
_scalars("nvmlDeviceGetPowerManagementDefaultLimit", 600_000)
_scalars("nvmlDeviceGetPowerManagementLimitConstraints", 200_000, 800_000)
_scalars("nvmlDeviceGetMemoryErrorCounter", 7)
_scalars("nvmlDeviceGetCudaComputeCapability", 9, 0)
_scalars("nvmlDeviceGetMinorNumber", 3)
_scalars("nvmlDeviceGetSupportedEventTypes", pynvml.nvmlEventTypeXidCriticalError)
_scalars("nvmlDeviceRegisterEvents")
_scalars("nvmlDeviceGetPcieThroughput", 0)


@_function
def nvmlInitWithFlags(stub: StubNvml, flags: int) -> None:
    stub.live += 1


@_function
def nvmlShutdown(stub: StubNvml) -> None:
    stub.live -= 1


@_function
def nvmlSystemGetDriverVersion(stub: StubNvml, out: Any, size: Any) -> None:
    out.value = stub.driver_version


@_function
def nvmlSystemGetCudaDriverVersion_v2(stub: StubNvml, out: Any) -> None:
    out._obj.value = 12080


@_function
def nvmlSystemGetNVMLVersion(stub: StubNvml, out: Any, size: Any) -> None:
    out.value = b"13.580.126.09"


@_function
def nvmlDeviceGetCount_v2(stub: StubNvml, out: Any) -> None:
    out._obj.value = len(stub.gpus)


@_function
def nvmlDeviceGetHandleByIndex_v2(stub: StubNvml, index: Any, out: Any) -> int:
    gpu: StubGpu = stub.gpus[index.value]
    stub.handle(out, gpu)
    return gpu.code


@_function
def nvmlDeviceGetHandleByUUID(stub: StubNvml, uuid: Any, out: Any) -> int:
    for gpu in stub.everything():
        if gpu.uuid.encode() == uuid.value:
            stub.handle(out, gpu)
            return gpu.code
    return NOT_FOUND


@_on_device
def nvmlDeviceGetUUID(stub: StubNvml, gpu: StubGpu, out: Any, size: Any) -> None:
    out.value = gpu.uuid.encode()


@_on_device
def nvmlDeviceGetName(stub: StubNvml, gpu: StubGpu, out: Any, size: Any) -> None:
    out.value = gpu.name.encode()


@_on_device
def nvmlDeviceGetPciInfo_v3(stub: StubNvml, gpu: StubGpu, out: Any) -> None:
    out._obj.busId = b"00000000:17:00.0"


@_on_device
def nvmlDeviceGetMemoryInfo(stub: StubNvml, gpu: StubGpu, out: Any) -> None:
    total, reserved, used, free = gpu.memory
    out._obj.total, out._obj.used, out._obj.free = total, reserved + used, free


@_on_device
def nvmlDeviceGetMemoryInfo_v2(stub: StubNvml, gpu: StubGpu, out: Any) -> None:
    out._obj.total, out._obj.reserved, out._obj.used, out._obj.free = gpu.memory


@_on_device
def nvmlDeviceGetBAR1MemoryInfo(stub: StubNvml, gpu: StubGpu, out: Any) -> None:
    out._obj.bar1Total, out._obj.bar1Used = 128 << 30, 3 * MIB


@_on_device
def nvmlDeviceGetCurrentClocksEventReasons(stub: StubNvml, gpu: StubGpu, out: Any) -> None:
    out._obj.value = gpu.reasons


_FUNCTIONS["nvmlDeviceGetCurrentClocksThrottleReasons"] = _FUNCTIONS["nvmlDeviceGetCurrentClocksEventReasons"]


@_on_device
def nvmlDeviceGetGpuFabricInfoV(stub: StubNvml, gpu: StubGpu, out: Any) -> int:
    summarised = hasattr(out._obj, "healthSummary")
    if summarised and gpu.fabric_summary is None:
        return int(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    out._obj.state, out._obj.status, out._obj.healthMask = gpu.fabric
    if summarised:
        out._obj.healthSummary = gpu.fabric_summary
    return OK


@_on_device
def nvmlDeviceGetRowRemapperHistogram(stub: StubNvml, gpu: StubGpu, out: Any) -> None:
    out._obj.max, out._obj.high, out._obj.partial, out._obj.low, out._obj.none = 630, 4, 3, 2, 1


@_on_device
def nvmlDeviceGetRepairStatus(stub: StubNvml, gpu: StubGpu, out: Any) -> None:
    out._obj.bChannelRepairPending, out._obj.bTpcRepairPending = 1, 0


@_on_device
def nvmlDeviceGetAddressingMode(stub: StubNvml, gpu: StubGpu, out: Any) -> None:
    out._obj.value = pynvml.NVML_DEVICE_ADDRESSING_MODE_HMM


@_function
def nvmlSystemGetConfComputeState(stub: StubNvml, out: Any) -> None:
    out._obj.environment, out._obj.ccFeature = pynvml.NVML_CC_SYSTEM_ENVIRONMENT_PROD, 1


@_on_device
def nvmlDeviceGetMarginTemperature(stub: StubNvml, gpu: StubGpu, out: Any) -> None:
    out._obj.marginTemperature = gpu.margin


@_on_device
def nvmlDeviceGetSramEccErrorStatus(stub: StubNvml, gpu: StubGpu, out: Any) -> None:
    out._obj.aggregateUncBucketL2, out._obj.aggregateUncBucketOther, out._obj.bThresholdExceeded = 11, 15, 1


@_on_device
def nvmlDeviceGetVbiosVersion(stub: StubNvml, gpu: StubGpu, out: Any, size: Any) -> None:
    out.value = b"96.00.89.00.01"


@_on_device
def nvmlDeviceGetBoardPartNumber(stub: StubNvml, gpu: StubGpu, out: Any, size: Any) -> None:
    out.value = b"692-2G520-0200-000"


@_on_device
def nvmlDeviceGetUtilizationRates(stub: StubNvml, gpu: StubGpu, out: Any) -> None:
    out._obj.gpu, out._obj.memory = gpu.rates


@_on_device
def nvmlDeviceGetFieldValues(stub: StubNvml, gpu: StubGpu, count: Any, out: Any) -> None:
    stub.asked.append([(cell.fieldId, cell.scopeId) for cell in out._obj])
    for cell in out._obj:
        cell.nvmlReturn, cell.valueType, value, cell.timestamp = gpu.fields.get(cell.fieldId, UNKNOWN_FIELD)
        setattr(cell.value, MEMBERS[cell.valueType], value)


@_on_device
def nvmlDeviceGetSamples(
    stub: StubNvml, gpu: StubGpu, kind: Any, last: Any, type_out: Any, count: Any, out: Any
) -> int:
    rows = gpu.buffers.get(kind.value, NOT_SUPPORTED)
    if isinstance(rows, int):
        return rows
    rows = [row for row in rows if row[0] > last.value]
    if not rows:
        return NOT_FOUND
    type_out._obj.value, count._obj.value = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, len(rows)
    for cell, (stamp, value) in zip(out or (), rows, strict=False):
        cell.timeStamp, cell.sampleValue.uiVal = stamp, value
        # Bytes of the union beyond an unsigned int are whatever was there before.
        ctypes.memset(ctypes.addressof(cell.sampleValue) + 4, 0xAB, 4)
    return OK


@_on_device
def nvmlDeviceGetMigMode(stub: StubNvml, gpu: StubGpu, current: Any, pending: Any) -> int:
    current._obj.value = bool(gpu.mig)
    return OK if gpu.mig else NOT_SUPPORTED


@_on_device
def nvmlDeviceGetMaxMigDeviceCount(stub: StubNvml, gpu: StubGpu, out: Any) -> None:
    out._obj.value = 7


@_on_device
def nvmlDeviceGetMigDeviceHandleByIndex(stub: StubNvml, gpu: StubGpu, index: Any, out: Any) -> int:
    slots = {2 * place: one for place, one in enumerate(gpu.mig)}  # holes, as after an instance was destroyed
    if index.value not in slots:
        return NOT_FOUND
    stub.handle(out, slots[index.value])
    return OK


@_on_device
def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(stub: StubNvml, mig: StubGpu, out: Any) -> None:
    stub.handle(out, next(gpu for gpu in stub.gpus if mig in gpu.mig))


@_on_device
def nvmlDeviceGetGpuInstanceId(stub: StubNvml, gpu: StubGpu, out: Any) -> None:
    out._obj.value = gpu.instance


@_on_device
def nvmlDeviceGetAttributes_v2(stub: StubNvml, gpu: StubGpu, out: Any) -> None:
    out._obj.gpuInstanceSliceCount, out._obj.memorySizeMB = 3, 40448


def _list_of_processes(name: str, member: str) -> None:
    def entry(stub: StubNvml, handle: Any, count: Any, out: Any) -> int:
        gpu = stub.at(handle)
        rows = getattr(gpu, member)
        count._obj.value = len(rows)
        for cell, (pid, used, *instance) in zip(out or (), rows, strict=False):
            cell.pid, cell.usedGpuMemory = pid, used
            cell.gpuInstanceId = instance[0] if instance else 0xFFFF_FFFF
        code = gpu.code or gpu.calls.get(name, OK)
        return code or (INSUFFICIENT_SIZE if out is None and rows else OK)

    _FUNCTIONS[name] = entry


_list_of_processes("nvmlDeviceGetComputeRunningProcesses_v3", "processes")
_list_of_processes("nvmlDeviceGetGraphicsRunningProcesses_v3", "drawing")


@_on_device
def nvmlDeviceGetProcessUtilization(stub: StubNvml, gpu: StubGpu, out: Any, count: Any, last: Any) -> int:
    rows = [row for row in gpu.shares if row[1] > last.value]
    count._obj.value = len(rows)
    for cell, (pid, stamp, percent) in zip(out or (), rows, strict=False):
        cell.pid, cell.timeStamp, cell.smUtil = pid, stamp, percent
    return (INSUFFICIENT_SIZE if out is None else OK) if rows else NOT_FOUND


@_on_device
def nvmlGpmQueryDeviceSupport(stub: StubNvml, gpu: StubGpu, out: Any) -> None:
    out._obj.isSupportedDevice = gpu.gpm


@_function
def nvmlGpmSampleAlloc(stub: StubNvml, out: Any) -> None:
    identity = stub.count["nvmlGpmSampleAlloc"]
    stub.gpm_buffers.add(identity)
    ctypes.c_void_p.from_buffer(out._obj).value = identity


@_function
def nvmlGpmSampleFree(stub: StubNvml, sample: Any) -> None:
    stub.gpm_buffers.remove(_address(sample))


@_on_device
def nvmlGpmSampleGet(stub: StubNvml, gpu: StubGpu, sample: Any) -> int:
    return OK if _address(sample) in stub.gpm_buffers else INVALID_ARGUMENT


@_on_device
def nvmlGpmMigSampleGet(stub: StubNvml, gpu: StubGpu, instance: int, sample: Any) -> None:
    stub.gpm_slices.append((gpu.uuid, instance))


@_function
def nvmlGpmMetricsGet(stub: StubNvml, request: Any) -> None:
    body = request._obj
    stub.gpm_pairs.append((_address(body.sample1), _address(body.sample2)))
    stub.asked_metrics.append([body.metrics[i].metricId for i in range(body.numMetrics)])
    for i in range(body.numMetrics):
        cell = body.metrics[i]
        cell.nvmlReturn, cell.value = stub.gpus[0].metrics.get(cell.metricId, (OK, 50.0))


@_function
def nvmlEventSetCreate(stub: StubNvml, out: Any) -> None:
    ctypes.c_void_p.from_buffer(out._obj).value = 4711


@_function
def nvmlEventSetFree(stub: StubNvml, events: Any) -> None:
    assert _address(events) == 4711


@_function
def nvmlEventSetWait_v2(stub: StubNvml, events: Any, out: Any, timeout: Any) -> int:
    assert timeout.value == 0
    if not stub.xids:
        return TIMEOUT
    uuid, xid = stub.xids.pop(0)
    place = next(i for i, gpu in enumerate(stub.everything()) if gpu.uuid == uuid)
    ctypes.c_void_p.from_buffer(out._obj).value = place + 1
    out._obj.eventType, out._obj.eventData = pynvml.nvmlEventTypeXidCriticalError, xid
    return OK


def full_fields(stamp_us: int = 0) -> dict[int, tuple[int, int, float, int]]:
    """Every field of the catalogue, its value 1000 + its id, or for those with a small range something within it."""
    names = [name for name in dir(pynvml) if name.startswith(("NVML_FI_DEV_", "NVML_FI_PWR_"))]
    ids = {getattr(pynvml, name) for name in names} - {pynvml.NVML_FI_DEV_MEMORY_TEMP}
    rows = {one: (OK, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 1000 + one, stamp_us) for one in ids}
    plain, signed = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, pynvml.NVML_VALUE_TYPE_SIGNED_INT
    rows[pynvml.NVML_FI_DEV_MEMORY_TEMP] = (OK, plain, 61, stamp_us)
    rows[pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION] = (OK, plain, 4, stamp_us)
    rows[pynvml.NVML_FI_DEV_C2C_LINK_COUNT] = (OK, plain, 10, stamp_us)
    for name in names:
        if name.endswith(("_PENDING", "_FAILURE", "_CURRENT", "_STATE", "_STATUS", "_ENABLED", "_REMAPPING")):
            rows[getattr(pynvml, name)] = (OK, plain, 1, stamp_us)
        elif name.endswith("_STALL_PERCENT"):
            rows[getattr(pynvml, name)] = (OK, plain, 30, stamp_us)
        elif name.endswith("_TLIMIT"):
            rows[getattr(pynvml, name)] = (OK, signed, -2, stamp_us)
    return rows


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubNvml]:
    """One H100 that can do everything but buffer samples, beneath nvidia-ml-py for the length of a test."""
    library = StubNvml()
    library.gpus.append(StubGpu("GPU-0", fields=full_fields()))
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    yield library
    assert library.count["nvmlDeviceGetPcieThroughput"] == 0


@pytest.fixture
def driver(stub: StubNvml, clock: FakeClock) -> NvmlDriver:
    """Nothing has been asked of a GPU yet: what a test changes of the stub counts from the start."""
    return NvmlDriver(clock=clock, groups=GROUPS)


@pytest.fixture
def device(driver: NvmlDriver) -> Device:
    """The GPU as the driver lists it."""
    return driver.devices()[0]


@pytest.fixture
def new_gpu() -> Any:
    """Makes a GPU or MIG instance with every field."""

    def make(uuid: str, **changes: Any) -> StubGpu:
        return StubGpu(uuid, **({"fields": full_fields()} | changes))

    return make

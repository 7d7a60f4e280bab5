"""Lists the devices: GPUs, each followed by its MIG instances."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.driver.nvml.errors import NEVER, RULES
from gpu_profile.driver.nvml.library import NvmlLibrary
from gpu_profile.errors import DeviceLost, GpuBackendError

T = TypeVar("T")

#: One lane, one way, by PCIe generation: transfer rate times line code (8b/10b up to 2, then 128b/130b, then 242B/256B
#: flits), as in the PCI Express base specifications.
_LANE_BYTES_PER_S: Final = {
    1: 250_000_000,
    2: 500_000_000,
    3: 984_615_384,
    4: 1_969_230_769,
    5: 3_938_461_538,
    6: 7_562_500_000,
}
#: The number of NVLinks, and their common speed one way in MB/s.
_NVLINK_FIELDS: Final = ("NVML_FI_DEV_NVLINK_LINK_COUNT", "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON")


class EnumeratedDevice(NamedTuple):
    """A device and its handle. `instance` is the GPU instance id of a MIG instance.

    `mig_mode`: a GPU in MIG mode, for which the driver reports fewer quantities. `complete`: every query of the
    device's description has either succeeded or failed for good.
    """

    device: Device
    handle: Any
    parent_handle: Any = None
    instance: int | None = None
    mig_mode: bool = False
    complete: bool = True


def count_gpus(library: NvmlLibrary) -> int:
    """The number of GPUs when NVML was started. GpuBackendError if the driver cannot count them."""
    errors = library.errors
    try:
        return int(library.api.nvmlDeviceGetCount())
    except errors.failures as failure:
        with suppress(DeviceLost):
            errors.judge(failure, "nvmlDeviceGetCount")
        raise GpuBackendError(
            f"NVML: the GPUs could not be counted ({errors.name(failure)}); check them with nvidia-smi"
        ) from failure


def find_devices(
    library: NvmlLibrary, earlier: Mapping[str, EnumeratedDevice], enter: Callable[[int], bool]
) -> list[EnumeratedDevice]:
    """Every device that can be opened, parents before their instances. Constant facts are copied from `earlier`.

    `enter(index)` is called before the first call for a GPU; False skips the GPU. A GPU that is lost or may not be
    opened is left out, so that it does not hide the others. GpuBackendError if the driver cannot count its GPUs.
    """
    entries: list[EnumeratedDevice] = []
    for index in range(count_gpus(library)):
        if not enter(index):
            continue
        gpu = _attempt(library, f"GPU {index}", partial(_gpu, library, index, earlier))
        if gpu is not None:
            entries.append(gpu)
            entries += _instances(library, gpu)
    return entries


def handle_of(library: NvmlLibrary, device: Device) -> EnumeratedDevice:
    """The device's handle, looked up by its UUID. DeviceLost if the driver does not list it."""
    api, errors = library.api, library.errors
    try:
        handle = api.nvmlDeviceGetHandleByUUID(device.uuid)
        if device.kind is not DeviceKind.MIG:
            return EnumeratedDevice(device, handle, mig_mode=_mig_mode(library, handle, device.uuid), complete=False)
        parent = api.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        return EnumeratedDevice(device, handle, parent, api.nvmlDeviceGetGpuInstanceId(handle))
    except errors.failures as failure:
        rule = errors.judge(failure, "nvmlDeviceGetHandleByUUID", device.uuid)
        # Elsewhere NOT_FOUND means data that may come later; here it means the GPU itself.
        rule = RULES["GPU_NOT_FOUND"] if rule == RULES["NOT_FOUND"] else rule
        raise DeviceLost(f"NVML: GPU {device.uuid}: cannot be opened: {rule.words}") from failure


def _attempt(library: NvmlLibrary, name: str, call: Callable[[], T], missed: list[str] | None = None) -> T | None:
    """The call's result; None if it fails for this device alone. Adds to `missed` if it may succeed later."""
    try:
        return call()
    except library.errors.failures as failure:
        never = False
        try:
            never = library.errors.judge(failure, name).action in NEVER
        except DeviceLost as lost:
            library.errors.warn(library.errors.name(failure), name, "", str(lost))
        if missed is not None and not never:
            missed.append(name)
        return None


def _gpu(library: NvmlLibrary, index: int, earlier: Mapping[str, EnumeratedDevice]) -> EnumeratedDevice:
    api = library.api
    handle = api.nvmlDeviceGetHandleByIndex(index)
    uuid = api.nvmlDeviceGetUUID(handle)
    before = earlier.get(uuid)
    if before is not None and before.complete:
        # These facts do not change while the driver is loaded, and some are slow reads of the board's memory.
        return EnumeratedDevice(replace(before.device, index=index), handle, mig_mode=_mig_mode(library, handle, uuid))
    missed: list[str] = []

    def ask(name: str, call: Callable[[], T]) -> T | None:
        return _attempt(library, f"{name} of GPU {index}", call, missed)

    pci = ask("PCI", lambda: api.nvmlDeviceGetPciInfo(handle).busId)
    device = Device(
        uuid=uuid,
        index=index,
        name=ask("name", lambda: api.nvmlDeviceGetName(handle)) or "",
        pci_bus_id=pci.decode() if isinstance(pci, bytes) else pci or "",
        memory_bytes=ask("memory", partial(_memory_bytes, api, handle)),
        clock_max_hz=ask("clock", partial(_clock_max_hz, api, handle)),
        pcie_bytes_per_s=ask("PCIe link", partial(_pcie_bytes_per_s, api, handle)),
        nvlink_bytes_per_s=ask("NVLinks", partial(_nvlink_bytes_per_s, api, handle)),
        **_facts(library, handle, ask),
    )
    return EnumeratedDevice(device, handle, mig_mode=_mig_mode(library, handle, uuid), complete=not missed)


def _facts(library: NvmlLibrary, handle: Any, ask: Callable[[str, Callable[[], Any]], Any]) -> dict[str, Any]:
    def answer(name: str) -> Any:
        function = getattr(library.api, name, None)
        return None if function is None else ask(name, lambda: function(handle))

    capability = answer("nvmlDeviceGetCudaComputeCapability")
    return {
        "minor": answer("nvmlDeviceGetMinorNumber"),
        "vbios_version": answer("nvmlDeviceGetVbiosVersion") or "",
        "part_number": answer("nvmlDeviceGetBoardPartNumber") or "",
        "compute_capability": "" if capability is None else ".".join(map(str, capability)),
    }


def _memory_bytes(api: Any, handle: Any) -> int | None:
    """None if the GPU shares the host's memory: its driver reports 0, or fails."""
    return int(api.nvmlDeviceGetMemoryInfo(handle).total) or None


def _mig_mode(library: NvmlLibrary, handle: Any, uuid: str) -> bool:
    return bool(_attempt(library, f"MIG mode of {uuid}", lambda: library.api.nvmlDeviceGetMigMode(handle)[0]))


def _clock_max_hz(api: Any, handle: Any) -> int:
    return int(api.nvmlDeviceGetMaxClockInfo(handle, api.NVML_CLOCK_SM)) * 1_000_000


def _pcie_bytes_per_s(api: Any, handle: Any) -> int | None:
    """The highest rate of the link, not the current one: an idle GPU lowers its link's speed."""
    lane = _LANE_BYTES_PER_S.get(api.nvmlDeviceGetMaxPcieLinkGeneration(handle))
    return None if lane is None else lane * int(api.nvmlDeviceGetMaxPcieLinkWidth(handle))


def _nvlink_bytes_per_s(api: Any, handle: Any) -> int | None:
    """The rate of all links together, one way: their number times their common speed. None without NVLink."""
    numbers = [getattr(api, name, None) for name in _NVLINK_FIELDS]
    if None in numbers:
        return None
    answers = api.nvmlDeviceGetFieldValues(handle, numbers)
    if any(answer.nvmlReturn for answer in answers):
        return None
    links, megabytes = (int(answer.value.uiVal) for answer in answers)
    return links * megabytes * 1_000_000 or None


def _instances(library: NvmlLibrary, gpu: EnumeratedDevice) -> list[EnumeratedDevice]:
    api = library.api
    if not gpu.mig_mode:
        return []
    name = f"MIG of GPU {gpu.device.index}"
    most = _attempt(library, name, lambda: api.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)) or 0
    instances = (_attempt(library, name, partial(_instance, library, gpu, slot)) for slot in range(most))
    return [instance for instance in instances if instance is not None]


def _placement(api: Any, gpu: Any, instance: int) -> str:
    info = api.nvmlGpuInstanceGetInfo(api.nvmlDeviceGetGpuInstanceById(gpu, instance))
    return f"{info.profileId}-{info.placement.start}"


def _instance(library: NvmlLibrary, gpu: EnumeratedDevice, slot: int) -> EnumeratedDevice:
    api, parent = library.api, gpu.device
    handle = api.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, slot)
    missed: list[str] = []
    name = _attempt(library, "name of a MIG instance", lambda: api.nvmlDeviceGetName(handle), missed) or ""
    if not missed and "MIG" not in name:
        name = name or parent.name
        shape = _attempt(library, "shape of a MIG instance", lambda: api.nvmlDeviceGetAttributes_v2(handle))
        if shape is not None:
            name = f"{name} MIG {shape.gpuInstanceSliceCount}g.{round(shape.memorySizeMB / 1024)}gb"
    number = api.nvmlDeviceGetGpuInstanceId(handle)
    device = Device(
        uuid=api.nvmlDeviceGetUUID(handle),
        parent=parent.uuid,
        kind=DeviceKind.MIG,
        index=parent.index,
        name=name,
        pci_bus_id=parent.pci_bus_id,
        memory_bytes=_attempt(library, "memory of a MIG instance", partial(_memory_bytes, api, handle)),
        clock_max_hz=parent.clock_max_hz,
        minor=parent.minor,
        compute_capability=parent.compute_capability,
        mig_profile=name.partition("MIG ")[2],
        mig_instance=number,
        mig_placement=_attempt(library, "place of a MIG instance", partial(_placement, api, gpu.handle, number)) or "",
    )
    return EnumeratedDevice(device, handle, gpu.handle, number)

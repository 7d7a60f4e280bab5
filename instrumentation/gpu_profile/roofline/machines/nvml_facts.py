"""What NVML says of a GPU, as far as ceilings depend on it: driver, clocks, power limit, widths; and its UUID there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gpu_profile.errors import GpuBackendError

#: Name in a machine's key -> NVML's function of the handle and the binding's constants that it takes, and what makes
#: text of the answer. A lock of the clocks (`nvidia-smi --lock-gpu-clocks`) can be set through NVML but not be read.
_FACTS: Final[dict[str, tuple[tuple[str, ...], Callable[[Any], str]]]] = {
    "max_sm_clock_mhz": (("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"), str),
    "max_memory_clock_mhz": (("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_MEM"), str),
    "set_sm_clock_mhz": (("nvmlDeviceGetApplicationsClock", "NVML_CLOCK_SM"), str),
    "set_memory_clock_mhz": (("nvmlDeviceGetApplicationsClock", "NVML_CLOCK_MEM"), str),
    "power_limit_w": (("nvmlDeviceGetEnforcedPowerLimit",), lambda milliwatts: f"{milliwatts / 1000:g}"),
    "ecc": (("nvmlDeviceGetEccMode",), lambda modes: "on" if modes[0] else "off"),
    "bus_width_bits": (("nvmlDeviceGetMemoryBusWidth",), str),
    "gpu_cores": (("nvmlDeviceGetNumGpuCores",), str),
}


def nvml_facts(uuid: str) -> dict[str, str]:
    """By name: the driver's version, and of the GPU `uuid` the clocks (MHz), power limit (W), ECC mode and widths.

    A MIG instance's are those of its GPU. What NVML does not tell is left out; without NVML that is all. Costs some
    milliseconds where nothing else holds NVML open.
    """
    from gpu_profile.driver.nvml.library import NvmlLibrary

    try:
        library = NvmlLibrary()
    except GpuBackendError:
        return {}
    try:
        return {"driver": library.version} | _of(library, uuid)
    finally:
        library.stop()


def _of(library: Any, uuid: str) -> dict[str, str]:
    api, failures = library.api, library.errors.failures
    try:
        handle = api.nvmlDeviceGetHandleByUUID(uuid)
        if uuid.startswith("MIG-"):
            handle = api.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    except failures:
        return {}
    found = {}
    for name, ((function, *constants), text) in _FACTS.items():
        try:
            answer = getattr(api, function)(handle, *(getattr(api, each) for each in constants))
        except (*failures, AttributeError):  # not on this GPU, or not in this binding
            continue
        found[name] = text(answer)
    return found


def driver_uuid(ordinal: int) -> str | None:
    """A CUDA device's UUID as NVML has it, a MIG instance's own, if the process has loaded the CUDA driver."""
    from gpu_profile.regions.frameworks import libcuda

    driver = libcuda.loaded()
    try:
        return None if driver is None else driver.uuid(ordinal)
    except libcuda.CudaError:  # not initialised yet, or lost
        return None

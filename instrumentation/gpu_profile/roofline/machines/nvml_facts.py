"""Reads the properties of a GPU that its ceilings depend on from NVML: driver, clocks, power limit, widths; UUID."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gpu_profile.errors import GpuBackendError

#: Name in a machine's key -> (NVML's function and names of its constant arguments, formatter of its result). A lock of
#: the clocks (`nvidia-smi --lock-gpu-clocks`) is absent: NVML can set it but not read it.
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
    """The driver's version, and the clocks (MHz), power limit (W), ECC mode and widths of the GPU `uuid`, by name.

    For a MIG instance, these are the values of its GPU. Values that NVML does not report are absent; without NVML the
    result is empty. Takes some milliseconds if no other code keeps NVML initialised.
    """
    from gpu_profile.driver.nvml.library import NvmlLibrary

    try:
        library = NvmlLibrary()
    except GpuBackendError:
        return {}
    try:
        return {"driver": library.version} | _gpu_facts(library, uuid)
    finally:
        library.stop()


def _gpu_facts(library: Any, uuid: str) -> dict[str, str]:
    api, failures = library.api, library.errors.failures
    try:
        handle = api.nvmlDeviceGetHandleByUUID(uuid)
        if uuid.startswith("MIG-"):
            handle = api.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    except failures:
        return {}
    facts = {}
    for name, ((function, *constants), text) in _FACTS.items():
        try:
            answer = getattr(api, function)(handle, *(getattr(api, each) for each in constants))
        except (*failures, AttributeError):  # missing on this GPU or in this binding
            continue
        facts[name] = text(answer)
    return facts


def driver_uuid(ordinal: int) -> str | None:
    """NVML's UUID of a CUDA device; for a MIG instance, its own. None if this process has not initialised CUDA."""
    from gpu_profile.regions.frameworks import libcuda

    driver = libcuda.loaded()
    try:
        return None if driver is None else driver.uuid(ordinal)
    except libcuda.CudaError:  # not initialised yet, or lost
        return None

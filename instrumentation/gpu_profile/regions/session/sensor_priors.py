"""Calibrations of a device's sensors that `gpu-profile calibrate` stored in the user's cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpu_profile import user_cache
from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Device
from gpu_profile.join.unmixing.timing.expected import DevicePrior

#: The version of the stored JSON. Increased whenever its meaning changes.
SCHEMA: Final = 1


def sensors_path(device: Device, driver_version: str) -> Path | None:
    """The file of this device under this driver and firmware, which both may change sensors. None without a cache."""
    key = {"uuid": device.uuid, "driver": driver_version, "vbios": device.vbios_version}
    return user_cache.path_of("sensors", key, device.name or "gpu")


def kept_calibration(device: Device, driver_version: str) -> Mapping[str, Any] | None:
    """The stored calibration as JSON; None if there is none, or it is invalid. Never raises."""

    def read(content: Any) -> Mapping[str, Any] | None:
        if content["schema"] != SCHEMA:
            return None
        DevicePrior.of(content)
        if not 0 <= content["made_ns"] < 1 << 63:
            raise ValueError("made_ns")
        calibration: Mapping[str, Any] = content
        return calibration

    return user_cache.load(sensors_path(device, driver_version), read)


def sensor_priors(device: Device, driver_version: str) -> DevicePrior:
    """The prior of the device's sensors: as calibrated, else as usual for its board. Never raises."""
    content, usual = kept_calibration(device, driver_version), DevicePrior.of_board(device.name)
    if content is None:
        return usual
    own = DevicePrior.of(content)
    return DevicePrior({**usual.sensors, **own.sensors}, own.untrusted, usual.measured)


def unexpected(device: Device, signal: Signal) -> str:
    """The warning for readings that contradict `sensor_priors`."""
    return f"{device.uuid}: readings of {signal.key} contradict its sensor's calibration; run gpu-profile calibrate"

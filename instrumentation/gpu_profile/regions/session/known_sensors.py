"""What `gpu-profile calibrate` has found out about a device's sensors, where this user has kept it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpu_profile import user_cache
from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Device
from gpu_profile.join.unmixing.expected import DevicePrior

#: Raised whenever what is kept changes its meaning.
SCHEMA: Final = 1


def sensors_path(device: Device, driver_version: str) -> Path | None:
    """The file of this device under this driver and firmware, which both may change how sensors work."""
    key = {"uuid": device.uuid, "driver": driver_version, "vbios": device.vbios_version}
    return user_cache.path_of("sensors", key, device.name or "gpu")


def kept_calibration(device: Device, driver_version: str) -> Mapping[str, Any] | None:
    """What was kept, as JSON; None if there is nothing, or nothing that is sound. Never raises."""

    def read(content: Any) -> Mapping[str, Any] | None:
        if content["schema"] != SCHEMA:
            return None
        DevicePrior.of(content)
        found: Mapping[str, Any] = content
        return found

    return user_cache.load(sensors_path(device, driver_version), read)


def known_sensors(device: Device, driver_version: str) -> DevicePrior:
    """What is known of the device's sensors: as they were calibrated, else as such boards have them. Never raises."""
    content, usual = kept_calibration(device, driver_version), DevicePrior.of_board(device.name)
    if content is None:
        return usual
    own = DevicePrior.of(content)
    return DevicePrior({**usual.sensors, **own.sensors}, own.untrusted)


def unexpected(device: Device, signal: Signal) -> str:
    """What to say where readings contradict what was kept."""
    return f"{device.uuid}: {signal.key} does not answer as is known of it; run gpu-profile calibrate"

"""The GPUs of an engine, from the settings and the devices that readers report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.errors import UsageError, few


def check_devices(engines: Sequence[str], devices: dict[str, str]) -> None:
    """Raise UsageError unless each engine has GPUs that no other engine has."""
    for name in devices:
        if name not in engines:
            raise UsageError(f"--serving-devices: {name} is no engine of --serving: {few(engines, 80)}")
    missing = [name for name in engines if name not in devices]
    if len(engines) > 1 and missing:
        raise UsageError(f"--serving-devices: names no GPU of {missing[0]}; with several engines, each needs its own")
    owners: dict[str, str] = {}
    for name, text in devices.items():
        for device in text.split(","):
            if owners.setdefault(device, name) != name:
                raise UsageError(
                    f"--serving-devices: {owners[device]} and {name} share {device}; such engines have no costs"
                )


def chosen(wanted: str, present: Iterable[Device]) -> tuple[tuple[str, ...], str]:
    """The UUIDs of an engine's GPUs, all for an empty text, and the reason why they are not there, else ""."""
    gpus = [device for device in present if device.kind is DeviceKind.GPU]
    if not gpus:
        return (), "no GPU has answered yet"
    if not wanted:
        return tuple(device.uuid for device in gpus), ""
    uuids = []
    for text in wanted.split(","):
        for device in gpus:
            if text in (device.uuid, str(device.index)):
                uuids.append(device.uuid)
                break
        else:
            return (), f"this node has no GPU {text}"
    return tuple(dict.fromkeys(uuids)), ""

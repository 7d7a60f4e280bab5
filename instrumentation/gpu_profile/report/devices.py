"""A device in every view: its label, the charts of its signals, and the names of its holders. Without numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gpu_profile.catalogue import BUSY_SOURCES, Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, DeviceKind


class Chart(NamedTuple):
    """A small multiple: its name, and the signals that can supply it, best first."""

    key: str
    label: str
    sources: tuple[Signal, ...]


CHARTS: Final = (
    Chart("busy", "GPU busy", BUSY_SOURCES),
    Chart("power", "power", (rows.POWER, rows.POWER_AVERAGE, rows.ENERGY)),
    Chart("memory", "memory in use", (rows.MEMORY_USED,)),
    Chart("clock", "SM clock", (rows.CLOCK_SM,)),
)

#: The reasons of `THROTTLES` and of `THROTTLES_SEEN`, in their order.
THROTTLE_REASONS: Final = ("power cap", "sw heat", "hw heat", "brake", "sync")
#: The kind of a holder by the attribute that names it, the most precise first.
_KINDS: Final = (
    ("k8s.pod.name", "pod"),
    ("k8s.pod.uid", "pod"),
    ("slurm.job.id", "Slurm job"),
    ("systemd.unit.name", "unit"),
    ("container.id", "container"),
    ("claim", "claim"),
    ("process.pid", "process"),
)


def device_label(device: Device) -> str:
    """The index of a GPU; of a MIG instance, its GPU's index and its id. Without an index, a part of its UUID."""
    index = device.uuid[:8] if device.index is None else str(device.index)
    if device.kind is DeviceKind.MIG and device.mig_instance is not None:
        return f"{index}/{device.mig_instance}"
    return index


def title(device: Device, label: str) -> str:
    """The device's name above its charts."""
    if label == device.uuid:
        return f"{device.name} {device.uuid}".strip()
    return f"GPU {label} {device.name}".strip()


def holder_name(attributes: Mapping[str, str]) -> tuple[str, str]:
    """The kind and the name of a holder with these OpenTelemetry attributes."""
    key, kind = next((each for each in _KINDS if attributes.get(each[0])), ("", "holder"))
    if not key:
        return kind, " ".join(f"{name}={value}" for name, value in sorted(attributes.items()))
    name = attributes[key]
    if key == "k8s.pod.name" and attributes.get("k8s.namespace.name"):
        name = f"{attributes['k8s.namespace.name']}/{name}"
    container = attributes.get("k8s.container.name") or attributes.get("container.id", "")[:12]
    return kind, name if not container or kind == "container" else f"{name} ({container})"

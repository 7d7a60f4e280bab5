"""Nodes as a driver lists them: whole GPUs, some of them cut, and several models."""

from collections.abc import Sequence
from dataclasses import replace

from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.driver.visible import Visible
from gpu_profile.units import MIB

UUIDS = [
    "GPU-9e8d35e3-0000-4000-8000-000000000000",
    "GPU-9e8d35e4-0000-4000-8000-000000000001",
    "GPU-e429a63e-0000-4000-8000-000000000002",
    "GPU-449f9cdb-0000-4000-8000-000000000003",
]


def gpu(number: int, name: str = "NVIDIA H100", memory_gib: int = 80, bus: str | None = None) -> Device:
    place = f"00000000:{0x18 + number:02X}:00.0" if bus is None else bus
    return Device(UUIDS[number], index=number, name=name, pci_bus_id=place, memory_bytes=memory_gib * 1024 * MIB)


def slices(parent: Device, count: int) -> list[Device]:
    """A GPU cut into instances: `MIG-<its number>0…`, `MIG-<its number>1…`."""
    numbers = [f"MIG-{parent.index}{each}000000-0000-5000-8000-000000000000" for each in range(count)]
    return [parent, *(replace(parent, uuid=uuid, parent=parent.uuid, kind=DeviceKind.MIG) for uuid in numbers)]


GPUS = [gpu(number) for number in range(4)]
#: Two whole GPUs around one that is cut.
MIXED = [GPUS[0], *slices(GPUS[1], 2), GPUS[2]]
MIXED_MODELS = [gpu(0, "NVIDIA A10G", 24), gpu(1, "NVIDIA H200", 141), gpu(2, "NVIDIA A10G", 24)]


def visible(value: str, devices: Sequence[Device] = GPUS) -> Visible:
    return Visible(devices, {"CUDA_VISIBLE_DEVICES": value})

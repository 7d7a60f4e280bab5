"""Finds the devices of a span: from its own attributes, or by the holders of devices in the node's timeline."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpu_profile.catalogue import attributes as names
from gpu_profile.catalogue.samples import Device
from gpu_profile.driver.node.table import TableFile, TimelineTable
from gpu_profile.errors import GpuBackendError
from gpu_profile.regions.session.placement import Placement

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

#: Attributes of spans and resources that name devices.
HW_ID: Final = "hw.id"
_NAMES: Final = (HW_ID, names.DEVICE_IDS.name)
#: Attributes that identify a holder of devices, in the order of the search.
_HOLDERS: Final = (("k8s.pod.uid",), ("container.id",), ("k8s.namespace.name", "k8s.pod.name"))


class NodePlacement(Placement):
    """All devices of the node.

    An execution names its devices by a tuple of UUIDs. An execution without a device has the reason as text instead.
    """

    def __init__(self) -> None:
        super().__init__(environ={})
        self._devices: dict[str, Device] = {}

    def update(self, listed: Sequence[Device], used: object = None, *, simulated: bool = False) -> None:  # noqa: ARG002
        """Set the devices to `listed`, the driver's list."""
        devices = {device.uuid: device for device in listed}
        if devices != self._devices:
            self._devices = devices
            self.version += 1

    @property
    def read(self) -> set[str]:
        """The UUIDs of all devices."""
        return set(self._devices)

    def add(self, uuids: Iterable[str]) -> bool:  # noqa: ARG002
        """Always False, because all devices are read already."""
        return False

    def has(self, device: Device) -> bool:
        """Whether the driver lists the device."""
        return device.uuid in self._devices

    def of(self, device: Hashable) -> tuple[Device, ...]:
        """The devices with these UUIDs, or () if the driver does not list all of them."""
        if not isinstance(device, tuple):
            return ()
        devices = tuple(self._devices[uuid] for uuid in device if uuid in self._devices)
        return devices if len(devices) == len(device) else ()

    def why(self, device: Hashable) -> str:
        """The reason why an execution has no device. `device`: the execution's tuple of UUIDs or reason."""
        return device if isinstance(device, str) else "a device that this node does not have"


class Holders:
    """The holders of devices from the node's timeline, reread after changes."""

    def __init__(self, table: TableFile) -> None:
        self._file = table
        self._table: TimelineTable | None = None
        self._by_holder: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._only: tuple[str, ...] = ()

    def renew(self) -> None:
        """Read the table again if it has changed. If it is not readable, the last holders stay."""
        try:
            table = self._file.read()
        except GpuBackendError:
            return
        if table is self._table:
            return
        self._table = table
        by_holder: dict[tuple[str, ...], list[str]] = {}
        for one in table.devices:
            for holder in one.holders:
                for keys in _HOLDERS:
                    values = tuple(holder.get(key, "") for key in keys)
                    if all(values):
                        uuids = by_holder.setdefault((*keys, *values), [])
                        if one.device.uuid not in uuids:
                            uuids.append(one.device.uuid)
        self._by_holder = {key: tuple(uuids) for key, uuids in by_holder.items()}
        cut = {one.device.parent for one in table.devices}
        whole = [one.device.uuid for one in table.devices if one.device.uuid not in cut]
        self._only = tuple(whole) if len(whole) == 1 else ()

    def devices_of(self, resource: Iterable[KeyValue]) -> tuple[str, ...] | str:
        """The UUIDs of the devices of a resource's spans, or the reason why they are unknown."""
        attributes = {pair.key: pair.value for pair in resource}
        named = named_devices(attributes)
        if named:
            return named
        identified = False
        for keys in _HOLDERS:
            values = tuple(attributes[key].string_value if key in attributes else "" for key in keys)
            if all(values):
                identified = True
                uuids = self._by_holder.get((*keys, *values))
                if uuids is not None:
                    return uuids
        if self._only:
            return self._only
        if identified:
            return "no source reports that its pod or container holds a device of this node"
        return "no attribute identifies its device: its resource needs hw.id, k8s.pod.uid or container.id"


def named_devices(attributes: Mapping[str, AnyValue]) -> tuple[str, ...]:
    """The UUIDs of the devices that attributes name, or ()."""
    for name in _NAMES:
        value = attributes.get(name)
        if value is not None:
            several = tuple(one.string_value for one in value.array_value.values) or (value.string_value,)
            if all(several):
                return tuple(dict.fromkeys(several))
    return ()

"""On which devices a span ran: what it says itself, or who holds which device by the node's timeline."""

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

#: What names devices on a span or a resource.
HW_ID: Final = "hw.id"
_NAMES: Final = (HW_ID, names.DEVICE_IDS.name)
#: What identifies a holder of devices, in the order in which it is looked at.
_HOLDERS: Final = (("k8s.pod.uid",), ("container.id",), ("k8s.namespace.name", "k8s.pod.name"))


class NodePlacement(Placement):
    """All devices of the node.

    Executions name theirs by a tuple of UUIDs; one that is on none gives the reason in words instead.
    """

    def __init__(self) -> None:
        super().__init__(environ={})
        self._devices: dict[str, Device] = {}

    def update(self, known: Sequence[Device], used: Sequence[str] | None = None, *, simulated: bool = False) -> None:  # noqa: ARG002
        """`known` is all that the driver lists."""
        devices = {device.uuid: device for device in known}
        if devices != self._devices:
            self._devices = devices
            self.version += 1

    @property
    def read(self) -> set[str]:
        """All of them."""
        return set(self._devices)

    def add(self, uuids: Iterable[str]) -> bool:  # noqa: ARG002
        """All are read already."""
        return False

    def has(self, device: Device) -> bool:
        """Whether the driver lists it."""
        return device.uuid in self._devices

    def of(self, device: Hashable) -> tuple[Device, ...]:
        """The devices with these UUIDs, if the driver lists all of them."""
        if not isinstance(device, tuple):
            return ()
        found = tuple(self._devices[uuid] for uuid in device if uuid in self._devices)
        return found if len(found) == len(device) else ()

    def why(self, device: Hashable) -> str:
        """Why an execution with this in place of devices is on none."""
        return device if isinstance(device, str) else "a device that this node does not have"


class Holders:
    """Who holds which device, as the node's timeline says; read again where that has changed."""

    def __init__(self, table: TableFile) -> None:
        self._file = table
        self._table: TimelineTable | None = None
        self._by_holder: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._only: tuple[str, ...] = ()

    def renew(self) -> None:
        """Look whether the table has changed. Without one, what was known last stays."""
        try:
            table = self._file.read()
        except GpuBackendError:
            return
        if table is self._table:
            return
        self._table = table
        found: dict[tuple[str, ...], list[str]] = {}
        for one in table.devices:
            for holder in one.holders:
                for keys in _HOLDERS:
                    values = tuple(holder.get(key, "") for key in keys)
                    if all(values):
                        held = found.setdefault((*keys, *values), [])
                        if one.device.uuid not in held:
                            held.append(one.device.uuid)
        self._by_holder = {key: tuple(uuids) for key, uuids in found.items()}
        cut = {one.device.parent for one in table.devices}
        whole = [one.device.uuid for one in table.devices if one.device.uuid not in cut]
        self._only = tuple(whole) if len(whole) == 1 else ()

    def devices_of(self, resource: Iterable[KeyValue]) -> tuple[str, ...] | str:
        """The UUIDs of the devices that a resource's spans are on; a reason if that is not known."""
        attributes = {pair.key: pair.value for pair in resource}
        named = named_devices(attributes)
        if named:
            return named
        told = False
        for keys in _HOLDERS:
            values = tuple(attributes[key].string_value if key in attributes else "" for key in keys)
            if all(values):
                told = True
                found = self._by_holder.get((*keys, *values))
                if found is not None:
                    return found
        if self._only:
            return self._only
        if told:
            return "nobody says that its pod or container holds a device of this node"
        return "nothing says which device it is on: its resource needs hw.id, k8s.pod.uid or container.id"


def named_devices(attributes: Mapping[str, AnyValue]) -> tuple[str, ...]:
    """The devices that attributes name; none if they name none."""
    for name in _NAMES:
        value = attributes.get(name)
        if value is not None:
            several = tuple(one.string_value for one in value.array_value.values) or (value.string_value,)
            if all(several):
                return tuple(dict.fromkeys(several))
    return ()

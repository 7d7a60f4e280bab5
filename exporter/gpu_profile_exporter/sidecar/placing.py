"""Finds the devices of a span: from its own attributes, or by the holders of devices in the node's timeline."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpu_profile.catalogue import attributes as names
from gpu_profile.catalogue.samples import Device
from gpu_profile.driver.node.table import TableFile, TimelineTable, pid_namespace
from gpu_profile.errors import GpuBackendError
from gpu_profile.regions.session.placement import Placement
from gpu_profile_exporter.server.connection import Ends
from gpu_profile_exporter.sidecar.peers import NOT_DIRECT, PeerProcesses

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

#: Attributes of spans and resources that name devices.
HW_ID: Final = "hw.id"
_PID: Final = "process.pid"
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

    def update(
        self,
        listed: Sequence[Device],
        used: object = None,  # noqa: ARG002
        *,
        simulated: bool = False,  # noqa: ARG002
        driver: str = "",  # noqa: ARG002
    ) -> None:
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
    """The holders and the processes of devices from the node's timeline, reread after changes."""

    def __init__(self, table: TableFile) -> None:
        self._file = table
        self._peers = PeerProcesses()
        #: The devices of each process. None: the ids are of another pid namespace.
        self._by_process: dict[int, tuple[str, ...]] | None = None
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
        whole = [one for one in table.devices if one.device.uuid not in cut]
        self._only = (whole[0].device.uuid,) if len(whole) == 1 else ()
        by_process: dict[int, list[str]] = {}
        for one in whole:
            for use in one.processes or ():
                by_process.setdefault(use.pid, []).append(one.device.uuid)
        here = bool(table.pid_namespace) and table.pid_namespace == pid_namespace()
        # At once: another thread reads it.
        self._by_process = {pid: tuple(uuids) for pid, uuids in by_process.items()} if here else None

    def devices_of(self, resource: Iterable[KeyValue], ends: Ends | None = None) -> tuple[str, ...] | str:
        """The UUIDs of the devices of a resource's spans, or the reason why they are unknown.

        `ends`: of the connection that the spans came through, the proof of `process.pid`.
        """
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
        if _PID in attributes:
            return self._of_process(attributes[_PID], ends)
        return "no attribute identifies its device: its resource needs hw.id, k8s.pod.uid, container.id or process.pid"

    def _of_process(self, value: AnyValue, ends: Ends | None) -> tuple[str, ...] | str:
        by_process = self._by_process
        if by_process is None:
            return "its process.pid proves nothing: this process is in another pid namespace than the node's exporter"
        if value.WhichOneof("value") != "int_value" or value.int_value <= 0:
            return "its process.pid is not a positive whole number"
        uuids = by_process.get(value.int_value)
        if uuids is None:
            return "its process uses no device, as far as the driver lists processes"
        return (NOT_DIRECT if ends is None else self._peers.refusal(ends, value.int_value)) or uuids


def named_devices(attributes: Mapping[str, AnyValue]) -> tuple[str, ...]:
    """The UUIDs of the devices that attributes name, or ()."""
    for name in _NAMES:
        value = attributes.get(name)
        if value is not None:
            several = tuple(one.string_value for one in value.array_value.values) or (value.string_value,)
            if all(several):
                return tuple(dict.fromkeys(several))
    return ()

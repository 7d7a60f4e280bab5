"""Resolves the device names of a kubelet, a DRA driver or a mapping file to UUIDs. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Final, TypeVar

from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile_exporter.attribution.sources import OmissionReason

_UUID: Final = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+", re.ASCII)
#: Replicas of a shared GPU or MIG instance, in the current and the former spelling of NVIDIA's device plugin.
_REPLICA: Final = re.compile(r"(?:::|-replica-)\d+\Z", re.ASCII)
#: GKE's names: /dev/nvidiaN, one of its GPU instances, and a virtual part if either is shared.
_NODE: Final = re.compile(r"nvidia(\d{1,4})(?:/gi(\d{1,4}))?(?:/vgpu\d+)?", re.ASCII)
#: NVIDIA's DRA driver names a whole GPU by a number: its index in early releases, its minor number in later ones.
_NUMBERED: Final = re.compile(r"(?:[\w.-]*[0-9a-f]-)?gpu-(\d{1,4})", re.ASCII)
#: Its names of MIG instances: the GPU's minor number, the profile, the profile's id and the first memory slice
#: (`ToCanonicalName` in its source).
_PLACED: Final = re.compile(r"(?:[\w.-]*[0-9a-f]-)?gpu-(\d{1,4})-mig-[a-z0-9.-]{1,64}-(\d{1,4}-\d{1,4})", re.ASCII)
_CDI: Final = re.compile(r"(?:[\w.-]+\.)?nvidia\.com/[\w.-]+=(.+)", re.ASCII)
#: A mapping file: a GPU's index, optionally with the id of a GPU instance.
_FILE: Final = re.compile(r"([0-9]{1,4})(?:[.-]([0-9]{1,4}))?", re.ASCII)

#: The UUID of a device, the reason why a GPU's name matches none, or None for a name that means no GPU.
Match = str | OmissionReason | None
#: The number of a GPU, and the id of one of its GPU instances.
_Number = tuple[int | None, int | None]
_Key = TypeVar("_Key", bound=Hashable)


class DeviceNames:
    """Finds `devices` by the names of other systems. The order of lists never matters."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self._uuids: set[str] = set()
        self._by_index: defaultdict[_Number, set[str]] = defaultdict(set)
        self._by_minor: defaultdict[_Number, set[str]] = defaultdict(set)
        self._by_placement: defaultdict[tuple[int | None, str], set[str]] = defaultdict(set)
        for device in devices:
            self._uuids.add(device.uuid)
            if device.mig_placement:
                self._by_placement[device.minor, device.mig_placement].add(device.uuid)
            if device.kind is DeviceKind.GPU or device.mig_instance is not None:
                instance = None if device.kind is DeviceKind.GPU else device.mig_instance
                self._by_index[device.index, instance].add(device.uuid)
                self._by_minor[device.minor, instance].add(device.uuid)

    def plugin(self, resource: str, name: str) -> Match:
        """The device that a device plugin calls `name`. `resource` is the resource name in a pod's request."""
        if _UUID.match(name):
            return self._uuid(_REPLICA.sub("", name))
        if not resource.startswith("nvidia.com/"):
            return None
        if (node := _NODE.fullmatch(name)) is not None:
            return _only(self._by_minor, _numbers(node))
        return OmissionReason.UNKNOWN_DEVICE

    def dra(self, driver: str, device: str, cdi: Iterable[str]) -> Match:
        """The device that a DRA driver calls `device` and passes to a container under the names `cdi`."""
        names = [match[1] for match in map(_CDI.fullmatch, cdi) if match is not None]
        if driver.endswith("nvidia.com") and device:
            names.insert(0, device)
        for name in names:
            if (uuid := _UUID.search(name)) is not None and uuid[0] in self._uuids:
                return uuid[0]
            if (number := _NUMBERED.fullmatch(name)) is not None:
                return self._numbered(int(number[1]))
            if (placed := _PLACED.fullmatch(name)) is not None:
                return _only(self._by_placement, (int(placed[1]), placed[2]))
        return OmissionReason.UNKNOWN_DEVICE if names else None

    def file(self, name: str) -> Match:
        """The device of a job mapping file of this name."""
        if _UUID.match(name):
            return self._uuid(name)
        match = _FILE.fullmatch(name)
        return _only(self._by_index, _numbers(match)) if match is not None else None

    def _uuid(self, name: str) -> Match:
        return name if name in self._uuids else OmissionReason.UNKNOWN_DEVICE

    def _numbered(self, number: int) -> Match:
        index, minor = (_only(table, (number, None)) for table in (self._by_index, self._by_minor))
        return index if index == minor else OmissionReason.AMBIGUOUS


def _numbers(match: re.Match[str]) -> _Number:
    return int(match[1]), None if match[2] is None else int(match[2])


def _only(table: defaultdict[_Key, set[str]], number: _Key) -> Match:
    """The only device of this number. A GPU instance that is divided into compute instances has several."""
    uuids = table.get(number, set())
    if not uuids:
        return OmissionReason.UNKNOWN_DEVICE
    return min(uuids) if len(uuids) == 1 else OmissionReason.AMBIGUOUS

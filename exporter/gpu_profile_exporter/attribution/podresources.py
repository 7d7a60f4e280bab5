"""Decodes the devices in the kubelet's answer to `v1.PodResourcesLister/List`.

The messages and their field numbers come from the Kubernetes project's
`k8s.io/kubelet/pkg/apis/podresources/v1/api.proto` (Apache-2.0). Fields that describe no devices are skipped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gpu_profile.protobuf import fields
from gpu_profile_exporter.attribution.sources import Reason, Unavailable


class Holder(NamedTuple):
    """A container of a pod."""

    namespace: str
    pod: str
    container: str


class PluginDevice(NamedTuple):
    """A device that a device plugin allocated to a container."""

    holder: Holder
    resource: str
    id: str


class ClaimedDevice(NamedTuple):
    """A device that a container uses through a resource claim. Other containers may share the claim."""

    holder: Holder
    claim: str
    driver: str
    device: str
    cdi: tuple[str, ...]


def read(answer: bytes) -> list[PluginDevice | ClaimedDevice]:
    """The devices that containers hold. Raises Unavailable if `answer` is not such a message."""
    try:
        # ListPodResourcesResponse: pod_resources 1. PodResources: name 1, namespace 2, containers 3.
        pods = map(_fields, _fields(answer)[1])
        return [row for pod in pods for container in pod[3] for row in _held(pod, _fields(container))]
    except ValueError as error:
        raise Unavailable(Reason.GARBAGE, "the kubelet's answer is not a list of pod resources") from error


_Fields = Mapping[int, Sequence[bytes]]


def _held(pod: _Fields, container: _Fields) -> Iterator[PluginDevice | ClaimedDevice]:
    # ContainerResources: name 1, devices 2, dynamic_resources 5.
    holder = Holder(_text(pod[2]), _text(pod[1]), _text(container[1]))
    for devices in map(_fields, container[2]):  # ContainerDevices: resource_name 1, device_ids 2
        for name in devices[2]:
            yield PluginDevice(holder, _text(devices[1]), name.decode())
    for dynamic in map(_fields, container[5]):  # DynamicResource: claim_name 2, claim_resources 4
        for one in map(_fields, dynamic[4]):  # ClaimResource: cdi_devices 1 (CDIDevice: name 1), driver 2, device 4
            cdi = tuple(_text(_fields(device)[1]) for device in one[1])
            yield ClaimedDevice(holder, _text(dynamic[2]), _text(one[2]), _text(one[4]), cdi)


def _fields(message: bytes) -> _Fields:
    """The fields of a message that contain text or another message, by number."""
    by_number: defaultdict[int, list[bytes]] = defaultdict(list)
    for number, value in fields(message):
        if isinstance(value, bytes):
            by_number[number].append(value)
    return by_number


def _text(values: Sequence[bytes]) -> str:
    """A text field. As in protobuf, the last of several values counts."""
    return values[-1].decode() if values else ""

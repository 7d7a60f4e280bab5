"""The kubelet's answer to `v1.PodResourcesLister/List`, as far as it is about devices.

The messages are those of the Kubernetes project's `k8s.io/kubelet/pkg/apis/podresources/v1/api.proto` (Apache-2.0):
the table below has the names and numbers of the fields that are read here; protobuf skips the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

from gpu_profile_exporter.attribution.sources import Reason, Unavailable

_PACKAGE: Final = "v1"
#: message -> (field, number, message of the field or "" for a string, whether it is repeated)
_MESSAGES: Final = {
    "ListPodResourcesResponse": (("pod_resources", 1, "PodResources", True),),
    "PodResources": (
        ("name", 1, "", False),
        ("namespace", 2, "", False),
        ("containers", 3, "ContainerResources", True),
    ),
    "ContainerResources": (
        ("name", 1, "", False),
        ("devices", 2, "ContainerDevices", True),
        ("dynamic_resources", 5, "DynamicResource", True),
    ),
    "ContainerDevices": (("resource_name", 1, "", False), ("device_ids", 2, "", True)),
    "DynamicResource": (
        ("claim_name", 2, "", False),
        ("claim_namespace", 3, "", False),
        ("claim_resources", 4, "ClaimResource", True),
    ),
    "ClaimResource": (
        ("cdi_devices", 1, "CDIDevice", True),
        ("driver_name", 2, "", False),
        ("pool_name", 3, "", False),
        ("device_name", 4, "", False),
    ),
    "CDIDevice": (("name", 1, "", False),),
}


class Holder(NamedTuple):
    """A container of a pod."""

    namespace: str
    pod: str
    container: str


class PluginDevice(NamedTuple):
    """A device that a device plugin gave to a container."""

    holder: Holder
    resource: str
    id: str


class ClaimedDevice(NamedTuple):
    """A device that a container has through a resource claim, which others may have too."""

    holder: Holder
    claim: str
    driver: str
    device: str
    cdi: tuple[str, ...]


@cache
def message(name: str) -> Any:
    """The class of a message; Unavailable without protobuf."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise Unavailable(Reason.MISSING_PACKAGE, "protobuf") from error
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package=_PACKAGE, syntax="proto3")
    for owner, fields in _MESSAGES.items():
        row = file.message_type.add(name=owner)
        for field, number, kind, repeated in fields:
            added = row.field.add(name=field, number=number)
            added.label = added.LABEL_REPEATED if repeated else added.LABEL_OPTIONAL
            added.type = added.TYPE_MESSAGE if kind else added.TYPE_STRING
            if kind:
                added.type_name = f".{_PACKAGE}.{kind}"
    # A pool of our own: another package may bring the same messages.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def read(answer: bytes) -> Iterator[PluginDevice | ClaimedDevice]:
    """The devices that containers hold; Unavailable if `answer` is not such a message."""
    response = message("ListPodResourcesResponse")()
    try:
        response.ParseFromString(answer)
    except Exception as error:  # protobuf's own, which differ between its releases
        raise Unavailable(Reason.GARBAGE, "the kubelet's answer is not a list of pod resources") from error
    for pod in response.pod_resources:
        for container in pod.containers:
            holder = Holder(pod.namespace, pod.name, container.name)
            for devices in container.devices:
                for name in devices.device_ids:
                    yield PluginDevice(holder, devices.resource_name, name)
            for dynamic in container.dynamic_resources:
                for one in dynamic.claim_resources:
                    cdi = tuple(row.name for row in one.cdi_devices)
                    yield ClaimedDevice(holder, dynamic.claim_name, one.driver_name, one.device_name, cdi)

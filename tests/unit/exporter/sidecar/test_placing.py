"""On which devices a span ran."""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from support.otlp_traces import add_attributes

from gpu_profile.catalogue.samples import Device, ProcessUse
from gpu_profile.driver.node.table import NodeDevice, TimelineTable, parse, pid_namespace
from gpu_profile.errors import GpuBackendError
from gpu_profile_exporter.server.connection import Ends
from gpu_profile_exporter.sidecar.placing import Holders, NodePlacement

ONE, TWO = "GPU-1", "GPU-2"
POD = {"k8s.pod.uid": "uid-1", "k8s.namespace.name": "ns", "k8s.pod.name": "pod", "container.id": "c" * 64}


def device(uuid: str, parent: str | None = None) -> Device:
    return Device(uuid, parent=parent)


def listed(
    uuid: str, *holders: Mapping[str, str], parent: str | None = None, pids: Sequence[int] | None = None
) -> NodeDevice:
    uses = None if pids is None else tuple(ProcessUse(pid) for pid in pids)
    return NodeDevice(device(uuid, parent), True, "", (), {}, uses, holders)


class File:
    """A table that a test puts there."""

    def __init__(self, *devices: NodeDevice, namespace: str = "") -> None:
        self.table: TimelineTable | None = None
        self.namespace = namespace
        self.put(*devices)

    def put(self, *devices: NodeDevice) -> None:
        self.table = TimelineTable(0.1, 600.0, "nvml", "1", "", False, self.namespace, devices, ())

    def read(self) -> TimelineTable:
        if self.table is None:
            raise GpuBackendError("gone")
        return self.table


def holders(file: File) -> Holders:
    made = Holders(file)  # type: ignore[arg-type]
    made.renew()
    return made


def resource(**values: Any) -> Any:
    made = Resource()
    add_attributes(made, {key.replace("__", "."): value for key, value in values.items()})
    return made.attributes


@pytest.mark.parametrize(
    "said",
    [
        {"k8s__pod__uid": "uid-1"},
        {"container__id": "c" * 64},
        {"k8s__namespace__name": "ns", "k8s__pod__name": "pod"},
        {"hw__id": TWO, "k8s__pod__uid": "uid-9"},
        {"gpu_profile__device__ids": [TWO]},
    ],
)
def test_a_resource_that_names_its_device_or_a_holder_of_it_is_on_that_one(said: dict[str, Any]) -> None:
    found = holders(File(listed(ONE), listed(TWO, POD)))
    assert found.devices_of(resource(**said)) == (TWO,)


def test_a_pod_with_two_devices_is_on_both() -> None:
    found = holders(File(listed(ONE, POD), listed(TWO, POD, {"k8s.pod.uid": "uid-2"})))
    assert found.devices_of(resource(k8s__pod__uid="uid-1")) == (ONE, TWO)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({}, "no attribute identifies its device"),
        ({"process__pid": 1}, "in another pid namespace than the node's exporter"),
        ({"k8s__pod__name": "pod"}, "no attribute identifies its device"),
        ({"k8s__pod__uid": "uid-9"}, "no source reports that its pod or container holds a device"),
    ],
)
def test_without_a_holder_there_is_a_reason_and_no_guess(said: dict[str, Any], reason: str) -> None:
    found = holders(File(listed(ONE), listed(TWO, POD))).devices_of(resource(**said))
    assert isinstance(found, str)
    assert reason in found


def test_the_only_device_of_a_node_is_everybody_s() -> None:
    assert holders(File(listed(ONE))).devices_of(resource()) == (ONE,)
    cut = File(listed(ONE), listed("MIG-1", parent=ONE), listed("MIG-2", parent=ONE))
    assert isinstance(holders(cut).devices_of(resource()), str)


def test_holders_change_with_the_table_and_stay_where_it_is_gone() -> None:
    file = File(listed(ONE), listed(TWO, POD))
    found = holders(file)
    file.put(listed(ONE, POD), listed(TWO))
    found.renew()
    assert found.devices_of(resource(k8s__pod__uid="uid-1")) == (ONE,)
    file.table = None
    found.renew()
    assert found.devices_of(resource(k8s__pod__uid="uid-1")) == (ONE,)


def test_a_table_has_its_holders_again_and_an_older_one_has_none() -> None:
    table = File(listed(ONE, POD)).table
    assert table is not None
    assert parse(table.text).devices[0].holders == (POD,)
    assert parse(table.text.replace('"holders"', '"others"')).devices[0].holders == ()


def test_executions_name_devices_by_uuid_and_whoever_names_another_is_on_none() -> None:
    placement = NodePlacement()
    before = placement.version
    placement.update([device(ONE), device(TWO)])
    assert placement.version > before
    assert placement.read == {ONE, TWO}
    assert [d.uuid for d in placement.of((TWO, ONE))] == [TWO, ONE]
    assert placement.of((ONE, "GPU-9")) == placement.of("a reason") == placement.of(None) == ()
    assert placement.why("a reason") == "a reason"
    assert "does not have" in placement.why((ONE, "GPU-9"))


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Those of a connection whose client is this process."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as accepted,
    ):
        yield Ends(*client.getsockname(), *accepted.getsockname())


def test_a_process_that_sent_its_spans_itself_is_on_the_devices_that_list_it(ends: Ends) -> None:
    pid = os.getpid()
    file = File(
        listed(ONE, pids=[7]), listed(TWO, pids=[7, pid]), listed("GPU-3"), listed("GPU-4", pids=[pid]),
        listed("MIG-1", parent="GPU-4", pids=[pid]), namespace=pid_namespace(),
    )  # fmt: skip
    found = holders(file)
    assert found.devices_of(resource(process__pid=pid), ends) == (TWO, "MIG-1")
    assert found.devices_of(resource(process__pid=pid, hw__id=ONE), ends) == (ONE,)
    file.put(listed(ONE, pids=[7]), listed(TWO, pids=[]))
    found.renew()
    assert "uses no device" in found.devices_of(resource(process__pid=pid), ends)


def test_a_process_id_that_nothing_proves_is_on_no_device_and_says_why(ends: Ends) -> None:
    pid = os.getpid()
    devices = listed(ONE, pids=[1, os.getppid(), pid]), listed(TWO, pids=[0, pid])
    found = holders(File(*devices, namespace=pid_namespace()))
    for said, through in ((os.getppid(), ends), (pid, None), (pid, ends._replace(port=9))):
        assert "is not proven" in found.devices_of(resource(process__pid=said), through)
    for wrong in (0, -1, str(pid), [str(pid)]):
        assert "is not a positive whole number" in found.devices_of(resource(process__pid=wrong), ends)
    assert "uses no device" in found.devices_of(resource(process__pid=(1 << 63) - 1), ends)
    for namespace in ("", "pid:[1]"):
        elsewhere = holders(File(*devices, namespace=namespace))
        assert "another pid namespace" in elsewhere.devices_of(resource(process__pid=pid), ends)
    # A container that holds nothing is not passed over for a number.
    said = resource(process__pid=pid, container__id="d" * 64)
    assert "no source reports" in found.devices_of(said, ends)

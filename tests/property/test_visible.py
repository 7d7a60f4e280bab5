from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.driver.visible import Visible
from gpu_profile.errors import UsageError

#: Short UUIDs from few letters, so that beginnings are shared.
BODIES = st.text("ab0", min_size=1, max_size=4)


@st.composite
def nodes(draw: st.DrawFn, *, mig: bool = True) -> list[Device]:
    devices: list[Device] = []
    for number, body in enumerate(draw(st.lists(BODIES, max_size=4, unique=True))):
        name, bus = draw(st.sampled_from(["A", "B"])), draw(st.integers(0, 255))
        uuid, place = f"GPU-{body}", f"0000:{bus:02X}:00.0"
        memory, count = draw(st.integers(0, 3)), draw(st.integers(0, 2)) if mig else 0
        devices.append(Device(uuid, index=number, name=name, pci_bus_id=place, memory_bytes=memory))
        devices += [Device(f"MIG-{body}{each}", parent=uuid, kind=DeviceKind.MIG, name=name) for each in range(count)]
    return devices


ENTRIES = st.one_of(
    st.sampled_from(
        ["", " ", "-1", "+1", "0x", "NoDevFiles", "nvml:0", "nvml:0:0", "cuda", "all", "cuda:1", "00:00.0"]
    ),
    st.integers(-1, 5).map(str),
    st.builds("{}-{}".format, st.sampled_from(["GPU", "MIG", "MIG-GPU"]), st.text("ab0/1", max_size=5)),
    st.text("0123456789GPUMIgcuda-+:/., ", max_size=8),
)
VALUES = st.one_of(st.none(), st.lists(ENTRIES, max_size=5).map(",".join))
ORDERS = st.sampled_from([{}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}])


def environment(value: str | None, order: dict[str, str]) -> dict[str, str]:
    return order if value is None else {**order, "CUDA_VISIBLE_DEVICES": value}


@given(nodes(), VALUES, ORDERS)
def test_cuda_sees_some_of_the_devices_each_once_and_one_mig_instance_at_most(
    devices: list[Device], value: str | None, order: dict[str, str]
) -> None:
    seen = Visible(devices, environment(value, order))
    assert set(seen.devices) <= set(devices)
    assert len(set(seen.devices)) == len(seen.devices)
    if any(device.kind is DeviceKind.MIG for device in seen.devices):
        assert len(seen.devices) == 1
    cut = {device.parent for device in devices}
    assert not any(device.uuid in cut for device in seen.devices)
    if value is None:
        assert bool(seen.devices) == bool(devices)
    if not seen.devices:
        assert seen.assumed == ""


@given(nodes(), VALUES, ORDERS, ENTRIES)
def test_any_text_names_devices_of_the_node_or_is_refused_in_one_line(
    devices: list[Device], value: str | None, order: dict[str, str], text: str
) -> None:
    seen = Visible(devices, environment(value, order))
    refused, found = "", []
    try:
        found = seen.resolve(text)
    except UsageError as error:
        refused = str(error)
    assert bool(found) != bool(refused)
    assert "\n" not in refused
    assert set(found) <= set(devices)
    assert len(set(found)) == len(found)


@given(nodes(), VALUES, ORDERS)
def test_every_device_is_found_by_its_uuid_and_what_cuda_sees_by_its_ordinal(
    devices: list[Device], value: str | None, order: dict[str, str]
) -> None:
    seen = Visible(devices, environment(value, order))
    for device in devices:
        assert seen.resolve(device.uuid) == [device]
    for ordinal, device in enumerate(seen.devices):
        assert seen.resolve(ordinal) == seen.resolve(f"cuda:{ordinal}") == [device]
    with pytest.raises(UsageError):
        seen.resolve(len(seen.devices))


@given(nodes(), VALUES, st.lists(BODIES.map("GPU-{}".format)), st.none() | st.integers(-1, 4), st.integers(-1, 4))
def test_a_default_is_a_device_of_the_node_and_its_reason_is_told(
    devices: list[Device], value: str | None, used: list[str], current: int | None, local: int
) -> None:
    seen = Visible(devices, environment(value, {}))
    found, known = seen.defaults(used, current, local)
    assert set(found) <= set(devices)
    assert known
    assert bool(found) or not seen.devices


@given(nodes(mig=False), st.lists(ENTRIES.filter(lambda entry: "MIG" not in entry), max_size=5).map(",".join))
def test_lists_mean_what_pytorchs_parser_takes_them_to_mean(devices: list[Device], value: str) -> None:
    cuda: Any = pytest.importorskip("torch.cuda")
    with patch.dict("os.environ", {"CUDA_VISIBLE_DEVICES": value}):
        try:
            parsed = cuda._parse_visible_devices()
        except ValueError:  # its parser trips over a sign without a number
            return
    uuids = [device.uuid for device in devices]
    if parsed and isinstance(parsed[0], str):
        expected = [uuids[number] for number in cuda._transform_uuid_to_ordinals(parsed, uuids)]
    else:
        ordered = Visible(devices, {}).devices
        beyond = next((place for place, number in enumerate(parsed) if number >= len(ordered)), len(parsed))
        expected = [ordered[number].uuid for number in parsed[:beyond]]
    assert [device.uuid for device in Visible(devices, {"CUDA_VISIBLE_DEVICES": value}).devices] == expected

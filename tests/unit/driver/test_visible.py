from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from support.drivers import SLICE, A, B, FakeDriver
from support.nodes import HALF, node_of
from unit.driver.devices import GPUS, MIXED, MIXED_MODELS, UUIDS, gpu, slices, visible

from gpu_profile.catalogue.samples import Device
from gpu_profile.cli.devices import chooser
from gpu_profile.driver import is_simulated, simulated
from gpu_profile.driver.grammar import open_driver
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.driver.simulated import SimulatedQueue
from gpu_profile.driver.visible import VARIABLE, Visible
from gpu_profile.errors import UsageError
from gpu_profile.recording.rank import Rank, rank
from gpu_profile.testing import FakeClock


def seen(devices: Sequence[Device], value: str | None, **more: str) -> list[str]:
    environ = more if value is None else {"CUDA_VISIBLE_DEVICES": value, **more}
    return [device.uuid for device in Visible(devices, environ).devices]


def uuids(devices: Sequence[Device]) -> list[str]:
    return [device.uuid for device in devices]


# ---------------------------------------------------------------------- what CUDA sees


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        (None, [0, 1, 2, 3]),
        ("0", [0]),
        ("2,1", [2, 1]),
        ("0,2,-1,1", [0, 2]),
        ("0,2,9,1", [0, 2]),
        (" 3 , 1 ", [3, 1]),
        ("+3,-0", [3, 0]),
        ("1gpu,2ampere", [1, 2]),
        ("0,,1", [0]),
        ("1,two,3", [1]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("none", []),
        ("4", []),
        ("2," + "9" * 5000, [2]),
        ("0,1,0", []),
        ("0,1,+0", []),
        ("0,9,0", []),
        ("0,-1,0", [0]),
        (UUIDS[2], [2]),
        ("GPU-e429,GPU-4", [2, 3]),
        ("GPU-9e8d35e3,GPU-9e8d35e4", [0, 1]),
        ("GPU-e429,GPU-9e8d,GPU-4", [2]),
        ("GPU-e429,GPU-0,GPU-4", [2]),
        ("GPU-9e8d", []),
        ("GPU-e429,GPU-e429", []),
        ("GPU-e429,GPU-e42", []),
        ("GPU-e429,1", [2]),
        ("1,GPU-e429", [1]),
        ("GPU-e429, GPU-4", [2]),
        ("MIG-0", []),
    ],
)
def test_the_variable_means_what_cuda_takes_it_to_mean(value: str | None, numbers: list[int]) -> None:
    assert seen(GPUS, value) == [UUIDS[number] for number in numbers]


@pytest.mark.parametrize("value", [None, "0,1,2"])
def test_gpus_of_one_model_are_in_the_order_of_their_buses_whatever_the_order_that_is_asked_for(
    value: str | None,
) -> None:
    buses = ["0001:02:00.0", "00000000:FF:00.0", "00000000:9A:01.0"]
    gpus = [gpu(number, bus=bus) for number, bus in enumerate(buses)]
    for order in ({}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}):
        assert seen(gpus, value, **order) == [UUIDS[2], UUIDS[1], UUIDS[0]]
    assert Visible(gpus, {}).assumed == ""


def test_without_buses_the_order_is_the_drivers() -> None:
    gpus = [gpu(2, bus=""), gpu(0), gpu(1)]
    assert seen(gpus, None) == [UUIDS[2], UUIDS[0], UUIDS[1]]


@pytest.mark.parametrize("value", [None, "0,1", "2"])
def test_the_order_of_several_models_is_a_guess_and_says_so(value: str | None) -> None:
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    guessed = Visible(MIXED_MODELS, environ)
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in guessed.assumed
    sure = Visible(MIXED_MODELS, {**environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert sure.assumed == ""
    if value is None:
        assert uuids(guessed.devices) == [UUIDS[1], UUIDS[0], UUIDS[2]]
        assert uuids(sure.devices) == UUIDS[:3]


@pytest.mark.parametrize("value", [f"{UUIDS[2]},{UUIDS[0]}", "GPU-449,GPU-e4", "", "9"])
def test_nothing_is_assumed_where_only_uuids_are_used_or_nothing_is_seen(value: str) -> None:
    assert visible(value, MIXED_MODELS).assumed == ""


def test_a_lone_gpu_needs_no_order() -> None:
    assert Visible(MIXED_MODELS[:1], {}).assumed == ""


@pytest.mark.parametrize(
    ("devices", "value", "expected"),
    [
        # Without the variable: one instance, and no whole GPU beside it.
        (MIXED, None, ["MIG-10"]),
        ([*slices(GPUS[0], 2), *slices(GPUS[1], 2)], None, ["MIG-00"]),
        # By its own name, or a beginning of it.
        (MIXED, "MIG-11000000-0000-5000-8000-000000000000", ["MIG-11"]),
        (MIXED, "MIG-11", ["MIG-11"]),
        (MIXED, "MIG-11,MIG-10", ["MIG-11"]),
        (MIXED, "MIG-1", []),
        (MIXED, "MIG-11,MIG-11", []),
        (MIXED, "MIG-99", []),
        # A GPU that is cut stands for its first instance.
        (MIXED, UUIDS[1], ["MIG-10"]),
        (MIXED, f"{UUIDS[0]},{UUIDS[1]}", ["MIG-10"]),
        (MIXED, f"{UUIDS[2]},{UUIDS[0]}", [UUIDS[2], UUIDS[0]]),
        # Numbers: whole GPUs come first.
        (MIXED, "0,1", [UUIDS[0], UUIDS[2]]),
        (MIXED, "2", ["MIG-10"]),
        (MIXED, "3", []),
        ([*slices(GPUS[0], 2), *slices(GPUS[1], 2)], "1", ["MIG-10"]),
    ],
)
def test_cuda_sees_one_mig_instance_or_whole_gpus(
    devices: list[Device], value: str | None, expected: list[str]
) -> None:
    found = seen(devices, value)
    assert len(found) == len(expected)
    assert all(one.startswith(other) for one, other in zip(found, expected, strict=True))


def test_numbers_on_a_node_of_cut_and_whole_gpus_are_assumed_and_uuids_are_not() -> None:
    assert "numbers are assumed" in visible("0,1", MIXED).assumed
    assert visible(UUIDS[1], MIXED).assumed == ""
    assert visible("0", slices(GPUS[0], 2)).assumed == ""
    assert Visible(MIXED, {}).assumed == ""


def test_the_old_form_of_a_mig_instance_is_found_by_its_two_numbers() -> None:
    devices = slices(GPUS[1], 3)
    first, second, third = devices[1:]
    numbers = {first.uuid: (1, 0), second.uuid: (2, 0), third.uuid: (2, 1)}
    for gi, ci, expected in ((1, 0, first), (2, 1, third)):
        for name in (UUIDS[1], "GPU-9e8d35e4"):
            environ = {"CUDA_VISIBLE_DEVICES": f"MIG-{name}/{gi}/{ci}"}
            found = Visible(devices, environ, instances=numbers)
            assert (list(found.devices), found.assumed) == ([expected], "")
            assert found.resolve(f"MIG-{name}/{gi}/{ci}") == [expected]
    for unknown in (f"MIG-{UUIDS[1]}/7/0", f"MIG-{UUIDS[0]}/1/0"):
        assert not Visible(devices, {"CUDA_VISIBLE_DEVICES": unknown}, instances=numbers).devices


def test_the_old_form_without_the_numbers_is_sure_only_where_there_is_one_instance() -> None:
    one, several = slices(GPUS[1], 1), slices(GPUS[1], 2)
    name = f"MIG-{UUIDS[1]}/5/0"
    assert (list(visible(name, one).devices), visible(name, one).assumed) == ([one[1]], "")
    assert list(visible(name, several).devices) == [several[1]]
    assert "the MIG instance is assumed" in visible(name, several).assumed
    assert visible("", one).resolve(name) == [one[1]]
    with pytest.raises(UsageError, match=r"name it by its own UUID .*; there are MIG-10.*, MIG-11"):
        visible("", several).resolve(name)


def test_a_driver_that_names_instances_in_the_old_form_itself_is_understood() -> None:
    parent, first, second = slices(GPUS[1], 2)
    devices = [parent, *(replace(one, uuid=f"MIG-{UUIDS[1]}/{n}/0") for n, one in ((1, first), (2, second)))]
    for one in devices[1:]:
        found = visible(one.uuid, devices)
        assert (list(found.devices), found.assumed) == ([one], "")


def test_an_instance_whose_gpu_is_not_listed_is_seen_alone() -> None:
    orphans = slices(GPUS[0], 2)[1:]
    assert seen(orphans, None) == [orphans[0].uuid]
    assert Visible(orphans, {}).resolve(0) == [orphans[0]]
    assert "one MIG instance" in Visible(orphans, {}).reason


def test_why_cuda_sees_less_is_said() -> None:
    assert Visible(GPUS, {}).reason == ""
    assert visible("").reason == "CUDA_VISIBLE_DEVICES is empty"
    assert visible("1,0").reason == "CUDA_VISIBLE_DEVICES='1,0'"
    assert visible("1,x,0").reason == "CUDA_VISIBLE_DEVICES='1,x,0': CUDA stops at 'x', which is no device here"
    assert visible("1,1").reason == "CUDA_VISIBLE_DEVICES='1,1' names a device twice, so that CUDA shows none"
    assert "one MIG instance" in Visible(MIXED, {}).reason
    assert "one MIG instance" in visible("MIG-10,MIG-11", MIXED).reason


# ---------------------------------------------------------------------- ranks

SLURM = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, Rank(5, 1, 8)),
        ({"LOCAL_RANK": "2"}, Rank(None, 2, None)),
        (SLURM, Rank(3, 1, 8)),
        ({"RANK": "5", "LOCAL_RANK": "1", **SLURM}, Rank(5, 1, None)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Rank(1, 1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "1", **SLURM}, Rank(1, None, None)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", **SLURM}, Rank(1, None, 2)),
        ({"RANK": "one", "WORLD_SIZE": "8"}, None),
        ({"RANK": "-1", **SLURM}, Rank(3, 1, 8)),
        ({"RANK": "", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, Rank(None, 0, 2)),
        ({"RANK": "5", "WORLD_SIZE": "4"}, Rank(5, None, None)),
        ({"RANK": "1_0"}, None),
        ({"RANK": "9" * 5000}, None),
        ({"WORLD_SIZE": "8"}, None),
    ],
)
def test_the_rank_is_what_one_launcher_says_and_what_is_malformed_is_ignored(
    environ: dict[str, str], expected: Rank | None
) -> None:
    assert rank(environ) == expected


# ---------------------------------------------------------------------- with the driver

NODE = node_of("H100 SXM", "H100 SXM") + 2 * HALF


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[NvmlDriver]:
    clock = FakeClock()
    simulated.create(tmp_path, NODE, clock=clock)
    with simulated.installed(tmp_path, clock=clock):
        yield NvmlDriver(clock=clock)


def test_the_devices_of_a_simulated_node_are_resolved_as_the_nvml_driver_lists_them(driver: NvmlDriver) -> None:
    whole, cut, first, second = devices = driver.devices()
    assert [device.kind for device in devices] == ["gpu", "gpu", "mig", "mig"]
    assert list(Visible(devices, {}).devices) == [first]
    assert list(visible(second.uuid, devices).devices) == [second]
    assert list(visible(whole.uuid, devices).devices) == [whole]
    found = visible(cut.uuid, devices)
    assert found.resolve("cuda:0") == found.resolve("nvml:1:0") == [first]
    assert found.resolve(cut.pci_bus_id) == found.resolve("nvml:1") == [cut]
    assert found.resolve(["nvml:1:1", 0]) == [second, first]


def test_ordinals_of_a_simulated_node_are_those_of_its_queues(tmp_path: Path) -> None:
    node = simulated.create(tmp_path / "node")
    with closing(open_driver(f"simulated:{node}")) as driver:
        devices = list(driver.devices())
    for ordinal in (0, 1):
        with SimulatedQueue(node, device=ordinal) as queue:
            (chosen,) = chooser([str(ordinal)], visible=True)(driver, devices)
            assert chosen.uuid == queue.device_uuid
            (resolved,) = Visible(devices, {}, simulated=True).resolve(ordinal)
            assert resolved.uuid == queue.device_uuid
    assert Visible(devices, {VARIABLE: "1"}, simulated=True).devices == Visible(devices, {VARIABLE: "1"}).devices


def test_the_node_s_timeline_of_a_simulated_node_has_its_ordinals(tmp_path: Path) -> None:
    driver = FakeDriver(FakeClock(), [A, SLICE, B], name=f"node:{tmp_path}")
    assert chooser(["0"], visible=True)(driver, driver.present) == [SLICE], "as CUDA would have it"
    assert not is_simulated(driver)
    driver.recorded_driver = "simulated:/somewhere"
    assert chooser(["0"], visible=True)(driver, driver.present) == [B]
    assert is_simulated(driver)


# ---------------------------------------------------------------------- messages

EIGHT = [Device(f"GPU-{number:08x}-0000-4000-8000-{number:012x}", index=number) for number in range(8)]
ALL_EIGHT = ",".join(uuids(EIGHT))


def refused(spec: str, devices: Sequence[Device], value: str | None, *, simulated: bool = False) -> str:
    environ = {} if value is None else {VARIABLE: value}
    with pytest.raises(UsageError) as error:
        Visible(devices, environ, simulated=simulated).resolve(spec)
    return str(error.value)


def test_a_variable_that_is_not_set_is_in_no_message() -> None:
    assert refused("9", EIGHT, None, simulated=True) == "device '9': CUDA shows this process 8 devices, 0 to 7"
    assert refused("2", [A, SLICE, B], None, simulated=True) == (
        "device '2': CUDA shows this process 1 device, 0 (simulated GPUs with MIG instances have no number)"
    )


def test_a_long_value_is_shortened_and_never_shown_as_if_it_were_whole() -> None:
    assert refused("9", EIGHT, ALL_EIGHT) == (
        "device '9': CUDA shows this process 8 devices, 0 to 7 "
        "(CUDA_VISIBLE_DEVICES of 8 entries, first 'GPU-00000000-000…')"
    )
    assert refused("1", EIGHT, EIGHT[3].uuid) == (
        f"device '1': CUDA shows this process 1 device, 0 (CUDA_VISIBLE_DEVICES='{EIGHT[3].uuid}')"
    )


@pytest.mark.parametrize("spec", ["cuda:17", "9", "GPU-ff", EIGHT[0].uuid + "0"])
@pytest.mark.parametrize(
    "value",
    [ALL_EIGHT, f"{ALL_EIGHT},{UUIDS[2]}", UUIDS[0], f"{UUIDS[0]},{ALL_EIGHT}", f"{ALL_EIGHT},{EIGHT[0].uuid}", "9"],
)
def test_a_message_about_a_long_value_has_at_most_200_characters(spec: str, value: str) -> None:
    assert len(refused(spec, EIGHT, value)) <= 200

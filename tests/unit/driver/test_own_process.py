import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from support.concurrency import in_threads
from support.drivers import FakeDriver
from support.nodes import HALF, node_of
from support.programs import ran

from gpu_profile.catalogue.samples import Device, DeviceKind, ProcessUse
from gpu_profile.driver import simulated
from gpu_profile.driver.null import NullDriver
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.driver.own_process import FIRST_S, LAST_S, OwnIds, own_ids, pause_s, runs, uses
from gpu_profile.driver.simulated import SimulatedQueue, Work
from gpu_profile.driver.visible import Visible
from gpu_profile.testing import FakeClock

A, B = Device("GPU-A"), Device("GPU-B")
SLICE, OTHER_SLICE = (Device(f"MIG-{n}", parent="GPU-B", kind=DeviceKind.MIG) for n in range(2))
#: A process of three threads on the host, one in a container, and that one on a kernel that tells its host number.
HOST = OwnIds(frozenset({100, 101, 102}), 100)
CONTAINED = OwnIds(frozenset({7, 8}), on_host=False)
TOLD = OwnIds(frozenset({7, 8}), 100, on_host=False)


class Listing(FakeDriver):
    """A driver that lists what it is told to, and notes which devices it was asked for."""

    def __init__(self, **listed: list[int]) -> None:
        super().__init__(FakeClock(), [])
        self.listed = {name.replace("_", "-"): numbers for name, numbers in listed.items()}
        self.asked: list[str] = []

    def processes(self, device: Device) -> Sequence[ProcessUse]:
        self.asked.append(device.uuid)
        return [ProcessUse(number) for number in self.listed.get(device.uuid, [])]


def alive(*numbers: int) -> Callable[[int], bool]:
    return lambda number: number in numbers


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ({"GPU_A": [100], "GPU_B": [55]}, ["GPU-A"]),
        ({"GPU_A": [100, 55], "GPU_B": [100]}, ["GPU-A", "GPU-B"]),
        # The number may be that of the thread that opened the device.
        ({"GPU_B": [102]}, ["GPU-B"]),
        ({"GPU_A": [100], "GPU_B": [102]}, ["GPU-A", "GPU-B"]),
        ({"GPU_A": [55]}, []),
        # Found all the same beside a number that belongs to nobody any more.
        ({"GPU_A": [100, 666]}, ["GPU-A"]),
        # 666 may have been one of our threads.
        ({"GPU_A": [666]}, None),
        ({}, None),
    ],
)
def test_on_the_host_a_process_is_known_by_its_own_number_or_a_threads(
    listed: dict[str, list[int]], found: list[str] | None
) -> None:
    assert uses(Listing(**listed), [A, B], HOST, exists=alive(55)) == found


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        # The driver translates: every number is somebody here.
        ({"GPU_A": [7], "GPU_B": [9]}, ["GPU-A"]),
        ({"GPU_B": [9, 8]}, ["GPU-B"]),
        ({"GPU_B": [9]}, []),
        # It does not: 4321 is nobody here, so 7 is somebody else.
        ({"GPU_A": [7], "GPU_B": [4321]}, None),
        ({"GPU_A": [4321]}, None),
        ({}, None),
    ],
)
def test_in_a_container_numbers_count_only_where_all_of_them_are_of_the_container(
    listed: dict[str, list[int]], found: list[str] | None
) -> None:
    assert uses(Listing(**listed), [A, B], CONTAINED, exists=alive(9)) == found


def test_a_number_on_the_host_that_the_kernel_tells_is_enough() -> None:
    assert uses(Listing(GPU_A=[7], GPU_B=[100, 4321]), [A, B], TOLD, exists=alive()) == ["GPU-B"]
    assert uses(Listing(GPU_A=[7], GPU_B=[4321]), [A, B], TOLD, exists=alive()) is None


def test_a_gpu_that_is_cut_is_asked_through_its_instances_alone() -> None:
    driver = Listing(GPU_A=[55], GPU_B=[100, 55], MIG_1=[100], MIG_0=[55])
    assert uses(driver, [A, B, SLICE, OTHER_SLICE], HOST, exists=alive(55)) == ["MIG-1"]
    assert driver.asked == ["GPU-A", "MIG-0", "MIG-1"]


def test_a_driver_that_lists_no_processes_leaves_it_unknown() -> None:
    assert uses(NullDriver(), [A], HOST) is None


# ---------------------------------------------------------------------- own numbers


def proc(directory: Path, *, namespace: str, sched: str | None = None, tasks: Sequence[int] = (7, 8)) -> Path:
    for task in tasks:
        (directory / "task" / str(task)).mkdir(parents=True)
    (directory / "ns").mkdir()
    (directory / "ns" / "pid").symlink_to(namespace)
    if sched is not None:
        (directory / "sched").write_text(sched)
    return directory


def test_on_the_host_the_numbers_are_those_of_the_process_and_its_threads(tmp_path: Path) -> None:
    ids = own_ids(proc(tmp_path, namespace="pid:[4026531836]"))
    assert ids == OwnIds(frozenset({7, 8, os.getpid()}), os.getpid(), on_host=True)


@pytest.mark.parametrize(
    ("sched", "host"),
    [
        (None, None),
        ("python3 (31337, #threads: 4)\n-----\n", 31337),
        ("a (1, #threads: 2) b (31337, #threads: 4)\n-----\n", 31337),
        (f"python3 ({os.getpid()}, #threads: 4)\n", None),
        ("nothing of use\n", None),
    ],
    ids=["no file", "leaked", "leaked, odd name", "its own", "of no use"],
)
def test_in_a_container_the_hosts_number_is_known_only_where_the_kernel_leaks_it(
    tmp_path: Path, sched: str | None, host: int | None
) -> None:
    ids = own_ids(proc(tmp_path, namespace="pid:[4026532222]", sched=sched))
    assert (ids.host, ids.on_host) == (host, False)


def test_without_proc_the_own_number_is_left_and_nothing_is_taken_for_the_hosts(tmp_path: Path) -> None:
    assert own_ids(tmp_path / "absent") == OwnIds(frozenset({os.getpid()}), None, on_host=False)


def test_a_thread_that_lives_is_among_the_own_numbers() -> None:
    seen: list[bool] = []
    in_threads(lambda: seen.append(threading.get_native_id() in own_ids().inside))
    assert seen == [True]


def test_who_runs_is_told_of_processes_and_threads_of_any_user() -> None:
    assert runs(os.getpid())
    assert runs(1)
    assert not runs(0)
    assert not runs(-1)
    assert not runs(2**40)
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert not runs(done.pid)


def test_a_process_that_may_not_be_touched_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signal: int) -> None:
        assert signal == 0
        raise PermissionError(pid)

    monkeypatch.setattr(os, "kill", refuse)
    assert runs(4321)


ASK = """
import os
from gpu_profile.driver.own_process import own_ids, runs
ids = own_ids()
print(os.getpid(), ids.on_host, os.getpid() in ids.inside, ids.host, runs(1), runs({pid}))
"""


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs unshare and root")
def test_in_a_real_namespace_of_its_own_a_process_knows_that_it_is_not_the_hosts() -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", ASK.format(pid=os.getpid())]
    done = ran(command)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no namespace may be made here: {done.stderr.strip()}")
    pid, *rest = done.stdout.split()
    assert (int(pid), rest) == (1, ["False", "True", "None", "True", "False"])


# ---------------------------------------------------------------------- how often


def test_the_driver_is_asked_less_and_less_and_rarely_once_it_has_answered() -> None:
    pauses = [pause_s(asked, listed=False) for asked in range(9)]
    assert pauses[0] == FIRST_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == pause_s(10_000, listed=False) == pause_s(0, listed=True) == LAST_S


# ---------------------------------------------------------------------- with the NVML driver

NODE = node_of("H200 SXM", "H200 SXM", "H100 SXM") + 2 * HALF


@pytest.fixture
def node(tmp_path: Path, clock: FakeClock) -> Iterator[Path]:
    simulated.create(tmp_path, NODE, clock=clock)
    with simulated.installed(tmp_path, clock=clock):
        yield tmp_path


@pytest.mark.parametrize("place", [1, 4])
def test_the_nvml_driver_lists_this_process_on_the_gpu_or_instance_that_it_uses(
    node: Path, clock: FakeClock, place: int
) -> None:
    driver = NvmlDriver(clock=clock)
    devices = driver.devices()
    assert uses(driver, devices, own_ids()) is None
    with SimulatedQueue(node, devices[place].uuid, clock=clock) as queue:
        queue.launch(Work(seconds=0.1, flops=1e12))
        clock.advance(0.2)
        found = uses(driver, devices, own_ids())
        assert found == [devices[place].uuid]
        joined, known = Visible(devices, {}).defaults(found)
        assert (joined, known) == ([devices[place]], "the driver lists this process on it")
    clock.advance(0.2)
    assert uses(driver, devices, own_ids()) is None


def test_what_another_process_uses_is_not_ours(node: Path, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock)
    devices = driver.devices()
    with SimulatedQueue(node, devices[0].uuid, clock=clock) as queue:
        queue.launch(Work(seconds=0.1, flops=1e12))
        clock.advance(0.2)
        assert uses(driver, devices, OwnIds(frozenset({1}), 1)) == []

from pathlib import Path

import pytest
from support.concurrency import in_child

from gpu_profile.driver.simulated import SimulatedQueue, Truth, Work, create
from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.driver.simulated.physics import LAUNCH_LATENCY_NS, SHORTEST_KERNEL_NS, duration_ns
from gpu_profile.errors import ScenarioError, UsageError
from gpu_profile.testing import FakeClock

H200 = MODELS["H200 SXM"]


@pytest.fixture
def queue(tmp_path: Path) -> SimulatedQueue:
    clock = FakeClock()
    return SimulatedQueue(create(tmp_path / "node", clock=clock), clock=clock)


def test_kernel_lasts_as_long_as_its_slowest_ceiling_asks() -> None:
    assert duration_ns(H200, Work(flops=989.4e12 * 0.75)) == 1_000_000_000
    assert duration_ns(H200, Work(bytes=4.8e12 * 0.85)) == 1_000_000_000
    assert duration_ns(H200, Work(flops=989.4e12 * 0.75, bytes=4.8e12 * 0.85 * 2)) == 2_000_000_000
    assert duration_ns(H200, Work(flops=989.4e12 * 0.75, sms=0.25)) == 4_000_000_000
    assert duration_ns(H200, Work()) == SHORTEST_KERNEL_NS


@pytest.mark.parametrize(
    "bad", [{"flops": -1}, {"bytes": float("nan")}, {"sms": 0}, {"sms": 1.5}, {"precision": "int3"}, {"seconds": -1}]
)
def test_work_that_makes_no_sense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"finite|shares|unknown precision"):
        Work(**bad)  # type: ignore[arg-type]


def test_launch_returns_at_once_and_queues_behind_what_runs(tmp_path: Path, clock: FakeClock) -> None:
    directory = create(tmp_path / "node", clock=clock)
    with SimulatedQueue(directory, clock=clock) as queue:
        before = clock.now_ns()
        queue.launch(Work(seconds=1.0), tag="a")
        queue.launch(Work(seconds=2.0), tag="a")
        assert clock.now_ns() == before
        assert queue.pending_ns == 3_000_000_000 + LAUNCH_LATENCY_NS
        queue.synchronize()
        assert clock.now_ns() == before + 3_000_000_000 + LAUNCH_LATENCY_NS
        assert queue.pending_ns == 0


def test_mark_resolves_when_the_queue_passes_it(tmp_path: Path, clock: FakeClock) -> None:
    queue = SimulatedQueue(create(tmp_path / "node", clock=clock), clock=clock)
    start = clock.now_ns()
    first = queue.record()
    assert queue.resolve(first) == start
    queue.launch(Work(seconds=0.5))
    second = queue.record()
    queue.launch(Work(seconds=9.0))
    assert queue.resolve(second) is None
    clock.advance(0.5)
    assert queue.resolve(second) is None
    clock.advance(0.1)
    assert queue.resolve(second) == start + 500_000_000 + LAUNCH_LATENCY_NS


def test_work_that_the_device_cannot_do_is_refused_at_launch(tmp_path: Path) -> None:
    queue = SimulatedQueue(create(tmp_path / "node"), 1)
    with pytest.raises(ValueError, match="A10G has no fp8 pipe"):
        queue.launch(Work(flops=1.0, precision="fp8"))
    with pytest.raises(ValueError, match="A10G has no NVLink"):
        queue.launch(Work(nvlink_bytes=1.0))
    with pytest.raises(ValueError, match="a copy has a size"):
        queue.copy(1, "sideways")  # type: ignore[arg-type]


def test_devices_that_take_no_work_say_why(tmp_path: Path) -> None:
    node = create(tmp_path / "built-in")
    with pytest.raises(ScenarioError, match="is cut into instances; use one of MIG-"):
        SimulatedQueue(node, 2)
    with pytest.raises(UsageError, match="no device 7; the simulated node has GPU-"):
        SimulatedQueue(node, 7)
    scripted = create(tmp_path / "scripted", '[[device]]\nmodel="L4"\n[[device.phase]]\nduration_s=1\n')
    with pytest.raises(ScenarioError, match="follows a script"):
        SimulatedQueue(scripted)


def test_instance_is_addressed_by_uuid_and_slower_than_its_gpu(tmp_path: Path) -> None:
    node = create(tmp_path / "node")
    uuid = Truth(node).uuids[3]
    queue = SimulatedQueue(node, uuid)
    assert queue.device_uuid == uuid
    assert uuid.startswith("MIG-")
    work = Work(flops=1e13)
    assert duration_ns(queue.model, work) > 2 * duration_ns(MODELS["H100 SXM"], work)


def test_forked_child_writes_its_own_log(queue: SimulatedQueue, tmp_path: Path) -> None:
    queue.launch(Work(flops=1e12), tag="parent")
    in_child(lambda: queue.launch(Work(flops=1e12), tag="child"))
    truth = Truth(tmp_path / "node")
    assert sorted(truth.tags) == ["child", "parent"]
    assert len(list((tmp_path / "node").glob("work-*.log"))) == 2


def test_closing_twice_is_fine_and_launching_after_is_an_error(queue: SimulatedQueue) -> None:
    queue.close()
    queue.close()
    with pytest.raises(UsageError, match="closed"):
        queue.launch(Work())

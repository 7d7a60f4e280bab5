from pathlib import Path

import pytest

from gpu_profile.driver.simulated import SimulatedQueue, Truth, Work, create
from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.driver.simulated.script import Phase
from gpu_profile.driver.simulated.truth import label
from gpu_profile.errors import UsageError
from gpu_profile.testing import START_NS, FakeClock

H200 = MODELS["H200 SXM"]
S = 1_000_000_000


@pytest.mark.parametrize(
    ("phase", "regime"),
    [
        (Phase(duration_s=1), "IDLE"),
        (Phase(duration_s=1, flops=1e12, bytes=1e9), "COMPUTE_BOUND"),
        (Phase(duration_s=1, flops=1e10, bytes=1e9), "MEMORY_BOUND"),
        (Phase(duration_s=1, flops=1e12, bytes=1e12 / (989.4 * 0.75) * 4.8 * 0.85 * 0.98), "BALANCED"),
        (Phase(duration_s=1, flops=1e11, bytes=1e8, sms=0.1), "LATENCY_BOUND"),
        (Phase(duration_s=1, flops=1e6, bytes=1e5), "OVERHEAD_BOUND"),
        (Phase(duration_s=1, flops=1e10, bytes=1e7, launches=20, launch_gap_s=1e-4), "OVERHEAD_BOUND"),
        (Phase(duration_s=1, flops=1e12, bytes=1e9, host_wait_s=0.01), "HOST_BOUND"),
        (Phase(duration_s=1, flops=1e12, bytes=1e9, pcie_bytes=1e9), "TRANSFER_BOUND"),
        (Phase(duration_s=1, flops=1e9, nvlink_bytes=1e9), "COMMUNICATION_BOUND"),
        (Phase(duration_s=1, duty=0.9, period_s=0.1), "COMPUTE_BOUND"),
        (Phase(duration_s=1, duty=0.9, period_s=0.1, compute=0.1, memory=0.7), "MEMORY_BOUND"),
        (Phase(duration_s=1, duty=0.2, period_s=0.1), "HOST_BOUND"),
        (Phase(duration_s=1, duty=0.0, period_s=0.1), "IDLE"),
    ],
)
def test_regime_follows_from_the_physics_of_a_phase(phase: Phase, regime: str) -> None:
    assert label(phase, H200) == regime


def test_tags_are_charged_what_they_did(tmp_path: Path, clock: FakeClock) -> None:
    node = create(tmp_path / "node", clock=clock)
    queue = SimulatedQueue(node, clock=clock)
    for _ in range(10):
        queue.launch(Work(flops=1e13, bytes=1e9), tag="compute")
        queue.launch(Work(flops=1e10, bytes=4e10), tag="memory")
    queue.copy(5.5e9, "to_device", tag="copy")
    queue.launch(Work(seconds=0.5))
    truth = Truth(node, clock=clock)
    uuid = truth.uuids[0]
    assert truth.label("compute") == "COMPUTE_BOUND"
    assert truth.label("memory") == "MEMORY_BOUND"
    assert truth.label("copy") == "TRANSFER_BOUND"
    compute = truth.tag(uuid, "compute")
    assert compute.busy_s == pytest.approx(10 * 1e13 / (989.4e12 * 0.75), rel=1e-6)
    assert compute.energy_j == pytest.approx(compute.busy_s * (75 + 625 * (0.15 + 0.85 * 0.75)), rel=1e-2)
    assert truth.amounts(0, "compute").flops == pytest.approx(1e14)
    assert truth.amounts(0, "memory").launches == 10
    copy = truth.tag(0, "copy")
    assert copy.busy_s == 0
    assert copy.energy_j > 0.1 * 75
    assert truth.tag(0, None).busy_s == pytest.approx(0.5)
    assert truth.device(0, START_NS, START_NS + 10 * S).pcie_rx_bytes == pytest.approx(5.5e9)


def test_shares_of_overlapping_queues_sum_to_the_device(tmp_path: Path, clock: FakeClock) -> None:
    node = create(tmp_path / "node", clock=clock)
    queues = [SimulatedQueue(node, clock=clock) for _ in range(3)]
    for step in range(60):
        queues[step % 3].launch(Work(flops=(1 + step % 5) * 1e12), tag="abc"[step % 3])
        clock.advance(0.001)
    truth = Truth(node, clock=clock)
    whole = truth.device(0, START_NS, START_NS + S)
    shares = [truth.tag(0, tag, START_NS, START_NS + S) for tag in "abc"]
    assert sum(share.busy_s for share in shares) == pytest.approx(whole.busy_s)
    idle = (1 - whole.busy_s) * 75
    assert sum(share.energy_j for share in shares) == pytest.approx(whole.energy_j - idle)
    assert sum(truth.amounts(0, tag).flops for tag in "abc") == pytest.approx(whole.flops)
    assert all(truth.amounts(0, tag).running_s > share.busy_s for tag, share in zip("abc", shares, strict=True))


def test_gaps_between_launches_tell_overhead_from_waiting(tmp_path: Path, clock: FakeClock) -> None:
    node = create(tmp_path / "node", clock=clock)
    queue = SimulatedQueue(node, clock=clock)
    for gap, tag in ((5e-5, "launches"), (5e-3, "waits")):
        for _ in range(20):
            queue.launch(Work(flops=5e9), tag=tag)
            clock.advance(gap)
    truth = Truth(node, clock=clock)
    assert truth.label("launches") == "OVERHEAD_BOUND"
    assert truth.label("waits") == "HOST_BOUND"


def test_scripts_have_a_truth_too(tmp_path: Path, clock: FakeClock) -> None:
    text = '[[device]]\nmodel="L4"\n[[device.phase]]\nduration_s=1\nduty=0.25\nperiod_s=0.1\n'
    truth = Truth(create(tmp_path / "node", text, clock=clock), clock=clock)
    whole = truth.device(0, START_NS, START_NS + 100 * S)
    assert whole.busy_s == pytest.approx(25)
    assert whole.means["tensor"] == pytest.approx(0.25 * 0.6)
    assert truth.tags == []


def test_gpu_is_the_sum_of_its_instances(tmp_path: Path, clock: FakeClock) -> None:
    node = create(tmp_path / "node", clock=clock)
    truth = Truth(node, clock=clock)
    for uuid in truth.uuids[3:]:
        SimulatedQueue(node, uuid, clock=clock).launch(Work(flops=1e13, bytes=1e9))
    truth = Truth(node, clock=clock)
    gpu, *parts = (truth.device(uuid, START_NS, START_NS + S) for uuid in truth.uuids[2:])
    assert gpu.flops == pytest.approx(2e13)
    assert gpu.energy_j == pytest.approx(74 + sum(part.energy_j for part in parts))
    assert gpu.energy_j > 74


def test_unknown_device_and_tag_are_usage_errors(tmp_path: Path) -> None:
    truth = Truth(create(tmp_path / "node"))
    with pytest.raises(UsageError, match="no device 'x'"):
        truth.device("x", 0, 1)
    with pytest.raises(UsageError, match="no work is tagged 'x'"):
        truth.tag(0, "x")

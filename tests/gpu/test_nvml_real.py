"""What any NVML must keep to, checked on the simulated node everywhere and on the real GPUs where there are some."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import NamedTuple

import pytest

from gpu_profile.catalogue import ALL_GROUPS, SIGNALS, Kind, Tier, signal
from gpu_profile.catalogue.samples import Device, DeviceKind, Sample
from gpu_profile.clock import SYSTEM_CLOCK
from gpu_profile.driver import simulated
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.testing import FakeClock


class Node(NamedTuple):
    """A driver, and how to let time pass for it."""

    driver: NvmlDriver
    now_ns: Callable[[], int]
    wait: Callable[[float], object]


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.gpu)])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    if request.param == "simulated":
        clock = FakeClock()
        simulated.create(tmp_path, clock=clock)
        with simulated.installed(tmp_path, clock=clock):
            yield Node(NvmlDriver(clock=clock, groups=ALL_GROUPS), clock.now_ns, clock.advance)
        return
    driver = NvmlDriver(groups=ALL_GROUPS)
    yield Node(driver, SYSTEM_CLOCK.now_ns, lambda seconds: SYSTEM_CLOCK.wait(Event(), seconds))
    driver.close()


def _gpus(node: Node) -> list[Device]:
    return [device for device in node.driver.devices() if device.kind is DeviceKind.GPU]


def _sampled(node: Node, device: Device, rounds: int = 12) -> list[Sample]:
    samples: list[Sample] = []
    for _ in range(rounds):
        samples += node.driver.read(device, Tier.FAST)
        samples += node.driver.boundary(device)
        samples += node.driver.drain(device)
        samples += node.driver.read(device, Tier.SLOW)
        samples += node.driver.read(device, Tier.RARE)
        node.wait(0.11)
    return samples


def test_every_device_says_what_it_is(node: Node) -> None:
    for device in node.driver.devices():
        assert device.uuid.startswith(("GPU-", "MIG-"))
        assert device.name
        assert device.memory_bytes
        assert device.memory_bytes > 1 << 30
    assert node.driver.version


def test_every_absence_has_a_reason(node: Node) -> None:
    for device in node.driver.devices():
        capabilities = node.driver.capabilities(device)
        assert list(capabilities) == list(SIGNALS)
        assert all(bool(one.reason) != one.available for one in capabilities.values())


def test_every_signal_that_is_said_to_be_available_gives_samples(node: Node) -> None:
    for device in node.driver.devices():
        seen = {one.signal for one in _sampled(node, device, rounds=20)}
        available = {row for row, one in node.driver.capabilities(device).items() if one.available}
        assert {row.key for row in available - seen} == set()
        assert {row.key for row in seen - available} == set()


def test_every_value_is_within_its_limit_and_its_time_within_reach_of_the_clock(node: Node) -> None:
    for device in node.driver.devices():
        for one in _sampled(node, device):
            if one.signal.kind is not Kind.COUNTER:
                assert one.signal.lowest <= one.value <= one.signal.limit, one
            assert one.t_start_ns <= one.t_end_ns <= node.now_ns() + 1_000_000_000, one
            assert one.t_end_ns > node.now_ns() - 60_000_000_000, one


def test_window_means_never_overlap(node: Node) -> None:
    for device in node.driver.devices():
        samples = _sampled(node, device)
        for row in SIGNALS:
            own = [one for one in samples if one.signal is row and row.kind is Kind.WINDOW_MEAN]
            assert all(earlier.t_end_ns <= later.t_start_ns < later.t_end_ns for earlier, later in pairwise(own))


def test_counters_only_grow(node: Node) -> None:
    for device in _gpus(node):
        samples = _sampled(node, device)
        for row in SIGNALS:
            own = [one.value for one in samples if one.signal is row and row.kind is Kind.COUNTER]
            # The PCIe counters may wrap; two seconds hold at most one turn.
            falls = sum(later < earlier for earlier, later in pairwise(own))
            assert falls <= (row.key in {"pcie_rx", "pcie_tx"}), row.key


def test_energy_grows_as_power_says(node: Node) -> None:
    for device in _gpus(node):
        capabilities = node.driver.capabilities(device)
        if not (capabilities[signal("energy")].available and capabilities[signal("power_average")].available):
            continue
        samples = _sampled(node, device, rounds=30)
        energy = [one for one in samples if one.signal is signal("energy")]
        power = [one.value for one in samples if one.signal is signal("power_average")]
        watts = (energy[-1].value - energy[0].value) * 1e6 / (energy[-1].t_end_ns - energy[0].t_end_ns)
        assert watts == pytest.approx(sum(power) / len(power) / 1000, rel=0.25)


def test_gpm_windows_are_at_least_a_refresh_long(node: Node) -> None:
    for device in node.driver.devices():
        for one in _sampled(node, device):
            if one.signal.tier is Tier.GPM:
                assert one.t_end_ns - one.t_start_ns >= one.signal.refresh_ns


def test_nothing_fails_on_a_healthy_node(node: Node) -> None:
    for device in node.driver.devices():
        _sampled(node, device)
        node.driver.processes(device)
    node.driver.events()
    assert node.driver.errors == {}

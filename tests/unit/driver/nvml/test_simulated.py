"""The driver over a simulated node: nvidia-ml-py, its structs and this driver's own code unchanged, faults included."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gpu_profile.catalogue import Group, Tier, signal
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.driver import simulated
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.driver.simulated import SimulatedQueue, Work
from gpu_profile.errors import DeviceLost, GpuBackendError
from gpu_profile.testing import FakeClock

S = 1_000_000_000


@pytest.fixture
def node(tmp_path: Path, clock: FakeClock) -> Iterator[Path]:
    simulated.create(tmp_path, clock=clock)
    with simulated.installed(tmp_path, clock=clock):
        yield tmp_path


def _sampled(driver: NvmlDriver, device: Device, clock: FakeClock, seconds: float) -> list[Sample]:
    samples: list[Sample] = []
    for tick in range(round(seconds * 10)):
        samples += driver.read(device, Tier.FAST)
        samples += driver.boundary(device)
        samples += driver.drain(device) if tick % 3 == 0 else []
        clock.advance(0.1)
    return [*samples, *driver.drain(device)]


def _integral(samples: list[Sample], key: str) -> float:
    """Seconds times the signal's base unit."""
    own = [one for one in samples if one.signal is signal(key)]
    return sum(one.signal.base(one.value) * (one.t_end_ns - one.t_start_ns) for one in own) / S


def test_work_on_the_gpu_is_seen_by_drained_polled_and_gpm_signals_alike(node: Path, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    _sampled(driver, device, clock, 1)
    with SimulatedQueue(node, device.uuid, clock=clock) as queue:
        for _ in range(20):
            queue.launch(Work(seconds=0.1, flops=1e12))
        samples = _sampled(driver, device, clock, 4)
    assert _integral(samples, "utilization") == pytest.approx(2.0, abs=0.02)
    assert _integral(samples, "graphics") == pytest.approx(2.0, abs=0.02)
    energies = [one.value for one in samples if one.signal is signal("energy")]
    joules = signal("energy").base(energies[-1] - energies[0])
    assert _integral(samples, "power") == pytest.approx(joules, rel=0.1)


@pytest.mark.parametrize("key", ["utilization", "memory_controller", "power", "power_average", "graphics"])
def test_the_coverage_of_a_signal_has_neither_gaps_nor_overlaps(node: Path, clock: FakeClock, key: str) -> None:
    driver = NvmlDriver(clock=clock, groups=[Group.CORE_DETAIL, Group.GPM])
    own = [one for one in _sampled(driver, driver.devices()[0], clock, 2) if one.signal is signal(key)]
    assert len(own) >= 10
    assert all(b.t_start_ns == a.t_end_ns for a, b in pairwise(own))


def test_the_built_in_node_has_gpus_with_and_without_gpm_and_mig_instances(node: Path, clock: FakeClock) -> None:
    driver = NvmlDriver(clock=clock)
    kinds = {}
    for device in driver.devices():
        capabilities = driver.capabilities(device)
        kinds[device.name.split()[1], str(device.kind)] = {
            row.key for row, one in capabilities.items() if one.available
        }
    assert "sm" in kinds["H200", "gpu"]
    assert "sm" not in kinds["A10G", "gpu"]
    assert "utilization" in kinds["A10G", "gpu"]
    assert "utilization" not in kinds["H100", "gpu"]
    assert "sm" in kinds["H100", "mig"]
    assert "energy" not in kinds["H100", "mig"]


FAULTY = """
[[device]]
model = "H200 SXM"
[[device]]
model = "A10G"
[[fault]]
kind = "gpu_lost"
device = 0
from_s = 2
to_s = 4
[[fault]]
kind = "driver_reload"
from_s = 6
to_s = 8
"""


def test_a_gpu_that_is_not_listed_any_more_is_not_a_lack_of_data(tmp_path: Path, clock: FakeClock) -> None:
    simulated.create(tmp_path, FAULTY.replace("gpu_lost", "gpu_removed"), clock=clock)
    with simulated.installed(tmp_path, clock=clock):
        driver = NvmlDriver(clock=clock)
        first = driver.devices()[0]
        driver.close()
        clock.advance(3)
        with pytest.raises(DeviceLost, match="cannot be opened: the driver no longer knows it"):
            NvmlDriver(clock=clock).read(first, Tier.FAST)


def test_a_lost_gpu_and_a_reloaded_driver_pass(tmp_path: Path, clock: FakeClock) -> None:
    simulated.create(tmp_path, FAULTY, clock=clock)
    with simulated.installed(tmp_path, clock=clock):
        driver = NvmlDriver(clock=clock)
        first, second = driver.devices()
        assert driver.read(first, Tier.FAST)
        driver.boundary(first)
        clock.advance(3)
        with pytest.raises(DeviceLost):
            driver.read(first, Tier.FAST)
        assert driver.read(second, Tier.FAST)
        assert [(event.device, event.code) for event in driver.events()] == [(first.uuid, 79)]
        clock.advance(2)
        assert driver.read(first, Tier.FAST)
        clock.advance(2)
        with pytest.raises(GpuBackendError):
            driver.read(second, Tier.FAST)
        clock.advance(2)
        assert driver.read(second, Tier.FAST)
        assert driver.read(first, Tier.FAST)
        driver.close()
        assert driver.errors["GPU_IS_LOST"] == 1


def test_what_the_links_of_a_device_carry_is_told_where_it_has_them(node: Path, clock: FakeClock) -> None:
    h200, a10g, h100, *slices = NvmlDriver(clock=clock).devices()
    assert (h200.pcie_bytes_per_s, h200.nvlink_bytes_per_s) == (63_015_384_608, 450_000_000_000)
    assert (a10g.pcie_bytes_per_s, a10g.nvlink_bytes_per_s) == (31_507_692_304, None)
    assert h100.nvlink_bytes_per_s == 450_000_000_000
    assert {(one.pcie_bytes_per_s, one.nvlink_bytes_per_s) for one in slices} == {(None, None)}

"""What a scrape says while a simulated node breaks and recovers: the NVML driver's own code, on a fake clock."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.exporter import OF_A_LOST_DEVICE, of, scrape, series, step_for

from gpu_profile.driver import simulated
from gpu_profile.driver.grammar import open_driver
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock

#: What there is once an error was reported.
XIDS = {"nvidia_gpu_xid_errors_total", "nvidia_gpu_xid_last", "nvidia_gpu_xid_last_time_seconds"}
DEVICES = '[[device]]\nmodel = "H200 SXM"\n[[device]]\nmodel = "A10G"\n'
LOST = '[[fault]]\nkind = "gpu_lost"\ndevice = 0\nfrom_s = 10\nto_s = 20\n'
RELOAD = '[[fault]]\nkind = "driver_reload"\nfrom_s = 10\nto_s = 20\n'


class World:
    """A simulated node in `directory`, with what goes wrong."""

    def __init__(self, directory: Path, fault: str) -> None:
        self.clock = FakeClock()
        simulated.create(directory, DEVICES + fault, clock=self.clock)
        self.sampler = Sampler(
            lambda: open_driver(f"simulated:{directory}", clock=self.clock), clock=self.clock, retention_s=60
        )

    def at(self, seconds: float) -> dict[str, float]:
        """The series `seconds` after the call."""
        step_for(self.sampler, self.clock, seconds)
        return series(scrape(self.sampler, self.clock))


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    node = World(tmp_path, request.param)
    yield node
    node.sampler.stop()


@pytest.mark.parametrize("world", [LOST], indirect=True)
def test_a_gpu_that_falls_off_the_bus_takes_its_values_with_it_and_brings_them_back(world: World) -> None:
    before = world.at(8)
    h200, a10g = world.sampler.states
    during = world.at(4)
    after = world.at(13)
    assert of(h200, during) == OF_A_LOST_DEVICE | XIDS
    assert during[f'hw_status{{hw_id="{h200}",hw_state="failed",hw_type="gpu"}}'] == 1
    assert of(a10g, during) == of(a10g, before) == of(a10g, after)
    assert during["gpu_profile_driver_up"] == 1
    assert of(h200, after) == of(h200, before) | XIDS


@pytest.mark.parametrize("world", [RELOAD], indirect=True)
def test_a_driver_reload_needs_no_restart_of_the_exporter(world: World) -> None:
    before = world.at(8)
    during = world.at(4)
    after = world.at(13)
    for uuid in world.sampler.states:
        assert of(uuid, during) == OF_A_LOST_DEVICE
        assert of(uuid, after) == of(uuid, before)
    assert [found["gpu_profile_driver_up"] for found in (before, during, after)] == [1, 0, 1]

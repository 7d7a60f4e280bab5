"""A clock that is set while regions run: what they used is right or unknown, live and in the recording."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.exporter import FakeDriver

from gpu_profile import region
from gpu_profile.analysis import analyse
from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS
from gpu_profile.join.summary import RegionSummary
from gpu_profile.recording import read_recording
from gpu_profile.regions.session import process
from gpu_profile.regions.session.recorder import record_session
from gpu_profile.regions.session.session import STEP_S, Session
from gpu_profile.testing import FakeClock
from gpu_profile.units import NS_PER_S, nanoseconds

#: Power in W and busy share by region.
LOADS = {"hot": (600.0, 0.9), "cool": (150.0, 0.2), "warm": (350.0, 0.5), "": (100.0, 0.0)}


class TrueDriver(FakeDriver):
    """A device with the load `region`. Its counters go by the time that has passed."""

    region = ""
    joules = busy_s = 0.0
    passed_ns = read_ns = 0
    read_busy_s = 0.0

    def load(self, name: str) -> None:
        watts, busy = LOADS[self.region]
        seconds = (self.clock.elapsed_ns() - self.passed_ns) / NS_PER_S
        self.joules += watts * seconds
        self.busy_s += busy * seconds
        self.passed_ns, self.region = self.clock.elapsed_ns(), name

    def _sample(self, device: Device, row: Signal) -> Sample:
        self.load(self.region)
        now_ns, passed_ns = self.clock.now_ns(), self.passed_ns - self.read_ns
        if row is ENERGY:
            return Sample(ENERGY, now_ns, now_ns, int(self.joules * 1000))
        mean = (self.busy_s - self.read_busy_s) / max(1, passed_ns) * NS_PER_S
        self.read_ns, self.read_busy_s = self.passed_ns, self.busy_s
        return Sample(GRAPHICS, now_ns - passed_ns, now_ns, round(mean * 10_000))


class Program:
    """A recorded program whose thread, sampler and join take turns."""

    def __init__(self, directory: Path) -> None:
        self.clock, self.directory = FakeClock(), directory
        self.driver = TrueDriver(self.clock, [Device("GPU-a", index=0)], {ENERGY: 0, GRAPHICS: 0})
        process.stop()
        process.configure(clock=self.clock)
        self.session = Session(lambda: self.driver, clock=self.clock, devices="GPU-a")
        self.session.active, process.current = True, self.session
        record_session(self.session, directory)
        self.lengths = dict.fromkeys(LOADS, 0.0)
        self._sample_ns = self._join_ns = 0

    def run(self, seconds: float) -> None:
        end_ns = self.clock.elapsed_ns() + nanoseconds(seconds)
        while (now_ns := self.clock.elapsed_ns()) < end_ns:
            if now_ns >= self._sample_ns:
                self._sample_ns = now_ns + max(1, nanoseconds(self.session.sampler.step()))
            if now_ns >= self._join_ns:
                self.session.settle()
                self._join_ns = now_ns + nanoseconds(STEP_S)
            self.clock.advance((min(end_ns, self._sample_ns, self._join_ns) - now_ns) / NS_PER_S)

    def execute(self, name: str, seconds: float, during: Callable[[], None] = lambda: None) -> None:
        """An execution in which something happens half-way."""
        with region(name):
            self.driver.load(name)
            self.run(seconds / 2)
            during()
            self.run(seconds / 2)
            self.driver.load("")
        self.lengths[name] += seconds

    def results(self) -> tuple[dict[str, RegionSummary], dict[str, RegionSummary]]:
        """The regions, live and by the recording."""
        self.run(1.5)
        self.session.flush()
        live = {judged.summary.region: judged.summary for judged in self.session.regions()}
        self.session.stop()
        recorded = analyse(read_recording(self.directory))
        return live, {use.summary.region: use.summary for use in recorded.regions}


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    yield (made := Program(tmp_path / "recording"))
    made.session.ignore()
    process.stop()
    process.configure()


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("back_s", [0.15, 0.55, 2.3, 4.1, 100.0])
def test_no_region_has_what_another_used_when_the_clock_showed_the_same_time(
    program: Program, back_s: float, within: bool
) -> None:
    """Right before the step, the device was much busier than after it."""
    program.run(1.0)
    for i in range(12):
        program.execute("hot", 0.5 + 0.013 * (i % 5))
        program.run(0.05)
    program.execute("hot", 5.0)
    if not within:
        program.clock.set_back(back_s)
    program.execute("cool", 3.0, lambda: program.clock.set_back(back_s if within else 0.0))
    program.run(0.3)
    program.execute("warm", 5.0)
    program.run(0.3)
    live, recorded = program.results()
    for name, (watts, busy) in list(LOADS.items())[:3]:
        for found in (live[name], recorded[name]):
            if found.power_w is not None and found.power_half_width is not None:
                assert found.power_w == pytest.approx(watts, abs=3 * found.power_half_width)
            if found.busy is not None and found.busy_half_width is not None:
                assert found.busy == pytest.approx(busy, abs=3 * found.busy_half_width)
        assert live[name].durations.total_s == pytest.approx(program.lengths[name], abs=1e-6)
    assert live["hot"].power_w is not None
    assert live["warm"].busy == pytest.approx(0.5, rel=0.02)
    assert program.session.counts["clock set back"] == 1
    # Less than the whole of these two may be measured, but nothing of another region.
    for name in ("cool", "warm"):
        energy_j = live[name].energy_j
        assert energy_j is not None
        assert energy_j < 1.1 * LOADS[name][0] * program.lengths[name]


@pytest.mark.parametrize("back_s", [0.02, 0.55, 1.3, 4.1, 3600.0])
def test_the_recording_has_the_whole_of_an_execution_during_which_the_clock_was_set_back(
    program: Program, back_s: float
) -> None:
    for i in range(20):
        program.execute("hot", 0.3 + 0.013 * (i % 5))
        program.run(0.05)
    program.execute("cool", 1.0, lambda: program.clock.set_back(back_s))
    for i in range(20):
        program.execute("warm", 0.3 + 0.013 * (i % 5))
        program.run(0.05)
    live, recorded = program.results()
    for name in list(LOADS)[:3]:
        expected_s = program.lengths[name]
        assert live[name].durations.total_s == pytest.approx(expected_s, abs=1e-6)
        assert recorded[name].durations.total_s == pytest.approx(expected_s, abs=1e-6)
        assert recorded[name].power_w == pytest.approx(LOADS[name][0], rel=0.02)
        assert recorded[name].busy == pytest.approx(LOADS[name][1], rel=0.02)


def test_energy_of_time_that_only_the_device_saw_is_no_regions(program: Program) -> None:
    """A virtual machine pauses, and its clock is set ahead afterwards: the counter grew by more than is possible."""

    def pause() -> None:
        program.clock.set_forward(30.0)
        program.driver.joules += 30_000.0

    for i in range(20):
        program.execute("hot", 0.3 + 0.013 * (i % 5))
        program.run(0.05)
    program.execute("cool", 1.0, pause)
    for i in range(20):
        program.execute("warm", 0.3 + 0.013 * (i % 5))
        program.run(0.05)
    live, recorded = program.results()
    for name in list(LOADS)[:3]:
        for found in (live[name], recorded[name]):
            assert found.energy_j is not None
            assert found.energy_j < 1.1 * LOADS[name][0] * program.lengths[name], name

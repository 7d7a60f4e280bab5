"""A simulated GPU with MIG instances on a fake clock, read as by an exporter, with a job on each instance."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_profile.catalogue import SIGNALS
from gpu_profile.catalogue.allocation import HELD_ENERGY, UNHELD_ENERGY
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.driver import simulated
from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.driver.simulated.truth import Truth
from gpu_profile.history.ledger import Ledger
from gpu_profile.sampling.rounds import Rounds
from gpu_profile.sampling.tracked import available
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.attribution import Attribution
from gpu_profile_exporter.config import AttributionSettings
from gpu_profile_exporter.reader.intake import DeviceReports

_NUMBERS = {signal: number for number, signal in enumerate(SIGNALS)}


def gpu_with(*phases: Sequence[str], model: str = "H100 SXM", profile: str = "2g.20gb") -> str:
    """A scenario of a GPU with an instance for each list of phases. A phase is the lines of its table."""
    instances = "".join(
        f'[[device.mig]]\nprofile = "{profile}"\n' + "".join(f"[[device.mig.phase]]\n{phase}\n" for phase in each)
        for each in phases
    )
    return f'[[device]]\nmodel = "{model}"\n{instances}'


def phase(seconds: float, duty: float, *, compute: float = 0.6, memory: float = 0.3, precision: str = "bf16") -> str:
    """A phase that is busy for `duty` of every 100 ms."""
    work = f"duty = {duty}\nperiod_s = 0.1\ncompute = {compute}\nmemory = {memory}"
    return f'duration_s = {seconds}\nprecision = "{precision}"\n{work}'


@dataclass
class MigNode:
    """The node. Instance number N has job "jobN"."""

    clock: FakeClock
    truth: Truth
    rounds: Rounds[DeviceReports]
    attribution: Attribution
    jobs: Path

    @property
    def uuids(self) -> list[str]:
        """The GPU and its instances."""
        return self.truth.uuids

    def run(self, seconds: int) -> None:
        """Read for so long, every second, and refresh the attribution every 10 s."""
        for second in range(seconds):
            self.rounds.step()
            if second % 10 == 9:
                self.attribution.refresh()
            self.clock.advance(1.0)

    def joules(self) -> Mapping[str, float]:
        """The sums of the ledger in J, by job or reason."""
        rows = [
            row for row in self.attribution.readings(self.clock.now_ns()) if row.metric in (HELD_ENERGY, UNHELD_ENERGY)
        ]
        gpu = [row for row in rows if row.attributes["hw.id"] == self.uuids[0]]
        return {row.attributes.get("slurm.job.id") or row.attributes["reason"]: row.value for row in gpu}

    def true_joules(self, start_ns: int, end_ns: int) -> list[float]:
        """The GPU's true energy between two moments, and each instance's, without idle power."""
        return [self.truth.device(uuid, start_ns, end_ns).energy_j for uuid in self.uuids]


@contextmanager
def mig_node(folder: Path, scenario: str) -> Iterator[MigNode]:
    """The node of a scenario with one GPU, from its start on."""
    clock = FakeClock()
    directory, jobs = simulated.create(folder / "node", scenario, clock=clock), folder / "jobs"
    jobs.mkdir()
    simulated.install(directory, clock=clock)
    try:
        truth = Truth(directory, clock=clock)
        for number, uuid in enumerate(truth.uuids[1:], 1):
            (jobs / uuid).write_text(f"job{number}\n")

        def send(device: Device, samples: Sequence[Sample]) -> None:
            attribution.take_samples(
                device.uuid, [part for row in samples for part in (_NUMBERS[row.signal], *row[1:])]
            )

        rounds = Rounds(
            lambda: NvmlDriver(clock=clock),
            lambda device, signals, _: DeviceReports(device, Ledger(available(signals)), signals),
            interval_s=1.0,
            clock=clock,
            sinks=[send],
        )
        settings = AttributionSettings(pods="off", job_mapping_dir=jobs)
        attribution = Attribution(lambda: rounds.states, settings, clock=clock)
        clock.advance(1.0)
        yield MigNode(clock, truth, rounds, attribution, jobs)
        rounds.close()
    finally:
        simulated.remove()

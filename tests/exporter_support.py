"""A driver that says what a test tells it to, and a node around it that lives on a fake clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_profile.catalogue import SIGNALS, Kind, Signal, Tier
from gpu_profile.catalogue.samples import Device, Event, ProcessUse, Sample
from gpu_profile.driver import Capability
from gpu_profile.errors import DeviceLost, GpuBackendError
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock
from gpu_profile.units import nanoseconds
from gpu_profile_exporter.exposition.exposition import Exposition
from gpu_profile_exporter.readings.readings import Identity, Reading, readings

IDENTITY = Identity("fake", "1.2.3", "0.1.0")


@dataclass
class FakeDriver:
    """Reads `values` (quanta by signal, each a number or a function of seconds since the start) of every device."""

    clock: FakeClock
    list: Sequence[Device]
    values: dict[Signal, int | Callable[[float], int]]
    lost: set[str] = field(default_factory=set)
    frozen: set[Signal] = field(default_factory=set)
    gone: str = ""
    name: str = "fake"
    version: str = "1.2.3"
    calls: int = 0

    def __post_init__(self) -> None:
        self.start_ns = self.clock.now_ns()
        self.last: dict[tuple[str, Signal], int] = {}

    def devices(self) -> Sequence[Device]:
        if self.gone:
            raise GpuBackendError(self.gone)
        return self.list

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        return {row: Capability(row in self.values, "" if row in self.values else "not supported") for row in SIGNALS}

    def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
        self.calls += 1
        if self.gone:
            raise GpuBackendError(self.gone)
        if device.uuid in self.lost:
            raise DeviceLost(f"{device.uuid} fell off the bus")
        return [self._sample(device, row) for row in self.values if row.tier is tier and row not in self.frozen]

    def _sample(self, device: Device, row: Signal) -> Sample:
        now_ns = self.clock.now_ns()
        value = self.values[row]
        quanta = value((now_ns - self.start_ns) / 1e9) if callable(value) else value
        start = now_ns
        if row.kind is Kind.WINDOW_MEAN:
            start = self.last.get((device.uuid, row), now_ns - nanoseconds(0.1))
            self.last[device.uuid, row] = now_ns
        return Sample(row, start, now_ns, quanta)

    def drain(self, device: Device) -> Sequence[Sample]:
        return ()

    def boundary(self, device: Device) -> Sequence[Sample]:
        return [self._sample(device, row) for row in self.values if row.tier is Tier.GPM and row not in self.frozen]

    def events(self) -> Sequence[Event]:
        return ()

    def processes(self, device: Device) -> Sequence[ProcessUse]:
        return ()

    def close(self) -> None:
        pass


def step_for(sampler: Sampler, clock: FakeClock, seconds: float, *, late: Callable[[], float] = lambda: 0.0) -> None:
    """Let the sampler do everything that falls due in the next `seconds`, each round `late()` seconds behind."""
    end = clock.now_ns() + nanoseconds(seconds)
    while True:
        delay = sampler.step() + late()
        if clock.now_ns() + nanoseconds(delay) > end:
            break
        clock.advance(delay)
    clock.advance((end - clock.now_ns()) / 1e9)


def read_all(sampler: Sampler, clock: FakeClock) -> list[Reading]:
    return list(readings(sampler, IDENTITY, clock.now_ns()))


def scrape(sampler: Sampler, clock: FakeClock, accept: str = "") -> str:
    """The exposition now, without this process's own metrics."""
    return Exposition(lambda: read_all(sampler, clock), process=False).render(accept)[0].decode()


def series(text: str) -> dict[str, float]:
    """An exposition's values by series as written."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def of(device: str, found: Iterable[str]) -> set[str]:
    """The metrics among series that carry a device's hw_id."""
    return {name.partition("{")[0] for name in found if f'hw_id="{device}"' in name}

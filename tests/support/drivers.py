"""A sampler on a fake clock, over a driver with the behaviour that a test sets."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_profile.catalogue import SIGNALS, Signal, Tier
from gpu_profile.catalogue.samples import Device, DeviceKind, Event, ProcessUse, Sample
from gpu_profile.catalogue.signals import ENERGY, MEMORY_USED, POWER, SM
from gpu_profile.driver import Capability, Driver
from gpu_profile.driver.null import SilentDriver
from gpu_profile.errors import DeviceLost, GpuBackendError
from gpu_profile.sampling.periods import DRAIN_S
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock
from gpu_profile.units import nanoseconds
from support.exporter import step_for

A, B = Device("GPU-A", index=0), Device("GPU-B", index=1)
SLICE = Device("MIG-A", parent="GPU-A", kind=DeviceKind.MIG)


@dataclass
class FakeDriver(SilentDriver):
    """Answers each call with one sample, and logs it as `(call, uuid, ns since the start)`."""

    clock: FakeClock
    present: list[Device]
    calls: list[tuple[str, str, int]] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    #: The calls that raise GpuBackendError.
    gone: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    takes_s: float = 0.0
    closed: int = 0
    available: frozenset[Signal] = frozenset({ENERGY, POWER, MEMORY_USED, SM})
    waiting: list[Event] = field(default_factory=list)
    #: `free`: calls may continue. `stuck`: set by a call that waits for `free`.
    free: threading.Event = field(default_factory=threading.Event)
    stuck: threading.Event = field(default_factory=threading.Event)
    name: str = "fake"
    version: str = "1"
    recorded_driver: str = ""

    def __post_init__(self) -> None:
        self.start_ns = self.clock.now_ns()
        self.free.set()

    def _note(self, what: str, device: Device | None = None) -> int:
        now = self.clock.now_ns()
        self.calls.append((what, device.uuid if device else "", now - self.start_ns))
        if not self.free.is_set():
            self.stuck.set()
            self.free.wait()
        if what in self.gone:
            raise GpuBackendError(f"{what}: the driver is gone")
        if what in self.broken:
            raise RuntimeError(f"{what}: a defect")
        if device is not None and device.uuid in self.lost and what in (Tier.FAST, Tier.SLOW):
            raise DeviceLost("it fell off the bus")
        self.clock.advance(self.takes_s)
        return now

    def devices(self) -> Sequence[Device]:
        self._note("devices")
        return list(self.present)

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        self._note("capabilities", device)
        return {row: Capability(row in self.available) for row in SIGNALS}

    def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
        now = self._note(tier, device)
        if tier is Tier.SLOW:
            return [Sample(MEMORY_USED, now, now, 7)]
        if tier is Tier.RARE:
            return []
        return [Sample(ENERGY, now, now, (now - self.start_ns) // 1_000_000)]

    def drain(self, device: Device) -> Sequence[Sample]:
        now = self._note("drain", device)
        return [] if device.uuid in self.lost else [Sample(POWER, now - nanoseconds(DRAIN_S), now, 300_000)]

    def boundary(self, device: Device) -> Sequence[Sample]:
        self._note("gpm", device)
        return []

    def events(self) -> Sequence[Event]:
        self._note("events")
        events, self.waiting = self.waiting, []
        return events

    def processes(self, device: Device) -> Sequence[ProcessUse]:
        return []

    def close(self) -> None:
        self.closed += 1

    def times(self, what: str, uuid: str = "") -> list[int]:
        """The times of a call, in ns since the start."""
        return [at for called, device, at in self.calls if called == what and device == uuid]


#: Makes a sampler from a driver's opener and an interval. The sampler stops at the end of the test.
Sampling = Callable[..., Sampler]


class World:
    """A sampler on a fake clock. `drivers`: all drivers that it has opened."""

    def __init__(self, *devices: Device, **settings: object) -> None:
        self.clock = FakeClock()
        self.present = list(devices or (A, B))
        self.drivers: list[FakeDriver] = []
        self.refused = ""
        self.sampler = Sampler(self.open, clock=self.clock, **settings)  # type: ignore[arg-type]

    def open(self) -> Driver:
        if self.refused:
            raise GpuBackendError(self.refused)
        self.drivers.append(FakeDriver(self.clock, self.present))
        return self.drivers[-1]

    @property
    def driver(self) -> FakeDriver:
        return self.drivers[-1]

    @property
    def is_open(self) -> bool:
        return self.sampler.driver is not None

    def pass_(self, seconds: float) -> None:
        step_for(self.sampler, self.clock, seconds)

    def up(self) -> dict[str, bool]:
        return {uuid: state.up for uuid, state in self.sampler.states.items()}


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until another thread makes the condition true. Fails after 10 s."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 10 s"
        time.sleep(0.001)

"""A day on a simulated clock: a GPU that follows a formula, sampled and joined as in a process, and what must come out.

Utilisation is a new whole per cent every second, going through 0-100 in a fixed order. A sample of it and one of the
energy counter come to lie in the driver's own buffer every `1/hz` seconds, one of the memory in use every second, and
are drained there, as NVML's are: the sampler itself comes by in larger steps, so that a day passes within a minute.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

import numpy as np

from gpu_profile import region
from gpu_profile.catalogue import SIGNALS, Signal, Tier
from gpu_profile.catalogue.samples import Device, Event, Interval, ProcessUse, Sample
from gpu_profile.catalogue.signals import ENERGY, MEMORY_USED, UTILIZATION
from gpu_profile.driver import Capability
from gpu_profile.driver.null import SilentDriver
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.reading import Reading, quantiles, read
from gpu_profile.join.summary import Judged
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import Session
from gpu_profile.testing import FakeClock
from gpu_profile.units import NS_PER_S, nanoseconds

GPU = Device("GPU-long", index=0, memory_bytes=80 << 30)
#: Values of utilisation by the second: 37 and 101 have no common divisor, so that each of 0-100 comes once in 101 s.
_STRIDE, _VALUES = 37, 101
_IDLE_W, _W_PER_CENT = 100, 4
#: Of the energy counter, in a second.
_RENEWALS = 10
#: `Sample` without a function in Python between: a day has 17 million of them.
_sample: Callable[[tuple[Signal, int, int, int]], Sample] = partial(tuple.__new__, Sample)


@dataclass
class FormulaDriver(SilentDriver):
    """The GPU's driver. Samples end on the grid of `hz`; the first one begins where the driver was made."""

    clock: FakeClock
    hz: int
    name: str = "formula"
    version: str = "1"
    start_ns: int = field(init=False)
    drained: int = 0

    def __post_init__(self) -> None:
        self.start_ns = self.clock.now_ns()

    def devices(self) -> Sequence[Device]:
        return [GPU]

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        return {row: Capability(row in (ENERGY, UTILIZATION, MEMORY_USED)) for row in SIGNALS}

    def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
        return []

    def drain(self, device: Device) -> Sequence[Sample]:
        hz, step, first, start = self.hz, NS_PER_S // self.hz, self.drained, self.start_ns
        last = self.drained = (self.clock.now_ns() - start) // step
        edges = range(start + first * step, start + last * step + 1, step)
        utils = [k // hz * _STRIDE % _VALUES for k in range(first, last)]
        # As a real one, the counter is renewed every 100 ms, however often it is read.
        turn = hz // _RENEWALS
        counts = [n for k in range(first // turn, last // turn + 1) for n in [self.energy_mj(k * turn)] * turn]
        energies = counts[first % turn + 1 :]
        samples = list(map(_sample, zip(repeat(UTILIZATION), edges, edges[1:], utils, strict=False)))
        samples += map(_sample, zip(repeat(ENERGY), edges[1:], edges[1:], energies, strict=False))
        for k in range(first // hz + 1, last // hz + 1):
            at = start + k * NS_PER_S
            samples.append(Sample(MEMORY_USED, at, at, 1000 + k % 600))
        return samples

    def energy_mj(self, k: int) -> int:
        """The counter after `k` samples, in closed form."""
        seconds, rest = divmod(k, self.hz)
        rounds, left = divmod(seconds, _VALUES)
        utils = rounds * sum(range(_VALUES)) + sum(s * _STRIDE % _VALUES for s in range(left))
        util = seconds * _STRIDE % _VALUES
        whole = (seconds * _IDLE_W + utils * _W_PER_CENT) * 1000
        return whole + rest * ((_IDLE_W + _W_PER_CENT * util) * 1000 // self.hz)

    def boundary(self, device: Device) -> Sequence[Sample]:
        return []

    def events(self) -> Sequence[Event]:
        return []

    def processes(self, device: Device) -> Sequence[ProcessUse]:
        return []

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Day:
    """What was read of the long region beside the truth, the history that is left, and what the join says."""

    busy: Reading
    energy: Reading
    memory: Reading
    p50: float
    p95: float
    truth: Mapping[str, float]
    timeline: Timeline
    regions: Mapping[str, Judged]

    def errors(self) -> dict[str, float]:
        """Relative errors by quantity."""
        found = {
            "energy": self.energy.total,
            "mean power": self.energy.mean,
            "busy time": self.busy.total,
            "p50": self.p50,
            "p95": self.p95,
            "highest": self.busy.maximum,
            "peak memory": self.memory.maximum,
        }
        return {name: abs(value / self.truth[name] - 1) for name, value in found.items()}


def truth(driver: FormulaDriver, seconds: int) -> dict[str, float]:
    """The whole history by the formula: nothing of what was sampled comes in."""
    utils = np.arange(seconds) * _STRIDE % _VALUES
    ordered = np.sort(utils) / 100
    energy = driver.energy_mj(seconds * driver.hz) / 1000
    return {
        "energy": energy,
        "mean power": energy / seconds,
        "busy time": float(utils.sum()) / 100,
        "p50": float(ordered[-(-seconds // 2) - 1]),
        "p95": float(ordered[-(-95 * seconds // 100) - 1]),
        "highest": 1.0,
        "peak memory": 1599.0 * (1 << 20),
    }


def run(
    seconds: int,
    *,
    hz: int,
    step_s: int = 10,
    settle_s: int = 10,
    retention_s: float = 600.0,
    note: Callable[[], object] = lambda: None,
    note_s: int = 3600,
) -> Day:
    """`seconds` of one long region with a short one of a second in every step; `note()` every `note_s`.

    The sampler drains every `step_s`, the join runs every `settle_s`.
    """
    clock = FakeClock()
    driver = FormulaDriver(clock, hz)
    process.configure(clock=clock, backend="none")
    session = Session(lambda: driver, interval_s=1 / hz, retention_s=retention_s, clock=clock)
    session.active = True
    process.current = session
    sampler = session.sampler
    try:
        sampler.step(force=True)
        start_ns = clock.now_ns()
        with region("long", span=False):
            for at in range(0, seconds, step_s):
                with region("short", span=False):
                    clock.advance(1.0)
                clock.advance(step_s - 1.0)
                sampler.step(force=True)
                if (at + step_s) % settle_s == 0:
                    session.settle()
                if (at + step_s) % note_s == 0:
                    note()
            end_ns = clock.now_ns()
            assert end_ns - start_ns == nanoseconds(seconds)
            timeline = sampler.timeline(GPU.uuid)
            assert timeline is not None
            whole = Interval(start_ns, end_ns)
            columns = [timeline.columns[signal] for signal in (UTILIZATION, ENERGY, MEMORY_USED)]
            busy, energy, memory = (read(column, whole) for column in columns)
            p50, p95 = (value or 0.0 for value in quantiles(columns[0], whole, 0.5, 0.95))
        assert busy is not None
        assert energy is not None
        assert memory is not None
        session.settle(final=True)
        return Day(
            busy,
            energy,
            memory,
            p50,
            p95,
            truth(driver, seconds),
            timeline,
            {j.summary.region: j for j in session.regions()},
        )
    finally:
        process.current = None
        session.sampler.stop()
        process.configure()

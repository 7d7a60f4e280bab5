"""Monitored runs on simulated GPUs, on a clock that the test moves: no threads, no waiting."""

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.sessions import new_session

from gpu_profile.driver import simulated
from gpu_profile.driver.simulated import SimulatedQueue, Truth, Work
from gpu_profile.monitor import GpuMonitor
from gpu_profile.monitor.gpu_summary import GpuSummary
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session import process
from gpu_profile.testing import FakeClock
from gpu_profile.units import NS_PER_S, nanoseconds

#: Two GPUs whose busy time comes in windows of 105 ms.
TWO_GPUS = '[[device]]\nmodel = "H200 SXM"\n\n[[device]]\nmodel = "H200 SXM"\n'


class Scene:
    """A process whose session is driven by hand: `run(s)` lets time pass in which it samples."""

    def __init__(self, tmp_path: Path, *, scenario: str = TWO_GPUS, device: int = 0, **settings: Any) -> None:
        self.clock = FakeClock()
        self.node = simulated.create(tmp_path / "node", scenario, clock=self.clock)
        self.queue = SimulatedQueue(self.node, device, clock=self.clock)
        process.configure(backend=f"simulated:{self.node}", clock=self.clock, **settings)
        self.session = new_session()
        #: The regions that the session has met.
        self.ended: list[Execution] = []
        self.session.joiner.on_end.append(self.ended.append)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process.stop()
        process.configure()
        self.queue.close()

    def run(self, seconds: float) -> None:
        """Let time pass, sampling when it is due."""
        end_ns = self.clock.now_ns() + nanoseconds(seconds)
        while True:
            left_s = self.session.sampler.step()
            ahead_s = min(max(left_s, 1e-9), (end_ns - self.clock.now_ns()) / NS_PER_S)
            if ahead_s <= 0:
                return
            self.clock.advance(ahead_s)

    def work(self, seconds: float, *, share: float = 1.0) -> None:
        """Keep the GPU busy for `share` of `seconds`, and let that time pass."""
        self.queue.launch(Work(seconds=seconds * share, flops=1e12, bytes=1e9), tag="work")
        self.run(seconds)

    def truth(self) -> Truth:
        return Truth(self.node, clock=self.clock)

    def regions(self) -> list[str]:
        """The names of the regions that have ended."""
        self.session.settle(final=True)
        return [execution.name for execution in self.ended]

    @property
    def reading(self) -> list[int]:
        """The intervals that monitors ask for, in ns."""
        return list(self.session.sampler._asked)


def measured(monitor: GpuMonitor) -> GpuSummary:
    assert monitor.summary is not None
    return monitor.summary

"""A process with regions on simulated GPUs, on a clock that the test moves. Also kernels and operations."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pynvml
import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler as TraceSampler
from prometheus_client import CollectorRegistry, generate_latest

from gpu_profile import GpuSpanProcessor, RegionCollector
from gpu_profile.driver import simulated
from gpu_profile.driver.simulated import SimulatedQueue, Truth, Work
from gpu_profile.regimes.evidence import Evidence
from gpu_profile.regimes.kernel_work import KernelWork
from gpu_profile.regimes.operation import RegionOperation
from gpu_profile.regions import running
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import STEP_S
from gpu_profile.testing import FakeClock
from gpu_profile.units import NS_PER_S, nanoseconds
from support.sessions import new_session

#: Joules on a metal counter, which the simulated H200 renews every 100 ms, and busy time in windows of 105 ms.
ONE_GPU = '[[device]]\nmodel = "H200 SXM"\n'


class Stage:
    """A process with a `session` that the test drives. `run(s)` samples and joins for `s` seconds.

    Spans of `provider` pass through `processor` to `exporter`. `on_device`: regions record marks on the queue.
    """

    def __init__(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        on_device: bool = True,
        scenario: str = ONE_GPU,
        backend: str | None = None,
        inner: SpanProcessor | None = None,
        sampler: TraceSampler | None = None,
        queue: int = 20_000,
        joined: bool = True,
        **settings: Any,
    ) -> None:
        self.clock = FakeClock()
        self.node = simulated.create(tmp_path / "node", scenario, clock=self.clock)
        self.queue = SimulatedQueue(self.node, clock=self.clock)
        process.configure(
            backend=backend or f"simulated:{self.node}",
            stream=self.queue if on_device else None,
            clock=self.clock,
            **settings,
        )
        self.exporter = InMemorySpanExporter()
        self.processor = GpuSpanProcessor(inner or SimpleSpanProcessor(self.exporter), queue=queue)
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        if joined:
            self.provider.add_span_processor(self.processor)
        self.tracer = self.provider.get_tracer("gpu_profile")
        monkeypatch.setattr(running, "tracer", self.tracer)
        self.session = new_session()
        #: The executions that have ended, in the order of their starts.
        self.ended: list[Execution] = []
        self.session.joiner.on_end.append(self.ended.append)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.provider.shutdown()
        # The results of the last samples are not needed any more.
        self.session.ignore()
        self.session.sampler.stop()
        process.stop()
        process.configure()
        self.queue.close()
        assert pynvml.nvmlLib is None or "Simulated" not in type(pynvml.nvmlLib).__name__

    def restart(self) -> None:
        """Replace the process's session by a new one."""
        process.stop()
        self.session = new_session()

    # ------------------------------------------------------------------ time

    def run(self, seconds: float) -> None:
        """Let time pass, sampling when it is due and joining every 100 ms."""
        end_ns = self.clock.now_ns() + nanoseconds(seconds)
        settle_ns = self.clock.now_ns()
        due_ns = self.clock.now_ns()
        while True:
            now = self.clock.now_ns()
            if now >= due_ns:
                due_ns = now + nanoseconds(self.session.sampler.step())
            if now >= settle_ns:
                self.session.settle()
                settle_ns = now + nanoseconds(STEP_S)
            if now >= end_ns:
                return
            ahead_ns = min(end_ns, max(due_ns, now + 1), settle_ns) - now
            self.clock.advance(ahead_ns / NS_PER_S)

    def work(self, seconds: float, tag: str, *, share: float = 1.0) -> None:
        """Launch work that keeps the GPU busy for `share` of `seconds`, and let that time pass."""
        self.queue.launch(Work(seconds=seconds * share, flops=1e12, bytes=1e9, occupancy=0.1), tag=tag)
        self.run(seconds)

    def flush(self) -> None:
        """Join and export everything."""
        self.run(1.5)
        assert self.provider.force_flush()

    # ------------------------------------------------------------------ results

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def only(self) -> Execution:
        """The only execution that has ended."""
        self.session.settle(final=True)
        (execution,) = self.ended
        return execution

    def parents(self) -> dict[str, str | None]:
        """Each ended execution's region, and that of the execution around it."""
        self.session.settle(final=True)
        return {e.name: None if e.parent is None else e.parent.name for e in self.ended}

    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def span(self, name: str) -> ReadableSpan:
        """The only span of this name."""
        (span,) = (span for span in self.spans if span.name == name)
        return span

    def attributes(self, name: str) -> dict[str, Any]:
        """The attributes of the only span of this name, without `gpu_profile.`."""
        return {key.removeprefix("gpu_profile."): value for key, value in (self.span(name).attributes or {}).items()}

    def parent(self, name: str) -> str | None:
        """The name of the parent of the only span of this name."""
        parent = self.span(name).parent
        if parent is None:
            return None
        return next(s.name for s in self.spans if s.context is not None and s.context.span_id == parent.span_id)

    def truth(self) -> Truth:
        return Truth(self.node, clock=self.clock)

    @property
    def uuid(self) -> str:
        return self.queue.device_uuid

    def calls(self, region: str) -> int:
        """The count of a region's calls, over all regimes and devices."""
        return sum(count for (name, _, _), count in self.session.joiner.verdicts.calls.items() if name == region)


#: Makes a stage with other settings. It ends with the test.
Staged = Callable[..., Stage]


def exposition() -> str:
    """The Prometheus page of this process's regions."""
    registry = CollectorRegistry()
    registry.register(RegionCollector())
    return generate_latest(registry).decode()


GEMM, RELU, ALL_REDUCE = "ampere_sgemm_128x64_tn", "vectorized_elementwise_kernel", "ncclDevKernel_AllReduce"
#: 10 ms of its own, with 6 ms of waiting for the host, and 2 ms of others. Two long kernels, a short one, and a copy.
HUNGRY = KernelWork(
    evidence=Evidence(
        "kernels",
        {"busy": 0.35, "work": 0.3, "communication": 0.0, "transfer": 0.05, "host_wait": 0.6, "launch": 0.01}
        | {"other_wait": 0.05, "kernel_s": 0.001, "others": 2 / 12},
        4,
        1.0,
    ),
    kernels=3,
    kernel_ns=3_000_000,
    span_ns=12_000_000,
    busy_ns=3_500_000,
    others_ns=2_000_000,
    host_wait_ns=6_000_000,
    launch_ns=100_000,
    other_wait_ns=500_000,
    copies=1,
    copy_bytes=4_000_000,
    copy_ns=500_000,
    occupancy=0.5,
    backward=2,
    allocated_bytes=1_000,
    freed_bytes=400,
    peak_bytes=9_000,
    top=((GEMM, 2, 2_900_000), (RELU, 1, 100_000)),
)
#: 30 ms, 24 of them communication that no work overlaps.
TALKING = KernelWork(
    evidence=Evidence(
        "kernels",
        {"busy": 0.9, "work": 0.1, "communication": 0.8, "transfer": 0.0, "host_wait": 0.05, "launch": 0.05}
        | {"other_wait": 0.05, "kernel_s": 0.003, "others": 0.0},
        9,
        0.9,
    ),
    kernels=9,
    kernel_ns=27_000_000,
    span_ns=30_000_000,
    busy_ns=27_000_000,
    others_ns=0,
    host_wait_ns=1_500_000,
    launch_ns=1_500_000,
    other_wait_ns=1_500_000,
    communication_ns=25_000_000,
    overlap_ns=1_000_000,
    occupancy=0.25,
    peak_bytes=7_000,
    top=((ALL_REDUCE, 1, 25_000_000), (RELU, 8, 2_000_000)),
)
#: An execution that launched nothing.
NOTHING = KernelWork(evidence=Evidence("kernels", {}, 0, 0.0, reason="nothing was launched in it"))
#: A matrix product near its ceiling: 120 FLOPs for a byte.
PRODUCT = RegionOperation(
    flops=2_400_000_000, bytes=20_000_000, precision="bf16", compute=0.85, memory=0.2, overhead=0.05
)
#: An addition that the memory's bandwidth bounds.
SUM = RegionOperation(flops=1_000_000, bytes=12_000_000, precision="fp32", compute=0.01, memory=0.8, overhead=0.1)
#: An operation that ran, without any figures.
BLANK = RegionOperation(reason="needs passes=2")

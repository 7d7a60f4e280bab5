"""A process with regions on simulated GPUs, on a clock that the test moves: no threads, no waiting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pynvml
import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler as TraceSampler

from gpu_profile import GpuSpanProcessor
from gpu_profile.driver import simulated
from gpu_profile.driver.simulated import SimulatedQueue, Truth, Work
from gpu_profile.regions import running
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import STEP_S
from gpu_profile.testing import FakeClock
from gpu_profile.units import NS_PER_S, nanoseconds

#: Joules on a metal counter, which the simulated H200 renews every 100 ms, and busy time in windows of 105 ms.
ONE_GPU = '[[device]]\nmodel = "H200 SXM"\n'


class Stage:
    """`session` is the process's, driven by hand; `run(s)` lets time pass in which it samples and joins.

    Spans of `provider` arrive in `exporter` by way of `processor`. `on_device`: regions mark the queue.
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
        self.session = process._make()
        self.session.active = True
        process.current = self.session
        #: What the join has met, in the order in which it began.
        self.ended: list[Execution] = []
        self.session.on_end.append(self.ended.append)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.provider.shutdown()
        process.stop()
        process.configure()
        self.queue.close()
        assert pynvml.nvmlLib is None or "Simulated" not in type(pynvml.nvmlLib).__name__

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
        self.queue.launch(Work(seconds=seconds * share, flops=1e12, bytes=1e9), tag=tag)
        self.run(seconds)

    def flush(self) -> None:
        """Let everything out."""
        self.run(1.5)
        assert self.provider.force_flush()

    # ------------------------------------------------------------------ what came of it

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
        (found,) = (span for span in self.spans if span.name == name)
        return found

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
        """How often a region was counted, whatever its regime and device."""
        return sum(count for (name, _, _), count in self.session.verdicts.calls.items() if name == region)

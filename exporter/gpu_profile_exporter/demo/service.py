"""A small inference service with decorated regions: `python -m gpu_profile_exporter.demo.service`.

Requests arrive at random. Each is tokenised, prefilled, decoded step by step and post-processed. Every fourth one first
stalls on loading data. GPU work is queued asynchronously and no region waits for it. The kernels of a region therefore
run after the region has ended on the host, where a stop-watch around the region would measure wrong times.

Every half second the service prints a line of JSON with the regions to stdout. On a simulated GPU the last line also
contains the errors against the truth.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from types import FrameType

import click
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from gpu_profile import GpuSpanProcessor, configure, region, serve_metrics
from gpu_profile.errors import GpuProfileError
from gpu_profile.regions.session import process as gpu_process
from gpu_profile.regions.session.session import Session
from gpu_profile.report import region_row
from gpu_profile_exporter.demo.comparison import HostTwin, RegionComparison, compare
from gpu_profile_exporter.demo.workload import DemoWorkload, SimulatedWorkload

#: Requests per second, mean of a Poisson process; tokens decoded per request.
ARRIVALS_PER_S = 7.0
TOKENS = (4, 24)
#: Sizes of the matrix products, in TFLOP, and of the weights that a step reads, in GB.
PRODUCTS = (1.2, 1.6, 2.0, 2.4)
WEIGHTS = (8, 10, 12, 14)


def open_workload(directory: str | None) -> DemoWorkload:
    """Work on the simulated node in `directory`, else on this machine's GPU through PyTorch, else on the host."""
    if directory is not None:
        return SimulatedWorkload(directory)
    try:
        import torch
    except ImportError:
        return DemoWorkload()
    from gpu_profile_exporter.demo.torch_workload import TorchWorkload

    return TorchWorkload() if torch.cuda.is_available() else DemoWorkload()


class SpanSample(SpanExporter):
    """Keeps the newest span of each region and counts all spans."""

    def __init__(self) -> None:
        self.exported = 0
        self.newest: dict[str, ReadableSpan] = {}

    def export(self, spans: object) -> SpanExportResult:
        """Keep the newest span of each name."""
        assert isinstance(spans, (list, tuple))  # noqa: S101 - the SDK's own contract
        for span in spans:
            self.exported += 1
            self.newest[span.name] = span
        return SpanExportResult.SUCCESS


@region("data_loading")
def load_data(work: DemoWorkload, rng: random.Random) -> None:
    """Wait for storage, then copy a batch to the GPU."""
    work.host(rng.uniform(0.03, 0.09))
    work.copy(96e6)


@region("tokenize")
def tokenize(work: DemoWorkload, rng: random.Random) -> None:
    """Host work only."""
    work.host(rng.uniform(0.001, 0.004))


@region("prefill")
def prefill(work: DemoWorkload, rng: random.Random) -> None:
    """Large matrix products: bound by the tensor cores."""
    for _ in range(8):
        work.matmul(rng.choice(PRODUCTS) * 1e12)


def decode(work: DemoWorkload, rng: random.Random, tokens: int) -> None:
    """One step per token, each of which reads all weights: bound by device memory."""
    for _ in range(tokens):
        with region("decode", items=1):
            work.stream(rng.choice(WEIGHTS) * 1e9)


@region("postprocess")
def postprocess(work: DemoWorkload, rng: random.Random) -> None:
    """Many tiny kernels, launched one by one from Python: bound by overhead."""
    for _ in range(rng.randint(250, 450)):
        work.tiny()


def serve(work: DemoWorkload, rng: random.Random, stop: Iterator[bool]) -> None:
    """Answer requests until `stop` is exhausted."""
    kinds = cycle(range(1, 5))
    for _ in stop:
        with region("request"):
            if next(kinds) == 1:
                load_data(work, rng)
            tokenize(work, rng)
            prefill(work, rng)
            decode(work, rng, rng.randint(*TOKENS))
            postprocess(work, rng)
        # The host may run ahead of the GPU by 0.3 s at most, like a server with a limited queue.
        work.host(rng.expovariate(ARRIVALS_PER_S))
        while work.pending_s > 0.3:
            work.host(0.01)


@dataclass(frozen=True, slots=True)
class Status:
    """The content of one line of the service."""

    rows: list[tuple[str, ...]]
    joined: bool
    spans: int
    problem: str
    span: dict[str, object] | None = None
    comparison: list[RegionComparison] | None = None

    def line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


def status(session: Session, spans: SpanSample) -> Status:
    """The current state of the regions."""
    judged = session.regions()
    return Status(
        rows=[region_row(j.summary, j.verdict) for j in judged],
        joined=any(j.summary.busy is not None for j in judged),
        spans=spans.exported,
        problem=session.sampler.problem,
    )


def _until(seconds: float | None, stopped: list[bool], session: Session, spans: SpanSample) -> Iterator[bool]:
    started = printed = time.monotonic()
    while not stopped and (seconds is None or time.monotonic() - started < seconds):
        yield True
        if time.monotonic() - printed >= 0.5:
            printed = time.monotonic()
            click.echo(status(session, spans).line())


def _span_facts(spans: SpanSample, name: str) -> dict[str, object] | None:
    span = spans.newest.get(name)
    if span is None or span.attributes is None:
        return None
    facts: dict[str, object] = {"name": span.name, **span.attributes}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in facts.items()}


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM, or for `--seconds`."""
    parser = argparse.ArgumentParser(prog="gpu_profile_exporter.demo.service", description=__doc__)
    parser.add_argument("--directory", help="simulated node to run on; without it, this machine's GPU")
    parser.add_argument("--metrics", type=int, default=9464, help="port of the region metrics; 0: a free one")
    parser.add_argument("--record", metavar="DIR", help="record the GPU and the regions into this directory")
    parser.add_argument("--seconds", type=float, help="end after this long")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    stopped: list[bool] = []

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.append(True)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        return _run(options, stopped)
    except GpuProfileError as error:
        click.echo(f"demo service: {error}", err=True)
        return error.exit_code
    except BrokenPipeError:
        # The reader of stdout has closed it, so no further output is possible.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(options: argparse.Namespace, stopped: list[bool]) -> int:
    work = open_workload(options.directory)
    backend = f"simulated:{options.directory}" if options.directory else None
    configure(backend=backend, stream=work.stream_of_thread, record=options.record)
    server = serve_metrics(options.metrics, address="127.0.0.1")
    spans = SpanSample()
    provider = TracerProvider(resource=Resource.create({"service.name": "gpu-profile-demo"}))
    provider.add_span_processor(GpuSpanProcessor(BatchSpanProcessor(spans, schedule_delay_millis=500)))
    trace.set_tracer_provider(provider)
    session = gpu_process.session()
    twin = HostTwin(session)
    click.echo(json.dumps({"port": server.port, "work": work.name}))
    serve(work, random.Random(options.seed), _until(options.seconds, stopped, session, spans))  # noqa: S311 - a load
    work.drain()
    provider.force_flush()
    gpu_process.stop()  # the comparison takes seconds, in which nothing happens
    truth = work.truth()
    comparison = compare(session, twin, truth) if truth is not None and twin.complete else None
    last = replace(status(session, spans), span=_span_facts(spans, "decode"), comparison=comparison)
    click.echo(last.line())
    provider.shutdown()
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

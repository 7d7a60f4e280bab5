"""The way of a span: a service, a sidecar beside it, a real collector, and what comes out there."""

import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from integration import collector as otlp_collector
from integration.node.exporters import Exporter
from support.otlp_traces import request_of, span, spans_of
from support.programs import environment, free_port, printed, until
from support.push import attributes

from gpu_profile.driver.node.table import TableFile

#: A service that knows nothing of us, but for the GPU that it uses, and tells how many spans it made.
SERVICE = """
import os, random, sys, time
from pathlib import Path
from gpu_profile.driver.simulated import SimulatedQueue, Work
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind

node, url, seconds, gpu, attribute, last_s = sys.argv[1:]
queue, rng, n = SimulatedQueue(Path(node), int(gpu)), random.Random(3), 0
own = {attribute: os.getpid()} if attribute else {}
provider = TracerProvider(resource=Resource.create({"service.name": "shop", **own}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url), schedule_delay_millis=300))
tracer, ends = provider.get_tracer("shop"), time.monotonic() + float(seconds)
def serve(work_s, idle_s):
    with tracer.start_as_current_span("POST /buy", kind=SpanKind.SERVER):
        with tracer.start_as_current_span("inside"):
            queue.launch(Work(seconds=work_s, flops=2e13 * work_s))
            queue.synchronize()
    with tracer.start_as_current_span("GET /idle", kind=SpanKind.SERVER):
        time.sleep(idle_s)
while time.monotonic() < ends:
    serve(rng.uniform(0.02, 0.08), rng.uniform(0.0, 0.05))
    n += 3
if float(last_s):
    serve(float(last_s), float(last_s))
    n += 3
provider.shutdown()
print(n)
"""


class Sidecar:
    """A second exporter, which reads the first one's timeline and never a driver."""

    def __init__(self, timeline: Path, forward: str, *more: str, port: int | None = None) -> None:
        self.port, self.metrics_port = port or free_port(), free_port()
        command = [sys.executable, "-m", "gpu_profile_exporter", f"--driver=node:{timeline}", "--receive-late=1"]
        command += [f"--listen=127.0.0.1:{self.metrics_port}", f"--receive-http=127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(
            [*command, f"--forward={forward}", *more],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip

    def answers(self) -> bool:
        assert self.process.poll() is None, self.process.communicate()
        try:
            return "gpu_profile_receive" in self.scrape()
        except OSError:
            return False

    def scrape(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
        return text

    def told(self, name: str) -> float:
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", self.scrape(), re.MULTILINE))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)

    def stop(self) -> tuple[str, str]:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.communicate(timeout=20)


@pytest.fixture
def begin() -> Iterator[Callable[..., Sidecar]]:
    """Starts sidecars, which end with the test."""
    made: list[Sidecar] = []

    def started(timeline: Path, forward: str, *more: str, port: int | None = None) -> Sidecar:
        made.append(Sidecar(timeline, forward, *more, port=port))
        until(made[-1].answers, "the sidecar answers")
        return made[-1]

    yield started
    for sidecar in made:
        sidecar.stop()


def joined(spans: list[Any]) -> dict[str, dict[str, Any]]:
    """The attributes of the last span of each name that has all that a GPU tells."""
    wanted = {"gpu_profile.busy.ratio", "gpu_profile.power.mean"}
    found = [(one.name, attributes(one.attributes)) for one in spans]
    return {name: each for name, each in found if wanted <= each.keys()}


def test_a_service_s_spans_come_out_of_a_collector_with_what_the_gpu_did(
    exporter: Exporter, begin: Callable[..., Sidecar], tmp_path: Path
) -> None:
    arrived: list[bytes] = []
    with otlp_collector.sink(arrived.append) as port, otlp_collector.collector(port, tmp_path) as urls:
        sidecar = begin(exporter.timeline, urls["http/protobuf"])
        # Beside much else, the values of many short executions are refused: the sensor's timing remains uncertain, and
        # an execution takes as long as others let it. The last two spans are long enough for values of their own.
        made = int(printed("-c", SERVICE, str(exporter.node), sidecar.url, "3", "0", "", "3"))
        until(lambda: sum(len(spans_of(one)) for one in arrived) >= made, "all spans come out")
        # Spans are counted after they were sent.
        until(lambda: sidecar.told("gpu_profile_receive_spans_total") == made, "all spans are counted as received")
        until(lambda: sidecar.told("gpu_profile_push_items_total") == made, "all spans are counted as sent")
        regions = re.findall(
            r'^gpu_profile_region_\w+{region="([^"]*)".*service_name="([^"]*)"', sidecar.scrape(), re.MULTILINE
        )
        # The node's exporter publishes the devices.
        assert not re.findall(r"^hw_\w+", sidecar.scrape(), re.MULTILINE)
        assert not sidecar.told("gpu_profile_receive_left_out_total")
    spans = [one for request in arrived for one in spans_of(request)]
    assert len(spans) == made
    assert set(regions) == {("POST /buy", "shop"), ("GET /idle", "shop")}
    assert not any(attributes(one.attributes) for one in spans if one.name == "inside")
    last, reasons = joined(spans), {attributes(one.attributes).get("gpu_profile.unjoined") for one in spans}
    assert set(last) == {"POST /buy", "GET /idle"}, reasons
    assert last["POST /buy"]["gpu_profile.region"] == "POST /buy"
    assert last["POST /buy"]["gpu_profile.busy.ratio"] == pytest.approx(1.0, abs=0.1)
    assert last["GET /idle"]["gpu_profile.busy.ratio"] == pytest.approx(0.0, abs=0.1)
    powers = [last[name]["gpu_profile.power.mean"] for name in ("POST /buy", "GET /idle")]
    assert powers[0] > 1.3 * powers[1]


def test_a_process_beside_many_gpus_is_joined_on_the_one_that_lists_it(
    tmp_path: Path, begin: Callable[..., Sidecar]
) -> None:
    exporter = Exporter(tmp_path, scenario='[[device]]\nmodel = "H100 SXM"\n' * 2)
    arrived: list[bytes] = []
    try:
        exporter.wait()
        with otlp_collector.sink(arrived.append) as port, otlp_collector.collector(port, tmp_path) as urls:
            sidecar = begin(exporter.timeline, urls["http/protobuf"])
            made = int(printed("-c", SERVICE, str(exporter.node), sidecar.url, "6", "1", "process.pid", "0"))
            until(lambda: sum(len(spans_of(one)) for one in arrived) >= made, "all spans come out")
    finally:
        exporter.stop()
    buys = [attributes(one.attributes) for each in arrived for one in spans_of(each) if one.name == "POST /buy"]
    devices = {tuple(each["gpu_profile.device.ids"]) for each in buys if "gpu_profile.device.ids" in each}
    reasons = {each.get("gpu_profile.unjoined", "") for each in buys}
    assert devices == {(_uuids(exporter.timeline)[1],)}, reasons
    # Before the driver lists the process, and before anything is known of the region.
    assert not [one for one in reasons if "proven" in one or "namespace" in one or "identifies" in one]


def _uuids(timeline: Path) -> list[str]:
    return [one.device.uuid for one in TableFile(timeline).read().devices]


def test_spans_wait_for_a_next_receiver_that_is_away_and_none_is_lost(
    exporter: Exporter, begin: Callable[..., Sidecar]
) -> None:
    arrived: list[bytes] = []
    with otlp_collector.sink(arrived.append) as port:
        pass  # nothing listens there any more
    sidecar = begin(exporter.timeline, f"http://127.0.0.1:{port}")
    made = int(printed("-c", SERVICE, str(exporter.node), sidecar.url, "3", "0", "", "0"))
    until(lambda: sidecar.told("gpu_profile_push_failures_total") >= 1, "a try fails")
    assert not arrived
    with otlp_collector.sink(arrived.append, port=port):
        until(lambda: sum(len(spans_of(one)) for one in arrived) >= made, "all spans come out", 30)
    assert sum(len(spans_of(one)) for one in arrived) == made
    assert not sidecar.told("gpu_profile_push_dropped_items_total")
    out, err = sidecar.stop()
    assert sidecar.process.returncode == 0, (out, err)


class Client:
    """Sends spans, one after the other, each until it is acknowledged."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acknowledged: list[str] = []
        self.tries = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            now_ns = time.time_ns()
            name = f"span {len(self.acknowledged)}"
            body = request_of([span(name, now_ns - 400_000_000 * (self.tries % 2), now_ns)])
            self.tries += 1
            request = urllib.request.Request(self.url, body, {"Content-Type": "application/x-protobuf"})
            try:
                urllib.request.urlopen(request, timeout=5).close()
                self.acknowledged.append(name)
            except OSError:
                self._stop.wait(0.02)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def test_what_was_acknowledged_outlives_kill_9_with_a_queue_on_disk(
    exporter: Exporter, begin: Callable[..., Sidecar], tmp_path: Path
) -> None:
    arrived: list[bytes] = []
    queue = f"--forward-queue={tmp_path / 'queue'}"
    with otlp_collector.sink(arrived.append) as port:
        sidecar = begin(exporter.timeline, f"http://127.0.0.1:{port}", queue)
        client = Client(sidecar.url)
        try:
            for more in (30, 100, 10):
                before = len(client.acknowledged)
                until(lambda: len(client.acknowledged) >= before + more, "spans are acknowledged")  # noqa: B023 - at once
                sidecar.kill()
                sidecar = begin(exporter.timeline, f"http://127.0.0.1:{port}", queue, port=sidecar.port)
        finally:
            client.stop()
        wanted = set(client.acknowledged)

        def names() -> list[str]:
            return [one.name for request in arrived for one in spans_of(request)]

        until(lambda: wanted <= set(names()), "every acknowledged span comes out", 30)
        assert len(names()) <= client.tries + 3 * 100  # what was on its way at a kill may come twice
        sidecar.stop()
    assert not list((tmp_path / "queue").glob("*/*.queue"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--receive-http=:0"], "--receive-http: needs --forward, the next receiver of the spans"),
        (["--receive-http=:0", "--forward=http://x:1"], "--receive-http: needs samples to join with: --timeline"),
        (["--receive-http=:0", "--forward=x"], "--forward"),
        (
            ["--receive-http=:28431", "--forward=http://localhost:28431", "--driver=node:/nonexistent"],
            "--forward: http://localhost:28431 is this receiver itself",
        ),
        (
            [
                "--receive-http=127.0.0.1:28431",
                "--forward=127.0.0.1:28431",
                "--forward-protocol=grpc",
                "--driver=node:/nonexistent",
            ],
            "--forward: 127.0.0.1:28431 is this receiver itself",
        ),
        (
            ["--receive-http=:0", "--forward=http://x:1", "--driver=node:/nonexistent", "--forward-queue=/dev/null/x"],
            "--forward-queue: /dev/null/x/received: no queue can be kept there: Not a directory",
        ),
        (
            ["--receive-http=:0", "--forward=http://x:1", "--driver=node:/nonexistent", "--receive-spans=serve"],
            "--receive-spans: 'serve' does not select",
        ),
    ],
)
def test_what_is_missing_is_named_at_the_start(arguments: list[str], says: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "gpu_profile_exporter", "--listen=127.0.0.1:0", "--driver=none", *arguments],
        capture_output=True, text=True, env=environment(), timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, "")
    assert says in ran.stderr

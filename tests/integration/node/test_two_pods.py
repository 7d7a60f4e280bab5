"""Two pods on one node, each with a service and a sidecar: the way of their spans to one collector.

A pod is a network and a pid namespace of its own, where this machine's rights allow it; both have the same ports. The
kubelet says which GPU each holds. The service is on OpenTelemetry's SDK for Python, and besides on the one for Node
where that is installed: `npm install @opentelemetry/sdk-trace-node @opentelemetry/exporter-trace-otlp-proto`, and
NODE_PATH.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import pytest
from integration import collector as otlp_collector
from integration.node.exporters import Exporter
from integration.node.pod import carried
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.exporter import devices, kubelet, pod
from support.programs import environment, free_port, until
from support.push import attributes

from gpu_profile.driver.node.table import TableFile
from gpu_profile.driver.simulated import SimulatedQueue, Work

HERE = Path(__file__).parent
#: Work of so many seconds for a request of each pod, and what may be off by the way there and back.
PODS = {"web-0": 0.08, "web-1": 0.06}
REQUESTS = 30
#: The last requests work for so many seconds. Their spans have samples of their own, and are joined even where the
#: stamps of a busy machine leave the rates of the short ones unidentified.
LONG, LONG_S = 6, 2.5
GPU = "nvidia.com/gpu"
_NEEDS = "require('@opentelemetry/sdk-trace-node'), require('@opentelemetry/exporter-trace-otlp-proto')"


def services() -> dict[str, list[str]]:
    """The words that start the service, by SDK."""
    found = {"python": [sys.executable, str(HERE / "service.py")]}
    node = shutil.which("node")
    if node and not subprocess.run([node, "-e", _NEEDS], capture_output=True, check=False).returncode:
        found["node"] = [node, str(HERE / "service.cjs")]
    return found


def isolated() -> list[str]:
    """What gives a program namespaces of its own; nothing where that is not allowed."""
    words = ["unshare", "--net", "--pid", "--fork", "--mount-proc"]
    allowed = (
        shutil.which("unshare") and not subprocess.run([*words, "true"], capture_output=True, check=False).returncode
    )
    return words if allowed else []


class _Model(BaseHTTPRequestHandler):
    """Works on the GPU for each request."""

    def do_GET(self) -> None:
        queue, seconds = self.server.gpu  # type: ignore[attr-defined]
        short = self.server.n < REQUESTS - LONG  # type: ignore[attr-defined]
        seconds = seconds * (0.5 + self.server.n * 0.618 % 1) if short else LONG_S  # type: ignore[attr-defined]
        queue.launch(Work(seconds=seconds, flops=1e12))
        self.server.n += 1  # type: ignore[attr-defined]
        queue.synchronize()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def address_string(self) -> str:
        return "pod"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class _UnixServer(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    n = 0


@contextmanager
def model(path: Path, queue: SimulatedQueue, seconds: float) -> Iterator[None]:
    """A model's server on a unix socket."""
    with _UnixServer(str(path), _Model) as server:
        server.gpu = queue, seconds  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def reached_by(path: Path, port: int) -> Iterator[None]:
    """A unix socket that leads to a port."""
    loop = asyncio.new_event_loop()

    async def serve() -> asyncio.Server:
        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await carried(reader, writer, await asyncio.open_connection("127.0.0.1", port))

        return await asyncio.start_unix_server(carry, path)

    server = loop.run_until_complete(serve())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(server.wait_closed())
        loop.close()


def started(name: str, service: Sequence[str], timeline: Path, outside: dict[str, Path]) -> subprocess.Popen[str]:
    """A pod at work."""
    ports = {"traces": 4318, "metrics": 9400, "collector": 14318, "model": 8000}
    namespaces = isolated()
    if not namespaces:
        ports = {what: free_port() for what in ports}
    sidecar = [sys.executable, "-m", "gpu_profile_exporter", f"--driver=node:{timeline}", "--receive-late=1"]
    sidecar += [f"--listen=127.0.0.1:{ports['metrics']}", f"--receive-http=127.0.0.1:{ports['traces']}"]
    sidecar += [f"--forward=http://127.0.0.1:{ports['collector']}"]
    here = {what: f"http://127.0.0.1:{port}" for what, port in ports.items()}
    specification = {
        "sidecar": sidecar,
        "listens": ports["traces"],
        "service": [*service, name, f"{here['traces']}/v1/traces", here["model"], str(REQUESTS)],
        "outside": {str(ports[what]): str(path) for what, path in outside.items()},
    }
    return subprocess.Popen(
        [*namespaces, sys.executable, str(HERE / "pod.py"), json.dumps(specification)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(),
    )  # fmt: skip


@pytest.mark.parametrize("sdk", services())
def test_each_pods_spans_have_what_its_own_gpu_did(sdk: str, tmp_path: Path) -> None:
    arrived: list[bytes] = []
    with ExitStack() as opened:
        holders: dict[str, str] = {}
        socket_of_kubelet = tmp_path / "kubelet.sock"
        opened.enter_context(
            kubelet(
                socket_of_kubelet,
                lambda _: b"".join(pod("shop", name, main=devices(GPU, gpu)) for name, gpu in holders.items()),
            )
        )
        exporter = Exporter(
            tmp_path, "--kubernetes", f"--pod-resources-kubelet-socket={socket_of_kubelet}",
            scenario=2 * '[[device]]\nmodel = "H100 SXM"\n',
        )  # fmt: skip
        opened.callback(exporter.stop)
        exporter.wait()
        queues = {name: SimulatedQueue(exporter.node, index) for index, name in enumerate(PODS)}
        holders.update((name, queue.device_uuid) for name, queue in queues.items())
        table = TableFile(exporter.timeline)
        until(lambda: sum(bool(one.holders) for one in table.read().devices) == 2, "the holders are known")
        sink = opened.enter_context(otlp_collector.sink(arrived.append))
        urls = opened.enter_context(otlp_collector.collector(sink, tmp_path))
        collector = tmp_path / "collector.sock"
        opened.enter_context(reached_by(collector, int(urls["http/protobuf"].rpartition(":")[2])))
        running = {}
        for name, queue in queues.items():
            path = tmp_path / f"{name}.sock"
            opened.enter_context(model(path, queue, PODS[name]))
            running[name] = started(name, services()[sdk], exporter.timeline, {"collector": collector, "model": path})
        # A sidecar that stops has a second to send its last spans, too little on a busy machine.
        until(lambda: len(spans_by_pod(arrived)) == 2 * REQUESTS, "all spans come out", timeout_s=120)
        for process in running.values():
            said, _ = process.communicate(timeout=60)
            assert process.returncode == 0, said
    spans = spans_by_pod(arrived)
    for name, gpu in holders.items():
        mine = [told for of, told in spans if of == name]
        assert len(mine) == REQUESTS
        joined = [told for told in mine if "gpu_profile.busy.ratio" in told]
        assert len(joined) > REQUESTS / 10, mine[-1]
        assert {tuple(told["gpu_profile.device.ids"]) for told in joined} == {(gpu,)}
        assert joined[-1]["gpu_profile.busy.ratio"] > 0.5


def spans_by_pod(requests: Sequence[bytes]) -> list[tuple[str, dict[str, Any]]]:
    """The pod and the attributes of every span."""
    return [
        (attributes(of.resource.attributes)["k8s.pod.name"], attributes(span.attributes))
        for request in list(requests)
        for of in ExportTraceServiceRequest.FromString(request).resource_spans
        for scope in of.scope_spans
        for span in scope.spans
    ]

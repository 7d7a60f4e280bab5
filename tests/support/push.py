"""Endpoints with the behaviour that a test sets, and readers of their requests with OpenTelemetry's own classes."""

import gzip
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint

from gpu_profile_exporter.push.batch import Batch, Envelope
from gpu_profile_exporter.push.disk_queue import DiskQueue

RESOURCE = (("service.name", "gpu-profile-exporter"), ("service.instance.id", "node-1"))
ENVELOPE = Envelope(RESOURCE, "1.2.3")


def plain(value: AnyValue) -> Any:
    """The value of an AnyValue."""
    kind = value.WhichOneof("value")
    assert kind is not None
    if kind == "array_value":
        return [plain(one) for one in value.array_value.values]
    return getattr(value, kind)


def attributes(pairs: Any) -> dict[str, Any]:
    """KeyValues as a mapping. Fails if a key is repeated."""
    listed: list[KeyValue] = list(pairs)
    values = {pair.key: plain(pair.value) for pair in listed}
    assert len(values) == len(listed)
    return values


def metrics_of(request: bytes) -> list[Metric]:
    return [
        metric
        for resource in ExportMetricsServiceRequest.FromString(request).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]


def records_of(request: bytes) -> list[LogRecord]:
    return [
        record
        for resource in ExportLogsServiceRequest.FromString(request).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def points_of(metric: Metric) -> list[NumberDataPoint]:
    return list(metric.sum.data_points if metric.HasField("sum") else metric.gauge.data_points)


def batch(text: bytes = b"", items: int = 1) -> Batch:
    return Batch.of(text, items)


@dataclass
class Answer:
    """An answer of an HTTP endpoint."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/x-protobuf"})


@dataclass
class HttpEndpoint:
    """An endpoint. `answer` may be replaced at any time; a function gets the handler and answers by itself."""

    url: str
    answer: Answer | Callable[[BaseHTTPRequestHandler], None] = field(default_factory=Answer)
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.requests]


class _Handler(BaseHTTPRequestHandler):
    timeout = 20

    def do_POST(self) -> None:
        endpoint: HttpEndpoint = self.server.endpoint  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        endpoint.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        answer = endpoint.answer
        if not isinstance(answer, Answer):
            answer(self)
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_: Any) -> None:
        """Do not log."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect, which some tests do on purpose."""


@contextmanager
def http_endpoint(context: ssl.SSLContext | None = None) -> Iterator[HttpEndpoint]:
    """An endpoint on a port that the system chooses, with TLS if a context is given."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        endpoint = HttpEndpoint(f"{scheme}://127.0.0.1:{server.server_address[1]}/v1/metrics")
        server.endpoint = endpoint  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield endpoint
        finally:
            server.shutdown()
            thread.join()


def killed(queue: DiskQueue) -> None:
    """Close the queue's files as the kernel does for a killed process."""
    for file in queue._files.values():
        os.close(file.descriptor)
    os.close(queue._own)

"""Receiving spans, joining them and sending them on: how many a second, how late, and at what memory.

The baseline of the first row is OpenTelemetry's own classes, which decode a request, append the same attributes and
encode it again. The other rows run an exporter as a process of its own, with a client and a next receiver that do
nothing but carry bytes.
"""

import os
import secrets
import socket
import struct
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import quantiles
from subprocess import DEVNULL, PIPE, Popen
from sys import executable
from typing import Any, Final

import numpy as np
from support.otlp_traces import request_of, span, with_attributes
from support.programs import environment, free_port, until

from benchmarks.exporter_children import memory, tree
from benchmarks.rows import Row, best
from gpu_profile.driver import simulated
from gpu_profile.protobuf import double, message, string
from gpu_profile_exporter.sidecar.trace_request import TraceRequest

_SPANS: Final = 512
_ATTRIBUTES: Final[dict[str, Any]] = {
    "http.request.method": "POST",
    "url.path": "/v1/chat/completions",
    "server.address": "localhost",
    "http.route": "/v1/chat/completions",
    "http.response.status_code": 200,
}
_ADDED: Final = tuple(f"gpu_profile.attribute.{i}" for i in range(6))
_REACH_PER_S: Final = 200_000
_REACH_RATIO: Final = 1.3
_REACH_LATE_MS: Final = 50.0
_STEADY_PER_S: Final = 50_000
_REACH_MIB: Final = 200.0
_REACH_DISK: Final = 1.3
#: Most requests, one each 0.1 s, until the first spans are joined.
_PATIENCE: Final = 300


def rows() -> Iterator[Row]:
    """All rows."""
    yield _splicing()
    with _running() as (exporter, receiver):
        way = _way(exporter, seconds=8.0)
        yield way
        yield _latency(exporter, receiver, seconds=10.0)
    with _running(on_disk=True) as (exporter, _):
        yield _on_disk(way, _way(exporter, seconds=8.0))
    with _running() as (exporter, receiver):
        yield _memory(exporter, receiver, seconds=20.0)


def sample() -> Iterator[Row]:
    """Less of them, and shorter."""
    yield _splicing()
    with _running() as (exporter, receiver):
        yield _way(exporter, seconds=4.0)
        yield _latency(exporter, receiver, seconds=4.0)


def _request(n: int = _SPANS) -> bytes:
    """Spans of a service that ended just now, none of which was sent before."""
    now_ns = time.time_ns()
    return request_of([span("POST /v1/chat", now_ns - 10**7, now_ns, **_ATTRIBUTES) for _ in range(n)])


class _Requests:
    """Requests of spans that ended just now, made in microseconds: new ids and times in the bytes of a first one."""

    def __init__(self) -> None:
        now_ns = time.time_ns()
        spans = [span("POST /v1/chat", now_ns - 10**7, now_ns, **_ATTRIBUTES) for _ in range(_SPANS)]
        self._data = bytearray(request_of(spans))
        (scope,) = TraceRequest(bytes(self._data)).scopes
        first = self._data[scope.places.contents[0] : scope.places.ends[0]]
        contents, octets = np.array(scope.places.contents), np.arange(8)
        told = (spans[0].span_id, struct.pack("<Q", now_ns - 10**7), struct.pack("<Q", now_ns))
        self._ids, self._starts, self._ends = ((contents + first.find(one))[:, None] + octets for one in told)
        self._bytes = np.frombuffer(self._data, np.uint8)
        self._made = secrets.randbits(40) * _SPANS

    def __call__(self) -> bytes:
        self._made += _SPANS
        now_ns = time.time_ns()
        self._bytes[self._ids] = np.arange(self._made, self._made + _SPANS, dtype="<u8").view(np.uint8).reshape(-1, 8)
        self._bytes[self._starts] = np.array([now_ns - 10**7], "<u8").view(np.uint8)
        self._bytes[self._ends] = np.array([now_ns], "<u8").view(np.uint8)
        return bytes(self._data)


def _splicing() -> Row:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    sent, added = _request(), b"".join(message(9, string(1, key), message(2, double(4, 1.5))) for key in _ADDED)

    def ours() -> bytes:
        request = TraceRequest(sent)
        return with_attributes(request, [[added] * len(scope.places) for scope in request.scopes])

    def theirs() -> bytes:
        request = ExportTraceServiceRequest.FromString(sent)
        for of_resource in request.resource_spans:
            for of_scope in of_resource.scope_spans:
                for one in of_scope.spans:
                    for key in _ADDED:
                        pair = one.attributes.add()
                        pair.key = key
                        pair.value.double_value = 1.5
        whole: bytes = request.SerializeToString()
        return whole

    if ours() != theirs():
        raise AssertionError("the two do not say the same")
    own_s, their_s = (best(lambda f=f: [f() for _ in range(20)], 7) / 20 / _SPANS for f in (ours, theirs))  # type: ignore[misc]
    ratio = their_s / own_s
    return Row(
        "a span decoded, six attributes added, encoded",
        f"{own_s * 1e6:.1f} µs",
        f"{their_s * 1e6:.1f} µs (protobuf)",
        f"{ratio:.1f}x as fast",
        f"{_REACH_RATIO:g}x",
        ok=ratio >= _REACH_RATIO,
        cost=1 / ratio,
    )


class _Exporter:
    """An exporter of a simulated node that keeps a timeline and receives spans."""

    def __init__(self, folder: Path, forward: str, *more: str) -> None:
        simulated.create(folder / "node", '[[device]]\nmodel = "H100 SXM"\n')
        self.port, self.metrics_port = free_port(), free_port()
        options = [f"--driver=simulated:{folder / 'node'}", f"--timeline={folder / 'timeline'}", "--receive-late=1"]
        options += [f"--receive-http=127.0.0.1:{self.port}", f"--listen=127.0.0.1:{self.metrics_port}"]
        command = [executable, "-m", "gpu_profile_exporter", *options, f"--forward={forward}", *more]
        self.process = Popen(command, stdout=PIPE, stderr=DEVNULL, env=environment())
        until(lambda: b"through" in (self.process.stdout.readline() if self.process.stdout else b""), "it serves")

    def told(self, name: str, *labels: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(x.rpartition(" ")[2]) for x in lines if x.startswith(name) and all(one in x for one in labels))

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def mib(self) -> float:
        return memory(tree(self.process.pid)).resident


class _NextReceiver:
    """Takes what comes, without looking at it. `arrived`: when each request was whole, and its size."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.arrived: list[tuple[float, int]] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                data = connection.recv(1 << 16)
                head, _, body = data.partition(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                left, buffer = size - len(body), bytearray(1 << 20)
                while left > 0:
                    left -= connection.recv_into(buffer, min(left, 1 << 20))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                self.arrived.append((time.monotonic(), size))

    def close(self) -> None:
        self._socket.close()


class _Client:
    """One connection that is used again and again."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, body: bytes) -> bool:
        head = (
            "POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + body)
        return self._socket.recv(4096).startswith(b"HTTP/1.1 200")

    def close(self) -> None:
        self._socket.close()


@contextmanager
def _running(*, on_disk: bool = False) -> Iterator[tuple[_Exporter, _NextReceiver]]:
    with ExitStack() as stack:
        receiver = _NextReceiver()
        stack.callback(receiver.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        exporter = _Exporter(folder, receiver.url, *[f"--forward-queue={folder / 'queue'}"] * on_disk)
        stack.callback(exporter.process.wait, 20)
        stack.callback(exporter.process.terminate)
        # A region is identified while it pauses at times. Under full load it never does, and spans would stay unjoined.
        client = _Client(exporter.port)
        stack.callback(client.close)
        for _ in range(60):
            client.send(_request(20))
            time.sleep(0.1)
        for _ in range(_PATIENCE):
            if exporter.told("gpu_profile_receive_spans_total", '"joined"') > 0:
                break
            client.send(_request(20))
            time.sleep(0.1)
        yield exporter, receiver


def _pushed(exporter: _Exporter, seconds: float, per_s: float = 0.0) -> tuple[int, float]:
    """Spans that were sent through it in so many seconds, as fast as it takes them or at a rate; and the seconds."""
    make, client, sent, started = _Requests(), _Client(exporter.port), 0, time.monotonic()
    while (passed_s := time.monotonic() - started) < seconds:
        if client.send(make()):
            sent += _SPANS
        else:
            time.sleep(0.01)
        if per_s:
            time.sleep(max(0.0, sent / per_s - passed_s))
    client.close()
    return sent, time.monotonic() - started


def _way(exporter: _Exporter, *, seconds: float) -> Row:
    before, began_s, started = exporter.told("gpu_profile_push_items_total"), exporter.cpu_s, time.monotonic()
    sent, _ = _pushed(exporter, seconds)
    until(lambda: exporter.told("gpu_profile_push_items_total") - before >= sent, "all went on", 60)
    passed_s, used_s = time.monotonic() - started, exporter.cpu_s - began_s
    unjoined = exporter.told("gpu_profile_receive_spans_total", "unjoined")
    rate = sent / passed_s
    return Row(
        "HTTP in, joined, HTTP out",
        f"{rate / 1e3:.0f} k spans/s ({used_s / sent * 1e6:.1f} µs of a core each, {unjoined:.0f} unjoined)",
        "-",
        "-",
        f"{_REACH_PER_S / 1e3:.0f} k spans/s",
        ok=rate >= _REACH_PER_S,
        cost=used_s / sent * 1e6,
    )


def _on_disk(without: Row, found: Row) -> Row:
    ratio = (found.cost or 0.0) / (without.cost or 1.0)
    return Row(
        "the same with a queue on disk, which a killed process leaves to the next one",
        found.figure,
        without.figure,
        f"{ratio:.2f}x the CPU",
        f"<={_REACH_DISK:g}x",
        ok=ratio <= _REACH_DISK,
        cost=ratio,
    )


def _latency(exporter: _Exporter, receiver: _NextReceiver, *, seconds: float) -> Row:
    client, late = _Client(exporter.port), []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        n, body = len(receiver.arrived), _request(20)
        started = time.monotonic()
        client.send(body)
        until(lambda n=n: len(receiver.arrived) > n, "it goes on")
        late.append((receiver.arrived[-1][0] - started) * 1e3)
        time.sleep(0.02)
    client.close()
    p99 = quantiles(late, n=100)[98]
    return Row(
        "time between a span's arrival and its way on, p99",
        f"{p99:.0f} ms (median {sorted(late)[len(late) // 2]:.1f})",
        reach=f"{_REACH_LATE_MS:.0f} ms",
        ok=p99 <= _REACH_LATE_MS,
        cost=p99,
    )


def _memory(exporter: _Exporter, receiver: _NextReceiver, *, seconds: float) -> Row:
    _pushed(exporter, seconds / 2, _STEADY_PER_S)
    before = exporter.mib
    sent, took_s = _pushed(exporter, seconds / 2, _STEADY_PER_S)
    after = exporter.mib
    return Row(
        f"memory at {sent / took_s / 1e3:.0f} k spans/s",
        f"{after:.0f} MiB, {after - before:+.0f} in {took_s:.0f} s",
        reach=f"{_REACH_MIB:.0f} MiB",
        ok=after <= _REACH_MIB,
        cost=after,
    )

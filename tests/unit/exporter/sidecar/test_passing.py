"""Metrics and logs that are received besides: sent on as they are, and counted by item."""

import json
import random
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from support.push import ENVELOPE
from support.servers import answer, connect

from gpu_profile.protobuf import message, number
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.config import Address
from gpu_profile_exporter.push.batch import Batch
from gpu_profile_exporter.push.disk_queue import DiskQueue
from gpu_profile_exporter.push.outcome import Accepted
from gpu_profile_exporter.push.queue import BatchQueue
from gpu_profile_exporter.push.sender import Sender
from gpu_profile_exporter.server import Server
from gpu_profile_exporter.server.connection import Ends
from gpu_profile_exporter.sidecar.messages import Refused, halved, items_of
from gpu_profile_exporter.sidecar.receiver import JSON, PROTOBUF, Receiver, Take, passed_to
from gpu_profile_exporter.sidecar.trace_request import MOST_MESSAGES

#: Three data points of two metrics, one metric without any, and a field of a later version.
POINTS = (
    Metric(name="a", gauge={"data_points": [{"as_int": 1}, {"as_int": 2}]}),  # type: ignore[arg-type]  # a message's fields
    Metric(name="b", histogram={"data_points": [{"count": 3}]}),  # type: ignore[arg-type]
    Metric(name="nothing"),
)
METRICS = ENVELOPE.around([number(2, 0)[:0] + b"\x12" + bytes([len(p := m.SerializeToString())]) + p for m in POINTS])
METRICS += number(1_000, 7)
LOGS = ENVELOPE.around([b"\x12\x00", b"\x12\x00"])
LOGS_IN_JSON: dict[str, Any] = {
    "resourceLogs": [
        {
            "resource": {"attributes": [{"key": "trace_id", "value": {"stringValue": "not one"}}]},
            "scopeLogs": [
                {
                    "logRecords": [
                        {
                            "timeUnixNano": "1544712660300000000",
                            "body": {"stringValue": "hello"},
                            "traceId": "5b8efff798038103d269b633813fc60c",
                            "spanId": "eee19b7ec3c1b174",
                        },
                        {"body": {"kvlistValue": {"values": [{"key": "k", "value": {"intValue": "7"}}]}}},
                    ]
                }
            ],
        }
    ]
}
METRICS_IN_JSON: dict[str, Any] = {
    "resourceMetrics": [
        {
            "scopeMetrics": [
                {
                    "metrics": [
                        {
                            "name": "m",
                            "sum": {
                                "aggregationTemporality": 2,
                                "isMonotonic": True,
                                "dataPoints": [
                                    {
                                        "asDouble": 5,
                                        "exemplars": [
                                            {
                                                "traceId": "5b8efff798038103d269b633813fc60c",
                                                "spanId": "eee19b7ec3c1b174",
                                            }
                                        ],
                                    }
                                ],
                            },
                        }
                    ]
                }
            ]
        }
    ]
}


class NextReceiver:
    def __init__(self) -> None:
        self.got: list[bytes] = []

    def send(self, batch: Batch, timeout_s: float) -> Accepted:
        self.got.append(batch.unpacked())
        return Accepted()

    def close(self) -> None:
        """Nothing is open."""


class World:
    def __init__(
        self, signal: str, *, gzip: bool = False, most_bytes: int = 1 << 20, queue: BatchQueue | None = None
    ) -> None:
        self.next = NextReceiver()
        self.sender = Sender(
            signal, self.next, where="http://next", timeout_s=1.0, clock=FakeClock(),
            queue=BatchQueue(most_bytes, 100) if queue is None else queue, rng=random.Random(1),  # noqa: S311 - a test's
        )  # fmt: skip
        self._take: Take = passed_to(self.sender, signal, gzip=gzip)

    def take(self, content: bytes, kind: str, ends: Ends | None = None) -> None:
        self._take(content, kind, ends)

    def sent(self) -> bytes:
        while self.sender.step() == 0:
            pass
        return b"".join(self.next.got)


@pytest.mark.parametrize("gzip", [False, True])
def test_metrics_go_on_byte_for_byte_and_are_counted_by_data_point(gzip: bool) -> None:
    world = World("metrics", gzip=gzip)
    world.take(METRICS, PROTOBUF)
    assert world.sent() == METRICS
    assert world.sender.stats.sent_items == items_of(METRICS, "metrics") == 3


def test_logs_in_json_keep_the_ids_of_their_traces() -> None:
    world = World("logs")
    world.take(json.dumps(LOGS_IN_JSON).encode(), JSON)
    sent = ExportLogsServiceRequest.FromString(world.sent())
    first, second = sent.resource_logs[0].scope_logs[0].log_records
    assert (first.trace_id.hex(), first.span_id.hex()) == ("5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174")
    assert first.body.string_value == "hello"
    assert second.body.kvlist_value.values[0].value.int_value == 7
    assert sent.resource_logs[0].resource.attributes[0].value.string_value == "not one"
    assert world.sender.stats.sent_items == 2


def test_metrics_in_json_keep_their_exemplars() -> None:
    world = World("metrics")
    world.take(json.dumps(METRICS_IN_JSON).encode(), JSON)
    (metric,) = ExportMetricsServiceRequest.FromString(world.sent()).resource_metrics[0].scope_metrics[0].metrics
    (point,) = metric.sum.data_points
    assert point.as_double == 5
    assert point.exemplars[0].trace_id.hex() == "5b8efff798038103d269b633813fc60c"
    assert world.sender.stats.sent_items == 1


@pytest.mark.parametrize("signal", ["metrics", "logs"])
@pytest.mark.parametrize(("content", "kind"), [(b"\xff", PROTOBUF), (b"[", JSON), (b'{"resourceLogs": 1}', JSON)])
def test_what_is_no_request_is_refused(signal: str, content: bytes, kind: str) -> None:
    world = World(signal)
    if signal == "metrics" and content.startswith(b"{"):
        world.take(content, kind)  # OTLP: fields that are not known are passed over
        assert world.next.got == []
        return
    with pytest.raises(Refused, match=f"no request with {signal}") as refused:
        world.take(content, kind)
    assert refused.value.status == 400


def test_without_room_the_client_is_asked_to_come_again() -> None:
    world = World("metrics", most_bytes=len(METRICS) + 10)
    world.take(METRICS, PROTOBUF)
    with pytest.raises(Refused) as refused:
        world.take(METRICS, PROTOBUF)
    assert (refused.value.status, refused.value.reason) == (503, "full")
    assert sum(world.sender.stats.dropped.values()) == 0


def test_what_the_disk_does_not_take_is_left_with_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DiskQueue(tmp_path, 1 << 20)
    world = World("logs", queue=BatchQueue(1 << 20, 100, 0, disk))
    monkeypatch.setattr(disk, "append", lambda *_, **__: None)
    with pytest.raises(Refused) as refused:
        world.take(LOGS, PROTOBUF)
    assert refused.value.status == 503
    assert sum(world.sender.stats.dropped.values()) == 0
    disk.close()


def test_a_metric_without_points_goes_on_too() -> None:
    world = World("metrics")
    content = ENVELOPE.around([b"\x12\x09" + Metric(name="nothing").SerializeToString()])
    world.take(content, PROTOBUF)
    assert world.sent() == content


@pytest.mark.parametrize("signal", ["metrics", "logs"])
@pytest.mark.parametrize("content", [b"\x0a\x00" * 300_000, message(1, b"\x12\x00" * 300_000)])
def test_more_messages_than_may_be_read_are_refused_in_little_memory(signal: str, content: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(Refused) as refused:
        World(signal).take(content, PROTOBUF)
    assert refused.value.status == 413
    assert tracemalloc.get_traced_memory()[1] < 60 << 20
    tracemalloc.stop()


@given(st.binary(max_size=60))
def test_items_are_those_that_the_library_reads(content: bytes) -> None:
    try:
        request = ExportLogsServiceRequest.FromString(content)
    except DecodeError:
        with suppress(ValueError):
            items_of(content, "logs")  # what is inside is not looked at
        return
    read = [each for one in request.resource_logs for scope in one.scope_logs for each in scope.log_records]
    assert items_of(content, "logs") == len(read)


def test_an_empty_request_is_taken_and_sends_nothing() -> None:
    world = World("logs")
    world.take(b"", PROTOBUF)
    assert world.sender.waiting() == (0, 0)


def test_each_signal_has_its_own_path() -> None:
    worlds = {signal: World(signal) for signal in ("metrics", "logs")}
    takes = {signal: world.take for signal, world in worlds.items()}
    server = Server(Address("127.0.0.1", 0), lambda *more: Receiver(takes, *more))
    server.start()
    try:
        for path, status in (("metrics", 200), ("traces", 404)):
            with connect(server) as connection:
                head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\n"
                connection.sendall(f"{head}Content-Length: {len(METRICS)}\r\n\r\n".encode() + METRICS)
                assert answer(connection)[0] == status
    finally:
        server.stop()
    assert worlds["metrics"].sent() == METRICS
    assert worlds["logs"].sent() == b""


@pytest.mark.parametrize(("signal", "content", "items"), [("metrics", METRICS, 3), ("logs", LOGS, 2)])
def test_two_halves_are_the_same_bytes_and_items(signal: str, content: bytes, items: int) -> None:
    assert halved(3 * content, signal) == (content, 2 * content, items)
    assert halved(content, signal) is None
    assert halved(b"", signal) is None
    assert halved(b"\x0a\x7f", signal) is None


def test_requests_together_may_have_more_messages_than_one_may() -> None:
    one = message(1, message(2, message(2, b"")))
    n = MOST_MESSAGES // 3 + 2
    assert halved(n * one, "traces") == (n // 2 * one, n // 2 * one, n // 2)

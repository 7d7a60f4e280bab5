"""OTLP over HTTP: what is taken, what is refused, and how its sender is told."""

import gzip
import json
import os
import socket
import struct
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from support.otlp_traces import request_of, span
from support.servers import answer, connect

from gpu_profile.protobuf import fields, message
from gpu_profile_exporter.config import Address
from gpu_profile_exporter.server import Limits, Server
from gpu_profile_exporter.sidecar import encodings, pipeline, receiver
from gpu_profile_exporter.sidecar.encodings import unpacked
from gpu_profile_exporter.sidecar.messages import Refused
from gpu_profile_exporter.sidecar.peers import PeerProcesses
from gpu_profile_exporter.sidecar.receiver import JSON, PROTOBUF, Receiver, decoded, spans_to
from gpu_profile_exporter.sidecar.trace_request import TraceRequest

PATH = "/v1/traces"
REQUEST = request_of([span("a", 1, 2), span("b", 3, 4)])
IN_JSON: dict[str, Any] = {
    "resourceSpans": [
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "s"}}]},
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": "5B8EFFF798038103D269B633813FC60C",
                            "spanId": "eee19b7ec3c1b174",
                            "parentSpanId": "eee19b7ec3c1b173",
                            "name": "n",
                            "kind": 2,
                            "startTimeUnixNano": "1544712660000000000",
                            "endTimeUnixNano": 1544712661000000000,
                            "of the future": {"x": [1]},
                            "links": [{"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174"}],
                        }
                    ]
                }
            ],
        }
    ]
}


class Taking:
    """What a receiver took. `room`: whether there is any. `receivers` are those that were made to take it."""

    def __init__(self) -> None:
        self.requests: list[TraceRequest] = []
        self.room = True
        self.receivers: list[Receiver] = []

    def receiver(self, *arguments: Any) -> Receiver:
        self.receivers.append(Receiver({"traces": spans_to(self)}, *arguments))
        return self.receivers[0]

    @property
    def arriving(self) -> int:
        return sum(made._arriving for made in self.receivers)

    def __call__(self, request: TraceRequest) -> bool:
        if self.room:
            self.requests.append(request)
        return self.room


@pytest.fixture
def taking() -> Taking:
    return Taking()


@pytest.fixture
def server(taking: Taking) -> Iterator[Server]:
    made = Server(Address("127.0.0.1", 0), taking.receiver, limits=Limits(body_s=0.5))
    made.start()
    yield made
    made.stop()


def post(kind: str, body: bytes, *more: str, path: str = PATH, size: int | None = None) -> bytes:
    length = len(body) if size is None else size
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Type: {kind}", f"Content-Length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode() + body


def send(server: Server, message: bytes) -> tuple[int, dict[str, str], bytes]:
    with connect(server) as connection:
        connection.sendall(message)
        return answer(connection)


def test_a_request_has_the_ends_of_its_connection(server: Server, taking: Taking) -> None:
    with connect(server) as connection:
        connection.sendall(post(PROTOBUF, REQUEST))
        assert answer(connection)[0] == 200
        assert taking.requests[0].ends == (*connection.getsockname(), *connection.getpeername())
        assert PeerProcesses().refusal(taking.requests[0].ends, os.getpid()) == ""


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("kind", "body", "said"), [(PROTOBUF, REQUEST, b""), (JSON, json.dumps(IN_JSON).encode(), b"{}")]
)
def test_spans_are_taken_and_the_answer_is_in_the_encoding_of_the_request(
    server: Server, taking: Taking, kind: str, body: bytes, said: bytes, packed: bool
) -> None:
    more = ("Content-Encoding: gzip",) if packed else ()
    status, headers, answered = send(server, post(kind, gzip.compress(body) if packed else body, *more))
    assert (status, headers["content-type"], answered) == (200, kind, said)
    (request,) = taking.requests
    if kind == PROTOBUF:
        assert request.data == REQUEST
    else:
        (one,) = request.scopes[0].spans
        assert one.trace_id.hex() == "5b8efff798038103d269b633813fc60c"
        assert (one.span_id.hex(), one.parent_span_id.hex()) == ("eee19b7ec3c1b174", "eee19b7ec3c1b173")
        assert one.links[0].span_id == one.span_id
        assert one.end_time_unix_nano - one.start_time_unix_nano == 10**9


def test_one_connection_carries_many_requests_also_after_a_refusal(server: Server, taking: Taking) -> None:
    with connect(server) as connection:
        for body, status in ((REQUEST, 200), (b"\xff", 400), (REQUEST, 200), (b"", 200)):
            connection.sendall(post(PROTOBUF, body))
            assert answer(connection)[0] == status
    assert len(taking.requests) == 2


def test_a_body_in_chunks_that_drip_in_is_taken(server: Server, taking: Taking) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(head.encode())
        for i in range(0, len(REQUEST), 50):
            part = REQUEST[i : i + 50]
            connection.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        assert answer(connection)[0] == 200
    assert taking.requests[0].data == REQUEST


@pytest.mark.parametrize(("size", "status"), [(1, 400), (40, 400), (64, 200)])
def test_a_body_in_many_short_chunks_is_refused(server: Server, taking: Taking, size: int, status: int) -> None:
    # An unknown field, 15, of this many bytes with its head.
    chunk = b"%x\r\n" % size + (b"\x7a" + bytes([size - 2]) + b"x" * (size - 2) if size > 1 else b"x") + b"\r\n"
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(server) as connection:
        with suppress(ConnectionError):  # the rest is not read
            connection.sendall(head.encode() + chunk * 5_000 + b"0\r\n\r\n")
        assert answer(connection)[0] == status
    assert server.counts.rejected["bad_request"] == (status == 400)
    assert not taking.arriving


def test_a_client_that_asks_first_whether_it_may_send_is_told_to_go_on(server: Server, taking: Taking) -> None:
    head = post(PROTOBUF, b"", "Expect: 100-continue", size=len(REQUEST))
    with connect(server) as connection:
        connection.sendall(head)
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(REQUEST)
        assert answer(connection)[0] == 200
    assert len(taking.requests) == 1


@pytest.mark.parametrize(
    ("message", "status", "reason"),
    [
        (post("text/plain", REQUEST), 415, "content_type"),
        (post("", REQUEST), 415, "content_type"),
        (post(PROTOBUF, REQUEST, "Content-Encoding: br"), 415, "content_encoding"),
        (post(PROTOBUF, REQUEST[:-1]), 400, "undecodable"),
        (post(PROTOBUF, b"not gzip", "Content-Encoding: gzip"), 400, "undecodable"),
        (post(PROTOBUF, gzip.compress(REQUEST)[:-9], "Content-Encoding: gzip"), 400, "undecodable"),
        (post(JSON, b"[" * 100_000), 400, "undecodable"),
        (post(JSON, b"null"), 400, "undecodable"),
        (post(JSON, b' "resourceSpans"'), 400, "undecodable"),
        (post(JSON, b"[]"), 400, "undecodable"),
        (post(JSON, b'{"x":[' + b"[]," * 1_000_000 + b"[]]}"), 413, "body"),
        (post(JSON, b'{"x":[' + b"1.5," * 3_000_001 + b"1]}"), 413, "body"),
        (post(JSON, b"\xff\xfe"), 400, "undecodable"),
        (post(PROTOBUF, REQUEST, path="/v1/metrics"), 404, "path"),
        (b"GET /v1/traces HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_the_reason_and_counted(
    server: Server, taking: Taking, message: bytes, status: int, reason: str
) -> None:
    found, headers, body = send(server, message)
    assert (found, server.counts.rejected[reason], taking.requests) == (status, 1, [])
    if headers["content-type"] == PROTOBUF:
        text = dict(fields(body))[2]
    else:
        text = json.loads(body)["message"].encode() if headers["content-type"] == JSON else body
    assert isinstance(text, bytes)
    assert len(text) > 10


def test_a_request_that_would_never_find_room_is_too_large(
    server: Server, taking: Taking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "MOST_SPANS", 1)
    assert send(server, post(PROTOBUF, REQUEST))[0] == 413
    assert not taking.requests
    assert (encodings.MOST_BYTES + 100_000 * pipeline._MOST_ADDED) <= pipeline.MOST_HELD


def test_while_there_is_no_room_senders_are_asked_to_come_back(server: Server, taking: Taking) -> None:
    taking.room = False
    status, headers, body = send(server, post(PROTOBUF, REQUEST))
    assert (status, headers["retry-after"], dict(fields(body))[1]) == (503, "1", 14)
    taking.room = True
    assert send(server, post(PROTOBUF, REQUEST))[0] == 200


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "MOST_BYTES", 1_000)
    monkeypatch.setattr(encodings, "MOST_BYTES", 1_000)
    monkeypatch.setattr(receiver, "MOST_ARRIVING", 1_500)
    monkeypatch.setattr(receiver, "_MOST_DISCARDED", 4_000)


@pytest.mark.usefixtures("small")
def test_a_body_that_is_too_long_is_read_to_its_end_so_that_its_sender_learns_why(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(post(PROTOBUF, bytes(3_000)))
        assert answer(connection)[0] == 413
        connection.sendall(post(PROTOBUF, b""))
        assert answer(connection)[0] == 200


@pytest.mark.usefixtures("small")
def test_a_body_without_end_ends_with_its_connection(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(post(PROTOBUF, bytes(5_000), size=1_000_000))
        assert answer(connection)[0] == 413
        assert connection.recv(10) == b""


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("size", [990, 100_000])
def test_what_unpacks_to_too_much_is_refused(server: Server, size: int) -> None:
    body = gzip.compress(bytes(size))
    assert send(server, post(PROTOBUF, body, "Content-Encoding: gzip"))[0] == (400 if size < 1_000 else 413)


@pytest.mark.usefixtures("small")
def test_bodies_that_arrive_at_once_have_room_together_and_give_it_back(server: Server, taking: Taking) -> None:
    with connect(server) as first, connect(server) as second:
        first.sendall(post(PROTOBUF, bytes(900), size=1_000))
        until(lambda: taking.arriving >= 900)
        second.sendall(post(PROTOBUF, bytes(1_000)))
        assert answer(second)[0] == 503
        first.close()
        until(lambda: taking.arriving == 0)
        second.sendall(post(PROTOBUF, b""))
        assert answer(second)[0] == 200


@pytest.mark.usefixtures("small")
def test_a_large_body_that_does_not_come_gives_way_to_a_small_one(
    server: Server, taking: Taking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "MOST_ARRIVING", 1_000)
    with connect(server) as first, connect(server) as second:
        first.sendall(post(PROTOBUF, bytes(980), size=1_000))
        until(lambda: taking.arriving >= 980)
        second.sendall(post(PROTOBUF, REQUEST))
        assert answer(second)[0] == 200
        until(lambda: not taking.arriving)
        first.sendall(bytes(20))
        assert answer(first)[0] == 503
    assert server.counts.rejected["busy"] == 1
    assert [request.data for request in taking.requests] == [REQUEST]


def test_a_small_request_is_answered_while_a_compressed_one_is_processed() -> None:
    begun, end, taken = threading.Event(), threading.Event(), list[str]()

    def take(*_: object) -> None:
        compressed = not begun.is_set()
        begun.set()
        if compressed:
            end.wait(10)
        taken.append("compressed" if compressed else "small")

    server = Server(Address("127.0.0.1", 0), partial(Receiver, {"traces": take}))
    server.start()
    with connect(server) as first:
        first.sendall(post(PROTOBUF, gzip.compress(REQUEST), "Content-Encoding: gzip"))
        assert begun.wait(10)
        assert send(server, post(PROTOBUF, REQUEST))[0] == 200
        end.set()
        assert answer(first)[0] == 200
    assert taken == ["small", "compressed"]
    server.stop()


@pytest.mark.parametrize(
    "slow",
    [
        post(JSON, json.dumps(IN_JSON).encode() + b" " * (1 << 16)),
        post(JSON, gzip.compress(json.dumps(IN_JSON).encode()), "Content-Encoding: gzip"),
        post(PROTOBUF, gzip.compress(os.urandom(1 << 19), 0), "Content-Encoding: gzip"),
    ],
    ids=["json", "compressed json", "compressed"],
)
def test_no_small_request_waits_for_one_that_may_take_seconds(slow: bytes) -> None:
    begun, end = threading.Event(), threading.Event()

    def take(*_: object) -> None:
        if not begun.is_set():
            begun.set()
            end.wait(20)

    server = Server(Address("127.0.0.1", 0), partial(Receiver, {"traces": take}))
    server.start()
    with connect(server) as first:
        first.sendall(slow)
        assert begun.wait(10)
        assert send(server, post(PROTOBUF, gzip.compress(REQUEST), "Content-Encoding: gzip"))[0] == 200
        assert send(server, post(JSON, json.dumps(IN_JSON).encode()))[0] == 200
        end.set()
        assert answer(first)[0] == 200
    server.stop()


def test_the_loop_answers_others_while_a_small_request_waits_for_a_large_one() -> None:
    large, end, taken = threading.Event(), threading.Event(), list[str]()
    locked = threading.Lock()

    def take(*_: object) -> None:
        with locked:
            if not large.is_set():
                large.set()
                end.wait(10)
            taken.append(threading.current_thread().name)

    server = Server(Address("127.0.0.1", 0), partial(Receiver, {"traces": take}, prompt=lambda: not locked.locked()))
    server.start()
    with connect(server) as first, connect(server) as second:
        first.sendall(post(PROTOBUF, gzip.compress(REQUEST), "Content-Encoding: gzip"))
        assert large.wait(10)
        second.sendall(post(PROTOBUF, REQUEST))
        until(lambda: server.counts.active == 2)
        assert send(server, b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n")[0] == 404
        assert taken == []
        end.set()
        assert answer(first)[0] == answer(second)[0] == 200
        second.sendall(post(PROTOBUF, REQUEST))
        assert answer(second)[0] == 200
    assert taken[:2] == ["gpu-profile-receive"] * 2
    assert taken[2] != "gpu-profile-receive"
    server.stop()


def test_a_body_that_does_not_come_ends_the_connection(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(post(PROTOBUF, b"", size=10))
        assert connection.recv(10) == b""
    until(lambda: server.counts.rejected["slow_request"] == 1)


def test_a_client_that_goes_in_the_middle_leaves_nothing(server: Server, taking: Taking) -> None:
    for n in (1, len(REQUEST) - 1):
        with connect(server) as connection:
            connection.sendall(post(PROTOBUF, REQUEST[:n], size=len(REQUEST)))
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(10) == b""
    assert taking.requests == []
    assert send(server, post(PROTOBUF, REQUEST))[0] == 200


def until(met: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(1_000):
        if met():
            return
        waited.wait(0.01)
    raise AssertionError("not met in 10 s")


def outcome(body: bytes, kind: str, encoding: str = "") -> int:
    try:
        decoded(unpacked(body, encoding), kind)
    except Refused as refused:
        return refused.status
    return 200


@given(st.binary(max_size=400), st.sampled_from([PROTOBUF, JSON]), st.sampled_from(["", "gzip"]))
def test_whatever_comes_is_decoded_or_refused(body: bytes, kind: str, encoding: str) -> None:
    assert outcome(body, kind, encoding) in {200, 400, 413}


keys = st.sampled_from(["resourceSpans", "scopeSpans", "spans", "traceId", "kind", "attributes", "value", "x"])
leaves = st.none() | st.booleans() | st.text() | st.integers()


@given(st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(keys, inner)))
def test_whatever_json_comes_is_decoded_or_refused(found: Any) -> None:
    assert outcome(json.dumps(found).encode(), JSON) in {200, 400}


def test_gzip_in_several_members_is_all_of_them() -> None:
    assert unpacked(gzip.compress(b"abc") + gzip.compress(b"") + gzip.compress(b"de"), "gzip") == b"abcde"
    with pytest.raises(Refused, match="not gzip"):
        unpacked(gzip.compress(b"abc") + b"more", "gzip")
    with pytest.raises(Refused, match="members"):
        unpacked(gzip.compress(b"") * 1_000, "gzip")
    with pytest.raises(Refused, match="not gzip"):
        unpacked(zlib.compress(b"abc"), "gzip")


def zstd(content: bytes, *, tells_size: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=tells_size).compress(content)


@pytest.mark.parametrize("tells_size", [True, False])
def test_zstd_is_unpacked(server: Server, taking: Taking, tells_size: bool) -> None:
    packed = zstd(REQUEST, tells_size=tells_size)
    assert send(server, post(PROTOBUF, packed, "Content-Encoding: zstd"))[0] == 200
    assert taking.requests[0].data == REQUEST


#: A frame without content: four bytes for anybody's use.
SKIPPED = struct.pack("<II4s", 0x184D2A5F, 4, b"mine")


def test_zstd_of_several_frames_is_their_contents_one_after_the_other() -> None:
    checked = zstandard.ZstdCompressor(write_checksum=True).compress(b"c" * 200_000)
    parts = [zstd(b"a"), SKIPPED, zstd(b""), zstd(b"b" * 300, tells_size=False), checked, zstd(b"", tells_size=False)]
    assert unpacked(b"".join(parts), "zstd") == b"a" + b"b" * 300 + b"c" * 200_000


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("packed", "status"),
    [
        (zstd(bytes(1_001)), 413),
        (zstd(bytes(1_001), tells_size=False), 400),
        (zstd(bytes(10**8)), 413),
        (zstd(bytes(10**8), tells_size=False), 400),
        (zstd(REQUEST)[:-3], 400),
        (zstd(REQUEST, tells_size=False)[:-3], 400),
        (zstd(b"a") + b"b", 400),
        (zstd(bytes(600)) + zstd(bytes(600)), 413),
        (zstd(bytes(1000)) + zstd(b"a", tells_size=False), 413),
        (zstd(b"a") * 65, 400),
        (zstd(b"a") + SKIPPED[:-1], 400),
        (b"not zstd", 400),
        (b"", 400),
    ],
)
def test_zstd_that_is_too_large_or_damaged_is_refused_in_little_memory(packed: bytes, status: int) -> None:
    tracemalloc.start()
    with pytest.raises(Refused) as refused:
        unpacked(packed, "zstd")
    assert refused.value.status == status
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_without_its_package_zstd_is_another_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(Refused, match="needs the package zstandard here; send gzip") as refused:
        unpacked(zstd(REQUEST), "zstd")
    assert refused.value.status == 415


@given(st.binary(max_size=200), st.integers(0), st.integers(0, 255), st.integers(0, 3))
def test_zstd_with_an_error_in_it_is_refused_or_what_the_library_reads(
    content: bytes, at: int, byte: int, cut: int
) -> None:
    packed = bytearray(zstd(content))
    packed[at % len(packed)] = byte
    damaged = bytes(packed[: len(packed) - cut])
    try:
        found = unpacked(damaged, "zstd")
    except Refused:
        with suppress(zstandard.ZstdError):
            whole = zstandard.ZstdDecompressor().decompress(damaged, max_output_size=1_000, allow_extra_data=False)
            assert whole == b"", "of a frame that says that it is empty, the library reads no block"
    else:
        assert found == zstandard.ZstdDecompressor().decompress(damaged, max_output_size=1_000)


@pytest.mark.parametrize(
    "content",
    [
        b"\x0a\x00" * 1_000_000,  # ResourceSpans
        message(1, b"\x12\x00" * 1_000_000),  # ScopeSpans
        message(1, message(2, b"\x12\x00" * 1_000_000)),  # spans
    ],
)
def test_messages_without_end_are_refused_before_they_are_read(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    # The library's own memory is not Python's to measure: it must not be asked.
    monkeypatch.setattr(trace_service_pb2, "ExportTraceServiceRequest", None)
    tracemalloc.start()
    with pytest.raises(Refused) as refused:
        decoded(content, PROTOBUF)
    assert refused.value.status == 413
    assert tracemalloc.get_traced_memory()[1] < 60 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_what_unpacks_to_hundreds_of_times_its_size_is_refused(encoding: str) -> None:
    content = bytes(10 << 20)
    with pytest.raises(Refused, match="more than 300 times its size") as refused:
        unpacked(gzip.compress(content) if encoding == "gzip" else zstd(content), encoding)
    assert refused.value.status == 413
    usual = b"".join(b"span %d of a service " % n for n in range(100_000))
    assert unpacked(gzip.compress(usual), "gzip") == usual


def test_numbers_without_end_are_refused_at_once() -> None:
    with pytest.raises(Refused, match="more than 10 bytes"):
        decoded(b"\x08" + b"\xff" * (1 << 20), PROTOBUF)

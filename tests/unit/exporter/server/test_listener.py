import asyncio
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers import GET, InlineRendering, Line, Receiving

from gpu_profile_exporter.server import Limits
from gpu_profile_exporter.server.answers import AuthorizedRequest
from gpu_profile_exporter.server.connection import address
from gpu_profile_exporter.server.routes import Response
from gpu_profile_exporter.server.settings import Bucket

PARTS = st.sampled_from(
    [
        GET,
        b"GET / HTTP/1.1\r\n",
        b"Host: x\r\n",
        b"\r\n",
        b"\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n",
        b"hello",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"zz\r\n",
        b"HEAD /-/ready HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"A: " + b"b" * 9000 + b"\r\n",
        b"X-Prometheus-Scrape-Timeout-Seconds: nan\r\n",
        b"\x00\xff\r\n",
    ]
)


@pytest.fixture
def line() -> Iterator[Line]:
    with closing(Line()) as made:
        yield made


@pytest.mark.parametrize("handle", [InlineRendering, Receiving])
@given(parts=st.lists(PARTS | st.binary(min_size=1, max_size=40), max_size=8), stuck=st.booleans())
def test_whatever_bytes_come_a_connection_answers_or_ends_and_never_raises(
    handle: Any, parts: list[bytes], stuck: bool
) -> None:
    with closing(Line(handle=handle)) as line:
        line.wire.stuck = stuck
        for part in parts:
            line.send(part)
        assert line.wire.sent[:9] in (b"", b"HTTP/1.1 ")
        line.loop.advance(line.limits.write_s)
        line.loop.advance(line.limits.idle_s)
        line.loop.advance(line.limits.write_s)
        assert line.gone
        assert not line.counts.connections


@given(st.lists(st.binary(max_size=60), max_size=4), st.booleans(), st.data())
def test_bodies_are_received_whole_however_they_are_cut_and_one_connection_has_many(
    bodies: list[bytes], chunked: bool, data: st.DataObject
) -> None:
    with closing(Line(handle=Receiving)) as line:
        for body in bodies:
            head = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
            sent = f"POST / HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode()
            chunk = f"{len(body):x}\r\n".encode() + body + b"\r\n" if body else b""
            sent += chunk + b"0\r\n\r\n" if chunked else body
            cuts = [0, *sorted(data.draw(st.sets(st.integers(1, len(sent) - 1), max_size=5))), len(sent)]
            for start, end in pairwise(cuts):
                line.send(sent[start:end])
        assert getattr(line.handler, "bodies", None) == bodies


CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_between_chunks_that_arrive_together_other_connections_have_their_turn() -> None:
    taken: list[int] = []

    class Slow(Receiving):
        async def answer(self, request: AuthorizedRequest, ends_s: float) -> Response:
            await request.receive_body(lambda part: taken.append(len(part)))
            return Response(200, b"")

    with closing(Line(handle=Slow)) as line:
        line.connection.data_received(CHUNKED + b"1\r\nx\r\n" * 900)
        seen = [0]
        while not seen[1:] or seen[-1] > seen[-2]:
            assert not line.wire.reading
            line.loop.turn(1)
            seen.append(len(taken))
        assert seen[-1] == 900
        assert max(after - before for before, after in pairwise(seen)) <= 50
        assert line.wire.reading
        line.send(b"0\r\n\r\n")
        assert line.wire.sent.startswith(b"HTTP/1.1 200 ")


def test_a_body_that_drips_in_may_have_any_number_of_parts() -> None:
    with closing(Line(handle=Receiving)) as line:
        line.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1500\r\n\r\n")
        for _ in range(1500):
            line.send(b"x")
        assert line.wire.sent.startswith(b"HTTP/1.1 200 ")


def test_a_connection_whose_body_does_not_come_gives_way_to_a_new_one() -> None:
    with closing(Line(Limits(connections=1), handle=Receiving)) as line:
        line.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nx")
        assert line.connection.busy
        assert line.admission.make_room() is line.connection


def test_a_connection_whose_body_has_come_keeps_its_place() -> None:
    class Waiting(Receiving):
        async def answer(self, request: AuthorizedRequest, ends_s: float) -> Response:
            await super().answer(request, ends_s)
            await asyncio.sleep(1)
            return Response(200, b"")

    with closing(Line(Limits(connections=1), handle=Waiting)) as line:
        line.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nxx")
        assert line.connection.busy
        assert line.admission.make_room() is None


def test_a_client_that_says_nothing_is_dropped(line: Line) -> None:
    line.loop.advance(4.9)
    assert not line.gone
    line.loop.advance(0.2)
    assert line.gone
    assert line.counts.rejected["slow_request"] == 1


def test_a_head_that_comes_in_drips_does_not_move_its_deadline(line: Line) -> None:
    for byte in b"GET /":
        line.send(bytes([byte]))
        line.loop.advance(0.9)
    assert not line.gone
    line.loop.advance(0.9)
    assert line.gone
    assert line.counts.rejected["slow_request"] == 1


def test_the_second_request_of_a_connection_has_the_same_deadline_as_the_first(line: Line) -> None:
    line.send(GET)
    assert line.wire.sent.startswith(b"HTTP/1.1 200 ")
    line.loop.advance(60)
    assert not line.gone
    line.send(GET[:-4])
    line.loop.advance(5.1)
    assert line.gone
    assert line.counts.rejected["slow_request"] == 1


@pytest.mark.parametrize("ahead", [GET[:9], GET, GET * 2])
def test_who_sends_requests_ahead_gets_one_answer_which_says_that_it_is_the_last(line: Line, ahead: bytes) -> None:
    line.send(GET + ahead)
    line.loop.turn(9)
    assert line.wire.sent.count(b"HTTP/1.1 200 ") == 1
    assert b"\r\nConnection: close\r\n" in line.wire.sent
    assert line.gone


def test_a_connection_without_a_next_request_ends_in_peace(line: Line) -> None:
    line.send(GET)
    line.loop.advance(89)
    assert not line.gone
    line.loop.advance(1.1)
    assert line.gone
    assert not any(line.counts.rejected.values())


def test_a_client_that_does_not_read_is_dropped(line: Line) -> None:
    line.wire.stuck = True
    line.send(GET)
    line.loop.advance(9.9)
    assert not line.gone
    line.loop.advance(0.2)
    assert line.gone
    assert line.counts.rejected["slow_reader"] == 1


def test_a_last_answer_that_is_not_read_does_not_keep_its_connection(line: Line) -> None:
    line.wire.stuck = True
    line.send(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert not line.gone
    line.loop.advance(10.1)
    assert line.gone
    assert line.counts.rejected["slow_reader"] == 1


def test_a_scraper_that_keeps_coming_is_never_dropped(line: Line) -> None:
    for _ in range(200):
        line.send(GET)
        line.loop.advance(1)
    assert line.wire.sent.count(b"HTTP/1.1 200 ") == 200
    assert not line.gone
    assert not any(line.counts.rejected.values())


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        (b"hello\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 20_000, 431, "header_size"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 64 + b"\r\n", 431, "header_count"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n", 413, "body"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 413, "body"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 405, "method"),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method"),
    ],
)
def test_what_is_no_fair_request_is_answered_with_one_line_and_closed(
    line: Line, request_: bytes, status: int, reason: str
) -> None:
    line.send(request_)
    head, _, body = line.wire.sent.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert body.endswith(b"\n")
    assert body.count(b"\n") == 1
    assert line.gone
    assert line.counts.rejected[reason] == 1


def test_head_gets_the_length_and_no_body(line: Line) -> None:
    line.send(GET.replace(b"GET", b"HEAD"))
    head, _, body = line.wire.sent.partition(b"\r\n\r\n")
    assert b"Content-Length: 9\r\n" in head
    assert body == b""


def test_a_wish_to_speak_websocket_is_ignored(line: Line) -> None:
    line.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    assert line.wire.sent.startswith(b"HTTP/1.1 200 ")


def test_limits_are_what_they_are_set_to() -> None:
    with closing(Line(Limits(request_s=1, header_bytes=200))) as line:
        line.send(b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 300)
        assert line.wire.sent.startswith(b"HTTP/1.1 431 ")
    with closing(Line(Limits(request_s=1))) as line:
        line.loop.advance(1.1)
        assert line.gone


def test_a_bucket_lets_a_burst_pass_and_then_one_each_interval() -> None:
    now = [0.0]
    bucket = Bucket(0.5, 3, now=lambda: now[0])
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    now[0] = 0.4
    assert not bucket.take()
    now[0] = 0.6
    assert [bucket.take(), bucket.take()] == [True, False]
    now[0] = 1000
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]


def test_addresses_in_certificates_compare_in_their_shortest_form() -> None:
    assert address("0:0:0:0:0:0:0:1\n") == address("::1") == "::1"
    assert address("127.0.0.1") == "127.0.0.1"
    assert address("node.example") == "node.example"

import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request

import pytest
import trustme
from support.push import http_endpoint
from unit.monitor.top.scene import exposition

from gpu_profile.errors import UsageError
from gpu_profile.monitor.top import endpoint
from gpu_profile.monitor.top.endpoint import MOST_BYTES, NoAnswerError, check_url, fetch, shown_url
from gpu_profile.monitor.top.region_rates import ScrapeError
from gpu_profile.testing import FakeClock


class Endpoint(HTTPServer):
    """Answers by path. On `/drip/…` it sends one byte after the other without end, a second of `clock` apart."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.clock = FakeClock()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"

    def fetch(self, path: str) -> str:
        return fetch(self.url(path), clock=self.clock)


class _Answer(BaseHTTPRequestHandler):
    server: Endpoint

    def do_GET(self) -> None:
        # The client closes the connection in the middle of an answer that it refuses.
        with suppress(ConnectionError):
            self.answer(urlsplit(self.path).path)

    def answer(self, path: str) -> None:
        body = exposition(1.0).encode()
        if path == "/metrics":
            self.send(200, body, length=len(body))
        elif path == "/short":
            self.send(200, body[:-7], length=len(body))
        elif path == "/long":
            self.send(200, b"#" * (MOST_BYTES + 1))
        elif path == "/most":
            self.send(200, b"#" * MOST_BYTES)
        elif path == "/moved":
            self.send(302, b"", location=parse_qs(urlsplit(self.path).query)["to"][0])
        elif path.startswith("/drip/"):
            self.wfile.write(
                {"status": b"", "headers": b"HTTP/1.1 200 OK\r\nx: ", "body": b"HTTP/1.1 200 OK\r\n\r\n"}[path[6:]]
            )
            while True:
                self.wfile.write(b"1")
                self.server.clock.advance(1)
        else:
            self.send(404, b"")

    def send(self, status: int, body: bytes, *, length: int | None = None, location: str = "") -> None:
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Endpoint]:
    server = Endpoint()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("localhost:9464", "http://localhost:9464/metrics"),
        ("http://[::1]:9464/", "http://[::1]:9464/metrics"),
        ("https://node/gpu/metrics", "https://node/gpu/metrics"),
        ("node:9464?match=region", "http://node:9464/metrics?match=region"),
        ("https://node/federate?match[]=a&b=c@d", "https://node/federate?match[]=a&b=c@d"),
    ],
)
def test_a_url_may_leave_out_scheme_and_path(url: str, whole: str) -> None:
    assert check_url(url) == whole


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://node/metrics",
        "file:///etc/passwd",
        "node:port",
        "node:0",
        "http://a:b@node",
        "http://[x",
        "http://[x]",
    ],
)
def test_a_wrong_url_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(UsageError, match="is not written as http://HOST:PORT/metrics"):
        check_url(url)


@pytest.mark.parametrize(
    "url", ["http://me:secret@node", "me:secret@node", "http://me:secret@[x", "http://me:a/secret@node"]
)
def test_a_password_is_not_shown(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_url(url)
    assert "secret" not in str(caught.value)
    assert "…@" in str(caught.value)


def test_a_query_is_not_shown() -> None:
    assert shown_url("http://node/metrics?token=secret#x") == "http://node/metrics?…"
    assert shown_url("http://node/metrics") == "http://node/metrics"


def test_an_endpoint_is_read_and_a_failed_one_gives_its_reason(server: Endpoint) -> None:
    assert server.fetch("/metrics?a=b") == exposition(1.0)
    with pytest.raises(ScrapeError, match="HTTP 404"):
        server.fetch("/other")
    with pytest.raises(ScrapeError, match="Connection refused"):
        fetch("http://127.0.0.1:9/metrics")


@pytest.mark.parametrize("part", ["status", "headers", "body"])
def test_an_answer_that_comes_byte_by_byte_has_one_deadline(server: Endpoint, part: str) -> None:
    with pytest.raises(NoAnswerError, match="no answer within 5 s"):
        server.fetch(f"/drip/{part}")


def test_an_answer_that_is_shorter_than_its_header_says_is_an_error(server: Endpoint) -> None:
    with pytest.raises(ScrapeError, match="its answer ended 7 bytes too early"):
        server.fetch("/short")


def test_at_most_4_mib_are_read(server: Endpoint) -> None:
    assert len(server.fetch("/most")) == MOST_BYTES
    with pytest.raises(ScrapeError, match="its answer has more than 4 MiB"):
        server.fetch("/long")


def test_redirects_lead_to_endpoints_only(server: Endpoint) -> None:
    assert server.fetch(f"/moved?to={server.url('/metrics')}") == exposition(1.0)
    assert server.fetch("/moved?to=/metrics") == exposition(1.0)
    for target in ("ftp://127.0.0.1/metrics", "file:///etc/passwd", "http://me:secret@127.0.0.1/", "http://[x"):
        with pytest.raises(ScrapeError, match=r"HTTP 302 |Invalid IPv6 URL") as caught:
            server.fetch(f"/moved?to={target}")
        assert "secret" not in str(caught.value)


def test_a_redirect_from_https_to_http_is_not_followed() -> None:
    request = Request("https://node/metrics?token=secret")
    follow = partial(endpoint._Redirects().redirect_request, request, BytesIO(), 302, "Found", {})
    assert follow("https://other/metrics") is not None
    with pytest.raises(HTTPError, match="redirects to http://node/metrics, which is not followed"):
        follow("http://node/metrics?token=secret")


def test_a_certificate_of_an_unknown_authority_is_named_with_the_remedy() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with http_endpoint(context) as made, pytest.raises(ScrapeError, match=r"not trusted \(.+\): set SSL_CERT_FILE"):
        fetch(made.url)

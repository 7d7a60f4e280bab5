"""OTLP over HTTP against endpoints that misbehave: each is a reason, a line for people, and whether to try again."""

import email.utils
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from support.programs import free_port
from support.push import Answer, HttpEndpoint, batch, http_endpoint

from gpu_profile.errors import UsageError
from gpu_profile_exporter.push.http_client import MOST_ANSWER, HttpClient
from gpu_profile_exporter.push.outcome import MOST_PATIENCE_S, REASONS, Accepted, PushFailed
from gpu_profile_exporter.push.settings import Compression, Endpoint

TIMEOUT_S = 5.0
BATCH = batch(b"the request", 3)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def client(url: str, **settings: str) -> HttpClient:
    made = Endpoint(url=url, **settings)  # type: ignore[arg-type]  # texts are what the tests give
    return HttpClient(made, user_agent="gpu-profile-exporter/1")


def failure(url: str, timeout_s: float = TIMEOUT_S, **settings: str) -> PushFailed:
    with pytest.raises(PushFailed) as raised:
        client(url, **settings).send(BATCH, timeout_s)
    assert raised.value.reason in REASONS
    assert str(raised.value).isprintable()
    return raised.value


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_a_batch_arrives_as_it_was_with_its_headers(endpoint: HttpEndpoint, compression: Compression) -> None:
    headers = (("authorization", "Bearer key"), ("x-tenant", "seven"))
    made = Endpoint(url=f"{endpoint.url}?tenant=7", headers=headers, compression=compression)
    assert HttpClient(made, user_agent="gpu-profile-exporter/1").send(BATCH, TIMEOUT_S) == Accepted()
    ((path, sent, body),) = endpoint.requests
    assert (path, body) == ("/v1/metrics?tenant=7", b"the request")
    assert sent["content-type"] == "application/x-protobuf"
    assert sent["user-agent"] == "gpu-profile-exporter/1"
    assert (sent["authorization"], sent["x-tenant"]) == ("Bearer key", "seven")
    assert sent.get("content-encoding", "none") == compression


def test_what_an_endpoint_rejects_of_a_batch_is_told(endpoint: HttpEndpoint) -> None:
    response = ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = 2
    response.partial_success.error_message = "too old"
    endpoint.answer = Answer(200, response.SerializeToString())
    assert client(endpoint.url).send(BATCH, TIMEOUT_S) == Accepted(2, "too old")


@pytest.mark.parametrize(
    ("status", "reason", "retry"),
    [
        (400, "rejected", False),
        (401, "unauthenticated", False),
        (403, "unauthenticated", False),
        (404, "rejected", False),
        (413, "rejected", False),
        (429, "throttled", True),
        (500, "unavailable", False),
        (502, "unavailable", True),
        (503, "unavailable", True),
        (504, "unavailable", True),
    ],
)
def test_a_status_is_tried_again_if_the_specification_says_so(
    endpoint: HttpEndpoint, status: int, reason: str, retry: bool
) -> None:
    endpoint.answer = Answer(status, b"because\r\nI say so", {"Content-Type": "text/plain"})
    failed = failure(endpoint.url)
    assert (failed.reason, failed.retry, failed.after_s) == (reason, retry, None)
    assert f"(status {status}): because I say so" in str(failed)
    assert failed.content is (status in (400, 413, 500))
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    ("header", "after_s"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("86400", MOST_PATIENCE_S),
        ("9" * 400, None),
        ("soon", None),
        ("-1", None),
        ("¹", None),
        ("", None),
    ],
)
def test_a_server_that_says_how_long_is_understood(endpoint: HttpEndpoint, header: str, after_s: float | None) -> None:
    endpoint.answer = Answer(503, b"", {"Retry-After": header})
    failed = failure(endpoint.url)
    assert (failed.retry, failed.after_s) == (True, after_s)
    assert failed.reason == ("throttled" if after_s is not None else "unavailable")


def test_a_date_to_come_back_at_is_understood_too(endpoint: HttpEndpoint) -> None:
    endpoint.answer = Answer(429, b"", {"Retry-After": email.utils.formatdate(time.time() + 100, usegmt=True)})
    after_s = failure(endpoint.url).after_s
    assert after_s is not None
    assert 80 < after_s <= 100


def test_a_redirect_is_told_and_not_followed(endpoint: HttpEndpoint) -> None:
    with http_endpoint() as elsewhere:
        endpoint.answer = Answer(307, b"", {"Location": elsewhere.url})
        failed = failure(endpoint.url)
        assert (failed.reason, failed.retry) == ("redirected", False)
        assert elsewhere.url in str(failed)
        assert elsewhere.requests == []


@pytest.mark.parametrize(
    "body", [b"<html>welcome</html>", b"OK", b"\xff" * 40, b"\n\x05abc", b"\x0a\x00" * MOST_ANSWER]
)
def test_success_that_is_not_otlp_is_no_success_and_is_not_sent_twice(endpoint: HttpEndpoint, body: bytes) -> None:
    endpoint.answer = Answer(200, body, {"Content-Type": "text/html"})
    failed = failure(endpoint.url)
    assert (failed.reason, failed.retry) == ("garbage", False)
    assert len(str(failed)) < 300


def test_success_in_json_is_one(endpoint: HttpEndpoint) -> None:
    endpoint.answer = Answer(200, b'{"partialSuccess":{}}', {"Content-Type": "application/json"})
    assert client(endpoint.url).send(BATCH, TIMEOUT_S) == Accepted()


def test_an_endless_answer_is_read_to_its_limit_only(endpoint: HttpEndpoint) -> None:
    sent = [0]

    def pour(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(2000):
                sent[0] += handler.wfile.write(b"x" * 65536)
        except OSError:
            return

    endpoint.answer = pour
    assert failure(endpoint.url).reason == "garbage"
    assert sent[0] < 2000 * 65536


def raw(*parts: bytes, pause_s: float = 0.0) -> Callable[[BaseHTTPRequestHandler], None]:
    """An answer that is written as it is, piece by piece."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        try:
            for part in parts:
                handler.wfile.write(part)
                time.sleep(pause_s)
        except OSError:
            return

    return answer


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ((), "closed"),
        ((b"SSH-2.0-OpenSSH_9.2\r\n",), "garbage"),
        ((b"HTTP/1.1 two hundred\r\n\r\n",), "garbage"),
        ((b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 500,), "garbage"),
    ],
)
def test_an_answer_that_breaks_off_or_is_no_http_is_tried_again(
    endpoint: HttpEndpoint, said: tuple[bytes, ...], reason: str
) -> None:
    endpoint.answer = raw(*said)
    failed = failure(endpoint.url)
    assert (failed.reason, failed.retry) == (reason, True)


@settings(max_examples=60)
@given(
    st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 429 No\r\nRetry-After: ", b"HTTP/1.1 "]),
    st.binary(max_size=80),
)
def test_whatever_an_endpoint_answers_is_taken_or_a_failure(start: bytes, rest: bytes) -> None:
    with http_endpoint() as made:
        made.answer = raw(start + rest)
        reason = "closed"
        try:
            client(made.url).send(BATCH, TIMEOUT_S)
        except PushFailed as failed:
            reason = failed.reason
        assert reason in REASONS


def test_success_whose_body_breaks_off_is_success(endpoint: HttpEndpoint) -> None:
    endpoint.answer = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nab")
    assert client(endpoint.url).send(BATCH, TIMEOUT_S) == Accepted()


@pytest.mark.parametrize("dripping", [b"", b"HTTP/1.1 200 OK\r\n"])
def test_an_endpoint_that_answers_byte_by_byte_is_given_up_in_time(endpoint: HttpEndpoint, dripping: bytes) -> None:
    done = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        try:
            handler.wfile.write(dripping)
            while not done.wait(0.05):
                handler.wfile.write(b"x")
        except OSError:
            return

    endpoint.answer = drip
    try:
        failed = failure(endpoint.url, timeout_s=0.4)
    finally:
        done.set()
    assert (failed.reason, failed.retry) == ("timeout", True)


def test_interim_answers_without_end_are_given_up_long_before_the_time_is_over(endpoint: HttpEndpoint) -> None:
    sent = 0

    def stall(handler: BaseHTTPRequestHandler) -> None:
        nonlocal sent
        handler.close_connection = True
        try:
            while sent < 1 << 24:
                sent += handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
        except OSError:
            return

    endpoint.answer = stall
    failed = failure(endpoint.url, timeout_s=60)
    assert (failed.reason, failed.retry) == ("garbage", True)
    assert sent < 1 << 24


def test_where_nothing_listens_is_tried_again() -> None:
    failed = failure(f"http://127.0.0.1:{free_port()}/v1/metrics")
    assert (failed.reason, failed.retry) == ("unreachable", True)


@pytest.mark.parametrize("host", ["collector.invalid", f"{'a' * 70}.example", ".example"])
def test_a_name_that_does_not_exist_is_tried_again(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    if len(host) < 60 and host[0] != ".":
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
    failed = failure(f"http://{host}:4318/v1/metrics")
    assert (failed.reason, failed.retry) == ("dns", True)


# ---------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@contextmanager
def secure(authority: trustme.CA, *, name: str = "127.0.0.1", mutual: bool = False) -> Iterator[HttpEndpoint]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
    with http_endpoint(context) as made:
        yield made


def pem(path: Path, *parts: trustme.Blob) -> str:
    path.write_bytes(b"".join(part.bytes() for part in parts))
    return str(path)


def test_a_certificate_of_an_authority_that_is_trusted_is_taken(authority: trustme.CA, tmp_path: Path) -> None:
    with secure(authority) as made:
        ca_file = pem(tmp_path / "ca.pem", authority.cert_pem)
        assert client(made.url, ca_file=ca_file).send(BATCH, TIMEOUT_S) == Accepted()
        assert made.bodies == [b"the request"]


def test_a_certificate_of_nobody_or_for_another_name_is_not(authority: trustme.CA, tmp_path: Path) -> None:
    ca_file = pem(tmp_path / "ca.pem", authority.cert_pem)
    with secure(authority, name="elsewhere.example") as made:
        failed = failure(made.url, ca_file=ca_file)
        assert (failed.reason, failed.retry) == ("tls", True)
    with secure(trustme.CA()) as made:
        failed = failure(made.url, ca_file=ca_file)
        assert (failed.reason, failed.retry) == ("tls", True)
        assert "not trusted" in str(failed)
        assert made.requests == []


def test_an_authority_that_is_renewed_on_disk_is_found_by_the_next_try(authority: trustme.CA, tmp_path: Path) -> None:
    ca_file = pem(tmp_path / "ca.pem", trustme.CA().cert_pem)
    with secure(authority) as made:
        sender = client(made.url, ca_file=ca_file)
        with pytest.raises(PushFailed):
            sender.send(BATCH, TIMEOUT_S)
        pem(tmp_path / "ca.pem", authority.cert_pem)
        assert sender.send(BATCH, TIMEOUT_S) == Accepted()


def test_a_server_that_wants_to_know_the_client_is_shown_its_certificate(authority: trustme.CA, tmp_path: Path) -> None:
    mine = authority.issue_cert("node-1")
    files = {
        "ca_file": pem(tmp_path / "ca.pem", authority.cert_pem),
        "client_cert": pem(tmp_path / "cert.pem", *mine.cert_chain_pems),
        "client_key": pem(tmp_path / "key.pem", mine.private_key_pem),
    }
    with secure(authority, mutual=True) as made:
        assert client(made.url, **files).send(BATCH, TIMEOUT_S) == Accepted()
        failed = failure(made.url, ca_file=files["ca_file"])
        assert failed.reason in ("tls", "closed")
        assert failed.retry


def test_a_server_that_does_not_speak_tls_is_told_apart(endpoint: HttpEndpoint) -> None:
    failed = failure(endpoint.url.replace("http://", "https://"))
    assert (failed.reason, failed.retry) == ("tls", True)


@pytest.mark.parametrize(
    "content", [None, b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"]
)
def test_a_file_that_is_no_certificate_is_the_users_slip(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=str(path)):
        client("https://127.0.0.1:1/v1/metrics", ca_file=str(path))


# ---------------------------------------------------------------------- proxies


def test_the_proxy_of_the_environment_is_used_unless_the_host_is_exempt(
    endpoint: HttpEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", endpoint.url)
    assert client("http://collector.example:4318/v1/metrics").send(BATCH, TIMEOUT_S) == Accepted()
    assert endpoint.requests[0][0] == "http://collector.example:4318/v1/metrics"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http_endpoint() as near:
        assert client(near.url).send(BATCH, TIMEOUT_S) == Accepted()
        assert len(near.requests) == 1
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(UsageError, match="HTTP_PROXY"):
        client("http://collector.example:4318/v1/metrics")


def test_tls_goes_through_a_proxy_in_a_tunnel(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca_file = pem(tmp_path / "ca.pem", authority.cert_pem)
    with secure(authority) as made, socket.create_server(("127.0.0.1", 0)) as proxy:
        port = int(made.url.split(":")[2].split("/")[0])
        asked: list[bytes] = []
        thread = threading.Thread(target=_tunnel, args=(proxy, port, asked))
        thread.start()
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        assert client(made.url, ca_file=ca_file).send(BATCH, TIMEOUT_S) == Accepted()
        thread.join()
        assert asked[0].startswith(f"CONNECT 127.0.0.1:{port} ".encode())
        assert made.bodies == [b"the request"]


def _tunnel(proxy: socket.socket, port: int, asked: list[bytes]) -> None:
    near, _ = proxy.accept()
    with near, socket.create_connection(("127.0.0.1", port)) as far:
        asked.append(near.recv(4096))
        near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")

        def copy(source: socket.socket, target: socket.socket) -> None:
            try:
                while data := source.recv(4096):
                    target.sendall(data)
            except OSError:
                return

        back = threading.Thread(target=copy, args=(far, near))
        back.start()
        copy(near, far)
        far.close()
        back.join(5)

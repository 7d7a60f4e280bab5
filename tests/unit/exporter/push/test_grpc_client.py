"""OTLP over gRPC against a real server that misbehaves."""

import builtins
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from support.programs import free_port
from support.push import batch

from gpu_profile.errors import UsageError
from gpu_profile_exporter.push.grpc_client import GrpcClient
from gpu_profile_exporter.push.outcome import REASONS, Accepted, PushFailed, retry_delay_s
from gpu_profile_exporter.push.settings import Compression, Endpoint

TIMEOUT_S = 5.0
BATCH = batch(b"the request", 3)
#: google.rpc.Status with a RetryInfo of 7.5 s, as the Collector sends it.
RETRY_INFO = b"\x08\x0e\x12\x04busy\x1a\x30\n(type.googleapis.com/google.rpc.RetryInfo\x12\x04\n\x02\x08\x07"


@dataclass
class Server:
    url: str
    answer: Callable[[bytes, grpc.ServicerContext], bytes] = lambda *_: b""
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def serving(credentials: Any = None) -> Iterator[Server]:
    made = Server("")

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, call: Any) -> Any:
            def handle(request: bytes, context: grpc.ServicerContext) -> bytes:
                made.requests.append((call.method, dict(call.invocation_metadata), request))
                return made.answer(request, context)

            return grpc.unary_unary_rpc_method_handler(handle)

    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Handler(),))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    made.url = f"{'http' if credentials is None else 'https'}://127.0.0.1:{port}"
    server.start()
    try:
        yield made
    finally:
        server.stop(None).wait()


@contextmanager
def client(url: str, signal: str = "metrics", **settings: Any) -> Iterator[GrpcClient]:
    made = GrpcClient(Endpoint(url=url, protocol="grpc", **settings), signal, user_agent="gpu-profile-exporter/1")
    try:
        yield made
    finally:
        made.close()


def failure(url: str, timeout_s: float = TIMEOUT_S, **settings: Any) -> PushFailed:
    with client(url, **settings) as made, pytest.raises(PushFailed) as raised:
        made.send(BATCH, timeout_s)
    assert raised.value.reason in REASONS
    assert str(raised.value).isprintable()
    return raised.value


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


@pytest.mark.parametrize("compression", ["gzip", "none"])
@pytest.mark.parametrize(
    ("signal", "method"),
    [
        ("metrics", "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"),
        ("logs", "/opentelemetry.proto.collector.logs.v1.LogsService/Export"),
    ],
)
def test_a_batch_arrives_as_it_was_with_its_headers(
    server: Server, compression: Compression, signal: str, method: str
) -> None:
    with client(server.url, signal, compression=compression, headers=(("x-tenant", "seven"),)) as made:
        assert made.send(BATCH, TIMEOUT_S) == Accepted()
        assert made.send(BATCH, TIMEOUT_S) == Accepted()
    assert [(called, body) for called, _, body in server.requests] == [(method, b"the request")] * 2
    assert server.requests[0][1]["x-tenant"] == "seven"
    assert server.requests[0][1]["user-agent"].startswith("gpu-profile-exporter/1")


def test_what_a_server_rejects_of_a_batch_is_told(server: Server) -> None:
    response = ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = 2
    response.partial_success.error_message = "too old"
    server.answer = lambda *_: response.SerializeToString()
    with client(server.url) as made:
        assert made.send(BATCH, TIMEOUT_S) == Accepted(2, "too old")


@pytest.mark.parametrize(
    ("code", "reason", "retry"),
    [
        ("UNAUTHENTICATED", "unauthenticated", False),
        ("PERMISSION_DENIED", "unauthenticated", False),
        ("INVALID_ARGUMENT", "rejected", False),
        ("UNIMPLEMENTED", "rejected", False),
        ("INTERNAL", "unavailable", False),
        ("RESOURCE_EXHAUSTED", "throttled", False),
        ("UNAVAILABLE", "unavailable", True),
        ("ABORTED", "unavailable", True),
        ("CANCELLED", "unavailable", True),
        ("DATA_LOSS", "unavailable", True),
    ],
)
def test_a_code_is_tried_again_if_the_specification_says_so(
    server: Server, code: str, reason: str, retry: bool
) -> None:
    server.answer = lambda _, context: context.abort(grpc.StatusCode[code], "because\nI say so")
    failed = failure(server.url)
    assert (failed.reason, failed.retry, failed.after_s) == (reason, retry, None)
    assert failed.content is not (retry or code in ("UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED"))
    assert "because I say so" in str(failed)
    assert len(server.requests) == 1


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "UNAVAILABLE"])
def test_a_server_that_says_how_long_is_understood(server: Server, code: str) -> None:
    def busy(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("grpc-status-details-bin", RETRY_INFO),))
        context.abort(grpc.StatusCode[code], "busy")
        return b""

    server.answer = busy
    failed = failure(server.url)
    assert (failed.reason, failed.retry, failed.after_s) == ("throttled", True, 7.0)


@pytest.mark.parametrize("details", [b"", b"\xff", RETRY_INFO[:-1], RETRY_INFO[:20], b"\x1a\x00"])
def test_details_that_are_garbage_say_nothing(details: bytes) -> None:
    assert retry_delay_s(details) is None


def test_an_answer_that_is_not_otlp_is_no_success_and_is_not_sent_twice(server: Server) -> None:
    server.answer = lambda *_: b"\xff" * 20
    failed = failure(server.url)
    assert (failed.reason, failed.retry) == ("garbage", False)


def test_a_huge_answer_is_not_taken(server: Server) -> None:
    server.answer = lambda *_: b"\x0a\x00" * 1_000_000
    assert not failure(server.url).retry


def test_a_server_that_does_not_answer_is_given_up_in_time(server: Server) -> None:
    server.answer = lambda *_: time.sleep(1.0) or b""  # type: ignore[func-returns-value]
    failed = failure(server.url, timeout_s=0.3)
    assert (failed.reason, failed.retry) == ("timeout", True)


def test_where_nothing_listens_is_tried_again_and_found_when_it_is_back() -> None:
    failed = failure(f"http://127.0.0.1:{free_port()}")
    assert (failed.reason, failed.retry) == ("unreachable", True)


def test_a_name_that_does_not_exist_is_tried_again() -> None:
    failed = failure("http://collector.invalid:4317", timeout_s=3.0)
    assert failed.reason in ("dns", "timeout")  # a resolver without a network may not answer at all
    assert failed.retry


def test_a_server_that_speaks_no_grpc_is_tried_again() -> None:
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        failed = failure(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=2.0)
        thread.join()
    assert failed.retry


def test_tls_takes_who_is_trusted_and_nobody_else(tmp_path: Path) -> None:
    authority, mine = trustme.CA(), trustme.CA().issue_cert("node-1")
    cert = authority.issue_cert("127.0.0.1")
    pair = (cert.private_key_pem.bytes(), cert.cert_chain_pems[0].bytes())
    trusted, other = tmp_path / "ca.pem", tmp_path / "other.pem"
    authority.cert_pem.write_to_path(trusted)
    trustme.CA().cert_pem.write_to_path(other)
    with serving(grpc.ssl_server_credentials([pair])) as made:
        with client(made.url, ca_file=str(trusted)) as one:
            assert one.send(BATCH, TIMEOUT_S) == Accepted()
        failed = failure(made.url, ca_file=str(other), timeout_s=3.0)
        assert (failed.reason, failed.retry) == ("tls", True)
        assert len(made.requests) == 1
    assert mine is not None


def test_a_server_that_wants_to_know_the_client_is_shown_its_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    cert, mine = authority.issue_cert("127.0.0.1"), authority.issue_cert("node-1")
    pair = (cert.private_key_pem.bytes(), cert.cert_chain_pems[0].bytes())
    files = {"ca_file": tmp_path / "ca.pem", "client_cert": tmp_path / "cert.pem", "client_key": tmp_path / "key.pem"}
    authority.cert_pem.write_to_path(files["ca_file"])
    mine.cert_chain_pems[0].write_to_path(files["client_cert"])
    mine.private_key_pem.write_to_path(files["client_key"])
    credentials = grpc.ssl_server_credentials([pair], authority.cert_pem.bytes(), require_client_auth=True)
    with serving(credentials) as made:
        with client(made.url, **{name: str(path) for name, path in files.items()}) as one:
            assert one.send(BATCH, TIMEOUT_S) == Accepted()
        assert failure(made.url, ca_file=str(files["ca_file"]), timeout_s=3.0).retry


@pytest.mark.parametrize("content", [None, b"nonsense"])
def test_a_file_that_is_no_certificate_is_the_users_slip(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=str(path)), client("https://127.0.0.1:1", ca_file=str(path)):
        pass


def test_without_grpcio_the_user_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name == "grpc":
            raise ImportError(name)
        return genuine(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"gpu-profile\[grpc\]"), client("http://127.0.0.1:1"):
        pass

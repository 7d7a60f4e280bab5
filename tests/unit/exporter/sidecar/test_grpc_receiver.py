"""OTLP over gRPC: what is taken and what is refused, as real clients meet it."""

import resource
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import grpc
import pytest
import trustme
from support.otlp_traces import request_of, span
from support.programs import until

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config import Address
from gpu_profile_exporter.server.connection import Ends
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.limits import Limits
from gpu_profile_exporter.sidecar import grpc_receiver
from gpu_profile_exporter.sidecar.encodings import MOST_BYTES
from gpu_profile_exporter.sidecar.grpc_receiver import GrpcReceiver, _ends
from gpu_profile_exporter.sidecar.peers import _inode
from gpu_profile_exporter.sidecar.receiver import spans_to
from gpu_profile_exporter.sidecar.trace_request import TraceRequest

REQUEST = request_of([span("a", 1, 2), span("b", 3, 4)])
METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
HERE = Address("127.0.0.1", 0)


class World:
    def __init__(self, web_config_file: Path | None = None) -> None:
        self.counts, self.room, self.inode = Counts(), True, 0
        self.requests: list[TraceRequest] = []
        self.receiver = GrpcReceiver(
            HERE, {"traces": spans_to(self.take)}, self.counts, web_config_file=web_config_file
        )
        self.receiver.start()

    def take(self, request: TraceRequest) -> bool:
        # While the connection is open.
        self.inode = 0 if request.ends is None else _inode(request.ends)
        if self.room:
            self.requests.append(request)
        return self.room

    def send(self, body: bytes, channel: grpc.Channel | None = None, *, gzip: bool = False) -> str:
        compression = grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression
        with channel or grpc.insecure_channel(str(self.receiver.address)) as opened:
            try:
                answer = opened.unary_unary(METHOD)(body, timeout=10, compression=compression)
            except grpc.RpcError as error:
                code: str = error.code().name
                return code
        return f"OK {answer!r}"


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.receiver.stop()


@pytest.mark.parametrize("gzip", [False, True])
def test_spans_are_taken(world: World, gzip: bool) -> None:
    assert world.send(REQUEST, gzip=gzip) == "OK b''"
    assert [one.data for one in world.requests] == [REQUEST]
    assert world.counts.requests[METHOD, 200] == 1


def test_a_request_has_the_ends_of_its_connection(world: World) -> None:
    assert world.send(REQUEST) == "OK b''"
    ends = world.requests[0].ends
    assert ends is not None
    assert (ends.host, ends.local_host, ends.local_port) == ("127.0.0.1", "127.0.0.1", world.receiver.address.port)
    assert world.inode > 0


@pytest.mark.parametrize(
    ("peer", "address", "ends"),
    [
        ("ipv4:127.0.0.1:5000", Address().host, Ends("127.0.0.1", 5000, "127.0.0.1", 9)),
        ("ipv4:127.0.0.1:5000", "localhost", Ends("127.0.0.1", 5000, "127.0.0.1", 9)),
        ("ipv4:127.0.0.1:5000", "127.0.0.5", Ends("127.0.0.1", 5000, "127.0.0.5", 9)),
        ("ipv6:%5B::1%5D:5000", "::", Ends("::1", 5000, "::1", 9)),
        ("ipv6:[fe80::1%25eth0]:1", "::1", Ends("fe80::1%eth0", 1, "::1", 9)),
        ("unix:/run/x", "::", None),
        ("unix:", "::", None),
        ("", "::", None),
        ("ipv4:1.2.3.4:²", "::", None),
    ],
)
def test_the_ends_are_read_from_grpcs_name_of_its_peer(peer: str, address: str, ends: Ends | None) -> None:
    assert _ends(peer, Address(address, 9)) == ends


def test_what_cannot_be_taken_has_the_code_that_otlp_gives_it(world: World) -> None:
    assert world.send(b"\xff") == "INVALID_ARGUMENT"
    world.room = False
    assert world.send(REQUEST) == "UNAVAILABLE"
    assert world.send(bytes(MOST_BYTES + 1)) == "RESOURCE_EXHAUSTED"
    assert world.send(bytes(MOST_BYTES + 1), gzip=True) == "RESOURCE_EXHAUSTED"
    world.room = True
    assert world.send(REQUEST) == "OK b''"
    assert (world.counts.rejected["undecodable"], world.counts.rejected["full"]) == (1, 1)
    with grpc.insecure_channel(str(world.receiver.address)) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary(METHOD.replace("Trace", "Metrics").replace("trace", "metrics"))(b"", timeout=10)
    assert failed.value.code().name == "UNIMPLEMENTED"


def test_forty_clients_at_once_are_all_served(world: World) -> None:
    with ThreadPoolExecutor(40) as pool:
        said = list(pool.map(world.send, [REQUEST] * 40))
    assert set(said) == {"OK b''"}
    assert world.counts.requests[METHOD, 200] == len(world.requests) == 40


class Stalled:
    """Requests whose message never comes, over one connection."""

    def __init__(self, world: World, n: int) -> None:
        self._ended = threading.Event()
        self._channel = grpc.insecure_channel(str(world.receiver.address))
        self.calls = [self._channel.stream_unary(METHOD).future(self._nothing()) for _ in range(n)]

    def _nothing(self) -> Iterator[bytes]:
        self._ended.wait(60)
        yield from ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._channel.close()


def test_requests_that_never_arrive_delay_no_other_and_the_oldest_give_way(world: World) -> None:
    most = grpc_receiver._MOST_PARTIAL
    with Stalled(world, most + 4) as stalled:
        until(lambda: world.counts.rejected["evicted"] >= 4, "four are refused")
        for _ in range(3):
            assert world.send(REQUEST) == "OK b''"
        assert world.counts.rejected["evicted"] == 4
        codes = [call.code().name for call in stalled.calls if call.done()]
        assert set(codes) == {"UNAVAILABLE"}
        assert world.counts.requests[METHOD, 503] == 4
        assert len(world.receiver._partial) == most
    until(lambda: not world.receiver._partial, "the others end with their connection")


def test_many_requests_that_begin_at_once_have_a_moment_to_arrive(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, 40 complete requests began before the first of them was read, and some were refused."""
    monkeypatch.setattr(grpc_receiver, "_SOON_S", 60.0)
    most = grpc_receiver._MOST_AT_FIRST
    # A connection has at most `_MOST_AT_ONCE`.
    apart = grpc.insecure_channel(str(world.receiver.address), options=[("grpc.use_local_subchannel_pool", 1)])
    with Stalled(world, most):
        until(lambda: len(world.receiver._partial) == most, "all have begun")
        assert not world.counts.rejected["evicted"]
        assert world.send(REQUEST, apart) == "OK b''"
        until(lambda: world.counts.rejected["evicted"], "the oldest is refused")
        assert sum(world.counts.rejected.values()) == 1


def test_a_request_that_does_not_arrive_in_time_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_receiver, "_LIMITS", Limits(body_s=0.05))
    with Stalled(world, 1) as stalled, pytest.raises(grpc.RpcError):
        stalled.calls[0].result(30)
    assert stalled.calls[0].code().name == "UNAVAILABLE"
    assert world.counts.rejected["slow_request"] == 1


def test_a_request_without_a_message_is_invalid(world: World) -> None:
    with grpc.insecure_channel(str(world.receiver.address)) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.stream_unary(METHOD)(iter(()), timeout=10)
    assert failed.value.code().name == "INVALID_ARGUMENT"


def test_a_defect_with_one_request_is_logged_in_a_line_and_ends_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched, caplog.at_level("INFO"):
        patched.setattr(world, "requests", None)
        assert world.send(REQUEST) == "INTERNAL"
    assert [(record.name, record.exc_info) for record in caplog.records] == [("gpu_profile_exporter", None)]
    assert world.send(REQUEST) == "OK b''"
    assert world.counts.requests[METHOD, 500] == 1


def test_connections_leave_half_of_the_descriptors_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
    world = World()
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection((HERE.host, world.receiver.address.port), timeout=10))
            for _ in range(6)
        ]
        # A server begins with its settings.
        assert sum(bool(connection.recv(9)) for connection in opened if not _refused(connection)) == 4
    world.receiver.stop()


def _refused(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(("limit", "most"), [(1024, 512), (1 << 40, 1 << 19), (resource.RLIM_INFINITY, 1 << 20)])
def test_the_limit_of_descriptors_may_be_any_number(limit: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert grpc_receiver._most_connections() == most


def test_a_port_that_is_taken_is_the_users_error(world: World) -> None:
    with pytest.raises(UsageError, match=r"--receive-grpc: cannot listen on 127\.0\.0\.1:\d+"):
        GrpcReceiver(world.receiver.address, {}, Counts(), web_config_file=None)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def web_config(folder: Path, authority: trustme.CA, more: str = "") -> Path:
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    text = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"
    (folder / "web.yml").write_text(text + more)
    return folder / "web.yml"


def test_with_tls_a_client_needs_the_certificate_that_is_asked_for(tmp_path: Path, authority: trustme.CA) -> None:
    asked = "  client_ca_file: ca.pem\n  client_auth_type: RequireAndVerifyClientCert\n"
    world = World(web_config(tmp_path, authority, asked))
    mine = authority.issue_cert("client")
    ours = (authority.cert_pem.bytes(), mine.private_key_pem.bytes(), mine.cert_chain_pems[0].bytes())
    target = f"localhost:{world.receiver.address.port}"
    assert world.send(REQUEST, grpc.secure_channel(target, grpc.ssl_channel_credentials(*ours))) == "OK b''"
    assert world.send(REQUEST, grpc.secure_channel(target, grpc.ssl_channel_credentials(ours[0]))) == "UNAVAILABLE"
    assert world.send(REQUEST) == "UNAVAILABLE"
    world.receiver.stop()
    assert len(world.requests) == 1


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("basic_auth_users:\n  a: $2y$10$abcdefghijklmnopqrstuuB8mXkR5NxQ7jXcVbN1mQwErTyUiOpAs\n", "has users"),
        ("  client_ca_file: ca.pem\n  client_auth_type: VerifyClientCertIfGiven\n", "certificate checks"),
        ("rate_limit:\n  interval: 1s\n  burst: 2\n", "or a rate limit"),
    ],
)
def test_what_grpc_cannot_follow_is_refused(tmp_path: Path, authority: trustme.CA, more: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        World(web_config(tmp_path, authority, more))

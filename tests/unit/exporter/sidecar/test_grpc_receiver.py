"""OTLP over gRPC: what is taken and what is refused, as real clients meet it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import trustme
from support.otlp_traces import request_of, span

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config import Address
from gpu_profile_exporter.server.connection import Ends
from gpu_profile_exporter.server.counts import Counts
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

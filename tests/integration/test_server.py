import base64
import errno
import gzip
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import trustme
from support.programs import exporter, printed
from support.servers import GET, Gate, answer, ask, closed, connect, echo, rejected, serving, until_counted, value

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config import Address
from gpu_profile_exporter.config.address import address
from gpu_profile_exporter.server import Limits, Rendering, Server
from gpu_profile_exporter.server.routes import Request, Response, Routes

# "secret"
ALICE = "$2b$04$hYSuf45icwxDc2Jg/62M2O6cL2mn6SHs3.8WmUC/0z5Zo0U9GDdv2"
#: The same at a cost at which a check takes about a quarter of a second.
SLOW_ALICE = "$2b$12$GEv9M9851ti.WHwq9uimg.dz/Mx6EgIpwrf1KiWRbTfQw3yNUbh9G"
AUTHORITY = trustme.CA()
STRANGER = trustme.CA()
SERVER = AUTHORITY.issue_cert("localhost", "127.0.0.1")
CLIENT = AUTHORITY.issue_cert("prometheus.example", "10.0.0.7")
TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
MUTUAL = TLS + "  client_ca_file: ca.crt\n  client_auth_type: RequireAndVerifyClientCert\n"
#: On a busy machine a client may be kept from sending for some tenths of a second.
QUICK = Limits(request_s=1.5, write_s=0.3, idle_s=1.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    install(tmp_path, SERVER)
    AUTHORITY.cert_pem.write_to_path(tmp_path / "ca.crt")
    return tmp_path


def install(folder: Path, leaf: trustme.LeafCert) -> None:
    leaf.cert_chain_pems[0].write_to_path(folder / "server.crt")
    leaf.private_key_pem.write_to_path(folder / "server.key")


def config(folder: Path, text: str) -> Path:
    (folder / "web.yml").write_text(text)
    return folder / "web.yml"


def trusting(client: trustme.LeafCert | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context()
    AUTHORITY.configure_trust(made)
    if client is not None:
        client.configure_cert(made)
    return made


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


# ------------------------------------------------------------------ answering


def test_one_connection_serves_many_requests() -> None:
    with serving() as server, connect(server) as connection:
        for path in ("/metrics", "/-/ready", "/a%20b?c=d"):
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            status, headers, body = answer(connection)
            assert (status, headers["server"]) == (200, "gpu-profile-exporter")
            assert {"date", "content-type", "x-content-type-options"} <= headers.keys()
            assert body == path.partition("?")[0].replace("%20", " ").encode() + b"\n"
        assert value(server, "gpu_profile.http.requests") == 3
        assert value(server, "gpu_profile.http.requests", http__route="other") == 1
        assert value(server, "gpu_profile.http.connections") == 1


def test_it_serves_ipv6() -> None:
    with serving(host="::1") as server:
        assert server.url == f"http://[::1]:{server.address.port}"
        assert ask(server)[0] == 200


def test_a_client_that_sends_no_more_still_gets_its_answer() -> None:
    gate = Gate()
    with serving(gate) as server, connect(server) as connection:
        connection.sendall(GET)
        connection.shutdown(socket.SHUT_WR)
        assert gate.entered.acquire(timeout=5)
        gate.opened.set()
        assert answer(connection)[0] == 200
        assert closed(connection)


def test_what_fails_is_an_answer_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: Request) -> Response:
        raise RuntimeError(f"no {request.path}")

    with serving(fail) as server:
        assert ask(server)[0::2] == (500, b"internal error; see the exporter's log\n")
        assert ask(server)[0] == 500
    assert [record.message for record in caplog.records] == ["GET /metrics failed: RuntimeError: no /metrics"] * 2


def test_those_who_ask_at_the_same_time_share_one_rendering_that_began_after_they_asked() -> None:
    gate = Gate()
    with serving(gate) as server, ThreadPoolExecutor(8) as pool:
        first = pool.submit(ask, server)
        assert gate.entered.acquire(timeout=5)
        rest = [pool.submit(ask, server) for _ in range(6)]
        other = pool.submit(ask, server, GET, None, Accept_Encoding="gzip")
        while value(server, "gpu_profile.http.active") < 8:
            time.sleep(0.01)
        gate.opened.set()
        assert first.result()[2] == b"1\n"
        assert {found.result()[2] for found in rest} <= {b"2\n", b"3\n"}
        assert other.result()[0] == 200
        assert len(gate.calls) == 3
        assert value(server, "gpu_profile.http.coalesced") == 5


def test_a_rendering_that_takes_long_stops_neither_connections_nor_refusals() -> None:
    gate = Gate()
    with serving(gate) as server, connect(server) as waiting:
        waiting.sendall(GET)
        assert gate.entered.acquire(timeout=5)
        assert ask(server, b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")[0] == 405
        gate.opened.set()
        assert answer(waiting)[0] == 200


def test_a_scraper_is_told_in_time_that_there_will_be_no_answer() -> None:
    gate = Gate()
    with serving(gate) as server:
        status, _, body = ask(server, X_Prometheus_Scrape_Timeout_Seconds="0.4")
        assert (status, body) == (503, b"no answer was ready within 0.2 s\n")
        assert rejected(server, "timeout") == 1
        gate.opened.set()


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e9", "abc", "", "0", "1_0", "٣", "9999999999"])
def test_a_timeout_that_is_none_is_counted_and_ignored(text: str) -> None:
    with serving() as server, connect(server) as connection:
        connection.sendall(GET[:-2] + f"X-Prometheus-Scrape-Timeout-Seconds: {text}\r\n\r\n".encode())
        assert answer(connection)[0] == 200
        assert value(server, "gpu_profile.http.timeout.ignored") == 1


def test_too_many_different_questions_are_refused_and_the_first_are_answered() -> None:
    gate = Gate()
    with serving(gate, limits=Limits(renderings=2)) as server, ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask, server)
        assert gate.entered.acquire(timeout=5)
        waiting = [pool.submit(ask, server, GET, None, Accept=str(n)) for n in range(2)]
        while value(server, "gpu_profile.http.active") < 3:
            time.sleep(0.01)
        status, headers, _ = ask(server, Accept="3")
        assert (status, headers["retry-after"]) == (503, "1")
        gate.opened.set()
        assert [found.result()[0] for found in (first, *waiting)] == [200] * 3
        assert rejected(server, "busy") == 1


# ------------------------------------------------------------------ slow and many


def drip(connection: socket.socket) -> None:
    """Send a head that never ends, byte by byte."""
    for _ in range(500):
        connection.sendall(b"x")
        time.sleep(0.02)


def test_silent_and_dripping_clients_are_dropped_on_their_first_and_on_later_requests() -> None:
    with serving(limits=QUICK) as server:
        with connect(server) as silent:
            assert closed(silent)
        with connect(server) as later:
            later.sendall(GET)
            assert answer(later)[0] == 200
            later.sendall(GET[:-3])
            assert closed(later)
        with connect(server) as dripping, pytest.raises(ConnectionError):
            drip(dripping)
        until_counted(server, "slow_request", 3)
        assert ask(server)[0] == 200


@pytest.mark.parametrize("size", [10_000_000, 300_000])
@pytest.mark.parametrize("secure", [False, True])
def test_a_client_that_does_not_read_is_dropped(folder: Path, size: int, secure: bool) -> None:
    web_config = config(folder, TLS if secure else "")
    with serving(lambda _: Response(200, b"x" * size), limits=Limits(write_s=0.3), web_config=web_config) as server:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(10)
        plain.connect((server.address.host, server.address.port))
        with trusting().wrap_socket(plain, server_hostname="localhost") if secure else plain as connection:
            connection.sendall(GET)
            until_counted(server, "slow_reader")


def test_a_slow_handshake_is_ended(folder: Path) -> None:
    with serving(limits=QUICK, web_config=config(folder, TLS)) as server, connect(server) as connection:
        connection.sendall(b"\x16\x03\x01")
        assert closed(connection)
        until_counted(server, "handshake")


def test_above_the_limit_room_is_made_and_who_comes_while_all_are_being_answered_is_told_so() -> None:
    gate = Gate()
    with serving(gate, limits=Limits(connections=3)) as server:
        crowd = [connect(server) for _ in range(6)]
        try:
            assert [closed(silent) for silent in crowd[:3]] == [True] * 3, "the longest silent make room"
            assert rejected(server, "evicted") == 3
            for connection in crowd[3:]:
                connection.sendall(GET)
            while value(server, "gpu_profile.http.active") < 3:
                time.sleep(0.01)
            status, headers, body = ask(server)
            assert (status, headers["connection"], body) == (503, "close", b"too many open connections\n")
            assert rejected(server, "connections") == 1
            gate.opened.set()
            assert [answer(connection)[0] for connection in crowd[3:]] == [200] * 3
            assert ask(server)[0] == 200
            assert closed(crowd[3]), "the one that has been waiting longest for its next request"
        finally:
            gate.opened.set()
            for connection in crowd:
                connection.close()


def test_those_that_do_not_shake_hands_make_room_too(folder: Path) -> None:
    # As a connection takes a third of a MiB with TLS, it has a limit of its own.
    limits = Limits(connections=1000, tls_connections=3)
    with serving(limits=limits, web_config=config(folder, TLS)) as server:
        crowd = [connect(server) for _ in range(6)]
        try:
            assert [closed(silent) for silent in crowd[:3]] == [True] * 3
            with connect(server, trusting()) as scraper:
                for _ in range(9):
                    scraper.sendall(GET)
                    assert answer(scraper)[0] == 200
                    crowd.append(connect(server))
            until_counted(server, "evicted", 3 + 1 + 9)
        finally:
            for connection in crowd:
                connection.close()


def test_scrapes_go_on_among_fifty_slow_clients() -> None:
    with serving(limits=Limits(request_s=2)) as server:
        slow = [connect(server) for _ in range(50)]
        try:
            for connection in slow[::2]:
                connection.sendall(b"GET / HTTP/1.1\r\nHost")
            assert [ask(server)[0] for _ in range(20)] == [200] * 20
        finally:
            for connection in slow:
                connection.close()


# ------------------------------------------------------------------ ending


@pytest.mark.parametrize("hung", [False, True])
def test_it_ends_in_time_whatever_its_clients_and_answers_do(hung: bool) -> None:
    gate = Gate()
    with serving(gate) as server:
        half, idle, busy = connect(server), connect(server), connect(server)
        try:
            half.sendall(GET[:-2])
            busy.sendall(GET)
            assert gate.entered.acquire(timeout=5)
            if not hung:
                threading.Timer(0.2, gate.opened.set).start()
            started = time.monotonic()
            server.stop()
            assert time.monotonic() - started < 2
            if not hung:
                assert answer(busy)[0] == 200, "what was being answered is answered"
            for connection in (half, idle, busy):
                assert closed(connection)
            with pytest.raises(ConnectionRefusedError):
                connect(server)
            server.stop()
        finally:
            gate.opened.set()
            for connection in (half, idle, busy):
                connection.close()


def test_all_interfaces_are_those_of_ipv6_and_of_ipv4() -> None:
    everywhere = address(":0")
    with serving(host=everywhere.host) as server:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, server.address.port), timeout=10) as connection:
                connection.sendall(GET)
                assert answer(connection)[0] == 200
        assert server.url == f"http://[::]:{server.address.port}"
        with pytest.raises(UsageError, match=f"^port {server.address.port} is taken: choose another"):
            Server(server.address, partial(Rendering, echo))


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_all_interfaces_are_those_of_ipv4_where_the_machine_has_no_ipv6(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OldSocket(socket.socket):
        def __init__(self, family: int = socket.AF_INET, *rest: Any, **more: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(code, os.strerror(code))
            super().__init__(family, *rest, **more)

    monkeypatch.setattr(socket, "socket", OldSocket)
    with serving(host=address(":0").host) as server:
        assert server.url == f"http://0.0.0.0:{server.address.port}"
        assert ask(server)[0] == 200
    with pytest.raises(UsageError, match=r"^cannot listen on \[::1\]:0"):
        Server(Address("::1", 0), partial(Rendering, echo))


def test_a_server_that_never_started_lets_its_port_go() -> None:
    server = Server(Address("127.0.0.1", 0), partial(Rendering, echo))
    with pytest.raises(UsageError, match=f"^port {server.address.port} is taken on 127.0.0.1: choose another"):
        Server(server.address, partial(Rendering, echo))
    server.stop()
    Server(server.address, partial(Rendering, echo)).stop()


# ------------------------------------------------------------------ users, headers, rate


def test_every_path_asks_for_name_and_password(folder: Path) -> None:
    with serving(web_config=config(folder, f"basic_auth_users: {{alice: {ALICE}}}")) as server:
        for path in ("/metrics", "/-/healthy", "/nothing"):
            request = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            status, headers, _ = ask(server, request)
            assert (status, headers["www-authenticate"].split()[0]) == (401, "Basic")
            assert ask(server, request, Authorization=basic("alice", "guess"))[0] == 401
            assert ask(server, request, Authorization=basic("bob", "secret"))[0] == 401
            assert ask(server, request, Authorization=basic("alice", "secret"))[0] == 200
        assert value(server, "gpu_profile.http.auth.failures") == 9


def test_a_user_who_is_taken_out_is_refused_on_an_open_connection(folder: Path) -> None:
    web_config = config(folder, f"basic_auth_users: {{alice: {ALICE}, bob: {ALICE}}}")
    request = GET[:-2] + f"Authorization: {basic('alice', 'secret')}\r\n\r\n".encode()
    with serving(web_config=web_config) as server, connect(server) as connection:
        connection.sendall(request)
        assert answer(connection)[0] == 200
        config(folder, f"basic_auth_users: {{bob: {ALICE}}}")
        connection.sendall(request)
        assert answer(connection)[0] == 401


def test_those_whose_passwords_wait_for_their_check_make_room(folder: Path) -> None:
    def request(password: str) -> bytes:
        return GET[:-2] + f"Authorization: {basic('alice', password)}\r\n\r\n".encode()

    web_config = config(folder, f"basic_auth_users: {{alice: {SLOW_ALICE}}}")
    with serving(web_config=web_config, limits=Limits(connections=9)) as server, connect(server) as scraper:
        scraper.sendall(request("secret"))
        assert answer(scraper)[0] == 200
        guessers = [connect(server) for _ in range(8)]
        try:
            for n, guesser in enumerate(guessers):
                guesser.sendall(request(str(n)))
            while value(server, "gpu_profile.http.active") + value(server, "gpu_profile.http.requests") < 1 + 8:
                time.sleep(0.01)
            assert ask(server, request("secret"))[0] == 200
            assert rejected(server, "evicted") == 1
        finally:
            for guesser in guessers:
                guesser.close()


def test_headers_of_the_file_go_with_every_answer(folder: Path) -> None:
    headers = "{Strict-Transport-Security: ' max-age=60', Content-Security-Policy: default-src}"

    def respond(request: Request) -> Response:
        return Response(200, b"", headers=(("Content-Security-Policy", "ours"),))

    with serving(respond, web_config=config(folder, f"http_server_config: {{headers: {headers}}}")) as server:
        for request in (GET, b"PUT / HTTP/1.1\r\nHost: x\r\n\r\n"):
            found = ask(server, request)[1]
            assert found["strict-transport-security"] == "max-age=60"
            assert found["content-security-policy"] == "default-src"


def test_more_than_the_rate_is_told_to_come_later(folder: Path) -> None:
    with serving(web_config=config(folder, "rate_limit: {interval: 1h, burst: 2}")) as server:
        assert [ask(server)[0] for _ in range(4)] == [200, 200, 429, 429]
        assert rejected(server, "rate") == 2


# ------------------------------------------------------------------ TLS


def test_it_speaks_tls_and_nothing_else_where_it_is_told_to(folder: Path) -> None:
    with serving(web_config=config(folder, TLS)) as server:
        assert server.url.startswith("https://")
        assert ask(server, tls=trusting())[0] == 200
        with connect(server) as plain:
            plain.sendall(GET)
            assert closed(plain)
        until_counted(server, "handshake")
        ends = value(server, "gpu_profile.http.certificate.end.timestamp")
        assert ends > time.time()


@pytest.mark.parametrize(
    ("more", "client", "served"),
    [
        ("", CLIENT, True),
        ("", None, False),
        ("", STRANGER.issue_cert("prometheus.example"), False),
        ("  client_allowed_sans: [prometheus.example]\n", CLIENT, True),
        ("  client_allowed_sans: [10.0.0.7]\n", CLIENT, True),
        ("  client_allowed_sans: [grafana.example]\n", CLIENT, False),
    ],
)
def test_clients_show_a_certificate_that_is_verified(
    folder: Path, more: str, client: trustme.LeafCert | None, served: bool
) -> None:
    with serving(web_config=config(folder, MUTUAL + more)) as server:
        if served:
            assert ask(server, tls=trusting(client))[0] == 200
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                ask(server, tls=trusting(client))
            until_counted(server, "client_certificate" if "grafana" in more else "handshake")


def test_a_certificate_is_verified_if_it_is_given(folder: Path) -> None:
    text = MUTUAL.replace("RequireAndVerifyClientCert", "VerifyClientCertIfGiven")
    with serving(web_config=config(folder, text)) as server:
        assert ask(server, tls=trusting())[0] == 200
        assert ask(server, tls=trusting(CLIENT))[0] == 200
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(server, tls=trusting(STRANGER.issue_cert("x.example")))


def test_a_renewed_certificate_is_shown_to_new_connections_and_open_ones_go_on(folder: Path) -> None:
    def serial(connection: socket.socket) -> object:
        assert isinstance(connection, ssl.SSLSocket)
        return (connection.getpeercert() or {})["serialNumber"]

    with serving(web_config=config(folder, TLS)) as server, connect(server, trusting()) as before:
        install(folder, AUTHORITY.issue_cert("localhost"))
        assert server.reload()
        with connect(server, trusting()) as after:
            renewed = serial(after)
            assert renewed != serial(before)
        (folder / "server.crt").write_text("gone wrong")
        assert not server.reload()
        with connect(server, trusting()) as kept:
            assert serial(kept) == renewed
        before.sendall(GET)
        assert answer(before)[0] == 200
        assert value(server, "gpu_profile.http.config.reloads", outcome="failed") == 1


def test_a_file_that_cannot_be_used_is_told_before_the_port_is_taken(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"web\.yml:1: unknown key 'tls'"):
        Server(Address("192.0.2.1", 0), partial(Rendering, echo), web_config=config(folder, "tls: 1"))


# ------------------------------------------------------------------ what it costs to have it


def test_what_a_plain_server_does_not_need_is_not_loaded() -> None:
    heavy = ("yaml", "bcrypt", "uvloop", "httptools", "websockets", "starlette", "html")
    code = f"import sys, gpu_profile_exporter.server; print(*sorted({{*{heavy}}} & sys.modules.keys()))"
    assert printed("-c", code) == "\n"


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    ours = "gpu-profile-"
    while left := [t for t in set(threading.enumerate()) - before if t.name.startswith(ours)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def test_gzip_is_negotiated_through_the_routes() -> None:
    def metrics(accept: str) -> tuple[bytes, str]:
        return f"{accept}\n".encode() * 1000, "text/plain; version=0.0.4"

    routes = Routes(metrics, health=pytest.fail, devices=pytest.fail, live=pytest.fail)  # type: ignore[arg-type]
    with serving(routes.respond) as server:
        _, headers, body = ask(server, Accept="text/plain", Accept_Encoding="gzip")
        assert headers["content-encoding"] == "gzip"
        assert gzip.decompress(body) == b"text/plain\n" * 1000


def test_the_exporter_loads_openssl_only_to_serve_tls(folder: Path) -> None:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    tls = "--web-config-file", str(config(folder, TLS))
    for arguments, scheme in ((), "http"), (tls, "https"):
        with exporter("--driver", "none", *arguments) as running:
            assert running.url.startswith(f"{scheme}://")
            with urlopen(f"{running.url}/metrics", context=context, timeout=10) as reply:
                assert b"gpu_profile_driver_up" in reply.read()
            assert ("libssl" in Path(f"/proc/{running.process.pid}/maps").read_text()) == (scheme == "https")

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from unit.exporter.settings import run

from gpu_profile_exporter.config import Address, Config
from gpu_profile_exporter.operating.healthcheck import candidates


@contextmanager
def server(answers: dict[str, tuple[int, str]], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server on loopback that answers paths as told; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answers[self.path]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - stdlib's name
            pass

    class Server(HTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a handshake that failed

    with Server(("127.0.0.1", 0), Handler) as found:
        if context is not None:
            found.socket = context.wrap_socket(found.socket, server_side=True)
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield found.server_port
        finally:
            found.shutdown()
            thread.join()


def check(*arguments: str, **environ: str) -> tuple[int, str, str]:
    """Exit code, output, and the line of the error without the command's name."""
    ran = run(["healthcheck", *arguments], environ)
    assert ran.err.count("\n") <= 1
    return ran.code, ran.out, ran.err.removeprefix("gpu-profile-exporter: ")


WELL = {"/-/healthy": (200, "healthy\n"), "/-/ready": (200, "ready\n")}
NOT_READY = {"/-/healthy": (200, "healthy: no driver\n"), "/-/ready": (503, "not ready: no driver\n")}
LOCKED = {"/-/healthy": (401, "Unauthorized\n"), "/-/ready": (401, "Unauthorized\n")}


def test_one_that_is_well_is_exit_code_0() -> None:
    with server(WELL) as port:
        assert check("--url", f"http://127.0.0.1:{port}") == (0, "healthy\n", "")
        assert check("--url", f"127.0.0.1:{port}/", "--ready") == (0, "ready\n", "")


def test_one_that_is_not_ready_lives_all_the_same() -> None:
    with server(NOT_READY) as port:
        url = f"http://127.0.0.1:{port}"
        assert check("--url", url) == (0, "healthy: no driver\n", "")
        assert check("--url", url, "--ready") == (1, "", f"{url}: 503: not ready: no driver\n")


def test_one_that_asks_for_a_password_lives_and_whether_it_is_ready_cannot_be_told() -> None:
    with server(LOCKED) as port:
        url = f"http://127.0.0.1:{port}"
        assert check("--url", url) == (0, "alive: Unauthorized\n", "")
        code, _, err = check("--url", url, "--ready")
        assert code == 1
        assert err == f"{url}: 401: Unauthorized; its readiness is visible to authenticated clients only\n"


def test_nobody_there_is_exit_code_1() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert check("--url", url) == (1, "", f"{url}: Connection refused\n")


def test_one_that_says_nothing_is_not_waited_for() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        code, _, err = check("--url", f"http://127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.1")
    assert code == 1
    assert err.endswith(": timed out\n")


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:x", ""])
def test_a_url_that_is_none_is_the_users_error(url: str) -> None:
    code, out, err = check("--url", url)
    assert (code, out) == (2, "")
    assert "--url" in err


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        (Address(), "http://127.0.0.1:9400"),
        (Address("::", 1), "http://127.0.0.1:1"),
        (Address("0.0.0.0", 1), "http://127.0.0.1:1"),  # noqa: S104 - looked up, not bound
        (Address("::1", 1), "http://[::1]:1"),
        (Address("node-7", 2), "http://node-7:2"),
    ],
)
def test_without_a_url_it_asks_where_the_settings_say(listen: Address, url: str) -> None:
    assert candidates(Config(listen=listen)) == [url]
    https = url.replace("http:", "https:")
    assert candidates(Config(listen=listen, web_config_file=Path("w"))) == [https, url]


def test_the_environment_says_where_and_proxies_are_passed_by() -> None:
    with server(WELL) as port:
        environ = {"GPU_PROFILE_EXPORTER_LISTEN": f":{port}", "http_proxy": "http://127.0.0.1:1"}
        assert check(**environ) == (0, "healthy\n", "")
        # With a web configuration it may speak TLS or not.
        assert check(**environ, GPU_PROFILE_EXPORTER_WEB_CONFIG_FILE="w") == (0, "healthy\n", "")


def test_a_certificate_for_another_name_will_do() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("node.example").configure_cert(context)
    with server(WELL, context) as port:
        assert check("--url", f"https://127.0.0.1:{port}", "--ready") == (0, "ready\n", "")
        environ = {"GPU_PROFILE_EXPORTER_LISTEN": f":{port}", "GPU_PROFILE_EXPORTER_WEB_CONFIG_FILE": "w"}
        assert check(**environ) == (0, "healthy\n", "")


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_one_that_asks_for_a_certificate_lives(newest: ssl.TLSVersion) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.maximum_version = newest
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    authority.issue_cert("node.example").configure_cert(context)
    with server(WELL, context) as port:
        url = f"https://127.0.0.1:{port}"
        assert check("--url", url) == (0, "alive: it closed the connection: this client has no certificate\n", "")
        assert check("--url", url, "--ready")[0] == 1

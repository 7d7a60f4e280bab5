"""A real OpenTelemetry collector (rotel), and what takes in what comes out of it."""

import gzip
import os
import socket
import subprocess
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import rotel  # type: ignore[import-untyped]
from support.programs import free_port, until

AGENT = Path(rotel.__file__).parent / "rotel-agent"


class _Sink(BaseHTTPRequestHandler):
    """Takes in OTLP over HTTP."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.take(body)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def sink(take: Callable[[bytes], object], *, port: int = 0) -> Iterator[int]:
    """The port on which every request is given to `take`, as the message's bytes."""
    with ThreadingHTTPServer(("127.0.0.1", port), _Sink) as server:
        server.take = take  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def collector(to_port: int, directory: Path) -> Iterator[dict[str, str]]:
    """Where a running collector listens, by protocol; it passes on to the sink, and logs into `directory`."""
    ports, log = {"grpc": free_port(), "http/protobuf": free_port()}, directory / "collector.log"
    command = [str(AGENT), "start", "--otlp-grpc-endpoint", f"127.0.0.1:{ports['grpc']}"]
    command += ["--otlp-http-endpoint", f"127.0.0.1:{ports['http/protobuf']}", "--batch-timeout", "100ms"]
    command += ["--exporter", "otlp", "--otlp-exporter-endpoint", f"http://127.0.0.1:{to_port}"]
    command += ["--otlp-exporter-protocol", "http"]
    # The wheel's program is linked against the interpreter's library, which need not be on the loader's path.
    environment = {**os.environ, "LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR"))}
    if subprocess.run([AGENT, "--version"], capture_output=True, check=False, env=environment).returncode == 127:
        pytest.skip("the collector's program lacks a shared library of this Python")
    with log.open("w") as out:
        agent = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)

    def listens() -> bool:
        assert agent.poll() is None, log.read_text()
        for port in ports.values():
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)):
                    return False
        return True

    try:
        until(listens, "the collector listens")
        yield {protocol: f"http://127.0.0.1:{port}" for protocol, port in ports.items()}
    finally:
        agent.terminate()
        agent.wait(10)

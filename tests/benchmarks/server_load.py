"""Two hundred scrapers and fifty clients that mean ill, on the exporter's listener and on the standard library's."""

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from benchmarks.exporter_children import memory, tree
from benchmarks.rows import Row
from gpu_profile.driver import simulated
from gpu_profile_exporter import node
from gpu_profile_exporter.config import Address, Config
from gpu_profile_exporter.readings.readings import MetricReading
from gpu_profile_exporter.server import Rendering
from gpu_profile_exporter.server.routes import Request

SCRAPERS, SLOW = 200, 50
OPEN_S, CLOSED_S = 15.0, 5.0
REACH_MS = 50.0
#: What Prometheus sends.
_SCRAPE = (
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain;version=0.0.4;q=0.5\r\nAccept-Encoding: gzip\r\n"
    b"X-Prometheus-Scrape-Timeout-Seconds: 10\r\n\r\n"
)
_DEVICE = '[[device]]\nmodel = "H100 SXM"\n  [[device.phase]]\n  duration_s = 3600\n  duty = 0.5\n  period_s = 0.1\n'


class Load(NamedTuple):
    """Latencies in s, sorted; what went wrong; MiB before and after; samples taken per second, idle and loaded."""

    open_s: list[float]
    closed_s: list[float]
    errors: int
    before_mib: float
    after_mib: float
    idle_rate: float
    loaded_rate: float


def rows() -> Iterator[Row]:
    """The listener's rows."""
    with tempfile.TemporaryDirectory() as directory:
        made = simulated.create(Path(directory) / "node", _DEVICE * 8)
        ours, theirs = (asyncio.run(_measure(kind, made)) for kind in ("ours", "stdlib"))
    p99 = _ms(ours.open_s, 0.99)
    yield Row(
        f"{SCRAPERS} scrapers at 1/s, {SLOW} slow clients, 8 simulated GPUs, {OPEN_S:.0f} s",
        f"p50 {_ms(ours.open_s, 0.5):.1f} ms, p99 {p99:.1f} ms, {ours.errors} errors",
        f"http.server p50 {_ms(theirs.open_s, 0.5):.1f} ms, p99 {_ms(theirs.open_s, 0.99):.1f} ms, "
        f"{theirs.errors} errors",
        f"{_ms(theirs.open_s, 0.99) / p99:.1f}x",
        f"p99 <={REACH_MS:.0f} ms, no error",
        p99 <= REACH_MS and not ours.errors,
    )
    yield Row(
        f"the same as fast as they can (closed loop), {CLOSED_S:.0f} s",
        f"{len(ours.closed_s) / CLOSED_S:.0f}/s, p99 {_ms(ours.closed_s, 0.99):.0f} ms",
        f"http.server {len(theirs.closed_s) / CLOSED_S:.0f}/s, p99 {_ms(theirs.closed_s, 0.99):.0f} ms",
        f"{len(ours.closed_s) / len(theirs.closed_s):.1f}x",
    )
    yield Row(
        "samples taken while they scrape, of those taken alone",
        f"{ours.loaded_rate / ours.idle_rate:.1%}",
        f"http.server {theirs.loaded_rate / theirs.idle_rate:.1%}",
        "-",
        ">=99 %",
        ours.loaded_rate >= 0.99 * ours.idle_rate,
    )
    yield Row(
        "memory of the exporter with the listener, before and after the load",
        f"{ours.before_mib:.1f}, {ours.after_mib:.1f} MiB",
        f"http.server {theirs.before_mib:.1f}, {theirs.after_mib:.1f} MiB",
        f"{ours.after_mib - theirs.after_mib:+.1f} MiB",
    )


def _ms(times: list[float], share: float) -> float:
    return times[min(len(times) - 1, int(share * len(times)))] * 1e3


# ------------------------------------------------------------------ the clients


async def _measure(kind: str, made: Path) -> Load:
    with _serving(kind, made) as (process, port):
        await asyncio.sleep(3)
        await _scrape_once(port)
        before_mib = _mib(process.pid)
        idle_rate = await _sample_rate(port, 5.0)
        slow = [asyncio.ensure_future(_slow(port, drips=bool(n % 2))) for n in range(SLOW)]
        open_s: list[float] = []
        rate = asyncio.ensure_future(_sample_rate(port, OPEN_S - 1))
        ends_s = time.perf_counter() + OPEN_S
        errors = sum(await asyncio.gather(*(_scraper(port, open_s, ends_s, 1.0) for _ in range(SCRAPERS))))
        loaded_rate = await rate
        closed_s: list[float] = []
        ends_s = time.perf_counter() + CLOSED_S
        errors += sum(await asyncio.gather(*(_scraper(port, closed_s, ends_s, 0.0) for _ in range(SCRAPERS))))
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        return Load(sorted(open_s), sorted(closed_s), errors, before_mib, _mib(process.pid), idle_rate, loaded_rate)


async def _scraper(port: int, times: list[float], ends_s: float, period_s: float) -> int:
    """One scraper on one connection; how often it failed. Time counts from when a scrape was due."""
    due_s = time.perf_counter() + random.random() * period_s  # noqa: S311 - nothing is kept secret by it
    errors = 0
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while due_s < ends_s:
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        try:
            writer.write(_SCRAPE)
            async with asyncio.timeout(10):
                await _answer(reader)
            times.append(time.perf_counter() - due_s)
        except (OSError, EOFError, ValueError, TimeoutError):
            errors += 1
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        due_s = due_s + period_s if period_s else time.perf_counter()
    writer.close()
    return errors


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head[:20]:
        raise ValueError(head)
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return await reader.readexactly(int(length[1])) if length is not None else b""


async def _slow(port: int, *, drips: bool) -> None:
    """Hold a connection with half a request for as long as it is let, and then the next."""
    while True:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for _ in range(60):
                if drips:
                    writer.write(b"G")
                    await writer.drain()
                await asyncio.sleep(0.5)
        except OSError:
            continue
        finally:
            writer.close()


async def _scrape_once(port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    text = await _answer(reader)
    writer.close()
    return text.decode()


async def _sample_rate(port: int, over_s: float) -> float:
    async def taken() -> tuple[float, float]:
        text = await _scrape_once(port)
        found = re.findall(r"^gpu_profile_samples_total\{.*\} (\S+)$", text, re.MULTILINE)
        return sum(map(float, found)), time.perf_counter()

    first, began_s = await taken()
    await asyncio.sleep(over_s)
    last, ended_s = await taken()
    return (last - first) / (ended_s - began_s)


# ------------------------------------------------------------------ the servers


@contextmanager
def _serving(kind: str, made: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    root = Path(__file__).parents[2]
    paths = [str(root / "instrumentation"), str(root / "exporter"), str(root / "tests")]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.server_load", kind, str(made)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(20)


def _mib(pid: int) -> float:
    """Resident memory of a process and its children."""
    return memory(tree(pid)).resident


class _StandardServer:
    """The listener that the standard library has: a thread for each connection, and a deadline for silence alone."""

    def __init__(self, address: object, handle: partial[Rendering], **_: object) -> None:
        (respond,) = handle.args

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 5.0

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                response = respond(Request(self.command, self.path, headers))
                self.send_response(response.status)
                for name, value in (*response.headers, ("Content-Length", str(len(response.body)))):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(response.body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
                pass

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 512

        self._server = Listener(("127.0.0.1", 0), Handler)
        self.address = Address("127.0.0.1", self._server.server_address[1])
        self.url = f"http://{self.address}"

    def start(self) -> None:
        Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()

    def readings(self, now_ns: int) -> Iterator[MetricReading]:
        return iter(())


def _serve(kind: str, made: str) -> None:
    if kind == "stdlib":
        vars(node)["Server"] = _StandardServer
    ended = Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    running = node.ExporterNode(Config(listen=Address("127.0.0.1", 0), driver=f"simulated:{made}"))
    with running:
        sys.stdout.write(f"{running.url.rpartition(':')[2]}\n")
        sys.stdout.flush()
        ended.wait()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _serve(*sys.argv[1:])
    else:
        for row in rows():
            sys.stdout.write(f"{row}\n")

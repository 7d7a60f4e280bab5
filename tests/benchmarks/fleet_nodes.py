"""A fleet of nodes with 8 GPUs, each with names and values of its own, made from two scrapes of a real exporter.

Counters grow by their measured rate, a tenth more or less each time. Moving gauges vary by a hundredth. Time stamps
pass faster than real time and end at the present.
"""

import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.fleet_needs import INTERVAL_S

_LINE: Final = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?P<labels>\{.*\})? (?P<value>\S+)$")


class NodeText(NamedTuple):
    """The series of a node: text around values, the first values, growth per second, variation, and decimals."""

    heads: list[str]
    values: np.ndarray
    growth: np.ndarray
    varies: np.ndarray
    decimals: list[int]

    @classmethod
    def of(cls, text: str, later: str, passed_s: float) -> "NodeText":
        """From two scrapes. Series that one of them lacks are left out, as are comments."""
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        first, second = _values(text), _values(later)
        heads = [head for head in first if head in second]
        before, after = ([float(values[head]) for head in heads] for values in (first, second))
        names = [re.split(r"[{ ]", head, maxsplit=1)[0] for head in heads]
        families = [kinds.get(name) or kinds.get(re.sub(r"_(total|bucket|sum|count)$", "", name)) for name in names]
        counts = np.array([kind in ("counter", "histogram") for kind in families])
        difference = np.array(after) - np.array(before)
        return cls(
            heads,
            np.array(before),
            np.where(counts, np.maximum(difference, 0) / passed_s, 0.0),
            np.where(~counts & (difference != 0), np.abs(np.array(before)) / 100, 0.0),
            [len(second[head].partition(".")[2]) for head in heads],
        )


def _values(text: str) -> dict[str, str]:
    matches = (_LINE.match(line) for line in text.splitlines() if line and not line.startswith("#"))
    return {f"{match['name']}{match['labels'] or ''}": match["value"] for match in matches if match}


# ------------------------------------------------------------------ the fleet


class _Node:
    """One node of the fleet. Its scrapes are at times of its own, one interval apart."""

    def __init__(self, number: int, lines: NodeText) -> None:
        self._chance = np.random.default_rng(number)
        own = [re.sub(r"(GPU|MIG)-(.{4})", rf"\1-{number:04x}", head).replace("%", "%%") for head in lines.heads]
        self._text = "".join(f"{head} %.{min(n, 9)}f %d\n" for head, n in zip(own, lines.decimals, strict=True))
        self._lines = lines
        self._factor = self._chance.uniform(0.5, 1.0)
        self._sums = lines.values * self._chance.uniform(0.2, 5.0)
        self._sums[lines.growth == 0] = lines.values[lines.growth == 0]
        self._step = 0
        self._body = b""

    def scrape(self, step: int, at_ms: int) -> bytes:
        """The text at a step, compressed; the last one again if the step is not a later one."""
        if step <= self._step:
            return self._body
        lines, passed = self._lines, (step - self._step) * INTERVAL_S if self._step else 0
        noise = self._chance.normal(0, 1, len(lines.values))
        self._sums += lines.growth * self._factor * np.maximum(0, passed * (1 + 0.1 * noise))
        self._step = step
        values = np.empty(2 * len(noise), object)
        values[::2], values[1::2] = self._sums + lines.varies * noise, at_ms
        self._body = gzip.compress((self._text % tuple(values)).encode(), 1)
        return self._body


def serve(template: str, nodes: int, end_s: float, speed: float) -> None:
    """Answer for each node at `/nodeN`, in a process of its own. Prints the port."""
    made = json.loads(Path(template).read_text())
    lines = NodeText.of(**made)
    fleet = [_Node(number, lines) for number in range(nodes)]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            number = int(self.path.removeprefix("/node"))
            # Time that passes at `speed`, reaches the present at the end, and then goes on as it does.
            left_s = end_s - time.time()
            virtual_s = end_s - left_s * (speed if left_s > 0 else 1)
            step = int(virtual_s // INTERVAL_S)
            at_ms = round((step + number / nodes) * INTERVAL_S * 1000)
            body = fleet[number].scrape(step, at_ms)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = nodes

        def handle_error(self, *_: Any) -> None:
            pass  # Prometheus ends a connection after its timeout; it then counts the node as not answering

    server = Server(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


@contextmanager
def fleet(template: Path, nodes: int, seconds: float, speed: float) -> Iterator[tuple[str, float]]:
    """The fleet's address, and the time at which its samples reach the present: after `seconds` or a little more."""
    end_s = time.time() + 10 + seconds
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"from benchmarks import fleet_nodes; fleet_nodes.serve({str(template)!r}, {nodes}, {end_s}, {speed})",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        if process.stdout is None:
            raise OSError("the fleet has no output")
        yield f"127.0.0.1:{int(process.stdout.readline())}", end_s
    finally:
        process.kill()
        process.communicate()

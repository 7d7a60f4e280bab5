"""Memory of the exporter and its reader on the C stub with 8 GPUs, pushing as well as serving; and after an hour.

Real processes tell what they hold after two minutes and more. The hour is simulated: what the reader does and what the
exporter does with it, in one process on a clock that is moved by hand.
"""

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(root / "tests"), str(root / "instrumentation"), str(root / "exporter")]

from support.programs import Exporter, environment

from benchmarks.exporter_children import Bench, bench, memory, tree
from benchmarks.exporter_cost import Scraper
from benchmarks.rows import Row

#: By then whatever comes again and again has come many times.
FULL_S: Final = 130.0
REACH_MIB: Final = {"http/protobuf": 64.0, "grpc": 90.0}
#: MiB that the hour may add, which is what Python's own allocator leaves in holes.
FLAT_MIB: Final = 1.0
_PUSH_S: Final = 5.0


class Running:
    """Exporters that push, running since `start`."""

    def __init__(self, exporters: dict[str, Exporter], pushed: dict[str, list[int]]) -> None:
        self._exporters = exporters
        self._pushed = pushed
        self._started = time.monotonic()

    def rows(self, *, full_s: float = FULL_S) -> Iterator[Row]:
        """Waits until they have run for `full_s`."""
        time.sleep(max(0.0, self._started + full_s - time.monotonic()))
        for protocol, running in self._exporters.items():
            Scraper(running.url).scrape()
            pids = tree(running.process.pid)
            all_ = memory(pids)
            reach, pushes = REACH_MIB[protocol], len(self._pushed[protocol])
            yield Row(
                f"memory at 10 Hz, 8 GPUs, C stub, scraped, pushing by {protocol}",
                f"{all_.resident:.1f} MiB, {all_.anonymous:.1f} of it in no file ({_words(pids)}) "
                f"after {time.monotonic() - self._started:.0f} s and {pushes} pushes",
                "-",
                f"{all_.resident - reach:+.1f} MiB",
                f"<={reach:g} MiB, and pushed",
                all_.resident <= reach and pushes > 0,
                all_.resident,
            )


def _words(pids: list[int]) -> str:
    """Each process with its share of what is in no file."""
    names = ["exporter", *((Path("/proc") / str(pid) / "comm").read_text().strip() for pid in pids[1:])]
    return ", ".join(f"{name} {memory([pid]).anonymous:.1f}" for name, pid in zip(names, pids, strict=True))


@contextmanager
def running(bed: Bench) -> Iterator[Running]:
    """Exporters that serve and push, one by each protocol."""
    with ExitStack() as stack:
        exporters, pushed = {}, {}
        for protocol, sink in (("http/protobuf", _http_sink), ("grpc", _grpc_sink)):
            port, pushed[protocol] = stack.enter_context(sink())
            target = ("--otlp-endpoint", f"http://127.0.0.1:{port}", "--otlp-protocol", protocol)
            bed.compile(*target, "--otlp-interval", "1")
            pushed[protocol].clear()
            exporters[protocol] = stack.enter_context(bed.exporter(*target, "--otlp-interval", str(_PUSH_S)))
        yield Running(exporters, pushed)


@contextmanager
def _http_sink() -> Iterator[tuple[int, list[int]]]:
    pushed: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            pushed.append(len(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], pushed
        server.shutdown()


@contextmanager
def _grpc_sink() -> Iterator[tuple[int, list[int]]]:
    # Other processes are started beside it, of which it would say that it does nothing about it.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    import grpc

    pushed: list[int] = []

    def take(request: bytes, _: Any) -> bytes:
        pushed.append(len(request))
        return b""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
        def service(self, _: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(take)

    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port, pushed
    server.stop(0)


# ---------------------------------------------------------------------- an hour


def hour_row(bed: Bench) -> Row:
    """The hour, in a child: this process has memory of its own."""
    script = str(Path(__file__).resolve())
    done = subprocess.run(
        [sys.executable, script, "hour"],
        check=True,
        capture_output=True,
        text=True,
        env=environment(**{k: v for k, v in bed.environment.items() if k.startswith("PYTHON")}),
    )
    found: dict[str, float] = json.loads(done.stdout)
    minutes, mib = [int(key) for key in found], list(found.values())
    grown = mib[-1] - mib[0]
    return Row(
        f"exporter and reader in one process, 8 GPUs, C stub, 10 Hz, after "
        f"{', '.join(map(str, minutes))} simulated minutes",
        f"{', '.join(f'{value:.1f}' for value in mib)} MiB",
        "-",
        f"{grown:+.1f} MiB",
        f"flat: <={FLAT_MIB:g} MiB",
        grown <= FLAT_MIB,
        mib[-1],
    )


def _hour(minutes: tuple[int, ...] = (10, 20, 40, 70)) -> dict[int, float]:
    """MiB of this process after so many minutes of the node's time."""
    import marshal

    from support.nvml_stub.build import build, installed

    from gpu_profile.catalogue import DEFAULT_GROUPS
    from gpu_profile.testing import START_NS, FakeClock
    from gpu_profile_exporter.exposition.exposition import Exposition
    from gpu_profile_exporter.reader.child import ReaderLoop
    from gpu_profile_exporter.reader.heartbeat import Heartbeat
    from gpu_profile_exporter.reader.readers import Readers
    from gpu_profile_exporter.reader.settings import HOME, ReaderSettings
    from gpu_profile_exporter.readings.readings import Identity, readings
    from gpu_profile_exporter.server.routes import GZIP_LEVEL

    class Said:
        """A reader process as far as what it says goes."""

        key = HOME
        only = None
        leave: frozenset[int] = frozenset()
        stale_since = None

        def __init__(self) -> None:
            self.uuids: set[str] = set()

    clock, said = FakeClock(START_NS), Said()
    groups = tuple(map(str, DEFAULT_GROUPS))
    supervisor = Readers("nvml", interval_s=0.1, groups=groups, clock=clock)
    exposition = Exposition(lambda: readings(supervisor, Identity("nvml", "1", "1"), clock.now_ns()))
    found = {}
    with tempfile.TemporaryDirectory() as directory, installed(build(Path(directory), soname=False)) as stub:
        stub.set_time(clock.now_ns())
        reader = ReaderLoop(ReaderSettings("nvml", 0.1, groups, False, -1, -1, -1), Heartbeat.create(), clock)
        scrape_ns = clock.now_ns()
        for minute in minutes:
            while clock.now_ns() < START_NS + minute * 60 * 10**9:
                delay = reader.step()
                for message in reader.news(clock.now_ns()):
                    supervisor.take(said, marshal.loads(marshal.dumps(message)))  # type: ignore[arg-type]  # noqa: S302
                if clock.now_ns() >= scrape_ns:
                    gzip.compress(exposition.render()[0], GZIP_LEVEL)
                    scrape_ns += 15 * 10**9
                clock.advance(max(delay, 0.001))
                stub.set_time(clock.now_ns())
            found[minute] = memory([os.getpid()]).resident
        reader.close()
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["hour"]:
        print(json.dumps(_hour()))
    else:
        with bench() as bed, running(bed) as begun:
            print(hour_row(bed), flush=True)
            for row in begun.rows():
                print(row, flush=True)

"""What the live page costs: its size, the exporter's CPU for its viewers, and a browser's that shows 8 GPUs."""

import gzip
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(root / "tests"), str(root / "instrumentation"), str(root / "exporter")]

from integration.browser import browser

from benchmarks.exporter_children import Bench, bench, cpu_s, tree
from benchmarks.rows import Row
from gpu_profile.catalogue import SIGNALS, Tier
from gpu_profile.catalogue.signals import GRAPHICS, MEMORY_USED, POWER
from gpu_profile.report.live import LiveFeed
from gpu_profile_exporter.server.page.recent import RecentSamples

PAGE_BYTES: Final = 150_000
#: Shares of a core: of one viewer at the exporter, of taking samples all the time, and of the browser.
VIEWER, TAKING, BROWSER = 0.02, 0.001, 0.10
VIEWERS: Final = 50
WINDOW_S, WINDOWS = 5.0, 3
_FAST: Final = sum(signal.tier is Tier.FAST for signal in SIGNALS)


def rows(bed: Bench) -> Iterator[Row]:
    """The page's rows; about a minute and a half."""
    yield _taking_row()
    with bed.exporter(gpm=1) as running:
        yield _size_row(running.url)
        time.sleep(5)
        pid = running.process.pid
        alone = _share([pid])
        with _viewers(running.url, 1):
            one = _share([pid])
        with _viewers(running.url, VIEWERS):
            many = _share([pid])
        yield Row(
            "exporter's CPU for one viewer of the live page, 8 GPUs at 10 Hz",
            f"{max(0.0, one - alone):.2%} of a core",
            f"no viewer {alone:.2%}",
            "-",
            f"<={VIEWER:.0%}",
            one - alone <= VIEWER,
        )
        each = max(0.0, many - alone) / VIEWERS
        yield Row(
            f"the same for {VIEWERS} viewers",
            f"{many - alone:.1%} of a core, {each:.2%} each",
            f"no viewer {alone:.2%}",
            "-",
            f"<={VIEWER:.0%} each",
            each <= VIEWER,
        )
        yield _browser_row(running.url)


def _size_row(url: str) -> Row:
    body = _asked(HTTPConnection(urlsplit(url).netloc, timeout=10), "/")
    return Row(
        "bytes of the live page, which loads nothing else",
        f"{len(body) / 1e3:.0f} kB, {len(gzip.compress(body)) / 1e3:.0f} kB compressed",
        reach=f"<={PAGE_BYTES / 1e3:.0f} kB",
        ok=len(body) <= PAGE_BYTES,
    )


def _taking_row() -> Row:
    """A second of samples of 8 GPUs: all fast signals at 10 Hz, power as a driver that buffers it has it, at 50 Hz."""
    numbers = [i for i, signal in enumerate(SIGNALS) if signal.tier is Tier.FAST and signal is not POWER]
    power, memory, busy = (SIGNALS.index(signal) for signal in (POWER, MEMORY_USED, GRAPHICS))
    recent, now = RecentSamples(LiveFeed("a")), time.time_ns()

    def take() -> None:
        nonlocal now
        for quarter in range(4):
            start = now + quarter * 250_000_000
            values: list[int] = []
            for i in range(3 if quarter % 2 else 2):
                for number in numbers:
                    values += (number, start + i * 100_000_000, start + i * 100_000_000, 7)
            for i in range(12):
                values += (power, start + i * 20_000_000, start + (i + 1) * 20_000_000, 400_000)
            values += (memory, start, start, 1024, busy, start, start + 250_000_000, 5000)
            for device in range(8):
                recent.take(f"GPU-{device}", values)
        now += 1_000_000_000

    times = []
    for _ in range(30):
        began = time.thread_time()
        take()
        times.append(time.thread_time() - began)
    share = min(times)
    return Row(
        f"taking samples for the live page while nobody looks, 8 GPUs, {_FAST} signals at 10 Hz, power at 50 Hz",
        f"{share:.3%} of a core",
        reach=f"<={TAKING:.1%}",
        ok=share <= TAKING,
    )


def _browser_row(url: str) -> Row:
    with tempfile.TemporaryDirectory() as directory, browser(Path(directory)) as page:
        page.open("about:blank")
        time.sleep(2)
        blank = _share(tree(page.driver))
        page.open(f"{url}/")
        page.until("page.devices.size === 8")
        time.sleep(3)
        shown = _share(tree(page.driver))
    return Row(
        "a browser's CPU for the live page of 8 GPUs, without a graphics card",
        f"{shown - blank:.1%} of a core",
        f"an empty page {blank:.1%}",
        "-",
        f"<={BROWSER:.0%}",
        shown - blank <= BROWSER,
    )


def _share(pids: list[int]) -> float:
    """CPU of these processes together, as a share of a core: the least of some windows."""
    shares = []
    for _ in range(WINDOWS):
        began, used = time.perf_counter(), sum(map(cpu_s, pids))
        time.sleep(WINDOW_S)
        shares.append((sum(map(cpu_s, pids)) - used) / (time.perf_counter() - began))
    return min(shares)


@contextmanager
def _viewers(url: str, n: int) -> Iterator[None]:
    """Viewers that each ask once a second, as the page does."""
    stop = threading.Event()

    def view(place: int) -> None:
        connection, after = HTTPConnection(urlsplit(url).netloc, timeout=10), ""
        stop.wait(place / n)
        while not stop.is_set():
            with suppress(OSError, HTTPException):
                after = json.loads(_asked(connection, f"/api/live?after={after}"))["cursor"]
            stop.wait(1.0)
        connection.close()

    threads = [threading.Thread(target=view, args=(place,)) for place in range(n)]
    for thread in threads:
        thread.start()
    time.sleep(3)
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _asked(connection: HTTPConnection, path: str) -> bytes:
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    body = answer.read()
    return gzip.decompress(body) if answer.headers["Content-Encoding"] == "gzip" else body


if __name__ == "__main__":
    with bench() as bed:
        for row in rows(bed):
            sys.stdout.write(f"{row}\n")

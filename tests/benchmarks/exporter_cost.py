"""What an exporter costs on the C stub with 8 GPUs: CPU in peace, CPU and time of a scrape; nvitop-exporter beside it.

All run at once, each a process of its own with its children, and so does a bare loop that reads the same signals at the
same rate: what else the machine does meets them alike. Since it only ever adds, the least of some windows counts. Only
the ratio to nvitop-exporter is of all windows together: the least of each would be of different seconds.
"""

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(root / "tests"), str(root / "instrumentation"), str(root / "exporter")]

from benchmarks.exporter_children import Bench, bench, cpu_s, memory, tree
from benchmarks.rows import Row

HZ: Final = 10.0
#: Prometheus' usual interval between two scrapes, and how many of them are measured.
SCRAPE_S, WINDOWS = 15.0, 4
#: CPU beyond the bare loop, as a share of a core.
REACH: Final = 0.01
SCRAPES, SCRAPE_MS = 200, 10.0
_FIELDS: Final = "nvmlDeviceGetFieldValues"
#: What is measured beside ours, as pip knows it.
_NVITOP: Final = "nvitop-exporter>=1.5,<2"


class Watched(NamedTuple):
    """A process that is measured: where it serves, if it does, and whether it is scraped once in each window."""

    name: str
    pid: int
    url: str = ""
    scraped: bool = False


class Cost(NamedTuple):
    """Of one process tree: CPU shares of the process itself and of its children, NVML calls by function per second."""

    own: float
    children: float
    calls: Mapping[str, float]

    @property
    def cpu(self) -> float:
        return self.own + self.children

    @property
    def nvml(self) -> float:
        return sum(self.calls.values())


def rows(bed: Bench) -> Iterator[Row]:
    """What is measured here takes about two minutes."""
    with ExitStack() as stack:
        ours = stack.enter_context(bed.exporter())
        idle = stack.enter_context(bed.exporter(gpm=1))
        gpm = stack.enter_context(bed.exporter(gpm=1))
        both = stack.enter_context(bed.exporter("--names", "both"))
        seconds = SCRAPE_S * (WINDOWS + 1)
        bare = stack.enter_context(bed.python("-m", "benchmarks.exporter_cost", "bare", str(HZ), str(seconds)))
        theirs, reason = stack.enter_context(_nvitop(bed))
        assert bare.stdout is not None
        fields = json.loads(bare.stdout.readline())  # it runs from now on
        time.sleep(3)
        watched = [
            Watched("ours", ours.process.pid, ours.url, scraped=True),
            Watched("gpm", gpm.process.pid, gpm.url, scraped=True),
            Watched("idle", idle.process.pid, idle.url),
            Watched("bare", bare.pid),
        ]
        if theirs is not None:
            watched.append(theirs)
        windows = _measure(bed, watched)
        yield from _cpu({name: min(costs, key=lambda cost: cost.cpu) for name, costs in windows.items()}, fields)
        yield from _latency({"semconv": ours.url, "both": both.url})
        yield from _like_an_h100(bed)
        their_cost = None if theirs is None else mean_cost(windows["nvitop"])
        yield from _beside(mean_cost(windows["idle"]), watched[2], their_cost, theirs, reason)


# ---------------------------------------------------------------------- CPU


def _measure(bed: Bench, watched: list[Watched]) -> dict[str, list[Cost]]:
    """The windows of each, at the same times for all."""
    found: dict[str, list[Cost]] = {one.name: [] for one in watched}
    for _ in range(WINDOWS):
        calls = {one.name: bed.calls(one.pid) for one in watched}
        cpu = {one.name: _cpu_of(one.pid) for one in watched}
        started = time.monotonic()
        for one in watched:
            if one.scraped:
                Scraper(one.url).scrape()
        time.sleep(max(0.0, started + SCRAPE_S - time.monotonic()))
        after = {one.name: _cpu_of(one.pid) for one in watched}
        took = time.monotonic() - started
        for one in watched:
            own, children = (b - a for a, b in zip(cpu[one.name], after[one.name], strict=True))
            made = {name: (n - calls[one.name].get(name, 0)) / took for name, n in bed.calls(one.pid).items()}
            found[one.name].append(Cost(own / took, children / took, made))
    return found


def mean_cost(windows: Sequence[Cost]) -> Cost:
    """The cost over all windows, which are of one length."""
    totals = sum((Counter(window.calls) for window in windows), Counter[str]())
    own, children = (sum(column) / len(windows) for column in zip(*(window[:2] for window in windows), strict=True))
    return Cost(own, children, {name: calls / len(windows) for name, calls in totals.items()})


def _cpu_of(pid: int) -> tuple[float, float]:
    """Seconds of a process, and of its children."""
    return cpu_s(pid), sum(cpu_s(child) for child in tree(pid)[1:])


def _cpu(costs: Mapping[str, Cost], fields: Mapping[str, int]) -> Iterator[Row]:
    bare = costs["bare"]
    for name, what, promised in (
        ("ours", "", True),
        ("gpm", ", with activity counters, which the loop does not read", False),
    ):
        cost = costs[name]
        beyond = cost.cpu - bare.cpu
        fetched = cost.calls.get(_FIELDS, 0)
        yield Row(
            f"exporter at {HZ:g} Hz, 8 GPUs, C stub, a scrape each {SCRAPE_S:g} s{what}",
            f"{cost.cpu * 100:.2f} % CPU ({cost.own * 100:.2f} exporter, {cost.children * 100:.2f} reader), "
            f"{cost.nvml:.0f} NVML calls/s, {fetched:.0f} of them for "
            f"{sum(fields.values())} fields in {len(fields)} tiers",
            f"bare loop {bare.cpu * 100:.2f} %, {bare.nvml:.0f} calls/s, {bare.calls.get(_FIELDS, 0):.0f} of them "
            "for the same fields",
            f"{beyond * 100:+.2f} % of a core ({cost.cpu / bare.cpu:.1f}x)",
            f"<={REACH * 100:g} % of a core beyond" if promised else "-",
            beyond <= REACH or not promised,
            cost.cpu / bare.cpu,
        )


def _like_an_h100(bed: Bench) -> Iterator[Row]:
    """Where calls take as long as on hardware, nearly all of the cost is the driver's."""
    h100 = {"gpus": 1, "gpm": 1, "times": 1}
    length_s = 12.0
    variables: dict[str, Any] = {f"NVML_STUB_{name.upper()}": str(value) for name, value in h100.items()}
    with (
        bed.exporter(**h100) as ours,
        bed.python("-m", "benchmarks.exporter_cost", "bare", str(HZ), str(length_s + 10), **variables) as bare,
    ):
        assert bare.stdout is not None
        bare.stdout.readline()
        time.sleep(3)
        before = [sum(_cpu_of(pid)) for pid in (ours.process.pid, bare.pid)]
        started = time.monotonic()
        time.sleep(length_s)
        took = time.monotonic() - started
        after = [sum(_cpu_of(pid)) for pid in (ours.process.pid, bare.pid)]
    own, plain = ((b - a) / took for a, b in zip(before, after, strict=True))
    yield Row(
        f"exporter at {HZ:g} Hz, a GPU whose calls take as long as an H100's did",
        f"{own * 100:.2f} % CPU, with activity counters",
        f"{plain * 100:.2f} %, the bare loop without them",
        f"{own / plain:.2f}",
        "<=0.75",
        own / plain <= 0.75,
        own / plain,
    )


# ---------------------------------------------------------------------- scrapes


class Scraper:
    """A scraper that keeps its connection, as Prometheus does."""

    def __init__(self, url: str, *, gzip: bool = True, path: str = "/metrics") -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        self._connection = HTTPConnection(address.hostname, address.port, timeout=10)
        self._headers = {"Accept": "text/plain;version=0.0.4"} | ({"Accept-Encoding": "gzip"} if gzip else {})
        self._path = path

    def scrape(self) -> bytes:
        """One body; ValueError unless it is one."""
        self._connection.request("GET", self._path, headers=self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise ValueError(f"{self._path}: {answer.status}")
        return body


def _latency(urls: Mapping[str, str]) -> Iterator[Row]:
    scrapers = {(names, gzip): Scraper(url, gzip=gzip) for names, url in urls.items() for gzip in (False, True)}
    times: dict[tuple[str, bool], list[float]] = {key: [] for key in scrapers}
    lines = {key: scraper.scrape().count(b"\n") for key, scraper in scrapers.items()}
    for _ in range(SCRAPES):
        for key, scraper in scrapers.items():
            time.sleep(0.02)
            started = time.perf_counter()
            scraper.scrape()
            times[key].append(time.perf_counter() - started)
    for (names, gzip), took in times.items():
        took.sort()
        p50, p99 = took[SCRAPES // 2] * 1e3, took[SCRAPES * 99 // 100 - 1] * 1e3
        yield Row(
            f"scrape over HTTP, names {names}{', gzip' if gzip else ''}, {SCRAPES} times",
            f"p50 {p50:.1f} ms, p99 {p99:.1f} ms of {lines[names, False]} lines",
            "-",
            "-",
            f"p99 <={SCRAPE_MS:g} ms",
            p99 <= SCRAPE_MS,
            p50,
        )


# ---------------------------------------------------------------------- beside nvitop-exporter


@contextmanager
def _nvitop(bed: Bench) -> Iterator[tuple[Watched | None, str]]:
    """nvitop-exporter on the stub; or None, and why."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as packages, tempfile.TemporaryFile("w+") as errors, ExitStack() as stack:
        # Beside what is installed: it asks for other versions of what both use.
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, "--target", packages, _NVITOP], capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            yield None, f"nvitop-exporter could not be installed: {(done.stderr.strip() or '-').splitlines()[-1]}"
            return
        arguments = "-m", "nvitop_exporter", "--port", str(port)
        url = f"http://127.0.0.1:{port}"
        # The first start compiles its modules, which takes 12 MiB that stay; the second finds them as installed.
        with bed.python(*arguments, errors=errors, packages=packages) as process:
            runs = _answers(process, url)
        if runs:
            process = stack.enter_context(bed.python(*arguments, errors=errors, packages=packages))
        if runs and _answers(process, url):
            yield Watched("nvitop", process.pid, url), ""
            return
        errors.seek(0)
        said = errors.read().strip().splitlines() or ["it did not answer"]
        yield None, f"nvitop-exporter does not run on the stub: {said[-1]}"


def _answers(process: subprocess.Popen[str], url: str) -> bool:
    """Wait until it serves metrics. False if it ends, or does not within 15 s."""
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError):
            if b"gpu" in Scraper(url, gzip=False).scrape():
                return True
        time.sleep(0.2)
    return False


def _beside(cost: Cost, mine: Watched, their_cost: Cost | None, theirs: Watched | None, reason: str) -> Iterator[Row]:
    """Background, scrapes and memory against theirs."""
    names = [f"beside nvitop-exporter, 8 GPUs: {what}" for what in ("CPU in the background", "a scrape", "memory")]
    if theirs is None or their_cost is None:
        yield from (Row(name, f"not measured: {reason}") for name in names)
        return
    ours, others = _scraped(cost, mine), _scraped(their_cost, theirs)
    for name, mine_told, their_told, ratio, unit, most in (
        (
            names[0],
            f"{cost.cpu * 100:.2f} % at {HZ:g} Hz with activity counters, {cost.nvml:.0f} NVML calls/s",
            f"{their_cost.cpu * 100:.2f} % at 1 Hz without, {their_cost.nvml:.0f}/s",
            cost.cpu / their_cost.cpu,
            "",
            1.0,
        ),
        (
            names[1],
            f"{ours.seconds * 1e3:.1f} ms of CPU for {ours.series} series",
            f"{others.seconds * 1e3:.1f} ms for {others.series}",
            (ours.seconds / ours.series) / (others.seconds / others.series),
            " for each series",
            0.5,
        ),
        (
            names[2],
            f"{ours.mib:.1f} MiB in {len(tree(mine.pid))} processes",
            f"{others.mib:.1f} MiB",
            ours.mib / others.mib,
            "",
            1.25,
        ),
    ):
        yield Row(name, mine_told, their_told, f"{ratio:.2f}x{unit}", f"<={most}x", ratio <= most, ratio)


class _Scraped(NamedTuple):
    """CPU seconds of one scrape, its series, and the memory of all processes."""

    seconds: float
    series: int
    mib: float


def _scraped(cost: Cost, one: Watched, scrapes: int = 100) -> _Scraped:
    scraper = Scraper(one.url, gzip=False)
    series = len(re.findall(rb"^[^#]", scraper.scrape(), re.MULTILINE))
    before, started = sum(_cpu_of(one.pid)), time.monotonic()
    for _ in range(scrapes):
        scraper.scrape()
        time.sleep(0.05)
    spent, took = sum(_cpu_of(one.pid)) - before, time.monotonic() - started
    return _Scraped(max(0.0, spent - cost.cpu * took) / scrapes, series, memory(tree(one.pid)).resident)


# ---------------------------------------------------------------------- in the child


def _bare(hz: float, seconds: float) -> None:
    from benchmarks import sampler_cost

    fields, _, _ = sampler_cost._sources()
    go = sampler_cost._bare(hz)
    go(1.5)  # the first drain of what the driver had buffered before
    sys.stdout.write(json.dumps({str(tier): len(rows) for tier, rows in fields.items() if rows}) + "\n")
    sys.stdout.flush()
    go(seconds + 30)


if __name__ == "__main__":
    if sys.argv[1:2] == ["bare"]:
        _bare(float(sys.argv[2]), float(sys.argv[3]))
    else:
        with bench() as bed:
            for row in rows(bed):
                print(row, flush=True)

"""Two hundred scrapers and some clients that mean ill, on the exporter as its users run it: with a reader of its own,
on the C stub with 8 GPUs. `server_load.py` compares its listener with another; here counts whether reading suffers."""

import asyncio
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(root / "tests"), str(root / "instrumentation"), str(root / "exporter")]

from benchmarks.exporter_children import Bench, bench, cpu_s, machine_cpu_s, tree
from benchmarks.rows import Row
from benchmarks.server_load import REACH_MS, SCRAPERS, SLOW, _ms, _sample_rate, _scrape_once, _scraper, _slow

LOAD_S: Final = 30.0
IDLE_S: Final = 10.0
CLOSED_S: Final = 5.0
_LAG = re.compile(r"^gpu_profile_sampler_lag_seconds (\S+)$", re.MULTILINE)
#: How late a round may start under load: half of the interval, beyond which counters' rows would run together.
LATE_S: Final = 0.05


def rows(bed: Bench) -> Iterator[Row]:
    """The rows of load; about a minute."""
    with bed.exporter() as running:
        yield from asyncio.run(_measure(int(running.url.rpartition(":")[2]), running.process.pid))


async def _measure(port: int, pid: int) -> list[Row]:
    await asyncio.sleep(3)
    idle, idle_lag = await asyncio.gather(_sample_rate(port, IDLE_S), _lags(port, IDLE_S))
    slow = [asyncio.ensure_future(_slow(port, drips=bool(n % 2))) for n in range(SLOW)]
    began_s, cpu, others = time.monotonic(), _ours_s(pid), machine_cpu_s() - _ours_s(pid)
    times, errors, loaded, lag = await _scrapers(port, LOAD_S, period_s=1.0)
    took_s = time.monotonic() - began_s
    cpu, others = _ours_s(pid) - cpu, machine_cpu_s() - _ours_s(pid) - others
    closed, closed_errors, closed_rate, closed_lag = await _scrapers(port, CLOSED_S, period_s=0.0)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    p99, late = _ms(times, 0.99), _ms(lag, 0.99)
    return [
        Row(
            f"{SCRAPERS} scrapers at 1/s and {SLOW} slow clients, exporter and reader, 8 GPUs, C stub, {LOAD_S:.0f} s",
            f"p50 {_ms(times, 0.5):.1f} ms, p99 {p99:.1f} ms, {errors} errors, {cpu / took_s:.0%} of a core "
            f"(scrapers and all else on the machine: {others / took_s:.0%})",
            f"closed loop: {len(closed) / CLOSED_S:.0f}/s, p99 {_ms(closed, 0.99):.0f} ms, {closed_errors} errors",
            "-",
            f"p99 <={REACH_MS:.0f} ms, no error",
            p99 <= REACH_MS and not errors,
        ),
        Row(
            "reading under that load: samples/s, and how late rounds start (p50, p99)",
            f"{loaded:.0f}/s, {_ms(lag, 0.5):.1f} ms, {late:.1f} ms "
            f"(closed loop: {closed_rate:.0f}/s, {_ms(closed_lag, 0.5):.1f} ms, {_ms(closed_lag, 0.99):.1f} ms)",
            f"without: {idle:.0f}/s, {_ms(idle_lag, 0.5):.1f} ms, {_ms(idle_lag, 0.99):.1f} ms",
            f"{loaded / idle:.1%} of the samples",
            f">=99 % of the samples, p99 <={LATE_S * 1e3:g} ms late",
            loaded >= 0.99 * idle and late <= LATE_S * 1e3,
        ),
    ]


def _ours_s(pid: int) -> float:
    return sum(map(cpu_s, tree(pid)))


async def _scrapers(port: int, seconds: float, *, period_s: float) -> tuple[list[float], int, float, list[float]]:
    """Latencies in s, errors, samples taken per second, and how late rounds were in s; lists sorted."""
    times: list[float] = []
    watched = asyncio.gather(_sample_rate(port, seconds - 1), _lags(port, seconds - 1))
    ends_s = time.perf_counter() + seconds
    errors = sum(await asyncio.gather(*(_scraper(port, times, ends_s, period_s) for _ in range(SCRAPERS))))
    rate, lags = await watched
    return sorted(times), errors, rate, lags


async def _lags(port: int, over_s: float) -> list[float]:
    """How late the rounds were that had just begun, s."""
    found, ends_s = [], time.perf_counter() + over_s
    while time.perf_counter() < ends_s:
        found += [float(lag) for lag in _LAG.findall(await _scrape_once(port))]
        await asyncio.sleep(0.25)
    return sorted(found)


if __name__ == "__main__":
    with bench() as bed:
        for row in rows(bed):
            print(row, flush=True)

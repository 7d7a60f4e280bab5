"""What it costs to turn what a node knows into an exposition: 8 devices, no driver and no listener in the way."""

import gc
import gzip
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import cycle
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client import Metric as ClientFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector
from support.exporter import FakeDriver, read_all, step_for

from benchmarks.rows import Row, best
from gpu_profile.catalogue import SIGNALS, Instrument, Metric
from gpu_profile.catalogue.group import DEFAULT_GROUPS
from gpu_profile.catalogue.samples import Device
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.exposition.exposition import Exposition
from gpu_profile_exporter.naming.schemes import NAMES, choose
from gpu_profile_exporter.readings.readings import MetricReading
from gpu_profile_exporter.server.routes import GZIP_LEVEL

LINES: Final = 4_080
OPENMETRICS: Final = "application/openmetrics-text;version=1.0.0"
_DEVICES: Final = 8
_REACH: Final = 15.0


def _metrics(n: int) -> list[Metric]:
    kinds = (("J", Instrument.COUNTER), ("1", Instrument.GAUGE), ("W", Instrument.GAUGE))
    return [
        Metric(f"gpu_profile.benchmark_{i}", *kinds[i % 3], f"Benchmark number {i}", ("hw.id", "part", "hw.type"))
        for i in range(n)
    ]


def _crowd() -> list[list[MetricReading]]:
    """4,080 readings at each of some moments: 51 metrics in 10 parts on 8 devices, values as a node has them.

    Between two moments two fifths of them change, as they do between two scrapes of busy GPUs.
    """
    values = (0.0, 1.0, 0.57, 412.345, 1.98e9, 53_687_091_200.0, 1234.567, 7.001e6)
    ids = [f"GPU-{i:08x}-89ab-cdef-0123-456789abcdef" for i in range(_DEVICES)]
    series = [
        (metric, {"hw.id": hw_id, "part": str(part), "hw.type": "gpu"})
        for metric in _metrics(LINES // _DEVICES // 10)
        for hw_id in ids
        for part in range(10)
    ]
    return [
        [
            MetricReading(metric, attributes, values[i % 8] * (1 + (moment if i % 5 < 2 else 0)))
            for i, (metric, attributes) in enumerate(series)
        ]
        for moment in range(60)
    ]


def _all_new(moments: list[list[MetricReading]]) -> list[list[MetricReading]]:
    """The same series with another value each at every moment, in whole thousandths."""
    return [
        [reading._replace(value=(reading.value * 1000 + 100_003 * (k + 1)) / 1000) for reading in readings]
        for k, readings in enumerate(moments)
    ]


class _Client(Collector):
    """The same families as `prometheus_client` has them, ready to be rendered."""

    def __init__(self, readings: list[MetricReading]) -> None:
        naming = choose("semconv")
        found: dict[str, ClientFamily] = {}
        for metric, attributes, value in readings:
            for series in naming.series(metric, attributes):
                name, kind, text, unit = series.family
                base = name.removesuffix("_total") if kind == "counter" else name
                family = found.setdefault(name, ClientFamily(base, text, kind, unit))
                family.add_sample(name, dict(series.labels), value * series.scale)
        self._families = list(found.values())

    def collect(self) -> list[ClientFamily]:
        return self._families


def _values(families: object) -> Mapping[tuple[object, ...], float]:
    return {
        (family.name, family.type, sample.name, *sorted(sample.labels.items())): sample.value
        for family in families  # type: ignore[attr-defined]
        for sample in family.samples
        if not family.name.startswith("gpu_profile_series")
    }


def against_client() -> Iterator[Row]:
    moments = _crowd()
    client = CollectorRegistry(auto_describe=False)
    client.register(_Client(moments[0]))
    formats: tuple[tuple[str, str, Callable[[CollectorRegistry], bytes], Callable[[str], object]], ...] = (
        ("text 0.0.4", "", generate_latest, parse_text),
        ("OpenMetrics", OPENMETRICS, generate_openmetrics, parse_openmetrics),
    )
    for name, accept, generate, parse in formats:
        theirs = best(partial(generate, client), 10)
        # All of them new is the worst case, which no node is: limits, states and errors hardly ever change.
        for what, readings, reach in (
            ("two fifths of them new", moments, _REACH),
            ("all of them new", _all_new(moments), 0.0),
        ):
            turn = cycle(readings)
            exposition = Exposition(partial(next, turn), process=False)
            for _ in readings[1:]:
                exposition.render(accept)
            ours = best(partial(exposition.render, accept), 50)
            equal = _equal(readings[0], accept, generate, parse)
            yield Row(
                f"{LINES} lines of {name}, {what}",
                f"{ours * 1e3:.2f} ms, parsed {'equal' if equal else 'DIFFERENT'}",
                f"prometheus_client {theirs * 1e3:.1f} ms",
                f"{theirs / ours:.1f}x",
                f">={reach:.0f}x" if reach else "-",
                equal and theirs / ours >= reach,
                ours / theirs,
            )
    turn = cycle(moments)
    exposition = Exposition(lambda: next(turn), process=False)
    packed = best(lambda: gzip.compress(exposition.render()[0], GZIP_LEVEL), 20)
    body = gzip.compress(exposition.render()[0], GZIP_LEVEL)
    yield Row(
        f"{LINES} lines of text, packed by gzip", f"{packed * 1e3:.2f} ms, {len(body) / 1e3:.0f} kB", cost=packed * 1e3
    )
    turns = cycle((moments[0], moments[0][1:]))
    exposition = Exposition(lambda: next(turns), process=False)
    exposition.render()
    anew = best(exposition.render, 20) * 1e3
    yield Row(f"{LINES} lines when a series came or went", f"{anew:.2f} ms", cost=anew)


def _equal(
    readings: list[MetricReading],
    accept: str,
    generate: Callable[[CollectorRegistry], bytes],
    parse: Callable[[str], object],
) -> bool:
    client = CollectorRegistry(auto_describe=False)
    client.register(_Client(readings))
    text = Exposition(lambda: readings, process=False).render(accept)[0].decode()
    return _values(parse(text)) == _values(parse(generate(client).decode()))


def _node() -> tuple[Sampler, FakeClock]:
    clock = FakeClock()
    devices = [
        Device(f"GPU-{i:08x}", index=i, name="NVIDIA H100", pci_bus_id=f"0000:{i:02x}:00.0", memory_bytes=80 << 30)
        for i in range(_DEVICES)
    ]
    rows = [row for row in SIGNALS if row.group in DEFAULT_GROUPS]
    driver = FakeDriver(clock, devices, {row: max(row.lowest, min(i + 1, row.limit)) for i, row in enumerate(rows)})
    sampler = Sampler(lambda: driver, clock=clock, retention_s=60)
    step_for(sampler, clock, 5)
    return sampler, clock


def rows() -> Iterator[Row]:
    """The rows of rendering."""
    yield from against_client()
    sampler, clock = _node()
    n = len(read_all(sampler, clock))
    took = best(lambda: read_all(sampler, clock), 20)
    yield Row(f"all readings of {_DEVICES} devices", f"{took * 1e3:.2f} ms for {n}", cost=took * 1e6 / n)
    # What a running exporter holds for good is not looked through again by the garbage collector.
    gc.collect()
    gc.freeze()
    for names in NAMES:
        exposition = Exposition(lambda: read_all(sampler, clock), choose(names, hostname="node-1"))
        lines = exposition.render()[0].count(b"\n")
        times = []
        for _ in range(300):
            # The thread's own time: what else the machine does at that moment is not the rendering's.
            started = time.thread_time()
            gzip.compress(exposition.render(OPENMETRICS)[0], GZIP_LEVEL)
            times.append(time.thread_time() - started)
        times.sort()
        p50, p99 = times[150] * 1e3, times[296] * 1e3
        yield Row(
            f"CPU of a scrape without a listener, names {names}, gzip",
            f"p50 {p50:.1f} ms, p99 {p99:.1f} ms of {lines} lines",
            "-",
            "-",
            "p99 <=10 ms",
            p99 <= 10,
            p50,
        )
    gc.unfreeze()


if __name__ == "__main__":
    for row in rows():
        sys.stdout.write(f"{row}\n")

"""The needs of fleets, from the measured bytes and times of one sample, one series and one span. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from statistics import median
from typing import Any, Final, NamedTuple

from gpu_profile.units import si

#: Names of the measured rows, whose costs are the figures of `Measured`.
SERIES, SCRAPE, MEMORY, PROCESSOR = "series of a node", "a scrape", "Prometheus: memory", "Prometheus: processor"
DISK, LOG, SPAN = "Prometheus: disk", "Prometheus: write-ahead log", "a span on the wire"
ROW: Final = "a span as a row in ClickHouse"
GPUS_OF_A_NODE: Final = 8
INTERVAL_S: Final = 15
RETENTION_DAYS: Final = 30
#: Spans a second for each GPU: an assumption.
SPANS: Final = 10
SPANS_DAYS: Final = 7
#: Prometheus adds these to each target: up and four of the scrape.
_OF_THE_SCRAPE: Final = 5
#: The log keeps up to three hours: Prometheus writes a block of two, and removes that part of the log.
_LOG_S: Final = 3 * 3600
_DAY_S: Final = 24 * 3600
FLEETS: Final = (10, 1_000, 10_000)


class Measured(NamedTuple):
    """`series` of a node, bytes of a sample in a compressed scrape, kB of memory for a series, µs of a core for a
    sample, bytes of a sample on disk and in the write-ahead log, bytes of a span compressed and as a row in ClickHouse.
    """

    series: float
    scrape: float
    memory: float
    processor: float
    disk: float
    log: float
    span: float
    row: float

    @classmethod
    def of(cls, costs: Mapping[str, float]) -> "Measured":
        """From the costs of the rows by name. KeyError if one is missing."""
        return cls(*(costs[name] for name in (SERIES, SCRAPE, MEMORY, PROCESSOR, DISK, LOG, SPAN, ROW)))


class FleetNeeds(NamedTuple):
    """A fleet's numbers: counts, bytes, bytes per second, and cores."""

    nodes: int
    series: float
    samples_per_s: float
    scrapes_bytes_per_s: float
    memory_bytes: float
    cores: float
    disk_bytes: float
    spans_per_s: float
    spans_bytes_per_s: float
    rows_bytes: float


def needs(gpus: int, measured: Measured) -> FleetNeeds:
    """The needs of this many GPUs, on full nodes."""
    nodes = ceil(gpus / GPUS_OF_A_NODE)
    series = nodes * (measured.series + _OF_THE_SCRAPE)
    samples = series / INTERVAL_S
    kept = measured.disk * RETENTION_DAYS * _DAY_S + measured.log * _LOG_S
    spans = gpus * SPANS
    return FleetNeeds(
        nodes,
        series,
        samples,
        samples * measured.scrape,
        series * measured.memory * 1e3,
        samples * measured.processor / 1e6,
        samples * kept,
        spans,
        spans * measured.span,
        spans * measured.row * SPANS_DAYS * _DAY_S,
    )


def columns(fleets: Sequence[int] = FLEETS) -> tuple[str, ...]:
    """The heads of a table of fleets."""
    return ("quantity", *(f"{gpus:,} GPUs" for gpus in fleets))


def table_rows(measured: Measured, fleets: Sequence[int] = FLEETS) -> list[tuple[str, ...]]:
    """The rows of a table of fleets."""
    each = [needs(gpus, measured) for gpus in fleets]
    return [
        (f"nodes of {GPUS_OF_A_NODE} GPUs", *(f"{one.nodes:,}" for one in each)),
        ("series", *(f"{one.series:,.0f}" for one in each)),
        (f"samples a second, scraped every {INTERVAL_S} s", *(f"{one.samples_per_s:,.0f}" for one in each)),
        ("network: scrapes, compressed", *(si(one.scrapes_bytes_per_s, "B/s", 2) for one in each)),
        ("Prometheus: memory of the series", *(si(one.memory_bytes, "B", 2) for one in each)),
        ("Prometheus: processor, without queries", *(f"{one.cores:.2g} cores" for one in each)),
        (f"Prometheus: disk for {RETENTION_DAYS} days", *(si(one.disk_bytes, "B", 2) for one in each)),
        (f"spans a second, {SPANS} for each GPU", *(f"{one.spans_per_s:,.0f}" for one in each)),
        ("network: spans with GPU attributes, compressed", *(si(one.spans_bytes_per_s, "B/s", 2) for one in each)),
        (f"ClickHouse: disk of spans for {SPANS_DAYS} days", *(si(one.rows_bytes, "B", 2) for one in each)),
    ]


def cells(accepted: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The heads and the rows of a table of fleets, from the accepted rows of the benchmark."""
    costs = {row["name"]: median(row["costs"]) for row in accepted if row["costs"]}
    return columns(), table_rows(Measured.of(costs))

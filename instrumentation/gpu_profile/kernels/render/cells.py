"""Reports as cells of text, for the console and the page. Unknown values are dashes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.render.names import middle
from gpu_profile.kernels.sums import KernelSum
from gpu_profile.regimes import Regime, Verdict
from gpu_profile.report.table import REGIME, UNKNOWN, printable, regime_cell
from gpu_profile.units import percent, si

#: Rows of a table of regions; if there are more regions, the ones with the longest busy time.
MOST_REGIONS: Final = 60
_NAME, _LONG_NAME = 34, 64
OUTSIDE: Final = "in no region"


def chosen(regions: Sequence[RegionKernels], most: int) -> list[RegionKernels]:
    """All regions, or the `most` with the longest busy time; in their order."""
    kept = {id(each) for each in sorted(regions, key=lambda each: -each.busy_ns)[:most]}
    return [each for each in regions if id(each) in kept]


def region_table(regions: Iterable[RegionKernels], *, on_host: bool, causes: bool) -> list[tuple[str, ...]]:
    """A header and a row for each region; `on_host`: of operators on a CPU."""
    head: tuple[str, ...] = ("operators", "busy", "mean")
    if not on_host:
        head = ("GPU span", "busy", "of span", "host wait", "of span", "kernels", "mean", "copied", REGIME)
    rows = [(*_host_cells(r), *(_operator_cells(r) if on_host else _gpu_cells(r, causes=causes))) for r in regions]
    return [("region", "times", "on the host", *head), *rows]


def _host_cells(r: RegionKernels) -> tuple[str, ...]:
    if not r.name:
        return OUTSIDE, UNKNOWN, UNKNOWN
    return middle(printable(r.name), _NAME), f"{r.executions:,}", time(r.host_ns)


def _operator_cells(r: RegionKernels) -> tuple[str, ...]:
    return f"{r.kernel_count:,}", time(r.busy_ns), time(r.mean_kernel_ns)


def _gpu_cells(r: RegionKernels, *, causes: bool) -> tuple[str, ...]:
    verdict = r.verdict()
    wait = r.idle.by_cause(causes=causes)["host_wait"]
    return (
        time(r.span_ns) if r.devices else UNKNOWN,
        time(r.busy_ns),
        ratio(r.busy_ratio),
        time(wait) if r.devices else UNKNOWN,
        share(wait, r.span_ns),
        f"{r.kernel_count:,}",
        time(r.mean_kernel_ns),
        UNKNOWN if r.copy_bytes is None else si(r.copy_bytes, "B"),
        regime_cell(verdict),
    )


def kernel_table(
    ranked: Iterable[tuple[str, KernelSum]], whole: int, shown: Mapping[str, str], what: str
) -> list[tuple[str, ...]]:
    """A header and a row for each kernel. `shown`: labels by name; `whole`: the denominator of shares, in ns."""
    rows = [
        (
            shown[name],
            f"{each.count:,}",
            time(each.total_ns),
            share(each.total_ns, whole),
            time(each.total_ns / each.count if each.count else None),
            time(each.max_ns),
        )
        for name, each in ranked
    ]
    return [(what, "times", "total", f"of {what} time", "mean", "longest"), *rows]


def copies_table(regions: Sequence[RegionKernels], *, one: bool) -> list[tuple[str, ...]]:
    """A header and a row for each direction of copies of each region; empty if there were none. `one`: region."""
    rows = [
        (
            r.name or OUTSIDE,
            printable(direction),
            f"{sums.count:,}",
            time(sums.total_ns),
            si(sums.bytes, "B") if sums.known_ns else UNKNOWN,
            UNKNOWN if sums.bytes_per_s is None else si(sums.bytes_per_s, "B/s"),
        )
        for r in regions
        for direction, sums in sorted(r.copies.items())
    ]
    return without_region([("region", "copies", "times", "total", "bytes", "bytes/s"), *rows], one=one)


def memory_table(regions: Sequence[RegionKernels], *, one: bool) -> list[tuple[str, ...]]:
    """A header and a row for each allocator of each region and device; empty if there is none. `one`: region."""
    rows = [
        (
            r.name or OUTSIDE,
            f"{printable(m.source)}, {'host' if m.device < 0 else f'GPU {m.device}'}",
            f"{m.allocations:,}",
            size(m.allocated_bytes),
            f"{m.frees:,}",
            size(m.freed_bytes),
            size(m.peak_bytes),
            size(m.rise_bytes),
        )
        for r in regions
        for m in r.memory
    ]
    head = ("region", "memory", "taken", "bytes", "freed", "bytes", "peak", "rise in one execution")
    return without_region([head, *rows], one=one)


def without_region(table: list[tuple[str, ...]], *, one: bool) -> list[tuple[str, ...]]:
    """A table whose first column is the region: without it where there is only one, and empty without rows."""
    if len(table) == 1:
        return []
    return [row[1:] for row in table] if one else [(middle(printable(row[0]), _LONG_NAME), *row[1:]) for row in table]


# ---------------------------------------------------------------------- values


def confidence(verdict: Verdict) -> str:
    """The confidence of a verdict, as a suffix of its regime; empty for UNKNOWN."""
    return "" if verdict.regime is Regime.UNKNOWN else f", confidence {percent(verdict.confidence, 0)}"


def time(ns: float | None) -> str:
    """Nanoseconds as seconds with a prefix, or a dash."""
    return UNKNOWN if ns is None else si(ns / 1e9, "s")


def share(part: int | None, whole: int) -> str:
    """A percentage, or a dash."""
    return UNKNOWN if part is None or not whole else percent(part / whole)


def ratio(value: float | None) -> str:
    """A ratio of 0-1 as a percentage, or a dash."""
    return UNKNOWN if value is None else percent(value)


def size(value: int | None) -> str:
    """Bytes, in powers of 1024 as memory is, or a dash."""
    if value is None:
        return UNKNOWN
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(value) >= 1 << (10 * power):
            return f"{value / (1 << (10 * power)):.3g} {unit}"
    return f"{value} B"

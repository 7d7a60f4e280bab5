"""A report as CSV: a row for each region and each name of a kernel in it.

Units are in the header's names. An unknown value is an empty cell, never 0. Text that a spreadsheet would take for a
formula has an apostrophe before it. Names are not shortened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.report import ReportData
from gpu_profile.kernels.sums import KernelSum, longest_first
from gpu_profile.report.as_csv import Cell, csv_text
from gpu_profile.units import seconds


class _Row(NamedTuple):
    region: RegionKernels
    regime: str
    whole_ns: int
    kernel: str
    sums: KernelSum


_COLUMNS: Final[Mapping[str, Callable[[_Row], Cell]]] = {
    "region": lambda row: row.region.name,
    "executions": lambda row: row.region.executions if row.region.name else None,
    "region_host_s": lambda row: seconds(row.region.host_ns) if row.region.name else None,
    "region_span_s": lambda row: None if row.region.on_host else seconds(row.region.span_ns),
    "region_busy_s": lambda row: seconds(row.region.busy_ns),
    "regime": lambda row: row.regime,
    "runs_on": lambda row: "host" if row.region.on_host else "gpu",
    "kernel": lambda row: row.kernel,
    "count": lambda row: row.sums.count,
    "total_s": lambda row: seconds(row.sums.total_ns),
    "mean_s": lambda row: row.sums.total_ns / row.sums.count / 1e9 if row.sums.count else None,
    "max_s": lambda row: seconds(row.sums.max_ns),
    "share_of_region_kernel_s_ratio": lambda row: row.sums.total_ns / row.whole_ns if row.whole_ns else None,
}


def kernels_csv(report: ReportData, *, region: str | None = None) -> str:
    """A header and the rows, ended by line feeds; regions in their order, kernels by their time.

    Kernels launched in no region come last, with an empty name. With `region`, only this one (UsageError if there is
    none).
    """
    chosen = report.regions if region is None else (report.region(region),)
    if region is None and report.outside is not None:
        chosen = (*chosen, report.outside)
    return csv_text(_COLUMNS, (row for each in chosen for row in _rows(each)))


def _rows(region: RegionKernels) -> Iterator[_Row]:
    regime, whole = str(region.verdict().regime), region.kernel_ns
    for name, sums in longest_first(region.kernels):
        yield _Row(region, regime, whole, name, sums)

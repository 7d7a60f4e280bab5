"""A report as CSV: a row for each region and each name of a kernel in it.

Units are in the header's names. What is not known is an empty cell, never 0. Text that a spreadsheet would take for a
formula has an apostrophe before it. Names are whole.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from typing import Final

from gpu_profile.analysis.runs import printable
from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.render.shares import longest_first
from gpu_profile.kernels.report import KernelReport
from gpu_profile.kernels.sums import KernelSum
from gpu_profile.units import seconds

Cell = str | int | float | None
_FORMULA: Final = ("=", "+", "-", "@")
_COLUMNS: Final[Mapping[str, Callable[[RegionKernels, str, KernelSum], Cell]]] = {
    "region": lambda r, _n, _k: r.name,
    "executions": lambda r, _n, _k: r.executions,
    "region_host_s": lambda r, _n, _k: seconds(r.host_ns),
    "region_span_s": lambda r, _n, _k: seconds(r.span_ns),
    "region_busy_s": lambda r, _n, _k: seconds(r.busy_ns),
    "regime": lambda r, _n, _k: str(r.verdict().regime),
    "runs_on": lambda r, _n, _k: "host" if r.on_host else "gpu",
    "kernel": lambda _r, name, _k: name,
    "count": lambda _r, _n, k: k.count,
    "total_s": lambda _r, _n, k: seconds(k.total_ns),
    "mean_s": lambda _r, _n, k: k.total_ns / k.count / 1e9 if k.count else None,
    "max_s": lambda _r, _n, k: seconds(k.max_ns),
    "share_of_region_kernel_s_ratio": lambda r, _n, k: k.total_ns / r.kernel_ns if r.kernel_ns else None,
}


def kernels_csv(report: KernelReport, *, region: str | None = None) -> str:
    """A header and the rows, ended by line feeds; regions in their order, kernels by their time.

    What ran in no region comes last, with no name. With `region` only this one; UsageError if there is none.
    """
    chosen = report.regions if region is None else (report.region(region),)
    if region is None and report.outside is not None:
        chosen = (*chosen, report.outside)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for each in chosen:
        for name, sums in longest_first(each.kernels):
            writer.writerow([_cell(read(each, name, sums)) for read in _COLUMNS.values()])
    return out.getvalue()


def _cell(value: Cell) -> str | int | float:
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA) else text

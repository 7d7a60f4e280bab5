"""Hardware counters of a region as a table and as JSON: sums as they are, ratios made of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gpu_profile.kernels.counters.sums import CounterSums
from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.render.cells import OUTSIDE, ratio, without_region
from gpu_profile.report.table import printable
from gpu_profile.units import si

_HEAD: Final = ("region", "counter", "value", "at least", "at most", "of kernel time")


def counters_object(counters: CounterSums | None) -> dict[str, Any] | None:
    """Counters as JSON. Each has its coverage: the share of the region's kernel time that has records."""
    if counters is None:
        return None
    return {
        "sums": {
            metric: {
                "value": each.value,
                "exact": each.exact,
                "shared": each.shared,
                "low": each.exact + each.low,
                "high": each.exact + each.high,
                "most": each.most,
                "coverage": counters.coverage(metric),
            }
            for metric, each in sorted(counters.sums.items())
        },
        "means": {
            metric: {
                "value": each.weighted / each.ns if each.ns else None,
                "least": each.least,
                "most": each.most,
                "coverage": counters.coverage(metric),
            }
            for metric, each in sorted(counters.means.items())
        },
        "figures": {
            name: {"value": each.value, "unit": each.unit, "coverage": each.coverage, "exact": each.exact}
            for name, each in counters.figures().items()
        },
    }


def counter_table(regions: Sequence[RegionKernels], *, one: bool) -> list[tuple[str, ...]]:
    """A header and a row for each counter and each figure made of counters; empty if there are none. `one`: region."""
    rows = [(r.name or OUTSIDE, *row) for r in regions if r.counters is not None for row in _rows(r.counters)]
    return without_region([_HEAD, *rows], one=one)


def _rows(counters: CounterSums) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, figure in counters.figures().items():
        about = "" if figure.exact else "about "
        rows.append((name, about + _value(figure.value, figure.unit), "", "", ratio(figure.coverage)))
    for metric, each in sorted(counters.sums.items()):
        bounds, about = ("", ""), ""
        if each.low != each.high:
            bounds, about = (f"{each.exact + each.low:,.6g}", f"{each.exact + each.high:,.6g}"), "about "
        rows.append((printable(metric), f"{about}{each.value:,.6g}", *bounds, ratio(counters.coverage(metric))))
    for metric, mean in sorted(counters.means.items()):
        value = f"{mean.weighted / mean.ns:,.6g}" if mean.ns else "–"
        rows.append(
            (printable(metric), value, f"{mean.least:,.6g}", f"{mean.most:,.6g}", ratio(counters.coverage(metric)))
        )
    return rows


def _value(value: float, unit: str) -> str:
    plain = unit.replace("{", "").replace("}", "").replace("By", "B")
    return f"{value:.3g}" if plain in ("", "1") else si(value, plain)

"""The counters among the region metrics, read from a joiner. `prometheus` and `instruments` publish them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal

from gpu_profile.catalogue import Metric, Signal
from gpu_profile.catalogue import metrics as rows
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.regions.session.joiner import Joiner
from gpu_profile.units import NS_PER_S

#: The value of every series of one metric, by the values of the metric's labels.
Series = dict[tuple[str, ...], float]


def _calls(joiner: Joiner) -> Series:
    return {key: float(calls) for key, calls in joiner.verdicts.calls.items()}


def _shares(source: Callable[[Pool], Signal | None], part: Literal["certain", "uncertain"], joiner: Joiner) -> Series:
    return {
        (region, uuid): getattr(counted, part)
        for uuid, pool in joiner.pools.items()
        for region in pool.attribution.names
        if (counted := pool.counted(region, source(pool))) is not None
    }


def _spinning(joiner: Joiner) -> Series:
    return {key: ns / NS_PER_S for key, ns in list(joiner.spinning.total_ns.items())}


def _items(joiner: Joiner) -> Series:
    return {(region,): d.items for region, d in joiner.verdicts.durations.items() if d.items is not None}


def _errors(joiner: Joiner) -> Series:
    return {(region,): d.errors for region, d in joiner.verdicts.durations.items()}


def _flops(joiner: Joiner) -> Series:
    # OTLP integers end at 9e18; a long run exceeds that.
    return {(region,): float(o.counted) for region, o in joiner.verdicts.operations.items() if o.counted is not None}


def _traffic(joiner: Joiner) -> Series:
    return {(region,): float(o.bytes) for region, o in joiner.verdicts.operations.items() if o.bytes is not None}


def _kernels(row: Metric, joiner: Joiner) -> Series:
    regions = ((region, works.counters()) for region, works in joiner.verdicts.kernels.items())
    return {(region,): counters[row] for region, counters in regions if row in counters}


#: Every counter among the region metrics, in the catalogue's order, with its reader.
COUNTERS: Final[tuple[tuple[Metric, Callable[[Joiner], Series]], ...]] = (
    (rows.REGION_CALLS, _calls),
    (rows.REGION_BUSY, partial(_shares, Pool.busy_source, "certain")),
    (rows.REGION_BUSY_UNCERTAIN, partial(_shares, Pool.busy_source, "uncertain")),
    (rows.REGION_ENERGY, partial(_shares, Pool.energy_source, "certain")),
    (rows.REGION_ENERGY_UNCERTAIN, partial(_shares, Pool.energy_source, "uncertain")),
    (rows.REGION_SPINNING, _spinning),
    (rows.REGION_ITEMS, _items),
    (rows.REGION_ERRORS, _errors),
    (rows.REGION_FLOPS, _flops),
    (rows.REGION_TRAFFIC, _traffic),
    *((row, partial(_kernels, row)) for row in rows.REGION_KERNEL_METRICS),
)

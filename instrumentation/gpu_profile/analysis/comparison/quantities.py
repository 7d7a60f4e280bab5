"""The compared quantities of one region in one recording, with their confidence intervals. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import hypot, isfinite, sqrt
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.analysis.account import Analysis, RegionUse
from gpu_profile.analysis.chance import (
    Edges,
    correlation_time,
    mean_half_width,
    normal_quantile,
    order_edges,
    share_edges,
)
from gpu_profile.analysis.runs import Runs
from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.rate import Z95
from gpu_profile.units import NS_PER_S

#: The compared quantities and their units (1: a share). `x/item` is x per unit of work.
QUANTITIES: Final = {
    "duration": "s",
    "p50": "s",
    "p95": "s",
    "busy": "s",
    "energy": "J",
    "duration/item": "s",
    "busy/item": "s",
    "energy/item": "J",
    "failures": "1",
}
#: The compared quantities of benchmarks' runs (`costs`). `gpu_time` is time in iterations, of all GPUs.
RUN_QUANTITIES: Final = {"energy/token": "J", "energy/request": "J", "gpu_time/request": "s"}
#: The units of both.
UNITS: Final = {**QUANTITIES, **RUN_QUANTITIES}
#: With fewer executions, an interval would say more about the method than about the region.
LEAST_CALLS: Final = 8
#: The same for independent executions.
LEAST_INDEPENDENT: Final = 6


class CallEstimate(NamedTuple):
    """A quantity of `calls` executions, or the `reason` why it is unknown.

    `time` is its correlation time in executions. `edges` computes the interval from alpha and the number of independent
    executions that its own are worth. It returns None if there are too few.
    """

    value: float | None
    calls: int = 0
    time: float = 1.0
    edges: Callable[[float, float], Edges | None] | None = None
    reason: str = ""

    def interval(self, alpha: float, time: float) -> Edges | None:
        """The interval if executions have this correlation time; None with `why_not`."""
        if self.edges is None or self.why_not(time):
            return None
        return self.edges(alpha, self.calls / time)

    def why_not(self, time: float) -> str:
        """Why there is no interval, whatever its alpha; empty if there is one."""
        if self.reason or self.edges is None:
            return self.reason
        if self.calls < LEAST_CALLS:
            return f"only {self.calls} execution{'s' * (self.calls != 1)}, {LEAST_CALLS} are needed for an interval"
        if self.calls / time >= LEAST_INDEPENDENT:
            return ""
        return (
            f"its {self.calls} executions depend on one another and tell no more than "
            f"{max(1, round(self.calls / time))} independent ones; {LEAST_INDEPENDENT} are needed for an interval"
        )


def quantities_of(analysis: Analysis, region: str) -> dict[str, CallEstimate]:
    """All quantities of a region. Unknown ones have a reason."""
    runs = analysis.runs[region]
    durations, on_device, items = runs.durations_s, runs.joined_ns / NS_PER_S, runs.items
    calls = len(durations)
    estimates = {"duration": _mean(durations), "p50": _quantile(durations, 0.5), "p95": _quantile(durations, 0.95)}
    uses = analysis.of(region)
    rates = {"busy": _busy(uses, calls), "energy": _energy(uses, calls)}
    estimates |= {name: _spread(rate, _mean(on_device)) for name, rate in rates.items()}
    if items is not None:
        each = float(items.sum()) / calls
        estimates["duration/item"] = _mean(durations, items)
        estimates |= {f"{name}/item": _spread(rate.per(each), _mean(on_device, items)) for name, rate in rates.items()}
    else:
        some = bool(uses and uses[0].summary.durations.items)
        reason = "only some of the executions reported their items" if some else ""
        estimates |= {f"{name}/item": CallEstimate(None, reason=reason) for name in ("duration", "busy", "energy")}
    estimates["failures"] = _failures(runs)
    return estimates


def _mean(values: Floats, items: Floats | None = None) -> CallEstimate:
    """The mean per execution, or per item."""
    units = np.ones(len(values)) if items is None else items
    value = float(values.sum() / units.sum())
    deviations = (values - value * units) / float(units.mean())

    def edges(alpha: float, worth: float) -> Edges:
        half = mean_half_width(deviations, alpha, worth)
        return value - half, value + half

    return CallEstimate(value, len(values), correlation_time(deviations), edges)


def _quantile(values: Floats, q: float) -> CallEstimate:
    ordered = np.sort(values)
    value = float(np.quantile(ordered, q))
    time = correlation_time((values <= value).astype(np.float64))
    return CallEstimate(value, len(values), time, partial(order_edges, ordered, q))


def _failures(runs: Runs) -> CallEstimate:
    """The share of executions that failed."""
    if runs.failed is None:
        return CallEstimate(None, reason="the recording does not say which executions failed")
    share = float(runs.failed.mean())
    time = correlation_time(runs.failed.astype(np.float64))
    return CallEstimate(share, len(runs.failed), time, partial(share_edges, share))


class _Rate(NamedTuple):
    """The devices' work per call, with the 95 % half-width of the recovered rate, or the reason why it is unknown."""

    value: float | None
    half_width: float | None = None
    reason: str = ""

    def per(self, items: float) -> _Rate:
        """The same per item, with `items` items in a call."""
        if self.value is None:
            return self
        return self._replace(
            value=self.value / items, half_width=None if self.half_width is None else self.half_width / items
        )


def _spread(rate: _Rate, time: CallEstimate) -> CallEstimate:
    """A rate's interval, widened by the uncertainty of the time per call (or item)."""
    value, half_width, time_edges, time_s = rate.value, rate.half_width, time.edges, time.value
    if value is None or time_edges is None:
        return CallEstimate(value, reason=rate.reason)
    if half_width is None or not isfinite(half_width):
        return CallEstimate(value, reason=rate.reason or "its half-width is not known")

    def edges(alpha: float, worth: float) -> Edges:
        _, high = time_edges(alpha, worth) or (0.0, 0.0)
        share = high / time_s - 1.0 if time_s else 0.0
        half = hypot(half_width * normal_quantile(alpha) / Z95, value * share)
        return value - half, value + half

    return CallEstimate(value, time.calls, time.time, edges)


def _busy(uses: list[RegionUse], calls: int) -> _Rate:
    """Seconds that the region's devices were busy per call, regions inside it included."""
    total, squares = 0.0, 0.0
    for use in uses:
        summary = use.summary
        if summary.busy is None:
            return _Rate(None, reason=summary.reason or "not measured")
        total += summary.busy * summary.interval_s
        squares += ((summary.busy_half_width or 0.0) * summary.interval_s) ** 2
    return _Rate(total / calls, half_width=sqrt(squares) / calls)


def _energy(uses: list[RegionUse], calls: int) -> _Rate:
    """Joules per call, regions inside it included."""
    total, squares = 0.0, 0.0
    for use in uses:
        summary = use.summary
        if summary.call_energy_j is None:
            reason = next((r.partition(": ")[2] for r in use.reasons if r.startswith("energy")), "not measured")
            return _Rate(None, reason=reason)
        total += summary.call_energy_j * summary.executions
        squares += ((summary.power_half_width or 0.0) * summary.interval_s) ** 2
    return _Rate(total / calls, half_width=sqrt(squares) / calls)

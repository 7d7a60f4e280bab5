"""Turns readings and pooled results into the summary of a region. Pure.

`RegionSummary` is one region on one device, over all its executions. `SpanReading` is one execution. Either becomes
`Evidence`, the only input of the regimes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import BUSY_SOURCES, Signal, Tier
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, Interval
from gpu_profile.history.timeline import Column, Timeline
from gpu_profile.join.reading import LATEST_GPM_NS, WIDEST_WINDOW, Reading, read
from gpu_profile.join.unmixing.pools.contrast import contrast
from gpu_profile.join.unmixing.pools.meter import Metered
from gpu_profile.join.unmixing.pools.periods import Period
from gpu_profile.join.unmixing.pools.pooled import Pooled
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.solving.rate import Rate
from gpu_profile.join.unmixing.windows.throttling import throttle_counters
from gpu_profile.regimes import Verdict
from gpu_profile.regimes.evidence import Basis, Evidence
from gpu_profile.units import NS_PER_S, counted

#: The shares of a device's ceilings in evidence, and the signal behind each.
ACTIVITIES: Final[Mapping[str, Signal]] = {
    "sm": rows.SM,
    "occupancy": rows.OCCUPANCY,
    "tensor": rows.TENSOR,
    "dram": rows.DRAM,
    "fp64": rows.FP64,
    "fp32": rows.FP32,
    "fp16": rows.FP16,
    "integer": rows.INTEGER,
    "memory_controller": rows.MEMORY_CONTROLLER,
    "utilization": rows.UTILIZATION,
}
#: The pipes among them.
_PIPES: Final = ("tensor", "fp64", "fp32", "fp16", "integer")
#: The rate of copies that a host thread stages, from pageable memory: 6 to 12 GB/s.
_STAGED_BYTES_PER_S: Final = 8e9
#: The engines that work beside the multiprocessors.
_ENGINES: Final = (rows.DECODER, rows.ENCODER)
#: Readings of clocks and throttling older than this do not describe the present.
_HISTORY_NS: Final = 60 * NS_PER_S
#: Busy shares below this count as 0, even if noise makes them uncertain.
_NEGLIGIBLE: Final = 0.01
#: The energy counter's growth is comparable with the unmixed power if it covers this share of the region's time.
_SAME: Final = 0.9
_UNCOVERED: Final = "no samples cover the region"
#: An execution is described by its own readings if samples cover this much of it.
LEAST_COVERAGE: Final = 0.9


@dataclass(frozen=True, slots=True)
class SpanReading:
    """One execution on one device: its own readings by signal."""

    device: Device
    interval: Interval
    readings: Mapping[Signal, Reading]

    def get(self, sources: Iterable[Signal]) -> Reading | None:
        """The reading of the first of `sources` with one."""
        return next((r for s in sources if (r := self.readings.get(s)) is not None), None)

    @property
    def resolved(self) -> bool:
        """Whether the readings describe this execution, not its neighbourhood."""
        busy = self.get(BUSY_SOURCES)
        if busy is None:
            return False
        late_ns = LATEST_GPM_NS if busy.signal.tier is Tier.GPM else 0
        beside = busy.resolution + late_ns / (self.interval.end_ns - self.interval.start_ns)
        return busy.coverage >= LEAST_COVERAGE and beside <= WIDEST_WINDOW


def read_span(timeline: Timeline, interval: Interval) -> SpanReading:
    """Join one interval with every signal of a device."""
    readings = {s: r for s, c in timeline.columns.items() if (r := read(c, interval)) is not None}
    return SpanReading(timeline.device, interval, readings)


@dataclass(frozen=True, slots=True)
class Durations:
    """A region's executions on the host: count, failures, units of work, total seconds, and quantiles."""

    calls: int = 0
    errors: int = 0
    items: float | None = None
    total_s: float = 0.0
    p50_s: float | None = None
    p95_s: float | None = None
    max_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RegionSummary:
    """A region on one device, over all its executions so far.

    `interval_s` is the joined time: the sum of device intervals if there are any, else of host intervals. `busy` and
    `power_w` are means over that time, regions inside this one included. `call_energy_j` is the mean of an execution.
    `busy_s` and `energy_j` are the region's exclusive shares of the device's measured totals. Half-widths belong to
    95 % intervals. A share without one is uncertain: shared out by time, for lack of the region's rate. None means
    undetermined, with the cause in `reason` or, for power and energy, in `energy_reason`. `rates` has the rates of all
    signals with one, by key. `metered` is the energy counter's result for executions of 2 s or more, with nothing
    unmixed. `contradiction` describes how `power_w` contradicts it; empty if it does not. `throttled` is the share of
    the region's time in which the driver held the clocks down, by reason.
    """

    region: str
    device: Device
    durations: Durations
    interval_s: float
    interval_source: str
    executions: int
    busy: float | None
    busy_half_width: float | None
    busy_source: str
    busy_s: float | None
    busy_s_half_width: float | None
    power_w: float | None
    power_half_width: float | None
    energy_source: str
    energy_j: float | None
    energy_half_width: float | None
    call_energy_j: float | None
    memory_max: float | None
    evidence: Evidence
    reason: str = ""
    energy_reason: str = ""
    rates: Mapping[str, Rate] = field(default_factory=dict)
    metered: Metered | None = None
    contradiction: str = ""
    throttled: Mapping[str, float] = field(default_factory=dict)


class Judged(NamedTuple):
    """A region on one device, with the verdict on it."""

    summary: RegionSummary
    verdict: Verdict


def summarise(pool: Pool, region: str, durations: Durations, *, interval_source: str) -> RegionSummary:
    """The summary of `region` on the device of `pool`."""
    pooled = pool.pooled(region)
    busy_source, energy_source = pooled.busy_source, pooled.energy_source
    busy = pooled.rates.get(busy_source) if busy_source else None
    power = pooled.rates.get(energy_source) if energy_source else None
    idle = pooled.executions > 0 and pooled.inclusive_s == 0.0 and interval_source == "device" and pool.whole
    # On an idle region's stream, its last mark passed directly after its first: it launched nothing, and used nothing.
    reason = "" if idle else _why(busy, busy_source, "utilisation")
    share = None if idle or busy is None or busy.reason else busy
    watts = None if idle or power is None or power.reason else power
    joules = watts.value * pooled.inclusive_s / pooled.executions if watts and pooled.executions else None
    return RegionSummary(
        region=region,
        device=pool.timeline.device,
        durations=durations,
        interval_s=pooled.inclusive_s,
        interval_source=interval_source,
        executions=pooled.executions,
        busy=0.0 if idle else share and share.value,
        busy_half_width=share and share.half_width,
        busy_source=busy_source.key if busy_source else "",
        busy_s=0.0 if idle else pooled.busy_s,
        busy_s_half_width=0.0 if idle else pooled.busy and pooled.busy.half_width,
        power_w=watts and watts.value,
        power_half_width=watts and watts.half_width,
        energy_source=energy_source.key if energy_source else "",
        energy_j=0.0 if idle else pooled.energy_j,
        energy_half_width=0.0 if idle else pooled.energy and pooled.energy.half_width,
        call_energy_j=0.0 if idle else joules,
        memory_max=pooled.memory_max,
        evidence=pooled_evidence(pool, pooled, launches_nothing=idle),
        reason=reason,
        energy_reason="" if idle else _why(power, energy_source, "power"),
        rates={signal.key: rate for signal, rate in pooled.rates.items() if not rate.reason},
        metered=pooled.metered,
        contradiction=_contradiction(pooled, watts),
        throttled=pooled.throttled,
    )


def unfinished(region: str, device: Device, evidence: Evidence) -> RegionSummary:
    """The summary of a region none of whose executions has ended: no measured value, only `evidence` for a verdict."""
    why = "its first execution has not ended"
    return RegionSummary(
        region=region,
        device=device,
        durations=Durations(),
        interval_s=0.0,
        interval_source="host",
        executions=0,
        busy=None,
        busy_half_width=None,
        busy_source="",
        busy_s=None,
        busy_s_half_width=None,
        power_w=None,
        power_half_width=None,
        energy_source="",
        energy_j=None,
        energy_half_width=None,
        call_energy_j=None,
        memory_max=None,
        evidence=evidence,
        reason=why,
        energy_reason=why,
    )


def _contradiction(pooled: Pooled, power: Rate | None) -> str:
    """How the unmixed power contradicts the counter's for the same executions; empty if it does not."""
    metered = pooled.metered
    if power is None or metered is None or metered.total_s < _SAME * pooled.inclusive_s or pooled.alone:
        return ""
    if abs(power.value - metered.power_w) <= power.half_width + metered.power_half_width_w:
        return ""
    return (
        f"{power.value:.4g} W ±{power.half_width:.2g} by unmixing contradicts {metered.power_w:.4g} W "
        f"±{metered.power_half_width_w:.2g}, the energy counter's growth over "
        f"{counted(metered.executions, 'execution', 'executions')}"
    )


def _why(rate: Rate | None, source: Signal | None, quantity: str) -> str:
    """Why there is no rate; empty if there is one."""
    if rate is not None:
        return rate.reason
    return "no samples yet" if source else f"the device reports no {quantity}"


def pooled_evidence(pool: Pool, pooled: Pooled, *, launches_nothing: bool = False) -> Evidence:
    """Evidence from rates over many executions."""
    values: dict[str, float] = {}
    busy_source = pooled.busy_source
    busy = pooled.rates.get(busy_source) if busy_source else None
    overall = pool.mean(busy_source) if busy_source else None
    if overall is not None:
        values["device_busy"] = min(1.0, overall)
    if launches_nothing:
        values["busy"] = 0.0
        return Evidence(_basis(pool.timeline), values, pooled.executions, 1.0, 0.0)
    most = _most_busy(pool, pooled, overall)
    if busy is not None and busy.reason and busy.n and most is not None and most < _NEGLIGIBLE:
        # Nothing to unmix: a device that is idle throughout is idle for this region too.
        busy = Rate(most, most, busy.n)
    if busy is None or busy.reason:
        return Evidence(_basis(pool.timeline), values, busy.n if busy else 0, 0.0, None, busy.reason if busy else "")
    values["busy"] = min(1.0, busy.value)
    _add_shares(values, pool.timeline, {signal: rate.value for signal, rate in pooled.rates.items() if not rate.reason})
    if pooled.metered is not None:
        values |= pooled.metered.contrast.values
    if pooled.throttled:
        values["throttled"] = max(pooled.throttled.values())
    coverage = pool.coverage(busy_source) if busy_source else 0.0
    # While the timing of activity counters is undetermined, use the sensors that every GPU has.
    basis: Basis = _basis(pool.timeline) if "dram" in values else "coarse"
    return Evidence(
        basis, values, busy.n, coverage, busy.half_width, highest=_highest(pool.timeline, values, pooled.rates)
    )


def _most_busy(pool: Pool, pooled: Pooled, overall: float | None) -> float | None:
    """The region's busy share if all of the device's activity were its own."""
    if overall is None or pooled.inclusive_s <= 0:
        return None
    return overall * (pool.frontier_ns - pool.start_ns) / NS_PER_S / pooled.inclusive_s


def span_evidence(timeline: Timeline, reading: SpanReading, device_busy: float | None) -> Evidence:
    """Evidence from one execution's own readings."""
    values: dict[str, float] = {} if device_busy is None else {"device_busy": device_busy}
    busy = reading.get(BUSY_SOURCES)
    if busy is None:
        return Evidence(_basis(timeline), values, 0, 0.0, None, _UNCOVERED)
    values["busy"] = min(1.0, busy.mean)
    _add_shares(values, timeline, {signal: own.mean for signal, own in reading.readings.items()})
    values |= contrast(timeline, reading.interval).values
    return Evidence(_basis(timeline), values, busy.n, busy.coverage, highest=_highest(timeline, values, {}))


def period_evidence(timeline: Timeline, period: Period, region: str) -> Evidence:
    """Evidence from one period of a region alone. How its windows differ is not judged."""
    rates = period.rates.get(region, {})
    sources = [signal for signal in BUSY_SOURCES if signal in rates]
    source = next((signal for signal in sources if not rates[signal].reason), None)
    if source is None:
        return Evidence(_basis(timeline), {}, 0, 0.0, None, rates[sources[0]].reason if sources else _UNCOVERED)
    busy, within = rates[source], Interval(period.start_ns, period.end_ns, "host")
    values = {"device_busy": min(1.0, period.means[source]), "busy": min(1.0, busy.value)}
    means = {signal: rate.value for signal, rate in rates.items() if not rate.reason}
    _add_shares(values, timeline, means, within)
    reading = read(timeline.columns[source], within)
    basis: Basis = _basis(timeline) if "dram" in values else "coarse"
    coverage = 0.0 if reading is None else min(1.0, reading.coverage)
    return Evidence(basis, values, busy.n, coverage, busy.half_width, highest=_highest(timeline, values, rates))


def _highest(timeline: Timeline, values: Mapping[str, float], rates: Mapping[Signal, Rate]) -> dict[str, float]:
    """The highest possible activity of each pipe that the device counts and that has no value."""
    unknown = ((key, ACTIVITIES[key]) for key in _PIPES if key not in values)
    ends = {key: rates.get(signal) for key, signal in unknown if timeline.column(signal) is not None}
    return {key: 1.0 if rate is None else min(1.0, rate.value + rate.half_width) for key, rate in ends.items()}


def _basis(timeline: Timeline) -> Basis:
    return "counters" if timeline.column(rows.DRAM) is not None else "coarse"


def _add_shares(
    values: dict[str, float], timeline: Timeline, means: Mapping[Signal, float], within: Interval | None = None
) -> None:
    """Add shares of the device's ceilings. Watts, hertz and bytes per second become shares if the ceiling is known.

    Slow signals are read `within` an interval, by default in the last minute.
    """
    values |= {key: means[signal] for key, signal in ACTIVITIES.items() if signal in means}
    device = timeline.device
    limit = timeline.column(rows.POWER_LIMIT)
    watts = means.get(rows.ENERGY, means.get(rows.POWER_AVERAGE))
    if watts is not None and limit is not None and limit.last is not None and limit.last.value:
        values["power"] = watts / limit.signal.base(limit.last.value)
    engines = [share for s in _ENGINES if (share := means.get(s, _recent(timeline, s, within))) is not None]
    if engines:
        values["media"] = max(engines)
    clock = _busy_clock(timeline, within)
    if device.clock_max_hz and clock is not None:
        values["clock"] = min(1.0, clock / device.clock_max_hz)
    for name, most, ways in (
        ("pcie", device.pcie_bytes_per_s, (rows.PCIE_RX, rows.PCIE_TX)),
        ("nvlink", device.nvlink_bytes_per_s, (rows.NVLINK_RX, rows.NVLINK_TX)),
    ):
        traffic = [means[way] for way in ways if way in means]
        if most and traffic:
            values[name] = max(traffic) / most
            if name == "pcie":
                values["staged"] = min(1.0, max(traffic) / _STAGED_BYTES_PER_S)
                if len(traffic) == len(ways) and max(traffic) > 0:
                    values["both_ways"] = min(traffic) / max(traffic)
    throttled = _throttled(timeline, within)
    if throttled is not None:
        values["throttled"] = throttled


def _busy_clock(timeline: Timeline, within: Interval | None) -> float | None:
    """Clock of the multiprocessors in Hz while the GPU works: the highest of the newest readings.

    An idle GPU lowers its clock at once, and one reading a second does not separate work from the pauses between.
    """
    clock = timeline.column(rows.CLOCK_SM)
    edges = _edges(clock, within)
    if clock is None or edges is None:
        return None
    values = clock.rows(*edges).values
    return clock.signal.base(int(values.max())) if len(values) else None


def _recent(timeline: Timeline, signal: Signal, within: Interval | None) -> float | None:
    """A slow signal's mean."""
    column = timeline.column(signal)
    edges = _edges(column, within)
    if column is None or edges is None:
        return None
    means, covered = column.means(np.array(edges[:1]), np.array(edges[1:]))
    return float(means[0]) if covered[0] else None


def _throttled(timeline: Timeline, within: Interval | None) -> float | None:
    """The share of the time in which the driver held the clocks down, for the reason with the longest time."""
    shares = []
    for column in throttle_counters(timeline).values():
        edges = _edges(column, within)
        if edges is None:
            continue
        starts, ends, growth = column.edges(*edges)
        if len(ends) and ends[-1] > starts[0]:
            shares.append(column.signal.base(int(growth.sum())) * NS_PER_S / int(ends[-1] - starts[0]))
    return min(1.0, max(shares)) if shares else None


def _edges(column: Column | None, within: Interval | None) -> tuple[int, int] | None:
    """The interval, by default the last minute of a column; None for one without rows."""
    mark = column.watermark_ns if column is not None else None
    if mark is None:
        return None
    return (mark - _HISTORY_NS, mark) if within is None else (within.start_ns, within.end_ns)

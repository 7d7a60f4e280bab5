"""The joined values of one execution as span attributes. Reads a joiner and has no other state or effect."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

from gpu_profile.catalogue import BUSY_SOURCES, ENERGY_SOURCES
from gpu_profile.catalogue import attributes as names
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, Interval
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.busy import BusyTime, busy_time, widest_window_ns
from gpu_profile.join.reading import WIDEST_WINDOW
from gpu_profile.join.summary import Judged, SpanReading, read_span, span_evidence
from gpu_profile.join.unmixing.solving.region_columns import MOST_REGIONS
from gpu_profile.regimes import Regime, Verdict, classify
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.joiner import Joiner
from gpu_profile.units import NS_PER_S

AttributeValues = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]
_DIGITS: Final = 6
#: While a region has no pooled values, its executions from this length on may use their own readings.
SHORTEST_S: Final = 0.3
#: Regions with cached values.
_MOST_KEPT: Final = 4_096
#: Attributes of pooled values that own values keep.
_SHARED: Final = tuple(row.name for row in (names.REGION, names.DEVICE_IDS, names.RANK, names.LOCAL_RANK))
_VERDICT: Final = tuple(row.name for row in (names.REGIME, names.CONFIDENCE, names.BASIS, names.REASON))
#: Attributes that accompany a region's energy.
_POWER: Final = (names.ENERGY_SOURCE.name, names.POWER_MEAN.name)
#: An execution's own energy needs this coverage. It is divided by the coverage, as if the rest had the same mean.
_COVERED: Final = 0.95
_SOURCE: Final = names.INTERVAL_SOURCE.name
_LENGTH: Final = names.INTERVAL_S.name
_ENERGY: Final = names.ENERGY.name
_ENERGY_HALF_WIDTH: Final = names.ENERGY_HALF_WIDTH.name


class RegionValues(NamedTuple):
    """The values that all spans of one region share until its verdict is renewed."""

    devices: Sequence[Device]
    timelines: tuple[Timeline, ...]
    #: Shared attributes; `pooled`: whether pooled values are among them.
    fixed: dict[str, AttributeValues]
    pooled: bool
    power_w: float | None
    power_half_width: float
    #: Intervals shorter than this have no readings of their own.
    resolved_ns: float

    def add_energy(self, result: dict[str, AttributeValues], length_s: float) -> None:
        """Add an execution's energy: the region's pooled power while it is active, times `length_s`."""
        if self.power_w is not None:
            result[_ENERGY] = round(self.power_w * length_s, _DIGITS)
            result[_ENERGY_HALF_WIDTH] = round(self.power_half_width * length_s, _DIGITS)


class Enricher:
    """Makes the joined attributes of a session's executions. Caches each region's values until the next judgement."""

    def __init__(self, joiner: Joiner) -> None:
        self.joiner = joiner
        self._regions: dict[tuple[str, Hashable], RegionValues] = {}
        self._at = (-1, -1)

    def attributes(self, execution: Execution) -> dict[str, AttributeValues]:
        """An execution's own values where samples resolve it, else its region's pooled values.

        With several devices, values are of the busiest one, and energy and power are sums. Attributes without a
        measurement are absent; `gpu_profile.unjoined` is the reason if there is none at all. Attributes of its
        operation and kernels are always included. They decide the regime if they can: kernels before operations.
        """
        result = self._joined(execution)
        attributes = execution.profiled()
        if not attributes:
            return result
        result.update(attributes)
        evidences = [] if execution.operation is None else [execution.operation.evidence()]
        evidences += [] if execution.kernels is None else [execution.kernels.evidence]
        for evidence in evidences:
            verdict = classify(evidence, self.joiner.verdicts.thresholds)
            if verdict.regime is not Regime.UNKNOWN or names.REGIME.name not in result:
                _add_verdict(result, verdict)
        return result

    def _joined(self, execution: Execution) -> dict[str, AttributeValues]:
        region = self.region_of(execution)
        if not region.devices:
            return {names.REGION.name: execution.name, names.UNJOINED.name: self.why_unjoined(execution)}
        if execution.stream is None:
            start_ns, end_ns, source = execution.start_ns, execution.end_ns, "host"
        else:
            interval = execution.interval()
            if interval is None:
                # The GPU is behind: in the host interval it did other regions' work.
                return {
                    names.REGION.name: execution.name,
                    names.DEVICE_IDS.name: tuple(device.uuid for device in region.devices),
                    names.UNJOINED.name: "the GPU had not finished the region when its span was exported",
                }
            start_ns, end_ns, source = interval
        length_s = (end_ns - start_ns) / NS_PER_S
        if end_ns - start_ns >= region.resolved_ns or (not region.pooled and length_s >= SHORTEST_S):
            own = self._own(region, Interval(start_ns, end_ns))
            if own is not None:
                result = {key: region.fixed[key] for key in _SHARED if key in region.fixed}
                result |= {_SOURCE: source, _LENGTH: length_s}
                _add_own(result, self.joiner, own)
                if _ENERGY not in result and region.power_w is not None:
                    result |= {key: region.fixed[key] for key in _POWER}
                    region.add_energy(result, length_s)
                if names.REGIME.name not in result:
                    result |= {key: region.fixed[key] for key in _VERDICT if key in region.fixed}
                return result
        result = {**region.fixed, _SOURCE: source, _LENGTH: length_s}
        region.add_energy(result, length_s)
        if not region.pooled:
            result[names.UNJOINED.name] = self.why_unjoined(execution)
        return result

    def why_unjoined(self, execution: Execution) -> str:
        """Why an execution's region has no values."""
        joiner, devices = self.joiner, self.region_of(execution).devices
        if joiner.sampler.problem:
            return joiner.sampler.problem
        return _why(joiner, execution.name, devices) if devices else joiner.placement.why(execution.device)

    def _own(self, region: RegionValues, interval: Interval) -> list[tuple[SpanReading, BusyTime | None]] | None:
        """An execution's own readings on each of its devices; None if any also covers time outside the interval."""
        if not region.timelines or len(region.timelines) < len(region.devices):
            return None
        long = interval.end_ns - interval.start_ns >= region.resolved_ns
        result: list[tuple[SpanReading, BusyTime | None]] = []
        for timeline in region.timelines:
            reading = read_span(timeline, interval)
            # For a short interval, busy time can often be computed from overlapping windows, at ten times the cost.
            busy = None if long and reading.resolved else busy_time(timeline, interval, reading.readings)
            if not (long and reading.resolved) and (busy is None or not busy.sure):
                return None
            result.append((reading, busy))
        return result

    def region_of(self, execution: Execution) -> RegionValues:
        """The shared values of an execution's region; the same object until they may have changed."""
        at = self.joiner.judged_ns, self.joiner.placement.version
        if at != self._at or len(self._regions) > _MOST_KEPT:
            self._regions.clear()
            self._at = at
        key = execution.name, execution.device
        values = self._regions.get(key)
        if values is None:
            judged = self.joiner.judge_first(execution)
            values = self._look_up(execution)
            if judged:
                self._regions[key] = values
        return values

    def _look_up(self, execution: Execution) -> RegionValues:
        joiner = self.joiner
        devices = joiner.devices_of(execution)
        timelines = tuple(t for device in devices if (t := joiner.sampler.timeline(device.uuid)) is not None)
        fixed: dict[str, AttributeValues] = {
            names.REGION.name: execution.name,
            names.DEVICE_IDS.name: tuple(device.uuid for device in devices),
        }
        rank = joiner.placement.rank
        if rank is not None:
            ranks = ((names.RANK, rank.rank), (names.LOCAL_RANK, rank.local_rank))
            fixed.update({attribute.name: value for attribute, value in ranks if value is not None})
        judged = [j for d in devices if (j := joiner.verdicts.newest(execution.name, d.uuid)) is not None]
        power_w, half_width = _add_pooled(fixed, judged, of=len(devices))
        resolved_ns = (
            max(map(_resolves_ns, timelines), default=math.inf) if len(timelines) == len(devices) else math.inf
        )
        return RegionValues(devices, timelines, fixed, names.SCOPE.name in fixed, power_w, half_width, resolved_ns)


def _resolves_ns(timeline: Timeline) -> float:
    """The shortest interval, in ns, that uses its own readings. Reading them costs a millisecond."""
    window_ns = widest_window_ns(timeline)
    return math.inf if window_ns is None else window_ns / WIDEST_WINDOW


def _why(joiner: Joiner, region: str, devices: Sequence[Device]) -> str:
    for device in devices:
        state, pool = joiner.sampler.states.get(device.uuid), joiner.pools.get(device.uuid)
        if state is not None and not state.up:
            return state.reason
        if pool is not None and pool.overflowed and region not in pool.regions:
            return f"more than {MOST_REGIONS} regions: it is pooled with others"
        judged = joiner.verdicts.newest(region, device.uuid)
        if judged is not None:
            # A regime, or a verdict by kernels or operations, does not explain why samples are missing.
            explains = judged.verdict.regime is Regime.UNKNOWN and judged.verdict.basis in {"counters", "coarse"}
            return judged.verdict.rule if explains else judged.summary.reason
    return "nothing is known of the region yet"


def _add_own(
    result: dict[str, AttributeValues], joiner: Joiner, own: list[tuple[SpanReading, BusyTime | None]]
) -> None:
    first, bounds = max(own, key=lambda pair: _busy(*pair))
    result[names.SCOPE.name] = "span"
    busy = first.get(BUSY_SOURCES)
    if busy is not None:
        result[names.COVERAGE.name] = round(busy.coverage, _DIGITS)
        result[names.BUSY_RATIO.name] = round(min(1.0, _busy(first, bounds)), _DIGITS)
        result[names.BUSY_SOURCE.name] = busy.signal.key if bounds is None else bounds.source.key
        if bounds is not None:
            result[names.BUSY_HALF_WIDTH.name] = round(bounds.half_width_s / bounds.length_s, _DIGITS)
    energies = [e for reading, _ in own if (e := reading.get(ENERGY_SOURCES)) is not None]
    if len(energies) == len(own) and all(e.coverage >= _COVERED for e in energies):
        result[names.ENERGY.name] = round(sum(e.total / e.coverage for e in energies), _DIGITS)
        result[names.ENERGY_SOURCE.name] = energies[0].signal.key
        result[names.ENERGY_RESOLUTION.name] = round(max(e.resolution for e in energies), _DIGITS)
        result[names.POWER_MEAN.name] = round(sum(e.mean for e in energies), _DIGITS)
    memory = [m for reading, _ in own if (m := reading.readings.get(rows.MEMORY_USED)) is not None]
    if memory:
        result[names.MEMORY_MAX.name] = int(max(m.maximum for m in memory))
    timeline = joiner.sampler.timeline(first.device.uuid)
    pool = joiner.pools.get(first.device.uuid)
    if timeline is not None and bounds is None:
        source = busy.signal if busy is not None else None
        overall = pool.mean(source) if pool is not None and source is not None else None
        _add_verdict(result, classify(span_evidence(timeline, first, overall), joiner.verdicts.thresholds))


def _busy(reading: SpanReading, bounds: BusyTime | None) -> float:
    if bounds is not None:
        return bounds.share
    busy = reading.get(BUSY_SOURCES)
    return busy.mean if busy is not None else 0.0


def _add_pooled(result: dict[str, AttributeValues], judged: list[Judged], *, of: int) -> tuple[float | None, float]:
    """Add a region's pooled values. Returns its power and half-width in watts, or None and 0 if a device has none."""
    measured = [j for j in judged if j.summary.busy is not None or j.summary.power_w is not None]
    if not measured:
        # The regime of a region may be known although none of its rates is, as on a device that is always idle.
        for verdict in [j.verdict for j in judged if j.verdict.regime is not Regime.UNKNOWN][:1]:
            _add_verdict(result, verdict)
        return None, 0.0
    summary, verdict = max(measured, key=lambda j: j.summary.busy or 0.0)
    result[names.SCOPE.name] = "pooled"
    result[names.POOLED_N.name] = summary.executions
    if summary.busy is not None:
        result[names.BUSY_RATIO.name] = round(min(1.0, summary.busy), _DIGITS)
        result[names.BUSY_SOURCE.name] = summary.busy_source
        if summary.busy_half_width is not None:
            result[names.BUSY_HALF_WIDTH.name] = round(summary.busy_half_width, _DIGITS)
    memory = [j.summary.memory_max for j in measured if j.summary.memory_max is not None]
    if memory:
        result[names.MEMORY_MAX.name] = int(max(memory))
    _add_verdict(result, verdict)
    powers = [j.summary for j in measured if j.summary.power_w is not None]
    if len(powers) != of:
        return None, 0.0
    power = sum(s.power_w or 0.0 for s in powers)
    result[names.ENERGY_SOURCE.name] = powers[0].energy_source
    result[names.POWER_MEAN.name] = round(power, _DIGITS)
    return power, math.hypot(*(s.power_half_width or 0.0 for s in powers))


def _add_verdict(result: dict[str, AttributeValues], verdict: Verdict) -> None:
    result[names.REGIME.name] = str(verdict.regime)
    result[names.CONFIDENCE.name] = round(verdict.confidence, 3)
    result[names.BASIS.name] = verdict.basis
    result[names.REASON.name] = verdict.rule

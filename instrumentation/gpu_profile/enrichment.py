"""What the join says of one execution, as span attributes. Pure but for the session that it reads from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gpu_profile.attribution import MOST_REGIONS
from gpu_profile.catalogue import BUSY_SOURCES, ENERGY_SOURCES
from gpu_profile.catalogue import attributes as names
from gpu_profile.catalogue import signals as rows
from gpu_profile.executions import Execution
from gpu_profile.join import WIDEST_WINDOW
from gpu_profile.regimes import Judged, Verdict, classify
from gpu_profile.samples import Device, Interval
from gpu_profile.session import Session
from gpu_profile.summary import SpanReading, read_span, span_evidence
from gpu_profile.timeline import Timeline

AttributeValues = str | bool | int | float | Sequence[str]
_DIGITS: Final = 6


def attributes_of(session: Session, execution: Execution) -> dict[str, AttributeValues]:
    """The joined attributes of an execution: its own values where samples resolve it, else its region's pooled ones.

    With several devices the values are of the one that was busiest, and energy is the sum. Nothing that was not
    measured is among them; `gpu_profile.unjoined` says why there is nothing at all.
    """
    devices = session.devices_of(execution)
    if not devices:
        return {names.UNJOINED.name: session.sampler.problem or "the region's device is not sampled"}
    interval = execution.interval()
    if interval is None:
        # The host's interval would be joined with other regions' work: the GPU is still behind.
        return {
            names.DEVICE_IDS.name: tuple(device.uuid for device in devices),
            names.UNJOINED.name: "the GPU had not finished the region when its span had to go on",
        }
    result: dict[str, AttributeValues] = {
        names.DEVICE_IDS.name: tuple(device.uuid for device in devices),
        names.INTERVAL_SOURCE.name: interval.source,
        names.INTERVAL_S.name: (interval.end_ns - interval.start_ns) / 1e9,
    }
    timelines = [t for device in devices if (t := session.sampler.timeline(device.uuid)) is not None]
    own = [read_span(t, interval) for t in timelines] if all(_may_resolve(t, interval) for t in timelines) else []
    if len(own) == len(devices) and all(reading.resolved for reading in own):
        _add_own(result, session, own)
    else:
        judged = [j for d in devices if (j := session.verdict(execution.name, d.uuid)) is not None]
        _add_pooled(result, judged, of=len(devices))
    if names.SCOPE.name not in result:
        result[names.UNJOINED.name] = session.sampler.problem or _why(session, execution.name, devices)
    return result


def _may_resolve(timeline: Timeline, interval: Interval) -> bool:
    """Whether the interval is long enough for readings of its own, which cost a millisecond."""
    widest_ns = WIDEST_WINDOW * (interval.end_ns - interval.start_ns)
    return any(max(s.window_ns, s.refresh_ns) <= widest_ns for s in BUSY_SOURCES if timeline.column(s) is not None)


def _why(session: Session, region: str, devices: Sequence[Device]) -> str:
    for device in devices:
        state, pool = session.sampler.states.get(device.uuid), session.pools.get(device.uuid)
        if state is not None and not state.up:
            return state.reason
        if pool is not None and pool.overflowed and region not in pool.regions:
            return f"more than {MOST_REGIONS} regions: it is pooled with others"
        judged = session.verdict(region, device.uuid)
        if judged is not None:
            return judged.verdict.rule
    return "no samples cover the region"


def _add_own(result: dict[str, AttributeValues], session: Session, own: list[SpanReading]) -> None:
    first = max(own, key=_busy)
    result[names.SCOPE.name] = "span"
    busy = first.get(BUSY_SOURCES)
    if busy is not None:
        result[names.COVERAGE.name] = round(busy.coverage, _DIGITS)
        result[names.BUSY_RATIO.name] = round(min(1.0, busy.mean), _DIGITS)
        result[names.BUSY_SOURCE.name] = busy.signal.key
    energies = [e for reading in own if (e := reading.get(ENERGY_SOURCES)) is not None]
    if len(energies) == len(own):
        result[names.ENERGY.name] = round(sum(e.total for e in energies), _DIGITS)
        result[names.ENERGY_SOURCE.name] = energies[0].signal.key
        result[names.ENERGY_RESOLUTION.name] = round(max(e.resolution for e in energies), _DIGITS)
        result[names.POWER_MEAN.name] = round(sum(e.mean for e in energies), _DIGITS)
    memory = [m for reading in own if (m := reading.readings.get(rows.MEMORY_USED)) is not None]
    if memory:
        result[names.MEMORY_MAX.name] = int(max(m.maximum for m in memory))
    timeline = session.sampler.timeline(first.device.uuid)
    pool = session.pools.get(first.device.uuid)
    if timeline is not None:
        source = busy.signal if busy is not None else None
        overall = pool.mean(source) if pool is not None and source is not None else None
        _add_verdict(result, classify(span_evidence(timeline, first, overall), session.verdicts.thresholds))


def _busy(reading: SpanReading) -> float:
    busy = reading.get(BUSY_SOURCES)
    return busy.mean if busy is not None else 0.0


def _add_pooled(result: dict[str, AttributeValues], judged: list[Judged], *, of: int) -> None:
    known = [j for j in judged if j.summary.busy is not None or j.summary.power_w is not None]
    if not known:
        return
    summary, verdict = max(known, key=lambda j: j.summary.busy or 0.0)
    result[names.SCOPE.name] = "pooled"
    result[names.POOLED_N.name] = summary.executions
    if summary.busy is not None:
        result[names.BUSY_RATIO.name] = round(min(1.0, summary.busy), _DIGITS)
        result[names.BUSY_SOURCE.name] = summary.busy_source
        if summary.busy_half_width is not None:
            result[names.BUSY_HALF_WIDTH.name] = round(summary.busy_half_width, _DIGITS)
    powers = [j.summary for j in known if j.summary.power_w is not None]
    length = result[names.INTERVAL_S.name]
    if len(powers) == of and isinstance(length, float):
        # A pooled rate is of the time while the region is active; this execution was for `length`.
        power = sum(s.power_w or 0.0 for s in powers)
        half_width = math.hypot(*(s.power_half_width or 0.0 for s in powers))
        result[names.ENERGY.name] = round(power * length, _DIGITS)
        result[names.ENERGY_HALF_WIDTH.name] = round(half_width * length, _DIGITS)
        result[names.ENERGY_SOURCE.name] = powers[0].energy_source
        result[names.POWER_MEAN.name] = round(power, _DIGITS)
    memory = [j.summary.memory_max for j in known if j.summary.memory_max is not None]
    if memory:
        result[names.MEMORY_MAX.name] = int(max(memory))
    _add_verdict(result, verdict)


def _add_verdict(result: dict[str, AttributeValues], verdict: Verdict) -> None:
    result[names.REGIME.name] = str(verdict.regime)
    result[names.CONFIDENCE.name] = round(verdict.confidence, 3)
    result[names.BASIS.name] = verdict.basis
    result[names.REASON.name] = verdict.rule

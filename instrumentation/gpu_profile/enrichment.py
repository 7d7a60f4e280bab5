"""What the join says of one execution, as span attributes. Pure but for the session that it reads from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu_profile.catalogue import BUSY_SOURCES, ENERGY_SOURCES
from gpu_profile.catalogue import attributes as names
from gpu_profile.catalogue import signals as rows
from gpu_profile.executions import Execution
from gpu_profile.regimes import Verdict, classify
from gpu_profile.session import Judged, Session
from gpu_profile.summary import SpanReading, read_span, span_evidence

AttributeValues = str | bool | int | float | Sequence[str]
_DIGITS: Final = 6


def attributes_of(session: Session, execution: Execution) -> dict[str, AttributeValues]:
    """The joined attributes of an execution: its own values where samples resolve it, else its region's pooled ones.

    With several devices the values are of the one that was busiest, and energy is the sum. Nothing that was not
    measured is among them; `gpu_profile.unjoined` says why there is nothing at all.
    """
    devices = session.devices()
    if execution.stream is not None:
        devices = [d for d in devices if d.uuid == execution.stream.device_uuid]
    elif execution.device is not None:
        devices = [d for d in devices if d.uuid == execution.device]
    if not devices:
        return {names.UNJOINED.name: session.sampler.problem or "the region's device is not sampled"}
    interval = execution.interval() or execution.host
    result: dict[str, AttributeValues] = {
        names.DEVICE_IDS.name: [device.uuid for device in devices],
        names.INTERVAL_SOURCE.name: interval.source,
        names.INTERVAL_S.name: (interval.end_ns - interval.start_ns) / 1e9,
    }
    own: list[SpanReading] = []
    for device in devices:
        timeline = session.sampler.timeline(device.uuid)
        if timeline is not None:
            own.append(read_span(timeline, interval))
    resolved = [reading for reading in own if reading.resolved]
    if resolved and len(resolved) == len(devices):
        _add_own(result, session, resolved)
    else:
        judged = [j for d in devices if (j := session.verdict(execution.name, d.uuid)) is not None]
        _add_pooled(result, judged)
    if names.BUSY_RATIO.name not in result and names.REGIME.name not in result:
        result[names.UNJOINED.name] = session.sampler.problem or "no samples cover the span yet"
    return result


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
        _add_verdict(result, classify(span_evidence(timeline, first, overall), session.thresholds))


def _busy(reading: SpanReading) -> float:
    busy = reading.get(BUSY_SOURCES)
    return busy.mean if busy is not None else 0.0


def _add_pooled(result: dict[str, AttributeValues], judged: list[Judged]) -> None:
    if not judged:
        return
    summary, verdict = max(judged, key=lambda j: j.summary.busy or 0.0)
    result[names.SCOPE.name] = "pooled"
    result[names.POOLED_N.name] = summary.executions
    if summary.busy is not None:
        result[names.BUSY_RATIO.name] = round(min(1.0, summary.busy), _DIGITS)
        result[names.BUSY_SOURCE.name] = summary.busy_source
        if summary.busy_half_width is not None:
            result[names.BUSY_HALF_WIDTH.name] = round(summary.busy_half_width, _DIGITS)
    length = result[names.INTERVAL_S.name]
    if summary.power_w is not None and isinstance(length, float):
        # A pooled rate is of the time while the region is active; this execution was for `length`.
        result[names.ENERGY.name] = round(summary.power_w * length, _DIGITS)
        result[names.ENERGY_SOURCE.name] = summary.energy_source
        result[names.POWER_MEAN.name] = round(summary.power_w, _DIGITS)
        if summary.power_half_width is not None:
            result[names.ENERGY_HALF_WIDTH.name] = round(summary.power_half_width * length, _DIGITS)
    if summary.memory_max is not None:
        result[names.MEMORY_MAX.name] = int(summary.memory_max)
    _add_verdict(result, verdict)


def _add_verdict(result: dict[str, AttributeValues], verdict: Verdict) -> None:
    result[names.REGIME.name] = str(verdict.regime)
    result[names.CONFIDENCE.name] = round(verdict.confidence, 3)
    result[names.BASIS.name] = verdict.basis
    result[names.REASON.name] = verdict.rule

"""The regions of this process as OpenTelemetry metrics, on whatever meter provider the service has.

Counters are read when the service's reader asks; the histogram of durations is told of each execution by the thread
that joins. Executions count whatever the sampler of traces decides.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from gpu_profile.catalogue import Metric
from gpu_profile.catalogue import metrics as rows
from gpu_profile.join.durations import BUCKETS_S
from gpu_profile.join.unmixing.region_columns import OTHER
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import Session
from gpu_profile.units import NS_PER_S

#: The value of every series of one metric, by the values of the metric's labels.
Series = dict[tuple[str, ...], float]
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


def _calls(session: Session) -> Series:
    return {key: float(calls) for key, calls in session.verdicts.calls.items()}


def _busy(session: Session) -> Series:
    return _shares(session, lambda pool, region: pool.pooled(region).busy_counter_s)


def _energy(session: Session) -> Series:
    return _shares(session, lambda pool, region: pool.pooled(region).energy_counter_j)


def _shares(session: Session, value: Callable[..., float | None]) -> Series:
    return {
        (region, uuid): known
        for uuid, pool in session.pools.items()
        for region in pool.regions
        if (known := value(pool, region)) is not None
    }


def _items(session: Session) -> Series:
    return {(region,): d.items for region, d in session.verdicts.durations.items() if d.items is not None}


def _errors(session: Session) -> Series:
    return {(region,): d.errors for region, d in session.verdicts.durations.items()}


def _flops(session: Session) -> Series:
    # OTLP's whole numbers end at 9e18, which a long run passes.
    return {(region,): float(o.flops) for region, o in session.verdicts.operations.items() if o.flops is not None}


def _traffic(session: Session) -> Series:
    return {(region,): float(o.bytes) for region, o in session.verdicts.operations.items() if o.bytes is not None}


def _kernels(row: Metric, session: Session) -> Series:
    told = ((region, works.counters()) for region, works in session.verdicts.kernels.items())
    return {(region,): counters[row] for region, counters in told if row in counters}


#: Every counter among the region metrics, and where a session has it.
_COUNTERS: Final[tuple[tuple[Metric, Callable[[Session], Series]], ...]] = (
    (rows.REGION_CALLS, _calls),
    (rows.REGION_BUSY, _busy),
    (rows.REGION_ENERGY, _energy),
    (rows.REGION_ITEMS, _items),
    (rows.REGION_ERRORS, _errors),
    (rows.REGION_FLOPS, _flops),
    (rows.REGION_TRAFFIC, _traffic),
    *((row, partial(_kernels, row)) for row in rows.REGION_KERNEL_METRICS),
)


class RegionInstruments:
    """The region metrics of this process on one meter: what its sessions have counted, one after the other."""

    def __init__(self, meter: Meter) -> None:
        self._lock = threading.RLock()
        #: What sessions that have ended have counted: a counter does not go back when sampling starts anew.
        self._ended: dict[str, Series] = {}
        self._sessions: list[Session] = []
        self.on = True
        for row, read in _COUNTERS:
            meter.create_observable_counter(row.otel, [partial(self._observe, row, read)], row.unit, row.brief)
        row, buckets = rows.REGION_DURATION, {"explicit_bucket_boundaries_advisory": list(BUCKETS_S)}
        if not buckets.keys() <= inspect.signature(meter.create_histogram).parameters.keys():
            buckets = {}  # before 1.30: a View must give the buckets
        self._durations: Histogram = meter.create_histogram(row.otel, row.unit, row.brief, **buckets)
        self._takes_context = "context" in inspect.signature(self._durations.record).parameters  # since 1.28
        process.on_start(self._attach)

    def _attach(self, session: Session) -> None:
        with self._lock:
            self._sessions.append(session)
        session.on_end.append(partial(self._record, session))
        session.on_stop.append(partial(self._fold, session))

    def _fold(self, session: Session) -> None:
        with self._lock:
            if session in self._sessions:
                self._sessions.remove(session)
                with session.lock:
                    for row, read in _COUNTERS:
                        _add(self._ended.setdefault(row.otel, {}), read(session))

    def _record(self, session: Session, execution: Execution) -> None:
        if not self.on:
            return
        # Told after it was counted; a name that was one too many has been counted as `other`.
        name = execution.name if execution.name in session.verdicts.durations else OTHER
        seconds = max(0, execution.end_ns - execution.start_ns) / NS_PER_S
        if self._takes_context and execution.sampled:
            span = NonRecordingSpan(SpanContext(execution.trace_id, execution.span_id, False, _SAMPLED))
            self._durations.record(seconds, {"region": name}, trace.set_span_in_context(span))
        else:
            self._durations.record(seconds, {"region": name})

    def _observe(self, row: Metric, read: Callable[[Session], Series], _: CallbackOptions) -> Iterable[Observation]:
        if not self.on:
            return []
        # Who joins holds a session's lock and never this one, so no two threads wait for each other.
        with self._lock:
            total = dict(self._ended.get(row.otel, {}))
            for session in self._sessions:
                with session.lock:
                    _add(total, read(session))
        return [Observation(value, dict(zip(row.labels, key, strict=True))) for key, value in total.items()]

    def _after_fork(self) -> None:
        # What the parent's sessions have counted is the parent's.
        self._lock, self._sessions, self._ended = threading.RLock(), [], {}


def _add(total: Series, more: Series) -> None:
    for key, value in more.items():
        total[key] = total.get(key, 0) + value


#: By meter provider; None is the service's.
_instrumented: Final[dict[MeterProvider | None, RegionInstruments]] = {}


def instrument_regions(meter_provider: MeterProvider | None = None) -> None:
    """Publish the region metrics through a meter provider; without one, through the service's, set before or after.

    Names and units are the catalogue's. Calling it twice is fine. The histogram has its buckets from API 1.30 on.
    """
    service = metrics.get_meter_provider()
    key = None if meter_provider is service else meter_provider
    if key in _instrumented:
        _instrumented[key].on = True
        return
    _instrumented[key] = RegionInstruments((meter_provider or service).get_meter("gpu_profile"))


def leave_regions() -> None:
    """Publish nothing more; OpenTelemetry has no way to take the instruments away."""
    for instruments in _instrumented.values():
        instruments.on = False


def _after_fork() -> None:
    for instruments in _instrumented.values():
        instruments._after_fork()


os.register_at_fork(after_in_child=_after_fork)

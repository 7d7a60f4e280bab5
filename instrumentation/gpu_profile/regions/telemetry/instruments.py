"""The region metrics of this process as OpenTelemetry instruments, on the service's meter provider.

Counters are read when the service's metric reader collects. The join's thread records each execution in the histogram
of durations. Executions count whether or not their traces are sampled.
"""

from __future__ import annotations

import inspect
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
from gpu_profile.join.unmixing.solving.region_columns import OTHER
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session import process
from gpu_profile.regions.session.joiner import Joiner
from gpu_profile.regions.session.session import Session
from gpu_profile.regions.telemetry.counters import COUNTERS, Series
from gpu_profile.units import NS_PER_S

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class RegionInstruments:
    """The region metrics of this process on one meter: the sums over all of its sessions."""

    def __init__(self, meter: Meter) -> None:
        self._lock = threading.RLock()
        #: The counts of ended sessions: a counter must not decrease when a new session starts.
        self._ended: dict[str, Series] = {}
        self._sessions: list[Session] = []
        self.on = True
        for row, read in COUNTERS:
            meter.create_observable_counter(row.otel, [partial(self._observe, row, read)], row.unit, row.brief)
        row, buckets = rows.REGION_DURATION, {"explicit_bucket_boundaries_advisory": list(BUCKETS_S)}
        if not buckets.keys() <= inspect.signature(meter.create_histogram).parameters.keys():
            buckets = {}  # before 1.30: only a View can set the buckets
        self._durations: Histogram = meter.create_histogram(row.otel, row.unit, row.brief, **buckets)
        self._takes_context = "context" in inspect.signature(self._durations.record).parameters  # since 1.28
        process.on_start(self._attach)

    def _attach(self, session: Session) -> None:
        with self._lock:
            self._sessions.append(session)
        session.joiner.on_end.append(partial(self._record, session))
        session.on_stop.append(partial(self._fold, session))

    def _fold(self, session: Session) -> None:
        with self._lock:
            if session in self._sessions:
                self._sessions.remove(session)
                with session.joiner.lock:
                    for row, read in COUNTERS:
                        _add(self._ended.setdefault(row.otel, {}), read(session.joiner))

    def _record(self, session: Session, execution: Execution) -> None:
        if not self.on:
            return
        # `verdicts` has counted it already. A name beyond the limit was counted as `other`.
        name = execution.name if execution.name in session.joiner.verdicts.durations else OTHER
        seconds = execution.length_ns / NS_PER_S
        if self._takes_context and execution.sampled:
            span = NonRecordingSpan(SpanContext(execution.trace_id, execution.span_id, False, _SAMPLED))
            self._durations.record(seconds, {"region": name}, trace.set_span_in_context(span))
        else:
            self._durations.record(seconds, {"region": name})

    def _observe(self, row: Metric, read: Callable[[Joiner], Series], _: CallbackOptions) -> Iterable[Observation]:
        if not self.on:
            return []
        # No deadlock: the join's thread takes a session's lock but never this one while holding it.
        with self._lock:
            total = dict(self._ended.get(row.otel, {}))
            for session in self._sessions:
                with session.joiner.lock:
                    _add(total, read(session.joiner))
        return [Observation(value, dict(zip(row.labels, key, strict=True))) for key, value in total.items()]

    def forget(self) -> None:
        """In a forked child: drop the counts of the parent's sessions."""
        self._lock, self._sessions, self._ended = threading.RLock(), [], {}


def _add(total: Series, more: Series) -> None:
    for key, value in more.items():
        total[key] = total.get(key, 0) + value


#: By meter provider; None: the service's.
_instrumented: Final[dict[MeterProvider | None, RegionInstruments]] = {}


def instrument_regions(meter_provider: MeterProvider | None = None) -> None:
    """Publish the region metrics through a meter provider; by default the service's, set before this call or later.

    Names and units are the catalogue's. A second call does nothing. The histogram has its buckets from API 1.30 on.
    """
    service = metrics.get_meter_provider()
    key = None if meter_provider is service else meter_provider
    if key in _instrumented:
        _instrumented[key].on = True
        return
    _instrumented[key] = RegionInstruments((meter_provider or service).get_meter("gpu_profile"))


def leave_regions() -> None:
    """Stop publishing. The instruments remain: OpenTelemetry cannot remove them."""
    for instruments in _instrumented.values():
        instruments.on = False


@process.in_child
def _forget() -> None:
    for instruments in _instrumented.values():
        instruments.forget()

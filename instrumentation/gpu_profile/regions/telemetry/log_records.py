"""Events of this process's GPUs as OpenTelemetry log records, within the traces that they affect.

An XID error or a lost GPU becomes a record of the service's logger provider, with the span of a region that ran on that
device. A change of a region's regime becomes a record without a span: it is a result of many executions. Without a
logger provider nothing is emitted.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from inspect import signature
from typing import Any, Final

from opentelemetry import trace
from opentelemetry._logs import SeverityNumber, get_logger
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from gpu_profile.catalogue import attributes as names
from gpu_profile.catalogue import event_text
from gpu_profile.catalogue.events import BEFORE, DEVICE, PARTS, REGIME_CHANGED, TRACE_IDS, TYPE
from gpu_profile.catalogue.samples import Event
from gpu_profile.join.region_watch import RegionChange
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session import process
from gpu_profile.regions.session.changes import clock_time
from gpu_profile.regions.session.session import Session
from gpu_profile.sampling.periods import SLOW_S
from gpu_profile.units import nanoseconds

_log = logging.getLogger("gpu_profile")

#: The interval at which a driver is asked for events. An event has the time of the answer: a region that the error
#: ended may be over by then.
LOOK_BACK_S: Final = SLOW_S
#: Ended executions with a span that are remembered.
_REMEMBERED: Final = 2_000
_MOST_EVENTS: Final = 1_000


class EventLogs:
    """Logs the events of one session. The join's thread emits them at its next step."""

    def __init__(self, session: Session, provider: Any = None) -> None:
        self._session = session
        self._logger: Any = get_logger("gpu_profile", logger_provider=provider)
        self._happened: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._changed: deque[RegionChange] = deque(maxlen=_MOST_EVENTS)
        self._ended: deque[Execution] = deque(maxlen=_REMEMBERED)
        session.sampler.event_sinks.append(self._happened.append)
        session.joiner.changes.on_change.append(self._changed.append)
        session.joiner.on_end.append(self._remember)
        session.on_step.append(self._emit_all)

    def leave(self) -> None:
        """Emit the waiting events, then detach from the session."""
        session = self._session
        hooks: tuple[tuple[list[Any], Any], ...] = (
            (session.sampler.event_sinks, self._happened.append),
            (session.joiner.changes.on_change, self._changed.append),
            (session.joiner.on_end, self._remember),
            (session.on_step, self._emit_all),
        )
        for registered, own in hooks:
            if own in registered:
                registered.remove(own)
        self._emit_all(True)

    def _remember(self, execution: Execution) -> None:
        if execution.span_id:
            self._ended.append(execution)

    def _emit_all(self, final: bool) -> bool:  # noqa: ARG002 - the session's hook
        while self._happened or self._changed:
            try:
                if self._changed:
                    self._emit_change(self._changed.popleft())
                else:
                    event = self._happened.popleft()
                    self._emit(event, self.active(event.device, event.t_ns))
            except Exception:  # noqa: BLE001 - a failing logger of the service must not end the join
                _log.debug("gpu-profile: an event could not be logged", exc_info=True)
        return False

    def active(self, device: str, t_ns: int) -> list[Execution]:
        """The executions with a span that ran on `device` (a UUID) at `t_ns`, innermost first.

        If none ran, the executions that had ended at most `LOOK_BACK_S` before.
        """
        session = self._session
        with session.joiner.lock:
            executions = {
                id(one): one for one in (*session.joiner.backlog.all_executions(), *session.began, *self._ended)
            }
            here = [one for one in executions.values() if one.span_id and _is_on(session, one, device)]
            running = [one for one in here if one.start_ns <= t_ns and _runs_at(one, t_ns)]
            affected = running or [one for one in here if 0 <= t_ns - one.end_ns <= nanoseconds(LOOK_BACK_S)]
        # Reversed after sorting: of executions with the same start, the last one comes first.
        return sorted(affected, key=lambda one: one.start_ns)[::-1]

    def _emit(self, event: Event, active: Sequence[Execution]) -> None:
        level = event_text.severity(event)
        attributes: dict[str, Any] = {**event_text.attributes(event)}
        traces = list(dict.fromkeys(trace.format_trace_id(one.trace_id) for one in active))
        if len(traces) > 1:
            attributes[TRACE_IDS.name] = traces
        body = event_text.body(event)
        self._emit_record(event.t_ns, level, body, event_text.name(event), attributes, _span_context(active))

    def _emit_change(self, region: RegionChange) -> None:
        change = region.change
        attributes: dict[str, Any] = {
            names.REGION.name: region.region,
            DEVICE.name: region.device,
            TYPE.name: "gpu",
            names.REGIME.name: str(change.after),
            names.CONFIDENCE.name: change.confidence,
            names.BASIS.name: change.basis,
            names.REASON.name: change.reason,
        }
        if change.before is not None:
            attributes[BEFORE.name] = str(change.before)
        if change.parts:
            attributes[PARTS.name] = [str(part) for part in change.parts]
        body = region.text(region.device, clock_time(change.t_ns))
        self._emit_record(change.t_ns, event_text.INFO, body, REGIME_CHANGED, attributes, trace.INVALID_SPAN_CONTEXT)

    def _emit_record(
        self, t_ns: int, level: event_text.Severity, body: str, name: str, attributes: dict[str, Any], span: SpanContext
    ) -> None:
        values = {
            "timestamp": t_ns,
            "observed_timestamp": self._session.clock.now_ns(),
            "severity_number": SeverityNumber(level.number),
            "severity_text": level.text,
            "body": body,
        }
        emit = self._logger.emit
        if "event_name" in signature(emit).parameters:
            context = trace.set_span_in_context(NonRecordingSpan(span), Context())
            emit(**values, attributes=attributes, event_name=name, context=context)
        else:
            self._emit_before_1_39({**values, "attributes": attributes | {"event.name": name}}, span)

    def _emit_before_1_39(self, values: dict[str, Any], span: SpanContext) -> None:
        """Loggers before OpenTelemetry 1.39 take a record of the SDK with its resource."""
        record = getattr(sys.modules.get("opentelemetry.sdk._logs"), "LogRecord", None)
        if record is None:  # without the SDK no logger exports anything
            return
        ids = {"trace_id": span.trace_id, "span_id": span.span_id, "trace_flags": span.trace_flags}
        resource = getattr(self._logger, "resource", None)
        self._logger.emit(record(**values, **ids, **({"resource": resource} if resource is not None else {})))


def _span_context(active: Iterable[Execution]) -> SpanContext:
    for one in active:
        flags = TraceFlags(TraceFlags.SAMPLED if one.sampled else TraceFlags.DEFAULT)
        return SpanContext(one.trace_id, one.span_id, is_remote=False, trace_flags=flags)
    return trace.INVALID_SPAN_CONTEXT


def _is_on(session: Session, execution: Execution, device: str) -> bool:
    """Whether it ran on the device, or on a MIG instance of it."""
    return any(device in (one.uuid, one.parent) for one in session.joiner.devices_of(execution))


def _runs_at(execution: Execution, t_ns: int) -> bool:
    """Whether it was still running at `t_ns`, on the host or on its device."""
    if not execution.end_ns or t_ns < execution.end_ns:
        return True
    active = execution.active()
    return active is not None and (active[1] is None or t_ns < active[1])


_provider: Any = None
_watched = False
_attached: list[EventLogs] = []


def log_events(provider: Any = None) -> None:
    """From now on log events of GPUs through `provider`, by default the service's logger provider.

    A second call does nothing: the first provider stays.
    """
    global _provider, _watched
    if not _watched:
        _provider, _watched = provider, True
        process.on_start(_attach)


def leave_events() -> None:
    """Undo `log_events` after logging the waiting events."""
    global _watched  # noqa: PLW0603 - as above
    _watched = False
    process.off_start(_attach)
    while _attached:
        _attached.pop().leave()


def _attach(session: Session) -> None:
    _attached[:] = [EventLogs(session, _provider)]

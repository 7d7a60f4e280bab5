"""The join of received spans: executions of regions named by service, and what the node's samples say of them."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from opentelemetry.trace import SpanKind

from gpu_profile.catalogue.samples import Device
from gpu_profile.clock import Clock
from gpu_profile.driver import Driver, lag_s
from gpu_profile.driver.node.driver import NodeDriver
from gpu_profile.driver.node.table import TableFile
from gpu_profile.regimes import DEFAULT_THRESHOLDS
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.joiner import Joiner
from gpu_profile.regions.telemetry.counters import COUNTERS
from gpu_profile.regions.telemetry.enrichment import SHORTEST_S, Enricher
from gpu_profile.regions.telemetry.server_spans import Choice, ForeignRule
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.units import NS_PER_S, nanoseconds
from gpu_profile_exporter.readings.readings import Reading
from gpu_profile_exporter.sidecar.ancestry import Ancestry
from gpu_profile_exporter.sidecar.attributes import Encoder
from gpu_profile_exporter.sidecar.placing import HW_ID, Holders, NodePlacement, named_devices
from gpu_profile_exporter.sidecar.trace_request import Scope, TraceRequest

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

_log = logging.getLogger("gpu_profile_exporter")

#: How often executions are joined.
STEP_S: Final = 0.1
#: What stands between a service and a region in the name that both are joined by: no text of an attribute has it.
_BETWEEN: Final = "\x1f"
#: Spans that our library has joined already: they go on as they are.
_OURS: Final = b"gpu_profile."
_HW_ID: Final = HW_ID.encode()
_GEN_AI: Final = b"gen_ai."
#: OTLP's kinds are OpenTelemetry's, one further on; its 0 says nothing.
_KINDS: Final = {kind.value + 1: kind for kind in SpanKind}
#: OpenTelemetry's sampling threshold in a trace state: all zeros keep every trace.
_SAMPLED: Final = re.compile(r"(?:^|,)\s*ot=(?:[^,]*;)?th:(?!0*(?:[;,]|$))")
#: A span that begins later than this from now was stamped by another clock.
_AHEAD_NS: Final = NS_PER_S
_FAILED: Final = 2


class JoinedRequest(NamedTuple):
    """A request with the executions that its spans became: by scope and by span, None for one that stays as it is.

    What it is joined with is there from `covered_ns` on.
    """

    request: TraceRequest
    executions: list[list[Execution | None]]
    covered_ns: int


class SpanJoin:
    """Takes in requests, joins their spans with the node's timeline in `directory`, and gives attributes.

    `rule` says which spans count. Spans come up to `late_s` after their end; what comes later is counted in
    `counts["late"]` and left out of its region's numbers. `take` and `added` are called by one thread at a time each.
    """

    def __init__(self, directory: Path, rule: ForeignRule, *, late_s: float, retention_s: float, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._late_ns = nanoseconds(late_s)
        self._oldest_ns = nanoseconds(retention_s)
        self._choice = Choice(rule)
        self._holders = Holders(TableFile(directory))
        self._placement = NodePlacement()
        self._sampler = Sampler(
            lambda: NodeDriver(directory, clock=clock), retention_s=retention_s, choose=self._choose, clock=clock
        )
        self._joiner = Joiner(self._sampler, self._placement, clock, DEFAULT_THRESHOLDS, self.counts, late_s=late_s)
        self._encoder = Encoder(Enricher(self._joiner), lambda execution: execution.name.rpartition(_BETWEEN)[2])
        self._ancestry = Ancestry(keep_ns=2 * self._late_ns)
        self._began: deque[Execution] = deque()
        #: The readings of regions, made by the joining thread: a scrape waits for none of its locks.
        self._told: list[Reading] = []
        self._told_ns = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _choose(self, _: Driver, listed: Sequence[Device]) -> set[str]:
        self._placement.update(listed)
        return self._placement.read

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Sample and join in threads of their own until `stop()`."""
        self._sampler.start()
        self._thread = threading.Thread(target=self._run, name="gpu-profile-join", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End both."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)
            self._thread = None
        self._sampler.stop()

    def _run(self) -> None:
        while not self._clock.wait(self._stop, STEP_S):
            self.step()

    def step(self) -> None:
        """Join what has come."""
        try:
            self._holders.renew()
            self._joiner.join(self._began, final=False)
            if self._joiner.judged_ns != self._told_ns:
                self._told_ns, self._told = self._joiner.judged_ns, list(self._regions())
        except Exception:  # noqa: BLE001 - a defect of ours must not end the joining of all spans
            if not self.counts["internal errors"]:
                _log.exception("the join of received spans failed; it goes on")
            self.counts["internal errors"] += 1

    # ------------------------------------------------------------------ spans

    def take(self, request: TraceRequest) -> JoinedRequest:
        """Have the spans of a request count."""
        now_ns = self._clock.now_ns()
        self._ancestry.turn(now_ns)
        needed_ns = 0
        executions: list[list[Execution | None]] = []
        for scope in request.scopes:
            found = list(self._executions(request.data, scope, now_ns))
            executions.append(found)
            for execution in found:
                if execution is not None and execution.end_ns - execution.start_ns >= SHORTEST_S * NS_PER_S:
                    needed_ns = max(needed_ns, execution.end_ns)
        lag_ns = nanoseconds(lag_s(self._sampler.driver)) if needed_ns else 0
        return JoinedRequest(request, executions, needed_ns + lag_ns)

    def _executions(self, data: bytes, scope: Scope, now_ns: int) -> Iterator[Execution | None]:
        service, devices = _service(scope.resource.attributes), self._holders.devices_of(scope.resource.attributes)
        choice, ancestry = self._choice, self._ancestry
        for span, place in zip(scope.spans, scope.places, strict=True):
            kind, name = span.kind, span.name
            counts = choice.fits(_KINDS.get(kind, SpanKind.INTERNAL), scope.name, name) or (
                data.find(_GEN_AI, place.content, place.end) >= 0
                and _has(span, "gen_ai.")
                and choice.allows(scope.name, name)
            )
            ours = data.find(_OURS, place.content, place.end) >= 0 and _has(span, "gpu_profile.")
            span_id, parent_id = span.span_id, span.parent_span_id
            if not (counts or ours):
                ancestry.leave(span_id, parent_id)
                yield None
                continue
            execution = ancestry.find(span_id)
            if execution is None:  # else it was sent again
                execution = Execution(service + name, device=devices)
                execution.start_ns, execution.end_ns = span.start_time_unix_nano, span.end_time_unix_nano
                execution.failed = span.status.code == _FAILED
                self._place(execution, span, data.find(_HW_ID, place.content, place.end) >= 0, now_ns)
                ancestry.take(span_id, parent_id, execution)
                self._began.append(execution)
            yield None if ours else execution

    def _place(self, execution: Execution, span: Span, names_device: bool, now_ns: int) -> None:
        """Say which devices it is on, where that is not its resource's."""
        if names_device:
            execution.device = named_devices({pair.key: pair.value for pair in span.attributes}) or execution.device
        start_ns, end_ns = execution.start_ns, execution.end_ns
        if end_ns < start_ns or start_ns > now_ns + _AHEAD_NS or start_ns <= 0:
            execution.device = "its times cannot be: it ends before it begins, or begins in the future"
            execution.start_ns = execution.end_ns = now_ns
        elif end_ns < now_ns - self._oldest_ns:
            execution.device = "it ended before what the timeline keeps"
        elif span.trace_state and _SAMPLED.search(span.trace_state):
            execution.device = "not identifiable: its traces were sampled, so that other spans are missing"
        elif end_ns <= self._joiner.frontier_ns:
            self.counts["late"] += 1

    def added(self, joined: JoinedRequest) -> list[list[bytes]]:
        """The attributes to add to each span, encoded; by scope and by span."""
        encode = self._encoder.attributes
        return [[b"" if execution is None else encode(execution) for execution in found] for found in joined.executions]

    # ------------------------------------------------------------------ what it says

    def _regions(self) -> Iterator[Reading]:
        for metric, read in COUNTERS:
            for key, value in sorted(read(self._joiner).items()):
                service, _, region = key[0].rpartition(_BETWEEN)  # what was one name too many is of no service
                attributes = zip(("service.name", *metric.labels), (service, region, *key[1:]), strict=True)
                yield Reading(metric, {name: told for name, told in attributes if told}, value)

    def readings(self, now_ns: int) -> Iterator[Reading]:  # noqa: ARG002 - as every room's
        """The counters of every region, by service, as of the last second."""
        yield from self._told


def _has(span: Span, prefix: str) -> bool:
    """Whether an attribute's name begins so."""
    return any(pair.key.startswith(prefix) for pair in span.attributes)


def _service(resource: Iterable[KeyValue]) -> str:
    """What a region's name begins with: the service that it is of."""
    told = {pair.key: pair.value.string_value for pair in resource if pair.key in ("service.namespace", "service.name")}
    named = "/".join(told[key] for key in ("service.namespace", "service.name") if told.get(key))
    return named.replace(_BETWEEN, " ") + _BETWEEN

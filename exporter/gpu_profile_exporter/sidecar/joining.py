"""Joins received spans, as executions of regions named by service, with the node's samples."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from operator import attrgetter
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
from gpu_profile.regions.telemetry.enrichment import SHORTEST_S, Enricher
from gpu_profile.regions.telemetry.live_regions import LiveRegions
from gpu_profile.regions.telemetry.server_spans import CompiledSpanRule, ServerSpanRule
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.units import NS_PER_S, nanoseconds
from gpu_profile_exporter.readings.readings import MetricReading
from gpu_profile_exporter.sidecar.ancestry import Ancestry
from gpu_profile_exporter.sidecar.attributes import AddedAttributes, Encoder
from gpu_profile_exporter.sidecar.placing import HW_ID, Holders, NodePlacement, named_devices
from gpu_profile_exporter.sidecar.region_metrics import (
    RegionMetrics,
    region_name,
    service_and_region,
    service_prefix,
    shown_region,
)
from gpu_profile_exporter.sidecar.trace_request import Scope, TraceRequest

if TYPE_CHECKING:
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

_log = logging.getLogger("gpu_profile_exporter")

#: Seconds between two joins.
STEP_S: Final = 0.1
#: Attribute prefix of spans that the library has joined already. They are forwarded unchanged.
_OURS: Final = b"gpu_profile."
_HW_ID: Final = HW_ID.encode()
_GEN_AI: Final = b"gen_ai."
#: Span kinds by OTLP's number: OpenTelemetry's number plus 1. OTLP's 0 means unspecified.
_KINDS: Final = {kind.value + 1: kind for kind in SpanKind}
#: OpenTelemetry's sampling threshold in a trace state, unless it keeps every trace (all zeros): the first digits of a
#: number of 56 bits. A trace is kept if the last 56 bits of its id are at least this.
#: Specification: OpenTelemetry, "TraceState: Probability Sampling".
_SAMPLED: Final = re.compile(r"(?:^|,)\s*ot=(?:[^,]*;)?th:(?!0*\s*(?:[;,]|$))([0-9a-f]{1,14}(?=\s*(?:[;,]|$)))?")
_RANDOM_BITS: Final = 56
#: The random number of a trace state, instead of the trace id's.
_RANDOM: Final = re.compile(r"(?:^|,)\s*ot=(?:[^,]*;)?rv:([0-9a-f]{14})(?=\s*(?:[;,]|$))")
#: A span represents at most this many.
_MOST_REPRESENTED: Final = 1 << 20
#: A span that ends further in the future was stamped by another clock.
_AHEAD_NS: Final = NS_PER_S
#: A longer span has wrong times.
_LONGEST_NS: Final = 30 * 86_400 * NS_PER_S
_FAILED: Final = 2
#: Several fields of a span at once, which is faster than one after the other.
_IDENTITY: Final = attrgetter("kind", "name", "trace_id", "span_id", "parent_span_id")
_TIMES: Final = attrgetter("start_time_unix_nano", "end_time_unix_nano", "trace_state")


class JoinedRequest(NamedTuple):
    """A request with the executions of its spans, by scope and by span. None for a span that stays unchanged.

    All samples for its spans have arrived at `covered_ns`.
    """

    request: TraceRequest
    executions: list[list[Execution | None]]
    covered_ns: int


class SpanJoin:
    """Joins the spans of requests with the node's timeline in `directory`, and returns their attributes.

    `rule` selects spans. Spans that arrive more than `late_s` after their end count in their region's calls, errors and
    durations, not in its rates, and in `counts["late"]`. Spans with impossible times only count in
    `counts["impossible"]`. `take` and `added` may be called by one thread at a time each.
    """

    def __init__(
        self, directory: Path, rule: ServerSpanRule, *, late_s: float, retention_s: float, clock: Clock
    ) -> None:
        self.counts: Counter[str] = Counter()
        #: Set at the end, when there is no time for samples of single spans.
        self.hurried = False
        self._clock = clock
        self._late_ns = nanoseconds(late_s)
        self._oldest_ns = nanoseconds(retention_s)
        self._choice = CompiledSpanRule(rule)
        self._holders = Holders(TableFile(directory))
        self._placement = NodePlacement()
        self._sampler = Sampler(
            lambda: self._opened(NodeDriver(directory, clock=clock)),
            retention_s=retention_s,
            choose=self._choose,
            clock=clock,
        )
        self._joiner = Joiner(self._sampler, self._placement, clock, DEFAULT_THRESHOLDS, self.counts, late_s=late_s)
        self._encoder = Encoder(Enricher(self._joiner), lambda execution: service_and_region(execution.name)[1])
        self._ancestry = Ancestry(keep_ns=2 * self._late_ns)
        self._began: deque[Execution] = deque()
        self._regions = RegionMetrics(self._joiner)
        note = f"Received spans appear {late_s:g} s after their end (--receive-late)."
        self.live = LiveRegions(self._joiner, clock, shown_region, note=note)
        #: Region metrics, computed by the joining thread, so that a scrape waits for none of its locks.
        self._readings: list[MetricReading] = []
        self._readings_ns = 0
        #: The driver that reads the timeline, and the rows that earlier ones lost.
        self._driver: NodeDriver | None = None
        self._lost_before = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _opened(self, driver: NodeDriver) -> NodeDriver:
        self._lost_before, self._driver = self.lost_rows, driver
        return driver

    @property
    def lost_rows(self) -> int:
        """Rows of the timeline that were overwritten before they were read, or were damaged."""
        return self._lost_before + (self._driver.lost_rows if self._driver is not None else 0)

    def _choose(self, _: Driver, listed: Sequence[Device]) -> set[str]:
        self._placement.update(listed)
        return self._placement.read

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Sample and join in two threads until `stop()`."""
        self._sampler.start()
        self._thread = threading.Thread(target=self._run, name="gpu-profile-join", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End both threads."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)
            self._thread = None
        self._sampler.stop()

    def _run(self) -> None:
        while not self._clock.wait(self._stop, STEP_S):
            self.step()

    def step(self) -> None:
        """Join the new executions."""
        try:
            self._holders.renew()
            self._joiner.join(self._began, final=False)
            if self._joiner.judged_ns != self._readings_ns:
                self._readings_ns, self._readings = self._joiner.judged_ns, list(self._regions.readings())
        except Exception:  # noqa: BLE001 - a defect must not end the join of all spans
            if not self.counts["internal errors"]:
                _log.exception("the join of received spans failed; the next join follows")
            self.counts["internal errors"] += 1

    # ------------------------------------------------------------------ spans

    def take(self, request: TraceRequest) -> JoinedRequest:
        """Add the spans of a request to the join."""
        now_ns = self._clock.now_ns()
        self._ancestry.expire(now_ns)
        executions: list[list[Execution | None]] = []
        resource: Resource | None = None
        for scope in request.scopes:
            if scope.resource is not resource:
                # Once for all scopes of a resource.
                resource, attributes = scope.resource, scope.resource.attributes
                service, devices = service_prefix(attributes), self._holders.devices_of(attributes, request.ends)
            executions.append(self._executions(request.data, scope, service, devices, now_ns))
        long_ns = SHORTEST_S * NS_PER_S
        ends = (e.end_ns for scope in executions for e in scope if e is not None and e.end_ns - e.start_ns >= long_ns)
        needed_ns = max(ends, default=0)
        lag_ns = nanoseconds(lag_s(self._sampler.driver)) if needed_ns else 0
        return JoinedRequest(request, executions, needed_ns + lag_ns)

    def _executions(
        self, data: bytes, scope: Scope, service: str, devices: tuple[str, ...] | str, now_ns: int
    ) -> list[Execution | None]:
        """The execution of each span, None for an unchanged span. Written for speed."""
        if not scope.places:
            return []
        (start, end), scope_name = scope.places.extent, scope.name
        # Text that is missing in the whole scope need not be searched in each span.
        gen_ai, ours, names_device = (data.find(text, start, end) >= 0 for text in (_GEN_AI, _OURS, _HW_ID))
        earliest_ns, latest_ns, frontier_ns = now_ns - self._oldest_ns, now_ns + _AHEAD_NS, self._joiner.frontier_ns
        choice, ancestry, began = self._choice, self._ancestry, self._began
        executions: list[Execution | None] = []
        #: The region's full name by kind and name of a span; None if the rule does not select such spans.
        regions: dict[tuple[int, str], str | None] = {}
        newest: dict[str, tuple[Execution, Span]] = {}
        for span in scope.spans:
            kind, name, trace_id, own_id, parent_id = _IDENTITY(span)
            span_id, parent_id = trace_id + own_id, parent_id and trace_id + parent_id
            try:
                region = regions[kind, name]
            except KeyError:
                fits = choice.fits(_KINDS.get(kind, SpanKind.INTERNAL), scope_name, name)
                region = regions[kind, name] = service + region_name(name) if fits else None
            joined = ours and _has(span, "gpu_profile.")
            if region is None:
                if not (joined or (gen_ai and _has(span, "gen_ai.") and choice.allows(scope_name, name))):
                    ancestry.skip(span_id, parent_id)
                    executions.append(None)
                    continue
                region = service + region_name(name)
            start_ns, end_ns, state = _TIMES(span)
            execution = ancestry.find(span_id)
            # Otherwise the span was sent twice. With some tracers, a client span and its server span share an id.
            if execution is None or (execution.start_ns, execution.end_ns) != (start_ns, end_ns):
                execution = Execution(region)
                execution.device = devices
                execution.start_ns, execution.end_ns = start_ns, end_ns
                if names_device:
                    execution.device = named_devices({pair.key: pair.value for pair in span.attributes}) or devices
                # To ask for the code of a status that was not sent would make an empty one, at five times the cost.
                if span.HasField("status") and span.status.code == _FAILED:
                    execution.failed = True
                in_time = frontier_ns < end_ns <= latest_ns and earliest_ns <= start_ns <= end_ns
                possible = (in_time and not state) or self._is_possible(execution, state, trace_id, now_ns)
                ancestry.add(span_id, parent_id, execution)
                if possible:
                    began.append(execution)
                    newest[region] = execution, span
            executions.append(None if joined else execution)
        self._regions.remember(newest)
        return executions

    def _is_possible(self, execution: Execution, state: str, trace_id: bytes, now_ns: int) -> bool:
        """Whether its times are possible. Marks an execution that stands for others, and one that came too late."""
        sampled = _SAMPLED.search(state) if state else None
        if sampled is not None:
            random = _RANDOM.search(state)
            execution.represents = represented(sampled[1], trace_id if random is None else random[1])
        if not now_ns - self._oldest_ns <= execution.start_ns <= execution.end_ns <= now_ns + _AHEAD_NS:
            possible = _move_to_now(execution, now_ns)
            self.counts["impossible"] += not possible
            return possible
        if sampled is not None:
            execution.device = "not identifiable: its traces were sampled, so that other spans are missing"
        elif execution.end_ns <= self._joiner.frontier_ns:
            self.counts["late"] += 1
        return True

    def added(self, joined: JoinedRequest) -> AddedAttributes:
        """The encoded attributes to add to each span."""
        return self._encoder.added(joined.executions, own=not self.hurried)

    # ------------------------------------------------------------------ metrics

    def readings(self, now_ns: int) -> Iterator[MetricReading]:  # noqa: ARG002 - the common signature
        """The metrics of every region, by service. Updated about once a second."""
        yield from self._readings


def _move_to_now(execution: Execution, now_ns: int) -> bool:
    """Move an execution without samples so that it ends now. Returns whether its times are possible."""
    length_ns = execution.end_ns - execution.start_ns
    possible = execution.start_ns > 0 and execution.end_ns <= now_ns + _AHEAD_NS and 0 <= length_ns <= _LONGEST_NS
    if possible:
        execution.device = "it began before the oldest sample that the timeline keeps"
    else:
        execution.device = "its times are impossible: they are reversed, in the future, or more than 30 days apart"
        length_ns = 0
    execution.start_ns, execution.end_ns = now_ns - length_ns, now_ns
    return possible


def represented(threshold: str | None, random: bytes | str) -> int:
    """How many spans one of a sampled trace represents: the inverse of its probability, rounded at random.

    `random` is the trace's own number, its id or hexadecimal, so that the spans of a trace represent the same number
    of spans, and the mean over traces is exact. 1 for a threshold or a number that is impossible.
    """
    number = int(random, 16) if isinstance(random, str) else int.from_bytes(random, "big")
    whole = 1 << _RANDOM_BITS
    rejected = int(threshold.ljust(_RANDOM_BITS // 4, "0"), 16) if threshold else 0
    beyond, kept = (number & (whole - 1)) - rejected, whole - rejected
    return 1 if beyond < 0 else min((whole + beyond) // kept, _MOST_REPRESENTED)


def _has(span: Span, prefix: str) -> bool:
    """Whether an attribute's name begins with `prefix`."""
    return any(pair.key.startswith(prefix) for pair in span.attributes)

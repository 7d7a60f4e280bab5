"""Joins received spans, as executions of regions named by service, with the node's samples."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter, deque
from collections.abc import Container, Hashable, Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from opentelemetry.trace import SpanKind

from gpu_profile.catalogue.samples import Device
from gpu_profile.clock import Clock
from gpu_profile.driver import Driver, lag_s
from gpu_profile.driver.node.driver import NodeDriver
from gpu_profile.driver.node.table import TableFile
from gpu_profile.regimes import DEFAULT_THRESHOLDS
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.backlog import ForeignExecutions
from gpu_profile.regions.session.joiner import JUDGE_S, Joiner
from gpu_profile.regions.session.turns import Turns
from gpu_profile.regions.telemetry.enrichment import Enricher
from gpu_profile.regions.telemetry.live_regions import LiveRegions
from gpu_profile.regions.telemetry.server_spans import CompiledSpanRule, ServerSpanRule
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.units import NS_PER_S, nanoseconds
from gpu_profile_exporter.readings.readings import MetricReading
from gpu_profile_exporter.sidecar.ancestry import Ancestry
from gpu_profile_exporter.sidecar.attributes import AddedAttributes, Encoder, SpanColumns
from gpu_profile_exporter.sidecar.placing import HW_ID, Holders, NodePlacement, named_devices
from gpu_profile_exporter.sidecar.region_metrics import (
    RegionMetrics,
    region_name,
    service_and_region,
    service_prefix,
    shown_region,
)
from gpu_profile_exporter.sidecar.searching import RareText, RareTexts
from gpu_profile_exporter.sidecar.span_fields import SpanFields, kind_and_name
from gpu_profile_exporter.sidecar.trace_request import TraceRequest

if TYPE_CHECKING:
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

_log = logging.getLogger("gpu_profile_exporter")

#: Seconds between two joins.
STEP_S: Final = 0.1
#: The largest share of a processor that the region metrics take, and the longest interval of their renewals: the rates
#: of all regions are estimated for them. Verdicts take less.
_READINGS_SHARE: Final = 0.02
_LONGEST_S: Final = 10.0
#: The prefix of attributes of spans that the library has joined already, which are forwarded unchanged; the attribute
#: that names a device; and the prefix of generative AI's attributes.
_NAMES: Final = RareTexts(
    RareText(b"gpu_profile.", len("gp")), RareText(HW_ID.encode(), len("h")), RareText(b"gen_ai.", len("ge"))
)
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
#: Reasons why a span has no device.
_TOO_OLD: Final = "it began before the oldest sample that the timeline keeps"
_IMPOSSIBLE: Final = "its times are impossible: they are reversed, in the future, or more than 30 days apart"
_SAMPLED_TRACE: Final = "not identifiable: its traces were sampled, so that other spans are missing"
#: Most cached executions without times.
_MOST_SHARED: Final = 4_096


class JoinedRequest(NamedTuple):
    """A request with the executions of its spans. All samples for its spans arrive by `covered_ns`."""

    request: TraceRequest
    spans: SpanColumns
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
        #: Without pauses: threads that forward spans need no more than the system's turns.
        self._turns = Turns(lambda: True)
        self._joiner = Joiner(
            self._sampler,
            self._placement,
            clock,
            DEFAULT_THRESHOLDS,
            self.counts,
            self._turns,
            late_s=late_s,
            defers=True,
        )
        self._encoder = Encoder(Enricher(self._joiner), lambda execution: service_and_region(execution.name)[1])
        self._ancestry = Ancestry(keep_ns=2 * self._late_ns)
        #: Executions without times by region, device, failure, and number of represented spans.
        self._shared: dict[tuple[str, Hashable, bool, int], Execution] = {}
        self._regions = RegionMetrics(self._joiner)
        note = f"Received spans appear {late_s:g} s after their end (--receive-late)."
        self.live = LiveRegions(self._joiner, clock, shown_region, note=note)
        #: Region metrics, computed by the joining thread, so that a scrape waits for none of its locks.
        self._readings: list[MetricReading] = []
        self._readings_ns, self._readings_s = 0, JUDGE_S
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
            self._turns.begin()
            self._holders.renew()
            self._joiner.join(deque(), final=False)
            now_ns = self._clock.now_ns()
            if not 0 <= now_ns - self._readings_ns < self._readings_s * NS_PER_S:
                used_s = self._turns.used_s()
                self._readings_ns, self._readings = now_ns, list(self._regions.readings())
                took_s = self._turns.used_s() - used_s
                self._readings_s = max(JUDGE_S, min(_LONGEST_S, took_s / _READINGS_SHARE))
        except Exception:  # noqa: BLE001 - a defect must not end the join of all spans
            if not self.counts["internal errors"]:
                _log.exception("the join of received spans failed; the next join follows")
            self.counts["internal errors"] += 1

    # ------------------------------------------------------------------ spans

    def take(self, request: TraceRequest) -> JoinedRequest:
        """Add the spans of a request to the join."""
        now_ns = self._clock.now_ns()
        self._ancestry.expire(now_ns)
        fields = SpanFields.of(request)
        executions, joined = self._executions(request, fields)
        newest: dict[str, int] = {}
        for rows in fields.distinct(self._ancestry.arrive(fields.keys)):
            newest |= self._take_rows(request, fields, executions, rows, now_ns)
        starts, ends = fields.starts, fields.ends
        self._regions.remember({name: (int(starts[i]), int(ends[i]), request.span(i)) for name, i in newest.items()})
        for i in joined:
            executions[i] = None
        columns = SpanColumns(executions, starts, ends)
        needed_ns = columns.last_long_ns()
        lag_ns = nanoseconds(lag_s(self._sampler.driver)) if needed_ns else 0
        return JoinedRequest(request, columns, needed_ns + lag_ns)

    def _executions(self, request: TraceRequest, fields: SpanFields) -> tuple[list[Execution | None], list[int]]:
        """The execution of each span, None where the rule does not select it; and the spans that are joined already."""
        executions, joined = list[Execution | None](), list[int]()
        resource: Resource | None = None
        # Text that is missing in the whole request or scope need not be searched in each span.
        places = _NAMES.places(request.data)
        present = [one.text if len(at) else None for one, at in zip(_NAMES.texts, places, strict=True)]
        for scope in request.scopes:
            if scope.resource is not resource:
                # Once for all scopes of a resource.
                resource, attributes = scope.resource, scope.resource.attributes
                service, devices = service_prefix(attributes), self._holders.devices_of(attributes, request.ends)
            first = len(executions)
            rows = slice(first, first + len(scope.places))
            labels = fields.labels[rows]
            shared = {each: self._selected(*kind_and_name(each), scope.name, service, devices) for each in set(labels)}
            executions += map(shared.__getitem__, labels)
            ours, names_device, gen_ai = (
                text is not None and request.data.find(text, *scope.places.extent) >= 0 for text in present
            )
            gen_ai = gen_ai and None in shared.values()
            if not (ours or names_device or gen_ai):
                continue
            for i, span in enumerate(scope.spans, first):
                if ours and _has(span, "gpu_profile."):
                    joined.append(i)
                elif executions[i] is None and not (
                    gen_ai and _has(span, "gen_ai.") and self._choice.allows(scope.name, span.name)
                ):
                    continue
                named = named_devices({pair.key: pair.value for pair in span.attributes}) if names_device else ()
                executions[i] = self._share(service + region_name(span.name), named or devices)
        return executions, joined

    def _selected(
        self, kind: int, name: str, scope: str, service: str, devices: tuple[str, ...] | str
    ) -> Execution | None:
        """The execution of the spans of this kind and name, if the rule selects them."""
        if not self._choice.fits(_KINDS.get(kind, SpanKind.INTERNAL), scope, name):
            return None
        return self._share(service + region_name(name), devices)

    def _take_rows(
        self, request: TraceRequest, fields: SpanFields, executions: list[Execution | None], rows: range, now_ns: int
    ) -> dict[str, int]:
        """Add spans of different keys to the join. Replaces the executions and times that differ from the spans'.

        Returns the last one of each region.
        """
        starts, ends = fields.starts, fields.ends
        if len(rows) == 1:
            i = rows[0]
            number = self._ancestry.find(fields.keys[i]) if executions[i] is not None else None
            row = None if number is None else self._ancestry.row(number)
            if row is not None and row[1:] == (starts[i], ends[i]):
                # It was sent twice. With some tracers, a client span and its server span share an id, not the times.
                executions[i] = row[0]
                return {}
        earliest_ns, latest_ns = max(0, now_ns - self._oldest_ns), now_ns + _AHEAD_NS
        part = slice(rows.start, rows.stop)
        in_time = (self._joiner.frontier_ns < ends[part]) & (ends[part] <= latest_ns)
        in_time &= (earliest_ns <= starts[part]) & (starts[part] <= ends[part])
        odd = {*(np.flatnonzero(~in_time) + rows.start).tolist(), *(i for i in fields.states if i in rows)}
        impossible = set[int]()
        for i in sorted(odd):
            execution = executions[i]
            if execution is not None:
                checked = self._checked(request.span(i), execution.device, now_ns)
                possible, device, represents, starts[i], ends[i] = checked
                executions[i] = self._share(execution.name, device, represents=represents)
                if not possible:
                    impossible.add(i)
        for i in fields.failed:
            execution = executions[i]
            if execution is not None and i in rows:
                device, represents = execution.device, execution.represents
                executions[i] = self._share(execution.name, device, failed=True, represents=represents)
        return self._add_rows(fields, executions, rows, impossible)

    def _add_rows(
        self, fields: SpanFields, executions: Sequence[Execution | None], rows: range, impossible: Container[int]
    ) -> dict[str, int]:
        """Add new spans to the ancestry, and the possible ones to the join. Returns the last one of each region."""
        ancestry, keys, parents, starts, ends = self._ancestry, fields.keys, fields.parents, fields.starts, fields.ends
        made = [execution for execution in executions[rows.start : rows.stop] if execution is not None]
        chosen: Sequence[int] = rows
        if len(made) < len(rows):
            for i in rows:
                if executions[i] is None:
                    ancestry.skip(keys[i], parents[i])
            chosen = [i for i in rows if executions[i] is not None]
        if len(chosen) < len(keys):
            keys, parents = [keys[i] for i in chosen], [parents[i] for i in chosen]
            starts, ends = starts[chosen], ends[chosen]
        numbers = ancestry.add(keys, parents, made, starts, ends)
        if impossible:
            possible = [i not in impossible for i in chosen]
            chosen, made = list(compress(chosen, possible)), list(compress(made, possible))
            starts, ends, numbers = starts[possible], ends[possible], numbers[possible]
        if made or ancestry.nested:
            foreign = ForeignExecutions(made, starts, ends, numbers, ancestry.nested)
            self._joiner.backlog.foreign.append(foreign)
            ancestry.nested = []
        newest: dict[str, int] = {}
        for execution, i in dict(zip(made, chosen, strict=True)).items():
            newest[execution.name] = max(i, newest.get(execution.name, i))
        return newest

    def _share(self, region: str, device: Hashable, *, failed: bool = False, represents: int = 1) -> Execution:
        """The execution without times that all such spans share."""
        key = region, device, failed, represents
        execution = self._shared.get(key)
        if execution is None:
            if len(self._shared) >= _MOST_SHARED:
                self._shared.clear()
            execution = self._shared[key] = Execution(region, device=device)
            execution.failed, execution.represents = failed, represents
        return execution

    def _checked(self, span: Span, device: Hashable, now_ns: int) -> tuple[bool, Hashable, int, int, int]:
        """Whether a span's times are possible; the device, the number of spans that it represents, start and end.

        The device is the reason for none if it represents other spans. Also counts spans that came too late.
        """
        start_ns, end_ns, state = span.start_time_unix_nano, span.end_time_unix_nano, span.trace_state
        sampled = _SAMPLED.search(state) if state else None
        represents = 1
        if sampled is not None:
            random = _RANDOM.search(state)
            represents = represented(sampled[1], span.trace_id if random is None else random[1])
        if not now_ns - self._oldest_ns <= start_ns <= end_ns <= now_ns + _AHEAD_NS:
            length_ns = end_ns - start_ns
            possible = start_ns > 0 and end_ns <= now_ns + _AHEAD_NS and 0 <= length_ns <= _LONGEST_NS
            self.counts["impossible"] += not possible
            # Without samples, so that it ends now.
            return possible, _TOO_OLD if possible else _IMPOSSIBLE, represents, now_ns - length_ns * possible, now_ns
        if sampled is not None:
            return True, _SAMPLED_TRACE, represents, start_ns, end_ns
        if end_ns <= self._joiner.frontier_ns:
            self.counts["late"] += 1
        return True, device, represents, start_ns, end_ns

    def added(self, joined: JoinedRequest) -> AddedAttributes:
        """The encoded attributes to add to each span."""
        return self._encoder.added(joined.spans, own=not self.hurried)

    # ------------------------------------------------------------------ metrics

    def readings(self, now_ns: int) -> Iterator[MetricReading]:  # noqa: ARG002 - the common signature
        """The metrics of every region, by service. Updated each second, or each ten with hundreds of regions."""
        yield from self._readings


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

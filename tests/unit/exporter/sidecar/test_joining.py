"""Received spans and the node's samples, on a clock that is moved by hand."""

import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support.otlp_traces import INTERNAL, SERVER, request_of, span, spans_of, with_attributes
from support.push import attributes
from unit.driver.node.rings import GPU, OTHER, listed, put, table, writer

from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Sample
from gpu_profile.join.durations import BUCKETS_S
from gpu_profile.join.unmixing.solving.region_columns import MOST_REGIONS
from gpu_profile.regions.telemetry.server_spans import parse_rule
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.exposition.exposition import Exposition
from gpu_profile_exporter.sidecar import region_metrics
from gpu_profile_exporter.sidecar.joining import SpanJoin, represented
from gpu_profile_exporter.sidecar.trace_request import TraceRequest

IDLE_W = 80.0
LATE_S = 6.0
CONSUMER = 5
#: How long after its end a span comes, as its process sends spans in batches.
BATCHED_S = 4.0


@dataclass(frozen=True)
class Kind:
    """What the GPU does during a span of a service."""

    service: str
    name: str
    watts: float
    busy: float = 1.0


LOW, HIGH = Kind("a", "GET /x", 200.0), Kind("b", "GET /x", 500.0)


class Node:
    """A GPU that draws what the spans on it say, an exporter's timeline of that, and the join under test."""

    def __init__(self, directory: Path, clock: FakeClock, rule: str = "server,consumer") -> None:
        self.clock, self.rng = clock, random.Random(5)  # noqa: S311 - a test's
        self.directory, self.ring = directory, writer(directory, (rows.ENERGY, rows.GRAPHICS), now_ns=clock.now_ns())
        self.joules, self.read_ns = 0.0, clock.now_ns()
        self.devices = [listed(GPU, self.ring.name)]
        self.sent: deque[tuple[int, str, Span]] = deque()
        self._write(0.0, 0.0)
        self.join = SpanJoin(directory, parse_rule(rule), late_s=LATE_S, retention_s=600.0, clock=clock)
        self._step()

    def run(self, kind: Kind | None, seconds: float, **attributes: Any) -> None:
        """Let the GPU do this for so long, and send its span later."""
        begin_ns = self.clock.now_ns()
        while (left_s := seconds - (self.clock.now_ns() - begin_ns) / 1e9) > 1e-9:
            until_read_s = 0.1 - (self.clock.now_ns() - self.read_ns) / 1e9
            step_s = min(left_s, max(1e-6, until_read_s))
            self.clock.advance(step_s)
            self.joules += step_s * (IDLE_W if kind is None else kind.watts)
            self.worked_s += step_s * (0.0 if kind is None else kind.busy)
            if self.clock.now_ns() - self.read_ns >= 99_999_000:
                self._write(self.worked_s, (self.clock.now_ns() - self.read_ns) / 1e9)
                self._step()
        if kind is not None:
            made = span(kind.name, begin_ns, self.clock.now_ns(), **attributes)
            self.sent.append((self.clock.now_ns() + int(BATCHED_S * 1e9), kind.service, made))

    worked_s = 0.0

    def _write(self, worked_s: float, of_s: float) -> None:
        now_ns = self.clock.now_ns()
        samples = [Sample(rows.ENERGY, now_ns, now_ns, round(self.joules * 1e3))]
        if of_s:
            samples.append(Sample(rows.GRAPHICS, self.read_ns, now_ns, round(1e4 * min(1.0, worked_s / of_s))))
        self.ring.append(samples)
        self.read_ns, self.worked_s = now_ns, 0.0
        put(self.directory, table(*self.devices), now_ns)

    def _step(self) -> None:
        while self.sent and self.sent[0][0] <= self.clock.now_ns():
            _, service, made = self.sent.popleft()
            self.join.take(TraceRequest(request_of([made], service__name=service)))
        self.join._sampler.step()
        self.join.step()

    def mixture(self, seconds: float) -> None:
        """Both kinds, in turn and at random."""
        end_ns = self.clock.now_ns() + int(seconds * 1e9)
        while self.clock.now_ns() < end_ns:
            self.run(self.rng.choice((LOW, HIGH)), self.rng.uniform(0.03, 0.12))
            self.run(None, self.rng.uniform(0.0, 0.06))

    def joined(self, made: Span, **resource: Any) -> dict[str, Any]:
        request = TraceRequest(request_of([made], **resource))
        (found,) = spans_of(
            with_attributes(request, request.by_scope(self.join.added(self.join.take(request)).by_span))
        )
        return attributes(found.attributes)

    def newest(self, **about: Any) -> Span:
        """A span of the last tenth of a second."""
        return span(LOW.name, self.clock.now_ns() - 100_000_000, self.clock.now_ns(), **about)


class Recorded:
    """A lock that notes each entry."""

    def __init__(self, taken: list[bool]) -> None:
        self._taken = taken

    def __enter__(self) -> None:
        self._taken.append(True)

    def __exit__(self, *_: object) -> None: ...


def counted(node: Node) -> int:
    """Executions that the join is about to take in."""
    return sum(len(block.executions) for block in node.join._joiner.backlog.foreign)


@pytest.fixture
def node(tmp_path: Path, clock: FakeClock) -> Iterator[Node]:
    made = Node(tmp_path, clock)
    yield made
    made.join.stop()


def test_spans_wait_for_no_join_that_is_under_way_and_the_next_join_judges_their_new_region(node: Node) -> None:
    new, found = Kind("c", "GET /y", 300.0), deque[dict[str, Any]]()
    node.mixture(20.0)
    node.run(new, 0.1)
    joiner = node.join._joiner
    pool = joiner.pools[GPU.uuid]
    while not (fresh := [region for region in pool.regions if joiner.verdicts.newest(region, GPU.uuid) is None]):
        node.run(None, 0.1)

    def look() -> None:
        found.append(node.joined(span(new.name, node.clock.now_ns(), node.clock.now_ns()), service__name="c"))

    with joiner.lock:
        # Another thread would wait here without end.
        reads = Thread(target=look, daemon=True)
        reads.start()
        reads.join(10)
        assert found.pop()["gpu_profile.unjoined"] == "nothing is known of the region yet"
    assert joiner.verdicts.newest(fresh[0], GPU.uuid) is None
    judged_ns = joiner.judged_ns
    node.join.step()
    assert joiner.judged_ns == judged_ns, "not by a renewal of all verdicts"
    look()
    assert found.pop()["gpu_profile.unjoined"] == "no samples cover the region"


def test_spans_of_names_beyond_those_of_the_pools_wait_for_no_lock(node: Node) -> None:
    for i in range(MOST_REGIONS + 1):
        node.run(Kind("a", f"GET /{i}", 200.0), 0.02)
    node.run(None, 20.0)
    joiner = node.join._joiner
    assert joiner.pools[GPU.uuid].overflowed
    taken: list[bool] = []
    joiner.lock = Recorded(taken)  # type: ignore[assignment]
    for i in range(MOST_REGIONS, MOST_REGIONS + 20):
        node.joined(span(f"GET /{i}", node.clock.now_ns(), node.clock.now_ns()), service__name="a")
    assert not taken


def test_verdicts_that_take_long_are_renewed_seldom_and_counters_go_on_meanwhile(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of regions on the node's devices take seconds of a processor."""
    joiner, took_s, judged = node.join._joiner, [0.0], []
    monkeypatch.setattr(joiner._turns, "_used_s", lambda: took_s[0])
    judge = joiner.verdicts.judge

    def judge_slowly(devices: Any) -> None:
        took_s[0] += 0.1
        judged.append(node.clock.now_ns())
        judge(devices)

    monkeypatch.setattr(joiner.verdicts, "judge", judge_slowly)
    node.mixture(25.0)  # the search for the timing is over, and two renewals have been timed
    del judged[:]
    calls = set[float]()
    for _ in range(30):
        node.mixture(1.0)
        calls.add(sum(r.value for r in node.join.readings(0) if r.metric.otel == "gpu_profile.region.calls"))
    assert 1 <= len(judged) <= 4
    assert len(calls) >= 25


def test_two_services_with_one_region_each_of_the_same_name_get_what_each_of_them_draws(node: Node) -> None:
    node.mixture(60.0)
    for kind in (LOW, HIGH):
        found = node.joined(node.newest(), service__name=kind.service)
        assert found["gpu_profile.region"] == "GET /x"
        assert found["gpu_profile.scope"] == "pooled"
        assert found["gpu_profile.device.ids"] == [GPU.uuid]
        assert found["gpu_profile.interval.source"] == "host"
        assert found["gpu_profile.power.mean"] == pytest.approx(kind.watts, rel=0.05)
        assert found["gpu_profile.energy.joules"] == pytest.approx(kind.watts * 0.1, rel=0.05)
        assert found["gpu_profile.busy.ratio"] == pytest.approx(1.0, abs=0.05)
        assert abs(found["gpu_profile.power.mean"] - kind.watts) <= 10 * found["gpu_profile.energy.half_width"] + 1
    assert not node.join.counts["late"]
    assert not node.join.counts["internal errors"]
    told = {
        (r.metric.otel, r.attributes["service.name"]): r.value
        for r in node.join.readings(0)
        if r.metric.otel in ("gpu_profile.region.energy", "gpu_profile.region.energy.uncertain")
    }
    joules = [told["gpu_profile.region.energy", s] + told["gpu_profile.region.energy.uncertain", s] for s in "ab"]
    assert joules[1] > 1.5 * joules[0]
    assert sum(joules) < node.joules


def test_spans_that_come_after_the_pool_has_passed_them_are_counted_and_get_its_values(node: Node) -> None:
    node.mixture(30.0)
    end_ns = node.clock.now_ns() - int((LATE_S + 3) * 1e9)
    found = node.joined(span(LOW.name, end_ns - 10**8, end_ns), service__name="a")
    assert node.join.counts["late"] == 1
    assert found["gpu_profile.scope"] == "pooled"


def test_a_long_span_waits_for_its_samples_and_has_readings_of_its_own(node: Node) -> None:
    node.run(Kind("a", "train", 300.0), 8.0)
    _, _, made = node.sent.pop()
    joined = node.join.take(TraceRequest(request_of([made], service__name="a")))
    assert joined.covered_ns >= made.end_time_unix_nano
    node.run(None, 2.0)
    (found,) = spans_of(with_attributes(joined.request, joined.request.by_scope(node.join.added(joined).by_span)))
    told = attributes(found.attributes)
    assert (told["gpu_profile.scope"], told["gpu_profile.region"]) == ("span", "train")
    assert told["gpu_profile.energy.joules"] == pytest.approx(2400.0, rel=0.02)


def test_a_span_inside_another_is_counted_once_however_late_the_outer_one_comes(node: Node) -> None:
    node.mixture(10.0)
    now_ns = node.clock.now_ns()
    outer, inner = span("outer", now_ns - 10**9, now_ns, span_id=b"outer---"), span("inner", now_ns - 10**9, now_ns - 1)
    inner.parent_span_id, inner.trace_id = b"outer---", outer.trace_id
    for one in (inner, outer):
        node.join.take(TraceRequest(request_of([one])))
    nested = [e for block in node.join._joiner.backlog.foreign for _, e in block.nested]
    executions = {e.name.rpartition("\x1f")[2]: e for e in nested}
    assert executions["inner"].parent is executions["outer"]


@pytest.mark.parametrize(
    ("made", "takes"),
    [
        (span("x", 1, 2, kind=INTERNAL), False),
        (span("x", 1, 2, kind=3), False),
        (span("x", 1, 2, kind=5), True),
        (span("x", 1, 2, kind=99), False),
        (span("chat", 1, 2, kind=3, gen_ai__operation__name="chat"), True),
        (span("x", 1, 2, kind=3, url="gen_ai."), False),
        (span("skip", 1, 2), False),
        (span("skip", 1, 2, kind=3, gen_ai__system="s"), False),
        (span("internal.wanted", 1, 2, kind=INTERNAL), True),
    ],
)
def test_which_spans_count_is_the_rule_s_and_generative_ai_s_do(
    tmp_path: Path, clock: FakeClock, made: Span, takes: bool
) -> None:
    node = Node(tmp_path, clock, "server,consumer,name=internal.*,!name=skip")
    made.start_time_unix_nano, made.end_time_unix_nano = clock.now_ns() - 1_000, clock.now_ns()
    assert ("gpu_profile.region" in node.joined(made)) is takes
    assert counted(node) == takes


def test_a_span_that_our_library_has_joined_counts_and_stays_as_it_is(node: Node) -> None:
    made = node.newest(gpu_profile__region="x", gpu_profile__regime="IDLE")
    request = TraceRequest(request_of([made]))
    joined = node.join.take(request)
    assert with_attributes(request, request.by_scope(node.join.added(joined).by_span)) == request.data
    assert counted(node) == 1


def test_a_span_that_is_sent_again_counts_once(node: Node) -> None:
    made = node.newest()
    assert node.joined(made) == node.joined(made)
    assert counted(node) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"trace_state": "vendor=1,ot=th:8;rv:1"}, "sampled"),
        ({"trace_state": "ot=rv:1;th:c8"}, "sampled"),
        ({"start_time_unix_nano": 1 << 62, "end_time_unix_nano": 1 << 63}, "times are impossible"),
        ({"end_time_unix_nano": 5}, "times are impossible"),
        ({"end_time_unix_nano": (1 << 64) - 1}, "times are impossible"),
        ({"end_time_unix_nano": (1 << 64) - 1, "trace_state": "ot=th:8"}, "times are impossible"),
        ({"start_time_unix_nano": 0}, "times are impossible"),
        ({"start_time_unix_nano": 5, "end_time_unix_nano": 9}, "before the oldest sample that the timeline keeps"),
    ],
    ids=str,
)
def test_what_cannot_be_joined_says_why_and_is_in_no_region_s_numbers(
    node: Node, change: dict[str, Any], reason: str
) -> None:
    made = node.newest()
    for name, value in change.items():
        setattr(made, name, value)
    found = node.joined(made)
    assert reason in found["gpu_profile.unjoined"]
    assert not [name for name in found if "energy" in name or "busy" in name]
    node.run(None, 1.0)
    assert not node.join._joiner.pools.get(GPU.uuid) or not node.join._joiner.pools[GPU.uuid].regions


@pytest.mark.parametrize("state", ["", "ot=th:0", "ot=rv:1;th:000", "other=th:8", "ot=rv:8"])
def test_traces_that_are_all_kept_are_joined(node: Node, state: str) -> None:
    assert "sampled" not in node.joined(node.newest(state=state))["gpu_profile.unjoined"]


@pytest.mark.parametrize(
    ("state", "each"),
    [
        ("ot=th:8", 2),
        ("v=1, ot=th:c;rv:ffffffffffffff", 4),
        ("ot=th:0", 1),
        ("ot=th:zz", 1),
        ("ot=th:" + 15 * "f", 1),
        ("ot=th:8 ,a=b", 2),
    ],
)
def test_a_span_of_a_sampled_trace_counts_for_those_that_were_left_out(node: Node, state: str, each: int) -> None:
    sent = [node.newest(state=state) for _ in range(50)]
    for i, made in enumerate(sent):
        made.trace_id = ((1 << 127) + (1 << 56) - 1 - i).to_bytes(16, "big")
        made.status.code = Status.STATUS_CODE_ERROR if i % 5 == 0 else Status.STATUS_CODE_UNSET
        node.joined(made)
    node.run(None, 15.0)
    stats = next(iter(node.join._joiner.verdicts.durations.values()))
    assert (stats.calls, sum(stats.counts), stats.errors) == (50 * each, 50 * each, 10 * each)
    assert sum(node.join._joiner.verdicts.calls.values()) == 50 * each
    assert stats.total_ns == each * sum(made.end_time_unix_nano - made.start_time_unix_nano for made in sent)


@given(st.integers(1, (1 << 56) - 1), st.integers(0, 1000), st.booleans())
def test_a_span_represents_the_inverse_of_its_probability(rejected: int, part: int, as_text: bool) -> None:
    kept = (1 << 56) - rejected
    number = rejected + kept * part // 1001
    random = f"{number:014x}" if as_text else (number | 1 << 100).to_bytes(16, "big")
    weight = Fraction(1 << 56, kept)
    times = represented(f"{rejected:014x}".rstrip("0"), random)
    assert times == min(1 << 20, math.floor(weight) + (Fraction(number - rejected, kept) >= 1 - weight % 1))


def test_an_id_below_its_threshold_represents_itself_alone() -> None:
    assert represented("8", bytes(16)) == represented("8", "7" + 13 * "f") == represented(None, bytes(16)) == 1


def test_on_a_node_with_two_gpus_a_span_is_where_it_or_its_resource_says_and_else_says_why(node: Node) -> None:
    node.devices.append(listed(OTHER))
    node.run(None, 6.0)
    assert "no attribute identifies its device" in node.joined(node.newest())["gpu_profile.unjoined"]
    assert node.joined(node.newest(), hw__id=OTHER.uuid)["gpu_profile.device.ids"] == [OTHER.uuid]
    assert node.joined(node.newest(hw__id=GPU.uuid), hw__id=OTHER.uuid)["gpu_profile.device.ids"] == [GPU.uuid]
    gone = node.joined(node.newest(hw__id="GPU-gone"))
    assert "a device that this node does not have" in gone["gpu_profile.unjoined"]


def test_one_span_with_impossible_times_ends_no_other_s_join(node: Node) -> None:
    node.mixture(20.0)
    for end_ns in ((1 << 64) - 1, 1 << 63, node.clock.now_ns() + 86_400 * 10**9):
        made = node.newest()
        made.end_time_unix_nano = end_ns
        assert "times are impossible" in node.joined(made)["gpu_profile.unjoined"]
    before = node.joined(node.newest(), service__name="a")["gpu_profile.pooled.n"]
    node.mixture(20.0)
    assert node.joined(node.newest(), service__name="a")["gpu_profile.pooled.n"] > 1.5 * before
    assert not node.join.counts["internal errors"]


def test_a_device_that_is_named_twice_is_one(node: Node) -> None:
    assert node.joined(node.newest(hw__id=[GPU.uuid, GPU.uuid]))["gpu_profile.device.ids"] == [GPU.uuid]


def test_one_id_in_two_traces_or_of_a_client_and_its_server_is_two_spans(tmp_path: Path, clock: FakeClock) -> None:
    node = Node(tmp_path, clock, "server,client")
    first, second = node.newest(span_id=b"the same"), node.newest(span_id=b"the same")
    shared = node.newest(span_id=b"the same", kind=3)
    shared.trace_id, shared.name, shared.start_time_unix_nano = first.trace_id, "client", first.start_time_unix_nano - 9
    second.name = "second"
    told = [node.joined(one)["gpu_profile.region"] for one in (first, second, shared)]
    assert told == ["GET /x", "second", "client"]
    assert counted(node) == 3


def test_when_there_is_no_time_a_long_span_gets_what_its_region_is_told_by(node: Node) -> None:
    node.run(Kind("a", "train", 300.0), 8.0)
    _, _, made = node.sent.pop()
    node.run(None, 2.0)
    node.join.hurried = True
    assert node.joined(made, service__name="a").get("gpu_profile.scope") != "span"
    node.join.hurried = False
    assert node.joined(made, service__name="a")["gpu_profile.scope"] == "span"


def test_a_million_names_are_one_region_and_memory_stays(node: Node) -> None:
    now_ns = node.clock.now_ns()
    for at in range(0, 6_000, 500):
        made = [span(f"GET /{at + i}", now_ns - 1_000, now_ns - 500) for i in range(500)]
        node.join.added(node.join.take(TraceRequest(request_of(made))))
        node.run(None, 1.0)
    node.run(None, LATE_S + 2)
    verdicts = node.join._joiner.verdicts
    assert len(verdicts.durations) <= 1_001
    assert sum(d.calls for d in verdicts.durations.values()) == 6_000


def families_of(node: Node, accept: str = "application/openmetrics-text") -> dict[str, Metric]:
    text = Exposition(lambda: node.join.readings(0), process=False).render(accept)[0].decode()
    return {family.name: family for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]


def test_durations_are_a_histogram_by_service_whose_buckets_lead_to_their_newest_spans(node: Node) -> None:
    node.mixture(20.0)
    node.run(None, BATCHED_S + 1)
    made = node.newest()
    node.join.take(TraceRequest(request_of([made], service__name="a")))
    node.run(None, LATE_S + 2)
    duration = families_of(node)["gpu_profile_region_duration_seconds"]
    assert duration.type == "histogram"
    of_a = [s for s in duration.samples if s.labels["service_name"] == "a"]
    counts = {s.labels["le"]: s.value for s in of_a if s.name.endswith("_bucket")}
    assert len(counts) == len(BUCKETS_S) + 1
    assert list(counts.values()) == sorted(counts.values())
    whole = {s.name.rpartition("_")[2]: s.value for s in of_a if "le" not in s.labels}
    assert whole["count"] == counts["+Inf"] > 10
    assert whole["sum"] == pytest.approx(node.join._joiner.verdicts.durations["a\x1fGET /x"].total_ns / 1e9)
    exemplar = next(s.exemplar for s in of_a if s.labels.get("le") == "0.1")
    assert exemplar is not None
    assert exemplar.labels == {"trace_id": made.trace_id.hex(), "span_id": made.span_id.hex()}
    assert exemplar.value == pytest.approx(0.1)
    assert float(str(exemplar.timestamp)) == pytest.approx(made.end_time_unix_nano / 1e9, abs=1e-4)


def test_regions_beyond_the_first_have_no_durations_and_too_many_series_leave_no_histogram_in_part(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_metrics, "MOST_DURATIONS", 3)
    made = [span(f"GET /{i}", node.clock.now_ns() - 1_000, node.clock.now_ns() - 500) for i in range(20)]
    node.join.take(TraceRequest(request_of(made)))
    node.run(None, LATE_S + 2)
    readings = list(node.join.readings(0))
    text = Exposition(lambda: readings, process=False, budget=80).render()[0].decode()
    assert text.count("gpu_profile_region_duration_seconds_bucket{") == 3 * (len(BUCKETS_S) + 1)
    assert 0 < text.count("gpu_profile_region_calls_total{") < 20


def test_an_exemplar_is_only_in_the_format_that_has_them(node: Node) -> None:
    node.mixture(20.0)
    node.join.take(TraceRequest(request_of([node.newest()], service__name="a")))
    node.run(None, LATE_S + 2)
    exposition = Exposition(lambda: node.join.readings(0), process=False)
    assert " # {" in exposition.render("application/openmetrics-text")[0].decode()
    assert " # {" not in exposition.render("text/plain")[0].decode()


@pytest.mark.parametrize(("trace_id", "span_id"), [(16, 9), (4_000_000, 8), (0, 8), (16, 0)])
def test_ids_that_are_none_are_in_no_exemplar(node: Node, trace_id: int, span_id: int) -> None:
    node.mixture(20.0)
    known = dict(node.join._regions._newest)
    assert known
    made = node.newest()
    made.trace_id, made.span_id = b"\x01" * trace_id, b"\x01" * span_id
    node.join.take(TraceRequest(request_of([made], service__name="a")))
    assert node.join._regions._newest == known


def test_names_that_differ_in_what_no_label_can_hold_are_one_region(node: Node) -> None:
    now_ns = node.clock.now_ns()
    made = [span(name, now_ns - 1_000, now_ns - 500) for name in ("\x00n", "\x01n", "\x01n", "n\x1fm", "üß \u2028")]
    node.join.take(TraceRequest(request_of(made)))
    node.run(None, LATE_S + 2)
    calls = {d: stats.calls for d, stats in node.join._joiner.verdicts.durations.items()}
    assert calls == {"svc\x1f\ufffdn": 3, "svc\x1fn\ufffdm": 1, "svc\x1füß \u2028": 1}


def test_spans_of_decades_break_no_sum_and_no_other_region(node: Node) -> None:
    made = [node.newest() for _ in range(60)]
    for one in made:
        one.start_time_unix_nano = 1
    node.join.take(TraceRequest(request_of(made, service__name="wrong")))
    node.mixture(60.0)
    found = node.joined(node.newest(), service__name="a")
    assert found["gpu_profile.power.mean"] == pytest.approx(LOW.watts, rel=0.05)
    assert node.join.counts["impossible"] == 60
    samples = families_of(node)["gpu_profile_region_duration_seconds"].samples
    assert samples
    assert not [s for s in samples if s.labels["service_name"] == "wrong"]


def test_a_span_of_hours_ago_counts_with_its_length(node: Node) -> None:
    made = node.newest()
    made.start_time_unix_nano -= 7_200 * 10**9
    made.end_time_unix_nano -= 7_200 * 10**9
    unjoined = node.joined(made, service__name="old")["gpu_profile.unjoined"]
    assert "before the oldest sample that the timeline keeps" in unjoined
    node.run(None, LATE_S + 2)
    samples = families_of(node)["gpu_profile_region_duration_seconds"].samples
    assert [s.value for s in samples if s.name.endswith("_sum")] == [pytest.approx(0.1)]
    assert not node.join.counts["impossible"]


KINDS = st.integers(0, 5)
MARKS = st.sampled_from(
    [{}, {"gen_ai__system": "x"}, {"gpu_profile__region": "x"}, {"hw__id": "GPU-1"}, {"hw__id": OTHER.uuid}]
)
SPANS = st.tuples(KINDS, st.sampled_from(["GET /x", "\x00", "y"]), MARKS, st.sampled_from([0, 1, 2]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SPANS, min_size=1, max_size=6))
def test_spans_that_come_together_get_what_each_gets_alone(node: Node, about: list[Any]) -> None:
    def made() -> list[Span]:
        spans = [node.newest(kind=kind, **marks) for kind, _, marks, _ in about]
        for one, (_, name, _, code) in zip(spans, about, strict=True):
            one.name = name
            one.status.code = code
        return spans

    together = TraceRequest(request_of(made()))
    joined = node.join.take(together)
    received = with_attributes(together, together.by_scope(node.join.added(joined).by_span))
    for one, execution, (kind, name, marks, code), alone in zip(
        spans_of(received), joined.spans.executions, about, made(), strict=True
    ):
        assert attributes(one.attributes) == node.joined(alone)
        chosen = kind in (SERVER, CONSUMER) or "gen_ai__system" in marks
        assert (execution is not None) == (chosen and "gpu_profile__region" not in marks)
        assert execution is None or (execution.name, execution.failed) == (
            f"svc\x1f{name}".replace("\0", "\ufffd"),
            code == 2,
        )
    if not any(joined.spans.executions):
        assert received is together.data

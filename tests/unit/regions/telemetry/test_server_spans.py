import gc
import re
import threading
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ConcurrentMultiSpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, Status, StatusCode
from support.concurrency import in_child, in_threads
from support.regions import Stage, Staged
from unit.regions.telemetry.foreign import foreign_span, start, watch

from gpu_profile import GpuSpanProcessor, region
from gpu_profile.errors import UsageError
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import Session
from gpu_profile.regions.telemetry import server_spans
from gpu_profile.regions.telemetry.server_spans import AdoptedSpans, ServerSpanRule, parse_rule

INTERNAL, SERVER, CONSUMER, CLIENT = SpanKind.INTERNAL, SpanKind.SERVER, SpanKind.CONSUMER, SpanKind.CLIENT


def joined(on_host: Stage) -> set[str]:
    """Names of the spans that have something of ours."""
    return {s.name for s in on_host.spans if any(key.startswith("gpu_profile.") for key in s.attributes or {})}


# ------------------------------------------------------------------ the rule's words


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("server,consumer,regions", ServerSpanRule()),
        (" server , regions ", ServerSpanRule(kinds=frozenset({"server"}))),
        ("none", ServerSpanRule(kinds=frozenset(), containing_regions=False)),
        (
            "all",
            ServerSpanRule(
                kinds=frozenset({"internal", "server", "client", "producer", "consumer"}), containing_regions=False
            ),
        ),
        (
            "scope=shop.*,name=GET *,!name=* /health*,!scope=redis",
            ServerSpanRule(
                kinds=frozenset(),
                scopes=("shop.*",),
                names=("GET *",),
                containing_regions=False,
                not_scopes=("redis",),
                not_names=("* /health*",),
            ),
        ),
    ],
)
def test_words_are_read_as_a_rule(words: str, rule: ServerSpanRule) -> None:
    assert parse_rule(words) == rule


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("servr", "'servr' does not select spans for GPU attributes: use internal, server, client"),
        ("server,none", "`none` excludes all other words: 'server,none'"),
        ("", "the rule for spans with GPU attributes is empty: ''; use `none` for no spans"),
        ("name=", "'name=' does not select"),
        ("!server", "'!server' does not select"),
    ],
)
def test_word_that_is_none_of_them_is_a_usage_error_in_one_line(words: str, problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)) as caught:
        parse_rule(words)
    assert "\n" not in str(caught.value)


def test_rule_with_a_kind_that_is_none_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'http' is no kind of span: choose among internal, server"):
        ServerSpanRule(kinds=frozenset({"http"}))


def test_rule_that_no_span_fits_watches_none(on_host: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_spans, "current", None)
    assert server_spans.watch(parse_rule("none"), session=process.session, innermost=lambda: None) is None
    assert server_spans.current is None


# ------------------------------------------------------------------ which spans


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("server,consumer,regions", {"GET /", "receive", "with region", "region"}),
        ("server", {"GET /", "region"}),
        ("regions", {"with region", "region"}),
        ("client,internal", {"call", "plain", "with region", "region"}),
        ("name=GET*,name=pl?in", {"GET /", "plain", "region"}),
        ("scope=shop.http", {"GET /", "call", "region"}),
        ("all", {"GET /", "receive", "call", "plain", "with region", "region"}),
        ("all,!scope=shop.http,!name=with*", {"receive", "plain", "region"}),
        ("regions,!name=with*", {"region"}),
    ],
)
def test_rule_says_which_spans_get_gpu_attributes(
    on_host: Stage, monkeypatch: pytest.MonkeyPatch, words: str, expected: set[str]
) -> None:
    watch(monkeypatch, parse_rule(words))
    for name, kind, scope in (
        ("GET /", SERVER, "shop.http"), ("receive", CONSUMER, "shop"), ("call", CLIENT, "shop.http"),
        ("plain", INTERNAL, "shop"),
    ):  # fmt: skip
        with foreign_span(on_host, name, kind, scope=scope):
            on_host.run(0.01)
    with foreign_span(on_host, "with region"), region("region"):
        on_host.run(0.01)
    on_host.flush()
    assert joined(on_host) == expected


def test_matched_span_is_pooled_judged_and_joined_like_a_region_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, dict[str, object]] = {}
    for how in ("foreign", "region"):
        with Stage(tmp_path / how, monkeypatch, on_device=False) as on_host:
            if how == "foreign":
                watch(monkeypatch)
            on_host.run(0.5)
            for _ in range(3):
                with foreign_span(on_host, "GET /answer", SERVER) if how == "foreign" else region("GET /answer"):
                    on_host.work(2.0, "x", share=0.75)
                on_host.run(0.3)
            on_host.flush()
            spans = [dict(span.attributes or {}) for span in on_host.spans]
            assert len(spans) == 3
            assert spans[0]["gpu_profile.scope"] == "span"
            seen[how] = {"spans": spans, "calls": on_host.calls("GET /answer"), "judged": on_host.session.regions()}
    assert seen["foreign"]["calls"] == 3
    assert seen["foreign"] == seen["region"]


def test_span_that_is_not_matched_passes_straight_through(on_host: Stage, spans: AdoptedSpans) -> None:
    with foreign_span(on_host, "plain"):
        on_host.run(0.1)
    assert on_host.names() == ["plain"]
    assert on_host.attributes("plain") == {}
    assert on_host.calls("plain") == 0


def test_spans_that_are_not_watched_stay_as_they_are(on_host: Stage) -> None:
    with foreign_span(on_host, "GET /", SERVER), region("step"):
        on_host.run(0.1)
    on_host.flush()
    assert joined(on_host) == {"step"}


def test_matched_span_starts_the_session_where_no_region_ever_runs(
    on_host: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    spans = watch(monkeypatch)

    def session() -> Session:
        asked.append(1)
        return on_host.session

    monkeypatch.setattr(spans, "_session", session)
    with foreign_span(on_host, "plain"):
        pass
    assert asked == []
    with foreign_span(on_host, "GET /", SERVER):
        pass
    assert asked == [1]


def test_last_name_of_a_span_counts_and_its_error(on_host: Stage, spans: AdoptedSpans) -> None:
    with foreign_span(on_host, "GET", SERVER) as span:
        span.update_name("GET /items/{id}")
        span.set_status(Status(StatusCode.ERROR))
        on_host.run(0.1)
    on_host.flush()
    durations = on_host.session.joiner.verdicts.durations
    assert list(durations) == ["GET /items/{id}"]
    assert durations["GET /items/{id}"].errors == 1


def test_span_with_times_of_its_own_making_never_runs_backwards(on_host: Stage, spans: AdoptedSpans) -> None:
    now = on_host.clock.now_ns()
    tracer = on_host.provider.get_tracer("shop")
    tracer.start_span("backwards", kind=SERVER, start_time=now).end(end_time=now - 10**9)
    tracer.start_span("at zero", kind=SERVER, start_time=0).end(end_time=now)
    tracer.start_span("tomorrow", kind=SERVER, start_time=now + 86_400 * 10**9).end()
    on_host.flush()
    on_host.session.settle(final=True)
    assert {e.name for e in on_host.ended} == {"backwards", "at zero", "tomorrow"}
    assert all(0 < e.start_ns <= e.end_ns for e in on_host.ended)
    assert on_host.session.counts["internal errors"] == 0


def test_span_of_the_foreign_kind_that_is_not_sampled_is_invisible(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_host = staged(on_device=False, sampler=ALWAYS_OFF)
    watch(monkeypatch)
    tracer = on_host.provider.get_tracer("shop")
    with tracer.start_as_current_span("GET /", kind=SERVER), region("step"):
        on_host.run(0.1)
    on_host.flush()
    assert on_host.parents() == {"step": None}


# ------------------------------------------------------------------ processors


@pytest.mark.parametrize("concurrent", [False, True])
def test_span_counts_once_and_is_joined_for_every_processor(
    on_host: Stage, concurrent: bool, spans: AdoptedSpans
) -> None:
    exporters = [InMemorySpanExporter() for _ in range(3)]
    multi = ConcurrentMultiSpanProcessor(3) if concurrent else None
    provider = TracerProvider(active_span_processor=multi, shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(GpuSpanProcessor(SimpleSpanProcessor(exporter)))
    for _ in range(20):
        span = provider.get_tracer("shop").start_span("GET /", kind=SERVER, start_time=on_host.clock.now_ns())
        on_host.run(0.01)
        span.end(end_time=on_host.clock.now_ns())
    on_host.run(1.5)
    provider.force_flush()
    assert on_host.calls("GET /") == 20
    for exporter in exporters:
        finished = exporter.get_finished_spans()
        assert len(finished) == 20
        assert all("gpu_profile.device.ids" in (s.attributes or {}) for s in finished)
    assert not spans._live
    assert not spans._taken
    provider.shutdown()


def test_defect_of_ours_fails_neither_span_nor_region_and_is_said_once(
    on_host: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, spans: AdoptedSpans
) -> None:
    def fail() -> Execution | None:
        raise ZeroDivisionError

    monkeypatch.setattr(spans, "_innermost", fail)
    for _ in range(3):
        with foreign_span(on_host, "GET /", SERVER), region("step"):
            pass
    on_host.flush()
    assert on_host.names().count("GET /") == on_host.names().count("step") == 3
    assert [r.message for r in caplog.records] == ["gpu-profile: a span has no GPU attributes: ZeroDivisionError()"]


# ------------------------------------------------------------------ bounds


def test_spans_beyond_the_bound_are_passed_over_and_counted(
    on_host: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spans = watch(monkeypatch, most_live=10)
    running = [start(on_host, f"GET /{i}", SERVER) for i in range(13)]
    assert spans.overlooked == 3
    on_host.run(0.1)
    for span in running:
        span.end(end_time=on_host.clock.now_ns())
    on_host.flush()
    assert joined(on_host) == {f"GET /{i}" for i in range(10)}
    assert len(on_host.names()) == 13
    assert [r.message for r in caplog.records] == [
        "gpu-profile: more than 10 spans run at once; the rest get no GPU values"
    ]
    with foreign_span(on_host, "after", SERVER):
        pass
    on_host.flush()
    assert "after" in joined(on_host)


def test_spans_that_nobody_ends_make_room_once_they_are_gone(on_host: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = watch(monkeypatch, most_live=10)
    for _ in range(100):
        start(on_host, "leaked")
    gc.collect()
    assert spans.overlooked == 0
    assert len(spans._live) <= 10


def test_matched_span_that_nobody_ends_ends_when_it_is_gone(on_host: Stage, spans: AdoptedSpans) -> None:
    leaked = start(on_host, "GET /", SERVER)
    on_host.run(1.0)
    assert on_host.calls("GET /") == 0
    del leaked
    gc.collect()
    on_host.run(1.0)
    assert spans.forgotten == 1
    assert on_host.calls("GET /") == 1
    assert on_host.session.joiner.verdicts.durations["GET /"].errors == 1
    assert not spans._taken
    on_host.run(35.0)
    assert on_host.session.idle


def test_names_without_end_are_counted_as_other(on_host: Stage, spans: AdoptedSpans) -> None:
    for i in range(1_200):
        with foreign_span(on_host, f"GET /user/{i}", SERVER):
            on_host.clock.advance(0.0001)
        if i % 100 == 0:
            on_host.run(0.1)
    on_host.run(1.0)
    assert len(on_host.session.joiner.verdicts.durations) == 1_001
    assert sum(stats.calls for stats in on_host.session.joiner.verdicts.durations.values()) == 1_200
    assert on_host.session.joiner.verdicts.durations["other"].calls == 200
    assert len(on_host.session.joiner.pools[on_host.uuid].regions) <= 65


def test_forked_child_forgets_the_parents_spans(on_host: Stage, spans: AdoptedSpans) -> None:
    with foreign_span(on_host, "GET /", SERVER) as span:

        def child() -> list[str]:
            assert not spans._live
            assert spans.around(None) is None
            span.end()
            with foreign_span(on_host, "child", SERVER):
                return [taken.execution.name for taken in spans._taken.values()]

        assert in_child(child) == "['child']"
        on_host.run(0.1)
    on_host.flush()
    assert on_host.calls("GET /") == 1


def test_region_that_begins_in_two_threads_of_one_span_makes_it_one_execution(
    on_host: Stage, spans: AdoptedSpans
) -> None:
    found: list[Execution | None] = []
    with foreign_span(on_host, "job") as span:
        barrier = threading.Barrier(8)

        def begin() -> None:
            with trace.use_span(span):
                barrier.wait()
                found.append(spans.around(None))

        in_threads(*[begin] * 8)
    assert len({id(execution) for execution in found}) == 1
    on_host.flush()
    assert on_host.calls("job") == 1


def test_leaving_ends_what_runs_and_watches_no_more(on_host: Stage, spans: AdoptedSpans) -> None:
    with foreign_span(on_host, "GET /", SERVER):
        on_host.run(0.2)
        server_spans.leave()
        on_host.run(0.2)
    with foreign_span(on_host, "GET /", SERVER):
        pass
    on_host.flush()
    assert on_host.calls("GET /") == 1
    assert joined(on_host) == set()
    (execution,) = on_host.ended
    assert execution.end_ns - execution.start_ns == 200_000_000

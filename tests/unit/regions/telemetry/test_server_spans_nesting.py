"""In what regions and foreign spans run, and whose time is whose."""

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind
from support.concurrency import in_threads
from support.regions import Stage
from support.worlds import known
from unit.regions.telemetry.foreign import foreign_span, start, watch

from gpu_profile import region
from gpu_profile.regions.telemetry.server_spans import AdoptedSpans, parse_rule

SERVER, CONSUMER = SpanKind.SERVER, SpanKind.CONSUMER


def test_regions_and_matched_spans_are_inside_one_another_as_they_run(on_host: Stage, spans: AdoptedSpans) -> None:
    with foreign_span(on_host, "GET /", SERVER), foreign_span(on_host, "handler"):
        with region("outer"), foreign_span(on_host, "helper"):
            with foreign_span(on_host, "deep"), region("inner"):
                on_host.run(0.1)
            with foreign_span(on_host, "inner server", SERVER):
                on_host.run(0.1)
        with foreign_span(on_host, "no region"):
            pass
    on_host.flush()
    assert on_host.parents() == {
        "GET /": None, "handler": "GET /", "outer": "handler", "helper": "outer", "deep": "helper", "inner": "deep",
        "inner server": "helper",
    }  # fmt: skip


def test_regions_without_spans_and_begun_by_hand_are_inside_too(on_host: Stage, spans: AdoptedSpans) -> None:
    with foreign_span(on_host, "GET /", SERVER):
        with region("quiet", span=False), foreign_span(on_host, "in quiet", SERVER):
            handle = region.start("handle")
        handle.end()
    with foreign_span(on_host, "late"), region("only", span=False):
        pass
    on_host.flush()
    assert on_host.parents() == {
        "GET /": None, "quiet": "GET /", "in quiet": "quiet", "handle": "in quiet", "late": None, "only": "late",
    }  # fmt: skip


def test_spans_that_a_rule_leaves_out_are_looked_through(on_host: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    watch(monkeypatch, parse_rule("server,regions,!name=middle*"))
    with foreign_span(on_host, "GET /", SERVER), foreign_span(on_host, "middle 1"), foreign_span(on_host, "middle 2"):
        with region("step"):
            pass
        with foreign_span(on_host, "nested server", SERVER):
            pass
    on_host.flush()
    assert on_host.parents() == {"GET /": None, "step": "GET /", "nested server": "GET /"}


def test_surroundings_are_the_contexts_and_not_the_threads(on_host: Stage, spans: AdoptedSpans) -> None:
    with foreign_span(on_host, "GET /", SERVER) as span:
        alone = start(on_host, "alone", SERVER, context=Context())
        elsewhere = trace.set_span_in_context(span)
        in_threads(lambda: start(on_host, "worker", CONSUMER, context=elsewhere).end())
        alone.end()
    on_host.flush()
    assert on_host.parents() == {"GET /": None, "alone": None, "worker": "GET /"}


def test_span_that_is_matched_late_counts_from_its_start(on_host: Stage, spans: AdoptedSpans) -> None:
    on_host.run(0.5)
    with foreign_span(on_host, "job") as span:
        on_host.work(3.0, "job")
        with region("step"):
            on_host.work(0.5, "step")
    on_host.flush()
    assert span.start_time is not None
    execution = next(e for e in on_host.ended if e.name == "job")
    assert execution.end_ns - execution.start_ns == 3_500_000_000
    assert execution.start_ns == span.start_time
    assert on_host.attributes("job")["interval.duration"] == 3.5
    assert on_host.attributes("job")["busy.ratio"] == pytest.approx(1.0, abs=0.02)
    # What the pool had taken in before the span was matched stays nobody's.
    pool = on_host.session.joiner.pools[on_host.uuid]
    busy = pool.counted("job", pool.busy_source())
    assert busy is not None
    assert 0.1 < busy.total < 1.5


def test_busy_time_inside_a_region_is_not_charged_to_the_span_around_it(on_host: Stage, spans: AdoptedSpans) -> None:
    on_host.run(0.5)
    for _ in range(6):
        with foreign_span(on_host, "GET /", SERVER):
            on_host.run(0.5)
            with region("decode"):
                on_host.work(1.0, "decode")
            on_host.run(0.5)
    on_host.flush()
    pool = on_host.session.joiner.pools[on_host.uuid]
    assert known(pool.counted("decode", pool.busy_source())) == pytest.approx(6.0, rel=0.05)
    assert known(pool.counted("GET /", pool.busy_source())) == pytest.approx(0.0, abs=0.3)

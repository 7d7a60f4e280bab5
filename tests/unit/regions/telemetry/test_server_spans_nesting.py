"""In what regions and foreign spans run, and whose time is whose."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind
from support.regions import Stage
from unit.regions.telemetry.foreign import foreign_span, start, watch

from gpu_profile import region
from gpu_profile.regions.telemetry.server_spans import parse_rule

SERVER, CONSUMER = SpanKind.SERVER, SpanKind.CONSUMER


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with Stage(tmp_path, monkeypatch, on_device=False) as stage:
        yield stage


def test_regions_and_matched_spans_are_inside_one_another_as_they_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch)
    with foreign_span(stage, "GET /", SERVER), foreign_span(stage, "handler"):
        with region("outer"), foreign_span(stage, "helper"):
            with foreign_span(stage, "deep"), region("inner"):
                stage.run(0.1)
            with foreign_span(stage, "inner server", SERVER):
                stage.run(0.1)
        with foreign_span(stage, "no region"):
            pass
    stage.flush()
    assert stage.parents() == {
        "GET /": None, "handler": "GET /", "outer": "handler", "helper": "outer", "deep": "helper", "inner": "deep",
        "inner server": "helper",
    }  # fmt: skip


def test_regions_without_spans_and_begun_by_hand_are_inside_too(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    watch(monkeypatch)
    with foreign_span(stage, "GET /", SERVER):
        with region("quiet", span=False), foreign_span(stage, "in quiet", SERVER):
            handle = region.start("handle")
        handle.end()
    with foreign_span(stage, "late"), region("only", span=False):
        pass
    stage.flush()
    assert stage.parents() == {
        "GET /": None, "quiet": "GET /", "in quiet": "quiet", "handle": "in quiet", "late": None, "only": "late",
    }  # fmt: skip


def test_spans_that_a_rule_leaves_out_are_looked_through(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    watch(monkeypatch, parse_rule("server,regions,!name=middle*"))
    with foreign_span(stage, "GET /", SERVER), foreign_span(stage, "middle 1"), foreign_span(stage, "middle 2"):
        with region("step"):
            pass
        with foreign_span(stage, "nested server", SERVER):
            pass
    stage.flush()
    assert stage.parents() == {"GET /": None, "step": "GET /", "nested server": "GET /"}


def test_surroundings_are_the_contexts_and_not_the_threads(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    watch(monkeypatch)
    with foreign_span(stage, "GET /", SERVER) as span:
        alone = start(stage, "alone", SERVER, context=Context())
        elsewhere = trace.set_span_in_context(span)
        thread = threading.Thread(target=lambda: start(stage, "worker", CONSUMER, context=elsewhere).end())
        thread.start()
        thread.join()
        alone.end()
    stage.flush()
    assert stage.parents() == {"GET /": None, "alone": None, "worker": "GET /"}


def test_span_that_is_matched_late_counts_from_its_start(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    watch(monkeypatch)
    stage.run(0.5)
    with foreign_span(stage, "job") as span:
        stage.work(3.0, "job")
        with region("step"):
            stage.work(0.5, "step")
    stage.flush()
    assert span.start_time is not None
    execution = next(e for e in stage.ended if e.name == "job")
    assert execution.end_ns - execution.start_ns == 3_500_000_000
    assert execution.start_ns == span.start_time
    assert stage.attributes("job")["interval.duration"] == 3.5
    assert stage.attributes("job")["busy.ratio"] == pytest.approx(1.0, abs=0.02)
    # What the pool had taken in before the span was matched stays nobody's.
    busy_s = stage.session.pools[stage.uuid].pooled("job").busy_counter_s
    assert busy_s is not None
    assert 0.1 < busy_s < 1.5


def test_busy_time_inside_a_region_is_not_charged_to_the_span_around_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch)
    stage.run(0.5)
    for _ in range(6):
        with foreign_span(stage, "GET /", SERVER):
            stage.run(0.5)
            with region("decode"):
                stage.work(1.0, "decode")
            stage.run(0.5)
    stage.flush()
    pool = stage.session.pools[stage.uuid]
    assert pool.pooled("decode").busy_counter_s == pytest.approx(6.0, rel=0.05)
    assert pool.pooled("GET /").busy_counter_s == pytest.approx(0.0, abs=0.3)

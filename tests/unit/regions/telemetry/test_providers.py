import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ConcurrentMultiSpanProcessor, ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import set_tracer_provider
from opentelemetry.util._once import Once
from support.concurrency import in_child, in_threads
from support.regions import Stage

from gpu_profile import GpuSpanProcessor, region
from gpu_profile.regions.session import process
from gpu_profile.regions.telemetry import providers
from gpu_profile.regions.telemetry.providers import auto, join_spans, leave_spans


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A service whose provider has no processor yet, and has not been set."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    monkeypatch.setattr(providers, "_wanted", None)
    monkeypatch.setattr(providers, "_failed", False)
    monkeypatch.setattr(process, "_on_start", [])
    with Stage(tmp_path, monkeypatch, on_device=False, joined=False) as stage:
        yield stage
        leave_spans()


def plain(stage: Stage) -> InMemorySpanExporter:
    """Give the provider a processor and an exporter as any service does."""
    exporter = InMemorySpanExporter()
    stage.provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def processors(provider: TracerProvider) -> tuple[SpanProcessor, ...]:
    return provider._active_span_processor._span_processors


def measured(exporter: InMemorySpanExporter) -> dict[str, int]:
    """How many spans of each name have arrived with joined attributes; 0 for a name where one has none."""
    counts: dict[str, int] = {}
    for span in exporter.get_finished_spans():
        known = "gpu_profile.device.ids" in (span.attributes or {})
        counts[span.name] = counts.get(span.name, 0) + 1 if known else 0
    return counts


def step(stage: Stage, name: str = "step") -> None:
    with region(name):
        stage.run(0.2)
    stage.run(1.5)


# ------------------------------------------------------------------ whenever it was set up


def test_processors_from_before_and_after_pass_on_joined_spans(service: Stage) -> None:
    before = plain(service)
    assert join_spans(service.provider)
    after = plain(service)
    step(service)
    assert measured(before) == measured(after) == {"step": 1}


def test_provider_that_is_set_before_is_joined(service: Stage) -> None:
    exporter = plain(service)
    set_tracer_provider(service.provider)
    assert join_spans()
    step(service)
    assert measured(exporter) == {"step": 1}


def test_provider_that_is_set_later_is_joined_at_once(service: Stage) -> None:
    assert not join_spans()
    early = plain(service)
    set_tracer_provider(service.provider)
    late = plain(service)
    step(service)
    assert measured(early) == measured(late) == {"step": 1}


def test_only_the_first_provider_that_is_set_counts(service: Stage, caplog: pytest.LogCaptureFixture) -> None:
    join_spans()
    set_tracer_provider(service.provider)
    other = TracerProvider(shutdown_on_exit=False)
    other.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    set_tracer_provider(other)
    assert not any(isinstance(processor, GpuSpanProcessor) for processor in processors(other))
    assert [record.message for record in caplog.records] == ["Overriding of current TracerProvider is not allowed"]
    other.shutdown()


def test_provider_that_came_in_another_way_is_found_by_the_next_step(
    service: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.on_start(auto)
    exporter = plain(service)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", service.provider)
    service.run(0.2)
    step(service)
    assert measured(exporter) == {"step": 1}


def test_processor_that_was_added_behind_the_providers_back_is_found_by_the_next_step(service: Stage) -> None:
    process.on_start(auto)
    set_tracer_provider(service.provider)
    exporter = InMemorySpanExporter()
    service.provider._active_span_processor.add_span_processor(SimpleSpanProcessor(exporter))
    service.run(0.2)
    step(service)
    assert measured(exporter) == {"step": 1}


def test_without_a_private_place_to_hook_a_later_provider_is_found_by_the_next_step(
    service: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(trace, "_set_tracer_provider")
    process.on_start(auto)
    exporter = plain(service)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", service.provider)
    service.run(0.2)
    step(service)
    assert measured(exporter) == {"step": 1}


def test_hook_joins_every_session_and_each_span_once(service: Stage) -> None:
    process.on_start(auto)
    set_tracer_provider(service.provider)
    exporter = plain(service)
    step(service)
    service.restart()
    step(service)
    assert measured(exporter) == {"step": 2}
    assert len(processors(service.provider)) == 1


def test_hook_that_runs_while_a_session_is_made_attaches_its_processors_once(service: Stage) -> None:
    process.stop()
    plain(service)
    set_tracer_provider(service.provider)
    process.on_start(auto)
    session = process._make()
    (ours,) = processors(service.provider)
    assert isinstance(ours, GpuSpanProcessor)
    assert session.on_step.count(ours._release) == 1


# ------------------------------------------------------------------ what is wrapped


def test_users_own_processor_is_left_alone(service: Stage) -> None:
    own = InMemorySpanExporter()
    first, later = GpuSpanProcessor(SimpleSpanProcessor(own)), GpuSpanProcessor(SimpleSpanProcessor(own))
    service.provider.add_span_processor(first)
    other = plain(service)
    join_spans(service.provider)
    service.provider.add_span_processor(later)
    step(service)
    assert processors(service.provider)[0] is first
    assert processors(service.provider)[2] is later
    assert measured(own) == {"step": 2}
    assert measured(other) == {"step": 1}


def test_users_own_processor_before_all_others_is_left_alone(service: Stage) -> None:
    exporter = InMemorySpanExporter()
    own = GpuSpanProcessor(SimpleSpanProcessor(exporter))
    provider = TracerProvider(active_span_processor=own, shutdown_on_exit=False)  # type: ignore[arg-type]
    assert join_spans(provider)
    assert vars(provider)["_active_span_processor"] is own
    assert "add_span_processor" not in vars(provider)
    provider.shutdown()


def test_joining_twice_wraps_once(service: Stage) -> None:
    exporter = plain(service)
    for _ in range(3):
        assert join_spans(service.provider)
    step(service)
    (ours,) = processors(service.provider)
    assert isinstance(ours, GpuSpanProcessor)
    assert isinstance(ours.inner, SimpleSpanProcessor)
    assert measured(exporter) == {"step": 1}


def test_provider_with_concurrent_processors_is_joined(service: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # The processor that a stage's tracer was made with cannot be replaced, so this one takes its place.
    concurrent = ConcurrentMultiSpanProcessor(2)
    monkeypatch.setattr(service.provider, "_active_span_processor", concurrent)
    monkeypatch.setattr(service.tracer, "span_processor", concurrent)
    first = plain(service)
    assert join_spans(service.provider)
    second = plain(service)
    step(service)
    assert measured(first) == measured(second) == {"step": 1}


def test_span_that_runs_while_its_provider_is_joined_is_joined_too(service: Stage) -> None:
    exporter = plain(service)
    with region("step"):
        service.run(0.2)
        join_spans(service.provider)
    service.run(1.5)
    assert measured(exporter) == {"step": 1}


def test_processors_that_many_threads_add_are_each_wrapped_once(service: Stage) -> None:
    join_spans(service.provider)

    def add() -> None:
        for _ in range(25):
            service.provider.add_span_processor(SpanProcessor())
            join_spans(service.provider)

    in_threads(*[add] * 4)
    found = processors(service.provider)
    assert len(found) == 100
    inner = [processor.inner for processor in found if isinstance(processor, GpuSpanProcessor)]
    assert len({id(one) for one in inner}) == 100
    assert not any(isinstance(one, GpuSpanProcessor) for one in inner)


# ------------------------------------------------------------------ providers that cannot be joined


class Foreign(trace.TracerProvider):
    """As another vendor's tracer brings one."""

    def get_tracer(self, *_: object, **__: object) -> trace.Tracer:
        return trace.NoOpTracer()


def test_provider_of_another_kind_is_said_once_and_metrics_are_complete(
    service: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    set_tracer_provider(Foreign())
    with caplog.at_level(logging.WARNING):
        process.on_start(auto)
        assert not join_spans()
        step(service)
    (record,) = caplog.records
    assert record.message == (
        "gpu-profile: spans have no GPU attributes: the tracer provider "
        f"{Foreign.__module__}.Foreign is not the OpenTelemetry SDK's; region metrics are complete"
    )
    assert service.calls("step") == 1


@pytest.mark.parametrize("gone", ["_active_span_processor", "_span_processors", "_lock"])
def test_sdk_that_is_built_differently_is_said_once_and_left_as_it_is(
    service: Stage, caplog: pytest.LogCaptureFixture, gone: str
) -> None:
    exporter = plain(service)
    multi = service.provider._active_span_processor
    holder = service.provider if gone == "_active_span_processor" else multi
    kept = vars(holder).pop(gone)
    for _ in range(2):
        assert not join_spans(service.provider)
    setattr(holder, gone, kept)
    (record,) = caplog.records
    assert "is of an SDK with other internals" in record.message
    assert gone in record.message
    assert "wrap its processors in GpuSpanProcessor" in record.message
    assert "add_span_processor" not in vars(service.provider)
    step(service)
    assert [span.name for span in exporter.get_finished_spans()] == ["step"]


def test_stand_in_for_a_provider_to_come_is_waited_for_in_silence(
    service: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    assert not join_spans(trace.get_tracer_provider())
    assert not caplog.records


@pytest.mark.parametrize("module", ["opentelemetry.sdk.trace", "opentelemetry.sdk.metrics"])
def test_sdk_that_another_thread_is_about_to_import_is_no_sdk_yet(
    service: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, ModuleType(module))
    process.on_start(auto)
    service.run(0.2)
    assert not caplog.records


def test_defect_of_ours_stops_neither_the_service_nor_the_join(
    service: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(providers, "_join", fail)
    process.on_start(auto)
    set_tracer_provider(service.provider)
    step(service)
    assert service.calls("step") == 1
    assert [r.message for r in caplog.records] == ["gpu-profile: the tracer provider's spans could not be joined"]


# ------------------------------------------------------------------ flush, shutdown, fork, undo


def test_force_flush_lets_waiting_spans_out(service: Stage) -> None:
    exporter = plain(service)
    join_spans(service.provider)
    with region("step"):
        service.run(0.2)
    assert measured(exporter) == {}
    assert service.provider.force_flush()
    assert measured(exporter) == {"step": 1}


def test_shutdown_lets_waiting_spans_out_then_shuts_the_services_processor_down(service: Stage) -> None:
    log: list[str] = []

    class Recorder(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            log.append(span.name)

        def shutdown(self) -> None:
            log.append("shutdown")

    service.provider.add_span_processor(Recorder())
    join_spans(service.provider)
    with region("step"):
        pass
    service.provider.shutdown()
    assert log == ["step", "shutdown"]


def test_forked_child_sends_its_own_spans_and_not_its_parents(service: Stage) -> None:
    exporter = plain(service)
    join_spans(service.provider)
    with region("parent"):
        pass

    def child() -> list[str]:
        with region("child"):
            pass
        service.provider.force_flush()
        return [span.name for span in exporter.get_finished_spans()]

    assert in_child(child) == "['child']"
    service.provider.force_flush()
    assert measured(exporter) == {"parent": 1}


def test_leaving_gives_the_provider_its_processors_back_with_every_span(service: Stage) -> None:
    exporter = plain(service)
    (before,) = processors(service.provider)
    join_spans()
    set_tracer_provider(service.provider)
    service.provider.add_span_processor(SpanProcessor())
    with region("waiting"):
        service.run(0.2)
    assert measured(exporter) == {}
    leave_spans()
    assert measured(exporter) == {"waiting": 1}
    assert processors(service.provider)[0] is before
    assert not any(isinstance(processor, GpuSpanProcessor) for processor in processors(service.provider))
    assert "add_span_processor" not in vars(service.provider)
    assert trace._set_tracer_provider.__module__ == "opentelemetry.trace"
    with region("after"):
        pass
    assert measured(exporter) == {"waiting": 1, "after": 0}


def test_who_has_left_stays_out_until_joining_again(service: Stage) -> None:
    set_tracer_provider(service.provider)
    exporter = plain(service)
    leave_spans()
    process.on_start(auto)
    step(service, "left")
    assert join_spans()
    step(service, "joined")
    assert measured(exporter) == {"left": 0, "joined": 1}

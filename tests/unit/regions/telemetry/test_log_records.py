"""Events of the GPUs of a process, as log records in the traces that they happened to."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk import _logs
from opentelemetry.sdk._logs import export
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import format_trace_id
from support.regions import Stage

from gpu_profile import region
from gpu_profile.catalogue.samples import Event
from gpu_profile.regions.session import process
from gpu_profile.regions.telemetry.log_records import LOOK_BACK_S, leave_events, log_events


class Logged:
    """A service's logger provider, and what came out of it."""

    def __init__(self) -> None:
        memory: Any = getattr(export, "InMemoryLogRecordExporter", None) or getattr(export, "InMemoryLogExporter", None)
        self._exporter = memory()
        self.provider = _logs.LoggerProvider(Resource({"service.name": "trainer"}), shutdown_on_exit=False)
        self.provider.add_log_record_processor(export.SimpleLogRecordProcessor(self._exporter))

    @property
    def records(self) -> list[Any]:
        return [found.log_record for found in self._exporter.get_finished_logs()]

    def only(self) -> Any:
        (record,) = self.records
        return record


@pytest.fixture
def logged() -> Iterator[Logged]:
    made = Logged()
    log_events(made.provider)
    yield made
    leave_events()
    made.provider.shutdown()


@pytest.fixture
def stage(logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with Stage(tmp_path, monkeypatch) as made:
        made.run(0.5)
        yield made


def happen(stage: Stage, kind: str = "xid", code: int | None = 79, device: str = "") -> None:
    event = Event(device or stage.queue.device_uuid, stage.clock.now_ns(), kind, code)
    for sink in stage.session.sampler.event_sinks:
        sink(event)


def test_an_event_says_what_happened_when_and_to_which_device(stage: Stage, logged: Logged) -> None:
    happened_ns = stage.clock.now_ns()
    happen(stage)
    stage.run(0.2)
    record = logged.only()
    assert record.timestamp == happened_ns
    assert (record.severity_text, record.severity_number.value) == ("FATAL", 21)
    assert record.body == f"{stage.queue.device_uuid}: XID 79: The GPU fell off the bus"
    assert record.attributes["hw.id"] == stage.queue.device_uuid
    assert record.attributes["nvidia.gpu.xid"] == "79"
    name = getattr(record, "event_name", None) or record.attributes["event.name"]
    assert name == "gpu_profile.device.xid"
    assert not record.trace_id


def test_an_event_is_in_the_trace_of_the_innermost_region_that_ran(stage: Stage, logged: Logged) -> None:
    with region("outer"), region("inner"):
        stage.work(0.3, "inner")
        happen(stage)
        stage.run(0.2)
    stage.flush()
    inner = next(span for span in stage.spans if span.name == "inner")
    record = logged.only()
    assert (record.trace_id, record.span_id) == (inner.context.trace_id, inner.context.span_id)
    assert "gpu_profile.trace.ids" not in record.attributes


def test_an_event_is_in_the_trace_of_a_region_that_it_ended(stage: Stage, logged: Logged) -> None:
    with region("step"):
        stage.work(0.3, "step")
    stage.run(LOOK_BACK_S * 0.9)
    happen(stage)
    stage.run(0.2)
    stage.flush()
    assert logged.only().span_id == stage.spans[0].context.span_id


def test_a_region_that_was_long_over_has_nothing_to_do_with_it(stage: Stage, logged: Logged) -> None:
    with region("step"):
        stage.work(0.3, "step")
    stage.run(LOOK_BACK_S * 2)
    happen(stage)
    stage.run(0.2)
    assert not logged.only().trace_id


def test_a_region_on_another_device_has_nothing_to_do_with_it(stage: Stage, logged: Logged) -> None:
    with region("step"):
        stage.work(0.3, "step")
        happen(stage, device="GPU-elsewhere")
        stage.run(0.2)
    assert not logged.only().trace_id


def test_of_several_traces_all_are_named(stage: Stage, logged: Logged) -> None:
    begun, over = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with region("in another thread"):
            begun.set()
            assert over.wait(20)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    assert begun.wait(20)
    stage.run(0.1)
    with region("here"):
        stage.work(0.2, "here")
        happen(stage)
        stage.run(0.2)
    over.set()
    thread.join()
    stage.flush()
    traces = {span.name: format_trace_id(span.context.trace_id) for span in stage.spans}
    record = logged.only()
    assert record.attributes["gpu_profile.trace.ids"] == (traces["here"], traces["in another thread"])
    assert format_trace_id(record.trace_id) == traces["here"]


def test_what_waits_is_logged_when_it_is_left_and_nothing_after_that(stage: Stage, logged: Logged) -> None:
    happen(stage, "lost", None)
    leave_events()
    happen(stage, "back", None)
    stage.run(0.2)
    assert logged.only().severity_text == "ERROR"


def test_without_a_logger_provider_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_events()
    try:
        with Stage(tmp_path, monkeypatch) as stage:
            happen(stage)
            stage.run(0.2)
            assert not stage.session.counts
    finally:
        leave_events()


def test_a_logger_that_fails_does_not_end_the_join(
    stage: Stage, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(_logs.Logger, "emit", fail)
    happen(stage)
    with region("step"):
        stage.work(0.3, "step")
    stage.flush()
    assert [span.name for span in stage.spans] == ["step"]


def test_a_later_session_is_logged_too(logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with Stage(tmp_path / name, monkeypatch) as stage:
            happen(stage)
            stage.run(0.2)
    assert process.running() is None
    assert len(logged.records) == 2

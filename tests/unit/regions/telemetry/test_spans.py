import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, TraceIdRatioBased
from opentelemetry.sdk.trace.sampling import Sampler as TraceSampler
from opentelemetry.sdk.util import BoundedList
from opentelemetry.trace import SpanKind, Status, StatusCode
from support.concurrency import in_child
from support.regions import GEMM, HUNGRY, RELU, Stage, Staged
from support.worlds import known

from gpu_profile import GpuSpanProcessor, region
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.windows.pauses import yield_to_program
from gpu_profile.regimes.operation import RegionOperation
from gpu_profile.regions import running
from gpu_profile.regions.execution import AWAIT_S
from gpu_profile.regions.session import process
from gpu_profile.regions.telemetry import spans
from gpu_profile.regions.telemetry.enrichment import Enricher


class Recorder(SpanProcessor):
    """An inner processor that notes what it is told."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def on_start(self, span: object, parent_context: object = None) -> None:
        self.log.append(f"start {getattr(span, 'name', '')}")

    def on_end(self, span: ReadableSpan) -> None:
        self.log.append(f"end {span.name}")

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        self.log.append("flush")
        return False

    def shutdown(self) -> None:
        self.log.append("shutdown")


# ------------------------------------------------------------------ holding and letting go


def test_span_waits_until_its_samples_are_there(on_host: Stage) -> None:
    on_host.run(0.3)
    with region("step"):
        on_host.run(0.2)
    assert on_host.names() == []
    on_host.run(0.05)
    assert on_host.names() == []
    on_host.run(0.9)
    assert on_host.names() == ["step"]


def test_span_does_not_wait_longer_than_its_deadline(on_host: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    on_host.run(0.3)
    monkeypatch.setattr(on_host.session.joiner, "covered", lambda _: False)
    with region("step"):
        pass
    on_host.run(0.95)
    assert on_host.names() == []
    on_host.run(0.15)
    assert on_host.names() == ["step"]


class Search:
    """Every advance of the stage's pools takes 3 s in turns, as a search for timings does beside a program."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stage = stage
        stage.run(1.0)
        stage.clock.advance(0.5)
        stage.session.sampler.step()
        self.used_s = 0.0
        #: Called after each turn and its pause.
        self.each: Callable[[], None] = lambda: None
        turns = stage.session._turns
        turns._used_s = lambda: self.used_s
        monkeypatch.setattr(turns._awaited, "wait", lambda _: None)
        monkeypatch.setattr(stage.session.joiner, "_advance", self.advance)

    def advance(self, pool: Pool, until_ns: int, *, final: bool) -> None:
        for _ in range(30):
            self.used_s += 0.01
            yield_to_program()
            self.stage.clock.advance(0.1)
            self.each()

    def run(self) -> None:
        """Join in a context whose computations take turns."""

        def join() -> None:
            self.stage.session._turns.begin()
            self.stage.session.joiner.join(self.stage.session.began, final=False)

        copy_context().run(join)


def test_a_search_for_timings_holds_no_span_longer_than_its_deadline(
    on_host: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, seen = Search(on_host, monkeypatch), list[list[str]]()
    with region("step"):
        pass
    search.each = lambda: seen.append(on_host.names())
    search.run()
    assert seen[8] == []
    assert seen[12] == ["step"]


def test_a_span_that_leaves_between_two_turns_of_a_search_reads_no_pool(
    on_host: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, session, pooled = Search(on_host, monkeypatch), on_host.session, Pool.pooled
    between, regions = list[bool](), list[object]()

    def read(pool: Pool, *names: Any) -> Any:
        between.append(session._turns.interrupted)
        return pooled(pool, *names)

    monkeypatch.setattr(Pool, "pooled", read)
    session.on_interrupt.append(lambda: regions.append(session.regions()))
    with region("step"):
        pass
    search.run()
    assert on_host.names() == ["step"]
    assert between
    assert not any(between)


def test_a_search_does_not_wait_for_a_release_that_may_wait_for_it(
    on_host: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search(on_host, monkeypatch)
    begun, over = threading.Event(), threading.Event()

    def release() -> None:
        with on_host.processor._lock:
            begun.set()
            over.wait(60)

    with region("step"):
        pass
    other = threading.Thread(target=release)
    other.start()
    begun.wait()
    search.run()
    assert on_host.names() == [], "the other thread passes it on"
    over.set()
    other.join()


def test_a_failure_between_two_turns_does_not_end_the_search(
    on_host: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    search, turns = Search(on_host, monkeypatch), list[int]()

    def fail() -> None:
        raise ZeroDivisionError

    on_host.session.on_interrupt.append(fail)
    search.each = lambda: turns.append(1)
    search.run()
    assert len(turns) == 30
    assert caplog.text.count("the join failed") == 1


def test_first_span_waits_for_the_driver_to_be_opened(on_host: Stage) -> None:
    with region("step"):
        pass
    for _ in range(5):
        on_host.session.settle()
        on_host.clock.advance(0.1)
    assert on_host.names() == []
    on_host.run(1.0)
    assert on_host.names() == ["step"]
    assert on_host.attributes("step")["device.ids"] == (on_host.uuid,)
    assert set(on_host.session.joiner.verdicts.calls) == {("step", "UNKNOWN", on_host.uuid)}


def test_spans_that_are_no_regions_pass_straight_through(on_host: Stage) -> None:
    with on_host.tracer.start_as_current_span("request", kind=SpanKind.SERVER, links=[]) as span:
        span.set_status(Status(StatusCode.OK))
    assert on_host.names() == ["request"]
    assert on_host.span("request").attributes == {}


def test_unsampled_and_unrecorded_regions_have_no_spans(staged: Staged) -> None:
    stage = staged(on_device=False, sampler=ALWAYS_OFF)
    with region("step"):
        pass
    stage.flush()
    assert stage.names() == []
    assert stage.session.spans == {}


def test_spans_leave_in_the_order_in_which_they_ended(stage: Stage) -> None:
    stage.run(0.3)
    expected = []
    for i in range(40):
        with region(f"outer {i % 3}"), region(f"inner {i}"):
            stage.work(0.01, "x")
        expected += [f"inner {i}", f"outer {i % 3}"]
    stage.flush()
    assert stage.names() == expected


def test_full_queue_passes_on_at_once_and_counts(staged: Staged) -> None:
    stage = staged(on_device=False, queue=3)
    for i in range(5):
        with region(f"step {i}"):
            pass
    assert stage.names() == ["step 3", "step 4"]
    assert stage.attributes("step 3")["unjoined"] == "the queue is full"
    stage.flush()
    assert stage.names() == ["step 3", "step 4", "step 0", "step 1", "step 2"]
    assert stage.processor.overflowed == 2


def test_what_an_operation_told_is_on_a_span_that_was_not_joined(staged: Staged) -> None:
    stage = staged(on_device=False, queue=0)
    with region("step") as execution:
        execution.operation = RegionOperation(flops=7, n=1)
    assert stage.attributes("step")["unjoined"] == "the queue is full"
    assert stage.attributes("step")["operation.flops"] == 7


def test_what_the_kernels_told_is_on_a_span_that_was_not_joined(staged: Staged) -> None:
    stage = staged(on_device=False, queue=0)
    with region("step") as execution:
        execution.kernels = HUNGRY
    assert stage.attributes("step")["unjoined"] == "the queue is full"
    assert stage.attributes("step")["kernels.count"] == 3
    assert len(stage.span("step").events) == 2


# ------------------------------------------------------------------ waiting for a window of the profiler


def test_span_whose_window_is_not_read_waits_for_it_and_no_other_waits_with_it(on_host: Stage) -> None:
    on_host.run(0.3)
    with region("before"):
        pass
    with region("profiled") as execution:
        execution.awaits_kernels = True
    with region("after"):
        pass
    on_host.run(3.0)
    assert on_host.names() == ["before", "after"]
    execution.kernels, execution.awaits_kernels = HUNGRY, False
    on_host.run(0.2)
    assert on_host.names() == ["before", "after", "profiled"]
    assert on_host.attributes("profiled")["kernels.count"] == 3
    assert on_host.attributes("profiled")["basis"] == "kernels"


def test_span_waits_for_a_window_no_longer_than_ten_seconds(on_host: Stage) -> None:
    with region("profiled") as execution:
        execution.awaits_kernels = True
    on_host.run(AWAIT_S - 0.2)
    assert on_host.names() == []
    on_host.run(0.4)
    assert on_host.names() == ["profiled"]
    assert "kernels.count" not in on_host.attributes("profiled")


def test_a_window_that_failed_lets_its_spans_go_at_once(on_host: Stage) -> None:
    with region("profiled") as execution:
        execution.awaits_kernels = True
    on_host.run(2.0)
    execution.awaits_kernels = False
    on_host.run(0.1)
    assert on_host.names() == ["profiled"]


@pytest.mark.parametrize("how", ["force_flush", "stop"])
def test_nobody_waits_for_a_window_at_the_end(on_host: Stage, how: str) -> None:
    for name in ("first", "second"):
        with region(name) as execution:
            execution.awaits_kernels = True
        on_host.run(1.0)
    if how == "stop":
        process.stop()
    else:
        assert on_host.provider.force_flush()
    assert on_host.names() == ["first", "second"]


def test_spans_that_wait_for_a_window_are_part_of_the_queue(staged: Staged) -> None:
    stage = staged(on_device=False, queue=3)
    for i in range(3):
        with region(f"profiled {i}") as execution:
            execution.awaits_kernels = True
    stage.run(2.0)
    with region("late"):
        pass
    assert stage.names() == ["late"]
    assert stage.processor.overflowed == 1


def test_a_clock_that_was_set_back_ends_the_wait_for_a_window(on_host: Stage) -> None:
    with region("profiled") as execution:
        execution.awaits_kernels = True
    on_host.run(2.0)
    assert on_host.names() == []
    on_host.clock.set_back(60)
    on_host.session.settle()
    assert on_host.names() == ["profiled"]


def test_the_longest_kernels_are_events_at_the_spans_end(on_host: Stage) -> None:
    with region("step") as execution:
        assert execution.span is not None
        execution.span.add_event("mine", timestamp=7)
        on_host.run(0.1)
        execution.kernels = HUNGRY
    on_host.flush()
    span = on_host.span("step")
    mine, *kernels = span.events
    assert (mine.name, mine.timestamp) == ("mine", 7)
    assert {event.name for event in kernels} == {"gpu_profile.kernel"}
    assert {event.timestamp for event in kernels} == {span.end_time}
    assert [(event.attributes or {})["gpu_profile.kernel.name"] for event in kernels] == [GEMM, RELU]
    assert span.dropped_events == 0


def test_force_flush_lets_all_out_then_flushes_the_inner_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Recorder()
    with Stage(tmp_path, monkeypatch, on_device=False, inner=inner) as stage:
        with region("outer"), region("inner"):
            pass
        assert inner.log == ["start outer", "start inner"]
        assert stage.processor.force_flush(1000) is False
        assert inner.log[2:] == ["end inner", "end outer", "flush"]
        with region("late"):
            pass
        stage.processor.shutdown()
        assert inner.log[5:] == ["start late", "end late", "shutdown"]
        with region("after"):
            pass
        assert inner.log[8:] == ["start after", "end after"]
    assert inner.log[10:] == ["shutdown"]


def test_force_flush_takes_a_last_sample(on_host: Stage) -> None:
    on_host.run(0.5)
    with region("train"):
        on_host.run(2.0)
    assert on_host.provider.force_flush()
    assert on_host.attributes("train")["scope"] == "span"
    assert on_host.attributes("train")["coverage"] > 0.9


def test_end_of_the_session_lets_all_out(on_host: Stage) -> None:
    on_host.run(0.5)
    with region("train"):
        on_host.run(2.0)
    process.stop()
    assert on_host.names() == ["train"]
    assert on_host.attributes("train")["scope"] == "span"


def test_each_processor_of_a_provider_gets_every_span(staged: Staged) -> None:
    stage = staged(on_device=False)
    other = InMemorySpanExporter()
    stage.provider.add_span_processor(GpuSpanProcessor(SimpleSpanProcessor(other)))
    for _ in range(3):
        with region("step"):
            stage.run(0.2)
    stage.flush()
    for exporter in (stage.exporter, other):
        assert len(exporter.get_finished_spans()) == 3
        assert all("gpu_profile.device.ids" in (s.attributes or {}) for s in exporter.get_finished_spans())


class SlowExporter(SpanExporter):
    """Counts what arrives; every batch takes longer than to end as many spans."""

    def __init__(self) -> None:
        self.arrived: list[str] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        time.sleep(0.03)
        self.arrived += [span.name for span in spans]
        return SpanExportResult.SUCCESS


@pytest.mark.parametrize("how", ["force_flush", "shutdown", "stop", "time"])
def test_twenty_thousand_held_spans_do_not_overrun_the_batch_processor(staged: Staged, how: str) -> None:
    exporter = SlowExporter()
    inner = BatchSpanProcessor(exporter, max_queue_size=2048, schedule_delay_millis=3_600_000)
    stage = staged(on_device=False, inner=inner)
    for i in range(20_000):
        with region(f"step {i % 10}"):
            stage.clock.advance(0.00001)
    assert exporter.arrived == []
    if how == "force_flush":
        assert stage.provider.force_flush()
    elif how == "shutdown":
        stage.provider.shutdown()
    elif how == "stop":
        process.stop()
        inner.force_flush()
    else:
        for _ in range(40):
            stage.run(0.1)
            inner.force_flush()
        stage.flush()
    assert exporter.arrived == [f"step {i % 10}" for i in range(20_000)]
    assert stage.processor.overflowed == 0


def test_dead_exporter_holds_the_last_flush_up_for_a_few_seconds_at_most(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    class Dead(Recorder):
        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            waited.append(timeout_millis / 1000)
            clock[0] += timeout_millis / 1000
            return False

    clock = [0.0]
    monkeypatch.setattr("gpu_profile.regions.telemetry.spans.time.monotonic", lambda: clock[0])
    inner = Dead()
    staged(on_device=False, inner=inner)
    for _ in range(2_000):
        with region("step"):
            pass
    process.stop()
    assert inner.log.count("end step") == 2_000
    assert sum(waited) <= spans.FLUSH_S


# ------------------------------------------------------------------ what must not go wrong


def test_copy_keeps_everything_that_the_span_had(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = staged(on_device=False)
    limits = SpanLimits(max_span_attributes=3, max_events=1, max_links=1)
    provider = TracerProvider(span_limits=limits, shutdown_on_exit=False)
    plain = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(plain))
    provider.add_span_processor(stage.processor)
    monkeypatch.setattr(running, "tracer", provider.get_tracer("mine", "1.2"))
    with region("outer"):
        step = region.start("step")
        assert step.span is not None
        for i in range(5):
            step.span.set_attribute(f"user.{i}", i)
        step.span.add_event("early")
        step.kernels = HUNGRY
        step.span.add_link(step.span.get_span_context())
        step.span.add_link(step.span.get_span_context())
        step.end(KeyError())
    stage.flush()
    before = next(span for span in plain.get_finished_spans() if span.name == "step")
    after = stage.span("step")
    assert list(after.events[:1]) == list(before.events)
    assert len(after.events) == 1 + len(HUNGRY.top)
    same = ["name", "context", "parent", "resource", "links", "kind", "start_time", "end_time"]
    same += ["instrumentation_scope", "dropped_attributes", "dropped_events", "dropped_links"]
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert after.status.status_code is before.status.status_code is StatusCode.ERROR
    assert after.status.description == before.status.description
    assert (after.dropped_attributes, after.dropped_events, after.dropped_links) == (2, 1, 1)
    assert (before.attributes or {}).items() <= (after.attributes or {}).items()
    assert len(after.attributes or {}) > 3
    provider.shutdown()


class Uncopied(Mapping[str, int]):
    """Attributes of another library: a mapping without `copy`."""

    def __getitem__(self, name: str) -> int:
        return {"user": 1}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("user",))

    def __len__(self) -> int:
        return 1


def test_a_span_that_cannot_be_copied_is_passed_on_as_it_is(on_host: Stage, caplog: pytest.LogCaptureFixture) -> None:
    strange = ReadableSpan("strange", attributes=Uncopied())
    for _ in range(2):
        step = region.start("step")
        assert step.span is not None
        inner = Recorder()
        on_host.processor.inner, before = inner, on_host.processor.inner
        strange._context = step.span.get_span_context()
        on_host.processor.on_end(strange)
        on_host.processor.inner = before
        assert inner.log == ["end strange"]
        step.end()
    assert process.session().counts["join errors"] == 2
    assert [record.message for record in caplog.records].count("gpu-profile: a span could not be joined") == 1


def test_waiting_spans_hold_none_of_the_containers_that_the_sdk_makes_for_each(on_host: Stage) -> None:
    """Each would be walked by every collection of the program's garbage while the span waits."""
    with region("step"):
        on_host.run(0.2)
    with region("step") as busy:
        assert busy.span is not None
        busy.span.add_event("early")
        busy.span.add_link(busy.span.get_span_context())
    plain, full = (held.span for held in on_host.processor._held)
    assert not [each for each in vars(plain).values() if isinstance(each, BoundedList | BoundedAttributes)]
    assert (plain.events, plain.links, plain.dropped_events, plain.dropped_links) == ((), (), 0, 0)
    assert [event.name for event in full.events] == ["early"]
    assert len(full.links) == 1


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, TraceIdRatioBased(0.01)], ids=["off", "1 %"])
def test_sampling_of_traces_never_changes_the_numbers(staged: Staged, sampler: TraceSampler) -> None:
    stage = staged(sampler=sampler)
    stage.run(0.5)
    for _ in range(400):
        with region("decode", items=2):
            stage.work(0.005, "decode")
    stage.flush()
    assert len(stage.spans) < 40
    assert stage.calls("decode") == 400
    assert stage.session.joiner.verdicts.durations["decode"].items == 800
    pool = stage.session.joiner.pools[stage.uuid]
    assert pool.pooled("decode").executions == 400
    assert known(pool.counted("decode", pool.busy_source())) == pytest.approx(2.0, rel=0.1)


def test_defect_of_the_join_loses_no_span(
    on_host: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> dict[str, str]:
        raise ZeroDivisionError

    monkeypatch.setattr(Enricher, "attributes", fail)
    with caplog.at_level(logging.ERROR):
        for i in range(3):
            with region(f"step {i}"):
                pass
        on_host.flush()
    assert on_host.names() == ["step 0", "step 1", "step 2"]
    assert on_host.attributes("step 0")["unjoined"] == "the join failed: ZeroDivisionError"
    assert len(caplog.records) == 1


def test_forked_child_forgets_the_parents_spans_and_sends_its_own(on_host: Stage) -> None:
    with region("parent"):
        pass

    def child() -> list[str]:
        assert len(on_host.processor._held) == 0
        on_host.exporter.clear()
        with region("child"):
            pass
        on_host.provider.force_flush()
        return on_host.names()

    assert in_child(child) == "['child']"
    on_host.flush()
    assert on_host.names() == ["parent"]


def test_processor_that_was_shut_down_can_be_collected(on_host: Stage) -> None:
    processor = GpuSpanProcessor(Recorder())
    gone = weakref.ref(processor)
    assert processor._release in on_host.session.on_step
    processor.shutdown()
    assert processor._release not in on_host.session.on_step
    del processor
    gc.collect()
    assert gone() is None


def test_spans_that_end_while_others_are_let_go_arrive_once_each(on_host: Stage) -> None:
    def many(name: str) -> None:
        for _ in range(300):
            with region(name):
                pass

    threads = [threading.Thread(target=many, args=(f"thread {i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        on_host.run(0.1)
        on_host.provider.force_flush()
    on_host.flush()
    arrived = on_host.names()
    assert {name: arrived.count(name) for name in set(arrived)} == {f"thread {i}": 300 for i in range(3)}
    ids = [span.context.span_id for span in on_host.spans if span.context is not None]
    assert len(set(ids)) == 900


def test_contract_with_the_sdk_holds_for_the_installed_version(on_host: Stage) -> None:
    """What `GpuSpanProcessor` relies on: one `on_end` per recording span, in the thread that ends it."""
    seen: list[tuple[str, bool, int]] = []

    class Probe(Recorder):
        def on_end(self, span: ReadableSpan) -> None:
            assert span.context is not None
            seen.append((span.name, span.context.span_id in on_host.session.spans, threading.get_ident()))

    on_host.provider.add_span_processor(Probe())
    with region("step") as running:
        assert running.span is not None
        assert running.span.is_recording()
    assert seen == [("step", True, threading.get_ident())]

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_support import until
from region_support import ONE_GPU, Stage

from gpu_profile import process, region, session, verdicts
from gpu_profile.attribution import OTHER
from gpu_profile.driver import simulated
from gpu_profile.driver.null import NullDriver
from gpu_profile.driver.simulated import Work
from gpu_profile.errors import GpuBackendError
from gpu_profile.executions import Execution
from gpu_profile.session import Session
from gpu_profile.testing import START_NS, FakeClock


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with Stage(tmp_path, monkeypatch) as stage:
        yield stage


def execution(name: str, start_ns: int, end_ns: int, **fields: Any) -> Execution:
    found = Execution(name, fields.pop("parent", None), fields.pop("items", None), fields.pop("device", None))
    found.start_ns, found.end_ns = start_ns, end_ns
    for key, value in fields.items():
        setattr(found, key, value)
    return found


# ------------------------------------------------------------------ the join


def test_shares_of_regions_and_the_rest_add_up_to_the_device(stage: Stage) -> None:
    start = stage.clock.now_ns()
    for i in range(60):
        with region("prefill"):
            stage.work(0.04, "prefill", share=0.9)
        with region("decode"):
            stage.work(0.07, "decode", share=0.5)
        stage.run(0.003 * (i % 7))
    stage.session.flush()
    pool = stage.session.pools[stage.uuid]
    source = pool.energy_source()
    assert source is not None
    parts = [pool.pooled(name).energy_counter_j for name in ("prefill", "decode")]
    parts.append(pool.rest(source))
    truth = stage.truth().device(0, start, stage.clock.now_ns()).energy_j
    assert sum(part or 0.0 for part in parts) == pytest.approx(truth, rel=0.05)
    busy = [pool.pooled(name).busy_s or 0.0 for name in ("prefill", "decode")]
    # Work that fills the first part of a region alone, under windows of nearly the loop's length: little can be told.
    assert sum(busy) == pytest.approx(60 * (0.04 * 0.9 + 0.07 * 0.5), rel=0.1)


def test_nested_regions_are_charged_once(stage: Stage) -> None:
    for _ in range(30):
        with region("request"):
            with region("model"):
                stage.work(0.08, "model", share=0.8)
            stage.run(0.03)
    stage.flush()
    pool = stage.session.pools[stage.uuid]
    assert pool.pooled("model").busy_s == pytest.approx(30 * 0.064, rel=0.1)
    assert pool.pooled("model").active_s == pytest.approx(30 * 0.08, rel=0.01)
    # While its child is active on the device, a parent is not innermost.
    assert pool.pooled("request").active_s == pytest.approx(30 * 0.03, rel=0.01)


def test_region_that_runs_for_long_is_joined_while_it_runs(stage: Stage) -> None:
    process.use_stream(None)
    stage.run(0.2)
    with region("training"):
        stage.work(4.0, "training", share=0.9)
        pooled = stage.session.pools[stage.uuid].pooled("training")
        assert pooled.active_s > 3.0
        assert pooled.busy_s is not None
        assert pooled.busy_s > 2.5
        assert pooled.executions == 0
    stage.flush()
    assert stage.session.pools[stage.uuid].pooled("training").executions == 1


def test_executions_before_the_driver_is_open_are_joined_once_it_is(stage: Stage) -> None:
    process.use_stream(None)
    for _ in range(3):
        with region("early"):
            stage.clock.advance(0.1)
        stage.session.settle()
    stage.run(2.0)
    assert stage.session.verdicts.calls == {("early", "UNKNOWN", stage.uuid): 3}
    assert stage.session.pools[stage.uuid].pooled("early").executions == 3


def test_executions_that_no_device_can_be_named_for_are_counted_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stage(tmp_path, monkeypatch, backend="none", on_device=False) as stage:
        for _ in range(5):
            with region("step", items=1):
                pass
        stage.run(0.2)
        assert stage.session.verdicts.calls == {("step", "UNKNOWN", ""): 5}
        assert stage.session.regions() == []


def test_stream_that_never_passes_its_marks_is_given_up_after_a_minute(stage: Stage) -> None:
    class Stuck:
        device_uuid = stage.uuid

        def record(self) -> int:
            return 0

        def resolve(self, mark: int) -> None:
            return None

    settled: list[Execution] = []
    stage.session.on_settled.append(settled.append)
    process.use_stream(Stuck())
    with region("stuck"):
        pass
    stage.run(0.5)
    assert stage.calls("stuck") == 1
    for _ in range(58):
        stage.clock.advance(1.0)
        stage.session.settle()
    assert settled == []
    for _ in range(4):
        stage.clock.advance(1.0)
        stage.session.settle()
    assert [e.name for e in settled] == ["stuck"]


def test_marks_are_given_back_once_they_are_known(stage: Stage) -> None:
    with region("step"):
        stage.work(0.2, "step")
    stage.run(1.0)
    done = stage.only()
    interval = done.interval()
    assert interval is not None
    assert interval.source == "device"
    assert (done.start_mark, done.end_mark) == (None, None)
    assert done.interval() == interval


def test_defect_in_one_join_is_logged_once_and_the_next_one_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    stage.session.on_step.append(fail)
    with region("step"):
        pass
    stage.session._settle_safely()
    stage.session._settle_safely()
    assert stage.session.counts["internal errors"] == 2
    assert len([r for r in caplog.records if "the join failed" in r.message]) == 1
    stage.session.on_step.remove(fail)
    stage.flush()
    assert stage.calls("step") == 1


def test_names_without_end_are_counted_together(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "MOST_NAMES", 10)
    for i in range(25):
        with region(f"request {i}", span=False):
            pass
    stage.session.settle(final=True)
    assert len(stage.session.verdicts.durations) == 11
    assert stage.calls(OTHER) == 15
    assert stage.session.verdicts.durations[OTHER].calls == 15


def test_executions_that_cannot_be_joined_fast_enough_are_left_out_and_counted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MOST_PENDING", 10)
    process.use_stream(None)
    stage.run(0.2)
    for _ in range(50):
        with region("step", span=False):
            stage.clock.advance(0.001)
    stage.session.settle()
    assert stage.session.counts["executions left out"] == 40
    stage.flush()
    assert stage.calls("step") == 50
    assert stage.session.pools[stage.uuid].pooled("step").executions == 50
    assert stage.session.pools[stage.uuid].pooled("step").active_s == pytest.approx(0.01)


def test_parents_are_known_when_executions_are_let_go(stage: Stage) -> None:
    found: dict[str, str | None] = {}

    def take(execution: Execution) -> None:
        found[execution.name] = None if execution.parent is None else execution.parent.name

    stage.session.on_settled.append(take)
    with region("request"), region("model"):
        stage.work(0.1, "model")
    stage.flush()
    assert found == {"request": None, "model": "request"}


def test_regions_tells_every_region_with_a_verdict(stage: Stage) -> None:
    stage.run(0.5)
    for i in range(20):
        with region("train", items=4):
            stage.queue.launch(Work(flops=3e13, bytes=1e9), tag="train")
            stage.run(0.06)
        with region("load"):
            stage.run(0.05 + 0.01 * (i % 7))  # a loop in step with the sensor would tell nothing
    stage.session.flush()
    train, load = stage.session.regions()
    assert (train.summary.region, load.summary.region) == ("train", "load")
    assert str(train.verdict.regime) == "COMPUTE_BOUND"
    assert train.summary.durations.calls == 20
    assert train.summary.durations.items == 80
    assert load.summary.interval_source == "device"


# ------------------------------------------------------------------ life


class Opening:
    """Opens drivers without devices, and counts them."""

    def __init__(self) -> None:
        self.opened: list[NullDriver] = []
        self.closed = 0

    def __call__(self) -> NullDriver:
        opening = self

        class Driver(NullDriver):
            def close(self) -> None:
                opening.closed += 1

        self.opened.append(Driver())
        return self.opened[-1]


@pytest.fixture
def opening() -> Opening:
    return Opening()


class FastClock:
    """A clock by which 30 s pass in a tenth of one."""

    speed = 300

    def now_ns(self) -> int:
        return START_NS + self.speed * time.monotonic_ns()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(max(0.0, timeout_s) / self.speed)


@pytest.fixture
def live(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A process's session with threads of its own, which soon is idle."""
    process.configure(clock=FastClock())
    live = Session(opening, clock=process.settings().clock, interval_s=1.0)
    monkeypatch.setattr(process, "current", live)
    yield live
    live.stop()
    process.configure()


def test_session_samples_from_the_first_region_until_it_is_idle_and_again_from_the_next(
    live: Session, opening: Opening
) -> None:
    assert opening.opened == []
    with region("first", span=False):
        until(lambda: live.active and opening.opened, "sampling")
        started = live.clock.now_ns()
        until(lambda: live.clock.now_ns() - started > 100e9, "a long region")
        assert live.active
    until(lambda: not live.active, "idle")
    assert live.verdicts.calls == {("first", "UNKNOWN", ""): 1}
    before = len(opening.opened)
    assert opening.closed == before
    with region("second", span=False):
        until(lambda: live.active and len(opening.opened) > before, "sampling again")
    until(lambda: not live.active, "idle again")
    assert opening.closed == len(opening.opened)
    assert live.verdicts.calls == {("first", "UNKNOWN", ""): 1, ("second", "UNKNOWN", ""): 1}


def test_region_that_begins_while_sampling_ends_is_found(live: Session, opening: Opening) -> None:
    """It saw a running session, and so did not wake it."""
    with region("first", span=False):
        pass
    stopping, slow = threading.Event(), threading.Event()
    stop = live.sampler.stop

    def slowly(timeout_s: float = 2.0) -> None:
        stopping.set()
        slow.wait(10)
        stop(timeout_s)

    live.sampler.stop = slowly  # type: ignore[method-assign]
    try:
        assert stopping.wait(30)
        assert live.active
        before = len(opening.opened)
        with region("meanwhile", span=False):
            slow.set()
            until(lambda: len(opening.opened) > before, "sampling again")
    finally:
        live.sampler.stop = stop  # type: ignore[method-assign]
    until(lambda: ("meanwhile", "UNKNOWN", "") in live.verdicts.calls, "counted")


def test_stop_ends_both_threads_and_closes_the_driver(live: Session, opening: Opening) -> None:
    stopped: list[str] = []
    live.on_stop.append(lambda: stopped.append("stopped"))
    with region("step", span=False):
        until(lambda: opening.opened, "sampling")
    live.stop()
    assert stopped == ["stopped"]
    assert opening.closed == len(opening.opened)
    assert not {"gpu-profile-join", "gpu-profile-sampler"} & {thread.name for thread in threading.enumerate()}
    assert live.verdicts.calls == {("step", "UNKNOWN", ""): 1}


def test_pause_does_not_end_a_recording(live: Session, opening: Opening) -> None:
    stopped: list[str] = []
    live.on_stop.append(lambda: stopped.append("stopped"))
    with region("step", span=False):
        pass
    until(lambda: not live.active, "idle")
    assert stopped == []


def test_process_that_may_have_no_more_threads_runs_its_regions_unmeasured(
    live: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(3):
        with region("step", span=False) as running:
            pass
        assert running.end_ns
    assert live.ignoring
    assert len(live.began) == 0
    assert [r.message for r in caplog.records] == ["gpu-profile: regions are not measured: can't start new thread"]


def test_missing_driver_is_told_after_its_first_answer() -> None:
    def refuse() -> NullDriver:
        raise GpuBackendError("no GPU driver. Looked for NVML")

    clock = FakeClock()
    missing = Session(refuse, clock=clock)
    assert missing.missing_driver() == "the driver has not answered within 10 s"
    missing.sampler.step()
    assert missing.missing_driver() == "no GPU driver. Looked for NVML"
    there = Session(NullDriver, clock=clock)
    there.sampler.step()
    assert there.missing_driver() == ""


def test_named_devices_are_the_only_ones_that_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = ONE_GPU + '[[device]]\nmodel = "A10G"\n'
    clock = FakeClock()
    node = simulated.create(tmp_path / "other", nodes, clock=clock)
    uuids = simulated.Truth(node, clock=clock).uuids
    for named in (None, uuids[1:], uuids):
        found = Session(
            lambda: process.Settings(backend=f"simulated:{node}", clock=clock).open_driver(), clock=clock, devices=named
        )
        found.sampler.step()
        assert [device.uuid for device in found.devices()] == (uuids[:1] if named is None else named)
        found.stop()


def test_execution_knows_where_it_was_active() -> None:
    host = execution("a", 10, 20)
    assert host.activity("GPU-0") == (id(host), None, "a", 10, 20)
    child = execution("b", 12, 0, parent=host, device="GPU-1")
    assert child.activity("GPU-0") is None
    assert child.activity("GPU-1") == (id(child), id(host), "b", 12, None)
    assert child.interval() is None

from collections.abc import Iterable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.regions import ONE_GPU, Stage, Staged

from gpu_profile import region
from gpu_profile.driver import simulated
from gpu_profile.driver.simulated import Work
from gpu_profile.join.unmixing.solving.region_columns import OTHER
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session import joiner, process, verdicts
from gpu_profile.regions.session.session import Session
from gpu_profile.testing import FakeClock
from gpu_profile.units import NS_PER_S


def execution(name: str, start_ns: int, end_ns: int, **fields: Any) -> Execution:
    found = Execution(name, fields.pop("parent", None), fields.pop("items", None), fields.pop("device", None))
    found.start_ns, found.end_ns = start_ns, end_ns
    for key, value in fields.items():
        setattr(found, key, value)
    return found


# ------------------------------------------------------------------ the join


def test_shares_of_regions_and_the_rest_add_up_to_the_device(stage: Stage) -> None:
    start, rng = stage.clock.now_ns(), np.random.default_rng(1)
    truly_busy_s = 0.0
    for _ in range(60):
        # Lengths that vary: a loop in step with the sensor would tell nothing.
        for name, longest_s, share in (("prefill", 0.08, 0.9), ("decode", 0.14, 0.5)):
            length_s = rng.uniform(0.01, longest_s)
            truly_busy_s += length_s * share
            with region(name):
                stage.work(length_s, name, share=share)
        stage.run(rng.uniform(0, 0.02))
    stage.session.flush()
    pool = stage.session.joiner.pools[stage.uuid]
    source = pool.energy_source()
    assert source is not None
    parts = [pool.counted(name, pool.energy_source()) for name in ("prefill", "decode")]
    parts.append(pool.rest(source))
    truth = stage.truth().device(0, start, stage.clock.now_ns()).energy_j
    assert sum(part.total for part in parts if part is not None) == pytest.approx(truth, rel=0.05)
    busy = [pool.pooled(name).busy_s or 0.0 for name in ("prefill", "decode")]
    assert sum(busy) == pytest.approx(truly_busy_s, rel=0.05)


@pytest.mark.parametrize("costly", [False, True])
def test_region_that_outlives_the_history_has_values_of_its_own_for_all_of_its_time(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, costly: bool
) -> None:
    stage = staged(retention_s=5)
    if costly:  # verdicts are renewed each 30 s then, and whenever somebody asks
        monkeypatch.setattr(stage.session.joiner._turns, "used_s", count(0, 10).__next__)
    start = stage.clock.now_ns()
    with region("train"):
        for _ in range(20):
            stage.work(1.0, "train", share=0.4)
            if costly:
                stage.session.regions()
    energy_j = stage.truth().device(0, start, stage.clock.now_ns()).energy_j
    timeline = stage.session.joiner.pools[stage.uuid].timeline
    assert len(timeline.anchors) == 1
    stage.flush()
    found = stage.attributes("train")
    assert (found["scope"], found["coverage"]) == ("span", pytest.approx(1.0, abs=0.01))
    assert found["busy.ratio"] == pytest.approx(0.4, rel=0.02)
    assert found["energy.joules"] == pytest.approx(energy_j, rel=0.02)
    stage.run(joiner.STREAM_S + 2)
    assert not timeline.anchors


def test_clock_that_is_set_back_delays_no_span_and_the_join_goes_on(
    staged: Staged, caplog: pytest.LogCaptureFixture
) -> None:
    stage = staged(on_device=False)
    stage.run(40)
    with region("before"):
        stage.work(0.2, "before")
    stage.clock.set_back(20)
    stage.run(1.5)
    assert stage.names() == ["before"]
    stage.run(6)
    pool = stage.session.joiner.pools[stage.uuid]
    assert stage.clock.now_ns() - pool.frontier_ns < 2 * joiner.DEADLINE_S * NS_PER_S
    assert stage.session.counts["clock set back"] == pool.set_back == 1
    assert "the clock was set back" in caplog.text
    with region("after"):
        stage.run(3)
    stage.flush()
    assert stage.attributes("after")["coverage"] > 0.95


@pytest.mark.parametrize(("ahead_s", "suspended"), [(0.5, False), (60.0, False), (3600.0, True)])
def test_clock_that_is_set_ahead_gives_no_region_time_that_never_passed(
    staged: Staged, ahead_s: float, suspended: bool
) -> None:
    stage = staged(on_device=False)

    def work(name: str, times: int) -> None:
        for i in range(times):
            with region(name):
                stage.work(0.3 + 0.03 * (i % 7), name, share=0.6)
            stage.run(0.05 + 0.02 * (i % 5))

    work("before", 40)
    start = stage.clock.elapsed_ns()
    with region("during"):
        stage.work(2.0, "during", share=0.6)
        (stage.clock.suspend if suspended else stage.clock.set_forward)(ahead_s)
        stage.work(2.0, "during", share=0.6)
    length_s = (stage.clock.elapsed_ns() - start) / NS_PER_S
    work("after", 40)
    stage.flush()
    pool, regions = stage.session.joiner.pools[stage.uuid], stage.session.joiner.verdicts.durations
    assert regions["during"].total_ns / NS_PER_S == pytest.approx(length_s + ahead_s * suspended, abs=0.01)
    assert regions["after"].total_ns / NS_PER_S == pytest.approx(40 * 0.39, rel=0.02)
    found = {name: pool.pooled(name) for name in ("before", "during", "after")}
    assert found["during"].inclusive_s == pytest.approx(4.0, abs=0.3)
    assert found["after"].inclusive_s == pytest.approx(regions["after"].total_ns / NS_PER_S, abs=0.3)
    energy_w = {name: each.energy_j / each.inclusive_s for name, each in found.items() if each.energy_j is not None}
    assert energy_w.keys() == found.keys()
    assert energy_w["after"] == pytest.approx(energy_w["before"], rel=0.05)
    assert energy_w["during"] == pytest.approx(energy_w["before"], rel=0.15)
    assert stage.session.counts["clock set back"] == 0


@pytest.mark.parametrize(
    ("ahead_s", "suspended", "active_s"), [(0.5, False, 7.076), (3600.0, True, 7.076), (-30.0, False, 7.0)]
)
def test_executions_before_a_step_of_the_clock_have_all_of_their_time(
    staged: Staged, ahead_s: float, suspended: bool, active_s: float
) -> None:
    """Also those since the last join, unless the clock is set back: their times pass again."""
    stage = staged(on_device=False)
    for _ in range(20):
        with region("step"):
            stage.work(0.25, "step", share=0.6)
    for seconds in (0.012, 0.023):
        with region("step"):
            stage.clock.advance(seconds)
        stage.clock.advance(0.005)
    with region("step"):
        stage.clock.advance(0.024)
        (stage.clock.suspend if suspended else stage.clock.set_forward)(ahead_s)
        stage.clock.advance(0.008)
    with region("step"):
        stage.clock.advance(0.009)
    for _ in range(8):
        with region("step"):
            stage.work(0.25, "step", share=0.6)
    stage.flush()
    assert stage.session.joiner.pools[stage.uuid].pooled("step").active_s == pytest.approx(active_s, abs=1e-3)


def test_nested_regions_are_charged_once(stage: Stage) -> None:
    pauses = 0.02 + 0.007 * (np.arange(60) % 5)
    for pause in pauses.tolist():
        with region("request"):
            with region("model"):
                stage.work(0.08, "model", share=0.8)
            stage.run(pause)
    stage.flush()
    pool = stage.session.joiner.pools[stage.uuid]
    assert pool.pooled("model").busy_s == pytest.approx(60 * 0.064, rel=0.1)
    assert pool.pooled("model").active_s == pytest.approx(60 * 0.08, rel=0.01)
    # While its child is active on the device, a parent is not innermost.
    assert pool.pooled("request").active_s == pytest.approx(pauses.sum(), rel=0.01)


def test_region_that_runs_for_long_is_joined_while_it_runs(stage: Stage) -> None:
    process.use_stream(None)
    stage.run(0.2)
    with region("training"):
        stage.work(4.0, "training", share=0.9)
        pooled = stage.session.joiner.pools[stage.uuid].pooled("training")
        assert pooled.active_s > 3.0
        assert pooled.busy_s is not None
        assert pooled.busy_s > 2.5
        assert pooled.executions == 0
    stage.flush()
    assert stage.session.joiner.pools[stage.uuid].pooled("training").executions == 1


def test_executions_before_the_driver_is_open_are_joined_once_it_is(stage: Stage) -> None:
    process.use_stream(None)
    for _ in range(3):
        with region("early"):
            stage.clock.advance(0.1)
        stage.session.settle()
    stage.run(2.0)
    assert stage.session.joiner.verdicts.calls == {("early", "UNKNOWN", stage.uuid): 3}
    assert stage.session.joiner.pools[stage.uuid].pooled("early").executions == 3


def test_executions_that_no_device_can_be_named_for_are_counted_all_the_same(staged: Staged) -> None:
    stage = staged(backend="none", on_device=False)
    for _ in range(5):
        with region("step", items=1):
            pass
    stage.run(0.2)
    assert stage.session.joiner.verdicts.calls == {("step", "UNKNOWN", ""): 5}
    assert stage.session.regions() == []


def test_stream_that_never_passes_its_marks_is_given_up_after_a_minute(stage: Stage) -> None:
    class Stuck:
        device_uuid = stage.uuid

        def record(self) -> int:
            return 0

        def resolve(self, mark: int) -> None:
            return None

    settled: list[Execution] = []
    stage.session.joiner.on_settled.append(settled.append)
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
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> bool:
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
    assert len(stage.session.joiner.verdicts.durations) == 11
    assert stage.calls(OTHER) == 15
    assert stage.session.joiner.verdicts.durations[OTHER].calls == 15


def test_executions_that_cannot_be_joined_fast_enough_are_left_out_and_counted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joiner, "MOST_PENDING", 10)
    process.use_stream(None)
    stage.run(0.2)
    for _ in range(50):
        with region("step", span=False):
            stage.clock.advance(0.001)
    stage.session.settle()
    assert stage.session.counts["executions left out"] == 40
    stage.flush()
    assert stage.calls("step") == 50
    assert stage.session.joiner.pools[stage.uuid].pooled("step").executions == 50
    assert stage.session.joiner.pools[stage.uuid].pooled("step").active_s == pytest.approx(0.01)


def test_parents_are_known_when_executions_are_let_go(stage: Stage) -> None:
    found: dict[str, str | None] = {}

    def take(execution: Execution) -> None:
        found[execution.name] = None if execution.parent is None else execution.parent.name

    stage.session.joiner.on_settled.append(take)
    with region("request"), region("model"):
        stage.work(0.1, "model")
    stage.flush()
    assert found == {"request": None, "model": "request"}


def test_verdicts_are_renewed_as_often_as_they_take_a_hundredth_of_a_core(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, judged = [0.0], list[int]()
    joiner = stage.session.joiner
    judge = joiner.verdicts.judge

    def costly(devices: Iterable[str]) -> None:
        judged.append(stage.clock.now_ns())
        used[0] += 0.05 + (used.pop() if len(used) > 1 else 0.0)
        judge(devices)

    monkeypatch.setattr(joiner.verdicts, "judge", costly)
    monkeypatch.setattr(joiner._turns, "used_s", lambda: used[0])
    with region("step", span=False):
        stage.run(30.0)
    apart_s = [(after - before) / 1e9 for before, after in pairwise(judged)]
    assert min(apart_s) >= 1.0
    assert apart_s[-3:] == pytest.approx([5.05] * 3, abs=0.06), "after 50 ms 5 s, but soon after a search for timings"
    before = len(judged)
    stage.session.regions()
    assert len(judged) == before + 1, "who asks has it at once"
    used.append(2.0)  # one alone may have met a collection of garbage
    with region("step", span=False):
        stage.run(30.0)
    assert np.diff(judged).max() < 5.2e9


def test_regions_tells_every_region_with_a_verdict(stage: Stage) -> None:
    stage.run(0.5)
    pauses = np.array([0.05 + 0.01 * (i % 7) for i in range(20)])
    for pause in pauses.tolist():
        with region("train", items=4):
            stage.queue.launch(Work(flops=3e13, bytes=1e9), tag="train")
            stage.run(0.06)
        with region("load"):
            stage.run(pause)
    stage.session.flush()
    train, load = stage.session.regions()
    assert (train.summary.region, load.summary.region) == ("train", "load")
    assert str(train.verdict.regime) == "COMPUTE_BOUND"
    assert train.summary.durations.calls == 20
    assert train.summary.durations.items == 80
    assert load.summary.interval_source == "device"


def test_named_devices_are_the_only_ones_that_are_joined(tmp_path: Path, clock: FakeClock) -> None:
    nodes = ONE_GPU + '[[device]]\nmodel = "A10G"\n'
    node = simulated.create(tmp_path / "other", nodes, clock=clock)
    uuids = simulated.Truth(node, clock=clock).uuids
    for named in (None, uuids[1:], uuids):
        found = Session(
            lambda: process.Settings(backend=f"simulated:{node}", clock=clock).open_driver(), clock=clock, devices=named
        )
        found.sampler.step()
        assert [device.uuid for device in found.joiner.devices()] == (uuids[:1] if named is None else named)
        found.stop()


def test_a_device_that_is_named_before_the_driver_has_answered_is_read_once_it_has(staged: Staged) -> None:
    stage = staged(scenario=ONE_GPU + '[[device]]\nmodel = "A10G"\n', on_device=False)
    with region("second", device=1):
        stage.session.settle(final=True)  # nothing is listed yet
        assert stage.session.joiner.devices() == []
        stage.run(3.0)
    stage.flush()
    first, second = (device.uuid for device in stage.session.sampler.listed)
    assert stage.attributes("second")["device.ids"] == (second,)
    assert stage.attributes("second")["busy.ratio"] == 0
    assert set(stage.session.sampler.states) == {first, second}


@pytest.mark.parametrize("named", [1, "1", "nvml:1", [1], iter([1])])
def test_the_whole_process_can_be_put_on_a_device_by_any_name(staged: Staged, named: object) -> None:
    two = ONE_GPU + '[[device]]\nmodel = "A10G"\n'
    stage = staged(scenario=two, on_device=False, devices=named)
    stage.run(6.0)  # the devices are listed more than once
    with region("step"):
        stage.run(2.0)
    stage.flush()
    (_, second) = (device.uuid for device in stage.session.sampler.listed)
    assert stage.attributes("step")["device.ids"] == (second,)
    assert set(stage.session.sampler.states) == {second}


def test_execution_knows_when_it_was_active() -> None:
    assert execution("a", 10, 20).active() == (10, 20)
    running = execution("b", 12, 0)
    assert running.active() == (12, None)
    assert running.interval() is None
    assert execution("c", 0, 0).active() is None

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from support.regions import BLANK, HUNGRY, NOTHING, ONE_GPU, PRODUCT, TALKING, Stage, Staged

from gpu_profile import region
from gpu_profile.catalogue.attributes import ATTRIBUTES
from gpu_profile.driver.simulated import Work
from gpu_profile.regimes import Regime
from gpu_profile.regions.telemetry.enrichment import Enricher, RegionValues

#: Two GPUs: a process that says nothing uses the first.
TWO_GPUS = ONE_GPU + '[[device]]\nmodel = "A10G"\n'
LOST = ONE_GPU + '[[fault]]\nkind = "gpu_lost"\ndevice = 0\nfrom_s = 1\n'


def test_region_of_seconds_carries_its_own_values_close_to_the_truth(stage: Stage) -> None:
    stage.run(0.5)
    with region("train"):
        stage.work(3.0, "train", share=0.7)
    stage.flush()
    span, said = stage.span("train"), stage.attributes("train")
    assert span.start_time is not None
    truth = stage.truth().device(0, span.start_time, span.start_time + 3_000_000_000)
    assert said["scope"] == "span"
    assert said["coverage"] == pytest.approx(1.0, abs=0.01)
    assert said["busy.ratio"] == pytest.approx(truth.busy_s / 3, abs=0.04)
    assert said["energy.joules"] == pytest.approx(truth.energy_j, rel=0.03)
    assert said["power.mean"] == pytest.approx(truth.energy_j / 3, rel=0.03)
    assert said["device.ids"] == (stage.uuid,)
    assert said["regime"] in {"LATENCY_BOUND", "HOST_BOUND"}
    assert "unjoined" not in said


@pytest.mark.parametrize(("late_s", "scope"), [(0.1, "span"), (0.35, "span"), (0.45, "span"), (0.8, "pooled")])
def test_an_execution_whose_beginning_no_sample_covers_has_its_whole_energy_and_a_regime(
    stage: Stage, late_s: float, scope: str
) -> None:
    with region("train"):
        stage.queue.launch(Work(seconds=3.0, flops=1e13, bytes=1e12, occupancy=0.1), tag="train")
        # The sampler of a program that has just begun comes late.
        stage.clock.advance(late_s)
        stage.run(3.0 - late_s)
    stage.flush()
    span, said = stage.span("train"), stage.attributes("train")
    assert span.start_time is not None
    truth_j = stage.truth().device(0, span.start_time, span.start_time + 3_000_000_000).energy_j
    assert said["scope"] == scope
    # By the region's mean power, where its own readings cover too little: the first second draws less than the others.
    assert said["energy.joules"] == pytest.approx(truth_j, rel=0.03 if late_s < 0.2 else 0.05)
    assert said["energy.source"] == "energy"
    assert said["power.mean"] == pytest.approx(truth_j / 3.0, rel=0.05)
    assert said["regime"] != "UNKNOWN"


def test_regions_of_milliseconds_carry_the_values_of_all_their_executions(stage: Stage) -> None:
    stage.run(0.5)
    for i in range(900):
        with region("decode"):
            stage.work(0.003, "decode", share=0.9)
        stage.work(0.002 + 0.0007 * (i % 5), "idle", share=0.01)
    stage.flush()
    last: dict[str, Any] = dict(stage.spans[-1].attributes or {})
    assert last["gpu_profile.scope"] == "pooled"
    assert last["gpu_profile.pooled.n"] > 700  # verdicts are up to a second old
    truth = stage.truth().tag(0, "decode")
    assert last["gpu_profile.busy.ratio"] == pytest.approx(truth.busy_s / (900 * 0.003), abs=0.1)
    assert last["gpu_profile.busy.half_width"] == pytest.approx(0.1, abs=0.1)
    assert "gpu_profile.coverage" not in last


def test_a_span_does_not_wait_while_all_verdicts_are_renewed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with region("train"):
        stage.work(3.0, "train")
    stage.flush()
    joiner, (execution,) = stage.session.joiner, stage.ended
    enricher, judge = Enricher(joiner), joiner.verdicts.judge
    former = enricher.region_of(execution)
    during: list[RegionValues] = []

    def renew(devices: Iterable[str]) -> None:
        # Another thread cannot have the lock of the join: it would wait here without end.
        reads = Thread(target=lambda: during.append(enricher.region_of(execution)), daemon=True)
        reads.start()
        reads.join(10)
        judge(devices)

    monkeypatch.setattr(joiner.verdicts, "judge", renew)
    stage.run(1.5)
    assert during[0] is former
    assert enricher.region_of(execution) is not former


def test_every_attribute_is_in_the_catalogue(stage: Stage) -> None:
    with region("train", items=3):
        stage.work(2.0, "train")
    for _ in range(200):
        with region("decode"):
            stage.work(0.003, "decode")
    stage.flush()
    said = {key for span in stage.spans for key in span.attributes or {}}
    assert said <= {row.name for row in ATTRIBUTES}
    assert "gpu_profile.items" in said


def test_device_interval_is_when_the_gpu_did_the_work_not_when_python_did(stage: Stage) -> None:
    stage.run(0.5)
    with region("behind"):
        stage.queue.launch(Work(seconds=2.0, flops=1e12), tag="behind")
        stage.run(0.01)
    with region("launched late"):
        stage.queue.launch(Work(seconds=1.5, flops=1e12), tag="launched late")
        stage.run(0.01)
    stage.run(4.0)
    # Marks are passed long after the region has left the host, and after a span's deadline.
    first, second = stage.session.regions()
    assert (first.summary.region, second.summary.region) == ("behind", "launched late")
    assert (first.summary.interval_source, second.summary.interval_source) == ("device", "device")
    assert first.summary.interval_s == pytest.approx(2.0, abs=0.01)
    assert second.summary.interval_s == pytest.approx(1.5, abs=0.01)
    with region("waited for"):
        stage.queue.launch(Work(seconds=1.2, flops=1e12), tag="waited for")
        stage.run(0.5)
    stage.run(3.0)
    said = stage.attributes("waited for")
    assert said["interval.source"] == "device"
    assert said["interval.duration"] == pytest.approx(1.2, abs=0.01)
    assert said["busy.ratio"] > 0.9


def test_host_interval_is_used_where_no_stream_is_known(on_host: Stage) -> None:
    on_host.run(0.5)
    with region("train"):
        on_host.queue.launch(Work(seconds=0.5, flops=1e12), tag="train")
        on_host.run(2.0)
    on_host.flush()
    said = on_host.attributes("train")
    assert (said["interval.source"], said["interval.duration"]) == ("host", 2.0)
    assert said["busy.ratio"] == pytest.approx(0.25, abs=0.06)


def test_device_of_a_region_is_joined_even_where_it_is_not_the_default(staged: Staged) -> None:
    stage = staged(scenario=TWO_GPUS, on_device=False)
    stage.run(0.1)
    first, second = (device.uuid for device in stage.session.sampler.listed)
    with region("default"), region("second", device=second), region("unknown", device="GPU-nowhere"):
        stage.run(3.0)
    stage.flush()
    assert stage.attributes("default")["device.ids"] == (first,)
    assert stage.attributes("second")["device.ids"] == (second,)
    assert "no device has this UUID; there are" in stage.attributes("unknown")["unjoined"]
    assert stage.session.joiner.pools[first].regions == ["default"]
    assert stage.session.joiner.pools[second].regions == ["second"]


def test_a_region_with_a_regime_but_no_rates_has_it_on_its_spans_and_the_reason_of_the_missing_rates(
    on_host: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_host.run(1.0)
    for _ in range(5):
        with region("sleep"):
            on_host.run(0.2)
    on_host.flush()
    joiner, execution = on_host.session.joiner, on_host.ended[-1]
    (judged,) = on_host.session.regions()
    assert judged.verdict.regime is Regime.IDLE
    # A device that was idle throughout shows this before there are windows enough for a rate.
    without = replace(judged.summary, busy=None, power_w=None, reason="too few samples (0)")
    monkeypatch.setattr(joiner.verdicts, "newest", lambda *_: judged._replace(summary=without))
    said = Enricher(joiner).attributes(execution)
    assert said["gpu_profile.unjoined"] == "too few samples (0)"
    assert (said["gpu_profile.regime"], said["gpu_profile.reason"]) == ("IDLE", judged.verdict.rule)


def test_span_of_a_lost_gpu_says_so(staged: Staged) -> None:
    stage = staged(scenario=LOST, on_device=False)
    stage.run(1.5)
    with region("step"):
        stage.run(0.1)
    stage.flush()
    said = stage.attributes("step")
    assert "fell off the bus" in said["unjoined"]
    assert "busy.ratio" not in said


def test_more_than_64_regions_are_told_apart_from_no_samples(on_host: Stage) -> None:
    on_host.run(0.2)
    for i in range(80):
        with region(f"step {i}"):
            on_host.run(0.01)
    on_host.flush()
    assert "more than 64 regions" in on_host.attributes("step 79")["unjoined"]


def test_a_span_that_goes_on_before_the_gpu_has_reached_its_end_says_so_and_carries_no_energy(stage: Stage) -> None:
    stage.run(0.5)
    with region("far ahead"):
        stage.queue.launch(Work(seconds=5.0))
    stage.run(2)  # past the processor's deadline, long before the work is done
    said = stage.attributes("far ahead")
    assert said["unjoined"] == "the GPU had not finished the region when its span was exported"
    assert set(said) == {"region", "device.ids", "unjoined"}


# ---------------------------------------------------------------------- operations


def test_an_operation_is_told_with_the_joined_values_and_decides_the_regime(stage: Stage) -> None:
    stage.run(0.5)
    with region("matmul") as execution:
        stage.work(3.0, "matmul", share=0.7)
        execution.operation = PRODUCT
    with region("plain"):
        stage.work(3.0, "plain", share=0.7)
    stage.flush()
    said, plain = stage.attributes("matmul"), stage.attributes("plain")
    assert (said["regime"], said["basis"], said["scope"]) == ("COMPUTE_BOUND", "operation", "span")
    assert said["reason"] == "FLOPs per second are nearer to their ceiling than bytes"
    assert said["busy.ratio"] == pytest.approx(0.7, abs=0.04)
    assert said["operation.flops"] == PRODUCT.flops
    assert said["operation.intensity"] == 120
    assert plain["basis"] != "operation"
    assert not [key for key in plain if key.startswith("operation.")]
    assert {f"gpu_profile.{key}" for key in said} <= {row.name for row in ATTRIBUTES}


def test_an_operation_that_tells_no_regime_leaves_the_joined_one(stage: Stage) -> None:
    stage.run(0.5)
    with region("matmul") as execution:
        stage.work(3.0, "matmul", share=0.7)
        execution.operation = BLANK
    stage.flush()
    said = stage.attributes("matmul")
    assert said["basis"] == "counters"
    assert said["operation.reason"] == "needs passes=2"


def test_an_operation_is_told_where_there_is_no_gpu_to_join(staged: Staged) -> None:
    stage = staged(backend="none", on_device=False)
    for name, operation in (("matmul", PRODUCT), ("blank", BLANK)):
        with region(name) as execution:
            stage.run(0.01)
            execution.operation = operation
    stage.flush()
    said, blank = stage.attributes("matmul"), stage.attributes("blank")
    assert (said["regime"], said["basis"]) == ("COMPUTE_BOUND", "operation")
    assert (blank["regime"], blank["reason"]) == ("UNKNOWN", "needs passes=2")
    assert said["unjoined"] == blank["unjoined"] != ""


def test_a_span_says_what_was_missing_of_the_join_and_not_what_its_operations_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stage(tmp_path, monkeypatch, scenario=LOST, on_device=False) as stage:
        stage.run(1.5)
        with region("matmul") as execution:
            stage.run(0.1)
            execution.operation = PRODUCT
        stage.flush()
        said = stage.attributes("matmul")
        assert "fell off the bus" in said["unjoined"]
        assert said["regime"] == "COMPUTE_BOUND"
    with Stage(tmp_path / "short", monkeypatch) as stage:
        stage.run(0.5)
        with region("matmul") as execution:
            stage.work(0.002, "matmul")
            execution.operation = PRODUCT
        stage.flush()
        said = stage.attributes("matmul")
        assert "ceiling" not in said["unjoined"]
        assert (said["regime"], said["basis"]) == ("COMPUTE_BOUND", "operation")


def test_the_regions_verdict_on_a_device_is_by_its_operations(stage: Stage) -> None:
    stage.run(0.5)
    for _ in range(8):
        with region("matmul") as execution:
            stage.work(1.0, "matmul", share=0.3)
            execution.operation = PRODUCT
    stage.flush()
    (judged,) = stage.session.regions()
    assert (str(judged.verdict.regime), judged.verdict.basis, judged.verdict.n) == ("COMPUTE_BOUND", "operation", 8)
    assert judged.summary.evidence.basis == "counters"
    assert {*stage.session.joiner.verdicts.calls} == {("matmul", "COMPUTE_BOUND", stage.uuid)}


# ---------------------------------------------------------------------- kernels


def test_kernels_are_told_with_the_joined_values_and_decide_the_regime(stage: Stage) -> None:
    stage.run(0.5)
    with region("step") as execution:
        stage.work(3.0, "step", share=0.7)
        execution.operation, execution.kernels = PRODUCT, TALKING
    stage.flush()
    said = stage.attributes("step")
    assert (said["regime"], said["basis"], said["scope"]) == ("COMMUNICATION_BOUND", "kernels", "span")
    assert said["reason"] == "in a trace, communication that nothing hides takes longest"
    assert said["busy.ratio"] == pytest.approx(0.7, abs=0.04)
    assert (said["operation.flops"], said["kernels.count"]) == (PRODUCT.flops, 9)
    assert {f"gpu_profile.{key}" for key in said} <= {row.name for row in ATTRIBUTES}


def test_kernels_that_tell_no_regime_leave_the_one_that_there_is(stage: Stage) -> None:
    stage.run(0.5)
    for name, operation in (("matmul", PRODUCT), ("plain", None)):
        with region(name) as execution:
            stage.work(3.0, name, share=0.7)
            execution.kernels = NOTHING
            if operation is not None:
                execution.operation = operation
    stage.flush()
    matmul, plain = stage.attributes("matmul"), stage.attributes("plain")
    assert (matmul["regime"], matmul["basis"]) == ("COMPUTE_BOUND", "operation")
    assert plain["basis"] == "counters"
    assert plain["kernels.reason"] == matmul["kernels.reason"] == "nothing was launched in it"


def test_kernels_are_told_where_there_is_no_gpu_to_join(staged: Staged) -> None:
    stage = staged(backend="none", on_device=False)
    for name, kernels in (("step", HUNGRY), ("empty", NOTHING)):
        with region(name) as execution:
            stage.run(0.01)
            execution.kernels = kernels
    stage.flush()
    said, empty = stage.attributes("step"), stage.attributes("empty")
    assert (said["regime"], said["basis"]) == ("HOST_BOUND", "kernels")
    assert (empty["regime"], empty["reason"]) == ("UNKNOWN", "nothing was launched in it")
    assert said["unjoined"] == empty["unjoined"] != ""


def test_the_regions_verdict_on_a_device_is_by_its_kernels_and_later_spans_have_it(stage: Stage) -> None:
    stage.run(0.5)
    for i in range(8):
        with region("step"):
            stage.work(1.0, "step", share=0.3)
        if i == 2:
            with stage.session.joiner.lock:
                stage.session.joiner.verdicts.take_kernels("step", TALKING)
    stage.flush()
    (judged,) = stage.session.regions()
    assert (str(judged.verdict.regime), judged.verdict.basis) == ("COMMUNICATION_BOUND", "kernels")
    assert judged.verdict.n == 9
    assert judged.summary.evidence.basis == "counters"
    regimes = {regime for _, regime, _ in stage.session.joiner.verdicts.calls}
    assert "COMMUNICATION_BOUND" in regimes


def test_a_span_says_what_was_missing_of_the_join_and_not_what_its_kernels_did(stage: Stage) -> None:
    stage.run(0.5)
    with region("step") as execution:
        stage.work(0.002, "step")
        execution.kernels = HUNGRY
    stage.session.joiner.verdicts.take_kernels("step", HUNGRY)
    stage.flush()
    said = stage.attributes("step")
    assert "host" not in said["unjoined"]
    assert (said["regime"], said["basis"]) == ("HOST_BOUND", "kernels")

"""Figures of recorded traces, found with other code beforehand; see tests/data/traces/SOURCES.txt."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from support.traces import TRACES, US

from gpu_profile.kernels import Activity, KernelReport, Kind, Operation, Trace, evidence, measure, report_of
from gpu_profile.kernels.records import Counted, Range
from gpu_profile.regimes import Regime, Thresholds, classify

ALEXNET = "hta/alexnet_a100"
DDP = "hta/ddp_a100_nccl_rank0"
MI250 = "hta/mi250_minitoy_rocm62"
RESNET = "kineto/resnet50_workers0"
STREAMS = "hta/multistream_event_sync_a100"
COUNTERS = "hta/alexnet_a100_cupti_counters"


@cache
def activity(name: str) -> Activity:
    trace = Trace(TRACES / f"{name}.json.gz")
    found = measure(trace)
    assert found is not None
    assert not trace.skipped
    return found


@pytest.mark.parametrize(
    ("name", "operations", "span_us", "busy_us", "ratio"),
    [
        (ALEXNET, 98, 12_920_244, 66_141, 0.005),
        (DDP, 3774, 660_551, 157_500, 0.238),
        (MI250, 16, 8_912, 149, 0.017),
        (RESNET, 9096, 996_477, 603_558, 0.606),
        (STREAMS, 6, 19_506, 372, 0.019),
    ],
)
def test_operations_span_and_busy_time_are_the_known_ones(
    name: str, operations: int, span_us: int, busy_us: int, ratio: float
) -> None:
    found = activity(name)
    assert found.operations == operations
    assert (round(found.span_ns / US), round(found.busy_ns / US)) == (span_us, busy_us)
    assert round(found.busy_ns / found.span_ns, 3) == ratio


def test_communication_and_its_overlap_with_kernels_are_the_known_ones() -> None:
    found = activity(DDP)
    assert (round(found.communication_ns / US), round(found.overlap_ns / US)) == (46_876, 7_317)
    assert round(found.overlap_ratio or 0, 3) == 0.156
    assert found.counts[Kind.COMMUNICATION] == 21


@pytest.mark.parametrize(
    ("name", "kernels", "mean_us"), [(ALEXNET, 79, 135), (DDP, 2700, 60), (MI250, 14, 7.9), (RESNET, 8772, 67.4)]
)
def test_kernels_and_their_mean_are_the_known_ones(name: str, kernels: int, mean_us: float) -> None:
    found = activity(name)
    assert found.counts[Kind.KERNEL] + found.counts[Kind.COMMUNICATION] == kernels
    assert (found.mean_kernel_ns or 0) / US == pytest.approx(mean_us, rel=0.01)


@pytest.mark.parametrize(
    ("name", "stream", "host_us", "other_us"),
    [
        (ALEXNET, 7, 12_855_007, 104),
        (ALEXNET, 20, 12_011_718, 3),
        (DDP, 7, 540_091, 2_150),
        (DDP, 40, 583_924, 0),
        (MI250, 0, 8_763, 0),
        (RESNET, 7, 382_676, 10_243),
        (STREAMS, 20, 32, 0),
        (STREAMS, 24, 0, 15),
        (STREAMS, 28, 0, 15),
    ],
)
def test_each_stream_s_idle_time_is_split_as_known(name: str, stream: int, host_us: int, other_us: int) -> None:
    (found,) = (s for s in activity(name).streams if s.stream == stream)
    assert (round(found.idle.host_wait_ns / US), round(found.idle.other_ns / US)) == (host_us, other_us)
    assert found.idle.unknown_ns == 0
    assert found.busy_ns + found.idle.total_ns == found.span_ns


KNOWN = {
    ALEXNET: Regime.IDLE,
    DDP: Regime.HOST_BOUND,
    MI250: Regime.OVERHEAD_BOUND,
    RESNET: Regime.HOST_BOUND,
}


@pytest.mark.parametrize(("name", "regime"), KNOWN.items())
def test_the_regime_is_what_is_known_of_the_program(name: str, regime: Regime) -> None:
    verdict = classify(evidence(activity(name)))
    assert (verdict.regime, verdict.basis) == (regime, "kernels")
    # The smallest of them has 16 operations.
    assert verdict.confidence > (0.7 if verdict.n >= 40 else 0.6)
    assert verdict.advice


@pytest.mark.parametrize("factor", [0.8, 1.2])
@pytest.mark.parametrize("threshold", ["well_fed", "short_kernel", "idle_busy"])
def test_no_verdict_hangs_on_the_exact_value_of_a_threshold(threshold: str, factor: float) -> None:
    moved = replace(Thresholds(), **{threshold: getattr(Thresholds(), threshold) * factor})
    assert {name: classify(evidence(activity(name)), moved).regime for name in KNOWN} == KNOWN


def test_after_the_host_the_distributed_program_waits_for_its_peer() -> None:
    assert classify(evidence(activity(DDP))).runner_up is Regime.COMMUNICATION_BOUND


def test_the_times_of_a_trace_are_nanoseconds_since_the_epoch_with_its_base() -> None:
    trace = Trace(TRACES / f"{DDP}.json.gz")
    found = measure(trace)
    assert found is not None
    assert (trace.base_ns + found.start_ns) // 10**9 == 1_716_423_322


@cache
def report(name: str) -> KernelReport:
    return report_of(Trace(TRACES / f"{name}.json.gz"), source=name)


def test_by_hta_s_definition_its_figures_come_out() -> None:
    # It leaves the last step out, and rounds starts up and ends down to whole microseconds.
    records = list(Trace(TRACES / f"{DDP}.json.gz"))
    last = max(r.start_ns for r in records if isinstance(r, Range) and r.name == "ProfilerStep")
    kept = [r for r in records if isinstance(r, Operation) and r.start_ns < last]
    cut = [r._replace(start_ns=-(-r.start_ns // US) * US, end_ns=r.end_ns // US * US) for r in kept]
    found = measure(cut)
    assert found is not None
    assert round(found.idle.total_ns / found.span_ns, 4) == 0.7778
    assert round(found.overlap_ratio or 0, 4) == 0.1431


def test_warm_up_and_measurement_of_one_program_are_regions_with_the_same_kernels() -> None:
    warmup, measured = (
        report(ALEXNET).region(f"[param|pytorch.model.alex_net|0|0|0|{which}|forward]")
        for which in ("warmup", "measure")
    )
    assert (warmup.executions, measured.executions) == (2, 2)
    assert {name: each.count for name, each in warmup.kernels.items()} == {
        name: each.count for name, each in measured.kernels.items()
    }
    assert (warmup.kernel_count, measured.kernel_count) == (39, 39)
    assert warmup.verdict().regime is Regime.IDLE
    assert measured.verdict().regime is Regime.HOST_BOUND


def test_steps_of_training_have_all_operations_and_the_backward_pass_is_its_forward_s() -> None:
    found = report(DDP)
    step, forward = found.region("ProfilerStep"), found.region("## forward ##")
    backward, reduce = found.region("## backward ##"), found.region("nccl:all_reduce")
    assert found.outside is None
    assert not found.notes
    assert (step.executions, step.operations) == (3, 3774)
    assert (step.busy_ns, step.communication_ns, step.overlap_ns) == (
        activity(DDP).busy_ns,
        activity(DDP).communication_ns,
        activity(DDP).overlap_ns,
    )
    assert (forward.operations, forward.backward) == (2736, 1380)
    # With the gradients' accumulation and reduction, which have no forward.
    assert (backward.operations, backward.backward) == (2391, 2373)
    assert (reduce.operations, reduce.verdict().regime) == (15, Regime.COMMUNICATION_BOUND)


def test_launches_of_many_small_kernels_make_a_region_overhead_bound() -> None:
    assert report(RESNET).region("Optimizer.zero_grad#SGD.zero_grad").verdict().regime is Regime.OVERHEAD_BOUND
    assert report(MI250).region("ProfilerStep").verdict().regime is Regime.OVERHEAD_BOUND


def test_copies_have_bytes_from_their_record_or_from_their_call() -> None:
    nvidia, amd = report(RESNET).region("ProfilerStep").copies, report(MI250).region("ProfilerStep").copies
    assert (nvidia["HtoD"].count, nvidia["HtoD"].known_ns) == (12, nvidia["HtoD"].total_ns)
    assert nvidia["HtoD"].bytes_per_s == pytest.approx(9.9e9, rel=0.05)
    assert (amd["HtoD"].count, amd["HtoD"].bytes) == (2, 5120)


def test_memory_of_an_old_trace_is_told_by_region_without_a_peak() -> None:
    memory = {(m.source, m.device): m for m in report(RESNET).region("ProfilerStep").memory}
    assert memory["torch", 0].allocations > 1000
    assert memory["torch", 0].peak_bytes is None
    assert (memory["torch", 0].rise_bytes or 0) > 0


def test_a_trace_of_counters_has_them_and_no_kernels() -> None:
    found = report(COUNTERS)
    assert (found.activity, found.on_host) == (None, False)
    assert found.counted is not None
    assert sum(found.counted.records.values()) == 77


def test_counters_of_another_run_are_joined_by_the_names_of_kernels() -> None:
    counted = [r for r in Trace(TRACES / f"{COUNTERS}.json.gz") if isinstance(r, Counted)]
    found = report_of(Trace(TRACES / f"{ALEXNET}.json.gz"), counted=counted)
    assert found.counted is not None
    assert (found.counted.pairs, sum(found.counted.records.values())) == (55, 22)
    counters = found.region("[param|pytorch.model.alex_net|0|0|0|measure|forward]").counters
    assert counters is not None
    assert 0.5 < (counters.coverage("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum") or 0) < 0.7


def test_the_next_cause_is_one_that_takes_some_of_the_time() -> None:
    # Communication takes 6 % of the one trace, and nothing of the other.
    assert classify(evidence(activity(DDP))).runner_up is Regime.COMMUNICATION_BOUND
    assert classify(evidence(activity(MI250))).runner_up not in (Regime.COMMUNICATION_BOUND, Regime.TRANSFER_BOUND)

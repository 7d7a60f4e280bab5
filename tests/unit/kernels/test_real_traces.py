"""Figures of recorded traces, found with other code beforehand; see tests/data/traces/SOURCES.txt."""

from dataclasses import replace
from functools import cache

import pytest
from support.traces import ALEXNET, COUNTERS, DDP, IDLE, MI250, RESNET, SUMS, US, activity_of, as_hta, recorded, rounded

from gpu_profile.kernels import Activity, KernelReport, Kind, evidence, report_of
from gpu_profile.kernels.records import RangeCounters
from gpu_profile.regimes import Regime, Thresholds, classify


@cache
def activity(name: str) -> Activity:
    trace = recorded(name)
    found = activity_of(trace)
    assert not trace.skipped
    return found


@pytest.mark.parametrize(("name", "known"), SUMS.items())
def test_operations_kernels_and_their_times_are_the_known_ones(name: str, known: tuple[int, ...]) -> None:
    assert rounded(activity(name)) == known


def test_collectives_are_told_from_other_kernels() -> None:
    assert activity(DDP).counts[Kind.COMMUNICATION] == 21


@pytest.mark.parametrize(("name", "mean_us"), [(ALEXNET, 135), (DDP, 60), (MI250, 7.9), (RESNET, 67.4)])
def test_the_mean_kernel_is_the_known_one(name: str, mean_us: float) -> None:
    assert (activity(name).mean_kernel_ns or 0) / US == pytest.approx(mean_us, rel=0.01)


@pytest.mark.parametrize(("of", "known"), IDLE.items())
def test_each_stream_s_idle_time_is_split_as_known(of: tuple[str, int], known: tuple[int, int]) -> None:
    name, stream = of
    (found,) = (s for s in activity(name).streams if s.stream == stream)
    assert (round(found.idle.host_wait_ns / US), round(found.idle.other_ns / US)) == known
    assert found.idle.unknown_ns == 0
    assert found.busy_ns + found.idle.total_ns == found.span_ns


KNOWN = {ALEXNET: Regime.IDLE, DDP: Regime.HOST_BOUND, MI250: Regime.OVERHEAD_BOUND, RESNET: Regime.HOST_BOUND}


@pytest.mark.parametrize(("name", "regime"), KNOWN.items())
def test_the_regime_is_what_is_known_of_the_program(name: str, regime: Regime) -> None:
    verdict = classify(evidence(activity(name)))
    assert (verdict.regime, verdict.basis) == (regime, "kernels")
    # The smallest of them has 16 operations.
    assert verdict.confidence > (0.7 if verdict.n >= 40 else 0.6)
    assert verdict.advice


@pytest.mark.parametrize("name", KNOWN)
def test_a_region_s_sentence_has_the_share_that_its_bar_shows(name: str) -> None:
    for region in report_of(recorded(name)).regions:
        verdict, idle = region.verdict(), region.idle
        shown = {
            Regime.COMMUNICATION_BOUND: region.exposed_communication_ns,
            Regime.TRANSFER_BOUND: region.exposed_transfer_ns,
            Regime.OVERHEAD_BOUND: idle.launch_ns,
            Regime.IDLE: idle.total_ns,
            Regime.HOST_BOUND: idle.host_wait_ns,
        }
        if verdict.regime is Regime.UNKNOWN:
            own = (region.work_ns, region.exposed_communication_ns, idle.total_ns)
            assert ("only others' operations run" in verdict.rule) == (region.others_ns > max(0, *own)), region.name
            continue
        gaps = idle.kernel_wait_ns + idle.other_ns if "gaps between kernels" in verdict.advice else 0
        assert f"{(shown[verdict.regime] + gaps) / region.span_ns:.0%}".replace("%", " %") in verdict.advice
        assert shown[verdict.regime] + gaps > region.others_ns


@pytest.mark.parametrize("factor", [0.8, 1.2])
@pytest.mark.parametrize("threshold", ["well_fed", "short_kernel", "idle_busy"])
def test_no_verdict_hangs_on_the_exact_value_of_a_threshold(threshold: str, factor: float) -> None:
    moved = replace(Thresholds(), **{threshold: getattr(Thresholds(), threshold) * factor})
    assert {name: classify(evidence(activity(name)), moved).regime for name in KNOWN} == KNOWN


def test_the_times_of_a_trace_are_nanoseconds_since_the_epoch_with_its_base() -> None:
    trace = recorded(DDP)
    found = activity_of(trace)
    assert (trace.base_ns + found.start_ns) // 10**9 == 1_716_423_322


@cache
def report(name: str) -> KernelReport:
    return report_of(recorded(name), source=name)


def test_by_hta_s_definition_its_figures_come_out() -> None:
    found = activity_of(as_hta(recorded(DDP)))
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
    counted = [r for r in recorded(COUNTERS) if isinstance(r, RangeCounters)]
    found = report_of(recorded(ALEXNET), counted=counted)
    assert found.counted is not None
    assert (found.counted.pairs, sum(found.counted.records.values())) == (55, 22)
    counters = found.region("[param|pytorch.model.alex_net|0|0|0|measure|forward]").counters
    assert counters is not None
    assert 0.5 < (counters.coverage("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum") or 0) < 0.7


def test_the_next_cause_is_one_that_takes_some_of_the_time() -> None:
    # Communication takes 6 % of the one trace, and nothing of the other.
    assert classify(evidence(activity(DDP))).runner_up is Regime.COMMUNICATION_BOUND
    assert classify(evidence(activity(MI250))).runner_up not in (Regime.COMMUNICATION_BOUND, Regime.TRANSFER_BOUND)

"""Figures of recorded traces, found with other code beforehand; see tests/data/traces/SOURCES.txt."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from trace_support import TRACES, US

from gpu_profile.kernels import Activity, Kind, Trace, evidence, measure
from gpu_profile.regimes import Regime, Thresholds, classify

ALEXNET = "hta/alexnet_a100"
DDP = "hta/ddp_a100_nccl_rank0"
MI250 = "hta/mi250_minitoy_rocm62"
RESNET = "kineto/resnet50_workers0"


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
    assert verdict.confidence > 0.7
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

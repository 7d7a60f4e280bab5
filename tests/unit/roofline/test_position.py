"""Where an operation stands under its machine's roofs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.roofline import CEILINGS

from gpu_profile.regimes import DEFAULT_THRESHOLDS, Regime
from gpu_profile.regimes.operation import RegionOperations
from gpu_profile.roofline.ceilings.ceilings import Ceilings
from gpu_profile.roofline.machines.machine import Timing
from gpu_profile.roofline.position import Caches, Position, place
from gpu_profile.roofline.precision import Precision
from gpu_profile.roofline.work import Work, unknown_work


def placed(work: Work, seconds: float, ceilings: Ceilings, *, caches: Caches = "unknown", faults: int = 0) -> Position:
    return place(work, [Timing(seconds, seconds, faults)], ceilings, caches=caches)


def work(flops: int, moved: int, *, precision: Precision = Precision.FP32, working_set: int | None = None) -> Work:
    return Work(flops, moved, {precision: flops}, 1, working_set=moved if working_set is None else working_set)


def test_shares_are_the_time_at_the_ceilings_over_the_time_that_it_took() -> None:
    found = placed(work(10**9, 10**9), 0.1, CEILINGS)
    assert found.flops_per_s == found.bytes_per_s == 1e10
    assert found.compute == pytest.approx(0.1)
    assert found.memory == pytest.approx(0.5)
    assert found.overhead == pytest.approx(2e-5)


def test_the_ridge_is_where_the_roofs_meet_and_the_attainable_rate_the_lower_of_them() -> None:
    left, right = placed(work(10**9, 10**9), 0.1, CEILINGS), placed(work(10**12, 10**9), 20.0, CEILINGS)
    assert left.ridge == right.ridge == 5.0
    assert (left.attainable, right.attainable) == (20e9, 100e9)


def test_a_mixture_of_precisions_takes_the_sum_of_their_times() -> None:
    mixed = Work(2 * 10**9, 10**6, {Precision.FP32: 10**9, Precision.BF16: 10**9}, 2, working_set=10**6)
    assert placed(mixed, 1.0, CEILINGS).compute == pytest.approx(0.01 + 0.0025)


def test_arithmetic_without_a_ceiling_of_its_own_is_taken_at_that_of_fp32() -> None:
    assert placed(Work(10**9, 10**6, {}, 1), 1.0, CEILINGS).compute == pytest.approx(0.01)


def test_a_precision_that_was_not_measured_leaves_the_share_unknown_and_says_so() -> None:
    found = placed(work(10**9, 10**6, precision=Precision.FP8), 1.0, CEILINGS)
    assert found.compute is None
    assert found.reasons["compute ceiling"] == "fp8: its ceiling is not known here"


@pytest.mark.parametrize(
    ("level", "moved", "seconds", "caches"),
    [
        ("memory", 1 << 20, 1e-3, "unknown"),
        ("L3", 1 << 20, 2e-5, "unknown"),
        ("L3", 1 << 20, 1e-3, "warm"),
        ("memory", 1 << 20, 2e-5, "cold"),
        ("memory", 1 << 30, 1.0, "warm"),
    ],
)
def test_bytes_come_from_a_cache_if_they_fit_and_are_known_to_be_there(
    level: str, moved: int, seconds: float, caches: Caches
) -> None:
    found = placed(work(1, moved), seconds, CEILINGS, caches=caches)
    assert found.residency == level
    assert found.roof is not None
    assert found.memory == pytest.approx(moved / found.roof.value / seconds)


@pytest.mark.parametrize(("moved", "level"), [(40 << 20, "L3"), (200 << 20, "memory")])
def test_a_cache_keeps_a_part_of_what_is_a_few_times_its_size(moved: int, level: str) -> None:
    assert placed(work(1, moved), moved / 50e9, CEILINGS, caches="warm").residency == level
    assert placed(work(1, moved), moved / 15e9, CEILINGS, caches="warm").residency == "memory", "it was not faster"


def test_between_the_operations_of_a_call_data_may_stay_in_a_cache() -> None:
    chain = Work(10, 100 << 20, {Precision.FP32: 10}, 50, working_set=64 << 20, largest=2 << 20)
    assert placed(chain, 1.5e-3, CEILINGS).residency == "L3"
    assert placed(chain, 1.0, CEILINGS).residency == "memory"


def test_launches_that_ran_beside_the_work_take_nothing_from_it() -> None:
    many = Work(10**9, 10**9, {Precision.FP32: 10**9}, 50_000, working_set=10**9)
    found = placed(many, 0.1, CEILINGS)
    assert found.overhead == pytest.approx(1.0)
    assert found.operation.overhead == pytest.approx(0.5)


def test_uncertain_ceilings_cut_the_confidence_and_are_told_everywhere() -> None:
    sure = placed(work(10**6, 10**9), 0.1, CEILINGS)
    unsure = placed(work(10**6, 10**9), 0.1, replace(CEILINGS, waited=0.48))
    assert sure.certainty == 1.0
    assert "ceilings" not in sure.reasons
    assert unsure.reasons["ceilings"].startswith("the ceilings are uncertain: others had the processor for 48 %")
    confident, careful = (each.verdict(DEFAULT_THRESHOLDS) for each in (sure, unsure))
    assert careful.regime is confident.regime is not Regime.UNKNOWN
    assert careful.confidence == pytest.approx(0.52 * confident.confidence)
    said = unsure.operation.attributes()
    assert said["gpu_profile.operation.certainty"] == pytest.approx(0.52)
    assert said["gpu_profile.operation.reason"] == unsure.reasons["ceilings"]
    region = RegionOperations()
    for each in (sure, unsure):
        region.add(each.operation, 1)
    region.whole_ns = 2
    assert region.evidence().coverage == pytest.approx(0.76)


def test_what_is_not_known_stays_unknown_with_its_reason() -> None:
    found = placed(unknown_work("needs passes=2"), 1e-3, CEILINGS)
    assert (found.flops_per_s, found.bytes_per_s, found.compute, found.memory) == (None, None, None, None)
    assert found.reasons["flops"] == found.reasons["bytes"] == "needs passes=2"
    verdict = found.verdict(DEFAULT_THRESHOLDS)
    assert (verdict.regime, verdict.rule) == (Regime.UNKNOWN, "needs passes=2")


def test_without_ceilings_nothing_is_claimed() -> None:
    found = placed(work(10**9, 10**9), 0.1, Ceilings("unknown", {}, missing={"memory": "out of memory"}))
    assert (found.compute, found.memory, found.overhead, found.attainable) == (None, None, None, None)
    assert found.reasons["memory ceiling"] == "out of memory"
    assert found.verdict(DEFAULT_THRESHOLDS).regime is Regime.UNKNOWN


def test_a_call_that_took_no_time_has_no_rates() -> None:
    found = placed(work(1, 1), 0.0, CEILINGS)
    assert found.flops_per_s is None
    assert "runtime" in found.reasons


amounts = st.integers(0, 10**15)


@given(amounts, st.integers(1, 10**13))
def test_an_operation_at_its_roof_reaches_all_of_exactly_one_ceiling(flops: int, moved: int) -> None:
    done = work(flops, moved)
    at_roof = max(flops / 100e9, moved / 20e9)
    found = placed(done, at_roof, CEILINGS, caches="cold")
    assert found.compute is not None
    assert found.memory is not None
    assert max(found.compute, found.memory) == pytest.approx(1.0)
    assert found.attainable is not None
    assert found.flops_per_s == pytest.approx(found.attainable if flops else 0.0)


@given(amounts, st.integers(1, 10**13), st.floats(1e-7, 1e3))
def test_the_verdict_of_a_long_operation_is_the_side_of_the_ridge_that_it_is_on(
    flops: int, moved: int, seconds: float
) -> None:
    done = work(flops, moved)
    found = placed(done, max(seconds, flops / 100e9, moved / 20e9, 1e-4), CEILINGS, caches="cold")
    verdict = found.verdict(DEFAULT_THRESHOLDS)
    intensity = flops / moved
    allowed = {Regime.UNKNOWN, Regime.BALANCED, Regime.MEMORY_BOUND if intensity < 5.0 else Regime.COMPUTE_BOUND}
    assert verdict.regime in allowed


def test_a_small_operation_whose_work_is_less_than_its_launch_is_launching() -> None:
    small = work(16, 200)
    for seconds in (3e-6, 15e-6):
        found = placed(small, seconds, CEILINGS, caches="warm")
        assert found.overhead == pytest.approx(1.0, abs=0.02)
    assert placed(small, 1e-3, CEILINGS, caches="warm").overhead == pytest.approx(2e-3), "that is more than launching"


def test_cold_launches_take_longer() -> None:
    ceilings = replace(CEILINGS, cold_launch_s=50e-6)
    large = work(10**7, 10**7)
    cold, warm = (placed(large, 1e-3, ceilings, caches=caches).overhead for caches in ("unknown", "warm"))
    assert cold == pytest.approx(0.05)
    assert warm == pytest.approx(0.002)


def test_first_touches_of_memory_count_as_memory_as_far_as_there_is_time_for_them() -> None:
    ceilings = replace(CEILINGS, fault_s=1e-6)
    large = work(10**6, 200 * 10**6)
    found = placed(large, 25e-3, ceilings, caches="cold", faults=10_000)
    assert found.first_touch == pytest.approx(0.4)
    assert found.memory == pytest.approx(0.8)
    assert placed(large, 25e-3, ceilings, caches="cold", faults=10**6).memory == pytest.approx(1.0)
    assert placed(large, 25e-3, CEILINGS, caches="cold", faults=10**6).first_touch is None

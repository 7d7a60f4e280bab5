import math
import re
from dataclasses import fields, replace

import pytest

from gpu_profile.regimes import (
    BEST_CONFIDENCE,
    DEFAULT_THRESHOLDS,
    RULES,
    Regime,
    Scores,
    Thresholds,
    Verdict,
    classify,
)
from gpu_profile.regimes.evidence import Basis, Evidence
from gpu_profile.regimes.thresholds import FIRM


def judge(**values: float) -> Verdict:
    return classify(Evidence("counters", values, 100, 1.0))


def judge_on(basis: Basis, **values: float) -> Verdict:
    return classify(Evidence(basis, values, 100, 1.0))


#: What each regime looks like on a GPU with counters.
EXAMPLES = {
    # Nobody uses the GPU, here or anywhere.
    Regime.IDLE: {"busy": 0.0, "device_busy": 0.01, "pcie": 0.0},
    # A data loader that cannot keep up: the GPU is busy elsewhere, or in short bursts.
    Regime.HOST_BOUND: {"busy": 0.15, "device_busy": 0.15, "sm": 0.1, "dram": 0.05, "fp32": 0.05, "pcie": 0.1},
    # Batches are copied from pageable memory while the GPU waits.
    Regime.TRANSFER_BOUND: {"busy": 0.2, "device_busy": 0.2, "pcie": 0.8, "sm": 0.1, "dram": 0.1, "fp32": 0.05},
    # A ring of GPUs exchanges gradients that the arithmetic does not hide.
    Regime.COMMUNICATION_BOUND: {"busy": 0.3, "device_busy": 0.3, "nvlink": 0.7, "pcie": 0.05},
    # Hundreds of 5 µs kernels of a few blocks each, back to back.
    Regime.OVERHEAD_BOUND: {"busy": 0.9, "sm": 0.08, "dram": 0.05, "fp32": 0.04},
    # Pointer chasing: few warps are resident everywhere and wait.
    Regime.LATENCY_BOUND: {"busy": 1.0, "sm": 0.95, "occupancy": 0.06, "dram": 0.2, "fp32": 0.1},
    # A collective whose peer is gone: NCCL's kernel polls, and no step ends.
    Regime.SPINNING: {
        "busy": 1.0,
        "sm": 0.18,
        "occupancy": 0.05,
        "dram": 0.0,
        "fp32": 0.0,
        "power": 0.18,
        "stalled": 1.0,
    },
    # A transcoder: frames are decoded, and small kernels run between them.
    Regime.MEDIA_BOUND: {"busy": 0.02, "device_busy": 0.02, "media": 0.97, "pcie": 0.06, "dram": 0.02, "fp32": 0.0},
    # Prefill and decode by turns.
    Regime.MIXED: {"busy": 1.0, "sm": 1.0, "occupancy": 0.26, "tensor": 0.4, "dram": 0.6, "part": 0.4, "uneven": 0.03},
    # A streaming kernel keeps warps resident while DRAM is at its practical ceiling.
    Regime.MEMORY_BOUND: {"busy": 1.0, "sm": 0.97, "dram": 0.78, "fp32": 0.2},
    # Large bf16 matrix products.
    Regime.COMPUTE_BOUND: {"busy": 1.0, "sm": 0.98, "dram": 0.35, "tensor": 0.85, "fp32": 0.05, "clock": 0.95},
    # A well-blocked stencil near both.
    Regime.BALANCED: {"busy": 1.0, "sm": 0.97, "dram": 0.6, "fp32": 0.75},
}


@pytest.mark.parametrize("regime", EXAMPLES, ids=str)
def test_a_textbook_case_is_named(regime: Regime) -> None:
    verdict = judge(**EXAMPLES[regime])
    assert verdict.regime is regime
    assert verdict.confidence > 0.5
    assert verdict.advice
    assert verdict.runner_up is not regime


def test_the_examples_and_unknown_are_all_regimes() -> None:
    assert {*EXAMPLES, Regime.UNKNOWN} == set(Regime)


@pytest.mark.parametrize(
    ("regime", "values"),
    [
        (Regime.IDLE, {"busy": 0.01, "device_busy": 0.0}),
        (Regime.HOST_BOUND, {"busy": 0.3, "device_busy": 0.3}),
        (Regime.COMPUTE_BOUND, {"busy": 1.0, "power": 0.9, "memory_controller": 0.2}),
        (Regime.MEMORY_BOUND, {"busy": 1.0, "power": 0.6, "memory_controller": 0.95}),
        # A mean of products and of copies.
        (Regime.UNKNOWN, {"busy": 1.0, "power": 0.7, "memory_controller": 0.7}),
        (Regime.UNKNOWN, {"busy": 0.7, "power": 0.6, "memory_controller": 0.3}),
        # A stalled kernel on a hot device, or arithmetic held back: power alone does not tell.
        (Regime.UNKNOWN, {"busy": 1.0, "power": 0.6, "memory_controller": 0.2}),
        # At the limit, what touches memory all the time may be either.
        (Regime.UNKNOWN, {"busy": 1.0, "power": 0.95, "memory_controller": 0.9}),
        # Arithmetic that reads little touches memory all the time as well; only DRAM activity would tell.
        (Regime.UNKNOWN, {"busy": 1.0, "power": 0.81, "memory_controller": 1.0, "tensor": 0.75}),
        (Regime.MEMORY_BOUND, {"busy": 1.0, "power": 0.6, "memory_controller": 1.0, "tensor": 0.1}),
    ],
    ids=str,
)
def test_utilisation_and_power_name_what_their_sensors_can_tell(regime: Regime, values: dict[str, float]) -> None:
    verdict = classify(Evidence("coarse", values, 100, 1.0))
    assert (verdict.regime, verdict.basis) == (regime, "coarse")
    assert verdict.confidence < (0.7 if regime is Regime.MEMORY_BOUND else 1.0)


def test_long_waits_are_as_plain_in_utilisation_as_in_counters() -> None:
    values = {"busy": 0.1, "device_busy": 0.4, "pcie": 0.02}
    assert judge_on("coarse", **values).confidence >= 0.7
    assert judge_on("coarse", **{**values, "busy": 0.3}).confidence < 0.7


def test_full_sm_activity_is_no_evidence_of_compute() -> None:
    assert judge(busy=1.0, sm=1.0, occupancy=0.02, dram=0.0, fp32=0.0).regime is Regime.UNKNOWN
    assert judge(busy=1.0, sm=1.0, dram=0.8, fp32=0.1).regime is Regime.MEMORY_BOUND


@pytest.mark.parametrize(
    "values",
    [
        {"busy": 1.0, "sm": 0.9, "fp32": 0.9},
        {"busy": 1.0, "sm": 0.9, "dram": 0.8},
        {"busy": 1.0, "dram": 0.1, "fp32": 0.1},
        {"busy": 1.0},
    ],
    ids=["no memory", "no pipes", "no sm", "busy alone"],
)
def test_what_is_absent_is_not_taken_for_zero(values: dict[str, float]) -> None:
    verdict = judge(**values)
    assert verdict.regime is Regime.UNKNOWN
    assert verdict.rule.startswith("no rule fits the evidence (unknown: ")


def test_missing_evidence_is_listed_in_words_and_without_what_follows_from_it() -> None:
    everything = {"sm": 0.4, "fp32": 0.1, "dram": 0.1, "occupancy": 0.3, "pcie": 0.0, "nvlink": 0.0, "power": 0.5}
    shares = {"device_busy": 1.0, "memory_controller": 0.1, "clock": 1.0, "throttled": 0.0}
    # Nothing is missing: without traffic over PCIe there is nothing to compare in its two directions.
    assert judge(busy=1.0, **everything, **shares).rule == "no rule fits the evidence"
    del everything["dram"], everything["occupancy"]
    verdict = judge(busy=1.0, **everything, **shares)
    assert verdict.rule == "no rule fits the evidence (unknown: activity of memory, resident warps)"


def test_integer_work_is_compute() -> None:
    assert judge(busy=1.0, sm=1.0, occupancy=0.5, integer=0.9, dram=0.02, fp32=0.0).regime is Regime.COMPUTE_BOUND


def test_links_that_carry_data_while_nothing_else_moves_are_what_it_waits_for() -> None:
    still = {"sm": 1.0, "occupancy": 0.7, "dram": 0.01, "fp32": 0.0, "power": 0.22}
    # Kernels that read host memory; a network's buffers; managed memory; pageable copies.
    assert judge(busy=1.0, pcie=0.85, staged=1.0, **still).regime is Regime.TRANSFER_BOUND
    assert judge(busy=1.0, pcie=0.3, staged=1.0, **still).regime is Regime.TRANSFER_BOUND
    assert judge(busy=0.0, device_busy=0.0, pcie=0.17, staged=1.0, dram=0.0, fp32=0.0).regime is Regime.TRANSFER_BOUND
    # Products hide the copies.
    assert judge(busy=1.0, pcie=0.7, staged=1.0, tensor=0.8, **{**still, "dram": 0.3}).regime is Regime.COMPUTE_BOUND


def test_a_wait_that_staged_copies_would_fill_is_not_laid_on_the_host() -> None:
    values = {"busy": 0.2, "sm": 0.2, "tensor": 0.19, "dram": 0.07, "fp32": 0.0}
    unclear = judge(**values, pcie=0.14, staged=1.0)
    assert unclear.regime is Regime.UNKNOWN
    assert "pageable" in unclear.rule
    assert judge(**values, pcie=0.02, staged=0.16).regime is Regime.HOST_BOUND
    # Without a counter of PCIe, a GPU that is busy at the power of a wait may be copying.
    assert judge_on("coarse", busy=0.34, power=0.18, memory_controller=0.0).regime is Regime.UNKNOWN
    assert judge_on("coarse", busy=0.28, power=0.39, memory_controller=0.1).regime is Regime.HOST_BOUND


def test_busy_without_any_movement_is_spinning_and_surer_if_no_region_ends() -> None:
    lock = {"busy": 1.0, "sm": 0.01, "occupancy": 0.0, "dram": 0.0, "fp32": 0.0, "pcie": 0.0, "power": 0.18}
    guess, certain = judge(**lock), judge(**lock, stalled=1.0)
    assert guess.regime is certain.regime is Regime.SPINNING
    assert guess.confidence <= FIRM < certain.confidence
    # A power that was not measured is not a low one.
    unmeasured = {key: value for key, value in lock.items() if key != "power"}
    assert judge(**unmeasured).regime is judge(**unmeasured, stalled=1.0).regime is Regime.UNKNOWN
    # Atomics at one address keep all warps resident; a chase through caches draws power; small kernels leave gaps.
    assert judge(**{**lock, "sm": 1.0, "occupancy": 0.74}).regime is Regime.UNKNOWN
    assert judge(**{**lock, "power": 0.35, "sm": 1.0}).regime is not Regime.SPINNING
    assert judge(**{**lock, "busy": 0.68}).regime is Regime.OVERHEAD_BOUND
    # Memory, even if it is nearly at rest, moves.
    assert judge(**{**lock, "dram": 0.05, "sm": 1.0}).regime is Regime.LATENCY_BOUND


def test_many_warps_without_a_ceiling_are_limited_by_what_no_counter_shows() -> None:
    verdict = judge(busy=1.0, sm=1.0, occupancy=0.7, dram=0.05, fp32=0.2, power=0.45)
    assert (verdict.regime, verdict.runner_up) == (Regime.UNKNOWN, Regime.LATENCY_BOUND)
    assert "shared memory" in verdict.advice


def test_kernels_that_hold_multiprocessors_by_turns_with_work_wait_for_a_peer() -> None:
    straggler = {"busy": 0.99, "sm": 0.44, "occupancy": 0.12, "tensor": 0.23, "dram": 0.11, "power": 0.56}
    waits = judge(**straggler, held=0.15)
    assert waits.regime is Regime.COMMUNICATION_BOUND
    assert waits.confidence <= FIRM
    assert "65 % of the time" in waits.advice
    # Tiny kernels leave gaps, and few of them hold no multiprocessor while nothing moves.
    assert judge(**{**straggler, "busy": 0.9}, held=0.15).regime is Regime.OVERHEAD_BOUND
    assert judge(**straggler, held=0.0).regime is Regime.OVERHEAD_BOUND
    assert judge(**straggler).confidence <= FIRM


def test_what_kernels_move_both_ways_over_pcie_is_the_networks() -> None:
    direct = {"busy": 0.96, "sm": 0.1, "occupancy": 0.03, "dram": 0.03, "fp32": 0.0, "pcie": 0.62, "staged": 1.0}
    assert judge(**direct, both_ways=1.0).regime is Regime.COMMUNICATION_BOUND
    one_way = judge(**{**direct, "sm": 0.9, "occupancy": 0.7}, both_ways=0.0)
    assert one_way.regime is Regime.TRANSFER_BOUND
    assert one_way.confidence > FIRM
    # Copy engines leave the multiprocessors idle, whichever way.
    assert judge(busy=0.0, pcie=0.8, staged=1.0, both_ways=0.9).regime is Regime.TRANSFER_BOUND


NETWORK = {"busy": 1.0, "device_busy": 1.0, "dram": 0.01, "fp32": 0.0, "power": 0.2, "both_ways": 0.97}


@pytest.mark.parametrize("sm", [0.05, 0.18, 0.24])
def test_a_network_exchange_is_one_however_many_multiprocessors_its_kernel_holds(sm: float) -> None:
    assert judge(**NETWORK, sm=sm, pcie=0.71).regime is Regime.COMMUNICATION_BOUND


def test_a_slower_network_looks_like_managed_memory_and_spins_not() -> None:
    assert judge(**NETWORK, sm=0.18, pcie=0.35, staged=1.0, stalled=1.0).regime is Regime.UNKNOWN


def test_without_gaps_or_movement_narrow_kernels_may_poll() -> None:
    tiny = {"busy": 0.9, "sm": 0.08, "dram": 0.05, "fp32": 0.04}
    assert judge(**tiny).confidence > 0.7
    assert judge(**tiny | {"busy": 1.0}).confidence <= 0.6
    assert judge(**tiny | {"busy": 0.7, "dram": 0.01, "fp32": 0.01}).confidence <= 0.6


def test_latency_is_less_sure_where_gaps_show_short_kernels() -> None:
    dependent = {"sm": 0.9, "occupancy": 0.06, "dram": 0.1, "fp32": 0.1}
    assert judge(**dependent, busy=1.0).confidence > 0.7
    assert judge(**{key: 0.67 * value for key, value in dependent.items()}, busy=0.67).confidence <= 0.6


def test_memory_that_moves_without_kernels_is_copies_where_no_counter_shows_them() -> None:
    copies = {"busy": 0.0, "device_busy": 0.0, "sm": 0.0, "dram": 0.037, "fp32": 0.0}
    assert judge(**copies).regime is Regime.UNKNOWN
    assert judge(**copies | {"dram": 0.0}).regime is Regime.IDLE


def test_copies_are_what_utilisation_counts_and_the_activity_counter_does_not() -> None:
    slow = {"busy": 0.3, "sm": 0.29, "tensor": 0.2, "dram": 0.09, "pcie": 0.04, "staged": 0.29}
    assert judge(**slow, utilization=0.93).regime is Regime.TRANSFER_BOUND
    assert judge(**slow, utilization=0.3).regime is Regime.HOST_BOUND
    assert "pin" in judge(**slow, utilization=0.93).advice
    assert "pin" not in judge(busy=0.0, pcie=0.8, staged=1.0).advice


def test_a_gpu_that_receives_data_is_not_idle() -> None:
    still = {"busy": 0.0, "device_busy": 0.0, "dram": 0.0, "fp32": 0.0}
    assert judge(**still, pcie=0.019, staged=0.15).regime is not Regime.IDLE
    assert judge(**still, pcie=0.001, staged=0.01).regime is Regime.IDLE


def test_without_counters_exchanges_at_the_power_limit_are_taken_for_hidden() -> None:
    gather = {"busy": 0.97, "nvlink": 0.58, "memory_controller": 0.28}
    assert judge_on("coarse", **gather, power=0.96).regime is not Regime.COMMUNICATION_BOUND
    assert judge_on("coarse", **gather, power=0.4).regime is Regime.COMMUNICATION_BOUND
    assert judge_on("coarse", **gather).confidence <= FIRM


def test_two_kinds_by_turns_are_mixed_unless_one_takes_nearly_all() -> None:
    mean = {"busy": 1.0, "sm": 1.0, "occupancy": 0.3, "tensor": 0.4, "dram": 0.62, "uneven": 0.03}
    assert judge(**mean, part=0.35).regime is Regime.MIXED
    assert judge(**mean, part=0.1).regime is Regime.MEMORY_BOUND
    # Phases: below both ceilings, for a mean says nothing of them.
    phases = judge(**{**mean, "dram": 0.3, "uneven": 0.3})
    assert phases.regime is Regime.MIXED
    assert phases.confidence <= FIRM


def test_a_clock_that_heat_holds_down_hides_no_arithmetic() -> None:
    held = {"busy": 1.0, "power": 0.5, "memory_controller": 0.2, "clock": 0.5}
    assert judge_on("coarse", **held, throttled=1.0).regime is Regime.COMPUTE_BOUND
    assert judge_on("coarse", **held, throttled=0.0).regime is Regime.UNKNOWN


@pytest.mark.parametrize("regime", EXAMPLES, ids=str)
def test_no_confident_verdict_hangs_on_a_threshold(regime: Regime) -> None:
    verdict = judge(**EXAMPLES[regime])
    for field in fields(Thresholds):
        value = getattr(DEFAULT_THRESHOLDS, field.name)
        for factor in (0.85, 1.15):
            moved = max(1, round(value * factor)) if field.name == "least_n" else min(1.0, value * factor)
            other = classify(Evidence("counters", EXAMPLES[regime], 100, 1.0), Thresholds(**{field.name: moved}))
            assert verdict.confidence <= FIRM or other.regime is regime, field.name


@pytest.mark.parametrize(
    "values",
    [{"busy": 0.9}, {"busy": 1.0, "power": 0.99, "controller": 0.1}, {"busy": 1.0, "power": 0.8, "controller": 0.9}],
    ids=["unknown", "compute", "memory"],
)
def test_without_activity_counters_the_advice_supposes_no_model_of_gpu(values: dict[str, float]) -> None:
    advice = judge_on("coarse", **values).advice
    assert "activity counters, in a longer run if the GPU has them (see gpu-profile doctor)" in advice
    assert "Hopper" not in advice, "the GPU may be one"


def test_an_unknown_regime_names_the_way_out() -> None:
    operation = {"busy": 1.0, "compute": 0.1, "memory": 0.2}
    ways = {
        "growth=True": classify(Evidence("operation", operation, 1, 1.0)),
        "bytes=…": classify(Evidence("operation", {"busy": 1.0, "compute": 0.1}, 1, 1.0)),
        "trace of its kernels": judge(busy=1.0),
        "run it longer": classify(Evidence("counters", {"busy": 1.0}, 1, 1.0)),
        "or more often": classify(Evidence("counters", {}, 0, 0.0)),
        "trace more executions": classify(Evidence("kernels", {"busy": 1.0}, 1, 1.0)),
    }
    for way, verdict in ways.items():
        assert verdict.regime is Regime.UNKNOWN
        assert way in verdict.advice
        assert verdict.explanation == f"{verdict.rule}; {verdict.advice}"
    assert "growth" not in judge(busy=1.0).rule  # sensors never measure it


def test_a_reason_names_what_was_missing() -> None:
    assert "memory" in judge(busy=1.0, sm=0.9, fp32=0.9).rule
    assert "compute" not in judge(busy=1.0, sm=0.9, fp32=0.9).rule


def test_an_idle_region_of_a_busy_device_waits_for_its_host() -> None:
    assert judge(busy=0.0, device_busy=0.8).regime is Regime.HOST_BOUND
    assert judge(busy=0.0).regime is Regime.HOST_BOUND


def test_activity_is_judged_over_the_busy_time() -> None:
    assert judge(busy=0.6, sm=0.55, dram=0.37, fp32=0.1).regime is Regime.MEMORY_BOUND
    assert judge(busy=1.0, sm=0.55, occupancy=0.1, dram=0.37, fp32=0.1).regime is Regime.LATENCY_BOUND


def test_a_pipe_that_is_busy_all_the_time_bounds_the_work_at_any_clock_and_the_clock_is_told() -> None:
    values = {"busy": 1.0, "sm": 0.9, "dram": 0.1, "fp32": 0.8}
    full, held = judge(**values, clock=1.0), judge(**values, clock=0.5)
    assert full.regime is held.regime is Regime.COMPUTE_BOUND
    assert full.confidence == held.confidence
    assert "50 % of its highest clock" in held.advice
    assert "highest clock" not in full.advice


def test_a_lowered_clock_moves_no_verdict_on_memory_whose_clock_is_its_own() -> None:
    values = {"busy": 1.0, "sm": 0.9, "dram": 0.75, "fp32": 0.3}
    assert judge(**values, clock=0.5).regime is Regime.MEMORY_BOUND


def test_too_few_windows_say_nothing() -> None:
    verdict = classify(Evidence("counters", {"busy": 1.0, "sm": 0.9, "dram": 0.9, "fp32": 0.1}, 3, 1.0))
    assert (verdict.regime, verdict.confidence, verdict.rule) == (
        Regime.UNKNOWN,
        0.0,
        "only 3 sensor windows, 4 are needed",
    )


def test_without_samples_the_reason_is_the_evidences_own_or_a_plain_one() -> None:
    assert classify(Evidence("counters", {}, 0, 0.0)).rule == "no samples cover the region"
    why = "not identifiable: the regions run in lock-step with the sensor's window"
    assert classify(Evidence("counters", {}, 50, 0.0, reason=why)).rule == why


def test_evidence_of_another_basis_is_not_read() -> None:
    bases: tuple[Basis, ...] = ("kernels", "operation")
    for basis in bases:
        verdict = judge_on(basis, busy=1.0, sm=0.9, dram=0.9, fp32=0.1)
        assert (verdict.regime, bool(verdict.rule)) == (Regime.UNKNOWN, True)


@pytest.mark.parametrize(
    ("regime", "values"),
    [
        (Regime.COMPUTE_BOUND, {"busy": 0.98, "compute": 0.8, "memory": 0.2}),
        (Regime.MEMORY_BOUND, {"busy": 0.98, "compute": 0.01, "memory": 0.9}),
        (Regime.BALANCED, {"busy": 1.0, "compute": 0.8, "memory": 0.82}),
        (Regime.OVERHEAD_BOUND, {"busy": 0.2, "compute": 0.15, "memory": 0.01}),
        (Regime.OVERHEAD_BOUND, {"busy": 1.0, "compute": 0.1, "memory": 0.2, "growth": 0.05}),
        (Regime.LATENCY_BOUND, {"busy": 1.0, "compute": 0.1, "memory": 0.2, "growth": 1.0}),
        (Regime.UNKNOWN, {"busy": 1.0, "compute": 0.1, "memory": 0.2}),
        (Regime.UNKNOWN, {"busy": 1.0, "memory": 0.9}),
    ],
    ids=str,
)
def test_an_operation_is_judged_by_what_it_reaches_of_measured_ceilings(
    regime: Regime, values: dict[str, float]
) -> None:
    assert judge_on("operation", **values).regime is regime


# ---------------------------------------------------------------------- confidence


def test_near_a_threshold_a_verdict_is_little_more_than_half_sure() -> None:
    near = judge(busy=0.46)
    assert near.regime is Regime.HOST_BOUND
    assert near.confidence <= FIRM


def test_at_a_threshold_nothing_is_said_but_what_it_is_between() -> None:
    verdict = judge(busy=0.4999, sm=0.99, dram=0.01, fp32=0.4)
    assert (verdict.regime, verdict.confidence) == (Regime.UNKNOWN, 0.0)
    assert verdict.rule == "too close to call: HOST_BOUND, or COMPUTE_BOUND"


def test_far_from_every_threshold_a_verdict_is_as_sure_as_its_basis_allows() -> None:
    assert judge(busy=0.1, pcie=0.0).confidence == BEST_CONFIDENCE["counters"]
    assert judge_on("coarse", busy=0.1, pcie=0.0).confidence == BEST_CONFIDENCE["coarse"]


def test_a_rule_with_little_room_can_be_sure_too() -> None:
    sure = judge(busy=0.0, device_busy=0.0, pcie=0.0)
    assert sure.confidence == pytest.approx(BEST_CONFIDENCE["counters"])


def test_two_scores_that_agree_are_no_proof_of_balance_for_ceilings_are_only_known_to_some_points() -> None:
    equal = judge(busy=1.0, sm=1.0, dram=0.8 * 0.9, fp32=0.9)
    assert equal.regime is Regime.BALANCED
    assert equal.confidence < 0.8 * BEST_CONFIDENCE["counters"]


def test_uncertain_values_and_gaps_make_a_verdict_less_sure() -> None:
    values = {"busy": 0.1}
    sure = classify(Evidence("counters", values, 100, 1.0)).confidence
    doubtful = classify(Evidence("counters", values, 100, 1.0, half_width=0.1)).confidence
    gaps = classify(Evidence("counters", values, 100, 0.3)).confidence
    assert sure > doubtful > gaps
    assert gaps == pytest.approx(0.3 * sure)


def test_the_runner_up_is_the_nearest_other_answer() -> None:
    assert judge(busy=1.0, sm=0.9, occupancy=0.1, dram=0.8 * 0.64, fp32=0.1).runner_up is Regime.LATENCY_BOUND
    assert judge(busy=0.3, pcie=0.45).runner_up is Regime.HOST_BOUND


# ---------------------------------------------------------------------- the table


def test_rules_have_names_of_their_own_and_bases_with_a_best_confidence() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.bases and rule.bases <= BEST_CONFIDENCE.keys() for rule in RULES)


def test_every_regime_has_a_rule_and_unknown_has_those_that_name_an_ambiguity() -> None:
    assert {rule.regime for rule in RULES} == set(Regime)


def test_a_regime_reads_as_its_bare_name() -> None:
    assert str(Regime.MEMORY_BOUND) == f"{Regime.MEMORY_BOUND}" == "MEMORY_BOUND"


@pytest.mark.parametrize("value", [0, -0.1, math.nan])
def test_a_threshold_that_is_not_positive_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="ceiling must be positive"):
        Thresholds(ceiling=value)


@pytest.mark.parametrize("value", [1.01, 60, math.inf])
def test_a_ratio_above_1_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="ceiling is at most 1"):
        Thresholds(ceiling=value)


def test_each_threshold_is_documented_with_its_source() -> None:
    told = set(re.findall(r"`(\w+)`(?=[:,])", Thresholds.__doc__ or ""))
    assert told == {field.name for field in fields(Thresholds)}


def test_thresholds_are_data() -> None:
    evidence = Evidence("counters", {"busy": 0.6, "sm": 0.9, "occupancy": 0.1, "dram": 0.1, "fp32": 0.1}, 100, 1.0)
    assert classify(evidence).regime is Regime.LATENCY_BOUND
    assert classify(evidence, Thresholds(starved_busy=0.7)).regime is Regime.HOST_BOUND


def test_scores_are_shares_of_practical_ceilings_while_busy() -> None:
    values = {"busy": 0.5, "dram": 0.2, "tensor": 0.93 / 4, "fp32": 0.1, "clock": 0.8, "sm": 0.4, "pcie": 0.1}
    scores = Scores.of(Evidence("counters", values, 9, 1.0), DEFAULT_THRESHOLDS)
    assert scores.memory == pytest.approx(0.5)
    assert scores.compute == pytest.approx(0.25 / 0.5)
    assert scores.clock == 0.8
    assert scores.sm == pytest.approx(0.8)
    assert (scores.pcie, scores.nvlink, scores.controller) == (0.1, None, None)


# ---------------------------------------------------------------------- how the time is shared out


def scores(**values: float) -> Scores:
    return Scores.of(Evidence("counters", values, 9, 1.0), DEFAULT_THRESHOLDS)


@pytest.mark.parametrize(
    "values",
    [
        {"busy": 0.7, "pcie": 0.2, "nvlink": 0.3, "dram": 0.2, "fp32": 0.1},
        {"busy": 1.0, "pcie": 0.9, "nvlink": 0.9},
        {"busy": 0.0, "pcie": 1.2},
        {"busy": 0.3, "nvlink": 0.7},
    ],
)
def test_work_copies_exchanges_and_waits_add_up_to_the_regions_time(values: dict[str, float]) -> None:
    s = scores(**values)
    assert s.working + (s.copying or 0) + (s.exchanging or 0) + s.waiting == pytest.approx(1.0)


def test_a_copy_or_an_exchange_that_work_hides_costs_nothing() -> None:
    assert scores(busy=1.0, pcie=0.8).copying == 0.0
    hidden = judge(busy=1.0, sm=1.0, fp32=0.95, dram=0.3, nvlink=0.7)
    assert hidden.regime is Regime.COMPUTE_BOUND
    exposed = judge(busy=1.0, sm=0.3, fp32=0.2, dram=0.3, nvlink=0.6)
    assert exposed.regime is Regime.COMMUNICATION_BOUND


def test_what_an_exchange_reads_and_writes_itself_is_no_evidence_of_memory() -> None:
    s = scores(busy=1.0, dram=0.3, nvlink=0.4)
    assert s.exchanging == pytest.approx(0.5)
    assert s.memory == pytest.approx(0.2 / 0.8 / 0.5)
    assert scores(busy=1.0, dram=0.3, nvlink=0.0).memory == pytest.approx(0.3 / 0.8)


def test_without_nvlink_counters_busy_time_is_work() -> None:
    s = scores(busy=0.8, dram=0.4)
    assert (s.exchanging, s.working) == (None, 0.8)


def test_a_copy_on_an_idle_gpu_is_not_idle() -> None:
    assert judge(busy=0.0, device_busy=0.0, pcie=0.0).regime is Regime.IDLE
    assert judge(busy=0.0, device_busy=0.0, pcie=0.7).regime is Regime.TRANSFER_BOUND


def test_the_smaller_of_breadth_and_of_what_each_multiprocessor_reaches_is_the_cause() -> None:
    assert judge(busy=1.0, sm=0.4, fp32=0.36, dram=0.05).regime is Regime.OVERHEAD_BOUND
    assert judge(busy=1.0, sm=0.9, occupancy=0.1, fp32=0.36, dram=0.05).regime is Regime.LATENCY_BOUND


def test_waits_between_kernels_that_do_not_fill_the_gpu_may_be_launches_and_are_less_sure() -> None:
    values = {"busy": 0.2, "dram": 0.02, "fp32": 0.02, "pcie": 0.0}
    small, large = judge(**values, sm=0.05), judge(**values, sm=0.19)
    assert small.regime is large.regime is Regime.HOST_BOUND
    assert small.confidence < 0.7 < large.confidence
    assert judge(busy=0.01, sm=0.001, dram=0.001, fp32=0.001, pcie=0.0).confidence > 0.8


def test_throttling_is_told_with_the_advice_and_changes_no_verdict() -> None:
    values = {"busy": 1.0, "sm": 0.98, "dram": 0.3, "tensor": 0.85}
    held, free = judge(**values, throttled=0.4), judge(**values, throttled=0.0)
    assert (held.regime, held.confidence) == (free.regime, free.confidence)
    assert held.advice == free.advice + "; it was throttled for 40 % of the time"


# ---------------------------------------------------------------------- what is no measurement, and what is near


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.5, 37.0, 1e300])
@pytest.mark.parametrize("key", ["busy", "device_busy", "sm", "dram", "fp32", "pcie"])
def test_what_cannot_be_a_measurement_counts_as_unknown(key: str, value: float) -> None:
    values = {"busy": 0.9, "device_busy": 0.9, "sm": 0.95, "dram": 0.75, "fp32": 0.1, "pcie": 0.0}
    given = judge(**{**values, key: value})
    without = judge(**{k: v for k, v in values.items() if k != key})
    assert (given.regime, given.confidence) == (without.regime, without.confidence)


def test_a_busy_share_that_cannot_be_is_named() -> None:
    assert judge(busy=math.nan).rule == "the busy share cannot be nan"
    assert judge(busy=37.0).rule == "the busy share cannot be 37"


def test_a_rate_a_little_below_zero_is_zero() -> None:
    assert judge(busy=-0.01, device_busy=0.0, pcie=-0.02) == judge(busy=0.0, device_busy=0.0, pcie=0.0)


@pytest.mark.parametrize("coverage", [0.0, -1.0, math.nan])
def test_without_coverage_nothing_is_known(coverage: float) -> None:
    assert classify(Evidence("counters", {"busy": 0.1}, 100, coverage)).regime is Regime.UNKNOWN


def test_shares_of_a_traces_time_that_add_up_to_more_than_all_of_it_say_nothing() -> None:
    values = {"busy": 0.2, "work": 0.2, "communication": 0.0, "transfer": 0.0, "launch": 0.1, "other_wait": 0.0}
    assert judge_on("kernels", **values, host_wait=0.8).regime is Regime.HOST_BOUND
    assert judge_on("kernels", **values, host_wait=0.9).regime is Regime.UNKNOWN


def test_where_a_trace_does_not_hold_the_longest_wait_no_other_is_taken_for_it() -> None:
    values = {"busy": 0.3, "work": 0.3, "transfer": 0.0, "host_wait": 0.05, "launch": 0.01, "other_wait": 0.0}
    verdict = classify(Evidence("kernels", {**values, "communication": 0.0}, 100, 0.35))
    assert verdict.regime is Regime.UNKNOWN
    assert verdict.rule == "for 65 % of the time the GPU is idle, and the calls that tell why are missing in the trace"
    # Even if all that is unknown were one wait, this one would be longer.
    known = classify(Evidence("kernels", {**values, "communication": 0.4}, 100, 0.75))
    assert known.regime is Regime.COMMUNICATION_BOUND


def test_a_few_operations_of_a_trace_are_less_sure_than_many() -> None:
    values = {"busy": 0.2, "work": 0.2, "communication": 0.0, "transfer": 0.0, "launch": 0.1, "host_wait": 0.8}
    three, four, some, forty, many = (classify(Evidence("kernels", values, n, 1.0)) for n in (3, 4, 22, 40, 4000))
    assert three.regime is Regime.UNKNOWN
    assert {verdict.regime for verdict in (four, some, forty, many)} == {Regime.HOST_BOUND}
    assert four.confidence == pytest.approx(0.475)
    assert some.confidence == pytest.approx(0.7125)
    assert forty.confidence == many.confidence == pytest.approx(0.95)


def test_copies_that_nobody_measured_may_be_what_a_gpu_waits_for() -> None:
    measured, not_measured = judge(busy=0.1, pcie=0.0), judge(busy=0.1)
    assert measured.regime is not_measured.regime is Regime.HOST_BOUND
    assert not_measured.confidence < 0.7 < measured.confidence


def test_a_verdict_is_no_surer_than_a_rule_before_it_was_far_from_firing() -> None:
    values = {"sm": 0.5, "dram": 0.02, "fp32": 0.49, "pcie": 0.0}
    far, near = judge(busy=0.8, **{**values, "fp32": 0.79}), judge(busy=0.53, **values)
    assert far.regime is near.regime is Regime.COMPUTE_BOUND
    assert near.runner_up is Regime.HOST_BOUND
    assert near.margin == pytest.approx(0.03)
    assert near.confidence < far.confidence


def test_idle_and_host_bound_are_told_apart_by_what_the_whole_device_does() -> None:
    assert judge(busy=0.02, device_busy=0.02, pcie=0.01).regime is Regime.IDLE
    assert judge(busy=0.02, device_busy=0.2, pcie=0.01).regime is Regime.HOST_BOUND
    assert judge(busy=0.12, device_busy=0.02, pcie=0.01).regime is Regime.HOST_BOUND


def test_on_few_multiprocessors_nothing_is_laid_on_latency() -> None:
    assert judge(busy=1.0, sm=0.37, dram=0.33, fp32=0.1).regime is Regime.UNKNOWN
    assert judge(busy=1.0, sm=0.9, occupancy=0.2, dram=0.33, fp32=0.1).regime is Regime.LATENCY_BOUND


def test_what_is_too_close_to_call_says_what_it_would_be() -> None:
    assert judge(busy=0.4999, sm=0.99, dram=0.01, fp32=0.4, pcie=0.0).runner_up is Regime.HOST_BOUND


@pytest.mark.parametrize("regime", EXAMPLES, ids=str)
def test_each_next_step_has_a_number(regime: Regime) -> None:
    assert re.search(r"\d %", judge(**EXAMPLES[regime]).advice)


#: Memory is touched all the time, at a power between those of memory-bound work and of arithmetic.
TOUCHED = {"busy": 1.0, "memory_controller": 1.0, "power": 0.8}


@pytest.mark.parametrize(
    ("highest", "regime"),
    [
        ({}, Regime.MEMORY_BOUND),  # no counters of pipes
        ({"tensor": 0.2, "fp32": 0.3}, Regime.MEMORY_BOUND),
        ({"tensor": 0.85}, Regime.UNKNOWN),
        ({"tensor": 0.2, "fp32": 1.0}, Regime.UNKNOWN),
    ],
)
def test_a_guess_without_counters_holds_for_every_activity_that_refused_pipes_may_have(
    highest: dict[str, float], regime: Regime
) -> None:
    assert classify(Evidence("coarse", TOUCHED, 100, 1.0, highest=highest)).regime is regime


def test_a_memory_near_its_ceiling_is_no_verdict_while_a_pipe_may_be_as_near() -> None:
    values = {"busy": 1.0, "sm": 1.0, "dram": 0.6, "fp32": 0.1}
    assert judge(**values).regime is Regime.MEMORY_BOUND
    assert classify(Evidence("counters", values, 100, 1.0, highest={"tensor": 0.1})).regime is Regime.MEMORY_BOUND
    open_ = classify(Evidence("counters", values, 100, 1.0, highest={"tensor": 0.9}))
    assert (open_.regime, open_.runner_up, open_.confidence) == (Regime.UNKNOWN, Regime.MEMORY_BOUND, 0.0)
    assert open_.rule == "MEMORY_BOUND, unless pipes without a rate are active: tensor up to 90 %"


def test_a_refused_pipe_changes_nothing_for_a_gpu_that_waits() -> None:
    for basis in ("counters", "coarse"):
        waits = Evidence(basis, {"busy": 0.1, "pcie": 0.0}, 100, 1.0)
        assert classify(replace(waits, highest={"tensor": 1.0})) == classify(waits)


def test_a_verdict_that_a_moved_threshold_ends_at_a_pipes_highest_activity_is_not_firm() -> None:
    values = {"busy": 1.0, "sm": 1.0, "dram": 0.8, "fp32": 0.1}
    near = classify(Evidence("counters", values, 100, 1.0, highest={"tensor": 0.8}))
    assert near.regime is Regime.MEMORY_BOUND
    assert near.confidence == FIRM < judge(**values).confidence

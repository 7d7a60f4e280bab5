"""How `make bench ONLY=regimes` counts: wrong, silent, fragile, and as sure as right."""

from dataclasses import replace

import pytest
from benchmarks.regime_sensors import watched
from benchmarks.regime_verdicts import JudgedWorkload, bins, calibration_error, evidence_of, failures, moved, named
from benchmarks.regime_workloads import workloads
from benchmarks.run import GROUPS

from gpu_profile.regimes import DEFAULT_THRESHOLDS, Regime, Verdict, classify
from gpu_profile.regimes.evidence import Evidence

WORKLOADS = {work.name: work for work in workloads()}
TRIAD = WORKLOADS["H100 triad"]


def case(regime: Regime, confidence: float = 0.9, name: str = "H100 triad", basis: str = "counters") -> JudgedWorkload:
    evidence = Evidence("counters" if basis == "counters" else "coarse", {"busy": 0.5}, 20, 1.0)
    verdict = Verdict(regime, confidence, evidence.basis, "rule", 0.1, 20, 1.0)
    return JudgedWorkload(WORKLOADS[name], evidence.basis, evidence, verdict)


def test_it_is_a_group_of_its_own() -> None:
    assert "regimes" in GROUPS


def test_an_answer_that_is_not_accepted_is_wrong_and_silence_is_not() -> None:
    assert not case(Regime.MEMORY_BOUND).wrong
    assert case(Regime.LATENCY_BOUND).wrong
    assert not case(Regime.UNKNOWN, 0.0).wrong
    assert not case(Regime.UNKNOWN, 0.0).said


def test_silence_is_right_for_coarse_sensors_only() -> None:
    assert str(Regime.UNKNOWN) in TRIAD.right("coarse")
    assert str(Regime.UNKNOWN) not in TRIAD.right("counters")


def test_each_threshold_moves_alone_and_stays_valid() -> None:
    names = [name for name, _ in moved(DEFAULT_THRESHOLDS)]
    assert len(names) == len(set(names)) == 2 * len(DEFAULT_THRESHOLDS.__slots__)
    for name, thresholds in moved(DEFAULT_THRESHOLDS):
        field = name.split()[0]
        before, after = getattr(DEFAULT_THRESHOLDS, field), getattr(thresholds, field)
        assert after != before
        assert replace(thresholds, **{field: before}) == DEFAULT_THRESHOLDS


def test_a_verdict_near_a_threshold_flips() -> None:
    evidence = evidence_of(*watched(TRIAD, "counters", 0))
    assert not list(JudgedWorkload(TRIAD, "counters", evidence, classify(evidence)).flips())
    near = replace(evidence, values={"busy": 1.0, "device_busy": 1.0, "sm": 1.0, "tensor": 0.0, "dram": 0.51})
    assert list(JudgedWorkload(TRIAD, "counters", near, classify(near)).flips())


def test_evidence_has_the_devices_busy_share() -> None:
    evidence = evidence_of(*watched(WORKLOADS["H100 training that waits for its loader"], "counters", 0))
    assert evidence.basis == "counters"
    assert evidence.get("device_busy") == pytest.approx(0.28, abs=0.03)


def test_the_calibration_error_is_the_mean_distance_of_confidence_from_right() -> None:
    right, wrong = case(Regime.MEMORY_BOUND, 0.75), case(Regime.LATENCY_BOUND, 0.75)
    assert calibration_error([right] * 3 + [wrong]) == pytest.approx(0.0)
    assert calibration_error([wrong]) == pytest.approx(0.75)
    sure = case(Regime.MEMORY_BOUND, 1.0)
    assert [(low, n) for low, n, _, _ in bins([right, sure])] == [(0.7, 1), (0.9, 1)]
    assert calibration_error([right, sure]) == pytest.approx(0.125)


def test_a_row_names_each_workload_once_with_its_surest_verdict_and_no_more_than_eight() -> None:
    assert named([case(Regime.LATENCY_BOUND, 0.8), case(Regime.LATENCY_BOUND, 0.9)]) == "H100 triad LATENCY_BOUND 0.90"
    many = [case(Regime.IDLE, 0.8, name) for name in list(WORKLOADS)[:10]]
    assert named(many).endswith(" and 2 more")


def test_failures_state_the_right_verdicts_and_the_reason() -> None:
    text = failures([case(Regime.LATENCY_BOUND), case(Regime.LATENCY_BOUND), case(Regime.UNKNOWN, 0.0)])
    assert text.startswith("H100 triad: 2 of 3 LATENCY_BOUND, up to 0.90; 1 of 3 UNKNOWN")
    assert "right: MEMORY_BOUND" in text
    assert TRIAD.why in text

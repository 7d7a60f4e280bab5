import math
from dataclasses import replace
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.join.summary import ACTIVITIES
from gpu_profile.regimes import BEST_CONFIDENCE, Regime, Verdict, classify
from gpu_profile.regimes.evidence import Basis, Evidence

OPERATION = ["compute", "memory", "growth"]
TRACED = ["work", "communication", "transfer", "host_wait", "launch", "other_wait"]
KEYS = ["busy", "device_busy", *ACTIVITIES, "power", "clock", "pcie", "nvlink", "throttled", *TRACED, *OPERATION]
ratios = st.floats(0, 1)
#: Noise can take a regressed rate a little over 1, and a broken source can say anything.
anything = st.one_of(ratios, st.floats(0, 1.5), st.floats())


@st.composite
def evidence(draw: st.DrawFn, values: st.SearchStrategy[float] = anything) -> Evidence:
    return Evidence(
        basis=draw(st.sampled_from(get_args(Basis))),
        values=draw(st.dictionaries(st.sampled_from(KEYS), values)),
        n=draw(st.integers(0, 1000)),
        coverage=draw(st.one_of(ratios, st.floats())),
        half_width=draw(st.none() | st.floats()),
        reason=draw(st.sampled_from(["", "not identifiable"])),
    )


def judge(values: dict[str, float]) -> Verdict:
    return classify(Evidence("counters", values, 100, 1.0))


@given(evidence())
def test_any_evidence_gets_a_verdict_with_a_reason(given_evidence: Evidence) -> None:
    verdict = classify(given_evidence)
    assert isinstance(verdict.regime, Regime)
    assert 0 <= verdict.confidence <= BEST_CONFIDENCE[given_evidence.basis]
    assert verdict.rule
    assert verdict.runner_up is not verdict.regime
    assert (verdict.regime is Regime.UNKNOWN) <= (verdict.confidence == 0)
    assert (verdict.regime is not Regime.UNKNOWN) <= bool(verdict.advice)


#: What no device can have measured.
nonsense = st.one_of(st.just(math.nan), st.just(math.inf), st.floats(max_value=-0.11))


@given(evidence(nonsense))
def test_nonsense_alone_gives_no_verdict(given_evidence: Evidence) -> None:
    assert classify(given_evidence).regime is Regime.UNKNOWN


@given(evidence(ratios), st.dictionaries(st.sampled_from(KEYS), nonsense))
def test_nonsense_says_no_more_than_absence(sane: Evidence, broken: dict[str, float]) -> None:
    without = {key: value for key, value in sane.values.items() if key not in broken}
    given, left = classify(replace(sane, values={**sane.values, **broken})), classify(replace(sane, values=without))
    assert (given.regime, given.confidence, given.scores) == (left.regime, left.confidence, left.scores)


@given(evidence(ratios), st.sampled_from(KEYS))
def test_no_score_is_made_of_what_was_not_measured(e: Evidence, key: str) -> None:
    scores = classify(replace(e, values={k: v for k, v in e.values.items() if k != key})).scores
    if scores is not None:
        behind = {
            "pcie": [scores.pcie, scores.copying],
            "nvlink": [scores.nvlink, scores.exchanging],
            "dram": [scores.memory] if e.basis != "operation" else [],
            "sm": [scores.sm, scores.breadth],
            "device_busy": [scores.device_busy],
            "power": [scores.power],
            "clock": [scores.clock],
            "memory_controller": [scores.controller],
            "growth": [scores.growth],
        }
        assert all(score is None for score in behind.get(key, []))


@given(evidence())
def test_a_verdict_fires_only_with_a_margin_that_holds(given_evidence: Evidence) -> None:
    verdict = classify(given_evidence)
    assert verdict.margin >= 0


@given(evidence(ratios).filter(lambda e: "busy" not in e.values))
def test_without_busy_time_nothing_is_claimed(given_evidence: Evidence) -> None:
    assert classify(given_evidence).regime is Regime.UNKNOWN


@given(evidence(ratios))
def test_an_unknown_key_changes_nothing(given_evidence: Evidence) -> None:
    more = Evidence(
        given_evidence.basis,
        {**given_evidence.values, "never heard of": 0.5},
        given_evidence.n,
        given_evidence.coverage,
        given_evidence.half_width,
        given_evidence.reason,
    )
    assert classify(more) == classify(given_evidence)


@given(ratios, ratios, st.floats(0.5, 1))
def test_more_dram_activity_never_leads_away_from_memory_bound(dram: float, fp32: float, busy: float) -> None:
    order = [judge({"busy": busy, "sm": 0.9, "fp32": fp32, "dram": min(1.0, dram + step / 10)}) for step in range(10)]
    names = [verdict.regime for verdict in order]
    if Regime.MEMORY_BOUND in names:
        assert set(names[names.index(Regime.MEMORY_BOUND) :]) == {Regime.MEMORY_BOUND}


@given(ratios, ratios, ratios)
def test_less_busy_time_never_leads_out_of_waiting(sm: float, dram: float, fp32: float) -> None:
    waiting = {Regime.HOST_BOUND, Regime.IDLE}
    names = [
        # Without the link's counter, memory that moves while no kernel runs may be copies.
        judge({"busy": busy / 20, "device_busy": busy / 20, "sm": sm, "dram": dram, "fp32": fp32, "pcie": 0.0}).regime
        for busy in range(20, -1, -1)
    ]
    first = next(i for i, name in enumerate(names) if name in waiting)
    assert set(names[first:]) <= waiting
    assert names[-1] is Regime.IDLE


@given(evidence(ratios), st.floats(0.01, 1))
def test_less_coverage_and_wider_intervals_never_make_a_verdict_surer(e: Evidence, share: float) -> None:
    sure = classify(Evidence(e.basis, e.values, e.n, 1.0, 0.0))
    doubtful = classify(Evidence(e.basis, e.values, e.n, share, abs(e.half_width or 0.0)))
    assert doubtful.regime is sure.regime
    assert doubtful.confidence <= sure.confidence

"""Whatever the verdicts over time: how many changes of regime they give."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.regimes import Regime, Verdict
from gpu_profile.regimes.regime_watch import LASTING_NS, LEAST_CONFIDENCE, LEAST_VERDICTS, RegimeChange, RegimeWatch
from gpu_profile.units import NS_PER_S

M, H, U = Regime.MEMORY_BOUND, Regime.HOST_BOUND, Regime.UNKNOWN
PERIOD_NS = 10 * NS_PER_S
confidences = st.floats(LEAST_CONFIDENCE, 1.0)


def taken(regimes: list[Regime], confidence: float = 0.9) -> list[RegimeChange]:
    watch = RegimeWatch()
    found = []
    for i, regime in enumerate(regimes):
        verdict = Verdict(regime, confidence, "counters", "rule", 0.1, 90, 1.0)
        change = watch.take(verdict, i * PERIOD_NS, (i + 1) * PERIOD_NS)
        found += [] if change is None else [change]
    return found


#: Runs of one regime, of any lengths, with verdicts in between that are UNKNOWN.
runs = st.lists(st.tuples(st.sampled_from([M, H, U]), st.integers(1, 70)), max_size=60)


@given(runs)
def test_two_regimes_by_turns_give_few_changes(given_runs: list[tuple[Regime, int]]) -> None:
    regimes = [regime for regime, n in given_runs for _ in range(n)]
    found = taken(regimes)
    # At most: there, back, by turns, and once one of them has lasted, the same again.
    assert len(found) <= 3 + 4 * (len(regimes) * PERIOD_NS // LASTING_NS)


@given(st.lists(st.sampled_from(list(Regime)), max_size=400))
def test_changes_follow_each_other_and_each_needs_verdicts_of_its_own(regimes: list[Regime]) -> None:
    found = taken(regimes)
    assert len(found) <= len(regimes) // LEAST_VERDICTS
    for before, after in pairwise(found):
        assert before.after is after.before
        assert before.t_ns <= after.t_ns
    for change in found:
        assert change.before is not change.after
        assert change.after is not U
        assert bool(change.parts) <= (change.after is Regime.MIXED)


@given(st.sampled_from([each for each in Regime if each is not U]), st.data(), confidences)
def test_one_regime_is_no_change_whatever_is_unknown(regime: Regime, data: st.DataObject, confidence: float) -> None:
    regimes = data.draw(st.lists(st.sampled_from([regime, U]), max_size=200))
    assert taken(regimes, confidence) == []


@given(st.integers(LEAST_VERDICTS, 200), st.integers(LEAST_VERDICTS, 200), st.permutations([*Regime]), confidences)
def test_a_change_that_lasts_is_exactly_one(n: int, m: int, order: list[Regime], confidence: float) -> None:
    before, after = _two(order)
    (change,) = taken([before] * n + [after] * m, confidence)
    assert (change.before, change.after, change.t_ns) == (before, after, n * PERIOD_NS)


def _two(order: list[Regime]) -> tuple[Regime, Regime]:
    known = [each for each in order if each is not U]
    return known[0], known[1]

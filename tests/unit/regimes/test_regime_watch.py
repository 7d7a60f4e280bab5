"""From verdicts over time to changes of regime."""

from collections.abc import Iterable

from gpu_profile.regimes import Regime, Verdict
from gpu_profile.regimes.regime_watch import LASTING_NS, LEAST_CONFIDENCE, RegimeChange, RegimeWatch
from gpu_profile.units import NS_PER_S

M, H, C, U = Regime.MEMORY_BOUND, Regime.HOST_BOUND, Regime.COMPUTE_BOUND, Regime.UNKNOWN
PERIOD_NS = 10 * NS_PER_S


def verdict(regime: Regime, confidence: float = 0.8) -> Verdict:
    return Verdict(regime, 0.0 if regime is U else confidence, "counters", f"the rule of {regime}", 0.1, 90, 1.0)


def changes(regimes: Iterable[Regime], watch: RegimeWatch | None = None, *, since: int = 0) -> list[RegimeChange]:
    """The changes that one verdict every 10 s gives, the first on the period `since`."""
    watch = watch or RegimeWatch()
    taken = (watch.take(verdict(r), i * PERIOD_NS, (i + 1) * PERIOD_NS) for i, r in enumerate(regimes, since))
    return [change for change in taken if change is not None]


def test_a_change_is_reported_once_with_its_beginning_its_rule_and_its_confidence() -> None:
    (change,) = changes([M] * 6 + [H] * 6)
    assert (change.before, change.after, change.parts) == (M, H, ())
    assert change.t_ns == 6 * PERIOD_NS
    assert (change.reason, change.confidence, change.basis) == ("the rule of HOST_BOUND", 0.8, "counters")


def test_the_first_regime_is_no_change() -> None:
    assert changes([U, U, M, M, M, M, M]) == []


def test_a_regime_that_does_not_hold_is_no_change() -> None:
    assert changes([M] * 6 + [H, H] + [M] * 6) == []
    assert len(changes([M] * 6 + [H, H, H] + [M] * 2)) == 1


def test_three_short_verdicts_do_not_hold() -> None:
    watch, second = RegimeWatch(), NS_PER_S
    changes([M] * 3, watch)
    since = 3 * PERIOD_NS
    assert all(watch.take(verdict(H), since + i * second, since + (i + 1) * second) is None for i in range(19))
    assert watch.take(verdict(H), since + 19 * second, since + 20 * second) is not None


def test_unknown_neither_begins_nor_ends_a_regime() -> None:
    assert changes([M] * 6 + [U] * 50 + [M] * 6) == []
    (change,) = changes([M] * 6 + [H, U, U, H, U, H])
    assert (change.after, change.t_ns) == (H, 6 * PERIOD_NS)


def test_marginal_verdicts_count_as_none() -> None:
    watch = RegimeWatch()
    changes([M] * 6, watch)
    times = [(i * PERIOD_NS, (i + 1) * PERIOD_NS) for i in range(6, 30)]
    assert all(watch.take(verdict(H, LEAST_CONFIDENCE - 0.01), *each) is None for each in times)
    assert watch.regime is M


def test_a_region_that_goes_back_and_forth_is_mixed_at_the_third_change() -> None:
    found = changes(([M] * 8 + [H] * 8) * 10)
    assert [(c.before, c.after) for c in found] == [(M, H), (H, M), (M, Regime.MIXED)]
    assert found[-1].parts == (M, H)
    assert found[-1].reason == "MEMORY_BOUND and HOST_BOUND take turns"


def test_turns_too_fast_to_hold_are_mixed_as_well() -> None:
    (change,) = changes([M] * 6 + [M, H] * 60)
    assert (change.before, change.after, set(change.parts)) == (M, Regime.MIXED, {M, H})
    (change,) = changes([M, H] * 60)
    assert (change.before, change.after) == (None, Regime.MIXED)


def test_single_outliers_are_no_turns() -> None:
    assert changes(([M] * 5 + [H]) * 20) == []


def test_changes_far_apart_are_no_turns() -> None:
    found = changes(([M] * 60 + [H] * 60) * 3)
    assert [c.after for c in found] == [H, M, H, M, H]


def test_turns_are_over_once_one_of_them_has_lasted() -> None:
    watch = RegimeWatch()
    turns = [M, H] * 20
    assert [c.after for c in changes(turns, watch)] == [Regime.MIXED]
    lasting = LASTING_NS // PERIOD_NS
    # The last verdict by turns is H.
    assert changes([H] * (lasting - 2), watch, since=len(turns)) == []
    (change,) = changes([H], watch, since=len(turns) + lasting)
    assert (change.before, change.after, change.t_ns) == (Regime.MIXED, H, (len(turns) - 1) * PERIOD_NS)


def test_another_regime_ends_turns_once_it_holds() -> None:
    found = changes([M, H] * 20 + [C] * 3)
    assert [(c.before, c.after) for c in found][1:] == [(Regime.MIXED, C)]

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.serving_gate import found, measured
from support.analysis import around, difference_of
from unit.analysis.costs.runs import run

from gpu_profile.analysis import Comparison, Difference, Outcome, parse_gate
from gpu_profile.analysis.comparison.data import of_comparison
from gpu_profile.analysis.comparison.text import render_comparison
from gpu_profile.analysis.costs import RunCosts, compare_runs


def side(n: int, factor: float = 1.0, spread: float = 0.01, seed: int = 0) -> list[RunCosts]:
    """Runs of exact costs that differ by a spread."""
    gains = np.exp(np.random.default_rng(seed).normal(0, spread, n))
    return [run(factor * float(gain), half_widths={}) for gain in gains]


def of(comparison: Comparison, part: str = "decode", quantity: str = "energy/token") -> Difference:
    return difference_of(comparison, part, quantity)


def test_ten_percent_more_is_found_in_each_part_and_gpu_time_is_the_same() -> None:
    comparison = compare_runs(side(5), side(5, 1.1, seed=1))
    rows = [(d.region, d.quantity, d.unit) for d in comparison.differences]
    assert rows == [
        ("requests", "energy/token", "J"), ("prefill", "energy/token", "J"), ("decode", "energy/token", "J"),
        ("requests", "energy/request", "J"), ("requests", "gpu_time/request", "s"),
    ]  # fmt: skip
    for difference in comparison.differences[:4]:
        low, high = around(difference)
        assert 0.05 < low < 0.1 < high < 0.15
    assert around(of(comparison, "requests", "gpu_time/request")) == pytest.approx((0.0, 0.0), abs=1e-6)
    gate = parse_gate("decode.energy/token > +5%")
    assert gate.judge(gate.find(comparison)) is Outcome.HOLDS


def test_five_percent_less_of_one_run_against_ten_is_found() -> None:
    difference = of(compare_runs(side(10), side(1, 0.95, spread=0.0)))
    assert -0.1 < around(difference)[0] < -0.05 < around(difference)[1] < 0.0


def test_intervals_hold_together_in_95_of_100_comparisons() -> None:
    wrong = 0
    for seed in range(200):
        low, high = around(of(compare_runs(side(3, seed=2 * seed), side(3, seed=2 * seed + 1))))
        wrong += not low <= 0 <= high
    assert wrong <= 6  # each interval holds in 98.8 of 100


def test_one_long_run_hides_no_spread_between_runs() -> None:
    # Two of three runs are short. With weights by length, 134 of 200 comparisons of equal releases show a change.
    random = np.random.default_rng(5)
    wrong, apart = 0, []
    for _ in range(200):
        sides = [
            [longer(run(float(gain), half_widths={}), length) for gain, length in zip(gains, (1, 30, 1), strict=True)]
            for gains in np.exp(random.normal(0, 0.05, (2, 3)))
        ]
        difference = of(compare_runs(*sides))
        low, high = around(difference)
        wrong += not low <= 0 <= high
        apart.append(difference.relative or 0.0)
    assert wrong <= 6
    assert float(np.std(apart)) < 1.2 * 0.05 * np.sqrt(2 / 3)


def longer(made: RunCosts, factor: int) -> RunCosts:
    """A run with so many times the requests."""
    return replace(
        made,
        energy_j={part: None if joules is None else joules * factor for part, joules in made.energy_j.items()},
        tokens={part: None if n is None else n * factor for part, n in made.tokens.items()},
    )


def test_a_short_run_counts_less_and_a_long_one_no_more() -> None:
    made = [longer(run(gain, half_widths={}), n) for gain, n in ((1.0, 10), (1.0, 10), (1.0, 10), (2.0, 1))]
    long = [longer(run(half_widths={}), 10) for _ in range(3)] + [longer(run(2.0, half_widths={}), 100)]
    base = of(compare_runs(made, long))
    assert base.a is not None
    assert base.b is not None
    one_token = of(compare_runs([run(half_widths={})] * 3, [run(half_widths={})] * 3)).a
    assert one_token is not None
    assert base.a / one_token == pytest.approx((30 + 2 * 1) / 31)
    assert base.b / one_token == pytest.approx((30 + 2 * 10) / 40)


def test_the_half_width_of_a_phase_stays_however_many_runs_there_are() -> None:
    few, many = (
        of(compare_runs([run(half_widths={"decode": 0.02})] * n, [run(half_widths={"decode": 0.02})] * n))
        for n in (3, 50)
    )
    assert around(few) == pytest.approx(around(many))
    assert around(few)[1] == pytest.approx(0.0375, abs=0.005)


def test_too_few_runs_or_a_run_without_a_value_cannot_be_judged() -> None:
    gate = parse_gate("decode.energy/token > +5%")
    few = gate.find(compare_runs(side(2), side(3)))
    assert gate.judge(few) is Outcome.UNTOLD
    assert gate.reason(few) == "A and B: only 5 runs in both have a value; 6 give an interval"
    refused = replace(run(reasons={"decode": "lost"}), energy_j={"requests": 1000.0, "prefill": 200.0, "decode": None})
    missing = gate.find(compare_runs(side(5), [*side(4), refused]))
    assert gate.reason(missing) == "B: 1 of 5 runs: lost"
    both = gate.reason(gate.find(compare_runs(side(3), [*side(2), refused])))
    assert both == "A: only 5 runs in both have a value; 6 give an interval; B: 1 of 3 runs: lost"


def test_a_quantity_of_recordings_is_none_of_runs() -> None:
    comparison = compare_runs(side(3), side(3))
    for text, says in (
        ("decode.energy > 5%", "A and B: decode has no such quantity; it has energy/token"),
        ("decode.energy/item > 5%", "A and B: decode has no such quantity; it has energy/token"),
    ):
        gate = parse_gate(text)
        assert gate.reason(gate.find(comparison)) == says


def test_different_loads_are_named() -> None:
    a = [run(settings={"max_concurrency": 8}) for _ in range(3)]
    b = [run(settings={"max_concurrency": n}, requests=50, notes=("odd",)) for n in (8, 16, 16)]
    assert compare_runs(a, b).notes == (
        "different max_concurrency: 8 in A, 16, 8 in B: tokens cost more or less",
        "different lengths of prompts: 1,000 tokens in A, 2,000 in B: tokens of longer requests cost more",
        "different lengths of answers: 100 tokens in A, 200 in B: tokens of longer requests cost more",
        "B: odd (and 2 more notes)",
    )
    assert compare_runs(a, a).notes == ()
    assert compare_runs([run()], [run()]).notes[0].startswith("the settings of both sides are unknown: --result")


def test_the_text_and_the_json_have_the_numbers_of_runs() -> None:
    comparison = compare_runs(side(3), side(5, 1.2))
    assert "by the spread between 3 runs in A and 5 in B" in " ".join(render_comparison(comparison, []).split())
    values = of_comparison(comparison, [])
    assert isinstance(values, dict)
    assert values["runs"] == (3, 5)


def test_a_planted_regression_is_found_through_the_account() -> None:
    """Two simulated runs with noise of their own; the benchmark `serving` has the whole curve."""
    runs = [measured(seed) for seed in range(2)]
    dear = measured(0, 1.1)
    for part in ("prefill", "decode"):
        assert dear.token_j(part) == pytest.approx(1.1 * (runs[0].token_j(part) or 0), rel=1e-3)
    assert runs[0].reasons == {}
    assert sum(found(runs, 5, 0.10, 0.01, seed)[0] for seed in range(20)) >= 19
    assert sum(found(runs, 5, 0.0, 0.01, seed)[0] for seed in range(20)) <= 1


def test_costs_that_rise_from_run_to_run_are_pointed_out_unless_the_sides_alternate() -> None:
    gains = np.exp(np.random.default_rng(0).normal(0, 0.002, 10))
    runs = [run(float(gain) * (1 + 0.01 * i), half_widths={}, start_ns=i) for i, gain in enumerate(gains)]
    (note,) = (each for each in compare_runs(runs[:5], runs[5:]).notes if "drifts" in each)
    assert note.startswith("the costs change by +0.9 % from run to run: the machine drifts; alternate")
    assert not any("drifts" in each for each in compare_runs(runs[::2], runs[1::2]).notes)
    equal = [run(start_ns=i) for i in range(10)]
    assert not any("drifts" in each for each in compare_runs(equal[:5], equal[5:]).notes)

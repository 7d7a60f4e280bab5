import re
from dataclasses import replace
from itertools import zip_longest

import numpy as np
import pytest
from support.analysis import GPU, T0, Run

from gpu_profile.analysis import Comparison, Difference, Outcome, analyse, compare, parse_gate
from gpu_profile.analysis.comparison import LEAST_CALLS, LEAST_FOR_P95, _intervals, _Known, _quantile_draws
from gpu_profile.analysis.runs import LATEST_NS
from gpu_profile.analysis.text import render_comparison
from gpu_profile.errors import UsageError
from gpu_profile.recording import Recording, SpanRecord

EMPTY = Recording((), (), {}, (), (), ())


def of(comparison: Comparison, region: str, quantity: str) -> Difference:
    (found,) = (d for d in comparison.differences if (d.region, d.quantity) == (region, quantity))
    return found


def around(found: Difference) -> tuple[float, float]:
    assert found.relative_interval is not None
    return found.relative_interval


def spans_of(durations_s: np.ndarray, items: float | None = None) -> Recording:
    starts = T0 + np.arange(len(durations_s)) * 10**10
    spans = [
        SpanRecord("work", int(a), int(a) + int(s * 1e9), span_id=f"{i + 1:x}", items=items)
        for i, (a, s) in enumerate(zip(starts, durations_s, strict=True))
    ]
    return replace(EMPTY, spans=tuple(spans))


def test_a_recording_compared_with_itself_differs_in_nothing() -> None:
    analysis = analyse(Run().recording())
    comparison = compare(analysis, analysis)
    measured = [found for found in comparison.differences if found.quantity != "failures"]
    assert {found.change for found in measured} == {0.0}
    for found in measured:
        assert found.interval is not None
        assert found.interval[0] <= 0 <= found.interval[1]


def test_dearer_arithmetic_is_found_where_it_is_and_nowhere_else() -> None:
    comparison = compare(analyse(Run().recording()), analyse(Run(dear=1.3).recording()))
    forward = of(comparison, "forward", "energy")
    assert forward.relative == pytest.approx(0.3, abs=0.01)
    assert around(forward)[0] > 0.15
    assert around(of(comparison, "step", "energy"))[0] > 0.05
    for region, quantity in (("load", "energy"), ("forward", "busy"), ("forward", "duration"), ("step", "p95")):
        low, high = around(of(comparison, region, quantity)) if region != "load" else (-0.2, 0.2)
        assert low < 0 < high, (region, quantity)


def test_the_same_pair_gives_the_same_intervals_again() -> None:
    a, b = analyse(Run().recording()), analyse(Run(seed=2).recording())
    assert compare(a, b) == compare(a, b)


def test_intervals_of_durations_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(40):
        a = analyse(spans_of(rng.exponential(0.1, 60) + 0.05))
        b = analyse(spans_of(rng.exponential(0.1, 60) + 0.05))
        low, high = around(of(compare(a, b), "work", "duration"))
        hits += low <= 0 <= high
    assert hits >= 34, "95 % of 40 are 38; fewer than 34 are one in a hundred runs of a right method"


def test_an_interval_from_many_executions_is_as_narrow_as_from_all_of_them() -> None:
    rng = np.random.default_rng(3)
    durations = rng.lognormal(-2, 0.5, 20_000)
    a = analyse(spans_of(durations))
    b = analyse(spans_of(rng.lognormal(-2, 0.5, 20_000)))
    low, high = around(of(compare(a, b), "work", "duration"))
    expected = 1.96 * np.sqrt(2) * durations.std() / durations.mean() / np.sqrt(20_000)
    assert (high - low) / 2 == pytest.approx(expected, rel=0.15)


def test_few_executions_give_values_but_no_interval() -> None:
    few = np.linspace(0.1, 0.2, LEAST_CALLS - 1)
    duration = of(compare(analyse(spans_of(few)), analyse(spans_of(few))), "work", "duration")
    assert duration.change == 0.0
    assert (duration.interval, duration.relative_interval) == (None, None)
    assert "A: only 7 executions, 8 are needed" in duration.reason
    some = np.linspace(0.1, 0.2, LEAST_FOR_P95 - 1)
    comparison = compare(analyse(spans_of(some)), analyse(spans_of(some)))
    assert of(comparison, "work", "duration").interval is not None
    assert of(comparison, "work", "p95").interval is None
    assert "only 19 executions, 20 are needed" in of(comparison, "work", "p95").reason


def test_what_was_not_measured_is_absent_with_the_reason_of_each_side() -> None:
    a, b = analyse(spans_of(np.full(20, 0.1))), analyse(spans_of(np.full(20, 0.1)))
    energy = of(compare(a, b), "work", "energy")
    assert (energy.a, energy.b, energy.interval) == (None, None, None)
    assert energy.reason.startswith("A: the recording has neither energy nor power of this device; B: ")


def test_costs_per_item_appear_only_where_items_were_told() -> None:
    a, b = analyse(Run().recording()), analyse(Run(seed=2).recording())
    comparison = compare(a, b)
    assert {d.region for d in comparison.differences if d.quantity.endswith("/item")} == {"step"}
    per_item, per_call = of(comparison, "step", "energy/item"), of(comparison, "step", "energy")
    assert per_item.relative == pytest.approx(per_call.relative)


def test_work_of_which_half_is_done_twice_as_long_costs_the_same_per_item() -> None:
    durations = np.random.default_rng(1).uniform(0.1, 0.2, 200)
    a, b = analyse(spans_of(durations, items=1.0)), analyse(spans_of(durations * 2, items=2.0))
    comparison = compare(a, b)
    assert of(comparison, "work", "duration").relative == pytest.approx(1.0)
    low, high = around(of(comparison, "work", "duration/item"))
    assert low < 0 < high
    assert high - low < 0.2


def test_regions_that_one_side_lacks_are_listed_and_none_in_common_is_an_error() -> None:
    a, b = Run(), Run()
    a.spans.append(SpanRecord("old", T0, T0 + 5))
    b.spans.append(SpanRecord("new", T0, T0 + 5))
    comparison = compare(analyse(a.recording()), analyse(b.recording()))
    assert (comparison.only_a, comparison.only_b) == (("old",), ("new",))
    with pytest.raises(UsageError, match="no region in common: the first has work, the second load, new, step"):
        compare(analyse(spans_of(np.full(3, 0.1))), analyse(b.recording()))
    with pytest.raises(UsageError, match="the first has none, the second none"):
        compare(analyse(EMPTY), analyse(EMPTY))


def test_unlike_recordings_are_told_apart() -> None:
    a, b = Run().recording(), Run().recording(device=replace(GPU, name="NVIDIA A10G"))
    b = replace(b, processes=(replace(b.processes[0], driver="simulated:/tmp/node"),))
    notes = compare(analyse(a), analyse(b)).notes
    assert "different drivers: nvml in A, simulated in B" in notes
    assert "different devices: NVIDIA H200 in A, NVIDIA A10G in B" in notes


@pytest.mark.parametrize("durations", [[0.0] * 30, [0.0] * 29 + [1.0], [1e-9] * 30])
def test_durations_of_nothing_do_not_divide_by_it(durations: list[float]) -> None:
    a, b = analyse(spans_of(np.array(durations))), analyse(spans_of(np.full(30, 0.1), items=0.5))
    for found in compare(a, b).differences:
        assert found.interval is None or all(np.isfinite(found.interval))
        assert found.relative_interval is None or all(np.isfinite(found.relative_interval))


def test_the_last_moment_that_a_span_may_have_can_be_compared() -> None:
    spans = tuple(SpanRecord("work", 0, LATEST_NS - 1) for _ in range(9))
    analysis = analyse(replace(EMPTY, spans=spans))
    assert of(compare(analysis, analysis), "work", "duration").relative == 0.0


def failing(calls: int, failures: int | None) -> Recording:
    recording = spans_of(np.random.default_rng(5).uniform(0.1, 0.2, calls))
    known = () if failures is None else [i < failures for i in range(calls)]
    return replace(
        recording, spans=tuple(s._replace(failed=failed) for s, failed in zip_longest(recording.spans, known))
    )


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ((100, 0), (100, 20), Outcome.HOLDS),
        ((100, 0), (100, 0), Outcome.NOT),
        ((100, 0), (100, 3), Outcome.NOT),
        ((1000, 20), (1000, 100), Outcome.HOLDS),
        ((7, 0), (100, 90), Outcome.UNTOLD),
        ((100, None), (100, 50), Outcome.UNTOLD),
        ((100, 0), (100, None), Outcome.UNTOLD),
    ],
)
def test_more_failures_are_found_even_where_there_were_none(
    before: tuple[int, int | None], after: tuple[int, int | None], outcome: Outcome
) -> None:
    comparison = compare(analyse(failing(*before)), analyse(failing(*after)))
    gate = parse_gate("work.failures > +2 pp")
    found = gate.find(comparison)
    assert gate.judge(found) is outcome
    assert bool(gate.reason(found)) is (outcome is Outcome.UNTOLD)


def test_the_interval_of_failures_is_the_published_one() -> None:
    """Newcombe 1998, table II, example (a): 56/70 and 48/80 differ by 0.0524 to 0.3339."""
    comparison = compare(analyse(failing(80, 48)), analyse(failing(70, 56)))
    found = of(comparison, "work", "failures")
    assert found.change == pytest.approx(0.2)
    assert found.interval == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_failures_appear_in_the_text_where_there_are_any() -> None:
    none, some = analyse(failing(50, 0)), analyse(failing(50, 5))
    assert "failures" not in render_comparison(compare(none, none), ())
    text = render_comparison(compare(none, some), ())
    assert re.search(r"^work +failures +0\.0 % +10\.0 % +\+10\.0 pp +\+", text, re.MULTILINE)


def test_one_execution_a_side_gives_values_and_no_interval() -> None:
    one = analyse(spans_of(np.array([0.2])))
    found = of(compare(one, one), "work", "duration")
    assert (found.a, found.b, found.change) == (0.2, 0.2, 0.0)
    assert found.interval is None
    gate = parse_gate("work.duration > +5%")
    assert gate.judge(found) is Outcome.UNTOLD
    assert "only 1 executions, 8 are needed" in gate.reason(found)


def test_a_baseline_of_zero_has_no_ratio_and_says_what_to_write_instead() -> None:
    a, b = analyse(spans_of(np.zeros(30))), analyse(spans_of(np.full(30, 0.1)))
    found = of(compare(a, b), "work", "duration")
    assert (found.relative, found.relative_interval) == (None, None)
    relative, absolute = parse_gate("work.duration > +5%"), parse_gate("work.duration > +5ms")
    assert relative.judge(found) is Outcome.UNTOLD
    assert relative.reason(found) == "A is 0: there is no ratio; write the change in s, not in %"
    assert absolute.judge(found) is Outcome.HOLDS


def test_quantiles_are_drawn_as_whole_samples_would_be() -> None:
    rng = np.random.default_rng(11)
    durations = np.sort(rng.lognormal(0.0, 0.7, 60))
    for q in (0.5, 0.95):
        drawn = _quantile_draws(rng, durations, 60, q)
        samples = np.quantile(durations[rng.integers(60, size=(20_000, 60))], q, axis=1)
        for part in (0.1, 0.5, 0.9):
            assert np.quantile(drawn, part) == pytest.approx(np.quantile(samples, part), rel=0.1)


def test_a_ratio_to_what_may_be_nothing_has_no_interval() -> None:
    unsure, sure, none = _Known(0.8, half_width=1.7), _Known(0.8, half_width=0.1), _Known(0.0, half_width=0.0)
    interval, relative = _intervals(unsure, none)
    assert relative is None
    assert interval is not None
    assert interval[0] < 0 < interval[1]
    assert _intervals(sure, none)[1] == pytest.approx((-1.0, -1.0))


def test_the_interval_of_a_ratio_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(9)
    hits = 0
    for a, b in zip(rng.normal(5.0, 1.0, 2000), rng.normal(2.0, 0.5, 2000), strict=True):
        _, relative = _intervals(_Known(a, half_width=1.96), _Known(b, half_width=0.98))
        hits += relative is None or relative[0] <= -0.6 <= relative[1]
    assert hits >= 0.94 * 2000

import re
from dataclasses import replace
from itertools import zip_longest

import numpy as np
import pytest
from benchmarks.comparison_worlds import CHANGED, Program, different, pair
from hypothesis import given
from hypothesis import strategies as st
from support.analysis import EMPTY, GPU, T0, Run, analysed, around
from support.analysis import difference_of as of

from gpu_profile.analysis import Outcome, compare, parse_gate
from gpu_profile.analysis.chance import correlation_time, share_edges, student_quantile
from gpu_profile.analysis.comparison.differences import of_sides
from gpu_profile.analysis.comparison.quantities import LEAST_CALLS
from gpu_profile.analysis.comparison.text import render_comparison
from gpu_profile.analysis.runs import LATEST_NS
from gpu_profile.errors import UsageError
from gpu_profile.recording import Recording, SpanRecord


def spans_of(durations_s: np.ndarray, items: float | None = None) -> Recording:
    starts = T0 + np.arange(len(durations_s)) * 10**10
    spans = [
        SpanRecord("work", int(a), int(a) + int(s * 1e9), span_id=f"{i + 1:x}", items=items)
        for i, (a, s) in enumerate(zip(starts, durations_s, strict=True))
    ]
    return replace(EMPTY, spans=tuple(spans))


def test_a_recording_compared_with_itself_differs_in_nothing() -> None:
    analysis = analysed(Run().recording())
    comparison = compare(analysis, analysis)
    measured = [found for found in comparison.differences if found.quantity != "failures"]
    assert {found.change for found in measured} == {0.0}
    assert comparison.intervals > 12
    assert different(comparison) == []


def test_dearer_arithmetic_is_found_where_it_is_and_nowhere_else() -> None:
    comparison = compare(analysed(Run().recording()), analysed(Run(dear=1.3).recording()))
    forward = of(comparison, "forward", "energy")
    assert forward.relative == pytest.approx(0.3, abs=0.01)
    assert around(forward)[0] > 0.1
    assert around(of(comparison, "step", "energy"))[0] > 0.05
    for region, quantity in (("load", "energy"), ("forward", "busy"), ("forward", "duration"), ("step", "p50")):
        low, high = around(of(comparison, region, quantity)) if region != "load" else (-0.2, 0.2)
        assert low < 0 < high, (region, quantity)


def test_the_same_pair_gives_the_same_intervals_again() -> None:
    a, b = analysed(Run().recording()), analysed(Run(seed=2).recording())
    assert compare(a, b) == compare(a, b)


def test_of_25_programs_compared_with_themselves_at_most_1_shows_any_of() -> None:
    """Executions are few, depend on one another, have heavy tails and a warm-up; runs differ as a whole. `make bench
    ONLY=heart` compares 200."""
    wrong = [seed for seed in range(25) if different(pair(seed, most=40))]
    assert len(wrong) <= 1, wrong


def test_a_fifth_more_time_in_one_region_is_found_in_9_of_10_pairs() -> None:
    found = []
    for seed in range(10):
        program = Program.draw(np.random.default_rng(seed), 30)
        program = replace(program, spread=0.1, tail=4.0, memory=0.0, warm_up=0.0)
        found.append({region for region, _ in different(pair(seed, slower=1.2, program=program))})
    assert sum(CHANGED in regions for regions in found) >= 9
    assert sum(regions > {CHANGED} for regions in found) == 0


def test_executions_that_depend_on_one_another_give_no_interval_if_they_are_worth_too_few() -> None:
    rng = np.random.default_rng(5)
    walk = 1 + np.cumsum(rng.normal(0, 0.05, 40))
    drifting = of(compare(analysed(spans_of(walk)), analysed(spans_of(walk))), "work", "duration")
    assert drifting.interval is None
    assert re.match(r"A and B: its 40 executions depend on one another and tell no more than [1-5] ", drifting.reason)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8])
def test_the_correlation_time_is_that_of_the_process(memory: float) -> None:
    rng = np.random.default_rng(2)
    times = []
    for _ in range(30):
        shocks = rng.normal(size=600)
        values = np.zeros(600)
        for i in range(1, 600):
            values[i] = memory * values[i - 1] + shocks[i]
        times.append(correlation_time(values[100:]))
    assert np.median(times) == pytest.approx((1 + memory) / (1 - memory), rel=0.15)


def test_a_warm_up_is_no_dependence() -> None:
    rng = np.random.default_rng(4)
    values = rng.normal(1, 0.05, 100) + 3 * np.exp(-np.arange(100) / 3)
    assert correlation_time(values) < 2


@pytest.mark.parametrize(
    ("alpha", "degrees", "published"),
    [(0.05, 5, 2.5706), (0.01, 10, 3.1693), (0.001, 9, 4.7809), (0.001, 30, 3.6460), (0.05, 120, 1.9799)],
)
def test_quantiles_of_students_t_are_the_published_ones(alpha: float, degrees: float, published: float) -> None:
    assert student_quantile(alpha, degrees) == pytest.approx(published, abs=2e-4)


def test_an_interval_from_many_executions_is_as_narrow_as_runs_are_alike() -> None:
    rng = np.random.default_rng(3)
    a, b = (analysed(spans_of(rng.lognormal(-2, 0.5, 20_000))) for _ in range(2))
    widths = []
    for run_to_run in (0.0, 0.02):
        low, high = around(of(compare(a, b, run_to_run=run_to_run), "work", "duration"))
        widths.append((high - low) / 2)
    # Three values are compared: 1 - 0.05 / 3 of normal values are within 2.39 standard deviations.
    assert widths[0] == pytest.approx(2.39 * np.sqrt(2) * 0.533 / np.sqrt(20_000), rel=0.1)
    assert widths[1] == pytest.approx(2.39 * np.sqrt(2) * 0.02, rel=0.1)


def test_few_executions_give_values_but_no_interval() -> None:
    few = np.linspace(0.1, 0.2, LEAST_CALLS - 1)
    duration = of(compare(analysed(spans_of(few)), analysed(spans_of(few))), "work", "duration")
    assert duration.change == 0.0
    assert (duration.interval, duration.relative_interval) == (None, None)
    assert "A and B: only 7 executions, 8 are needed" in duration.reason
    some = np.random.default_rng(1).uniform(0.1, 0.2, 60)
    comparison = compare(analysed(spans_of(some)), analysed(spans_of(some)))
    assert of(comparison, "work", "duration").interval is not None
    assert of(comparison, "work", "p95").interval is None
    assert of(comparison, "work", "p95").reason.startswith("A and B: too few executions for an interval of p95")
    many = np.random.default_rng(1).uniform(0.1, 0.2, 600)
    assert of(compare(analysed(spans_of(many)), analysed(spans_of(many))), "work", "p95").interval is not None


def test_what_was_not_measured_is_absent_with_the_reason_of_each_side() -> None:
    a, b = analysed(spans_of(np.full(20, 0.1))), analysed(spans_of(np.full(20, 0.1)))
    energy = of(compare(a, b), "work", "energy")
    assert (energy.a, energy.b, energy.interval) == (None, None, None)
    assert energy.reason == "A and B: the recording has neither energy nor power of this device"
    run = Run()
    bare = replace(run.recording(), samples={GPU.uuid: {}})
    energy = of(compare(analysed(bare), analysed(run.recording())), "forward", "energy")
    assert re.match(r"A: [^;]+$", energy.reason)


def test_costs_per_item_appear_only_where_items_were_told() -> None:
    a, b = analysed(Run().recording()), analysed(Run(seed=2).recording())
    comparison = compare(a, b)
    assert {d.region for d in comparison.differences if d.quantity.endswith("/item")} == {"step"}
    per_item, per_call = of(comparison, "step", "energy/item"), of(comparison, "step", "energy")
    assert per_item.relative == pytest.approx(per_call.relative)


def test_work_of_which_half_is_done_twice_as_long_costs_the_same_per_item() -> None:
    durations = np.random.default_rng(1).uniform(0.1, 0.2, 200)
    a, b = analysed(spans_of(durations, items=1.0)), analysed(spans_of(durations * 2, items=2.0))
    comparison = compare(a, b)
    assert of(comparison, "work", "duration").relative == pytest.approx(1.0)
    low, high = around(of(comparison, "work", "duration/item"))
    assert low < 0 < high
    assert high - low < 0.2


def test_regions_that_one_side_lacks_are_listed_and_none_in_common_is_an_error() -> None:
    a, b = Run(), Run()
    a.spans.append(SpanRecord("old", T0, T0 + 5))
    b.spans.append(SpanRecord("new", T0, T0 + 5))
    comparison = compare(analysed(a.recording()), analysed(b.recording()))
    assert (comparison.only_a, comparison.only_b) == (("old",), ("new",))
    with pytest.raises(UsageError, match="no region in common: the first has work, the second load, new, step"):
        compare(analysed(spans_of(np.full(3, 0.1))), analysed(b.recording()))
    with pytest.raises(UsageError, match="the first has none, the second none"):
        compare(analysed(EMPTY), analysed(EMPTY))


def test_unlike_recordings_are_told_apart() -> None:
    a, b = Run().recording(), Run().recording(device=replace(GPU, name="NVIDIA A10G"))
    b = replace(b, processes=(replace(b.processes[0], driver="simulated:/tmp/node"),))
    notes = compare(analysed(a), analysed(b)).notes
    assert "different drivers: nvml in A, simulated in B" in notes
    assert "different devices: NVIDIA H200 in A, NVIDIA A10G in B" in notes


@pytest.mark.parametrize("durations", [[0.0] * 30, [0.0] * 29 + [1.0], [1e-9] * 30])
def test_durations_of_nothing_do_not_divide_by_it(durations: list[float]) -> None:
    a, b = analysed(spans_of(np.array(durations))), analysed(spans_of(np.full(30, 0.1), items=0.5))
    for found in compare(a, b).differences:
        assert found.interval is None or all(np.isfinite(found.interval))
        assert found.relative_interval is None or all(np.isfinite(found.relative_interval))


def test_the_last_moment_that_a_span_may_have_can_be_compared() -> None:
    spans = tuple(SpanRecord("work", 0, LATEST_NS - 1) for _ in range(9))
    analysis = analysed(replace(EMPTY, spans=spans))
    assert of(compare(analysis, analysis), "work", "duration").relative == 0.0


def failing(calls: int, failures: int | None) -> Recording:
    recording = spans_of(np.random.default_rng(5).uniform(0.1, 0.2, calls))
    known = () if failures is None else [(i + 1) * failures // calls > i * failures // calls for i in range(calls)]
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
    comparison = compare(analysed(failing(*before)), analysed(failing(*after)))
    gate = parse_gate("work.failures > +2 pp")
    found = gate.find(comparison)
    assert gate.judge(found) is outcome
    assert bool(gate.reason(found)) is (outcome is Outcome.UNTOLD)


def test_the_interval_of_failures_is_the_published_one() -> None:
    """Newcombe 1998, table II, example (a): 56/70 and 48/80 differ by 0.0524 to 0.3339."""
    interval, _ = of_sides(0.6, share_edges(0.6, 0.05, 80), 0.8, share_edges(0.8, 0.05, 70))
    assert interval == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_failures_appear_in_the_text_where_there_are_any() -> None:
    none, some = analysed(failing(50, 0)), analysed(failing(50, 25))
    assert "failures" not in render_comparison(compare(none, none), ())
    text = render_comparison(compare(none, some), ())
    assert re.search(r"^work +failures +0\.0 % +50\.0 % +\+50\.0 pp +\+", text, re.MULTILINE)


def test_one_execution_a_side_gives_values_and_no_interval() -> None:
    one = analysed(spans_of(np.array([0.2])))
    found = of(compare(one, one), "work", "duration")
    assert (found.a, found.b, found.change) == (0.2, 0.2, 0.0)
    assert found.interval is None
    gate = parse_gate("work.duration > +5%")
    assert gate.judge(found) is Outcome.UNTOLD
    assert "only 1 execution, 8 are needed" in gate.reason(found)


def test_a_baseline_of_zero_has_no_ratio_and_says_what_to_write_instead() -> None:
    a, b = analysed(spans_of(np.zeros(30))), analysed(spans_of(np.full(30, 0.1)))
    found = of(compare(a, b), "work", "duration")
    assert (found.relative, found.relative_interval) == (None, None)
    relative, absolute = parse_gate("work.duration > +5%"), parse_gate("work.duration > +5ms")
    assert relative.judge(found) is Outcome.UNTOLD
    assert relative.reason(found) == "A is 0: there is no ratio; write the change in s, not in %"
    assert absolute.judge(found) is Outcome.HOLDS


def test_a_ratio_to_what_may_be_nothing_has_no_interval() -> None:
    interval, relative = of_sides(0.8, (0.0, 2.5), 0.0, (0.0, 0.1))
    assert relative is None
    assert interval[0] < 0 < interval[1]
    assert of_sides(0.8, (0.7, 0.9), 0.0, (0.0, 0.0))[1] == pytest.approx((-1.0, -1.0))


def test_the_interval_of_a_ratio_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(9)
    hits = 0
    for a, b in zip(rng.normal(5.0, 1.0, 2000), rng.normal(2.0, 0.5, 2000), strict=True):
        _, relative = of_sides(a, (a - 1.96, a + 1.96), b, (b - 0.98, b + 0.98))
        hits += relative is None or relative[0] <= -0.6 <= relative[1]
    assert hits >= 0.94 * 2000


@given(
    st.lists(st.floats(0.001, 1e6), min_size=6, max_size=6).map(
        lambda x: (x[0], (max(0.0, x[0] - x[1]), x[0] + x[2]), x[3], (max(0.0, x[3] - x[4]), x[3] + x[5]))
    )
)
def test_a_ratio_is_never_below_nothing_and_says_what_the_difference_says(
    sides: tuple[float, tuple[float, float], float, tuple[float, float]],
) -> None:
    a, _, b, _ = sides
    (low, high), relative = of_sides(*sides)
    if relative is None:
        return
    assert -1 <= relative[0] <= b / a - 1 + 1e-9
    assert relative[1] >= b / a - 1 - 1e-9
    slack = 1e-6 * (a + b)
    if abs(low) > slack and relative[0] != 0:
        assert (low > 0) == (relative[0] > 0)
    if abs(high) > slack and relative[1] != 0:
        assert (high < 0) == (relative[1] < 0)

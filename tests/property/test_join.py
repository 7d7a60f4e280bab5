from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.catalogue import Signal, signal
from gpu_profile.catalogue.signals import UTILIZATION
from gpu_profile.join import ActiveTime, Activity, exclusive, quantile, read, segments
from gpu_profile.samples import Interval, Sample
from gpu_profile.timeline import Column

THROTTLE = signal("throttle_hw_thermal")
SPAN = 200


@st.composite
def trees(draw: st.DrawFn) -> list[Activity]:
    """Activities with parents that came before them; children may outlive them, run beside each other or never end."""
    result: list[Activity] = []
    for key in range(draw(st.integers(0, 8))):
        parent = draw(st.none() | st.sampled_from(range(key))) if key else None
        start = draw(st.integers(-20, SPAN + 20))
        end = draw(st.none() | st.integers(start, SPAN + 40))
        result.append(Activity(key, parent, f"r{key % 3}", start, end))
    return result


@st.composite
def columns(draw: st.DrawFn) -> Column:
    row: Signal = draw(st.sampled_from([UTILIZATION, THROTTLE]))
    column = Column(row, 64)
    t, total = draw(st.integers(0, 50)), 0
    for step, value in draw(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 100)), max_size=10)):
        start, t, total = t + step % 3, t + step + step % 3, total + value
        column.append(Sample(row, start, t, value if row is UTILIZATION else total))
    return column


def innermost_at(activities: list[Activity], t: int) -> set[object]:
    running = [a for a in activities if a.start_ns <= t and (a.end_ns is None or t < a.end_ns)]
    parents = {a.parent for a in running}
    return {a.key for a in running if a.key not in parents}


@given(trees())
def test_segments_partition_the_stretch(activities: list[Activity]) -> None:
    cuts = segments(activities, 0, SPAN)
    assert (cuts[0].start_ns, cuts[-1].end_ns) == (0, SPAN)
    assert all(cut.start_ns < cut.end_ns for cut in cuts)
    assert all(a.end_ns == b.start_ns for a, b in pairwise(cuts))


@given(trees())
def test_at_every_moment_a_segment_holds_the_activities_that_run_with_no_child_of_theirs(
    activities: list[Activity],
) -> None:
    for cut in segments(activities, 0, SPAN):
        for t in range(cut.start_ns, cut.end_ns):
            assert {a.key for a in cut.innermost} == innermost_at(activities, t)


@given(trees(), columns())
def test_exclusive_shares_and_the_rest_add_up_to_the_columns_integral_exactly(
    activities: list[Activity], column: Column
) -> None:
    shares, rest = exclusive(column, segments(activities, 0, SPAN))
    assert sum(shares.values()) + rest == column.integral(0, SPAN).mass
    assert all(type(share) is int for share in shares.values())


@given(trees())
def test_concurrent_activities_share_equally_to_within_one_quantum_per_segment(activities: list[Activity]) -> None:
    column = Column(UTILIZATION, 4)
    column.append(Sample(UTILIZATION, 0, SPAN, 77))
    cuts = segments(activities, 0, SPAN)
    fair: Counter[object] = Counter()
    for cut in cuts:
        for a in cut.innermost:
            fair[a.key] += 77 * (cut.end_ns - cut.start_ns) / len(cut.innermost)  # type: ignore[assignment]
    shares, _ = exclusive(column, cuts)
    assert shares.keys() == fair.keys()
    assert all(abs(shares[key] - fair[key]) <= len(cuts) for key in shares)


@given(trees())
def test_active_time_adds_up_to_the_time_in_which_anybody_ran(activities: list[Activity]) -> None:
    cuts = segments(activities, 0, SPAN)
    active = ActiveTime(cuts)
    somebodys = sum(cut.end_ns - cut.start_ns for cut in cuts if cut.innermost)
    assert sum(active.total_ns(region) for region in active.regions) == pytest.approx(somebodys)
    edges = np.arange(0.0, SPAN + 1, 10)
    for region in active.regions:
        assert active.during(region, edges[:-1], edges[1:]).sum() == pytest.approx(active.total_ns(region))


@given(columns(), st.integers(-10, 300), st.integers(0, 300))
def test_a_reading_is_absent_or_its_coverage_is_a_share_and_its_mean_within_the_extremes(
    column: Column, a: int, length: int
) -> None:
    reading = read(column, Interval(a, a + length))
    covered = column.integral(a, a + length).covered_ns
    assert (reading is None) == (covered == 0)
    if reading is not None:
        assert 0 < reading.coverage <= 1
        assert reading.total >= 0
        assert reading.n >= 1
        assert reading.resolution > 0
        # A counter's integral up to a moment holds whole quanta only.
        slack = 1e-12 if column.signal is UTILIZATION else 1.0 / covered
        assert -slack <= reading.mean <= reading.maximum + slack + 1e-12


@given(columns().filter(lambda c: c.signal is UTILIZATION), st.lists(st.floats(0, 1), min_size=2, max_size=5))
def test_quantiles_are_values_that_occurred_and_grow_with_q(column: Column, qs: list[float]) -> None:
    found = [quantile(column, Interval(0, 1000), q) for q in sorted(qs)]
    values = set((column.rows(0, 1000).values / 100).round(2).tolist())
    if not values:
        assert found == [None] * len(qs)
        return
    known = [value for value in found if value is not None]
    assert len(known) == len(qs)
    assert known == sorted(known)
    assert {round(value, 2) for value in known} <= values

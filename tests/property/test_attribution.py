from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property.activity_trees import SPAN, ancestors, cuts, forests, runs_at, shared_at

from gpu_profile.join.unmixing.solving import region_columns as module
from gpu_profile.join.unmixing.solving.region_columns import OTHER, RegionColumns
from gpu_profile.join.unmixing.windows.activities import Activities, DeviceExecution, NamedActivities
from gpu_profile.units import NS_PER_S

ALL = 1_000_000


def taken(activities: Sequence[DeviceExecution], edges: Sequence[int], *, names: Sequence[str] = ()) -> RegionColumns:
    known = RegionColumns()
    for name in names:
        known.column(name)
    for a, b in pairwise(edges):
        known.take(Activities.of(activities, known.column, b).during(a, b))
    return known


def by_tick(activities: Sequence[DeviceExecution], ticks: range) -> tuple[Counter[tuple[str, bool]], dict[str, float]]:
    """Time of each region alone or shared, and of each region with what is inside it, by looking at every tick."""
    by_key = {a.key: a for a in activities}
    own: Counter[tuple[str, bool]] = Counter()
    inside: dict[str, float] = {}
    for t in ticks:
        for activity, share in shared_at(activities, t):
            own[activity.region, share < 1] += share  # type: ignore[assignment]
            around = {b.region for b in ancestors(activity, by_key) if runs_at(b, t)}
            for region in {activity.region} | around:
                inside[region] = inside.get(region, 0.0) + share
    return own, inside


def told(known: RegionColumns, region: str) -> tuple[float, float]:
    """Ticks of a region alone and shared."""
    active = known.active(0) * NS_PER_S
    own = known.own(region)
    shared = known.is_shared(known.columns)
    return sum(active[c] for c in own if not shared[c]), sum(active[c] for c in own if shared[c])


@given(forests(most=7), cuts())
def test_columns_share_time_as_their_ticks_do(activities: list[DeviceExecution], edges: list[int]) -> None:
    known = taken(activities, edges)
    expected = np.zeros((known.columns, known.columns))
    for t in range(SPAN):
        parts: Counter[int] = Counter()
        for activity, share in shared_at(activities, t):
            if share < 1:
                parts[known.own(activity.region)[-1]] += share  # type: ignore[assignment]
        for one, mine in parts.items():
            for other, theirs in parts.items():
                expected[one, other] += mine * theirs
    joint = known.joint()
    assert joint.sum(axis=1) == pytest.approx(1.0)
    met = expected.sum(axis=1) > 0
    assert joint[met] == pytest.approx(expected[met] / expected[met].sum(axis=1, keepdims=True))
    assert joint[~met].tolist() == np.eye(known.columns)[~met].tolist()


@given(forests(most=7), cuts())
def test_in_any_slices_every_regions_time_is_what_its_ticks_add_up_to(
    activities: list[DeviceExecution], edges: list[int]
) -> None:
    known = taken(activities, edges)
    own, _ = by_tick(activities, range(SPAN))
    for region in {a.region for a in activities}:
        assert told(known, region) == pytest.approx((own[region, False], own[region, True]), abs=1e-6)
        assert known.active_s(region) * NS_PER_S == pytest.approx(sum(told(known, region)))


@given(forests(), cuts())
def test_time_of_regions_and_nobodys_add_up_to_the_time_that_passed(
    activities: list[DeviceExecution], edges: list[int]
) -> None:
    active = taken(activities, edges).active(SPAN)
    assert (active >= 0).all()
    assert active.sum() * NS_PER_S == pytest.approx(SPAN)
    idle = sum(not shared_at(activities, t) for t in range(SPAN))
    assert active[0] * NS_PER_S == pytest.approx(idle, abs=1e-6)


@given(forests(most=7, circles=True), cuts())
def test_what_runs_inside_a_region_is_counted_once_while_both_run_in_any_slices(
    activities: list[DeviceExecution], edges: list[int]
) -> None:
    known = taken(activities, edges)
    _, inside = by_tick(activities, range(SPAN))
    for region in {a.region for a in activities}:
        assert known.inside(region).sum() == pytest.approx(inside.get(region, 0.0), abs=1e-6)


@given(forests(), cuts())
def test_no_column_is_longer_inside_a_region_than_it_was_active_and_a_regions_own_are_wholly_inside(
    activities: list[DeviceExecution], edges: list[int]
) -> None:
    known = taken(activities, edges)
    active = known.active(0) * NS_PER_S
    for region in {a.region for a in activities}:
        inside = known.inside(region)
        assert (inside <= active + 1e-6).all()
        assert inside[known.own(region)] == pytest.approx(active[known.own(region)])


@given(forests(), cuts(), st.sets(st.integers(1, 6)), st.integers(0, SPAN), st.integers(1, 12) | st.just(ALL))
def test_the_recent_past_is_complete_from_the_moment_that_is_promised_on(
    activities: list[DeviceExecution], edges: list[int], looks: set[int], before: int, most: int
) -> None:
    known = RegionColumns()
    for i, (a, b) in enumerate(pairwise(edges), start=1):
        known.take(Activities.of(activities, known.column, b).during(a, b))
        if i in looks:
            known.recent(min(before, a), most)
    time = known.recent(before, most)
    assert known.fresh == 0
    since = known.since_ns
    assert since >= before
    assert (np.diff(time.starts) >= 0).all()
    # What runs as the oldest of them begins is kept with it.
    assert len(time.starts) <= most + len(activities)
    if most == ALL:
        assert since == before
    moments = range(min(since, SPAN), SPAN + 1)
    sums = time.until(np.array(moments), known.columns)
    for i, t in enumerate(moments[:-1]):
        own, _ = by_tick(activities, range(t, t + 1))
        wanted = np.zeros(known.columns)
        for (region, beside), share in own.items():
            wanted[known.own(region)[int(beside)]] += share
        assert sums[:, i + 1] - sums[:, i] == pytest.approx(wanted, abs=1e-6)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[DeviceExecution], list[int]]:
    """More regions than have room, some much busier than others, and slices."""
    result = []
    for key in range(draw(st.integers(3, 12))):
        parent = draw(st.none() | st.integers(0, key - 1)) if key else None
        start = draw(st.integers(0, SPAN - 1))
        end = start + draw(st.sampled_from([0, 1, 2, 20]))
        result.append(DeviceExecution(key, parent, f"r{draw(st.integers(0, 6))}", start, end))
    return result, draw(cuts())


def overlapping(activities: Sequence[DeviceExecution], a: int, b: int) -> list[DeviceExecution]:
    """What a caller passes on for a slice: each with the nearest ancestor that overlaps it too."""
    by_key = {x.key: x for x in activities}
    here = {x.key: x for x in activities if max(x.start_ns, a) < min(x.end_ns or 0, b)}
    return [
        x._replace(parent=next((y.key for y in ancestors(x, by_key) if y.key in here), None)) for x in here.values()
    ]


@given(crowds(), st.sets(st.integers(1, 7)))
def test_whoever_takes_anothers_place_no_time_is_lost_or_counted_twice(
    crowd: tuple[list[DeviceExecution], list[int]], looks: set[int]
) -> None:
    activities, edges = crowd
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_REGIONS", 3)
        known = RegionColumns()
        every = {a.region for a in activities}
        for i, (a, b) in enumerate(pairwise(edges), start=1):
            here = overlapping(activities, a, b)
            known.watch(NamedActivities.of(here, b), a, b)
            known.take(Activities.of(here, known.column, b).during(a, b))
            if i in looks:
                known.recent(0, ALL)
            known.swap()
        time = known.recent(0, ALL)
    somebodys = sum(len(shared_at(activities, t)) > 0 for t in range(SPAN))
    active = known.active(0) * NS_PER_S
    assert active.sum() == pytest.approx(somebodys)
    # The pieces of the recent past are of the columns that have their time.
    sums = time.until(np.array([0, SPAN]), known.columns)
    assert sums[:, 1] - sums[:, 0] == pytest.approx(active, abs=1e-6)
    named = [name for name in every if known.name(name, new=False) == name]
    assert len(named) <= 3
    columns = [c for name in (*named, OTHER) for c in known.own(name)]
    assert len(columns) == len(set(columns))
    assert active[columns].sum() == pytest.approx(somebodys)
    _, inside = by_tick(activities, range(SPAN))
    for name in (*named, OTHER):
        found = known.inside(name)
        assert (found <= active + 1e-6).all()
        assert found[known.own(name)] == pytest.approx(active[known.own(name)])
        assert found.sum() <= somebodys + 1e-6
    for name in named:
        assert known.inside(name).sum() <= inside.get(name, 0.0) + 1e-6


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 9)), max_size=60))
def test_what_is_watched_never_counts_for_more_than_it_ran_and_little_less(runs: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_REGIONS", 1)
        patch.setattr(module, "_MOST_WATCHED", 4)
        known = RegionColumns()
        known.column("first")
        truth: Counter[str] = Counter()
        for key, (region, length) in enumerate(runs):
            known.watch(NamedActivities.of([DeviceExecution(key, None, region, 0, length)], 100), 0, 100)
            truth[region] += length
            assert len(known._watched) <= 4
    for region, length in truth.items():
        found = known._watched.get(region, 0)
        assert length - truth.total() / 3 <= found <= length

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import pytest

from gpu_profile.catalogue.samples import Device
from gpu_profile.catalogue.signals import GRAPHICS
from gpu_profile.history.timeline import Ints, Timeline
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.solving.region_columns import MOST_REGIONS, OTHER, RegionColumns
from gpu_profile.join.unmixing.windows.activities import Activities, DeviceExecution, NamedActivities, Pieces, pieces
from gpu_profile.units import NS_PER_S

ALL = 1_000_000


def activity(
    region: str, start: int, end: int | None, parent: str | None = None, *, key: str | None = None
) -> DeviceExecution:
    return DeviceExecution(key or region, parent, region, start, end)


def take(known: RegionColumns, activities: Sequence[DeviceExecution], start: int, end: int) -> None:
    known.watch(NamedActivities.of(activities, end), start, end)
    known.take(Activities.of(activities, known.column, end).during(start, end))


def full(*, length: int = 1) -> RegionColumns:
    """As many regions as have room, one after the other, the first of them the longest by a little."""
    known = RegionColumns()
    runs = [activity(f"r{i}", i * 2 * length, i * 2 * length + length + (i == 0)) for i in range(MOST_REGIONS)]
    take(known, runs, 0, 2 * length * MOST_REGIONS)
    return known


def ticks(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def told(known: RegionColumns, regions: Iterable[str]) -> dict[str, int]:
    return {region: ticks(known.active_s(region)) for region in regions}


def total(known: RegionColumns) -> int:
    return ticks(float(known.active(0).sum()))


@pytest.fixture
def known() -> RegionColumns:
    return RegionColumns()


# ---------------------------------------------------------------------- names


def test_a_region_that_is_not_known_has_no_columns_and_no_time(known: RegionColumns) -> None:
    assert (known.columns, known.column("a", new=False), known.own("a")) == (1, -1, [])
    assert (known.active_s("a"), known.inside("a").tolist()) == (0.0, [0.0])


def test_asking_for_a_name_alone_takes_no_column(known: RegionColumns) -> None:
    assert (known.name("a"), known.name("a", new=False)) == ("a", OTHER)
    assert known.columns == 1


def test_regions_find_room_in_the_order_in_which_they_come(known: RegionColumns) -> None:
    names = [f"r{i}" for i in range(MOST_REGIONS + 30)]
    take(known, [activity(name, i, i + 1) for i, name in enumerate(names)], 0, 100)
    assert [known.column(name, new=False) for name in names[:MOST_REGIONS]] == list(range(1, MOST_REGIONS + 1))
    assert {known.name(name) for name in names[MOST_REGIONS:]} == {OTHER}
    assert told(known, [OTHER]) == {OTHER: 30}


def test_a_region_that_is_called_as_the_rest_is_pooled_with_it_and_takes_nobodys_room(known: RegionColumns) -> None:
    take(known, [activity(OTHER, 0, 5)], 0, 10)
    take(known, [activity(f"r{i}", 10 + i, 11 + i) for i in range(MOST_REGIONS)], 10, 100)
    assert known.swap() is None
    take(known, [activity("late", 100, 101)], 100, 110)
    assert told(known, [OTHER, "r0", f"r{MOST_REGIONS - 1}"]) == {OTHER: 6, "r0": 1, f"r{MOST_REGIONS - 1}": 1}
    assert known.columns == MOST_REGIONS + 2


def test_a_region_that_is_called_as_the_rest_never_takes_a_place() -> None:
    known = full()
    take(known, [activity(OTHER, 1000, 2000)], 1000, 2000)
    assert known.swap() is None
    assert told(known, [OTHER]) == {OTHER: 1000}


def test_the_last_region_that_finds_room_does_not_take_anothers_place_too(known: RegionColumns) -> None:
    runs = [activity(f"r{i}", i, i + 1) for i in range(MOST_REGIONS - 1)]
    take(known, [*runs, activity(OTHER, 90, 91)], 0, 100)
    take(known, [activity("late", 100, 200)], 100, 200)
    assert known.swap() is None
    assert told(known, ["late", "r0", OTHER]) == {"late": 100, "r0": 1, OTHER: 1}


def test_a_hundred_thousand_names_have_few_columns_and_little_is_watched() -> None:
    known = full()
    for at in range(1000, 101_000, 1000):
        runs = [activity(f"n{t}", t, t + 1) for t in range(at, at + 1000)]
        take(known, runs, at, at + 1000)
        known.recent(at, ALL)
        known.swap()
    assert known.columns <= 1 + 2 * (MOST_REGIONS + 1)
    assert len(known._index) <= MOST_REGIONS + 1
    assert len(known._watched) <= 256
    assert total(known) == MOST_REGIONS + 1 + 100_000


# ---------------------------------------------------------------------- alone, shared, inside


def test_time_alone_and_time_beside_others_are_apart(known: RegionColumns) -> None:
    take(known, [activity("a", 0, 30), activity("b", 10, 20)], 0, 40)
    assert told(known, "ab") == {"a": 25, "b": 5}
    alone, shared = known.own("a")
    active = known.active(40)
    assert (ticks(active[alone]), ticks(active[shared]), ticks(active[0])) == (20, 5, 10)
    assert known.is_shared(known.columns)[[alone, shared]].tolist() == [False, True]


def test_a_region_that_never_shared_has_one_column(known: RegionColumns) -> None:
    take(known, [activity("a", 0, 10), activity("b", 10, 20), activity("c", 12, 18, "b")], 0, 20)
    assert [len(known.own(region)) for region in "abc"] == [1, 1, 1]


def test_a_region_inside_itself_is_counted_once(known: RegionColumns) -> None:
    nested = [activity("f", 0, 30, key="1"), activity("f", 5, 25, "1", key="2"), activity("g", 10, 20, "2")]
    take(known, [*nested, activity("f", 12, 15, "g", key="3")], 0, 30)
    assert told(known, "fg") == {"f": 23, "g": 7}
    assert (known.inside("f").sum(), known.inside("g").sum()) == (30, 10)


@pytest.mark.parametrize("edges", [[0, 60], [0, 20, 60], [0, 10, 20, 30, 60], range(61)])
def test_what_outlives_the_region_around_it_is_inside_it_while_that_runs_whatever_the_slices(
    edges: Sequence[int], known: RegionColumns
) -> None:
    runs = [activity("request", 0, 20), activity("job", 10, 50, "request"), activity("step", 15, 45, "job")]
    for a, b in pairwise(edges):
        take(known, runs, a, b)
    assert told(known, ["request", "job", "step"]) == {"request": 10, "job": 10, "step": 30}
    assert [known.inside(r).sum() for r in ("request", "job", "step")] == [20, 40, 30]


def test_what_runs_beside_its_own_outlived_parent_shares_inside_it_too(known: RegionColumns) -> None:
    runs = [activity("p", 0, 10), activity("c", 5, 20, "p"), activity("x", 0, 20)]
    take(known, runs, 0, 20)
    assert told(known, "pcx") == pytest.approx({"p": 2.5, "c": 7.5, "x": 10}, abs=1)
    assert [known.inside(region).sum() for region in "pcx"] == [5, 7.5, 10]


def test_a_parent_of_two_generations_with_one_name_is_not_counted_twice_for_what_outlives_both() -> None:
    known = RegionColumns()
    runs = [activity("p", 0, 30, key="1"), activity("p", 5, 20, "1", key="2"), activity("c", 10, 50, "2")]
    take(known, runs, 0, 50)
    assert (known.inside("p").sum(), known.inside("c").sum()) == (30, 40)


def test_activities_of_no_or_negative_length_have_no_time_and_harm_nobodys(known: RegionColumns) -> None:
    runs = [activity("a", 0, 10), activity("zero", 4, 4, "a"), activity("back", 8, 3, "a"), activity("c", 2, 5, "back")]
    known.take(Activities.of(runs, known.column, 10))
    assert told(known, ["a", "zero", "back", "c"]) == {"a": 7, "zero": 0, "back": 0, "c": 3}
    assert [known.inside(r).sum() for r in ("a", "zero", "back", "c")] == [10, 0, 0, 3]


def test_a_slice_without_activities_changes_nothing(known: RegionColumns) -> None:
    take(known, [], 0, 10)
    assert known.recent(0, ALL).until(np.array([0, 10]), known.columns).tolist() == [[0.0, 0.0]]
    assert ticks(known.active(10)[0]) == 10


def test_nobodys_time_is_never_negative(known: RegionColumns) -> None:
    take(known, [activity("a", 0, 10)], 0, 10)
    assert known.active(5)[0] == 0.0


# ---------------------------------------------------------------------- the recent past


def test_a_long_piece_that_still_runs_is_kept_when_many_short_ones_are_let_go(known: RegionColumns) -> None:
    take(
        known, [activity("long", 0, 100), *(activity("short", t, t + 1, key=f"{t}") for t in range(0, 100, 2))], 0, 100
    )
    time = known.recent(0, 10)
    since = known.since_ns
    assert 0 < since < 100
    sums = time.until(np.array([since, 100]), known.columns)
    found = dict(zip(range(known.columns), (sums[:, 1] - sums[:, 0]).tolist(), strict=True))
    shorts = sum(1 for t in range(0, 100, 2) if t >= since)
    alone, shared = known.own("long")
    assert (found[alone], found[shared]) == (100 - since - shorts, shorts / 2)


def in_slices(known: RegionColumns, runs: Iterable[tuple[str, int, int]], *edges: int) -> None:
    """Take executions of some regions, with times in units of 10 ms, in slices between `edges`."""
    unit = NS_PER_S // 100
    every = [activity(region, a * unit, b * unit, key=f"{region} {a}") for region, a, b in runs]
    for a, b in pairwise(edge * unit for edge in edges):
        known.take(Activities.of(every, known.column, b).during(a, b), (a, b))


def in_units(moments: Ints) -> list[int]:
    return [moment * 100 // NS_PER_S for moment in moments.tolist()]


def test_an_execution_cut_at_the_edge_of_a_slice_is_one_piece(known: RegionColumns) -> None:
    # Two executions that meet at an edge look like one. Anywhere else they are apart.
    runs = [("a", 5, 25), ("b", 26, 30), ("b", 30, 32), ("a", 33, 39), ("a", 39, 45), ("b", 47, 51)]
    in_slices(known, runs, 0, 10, 20, 30)
    before = known.recent(0, ALL)
    assert (in_units(before.starts), in_units(before.ends)) == ([5, 26], [25, 30])
    in_slices(known, runs, 30, 40, 50, 60)
    time = known.recent(0, ALL)
    # An execution of 40 ms is cut so rarely that it stays in pieces.
    assert (in_units(time.starts), in_units(time.ends)) == ([5, 26, 33, 39, 47, 50], [25, 32, 39, 45, 50, 51])
    assert known.active_s("a") + known.active_s("b") == pytest.approx(0.42)


def test_pieces_of_different_regions_stay_apart(known: RegionColumns) -> None:
    in_slices(known, [("a", 5, 20), ("b", 20, 30)], 0, 20, 40)
    assert in_units(known.recent(0, ALL).starts) == [5, 20]


def test_executions_beside_each_other_are_joined_each_with_its_own_piece(known: RegionColumns) -> None:
    in_slices(known, [("a", 2, 15), ("b", 4, 18), ("a", 6, 17), ("c", 10, 19)], 0, 10, 20)
    time = known.recent(0, ALL)
    assert (in_units(time.starts), sorted(in_units(time.ends))) == ([2, 4, 6, 10], [15, 17, 18, 19])
    assert time.shared.tolist() == [known.own(region)[-1] for region in "abac"]
    sums = time.until(np.array([0, NS_PER_S]), known.columns)
    assert (sums[1:, 1] - sums[1:, 0]).tolist() == pytest.approx((known.active(NS_PER_S)[1:] * NS_PER_S).tolist())


def test_pieces_of_an_execution_of_seconds_stay_short_so_that_the_past_is_let_go(known: RegionColumns) -> None:
    in_slices(known, [("a", 50, 500)], *range(0, 700, 100))
    time = known.recent(0, ALL)
    assert ((time.ends - time.starts) <= NS_PER_S).all()
    assert int((time.ends - time.starts).sum()) == 9 * NS_PER_S // 2


def test_what_was_let_go_does_not_come_back(known: RegionColumns) -> None:
    take(known, [activity("a", 0, 10)], 0, 10)
    assert known.recent(5, ALL).starts.tolist() == [0]
    take(known, [activity("a", 10, 20)], 10, 20)
    known.recent(10, ALL)
    assert known.recent(10, ALL).starts.tolist() == [10]
    known.recent(0, ALL)
    assert known.since_ns == 10


def test_after_the_clock_was_set_totals_stand_and_recent_pieces_have_moved(known: RegionColumns) -> None:
    take(known, [activity("a", 1000, 1010)], 1000, 1020)
    known.recent(900, ALL)
    known.skip(-520)
    assert (known.since_ns, known.fresh) == (380, 0)
    take(known, [activity("a", 500, 507)], 500, 520)
    assert told(known, "a") == {"a": 17}
    assert known.recent(0, ALL).starts.tolist() == [480, 500]


def test_slices_are_added_to_the_sums_together_and_the_sums_are_those_of_one_after_the_other(
    known: RegionColumns, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [activity("a", 0, 40), activity("b", 5, 25, "a"), activity("c", 15, 30), activity("b", 45, 50, key="2")]
    one_by_one = RegionColumns()
    passes = 0

    def counted(activities: Activities) -> Pieces:
        nonlocal passes
        passes += 1
        return pieces(activities)

    for a in range(0, 50, 10):
        take(one_by_one, runs, a, a + 10)
        one_by_one.recent(0, ALL)
    monkeypatch.setattr("gpu_profile.join.unmixing.solving.region_columns.pieces", counted)
    for a in range(0, 50, 10):
        take(known, runs, a, a + 10)
    assert (known.fresh, passes) == (5, 0)
    for region in "abc":
        assert known.inside(region).tolist() == pytest.approx(one_by_one.inside(region).tolist())
    assert known.active(50).tolist() == pytest.approx(one_by_one.active(50).tolist())
    assert known.joint() == pytest.approx(one_by_one.joint())
    assert known.recent(0, ALL).starts.tolist() == one_by_one.recent(0, ALL).starts.tolist()
    assert passes == 1


def test_the_rates_of_some_columns_are_rows_of_all(known: RegionColumns) -> None:
    take(known, [activity("a", 0, 10), activity("b", 5, 20), activity("c", 30, 40)], 0, 50)
    every = known.joint()
    for chosen in ([], [2], [0, 1, 3]):
        assert known.joint(np.array(chosen, np.int64)).tolist() == every[chosen].tolist()
    assert every.sum(axis=1) == pytest.approx(1.0)


# ---------------------------------------------------------------------- changing places


def test_with_room_nobody_is_watched(known: RegionColumns) -> None:
    take(known, [activity("a", 0, 10)], 0, 10)
    assert known.swap() is None


def test_a_region_takes_the_place_of_the_least_busy_once_it_was_busy_for_twice_as_long() -> None:
    known = full(length=10)
    at = 20 * MOST_REGIONS
    take(known, [activity("late", at, at + 19)], at, at + 19)
    assert known.swap() is None
    take(known, [activity("late", at + 19, at + 20)], at + 19, at + 20)
    swapped = known.swap()
    assert swapped is not None
    left, came, _ = swapped
    assert (left, came) == ("r1", "late")
    take(known, [activity("late", at + 20, at + 27), activity("r1", at + 27, at + 30)], at + 20, at + 30)
    # Its own past and all of the other's are with the rest.
    assert told(known, ["late", "r1", "r0", OTHER]) == {"late": 7, "r1": 0, "r0": 11, OTHER: 20 + 10 + 3}


def test_slices_that_nobody_looked_at_yet_stay_with_whoever_was_active_in_them() -> None:
    known = full(length=10)
    known.recent(0, ALL)
    at = 20 * MOST_REGIONS
    others = [activity(f"r{i}", at + 10 * i, at + 10 * i + (5 if i == 1 else 10)) for i in range(MOST_REGIONS)]
    take(known, [*others, activity("late", at + 700, at + 790)], at, at + 800)
    assert known.fresh == 1
    swapped = known.swap()
    assert swapped is not None
    assert swapped[:2] == ("r1", "late")
    sums = known.recent(0, ALL).until(np.array([0, at + 800]), known.columns)
    (column,), (rest,) = known.own("late"), known.own(OTHER)
    assert (sums[:, 1] - sums[:, 0])[[column, rest]].tolist() == [0, 10 + 5 + 90]
    active = known.active(0) * NS_PER_S
    assert (sums[:, 1] - sums[:, 0]).tolist() == pytest.approx(active.tolist())


def test_who_just_came_is_not_driven_out_by_the_next_in_line() -> None:
    known = full(length=10)
    at = 20 * MOST_REGIONS
    runs = [activity(f"late {i}", at + 1000 * i, at + 1000 * i + 900 - i) for i in range(5)]
    take(known, runs, at, at + 5000)
    came = []
    for step in range(at + 5000, at + 5010):
        take(known, [activity("late 0", step, step + 1)], step, step + 1)
        swapped = known.swap()
        if swapped is not None:
            came.append(swapped[1])
    assert came == [f"late {i}" for i in range(5)]
    assert all(known.own(f"late {i}") for i in range(5))


def test_running_many_times_at_once_makes_nobody_busier_without_equations_than_with(known: RegionColumns) -> None:
    # All regions run four at a time; none is busier than another.
    for at in range(0, 4000, 1000):
        runs = [
            activity(f"r{i}", at + 10 * i, at + 10 * i + 10, key=f"{i}/{beside}")
            for i in range(MOST_REGIONS + 3)
            for beside in range(4)
        ]
        take(known, runs, at, at + 1000)
        assert known.swap() is None


def test_whoever_leaves_takes_what_was_inside_it_along_and_nothing_counts_twice() -> None:
    known = full(length=10)
    at = 20 * MOST_REGIONS
    # r2 runs inside one of the rest, and something of the rest inside r2.
    runs = [activity("x", at, at + 8), activity("r2", at + 1, at + 6, "x"), activity("y", at + 2, at + 4, "r2")]
    take(known, [*runs, activity("r1", at + 8, at + 20)], at, at + 20)
    before, left = total(known), ""
    while left != "r2":
        at += 1000
        take(known, [activity(f"late {at}", at, at + 900)], at, at + 1000)
        before += 900
        swapped = known.swap()
        assert swapped is not None
        left = swapped[0]
    assert total(known) == before
    active = known.active(0) * NS_PER_S
    (rest,) = known.own(OTHER)
    assert known.inside(OTHER)[rest] == pytest.approx(active[rest])
    assert (known.inside(OTHER) <= active + 1e-6).all()


def test_who_comes_has_nothing_of_what_was_inside_the_one_that_left() -> None:
    known = full(length=10)
    at = 20 * MOST_REGIONS
    # All but r1, which has r2 inside it, run for longer.
    runs = [activity("r1", at, at + 5), activity("r2", at + 1, at + 4, "r1")]
    runs += [
        activity(f"r{i}", at + 10 + 10 * i, at + 20 + 10 * i, key=f"again {i}") for i in range(MOST_REGIONS) if i != 1
    ]
    take(known, [*runs, activity("late", at + 700, at + 790)], at, at + 800)
    swapped = known.swap()
    assert swapped is not None
    assert swapped[:2] == ("r1", "late")
    assert known.inside("late").sum() == 0
    take(known, [activity("late", at + 800, at + 806)], at + 800, at + 810)
    assert known.inside("late").sum() == 6
    assert known.inside(OTHER)[known.own("r2")].tolist() == [3]


def test_places_change_after_all_of_a_long_slice_that_its_activities_are_numbered_for() -> None:
    pool = Pool(Timeline(Device("GPU-1"), [GRAPHICS], capacity=16), start_ns=0)
    pool.advance([activity(f"r{i}", i, i + 1 + (i > 0)) for i in range(MOST_REGIONS)], NS_PER_S)
    minutes = 60 * NS_PER_S
    pool.advance([activity("late", minutes, 3 * minutes), activity("r0", 3 * minutes, 5 * minutes)], 6 * minutes)
    assert pool.attribution.own("late")
    assert [pool.pooled(region).active_s for region in ("r0", "late", OTHER)] == pytest.approx([120, 0, 120])


def test_however_often_regions_change_places_there_are_no_more_columns() -> None:
    known = full()
    at, length = 1000, 4
    for i in range(150):
        length = length * 21 // 10 if i % 30 else 4 + i
        beside = activity(f"late {i}", at, at + length, key="beside")
        take(known, [activity(f"late {i}", at, at + length), beside], at, at + length)
        at += length
        known.recent(at, ALL)
        known.swap()
    assert known.columns <= 1 + 2 * (MOST_REGIONS + 1) <= np.iinfo(np.int16).max
    columns = [c for name in known._index for c in known.own(name)]
    assert len(columns) == len(set(columns))


def test_a_frequent_region_among_many_rare_ones_gets_equations() -> None:
    known = full()
    at = 1000
    for i in range(200):
        runs = [activity(f"rare {i} {j}", at + j, at + j + 1) for j in range(50)]
        take(known, [*runs, activity("frequent", at + 50, at + 60)], at, at + 60)
        known.swap()
        at += 60
    assert known.own("frequent")
    assert ticks(known.active_s("frequent")) > 1000


def test_an_execution_that_is_met_twice_is_watched_once() -> None:
    known = full(length=10)
    at = 20 * MOST_REGIONS
    take(known, [activity("late", at, None), activity("late", at, at + 12)], at, at + 20)
    assert known.swap() is None

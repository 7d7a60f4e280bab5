import numpy as np
import pytest

from gpu_profile.join.unmixing.windows.activities import (
    MOST_DEEP,
    Activities,
    DeviceExecution,
    Segment,
    pieces,
    segments,
)
from gpu_profile.units import NS_PER_S

T0 = 1_700_000_000 * NS_PER_S


def activity(key: str, start: int, end: int | None, parent: str | None = None) -> DeviceExecution:
    return DeviceExecution(key, parent, f"region {key}", start, end)


def keys(cuts: list[Segment]) -> list[tuple[int, int, str]]:
    return [(cut.start_ns, cut.end_ns, "".join(sorted(str(a.key) for a in cut.innermost))) for cut in cuts]


def test_without_activities_all_time_is_nobodys() -> None:
    assert segments([], 0, 10) == [Segment(0, 10, ())]
    assert segments([], 10, 10) == []


def test_a_parent_gets_the_time_in_which_no_child_of_its_runs() -> None:
    nested = [activity("p", 0, 100), activity("c", 20, 50, "p"), activity("g", 30, 40, "c")]
    assert keys(segments(nested, 0, 120)) == [
        (0, 20, "p"),
        (20, 30, "c"),
        (30, 40, "g"),
        (40, 50, "c"),
        (50, 100, "p"),
        (100, 120, ""),
    ]


def test_a_child_that_spans_its_parent_leaves_it_nothing() -> None:
    assert keys(segments([activity("p", 0, 10), activity("c", 0, 10, "p")], 0, 10)) == [(0, 10, "c")]


def test_a_child_that_outlives_its_parent_keeps_running_alone() -> None:
    cuts = segments([activity("p", 0, 10), activity("c", 5, 15, "p")], 0, 20)
    assert keys(cuts) == [(0, 5, "p"), (5, 15, "c"), (15, 20, "")]


def test_an_activity_whose_parent_is_not_active_here_counts_like_any_other() -> None:
    assert keys(segments([activity("a", 0, 9), activity("b", 0, 9, "elsewhere")], 0, 9)) == [(0, 9, "ab")]


def test_concurrent_innermost_activities_share_a_segment() -> None:
    cuts = segments([activity("a", 0, 30), activity("b", 10, 20), activity("c", 10, 30)], 0, 30)
    assert keys(cuts) == [(0, 10, "a"), (10, 20, "abc"), (20, 30, "ac")]


def test_an_activity_that_still_runs_reaches_to_the_end_and_edges_are_clipped() -> None:
    assert keys(segments([activity("a", -50, None), activity("b", 90, 500)], 0, 100)) == [(0, 90, "a"), (90, 100, "ab")]


def test_an_activity_of_no_length_or_outside_of_the_stretch_takes_no_time() -> None:
    outside = [activity("a", 5, 5), activity("b", -9, 0), activity("c", 10, 20), activity("d", 8, 3)]
    assert segments(outside, 0, 10) == [Segment(0, 10, ())]


def test_an_execution_that_is_met_twice_counts_once() -> None:
    assert keys(segments([activity("a", 0, None), activity("a", 0, 6)], 0, 10)) == [(0, 6, "a"), (6, 10, "")]


def test_a_grandchild_covers_its_grandparent_also_while_the_one_between_is_over() -> None:
    runs = [activity("p", 0, 30), activity("c", 5, 10, "p"), activity("g", 8, 20, "c")]
    assert keys(segments(runs, 0, 30)) == [(0, 5, "p"), (5, 8, "c"), (8, 20, "g"), (20, 30, "p")]


def test_children_that_overlap_leave_their_parent_what_neither_covers() -> None:
    runs = [activity("p", 0, 30), activity("a", 5, 15, "p"), activity("b", 10, 20, "p"), activity("c", 12, 14, "p")]
    found = keys(segments(runs, 0, 30))
    assert (found[0], found[-1]) == ((0, 5, "p"), (20, 30, "p"))
    assert not any("p" in names for _, _, names in found[1:-1])


# ---------------------------------------------------------------------- activities as columns


def columns_of(runs: list[DeviceExecution], until: int = 100) -> Activities:
    return Activities.of(runs, {a.region: i for i, a in enumerate(runs)}.__getitem__, until)


def test_without_activities_there_are_no_pieces() -> None:
    none = columns_of([])
    assert [len(part) for part in (*none, *none.during(0, 10), *pieces(none))] == [0] * 11


def test_each_region_is_asked_for_its_column_once_in_order_of_appearance() -> None:
    asked: list[str] = []
    runs = [DeviceExecution(i, None, f"r{i % 7}", 0, 1) for i in range(20)]
    found = Activities.of(runs, lambda region: asked.append(region) or len(asked), 1)  # type: ignore[func-returns-value]
    assert asked == [f"r{i}" for i in range(7)]
    assert found.columns.tolist() == [1 + i % 7 for i in range(20)]


def test_parents_are_found_wherever_they_stand() -> None:
    runs = [activity("c", 0, 1, "p"), activity("x", 0, 1, "elsewhere"), activity("p", 0, 1), activity("d", 0, 1, "c")]
    assert columns_of(runs).parents.tolist() == [2, -1, -1, 0]


def test_what_still_runs_ends_where_it_is_looked_at() -> None:
    assert columns_of([activity("a", 3, None), activity("b", 3, 4)], until=50).ends.tolist() == [50, 4]


def test_a_slice_puts_the_nearest_ancestor_that_overlaps_it_in_place_of_one_that_does_not() -> None:
    runs = [activity("root", 0, 100), activity("p", 0, 10, "root"), activity("c", 5, 50, "p"), activity("x", 0, 9, "p")]
    found = columns_of(runs).during(20, 60)
    assert found.columns.tolist() == [0, 2]
    assert found.parents.tolist() == [-1, 0]
    assert (found.starts.tolist(), found.ends.tolist()) == ([20, 20], [60, 50])


def test_a_slice_between_activities_is_empty() -> None:
    runs = columns_of([activity("a", 0, 10), activity("b", 20, 30, "a")])
    assert [part.tolist() for part in runs.during(10, 20)] == [[], [], [], []]
    assert [part.tolist() for part in runs.during(30, 10)] == [[], [], [], []]


def test_one_that_is_its_own_parent_has_no_time_and_others_keep_theirs() -> None:
    runs = [activity("a", 0, 10, "a"), activity("b", 5, 20)]
    assert keys(segments(runs, 0, 20)) == [(0, 5, ""), (5, 20, "b")]


@pytest.mark.parametrize("around", ["self", "pairs", "tails"])
def test_circles_of_parents_are_gone_around_a_few_times_only(around: str) -> None:
    count = 3000
    each = np.arange(count)
    parents = {"self": each, "pairs": each ^ 1, "tails": np.zeros(count, np.int64)}[around]
    runs = Activities(each, each + count, parents, each)
    assert sum(1 for _ in runs.ancestors()) <= 6
    outside = {"self": 0, "pairs": 0, "tails": count - 1}[around]
    assert len(np.unique(pieces(runs).owners)) == outside


def test_generations_beyond_a_limit_are_not_followed() -> None:
    count = MOST_DEEP + 50
    each = np.arange(count)
    found = [len(of) for of, _ in Activities(each, each + 1, each - 1, each).ancestors()]
    assert found == list(range(count - 1, count - 1 - MOST_DEEP, -1))


def test_pieces_of_months_with_many_nested_activities_do_not_overflow() -> None:
    count, apart = 20_000, 60 * 24 * 3600 * NS_PER_S // 20_000
    outer = T0 + np.arange(count) * apart
    runs = Activities(
        np.concatenate((outer, outer + 10)),
        np.concatenate((outer + 50, outer + 20)),
        np.concatenate((np.full(count, -1), np.arange(count))),
        np.zeros(2 * count, np.int64),
    )
    found = pieces(runs)
    lengths = np.bincount(found.owners, found.ends - found.starts, 2 * count)
    assert (lengths[:count] == 40).all()
    assert (lengths[count:] == 10).all()

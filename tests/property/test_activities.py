from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from property.activity_trees import SPAN, ancestors, cuts, forests, innermost_at

from gpu_profile.join.unmixing.windows.activities import Activities, DeviceExecution, pieces, segments


def numbered(activities: list[DeviceExecution]) -> Activities:
    """Each activity's key as its column."""
    every = Activities.of(activities, lambda _: 0, SPAN)
    keys = list(dict.fromkeys(a.key for a in activities))
    return every._replace(columns=np.array(keys, np.int64))


def owners_at(activities: Activities, t: int) -> list[int]:
    found = pieces(activities)
    return sorted(activities.columns[found.owners[(found.starts <= t) & (t < found.ends)]].tolist(), key=str)


@given(forests())
def test_at_every_tick_the_pieces_are_those_of_the_activities_with_no_descendant_running(
    activities: list[DeviceExecution],
) -> None:
    for t in range(-6, SPAN):
        assert owners_at(numbered(activities), t) == sorted(innermost_at(activities, t), key=str)


@given(forests(circles=True))
def test_what_is_in_a_circle_of_parents_is_its_own_descendant_and_has_no_pieces(
    activities: list[DeviceExecution],
) -> None:
    for t in range(0, SPAN, 3):
        assert owners_at(numbered(activities), t) == sorted(innermost_at(activities, t), key=str)


@given(forests(most=12))
def test_pieces_have_a_length_and_come_by_start_and_those_of_one_activity_neither_meet_nor_leave_it(
    activities: list[DeviceExecution],
) -> None:
    every = numbered(activities)
    found = pieces(every)
    assert (found.ends > found.starts).all()
    assert (np.diff(found.starts) >= 0).all()
    for owner in set(found.owners.tolist()):
        mine = found.owners == owner
        assert (found.starts[mine][1:] > found.ends[mine][:-1]).all()
        assert found.starts[mine][0] >= every.starts[owner]
        assert found.ends[mine][-1] <= every.ends[owner]


@given(forests(circles=True), cuts())
def test_slices_have_the_pieces_of_the_whole_whatever_is_absent_between_child_and_ancestor(
    activities: list[DeviceExecution], edges: list[int]
) -> None:
    whole = numbered(activities)
    for a, b in pairwise(edges):
        part = whole.during(a, b)
        assert ((part.starts >= a) & (part.ends <= b) & (part.starts < part.ends)).all()
        assert (part.parents < len(part.starts)).all()
        for t in range(a, b):
            assert owners_at(part, t) == owners_at(whole, t)


@given(forests(circles=True), cuts())
def test_all_slices_at_once_are_the_slices_one_by_one(activities: list[DeviceExecution], edges: list[int]) -> None:
    whole = numbered(activities)
    found = list(whole.slices(edges))
    assert len(found) == len(edges) - 1
    for part, (a, b) in zip(found, pairwise(edges), strict=True):
        assert [column.tolist() for column in part] == [column.tolist() for column in whole.during(a, b)]


@given(forests(circles=True), st.integers(0, SPAN), st.integers(0, SPAN), st.integers(0, SPAN), st.integers(0, SPAN))
def test_a_slice_of_a_slice_is_the_slice_of_both(
    activities: list[DeviceExecution], a: int, b: int, c: int, d: int
) -> None:
    whole = numbered(activities)
    twice, once = whole.during(a, b).during(c, d), whole.during(max(a, c), min(b, d))
    for one, other in zip(twice, once, strict=True):
        assert one.tolist() == other.tolist()


@given(forests())
def test_ancestors_are_those_that_a_walk_from_parent_to_parent_meets_one_generation_after_the_other(
    activities: list[DeviceExecution],
) -> None:
    every, by_key = numbered(activities), {a.key: a for a in activities}
    found: dict[int, list[int]] = {int(key): [] for key in every.columns}
    for of, at in every.ancestors():
        for activity, ancestor in zip(every.columns[of].tolist(), every.columns[at].tolist(), strict=True):
            found[activity].append(ancestor)
    assert found == {a.key: [b.key for b in ancestors(a, by_key)] for a in activities}


@given(forests(), st.lists(st.integers(0, 7), max_size=4))
def test_of_several_with_one_key_the_last_counts(activities: list[DeviceExecution], again: list[int]) -> None:
    early = [DeviceExecution(key, None, "early", -3, 20) for key in again]
    last = {a.key: a for a in (*early, *activities)}
    twice, once = (Activities.of(each, len, SPAN) for each in ([*early, *activities], last.values()))
    assert [part.tolist() for part in twice] == [part.tolist() for part in once]


# ---------------------------------------------------------------------- segments


@given(forests(circles=True))
def test_segments_partition_the_stretch(activities: list[DeviceExecution]) -> None:
    found = segments(activities, 0, SPAN)
    assert (found[0].start_ns, found[-1].end_ns) == (0, SPAN)
    assert all(cut.start_ns < cut.end_ns for cut in found)
    assert all(a.end_ns == b.start_ns for a, b in pairwise(found))


@given(forests())
def test_at_every_tick_a_segment_holds_the_activities_with_no_descendant_running(
    activities: list[DeviceExecution],
) -> None:
    for cut in segments(activities, 0, SPAN):
        assert len({a.key for a in cut.innermost}) == len(cut.innermost)
        for t in range(cut.start_ns, cut.end_ns):
            assert {a.key for a in cut.innermost} == innermost_at(activities, t)


@given(forests())
def test_segments_hand_out_the_very_activities_that_they_were_given(activities: list[DeviceExecution]) -> None:
    given = {id(a) for a in activities}
    assert all(id(a) in given for cut in segments(activities, 0, SPAN) for a in cut.innermost)

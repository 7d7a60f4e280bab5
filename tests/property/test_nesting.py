"""Laws of covers, nesting and gaps, held against counting every moment."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.kernels.joining.columns import NONE, Numbers
from gpu_profile.kernels.joining.idle import IdleTimes, idle_between
from gpu_profile.kernels.joining.intervals import Cover
from gpu_profile.kernels.joining.nesting import Forest, Nesting

Spans = list[tuple[int, int]]
spans: st.SearchStrategy[Spans] = st.lists(
    st.tuples(st.integers(-5, 40), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12
)


def cover(found: Spans) -> Cover:
    return Cover(np.array([a for a, _ in found], np.int64), np.array([b for _, b in found], np.int64))


def moments(found: Spans) -> set[int]:
    return {t for a, b in found for t in range(a, b)}


@given(spans, spans)
def test_a_cover_is_as_long_as_the_moments_in_it_and_shares_those_in_both(one: Spans, other: Spans) -> None:
    assert cover(one).length == len(moments(one))
    assert cover(one).within(cover(other)) == cover(other).within(cover(one)) == len(moments(one) & moments(other))


@given(spans)
def test_the_intervals_of_a_cover_are_sorted_and_apart(found: Spans) -> None:
    covered = cover(found)
    assert (covered.starts < covered.ends).all()
    assert (covered.starts[1:] > covered.ends[:-1]).all()


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 12)), max_size=12))
def test_innermost_is_the_last_to_begin_of_those_that_are_open(found: list[tuple[int, int, int]]) -> None:
    threads = np.array([t for t, _, _ in found], np.int64)
    starts = np.array([a for _, a, _ in found], np.int64)
    ends = starts + np.array([n for _, _, n in found], np.int64)
    nesting = Nesting(threads, starts, ends)
    for thread in (0, 1, 2):
        for moment in range(-1, 45):
            opened = [i for i in range(len(found)) if threads[i] == thread and starts[i] <= moment < ends[i]]
            # Of those that begin together, the shortest is inside the others.
            expected = max(opened, key=lambda i: (starts[i], -ends[i], i), default=-1)
            assert nesting.at(np.array([thread]), np.array([moment])).tolist() == [expected]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12))
def test_a_parent_was_open_when_its_child_began(found: list[tuple[int, int]]) -> None:
    starts = np.array([a for a, _ in found], np.int64)
    ends = starts + np.array([n for _, n in found], np.int64)
    nesting = Nesting(np.zeros(len(found), np.int64), starts, ends)
    crossing = False
    for child, parent in enumerate(nesting.parents.tolist()):
        if parent >= 0:
            assert starts[parent] <= starts[child] < ends[parent]
            crossing |= bool(ends[child] > ends[parent])
    assert nesting.crossing > 0 if crossing else True


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    count = draw(st.integers(0, 15))
    parents = [draw(st.integers(-1, number - 1)) for number in range(count)]
    return parents, [draw(st.integers(0, 3)) for _ in range(count)]


def ancestors(parents: list[int], number: int) -> list[int]:
    found = []
    while (number := parents[number]) >= 0:
        found.append(number)
    return found


@given(trees())
def test_all_that_is_inside_a_number_is_one_stretch_of_the_forest(tree: tuple[list[int], list[int]]) -> None:
    parents, names = tree
    forest = Forest(np.array(parents, np.int64), np.array(names, np.int64))
    assert sorted(forest.first.tolist()) == list(range(len(parents)))
    for number in range(len(parents)):
        inside = {i for i in range(len(parents)) if i == number or number in ancestors(parents, i)}
        stretch = {i for i in range(len(parents)) if forest.first[number] <= forest.first[i] < forest.last[number]}
        assert stretch == inside


@given(trees())
def test_outermost_are_those_with_none_of_their_name_around_them(tree: tuple[list[int], list[int]]) -> None:
    parents, names = tree
    forest = Forest(np.array(parents, np.int64), np.array(names, np.int64))
    expected: dict[int, set[int]] = {}
    for number, name in enumerate(names):
        if all(names[around] != name for around in ancestors(parents, number)):
            expected.setdefault(name, set()).add(number)
    assert {name: set(found) for name, found in forest.outermost.items()} == expected


Launched = list[tuple[int, int, int | None]]
operations: st.SearchStrategy[Launched] = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 12), st.none() | st.integers(-10, 70)), min_size=1, max_size=10
)


def columns(found: Launched) -> tuple[Numbers, Numbers, Numbers]:
    """Starts, ends and launches, sorted."""
    found = sorted(found, key=lambda o: (o[0], NONE if o[2] is None else o[2], o[0] + o[1]))
    starts = np.array([a for a, _, _ in found], np.int64)
    launched = np.array([NONE if c is None else c for _, _, c in found], np.int64)
    return starts, starts + np.array([n for _, n, _ in found], np.int64), launched


@given(operations)
def test_idle_times_of_any_part_add_up_to_those_of_the_whole(found: Launched) -> None:
    starts, ends, launched = columns(found)
    times = IdleTimes(starts, ends, launched)
    first, last = int(starts[0]), int(ends.max())
    cuts = [*range(first, last, 7), last]
    parts = [times.within(cover([(a, b)])) for a, b in pairwise(cuts)]
    whole = parts[0]
    for part in parts[1:]:
        whole += part
    assert whole == idle_between(starts, ends, launched, first, last)
    assert whole.total_ns + cover([(int(a), int(b)) for a, b in zip(starts, ends, strict=True)]).length == last - first


@given(operations)
def test_before_the_first_and_after_the_last_operation_a_device_waits_for_the_host(found: Launched) -> None:
    starts, ends, launched = columns(found)
    times = IdleTimes(starts, ends, launched)
    after = times.within(cover([(int(ends.max()), int(ends.max()) + 50)]))
    assert (after.host_wait_ns, after.total_ns) == (50, 50)
    before = times.within(cover([(int(starts[0]) - 50, int(starts[0]))]))
    assert before.total_ns == 50
    assert before.unknown_ns == (50 if launched[0] == NONE else 0)

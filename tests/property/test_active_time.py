from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property.activity_trees import SPAN, cuts, forests, shared_at

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.activities import Activities, DeviceExecution, Pieces, concurrency, pieces

#: Three columns of time alone, and as many of shared time.
COLUMNS = 7
T0 = 1_700_000_000_000_000_000


@st.composite
def stretches(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Pieces by start: (column, start, end), anywhere, coinciding or not."""
    return sorted(
        (
            (draw(st.integers(1, 3)), start, start + draw(st.integers(1, 15)))
            for start in draw(st.lists(st.integers(0, SPAN), max_size=8))
        ),
        key=lambda piece: piece[1],
    )


def active(stretches: list[tuple[int, int, int]], *, at: int = 0) -> ActiveTime:
    column, starts, ends = (np.array([s[i] for s in stretches], np.int64) for i in range(3))
    alone = column.astype(np.int16)
    return ActiveTime.of(Pieces(np.arange(len(column)), starts + at, ends + at), alone, alone + np.int16(3))


def naive(stretches: list[tuple[int, int, int]], a: int, b: int) -> Floats:
    result = np.zeros(COLUMNS)
    for t in range(a, b):
        running = [column for column, start, end in stretches if start <= t < end]
        for column in running:
            result[column if len(running) == 1 else column + 3] += 1 / len(running)
    return result


moments = st.lists(st.integers(-5, SPAN + 20), min_size=1, max_size=6).map(sorted)


@given(stretches(), moments, st.sampled_from([0, T0]))
def test_differences_are_the_sums_over_ticks_of_equal_shares(
    pieces: list[tuple[int, int, int]], at: list[int], origin: int
) -> None:
    sums = active(pieces, at=origin).until(np.array(at) + origin, COLUMNS)
    assert sums.shape == (COLUMNS, len(at))
    for i, (a, b) in enumerate(pairwise(at)):
        assert sums[:, i + 1] - sums[:, i] == pytest.approx(naive(pieces, a, b), abs=1e-6)


@given(stretches(), moments, st.randoms(use_true_random=False), st.sampled_from([0, T0]))
def test_moments_in_any_order_have_what_sorted_ones_have_with_tables_and_without(
    pieces: list[tuple[int, int, int]], at: list[int], random: Random, origin: int
) -> None:
    time, slots = active(pieces, at=origin), np.array([-1, 0, -1, 1, -1, -1, 2])
    order = np.array(random.sample(range(len(at)), len(at)))
    some = np.array(at) + origin
    running, varied = time.varied(some, slots)
    sums = [*varied.values(), time.until(some, COLUMNS), time.tails(some, slots)]
    for again in (time, time.tabled(COLUMNS)):
        ran, vary = again.varied(some[order], slots)
        assert np.array_equal(ran, running[:, order])
        found = [*vary.values(), again.until(some[order], COLUMNS), again.tails(some[order], slots)]
        for one, other in zip(sums, found, strict=True):
            # Counted from somewhere: only differences mean something.
            assert other - other[:, :1] == pytest.approx(one[:, order] - one[:, order[:1]], abs=1e-6)


@given(stretches())
def test_alone_and_shared_lengths_add_up_to_each_columns_time_and_to_the_time_in_which_anything_was_active(
    pieces: list[tuple[int, int, int]],
) -> None:
    time = active(pieces)
    alone, shared = time.lengths()
    whole = np.bincount(time.alone, alone, COLUMNS) + np.bincount(time.shared, shared, COLUMNS)
    assert whole == pytest.approx(naive(pieces, 0, SPAN + 20))
    busy = sum(any(start <= t < end for _, start, end in pieces) for t in range(SPAN + 20))
    assert whole.sum() == pytest.approx(busy)


@given(stretches())
def test_time_that_was_not_shared_is_exactly_nought(pieces: list[tuple[int, int, int]]) -> None:
    time = active(pieces)
    _, shared = time.lengths()
    for (_, start, end), found in zip(pieces, shared.tolist(), strict=True):
        beside = any(sum(a <= t < b for _, a, b in pieces) > 1 for t in range(start, end))
        assert (found > 0) == beside


@given(stretches())
def test_concurrency_is_the_number_of_pieces_from_each_change_on(pieces: list[tuple[int, int, int]]) -> None:
    time = active(pieces)
    changes, counts = concurrency(Pieces(np.arange(len(pieces)), time.starts, time.ends))
    assert (np.diff(changes) > 0).all()
    for t in range(-2, SPAN + 20):
        known = int(counts[changes <= t][-1]) if (changes <= t).any() else 0
        assert known == sum(start <= t < end for _, start, end in pieces)


@given(forests(), cuts())
def test_the_slices_of_a_forest_add_up_to_its_ticks(activities: list[DeviceExecution], edges: list[int]) -> None:
    every = Activities.of(activities, lambda region: 1 + int(region[1:]), SPAN)
    total = np.zeros(COLUMNS)
    for a, b in pairwise(edges):
        part = every.during(a, b)
        found = pieces(part)
        alone = part.columns[found.owners]
        sums = ActiveTime.of(found, alone, alone + 3).until(np.array([a, b]), COLUMNS)
        total += sums[:, 1] - sums[:, 0]
    wanted = np.zeros(COLUMNS)
    for t in range(SPAN):
        for activity, share in shared_at(activities, t):
            wanted[1 + int(activity.region[1:]) + (0 if share == 1 else 3)] += share
    assert total == pytest.approx(wanted)

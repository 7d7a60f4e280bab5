from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.worlds import MS, QUANTUM, T0, Load, at, every, polled, timeline

from gpu_profile.catalogue.samples import Interval, Sample
from gpu_profile.catalogue.signals import UTILIZATION
from gpu_profile.join.busy import busy_time, settled
from gpu_profile.join.trailing import BusyBounds, Readings, busy_between
from gpu_profile.join.window_search import WindowFinder

#: What stamps and a search that stops at a nanosecond leave open, ns.
SLACK = 10_000
END_MS = 1000

rates = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))


@st.composite
def loads(draw: st.DrawFn, *, end_ms: int = END_MS, levels: st.SearchStrategy[float] = rates) -> Load:
    """Any load from long before the first reading on."""
    edges = sorted(draw(st.sets(st.integers(-3000, end_ms), min_size=2, max_size=10)))
    return Load(tuple(map(float, edges)), tuple(draw(levels) for _ in edges[1:]))


@dataclass(frozen=True)
class Sensed:
    """A load, and readings of it through a window of `window_ms`; some were missed."""

    load: Load
    window_ms: int
    readings: Readings


@st.composite
def sensed(draw: st.DrawFn, *, loose_ms: int = 0, shortest_ms: int = 20) -> Sensed:
    load, window = draw(loads()), draw(st.integers(shortest_ms, 1200))
    moments = every(draw(st.integers(20, 300)), END_MS, from_ms=draw(st.integers(0, 100)))
    kept = draw(st.lists(st.booleans(), min_size=len(moments), max_size=len(moments)))
    readings = load.readings(moments, window * MS).part(np.array(kept, bool))
    early, late = (draw(st.integers(0, loose_ms)) * MS for _ in range(2))
    loose = readings._replace(earliest=readings.earliest - early, latest=readings.latest + late)
    return Sensed(load, window, loose)


moments_ms = st.floats(-200, END_MS + 200, allow_nan=False)


def bounds(found: BusyBounds | None) -> BusyBounds:
    assert found is not None
    assert found.low_ns <= found.value_ns <= found.high_ns
    return found


@given(sensed(), moments_ms, moments_ms)
def test_the_true_busy_time_lies_between_the_bounds_whatever_the_load_and_the_window(
    world: Sensed, a_ms: float, b_ms: float
) -> None:
    a, b = sorted((at(a_ms), at(b_ms)))
    found = bounds(busy_between(world.readings, a, b))
    assert found.low_ns - SLACK <= world.load.between(a, b) <= found.high_ns + SLACK
    assert 0 <= found.low_ns <= found.high_ns <= b - a


@given(sensed(loose_ms=80), moments_ms, moments_ms)
def test_the_bounds_hold_for_readings_whose_moments_are_uncertain(world: Sensed, a_ms: float, b_ms: float) -> None:
    a, b = sorted((at(a_ms), at(b_ms)))
    found = bounds(busy_between(world.readings, a, b))
    assert found.low_ns - SLACK <= world.load.between(a, b) <= found.high_ns + SLACK


@given(sensed(loose_ms=30, shortest_ms=700), st.lists(moments_ms, min_size=4, max_size=4))
def test_a_wider_interval_has_no_less_and_parts_sum_to_the_whole_within_bounds(
    world: Sensed, four: list[float]
) -> None:
    a, b, c, d = sorted(map(at, four))
    inner, outer = (bounds(busy_between(world.readings, *pair)) for pair in ((b, c), (a, d)))
    assert outer.low_ns >= inner.low_ns - SLACK
    assert outer.high_ns >= inner.high_ns - SLACK
    left, right, whole = (bounds(busy_between(world.readings, *pair)) for pair in ((a, b), (b, d), (a, d)))
    assert left.low_ns + right.low_ns <= whole.low_ns + SLACK
    assert whole.high_ns <= left.high_ns + right.high_ns + SLACK


@given(loads(), st.integers(1, 10), st.integers(20, 100))
def test_over_its_own_window_a_reading_leaves_no_more_open_than_its_rounding(
    load: Load, multiple: int, refresh_ms: int
) -> None:
    window = multiple * refresh_ms
    moments = every(refresh_ms, END_MS, from_ms=0)
    end = int(moments[-1])
    found = bounds(busy_between(load.readings(moments, window * MS), end - window * MS, end))
    assert found.high_ns - found.low_ns <= QUANTUM * window * MS + SLACK


@given(sensed(), moments_ms, moments_ms, st.integers(0, 40))
def test_another_reading_never_widens_the_bounds(world: Sensed, a_ms: float, b_ms: float, missed: int) -> None:
    a, b = sorted((at(a_ms), at(b_ms)))
    readings = world.readings.around(a, b)
    keep = np.arange(len(readings.latest)) != missed
    some, every_one = (bounds(busy_between(part, a, b)) for part in (readings.part(keep), readings))
    assert some.low_ns - SLACK <= every_one.low_ns
    assert every_one.high_ns <= some.high_ns + SLACK


@given(
    loads(end_ms=4000),
    st.sampled_from([(1000, 100), (500, 100), (1000, 50), (200, 200), (300, 100)]),
    st.floats(500, 4300),
    st.floats(500, 4300),
)
def test_a_window_is_never_ruled_out_by_its_own_readings_and_the_truth_is_among_what_is_possible(
    load: Load, sensor: tuple[int, int], a_ms: float, b_ms: float
) -> None:
    window, refresh = sensor
    moments = every(refresh, 4400)
    history = timeline(moments, load.read(moments, window * MS))
    found = WindowFinder().learn(history.columns[UTILIZATION])
    assert found is not None
    assert any(abs(w - window * MS) <= 0.01 * window * MS for w in found.alive)
    a, b = sorted((at(a_ms), at(b_ms)))
    busy = busy_time(history, Interval(a, b))
    if busy is not None and found.known_ns == 0:
        assert busy.low_s - 1e-5 <= load.between(a, b) / 1e9 <= busy.high_s + 1e-5


@given(
    loads(end_ms=4000, levels=st.sampled_from([0.0, 1.0])),
    st.sampled_from([(1000, 100), (500, 100), (1000, 1000 / 6)]),
    st.sampled_from([20, 50, 130, 200]),
    st.floats(500, 4000),
    st.floats(150, 2000),
)
def test_polled_readings_never_lose_the_truth_while_the_window_is_open_or_right(
    load: Load, sensor: tuple[float, float], poll_ms: int, a_ms: float, length_ms: float
) -> None:
    window, refresh = sensor
    history = polled(load, window_ms=window, refresh_ms=refresh, poll_ms=poll_ms, until_ms=6500)
    found = WindowFinder().learn(history.columns[UTILIZATION])
    assert found is not None
    a, b = at(a_ms), at(a_ms + length_ms)
    busy = busy_time(history, Interval(a, b))
    right = found.known_ns == 0 or abs(found.known_ns - window * MS) <= 0.01 * window * MS
    if busy is not None and right and found.stale_ns >= refresh * MS:
        assert busy.low_s - 1e-5 <= load.between(a, b) / 1e9 <= busy.high_s + 1e-5


arbitrary = st.lists(
    st.tuples(st.integers(-500, 5000), st.integers(-100, 1200), st.integers(-5, 130), st.booleans()), max_size=40
)


@given(arbitrary, st.integers(-1000, 6000), st.integers(-100, 70_000))
def test_readings_that_are_missing_doubled_late_or_garbage_never_raise(
    rows: list[tuple[int, int, int, bool]], a_ms: int, length_ms: int
) -> None:
    history = timeline(every(100, 100), [0])
    for end, length, value, doubled in rows:
        sample = Sample(UTILIZATION, T0 + (end - length) * MS, T0 + end * MS, value)
        history.append([sample, sample] if doubled else [sample])
    a, b = at(a_ms), at(a_ms + length_ms)
    settled(history, b)
    busy = busy_time(history, Interval(a, b))
    if busy is not None:
        assert 0 <= busy.low_s <= busy.value_s <= busy.high_s <= busy.length_s + 1e-9
        assert busy.sure or busy.reason

import numpy as np
import pytest
from support.worlds import MS, Load, at, every, polled, stamped, timeline

from gpu_profile.catalogue.samples import Sample
from gpu_profile.catalogue.signals import UTILIZATION
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.window_search import LONGEST_NS, WindowEstimate, WindowFinder, readings_of, renewals

STEP = Load.steps((3010, 6000))


def learn(history: Timeline) -> WindowEstimate:
    found = WindowFinder().learn(history.columns[UTILIZATION])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("window_ms", "refresh_ms"), [(1000, 100), (500, 100), (300, 100), (1000, 1000 / 6), (1000, 20), (500, 50)]
)
def test_one_step_of_the_load_proves_the_window_of_stamped_readings(window_ms: float, refresh_ms: float) -> None:
    found = learn(stamped(STEP, window_ms=window_ms, refresh_ms=refresh_ms, until_ms=5000))
    assert found.stamped
    assert found.known_ns == pytest.approx(window_ms * MS, rel=1e-4)
    assert found.windows == (found.known_ns,)


@pytest.mark.parametrize(("window_ms", "poll_ms"), [(1000, 50), (1000, 200), (1000, 10), (500, 50)])
def test_one_step_of_the_load_proves_the_window_of_polled_readings(window_ms: float, poll_ms: float) -> None:
    found = learn(polled(STEP, window_ms=window_ms, refresh_ms=100, poll_ms=poll_ms, until_ms=5000))
    assert not found.stamped
    assert found.known_ns == pytest.approx(window_ms * MS, rel=1e-4)


def test_a_jump_within_one_refresh_shows_that_the_window_is_no_longer_than_that() -> None:
    jumps = Load.steps((3000, 3600), (4200, 4800), (5400, 6000))
    once, often = (
        learn(stamped(jumps, window_ms=1000 / 6, refresh_ms=1000 / 6, until_ms=until)) for until in (3500, 7000)
    )
    # A single reading could be garbage.
    assert once.known_ns == 0
    assert often.known_ns == pytest.approx(1000 / 6 * MS, rel=1e-4)


def test_a_reading_that_is_garbage_rules_nothing_out() -> None:
    moments = every(100, 6000)
    values = STEP.read(moments, 1000 * MS)
    values[10] = 100
    assert learn(timeline(moments[:25], values[:25])).alive == learn(timeline(moments[:10], values[:10])).alive
    assert learn(timeline(moments, values)).known_ns == 1000 * MS


def test_before_anything_happened_every_window_is_possible() -> None:
    found = learn(stamped(STEP, window_ms=1000, refresh_ms=100, until_ms=3000))
    assert found.known_ns == 0
    assert found.windows == found.alive
    assert found.windows[0] == 1000 * MS
    assert found.windows[-1] == 100 * MS


def test_a_load_that_rises_more_slowly_than_any_window_proves_none() -> None:
    slow = Load(tuple(range(3000, 8001, 500)), tuple(k / 10 for k in range(10)))
    assert learn(stamped(slow, window_ms=100, refresh_ms=100, until_ms=7000)).known_ns == 0


def test_a_window_that_a_ramp_proved_is_dropped_when_the_load_shows_otherwise() -> None:
    # On a sensor of 100 ms, a load that rises by a tenth every 100 ms looks like a step on one of 1 s. Then it steps.
    steps = (4500, *range(5000, 8001, 300))
    ramp = Load((*range(3000, 4001, 100), *steps), (*(k / 10 for k in range(1, 11)), *(k % 2 for k in range(1, 13))))
    finder = WindowFinder()
    moments = every(100, 9000)
    values = ramp.read(moments, 100 * MS)
    history = timeline(moments[:45], values[:45])
    fooled = finder.learn(history.columns[UTILIZATION])
    assert fooled is not None
    assert fooled.known_ns == 1000 * MS
    starts, ends = moments[44:-1].tolist(), moments[45:].tolist()
    for start, end, value in zip(starts, ends, values[45:].tolist(), strict=True):
        history.append([Sample(UTILIZATION, start, end, value)])
    found = finder.learn(history.columns[UTILIZATION])
    assert found is not None
    assert found.known_ns == 100 * MS


def test_what_was_found_stays_while_nothing_new_comes() -> None:
    finder = WindowFinder()
    column = stamped(STEP, window_ms=1000, refresh_ms=100, until_ms=5000).columns[UTILIZATION]
    assert finder.learn(column) is finder.learn(column)


def test_a_clock_that_is_set_back_starts_the_search_again() -> None:
    finder = WindowFinder()
    before = stamped(STEP, window_ms=1000, refresh_ms=100, until_ms=5000).columns[UTILIZATION]
    after = stamped(STEP, window_ms=1000, refresh_ms=100, until_ms=2000).columns[UTILIZATION]
    first, second = finder.learn(before), finder.learn(after)
    assert first is not None
    assert second is not None
    assert (first.known_ns, second.known_ns) == (1000 * MS, 0)


def test_too_few_readings_tell_nothing() -> None:
    assert WindowFinder().learn(timeline(every(100, 300), [0, 0, 0]).columns[UTILIZATION]) is None
    assert (
        WindowFinder().learn(Timeline(timeline(every(100, 100), [0]).device, [UTILIZATION]).columns[UTILIZATION])
        is None
    )


def test_polled_readings_may_be_as_old_as_two_changes_in_a_row_lie_apart() -> None:
    history = polled(STEP, window_ms=1000, refresh_ms=100, poll_ms=50, until_ms=3800)
    found = learn(history)
    assert 100 * MS <= found.stale_ns <= 160 * MS
    assert learn(polled(STEP, window_ms=1000, refresh_ms=100, poll_ms=50, until_ms=3000)).stale_ns == LONGEST_NS


def test_garbage_does_not_make_polled_readings_look_fresher_than_they_are() -> None:
    polls = every(10, 6000) + 137
    values = STEP.read(polls - (polls - at(0)) % (100 * MS), 1000 * MS)
    values[150] = 100
    assert learn(timeline(polls, values)).stale_ns >= 100 * MS


def test_a_polled_value_that_changed_is_of_a_renewal_since_the_poll_before() -> None:
    history = polled(STEP, window_ms=1000, refresh_ms=100, poll_ms=50, until_ms=5000)
    column = history.columns[UTILIZATION]
    readings = readings_of(column, learn(history), at(2500), at(3900))
    renewed = (readings.latest - at(0)) // (100 * MS) * (100 * MS) + at(0)
    assert (readings.earliest <= renewed).all()
    assert (renewed <= readings.latest).all()
    on_the_ramp = slice(int(readings.latest.searchsorted(at(3150))), -1)
    assert (readings.latest[on_the_ramp] - readings.earliest[on_the_ramp] <= 56 * MS).all()
    assert (np.diff(readings.latest[on_the_ramp]) == 100 * MS).all()


def test_an_even_pace_is_found_with_the_moments_that_it_gives() -> None:
    history = polled(STEP, window_ms=1000, refresh_ms=100, poll_ms=50, until_ms=3900)
    column = history.columns[UTILIZATION]
    readings = readings_of(column, learn(history), at(2500), at(3900))
    first = next(renewals(readings))
    assert all((guess.earliest == guess.latest).all() for guess in first)
    off = [np.abs((guess.latest - at(0) + 50 * MS) % (100 * MS) - 50 * MS).max() for guess in first]
    # One of the phases that are tried is next to the true one.
    assert min(off) <= 5 * MS

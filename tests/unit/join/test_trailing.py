import numpy as np
import pytest
from support.worlds import MS, QUANTUM, Load, at, every

from gpu_profile.join.trailing import BusyBounds, Readings, busy_between, hull, merged

WINDOW = 1000 * MS
#: Half a per cent of a window of 1 s, and what stamps leave open.
DOUBT = 5.003 * MS

IDLE = Load((0.0, 1.0), (0.0,))


def nothing() -> Readings:
    none = np.zeros(0, np.int64)
    return Readings.exact(none, none, np.zeros(0), QUANTUM)


def test_the_ramp_of_a_busy_region_after_idle_time_is_read_as_full_load() -> None:
    load = Load.steps((2000, 2500))
    found = busy_between(load.readings(every(100, 2701), WINDOW), at(2000), at(2500))
    assert found is not None
    assert found.value_ns == pytest.approx(500 * MS, abs=DOUBT)
    assert found.high_ns == 500 * MS


def test_an_idle_region_after_work_is_read_as_idle_though_every_reading_of_it_is_high() -> None:
    load = Load.steps((0, 3000))
    found = busy_between(load.readings(every(100, 3701), WINDOW), at(3000), at(3500))
    assert found is not None
    assert found.value_ns <= DOUBT
    assert found.low_ns == 0


def test_between_two_readings_after_idle_time_only_rounding_is_left_open() -> None:
    load = Load((0, 2000, 2300, 3000), (0.0, 0.4, 0.0))
    found = busy_between(load.readings(every(100, 2801), WINDOW), at(1900), at(2300))
    assert found is not None
    assert found.low_ns <= 120 * MS <= found.high_ns
    assert found.high_ns - found.low_ns <= 4 * DOUBT


def test_an_edge_inside_a_cell_leaves_open_what_the_cell_does_not_tell() -> None:
    # 50 ms of work in a cell of 100 ms that the interval begins in the middle of: all before, all after, or between.
    load = Load.steps((2025, 2075))
    found = busy_between(load.readings(every(100, 2901), WINDOW), at(2050), at(2500))
    assert found is not None
    assert found.low_ns == pytest.approx(0, abs=DOUBT)
    assert found.high_ns == pytest.approx(50 * MS, abs=2 * DOUBT)


def test_without_history_a_first_reading_says_only_what_it_must() -> None:
    load = Load.steps((0, 500))
    found = busy_between(load.readings(np.array([at(600)]), WINDOW), at(100), at(600))
    assert found is not None
    # Half a second of work in the last second: it may all have been before.
    assert found.low_ns == 0
    assert found.high_ns == pytest.approx(500 * MS, abs=DOUBT)


def test_without_readings_all_is_possible() -> None:
    assert busy_between(nothing(), at(0), at(100)) == BusyBounds(50 * MS, 0, 100 * MS)


def test_an_interval_of_no_length_has_no_busy_time() -> None:
    assert busy_between(IDLE.readings(every(100, 2000), WINDOW), at(1000), at(1000)) == BusyBounds(0, 0, 0)


def test_readings_that_no_load_can_give_have_no_answer() -> None:
    moments = np.array([at(0), at(100)])
    windows = np.full(2, WINDOW)
    # A second's mean does not go from nothing to all in a tenth of it.
    assert busy_between(Readings.exact(moments, windows, np.array([0.0, 1.0]), QUANTUM), at(0), at(100)) is None
    # Nor does a contradiction go unseen that only a chain of windows shows: idle for a second, yet busy within it.
    moments = np.array([at(0), at(500), at(1000)])
    windows = np.array([WINDOW, 500 * MS, WINDOW])
    assert busy_between(Readings.exact(moments, windows, np.array([0.0, 0.5, 0.0]), QUANTUM), at(0), at(100)) is None


def test_an_interval_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match="ends before it starts: 5 > 3"):
        busy_between(nothing(), 5, 3)


@pytest.mark.parametrize("lag_ms", [0, 20, 50])
def test_uncertain_moments_widen_the_bounds_and_never_lose_the_truth(lag_ms: int) -> None:
    load = Load.steps((2000, 3000))
    moments = every(100, 4000, from_ms=33)
    exact = load.readings(moments, WINDOW)
    loose = exact._replace(latest=moments + lag_ms * MS, earliest=moments - (50 - lag_ms) * MS)
    found, sharp = (busy_between(part, at(2100), at(3200)) for part in (loose, exact))
    assert found is not None
    assert sharp is not None
    assert found.low_ns <= sharp.low_ns <= 900 * MS <= sharp.high_ns <= found.high_ns
    assert found.high_ns - found.low_ns > sharp.high_ns - sharp.low_ns


def test_guesses_that_fit_best_decide_within_the_bounds() -> None:
    load = Load.steps((2000, 2500))
    moments = every(100, 2901, from_ms=40)
    polls = moments + 30 * MS
    loose = load.readings(moments, WINDOW)._replace(latest=polls, earliest=polls - 100 * MS)
    lags = [loose._replace(latest=polls - lag * MS, earliest=polls - lag * MS) for lag in (0, 30, 60, 90)]
    found = busy_between(loose, at(2000), at(2500), [lags])
    assert found is not None
    assert found.value_ns == pytest.approx(500 * MS, abs=2 * DOUBT)
    wrong = busy_between(loose, at(2000), at(2500), [lags[:1], lags[3:]])
    assert wrong is not None
    assert (wrong.low_ns, wrong.high_ns) == (found.low_ns, found.high_ns)
    assert wrong.value_ns < found.value_ns


def test_bounds_of_several_hypotheses_are_those_of_any_with_the_guess_of_the_first() -> None:
    assert hull([BusyBounds(5, 4, 6), BusyBounds(2, 1, 5)]) == BusyBounds(5, 1, 6)
    assert hull([]) is None


def test_tiles_far_inside_an_interval_say_as_much_when_they_are_made_one() -> None:
    load = Load((0, 130, 3910, 4000), (0.3, 0.8, 0.1))
    tiles = load.readings(every(100, 4500), 100 * MS)
    one = merged(tiles, at(600), at(3400))
    assert len(one.latest) == len(tiles.latest) - 27
    apart, together = (busy_between(part, at(150), at(3950)) for part in (tiles, one))
    assert apart is not None
    assert together is not None
    # Each of 28 stamps leaves 2 us open, of which one is left.
    assert list(together) == pytest.approx(list(apart), abs=28 * 4_000)


def test_tiles_with_a_gap_between_them_stay_apart() -> None:
    tiles = IDLE.readings(every(100, 2000), 100 * MS).part(np.arange(20) != 10)
    assert merged(tiles, at(300), at(1700)) is tiles

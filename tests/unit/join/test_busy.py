import gc
import weakref

import pytest
from support.worlds import MS, T0, Load, at, every, polled, stamped, tiles, timeline

from gpu_profile.catalogue.samples import Device, Interval, Sample
from gpu_profile.catalogue.signals import GRAPHICS, POWER, UTILIZATION
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.busy import BusyTime, busy_time, settled
from gpu_profile.join.reading import read

#: A process's first seconds of work, and then a region of 500 ms on its own.
LOAD = Load.steps((3013, 5047), (8000, 8500))
REGION = Interval(at(8000), at(8500))


def judged(history: Timeline, interval: Interval = REGION) -> BusyTime:
    found = busy_time(history, interval)
    assert found is not None
    return found


def test_a_busy_half_second_under_a_trailing_window_is_read_right_where_an_overlap_join_is_not() -> None:
    history = stamped(LOAD, window_ms=1000, refresh_ms=100, until_ms=8601)
    found = judged(history)
    naive = read(history.columns[UTILIZATION], REGION)
    assert naive is not None
    assert naive.total < 0.2
    assert found.value_s == pytest.approx(0.5, abs=0.01)
    assert (found.sure, found.reason, found.source) == (True, "", UTILIZATION)
    assert found.share == pytest.approx(1, abs=0.02)


def test_an_idle_half_second_after_work_is_read_right() -> None:
    history = stamped(LOAD, window_ms=1000, refresh_ms=100, until_ms=9101)
    found = judged(history, Interval(at(8500), at(9000)))
    assert found.value_s <= 0.01
    assert found.sure


@pytest.mark.parametrize("poll_ms", [20, 50, 200])
def test_polled_readings_give_bounds_that_hold_and_a_guess_that_is_near(poll_ms: float) -> None:
    found = judged(polled(LOAD, window_ms=1000, refresh_ms=100, poll_ms=poll_ms, until_ms=9101))
    assert found.low_s <= 0.5 <= found.high_s
    assert found.value_s == pytest.approx(0.5, abs=0.025)


def test_an_interval_shorter_than_what_readings_resolve_is_flagged_with_the_reason() -> None:
    found = judged(stamped(LOAD, window_ms=1000, refresh_ms=100, until_ms=9000), Interval(at(8030), at(8090)))
    assert not found.sure
    assert found.reason == "too short for readings of moments up to 100 ms apart"
    assert found.low_s <= 0.06 <= found.high_s
    assert found.half_width_s == (found.high_s - found.low_s) / 2


def test_while_the_window_is_unknown_the_answer_is_flagged_and_holds_for_every_one() -> None:
    gentle = Load((3000, 3500, 4000, 5000), (0.2, 0.35, 0.1))
    found = judged(stamped(gentle, window_ms=1000, refresh_ms=100, until_ms=5200), Interval(at(3500), at(4000)))
    assert found.reason == "the sensor's window is not known yet: 100 to 1000 ms"
    assert found.low_s <= 0.175 <= found.high_s


def test_an_idle_device_is_idle_whatever_the_window() -> None:
    found = judged(stamped(LOAD, window_ms=1000, refresh_ms=100, until_ms=3000), Interval(at(2000), at(2400)))
    assert found.sure
    assert found.value_s <= 0.005


def test_a_region_whose_end_no_reading_covers_is_flagged() -> None:
    found = judged(stamped(LOAD, window_ms=1000, refresh_ms=100, until_ms=8250))
    assert found.reason == "no reading covers its end yet"
    assert found.low_s <= 0.5 <= found.high_s


def test_a_region_from_before_the_first_reading_is_flagged() -> None:
    late = Load.steps((1000, 3050), (5000, 6000))
    found = judged(
        stamped(late, window_ms=1000, refresh_ms=100, from_ms=2700, until_ms=7000), Interval(at(1200), at(2900))
    )
    assert found.reason == "no readings from before its start"
    assert found.low_s <= 1.7 <= found.high_s


def test_history_that_the_driver_kept_from_before_the_first_region_is_used() -> None:
    # Drained at once when the process began: with nothing but readings from the region's start on, all is possible.
    whole = judged(stamped(LOAD, window_ms=1000, refresh_ms=100, until_ms=8601))
    cut = judged(stamped(LOAD, window_ms=1000, refresh_ms=100, from_ms=8000, until_ms=8601))
    assert whole.sure
    assert not cut.sure
    assert cut.low_s <= 0.5 <= cut.high_s


def test_readings_that_contradict_each_other_are_said_to() -> None:
    moments = every(100, 9000)
    values = LOAD.read(moments, 1000 * MS)
    values[84:87] = [100, 0, 100]
    found = judged(timeline(moments, values))
    assert (found.reason, found.sure) == ("the readings contradict each other", False)
    assert (found.low_s, found.high_s) == (0, 0.5)


def test_garbage_before_the_window_is_known_makes_nobody_sure() -> None:
    gentle = Load((3000, 4000, 5000), (0.2, 0.4))
    moments = every(100, 5200)
    values = gentle.read(moments, 1000 * MS)
    values[42] = 100
    assert not judged(timeline(moments, values), Interval(at(3500), at(4500))).sure


def test_nothing_is_known_where_no_readings_are() -> None:
    empty = Timeline(Device("GPU-a"), [UTILIZATION])
    assert busy_time(empty, REGION) is None
    assert busy_time(Timeline(Device("GPU-a"), [POWER]), REGION) is None
    history = stamped(LOAD, window_ms=1000, refresh_ms=100, until_ms=5000)
    assert busy_time(history, Interval(at(6000), at(7000))) is None
    assert busy_time(history, Interval(at(-4000), at(-3000))) is None


def test_an_interval_of_no_length_has_no_busy_time() -> None:
    history = stamped(LOAD, window_ms=1000, refresh_ms=100, until_ms=5000)
    assert busy_time(history, Interval(at(3000), at(3000))) is None
    assert busy_time(history, Interval(at(3000), at(2000))) is None


def test_a_long_interval_is_a_sum_with_the_window_as_its_doubt() -> None:
    steady = Load((2000, 202_000), (0.4,))
    found = judged(stamped(steady, window_ms=1000, refresh_ms=100, until_ms=203_000), Interval(at(2000), at(202_000)))
    assert found.low_s <= 80 <= found.high_s
    assert found.sure
    assert found.value_s - found.low_s <= 1.7, "half a window, a renewal, and what rounding leaves out"
    assert found.high_s - found.value_s <= 2.7, "and what is cut off"


def test_a_long_interval_that_readings_hardly_cover_is_flagged() -> None:
    steady = Load((2000, 202_000), (0.4,))
    found = judged(stamped(steady, window_ms=1000, refresh_ms=100, until_ms=60_000), Interval(at(2000), at(202_000)))
    assert found.reason == "readings cover too little of it"
    assert found.low_s <= 80 <= found.high_s


@pytest.mark.parametrize("phase_ms", [0, 20, 55, 90])
def test_activity_counters_come_first_and_their_unknown_phase_is_reckoned_with(phase_ms: float) -> None:
    history = tiles(LOAD, period_ms=105, phase_ms=phase_ms, until_ms=8900)
    history.append([Sample(UTILIZATION, at(0), at(8900), 0)])
    found = judged(history)
    assert found.source is GRAPHICS
    assert found.low_s <= 0.5 <= found.high_s
    assert found.value_s == pytest.approx(0.5, abs=0.025)
    second = judged(history, Interval(at(3013), at(5047)))
    assert second.sure
    assert second.value_s == pytest.approx(2.034, rel=0.02)


@pytest.mark.parametrize("late_ms", [3, 30, 65, 103])
@pytest.mark.parametrize("phase_ms", [0, 35, 70])
def test_activity_counters_that_are_published_late_tell_no_confident_errors(late_ms: float, phase_ms: float) -> None:
    load = Load.steps(*((k * 700.0 + 13 * (k % 7), k * 700.0 + 13 * (k % 7) + 330) for k in range(2, 12)))
    history = tiles(load, period_ms=105, phase_ms=phase_ms, until_ms=8900, late_ms=late_ms)
    for start_ms in range(1500, 7500, 130):
        interval = Interval(at(start_ms), at(start_ms + 500))
        found, truth_s = judged(history, interval), load.between(interval.start_ns, interval.end_ns) / 1e9
        assert found.low_s <= truth_s <= found.high_s, start_ms
        assert not found.sure or abs(found.value_s - truth_s) <= 0.05, start_ms


@pytest.mark.parametrize(("from_ms", "until_ms"), [(0, 6000), (7500, 12_000)])
def test_utilisation_that_begins_late_or_stops_leaves_the_answer_to_the_counters(from_ms: int, until_ms: int) -> None:
    bursts = Load.steps(*((k * 900.0, k * 900.0 + 400) for k in range(1, 13)))
    history = tiles(bursts, period_ms=105, phase_ms=30, until_ms=12_000)
    for column in stamped(bursts, window_ms=200, refresh_ms=200, from_ms=from_ms, until_ms=until_ms).columns.values():
        starts, ends, _ = column.edges(at(0), at(12_000))
        values = bursts.read(ends, 200 * MS)
        history.append(
            Sample(UTILIZATION, a, b, int(v)) for a, b, v in zip(starts.tolist(), ends.tolist(), values, strict=True)
        )
    found, truth_s = judged(history, Interval(at(5100), at(8100))), bursts.between(at(5100), at(8100)) / 1e9
    assert found.source is GRAPHICS
    assert found.low_s <= truth_s <= found.high_s
    assert settled(history, at(11_000))
    both = judged(history, Interval(at(from_ms + 300), at(from_ms + 3300)))
    assert both.source is (UTILIZATION if until_ms - from_ms > 4000 else both.source)


def test_minutes_of_activity_counters_are_summed_from_edge_to_edge() -> None:
    bursts = Load.steps(*((k * 100.0, k * 100.0 + 40) for k in range(10, 250)))
    history = tiles(bursts, period_ms=105, phase_ms=30, until_ms=26_000)
    found = judged(history, Interval(at(2010), at(22_450)))
    assert found.low_s <= bursts.between(at(2010), at(22_450)) / 1e9 <= found.high_s
    assert found.half_width_s <= 0.2


def test_an_activity_counter_is_too_slow_for_a_tenth_of_a_second() -> None:
    found = judged(tiles(LOAD, period_ms=105, phase_ms=0, until_ms=8900), Interval(at(8030), at(8130)))
    assert found.reason == "too short for a counter that renews itself every 100 ms"


@pytest.mark.parametrize("length_ms", [0.01, 1, 50])
def test_an_activity_counter_that_reads_nothing_around_a_moment_leaves_nothing_to_guess(length_ms: float) -> None:
    history = tiles(Load.steps((0, 1000)), period_ms=105, phase_ms=30, until_ms=8900)
    found = judged(history, Interval(at(5010), at(5010 + length_ms)))
    assert found.value_s == 0.0
    full = judged(history, Interval(at(510), at(510 + length_ms)))
    assert full.value_s == pytest.approx(length_ms / 1000)


def test_stamped_readings_are_settled_by_the_first_one_after_the_end() -> None:
    history = stamped(LOAD, window_ms=1000, refresh_ms=100, until_ms=8501)
    assert settled(history, at(8500))
    assert not settled(history, at(8501))


def test_polled_readings_are_settled_once_one_is_surely_of_a_later_moment() -> None:
    before = polled(LOAD, window_ms=1000, refresh_ms=100, poll_ms=50, until_ms=8540)
    assert not settled(before, at(8500))
    after = polled(LOAD, window_ms=1000, refresh_ms=100, poll_ms=50, until_ms=8750)
    assert settled(after, at(8500))
    steady = polled(LOAD, window_ms=1000, refresh_ms=100, poll_ms=50, until_ms=7200)
    assert settled(steady, at(6950))


def test_activity_counters_are_settled_two_renewals_after_the_end() -> None:
    history = tiles(LOAD, period_ms=105, phase_ms=0, until_ms=8700)
    assert not settled(history, at(8500))
    assert settled(history, at(8350))


def test_there_is_nothing_to_wait_for_on_a_device_that_tells_no_utilisation() -> None:
    assert settled(Timeline(Device("GPU-a"), [POWER]), at(0))
    assert settled(Timeline(Device("GPU-a"), [UTILIZATION]), at(0))


def test_what_was_found_of_a_sensor_is_let_go_of_with_its_timeline() -> None:
    history = stamped(LOAD, window_ms=1000, refresh_ms=100, until_ms=8601)
    judged(history)
    gone = weakref.ref(history)
    del history
    gc.collect()
    assert gone() is None


def test_whoever_knows_better_may_say_whether_readings_are_stamped() -> None:
    moments = every(100, 8601) // 1000 * 1000 + 137
    history = timeline(moments, LOAD.read(moments, 1000 * MS))
    found = busy_time(history, REGION, stamped=True)
    assert found is not None
    assert found.sure
    assert REGION.start_ns > T0


@pytest.mark.parametrize("length_ms", [3, 20, 100, 400])
def test_what_rounding_leaves_room_for_is_no_guess(length_ms: float) -> None:

    idle = judged(
        stamped(LOAD, window_ms=1000, refresh_ms=100, until_ms=3000), Interval(at(2000), at(2000 + length_ms))
    )
    assert idle.value_s == idle.low_s == 0.0
    busy = judged(
        stamped(LOAD, window_ms=1000, refresh_ms=100, until_ms=5000), Interval(at(4200), at(4200 + length_ms))
    )
    assert busy.share == pytest.approx(1.0)

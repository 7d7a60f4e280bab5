"""Whether a sensor's timing is found in what it says: worlds of the study of unmixing, one seed each."""

import math
import tracemalloc
from typing import Any, NamedTuple, Self

import numpy as np
import pytest
from benchmarks.unmixing_worlds import MS, ORIGIN_NS, World
from laboratory import mixes

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, POWER_AVERAGE, UTILIZATION
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.design import Design, Windows
from gpu_profile.join.unmixing.solving.shrinkage import CERTAIN
from gpu_profile.join.unmixing.solving.stamps import StampErrors
from gpu_profile.join.unmixing.timing import likelihood
from gpu_profile.join.unmixing.timing.expected import SensorPrior
from gpu_profile.join.unmixing.timing.scan import Scan
from gpu_profile.join.unmixing.timing.timing_search import Search, SensorTiming
from gpu_profile.join.unmixing.timing.timings import locked
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.activities import Pieces
from gpu_profile.join.unmixing.windows.sensor import Sensor
from gpu_profile.units import NS_PER_S


def windows_of(world: World) -> Windows:
    stamps, values = world.readings
    if world.signal.kind is Kind.COUNTER:
        # A reading that is not new has no row of its own.
        new = np.append(True, np.diff(values) > 0)
        stamps, values = stamps[new], values[new]
    starts, ends = stamps[:-1] + ORIGIN_NS, stamps[1:] + ORIGIN_NS
    counter = world.signal.kind is Kind.COUNTER
    masses = np.diff(values) if counter else values[1:] * (ends - starts) / NS_PER_S
    # Windows that look back to before the world began are of nobody knows what.
    keep = starts >= ORIGIN_NS + 6 * world.window_ns
    return Windows(starts, ends, masses[:, None]).where(keep)


def active_of(world: World) -> ActiveTime:
    columns = (world.owner + 1).astype(np.int16)
    return ActiveTime.of(Pieces(world.owner, world.starts + ORIGIN_NS, world.ends + ORIGIN_NS), columns, columns)


def search_of(world: World, windows: Windows | None = None) -> Search:
    some = windows_of(world) if windows is None else windows
    return Search(world.signal, some, active_of(world), world.regions + 1, np.inf)


def lags(found: SensorTiming, windows: Windows) -> Ints:
    return windows.ends - found.sensor.moments(windows.ends)


def rates(world: World, found: SensorTiming) -> Floats:
    """The regions' rates under a timing."""
    return rates_in(world, windows_of(world), found)


def rates_in(world: World, windows: Windows, found: SensorTiming) -> Floats:
    """The same, by these windows."""
    return search_of(world, windows).rates(found.sensor)[1:]


# ---------------------------------------------------------------------- what is there is found


@pytest.mark.parametrize("lag_ms", [0, 5, 20])
def test_a_lag_is_found_within_a_millisecond_or_two(lag_ms: int) -> None:
    world = World(1, seconds=40, lag_ns=lag_ms * MS)
    found = search_of(world).run()
    assert abs(np.median(lags(found, windows_of(world))) - lag_ms * MS) < 2 * MS
    assert found.sensor.window_ns == pytest.approx(100 * MS, rel=0.01)
    assert found.sensor.smooth is False
    assert np.abs(rates(world, found) / world.truth - 1).mean() < 0.05


@pytest.mark.parametrize("window_ms", [25, 100, 1000])
def test_a_window_is_found(window_ms: int) -> None:
    world = World(2, seconds=40, window_ns=window_ms * MS)
    found = search_of(world).run()
    assert found.sensor.window_ns == pytest.approx(window_ms * MS, rel=0.01)
    assert found.sensor.smooth is False
    assert abs(np.median(lags(found, windows_of(world)))) < 3 * MS


@pytest.mark.parametrize("tau_ms", [50, 200])
def test_an_exponential_is_told_from_a_window(tau_ms: int) -> None:
    world = World(3, seconds=40, window_ns=tau_ms * MS, shape="exponential")
    found = search_of(world).run()
    assert found.sensor.window_ns == pytest.approx(tau_ms * MS, rel=0.06)
    assert found.sensor.smooth is True


@pytest.mark.parametrize(("step_ms", "seconds"), [(100, 40), (105, 60)])
def test_a_counter_that_renews_itself_is_found_in_and_out_of_step_with_its_reader(step_ms: int, seconds: int) -> None:
    world = World(4, seconds=seconds, signal=ENERGY, step_ns=step_ms * MS)
    windows = windows_of(world)
    found = search_of(world, windows).run()
    assert found.sensor.period_ns == 100 * MS
    assert found.sensor.in_step == (step_ms == 100)
    clear = found.sensor.clear(windows.ends)
    true = windows.ends - (windows.ends - ORIGIN_NS) % (100 * MS)
    assert clear.mean() > 0.7
    assert np.median(np.abs(found.sensor.moments(windows.ends) - true)[clear]) < 2 * MS
    assert np.abs(rates(world, found) / world.truth - 1).mean() < 0.05


@pytest.mark.parametrize("order", ["random", "fixed"])
@pytest.mark.parametrize("part_ms", [25, 40])
def test_a_counter_that_takes_a_part_of_each_period_for_all_of_it_is_found(part_ms: int, order: Any) -> None:
    world = World(4, seconds=60, signal=ENERGY, window_ns=part_ms * MS, order=order)
    rng = np.random.default_rng(1)
    renewals = np.arange(5, 10 * world.seconds - 1) * 100 * MS
    means = world.response(*world._pieces, renewals.astype(np.float64)) + rng.normal(0, 3.0, len(renewals))
    stamps = renewals + ORIGIN_NS + 30 * MS + rng.integers(0, MS, len(renewals))
    # One poll in six is lost: the counter grew by two parts then.
    kept = rng.random(len(stamps)) > 1 / 6
    total = np.cumsum(means * 0.1)[kept]
    windows = Windows(stamps[kept][:-1], stamps[kept][1:], np.diff(total)[:, None])
    found = search_of(world, windows).run()
    assert found.sensor.window_ns == pytest.approx(part_ms * MS, rel=0.05)
    assert np.median(lags(found, windows)) == pytest.approx(30 * MS, abs=2 * MS)
    assert not found.alternatives
    assert np.abs(rates_in(world, windows, found) / world.truth - 1).mean() < 0.08


class Renewed(NamedTuple):
    """The first poll after each renewal of a sensor that has this period. The polls are 100 ms apart."""

    renewals: Ints
    means: Floats
    polls: Ints
    place: Ints

    @classmethod
    def of(cls, world: World, period: int, noise: float) -> Self:
        rng = np.random.default_rng(world.seed)
        renewals = np.arange(2, world.seconds * NS_PER_S // period) * period
        means = world.response(*world._pieces, renewals.astype(np.float64)) + rng.normal(0, noise, len(renewals))
        polls = np.arange(500 * MS, renewals[-1], 100 * MS)
        polls = polls + rng.integers(0, MS, len(polls))
        place = np.searchsorted(renewals, polls, side="right") - 1
        new = np.append(True, np.diff(place) > 0)
        return cls(renewals, means, polls[new], place[new])

    def windows(self, masses: Floats) -> Windows:
        return Windows(self.polls[:-1] + ORIGIN_NS, self.polls[1:] + ORIGIN_NS, masses[:, None])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("period_ms", [102.0, 97.3])
def test_a_period_that_is_not_the_nominal_one_is_found_over_any_time(period_ms: float, seed: int) -> None:
    period = round(period_ms * MS)
    world = World(seed, seconds=60, signal=ENERGY, window_ns=period)
    renewed = Renewed.of(world, period, 3.0)
    total = np.cumsum(renewed.means) * period / NS_PER_S
    windows = renewed.windows(np.diff(total[renewed.place]))
    found = search_of(world, windows).run()
    clear = found.sensor.clear(windows.ends)
    missed = np.abs(found.sensor.moments(windows.ends) - ORIGIN_NS - renewed.renewals[renewed.place[1:]])[clear]
    assert clear.mean() > 0.7
    assert np.quantile(missed, 0.95) < 3 * MS
    assert np.abs(rates_in(world, windows, found) / world.truth - 1).mean() < 0.03


@pytest.mark.parametrize("seed", range(4))
def test_the_period_of_mean_power_that_is_not_the_nominal_one_is_found(seed: int) -> None:
    """Only counters had other periods. A renewal that moves by 60 ms in a run fitted no timing."""
    period = 100_150_000
    world = World(seed, seconds=40, order="fixed", jitter=0.05)
    renewed = Renewed.of(world, period, 1.0)
    windows = renewed.windows(renewed.means[renewed.place[1:]] * np.diff(renewed.polls) / NS_PER_S)
    search = search_of(world, windows)
    true = Sensor(period_ns=period, phase_ns=ORIGIN_NS % period, window_ns=100 * MS)
    assert search.run().residual < 1.2 * search.residual(true)


@pytest.mark.parametrize("seed", range(4))
def test_a_few_windows_of_work_outside_regions_do_not_choose_the_timing(seed: int) -> None:
    world = World(seed, seconds=60, signal=ENERGY, order="fixed", jitter=0.05)
    windows = windows_of(world)
    rng = np.random.default_rng(seed)
    masses = windows.masses.copy()
    masses[rng.random(len(masses)) < 0.03] += 30.0
    found = search_of(world, windows._replace(masses=masses)).run()
    true = windows.ends - (windows.ends - ORIGIN_NS) % (100 * MS)
    every = (found.sensor, *found.alternatives)
    assert min(abs(np.median(each.moments(windows.ends) - true)) for each in every) < 2 * MS
    assert np.median(np.abs(found.sensor.moments(windows.ends) - true)) < 2 * MS


def test_polls_of_half_a_renewal_still_find_it() -> None:
    world = World(5, seconds=60, signal=ENERGY, step_ns=53 * MS)
    windows = windows_of(world)
    found = search_of(world, windows).run()
    clear = found.sensor.clear(windows.ends)
    true = windows.ends - (windows.ends - ORIGIN_NS) % (100 * MS)
    assert np.median(np.abs(found.sensor.moments(windows.ends) - true)[clear]) < 3 * MS


def test_stamps_that_are_off_by_tens_of_milliseconds_do_not_move_the_lag() -> None:
    searches = [search_of(World(6, seconds=40, stamp_error_ns=error * MS)) for error in (1, 20)]
    sure, doubtful = (search.run() for search in searches)
    windows = windows_of(World(6, seconds=40, stamp_error_ns=20 * MS))
    assert abs(lags(doubtful, windows).mean()) < 15 * MS
    # A timing that takes stamps at their word leaves more, the more they are off; one that knows the renewals does not.
    taken = [search.residual(Sensor(window_ns=100 * MS)) for search in searches]
    assert taken[1] > 10 * taken[0]
    assert sure.residual < taken[0]
    assert doubtful.residual < 0.1 * taken[1]


def test_what_is_found_leaves_no_more_than_any_other_timing_that_is_known() -> None:
    world = World(1, seconds=30, lag_ns=5 * MS)
    search = search_of(world)
    found = search.run()
    truth = Sensor(lag_ns=5 * MS, window_ns=100 * MS)
    assert found.residual <= 1.02 * search.residual(truth)
    assert found.residual == pytest.approx(search.residual(found.sensor))


def test_the_same_windows_find_the_same_timing() -> None:
    world = World(1, seconds=20)
    assert search_of(world).run() == search_of(world).run()


# ---------------------------------------------------------------------- windows that a timing leaves out


def test_a_counter_that_grew_in_what_would_be_no_time_speaks_against_a_timing() -> None:
    windows = windows_of(World(1, seconds=20))
    steady = windows._replace(masses=300.0 * (windows.ends - windows.starts)[:, None] / NS_PER_S)
    search = Search(ENERGY, steady, active_of(World(1, seconds=20)), 7, np.inf)
    # Every other window lies within one renewal of a counter that is renewed half as often.
    assert search.residual(Sensor(period_ns=200 * MS)) >= 0.3 * 300.0**2
    assert search.residual(Sensor()) < 10.0**2


def test_windows_too_near_a_renewal_to_tell_its_side_speak_neither_for_a_timing_nor_against_it() -> None:
    world = World(4, seconds=60, signal=ENERGY, step_ns=105 * MS)
    windows = windows_of(world)
    right = Sensor(period_ns=100 * MS, phase_ns=ORIGIN_NS % (100 * MS))
    design = Design(windows, right, counts=True)
    assert design.unclear[0] > 20
    shares, values = design.shares(active_of(world), world.regions + 1), design.values[:, 0]
    missed = values - shares @ np.linalg.lstsq(shares, values, rcond=None)[0]
    assert search_of(world, windows).residual(right) == pytest.approx((missed**2).mean(), rel=0.01)


def mixed(world: World) -> list[Sensor]:
    """Timings of every form, and of several blurs and errors of stamps."""
    framed = [Sensor(window_ns=100 * MS), Sensor(window_ns=71 * MS), Sensor(window_ns=30 * MS, smooth=True)]
    forms = [Sensor(), *framed, Sensor(follows=True), Sensor(period_ns=world.step_ns, in_step=True, follows=True)]
    forms += [each._replace(period_ns=100 * MS, phase_ns=37 * MS) for each in [Sensor(), *framed]]
    forms += [each._replace(jitter_ns=5 * MS) for each in forms] + [each._replace(blur_ns=2 * MS) for each in forms]
    return [each._replace(lag_ns=lag * MS) for lag in (0, 13, 90, 0) for each in forms]


@pytest.mark.parametrize("signal", [ENERGY, POWER_AVERAGE])
def test_timings_that_are_tried_together_leave_what_each_leaves_alone(
    signal: Signal, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(4, seconds=20, signal=signal, step_ns=53 * MS)
    search, every = search_of(world), mixed(world)
    together = search.residuals(every)
    assert together == pytest.approx([search.residual(each) for each in every], rel=1e-9)
    assert len({round(left, 6) for left in together}) > len(every) / 4
    monkeypatch.setattr(likelihood, "_AT_ONCE", 1)
    assert search.residuals(every) == pytest.approx(together, rel=1e-9)


@pytest.mark.parametrize("signal", [ENERGY, POWER_AVERAGE])
@pytest.mark.parametrize("limit_w", [np.inf, 20.0])
@pytest.mark.parametrize("idle_ms", [0, 60])
def test_timings_whose_rates_may_vary_are_tried_together_as_each_is_alone(
    signal: Signal, limit_w: float, idle_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(4, seconds=20, signal=signal, step_ns=53 * MS)
    windows, some = windows_of(world), active_of(world)
    ran = some.ends <= windows.ends[-1] - idle_ms * MS
    active = ActiveTime.of(Pieces(some.alone[ran], some.starts[ran], some.ends[ran]), some.alone[ran], some.shared[ran])
    search, every = Search(signal, windows, active, world.regions + 1, np.inf), mixed(world)
    search._limit = limit_w
    together = search._trials([*every, every[0]], 150)
    assert [trial.sensor for trial in together] == [*every, every[0]]
    monkeypatch.setattr(likelihood, "_TRIED", 1)
    alone = [search._trial(each, 150) for each in every]
    for name in ("score", "left", "noise", "lag_ms"):
        found, wanted = ([getattr(trial, name) for trial in some] for some in (together, alone))
        assert found[:-1] == pytest.approx(wanted, rel=1e-6, abs=1e-6), name
        assert found[-1] == found[0]
    assert len({round(trial.score, 3) for trial in together}) > len(every) / 4


def test_the_rows_of_a_design_are_those_of_each_of_its_sensors() -> None:
    world = World(4, seconds=20, signal=ENERGY, step_ns=53 * MS)
    windows, active, columns = windows_of(world), active_of(world), world.regions + 1
    sensors = [Sensor(period_ns=100 * MS, phase_ns=phase * MS, lag_ns=phase * MS) for phase in (0, 10, 60)]
    design = Design(windows, *sensors, counts=True)
    shares = design.shares(active, columns)
    for i, sensor in enumerate(sensors):
        alone, rows = Design(windows, sensor, counts=True), design.rows[i]
        assert len(alone.values) > 50
        assert np.array_equal(design.values[rows], alone.values)
        assert np.array_equal(design.ends[rows], alone.ends)
        assert shares[rows] == pytest.approx(alone.shares(active, columns), abs=1e-9)
        assert (design.unclear[i], design.contradicting[i]) == (alone.unclear[0], alone.contradicting[0])
    assert design.rows[-1].stop == len(design.values)


# ---------------------------------------------------------------------- nothing to find


@pytest.mark.parametrize("signal", [GRAPHICS, ENERGY, POWER_AVERAGE])
@pytest.mark.parametrize("watts", [0.0, 250.0])
def test_a_signal_that_never_changes_finds_some_timing_that_leaves_nothing(signal: Signal, watts: float) -> None:
    world = World(1, seconds=12)
    windows = windows_of(world)
    flat = windows._replace(masses=watts * (windows.ends - windows.starts)[:, None] / NS_PER_S)
    search = Search(signal, flat, active_of(world), world.regions + 1, np.inf)
    found = search.run()
    assert np.isfinite(found.residual)
    # Stamps that are off by a hundredth of a window make as much of what a counter grew by between them.
    assert found.residual <= (0.02 if signal is ENERGY else 0.001) ** 2 * max(1.0, watts**2)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_few_windows_are_enough_to_end(count: int) -> None:
    world = World(1, seconds=5)
    windows = windows_of(world)
    few = Windows(windows.starts[:count], windows.ends[:count], windows.masses[:count])
    assert np.isfinite(search_of(world, few).run().residual)


def test_columns_that_nobody_was_ever_active_in_change_nothing() -> None:
    world = World(1, seconds=15)
    windows, active = windows_of(world), active_of(world)
    plain = Search(world.signal, windows, active, world.regions + 1, np.inf).run()
    wider = Search(world.signal, windows, active, world.regions + 9, np.inf)
    assert wider.run().sensor == plain.sensor


def test_without_any_activity_all_timings_are_alike_and_it_ends() -> None:
    world = World(1, seconds=10)
    empty, none = np.zeros(0, np.int64), np.zeros(0, np.int16)
    active = ActiveTime.of(Pieces(empty, empty, empty), none, none)
    found = Search(world.signal, windows_of(world), active, 3, np.inf).run()
    assert np.isfinite(found.residual)


def test_windows_without_length_are_left_out_of_the_equations() -> None:
    world = World(1, seconds=10)
    windows = windows_of(world)
    none = windows._replace(starts=windows.ends)
    for sensor in (Sensor(), Sensor(window_ns=100 * MS), Sensor(period_ns=100 * MS)):
        design = Design(none, sensor, counts=False)
        assert (len(design.shares(active_of(world), world.regions + 1)), len(design.values)) == (0, 0)


def test_windows_that_are_all_of_one_moment_end_the_search() -> None:
    world = World(1, seconds=10)
    windows = windows_of(world)
    same = np.full(len(windows.ends), windows.ends[0])
    found = search_of(world, Windows(same - 100 * MS, same, windows.masses)).run()
    assert np.isfinite(found.residual)


# ---------------------------------------------------------------------- what was known before


def expecting(world: World, expected: SensorPrior) -> tuple[Search, Windows]:
    windows = windows_of(world)
    return Search(world.signal, windows, active_of(world), world.regions + 1, np.inf, expected=expected), windows


@pytest.mark.parametrize("seed", [1, 3])
def test_a_loop_has_fewer_timings_where_the_sensor_is_known(seed: int) -> None:
    world = World(seed, order="fixed", jitter=0.1, seconds=12, lag_ns=40 * MS)
    expected = SensorPrior(Sensor(lag_ns=40 * MS, window_ns=100 * MS), MS, MS)
    search, windows = expecting(world, expected)
    found = search.run()
    unknown = search_of(world).run().alternatives
    assert len(unknown) >= 2
    assert not all(expected.admits(rival, windows.ends) for rival in unknown)
    assert all(expected.admits(each, windows.ends) for each in (found.sensor, *found.alternatives))
    assert abs(np.median(lags(found, windows)) - 40 * MS) < 2 * MS


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_readings_that_contradict_what_was_known_win(seed: int) -> None:
    world = World(seed, seconds=30, lag_ns=40 * MS)
    expected = SensorPrior(Sensor(lag_ns=300 * MS, window_ns=100 * MS), MS, MS)
    search, windows = expecting(world, expected)
    found = search.run()
    assert abs(np.median(lags(found, windows)) - 40 * MS) < 2 * MS
    assert not expected.admits(found.sensor, windows.ends)


def test_a_known_sensor_admits_itself_at_any_phase_and_no_other() -> None:
    stamps = ORIGIN_NS + np.arange(300) * 105 * MS
    known = SensorPrior(Sensor(lag_ns=20 * MS, period_ns=100 * MS), MS, MS)
    assert len(known.starts()) == 20
    assert all(known.admits(each, stamps) for each in known.starts())
    assert known.admits(Sensor(lag_ns=70 * MS), stamps), "the mean age of what it says"
    for other in (
        Sensor(lag_ns=130 * MS),
        Sensor(lag_ns=10 * MS),
        Sensor(lag_ns=28 * MS, period_ns=100 * MS),
        Sensor(lag_ns=20 * MS, period_ns=101 * MS),
        Sensor(lag_ns=20 * MS, period_ns=100 * MS, window_ns=25 * MS),
        Sensor(lag_ns=70 * MS, smooth=True),
    ):
        assert not known.admits(other, stamps), other


# ---------------------------------------------------------------------- what is as good as the best


@pytest.mark.parametrize("seed", [1, 2])
def test_the_ends_of_a_range_of_lags_that_fit_alike_are_rivals(seed: int) -> None:
    """A loop of exactly two windows is the same two windows again and again: the lag may be anything for some ms."""
    world = World(seed, order="fixed", loop_ns=200 * MS, jitter=0.0, seconds=30)
    windows = windows_of(world)
    found = search_of(world).run()
    middles = [float(np.median(each.middles(windows.ends))) for each in (found.sensor, *found.alternatives)]
    assert (max(middles) - min(middles)) / MS > 2.5


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_a_timing_that_all_windows_rule_out_is_no_rival(seed: int) -> None:
    """The newest windows, which the search tries first, did not rule it out."""
    world = World(seed, order="fixed", jitter=0.05, seconds=60, signal=ENERGY)
    windows = windows_of(world)
    # Rates that rise by a fifth call for varying ones.
    passed = (windows.ends - windows.starts[0]) / (world.seconds * NS_PER_S)
    search = search_of(world, windows._replace(masses=windows.masses * (1 + 0.2 * passed)[:, None]))
    found = search.run()
    best = search._trial(found.sensor)
    others = search._trials(found.alternatives)
    assert others
    scores = [search._beside_if_rates_vary(one, best, search._discrepancy) for one in others]
    assert max(scores) < best.score + CERTAIN * found.effect


def test_a_timing_that_leaves_far_more_than_the_best_one_is_ruled_out_however_much_the_readings_vary() -> None:
    """A share of the variance was excused where the best timing left a hundredth of that."""
    world = World(1, seconds=20)
    search, sensor = search_of(world), Sensor(lag_ns=20 * MS)
    best = search._discrepancy / 100
    scores = [search._beside(sensor, left * best, (sensor, best), search._discrepancy) for left in (1.0, 4.9, 10.0)]
    assert scores[1] == pytest.approx(scores[0])
    assert scores[2] > scores[0] + CERTAIN
    trial = search._trial(sensor)
    others = [trial._replace(noise=left * best, left=left * best) for left in (4.9, 10.0)]
    varying, steady = (trial._replace(noise=best, left=left * best) for left in (5.0, 1.0))
    gains = [one.score - search._beside_if_rates_vary(one, varying, search._discrepancy) for one in others]
    assert gains == pytest.approx([trial.n * math.log(4.9), trial.n * math.log(10.0 / 6.0)])
    # Where rates are steady under the best timing, the windows show no difference from the model.
    gains = [one.score - search._beside_if_rates_vary(one, steady, search._discrepancy) for one in others]
    assert gains == [0.0, 0.0]


@pytest.mark.parametrize(("number", "least"), [(992, 3), (1023, 5)])
def test_a_loop_with_steady_rates_and_few_other_windows_has_one_timing(number: int, least: int) -> None:
    """Pauses and ends make most of the variance, a share of which was excused: 8 of 8 and 6 of 7 were refused."""
    busy = [each for each in mixes.draw(number).outcomes() if each.quantity == "busy"]
    assert sum(each.answer.value is not None for each in busy) >= least
    assert not any(each.confidently_wrong for each in busy)


def test_a_lag_that_is_sure_has_no_rivals_near_it() -> None:
    world = World(1, seconds=30, lag_ns=40 * MS)
    assert search_of(world).run().alternatives == ()


def test_a_pause_of_a_month_costs_no_memory_and_changes_no_trial() -> None:
    world = World(1, seconds=20, lag_ns=5 * MS)
    windows, active, pause_ns = windows_of(world), active_of(world), 30 * 86_400 * NS_PER_S
    cut_ns = int(windows.ends[80])
    # A sensor that averages over seconds forgets the time before the pause.
    windows = windows.where((windows.ends < cut_ns) | (windows.starts > cut_ns + 5 * NS_PER_S))

    def moved(times: Ints) -> Ints:
        return times + pause_ns * (times > cut_ns)

    later = windows._replace(starts=moved(windows.starts), ends=moved(windows.ends))
    pieces = Pieces(world.owner, moved(active.starts), moved(active.ends))
    paused = ActiveTime.of(pieces, active.alone, active.shared)
    sensors = [Sensor(lag * MS, window_ns=50 * MS, smooth=smooth) for lag in (0, 5, 40) for smooth in (False, True)]
    before = Scan(active, windows, world.regions + 1, 2 * NS_PER_S, counts=False).residuals(sensors)
    tracemalloc.start()
    after = Scan(paused, later, world.regions + 1, 2 * NS_PER_S, counts=False).residuals(sensors)
    assert Search(world.signal, later, paused, world.regions + 1, np.inf)._drifting(Sensor(5 * MS))
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()
    assert after == pytest.approx(before, rel=0.05)


def test_equal_readings_of_a_loop_show_no_equal_rates_if_the_counter_may_be_renewed_in_step_with_it() -> None:
    """Every renewal counts one turn of a loop of 99.7 ms, whatever its regions draw."""
    rng, turns = np.random.default_rng(1), np.arange(310) * 99.7 * MS
    edges = ORIGIN_NS + (turns[:, None] + np.array([0.0, 34.2, 49.8, 99.7]) * MS).astype(np.int64)
    own = np.tile(np.arange(1, 4), len(turns))
    owner = own.astype(np.int16)
    starts, ends = edges[:, :-1].ravel(), edges[:, 1:].ravel()
    active = ActiveTime.of(Pieces(own, starts, ends), owner, owner)
    polls = ORIGIN_NS + np.arange(15, 300) * 100 * MS + rng.integers(0, MS // 10, 285)
    renewals = (polls - ORIGIN_NS - 31 * MS) // int(99.7 * MS)
    joules = 46.5 * np.diff(renewals) * rng.normal(1.0, 0.002, 284)
    windows = Windows(polls[:-1], polls[1:], joules[:, None])
    found = Search(ENERGY, windows, active, 4, np.inf).run()
    assert found.sensor.period_ns == pytest.approx(99.7 * MS, abs=0.01 * MS)
    assert found.sensor.window_ns == 0
    # Loops of other lengths suggest no period.
    assert locked(Sensor(), ENERGY, ActiveTime.of(Pieces(own, starts * 7 // 10, ends * 7 // 10), owner, owner)) == []


@pytest.mark.parametrize("whole", [False, True])
def test_a_counter_known_to_be_whole_is_one_of_a_part_only_if_that_explains_far_more(whole: bool) -> None:
    """Work outside regions resembled a part of the period: a rate on an H100 was 3.7 half-widths off."""
    world = World(1, seconds=20)
    search = Search(ENERGY, windows_of(world), active_of(world), world.regions + 1, np.inf, whole=whole)
    part, all_of_it = Sensor(window_ns=25 * MS), Sensor()
    better = [left for left in (1.0, 0.3, 0.15) if search._rank((part, left)) < search._rank((all_of_it, 1.0))]
    assert better == ([0.15] if whole else [0.3, 0.15])


def test_an_error_below_that_of_rounding_is_no_evidence_against_a_timing() -> None:
    """In a loop, equal rates with a wrong timing explain the rounding of readings that hardly vary."""
    world = World(1, signal=UTILIZATION)
    search, sensor = search_of(world), Sensor(lag_ns=20 * MS)
    step = UTILIZATION.base(1)
    below, rounding, above = (share * step**2 / 12 for share in (0.8, 1.0, 2.0))
    assert search._beside(sensor, rounding, (sensor, below)) == pytest.approx(search._score(sensor, below))
    assert search._beside(sensor, above, (sensor, rounding)) == search._score(sensor, above)
    best = search._trial(sensor)._replace(noise=below, left=below)
    other = best._replace(noise=rounding, left=rounding, score=best.score + 100.0)
    gain = best.n * math.log(rounding / below)
    assert search._beside_if_rates_vary(other, best) == pytest.approx(other.score - gain)


def test_stamp_errors_excuse_a_timing_only_by_their_larger_effect_than_under_the_best_one() -> None:
    """Errors of 0.1 ms excused timings that the windows rule out: the best timing's error contains them as well."""
    world = World(1, seconds=20)
    errors = StampErrors(1e8 * np.diag([0.0, *[1.0] * world.regions]), least=1.0)
    windows = windows_of(world)
    search = Search(world.signal, windows, active_of(world), world.regions + 1, np.inf, errors=errors)
    best, other = Sensor(), Sensor(lag_ns=20 * MS)
    rates = np.linspace(90.0, 500.0, world.regions + 1)
    for sensor, some in ((best, rates), (other, rates), (other._replace(lag_ns=30 * MS), 1.2 * rates)):
        search._steady[sensor, math.inf] = some
    by_stamps = search._explained(best, rates)
    left = 2 * by_stamps
    assert search._beside(other, 1.5 * left, (best, left)) == search._score(other, 1.5 * left)
    other = other._replace(lag_ns=30 * MS)
    # A fifth more in all rates is 1.44 times the effect.
    assert search._beside(other, 1.5 * left, (best, left)) == pytest.approx(search._score(other, 1.28 * left))
    trial = search._trial(best)._replace(steady=rates, left=left, noise=left)
    worse = trial._replace(sensor=other, left=1.5 * left, noise=1.5 * left)
    scores = [search._beside_if_rates_vary(worse._replace(steady=some), trial) for some in (rates, 1.2 * rates)]
    assert scores == pytest.approx([trial.score, trial.score - trial.n * math.log(1.5 / 1.28)])
    # The largest errors that stamps allow would leave ten times as much under the best timing too.
    assert search._beside(other, left, (best, by_stamps / 10)) == pytest.approx(
        search._score(other, left - by_stamps * 0.044)
    )


def test_rounding_alone_makes_no_outliers() -> None:
    """Where most readings were equal, a window that differed by a step was an outlier, and no evidence."""
    world = World(1, signal=UTILIZATION)
    windows = windows_of(world)
    equal = windows._replace(masses=0.5 * (windows.ends - windows.starts)[:, None] / NS_PER_S)
    median, outliers = search_of(world, equal)._median_residual(Sensor(window_ns=100 * MS))
    assert outliers == 0
    assert median == pytest.approx(likelihood._MEDIAN_SQUARE**0.5 * UTILIZATION.base(1) / 12**0.5)

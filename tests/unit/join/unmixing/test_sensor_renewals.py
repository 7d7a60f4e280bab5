"""A counter that renews itself more often than the catalogue knows: what is shown by its readings goes first."""

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, POWER_LIMIT
from gpu_profile.history.timeline import Ints, Timeline
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.timing.timings import drifting, following
from gpu_profile.join.unmixing.windows.activities import DeviceExecution
from gpu_profile.join.unmixing.windows.sensor import Sensor, renews_faster, shown_period_ns
from gpu_profile.units import NS_PER_S

MS = 1_000_000
T0 = 1_700_000_000 * NS_PER_S
POLLS_MS = (10, 20, 50)


class Load(NamedTuple):
    """Two regions by turns, of 3.6-11 and 5.5-17 ms and so many W, on a device that idles at `idle_w`."""

    watts: tuple[float, float]
    idle_w: float


CONSTANT = Load((300.0, 300.0), 300.0)
ALTERNATING = Load((150.0, 450.0), 90.0)


def calls(poll_ms: float, seconds: int, *, wander_ms: float = 0.2, seed: int = 0) -> Ints:
    """When a reader asks, in ns since the beginning: never quite on time."""
    rng = np.random.default_rng([seed, int(poll_ms * 10)])
    at = np.arange(5 * MS + int(rng.integers(int(poll_ms * MS))), seconds * NS_PER_S, int(poll_ms * MS))
    asked: Ints = at + rng.integers(0, int(wander_ms * MS), len(at))
    return asked


def pool_of(load: Load, period_ms: float, asked: Ints, seconds: int) -> Pool:
    """A pool that was fed by the second; the counter is renewed every so often, and was when it was asked."""
    rng = np.random.default_rng(int(period_ms))
    lengths = np.tile([7.3, 11.1], seconds * 60) * rng.uniform(0.5, 1.5, seconds * 120) * MS
    ends = np.cumsum(lengths + rng.exponential(0.2 * MS, len(lengths)))
    starts = ends - lengths
    edges = np.concatenate(([0.0], np.stack((starts, ends), axis=1).ravel()))
    levels = np.full(len(edges) - 1, load.idle_w)
    levels[1::2] = np.tile(load.watts, seconds * 60)
    energy = np.concatenate(([0.0], np.cumsum(np.diff(edges) * levels))) / NS_PER_S
    period, phase = int(period_ms * MS), int(rng.integers(int(period_ms * MS)))
    read = np.rint(1000 * np.interp((asked - phase) // period * period + phase, edges, energy)).astype(np.int64)
    stamps = asked + T0 + rng.integers(0, MS // 10, len(asked))
    samples = [Sample(ENERGY, t, t, value) for t, value in zip(stamps.tolist(), read.tolist(), strict=True)]
    pool = Pool(Timeline(Device("GPU-0"), [ENERGY, POWER_LIMIT], capacity=len(samples)), start_ns=T0)
    pool.timeline.append([Sample(POWER_LIMIT, T0, T0, 500_000)])
    spans = [(T0 + int(a), T0 + int(b)) for a, b in zip(starts, ends, strict=True)]
    for until in range(T0 + NS_PER_S, T0 + seconds * NS_PER_S + 1, NS_PER_S):
        pool.timeline.append([s for s in samples if until - NS_PER_S < s.t_end_ns <= until])
        running = [
            DeviceExecution(i, None, f"r{i % 2}", a, b if b <= until else None)
            for i, (a, b) in enumerate(spans)
            if a < until and b > until - NS_PER_S
        ]
        pool.advance(running, until, final=until == T0 + seconds * NS_PER_S)
    return pool


def check(pool: Pool, load: Load, *, within: float = 0.02) -> None:
    for region, watts in zip(("r0", "r1"), load.watts, strict=True):
        rate = pool.pooled(region).rates[ENERGY]
        assert not rate.reason
        assert rate.value == pytest.approx(watts, rel=within)


# ---------------------------------------------------------------------- true powers are recovered


#: A load that never changes, read once in five executions, is refused: nothing denies that what their shares vary by
#: are errors of stamps.
REFUSED = (CONSTANT, 10, 50)


@pytest.mark.parametrize(
    ("load", "period_ms", "poll_ms"),
    [case for case in product((CONSTANT, ALTERNATING), (10, 20, 50, 100), (10, 50)) if case[1:] != (20, 50)],
)
def test_powers_are_right_however_often_the_counter_is_renewed_and_read(
    load: Load, period_ms: int, poll_ms: int
) -> None:
    seconds = 10 if load is ALTERNATING else 4
    check(pool_of(load, period_ms, calls(poll_ms, seconds), seconds), load)


@pytest.mark.parametrize(("period_ms", "poll_ms"), [(20, 7), (50, 11), (50, 20)])
def test_a_reader_that_is_faster_than_the_renewals_may_be_unsteady(period_ms: int, poll_ms: int) -> None:
    check(pool_of(ALTERNATING, period_ms, calls(poll_ms, 10, wander_ms=3), 10), ALTERNATING)


@pytest.mark.parametrize(
    ("load", "period_ms", "poll_ms"),
    [(ALTERNATING, *times) for times in ((20, 50), (10, 9.7), (10, 47), (50, 47), (20, 53))]
    + [(CONSTANT, 20, 50), (CONSTANT, 10, 9.7)],
)
def test_where_readings_drift_through_renewals_that_they_do_not_show_the_interval_says_so(
    load: Load, period_ms: float, poll_ms: float
) -> None:
    pool = pool_of(load, period_ms, calls(poll_ms, 20), 20)
    for region, watts in zip(("r0", "r1"), load.watts, strict=True):
        rate = pool.pooled(region).rates[ENERGY]
        assert rate.reason or abs(rate.value - watts) <= 1.5 * rate.half_width


def test_who_asks_more_often_after_a_while_is_believed() -> None:
    slow, fast = calls(100, 40), calls(10, 60)
    pool = pool_of(CONSTANT, 10, np.concatenate((slow, fast[fast >= 40 * NS_PER_S])), 60)
    check(pool, CONSTANT)


def test_a_counter_that_is_renewed_as_known_keeps_its_period_when_it_is_read_more_often() -> None:
    for poll_ms in POLLS_MS:
        sensor = pool_of(ALTERNATING, 100, calls(poll_ms, 10), 10).sensor(ENERGY)
        assert sensor is not None
        assert (sensor.period_ns, sensor.follows) == (100 * MS, False)


# ---------------------------------------------------------------------- what readings show


def new_readings(period_ms: float, poll_ms: float, *, wander_ms: float = 0.2, seconds: int = 10) -> Ints:
    asked = calls(poll_ms, seconds, wander_ms=wander_ms)
    renewal = (asked - 3 * MS) // int(period_ms * MS)
    stamps: Ints = T0 + asked[np.append(True, np.diff(renewal) > 0)]
    return stamps


@pytest.mark.parametrize(
    ("period_ms", "poll_ms", "faster"),
    [
        (100, 10, False),
        (100, 53, False),
        (100, 100, False),
        (100, 250, False),
        (20, 100, False),
        (95, 20, True),
        (50, 50, True),
        (20, 10, True),
        (10, 50, True),
    ],
)
def test_new_readings_show_that_a_counter_is_renewed_more_often_than_known(
    period_ms: float, poll_ms: float, faster: bool
) -> None:
    assert renews_faster(ENERGY, new_readings(period_ms, poll_ms)) == faster


@pytest.mark.parametrize("poll_ms", [10, 53, 100])
def test_stamps_that_are_off_show_nothing(poll_ms: float) -> None:
    rng = np.random.default_rng(1)
    stamps = new_readings(100, poll_ms)
    assert not renews_faster(ENERGY, np.sort(stamps + rng.integers(-50 * MS, 50 * MS, len(stamps))))


def test_too_few_readings_show_nothing_and_means_never_do() -> None:
    stamps = new_readings(10, 10)
    assert not renews_faster(ENERGY, stamps[:4])
    assert renews_faster(ENERGY, stamps[:6])
    assert not renews_faster(GRAPHICS, stamps)


@pytest.mark.parametrize(("period_ms", "poll_ms"), [(10, 3), (20, 7), (20, 10), (50, 11), (33.3, 10)])
@pytest.mark.parametrize("wander_ms", [0.2, 2])
def test_the_period_is_that_of_the_sensor_if_it_is_asked_more_often(
    period_ms: float, poll_ms: float, wander_ms: float
) -> None:
    stamps = new_readings(period_ms, poll_ms, wander_ms=wander_ms)
    assert shown_period_ns(stamps) == pytest.approx(period_ms * MS, rel=1e-3)


def test_the_period_is_looked_for_where_readings_come_the_fastest() -> None:
    stamps = new_readings(20, 5, seconds=20)
    seldom = (np.arange(len(stamps)) % 5 == 0) | (stamps - T0 > 15 * NS_PER_S)
    assert shown_period_ns(stamps[seldom]) == pytest.approx(20 * MS, rel=1e-3)


def test_the_period_of_very_many_readings_is_exact_from_a_part_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    late = np.random.default_rng(3).exponential(0.03 * MS, 100_000)
    stamps = (np.arange(100_000) * 0.2503 * MS + late).astype(np.int64)
    most, exp = [0], np.exp

    def counted(values: Any) -> Any:
        most[0] = max(most[0], np.size(values))
        return exp(values)

    monkeypatch.setattr(np, "exp", counted)
    assert shown_period_ns(stamps) == pytest.approx(0.2503 * MS, abs=1)
    assert most[0] < 10_000


@pytest.mark.parametrize(("period_ms", "poll_ms"), [(105, 20), (125, 10), (80, 20)])
def test_periods_far_from_the_nominal_one_are_tried_where_new_readings_come_at_them(
    period_ms: float, poll_ms: float
) -> None:
    stamps = new_readings(period_ms, poll_ms)
    tried = {each.period_ns for each in drifting(Sensor(), ENERGY, stamps)}
    assert min(abs(each - 100 * MS) for each in tried) == 0
    assert min(abs(each - period_ms * MS) for each in tried) < 0.3 * MS


def test_readings_that_do_not_come_once_a_period_are_not_followed() -> None:
    for period_ms, poll_ms, followed in ((20, 7, True), (10, 9.7, False), (50, 47, False)):
        stamps = new_readings(period_ms, poll_ms)
        assert bool(following([Sensor()], stamps[:-1], stamps[1:])) == followed


@pytest.mark.parametrize("spread_ms", [0.5, 5, 9])
@pytest.mark.parametrize("at_ms", [0, 4, 8])
def test_a_sensor_that_follows_takes_every_reading_for_a_renewal_of_its_own(spread_ms: float, at_ms: int) -> None:
    rng = np.random.default_rng(0)
    late = rng.uniform(0, spread_ms * MS, 400).astype(np.int64)
    renewals = T0 + at_ms * MS + np.arange(400) * 10 * MS
    sensor = Sensor(period_ns=10 * MS, lag_ns=int(spread_ms / 2 * MS), in_step=True, follows=True)
    moments = sensor.placed(renewals + late).moments(renewals + late)
    assert set(np.diff(moments).tolist()) == {10 * MS}
    assert np.abs(moments - renewals).max() <= 0.5 * MS


def test_a_sensor_that_follows_goes_with_a_clock_that_drifts() -> None:
    sensor = Sensor(period_ns=10 * MS, lag_ns=MS, in_step=True, follows=True)
    renewals = T0 + np.arange(1_000_000) * (10 * MS + 300)
    for some in (renewals[:500], renewals[500_000:500_500], renewals[-500:]):
        moments = sensor.placed(some + MS).moments(some + MS)
        assert np.abs(moments - some).max() < 0.2 * MS


def test_two_readings_show_the_time_between_them() -> None:
    assert shown_period_ns(np.array([5 * MS, 105 * MS])) == 100 * MS

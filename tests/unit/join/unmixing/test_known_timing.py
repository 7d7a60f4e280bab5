"""The driver's own power samples, whose timing is known beforehand and not looked for."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from laboratory.oracle import Target as Truth
from laboratory.oracle import judge
from laboratory.programs import Stamps
from laboratory.recordings import DEVICE, OUTSIDE, T0, Case, Run, analysed, replayed, samples_of, spans_of
from laboratory.rows import changed, program
from laboratory.sensors import POWER as AVERAGE
from laboratory.sensors import SAMPLED, Sensor

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Sample
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.solving.design import Windows
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.unmix import LOCK_STEP, Fit
from gpu_profile.join.unmixing.timing.expected import CONTRADICTED, DevicePrior, SensorPrior
from gpu_profile.join.unmixing.windows.activities import DeviceExecution
from gpu_profile.join.unmixing.windows.probes import Prior, ProbeKind
from gpu_profile.units import NS_PER_S

MS = 1_000_000
COUNTER, POWER = SAMPLED[0], SAMPLED[-1]
H200 = DevicePrior.of_board("NVIDIA H200")
LOOP: dict[str, Any] = {"fixed": True, "count": 3, "jitter": 0.05}


def run_of(seed: int, sensors: Sequence[Sensor] = (COUNTER, POWER), seconds: float = 12.0, **options: Any) -> Run:
    made = program(seed, stamps=Stamps((0.0, 0.1)), **options)
    return Case(changed(made, duty=1.0), tuple(sensors), seconds, seed).run()


def pool_of(
    run: Run, known: DevicePrior = H200, samples: Sequence[Sample] | None = None, *, exact: bool = True
) -> Pool:
    """A pool that has taken all of a run in; `exact`: the device itself stamped all work."""
    timeline = Timeline(DEVICE, [signal for _, signal, _, _ in run.readings], capacity=20_000)
    timeline.append(samples_of(run.readings) if samples is None else samples)
    pool = Pool(timeline, start_ns=T0, prior=known)
    activities = [DeviceExecution(span.id, None, span.name, span.start_ns, span.end_ns) for span in spans_of(run)]
    for activity in activities:
        pool.count(activity.region, marked=int(exact))
    pool.advance(activities, T0 + round(run.case.seconds * NS_PER_S), final=True)
    return pool


def truths(run: Run) -> dict[str, Truth]:
    return {region: known for (region, quantity), known in judge(run).items() if quantity == "power"}


def reasons(pool: Pool, signal: Signal) -> set[str]:
    return {pool.pooled(name).rates[signal].reason for name in pool.regions}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_in_a_loop_they_tell_apart_what_the_counter_does_not(seed: int) -> None:
    run = run_of(seed, loop_ms=33.0, **LOOP)
    pool = pool_of(run)
    answered = 0
    for name, truth in truths(run).items():
        pooled = pool.pooled(name)
        assert pooled.rates[rows.ENERGY].reason
        rate = pooled.rates[rows.POWER]
        if not rate.reason:
            answered += 1
            assert pooled.energy_source is rows.POWER
            assert abs(rate.value - truth.truth) <= 1.5 * rate.half_width, "in the counter's joules"
    assert answered >= 2
    assert pool.unexpected == []


@pytest.mark.parametrize(("late_ms", "seed"), [(0.0, 1), (3.0, 2), (6.0, 1)])
def test_stamps_of_a_host_may_all_be_late(late_ms: float, seed: int) -> None:
    made = program(seed, fixed=True, jitter=0.05, stamps=Stamps((late_ms, late_ms + 0.2)))
    run = Case(changed(made, duty=1.0), (COUNTER, POWER), 20.0, seed).run()
    pool = pool_of(run, exact=False)
    for name, truth in truths(run).items():
        rate = pool.pooled(name).rates[rows.POWER]
        assert rate.reason or abs(rate.value - truth.truth) <= 2 * rate.half_width, name


def test_in_random_order_lateness_costs_no_answer() -> None:
    made = program(1, stamps=Stamps((5.0, 5.2)))
    run = Case(changed(made, duty=1.0), (COUNTER, POWER), 20.0, 1).run()
    pool = pool_of(run, exact=False)
    for name, truth in truths(run).items():
        rate = pool.pooled(name).rates[rows.POWER]
        assert not rate.reason
        assert abs(rate.value - truth.truth) <= 2 * rate.half_width


@pytest.mark.parametrize("options", [{"loop_ms": 20.0, "count": 2}, {"loop_ms": 80.0, "count": 2}, {"jitter": 0.05}])
def test_what_regions_are_given_and_the_rest_add_up_to_the_counter(options: dict[str, Any]) -> None:
    pool = pool_of(run_of(2, fixed=True, **options))
    share, rest = pool.outside(rows.ENERGY), pool.rest(rows.ENERGY)
    mean = pool.mean(rows.ENERGY)
    assert share is not None
    assert rest is not None
    assert mean is not None
    regions = [pool.pooled(name) for name in pool.regions]
    handed = [pool.counted(name, rows.ENERGY) for name in pool.regions]
    whole = rest.total + sum(each.total for each in handed if each is not None)
    assert sum(each.energy_j or 0.0 for each in regions) == pytest.approx((1 - share.value) * whole, rel=1e-6)
    assert whole == pytest.approx(mean * 12.0, rel=0.02)


def test_what_regions_used_is_a_part_of_what_the_counter_counted() -> None:
    run = run_of(2, seconds=20.0, gap_ms=(2.0, 10.0))
    pool = pool_of(run)
    regions = {name: pool.pooled(name) for name in pool.regions}
    sampled = [each for each in regions.values() if each.energy_source is rows.POWER]
    assert len(sampled) >= 2
    for each in sampled:
        assert each.energy_j == pytest.approx(each.rates[rows.POWER].value * each.active_s, rel=0.05)
    total = sum(each.energy_j or 0.0 for each in regions.values())
    rest = pool.rest(rows.ENERGY)
    counted = next(readings for _, signal, _, readings in run.readings if signal is rows.ENERGY).values
    assert rest is not None
    assert total + rest.total == pytest.approx((counted[-1] - counted[0]) * rows.ENERGY.quantum, rel=0.01)


@pytest.mark.parametrize(
    "known", [DevicePrior(), DevicePrior.of_board("NVIDIA A100-SXM4-80GB"), DevicePrior.of_board("")]
)
def test_where_nothing_is_known_of_them_they_are_not_taken_in(known: DevicePrior) -> None:
    pool = pool_of(run_of(1, seconds=4.0), known)
    assert pool.joined == [rows.ENERGY]
    assert rows.POWER not in pool.pooled("r0").rates


def test_a_counter_measures_all_of_the_time_if_its_calibration_or_its_board_says_so() -> None:
    response = {"period_ms": (100.0, 0.1), "lag_ms": (5.0, 1.0)}
    whole = SensorPrior.of(rows.ENERGY, {**response, "window_ms": (0.0, 0.0), "shape": "interval"})
    part = SensorPrior.of(rows.ENERGY, {**response, "window_ms": (25.0, 1.0), "shape": "mean"})
    assert H200.whole
    assert not DevicePrior.of_board("NVIDIA A100-SXM4-80GB").whole
    assert DevicePrior({rows.ENERGY: whole}).whole
    assert not DevicePrior({**H200.sensors, rows.ENERGY: part}, measured=True).whole


def test_live_and_analysed_are_equal_to_the_last_window_where_utilisation_comes_later_than_gpm() -> None:
    """At the end, those whose numbers a better source makes are not waited for, in a program and in an analysis."""
    made = program(1, fixed=True, jitter=0.05, stamps=Stamps((0.2, 0.5)))
    run = Case(made, SAMPLED[:-1], 20.0, 1).run()
    # What no region was active for only an analysis says.
    after = {key: answer for key, answer in analysed(run).items() if key[0] != OUTSIDE}
    assert replayed(run) == after


def test_live_and_analysed_they_say_the_same() -> None:
    made = program(1, fixed=True, jitter=0.05, stamps=Stamps((0.2, 0.5)))
    run = Case(changed(made, duty=1.0), (COUNTER, SAMPLED[1], POWER), 12.0, 1).run()
    after = analysed(run)
    live = {key: answer.value for key, answer in replayed(run).items() if key[1] == "power"}
    told = {key: value for key, value in live.items() if value is not None}
    assert len(told) >= 2
    assert set(told) == {key for key in live if after[key].value is not None}
    assert told == pytest.approx({key: after[key].value for key in told}, rel=1e-6)


def test_power_that_is_polled_is_not_taken_in() -> None:
    run = run_of(1, seconds=4.0)
    polled = [
        sample._replace(t_start_ns=sample.t_start_ns + 1, t_end_ns=sample.t_end_ns + 1)
        if sample.signal is rows.POWER
        else sample
        for sample in samples_of(run.readings)
    ]
    assert pool_of(run, samples=polled).joined == [rows.ENERGY]


def test_without_a_counter_they_are_where_energy_comes_from() -> None:
    average = replace(AVERAGE, window_ms=1000.0, noise=0.02)
    run = run_of(3, [average, POWER], gap_ms=(2.0, 10.0))
    pool = pool_of(run)
    told = [name for name in pool.regions if pool.pooled(name).energy_source is rows.POWER]
    assert len(told) >= 3
    for name in told:
        pooled, truth = pool.pooled(name), truths(run)[name].truth
        rate = pooled.rates[rows.POWER]
        assert abs(rate.value - POWER.gain * truth) <= 2 * rate.half_width
        assert pooled.energy_j == pytest.approx(truth * pooled.active_s, rel=2 * rate.half_width / truth)


@pytest.mark.parametrize(
    "other",
    [
        replace(POWER, period_ms=25.0),
        replace(POWER, lag_ms=30.0),
        replace(POWER, window_ms=60.0),
        replace(POWER, kind="mean", window_ms=100.0),
        replace(POWER, gain=2.0),
    ],
)
def test_readings_that_contradict_what_is_known_give_no_rate(other: Sensor) -> None:
    pool = pool_of(run_of(1, [COUNTER, other], seconds=20.0))
    assert pool.unexpected == ([rows.POWER] if other.gain < 2.0 else [])
    assert reasons(pool, rows.POWER) == {CONTRADICTED}
    assert {pool.pooled(name).energy_source for name in pool.regions} == {rows.ENERGY}


@pytest.mark.parametrize("mw", [0, 300_000])
def test_a_sensor_that_is_stuck_tells_nothing(mw: int) -> None:
    run = run_of(1, seconds=20.0)
    stuck = [each._replace(value=mw) if each.signal is rows.POWER else each for each in samples_of(run.readings)]
    pool = pool_of(run, samples=stuck)
    assert "" not in reasons(pool, rows.POWER)
    for name, truth in truths(run).items():
        pooled = pool.pooled(name)
        assert pooled.energy_source is rows.ENERGY
        assert abs(pooled.rates[rows.ENERGY].value - truth.truth) <= 2 * pooled.rates[rows.ENERGY].half_width


def test_a_counter_that_stops_leaves_their_scale_as_it_was() -> None:
    run = run_of(3, seconds=20.0, gap_ms=(2.0, 10.0))
    samples, half = samples_of(run.readings), T0 + 10 * NS_PER_S
    last = max(each.value for each in samples if each.signal is rows.ENERGY and each.t_end_ns <= half)
    stuck = [
        each._replace(value=last) if each.signal is rows.ENERGY and each.t_end_ns > half else each for each in samples
    ]
    pool = pool_of(run, samples=stuck)
    for name, truth in truths(run).items():
        rate = pool.pooled(name).rates[rows.POWER]
        assert rate.reason or abs(rate.value - truth.truth) <= 2 * rate.half_width, name


def test_a_loop_that_repeats_with_the_readings_is_told_to() -> None:
    pool = pool_of(run_of(1, fixed=True, loop_ms=100.0))
    assert reasons(pool, rows.POWER) == {LOCK_STEP}


@pytest.mark.parametrize(
    ("off_ms", "doubt_ms", "contradicts"),
    [
        (0.08, 1.04, False),  # the windows say nothing of it
        (0.9, 1.0199, False),
        (1.5, 0.95, True),
        (2.0, 0.1, False),
        (4.0, 0.1, True),
    ],
)
def test_what_is_known_is_contradicted_by_what_draws_it_out_of_its_own_spread(
    monkeypatch: pytest.MonkeyPatch, off_ms: float, doubt_ms: float, contradicts: bool
) -> None:
    fit = Fit(Equations())
    monkeypatch.setattr(fit, "correction", lambda _: -off_ms)
    monkeypatch.setattr(fit, "uncertainty", lambda _: doubt_ms)
    assert fit.contradicts(Prior({ProbeKind.WINDOW: 1.02}, 0.0)) is contradicts


def test_a_contradiction_stands_once_windows_of_it_are_gone() -> None:
    pool = pool_of(run_of(1, seconds=4.0))
    (mixture,) = (each for each in pool._live if each.lead is rows.POWER)
    mixture._kept = [Windows(np.arange(3), np.arange(1, 4), np.ones((3, 1)))]
    mixture.unexpected = True
    mixture.forget(-(1 << 60))
    assert not mixture._contradicted, "a search with more of them may take it back"
    mixture.forget(1 << 60)
    assert mixture._contradicted
    for go_on in (mixture._unlock, partial(mixture.skip, NS_PER_S)):
        mixture._contradicted = False
        go_on()
        assert mixture._contradicted


def test_a_calibration_goes_before_what_holds_for_the_board() -> None:
    def calibrated(signal: Signal) -> SensorPrior:
        kept = {"period_ms": [20, 0], "lag_ms": [12, 0.1], "window_ms": [30, 4], "shape": "exponential"}
        return SensorPrior.of(signal, kept)

    found = calibrated(rows.POWER)
    assert (found.behind_stamps.period_ns, found.behind_stamps.lag_ns, found.behind_stamps.window_ns) == (
        0,
        12 * MS,
        30 * MS,
    )
    assert found.prior is not None
    spreads = found.prior.spreads_ms
    assert spreads[ProbeKind.WINDOW] == pytest.approx(4 / 1.96, rel=0.01)
    assert spreads[ProbeKind.LAG] == pytest.approx(0.5 / 1.96, rel=0.01), "stamps of work are off too"
    assert calibrated(rows.ENERGY).prior is None, "its phase is looked for"
    mine = replace(POWER, lag_ms=12.0, window_ms=30.0)
    pool = pool_of(run_of(4, [COUNTER, mine]), DevicePrior({rows.POWER: found}))
    assert pool.unexpected == []
    assert np.isfinite([pool.pooled(name).rates[rows.POWER].half_width for name in pool.regions]).all()

"""Executions without a mark, as pauses show them: in one program of known lengths, with and without such executions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from laboratory import sensors
from laboratory.programs import Physics, Program, Region, Stamps
from laboratory.recordings import Case, analysed

from gpu_profile.catalogue.signals import ENERGY, UTILIZATION
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.normal_equations import NormalEquations
from gpu_profile.join.unmixing.solving.stamps import StampErrors
from gpu_profile.join.unmixing.solving.undetermined import changed
from gpu_profile.join.unmixing.solving.unmarked import UnmarkedExecutions

MS = 1_000_000
TYPICAL_MS = np.array([3.5, 2.7, 12.0])
N = 6_000


def ran(seed: int, share: float, gap_ms: float = 0.4) -> tuple[Ints, Ints, Ints, np.ndarray]:
    """Starts, ends and columns of all executions, in a fixed order, and the marked ones."""
    rng = np.random.default_rng(seed)
    own = np.arange(N) % len(TYPICAL_MS)
    lengths = TYPICAL_MS[own] * rng.uniform(0.9, 1.1, N) * MS
    ends = np.cumsum(lengths + rng.uniform(0, gap_ms, N) * MS)
    return (ends - lengths).astype(np.int64), ends.astype(np.int64), own + 1, rng.random(N) >= share


def taken(seed: int, share: float, gap_ms: float = 0.4) -> UnmarkedExecutions:
    starts, ends, columns, marked = (part[:] for part in ran(seed, share, gap_ms))
    starts, ends, columns = starts[marked], ends[marked], columns[marked]
    result = UnmarkedExecutions()
    for at in range(0, len(starts), 100):
        part = slice(at, at + 100)
        own = (ends - starts)[part].astype(np.float64)
        result.take(starts[part][1:] - ends[part][:-1], own, columns[part], int(ends[part][-1] - starts[part][0]))
    assert result.squares.any() or not share
    return result


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1])
def test_pauses_of_the_length_of_an_execution_are_counted(share: float) -> None:
    _, _, _, marked = ran(1, share)
    alone = np.count_nonzero(marked[:-2] & ~marked[1:-1] & marked[2:])  # a pause of two in a row is too long for one
    assert taken(1, share).count == pytest.approx(alone, rel=0.05)


@pytest.mark.parametrize("gap_ms", [0.0, 0.4, 2.0, 8.0])
def test_ordinary_pauses_are_no_executions(gap_ms: float) -> None:
    assert taken(2, 0.0, gap_ms).count < 0.01 * N


def test_waits_of_a_program_are_no_executions() -> None:
    """Waits of 5 to 30 ms between executions of 2 to 16 ms, as of a host that prepares work, have lengths in common
    with the executions. A loop with pauses of 1 µs waits 30 ms at its end, as long as some region lasted at first."""
    rng, starved, looping = np.random.default_rng(5), UnmarkedExecutions(), UnmarkedExecutions()
    for _ in range(20):
        lengths, columns = 2 * MS * 8 ** rng.random(20), rng.integers(1, 4, 20)
        starved.take(rng.uniform(5 * MS, 30 * MS, 20).astype(np.int64), lengths, columns, 500 * MS)
        kinds = np.arange(30) % 6
        waits = np.where(kinds == 5, rng.uniform(29 * MS, 31 * MS, 30), 1_000.0)
        # The first execution of a region lasts longer.
        lengths = np.array([12.6, 16.0, 7.9, 16.2, 2.4, 15.9])[kinds] * MS * rng.uniform(0.99, 1.01, 30)
        lengths[:5] *= 4 if not looping.squares.any() else 1
        looping.take(waits.astype(np.int64), lengths, kinds + 1, 500 * MS)
    for unmarked in (starved, looping):
        unmarked.squares  # noqa: B018
        assert unmarked.count < 1


def test_merged_columns_have_both_shares() -> None:
    unmarked = taken(3, 0.05)
    before, shares = unmarked.squares.copy(), unmarked.shares.copy()
    unmarked.merge(3, 1)
    assert unmarked.squares.tolist() == [0.0, before[1] + before[3], before[2], 0.0]
    assert unmarked.shares.tolist() == [0.0, shares[1] + shares[3], shares[2], 0.0]


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1])
def test_the_time_of_missing_executions_is_a_share_of_the_pauses(share: float) -> None:
    starts, ends, columns, marked = ran(1, share)
    alone = np.flatnonzero(marked[:-2] & ~marked[1:-1] & marked[2:]) + 1
    missing_ns = np.bincount(columns[alone], (ends - starts)[alone], 4)
    pauses_ns = ends[-1] - (ends - starts)[marked].sum()
    assert taken(1, share).shares == pytest.approx(missing_ns / pauses_ns, rel=0.1)


def test_no_more_executions_are_missing_than_the_power_outside_regions_allows() -> None:
    """If executions without a mark are half of the time outside regions, a quarter of 300 W and of 500 W each are
    200 W. At 50 W with an error of 25 W, at most three in eight of them are executions."""
    errors = StampErrors(np.zeros((3, 3)), unmarked=np.ones(3), pausing=np.array([0.0, 0.25, 0.25]))
    rates = np.array([50.0, 300.0, 500.0])
    assert errors.possible(rates) == pytest.approx(0.25)
    assert errors.possible(rates, 25.0) == pytest.approx(0.375)
    assert errors.by_unmarked.possible(rates) == errors.possible(rates)
    assert errors.possible(np.array([250.0, 300.0, 500.0])) == 1.0
    assert StampErrors(np.zeros((3, 3))).possible(rates) == 1.0


def test_a_gpu_that_is_not_busy_in_pauses_runs_no_executions_there() -> None:
    """Pauses of a waiting program may be as long as executions, and an idle GPU draws power too."""
    unmarked, rng = taken(3, 0.05), np.random.default_rng(3)
    work, shares = float(unmarked.shares.sum()), rng.dirichlet(np.ones(4), 200)
    assert unmarked.elsewhere == 1.0

    def equations(outside: float, inside: float) -> Equations:
        result = Equations()
        result.add(shares, shares @ np.array([[outside], *3 * [[inside]]]), np.zeros((200, 0)))
        return result

    unmarked.bound_by(ENERGY, equations(100.0, 100.0), (), 0.0)
    assert unmarked.elsewhere == 1.0
    unmarked.bound_by(UTILIZATION, equations(0.2 * work, 1.0), (), 0.0)
    assert unmarked.elsewhere == pytest.approx(0.2, rel=1e-3)
    # Another timing that fits as well allows more, and so does what readings cut off.
    unmarked.bound_by(UTILIZATION, equations(0.2 * work, 1.0), [np.array([0.3 * work, 1.0, 1.0, 1.0])], 0.1 * work)
    assert unmarked.elsewhere == pytest.approx(0.4, rel=1e-3)
    errors = StampErrors(np.zeros((4, 4)), pausing=unmarked.shares, elsewhere=unmarked.elsewhere)
    assert errors.possible(np.full(4, 100.0)) == pytest.approx(0.4, rel=1e-3)
    assert errors.by_unmarked.elsewhere == errors.elsewhere
    unmarked.merge(3, 1)
    assert unmarked.elsewhere == 1.0


def test_waits_for_data_leave_the_rates_of_a_training_loop() -> None:
    """Waits of 20 ms on average, some as long as executions, with a counter and utilisation."""
    regions = Region("forward", 12.0, 220.0), Region("backward", 25.0, 330.0), Region("optimizer", 8.0, 180.0)
    loop = Program(regions, fixed=True, jitter=0.1, gap_ms=(0.2, 0.6), pause_every_s=0.15, pause_s=0.02)
    loop = replace(loop, stamps=Stamps((0.02, 0.3), tail=0.02), physics=Physics(idle_w=60.0))
    answers = analysed(Case(loop, (sensors.COUNTER, sensors.UTILIZATION), 40.0, 1, "NVIDIA A100-SXM4-80GB").run())
    for region in regions:
        power = answers[region.name, "power"]
        assert power.value is not None, power.reason
        assert power.half_width is not None
        assert abs(power.value - region.power_w) < power.half_width < 0.25 * region.power_w


def shares_of(seed: int, share: float) -> tuple[Floats, Floats]:
    """By window of 100 ms: the share of each column by the marks, and the power by all executions: 100, 250, 600 and
    350 W."""
    starts, ends, columns, marked = ran(seed, share)
    edges = np.arange(0, int(ends[-1]), 100 * MS)

    def active(which: np.ndarray) -> Floats:
        shares = np.zeros((len(edges) - 1, len(TYPICAL_MS) + 1))
        for column in range(1, shares.shape[1]):
            own = which & (columns == column)
            at = np.stack((starts[own], ends[own])).T.ravel()
            passed = np.cumsum(np.stack((np.zeros(own.sum()), (ends - starts)[own])).T.ravel())
            shares[:, column] = np.diff(np.interp(edges, at, passed)) / (100 * MS)
        shares[:, 0] = 1 - shares[:, 1:].sum(axis=1)
        return shares

    return active(marked), active(np.ones(N, bool)) @ np.array([100.0, 250.0, 600.0, 350.0])


def test_the_rates_may_be_as_far_off_as_unmarked_executions_make_them() -> None:
    """In a loop the shares hardly vary, and least squares draws the rates to their mean."""
    share = 0.08
    shares, power = shares_of(4, share)
    # The time with work outside regions draws as much as they do, and idle time hardly occurs.
    square, mean = float(power @ power), float(power.mean())
    sums = NormalEquations(shares.T @ shares, shares.T @ power, square, len(power), mean)
    rates = np.linalg.solve(sums.gram, sums.moment).astype(np.float64)
    squares = taken(4, share).squares * (len(shares) / (100 * MS))
    change = changed(sums, rates, squares)
    assert 600 - rates[2] > 20
    assert change[2] > (600 - rates[2]) / 2
    assert not changed(sums, rates, 0 * squares).any()


def test_the_errors_of_windows_follow_from_the_differences_of_rates() -> None:
    errors = StampErrors(np.zeros((3, 3)), unmarked=np.array([0.0, 2.0, 1.0]))
    rates = np.array([100.0, 400.0, 400.0])
    assert errors.by_pauses(rates) == pytest.approx(3 * 300**2)
    # With a rate of their own outside regions, equal regions cause no error.
    assert errors.by_pauses(rates, steady=False) == pytest.approx(0.0)
    assert errors.by_unmarked.by_pauses(rates) == errors.by_pauses(rates)
    assert StampErrors(np.zeros((3, 3))).by_pauses(rates) == 0.0

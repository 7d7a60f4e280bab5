"""Bounds of rates in directions that the windows do not determine."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.normal_equations import NormalEquations
from gpu_profile.join.unmixing.solving.stamps import StampErrors
from gpu_profile.join.unmixing.solving.undetermined import Undetermined

CEILING = 700.0
#: The rates of two threads that never pause, each with two regions, and of the time outside regions.
RATES = np.array([60.0, 500.0, 300.0, 400.0, 200.0])


def _threads(n: int = 400) -> Floats:
    """Shares of two threads' regions: half of each window for each thread, so only sums of rates are determined."""
    rng = np.random.default_rng(1)
    first, second = rng.uniform(0.1, 0.9, (2, n)) / 2
    shares: Floats = np.stack([np.zeros(n), first, 0.5 - first, second, 0.5 - second], axis=1)
    return shares


def _undetermined(
    shares: Floats, values: Floats, errors: Floats | None = None, *, allowed: float = 1.0
) -> Undetermined:
    columns = shares.shape[1]
    wrong = StampErrors(np.zeros((columns, columns)) if errors is None else errors, allowed=allowed)
    ceilings, none = np.full(columns, CEILING), np.zeros(columns, bool)
    sums = NormalEquations(shares.T @ shares, shares.T @ values, float(values @ values), len(values), values.mean())
    return Undetermined(sums, len(values), wrong, ceilings, CEILING, none)


def _unit(column: int, columns: int = len(RATES)) -> Floats:
    return np.asarray(np.eye(1, columns, column)[0], np.float64)


@pytest.mark.parametrize("along", [-1e4, -300.0, 0.0, 150.0, 1e4])
def test_the_bound_is_from_the_rates_that_fit_wherever_the_estimate_lies_among_them(along: float) -> None:
    shares = _threads()
    moved = along * np.array([0.0, 1.0, 1.0, -1.0, -1.0])
    # The windows fit as well if one thread's regions draw more and the other's less: up to 200 W, down to 300 W.
    opened = _undetermined(shares, shares @ RATES)
    rates = RATES + moved
    lowest, highest = RATES[1] - 300, RATES[1] + 200
    furthest = max(highest - rates[1], rates[1] - lowest)
    assert furthest <= opened.farthest(_unit(1), rates) <= furthest + 20


def test_sums_that_the_windows_determine_have_no_bound_to_add() -> None:
    shares = _threads()
    opened = _undetermined(shares, shares @ RATES)
    for pair in (np.array([0, 0.5, 0, 0, 0.5]), np.array([0, 0.2, 0.3, 0.1, 0.4])):
        assert opened.farthest(pair, RATES) == 0


def test_a_bound_on_several_directions_is_that_of_all_rates_within_physics() -> None:
    rng = np.random.default_rng(2)
    shares = np.repeat(rng.dirichlet(np.ones(6), 4), 50, axis=0)
    rates = rng.uniform(100, 600, 6)
    opened = _undetermined(shares, shares @ rates)
    free = np.linalg.svd(shares[::50])[2][4:]
    ends = [np.linalg.solve(free[:, [a, b]].T, [x - rates[a], y - rates[b]])
            for a in range(6) for b in range(a) for x in (0, CEILING) for y in (0, CEILING)]  # fmt: skip
    possible = [moved for end in ends if (abs((moved := end @ free) + rates - CEILING / 2) <= CEILING / 2 + 1e-6).all()]
    for column in range(6):
        furthest = max(abs(moved[column]) for moved in possible)
        assert furthest * (1 - 1e-6) <= opened.farthest(_unit(column, 6), rates) <= 1.1 * furthest


def test_errors_of_stamps_move_no_rate_along_what_they_leave_open() -> None:
    rng = np.random.default_rng(3)
    steady = np.full(400, 0.02) + rng.normal(0, 1e-3, 400)
    first = rng.uniform(0.2, 0.7, 400)
    shares = np.stack([steady, first, 1 - first - steady], axis=1)
    values = shares @ [100.0, 500.0, 300.0] + rng.normal(0, 0.5, 400)
    errors = 400 * 1e-6 * np.array([[2.0, -1, -1], [-1, 1, 0], [-1, 0, 1]])
    opened = _undetermined(shares, values, errors)
    rates = np.array([100.0, 500, 300])
    assert opened.farthest(_unit(0, 3), rates) > 50
    assert opened.unsure(_unit(0, 3)) < 1
    assert opened.farthest(_unit(1, 3), rates) + opened.unsure(_unit(1, 3)) < 20


def _short_pauses(noise: float) -> Undetermined:
    """Shares of 2 % outside regions that vary as little as stamps err, and readings with this noise."""
    rng = np.random.default_rng(4)
    pauses, first = 0.02 + rng.normal(0, 1e-3, 400), rng.uniform(0.2, 0.7, 400)
    shares = np.stack([pauses, first, 1 - first - pauses], axis=1)
    values = shares @ [100.0, 500.0, 300.0] + rng.normal(0, noise, 400)
    errors = 400 * 1e-6 * np.array([[2.0, -1, -1], [-1, 1, 0], [-1, 0, 1]]) / 2
    return _undetermined(shares, values, errors)


def test_errors_of_stamps_draw_rates_towards_the_mean_and_never_away_from_it() -> None:
    rates = np.array([100.0, 500, 300])
    # Pauses draw less than the mean, so they may draw still less, but not as much as the ceiling.
    assert 99 < _short_pauses(0.5).farthest(_unit(0, 3), rates) < 101
    # That may be chance if readings are less exact.
    assert _short_pauses(20.0).farthest(_unit(0, 3), rates) > 500


def test_rates_beyond_physics_are_no_evidence_on_which_side_the_true_ones_are() -> None:
    assert _short_pauses(0.5).farthest(_unit(0, 3), np.array([-200.0, 500, 300])) > 500

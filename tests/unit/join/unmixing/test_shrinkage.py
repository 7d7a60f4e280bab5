"""Least squares with groups that are shrunk, where equations are alike, too few or exact."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.join.unmixing.solving.normal_equations import NormalEquations
from gpu_profile.join.unmixing.solving.shrinkage import shrink
from gpu_profile.join.unmixing.windows.probes import ProbeGroup

COLUMNS = 8
GROUPS = {ProbeGroup.PHASE: np.arange(3), ProbeGroup.TIMING: np.arange(3, 5)}


def sums_of(rows: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> NormalEquations:
    mean = float(np.abs(values).mean())
    return NormalEquations(rows.T @ rows, rows.T @ values, float(values @ values), len(values), mean)


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 60),
    rank=st.integers(1, COLUMNS),
    noise=st.sampled_from([0.0, 1e-9, 1.0]),
    size=st.sampled_from([1e-3, 1.0, 1e3]),
    started=st.sampled_from([None, 1e-300, 1e-6, 1e30, np.inf]),
)
def test_there_is_a_finite_solution_whatever_the_equations_are(
    seed: int, n: int, rank: int, noise: float, size: float, started: float | None
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, COLUMNS))
    values = size * (rows @ rng.normal(size=COLUMNS) + noise * rng.normal(size=n))
    start = None if started is None else dict.fromkeys(GROUPS, started)
    found = shrink(sums_of(rows, values), GROUPS, start)
    assert np.isfinite(found.solution).all()
    assert np.isfinite(found.covariance).all()
    assert (np.diag(found.covariance) >= 0).all()
    assert found.noise > 0


def test_two_columns_that_are_alike_in_exact_readings_are_no_singular_matrix() -> None:
    rows = np.repeat(np.random.default_rng(0).uniform(size=(50, 1)), COLUMNS, axis=1)
    values = rows[:, 0]
    found = shrink(sums_of(rows, values), GROUPS, {ProbeGroup.TIMING: 1e40})
    # Columns that are alike are told apart by rounding alone, 1e-11, and eps is 2e-16.
    assert abs(rows[0] @ found.solution - values[0]) < 1e-4

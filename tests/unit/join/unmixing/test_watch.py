import numpy as np
import pytest

from gpu_profile.join.unmixing.pools.watch import ResidualWatch
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.unmix import Fit
from gpu_profile.join.unmixing.windows.probes import Probe, ProbeGroup, ProbeKind


def test_a_group_that_shrank_to_nothing_takes_no_memory_and_changes_no_prediction() -> None:
    rng = np.random.default_rng(1)
    slopes, drifts = ([Probe(kind, column) for column in (1, 2, 3)] for kind in (ProbeKind.SLOPE, ProbeKind.DRIFT))
    equations = Equations((*slopes, *drifts), 4)
    shares, probes = rng.dirichlet(np.ones(4), 400), rng.normal(0, 0.1, (400, 6))
    # Power changes within executions, and not over the run.
    values = shares @ [90, 300, 200, 500] + probes[:, :3] @ [400, -300, 350] + rng.normal(0, 3, 400)
    equations.add(shares, values, probes)
    fit = Fit(equations, most=700.0)
    for _ in range(3):  # each solution begins with the variances of the one before
        fit = Fit(equations, most=700.0, start=fit.posterior.variances)
    assert fit.posterior.variances[ProbeGroup.RUN_TIME] < 1e-9 * fit.posterior.variances[ProbeGroup.PHASE]
    watch = ResidualWatch()
    watch.expect(fit, fit.solution.astype(np.float32))
    assert len(watch._covariance) == 7 * 8 // 2
    predicted, variances = watch.predict(probes, shares)
    rows = np.hstack((probes, shares))
    assert predicted == pytest.approx(rows @ fit.solution)
    assert variances == pytest.approx(np.einsum("nk,kl,nl->n", rows, fit.posterior.covariance, rows), rel=1e-4)


def test_rates_of_regions_in_many_windows_take_no_memory_and_a_rare_regions_rate_stays_uncertain() -> None:
    rng, n = np.random.default_rng(2), 100_000
    shares = np.zeros((n, 3))
    shares[:, 1] = rng.uniform(0.0, 0.8, n)
    shares[:3, 2] = 0.2
    shares[:, 0] = 1.0 - shares.sum(axis=1)
    equations = Equations(columns=3)
    equations.add(shares, shares @ [90, 300, 200] + rng.normal(0, 3, n))
    fit = Fit(equations, most=700.0)
    watch = ResidualWatch()
    watch.expect(fit, fit.solution.astype(np.float32))
    assert watch._uncertain.tolist() == [False, False, True]
    some = shares[:10]
    _, variances = watch.predict(np.zeros((10, 0)), some)
    exact = np.einsum("nk,kl,nl->n", some, fit.posterior.covariance, some)
    assert variances == pytest.approx(exact, abs=0.01 * fit.noise)
    assert variances[0] > 0.2 * fit.noise


def test_a_window_far_from_a_doubtful_prediction_is_near_but_not_predicted() -> None:
    rng = np.random.default_rng(3)
    shares = np.zeros((100, 3))
    shares[:, 1] = rng.uniform(0.0, 0.8, 100)
    shares[:2, 2] = 0.05
    shares[:, 0] = 1.0 - shares.sum(axis=1)
    equations = Equations(columns=3)
    equations.add(shares, shares @ [90, 300, 200] + rng.normal(0, 3, 100))
    fit = Fit(equations, most=700.0)
    watch = ResidualWatch()
    watch.set_baseline(fit.noise)
    watch.expect(fit, fit.solution.astype(np.float32))
    # Two windows had a twentieth of the last region each: its rate may be off by 100 W.
    few = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    values = few @ fit.solution + np.array([0.0, 100.0, 100.0])
    near, predicted = watch.near(np.zeros((3, 0)), few, values)
    assert near.tolist() == [True, False, True]
    assert predicted.tolist() == [True, False, False]

import numpy as np
import pytest

from gpu_profile.join.unmixing.equations import Equations
from gpu_profile.join.unmixing.probes import Probe, ProbeGroup, ProbeKind
from gpu_profile.join.unmixing.unmix import Fit
from gpu_profile.join.unmixing.watch import ResidualWatch


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
    watch.expect(fit)
    assert len(watch._covariance) == 7 * 8 // 2
    predicted, variances = watch.predict(probes, shares)
    rows = np.hstack((probes, shares))
    assert predicted == pytest.approx(rows @ fit.solution)
    assert variances == pytest.approx(np.einsum("nk,kl,nl->n", rows, fit.posterior.covariance, rows), rel=1e-4)

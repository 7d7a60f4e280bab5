import numpy as np
import pytest
from benchmarks.serving_messages import replay
from benchmarks.serving_vllm import vllm_messages

from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.serving.simulated import EnginePhysics, simulate


def test_from_messages_and_spans_requests_get_their_true_energy() -> None:
    """Messages arrive late by some ms, spans when their requests end, in the order of the ends."""
    run = simulate(EnginePhysics(MODELS["H200 SXM"]), seconds=60, seed=1, drained=True)
    shown = replay(run, 1)
    answered = np.isfinite(shown.joules) & (run.true_j > 5)
    assert answered.sum() > 0.9 * (run.true_j > 5).sum()
    errors = abs(shown.joules[answered] / run.true_j[answered] - 1)
    assert np.median(errors) < 0.03
    truth = np.bincount([request.tenant for request in run.requests], run.true_j)
    assert shown.tenants == pytest.approx(truth, rel=0.05)


def test_an_old_vllm_that_counts_cached_tokens_as_computed_gives_no_confident_errors() -> None:
    """Its spans have no cached tokens, and its statistics only the hits of the prefix cache."""
    run = simulate(EnginePhysics(MODELS["H200 SXM"]), seconds=75, seed=1, drained=True)
    shown = replay(run, 1, vllm_messages(run, 1, old=True), cached=False)
    answered = np.isfinite(shown.joules) & (run.true_j > 5)
    assert answered.sum() > 0.5 * (run.true_j > 5).sum()
    off = abs(shown.joules[answered] - run.true_j[answered])
    assert np.mean(off > 3 * shown.half_widths[answered]) < 0.05
    truth = np.bincount([request.tenant for request in run.requests], run.true_j)
    # A tenant whose cached tokens are unclear has no half-width.
    given = np.isfinite(shown.tenant_half_widths)
    assert given.any()
    assert (abs(shown.tenants / truth - 1) < 3 * shown.tenant_half_widths)[given].all()

from dataclasses import replace

import numpy as np
import pytest

from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.serving.simulated import EnginePhysics, LanguageModel, simulate
from gpu_profile.serving.simulated_load import TENANTS, TenantLoad
from gpu_profile.serving.work import QUANTITIES, RequestPhase, WorkQuantity

PHYSICS = EnginePhysics(MODELS["H200 SXM"])


def test_the_true_costs_add_up_to_the_energy_of_the_iterations() -> None:
    run = simulate(PHYSICS, seconds=5, seed=3)
    assert run.true_j.sum() == pytest.approx(run.joules.sum(), rel=1e-12)
    work = run.iterations.work
    of = run.iterations.parts.iteration
    for quantity in WorkQuantity:
        sums = np.bincount(of, run.iterations.parts.work[:, quantity], len(work))
        assert sums == pytest.approx(work[:, quantity])


@pytest.mark.parametrize("physics", [PHYSICS, replace(PHYSICS, load_price=0.15), replace(PHYSICS, power_cap_w=450.0)])
def test_the_integral_is_near_the_mean_of_200_permutations(physics: EnginePhysics) -> None:
    """The Shapley value of a request is its mean marginal cost over orders of arrival. An iteration of 120 requests is
    near the limit of infinitely many."""
    drawn, n = np.random.default_rng(1), 120
    requests = np.zeros((n, QUANTITIES))
    requests[:, WorkQuantity.REQUESTS] = requests[:, WorkQuantity.TOKENS] = 1
    requests[:100, WorkQuantity.DECODE_CONTEXT] = drawn.integers(200, 6000, 100)
    requests[100:, WorkQuantity.TOKENS] = chunks = drawn.integers(8, 25, 20)
    requests[100:, WorkQuantity.PREFILL_KV] = before = drawn.integers(0, 3000, 20)
    requests[100:, WorkQuantity.PREFILL_CONTEXT] = chunks * (before + chunks / 2)
    work = requests.sum(axis=0)
    shares, fixed = physics.shares(work[None])
    own = requests @ np.divide(shares[0], work, out=np.zeros(QUANTITIES), where=work > 0)
    assert own.sum() + fixed[0] == pytest.approx(physics.cost(work[None])[1][0])
    marginal = np.zeros(n)
    for _ in range(250):
        order = drawn.permutation(n)
        marginal[order] += np.diff(physics.cost(np.cumsum(requests[order], axis=0))[1], prepend=fixed[0]) / 250
    assert own == pytest.approx(marginal, rel=0.1, abs=0.02 * own.max())


def test_every_request_is_prefilled_once_and_puts_out_its_tokens() -> None:
    run = simulate(PHYSICS, seconds=8, seed=5)
    parts = run.iterations.parts
    for number, request in enumerate(run.requests):
        if np.isnan(request.end_s):
            continue
        own = parts.work[parts.request == number]
        prefill = parts.phase[parts.request == number] == RequestPhase.PREFILL
        assert own[prefill, WorkQuantity.TOKENS].sum() == request.prompt - request.cached
        assert own[~prefill, WorkQuantity.TOKENS].sum() == request.output - 1
        assert request.arrival_s <= request.scheduled_s < request.first_token_s <= request.end_s


def test_a_full_cache_preempts_requests_which_are_computed_again() -> None:
    small = replace(PHYSICS, model=LanguageModel(kv_bytes=8e6))
    run = simulate(small, [TenantLoad("chat", 1300, 400, per_s=12.0)], seconds=8, seed=1)
    parts, ended = run.iterations.parts, [i for i, r in enumerate(run.requests) if r.end_s == r.end_s]
    prefilled = np.bincount(
        parts.request, parts.work[:, WorkQuantity.TOKENS] * (parts.phase == RequestPhase.PREFILL), len(run.requests)
    )
    again = [i for i in ended if prefilled[i] > run.requests[i].prompt - run.requests[i].cached]
    assert ended
    assert again


def test_a_higher_priority_waits_less() -> None:
    first, later = (replace(TENANTS[1], per_s=28.0, priority=priority) for priority in (1, 0))
    run = simulate(PHYSICS, [first, later], seconds=4, seed=2, drained=True)
    waits = [np.mean([r.scheduled_s - r.arrival_s for r in run.requests if r.tenant == t]) for t in (0, 1)]
    assert waits[0] < waits[1] / 2


def test_a_late_counter_shows_the_energy_of_before() -> None:
    run = simulate(PHYSICS, seconds=5, seed=3)
    now, late = run.readings(jitter_s=0.0), run.readings(jitter_s=0.0, late_s=0.1)
    assert late.joules[5:] == pytest.approx(now.joules[4:-1], abs=0.002)

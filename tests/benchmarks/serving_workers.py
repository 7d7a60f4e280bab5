"""Requests' costs on servers of several workers, beside the simulator's exact shares: prefill and decode apart."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from benchmarks import serving_messages
from benchmarks.rows import Row
from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.serving.simulated import EnginePhysics
from gpu_profile.serving.simulated_workers import simulate_disaggregated
from gpu_profile.serving.workers import WorkerRole

_SECONDS: Final = 150.0
#: Requests of less energy than this, in J, are not judged one by one.
_LEAST_J: Final = 5.0


def rows(seeds: int) -> Iterator[Row]:
    """All kinds of servers, with so many seeds each."""
    yield _apart(seeds)


def _apart(seeds: int) -> Row:
    """Each worker's messages and spans, as SGLang's workers send them, and the sums of both parts of each request."""
    tenants, requests, half_widths, answered = [], [], [], []
    for seed in range(seeds):
        runs = simulate_disaggregated(EnginePhysics(MODELS["H200 SXM"]), seconds=_SECONDS, seed=seed)
        prefill = serving_messages.replay(runs.prefill, seed, WorkerRole.PREFILL)
        decode = serving_messages.replay(runs.decode, seed, WorkerRole.DECODE)
        joules = prefill.joules[runs.prefill_of] + decode.joules
        widths = np.hypot(prefill.half_widths[runs.prefill_of], decode.half_widths)
        truth = np.bincount([request.tenant for request in runs.decode.requests], runs.true_j)
        whole = runs.true_j >= _LEAST_J
        large = whole & np.isfinite(joules)
        tenants += abs((prefill.tenants + decode.tenants) / truth - 1).tolist()
        requests += abs(joules[large] / runs.true_j[large] - 1).tolist()
        half_widths += (widths[large] / runs.true_j[large]).tolist()
        answered.append(large.sum() / whole.sum())
    error, request_error = float(np.median(tenants)), float(np.median(requests))
    beyond = float(np.mean(np.array(requests) > 3 * np.array(half_widths)))
    return Row(
        "serving: prefill and decode on workers of their own",
        f"tenants: {error:.2%} median error, {max(tenants):.2%} largest; requests: {request_error:.2%} median error, "
        f"{np.quantile(requests, 0.95):.2%} 95th, {beyond:.1%} beyond 3 half-widths, {np.mean(answered):.0%} answered",
        reach="<=2 % per tenant, <=5 % per request, <=1 % beyond 3, >=90 % answered",
        ok=error <= 0.02 and request_error <= 0.05 and beyond <= 0.01 and bool(np.mean(answered) >= 0.9), cost=error,
    )  # fmt: skip

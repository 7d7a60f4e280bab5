"""Requests' costs on servers of several workers, beside the simulator's exact shares: prefill and decode apart, and
pipelines, which are refused."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from support.serving_workers import simulate_disaggregated, simulate_pipeline

from benchmarks import serving_messages
from benchmarks.rows import Row
from benchmarks.serving_accounts import share_out
from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.history.timeline import Floats
from gpu_profile.serving.pricing.account import EngineAccount
from gpu_profile.serving.pricing.sharing import Unallocated
from gpu_profile.serving.pricing.windows import CounterReadings
from gpu_profile.serving.simulated import EnginePhysics, ServingRun
from gpu_profile.serving.streams.membership import PlacingFault
from gpu_profile.serving.streams.workers import WorkerRole

_SECONDS, _PIPELINE_S = 150.0, 90.0
#: Requests of less energy than this, in J, are not judged one by one.
_LEAST_J: Final = 5.0


def rows(seeds: int) -> Iterator[Row]:
    """All kinds of servers, with so many seeds each."""
    yield _apart(seeds)
    for stages in (2, 4):
        yield _pipeline(stages)


def _apart(seeds: int) -> Row:
    """Each worker's messages and spans, as SGLang's workers send them, and the sums of both parts of each request."""
    tenants, requests, half_widths, answered = [], [], [], []
    for seed in range(seeds):
        runs = simulate_disaggregated(EnginePhysics(MODELS["H200 SXM"]), seconds=_SECONDS, seed=seed)
        prefill = serving_messages.replay(runs.prefill, seed, role=WorkerRole.PREFILL)
        decode = serving_messages.replay(runs.decode, seed, role=WorkerRole.DECODE)
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


def _pipeline(stages: int) -> Row:
    """A pipeline's requests and energy are refused, as engines report the last stage alone. Beside: the errors if its
    iterations were taken for those of all stages, and if each stage reported its own."""
    run = simulate_pipeline(EnginePhysics(MODELS["H200 SXM"]), stages, seconds=_PIPELINE_S, seed=1)
    reported, readings = run.stages[-1], run.readings(seed=1)
    shown = serving_messages.replay(reported, 1, readings=readings)
    summed, widths = _shared([reported], [readings])
    apart, _ = _shared(run.stages, [each.readings(seed=1) for each in run.stages])
    truth = np.bincount([request.tenant for request in reported.requests], run.true_j)
    wrong, right = abs(summed / truth - 1), abs(apart / truth - 1)
    share = shown.unallocated.get(Unallocated.STAGES, 0.0) / sum(float(each.joules.sum()) for each in run.stages)
    refused = shown.reasons[str(PlacingFault.STAGES)]
    return Row(
        f"serving: pipeline of {stages} stages",
        f"{refused} of {sum(shown.reasons.values())} requests refused; stages that report themselves: tenants' "
        f"errors <={max(right):.1%}",
        f"by the last stage's iterations: tenants' errors <={max(wrong):.1%}, half-widths <={max(widths):.1%}",
        reach="refused, no tenant has energy; <=2 % per tenant by stages",
        ok=not shown.tenants.any()
        and refused == sum(shown.reasons.values()) > 0
        and share > 0.98
        and max(right) <= 0.02,
        cost=float(max(right)),
    )


def _shared(runs: Sequence[ServingRun], readings: Sequence[CounterReadings]) -> tuple[Floats, list[float]]:
    """The J of tenants, summed over accounts of each run with its counter, and their half-widths."""
    joules, widths = np.zeros(3), [0.0]
    for run, each in zip(runs, readings, strict=True):
        tenants = [request.tenant for request in run.requests]
        account = EngineAccount(tenants.__getitem__)
        share_out(account, run, each, None)
        for (tenant, _), microjoules in account.microjoules.items():
            joules[tenant] += microjoules / 1e6  # type: ignore[call-overload]
        widths += [account.half_width(tenant) or 0.0 for tenant in range(3)]
    return joules, widths

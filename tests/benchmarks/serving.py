"""The energy of an engine's requests and tenants, shared out by several rules, beside the simulator's exact shares."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Final, TypeVar

import numpy as np
from laboratory.score import clustered

from benchmarks import serving_gate, serving_messages, serving_sweep, serving_vllm, serving_workers
from benchmarks.rows import Row
from benchmarks.serving_accounts import passed_on, share_out, where
from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.serving.pricing.account import EngineAccount
from gpu_profile.serving.simulated import EnginePhysics, LanguageModel, ServingRun, simulate
from gpu_profile.serving.simulated_load import TENANTS
from gpu_profile.serving.work import Iterations, RequestPhase, WorkQuantity

SEEDS: Final = 10
_SECONDS: Final = 240.0
#: Requests of less energy than this, in J, are not judged one by one.
_LEAST_J: Final = 5.0
_PHYSICS: Final = EnginePhysics(MODELS["H200 SXM"])
_Measured = TypeVar("_Measured")
_EXPERTS: Final = LanguageModel(parameters=24e9, experts=128, active=8)


@dataclass(frozen=True, slots=True)
class Case:
    """A world: the engine's physics, and what happens to readings and iterations."""

    name: str
    physics: EnginePhysics = _PHYSICS
    tenants: tuple[int, ...] = (0, 1, 2)
    bursts: bool = False
    late_s: float = 0.0
    #: The period of the counter's renewals. 0: it is renewed at each reading.
    renewed_s: float = 0.0
    #: The power of other work on the device, for 4 s of 8.
    foreign_w: float = 0.0
    lost: float = 0.0
    #: Whether a refusal is no failure.
    may_refuse: bool = False
    exact: bool = False


CASES: Final = (
    Case("matching model", exact=True),
    Case("prices rise by up to 15 % with the load", replace(_PHYSICS, load_price=0.15)),
    Case("prices fall by up to 15 % with the load", replace(_PHYSICS, load_price=-0.15)),
    Case("power cap of 450 W", replace(_PHYSICS, power_cap_w=450.0), may_refuse=True),
    Case("counter 60 ms late", late_s=0.06, exact=True),
    Case("counter renewed every 105 ms", renewed_s=0.105, exact=True),
    Case("counter renewed every 130 ms", renewed_s=0.13, exact=True),
    Case("10 % of iterations lost", lost=0.1, may_refuse=True),
    Case("bursts", bursts=True, exact=True),
    Case("one tenant", tenants=(1,), exact=True),
    Case("mixture of experts", replace(_PHYSICS, model=_EXPERTS)),
    Case("tokens in tiles of 64", replace(_PHYSICS, model=LanguageModel(tile=64))),
    Case("other work of 200 W by turns", foreign_w=200.0, may_refuse=True),
    Case("two GPUs in tensor parallel", replace(_PHYSICS, devices=2), exact=True),
)


@dataclass(slots=True)
class Judged:
    """What one seed of a case showed: relative errors, and half-widths as shares of the truth. NaN: refused."""

    tenants: Floats
    half_widths: Floats
    requests: Floats
    request_half_widths: Floats
    us_per_iteration: float
    conserved: bool
    others: dict[str, tuple[Floats, Floats]]


def judged(seeds: int) -> list[list[Judged]]:
    """By case: what each seed showed. Cases with the same engine share a run."""
    result: list[list[Judged]] = [[] for _ in CASES]
    for seed in range(seeds):
        runs: dict[tuple[int, tuple[int, ...], bool], ServingRun] = {}
        for case, some in zip(CASES, result, strict=True):
            key = id(case.physics), case.tenants, case.bursts
            if key not in runs:
                tenants = [TENANTS[i] for i in case.tenants]
                runs[key] = simulate(case.physics, tenants, seconds=_SECONDS, seed=seed, bursts=case.bursts)
            some.append(judge(case, runs[key], seed))
    return result


def judge(case: Case, run: ServingRun, seed: int) -> Judged:
    """Share out one simulated run, in batches as they would arrive."""
    readings = passed_on(run.readings(late_s=case.late_s, seed=seed, renewed_s=case.renewed_s))
    if case.foreign_w:
        times_s = (readings.times - run.start_ns) / 1e9
        worked_s = times_s // 8 * 4 + np.minimum(times_s % 8, 4.0)
        readings = readings._replace(joules=readings.joules + case.foreign_w * worked_s)
    account = EngineAccount(lambda request: run.requests[request].tenant, case.physics.devices)
    began = time.process_time()
    share_out(account, run, readings, _lost(run, case.lost, seed), spans=True)
    spent_s = time.process_time() - began
    lag_ns = account.model.lag.ns
    first_ns, last_ns = int(readings.times[0]) - lag_ns, int(readings.times[-1]) - lag_ns
    tenant_of = np.array([request.tenant for request in run.requests])
    truth: Floats = np.bincount(tenant_of, run.true_j, len(case.tenants)).astype(np.float64)
    parts = np.array([
        sum(uj for (each, _), uj in account.microjoules.items() if each == tenant) / 1e6
        for tenant in range(len(case.tenants))
    ])  # fmt: skip
    total = sum(account.microjoules.values()) + sum(account.unallocated.values())
    shared = round(float(readings.joules[-1]) * 1e6) - round(float(readings.joules[0]) * 1e6)
    widths = np.array([np.nan if (w := account.half_width(t)) is None else w for t in range(len(case.tenants))])
    given = np.isfinite(widths)
    # Both ends of a run lie outside all readings.
    scale = float(run.true_j.sum()) / max(1e-9, _energy(run, first_ns, last_ns))
    errors = np.where(given, parts * scale / truth - 1, np.nan)
    large = np.flatnonzero(run.true_j >= _LEAST_J).tolist()
    of_request = account.costs(large)
    costs = [of_request.get(request) for request in large]
    values = np.array([np.nan if c is None or c.reason else sum(c.joules) for c in costs])
    request_widths = np.array([np.nan if c is None else c.half_width_j for c in costs])
    return Judged(
        errors, widths, values / run.true_j[large] - 1, request_widths / run.true_j[large],
        spent_s / len(run.joules) * 1e6, abs(total - shared) <= account.held_uj,
        {name: _beside(run, rule(run), large, truth, tenant_of) for name, rule in RULES.items()},
    )  # fmt: skip


def _energy(run: ServingRun, start_ns: int, end_ns: int) -> float:
    some = (run.iterations.starts >= start_ns) & (run.iterations.ends <= end_ns)
    return float(run.joules[some].sum())


def _lost(run: ServingRun, share: float, seed: int) -> Iterations | None:
    if not share:
        return None
    return where(run.iterations, np.random.default_rng(seed).uniform(size=len(run.joules)) < share)


# ---------------------------------------------------------------------- other rules


def _whole(run: ServingRun) -> Floats:
    """All of the GPU's energy during a request's span."""
    iterations = run.iterations
    passed = np.concatenate(([0.0], np.cumsum(run.joules)))
    parts = iterations.parts
    first, last = np.full(len(run.requests), len(run.joules)), np.full(len(run.requests), -1)
    np.minimum.at(first, parts.request, parts.iteration)
    np.maximum.at(last, parts.request, parts.iteration)
    result: Floats = np.where(last >= 0, passed[last + 1] - passed[np.minimum(first, last + 1)], 0.0)
    return result


def _by_quantity(weight: Callable[[ServingRun], Floats]) -> Callable[[ServingRun], Floats]:
    def rule(run: ServingRun) -> Floats:
        amounts = np.bincount(run.iterations.parts.request, weight(run), len(run.requests))
        result: Floats = amounts * run.joules.sum() / amounts.sum()
        return result

    return rule


def _equal(run: ServingRun) -> Floats:
    """Each iteration in equal parts over its requests."""
    parts = run.iterations.parts
    each = run.joules / run.iterations.work[:, WorkQuantity.REQUESTS]
    result: Floats = np.bincount(parts.request, each[parts.iteration], len(run.requests)).astype(np.float64)
    return result


def _by_spans(run: ServingRun) -> Floats:
    """Least squares of power on the numbers of requests in prefill and in decode, and each its rate."""
    iterations, parts = run.iterations, run.iterations.parts
    counts = np.array([
        np.bincount(parts.iteration, parts.phase == phase, len(run.joules)) for phase in RequestPhase
    ]).T * iterations.seconds[:, None]  # fmt: skip
    rows, place = np.column_stack((iterations.seconds, counts)), (iterations.starts - run.start_ns) // 100_000_000
    n = int(place[-1]) + 1
    sums = np.array([np.bincount(place, column, n) for column in rows.T]).T
    rates = np.linalg.lstsq(sums, np.bincount(place, run.joules, n), rcond=None)[0]
    alone = iterations.seconds * rates[0] / iterations.work[:, WorkQuantity.REQUESTS]
    own = rates[1:][parts.phase] * iterations.seconds[parts.iteration] + alone[parts.iteration]
    result: Floats = np.bincount(parts.request, own, len(run.requests)).astype(np.float64)
    return result


RULES: Final[Mapping[str, Callable[[ServingRun], Floats]]] = {
    "whole GPU": _whole,
    "equal parts": _equal,
    "output tokens": _by_quantity(lambda run: (run.iterations.parts.phase == RequestPhase.DECODE) * 1.0),
    "all tokens": _by_quantity(lambda run: run.iterations.parts.work[:, WorkQuantity.TOKENS]),
    "spans alone, unmixed": _by_spans,
}


def _beside(
    run: ServingRun, joules: Floats, large: list[int], truth: Floats, tenant_of: Ints
) -> tuple[Floats, Floats]:  # fmt: skip
    """Relative errors of a rule: by tenant, and by request."""
    tenants = np.bincount(tenant_of, joules, len(truth)) / truth - 1
    return abs(tenants), abs(joules[large] / run.true_j[large] - 1)


# ---------------------------------------------------------------------- rows


def rows() -> Iterator[Row]:
    """All cases, with ten seeds each."""
    yield from _rows(SEEDS)


def sample() -> Iterator[Row]:
    """All cases, with four seeds each."""
    yield from _rows(4)


def _rows(seeds: int) -> Iterator[Row]:
    costs = []
    for case, some in zip(CASES, _as_in_the_exporter(judged, seeds), strict=True):
        costs += [each.us_per_iteration for each in some]
        yield _row(case, some)
    yield _median_cost("serving: cost of an iteration in the account", costs, 15.0)
    yield from _from_messages(seeds)
    yield from serving_vllm.rows()
    yield from serving_sweep.rows()
    yield from serving_workers.rows(max(1, seeds // 2))
    yield from serving_gate.rows(100 * seeds)


def _as_in_the_exporter(measure: Callable[[int], _Measured], seed: int) -> _Measured:
    """Measure in a process with one thread of BLAS, as the exporter has."""
    before = dict(os.environ)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(measure, seed).result()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _median_cost(name: str, costs: list[float], most: float) -> Row:
    cost = float(np.median(costs))
    return Row(name, f"{cost:.1f} us", reach=f"<={most:.0f} us", ok=cost <= most, cost=cost)


def _replayed(seed: int) -> tuple[ServingRun, serving_messages.Replayed]:
    run = simulate(_PHYSICS, seconds=_SECONDS, seed=seed, drained=True)
    return run, serving_messages.replay(run, seed)


def _from_messages(seeds: int) -> Iterator[Row]:
    """The whole way: forward-pass metrics that arrive late by some ms, and spans at the end of each request."""
    tenants, requests, half_widths, costs, answered = [], [], [], [], []
    for seed in range(max(1, seeds // 2)):
        run, shown = _as_in_the_exporter(_replayed, seed)
        truth = np.bincount([request.tenant for request in run.requests], run.true_j)
        large = (run.true_j >= _LEAST_J) & np.isfinite(shown.joules)
        tenants += abs(shown.tenants / truth - 1).tolist()
        requests += abs(shown.joules[large] / run.true_j[large] - 1).tolist()
        half_widths += (shown.half_widths[large] / run.true_j[large]).tolist()
        answered.append(large.sum() / (run.true_j >= _LEAST_J).sum())
        costs.append(shown.us_per_iteration)
    error, request_error = float(np.median(tenants)), float(np.median(requests))
    beyond = float(np.mean(np.array(requests) > 3 * np.array(half_widths)))
    yield Row(
        "serving: from an engine's messages and its requests' spans",
        f"tenants: {_both(np.array(tenants))}; requests: {_both(np.array(requests))}, {beyond:.1%} beyond 3 "
        f"half-widths, {np.mean(answered):.0%} answered",
        reach="<=2 % per tenant, <=5 % per request, >=90 % answered",
        ok=error <= 0.02 and request_error <= 0.05 and bool(np.mean(answered) >= 0.9), cost=error,
    )  # fmt: skip
    yield _median_cost("serving: cost of an iteration from its message and spans", costs, 15.0)


def _row(case: Case, some: list[Judged]) -> Row:
    tenants, widths = (np.array([getattr(each, name) for each in some]) for name in ("tenants", "half_widths"))
    requests = np.concatenate([each.requests for each in some])
    request_widths = np.concatenate([each.request_half_widths for each in some])
    given, answered = np.isfinite(tenants), np.isfinite(requests)
    within = [(seed, bool(abs(e) <= w)) for seed, (es, ws) in enumerate(zip(tenants, widths, strict=True))
              for e, w in zip(es, ws, strict=True) if np.isfinite(e)]  # fmt: skip
    beyond = int((abs(tenants[given]) > 3 * widths[given]).sum())
    request_beyond = float((abs(requests) > 3 * request_widths)[answered].mean()) if answered.any() else 0.0
    covers = float(np.mean([good for _, good in within])) if within else 1.0
    low, high = clustered(within) if within else (1.0, 1.0)
    error = float(np.median(abs(tenants[given]))) if given.any() else np.nan
    request_error = float(np.median(abs(requests[answered]))) if answered.any() else np.nan
    figure = (
        f"tenants: {_both(abs(tenants[given]))}, {covers:.0%} [{low:.0%}, {high:.0%}] within, {beyond} beyond 3 "
        f"half-widths, {given.mean():.0%} answered; requests: {_both(abs(requests[answered]))}, "
        f"{request_beyond:.1%} beyond 3, {answered.mean():.0%} answered"
    )
    others = "; ".join(
        f"{name} {np.median(np.concatenate([each.others[name][0] for each in some])):.0%} / "
        f"{np.median(np.concatenate([each.others[name][1] for each in some])):.0%}"
        for name in RULES
    )
    ok = covers >= 0.88 and not beyond and request_beyond <= 0.01 and all(each.conserved for each in some)
    if case.exact:
        ok &= bool(given.all()) and error <= 0.02 and request_error <= 0.05
    elif not case.may_refuse:
        ok &= bool(given.any())
    best = min(float(np.median(np.concatenate([each.others[name][0] for each in some]))) for name in RULES)
    reach = "<=2 % per tenant, <=5 % per request, answered" if case.exact else ">=88 % within or refused"
    ratio = f"{best / error:.0f}x less than the best other" if given.any() and len(case.tenants) > 1 else "-"
    return Row(
        f"serving: {case.name}", figure, f"median by tenant / request: {others}", ratio, reach, ok=ok, cost=error
    )


def _both(errors: Floats) -> str:
    return f"{np.median(errors):.2%} median error, {np.quantile(errors, 0.95):.2%} 95th" if len(errors) else "refused"

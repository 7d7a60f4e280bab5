"""The same energy, shared out from an engine's own messages and from its requests' spans, as they arrive on a node."""

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from msgspec import msgpack

from benchmarks.serving_accounts import take
from gpu_profile.history.timeline import Floats
from gpu_profile.serving.joined import ServingEngine
from gpu_profile.serving.pricing.cost_sums import RequestCost
from gpu_profile.serving.pricing.sharing import Unallocated
from gpu_profile.serving.pricing.windows import CounterReadings
from gpu_profile.serving.simulated import ServingRun
from gpu_profile.serving.streams.workers import WorkerRole
from gpu_profile.serving.work import RequestPhase, WorkQuantity
from gpu_profile_exporter.serving.costs import STEP_S
from gpu_profile_exporter.serving.energy import EnergySum

_S: Final = 10**9
#: Messages arrive this much after an iteration, and up to some times the second value more; spans after their request.
_DELAY_S, _JITTER_S, _SPAN_DELAY_S = 0.002, 0.001, 0.005
_TENANT, _CACHED = "tenant.id", "gen_ai.usage.cached_tokens"
#: The exporter's step, and its interval of the lists of processes, for which energy waits.
_STEP_NS, _LISTS_NS = round(STEP_S * _S), 5 * _S
#: The exporter's default: `--serving-wait` less 5 s.
_DEADLINE_NS: Final = 55 * _S


@dataclass(frozen=True, slots=True)
class Replayed:
    """By number of a request: its energy in J and half-width, NaN if it was refused. By tenant: its energy, and its
    half-width as a share of that. The rest is of the whole run: energies of nobody, in J, and the reasons of requests
    without a cost."""

    joules: Floats
    half_widths: Floats
    tenants: Floats
    tenant_half_widths: Floats
    us_per_iteration: float
    unallocated: dict[Unallocated, float]
    reasons: Counter[str]


def messages(run: ServingRun, seed: int) -> Iterator[tuple[int, list[bytes]]]:
    """The forward-pass metrics of a run, with their arrivals in ns."""
    iterations, parts, n = run.iterations, run.iterations.parts, len(run.joules)
    delays = _DELAY_S + np.random.default_rng(seed).exponential(_JITTER_S, n)
    arrivals = np.maximum.accumulate(iterations.ends + (delays * _S).astype(np.int64))
    prefill = (parts.phase == RequestPhase.PREFILL).astype(np.float64)

    def total(values: Floats) -> Floats:
        return np.bincount(parts.iteration, values, n).astype(np.float64)

    tokens = parts.work[:, WorkQuantity.TOKENS]
    chunks, decodes, computed = total(prefill), total(1 - prefill), total(tokens * prefill)
    variance = total(tokens**2 * prefill) / np.maximum(chunks, 1) - (computed / np.maximum(chunks, 1)) ** 2
    stored, context = iterations.work[:, WorkQuantity.PREFILL_KV], iterations.work[:, WorkQuantity.DECODE_CONTEXT]
    for i, arrival in enumerate(arrivals.tolist()):
        scheduled = {
            "num_prefill_requests": int(chunks[i]),
            "sum_prefill_tokens": int(computed[i]),
            "var_prefill_length": max(0.0, float(variance[i])),
            "sum_prefill_kv_tokens": int(stored[i]),
            "num_decode_requests": int(decodes[i]),
            "sum_decode_kv_tokens": int(context[i]),
            "var_decode_kv_tokens": 0.0,
        }
        body = {
            "worker_id": "worker",
            "dp_rank": 0,
            "wall_time": float(iterations.ends[i] - iterations.starts[i]) / _S,
            "scheduled_requests": scheduled,
            "queued_requests": {},
        }
        yield arrival, [b"", i.to_bytes(8, "big"), msgpack.encode(body)]


def spans(run: ServingRun, role: WorkerRole) -> Iterator[tuple[int, int, dict[str, object]]]:
    """The spans of the requests that ended: arrival and start in ns, and attributes. Those of workers with a role are
    SGLang's, without the time in the queue, and of a prefill worker without the end."""
    for number, request in enumerate(run.requests):
        if request.end_s == request.end_s:
            arrival_ns, start_ns = (int(each * _S) for each in (request.end_s + _SPAN_DELAY_S, request.arrival_s))
            attributes: dict[str, object] = {
                "gen_ai.request.id": str(number),
                "gen_ai.usage.prompt_tokens": request.prompt,
                "gen_ai.usage.completion_tokens": request.output,
                _CACHED: request.cached,
                "gen_ai.latency.time_in_queue": request.scheduled_s - request.arrival_s,
                "gen_ai.latency.time_to_first_token": request.first_token_s - request.arrival_s,
                "gen_ai.latency.e2e": request.end_s - request.arrival_s,
                _TENANT: f"t{request.tenant}",
            }
            if role:
                del attributes["gen_ai.latency.time_in_queue"]
            if role is WorkerRole.PREFILL:
                del attributes["gen_ai.latency.e2e"]
            yield run.start_ns + arrival_ns, run.start_ns + start_ns, attributes


def replay(
    run: ServingRun, seed: int, some: Iterable[tuple[int, list[bytes]]] | None = None, *,
    cached: bool = True, role: WorkerRole = WorkerRole.WHOLE, readings: CounterReadings | None = None,
    keep: Callable[[int], bool] = lambda _: True,
) -> Replayed:  # fmt: skip
    """All data of a run in the order of their arrival, and idle readings until the last request is settled. `some` are
    other messages than SGLang's. `cached`: spans have the cached tokens of their prompts. `keep`: which spans arrive,
    by place."""
    energy = EnergySum(["gpu"], renewals=True)
    engine = ServingEngine(_TENANT, deadline_ns=_DEADLINE_NS, role=role)
    readings = readings or run.readings(seed=seed)
    name = f"{role} Req 1a2b3c4d" if role else "llm_request"
    last_ns, last_j = int(readings.times[-1]), float(readings.joules[-1])
    idle = [(last_ns + i * _S, last_j + i * run.idle_w) for i in range(1, 150)]
    events: list[tuple[int, int, tuple[object, ...]]] = [
        (at, 0, (frames,)) for at, frames in some or messages(run, seed)
    ]
    for place, (at, start_ns, attributes) in enumerate(spans(run, role)):
        if not keep(place):
            continue
        reported = {key: value for key, value in attributes.items() if cached or key != _CACHED}
        events.append((at, 1, (start_ns, reported)))
    events += [(at, 2, (j,)) for at, j in [*zip(readings.times.tolist(), readings.joules.tolist(), strict=True), *idle]]
    events.sort(key=lambda each: each[:2])
    next_ns, finished, times, joules_at = events[0][0] + _STEP_NS, [], list[int](), list[float]()
    # The collector of garbage would look at the run and its events too, which are not the exporter's.
    gc.freeze()
    began = time.process_time()
    for at, kind, values in events:
        while at >= next_ns:
            take(energy, np.array(times, np.int64), np.array(joules_at))
            engine.read(*energy.readings()[:2], energy.last_ns)
            times, joules_at = [], []
            engine.settle(next_ns, next_ns // _LISTS_NS * _LISTS_NS - _S)
            finished += engine.finished()
            next_ns += _STEP_NS
        if kind == 0:
            engine.message(values[0], at)  # type: ignore[arg-type]
        elif kind == 1:
            engine.request(name, values[0], values[1])  # type: ignore[arg-type]
        else:
            times.append(at)
            joules_at.append(values[0])  # type: ignore[arg-type]
    spent_s = time.process_time() - began
    gc.unfreeze()
    joules, half_widths = np.full(len(run.requests), np.nan), np.full(len(run.requests), np.nan)
    for request, cost in finished:
        if isinstance(cost, RequestCost) and cost.reason is None:
            joules[int(request.id)], half_widths[int(request.id)] = sum(cost.joules), cost.half_width_j
    tenants = np.array([
        sum(uj for (use, _), uj in engine.account.microjoules.items() if use == (f"t{place}", "")) / 1e6
        for place in range(max(request.tenant for request in run.requests) + 1)
    ])  # fmt: skip
    widths = [engine.account.half_width((f"t{place}", "")) for place in range(len(tenants))]
    tenant_widths = np.array([np.nan if width is None else width for width in widths])
    unallocated = {reason: uj / 1e6 for reason, uj in engine.account.unallocated.items()}
    reasons = Counter(str(cost) for _, cost in finished if isinstance(cost, StrEnum))
    per_iteration = spent_s / len(run.joules) * 1e6
    return Replayed(joules, half_widths, tenants, tenant_widths, per_iteration, unallocated, reasons)

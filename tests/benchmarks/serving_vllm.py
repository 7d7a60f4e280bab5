"""Costs from the iterations of a simulated run as vLLM's plug-in reports them, with the fields of vLLM's statistics.

The module also takes the place of `vllm.v1.metrics.perf`: its formula of the bytes that an iteration reads, for the
attention of a decoder in 16 bit.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np
from msgspec import msgpack

from benchmarks import serving_messages
from benchmarks.rows import Row
from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.history.timeline import Floats
from gpu_profile.serving.pricing.sharing import Unallocated
from gpu_profile.serving.simulated import EnginePhysics, ServingRun, simulate
from gpu_profile.serving.vllm import ServingStatLogger
from gpu_profile.serving.work import RequestPhase, WorkQuantity

CONFIG: Final = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=2048), instance_id="v1")
_S: Final = 10**9
#: Requests of less energy than this, in J, are not judged. One request of so many is aborted.
_LEAST_J, _ABORTED = 5.0, 50
PERF: Final = "vllm.v1.metrics.perf"


class ExecutionContext:
    """As vLLM's, the sums that its formulas take."""

    def __init__(self) -> None:
        self.tokens = self.contexts = self.firsts = 0

    def add(self, num_tokens: int, context_len: int, is_prefill: bool) -> None:
        self.tokens += num_tokens
        self.contexts += context_len
        self.firsts += is_prefill


class ModelMetrics:
    """As vLLM's for 32 layers of width 4,096 with 8 of 32 heads of keys and values. `window` limits each context, as in
    layers with a sliding window. The bytes of the weights are a multiple of those of a context, as of Llama 3 8B."""

    window: int | None = None

    def __init__(self, vllm_config: object) -> None:
        self.config = vllm_config

    def get_read_bytes(self, ctx: ExecutionContext) -> int:
        contexts = ctx.contexts if self.window is None else min(ctx.contexts, self.window)
        layer = ctx.tokens * 4096 * 2 + (ctx.tokens * 32 + 2 * contexts * 8) * 128 * 2
        return 32 * layer + 122_500 * 131_072 + ctx.firsts * 4096 * 2


@contextmanager
def perf_module(**more: object) -> Iterator[None]:
    """The formula as a module that can be imported. `more` are names that it has beside it."""
    module = ModuleType(PERF)
    vars(module).update({"ExecutionContext": ExecutionContext, "ModelMetrics": ModelMetrics} | more)
    sys.modules[PERF] = module
    try:
        yield
    finally:
        del sys.modules[PERF]


def vllm_messages(
    run: ServingRun, seed: int, *, old: bool = False, estimates: float = 0.0
) -> Iterator[tuple[int, list[bytes]]]:
    """The messages with their arrivals in ns. `old`: without the tokens that prompts computed, as vLLM 0.11.
    `estimates`: the factor of the estimates of bytes that `--enable-mfu-metrics` adds, 0 without them."""
    delays = np.random.default_rng(seed).exponential(0.001, len(run.joules))
    arrivals = np.maximum.accumulate(run.iterations.ends + ((0.002 + delays) * _S).astype(np.int64)).tolist()
    logger = ServingStatLogger(CONFIG)
    reported = vllm_stats(run, old=old, estimates=estimates)
    for place, (stats, arrival_ns) in enumerate(zip(reported, arrivals, strict=True)):
        body = {"version": 1, "worker_id": "v1", "dp_rank": 0, "wall_time": 0.0, "estimated": True}
        yield (
            arrival_ns,
            [b"", place.to_bytes(8, "big"), msgpack.encode(body | {"scheduled_requests": logger.scheduled(*stats)})],
        )


def vllm_stats(run: ServingRun, *, old: bool, estimates: float = 0.0) -> Iterator[tuple[Any, Any]]:
    """`SchedulerStats` and `IterationStats` of each iteration."""
    parts, running, done = run.iterations.parts, set[int](), np.zeros(len(run.requests), int)
    edges = np.searchsorted(parts.iteration, np.arange(len(run.joules) + 1))
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = parts.rows(low, high)
        numbers, phases = part.request.tolist(), part.phase.tolist()
        firsts, hits, fresh = [], 0, 0
        for number, phase, work in zip(numbers, phases, part.work.tolist(), strict=True):
            request = run.requests[number]
            if number not in running:
                hits, fresh = hits + request.cached, fresh + 1
                running.add(number)
            if phase == RequestPhase.DECODE:
                done[number] += 1
            elif work[WorkQuantity.PREFILL_KV] + work[WorkQuantity.TOKENS] >= request.prompt:
                firsts.append(request)
                done[number] += 1
        ended = {number for number in numbers if done[number] >= run.requests[number].output}
        running -= ended
        decodes = phases.count(RequestPhase.DECODE)
        iteration = SimpleNamespace(
            inter_token_latencies_iter=[0.01] * decodes, time_to_first_tokens_iter=[0.1] * len(firsts),
            finished_requests=[object()] * len(ended), num_prompt_tokens=sum(each.prompt for each in firsts),
        )  # fmt: skip
        if not old:
            cached = sum(each.cached for each in firsts)
            iteration.prompt_token_stats = SimpleNamespace(
                computed=iteration.num_prompt_tokens - cached, cached_tokens=cached
            )
        caching = SimpleNamespace(requests=fresh, queries=0, hits=hits, reset=False)
        perf = SimpleNamespace(num_read_bytes_per_gpu=int(estimates * _read_bytes(phases, part.work)))
        yield (
            SimpleNamespace(
                num_running_reqs=len(running), prefix_cache_stats=caching, perf_stats=perf if estimates else None
            ),
            iteration,
        )


def _read_bytes(phases: list[int], work: Floats) -> int:
    """The bytes of an iteration. vLLM counts the current tokens in contexts."""
    context = ExecutionContext()
    for phase, row in zip(phases, work.astype(int).tolist(), strict=True):
        tokens, before = row[WorkQuantity.TOKENS], row[WorkQuantity.PREFILL_KV] + row[WorkQuantity.DECODE_CONTEXT]
        context.add(tokens, tokens + before, phase == RequestPhase.PREFILL)
    return ModelMetrics(None).get_read_bytes(context)


# ---------------------------------------------------------------------- rows


def rows() -> Iterator[Row]:
    """A vLLM of whose requests 2 % have no span, as after their clients aborted them: with its estimates of the bytes
    that it reads, without them, and with estimates that are twice too high."""
    run = simulate(EnginePhysics(MODELS["H200 SXM"]), seconds=90, seed=0, drained=True)
    with perf_module():
        shown = {factor: _aborted(run, factor) for factor in (0.0, 1.0, 2.0)}
    (answered, error, nobodys), without, doubled = shown[1.0], shown[0.0], shown[2.0]
    yield Row(
        "serving: vLLM with --enable-mfu-metrics, 2 % of requests aborted",
        f"requests: {error:.2%} median error, {answered:.0%} answered; {nobodys:.1%} of the energy of nobody",
        f"without it: {without[0]:.0%} answered, {without[2]:.1%} of nobody; estimates of bytes twice too "
        f"high: {doubled[0]:.0%} answered",
        reach=">=90 % answered, <=5 % error; wrong estimates as without them",
        ok=answered >= 0.9 and error <= 0.05 and doubled == without,
        cost=error,
    )


def _aborted(run: ServingRun, factor: float) -> tuple[float, float, float]:
    """The share of requests with a cost, its median error, and the share of the energy for unknown requests."""
    sent = vllm_messages(run, 0, estimates=factor)
    engine = serving_messages.replay(run, 0, sent, keep=lambda place: place % _ABORTED > 0)
    large = run.true_j >= _LEAST_J
    answered = large & np.isfinite(engine.joules)
    errors = abs(engine.joules[answered] / run.true_j[answered] - 1)
    nobodys = engine.unallocated.get(Unallocated.REQUEST, 0.0) / float(run.joules.sum())
    return float(answered.sum() / large.sum()), float(np.median(errors)), nobodys

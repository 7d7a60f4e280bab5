"""The iterations of a simulated run as vLLM's plug-in reports them, with the fields of vLLM's statistics."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import msgpack
import numpy as np

from gpu_profile.serving.simulated import ServingRun
from gpu_profile.serving.vllm import ServingStatLogger
from gpu_profile.serving.work import RequestPhase, WorkQuantity

CONFIG: Final = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=2048), instance_id="v1")
_S: Final = 10**9


def vllm_messages(run: ServingRun, seed: int, *, old: bool = False) -> Iterator[tuple[int, list[bytes]]]:
    """The messages with their arrivals in ns. `old`: without the tokens that prompts computed, as vLLM 0.11."""
    delays = np.random.default_rng(seed).exponential(0.001, len(run.joules))
    arrivals = np.maximum.accumulate(run.iterations.ends + ((0.002 + delays) * _S).astype(np.int64)).tolist()
    logger = ServingStatLogger(CONFIG)
    for place, (stats, arrival_ns) in enumerate(zip(vllm_stats(run, old=old), arrivals, strict=True)):
        body = {"version": 1, "worker_id": "v1", "dp_rank": 0, "wall_time": 0.0}
        yield (
            arrival_ns,
            [b"", place.to_bytes(8, "big"), msgpack.packb(body | {"scheduled_requests": logger.scheduled(*stats)})],
        )


def vllm_stats(run: ServingRun, *, old: bool) -> Iterator[tuple[Any, Any]]:
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
        yield SimpleNamespace(num_running_reqs=len(running), prefix_cache_stats=caching), iteration

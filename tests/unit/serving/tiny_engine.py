"""A small engine with continuous batching and chunked prefill, for exact truth about its iterations' requests."""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from msgspec import msgpack

from gpu_profile.serving.work import QUANTITIES, Iterations, Parts, RequestPhase, WorkQuantity

EPOCH_NS = 1_700_000_000_000_000_000
MS = 1_000_000
Frames = tuple[bytes, bytes, bytes]


class Span(NamedTuple):
    """A request's span: when it arrives at the exporter, and its start and attributes."""

    arrival_ns: int
    start_ns: int
    attributes: dict[str, object]


@dataclass
class Run:
    """Messages with arrivals, spans, and by request and phase: iterations, tokens and context in total."""

    messages: list[tuple[int, Frames]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    truth: dict[tuple[str, RequestPhase], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))
    #: The start and end of each iteration, the J of each, and the J of each request in them.
    times: list[tuple[int, int]] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)
    of_request: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def encoded(sequence: int, worker: str = "w", **fields: object) -> Frames:
    return b"", sequence.to_bytes(8, "big"), msgpack.encode({"worker_id": worker, "dp_rank": 0, **fields})


def all_parts(iterations: Iterations) -> Parts:
    """The parts of all requests, those of runs too."""
    rows = [
        (place, request, RequestPhase.DECODE, context + place - first)
        for request, first, last, context in zip(*(each.tolist() for each in iterations.runs), strict=True)
        for place in range(first, last)
    ]
    places, requests, phases, contexts = np.array(rows, np.int64).reshape(-1, 4).T
    work = np.zeros((len(rows), QUANTITIES))
    work[:, [WorkQuantity.TOKENS, WorkQuantity.REQUESTS]] = 1.0
    work[:, WorkQuantity.DECODE_CONTEXT] = contexts
    runs = Parts(places, requests, phases, work)
    return Parts(*(np.concatenate(each) for each in zip(iterations.parts, runs, strict=True)))


@dataclass
class _Live:
    name: str
    tenant: str
    arrival_ns: int
    prompt: int
    completion: int
    cached: int
    computed: int = 0
    made: int = 0
    scheduled_ns: int = 0
    first_ns: int = 0


TENANTS = {"rag": (3000, 60, 0.0), "chat": (300, 150, 0.2), "agent": (4000, 40, 0.85)}


def run(  # noqa: PLR0912
    seconds: float,
    *,
    seed: int = 0,
    rate: float = 3.0,
    jitter_ms: float = 1.0,
    span_late_ms: float = 3.0,
    budget: int = 2048,
    lost: float = 0.0,
    per_iteration: int = 1,
    prefill_apart: bool = False,
) -> Run:
    """Run an engine. `jitter_ms`: the mean delay of messages; `span_late_ms`: the delay of spans' stamps, which vary by
    as much again. `per_iteration`: tokens from each decode. `prefill_apart`: no decode in iterations with prefill."""
    draw, result = random.Random(seed), Run()  # noqa: S311
    now_ns, sequence, count = EPOCH_NS, 0, 0
    next_ns = now_ns
    waiting: list[_Live] = []
    running: list[_Live] = []
    while now_ns < EPOCH_NS + seconds * 1e9:
        while next_ns <= now_ns:
            tenant, (prompt, completion, hit) = draw.choice(list(TENANTS.items()))
            length = max(8, round(draw.lognormvariate(0, 0.5) * prompt))
            tokens = max(1, round(draw.lognormvariate(0, 0.6) * completion))
            waiting.append(_Live(f"r{count}", tenant, next_ns, length, tokens, int(hit * length)))
            count += 1
            next_ns += round(draw.expovariate(rate) * 1e9)
        room = budget
        prefills, decodes = [], [each for each in running if each.made]
        room -= len(decodes)
        for each in [*(one for one in running if not one.made), *waiting]:
            if room > 0 and len(running) < 64:
                chunk = min(room, each.prompt - each.cached - each.computed)
                if each in waiting:
                    waiting.remove(each)
                    running.append(each)
                    each.scheduled_ns = now_ns
                prefills.append((each, chunk, each.cached + each.computed))
                room -= chunk
        if prefill_apart and prefills:
            decodes = []
        if not prefills and not decodes:
            heartbeat = encoded(sequence)
            result.messages.append((now_ns + round(draw.expovariate(1 / jitter_ms) * MS), heartbeat))
            sequence += 1
            now_ns = next_ns
            continue
        tokens = sum(chunk for _, chunk, _ in prefills)
        attended = sum(chunk * (context + chunk / 2) for _, chunk, context in prefills)
        context = sum(each.prompt + each.made - 1 for each in decodes)
        wall_s = 0.012 + 2e-5 * tokens + 2e-9 * attended + 5e-5 * len(decodes) + 2e-8 * context
        start_ns, end_ns = now_ns, now_ns + round(wall_s * 1e9)
        scheduled = {
            "num_prefill_requests": len(prefills), "sum_prefill_tokens": tokens,
            "sum_prefill_kv_tokens": sum(each for *_, each in prefills), "num_decode_requests": len(decodes),
            "sum_decode_kv_tokens": context,
        }  # fmt: skip
        late_ns = round(draw.expovariate(1 / jitter_ms) * MS)
        if draw.random() >= lost:
            message = encoded(sequence, wall_time=wall_s, scheduled_requests=scheduled)
            result.messages.append((end_ns + late_ns, message))
        sequence += 1
        result.times.append((start_ns, end_ns))
        n = len(prefills) + len(decodes)
        each_j = 2.0 / n
        result.joules.append(2.0 + 0.004 * tokens + 3e-7 * attended + 0.02 * len(decodes) + 6e-6 * context)
        for each, chunk, before in prefills:
            _add(result, each.name, RequestPhase.PREFILL, chunk, before)
            result.of_request[each.name] += each_j + 0.004 * chunk + 3e-7 * chunk * (before + chunk / 2)
            each.computed += chunk
            if each.cached + each.computed == each.prompt:
                each.made, each.first_ns = 1, end_ns
        for each in decodes:
            _add(result, each.name, RequestPhase.DECODE, 1, each.prompt + each.made - 1)
            result.of_request[each.name] += each_j + 0.02 + 6e-6 * (each.prompt + each.made - 1)
            each.made = min(each.completion, each.made + per_iteration)
        for each in [each for each in running if each.made == each.completion]:
            running.remove(each)
            result.spans.append(_span(each, end_ns, span_late_ms, draw))
        now_ns = end_ns + round(draw.uniform(0.2, 1.5) * MS)
    # Messages keep their order.
    for place in range(1, len(result.messages)):
        arrival_ns, frames = result.messages[place]
        result.messages[place] = max(arrival_ns, result.messages[place - 1][0]), frames
    return result


def _add(result: Run, name: str, phase: RequestPhase, tokens: int, context: int) -> None:
    total = result.truth[name, phase]
    for place, value in enumerate((1, tokens, context)):
        total[place] += value


def _span(each: _Live, end_ns: int, late_ms: float, draw: random.Random) -> Span:
    def late() -> int:
        return round(draw.uniform(0.5, 1.5) * late_ms * MS)

    attributes: dict[str, object] = {
        "gen_ai.request.id": each.name, "tenant": each.tenant, "gen_ai.usage.prompt_tokens": each.prompt,
        "gen_ai.usage.completion_tokens": each.completion, "gen_ai.usage.cached_tokens": each.cached,
        "gen_ai.latency.time_in_queue": (each.scheduled_ns - each.arrival_ns) / 1e9,
        "gen_ai.latency.time_to_first_token": (each.first_ns + late() - each.arrival_ns) / 1e9,
        "gen_ai.latency.e2e": (end_ns + 2 * round(late_ms * MS) - each.arrival_ns) / 1e9
        if each.completion == 1
        else (end_ns + late() - each.arrival_ns) / 1e9,
    }  # fmt: skip
    return Span(end_ns + 1_500 * MS, each.arrival_ns, attributes)

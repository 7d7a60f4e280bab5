import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack
from property.plain_passes import PlainMembership, PlainTimes, PlainWatch
from unit.serving.tiny_engine import EPOCH_NS, Run, Span, run

from gpu_profile.serving import joined
from gpu_profile.serving.joined import ServingEngine
from gpu_profile.serving.pricing.pipelines import PipelineWatch
from gpu_profile.serving.streams import pass_times
from gpu_profile.serving.streams.pass_times import PassCounts
from gpu_profile.serving.work import Iterations

S = 1_000_000_000


def disturbed(seed: int) -> Run:
    """A run with lost messages and copies, messages without durations, spans late and in any order, copies of spans,
    spans with the id of another one, aborted requests, and interrupted ones."""
    draw = random.Random(seed)  # noqa: S311
    result = run(8, seed=seed, rate=draw.uniform(1, 8), jitter_ms=draw.uniform(0.5, 5), lost=draw.choice((0, 0.02)))
    if draw.random() < 0.3:
        for place, (at_ns, (topic, sequence, body)) in enumerate(result.messages):
            message = msgpack.decode(body) | {"wall_time": 0.0}
            result.messages[place] = at_ns, (topic, sequence, msgpack.encode(message))
    for place in sorted(draw.sample(range(len(result.messages)), 4)):
        result.messages.insert(place, result.messages[place])
    spans: list[Span] = []
    for span in result.spans:
        kind, attributes = draw.random(), dict(span.attributes)
        if kind < 0.05:
            continue
        if kind < 0.1:
            attributes["gen_ai.request.id"] = str(draw.choice(result.spans).attributes["gen_ai.request.id"])
        elif kind < 0.15:
            tokens = int(str(attributes["gen_ai.usage.completion_tokens"]))
            attributes["gen_ai.usage.completion_tokens"] = max(1, round(tokens * draw.uniform(0.3, 2)))
        elif kind < 0.2:
            del attributes["gen_ai.usage.cached_tokens"]
        arrival_ns = span.arrival_ns + round(draw.expovariate(0.5) * S)
        spans += [Span(arrival_ns, span.start_ns, attributes)] * (1 + (kind > 0.95))
    result.spans = sorted(spans, key=lambda span: span.arrival_ns)
    return result


def entered(engine_run: Run) -> list[Any]:
    """Everything that enters the account, and the requests that are refused."""
    engine, result = ServingEngine("tenant", deadline_ns=6 * S), list[Any]()
    account = engine.account
    account.take = result.append  # type: ignore[method-assign,assignment]
    account.doubt = account.spoil = lambda *values: result.append(values)  # type: ignore[method-assign,assignment]
    messages, spans = list(engine_run.messages), list(engine_run.spans)
    for now_ns in range(EPOCH_NS + S // 2, engine_run.times[-1][1] + 12 * S, S // 2):
        engine.read([now_ns], [0.0])
        while messages and messages[0][0] <= now_ns:
            at_ns, frames = messages.pop(0)
            engine.message(frames, at_ns)
        while spans and spans[0].arrival_ns <= now_ns:
            span = spans.pop(0)
            engine.request("llm_request", span.start_ns, span.attributes)
        engine.settle(now_ns)
    return [*result, engine.refused_requests, engine.refused_messages, engine.lost_messages]


def plain(value: Any) -> Any:
    """Arrays as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(each) for each in value] if isinstance(value, tuple) else value


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_blocks_of_iterations_enter_the_account_as_one_after_another_would(seed: int) -> None:
    engine_run = disturbed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pass_times, "PassTimes", PlainTimes)
        patch.setattr(joined, "Membership", PlainMembership)
        patch.setattr(joined, "PipelineWatch", PlainWatch)
        reference = entered(engine_run)
    result = entered(engine_run)
    assert [plain(each) for each in result] == [plain(each) for each in reference]
    assert sum(len(each.starts) for each in result if isinstance(each, Iterations)) > 0.9 * len(engine_run.times)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_pipeline_is_recognised_at_the_same_iteration_as_one_after_another(seed: int) -> None:
    """Few batches of few requests, which go on in turn, go on twice, or begin anew."""
    draw = np.random.default_rng(seed)
    batches, rows = [(int(n), int(n) * 50) for n in draw.integers(1, 4, int(draw.integers(1, 5)))], []
    for turn in range(200):
        at = turn % len(batches) if draw.random() < 0.9 else int(draw.integers(len(batches)))
        decodes, context = batches[at]
        rows.append((int(draw.random() < 0.02), decodes, context, 1, 0) if draw.random() < 0.95 else (-1, -1, 0, 1, 0))
        batches[at] = (decodes, context + decodes) if draw.random() < 0.97 else (int(draw.integers(1, 4)), 77)
    blocks, single = PipelineWatch(), PlainWatch()
    edges = [0, *np.sort(draw.integers(0, 200, 8)).tolist(), 200]
    for low, high in pairwise(edges):
        counts = PassCounts(*np.array(rows[low:high], np.int64).reshape(-1, 5).T)
        for watch in (blocks, single):
            watch.add(counts)
        assert blocks.recognised is single.recognised
        assert blocks._others == pytest.approx(single._others)

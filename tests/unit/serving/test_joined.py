import random
from collections import defaultdict
from dataclasses import replace
from enum import StrEnum

import numpy as np
import pytest
from unit.serving.tiny_engine import EPOCH_NS, MS, Run, Span, encoded, run

from gpu_profile.serving.joined import ServingEngine
from gpu_profile.serving.pricing.cost_sums import RequestCost
from gpu_profile.serving.pricing.sharing import Unallocated
from gpu_profile.serving.streams.finished import CostRefusal, FinishedRequest
from gpu_profile.serving.streams.forward_pass import MessageFault
from gpu_profile.serving.streams.membership import PlacingFault
from gpu_profile.serving.streams.request_spans import SpanFault
from gpu_profile.serving.streams.tenants import ModelUse
from gpu_profile.serving.work import BatchedRequest, RequestPhase

S = 1_000_000_000
IDLE_W = 90.0


def counter(engine_run: Run, until_ns: int) -> tuple[list[int], list[float]]:
    """Readings every 100 ms of the energy of the iterations, and of the idle power between them."""
    times = np.arange(EPOCH_NS, until_ns, 100 * MS)
    edges = np.array(engine_run.times).ravel()
    busy_j = np.array(engine_run.joules) - IDLE_W * np.diff(edges)[::2] / 1e9
    sums = np.repeat(np.cumsum([0.0, *busy_j]), 2)[1:-1]
    iterations = np.interp((times - EPOCH_NS).astype(float), (edges - EPOCH_NS).astype(float), sums)
    return times.tolist(), (iterations + IDLE_W * (times - EPOCH_NS) / 1e9).tolist()


def play(
    engine: ServingEngine, engine_run: Run, *, spans: bool = True, tail_s: int = 25
) -> list[tuple[FinishedRequest, RequestCost | StrEnum]]:
    """Let an engine see everything at the time of its arrival, and settle each second."""
    until_ns = engine_run.times[-1][1] + tail_s * S
    times, joules = counter(engine_run, until_ns)
    messages, ended = iter(engine_run.messages), iter(sorted(engine_run.spans) if spans else ())
    message, span, finished = next(messages, None), next(ended, None), []
    for now_ns in range(EPOCH_NS + S, until_ns, S):
        while message and message[0] <= now_ns:
            engine.message(message[1], message[0])
            message = next(messages, None)
        while span and span.arrival_ns <= now_ns:
            assert engine.request("llm_request", span.start_ns, span.attributes)
            span = next(ended, None)
        new = [place for place, at in enumerate(times) if now_ns - S < at <= now_ns]
        engine.read([times[place] for place in new], [joules[place] for place in new])
        engine.settle(now_ns)
        finished += engine.finished()
    return finished


def errors(engine_run: Run, finished: list[tuple[FinishedRequest, RequestCost | StrEnum]]) -> list[float]:
    """The relative errors of the costs that are given, sorted."""
    return sorted(
        abs(sum(cost.joules) / engine_run.of_request[request.id] - 1)
        for request, cost in finished
        if isinstance(cost, RequestCost) and cost.reason is None
    )


@pytest.fixture(scope="module")
def served() -> Run:
    return run(45, seed=1)


def test_costs_of_tenants_and_requests_agree_with_the_truth_and_add_up_to_the_counter(served: Run) -> None:
    engine = ServingEngine("tenant", deadline_ns=20 * S)
    finished = play(engine, served)
    account = engine.account
    whole = sum(account.microjoules.values()) + sum(account.unallocated.values())
    times, joules = counter(served, served.times[-1][1] + 25 * S)
    shared = [j for at, j in zip(times, joules, strict=True) if at <= account.shared_until_ns + account.model.lag.ns]
    assert whole == round(shared[-1] * 1e6) - round(joules[1] * 1e6)
    assert len({request.id for request, _ in finished}) == len(finished) > 60
    off = errors(served, finished)
    assert len(off) > 50
    # The host's time between iterations is part of the cost: 90 W for 0.85 ms of 17 ms.
    assert off[len(off) // 2] < 0.035
    assert {request.use.tenant for request, _ in finished} == {"rag", "chat", "agent"}
    # The engine's true prices: 4 mJ for a token of a prompt, and 0.3 uJ for each token before it.
    assert account.saving(1000) == pytest.approx(4.0 + 3e-7 * 1000**2 / 2, rel=0.05)
    assert account.saving(0) == 0.0
    assert ServingEngine().account.saving(1000) is None
    assert engine.waiting == 0


def test_requests_and_tenants_that_miss_iterations_have_no_cost(served: Run) -> None:
    """Iterations leave after 1 s. So the span of a longer request comes too late for its first iterations."""
    engine = ServingEngine("tenant", deadline_ns=S)
    finished = play(engine, served)
    off = errors(served, finished)
    late = [cost for _, cost in finished if isinstance(cost, RequestCost) and cost.reason is Unallocated.REQUEST]
    assert len(off) > 5
    assert off[-1] < 0.15
    assert len(late) > 30
    assert engine.account.half_width("chat") is None
    given = sum(uj for (tenant, _), uj in engine.account.microjoules.items() if tenant == "chat")
    assert given < 0.2 * engine.account.unallocated[Unallocated.REQUEST]


def test_messages_that_are_late_by_seconds_change_hardly_any_cost(served: Run) -> None:
    def arrival_ns(at_ns: int) -> int:
        """Every 20 s, messages come 4 s late at most, all at once."""
        after_ns = (at_ns - EPOCH_NS) % (20 * S) - 10 * S
        return at_ns + 4 * S - after_ns if 0 <= after_ns < 4 * S else at_ns

    late = replace(served, messages=[(arrival_ns(at_ns), frames) for at_ns, frames in served.messages])
    engine = ServingEngine("tenant", deadline_ns=20 * S)
    off = errors(served, play(engine, late))
    # Messages have no times: idle time during a stall is not seen.
    assert sum(engine.refused_requests.values()) < 3
    assert len(off) > 50
    assert off[-1] < 0.2


def test_messages_with_impossible_sequences_change_no_cost(served: Run) -> None:
    """Each takes the place of no message. Taken for losses, they would leave requests without iterations."""
    draw = random.Random(5)  # noqa: S311
    messages = list(served.messages)
    for place in sorted(draw.sample(range(len(messages)), 20), reverse=True):
        at_ns, (topic, _, body) = messages[place]
        messages.insert(place, (at_ns, (topic, draw.getrandbits(64).to_bytes(8, "big"), body)))
    alone, beside = (ServingEngine("tenant", deadline_ns=20 * S) for _ in range(2))
    play(alone, served)
    play(beside, replace(served, messages=messages))
    assert beside.refused_messages == {MessageFault.SEQUENCE: 20}
    assert beside.lost_messages == 0
    assert beside.account.microjoules == alone.account.microjoules


def test_stamps_of_a_clock_that_is_seconds_off_give_no_cost(served: Run) -> None:
    spans = [span._replace(start_ns=span.start_ns + 3 * S) for span in served.spans]
    engine = ServingEngine("tenant", deadline_ns=20 * S)
    finished = play(engine, replace(served, spans=spans))
    assert len(finished) > 60
    off = errors(served, finished)
    assert len(off) < 0.1 * len(finished)
    assert engine.account.half_width("chat") is None


def test_readings_and_iterations_go_on_after_the_clock_was_set_back() -> None:
    engine, frames = ServingEngine(), {"num_decode_requests": 1, "sum_decode_kv_tokens": 100}
    for place, at_ns in enumerate((EPOCH_NS + 3600 * S, EPOCH_NS + 3601 * S, EPOCH_NS, EPOCH_NS + S)):
        engine.message(encoded(place, wall_time=0.01, scheduled_requests=frames), at_ns)
        engine.read([at_ns], [100.0 + place])
        engine.settle(at_ns + S)
    assert engine.waiting == 2
    assert engine.account.held_uj == 1_000_000 + 1_000_000
    assert engine.account.unallocated == {Unallocated.LOST: 1_000_000}


def test_a_copy_of_a_span_is_one_request_and_a_retry_another(served: Run) -> None:
    engine = ServingEngine("tenant")
    span = served.spans[0]
    first = engine.request("llm_request", span.start_ns, span.attributes)
    assert isinstance(first, FinishedRequest)
    assert engine.request("llm_request", span.start_ns, span.attributes) is SpanFault.REPEATED
    assert engine.request("llm_request", span.start_ns + S, span.attributes) == first._replace(
        scheduled_ns=first.scheduled_ns + S, end_ns=(first.end_ns or 0) + S
    )
    assert engine.refused_requests == {SpanFault.REPEATED: 1}


def test_the_span_of_a_request_that_the_engine_reports_has_the_reported_place() -> None:
    engine = ServingEngine("tenant")
    batch = [BatchedRequest("a", "big", RequestPhase.DECODE, 1, 100)]
    scheduled = {"num_decode_requests": 1, "sum_decode_kv_tokens": 100}
    engine.message(encoded(0, wall_time=0.01, scheduled_requests=scheduled, requests=batch), EPOCH_NS)
    attributes: dict[str, object] = {**run(3).spans[0].attributes, "gen_ai.request.id": "a"}
    assert engine.request("llm_request", EPOCH_NS - S, attributes) == FinishedRequest(
        "a", ModelUse(str(attributes["tenant"]), "")
    )
    engine.settle(EPOCH_NS + 10 * S)
    assert engine.finished() == []
    assert engine.refused_requests == {}


def test_requests_without_a_place_are_given_back_with_the_reason(served: Run) -> None:
    engine = ServingEngine("tenant")
    span = served.spans[0]
    for offset_ns in (0, 3600 * S):
        engine.request("llm_request", span.start_ns + offset_ns, span.attributes)
    engine.settle(span.arrival_ns + S)
    assert [reason for _, reason in engine.finished()] == [PlacingFault.TOO_OLD, SpanFault.RANGE]


def test_a_request_whose_stamp_is_before_the_end_of_its_last_iteration_is_complete_and_forgotten(served: Run) -> None:
    spans = [span._replace(start_ns=span.start_ns - 40 * MS) for span in served.spans]
    engine = ServingEngine("tenant", deadline_ns=20 * S)
    play(engine, replace(served, spans=spans))
    assert engine.account._requests.keys() <= engine._requests.keys()
    assert {use for use, _ in engine.account.microjoules} == {ModelUse(each, "") for each in ("rag", "chat", "agent")}


def test_without_spans_phases_have_costs_and_tenants_none(served: Run) -> None:
    engine = ServingEngine("tenant")
    finished = play(engine, served, spans=False)
    assert finished == []
    assert {tenant for tenant, _ in engine.account.microjoules} == {None}
    assert {phase for _, phase in engine.account.microjoules} == set(RequestPhase)


def test_two_publishers_on_the_devices_leave_the_time_out() -> None:
    engine = ServingEngine()
    for place in range(100):
        scheduled = {"num_decode_requests": 1, "sum_decode_kv_tokens": 100 + place}
        for worker in ("a", "b"):
            frames = encoded(place, worker, wall_time=0.01, scheduled_requests=scheduled)
            engine.message(frames, EPOCH_NS + place * 20 * MS)
    engine.settle(EPOCH_NS + 10 * S)
    assert engine.refusal is CostRefusal.PUBLISHERS
    assert [reason for *_, reason in engine.account._spoiled._some] == [Unallocated.SHARED]


def test_wrong_input_is_counted_and_memory_is_bounded() -> None:
    engine = ServingEngine("tenant", most_tenants=3)
    engine.message((b"", b"x", b""), EPOCH_NS)
    for place in range(200):
        engine.message(encoded(0, f"w{place}"), EPOCH_NS)
    attributes: dict[str, object] = {
        "gen_ai.usage.prompt_tokens": 10, "gen_ai.usage.completion_tokens": 5,
        "gen_ai.latency.time_to_first_token": 0.1, "gen_ai.latency.e2e": 0.2,
    }  # fmt: skip
    for place in range(25_000):
        engine.request("llm_request", EPOCH_NS, {**attributes, "tenant": f"tenant {place}"})
    engine.request("llm_request", EPOCH_NS, {})
    engine.request("llm_request", EPOCH_NS + 10**15, {**attributes})
    assert not engine.request("GET /", EPOCH_NS, attributes)
    engine.settle(EPOCH_NS + 10 * S)
    assert engine.refused_messages == {MessageFault.SIZE: 1, MessageFault.STREAMS: 200 - 64}
    assert engine.refused_requests[PlacingFault.FULL] > 4000
    assert engine.refused_requests[PlacingFault.TOO_OLD] == 20_000
    assert engine.refused_requests[SpanFault.INCOMPLETE] == 1


def test_no_energy_is_shared_out_before_it_is_known_who_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, until = ServingEngine(), list[int]()
    monkeypatch.setattr(engine.account, "settle", until.append)
    engine.read([EPOCH_NS], [1.0])
    engine.settle(EPOCH_NS + 10 * S)
    engine.settle(EPOCH_NS + 10 * S, EPOCH_NS + 5 * S)
    engine.settle(EPOCH_NS + 10 * S, EPOCH_NS + 9 * S)
    assert until == [EPOCH_NS + 7 * S, EPOCH_NS + 5 * S, EPOCH_NS + 7 * S]


def test_energy_is_shared_out_for_some_seconds_at_once_and_waits_for_a_third_of_the_deadline_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, until = ServingEngine(deadline_ns=30 * S), list[int]()
    monkeypatch.setattr(engine.account, "settle", until.append)
    engine.read([EPOCH_NS], [1.0])
    for now_s in (6, 8, 10):
        engine.settle(EPOCH_NS + now_s * S, EPOCH_NS + 4 * S)
    engine.settle(EPOCH_NS + 9 * S, EPOCH_NS + 6 * S)
    assert until == [EPOCH_NS + 4 * S, EPOCH_NS + 6 * S]


def test_an_engine_without_readings_keeps_no_iterations() -> None:
    engine = ServingEngine()
    for place in range(500):
        scheduled = {"num_decode_requests": 1, "sum_decode_kv_tokens": 100}
        frames = encoded(place, wall_time=0.01, scheduled_requests=scheduled)
        engine.message(frames, EPOCH_NS + place * 500 * MS)
        engine.settle(EPOCH_NS + place * 500 * MS)
    taken = engine.account._iterations.starts
    assert len(taken) == 0


def test_readings_that_fall_or_repeat_never_count_backwards(served: Run) -> None:
    engine = ServingEngine()
    engine.read([EPOCH_NS, EPOCH_NS + S, EPOCH_NS + S, EPOCH_NS + 2 * S], [5.0, 9.0, 10.0, float("nan")])
    engine.read([EPOCH_NS + 3 * S, EPOCH_NS + 4 * S], [1.0, 3.0])
    readings = engine.account._readings
    assert (np.diff(readings.times) > 0).all()
    assert readings.joules.tolist() == [5.0, 9.0, 9.0, 11.0]


def test_requests_that_the_engine_reports_need_no_spans() -> None:
    engine, sequence = ServingEngine(), 0
    now_ns, joules = EPOCH_NS, 0.0
    cost: dict[str | None, float] = defaultdict(float)
    finished: list[tuple[FinishedRequest, RequestCost | StrEnum]] = []
    for place in range(6000):
        batch = [
            BatchedRequest("a", "big", RequestPhase.DECODE, 1, 1000 + place % 900),
            BatchedRequest("b", "small", RequestPhase.DECODE, 1, 10),
        ][: 1 + (place // 7) % 2]
        if place % 11 == 0:
            batch.append(BatchedRequest(f"p{place % 3}", "other", RequestPhase.PREFILL, 200 + place % 300, 0))
        decodes = [each for each in batch if each.phase is RequestPhase.DECODE]
        tokens = sum(each.tokens for each in batch)
        wall_s = 0.01 + 1e-5 * tokens
        scheduled = {
            "num_prefill_requests": len(batch) - len(decodes), "sum_prefill_tokens": tokens - len(decodes),
            "num_decode_requests": len(decodes), "sum_decode_kv_tokens": sum(each.context for each in decodes),
        }  # fmt: skip
        now_ns += round(wall_s * 1e9)
        for each in batch:
            each_j = 1.0 / len(batch) + 0.002 * each.tokens + 1e-4 * each.context
            cost[each.tenant] += each_j
            joules += each_j
        engine.message(encoded(sequence, wall_time=wall_s, scheduled_requests=scheduled, requests=batch), now_ns)
        sequence += 1
        if place % 8 == 7:
            engine.read([now_ns], [joules])
        if place % 80 == 79:
            engine.settle(now_ns)
    engine.message(encoded(sequence, ended=["a"]), now_ns)
    engine.message(encoded(sequence + 1, ended=["b"]), now_ns)
    for later in range(1, 8):
        engine.read([now_ns + later * S], [joules])
        engine.settle(now_ns + later * S)
        finished += engine.finished()
    assert [(request.id, request.use) for request, _ in finished] == [("a", ("big", "")), ("b", ("small", ""))]
    shares: dict[object, int] = defaultdict(int)
    for (use, _), value in engine.account.microjoules.items():
        shares[use.tenant] += value  # type: ignore[attr-defined]
    assert set(shares) == {"big", "small", "other"}
    assert shares["big"] / sum(shares.values()) == pytest.approx(cost["big"] / sum(cost.values()), rel=0.03)


def test_requests_that_a_client_aborts_hold_no_other_cost_back_until_the_deadline(served: Run) -> None:
    """An aborted request has no span, and its tokens are in the iterations' counts. One span comes from a host whose
    clock is an hour behind: it does not mean that spans come an hour late."""
    stray = Span(EPOCH_NS + S, EPOCH_NS - 3600 * S, {**served.spans[0].attributes, "gen_ai.request.id": "stray"})
    spans = [stray] + [span for place, span in enumerate(served.spans) if place % 12]
    aborted = {str(span.attributes["gen_ai.request.id"]) for span in served.spans[::12]}
    engine = ServingEngine("tenant", deadline_ns=300 * S)
    finished = play(engine, replace(served, spans=spans))
    # The last requests have not ended.
    assert engine.waiting < 0.1 * len(served.times)
    assert len(finished) > 0.9 * len(spans)
    off = errors(served, finished)
    assert len(off) > 0.8 * len(finished)
    assert off[len(off) // 2] < 0.035
    assert off[-1] < 0.15
    shared = sum(served.of_request[name] for name in aborted)
    assert engine.account.unallocated[Unallocated.REQUEST] / 1e6 == pytest.approx(shared, rel=0.5)

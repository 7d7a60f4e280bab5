from collections import defaultdict
from typing import Any

import pytest
from unit.serving.tiny_engine import Run, run

from gpu_profile.serving.forward_pass import decoded
from gpu_profile.serving.membership import Membership, PlacingFault
from gpu_profile.serving.pass_times import PassTimes
from gpu_profile.serving.request_spans import ServedRequest, served_request
from gpu_profile.serving.work import UNKNOWN_REQUEST, Iterations, RequestPhase, WorkQuantity


def of_request(_request: object) -> int:
    return UNKNOWN_REQUEST


def joined(engine_run: Run) -> tuple[Membership, Iterations, dict[int, str], list[PlacingFault]]:
    """All iterations and requests, joined in the order of the requests' ends."""
    times, membership, names, faults = PassTimes(), Membership(), {}, []
    for arrival_ns, frames in engine_run.messages:
        times.take(decoded(frames), arrival_ns)
    membership.add(times.settled(engine_run.messages[-1][0] + 10**9))
    for number, span in enumerate(sorted(engine_run.spans)):
        request = served_request("llm_request", span.start_ns, span.attributes, "tenant")
        assert isinstance(request, ServedRequest)
        names[number] = request.id
        if (fault := membership.place(number, request)) is not None:
            faults.append(fault)
    batch = membership.leave(0, of_request, phases_only=False)
    return membership, batch.iterations(), names, faults


def by_request(iterations: Iterations, names: dict[int, str]) -> dict[tuple[str, RequestPhase], list[int]]:
    """By request and phase: iterations, tokens, and tokens of context."""
    result: dict[tuple[str, RequestPhase], list[int]] = defaultdict(lambda: [0, 0, 0])
    parts = iterations.parts
    for number, phase, work in zip(parts.request.tolist(), parts.phase.tolist(), parts.work.tolist(), strict=True):
        total = result[names[number], RequestPhase(phase)]
        context = work[WorkQuantity.DECODE_CONTEXT] + work[WorkQuantity.PREFILL_KV]
        for place, value in enumerate((1, work[WorkQuantity.TOKENS], context)):
            total[place] += round(value)
    return result


@pytest.mark.parametrize(
    "conditions",
    [{}, {"jitter_ms": 5.0}, {"span_late_ms": 8.0}, {"rate": 6.0}, {"prefill_apart": True}],
    ids=["usual", "late messages", "late stamps", "many requests", "prefill apart"],
)
def test_each_request_is_in_its_own_iterations_with_its_own_tokens(conditions: dict[str, Any]) -> None:
    engine_run = run(12, seed=3, **conditions)
    _, iterations, names, faults = joined(engine_run)
    assert faults == []
    # The last iterations have requests that have not ended.
    assert len(iterations.starts) > 0.5 * len(engine_run.times)
    result = by_request(iterations, names)
    last_ns = int(iterations.ends[-1])
    ended = [str(s.attributes["gen_ai.request.id"]) for s in engine_run.spans if s.arrival_ns < last_ns]
    off = [key for key in engine_run.truth if key[0] in ended and result[key] != engine_run.truth[key]]
    assert len(ended) > 8
    assert off == []
    requests = iterations.work[:, WorkQuantity.REQUESTS]
    assert requests.sum() == iterations.parts.work[:, WorkQuantity.REQUESTS].sum()


def test_lost_iterations_leave_the_others_right() -> None:
    engine_run = run(12, seed=3, lost=0.03)
    _, iterations, names, _ = joined(engine_run)
    assert len(iterations.starts) > 0.4 * len(engine_run.times)
    counts = iterations.work[:, WorkQuantity.REQUESTS]
    assert counts.sum() == iterations.parts.work[:, WorkQuantity.REQUESTS].sum()
    result = by_request(iterations, names)
    for key, (parts, *_) in result.items():
        assert parts <= engine_run.truth[key][0] + 1


def test_several_tokens_per_iteration_are_refused_as_speculative_decoding() -> None:
    membership, iterations, _, faults = joined(run(12, seed=3, per_iteration=3))
    assert membership.speculative
    assert set(faults) == {PlacingFault.SPECULATIVE}
    assert len(iterations.starts) == 0


def test_iterations_leave_with_the_requests_that_have_a_place_after_the_deadline() -> None:
    engine_run = run(6, seed=3)
    engine_run.spans = engine_run.spans[::2]
    membership, iterations, _, _ = joined(engine_run)
    assert len(membership) > 0.5 * len(engine_run.times)
    late = membership.leave(2**62, of_request, phases_only=False).iterations()
    assert len(membership) == 0
    assert len(iterations.starts) + len(late.starts) == len(engine_run.times)
    parts, counts = (each[:, WorkQuantity.REQUESTS].sum() for each in (late.parts.work, late.work))
    assert 0 < parts < counts

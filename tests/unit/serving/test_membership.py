import random
from collections import defaultdict
from typing import Any

import pytest
from unit.serving.tiny_engine import EPOCH_NS, MS, Run, all_parts, run

from gpu_profile.serving.streams import prefill
from gpu_profile.serving.streams.forward_pass import decoded
from gpu_profile.serving.streams.membership import Membership, PlacingFault
from gpu_profile.serving.streams.message_types import ForwardPass
from gpu_profile.serving.streams.pass_times import PassTimes, TimedPasses
from gpu_profile.serving.streams.prefill import _LATEST, Prefilling
from gpu_profile.serving.streams.prompt_shares import Prompt
from gpu_profile.serving.streams.request_spans import ServedRequest, served_request
from gpu_profile.serving.work import UNKNOWN_REQUEST, Iterations, RequestPhase, WorkQuantity


def of_request(_request: object) -> int:
    return UNKNOWN_REQUEST


def placed(engine_run: Run) -> tuple[Membership, dict[int, str], list[PlacingFault]]:
    """All iterations and requests, in the order of the requests' ends."""
    times, membership, names, faults = PassTimes(), Membership(), {}, []
    for arrival_ns, frames in engine_run.messages:
        times.take(decoded(frames), arrival_ns)
    passes = times.settled(engine_run.messages[-1][0] + 10**9)
    membership.add(passes)
    for number, span in enumerate(sorted(engine_run.spans)):
        request = served_request("llm_request", span.start_ns, span.attributes, "tenant")
        assert isinstance(request, ServedRequest)
        names[number] = request.id
        if (fault := membership.place(number, request)) is not None:
            faults.append(fault)
    return membership, names, faults


def joined(engine_run: Run) -> tuple[Membership, Iterations, dict[int, str], list[PlacingFault]]:
    """The iterations with the requests that are placed in them."""
    membership, names, faults = placed(engine_run)
    return membership, membership.leave(0, of_request, phases_only=False).iterations(), names, faults


def by_request(iterations: Iterations, names: dict[int, str]) -> dict[tuple[str, RequestPhase], list[int]]:
    """By request and phase: iterations, tokens, and tokens of context."""
    result: dict[tuple[str, RequestPhase], list[int]] = defaultdict(lambda: [0, 0, 0])
    parts = all_parts(iterations)
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
    assert requests.sum() == all_parts(iterations).work[:, WorkQuantity.REQUESTS].sum()


@pytest.mark.parametrize("lost", [0.0, 0.1, 0.3])
@pytest.mark.parametrize(("rate", "budget", "seed"), [(6.0, 2048, 3), (8.0, 1024, 3), (6.0, 2048, 4), (6.0, 1024, 5)])
def test_without_reported_cached_tokens_iterations_leave_and_say_how_far_their_parts_may_be_off(
    rate: float, budget: int, seed: int, lost: float
) -> None:
    engine_run, drawn = run(12, seed=seed, rate=rate, budget=budget), random.Random(seed)  # noqa: S311
    engine_run.spans[:] = [span for span in engine_run.spans if drawn.random() >= lost]
    for span in engine_run.spans:
        del span.attributes["gen_ai.usage.cached_tokens"]
    membership, names, faults = placed(engine_run)
    batch = membership.leave(2**62 if lost else 0, of_request, phases_only=False)
    iterations = batch.iterations()
    assert faults == []
    assert len(iterations.starts) > 0.5 * len(engine_run.times)
    result, last_ns = by_request(iterations, names), int(iterations.ends[-1])
    ended = {str(s.attributes["gen_ai.request.id"]) for s in engine_run.spans if s.arrival_ns < last_ns}
    assert len(ended) > 20
    unsure: dict[str, int] = defaultdict(int)
    for number, tokens, _ in batch.unsure:
        unsure[names[number]] += tokens
    for name in ended:
        key = name, RequestPhase.PREFILL
        assert abs(result[key][1] - engine_run.truth[key][1]) <= unsure[name]
    assert 0 < sum(tokens > 0 for tokens in unsure.values()) < 0.7 * len(ended)


def served_by(number: int, first: float, last: float, prompt: int, completion: int) -> ServedRequest:
    """A request whose first and last token came with iterations of 5 ms, counted from 1."""
    first_ns, end_ns = (EPOCH_NS + round(each * 5 * MS) for each in (first, last))
    return ServedRequest(str(number), "", "", first_ns - 50 * MS + number, first_ns, end_ns, prompt, completion, 0)


def short_iterations(*prefills: tuple[int, ...]) -> Membership:
    """Iterations of 5 ms with these prompts. Each request then is in decode until the last iteration."""
    messages, decodes = list[ForwardPass | None](), 1
    for place, prompts in enumerate(prefills):
        messages.append(ForwardPass("w", 0, place, 0.005, len(prompts), sum(prompts), 0.0, 0, decodes, 0))
        decodes += len(prompts)
    edges = [EPOCH_NS + place * 5 * MS for place in range(len(messages) + 1)]
    passes, membership = TimedPasses.of(edges[:-1], edges[1:], messages), Membership()
    membership.add(passes)
    return membership


def test_a_stamp_before_the_first_iteration_that_waits_means_that_one() -> None:
    membership = short_iterations((), (), (), (100,), (), (), (), ())
    assert membership.place(0, served_by(0, -20, 8, 10, 9)) is None
    assert len(membership.leave(0, of_request, phases_only=False)) == 3
    assert membership.place(1, served_by(1, 3.3, 8, 100, 5)) is None
    assert len(membership.leave(0, of_request, phases_only=False)) == 5


@pytest.mark.parametrize(("first", "second"), [(3, 3.1), (3.9, 4)])
def test_prompts_move_to_the_neighbouring_iteration_that_lacks_them(first: float, second: float) -> None:
    membership = short_iterations((), (), (100,), (200,), (), (), (), ())
    for number, (at, last, prompt, completion) in enumerate(((-20, 8, 10, 9), (first, 8, 100, 6), (second, 8, 200, 5))):
        assert membership.place(number, served_by(number, at, last, prompt, completion)) is None
    parts = membership.leave(0, of_request, phases_only=False).iterations().parts
    prefills = parts.phase == RequestPhase.PREFILL
    assert list(zip(parts.iteration[prefills], parts.request[prefills], strict=True)) == [(2, 1), (3, 2)]


def test_an_engine_that_restarts_with_a_smaller_limit_of_tokens_has_full_iterations_again() -> None:
    some = Prefilling()
    for at in range(2 * _LATEST + 1):
        message = ForwardPass("w", 0, at, 0.0, 1, 2048 if at else 8192, 0.0, 0, 0, 0)
        some.add(at, at, at + 1, message)
    assert some._is_full(2000)
    assert not some._is_full(1900)


def prefilling(*passes: tuple[int, int]) -> Prefilling:
    """Iterations of 5 ms with so many prompts and tokens of prefill."""
    some = Prefilling()
    for at, (prompts, tokens) in enumerate(passes):
        start_ns = EPOCH_NS + at * 5 * MS
        message = ForwardPass("w", 0, at, 0.005, prompts, tokens, 0.0, 0, 0, 0)
        some.add(at, start_ns, start_ns + 5 * MS, message)
    return some


def test_a_prompt_has_no_more_tokens_than_its_length_if_its_cached_tokens_are_not_known() -> None:
    some = prefilling((1, 500))
    some.put(1, served_by(1, 1, 5, 100, 5)._replace(cached=None), 0)
    (chunk,) = some.chunks(0)
    assert (chunk.tokens, chunk.context) == (100, 0)


def test_the_tokens_of_a_prompt_beside_one_without_a_span_may_be_the_others() -> None:
    some = prefilling((2, 500))
    some.put(1, served_by(1, 1, 5, 400, 5)._replace(cached=None), 0)
    (chunk,) = some.chunks(0)
    assert (chunk.tokens, chunk.unsure, chunk.tenant_unsure) == (400, 399, 399)


def unreported(*requests: tuple[int, int], passes: tuple[tuple[int, int, int], ...]) -> Prefilling:
    """Requests without reported cached tokens, by the iteration that ended their prompts and the prompts' lengths.
    Iterations of 5 ms, the last one not full, with so many prompts, tokens of prefill and tokens before these."""
    some = Prefilling()
    for at, (prompts, tokens, stored) in enumerate(passes):
        start_ns = EPOCH_NS + at * 5 * MS
        some.add(at, start_ns, start_ns + 5 * MS, ForwardPass("w", 0, at, 0.005, prompts, tokens, 0.0, stored, 0, 0))
    for number, (at, prompt) in enumerate(requests):
        some.put(number, served_by(number, at + 1, 99, prompt, 5)._replace(cached=None), at)
    return some


def parts(some: Prefilling, iterations: int) -> list[list[tuple[int, int, int, int]]]:
    """By iteration: the number, tokens, context and unsure tokens of each part."""
    result = []
    for at in range(iterations):
        chunks = some.chunks(at)
        result.append([(each.number, each.tokens, each.context, each.unsure) for each in chunks])
        some.leave(at, chunks)
    return result


def test_the_cached_tokens_of_a_prompt_follow_from_the_sums_of_an_iteration_that_it_has_alone() -> None:
    some = unreported((1, 2500), (1, 150), passes=((1, 2000, 300), (2, 300, 2350)))
    assert parts(some, 2) == [[(0, 2000, 300, 0)], [(0, 200, 2300, 0), (1, 100, 50, 0)]]


def test_a_prompt_has_no_part_in_an_iteration_whose_sums_contradict_it() -> None:
    """The prompt of the first iteration ends in the second one, where the other one begins. Its span was lost."""
    some = unreported((2, 2784), passes=((1, 2000, 41), (2, 2000, 2041), (1, 865, 1919)))
    assert parts(some, 3)[0] == []


def test_a_prompt_that_may_be_another_one_without_a_span_is_unsure() -> None:
    """The second iteration is not full, so that its prompts end there. One has no span, and may be that of the first
    iteration."""
    some = unreported((1, 4544), passes=((1, 2042, 2042), (2, 661, 7978)))
    (((number, tokens, context, unsure),),) = parts(some, 1)
    assert (number, tokens, context) == (0, 2042, 2042)
    assert unsure == 2042


def test_prompts_whose_sums_are_not_those_of_their_iteration_may_have_their_tokens_elsewhere() -> None:
    some = unreported((1, 1662), (1, 1336), passes=((1, 2037, 600), (2, 482, 4386)))
    assert [unsure for *_, unsure in parts(some, 2)[1]] == [1662, 1336]


def test_the_prompts_that_wait_are_not_searched_through_for_each_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long answer holds back the iterations of a busy engine, which then leave together."""
    n, looked = 300, list[int]()

    class CountedPrompt(Prompt):
        @property
        def at(self) -> int:
            looked.append(self._at)
            return self._at

        @at.setter
        def at(self, value: int) -> None:
            self._at = value

    monkeypatch.setattr(prefill, "Prompt", CountedPrompt)
    some = prefilling(*[(2, 2048)] * n)
    for at in range(n):
        # Each prompt has a part in the iteration before the one that ends it.
        some.put(at, served_by(at, at + 1, n, 2048, n)._replace(scheduled_ns=EPOCH_NS + (at - 1) * 5 * MS), at)
    looked.clear()
    for at in range(n):
        some.leave(at, some.chunks(at))
    assert len(looked) < 100 * n


def test_lost_iterations_leave_the_others_right() -> None:
    engine_run = run(12, seed=3, lost=0.03)
    _, iterations, names, _ = joined(engine_run)
    assert len(iterations.starts) > 0.4 * len(engine_run.times)
    counts = iterations.work[:, WorkQuantity.REQUESTS]
    assert counts.sum() == all_parts(iterations).work[:, WorkQuantity.REQUESTS].sum()
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
    parts, counts = (each[:, WorkQuantity.REQUESTS].sum() for each in (all_parts(late).work, late.work))
    assert 0 < parts < counts

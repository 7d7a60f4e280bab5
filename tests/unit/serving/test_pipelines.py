"""Pipelines are recognised by their batches. Their costs are refused, since only one stage reports its iterations."""

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from benchmarks.serving_messages import messages, replay
from msgspec.structs import replace
from support.serving_workers import simulate_disaggregated, simulate_pipeline
from unit.serving.tiny_engine import EPOCH_NS, encoded

from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.serving.pricing.pipelines import PipelineWatch
from gpu_profile.serving.pricing.sharing import Unallocated
from gpu_profile.serving.simulated import EnginePhysics, ServingRun, simulate
from gpu_profile.serving.streams.forward_pass import decoded
from gpu_profile.serving.streams.membership import PlacingFault
from gpu_profile.serving.streams.message_types import ForwardPass
from gpu_profile.serving.streams.pass_times import PassCounts, TimedPasses
from gpu_profile.serving.work import BatchedRequest, RequestPhase, WorkQuantity

PHYSICS = EnginePhysics(MODELS["H200 SXM"])
S = 1_000_000_000


def counts(some: list[ForwardPass | None]) -> PassCounts:
    return TimedPasses.of((), (), some).counts


def is_pipeline(run: ServingRun, **fields: Any) -> bool:
    watch = PipelineWatch()
    watch.add(counts([replace(decoded(frames), **fields) for _, frames in messages(run, 0)]))
    return watch.recognised


@pytest.mark.parametrize("stages", [2, 4])
def test_a_pipeline_is_recognised_within_seconds_by_requests_that_are_in_some_iterations_only(stages: int) -> None:
    assert is_pipeline(simulate_pipeline(PHYSICS, stages, seconds=5, seed=1).stages[-1])


def test_engines_that_are_no_pipelines_are_not_taken_for_one() -> None:
    assert not is_pipeline(simulate(PHYSICS, seconds=4, seed=1))
    assert not is_pipeline(simulate_disaggregated(PHYSICS, seconds=3, seed=1).decode)


@pytest.mark.parametrize(("at_once", "prompts", "answers"), [(1, (100, 105), (5, 5)), (2, (100, 103), (5, 8))])
def test_short_answers_to_prompts_of_like_lengths_are_no_pipeline(
    at_once: int, prompts: tuple[int, int], answers: tuple[int, int]
) -> None:
    draw, watch, requests = random.Random(1), PipelineWatch(), list[list[int]]()  # noqa: S311
    for _ in range(3000):
        while len(requests) < at_once:
            requests.append([draw.randint(*prompts), draw.randint(*answers), 0])
        new, old = ([each for each in requests if bool(each[2]) is decodes] for decodes in (False, True))
        context = sum(prompt + done for prompt, _, done in old)
        watch.add(counts([ForwardPass("w", 0, 0, 0.0, len(new), len(new), 0.0, 0, len(old), context)]))
        requests = [[prompt, answer, done + 1] for prompt, answer, done in requests if done + 1 < answer]
    assert not watch.recognised


def test_an_engine_says_itself_that_it_is_one_and_a_stage_with_its_requests_is_none() -> None:
    assert is_pipeline(simulate(PHYSICS, seconds=1, seed=1), stages=2)
    batch = (BatchedRequest("a", "t", RequestPhase.DECODE, 1, 9),)
    assert not is_pipeline(simulate_pipeline(PHYSICS, 2, seconds=5, seed=1).stages[-1], requests=batch)
    assert decoded(encoded(0, stages=4)).stages == 4
    assert decoded(encoded(0)).stages == 1


def test_no_tenant_has_energy_of_a_pipeline_and_its_requests_say_why() -> None:
    run = simulate_pipeline(PHYSICS, 2, seconds=4, seed=1)
    shown = replay(run.stages[-1], 1, readings=run.readings(seed=1))
    assert not shown.tenants.any()
    assert not np.isfinite(shown.joules).any()
    ended = sum(request.end_s == request.end_s for request in run.stages[-1].requests)
    assert shown.reasons == {str(PlacingFault.STAGES): ended}
    busy_j = sum(float(stage.joules.sum()) for stage in run.stages)
    assert shown.unallocated[Unallocated.STAGES] == pytest.approx(busy_j, rel=0.05)
    # The replay goes on for 149 s without work.
    assert shown.unallocated[Unallocated.IDLE] == pytest.approx(147 * run.stages[0].idle_w, rel=0.05)


def test_the_stages_add_up_to_the_counters_and_run_each_iteration_in_turn() -> None:
    run = simulate_pipeline(PHYSICS, 2, seconds=4, seed=3)
    first, last = run.stages
    assert (first.iterations.ends <= last.iterations.starts).all()
    assert (first.iterations.work == last.iterations.work).all()
    overlaps = first.iterations.starts[1:] < last.iterations.ends[:-1]
    assert overlaps.mean() > 0.5
    assert run.true_j.sum() == pytest.approx(first.joules.sum() + last.joules.sum())
    readings = run.readings()
    whole = [np.interp((readings.times - stage.start_ns) / S, *stage.grown()) for stage in run.stages]
    assert readings.joules[-3] == pytest.approx(sum(each[-3] for each in whole), abs=2e-3)


def test_a_decode_worker_computes_no_prompt() -> None:
    runs = simulate_disaggregated(PHYSICS, seconds=3, seed=2)
    assert (runs.decode.iterations.parts.phase == RequestPhase.DECODE).all()
    assert (runs.prefill.iterations.parts.phase == RequestPhase.PREFILL).all()
    tokens = np.bincount(runs.decode.iterations.parts.request, minlength=len(runs.decode.requests))
    for number, request in enumerate(runs.decode.requests):
        first = runs.prefill.requests[runs.prefill_of[number]]
        assert (request.prompt, request.tenant) == (first.prompt, first.tenant)
        assert tokens[number] == request.output - 1
        assert first.end_s <= request.scheduled_s
    assert runs.decode.iterations.work[:, WorkQuantity.PREFILL_KV].sum() == 0
    assert runs.true_j.sum() == pytest.approx(runs.prefill.joules.sum() + runs.decode.joules.sum())


def test_the_idle_time_of_a_pipeline_is_no_stages() -> None:
    watch, none, message = PipelineWatch(), TimedPasses.of((), (), []), ForwardPass("w", 0, 0, 0.0, 0, 0, 0.0, 0, 1, 1)
    starts = [EPOCH_NS + at * S for at in (0, 1, 20)]
    passes = TimedPasses.of(starts, [start + S // 2 for start in starts], [message] * 3)
    marked = [*watch.marked(passes.cut(0, 2), EPOCH_NS + 2 * S), *watch.marked(none, EPOCH_NS + 10 * S)]
    marked += [*watch.marked(none, EPOCH_NS + 15 * S), *watch.marked(passes.cut(2), EPOCH_NS + 21 * S)]
    assert all(before.end_ns == after.start_ns for before, after in pairwise(marked))
    idle_ns = sum(each.end_ns - each.start_ns for each in marked if each.reason is Unallocated.IDLE)
    assert idle_ns == 18 * S + S // 2
    assert (marked[0].start_ns, marked[-1].end_ns, marked[-1].reason) == (
        0,
        EPOCH_NS + 20 * S + S // 2,
        "pipeline_stages",
    )

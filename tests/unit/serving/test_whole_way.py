from collections.abc import Iterator

import numpy as np
import pytest
from benchmarks import serving_messages
from benchmarks.serving_messages import Replayed, replay
from benchmarks.serving_vllm import perf_module, vllm_messages
from msgspec import msgpack
from support.serving_workers import simulate_disaggregated

from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.serving import simulated
from gpu_profile.serving.simulated import EnginePhysics, Schedule, ServingRun, simulate
from gpu_profile.serving.simulated_load import TenantLoad
from gpu_profile.serving.streams.workers import WorkerRole
from gpu_profile.serving.work import BatchedRequest, RequestPhase, WorkQuantity


def test_from_messages_and_spans_requests_get_their_true_energy() -> None:
    """Messages arrive late by some ms, spans when their requests end, in the order of the ends."""
    run = simulate(EnginePhysics(MODELS["H200 SXM"]), seconds=60, seed=1, drained=True)
    shown = replay(run, 1)
    answered = np.isfinite(shown.joules) & (run.true_j > 5)
    assert answered.sum() > 0.9 * (run.true_j > 5).sum()
    errors = abs(shown.joules[answered] / run.true_j[answered] - 1)
    assert np.median(errors) < 0.03
    truth = np.bincount([request.tenant for request in run.requests], run.true_j)
    assert shown.tenants == pytest.approx(truth, rel=0.05)


def test_requests_with_short_answers_one_at_a_time_have_costs_if_their_stamps_are_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hardly ever has an iteration fewer requests than the one before."""
    late_s, spans = 0.03, serving_messages.spans

    def late(run: ServingRun, role: WorkerRole) -> Iterator[tuple[int, int, dict[str, object]]]:
        for arrival_ns, start_ns, attributes in spans(run, role):
            stamps = {f"gen_ai.latency.{name}": late_s for name in ("time_to_first_token", "e2e")}
            stamps = {name: float(str(attributes[name])) + later_s for name, later_s in stamps.items()}
            yield arrival_ns + round(late_s * 1e9), start_ns, attributes | stamps

    monkeypatch.setattr(serving_messages, "spans", late)
    tenants = (TenantLoad("a", 800, 1.2, 0.3, 0.01, 0, 6), TenantLoad("b", 300, 2, 0.1, 0.01, 0, 6))
    run = simulate(EnginePhysics(MODELS["H200 SXM"]), tenants, seconds=60, seed=2, drained=True)
    shown = replay(run, 0)
    assert np.isfinite(shown.joules).mean() > 0.9
    assert np.nanmedian(abs(shown.joules / run.true_j - 1)) < 0.03
    assert np.nanmean(abs(shown.joules - run.true_j) > 3 * shown.half_widths) < 0.01
    truth = np.bincount([request.tenant for request in run.requests], run.true_j)
    assert shown.tenants == pytest.approx(truth, rel=0.05)


def test_an_old_vllm_that_counts_cached_tokens_as_computed_gives_no_confident_errors() -> None:
    """Its spans have no cached tokens, and its statistics only the hits of the prefix cache."""
    run = simulate(EnginePhysics(MODELS["H200 SXM"]), seconds=75, seed=1, drained=True)
    shown = replay(run, 1, vllm_messages(run, 1, old=True), cached=False)
    answered = np.isfinite(shown.joules) & (run.true_j > 5)
    assert answered.sum() > 0.5 * (run.true_j > 5).sum()
    off = abs(shown.joules[answered] - run.true_j[answered])
    assert np.mean(off > 3 * shown.half_widths[answered]) < 0.05
    truth = np.bincount([request.tenant for request in run.requests], run.true_j)
    # A tenant whose cached tokens are unclear has no half-width.
    given = np.isfinite(shown.tenant_half_widths)
    assert given.any()
    assert (abs(shown.tenants / truth - 1) < 3 * shown.tenant_half_widths)[given].all()


def test_vllm_with_aborted_requests_has_costs_if_it_estimates_the_bytes_that_it_reads() -> None:
    """An aborted request has no span, so that only the engine knows its context."""
    run = simulate(EnginePhysics(MODELS["H200 SXM"]), seconds=38, seed=1, drained=True)
    with perf_module():
        shown = replay(run, 1, vllm_messages(run, 1, estimates=1.0), keep=lambda place: place % 12 > 0)
    large = run.true_j > 5
    answered = np.isfinite(shown.joules) & large
    assert answered.sum() > 0.85 * large.sum()
    off = abs(shown.joules - run.true_j)[answered]
    assert np.median(off / run.true_j[answered]) < 0.03
    assert np.mean(off > 3 * shown.half_widths[answered]) < 0.05


def test_requests_that_were_interrupted_for_a_moment_have_no_confident_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full cache interrupts requests, which the engine computes again: as prompts that no span describes."""
    interrupted, preempt = set[int](), Schedule._preempt

    def counted(schedule: Schedule, request: int) -> None:
        interrupted.add(request)
        preempt(schedule, request)

    monkeypatch.setattr(Schedule, "_preempt", counted)
    monkeypatch.setattr(simulated, "_CACHE", 0.04)
    run = simulate(EnginePhysics(MODELS["H200 SXM"]), seconds=120, seed=7, drained=True)
    shown = replay(run, 1)
    assert len(interrupted) == 5
    off = abs(shown.joules - run.true_j)
    answered = np.isfinite(shown.joules) & (run.true_j > 5)
    assert answered.sum() > 0.95 * (run.true_j > 5).sum()
    assert not (off > 3 * shown.half_widths)[answered].any()
    truth = np.bincount([request.tenant for request in run.requests], run.true_j)
    assert (abs(shown.tenants / truth - 1) < shown.tenant_half_widths).all()


def reported(run: ServingRun) -> list[tuple[int, list[bytes]]]:
    """The messages of an engine that reports its requests and their ends, 10 ms after each iteration."""
    iterations, parts = run.iterations, run.iterations.parts
    batches: list[list[BatchedRequest]] = [[] for _ in iterations.starts]
    for place, number, phase, work in zip(*(each.tolist() for each in parts), strict=True):
        context = work[WorkQuantity.PREFILL_KV] + work[WorkQuantity.DECODE_CONTEXT]
        tenant = f"t{run.requests[number].tenant}"
        request = BatchedRequest(str(number), tenant, RequestPhase(phase), int(work[WorkQuantity.TOKENS]), int(context))
        batches[place].append(request)
    result: list[tuple[int, list[bytes]]] = []
    ends = sorted((request.end_s, str(number)) for number, request in enumerate(run.requests))
    for start_ns, end_ns, batch in zip(iterations.starts.tolist(), iterations.ends.tolist(), batches, strict=True):
        prefills = [each for each in batch if each.phase is RequestPhase.PREFILL]
        scheduled = {
            "num_prefill_requests": len(prefills), "sum_prefill_tokens": sum(each.tokens for each in prefills),
            "num_decode_requests": len(batch) - len(prefills),
        }  # fmt: skip
        ended = [ends.pop(0)[1] for end_s, _ in list(ends) if run.start_ns + end_s * 1e9 <= end_ns + 1000]
        bodies: list[dict[str, object]] = [
            {"wall_time": (end_ns - start_ns) / 1e9, "scheduled_requests": scheduled, "requests": batch},
            {"ended": ended},
        ]
        for body in bodies[: 1 + bool(ended)]:
            result.append((end_ns + 10_000_000, [b"", len(result).to_bytes(8, "big"), msgpack.encode(body)]))
    return result


def late(some: list[tuple[int, list[bytes]]], run: ServingRun, from_s: int, to_s: int) -> list[tuple[int, list[bytes]]]:
    """The messages, of which those of a time arrive at its end."""
    from_ns, to_ns = (run.start_ns + each * 10**9 for each in (from_s, to_s))
    return [(to_ns if from_ns < at < to_ns else at, frames) for at, frames in some]


def right(shown: Replayed, run: ServingRun) -> float:
    """The share of requests with a cost, none of which is off by more than three half-widths."""
    answered = np.isfinite(shown.joules) & (run.true_j > 5)
    assert not (abs(shown.joules - run.true_j) > 3 * shown.half_widths)[answered].any()
    return float(answered.sum() / (run.true_j > 5).sum())


def test_messages_that_stop_for_a_while_and_then_come_at_once_have_their_energy() -> None:
    """Until then, the energy of an engine with requests is not taken for idle."""
    run = simulate(EnginePhysics(MODELS["H200 SXM"]), seconds=75, seed=5, drained=True)
    shown = replay(run, 1, late(reported(run), run, 45, 60), keep=lambda _: False)
    assert right(shown, run) > 0.98
    truth = np.bincount([request.tenant for request in run.requests], run.true_j)
    assert (abs(shown.tenants / truth - 1) < shown.tenant_half_widths).all()


@pytest.mark.parametrize(("from_s", "to_s"), [(100, 112), (100, 170)], ids=["a while", "longer than they may wait"])
def test_messages_that_stop_in_an_idle_time_give_no_confident_error(from_s: int, to_s: int) -> None:
    """Their energy was idle when they came, and in other windows than their times."""
    tenants = (TenantLoad("a", 1000, 200, 0.5, 0.5, 0.0, 0.5), TenantLoad("b", 3000, 100, 0.5, 0.5, 0.0, 0.3))
    run = simulate(EnginePhysics(MODELS["H200 SXM"]), tenants, seconds=180, seed=8, drained=True)
    shown = replay(run, 1, late(reported(run), run, from_s, to_s), keep=lambda _: False)
    assert right(shown, run) > 0.5


def test_a_counter_that_stands_still_for_seconds_leaves_the_prices_as_they_are() -> None:
    """Its next reading has the energy of all of this time. A window without growth is no evidence against prices."""
    run = simulate(EnginePhysics(MODELS["H200 SXM"]), seconds=75, seed=5, drained=True)
    readings = run.readings(seed=1)
    still = (readings.times > run.start_ns + 45 * 10**9) & (readings.times < run.start_ns + 47 * 10**9)
    joules = np.where(still, readings.joules[still][0], readings.joules)
    shown = replay(run, 1, readings=readings._replace(joules=joules))
    assert right(shown, run) > 0.98
    truth = np.bincount([request.tenant for request in run.requests], run.true_j)
    assert shown.tenants == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize(
    ("period_s", "every_s"),
    [(period_s, every_s) for period_s in (0.02, 0.1, 0.1003, 0.105, 0.13, 0.25) for every_s in (0.1, 0.03)],
)
def test_a_counter_that_is_slower_than_its_readings_leaves_all_costs(period_s: float, every_s: float) -> None:
    """A reading has the energy up to the last renewal, which was up to a period ago."""
    run = simulate(EnginePhysics(MODELS["H200 SXM"]), seconds=75, seed=5, drained=True)
    jitter_s = min(0.003, every_s / 30)
    shown = replay(run, 1, readings=run.readings(renewed_s=period_s, every_s=every_s, jitter_s=jitter_s, seed=1))
    assert right(shown, run) > 0.9
    truth = np.bincount([request.tenant for request in run.requests], run.true_j)
    assert shown.tenants == pytest.approx(truth, rel=0.02)
    assert np.isfinite(shown.tenant_half_widths).all()


def test_requests_beside_prompts_with_iterations_of_seconds_have_no_confident_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests wait for seconds between being scheduled and their first chunk, so that parts of prompts may be taken
    for another's. The error would go on from prompt to prompt, as each takes what another left."""
    monkeypatch.setattr(simulated, "_CHUNK", 16_384)
    tenants = (TenantLoad("doc", 120_000, 20, 0.2, 0.5, 0.0, 0.06), TenantLoad("chat", 500, 50, 0.5, 0.5, 0.0, 0.3))
    run = simulate(EnginePhysics(MODELS["H200 SXM"]), tenants, seconds=600, seed=8, drained=True)
    assert run.iterations.seconds.max() > 2
    assert right(replay(run, 1), run) > 0.8


def test_requests_whose_reported_iterations_were_lost_have_no_confident_error() -> None:
    run = simulate(EnginePhysics(MODELS["H200 SXM"]), seconds=75, seed=5, drained=True)
    drawn = np.random.default_rng(1)
    shown = replay(run, 1, [each for each in reported(run) if drawn.random() > 0.02], keep=lambda _: False)
    assert right(shown, run) > 0.8


def test_the_parts_of_a_prefill_worker_and_a_decode_worker_add_up_to_the_true_energy() -> None:
    """The prefill worker answers after the transfer of keys and values, and reports no end. The decode worker's clock
    is 3 s ahead."""
    runs = simulate_disaggregated(EnginePhysics(MODELS["H200 SXM"]), seconds=40, seed=2)
    decode = runs.decode._replace(start_ns=runs.decode.start_ns + 3 * 10**9)
    decode = decode._replace(
        iterations=decode.iterations._replace(
            starts=decode.iterations.starts + 3 * 10**9, ends=decode.iterations.ends + 3 * 10**9
        )
    )
    first, second = (replay(runs.prefill, 2, role=WorkerRole.PREFILL), replay(decode, 2, role=WorkerRole.DECODE))
    shown = first.joules[runs.prefill_of] + second.joules
    answered = np.isfinite(shown) & (runs.true_j > 5)
    assert answered.sum() > 0.85 * (runs.true_j > 5).sum()
    errors = abs(shown[answered] / runs.true_j[answered] - 1)
    assert np.median(errors) < 0.02
    widths = np.hypot(first.half_widths[runs.prefill_of], second.half_widths)[answered]
    assert np.mean(errors * runs.true_j[answered] > 3 * widths) < 0.01
    truth = np.bincount([request.tenant for request in decode.requests], runs.true_j)
    assert first.tenants + second.tenants == pytest.approx(truth, rel=0.06)

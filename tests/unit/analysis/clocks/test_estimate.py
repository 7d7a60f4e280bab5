"""Offsets of clocks in jobs of which the true ones are known."""

from dataclasses import replace

import numpy as np
import pytest
from support.clocks import MS, ClockJob

from gpu_profile.analysis.clocks.estimate import ClockOffset, estimate
from gpu_profile.analysis.clocks.meetings import Meetings

HOUR_MS = 3_600_000.0


def one(job: ClockJob, node: int = 1) -> ClockOffset:
    return estimate(job.meetings(), 0)[node]


def holds(job: ClockJob, found: dict[int, ClockOffset]) -> bool:
    return all(each.low_ns <= job.ahead_ms(node, each.at_ns) * MS <= each.high_ns for node, each in found.items())


def test_the_truth_is_within_the_interval_with_jitter_stragglers_and_drifts() -> None:
    drawn = np.random.default_rng(7)
    wrong, rates = [], []
    for seed in range(60):
        nodes = int(drawn.integers(2, 6))
        job = ClockJob(
            [float(each) for each in drawn.normal(0, 10 ** drawn.uniform(0, 7), nodes)],
            drifts_ppm=[float(each) for each in drawn.uniform(-60, 60, nodes)],
            per_node=int(drawn.integers(1, 4)),
            steps=int(drawn.choice([20, 40, 160])),
            jitter_ms=float(drawn.choice([0.3, 3, 20])),
            collective_ms=float(drawn.choice([0.3, 4])),
            exit_ms=float(drawn.choice([0.02, 0.3, 2])),
            straggler=[None, 0, 1][seed % 3],
            seed=seed,
        )
        found = estimate(job.meetings(), 0)
        assert len(found) == nodes - 1
        wrong += [] if holds(job, found) else [seed]
        truths = [(job.drifts_ppm[node] - job.drifts_ppm[0]) * 1e-6 for node in found]
        rates += [abs(e.rate - rate) <= e.rate_half_width for e, rate in zip(found.values(), truths, strict=True)]
    assert wrong == []
    assert all(rates)


def test_the_interval_is_as_narrow_as_the_collective() -> None:
    found = one(ClockJob([0, 1830], collective_ms=0.4))
    assert found.offset_ns == pytest.approx(1830 * MS, abs=0.1 * MS)
    assert found.half_width_ns < 1 * MS


def test_a_rank_that_is_always_last_is_no_wrong_clock() -> None:
    found = one(ClockJob([0, 1830], straggler=3, straggles_ms=80))
    assert found.offset_ns == pytest.approx(1830 * MS, abs=0.5 * MS)
    assert found.half_width_ns < 10 * MS


def test_a_node_that_leaves_late_has_a_wider_interval() -> None:
    job = ClockJob([0, 1830], collective_ms=0.3)
    job.exits[job.clocks == 1] += 5
    found = one(job)
    assert holds(job, {1: found})


def test_hours_are_estimated_to_milliseconds_and_a_few_wrong_meetings_change_nothing() -> None:
    job = ClockJob([0, -5 * HOUR_MS], steps=200)
    met = job.meetings()
    met.exits[job.clocks == 1, 17] -= 10_000 * MS
    assert holds(job, estimate(met, 0))


def test_a_clock_that_was_set_during_the_run_has_all_its_offsets_in_the_interval() -> None:
    job = ClockJob([0, 1830], steps=400)
    met = job.meetings()
    for times in (met.entries, met.exits):
        times[job.clocks == 1, 300:] += 20 * MS
    found = estimate(met, 0)[1]
    assert found.stepped
    assert found.low_ns < 1830 * MS < 1840 * MS < found.high_ns
    assert not one(job).stepped


def test_a_clock_that_was_set_shortly_before_the_end_was_set_and_does_not_drift() -> None:
    job = ClockJob([0, 1830], steps=200)
    met = job.meetings()
    for times in (met.entries, met.exits):
        times[job.clocks == 1, 190:] += 250 * MS
    found = estimate(met, 0)[1]
    assert found.stepped
    assert not found.drifts
    assert found.low_ns < 1830 * MS < 2080 * MS < found.high_ns


def test_the_stages_of_a_pipeline_follow_one_another_and_the_truth_is_within_the_interval() -> None:
    drawn = np.random.default_rng(0)
    entries, exits = np.empty((2, 4, 100))
    free = np.zeros(4)
    for step in range(100):
        forward, backward = 20 + 2 * drawn.gamma(1, 1, (2, 4))
        entries[:, step] = free
        # Each stage waits for the one before it. Then all go back in the opposite order.
        exits[:, step] = free[0] + np.concatenate(([0], np.cumsum(forward[:3])))
        free = exits[3, step] + forward[3] + 2 * np.cumsum(backward[::-1])[::-1]
    offsets = np.array([0.0, 300, -40, 1000])
    nodes, ahead = np.arange(4), offsets[:, None]
    met = Meetings("receive", nodes, nodes, (entries + ahead) * MS, (exits + ahead) * MS)
    assert met.waits
    found = estimate(met, 0)
    assert len(found) == 3
    assert all(each.low_ns <= offsets[node] * MS <= each.high_ns for node, each in found.items())


def test_stages_that_leave_before_others_enter_have_no_offsets() -> None:
    drawn = np.random.default_rng(0)
    exits = 180.0 * np.arange(100) + 20 * np.arange(4)[:, None] + 5 * drawn.gamma(1, 1, (4, 100))
    entries = exits - 10 * drawn.uniform(0, 1, (4, 100)) ** 2
    met = Meetings("receive", np.arange(4), np.arange(4), entries * MS, exits * MS)
    assert estimate(met, 0) == {}


def test_no_clock_runs_as_wrong_as_ranks_without_meetings_drift_apart() -> None:
    job = ClockJob([0, 0], per_node=1, compute_ms=100, synchronous=False)
    job.exits[1] *= 1.05
    job.entries[1] *= 1.05
    assert estimate(job.meetings(), 0) == {}


def test_a_clock_without_meetings_with_the_reference_is_absent() -> None:
    met = ClockJob([0, 5, 9]).meetings()
    met.exits[met.clocks == 2] = np.nan
    met.entries[met.clocks == 2] = np.nan
    assert set(estimate(met, 0)) == {1}
    assert estimate(met, 7) == {}


def test_times_by_the_reference_are_exact_at_the_size_of_today() -> None:
    at = 1_767_225_600_000_000_000
    offset = ClockOffset(1.5e9, 1.4e9, 1.6e9, float(at), rate=1e-5)
    times = np.array([at + 1_500_000_000, at + 101_501_000_000], np.int64)
    first, second = offset.by_reference(times).tolist()
    assert abs(first - at) <= 1
    # 100.001 s later by a clock that gains 10 µs a second.
    assert second - first == pytest.approx(100.001e9 / (1 + 1e-5), abs=2)


def test_clocks_are_independent_of_the_order_of_ranks() -> None:
    met = ClockJob([0, 1830, -7]).meetings()
    order = np.array([3, 0, 5, 1, 4, 2])
    mixed: Meetings = replace(
        met, ranks=met.ranks[order], clocks=met.clocks[order], entries=met.entries[order], exits=met.exits[order]
    )
    assert estimate(mixed, 0) == estimate(met, 0)

"""Whether ranks wait for one another in a region, and which executions belong together."""

import numpy as np
import pytest
from support.clocks import MS, ClockJob

from gpu_profile.analysis.clocks.meetings import Meetings, meetings
from gpu_profile.analysis.clocks.steps import steps


def computing(job: ClockJob) -> Meetings:
    """The region before the collective: its ranks do not wait."""
    ranks = np.arange(len(job.clocks))
    return Meetings("compute", ranks, job.clocks, job.by_node(job.starts), job.by_node(job.entries))


def test_ranks_wait_in_a_collective_and_not_in_their_computation() -> None:
    for seed in range(6):
        job = ClockJob([0, 1830], drifts_ppm=[0, 40], seed=seed, straggler=[None, 1][seed % 2])
        assert job.meetings().waits
        assert not computing(job).waits


def test_a_launch_that_returns_at_once_is_no_collective() -> None:
    job = ClockJob([0, 1830])
    # The call lasts 50 µs, and the host does not wait.
    launched = Meetings("all-reduce", np.arange(4), job.clocks, job.by_node(job.entries), job.by_node(job.entries))
    launched.exits[:] += 0.05 * MS
    assert not launched.waits


def test_ranks_on_their_own_do_not_wait() -> None:
    job = ClockJob([0, 0], synchronous=False)
    assert not job.meetings().waits


def test_ranks_on_one_clock_that_leave_before_the_last_has_entered_do_not_wait() -> None:
    job = ClockJob([0], per_node=3)
    met = job.meetings()
    assert met.waits
    met.exits[1] = met.entries.min(axis=0)
    assert not met.waits


def test_ranks_without_a_collective_region_are_in_step_or_not() -> None:
    kept = steps(computing(ClockJob([0, 1830], per_node=1)))
    assert kept is not None
    assert kept.entries.shape == (2, 119)
    alone = [steps(computing(ClockJob([0, 1830], per_node=1, synchronous=False, seed=seed))) for seed in range(40)]
    assert sum(each is not None for each in alone) <= 2
    assert steps(computing(ClockJob([0, 1830], steps=30))) is None


def test_ranks_with_timers_are_not_in_step() -> None:
    for seed in range(10):
        drawn = np.random.default_rng(seed)
        starts = (1000 * np.arange(200) + drawn.uniform(0, 3000, (2, 1)) + 3 * drawn.gamma(1, 1, (2, 200))) * MS
        assert steps(Meetings("tick", np.arange(2), np.arange(2), starts, starts + 50 * MS)) is None


@pytest.mark.parametrize(("kept", "lag"), [(slice(0, 70), 0), (slice(30, None), 30), (slice(20, 90), 20)])
@pytest.mark.parametrize("same_clock", [False, True])
def test_a_rank_with_fewer_executions_takes_part_where_its_steps_agree(kept: slice, lag: int, same_clock: bool) -> None:
    job = ClockJob([0, 0 if same_clock else 4_000])
    starts, ends = job.by_node(job.entries), job.by_node(job.exits)
    runs = {rank: (starts[rank], ends[rank]) for rank in range(4)} | {3: (starts[3, kept], ends[3, kept])}
    left_out: dict[int, str] = {}
    met = meetings("all-reduce", runs, dict(enumerate([0] * 4 if same_clock else [0, 0, 1, 1])), left_out)
    assert met is not None
    assert not left_out
    assert int(np.flatnonzero(np.isfinite(met.entries[3]))[0]) == lag
    assert np.nanmax(np.abs(met.entries[3] - starts[3])) == 0


@pytest.mark.parametrize("later", [1, 3])
def test_ranks_with_as_many_executions_of_other_steps_are_matched_by_their_rhythm(later: int) -> None:
    job = ClockJob([0, 4_000])
    starts, ends = job.by_node(job.entries), job.by_node(job.exits)
    parts = [slice(0, 100)] * 2 + [slice(later, 100 + later)] * 2
    runs = {rank: (starts[rank, part], ends[rank, part]) for rank, part in enumerate(parts)}
    met = meetings("all-reduce", runs, {0: 0, 1: 0, 2: 1, 3: 1}, {})
    assert met is not None
    assert np.nanmax(np.abs(met.entries[3] - starts[3, :100])) == 0


def test_a_rank_whose_steps_agree_nowhere_is_left_out() -> None:
    job, other = ClockJob([0, 4_000]), ClockJob([0, 4_000], seed=9, steps=60)
    starts, ends = job.by_node(job.entries), job.by_node(job.exits)
    runs = {rank: (starts[rank], ends[rank]) for rank in range(3)}
    runs[3] = other.by_node(other.entries)[3], other.by_node(other.exits)[3]
    left_out: dict[int, str] = {}
    met = meetings("all-reduce", runs, {0: 0, 1: 0, 2: 1, 3: 1}, left_out)
    assert met is not None
    assert met.ranks.tolist() == [0, 1, 2]
    assert left_out == {3: "its 60 executions of all-reduce cannot be matched with the others' 120"}
    assert meetings("few", {0: (starts[0, :3], ends[0, :3])}, {0: 0}, {}) is None

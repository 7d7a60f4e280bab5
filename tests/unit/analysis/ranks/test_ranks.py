import json
from dataclasses import replace

import numpy as np
from pytest import approx as close  # noqa: PT013 - reads better in rows of numbers
from support.analysis import T0, Run

from gpu_profile.analysis import Analysis, analyse
from gpu_profile.analysis.ranks.text import rank_lines
from gpu_profile.analysis.views.data import of_analysis
from gpu_profile.analysis.views.text import render, render_regions
from gpu_profile.recording import ProcessInfo, Recording, SpanRecord
from gpu_profile.report.as_json import to_json

MS = 1_000_000
UNMEASURED = dict.fromkeys(
    ("communication_s", "exposed_s", "waiting_s", "collectives", "utilization", "ceiling_flops_per_s", "energy_j")
)


def job(means_ms: dict[int, list[float]], region: str = "step", *, size: int | None = None) -> Recording:
    """Ranks that each ran a region for these times, one after another."""
    spans: list[SpanRecord] = []
    for rank, lengths in means_ms.items():
        at = T0
        for i, length in enumerate(lengths):
            end = at + round(length * MS)
            spans.append(SpanRecord(region, at, end, id=f"{rank:08x}{i:08x}", rank=rank))
            at = end + MS
    processes = tuple(
        ProcessInfo("0.1.0", "node-a", 100 + rank, T0, rank=rank, local_rank=rank, world_size=size or len(means_ms))
        for rank in means_ms
    )
    return Recording(processes, (), {}, tuple(spans), (), ())


def analysed(means_ms: dict[int, list[float]], *, size: int | None = None) -> Analysis:
    return analyse(job(means_ms, size=size))


def noisy(mean_ms: float, n: int = 50, spread: float = 0.3, seed: int = 1) -> list[float]:
    return [float(ms) for ms in np.random.default_rng(seed).normal(mean_ms, spread * mean_ms, n).clip(0.1)]


def test_the_slowest_rank_is_named_with_least_mean_and_most() -> None:
    (found,) = analysed({0: [10, 12], 1: [20, 22], 2: [11, 11]}).ranks
    assert found.differ
    assert (found.fastest.mean_s, found.slowest.mean_s) == close((0.011, 0.021))
    assert found.slowest.rank == 1
    assert found.mean_s == close((0.011 + 0.021 + 0.011) / 3)
    assert found.excess == close(21 / 11 - 1)
    assert [(use.rank, use.calls) for use in found.ranks] == [(0, 2), (1, 2), (2, 2)]


def test_ranks_that_differ_by_chance_alone_do_not_differ() -> None:
    (found,) = analysed({0: noisy(10, seed=1), 1: noisy(10, seed=2)}).ranks
    assert found.excess > 0
    assert not found.differ
    assert rank_lines([found]) == ["2 ranks: each of 1 region takes as long on one as on another"]


def test_ranks_that_differ_by_less_than_matters_do_not_differ_however_sure_it_is() -> None:
    (found,) = analysed({0: [10.0] * 100, 1: [10.4] * 100}).ranks
    assert found.excess == close(0.04)
    assert not found.differ


def test_a_region_of_one_rank_and_a_recording_without_ranks_have_nothing_to_set_side_by_side() -> None:
    assert analysed({0: [10, 12]}, size=2).ranks == ()
    assert analyse(Run().recording()).ranks == ()


def test_ranks_stand_side_by_side_in_the_text_and_extremes_where_there_are_many() -> None:
    few = render(analysed({0: [10, 10], 1: [15, 15]}))
    assert "2 ranks, mean time per call of 1 region that differs" in few
    assert "region   rank 0   rank 1     mean  slowest  than the fastest" in few
    assert "step    10.0 ms  15.0 ms  12.5 ms   rank 1           +50.0 %" in few
    many = render_regions(analysed({rank: [10.0 + rank] for rank in range(9)}))
    assert "region    least     mean     most  slowest  than the fastest" in many
    assert "step    10.0 ms  14.0 ms  18.0 ms   rank 8           +80.0 %" in many


def test_a_rank_that_takes_many_times_as_long_is_told_as_a_multiple() -> None:
    assert "rank 1             5.0 ×" in render(analysed({0: [10], 1: [50]}))


def test_ranks_that_recorded_nothing_are_told() -> None:
    notes = analysed({0: [10], 1: [10]}, size=4).notes
    line = "2 of 4 ranks are in the recording: the others ran elsewhere or recorded no region (ranks 2-3)"
    assert line in notes
    assert not any("ranks are in the recording" in note for note in analysed({0: [10], 1: [10]}).notes)


def test_a_launcher_of_launchers_is_no_rank_of_the_job() -> None:
    job_of_8 = job({rank: [10] for rank in range(8, 16)}, size=16)
    starter = ProcessInfo("0.1.0", "node-b", 1, T0, rank=1, local_rank=0, world_size=2)
    notes = analyse(replace(job_of_8, processes=(starter, *job_of_8.processes))).notes
    assert any(note.startswith("8 of 16 ranks are in the recording") for note in notes)


def test_executions_of_a_process_without_a_rank_count_for_none() -> None:
    recording = job({0: [10, 10], 1: [20, 20]})
    lone = SpanRecord("step", T0, T0 + 500 * MS, id="f" * 16)
    (found,) = analyse(replace(recording, spans=(*recording.spans, lone))).ranks
    assert [(use.rank, use.calls, use.mean_s) for use in found.ranks] == [(0, 2, 0.01), (1, 2, 0.02)]


def test_the_json_has_every_rank_of_every_region() -> None:
    found = json.loads(to_json(of_analysis(analysed({0: [10, 12], 1: [20, 22]}))))
    assert found["ranks"] == [
        {
            "region": "step",
            "least_s": close(0.011),
            "mean_s": close(0.016),
            "most_s": close(0.021),
            "slowest": 1,
            "excess": close(21 / 11 - 1),
            "differ": True,
            "late": {"cause": "unknown", "facts": None, "since_ns": None},
            "waits": False,
            "waiting": None,
            "per_call": UNMEASURED,
            "ranks": [
                {
                    "rank": rank,
                    "calls": 2,
                    "total_s": close(2 * mean_s),
                    "mean_s": close(mean_s),
                    "p95_s": close(mean_s + 0.0009),
                    "per_call": UNMEASURED,
                }
                for rank, mean_s in ((0, 0.011), (1, 0.021))
            ],
        }
    ]
    assert [(p["rank"], p["local_rank"], p["world_size"]) for p in found["processes"]] == [(0, 0, 2), (1, 1, 2)]


def test_a_narrow_terminal_gets_a_narrower_table_of_regions() -> None:
    analysis = analyse(Run().recording())
    wide, narrow = render_regions(analysis), render_regions(analysis, width=100)
    assert max(map(len, wide.splitlines())) > 100
    table = narrow.split("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 100
    assert table[0].split()[:3] == ["region", "device", "calls"]
    assert "regime" in table[0]


def test_the_extremes_of_many_equal_ranks_do_not_differ() -> None:
    for seed in range(5):
        (found,) = analysed({rank: noisy(10, seed=100 * seed + rank) for rank in range(64)}).ranks
        assert found.excess > 0.1
        assert not found.differ

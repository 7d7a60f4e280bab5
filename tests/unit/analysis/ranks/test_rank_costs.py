"""Communication, utilisation and energy of a step on each rank and for the job."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.analysis import EMPTY, GPU, MS, T0, B, Run
from support.clocks import ClockJob
from support.ranks import late_job
from support.regions import PRODUCT, TALKING

from gpu_profile.analysis import analyse
from gpu_profile.analysis.ranks.causes import LateCause
from gpu_profile.analysis.ranks.costs import RankCosts, extreme_costs, job_costs
from gpu_profile.analysis.ranks.text import rank_lines
from gpu_profile.analysis.views.data import of_analysis
from gpu_profile.analysis.views.text import render
from gpu_profile.recording import ProcessInfo, Recording, SpanRecord
from gpu_profile.recording.nccl_inspector import read_inspector
from gpu_profile.report.as_json import to_json

JOB = ClockJob([0, 1830], straggler=3, straggles_ms=40, steps=60)


def two_ranks(*attributes: dict[str, Any]) -> Recording:
    spans = [
        SpanRecord("step", T0 + i * 20 * MS, T0 + (i * 20 + 10) * MS, id=f"{rank}-{i}", rank=rank, attributes=values)
        for rank, values in enumerate(attributes)
        for i in range(4)
    ]
    processes = tuple(ProcessInfo("0.1.0", "a", 1 + rank, T0, rank=rank, world_size=2) for rank in range(2))
    return replace(EMPTY, processes=processes, spans=tuple(spans))


def test_exposed_communication_is_that_without_another_kernel_by_rank() -> None:
    talks_more = replace(TALKING, communication_ns=2 * TALKING.communication_ns)
    (step,) = analyse(two_ranks(TALKING.attributes(), talks_more.attributes())).ranks
    first, second = (use.costs for use in step.ranks)
    exposed_s = (TALKING.communication_ns - TALKING.overlap_ns) / 1e9
    assert first.exposed_s == pytest.approx(exposed_s)
    assert second.exposed_s == pytest.approx(exposed_s + TALKING.communication_ns / 1e9)
    assert step.costs.exposed_s == pytest.approx((first.exposed_s or 0) / 2 + (second.exposed_s or 0) / 2)
    table = "\n".join(rank_lines([step]))
    assert "step, per call  communication  exposed\n" in table
    assert "\njob " in table


def test_utilization_has_its_ceiling_beside_it() -> None:
    product = replace(PRODUCT, flops=1_000_000_000, ceiling=4e11)
    analysis = analyse(two_ranks(product.attributes(), replace(product, flops=500_000_000).attributes()))
    (step,) = analysis.ranks
    # In 10 ms the ceiling allows 4 GFLOP.
    assert [use.costs.utilization for use in step.ranks] == [pytest.approx(0.25), pytest.approx(0.125)]
    assert [use.costs.ceiling for use in step.ranks] == [pytest.approx(4e11)] * 2
    assert step.costs.utilization == pytest.approx(0.1875)
    assert "18.8 % of 400 GFLOP/s" in render(analysis)
    (region,) = json.loads(to_json(of_analysis(analysis)))["regions"]
    assert region["operations"]["utilization"] == pytest.approx(0.1875)


def test_energy_of_a_step_is_the_sum_of_the_ranks_if_all_have_it() -> None:
    assert job_costs([RankCosts(energy_j=2.0, exposed_s=1.0), RankCosts(energy_j=3.0, exposed_s=2.0)]) == RankCosts(
        energy_j=5.0, exposed_s=1.5
    )
    assert job_costs([RankCosts(energy_j=2.0), RankCosts()]) == RankCosts()
    run = Run(calls=14).recording()
    spans = [
        span._replace(
            rank=rank,
            trace_id=f"{rank:032x}",
            device_intervals=tuple(mark._replace(device=device.uuid) for mark in span.device_intervals),
        )
        for rank, device in enumerate((GPU, B))
        for span in run.spans
    ]
    both = replace(run, devices=(GPU, B), samples=dict.fromkeys(("GPU-a", "GPU-b"), run.samples["GPU-a"]))
    analysis = analyse(replace(both, spans=tuple(spans), processes=two_ranks().processes))
    (forward,) = [each for each in analysis.ranks if each.region == "forward"]
    (alone,) = {use.summary.call_energy_j for use in analysis.of("forward")}
    assert alone is not None
    assert forward.costs.energy_j == pytest.approx(2 * alone)
    # A GPU without energy readings has none: never 0.
    (step,) = analyse(late_job(LateCause.HOST, ranks=2, steps=4)).ranks
    assert [use.costs.energy_j for use in step.ranks] == [None, None]


def test_collectives_of_nccl_inspector_belong_to_the_region_that_called_them(tmp_path: Path) -> None:
    files = read_inspector(JOB.inspector(tmp_path))
    analysis = analyse(JOB.recording(), collectives=files.collectives)
    costs = {each.region: each.costs for each in analysis.ranks}
    assert costs["all-reduce"].collectives == pytest.approx(1.0)
    assert costs["step"].collectives == pytest.approx(1.0)
    per_rank = {each.region: [use.costs for use in each.ranks] for each in analysis.ranks}["step"]
    # Rank 3 waits for no one: the others wait for it, across clocks that are 1.83 s apart.
    waits = [each.waiting_s for each in per_rank]
    assert waits[3] == pytest.approx(0, abs=0.002)
    assert all(wait is not None and 0.03 < wait < 0.05 for wait in waits[:3])
    assert costs["compute"].collectives == 0
    text = render(analysis)
    assert "all-reduce, per call" in text
    assert "compute, per call" not in text
    assert per_rank[0].exposed_s is None


def test_waiting_is_unknown_where_files_of_ranks_are_missing(tmp_path: Path) -> None:
    folder = JOB.inspector(tmp_path)
    (folder / "node-1-pid103.log").unlink()
    analysis = analyse(JOB.recording(), collectives=read_inspector(folder).collectives)
    step = next(each for each in analysis.ranks if each.region == "step")
    assert [use.costs.waiting_s for use in step.ranks] == [None] * 4
    assert [use.costs.collectives for use in step.ranks] == [pytest.approx(1.0)] * 3 + [None]


def test_of_many_ranks_the_extremes_are_shown(tmp_path: Path) -> None:
    job = ClockJob([0], per_node=9, steps=12)
    analysis = analyse(job.recording(("step",)), collectives=read_inspector(job.inspector(tmp_path)).collectives)
    lines = "\n".join(rank_lines(analysis.ranks)).splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["least", "most", "job"]
    waits = [use.costs.waiting_s for use in analysis.ranks[0].ranks]
    least, most = extreme_costs(use.costs for use in analysis.ranks[0].ranks)
    assert (least.waiting_s, most.waiting_s) == (min(filter(None, waits)), max(filter(None, waits)))


def test_collectives_of_other_processes_are_counted_and_left_out(tmp_path: Path) -> None:
    files = read_inspector(JOB.inspector(tmp_path, first_pid=7_000))
    analysis = analyse(JOB.recording(), collectives=files.collectives)
    line = "240 collectives are of processes without a rank in the recording: left out"
    assert line in analysis.notes
    assert not any(use.costs.measured for each in analysis.ranks for use in each.ranks)

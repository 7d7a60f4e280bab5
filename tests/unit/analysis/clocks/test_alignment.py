"""Recordings of nodes with wrong clocks, analysed as a user would."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.analysis import T0, Run
from support.clocks import ClockJob

from gpu_profile.analysis import analyse
from gpu_profile.analysis.clocks.alignment import aligned, node_clocks
from gpu_profile.analysis.clocks.clock_text import clock_lines
from gpu_profile.analysis.clocks.jumps import in_order
from gpu_profile.analysis.profile.values import profile_of
from gpu_profile.analysis.views.data import of_analysis
from gpu_profile.analysis.views.page import render_page
from gpu_profile.analysis.views.text import render
from gpu_profile.catalogue.samples import Device, Event
from gpu_profile.recording import Columns, DeviceInterval, Recording, SpanRecord
from gpu_profile.recording.nccl_inspector import read_inspector
from gpu_profile.report.as_json import to_json
from gpu_profile.report.stacks import SpanLink

HOUR_MS = 3_600_000.0
STRAGGLING = ClockJob([0, 1830, -2 * HOUR_MS], straggler=3, straggles_ms=40)


def spread_ms(recording: Recording, region: str = "all-reduce") -> float:
    """The largest distance of the ends of one collective."""
    ends: dict[str, list[int]] = {}
    for span in recording.spans:
        if span.name == region:
            ends.setdefault(span.id.rpartition("-")[2], []).append(span.end_ns)
    return max(max(each) - min(each) for each in ends.values()) / 1e6


def test_all_times_are_by_one_clock_and_the_offsets_are_reported() -> None:
    recording = STRAGGLING.recording()
    analysis = analyse(recording)
    assert spread_ms(recording) > 7_000_000
    assert spread_ms(aligned(recording, analysis.clocks)) < 3
    assert analysis.end_ns - analysis.start_ns < 60e9
    text = render(analysis)
    assert "clock of node-1 (ranks 2-3) is 1.830 s ±4" in text
    assert "ms ahead of node-0's, by all-reduce" in text
    assert "clock of node-2 (ranks 4-5) is 2 h 0 min 0.000 s ±4" in text
    assert "behind node-0's, by all-reduce; set it with NTP or PTP" in text
    assert "is 1.830 s" in render_page(analysis, title="job", recording=recording)
    clocks = json.loads(to_json(of_analysis(analysis)))["clocks"]
    assert clocks["reference"] == "node-0"
    first = clocks["nodes"][0]
    assert first["ahead_low_s"] < 1.83 < first["ahead_high_s"]
    assert (first["ranks"], first["by"], first["stepped"]) == ([2, 3], "all-reduce", False)


def test_the_rank_that_the_others_wait_for_is_named_across_nodes() -> None:
    analysis = analyse(STRAGGLING.recording())
    (waiting,) = [each for each in analysis.ranks if each.arrivals is not None and each.region == "all-reduce"]
    assert waiting.arrivals is not None
    assert (waiting.arrivals.rank, waiting.arrivals.late) == (3, True)
    assert waiting.arrivals.late_s == pytest.approx(0.04, abs=0.004)
    assert waiting.arrivals.half_width_s < 0.01
    # Its own time there is the shortest, and that is no cause.
    assert waiting.fastest.rank == 3
    assert waiting.late is None
    assert "all-reduce: the ranks wait in it for rank 3, the last of 120 times in " in render(analysis)


def test_none_of_two_equal_ranks_is_late() -> None:
    for seed in range(4):
        job = ClockJob([0], per_node=2, steps=60, seed=seed)
        (waiting,) = (each.arrivals for each in analyse(job.recording(("all-reduce",))).ranks)
        assert waiting is not None
        assert not waiting.late


def test_a_rank_that_becomes_late_is_late_since_then() -> None:
    job = ClockJob([0, 1830], straggler=None, steps=120, jitter_ms=1)
    late = ClockJob([0, 1830], straggler=2, straggles_ms=50, steps=60, jitter_ms=1)
    shift = job.exits[:, :60].max()
    for name in ("starts", "entries", "exits"):
        getattr(job, name)[:, 60:] = getattr(late, name) + shift
    (waiting,) = [each for each in analyse(job.recording()).ranks if each.region == "all-reduce"]
    assert waiting.arrivals is not None
    assert waiting.arrivals.since_ns == pytest.approx(T0 + shift * 1e6, abs=1.5e9)


def test_nccl_inspector_compares_clocks_without_a_region_of_collectives(tmp_path: Path) -> None:
    collectives = read_inspector(STRAGGLING.inspector(tmp_path)).collectives
    recording = STRAGGLING.recording(("compute",))
    assert clock_lines(analyse(recording).clocks)[0].endswith("as ranks wait in no region")
    clocks = node_clocks(recording, collectives)
    assert "±4.4 ms ahead of node-0's, by NCCL's collectives" in clock_lines(clocks)[0]


def test_clocks_that_agree_share_a_line() -> None:
    lines = clock_lines(node_clocks(ClockJob([0, 0.1, -0.1]).recording()))
    assert len(lines) == 1
    assert lines[0].startswith("clocks of node-1, node-2 agree with node-0's within ")


def set_by(recording: Recording, node: int, by_ms: float, per_node: int = 2) -> Recording:
    """The recording with a node's clock set by so much in the middle of it."""
    ranks = range(node * per_node, (node + 1) * per_node)
    starts = sorted(span.start_ns for span in recording.spans if span.rank in ranks)
    cut, by_ns = starts[len(starts) // 2] + 5, int(by_ms * 1e6)

    def moved(ns: int) -> int:
        return ns + by_ns * (ns >= cut)

    spans = [
        span._replace(start_ns=moved(span.start_ns), end_ns=moved(span.end_ns)) if span.rank in ranks else span
        for span in recording.spans
    ]
    return replace(recording, spans=tuple(spans))


@pytest.mark.parametrize(
    ("node", "by_ms", "text"),
    [
        (1, 2 * HOUR_MS, "node-1's clock was set ahead by 2 h 0 min 0.000 s after 00:00:11 UTC"),
        (1, -2 * HOUR_MS, "node-1's clock was set back by 2 h 0 min 0.000 s after 00:00:11 UTC"),
        (1, 300, "node-1's clock was set ahead by 300"),
        (0, -HOUR_MS, "node-0's clock was set back by 1 h 0 min 0.000 s after 00:00:11 UTC"),
    ],
)
def test_a_clock_that_was_set_by_much_is_named_with_the_time(node: int, by_ms: float, text: str) -> None:
    recording = set_by(ClockJob([0, 20], steps=120).recording(("all-reduce",)), node, by_ms)
    (line,) = clock_lines(node_clocks(recording))
    assert line.startswith(f"clock of node-1 (ranks 2-3) cannot be compared with node-0's: {text}")
    assert len(line) <= 200


@pytest.mark.parametrize("regions", [("all-reduce",), ("step", "compute", "all-reduce")])
@pytest.mark.parametrize("by_ms", [-20, 3, 12, 45])
def test_of_two_nodes_a_clock_may_have_been_set_by_no_more_than_steps_differ(by_ms: float, regions: tuple[str]) -> None:
    """Set between the ranks' exits from one meeting, if all regions are recorded: then it is a part of two steps."""
    recording = set_by(ClockJob([0, 20], steps=120).recording(regions), 1, by_ms)
    (line,) = clock_lines(node_clocks(recording))
    which, at = line.removeprefix("clock of node-1 (ranks 2-3) cannot be compared with node-0's: ").split(" by ")
    assert which == ("node-1's clock was set ahead" if by_ms == 45 else "one of the two was set")
    assert float(at.partition(" ms after 00:00:11 UTC")[0]) == pytest.approx(abs(by_ms), abs=0.3)


def test_of_three_nodes_the_clock_that_was_set_by_little_is_named() -> None:
    recording = set_by(ClockJob([0, 20, -500]).recording(("all-reduce",)), 1, 6)
    first, second = node_clocks(recording).nodes
    assert first.reason.startswith("node-1's clock was set ahead by 5.9")
    assert second.offset is not None


def test_ranks_that_leave_late_at_times_are_no_set_clock() -> None:
    job = ClockJob([0, 20], per_node=1)
    job.exits[1, 20::30] += 9
    (node,) = node_clocks(job.recording(("all-reduce",))).nodes
    assert node.offset is not None
    assert node.offset.low_ns < 20e6 < node.offset.high_ns


def test_a_clock_that_was_set_leaves_those_of_other_nodes_compared() -> None:
    recording = set_by(ClockJob([0, 20, -500]).recording(("all-reduce",)), 1, HOUR_MS)
    first, second = node_clocks(recording).nodes
    assert first.reason.startswith("node-1's clock was set ahead by 1 h 0 min 0.000 s")
    assert second.offset is not None
    assert second.offset.low_ns < -500e6 < second.offset.high_ns


def test_a_pause_of_ranks_that_do_not_meet_is_no_set_clock() -> None:
    job = ClockJob([0, 20], synchronous=False)
    for times in (job.starts, job.entries, job.exits):
        times[2:, 60:] += 5_000
    assert "no region keeps their ranks in step" in clock_lines(node_clocks(job.recording()))[0]


def test_records_that_waited_for_a_profiler_do_not_change_the_order() -> None:
    edges = np.array([(i, i + 1) for i in (0, 10, 20, 60, 70, 80, 90, 30, 40, 50, 100)])
    assert in_order(edges)[:, 0].tolist() == list(range(0, 101, 10))
    back = np.array([(i, i + 1) for i in (*range(1_000, 1_100, 10), *range(500, 590, 10))])
    assert in_order(back).tolist() == back.tolist()


def test_clocks_that_cannot_be_compared_are_reported_and_times_are_kept() -> None:
    recording = ClockJob([0, 1830], synchronous=False).recording()
    clocks = node_clocks(recording)
    why = "no region keeps their ranks in step: mark a collective as a region, or give --nccl"
    line = f"clock of node-1 (ranks 2-3) cannot be compared with node-0's: {why}. Its times are as recorded"
    assert clock_lines(clocks) == [line]
    assert aligned(recording, clocks) is recording
    assert json.loads(to_json(of_analysis(analyse(recording))))["clocks"]["nodes"][0]["ahead_s"] is None


def test_one_node_has_nothing_to_compare() -> None:
    analysis = analyse(ClockJob([0]).recording())
    assert clock_lines(analysis.clocks) == []
    assert json.loads(to_json(of_analysis(analysis)))["clocks"] is None
    (waiting,) = [each.arrivals for each in analysis.ranks if each.region == "all-reduce"]
    assert waiting is not None
    assert waiting.half_width_s == 0


def test_samples_and_events_of_a_node_follow_its_clock() -> None:
    recording = STRAGGLING.recording()
    run = Run(calls=2).recording()
    device = Device("GPU-1")
    columns = run.samples["GPU-a"]
    sampled = replace(
        recording,
        devices=(device,),
        samples={"GPU-1": columns},
        device_hosts={"GPU-1": "node-1"},
        events=(Event("GPU-1", T0, "xid", 79, ""),),
    )
    clocks = node_clocks(sampled)
    moved = aligned(sampled, clocks)
    for key, column in columns.items():
        ahead = column.t_end - moved.samples["GPU-1"][key].t_end
        assert abs(ahead - 1.83e9).max() < 1e6
    assert moved.events[0].t_ns - T0 == pytest.approx(-1.83e9, abs=1e6)
    assert moved.processes[2].start_ns - sampled.processes[2].start_ns == pytest.approx(-1.83e9, abs=1e6)


def test_a_profile_has_the_times_of_one_clock() -> None:
    recording = ClockJob([0, -2 * HOUR_MS], per_node=1, steps=30, jitter_ms=90).recording(("compute", "all-reduce"))
    run = Run(calls=20).recording()
    back_ns = int(2 * HOUR_MS * 1e6)
    columns = {key: Columns(c.t_start - back_ns, c.t_end - back_ns, c.value) for key, c in run.samples["GPU-a"].items()}
    spans = [
        span._replace(devices=("GPU-1",), trace_id="1" * 32, span_id=f"{i + 1:016x}")
        for i, span in enumerate(recording.spans)
        if span.rank == 1 and span.name == "compute"
    ]
    others = [span for span in recording.spans if span.rank == 0 or span.name != "compute"]
    sampled = replace(
        recording,
        devices=(Device("GPU-1"),),
        samples={"GPU-1": columns},
        device_hosts={"GPU-1": "node-1"},
        spans=(*others, *spans),
    )
    analysis = analyse(sampled)
    assert analysis.clocks.offsets
    found = profile_of(sampled, analysis)
    energy = {each.link: each.values[1] for each in found.samples if each.link}
    lengths = {SpanLink(span.trace_id, span.span_id): span.end_ns - span.start_ns for span in spans}
    shortest, longest = (pick([*energy], key=lambda link: lengths[link]) for pick in (min, max))
    assert energy[longest] / energy[shortest] == pytest.approx(lengths[longest] / lengths[shortest], rel=0.2)
    assert energy[longest] > 1.5 * energy[shortest]


def test_impossible_times_do_not_matter() -> None:
    recording = STRAGGLING.recording()
    mark = DeviceInterval("GPU-1", 0, -7, 1 << 70)
    wrong = [
        SpanRecord("step", -5, 1 << 63, rank=2, process=2),
        SpanRecord("step", T0, T0 + 9, rank=2, process=2, device_intervals=(mark,)),
    ]
    event = Event("GPU-1", 1 << 70, "xid", 79, "")
    moved = analyse(replace(recording, spans=(*wrong[:1], *recording.spans), events=(event,)))
    aligned(replace(recording, spans=(*wrong, *recording.spans), events=(event,)), moved.clocks)
    assert clock_lines(moved.clocks) == clock_lines(analyse(recording).clocks)


def test_a_node_that_was_cut_off_is_no_reference() -> None:
    clocks = node_clocks(STRAGGLING.recording(kept={0: slice(0, 6), 1: slice(0, 6)}))
    assert clocks.reference == "node-1"
    assert {node.host: node.offset is None for node in clocks.nodes} == {"node-0": True, "node-2": False}


def test_ranks_wait_in_a_region_though_their_clocks_are_unknown() -> None:
    recording = STRAGGLING.recording()
    away = [span for span in recording.spans if span.rank in {0, 3}]
    short = [span for span in recording.spans if span.rank == 4 and span.id.endswith(("-1", "-2"))]
    analysis = analyse(replace(recording, spans=(*away, *short)))
    assert not analysis.clocks.one_clock
    (region,) = [each for each in analysis.ranks if each.region == "all-reduce"]
    assert (region.waits, region.arrivals, region.late) == (True, None, None)


def test_a_few_executions_of_a_collective_by_name_have_no_late_rank() -> None:
    recording = STRAGGLING.recording(kept={rank: slice(0, 4) for rank in range(6)})
    (region,) = [each for each in analyse(recording).ranks if each.region == "all-reduce"]
    assert region.differ
    assert (region.waits, region.late) == (True, None)

"""Two jobs in one folder, ranks that restart, that are missing and that are cut off."""

from dataclasses import replace

from support.clocks import ClockJob

from gpu_profile.analysis import analyse
from gpu_profile.analysis.clocks.jobs import job_of, ranks_text
from gpu_profile.recording import Recording

LATE = ClockJob([0, 1830], straggler=3, straggles_ms=40)


def both(first: Recording, second: Recording) -> Recording:
    moved = len(first.processes)
    spans = tuple(span._replace(process=(span.process or 0) + moved) for span in second.spans)
    return replace(first, processes=first.processes + second.processes, spans=first.spans + spans)


def last_rank(recording: Recording) -> int | None:
    (waiting,) = [each.arrivals for each in analyse(recording).ranks if each.region == "all-reduce"]
    return None if waiting is None else waiting.rank


def test_of_two_jobs_the_one_with_most_executions_is_compared() -> None:
    other = ClockJob([70, 90], steps=40, straggler=1, straggles_ms=300).recording(first_pid=900)
    other = replace(other, processes=tuple(replace(each, host=f"x-{each.host}") for each in other.processes))
    analysis = analyse(both(LATE.recording(), other))
    assert (
        "2 jobs are in the recording: ranks are compared in the one with most executions, "
        "not in the others (4 ranks on x-node-0, x-node-1)"
    ) in analysis.notes
    assert [[use.calls for use in each.ranks] for each in analysis.ranks] == [[120] * 4] * 3
    assert last_rank(both(LATE.recording(), other)) == 3
    # All executions are there, as are the other job's times.
    assert len(analysis.runs["step"].starts_ns) == 640


def test_a_restarted_job_is_one_job_with_a_line() -> None:
    again = ClockJob([200_000, 201_830], straggler=3, straggles_ms=40, steps=100, seed=5).recording(first_pid=500)
    recording = both(LATE.recording(), again)
    analysis = analyse(recording)
    line = "ranks 0-3 ran in several processes, one after another: a restart, or several runs; "
    assert any(note.startswith(line) for note in analysis.notes)
    assert job_of(recording).attempts == {place: place // 4 for place in range(8)}
    assert analysis.clocks.nodes[0].offset is not None
    assert (
        analysis.clocks.nodes[0].offset.offset_ns / 1e9 == 1.83
        or abs(analysis.clocks.nodes[0].offset.offset_ns / 1e9 - 1.83) < 0.001
    )
    assert last_rank(recording) == 3


def test_ranks_that_restart_on_another_node_have_both_clocks() -> None:
    again = ClockJob([200_000, 200_500], steps=100, seed=5).recording(first_pid=500)
    moved = tuple(replace(each, host=each.host.replace("node-1", "spare")) for each in again.processes)
    clocks = analyse(both(LATE.recording(), replace(again, processes=moved))).clocks
    assert [(node.host, node.ranks) for node in clocks.nodes] == [("spare", (2, 3)), ("node-1", (2, 3))]
    spare, first = (clocks.offsets[host] for host in ("spare", "node-1"))
    assert spare.low_ns <= 500e6 <= spare.high_ns
    assert first.low_ns <= 1_830e6 <= first.high_ns


def test_a_rank_that_was_cut_off_is_compared_in_the_common_time() -> None:
    analysis = analyse(LATE.recording(kept={2: slice(0, 80)}))
    (line,) = [note for note in analysis.notes if "fewer" in note]
    assert line.startswith(
        "step: rank 2 recorded fewer than the 120 executions of the others: cut off, late or restarted"
    )
    assert "; compared over the " in line
    calls = {each.region: [use.calls for use in each.ranks] for each in analysis.ranks}
    assert all(77 <= count <= 81 for counts in calls.values() for count in counts)
    assert last_rank(LATE.recording(kept={2: slice(0, 80)})) == 3


def test_a_rank_with_little_time_is_left_out_of_the_comparison() -> None:
    analysis = analyse(LATE.recording(kept={2: slice(0, 12)}))
    assert any(note.endswith("that ranks have in common, without rank 2") for note in analysis.notes)
    assert {use.rank for each in analysis.ranks for use in each.ranks} == {0, 1, 3}


def test_a_rank_that_began_to_record_later_is_matched_by_its_rhythm() -> None:
    analysis = analyse(LATE.recording(kept={3: slice(35, None)}))
    assert analysis.clocks.nodes[0].offset is not None
    assert abs(analysis.clocks.nodes[0].offset.offset_ns / 1e6 - 1830) < 1


def test_missing_ranks_are_listed() -> None:
    recording = LATE.recording()
    without = replace(recording, spans=tuple(span for span in recording.spans if span.rank != 1))
    line = "3 of 4 ranks are in the recording: the others ran elsewhere or recorded no region (rank 1)"
    assert line in analyse(without).notes
    assert last_rank(without) == 3


def test_ranks_are_listed_in_runs() -> None:
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([9, 0, 1, 2]) == "ranks 0-2, 9"


def test_a_process_that_the_recording_lacks_owns_nothing() -> None:
    recording = LATE.recording(("all-reduce",))
    spans = [span._replace(process=99 if i % 2 else -1) for i, span in enumerate(recording.spans)]
    assert job_of(replace(recording, spans=tuple(spans))).attempts == {}
    assert job_of(replace(recording, processes=())).attempts == {}

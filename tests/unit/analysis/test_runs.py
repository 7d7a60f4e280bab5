from dataclasses import replace
from typing import Any

import pytest
from support.analysis import EMPTY, GPU, MS, T0, B, Run, analysed, one, two_devices

from gpu_profile.analysis.runs import _parents
from gpu_profile.analysis.views.text import render
from gpu_profile.recording import SpanRecord

NAMES = ("load", "step", "forward")

# ---------------------------------------------------------------------- what ran inside what


def two_threads(**ids: list[Any]) -> list[SpanRecord]:
    """An outer region with an inner one in each of two threads; the second outer one lies within the first."""
    edges = [("slow", 0, 1000), ("a", 100, 900), ("quick", 200, 600), ("b", 300, 500)]
    return [
        SpanRecord(name, T0 + start * MS, T0 + end * MS)._replace(**{key: each[i] for key, each in ids.items()})
        for i, (name, start, end) in enumerate(edges)
    ]


def inside(spans: list[SpanRecord], part: str, whole: str) -> bool:
    """Whether one execution is taken to be part of the other's time: then the other was never innermost meanwhile."""
    notes: list[str] = []
    ordered = sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))
    found = _parents(ordered, notes)
    at = [span.name for span in ordered].index(part)
    while at >= 0 and ordered[at].name != whole:
        at = found[at]
    return at >= 0


@pytest.mark.parametrize(
    "ids",
    [
        {"id": ["1", "2", "3", "4"], "parent": [None, "1", None, "3"]},
        {"trace_id": ["x", "x", "y", "y"], "span_id": ["1", "2", "3", "4"], "parent_span_id": [None, "1", None, "3"]},
        # Spans and executions without one, inside each other.
        {
            "trace_id": ["x", "x", "", "z"],
            "span_id": ["1", "", "", "4"],
            "parent_span_id": [None, "1", None, None],
            "id": ["", "2", "3", ""],
            "parent": [None, None, None, "3"],
        },
    ],
)
def test_threads_that_run_at_the_same_time_are_kept_apart_by_ids(ids: dict[str, list[Any]]) -> None:
    spans = two_threads(**ids)
    assert inside(spans, "a", "slow")
    assert inside(spans, "b", "quick")
    assert not inside(spans, "quick", "a")
    assert not inside(spans, "b", "slow")
    analysis = analysed(replace(EMPTY, spans=tuple(spans)))
    assert not any("is taken to be inside" in note for note in analysis.notes)


def test_a_recording_without_ids_is_still_read_and_says_what_it_assumes() -> None:
    spans = two_threads()
    assert inside(spans, "b", "slow")
    assert any(
        "4 executions have no id: one that lies within another is taken to be inside it" in note
        for note in analysed(replace(EMPTY, spans=tuple(spans))).notes
    )


def test_an_execution_whose_parent_never_ended_says_so() -> None:
    spans = two_threads(id=["", "2", "3", "4"], parent=[None, "1", None, "3"])[1:]
    assert not inside(spans, "b", "a")
    notes = analysed(replace(EMPTY, spans=tuple(spans))).notes
    assert "1 execution ran inside one that is not recorded: it had not ended, or was lost" in notes


def test_what_ran_on_another_device_in_between_does_not_cut_the_tie() -> None:
    run = Run()
    outer, between, inner = (
        SpanRecord(name, T0, T0 + 5_000_000_000 + n, id=str(n), parent=str(n + 1) if n < 3 else None, devices=(uuid,))
        for n, name, uuid in ((3, "outer", GPU.uuid), (2, "between", B.uuid), (1, "inner", GPU.uuid))
    )
    run.spans = [inner, between, outer]
    analysis = analysed(two_devices(run))
    used = {(u.summary.region, u.summary.device.uuid): u.summary for u in analysis.regions}
    assert set(used) == {("outer", GPU.uuid), ("between", B.uuid), ("inner", GPU.uuid)}
    energy = used["outer", GPU.uuid].energy_j
    assert energy is not None
    assert energy < 0.01 * (used["inner", GPU.uuid].energy_j or 0.0), "the inner one has it all"


# ---------------------------------------------------------------------- failures and places


def test_failures_are_counted_if_every_execution_says_whether_it_failed() -> None:
    run = Run()
    run.spans = [span._replace(failed=i % 6 == 0) for i, span in enumerate(run.spans)]
    analysis = analysed(run.recording())
    assert [one(analysis, name).failures for name in NAMES] == [30, 0, 0]
    assert [one(analysis, name).summary.durations.errors for name in NAMES] == [30, 0, 0]
    text = render(analysis)
    assert "failed" in text.splitlines()[6]
    run.spans[0] = run.spans[0]._replace(failed=None)
    assert [one(analysed(run.recording()), name).failures for name in NAMES] == [None, 0, 0]


def test_where_nobody_says_whether_executions_failed_it_is_not_known() -> None:
    analysis = analysed(Run().recording())
    assert {use.failures for use in analysis.regions} == {None}
    assert "failed" not in render(analysis)


def test_an_execution_is_on_the_devices_that_its_process_joined_it_with() -> None:
    run = Run(marked=False)
    run.spans = [span._replace(devices=(B.uuid,)) for span in run.spans]
    analysis = analysed(two_devices(run))
    assert {use.summary.device for use in analysis.regions} == {B}
    assert analysis.notes == ()
    told = analysed(two_devices(run), devices=[GPU.uuid])
    assert {use.summary.device for use in told.regions} == {B}, "what an execution says of itself stands"


def test_a_guess_of_the_process_stands_unless_the_caller_knows_better() -> None:
    run = Run(marked=False)
    run.spans = [span._replace(devices=(B.uuid,), assumed=True) for span in run.spans]
    analysis = analysed(two_devices(run))
    assert {use.summary.device for use in analysis.regions} == {B}
    assert any("180 executions name no device: taken to have run on GPU-b" in note for note in analysis.notes)
    told = analysed(two_devices(run), devices=[GPU.uuid])
    assert {use.summary.device for use in told.regions} == {GPU}


def test_a_region_on_two_devices_by_the_hosts_clock_counts_on_each() -> None:
    run = Run(marked=False)
    run.spans = [span._replace(devices=(GPU.uuid, B.uuid)) for span in run.spans]
    analysis = analysed(two_devices(run))
    assert [use.summary.device.uuid for use in analysis.of("step")] == [GPU.uuid, B.uuid]
    assert {use.summary.executions for use in analysis.of("step")} == {run.calls}

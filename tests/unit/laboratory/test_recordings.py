"""From a case to answers: the same seed gives the same bytes, and both ways in give answers."""

from dataclasses import replace
from pathlib import Path

from laboratory.programs import Outer, Stamps, Unmarked
from laboratory.recordings import OUTSIDE, Case, analysed, record, recorded, replayed, spans_of
from laboratory.rows import ROWS, program
from laboratory.sensors import COUNTER, GPM

CASE = Case(program(1, outer=Outer(), stamps=Stamps((0.1, 0.5)), unmarked=Unmarked(0.1)), (COUNTER, GPM), 8.0, 5)


def content(case: Case, directory: Path) -> bytes:
    return record(case.run(), directory).read_bytes()


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    first = content(CASE, tmp_path / "a")
    assert first == content(CASE, tmp_path / "b")
    assert first != content(replace(CASE, seed=6), tmp_path / "c")


def test_what_is_read_back_is_what_ran() -> None:
    run = CASE.run()
    found = recorded(run)
    assert len(found.spans) == run.world.executions.marked.sum() < len(run.world.executions.starts)
    assert set(found.samples["GPU-laboratory"]) == {"energy", "graphics", "sm"}
    outer = {span.id: span for span in found.spans if span.name == "outer"}
    inside = [span for span in found.spans if span.parent in outer]
    assert len(inside) > len(outer) > 0
    around = [outer[span.parent or ""] for span in inside]
    assert all(o.start_ns <= i.start_ns <= i.end_ns <= o.end_ns for o, i in zip(around, inside, strict=True))


def test_marks_are_recorded_as_device_intervals() -> None:
    run = replace(CASE, program=replace(CASE.program, stamps=Stamps((0.0, 5.0), marks_us=5.0))).run()
    for span in spans_of(run):
        (mark,) = span.device_intervals
        assert mark.start_ns <= mark.end_ns


def test_both_ways_in_answer_every_region() -> None:
    run = CASE.run()
    asked = {(name, quantity) for name in run.world.program.names for quantity in ("power", "busy", "energy", "sm")}
    answers = analysed(run)
    assert asked <= {*answers}
    assert asked <= {*replayed(run)}
    assert answers[OUTSIDE, "energy"].value is not None


def test_rows_have_names_of_their_own_and_build_cases() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.build(2).seed == 2
        assert row.build(2) == row.build(2)

"""Operations that were profiled within regions, in what analyses say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.analysis import EMPTY, GPU, MS, T0, Run, one, parsed, regimes
from support.regions import BLANK, PRODUCT, SUM

from gpu_profile.analysis import Analysis, analyse
from gpu_profile.analysis.views.data import of_analysis
from gpu_profile.analysis.views.page import render_page
from gpu_profile.analysis.views.perfetto import perfetto_trace
from gpu_profile.analysis.views.tables import regions_csv
from gpu_profile.analysis.views.text import reasons, render, render_regions
from gpu_profile.cli import run as command
from gpu_profile.recording import DeviceInterval, Recording, RecordingWriter, SpanRecord
from gpu_profile.regimes.operation import RegionOperation

Capture = pytest.CaptureFixture[str]


def ran(name: str, operation: RegionOperation | None, start_ms: int, ms: int, *, on_device: int = 0) -> SpanRecord:
    """An execution; with `on_device` its work took that many ms at its end."""
    start, end = T0 + start_ms * MS, T0 + (start_ms + ms) * MS
    marks = (DeviceInterval(GPU.uuid, 0, end - on_device * MS, end),) if on_device else ()
    attributes = {} if operation is None else operation.attributes()
    return SpanRecord(name, start, end, id=f"{start_ms:016x}", attributes=attributes, device_intervals=marks)


#: On a machine without a GPU.
SPANS = (
    ran("matmul", PRODUCT, 0, 10),
    ran("matmul", PRODUCT, 20, 10),
    ran("add", SUM, 40, 10),
    ran("blank", BLANK, 60, 10),
    ran("plain", None, 80, 10),
)
HOST_ONLY = replace(EMPTY, spans=SPANS)


def with_operation(run: Run, region: str, operation: RegionOperation) -> Recording:
    """The made-up run, every execution of one region with an operation."""
    run.spans = [s._replace(attributes=operation.attributes()) if s.name == region else s for s in run.spans]
    return run.recording()


def in_json(analysis: Analysis, region: str) -> dict[str, Any]:
    found: Any = of_analysis(analysis)
    (row,) = (row for row in found["regions"] if row["region"] == region)
    return dict(row)


# ---------------------------------------------------------------------- verdicts


def test_regions_are_judged_by_their_operations_without_any_sample() -> None:
    assert regimes(analyse(HOST_ONLY)) == {
        "matmul": ("COMPUTE_BOUND", "operation"),
        "add": ("MEMORY_BOUND", "operation"),
        "blank": ("UNKNOWN", "coarse"),
        "plain": ("UNKNOWN", "coarse"),
    }


def test_operations_go_before_the_devices_counters_where_they_tell() -> None:
    before = analyse(Run().recording())
    assert regimes(before)["forward"] == ("COMPUTE_BOUND", "counters")
    after = analyse(with_operation(Run(), "forward", SUM))
    assert regimes(after) == {**regimes(before), "forward": ("MEMORY_BOUND", "operation")}
    assert one(after, "forward").summary == one(before, "forward").summary
    assert one(after, "forward").evidence.basis == "operation"
    unsure = analyse(with_operation(Run(), "forward", BLANK))
    assert regimes(unsure) == regimes(before)
    assert one(unsure, "forward").evidence.basis == "counters"


def test_operations_are_a_part_of_a_region_whose_other_executions_have_none() -> None:
    found = one(analyse(replace(EMPTY, spans=(ran("work", PRODUCT, 0, 10), ran("work", None, 20, 10)))), "work")
    assert (found.verdict.basis, found.verdict.coverage) == ("operation", 0.5)
    found = one(analyse(replace(EMPTY, spans=(ran("work", PRODUCT, 0, 10), ran("work", None, 20, 90)))), "work")
    assert (found.verdict.basis, found.verdict.coverage) == ("coarse", 0.0)


def test_attributes_that_are_no_operations_change_nothing() -> None:
    spans = [span._replace(attributes={"gpu_profile.operation.n": "many", "user": [1]}) for span in SPANS]
    found = analyse(replace(EMPTY, spans=tuple(spans)))
    assert {use.operations for use in found.regions} == {None}


def test_executions_are_weighed_by_their_time_on_the_device() -> None:
    spans = (ran("work", PRODUCT, 0, 100, on_device=10), ran("work", SUM, 200, 40, on_device=40))
    found = one(analyse(replace(EMPTY, spans=spans)), "work")
    assert found.operations is not None
    assert found.operations.flops_per_s == pytest.approx(2_401_000_000 / 0.05)
    assert str(found.verdict.regime) == "MEMORY_BOUND"


# ---------------------------------------------------------------------- as text, JSON, page, table and trace


def test_rates_have_columns_where_operations_tell_them() -> None:
    shown = render(analyse(HOST_ONLY))
    header, line = (next(row for row in shown.splitlines() if row.startswith(name)) for name in ("region", "matmul"))
    assert header.split()[-5:] == ["FLOP/s", "B/s", "FLOP/B", "regime,", "confidence"]
    assert line.split()[-8:-1] == ["240", "G", "2.00", "G", "120", "COMPUTE_BOUND", line.split()[-2]]
    assert " 0.0833 " in shown  # a ratio without a prefix
    assert "matmul: COMPUTE_BOUND: 89 % of the compute" in shown
    assert "FLOP/" not in render(analyse(Run().recording()))
    narrow = render_regions(analyse(HOST_ONLY), width=60)
    assert "regime" in narrow
    assert "FLOP/B" not in narrow.splitlines()[0]


def test_what_operations_do_not_tell_is_told_with_its_reason() -> None:
    assert "blank on device not known: operations: needs passes=2" in reasons(analyse(HOST_ONLY))


def test_json_has_the_operations_and_null_where_there_are_none() -> None:
    found = analyse(HOST_ONLY)
    assert in_json(found, "plain")["operations"] is None
    assert in_json(found, "matmul")["operations"] == {
        "n": 2,
        "flops": 4_800_000_000,
        "flops_at_least": None,
        "bytes": 40_000_000,
        "flops_per_s": 2.4e11,
        "bytes_per_s": 2e9,
        "intensity": 120.0,
        "utilization": None,
        "ceiling_flops_per_s": None,
        "precision": "bf16",
        "coverage": 1.0,
        "busy": pytest.approx(0.95),
        "compute": pytest.approx(0.85),
        "memory": pytest.approx(0.2),
        "growth": None,
    }
    blank = in_json(found, "blank")["operations"]
    assert {key for key, value in blank.items() if value is not None} == {"n", "coverage"}
    assert in_json(found, "matmul")["verdict"]["basis"] == "operation"


def test_every_key_of_the_operations_is_explained() -> None:
    page = (Path(__file__).parents[3] / "docs" / "analysis.md").read_text(encoding="utf-8")
    assert {key for key in in_json(analyse(HOST_ONLY), "matmul")["operations"] if f"`{key}`" not in page} == set()


def test_the_page_shows_what_the_verdict_rests_on() -> None:
    text = render_page(analyse(HOST_ONLY), title="a", recording=HOST_ONLY)
    assert parsed(text).loads == []
    assert "basis: operation" in text
    assert "<span>compute ceiling</span>" in text
    assert "2 timed runs, 100 % covered" in text
    assert ">FLOP/s</th>" in text


def test_the_table_of_regions_has_their_rates() -> None:
    header, matmul, _, blank, _ = (line.split(",") for line in regions_csv(analyse(HOST_ONLY)).splitlines())
    found, unknown = (dict(zip(header, row, strict=False)) for row in (matmul, blank))
    keys = ("flops", "traffic_bytes", "flops_per_s", "traffic_bytes_per_s", "flops_per_byte")
    assert [float(found[key]) for key in keys] == [4.8e9, 4e7, 2.4e11, 2e9, 120]
    assert {unknown[key] for key in keys} == {""}
    assert (found["regime"], found["basis"]) == ("COMPUTE_BOUND", "operation")


def test_the_trace_has_each_executions_operation() -> None:
    from support.perfetto import read

    found = [each.args for each in read(perfetto_trace(HOST_ONLY, analyse(HOST_ONLY))).slices]
    assert len(found) == len(SPANS)
    for event, operation in zip(found, (PRODUCT, PRODUCT, SUM, BLANK, None), strict=True):
        own = {key: value for key, value in event.items() if ".operation." in key}
        assert own == ({} if operation is None else operation.attributes())
    assert found[0]["gpu_profile.regime"] == "COMPUTE_BOUND"
    assert found[0]["gpu_profile.basis"] == "operation"
    assert "gpu_profile.basis" not in found[3]


# ---------------------------------------------------------------------- commands


def test_classify_judges_operations_anew(tmp_path: Path, capsys: Capture) -> None:
    with RecordingWriter(tmp_path / "a", now_ns=lambda: T0, driver="none", driver_version="") as writer:
        for span in SPANS:
            writer.span(span)
    rules = tmp_path / "rules.toml"
    rules.write_text("[thresholds]\npart = 0.9\n")
    assert command(["classify", str(tmp_path / "a"), "--rules", str(rules), "--json"]) == 0
    found = {row["region"]: row for row in json.loads(capsys.readouterr().out)["regions"]}
    assert found["matmul"]["by_default"]["regime"] == "COMPUTE_BOUND"
    assert (found["matmul"]["by_rules"]["regime"], found["matmul"]["changed"]) == ("UNKNOWN", True)
    rules.write_text("")
    assert command(["classify", str(tmp_path / "a"), "--rules", str(rules)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 of 4 verdicts changed"
    assert command(["analyze", str(tmp_path / "a")]) == 0
    assert "COMPUTE_BOUND" in capsys.readouterr().out

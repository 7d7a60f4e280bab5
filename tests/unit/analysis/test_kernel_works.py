"""What a profiler's records say of regions, in what analyses say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.analysis import EMPTY, MS, T0, Run, one, parsed, regimes
from support.regions import ALL_REDUCE, GEMM, HUNGRY, NOTHING, PRODUCT, RELU, TALKING

from gpu_profile.analysis import Analysis, analyse
from gpu_profile.analysis.views.data import of_analysis
from gpu_profile.analysis.views.page import render_page
from gpu_profile.analysis.views.perfetto import perfetto_trace
from gpu_profile.analysis.views.tables import regions_csv
from gpu_profile.analysis.views.text import reasons, render, render_regions
from gpu_profile.recording import SpanRecord
from gpu_profile.regimes import DEFAULT_THRESHOLDS
from gpu_profile.regimes.kernel_work import KernelWork

OWN = "gpu_profile.kernels."


def ran(name: str, work: KernelWork | None, start_ms: int, **more: Any) -> SpanRecord:
    attributes = {**({} if work is None else work.attributes()), **more}
    start = T0 + start_ms * MS
    return SpanRecord(name, start, start + 10 * MS, id=f"{start_ms:016x}", attributes=attributes)


#: On a machine whose GPU nobody sampled.
SPANS = (
    ran("step", HUNGRY, 0),
    ran("step", HUNGRY, 20),
    ran("step", None, 40),
    ran("reduce", TALKING, 60),
    ran("matmul", NOTHING, 80, **PRODUCT.attributes()),
    ran("plain", None, 100),
)
UNSAMPLED = replace(EMPTY, spans=SPANS)


def in_json(analysis: Analysis, region: str) -> Any:
    found: Any = of_analysis(analysis)
    (row,) = (row for row in found["regions"] if row["region"] == region)
    return row["kernels"]


# ---------------------------------------------------------------------- verdicts


def test_regions_are_judged_by_their_kernels_before_their_operations_without_any_sample() -> None:
    assert regimes(analyse(UNSAMPLED)) == {
        "step": ("HOST_BOUND", "kernels"),
        "reduce": ("COMMUNICATION_BOUND", "kernels"),
        "matmul": ("COMPUTE_BOUND", "operation"),
        "plain": ("UNKNOWN", "coarse"),
    }
    both = analyse(replace(EMPTY, spans=(ran("matmul", TALKING, 0, **PRODUCT.attributes()),)))
    assert regimes(both) == {"matmul": ("COMMUNICATION_BOUND", "kernels")}


def test_kernels_go_before_the_devices_counters_where_they_tell() -> None:
    before = analyse(Run().recording())
    assert regimes(before)["forward"] == ("COMPUTE_BOUND", "counters")
    for work, expected in ((TALKING, ("COMMUNICATION_BOUND", "kernels")), (NOTHING, ("COMPUTE_BOUND", "counters"))):
        run = Run()
        run.spans = [s._replace(attributes=work.attributes()) if s.name == "forward" else s for s in run.spans]
        after = analyse(run.recording())
        assert regimes(after) == {**regimes(before), "forward": expected}
        assert one(after, "forward").summary == one(before, "forward").summary
        assert one(after, "forward").evidence.basis == expected[1]


def test_kernels_are_judged_anew_under_other_thresholds() -> None:
    use = one(analyse(UNSAMPLED), "step")
    assert str(use.judge(DEFAULT_THRESHOLDS).regime) == "HOST_BOUND"
    assert str(use.judge(replace(DEFAULT_THRESHOLDS, well_fed=0.2)).regime) == "UNKNOWN"


def test_attributes_that_are_no_kernels_change_nothing() -> None:
    spans = [span._replace(attributes={OWN + "n": "many", OWN + "count": [1]}) for span in SPANS]
    assert {use.kernels for use in analyse(replace(EMPTY, spans=tuple(spans))).regions} == {None}


# ---------------------------------------------------------------------- as text, JSON, page, table and trace


def test_kernels_have_columns_where_a_window_saw_some() -> None:
    lines = render(analyse(UNSAMPLED)).splitlines()
    header, step, plain = (next(row for row in lines if row.startswith(name)) for name in ("region", "step", "plain"))
    assert header.split()[-7:] == ["kernels", "per", "kernel", "host", "wait", "regime,", "confidence"]
    assert step.split()[-8:-2] == ["3", "1.00", "ms", "60.0", "%", "HOST_BOUND"]
    assert plain.split()[-4:-1] == ["–", "–", "–"]
    assert "host wait" not in render(analyse(Run().recording()))
    narrow = render_regions(analyse(UNSAMPLED), width=50)
    assert "regime" in narrow
    assert "host wait" not in narrow.splitlines()[0]


def test_what_kernels_do_not_tell_is_told_with_its_reason() -> None:
    assert "matmul on device not known: kernels: nothing was launched in it" in reasons(analyse(UNSAMPLED))


def test_json_has_the_kernels_and_null_where_there_are_none() -> None:
    found = analyse(UNSAMPLED)
    assert in_json(found, "plain") is None
    step = in_json(found, "step")
    assert (step["executions"], step["operations"], step["kernels"]) == (2, 8, 6)
    assert (step["kernel_s"], step["mean_kernel_s"], step["span_s"], step["host_wait_s"]) == (
        0.006,
        0.001,
        0.024,
        0.012,
    )
    assert step["shares"]["host_wait"] == pytest.approx(0.6)
    assert step["top"] == [{"name": GEMM, "count": 4, "total_s": 0.0058}, {"name": RELU, "count": 2, "total_s": 0.0002}]
    reduce = in_json(found, "reduce")
    assert (reduce["copies"], reduce["copy_bytes"], reduce["overlap_ratio"]) == (0, None, 0.04)
    assert reduce["top"][0]["name"] == ALL_REDUCE
    nothing = in_json(found, "matmul")
    assert (nothing["kernels"], nothing["mean_kernel_s"], nothing["host_wait_s"]) == (0, None, None)
    assert {*nothing["shares"].values()} == {None}


def test_every_key_of_the_kernels_is_explained() -> None:
    page = (Path(__file__).parents[3] / "docs" / "analysis.md").read_text(encoding="utf-8")
    step = in_json(analyse(UNSAMPLED), "step")
    keys = {*step, *step["shares"], *step["top"][0]}
    assert {key for key in keys if f"`{key}`" not in page} == set()


def test_the_page_shows_what_the_verdict_rests_on() -> None:
    text = render_page(analyse(UNSAMPLED), title="a", recording=UNSAMPLED)
    assert parsed(text).loads == []
    assert "basis: kernels" in text
    assert "<span>waiting for the host</span>" in text
    assert "8 GPU operations, 100 % covered" in text
    assert "1.00 ms per kernel" in text
    assert ">host wait</th>" in text


def test_the_table_of_regions_has_their_sums() -> None:
    header, step, reduce, _, plain = (line.split(",") for line in regions_csv(analyse(UNSAMPLED)).splitlines())
    of_step, of_reduce, of_plain = (dict(zip(header, row, strict=False)) for row in (step, reduce, plain))
    keys = ("profiled", "kernels", "kernel_s", "mean_kernel_s", "profiled_s", "host_wait_s", "communication_s")
    assert [float(of_step[key]) for key in keys] == [2, 6, 0.006, 0.001, 0.02, 0.012, 0]
    assert (float(of_step["copied_bytes"]), of_reduce["copied_bytes"]) == (8_000_000, "")
    assert {of_plain[key] for key in keys} == {""}


def test_the_trace_has_each_executions_kernels() -> None:
    from support.perfetto import read

    found = [each.args for each in read(perfetto_trace(UNSAMPLED, analyse(UNSAMPLED))).slices]
    assert len(found) == len(SPANS)
    for event, work in zip(found, (HUNGRY, HUNGRY, None, TALKING, NOTHING, None), strict=True):
        own = {key: value for key, value in event.items() if key.startswith(OWN)}
        assert own == ({} if work is None else work.attributes())
    assert found[4]["gpu_profile.operation.flops"] == PRODUCT.flops

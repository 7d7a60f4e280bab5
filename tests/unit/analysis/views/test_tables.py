import csv
import io
from dataclasses import replace

import pytest
from support.analysis import EMPTY, ITEMS, T0, Run, analysed, hostile, one, throttled, two_devices

from gpu_profile.analysis.views.data import of_region
from gpu_profile.analysis.views.tables import devices_csv, regions_csv
from gpu_profile.analysis.views.text import render
from gpu_profile.catalogue.samples import Device


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), strict=True))


def test_there_is_a_row_for_each_region_on_each_device_with_the_numbers_of_the_analysis() -> None:
    analysis = analysed(Run().recording())
    found = {row["region"]: row for row in rows(regions_csv(analysis))}
    assert [*found] == ["load", "step", "forward"]
    for name, row in found.items():
        use = one(analysis, name)
        assert (row["device_uuid"], row["device_index"], row["device_name"]) == ("GPU-a", "0", "NVIDIA H200")
        assert int(row["calls"]) == 60
        assert float(row["mean_s"]) == use.summary.durations.total_s / 60
        assert float(row["busy_ratio"]) == use.summary.busy
        assert float(row["energy_j"]) == use.summary.energy_j
        assert row["regime"] == str(use.verdict.regime)
        assert float(row["confidence_ratio"]) == use.verdict.confidence
    assert float(found["step"]["items"]) == 60 * ITEMS
    # Executions are by device in two_devices' spans only where they say so.
    assert len(rows(regions_csv(analysed(two_devices(Run()), devices=["GPU-a"])))) == 3


def test_throttling_is_told_by_region_with_the_reason() -> None:
    analysis = analysed(throttled(Run(), "forward", 0.6))
    found = {row["region"]: row for row in rows(regions_csv(analysis))}
    assert float(found["forward"]["throttled_ratio"]) == pytest.approx(0.6, abs=0.02)
    assert found["forward"]["throttled_by"] == "sw_power_cap"
    assert float(found["load"]["throttled_ratio"]) == pytest.approx(0.0, abs=0.02)
    assert "forward: throttled for 60 % of its time by sw_power_cap" in render(analysis)
    assert of_region(one(analysis, "forward"))["throttled"] == one(analysis, "forward").summary.throttled
    free = {row["region"]: row for row in rows(regions_csv(analysed(throttled(Run(), "forward", 0.0))))}["forward"]
    assert (float(free["throttled_ratio"]), free["throttled_by"]) == (0.0, "")
    unknown = {row["region"]: row for row in rows(regions_csv(analysed(Run().recording())))}["forward"]
    assert (unknown["throttled_ratio"], unknown["throttled_by"]) == ("", "")


def test_there_is_a_row_for_each_device() -> None:
    analysis = analysed(two_devices(Run()))
    found = rows(devices_csv(analysis))
    assert [row["device_uuid"] for row in found] == ["GPU-a", "GPU-b"]
    assert float(found[0]["energy_j"]) == analysis.devices[0].energy_j
    assert (int(found[0]["start_unix_ns"]), found[0]["parent_uuid"]) == (T0, "")


def test_what_is_not_known_is_an_empty_cell_and_never_a_zero() -> None:
    analysis = analysed(replace(Run().recording(), samples={}))
    for row in rows(regions_csv(analysis)):
        empty = ("busy_ratio", "busy_s", "energy_j", "call_energy_j", "power_w", "confidence_ratio", "memory_max_bytes")
        assert {row[key] for key in empty} == {""}
        assert row["regime"] == "UNKNOWN"
        assert "the recording has no samples of this device" in row["unknown_because"]


def test_every_quantity_has_its_unit_in_its_name() -> None:
    header = regions_csv(analysed(EMPTY)).strip().split(",")
    units = ("_s", "_j", "_w", "_ratio", "_bytes", "_per_s", "_per_byte", "_ns")
    plain = {
        *("region", "device_uuid", "device_index", "device_name", "calls", "executions", "failures", "items", "flops"),
        "metered_executions",
        "flops_at_least",
        *("profiled", "kernels"),
        *("interval_source", "busy_source", "energy_source", "regime", "basis", "rule", "runner_up", "windows"),
        "throttled_by",
        *("advice", "unknown_because"),
    }
    assert [name for name in header if name not in plain and not name.endswith(units)] == []


def test_hostile_names_stay_in_their_cells() -> None:
    recording = hostile(Run())
    found = rows(regions_csv(analysed(recording)))
    assert len(found) == 3
    assert found[0]["region"].startswith("</script>")
    assert "\\x1b[31m" in found[0]["region"]
    assert {row["device_name"] for row in found} == {"<b>\\x07"}


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", 'a,"b";c'])
def test_a_name_that_a_spreadsheet_would_compute_is_text(name: str) -> None:
    run = Run(calls=8)
    run.spans = [span._replace(name=name) for span in run.spans]
    recording = replace(run.recording(), devices=(Device("GPU-a", index=0, name=name),))
    (row,) = rows(regions_csv(analysed(recording)))
    guarded = f"'{name}" if name[0] in "=+-@" else name
    assert (row["region"], row["device_name"]) == (guarded, guarded)


def test_negative_numbers_stay_numbers() -> None:
    analysis = analysed(Run().recording())
    (use, *_) = analysis.regions
    odd = replace(analysis, regions=(replace(use, item_energy_j=-1.5, items_per_s=float("nan")),))
    (row,) = rows(regions_csv(odd))
    assert (row["item_energy_j"], row["items_per_s"]) == ("-1.5", "")

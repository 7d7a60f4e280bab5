import json
from math import isfinite
from typing import Any

import pytest
from support.kernels import ADD, FILL, GEMM, INSTRUCTIONS, MIB, REDUCE, counted, hostile, on_cpu, report, steps

from gpu_profile.errors import UsageError
from gpu_profile.kernels.records import Call, Range, RangeCounters
from gpu_profile.kernels.render.document import document


def region(found: dict[str, Any], name: str) -> dict[str, Any]:
    (row,) = [row for row in found["regions"] if row["name"] == name]
    return dict(row)


def test_the_totals_stand_at_the_top_and_regions_in_order_of_appearance() -> None:
    found = document(report())
    assert (found["operations"], found["span_s"], found["busy_s"]) == (12, 0.09, 0.05)
    assert found["busy_ratio"] == pytest.approx(5 / 9)
    assert (found["communication_s"], found["overlap_ratio"]) == (0.02, 0.2)
    assert [row["name"] for row in found["regions"]] == ["step", "load", "forward"]
    assert found["outside"]["operations"] == 2
    assert found["kernels"]["count"] == 10
    assert found["on_host"] is False


def test_a_region_tells_its_time_kernels_copies_and_memory() -> None:
    found = document(report())
    forward, load, step = (region(found, name) for name in ("forward", "load", "step"))
    assert (forward["executions"], forward["host_s"], forward["span_s"]) == (2, 0.04, 0.048)
    assert forward["busy_ratio"] == pytest.approx(44 / 48)
    idle = forward["idle"]
    assert forward["busy_s"] + forward["others_s"] + sum(idle[k] for k in idle if k != "launch_s") == pytest.approx(
        0.048
    )
    assert (forward["kernels"]["count"], forward["kernels"]["total_s"]) == (8, 0.048)
    assert [row["name"] for row in forward["kernels"]["top"]] == [REDUCE, GEMM, FILL, ADD]
    assert forward["kernels"]["top"][1] == {
        "name": GEMM, "count": 2, "total_s": 0.016, "mean_s": 0.008, "max_s": 0.008, "share": pytest.approx(1 / 3)
    }  # fmt: skip
    assert (forward["occupancy"], forward["occupancy_of_s"], forward["breadth"]) == (0.5, 0.016, 1.0)
    assert forward["memory"][0]["peak_bytes"] == 4 * MIB
    assert load["copies"] == {
        "HtoD": {"count": 2, "total_s": 0.004, "bytes": 40 * MIB, "bytes_per_s": pytest.approx(10 * MIB * 1e3)}
    }
    assert (step["own"], step["operations"], step["waits"]) == (0, 10, {"count": 2, "total_s": 0.008})
    assert {"regime", "confidence", "basis", "rule", "runner_up", "advice"} <= step.keys()


def test_one_region_alone_keeps_the_totals() -> None:
    found = document(report(), region="load")
    assert [row["name"] for row in found["regions"]] == ["load"]
    assert found["operations"] == 12
    with pytest.raises(UsageError, match="no region 'laod'; did you mean 'load'"):
        document(report(), region="laod")


def test_the_longest_kernels_come_first_and_the_rest_is_counted() -> None:
    found = document(report(), top=2)["kernels"]
    assert [row["name"] for row in found["top"]] == [REDUCE, GEMM]
    assert (found["names"], found["count"]) == (4, 10)


def test_without_calls_of_the_host_no_cause_of_idle_time_is_told() -> None:
    found = document(report([record for record in steps() if not isinstance(record, Call)]))
    assert found["idle"]["host_wait_s"] is None
    assert found["idle"]["unknown_s"] == pytest.approx(0.04)
    assert all(each["idle"]["host_wait_s"] is None for each in (*found["streams"], found["outside"]))


def test_what_is_not_known_is_null_and_never_zero() -> None:
    found = document(report())
    load = region(found, "load")
    assert (load["overlap_ratio"], load["occupancy"], load["kernels"]["mean_s"]) == (None, None, None)
    assert (load["confidence"], load["counters"], found["dropped"]) == (None, None, None)


def test_what_ran_in_no_region_has_no_executions() -> None:
    outside = document(report())["outside"]
    assert [outside[key] for key in ("name", "executions", "host_s", "beside_s", "waits")] == [None] * 5
    assert (outside["span_s"], outside["busy_s"]) == (0.051, 0.002)


def test_a_region_that_used_no_gpu_has_no_span_there() -> None:
    idle = region(document(report([*steps(), Range("idle", 7, 0, 100)])), "idle")
    assert [idle[key] for key in ("span_s", "busy_ratio", "others_s", "idle")] == [None] * 4
    assert (idle["busy_s"], idle["operations"]) == (0.0, 0)


def test_of_a_program_on_a_cpu_operators_are_told_and_nothing_of_a_gpu() -> None:
    found = document(report(on_cpu()))
    assert (found["on_host"], found["operations"], found["span_s"], found["busy_ratio"]) == (True, 0, None, None)
    assert (found["idle"], found["communication_s"], found["regime"]) == (None, None, "UNKNOWN")
    assert found["kernels"]["top"][0] == {
        "name": "aten::mm", "count": 1, "total_s": 0.008, "mean_s": 0.008, "max_s": 0.008, "share": pytest.approx(2 / 3)
    }  # fmt: skip
    step = region(found, "step")
    assert (step["on_host"], step["devices"], step["busy_s"]) == (True, [], 0.008)
    about_gpus = ("span_s", "busy_ratio", "others_s", "idle", "launches", "communication_s", "backward", "beside_s")
    assert [step[key] for key in (*about_gpus, "graph_operations", "waits", "occupancy_of_s")] == [None] * 11


def test_counters_tell_the_share_of_kernel_time_that_they_stand_for() -> None:
    forward = region(document(report(counted=counted())), "forward")
    told = forward["counters"]["sums"][INSTRUCTIONS]
    assert (told["value"], told["low"], told["high"]) == (2000.0, 2000.0, 2000.0)
    assert told["coverage"] == pytest.approx(1 / 3)


def test_counters_that_found_no_kernel_and_kernels_without_any_are_counted_by_name() -> None:
    found = document(report(counted=[*counted(), RangeCounters("other", 0, {INSTRUCTIONS: 1.0})]))["counted"]
    assert found == {
        "pairs": 2, "ranges": 0, "records_alone": {"other": 1}, "kernels_alone": {ADD: 2, FILL: 4, REDUCE: 2}
    }  # fmt: skip
    assert document(report())["counted"] is None


def test_any_report_is_json_without_numbers_that_json_does_not_have() -> None:
    for found in (report(), report(on_cpu()), report(hostile()), report(counted=counted())):
        text = json.dumps(document(found), allow_nan=False)
        json.loads(text, parse_float=lambda number: float(number) if isfinite(float(number)) else pytest.fail(number))

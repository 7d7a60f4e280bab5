"""The simulator's constants beside what `make gpu` measured."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from gpu.fit import Constant, constants, model_of, table
from support.hardware import H100


@pytest.fixture(scope="module", params=["record.json", "whole_run.json", "third_run.json"])
def record(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((H100 / request.param).read_text())
    return found


def test_what_three_h100s_measured_is_what_the_simulated_one_has(record: Mapping[str, Any]) -> None:
    found = {one.name: one for one in constants(record)}
    assert len(found) >= 13
    # Power samples follow faster than an H200's, after which the simulator is made.
    assert {name for name, one in found.items() if not one.fits} == {"power: window"}
    assert found["utilization: period"].measured == pytest.approx(200, abs=0.01)
    assert model_of(record).key == "H100 SXM"


def test_a_constant_fits_by_its_interval_or_within_the_tolerance() -> None:
    assert Constant("x", "W", 100, 110).fits
    assert not Constant("x", "W", 100, 120).fits
    assert Constant("x", "W", 100, 120, 25).fits


def test_a_table_has_a_column_for_each_record_and_holes_where_one_has_no_such_measurement() -> None:
    records = [json.loads((H100 / name).read_text()) for name in ("record.json", "whole_run.json", "third_run.json")]
    lines = table(records).splitlines()
    assert {line.count("|") for line in lines} == {6}
    assert any("| - | 5" in line for line in lines if line.startswith("| power of a copy"))
    with pytest.raises(LookupError, match="no simulated model of 'NVIDIA X'"):
        list(constants({**records[0], "device": "NVIDIA X"}))

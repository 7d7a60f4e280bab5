from typing import Any

import pytest
from support.regions import BLANK, PRODUCT, SUM

from gpu_profile.catalogue.attributes import ATTRIBUTES
from gpu_profile.regimes import Regime, classify
from gpu_profile.regimes.operation import LEAST_SHARE, RegionOperation, RegionOperations
from gpu_profile.regions.execution import Execution
from gpu_profile.units import NS_PER_S

OWN = "gpu_profile.operation."


def told(*operations: tuple[RegionOperation, int], whole_ns: int = 0) -> RegionOperations:
    found = RegionOperations()
    for operation, ns in operations:
        found.add(operation, ns)
    found.whole_ns = whole_ns
    return found


# ---------------------------------------------------------------------- one operation


def test_attributes_have_the_catalogues_names_and_types() -> None:
    rows = {row.name: row.type for row in ATTRIBUTES}
    kinds = {int: "int", float: "double", str: "string"}
    full = RegionOperation(10, 4, "fp16", 0.25, 0.75, 0.5, 1.5, 3, "why")
    assert {rows[name] for name in full.attributes()} == {"int", "double", "string"}
    for name, value in full.attributes().items():
        assert rows[name] == kinds[type(value)]
    assert full.attributes()[OWN + "intensity"] == 2.5
    assert full.attributes()[OWN + "overhead.ratio"] == 0.5


def test_what_is_not_known_is_absent_and_the_reason_is_there() -> None:
    assert BLANK.attributes() == {OWN + "n": 1, OWN + "reason": "needs passes=2"}
    assert OWN + "intensity" not in RegionOperation(flops=5, bytes=0).attributes()
    assert RegionOperation(flops=0, bytes=8).attributes()[OWN + "flops"] == 0


def test_a_number_that_no_attribute_can_hold_is_left_out() -> None:
    assert OWN + "flops" in RegionOperation(flops=2**63 - 1).attributes()
    assert OWN + "flops" not in RegionOperation(flops=2**63).attributes()


@pytest.mark.parametrize(
    "change",
    [
        {"flops": "12"},
        {"flops": 1.5},
        {"flops": True},
        {"flops": -1},
        {"bytes": [1]},
        {"n": None, "flops": -1},
        {"n": "4"},
        {"precision": 16},
        {"compute.ratio": "high"},
        {"compute.ratio": float("nan")},
        {"memory.ratio": float("inf")},
        {"overhead.ratio": True},
        {"growth": {}},
        {"growth": 10**400},
        {"reason": 0},
    ],
)
def test_attributes_of_the_wrong_type_are_no_operation(change: dict[str, Any]) -> None:
    assert (
        RegionOperation.of_attributes({**PRODUCT.attributes(), **{OWN + key: value for key, value in change.items()}})
        is None
    )


def test_other_attributes_are_no_operation_and_do_no_harm_to_one() -> None:
    assert RegionOperation.of_attributes({}) is None
    assert RegionOperation.of_attributes({"gpu_profile.items": 3, OWN + "flops": 5}) is None
    assert RegionOperation.of_attributes({**BLANK.attributes(), "http.route": object()}) == BLANK


def test_evidence_holds_what_is_known_with_the_basis_operation() -> None:
    evidence = PRODUCT.evidence()
    assert (evidence.basis, evidence.n, evidence.coverage) == ("operation", 1, 1.0)
    assert evidence.values == {"busy": 0.95, "compute": 0.85, "memory": 0.2}
    assert classify(evidence).regime is Regime.COMPUTE_BOUND
    assert classify(SUM.evidence()).regime is Regime.MEMORY_BOUND


def test_an_operation_that_nothing_is_known_of_is_unknown_for_its_own_reason() -> None:
    assert (classify(BLANK.evidence()).regime, classify(BLANK.evidence()).rule) == (Regime.UNKNOWN, "needs passes=2")
    assert classify(RegionOperation().evidence()).rule == "the operation's launch overhead was not measured"


def test_executions_have_no_operation_of_their_own_until_one_is_set() -> None:
    first, second = Execution("a"), Execution("b")
    first.operation = PRODUCT
    assert (first.operation, second.operation, Execution.operation) == (PRODUCT, None, None)
    assert vars(second) == {}


# ---------------------------------------------------------------------- those of a region


def test_totals_are_sums_and_shares_are_means_over_time() -> None:
    found = told((PRODUCT, 3_000), (SUM, 1_000))
    assert (found.flops, found.bytes, found.n) == (2_401_000_000, 32_000_000, 2)
    values = found.evidence().values
    assert values["busy"] == pytest.approx((0.95 * 3 + 0.9) / 4)
    assert values["compute"] == pytest.approx((0.85 * 3 + 0.01) / 4)
    assert values["memory"] == pytest.approx((0.2 * 3 + 0.8) / 4)
    assert "growth" not in values


def test_rates_are_of_the_time_of_those_that_told() -> None:
    found = told((PRODUCT, NS_PER_S), (RegionOperation(bytes=30_000_000), NS_PER_S), (BLANK, NS_PER_S))
    assert found.flops_per_s == 2_400_000_000
    assert found.bytes_per_s == 25_000_000
    assert found.intensity is None  # what moved the other bytes did FLOPs that nobody knows
    assert told((PRODUCT, 5), (SUM, 7)).intensity == pytest.approx(2_401_000_000 / 32_000_000)


def test_nothing_told_is_none_and_not_zero() -> None:
    found = told((BLANK, 5))
    assert (found.flops, found.bytes, found.flops_per_s, found.bytes_per_s, found.intensity) == (None,) * 5
    assert (found.evidence().values, found.evidence().reason) == ({}, "needs passes=2")


def test_executions_without_a_length_count() -> None:
    assert classify(told((PRODUCT, 0), (PRODUCT, 0)).evidence()).regime is Regime.COMPUTE_BOUND


def test_precision_is_told_if_all_agree() -> None:
    assert told((PRODUCT, 1), (BLANK, 1)).precision == "bf16"
    assert told((PRODUCT, 1), (SUM, 1)).precision == ""
    assert told((BLANK, 1)).precision == ""


def test_coverage_is_the_share_of_the_regions_time_that_is_known() -> None:
    assert told((PRODUCT, 60), whole_ns=80).evidence().coverage == 0.75
    assert told((PRODUCT, 60), (BLANK, 20), whole_ns=80).evidence().coverage == 0.75
    assert told((PRODUCT, 60), whole_ns=0).evidence().coverage == 1.0


def test_operations_that_are_a_small_part_of_a_region_say_nothing_of_it() -> None:
    whole = 100
    enough, too_few = int(whole * LEAST_SHARE), int(whole * LEAST_SHARE) - 1
    assert classify(told((PRODUCT, enough), whole_ns=whole).evidence()).regime is Regime.COMPUTE_BOUND
    verdict = classify(told((PRODUCT, too_few), whole_ns=whole).evidence())
    assert (verdict.regime, verdict.rule) == (
        Regime.UNKNOWN,
        "its operations were measured for 49.0 % of its time only",
    )

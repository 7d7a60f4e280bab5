"""Operations in the counts and verdicts of a session."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from operation_support import BLANK, PRODUCT, SUM

from gpu_profile.attribution import OTHER
from gpu_profile.executions import Execution
from gpu_profile.operation import Operation
from gpu_profile.regimes import DEFAULT_THRESHOLDS
from gpu_profile.verdicts import MOST_NAMES, Verdicts

NOWHERE: Mapping[Hashable, Sequence[str]] = {None: ()}


def ran(name: str, operation: Operation | None, ns: int = 1_000_000) -> Execution:
    execution = Execution(name)
    execution.start_ns, execution.end_ns = 5, 5 + ns
    if operation is not None:
        execution.operation = operation
    return execution


def verdicts() -> Verdicts:
    return Verdicts({}, DEFAULT_THRESHOLDS)


def test_calls_are_counted_under_their_operations_regime_where_there_is_no_device() -> None:
    found = verdicts()
    found.take([ran("matmul", PRODUCT), ran("add", SUM), ran("step", None), ran("blank", BLANK)], NOWHERE)
    found.count_calls()
    assert found.calls == {
        ("matmul", "COMPUTE_BOUND", ""): 1,
        ("add", "MEMORY_BOUND", ""): 1,
        ("step", "UNKNOWN", ""): 1,
        ("blank", "UNKNOWN", ""): 1,
    }


def test_calls_on_a_device_are_counted_under_it_before_samples_are_there() -> None:
    found = verdicts()
    found.take([ran("matmul", PRODUCT)], {None: ("GPU-a", "GPU-b")})
    found.count_calls()
    assert found.calls == {("matmul", "COMPUTE_BOUND", "GPU-a"): 1, ("matmul", "COMPUTE_BOUND", "GPU-b"): 1}


def test_a_regions_regime_follows_what_most_of_its_time_does_once_it_is_judged_anew() -> None:
    found = verdicts()
    found.take([ran("work", PRODUCT)], NOWHERE)
    found.count_calls()
    found.take([ran("work", SUM, 50_000_000)], NOWHERE)
    found.count_calls()
    assert found.calls == {("work", "COMPUTE_BOUND", ""): 2}
    found.judge([])
    found.take([ran("work", SUM, 50_000_000)], NOWHERE)
    found.count_calls()
    assert found.calls == {("work", "COMPUTE_BOUND", ""): 2, ("work", "MEMORY_BOUND", ""): 1}


def test_only_regions_with_operations_have_totals() -> None:
    found = verdicts()
    found.take([ran("matmul", PRODUCT), ran("matmul", PRODUCT), ran("step", None)], NOWHERE)
    assert [*found.operations] == ["matmul"]
    totals = found.operations["matmul"]
    assert (totals.flops, totals.bytes, totals.n) == (4_800_000_000, 40_000_000, 2)


def test_executions_without_an_operation_are_part_of_the_regions_time() -> None:
    found = verdicts()
    found.take([ran("work", PRODUCT, 10_000), ran("work", None, 90_000)], NOWHERE)
    found.count_calls()
    assert found.calls == {("work", "UNKNOWN", ""): 2}
    assert found.operations["work"].whole_ns == 100_000
    # More that have none come in a later turn.
    found.take([ran("work", None, 900_000)], NOWHERE)
    assert found.operations["work"].whole_ns == 1_000_000


def test_operations_of_names_beyond_the_bound_are_one() -> None:
    found = verdicts()
    found.take([ran(f"op {i}", PRODUCT) for i in range(MOST_NAMES + 50)], NOWHERE)
    assert len(found.operations) == MOST_NAMES + 1
    assert found.operations[OTHER].flops == 50 * 2_400_000_000

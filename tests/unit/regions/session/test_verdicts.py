"""Operations and kernels in the counts and verdicts of a session."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from support.regions import BLANK, HUNGRY, NOTHING, PRODUCT, SUM, TALKING

from gpu_profile.join.unmixing.solving.region_columns import OTHER
from gpu_profile.regimes import DEFAULT_THRESHOLDS
from gpu_profile.regimes.operation import RegionOperation
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.backlog import EndedExecutions
from gpu_profile.regions.session.verdicts import MOST_NAMES, Verdicts

NOWHERE: Mapping[Hashable, Sequence[str]] = {None: ()}


def ran(name: str, operation: RegionOperation | None, ns: int = 1_000_000) -> Execution:
    execution = Execution(name)
    execution.start_ns, execution.end_ns = 5, 5 + ns
    if operation is not None:
        execution.operation = operation
    return execution


def verdicts() -> Verdicts:
    return Verdicts({}, DEFAULT_THRESHOLDS)


def test_calls_are_counted_under_their_operations_regime_where_there_is_no_device() -> None:
    found = verdicts()
    found.take(
        EndedExecutions.of([ran("matmul", PRODUCT), ran("add", SUM), ran("step", None), ran("blank", BLANK)]), NOWHERE
    )
    found.count_calls()
    assert found.calls == {
        ("matmul", "COMPUTE_BOUND", ""): 1,
        ("add", "MEMORY_BOUND", ""): 1,
        ("step", "UNKNOWN", ""): 1,
        ("blank", "UNKNOWN", ""): 1,
    }


def test_calls_on_a_device_are_counted_under_it_before_samples_are_there() -> None:
    found = verdicts()
    found.take(EndedExecutions.of([ran("matmul", PRODUCT)]), {None: ("GPU-a", "GPU-b")})
    found.count_calls()
    assert found.calls == {("matmul", "COMPUTE_BOUND", "GPU-a"): 1, ("matmul", "COMPUTE_BOUND", "GPU-b"): 1}


def test_a_regions_regime_follows_what_most_of_its_time_does_once_it_is_judged_anew() -> None:
    found = verdicts()
    found.take(EndedExecutions.of([ran("work", PRODUCT)]), NOWHERE)
    found.count_calls()
    found.take(EndedExecutions.of([ran("work", SUM, 50_000_000)]), NOWHERE)
    found.count_calls()
    assert found.calls == {("work", "COMPUTE_BOUND", ""): 2}
    found.judge([])
    found.take(EndedExecutions.of([ran("work", SUM, 50_000_000)]), NOWHERE)
    found.count_calls()
    assert found.calls == {("work", "COMPUTE_BOUND", ""): 2, ("work", "MEMORY_BOUND", ""): 1}


def test_only_regions_with_operations_have_totals() -> None:
    found = verdicts()
    found.take(EndedExecutions.of([ran("matmul", PRODUCT), ran("matmul", PRODUCT), ran("step", None)]), NOWHERE)
    assert [*found.operations] == ["matmul"]
    totals = found.operations["matmul"]
    assert (totals.flops, totals.bytes, totals.n) == (4_800_000_000, 40_000_000, 2)


def test_executions_without_an_operation_are_part_of_the_regions_time() -> None:
    found = verdicts()
    found.take(EndedExecutions.of([ran("work", PRODUCT, 10_000), ran("work", None, 90_000)]), NOWHERE)
    found.count_calls()
    assert found.calls == {("work", "UNKNOWN", ""): 2}
    assert found.operations["work"].whole_ns == 100_000
    # More that have none come in a later turn.
    found.take(EndedExecutions.of([ran("work", None, 900_000)]), NOWHERE)
    assert found.operations["work"].whole_ns == 1_000_000


def test_operations_of_names_beyond_the_bound_are_one() -> None:
    found = verdicts()
    found.take(EndedExecutions.of([ran(f"op {i}", PRODUCT) for i in range(MOST_NAMES + 50)]), NOWHERE)
    assert len(found.operations) == MOST_NAMES + 1
    assert found.operations[OTHER].flops == 50 * 2_400_000_000


# ---------------------------------------------------------------------- kernels


def test_calls_are_counted_under_the_regime_of_their_kernels_once_a_window_was_read() -> None:
    found = verdicts()
    found.take(EndedExecutions.of([ran("step", None)]), NOWHERE)
    found.count_calls()
    found.judge([])
    found.take_kernels("step", HUNGRY)
    found.take(EndedExecutions.of([ran("step", None), ran("other", None)]), NOWHERE)
    found.count_calls()
    assert found.calls == {("step", "UNKNOWN", ""): 1, ("step", "HOST_BOUND", ""): 1, ("other", "UNKNOWN", ""): 1}


def test_kernels_go_before_operations_where_they_tell() -> None:
    found = verdicts()
    found.take(EndedExecutions.of([ran("matmul", PRODUCT), ran("copy", PRODUCT)]), NOWHERE)
    found.take_kernels("matmul", TALKING)
    found.take_kernels("copy", NOTHING)
    found.count_calls()
    assert found.calls == {("matmul", "COMMUNICATION_BOUND", ""): 1, ("copy", "COMPUTE_BOUND", ""): 1}


def test_only_regions_that_a_window_saw_have_sums_of_kernels() -> None:
    found = verdicts()
    found.take(EndedExecutions.of([ran("step", None), ran("other", None)]), NOWHERE)
    for work in (HUNGRY, HUNGRY, NOTHING):
        found.take_kernels("step", work)
    assert [*found.kernels] == ["step"]
    assert (found.kernels["step"].executions, found.kernels["step"].kernels) == (3, 6)
    assert found.durations["step"].calls == 1  # executions are counted when they end, and only then


def test_kernels_of_names_beyond_the_bound_are_one() -> None:
    found = verdicts()
    found.take(EndedExecutions.of([ran(f"step {i}", None) for i in range(MOST_NAMES + 50)]), NOWHERE)
    for i in range(MOST_NAMES + 50):
        found.take_kernels(f"step {i}", HUNGRY)
    assert len(found.kernels) == MOST_NAMES + 1
    assert found.kernels[OTHER].executions == 50
    # Windows are read while executions still run that have not been counted yet.
    early = verdicts()
    for i in range(MOST_NAMES + 50):
        early.take_kernels(f"step {i}", HUNGRY)
    assert (len(early.kernels), early.kernels[OTHER].executions) == (MOST_NAMES + 1, 50)


def test_rows_that_share_executions_count_like_rows_with_their_own() -> None:
    shared = [Execution("a", device=("GPU-a",)), Execution("b"), Execution("a", device=("GPU-a",)), Execution("a")]
    shared[2].failed = True
    rows = [shared[i] for i in (0, 1, 0, 2, 3, 1, 0, 2, 3, 3) * 4]
    starts = np.arange(len(rows)) * 1_000
    together = EndedExecutions(rows, starts, starts + np.arange(len(rows)) * 7)
    where: Mapping[Hashable, Sequence[str]] = {("GPU-a",): ("GPU-a",), None: ()}
    of_shared, of_each = (Verdicts({}, DEFAULT_THRESHOLDS) for _ in range(2))
    each = EndedExecutions(list(together.separate()), together.starts, together.ends)
    assert of_shared.take(together, where) == of_each.take(each, where)
    for found in (of_shared, of_each):
        found.count_calls()
    assert of_shared.calls == of_each.calls
    for name, durations in of_each.durations.items():
        one = of_shared.durations[name]
        assert (one.calls, one.errors, one.total_ns) == (durations.calls, durations.errors, durations.total_ns)
        assert one.cumulative() == durations.cumulative()

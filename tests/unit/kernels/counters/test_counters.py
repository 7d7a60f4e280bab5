"""Counter records and the regions that they belong to."""

from collections import Counter
from functools import cache

import pytest
from support.traces import CYCLES, DRAM, FMA, INST, PCT, TRACES, counted, flop, flop_of, joined, kernels, nobodys, twin

from gpu_profile.errors import UsageError
from gpu_profile.kernels.counters.sums import Counters, CounterSums
from gpu_profile.kernels.records import RangeCounters
from gpu_profile.kernels.trace import Trace
from gpu_profile.kernels.views import report_of

# ---------------------------------------------------------------------- the twin


def test_records_of_another_run_go_to_kernels_of_their_name_only() -> None:
    matched = Counters(twin().records).matched(twin().whole)
    names = Counter(record.name for record in twin().records)
    launched = Counter({name: kernel.count for name, kernel in twin().whole.items()})
    assert matched.pairs == (names & launched).total() == 55
    assert matched.records == names - launched
    assert matched.kernels == launched - names
    assert (sum(matched.records.values()), sum(matched.kernels.values())) == (22, 24)
    assert not matched.records.keys() & matched.kernels.keys()


def test_no_operation_of_the_other_run_is_lost_or_counted_twice() -> None:
    total = sum(flop(found) for found in _regions().values())
    total += flop_of(nobodys(twin().records, Counters(twin().records).matched(twin().whole)))
    assert round(total) == 80_231_038_456


def test_operations_of_each_region_are_its_own_to_one_percent_and_within_their_bounds() -> None:
    assert len(_regions()) == 3
    for name, found in _regions().items():
        low = flop_of({metric: each.exact + each.low for metric, each in found.sums.items()})
        high = flop_of({metric: each.exact + each.high for metric, each in found.sums.items()})
        assert low <= twin().truth[name] <= high
        assert flop(found) == pytest.approx(twin().truth[name], rel=0.01)


def test_kernels_of_the_other_library_version_lower_the_coverage() -> None:
    for name, found in _regions().items():
        known = {record.name for record in twin().records}
        with_record = sum(kernel.total_ns for each, kernel in twin().regions[name].items() if each in known)
        assert found.coverage(FMA) == pytest.approx(with_record / found.kernel_ns)
    assert min(found.coverage(FMA) or 0 for found in _regions().values()) < 0.9


def test_a_report_tells_the_counters_of_its_regions() -> None:
    report = report_of(Trace(TRACES / "hta" / "alexnet_a100.json.gz"), counted=twin().records)
    found = report.region("[param|cuda]").counters
    assert found is not None
    left = nobodys(twin().records, Counters(twin().records).matched(twin().whole))
    assert flop(found) + flop_of(left) == 80_231_038_456
    assert report.region("[param|clear_cache]").counters is None


@cache
def _regions() -> dict[str, CounterSums]:
    found = {name: Counters(twin().records).of(twin().whole, each, name) for name, each in twin().regions.items()}
    return {name: each for name, each in found.items() if each is not None}


# ---------------------------------------------------------------------- the join


def test_kernels_that_only_one_region_launched_are_its_own_exactly() -> None:
    whole = kernels(gemm=[30, 10], copy=[5])
    found = joined([counted("gemm", INST=300), counted("gemm", INST=100)], whole, kernels(gemm=[30, 10]))
    assert (found.sums[INST].exact, found.sums[INST].shared) == (400, 0)
    assert found.coverage(INST) == 1


def test_equal_records_are_exact_whoever_launched_the_kernels() -> None:
    records = [counted("gemm", INST=100)] * 3
    found = joined(records, kernels(gemm=[10, 30, 20]), kernels(gemm=[30]))
    assert (found.sums[INST].exact, found.sums[INST].shared) == (100, 0)


def test_what_several_regions_launched_is_shared_by_duration_within_bounds() -> None:
    records = [counted("gemm", INST=value) for value in (300, 100, 200)]
    found = joined(records, kernels(gemm=[30, 10, 20]), kernels(gemm=[10, 20])).sums[INST]
    assert (found.exact, found.shared, found.low, found.high) == (0, 300, 300, 500)


def test_an_estimate_never_leaves_what_is_possible() -> None:
    records = [counted("gemm", INST=value) for value in (100, 101, 102)]
    whole = kernels(gemm=[10, 10, 980])
    assert joined(records, whole, kernels(gemm=[980])).sums[INST].shared == 102
    assert joined(records, whole, kernels(gemm=[10, 10])).sums[INST].shared == 201


def test_fewer_records_than_kernels_lower_the_coverage_and_are_not_scaled_up() -> None:
    records = [counted("gemm", INST=100)]
    found = joined(records, kernels(gemm=[10, 10, 20]), kernels(gemm=[10, 20]))
    assert found.sums[INST]._asdict() == {
        "exact": 0,
        "shared": pytest.approx(75),
        "low": 0,
        "high": 100,
        "most": 100,
        "kernels": pytest.approx(2 / 3),
        "ns": pytest.approx(10),
    }
    assert found.coverage(INST) == pytest.approx(1 / 3)
    matched = Counters(records).matched(kernels(gemm=[10, 10, 20]))
    assert (matched.pairs, matched.records, matched.kernels) == (1, {}, {"gemm": 2})


def test_more_records_than_kernels_leave_the_rest_unmatched() -> None:
    records = [counted("gemm", INST=value) for value in (100, 200, 300)]
    whole = kernels(gemm=[10, 10])
    found = joined(records, whole, whole).sums[INST]
    assert (found.exact, found.low, found.high) == (0, 300, 500)
    assert found.shared == pytest.approx(400)
    matched = Counters(records).matched(whole)
    assert (matched.pairs, matched.records, matched.kernels) == (2, {"gemm": 1}, {})
    assert nobodys(records, matched)[INST] == pytest.approx(200)


def test_a_record_without_a_kernel_is_nobodys() -> None:
    records = [counted("__missing__", INST=7), counted("gemm", INST=1)]
    whole = kernels(gemm=[10])
    assert joined(records, whole, whole).reduce() == {INST: 1}
    matched = Counters(records).matched(whole)
    assert matched.records == {"__missing__": 1}
    assert nobodys(records, matched) == {INST: 7}


def test_a_region_without_records_has_no_counters() -> None:
    whole = kernels(gemm=[10], relu=[10])
    assert Counters([]).of(whole, whole, "step") is None
    assert Counters([counted("gemm", INST=1)]).of(whole, kernels(relu=[10]), "step") is None


def test_metrics_that_were_counted_one_after_the_other_have_their_own_coverage() -> None:
    records = [counted("gemm", INST=1), counted("gemm", DRAM=2), counted("relu", INST=4)]
    whole = kernels(gemm=[30], relu=[10])
    found = joined(records, whole, whole)
    assert {metric: each.exact for metric, each in found.sums.items()} == {INST: 5, DRAM: 2}
    assert (found.coverage(INST), found.coverage(DRAM), found.coverage(CYCLES)) == (1, 0.75, 0)
    assert Counters(records).matched(whole).records == {}


def test_a_range_named_after_the_region_is_the_regions_and_counts_no_kernel_twice() -> None:
    records = [counted("step", INST=70), counted("step", INST=30), counted("gemm", INST=40, DRAM=1)]
    whole = kernels(gemm=[10, 10])
    found = joined(records, whole, kernels(gemm=[10]))
    assert found.sums[INST].exact == 100
    assert found.coverage(INST) == 1
    assert found.sums[DRAM].high == 1
    assert Counters(records).matched(whole, ["step"]).ranges == 2


def test_ranges_of_some_executions_only_lower_the_coverage() -> None:
    whole = kernels(gemm=[10, 10])
    found = Counters([counted("step", INST=50)]).of(whole, whole, "step", executions=2)
    assert found is not None
    assert found.coverage(INST) == 0.5
    assert found.reduce("MEAN") == {INST: 50}


def test_a_name_of_a_kernel_is_not_taken_for_a_region() -> None:
    records = [counted("step", INST=100), counted("step", INST=200)]
    whole = kernels(step=[10, 20], relu=[1])
    assert Counters(records).of(whole, kernels(relu=[1]), "step") is None
    assert Counters(records).matched(whole, ["step"]).pairs == 2


def test_kernels_without_duration_share_by_number() -> None:
    records = [counted("gemm", INST=100, PCT=50), counted("gemm", INST=300, PCT=50)]
    found = joined(records, kernels(gemm=[0, 0]), kernels(gemm=[0]))
    assert found.sums[INST].shared == 200
    assert found.coverage(INST) is None
    assert found.reduce() == {INST: 200}


def test_values_that_are_no_numbers_are_left_out() -> None:
    whole = kernels(gemm=[10])
    assert Counters([counted("gemm", INST=float("nan"), DRAM=float("inf"))]).of(whole, whole, "step") is None


def test_two_recordings_of_a_region_add_up() -> None:
    whole = kernels(gemm=[10])
    one = joined([counted("gemm", INST=100, PCT=20)], whole, whole)
    more = kernels(gemm=[30])
    other = joined([counted("gemm", INST=300, PCT=60, DRAM=8)], more, more)
    both = one + other
    assert both.reduce() == {INST: 400, DRAM: 8, PCT: pytest.approx(50)}
    assert (both.kernels, both.coverage(INST), both.coverage(DRAM)) == (2, 1, 0.75)
    assert both.reduce("MAX") == {INST: 300, DRAM: 8, PCT: 60}


# ---------------------------------------------------------------------- reductions


def test_ratios_are_weighted_by_duration_and_never_added() -> None:
    records = [counted("gemm", PCT=100), counted("relu", PCT=0)]
    whole = kernels(gemm=[30], relu=[10])
    found = joined(records, whole, whole)
    assert found.reduce("SUM") == found.reduce("MEAN") == {PCT: pytest.approx(75)}
    assert found.reduce("MAX") == {PCT: 100}
    assert (found.sums, found.coverage(PCT)) == ({}, 1)


def test_ratios_of_one_name_are_weighted_by_the_durations_that_were_counted_with_them() -> None:
    records = [counted("gemm", PCT=100, TIME=30), counted("gemm", PCT=0, TIME=10)]
    assert joined(records, kernels(gemm=[5, 5]), kernels(gemm=[5])).reduce()[PCT] == pytest.approx(75)


def test_ratios_are_rebuilt_from_sums_where_these_were_counted() -> None:
    hit, miss = "lts__t_sectors_lookup_hit.sum", "lts__t_sectors_lookup_miss.sum"
    rate, ipc, speed = "lts__t_sector_hit_rate.pct", "smsp__inst_executed.avg.per_cycle_active", f"{DRAM}.per_second"
    both = [(900, 100, 90, 10, 100, 0.1, 8, 9), (0, 9000, 0, 30, 10, 3, 2, 9)]
    keys = (hit, miss, rate, INST, CYCLES, ipc, DRAM, speed)
    records = [
        RangeCounters(name, 0, dict(zip(keys, values, strict=True))) for name, values in zip("ab", both, strict=True)
    ]
    whole = kernels(a=[10], b=[10])
    found = joined(records, whole, whole).reduce("MEAN")
    assert found[rate] == pytest.approx(9)
    assert found[ipc] == pytest.approx(40 / 110)
    assert found[speed] == pytest.approx(10 / 20e-9)


def test_extremes_stay_extremes() -> None:
    highest, lowest = "sm__cycles_active.max", "sm__cycles_active.min"
    records = [RangeCounters("a", 0, {highest: 10, lowest: 4}), RangeCounters("b", 0, {highest: 20, lowest: 2})]
    whole = kernels(a=[30], b=[10])
    found = joined(records, whole, whole)
    assert found.reduce("SUM") == {highest: 20, lowest: 2}
    assert found.reduce("MEAN") == {highest: pytest.approx(12.5), lowest: pytest.approx(3.5)}


def test_the_mean_is_that_of_the_kernels_with_a_record() -> None:
    records = [counted("gemm", INST=100), counted("gemm", INST=300)]
    whole = kernels(gemm=[10, 10], relu=[10])
    assert joined(records, whole, whole).reduce("MEAN") == {INST: 200}


def test_an_unknown_reduction_says_which_there_are() -> None:
    whole = kernels(gemm=[10])
    with pytest.raises(UsageError, match="'MEDIAN': unknown; choose one of SUM, MAX, MEAN"):
        joined([counted("gemm", INST=1)], whole, whole).reduce("MEDIAN")

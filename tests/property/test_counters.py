"""Counters of kernels whose region is known: what the join may say of them, and what it must."""

import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.traces import TIME, nobodys

from gpu_profile.kernels.counters.sums import Counters, CounterSums
from gpu_profile.kernels.records import RangeCounters
from gpu_profile.kernels.sums import KernelSum

COUNT = "smsp__inst_executed.sum"
RATIO = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
NAMES = ("gemm", "relu", "pool")
REGIONS = ("forward", "backward", "step")

#: Name, region, duration in ns, count and ratio of one kernel.
Kernel = tuple[str, str, int, int, float]
kernels = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from(REGIONS),
        st.integers(0, 10**9),
        st.integers(0, 2**40),
        st.floats(0, 100),
    ),
    max_size=30,
)


def records_of(program: list[Kernel]) -> list[RangeCounters]:
    return [RangeCounters(name, 0, {COUNT: count, RATIO: ratio, TIME: ns}) for name, _, ns, count, ratio in program]


def timed(program: list[Kernel], region: str | None = None) -> dict[str, KernelSum]:
    found: dict[str, list[int]] = defaultdict(list)
    for name, where, ns, _, _ in program:
        if region in (None, where):
            found[name].append(ns)
    return {name: KernelSum(len(all_ns), sum(all_ns), max(all_ns)) for name, all_ns in found.items()}


def regions_of(program: list[Kernel], records: list[RangeCounters]) -> dict[str, CounterSums]:
    whole = timed(program)
    found = {region: Counters(records).of(whole, timed(program, region), region) for region in REGIONS}
    return {region: each for region, each in found.items() if each is not None}


@given(kernels)
def test_the_truth_is_within_the_bounds_and_so_is_the_estimate(program: list[Kernel]) -> None:
    found = regions_of(program, records_of(program))
    assert found.keys() == {region for _, region, *_ in program}
    for region, sums in found.items():
        truth = sum(count for _, where, _, count, _ in program if where == region)
        each = sums.sums[COUNT]
        assert each.exact + each.low <= truth <= each.exact + each.high
        assert each.low <= each.shared <= each.high
        if each.low == each.high:
            assert each.value == truth


@given(kernels, st.data())
def test_lost_records_never_make_the_bounds_wrong_and_are_never_made_up_for(
    program: list[Kernel], data: st.DataObject
) -> None:
    kept = [data.draw(st.booleans()) for _ in program]
    records = [record for record, keep in zip(records_of(program), kept, strict=True) if keep]
    for region, sums in regions_of(program, records).items():
        truth = sum(each[3] for each, keep in zip(program, kept, strict=True) if keep and each[1] == region)
        each = sums.sums[COUNT]
        assert each.exact + each.low <= truth <= each.exact + each.high
        assert each.kernels <= sums.kernels * (1 + 1e-9)
        assert all(0 <= (sums.coverage(metric) or 0) <= 1 for metric in (COUNT, RATIO))


@given(kernels)
def test_two_regions_and_what_is_left_add_up_to_all_that_was_counted(program: list[Kernel]) -> None:
    program = [
        (name, "forward" if region == "step" else region, ns, count, ratio)
        for name, region, ns, count, ratio in program
    ]
    total = sum(each.sums[COUNT].value for each in regions_of(program, records_of(program)).values())
    assert total == pytest.approx(sum(count for *_, count, _ in program), rel=1e-9)


@given(kernels, kernels)
def test_every_record_and_kernel_is_paired_with_its_name_or_counted_as_left(
    program: list[Kernel], other: list[Kernel]
) -> None:
    records = records_of(other)
    whole = timed(program)
    matched = Counters(records).matched(whole)
    assert matched.pairs + sum(matched.records.values()) == len(other)
    assert matched.pairs + sum(matched.kernels.values()) == len(program)
    assert not matched.records.keys() & matched.kernels.keys()
    everything = Counters(records).of(whole, whole, "all")
    joined = everything.sums[COUNT].value if everything else 0
    assert joined + nobodys(records, matched).get(COUNT, 0) == pytest.approx(
        sum(count for *_, count, _ in other), rel=1e-9, abs=1e-6
    )


@given(kernels, st.randoms(use_true_random=False))
def test_the_order_of_records_tells_nothing(program: list[Kernel], rng: random.Random) -> None:
    records = records_of(program)
    mixed = records[:]
    rng.shuffle(mixed)
    assert regions_of(program, mixed) == regions_of(program, records)


@given(kernels)
def test_a_ratio_stays_between_its_lowest_and_highest_record(program: list[Kernel]) -> None:
    for region, sums in regions_of(program, records_of(program)).items():
        launched = {name for name, where, *_ in program if where == region}
        ratios = [ratio for name, *_, ratio in program if name in launched]
        for reduction in ("SUM", "MEAN"):
            value = sums.reduce(reduction).get(RATIO)
            assert value is None or min(ratios) * (1 - 1e-9) <= value <= max(ratios) * (1 + 1e-9)
        assert sums.reduce("MAX")[RATIO] == max(ratios)

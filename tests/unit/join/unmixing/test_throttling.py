from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.worlds import DEVICE, MS, T0

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Sample
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.solving.region_columns import MOST_REGIONS, OTHER
from gpu_profile.join.unmixing.windows.activities import Activities, DeviceExecution
from gpu_profile.join.unmixing.windows.throttling import Throttling
from gpu_profile.units import NS_PER_S

CAP, HEAT = rows.THROTTLES[0], rows.THROTTLES[2]
CAP_SEEN = rows.THROTTLES_SEEN[0]


def timeline(held: list[float], signal: Signal = CAP, until: int | None = None) -> Timeline:
    """Ten readings a second of a counter that grows by a share of each second."""
    result, total = Timeline(DEVICE, capacity=10_000), 0
    result.append([Sample(signal, T0, T0, 0)])
    for i in range(10 * len(held)):
        total += int(held[i // 10] * 100 * MS)
        if until is None or i < until:
            result.append([Sample(signal, end := T0 + (i + 1) * 100 * MS, end, total)])
    return result


def alternating(seconds: int) -> list[DeviceExecution]:
    return [
        DeviceExecution(i, None, "odd" if i % 2 else "even", T0 + i * NS_PER_S, T0 + (i + 1) * NS_PER_S)
        for i in range(seconds)
    ]


def pooled(source: Timeline, seconds: int, slices: int = 1, *, final: bool = True) -> Pool:
    pool = Pool(source, start_ns=T0)
    for i in range(slices):
        until = T0 + NS_PER_S * seconds * (i + 1) // slices
        pool.advance(alternating(seconds), until, final=final and i == slices - 1)
    return pool


@pytest.mark.parametrize("slices", [1, 4, 20])
@pytest.mark.parametrize("signal", [CAP, CAP_SEEN])
def test_the_share_is_that_of_the_regions_own_time(signal: Signal, slices: int) -> None:
    pool = pooled(timeline([0.8, 0.1] * 10, signal), 20, slices)
    assert pool.pooled("even").throttled == {"sw_power_cap": pytest.approx(0.8)}
    assert pool.pooled("odd").throttled == {"sw_power_cap": pytest.approx(0.1)}


def test_a_driver_that_tells_nothing_leaves_it_unknown_and_one_that_never_did_it_says_0() -> None:
    assert pooled(Timeline(DEVICE), 20).pooled("even").throttled == {}
    # The column is there, as the driver should have the counter, but no reading came.
    assert pooled(Timeline(DEVICE, [CAP]), 20).pooled("even").throttled == {}
    assert pooled(timeline([0.0] * 20), 20).pooled("even").throttled == {"sw_power_cap": 0.0}


def test_each_reason_has_its_own_share() -> None:
    source = timeline([0.5] * 20)
    source.append(
        [Sample(HEAT, T0, T0, 7), *(Sample(HEAT, T0 + i * NS_PER_S, T0 + i * NS_PER_S, 7) for i in range(1, 21))]
    )
    assert pooled(source, 20).pooled("odd").throttled == {"sw_power_cap": pytest.approx(0.5), "hw_thermal": 0.0}


def test_readings_that_end_before_most_of_the_time_are_not_taken_for_all_of_it() -> None:
    assert pooled(timeline([0.5] * 20, until=80), 20).pooled("even").throttled == {}
    assert pooled(timeline([0.5] * 20, until=150), 20).pooled("even").throttled == {"sw_power_cap": pytest.approx(0.5)}


def test_readings_that_come_later_than_the_slice_are_waited_for() -> None:
    source, late = Timeline(DEVICE, capacity=10_000), timeline([0.8, 0.1] * 10)
    column = late.column(CAP)
    assert column is not None
    _, ends, growth = column.edges(0, T0 + 100 * NS_PER_S)
    totals = np.cumsum(growth).tolist()
    source.append([Sample(CAP, T0, T0, 0)])
    pool, sent = Pool(source, start_ns=T0), 0
    for second in range(1, 21):
        # The newest reading is from 150 ms before the slice's end.
        while sent < len(ends) and ends[sent] <= T0 + second * NS_PER_S - 150 * MS:
            source.append([Sample(CAP, int(ends[sent]), int(ends[sent]), totals[sent])])
            sent += 1
        pool.advance(alternating(20), T0 + second * NS_PER_S)
    assert pool.pooled("even").throttled == {"sw_power_cap": pytest.approx(0.8)}
    assert pool.pooled("odd").throttled == {"sw_power_cap": pytest.approx(0.1)}


def test_a_region_that_gives_its_place_up_takes_its_time_along() -> None:
    found = Throttling(timeline([0.8, 0.1] * 10))

    def slice_of(column: int, second: int) -> Activities:
        begin = T0 + second * NS_PER_S
        start, end, parent, columns = (np.array([each]) for each in (begin, begin + NS_PER_S, -1, column))
        return Activities(start, end, parent, columns)

    for second in range(10):
        found.note(slice_of(1 + second % 2, second))
    found.read(T0 + 10 * NS_PER_S, final=True)
    for second in range(10, 20):
        found.note(slice_of(1 + second % 2, second))
    found.merge(1, 5)
    found.read(T0 + 20 * NS_PER_S, final=True)
    assert found.shares(1) == {}
    assert found.shares(5) == {"sw_power_cap": pytest.approx(0.8)}
    assert found.shares(2) == {"sw_power_cap": pytest.approx(0.1)}
    found.merge(2, 5)
    assert found.shares(5) == {"sw_power_cap": pytest.approx(0.45)}


def test_regions_beyond_the_most_that_are_told_apart_have_a_share_together() -> None:
    count = MOST_REGIONS + 5
    pool = Pool(timeline([0.4] * 10), start_ns=T0)
    step = 10 * NS_PER_S // count
    spans = [DeviceExecution(i, None, f"r{i}", T0 + i * step, T0 + (i + 1) * step) for i in range(count)]
    pool.advance(spans, T0 + 10 * NS_PER_S, final=True)
    assert pool.pooled(OTHER).throttled == {"sw_power_cap": pytest.approx(0.4, rel=0.01)}


def test_a_region_that_never_ran_has_no_share() -> None:
    assert pooled(timeline([0.8] * 20), 20).pooled("never").throttled == {}


def test_time_before_the_first_reading_is_not_covered() -> None:
    source, pool_s = Timeline(DEVICE, [CAP], capacity=10_000), 120
    pool = Pool(source, start_ns=T0)
    for second in range(1, pool_s + 1):
        if second > 110:
            source.append([Sample(CAP, end := T0 + second * NS_PER_S, end, (second - 110) * 800 * MS)])
        pool.advance([DeviceExecution(1, None, "a", T0, T0 + pool_s * NS_PER_S)], T0 + second * NS_PER_S)
    assert pool.pooled("a").throttled == {}


@pytest.mark.parametrize("parents", [(None, 1, 2), (None, None, None)])
def test_a_region_inside_itself_or_in_several_threads_has_every_moment_once(parents: tuple[int | None, ...]) -> None:
    pool = Pool(timeline([1.0] * 10 + [0.0] * 10), start_ns=T0)
    ends = (20, 10, 10)
    spans = [DeviceExecution(i + 1, parents[i], "o", T0, T0 + ends[i] * NS_PER_S) for i in range(3)]
    pool.advance(spans, T0 + 20 * NS_PER_S, final=True)
    assert pool.pooled("o").throttled == {"sw_power_cap": pytest.approx(0.5)}


@pytest.mark.parametrize("back_s", [7, 9, 12, 30])
def test_what_waits_when_the_clock_is_set_back_is_not_set_beside_later_readings(back_s: int) -> None:
    source, total = Timeline(DEVICE, capacity=10_000), 0
    pool = Pool(source, start_ns=T0)
    for i, second in enumerate([*range(1, 43), *range(43 - back_s, 60)]):
        name = "a" if i < 38 else "b" if i < 42 else "c"
        for tenth in range(10):
            total += 100 * MS if name == "b" else 0
            end = T0 + (second - 1) * NS_PER_S + (tenth + 1) * 100 * MS
            source.append([Sample(CAP, end, end, total)])
        start = T0 + (second - 1) * NS_PER_S
        pool.advance([DeviceExecution(i, None, name, start, start + NS_PER_S)], start + NS_PER_S)
    assert pool.pooled("b").throttled in ({}, {"sw_power_cap": pytest.approx(1.0)})


@given(held=st.lists(st.floats(0, 1), min_size=2, max_size=12), cuts=st.lists(st.integers(1, 11_999), max_size=6))
def test_the_regions_shares_add_up_to_what_the_counter_grew_by(held: list[float], cuts: list[int]) -> None:
    seconds = len(held)
    edges = sorted({0, *(cut * MS for cut in cuts if cut < 1000 * seconds), seconds * NS_PER_S})
    spans = [DeviceExecution(i, None, f"r{i % 3}", T0 + a, T0 + b) for i, (a, b) in enumerate(pairwise(edges))]
    pool = Pool(timeline(held), start_ns=T0)
    pool.advance(spans, T0 + seconds * NS_PER_S, final=True)
    names = {span.region for span in spans}
    found = sum(pool.pooled(n).throttled["sw_power_cap"] * pool.pooled(n).inclusive_s for n in names)
    assert found == pytest.approx(sum(int(share * 100 * MS) * 10 for share in held) / NS_PER_S, abs=1e-6)

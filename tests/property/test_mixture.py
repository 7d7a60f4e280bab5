"""Shares of what was measured: they only grow and always add up to it, whatever comes in whatever order."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.worlds import DEVICE, MS, T0, known

from gpu_profile.catalogue.samples import Sample
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, PCIE_RX
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.pools.shares import CountedShare, Shares
from gpu_profile.join.unmixing.windows.activities import DeviceExecution

few = settings(max_examples=25)
ALL = np.ones(3, bool)

targets = st.lists(st.floats(0, 1e6) | st.just(0.0), min_size=1, max_size=6)
steps = st.lists(
    st.tuples(st.floats(0, 1e5), targets, st.none() | st.tuples(st.integers(0, 5), st.integers(0, 5))), max_size=12
)


# ---------------------------------------------------------------------- shares


@few
@given(steps)
def test_shares_grow_and_add_up_to_what_was_measured_whatever_the_targets_and_merges(
    some: list[tuple[float, list[float], tuple[int, int] | None]],
) -> None:
    shares, measured, width = Shares(), 0.0, 1
    for more, wanted, merged in some:
        measured += more
        width = max(width, len(wanted))
        before = shares.shared.copy()
        shares.distribute(measured, np.pad(np.array(wanted), (0, width - len(wanted))), np.ones(width, bool))
        assert (shares.shared[: len(before)] >= before).all()
        assert (shares.shared >= 0).all()
        assert float(shares.shared.sum()) == pytest.approx(measured, rel=1e-9, abs=1e-9)
        if merged is not None and merged[0] != merged[1]:
            column, into = merged
            had = [float(shares.shared[c]) if c < len(shares.shared) else 0.0 for c in merged]
            shares.merge(column, into)
            width = max(width, len(shares.shared))
            held = [float(shares.shared[c]) if c < len(shares.shared) else 0.0 for c in merged]
            assert held == pytest.approx([0.0, sum(had)])
            assert float(shares.shared.sum()) == pytest.approx(measured, rel=1e-9, abs=1e-9)


@few
@given(st.lists(st.floats(1, 1e4), min_size=1, max_size=5), st.floats(1, 1e6))
def test_targets_that_stay_are_met(wanted: list[float], measured: float) -> None:
    shares, goal = Shares(), np.array(wanted)
    for part in (0.1, 0.5, 1.0):
        shares.distribute(measured * part, goal, np.ones(len(goal), bool))
    assert shares.shared == pytest.approx(goal * measured / goal.sum())


@few
@given(st.floats(1, 1e4), st.floats(1, 1e4))
def test_what_was_given_once_is_not_taken_back_but_made_up_for(first: float, second: float) -> None:
    shares = Shares()
    shares.distribute(first, np.array([0.0, 1.0, 0.0]), ALL)
    shares.distribute(first + second, np.array([0.0, 0.0, 1.0]), ALL)
    assert shares.shared == pytest.approx([0.0, first, second])


# ---------------------------------------------------------------------- a pool's


def total(share: CountedShare | None) -> float:
    return 0.0 if share is None else share.total


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[DeviceExecution], list[tuple[int, int, int]], list[int]]:
    """A few seconds in tenths: what ran, what was read per window, and where slices end."""
    tenths = draw(st.integers(10, 40))
    cut = st.integers(0, tenths * 100)
    activities = []
    for i in range(draw(st.integers(0, 12))):
        a, b = sorted((draw(cut), draw(cut)))
        parent = draw(st.none() | st.integers(0, 12))
        activities.append(DeviceExecution(i, parent, draw(st.sampled_from("abcd")), T0 + a * MS, T0 + b * MS))
    windows = [
        (i, draw(st.integers(0, 10_000)), draw(st.integers(0, 60_000))) for i in range(tenths) if draw(st.booleans())
    ]
    slices = sorted({*draw(st.lists(cut, max_size=5)), tenths * 100})
    return activities, windows, slices


@few
@given(histories())
def test_counters_of_all_regions_and_the_rest_are_what_was_measured_and_only_grow(
    history: tuple[list[DeviceExecution], list[tuple[int, int, int]], list[int]],
) -> None:
    activities, windows, slices = history
    timeline = Timeline(DEVICE, [GRAPHICS, ENERGY], capacity=200)
    pool = Pool(timeline, start_ns=T0)
    joules, taken = 0, 0
    before: dict[str, tuple[float, float]] = {}
    for low, high in pairwise([0, *slices]):
        while taken < len(windows) and windows[taken][0] * 100 < high:
            i, busy, more = windows[taken]
            joules += more
            a, b = T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS
            timeline.append([Sample(GRAPHICS, a, b, busy), Sample(ENERGY, b, b, joules)])
            taken += 1
        active = [a for a in activities if a.start_ns < T0 + high * MS and (a.end_ns or 0) > T0 + low * MS]
        pool.advance(active, T0 + high * MS, final=high == slices[-1])
        now = {
            name: (total(pool.counted(name, GRAPHICS)), total(pool.counted(name, ENERGY)))
            for name in "abcd"
            if pool.pooled(name).region == name
        }
        for name, both in before.items():
            assert now[name][0] >= both[0] - 1e-9
            assert now[name][1] >= both[1] - 1e-6
        before = now
    for signal, which in ((GRAPHICS, 0), (ENERGY, 1)):
        mixture = next(m for m in pool._mixtures if m.lead is signal)
        if mixture.family.covered_s:
            whole = sum(both[which] for both in before.values()) + known(pool.rest(signal))
            assert whole == pytest.approx(float(mixture.family.measured[0]), rel=1e-9, abs=1e-9)
            estimates = [p.busy_s if which == 0 else p.energy_j for p in map(pool.pooled, "abcd")]
            assert all(estimate is None or estimate >= 0 for estimate in estimates)
            assert sum(estimate or 0 for estimate in estimates) <= whole * (1 + 1e-9) + 1e-9


@few
@given(st.lists(st.integers(0, 3), min_size=30, max_size=60), st.lists(st.integers(1, 59), max_size=4))
def test_a_counter_that_is_read_at_the_call_gives_each_region_what_grew_while_it_ran(
    owners: list[int], cuts: list[int]
) -> None:
    bytes_while = [0, 100, 2500, 700]
    timeline = Timeline(DEVICE, [PCIE_RX], capacity=200)
    pool = Pool(timeline, start_ns=T0)
    total = 0
    for i, owner in enumerate(owners):
        total += bytes_while[owner]
        timeline.append([Sample(PCIE_RX, T0 + (i + 1) * 100 * MS, T0 + (i + 1) * 100 * MS, total)])
    active = [
        DeviceExecution(i, None, f"r{owner}", T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS)
        for i, owner in enumerate(owners)
    ]
    for cut in [*sorted(cut for cut in cuts if cut < len(owners)), len(owners)]:
        pool.advance(active, T0 + cut * 100 * MS, final=cut == len(owners))
    for owner, each in enumerate(bytes_while):
        met = owners[1:].count(owner)
        rate = pool.pooled(f"r{owner}").rates.get(PCIE_RX)
        if rate is not None and not rate.reason:
            assert abs(rate.value - each * 10 * PCIE_RX.quantum) <= rate.half_width + 1e-3 * each * 10 * PCIE_RX.quantum
        if met >= 4 and len(owners) > 30:
            assert rate is not None
            assert rate.reason == ""

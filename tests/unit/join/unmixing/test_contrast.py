from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, Interval, Sample
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.summary import Durations, read_span, span_evidence, summarise
from gpu_profile.join.unmixing.pools.contrast import WindowContrast, contrast
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.windows.activities import DeviceExecution
from gpu_profile.units import NS_PER_S

MS = 1_000_000
T0 = 1_700_000_000 * NS_PER_S
PRODUCT, COPY = {"tensor": 0.93, "dram": 0.27}, {"tensor": 0.0, "dram": 0.9}


def timeline(shares: Sequence[float], *, busy: float = 1.0, noise: float = 0.003, seed: int = 0) -> Timeline:
    """Windows of 100 ms, in each of which products take a share of the busy time, and copies the rest."""
    rng = np.random.default_rng(seed)
    out = Timeline(Device("GPU-a"), capacity=10_000)
    for i, share in enumerate(shares):
        start, end = T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS
        values: dict[Signal, float] = {rows.GRAPHICS: busy, rows.FP32: 0.01, rows.SM: busy}
        for signal, key in ((rows.TENSOR, "tensor"), (rows.DRAM, "dram")):
            mean = busy * (share * PRODUCT[key] + (1 - share) * COPY[key])
            values[signal] = max(0.0, mean * (1 + rng.normal(0, noise)))
        out.append(
            [
                *(Sample(signal, start, end, signal.quanta(value)) for signal, value in values.items()),
                Sample(rows.ENERGY, end, end, 40_000 * (i + 1)),
            ]
        )
    return out


def whole(n: int) -> Interval:
    return Interval(T0, T0 + n * 100 * MS)


def by_turns(n: int, part: float, swing: float) -> list[float]:
    return [part + swing * (-1) ** i for i in range(n)]


def values_of(shares: Sequence[float], **changes: float) -> dict[str, float]:
    return contrast(timeline(shares, **changes), whole(len(shares))).values  # type: ignore[arg-type]


@pytest.mark.parametrize("part", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("swing", [0.03, 0.1, 0.29])
def test_two_kinds_by_turns_are_seen_with_their_shares(part: float, swing: float) -> None:
    assert values_of(by_turns(60, part, swing))["part"] == pytest.approx(part, abs=0.1)


def test_waits_between_launches_do_not_hide_the_kinds() -> None:
    assert values_of(by_turns(60, 0.5, 0.1), busy=0.6)["part"] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_one_kind_of_work_has_no_parts(share: float, seed: int) -> None:
    values = values_of([share] * 60, seed=seed)
    assert "part" not in values
    assert values["uneven"] < 0.02


def test_a_kind_that_takes_nearly_all_is_nearly_all() -> None:
    assert values_of(by_turns(60, 0.95, 0.04))["part"] > 0.85


@pytest.mark.parametrize("every", [10, 20])
def test_windows_that_hold_one_kind_each_end_the_line_where_they_are(every: int) -> None:
    shares = [0.8 if i % every else 0.0 for i in range(120)]  # the product reads a fifth of what copies do
    assert values_of(shares)["part"] > 1 - 1.5 / every


def test_kinds_that_are_far_from_their_ceilings_are_limited_by_something_else() -> None:
    out = Timeline(Device("GPU-a"), capacity=1000)
    for i in range(60):
        start, end, chain = T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS, 0.3 + 0.2 * (-1) ** i
        values = {rows.GRAPHICS: 1.0, rows.SM: 0.9, rows.INTEGER: 0.1 * chain, rows.DRAM: 0.09 * (1 - chain)}
        out.append([Sample(signal, start, end, signal.quanta(value)) for signal, value in values.items()])
    assert "part" not in contrast(out, whole(60)).values


def test_phases_longer_than_windows_are_uneven() -> None:
    out, waits = timeline([1.0] * 30), {rows.GRAPHICS: 1.0, rows.TENSOR: 0.0, rows.DRAM: 0.0, rows.FP32: 0.0}
    for i in range(30, 60):
        start, end = T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS
        out.append([Sample(signal, start, end, signal.quanta(value)) for signal, value in waits.items()])
    assert contrast(out, whole(60)).values["uneven"] == pytest.approx(0.93 / 2, rel=0.05)


@pytest.mark.parametrize("held", [0.02, 0.15])
def test_kernels_that_hold_multiprocessors_without_movement_are_seen_by_turns_with_work(held: float) -> None:
    out = Timeline(Device("GPU-a"), capacity=1000)
    for i in range(60):
        start, end, work = T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS, 0.35 + 0.1 * (-1) ** i
        values = {rows.GRAPHICS: 1.0, rows.SM: work + (1 - work) * held, rows.TENSOR: 0.8 * work, rows.DRAM: 0.2 * work}
        out.append([Sample(signal, start, end, signal.quanta(value)) for signal, value in values.items()])
    assert contrast(out, whole(60)).values["held"] == pytest.approx(held, abs=0.005)


def test_launches_with_gaps_between_them_hold_nothing() -> None:
    out = Timeline(Device("GPU-a"), capacity=1000)
    for i in range(60):
        start, end, busy = T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS, 0.6 + 0.1 * (-1) ** i
        values = {rows.GRAPHICS: busy, rows.SM: busy * 0.9, rows.TENSOR: 0.8 * busy, rows.DRAM: 0.2 * busy}
        out.append([Sample(signal, start, end, signal.quanta(value)) for signal, value in values.items()])
    assert contrast(out, whole(60)).values.get("held", 0.0) < 0.01


def test_few_or_idle_windows_tell_nothing() -> None:
    assert values_of(by_turns(7, 0.5, 0.2)) == {}
    assert values_of(by_turns(60, 0.5, 0.2), busy=0.1) == {}


@pytest.mark.parametrize("missing", [rows.DRAM, rows.GRAPHICS])
def test_without_its_signals_there_are_no_sums(missing: Signal) -> None:
    out = Timeline(Device("GPU-a"), capacity=100)
    for i in range(20):
        start, end = T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS
        out.append([Sample(s, start, end, 5000) for s in (rows.GRAPHICS, rows.DRAM, rows.TENSOR) if s is not missing])
    assert contrast(out, whole(20)) == WindowContrast()


def test_windows_over_the_edges_are_left_out() -> None:
    inside = contrast(timeline(by_turns(60, 0.5, 0.1)), Interval(T0 + 50 * MS, T0 + 2_050 * MS))
    assert inside.n == 19


def test_the_evidence_of_a_span_and_of_a_region_has_it() -> None:
    source = timeline(by_turns(100, 0.5, 0.1))
    own = span_evidence(source, read_span(source, whole(100)), None)
    assert own.values["part"] == pytest.approx(0.5, abs=0.1)
    pool = Pool(source, start_ns=T0)
    runs = [DeviceExecution(i, None, "work", T0 + i * 3 * NS_PER_S, T0 + (i * 3 + 3) * NS_PER_S) for i in range(3)]
    pool.advance(runs, T0 + 10 * NS_PER_S, final=True)
    for _ in runs:
        pool.count("work")
    pooled = summarise(pool, "work", Durations(), interval_source="host")
    assert pooled.metered is not None
    assert pooled.metered.contrast.n > 80
    assert pooled.metered.contrast.values["part"] == pytest.approx(0.5, abs=0.1)


shares = st.lists(st.floats(0, 1), min_size=2, max_size=40)


@given(shares, st.integers(1, 39))
def test_sums_of_parts_are_those_of_the_whole(given_shares: list[float], cut: int) -> None:
    source, n = timeline(given_shares), len(given_shares)
    middle = T0 + min(cut, n - 1) * 100 * MS
    first, second = contrast(source, Interval(T0, middle)), contrast(source, Interval(middle, T0 + n * 100 * MS))
    assert tuple(first.plus(second)) == pytest.approx(tuple(contrast(source, whole(n))))


@given(shares)
def test_values_are_shares(given_shares: list[float]) -> None:
    values = values_of(given_shares)
    assert 0 <= values.get("part", 0.0) <= 1
    assert 0 <= values.get("uneven", 0.0) <= 1.2

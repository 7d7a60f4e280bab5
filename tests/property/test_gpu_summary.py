import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpu_profile.catalogue.samples import Device, Interval, Sample
from gpu_profile.catalogue.signals import ENERGY, POWER, UTILIZATION
from gpu_profile.history.timeline import Timeline
from gpu_profile.monitor.gpu_summary import TRACE, GpuSummary, samples_of, summarise_run
from gpu_profile.monitor.trace import MOST_STEPS, UtilisationTrace
from gpu_profile.report.sparkline import HEIGHTS
from gpu_profile.units import NS_PER_S, nanoseconds

T0 = 1_767_225_600 * NS_PER_S
MS = 1_000_000

shares = st.lists(st.integers(0, 100), min_size=1, max_size=60)
lengths = st.integers(20 * MS, 1_000 * MS)


def made(percents: list[int], length_ns: int, *, gaps: frozenset[int] = frozenset()) -> Timeline:
    timeline = Timeline(Device("GPU-A", name="A"))
    for i, percent in enumerate(percents):
        start, end = T0 + i * length_ns, T0 + (i + 1) * length_ns
        if i not in gaps:
            timeline.append([Sample(UTILIZATION, start, end, percent)])
        timeline.append([Sample(POWER, start, end, 1000 * percent)])
        timeline.append([Sample(ENERGY, end, end, 1000 * i)])
    return timeline


def summed_up(timeline: Timeline, a_ns: int, b_ns: int, warmup_s: float = 0.0) -> GpuSummary:
    return summarise_run(timeline, Interval(T0 + a_ns, T0 + b_ns), device=0, interval_s=0.2, warmup_s=warmup_s)


@given(shares, lengths, st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.9))
@settings(max_examples=150)
def test_busy_time_is_the_mean_of_the_run_after_its_warmup_where_samples_cover_it(
    percents: list[int], length_ns: int, one: float, other: float, warm: float
) -> None:
    whole = len(percents) * length_ns
    a, b = sorted((round(one * whole), round(other * whole)))
    warmup_s = warm * (b - a) / NS_PER_S
    got = summed_up(made(percents, length_ns), a, b, warmup_s)
    if b - a - nanoseconds(warmup_s) < 1:
        assert got.util_gpu_mean is None
        return
    assert got.coverage == 1.0
    assert got.util_gpu_mean is not None
    assert got.busy_time_est_s == pytest.approx((got.duration_s - warmup_s) * got.util_gpu_mean / 100, abs=2e-9)


@given(
    shares, lengths, st.frozensets(st.integers(0, 59)), st.integers(-NS_PER_S, 70 * NS_PER_S), st.integers(1, 1 << 36)
)
@settings(max_examples=150)
def test_every_summary_is_in_order_and_valid_json(
    percents: list[int], length_ns: int, gaps: frozenset[int], a: int, length: int
) -> None:
    got = summed_up(made(percents, length_ns, gaps=gaps), a, a + length)
    json.loads(got.to_json())
    assert 0 <= got.coverage <= 1
    assert set(got.sparkline) <= {*HEIGHTS, " "}
    assert len(got.sparkline) in (0, TRACE)
    if got.util_gpu_mean is None:
        assert (got.util_gpu_p50, got.util_gpu_p95, got.util_gpu_max, got.busy_time_est_s) == (None,) * 4
        assert got.n_samples == 0
        return
    assert got.util_gpu_p50 is not None
    assert got.util_gpu_p95 is not None
    assert got.util_gpu_max is not None
    assert got.busy_time_est_s is not None
    assert 0 <= got.util_gpu_p50 <= got.util_gpu_p95 <= got.util_gpu_max <= 100
    assert 0 <= got.util_gpu_mean <= got.util_gpu_max + 1e-9
    # Below that coverage only what samples cover counts; from there on the mean stands for the whole run.
    covered = got.coverage if got.coverage < 0.95 else 1.0
    assert 0 <= got.busy_time_est_s <= got.duration_s * covered * (1 + 1e-9)
    assert got.n_samples >= 1
    if got.power_mean_w is not None:
        assert got.power_max_w is not None
        assert got.power_max_w >= got.power_mean_w


@given(shares, lengths)
@settings(max_examples=50)
def test_samples_are_in_order_and_each_is_a_value_of_the_driver(percents: list[int], length_ns: int) -> None:
    timeline = made(percents, length_ns)
    found = samples_of(timeline, Interval(T0, T0 + len(percents) * length_ns))
    assert [sample.util_gpu for sample in found] == pytest.approx(percents)
    assert [sample.t_s for sample in found] == sorted({sample.t_s for sample in found})


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 400), st.integers(0, 100)), min_size=1, max_size=80),
    st.integers(0, 50),
)
@settings(max_examples=100)
def test_trace_that_was_kept_aside_shows_what_the_rows_show(stretches: list[tuple[int, int, int]], cut: int) -> None:
    timeline, trace, at = Timeline(Device("GPU-A")), UtilisationTrace(T0), T0 - 50 * MS
    for gap, length, percent in stretches:
        start, end = at + gap * 10 * MS, at + (gap + length) * 10 * MS
        timeline.append([Sample(UTILIZATION, start - cut * MS, end, percent)])
        trace.add(start - cut * MS, end, percent / 100)
        at = end
    assume(at > T0)
    column = timeline.columns[UTILIZATION]
    edges = [T0 + i * (at - T0) // TRACE for i in range(TRACE + 1)]
    # Steps that were merged are spread over what they cover, so only whole ones compare exactly.
    whole = [round(mean, 6) for mean, known in zip(*column.means(*map(np.array, ([T0], [at]))), strict=True) if known]
    kept = trace.means([T0, T0 + (1 << 50)])
    assert [round(mean, 6) for mean in kept if mean is not None] == whole
    assert len(trace.means(edges)) == TRACE
    assert all(mean is None or -1e-9 <= mean <= 1 + 1e-9 for mean in trace.means(edges))
    assert len(trace._covered) <= MOST_STEPS

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.catalogue import Signal, signal
from gpu_profile.catalogue.samples import Interval, Sample
from gpu_profile.catalogue.signals import UTILIZATION
from gpu_profile.history.timeline import Column
from gpu_profile.join.reading import quantiles, read
from gpu_profile.units import NS_PER_S

THROTTLE = signal("throttle_hw_thermal")


@st.composite
def columns(draw: st.DrawFn) -> Column:
    row: Signal = draw(st.sampled_from([UTILIZATION, THROTTLE]))
    column = Column(row, 64)
    t, total = draw(st.integers(0, 50)), 0
    for step, value in draw(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 100)), max_size=10)):
        start, t, total = t + step % 3, t + step + step % 3, total + value
        column.append(Sample(row, start, t, value if row is UTILIZATION else total))
    return column


@given(columns(), st.integers(-10, 300), st.integers(0, 300))
def test_a_reading_is_what_the_rows_that_overlap_the_interval_say_each_for_its_overlap(
    column: Column, a: int, length: int
) -> None:
    b = a + length
    reading = read(column, Interval(a, b))
    rows = [row for row in zip(*(part.tolist() for part in column.edges(-1, 1000)), strict=True) if row[0] < row[1]]
    overlaps = [(min(end, b) - max(start, a), start, end, mass) for start, end, mass in rows]
    overlaps = [row for row in overlaps if row[0] > 0]
    assert (reading is None) == (not overlaps)
    if reading is None:
        return
    covered = sum(overlap for overlap, _, _, _ in overlaps)
    rates = [mass / (end - start) for _, start, end, mass in overlaps]
    signal = column.signal
    # A counter's rates are per second, and its integral up to a moment holds whole quanta only.
    scale, slack = (signal.quantum, 0.0) if signal is UTILIZATION else (signal.quantum * NS_PER_S, signal.quantum)
    total = sum(rate * overlap for rate, (overlap, *_) in zip(rates, overlaps, strict=True)) * scale / NS_PER_S
    assert reading.total == pytest.approx(total, abs=slack + 1e-15)
    assert reading.mean == pytest.approx(total / covered * NS_PER_S, abs=(slack + 1e-15) / covered * NS_PER_S)
    assert reading.maximum == pytest.approx(max(rates) * scale)
    assert (reading.coverage, reading.n) == (covered / length, len(overlaps))
    beyond = [end - start for _, start, end, _ in overlaps if start < a or end > b]
    assert reading.resolution == max(signal.window_ns, signal.refresh_ns, *beyond, 0) / length


@given(
    columns().filter(lambda c: c.signal is UTILIZATION),
    st.integers(-10, 300),
    st.integers(0, 300),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
)
def test_a_quantile_is_the_smallest_value_that_enough_of_the_covered_ticks_stay_at_or_below(
    column: Column, a: int, length: int, qs: list[float]
) -> None:
    rows = column.rows(a, a + length)
    ticks = sorted(v for v, w in zip(rows.values.tolist(), rows.weights.tolist(), strict=True) for _ in range(w))
    for q, found in zip(qs, quantiles(column, Interval(a, a + length), *qs), strict=True):
        wanted = next((v for i, v in enumerate(ticks, start=1) if i >= q * len(ticks)), None)
        assert found == (None if wanted is None else column.signal.base(wanted))

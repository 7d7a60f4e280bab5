import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.programs import python

from gpu_profile.catalogue import BUSY_SOURCES, Kind, Signal
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, MEMORY_USED, PCIE_RX, POWER, UTILIZATION
from gpu_profile.history.busy_total import BusyTotal
from gpu_profile.history.column import Column
from gpu_profile.history.ledger import BusySourceTotals, Ledger, SignalTotals
from gpu_profile.history.timeline import Timeline

ROWS = (ENERGY, PCIE_RX, POWER, MEMORY_USED, GRAPHICS, UTILIZATION)
SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND


@st.composite
def samples(draw: st.DrawFn) -> list[Sample]:
    """Readings as drivers give them, and as they never should: late, repeated, reset, wrapped, of another time."""
    row: Signal = draw(st.sampled_from(ROWS))
    found, now, value = [], START, 0
    for step, change, window in draw(
        st.lists(
            st.tuples(
                st.sampled_from([0, 1, 100_000_000, SECOND, 20 * SECOND, -SECOND, -3600 * SECOND]),
                st.integers(-(1 << 33), 1 << 34),
                st.integers(-SECOND, 2 * SECOND),
            ),
            max_size=40,
        )
    ):
        now, value = now + step, value + change
        start = now - window if row.kind is Kind.WINDOW_MEAN else now
        found.append(Sample(row, start, now, value))
    return found


@given(samples())
def test_totals_are_those_of_a_column_that_keeps_every_row(given: list[Sample]) -> None:
    for signal in {sample.signal for sample in given}:
        column, totals = Column(signal, 64), SignalTotals(signal)
        for sample in given:
            assert totals.append(sample) is column.append(sample)
            assert totals.last == column.last
            assert totals.watermark_ns == column.watermark_ns
            assert (totals.total_mass, totals.total_covered_ns) == (column.total_mass, column.total_covered_ns)
            assert totals.dropped == column.dropped


@given(st.lists(st.tuples(st.integers(1, SECOND // 4), st.integers(0, 100)), min_size=1, max_size=40))
def test_the_newest_second_of_a_busy_source_is_that_of_a_column(rows: list[tuple[int, int]]) -> None:
    column, recent, now = Column(UTILIZATION, 64), BusySourceTotals(UTILIZATION, BusyTotal()), START
    for length, value in rows:
        for holder in (column, recent):
            holder.append(Sample(UTILIZATION, now, now + length, value))
        now += length
    assert recent.integral(now - SECOND // 4, now) == column.integral(now - SECOND // 4, now)


def test_a_ledger_answers_as_a_timeline_does() -> None:
    ledger, timeline = Ledger([ENERGY]), Timeline(Device("GPU-A"), [ENERGY], capacity=64)
    for history in (ledger, timeline):
        assert history.append([Sample(POWER, START, START + 5, 7), Sample(POWER, START, START + 5, 7)]) == 1
        assert list(history.columns) == [ENERGY, POWER]
        assert history.column(MEMORY_USED) is None
        best = history.best([ENERGY, POWER])
        assert best is not None
        assert best.signal is POWER
        assert history.best([MEMORY_USED]) is None
    assert isinstance(Ledger(BUSY_SOURCES).column(GRAPHICS), BusySourceTotals)


def half_busy(ledger: Ledger, signal: Signal, start_s: float, end_s: float, *, step_s: float = 0.1) -> None:
    """Rows of a source that says 50 %."""
    for k in range(round((end_s - start_s) / step_s)):
        a, b = (START + round((start_s + j * step_s) * SECOND) for j in (k, k + 1))
        ledger.append([Sample(signal, a, b, round(0.5 / signal.quantum))])


def busy_s(ledger: Ledger) -> float:
    return sum(signal.base(mass) for signal, mass in ledger.busy.masses.items()) / SECOND


def test_busy_time_goes_on_by_another_source_where_the_best_one_stops_and_comes_back_to_it() -> None:
    ledger = Ledger(BUSY_SOURCES)
    seen = []
    for second in range(60):
        # The better source is away from the 20th to the 40th second.
        if not 20 <= second < 40:
            half_busy(ledger, GRAPHICS, second, second + 1)
        half_busy(ledger, UTILIZATION, second, second + 1, step_s=0.2)
        seen.append((busy_s(ledger), ledger.busy.covered_ns, ledger.busy.signal))
    assert seen == sorted(seen, key=lambda row: row[:2])
    assert ledger.busy.covered_ns / SECOND == pytest.approx(60 - 5, abs=0.3)  # for which the better one was waited
    assert busy_s(ledger) == pytest.approx(ledger.busy.covered_ns / SECOND / 2)
    assert (seen[19][2], seen[30][2], seen[-1][2]) == (GRAPHICS, UTILIZATION, GRAPHICS)


def test_a_better_source_that_is_to_come_is_waited_for_and_one_that_never_comes_is_not() -> None:
    ledger = Ledger(BUSY_SOURCES)
    half_busy(ledger, UTILIZATION, 0, 4)
    assert ledger.busy.signal is None
    half_busy(ledger, UTILIZATION, 4, 10)
    assert ledger.busy.signal is UTILIZATION
    alone = Ledger([UTILIZATION])
    half_busy(alone, UTILIZATION, 0, 1)
    assert alone.busy.covered_ns == SECOND


@given(
    st.lists(
        st.tuples(st.sampled_from(BUSY_SOURCES), st.integers(0, 20 * SECOND), st.integers(1, 2 * SECOND)), max_size=60
    )
)
def test_busy_time_never_goes_back_nor_counts_a_moment_twice(rows: list[tuple[Signal, int, int]]) -> None:
    ledger, ends, before = Ledger(BUSY_SOURCES), dict.fromkeys(BUSY_SOURCES, START), (0.0, 0)
    for signal, gap, length in rows:
        start = ends[signal] + gap
        ends[signal] = end = start + length
        ledger.append([Sample(signal, start, end, round(1 / signal.quantum))])
        now = busy_s(ledger), ledger.busy.covered_ns
        assert now >= before
        assert now[0] == pytest.approx(now[1] / SECOND, abs=1e-6)
        before = now
    if rows:
        assert before[1] <= max(ends.values()) - START


def test_the_exporters_process_loads_no_numpy_to_keep_what_readers_say() -> None:
    code = "import sys, gpu_profile_exporter.reader.readers; sys.exit('numpy' in sys.modules)"
    assert python("-c", code).returncode == 0


@pytest.mark.parametrize("row", [MEMORY_USED, PCIE_RX])
def test_only_window_means_have_a_start_of_their_own(row: Signal) -> None:
    plain, odd = SignalTotals(row), SignalTotals(row)
    for second in range(4):
        end = START + second * SECOND
        plain.append(Sample(row, end, end, 100 + second))
        odd.append(Sample(row, end - SECOND // 2, end, 100 + second))
    assert (odd.total_mass, odd.total_covered_ns) == (plain.total_mass, plain.total_covered_ns)
    assert odd.total_covered_ns == 3 * SECOND

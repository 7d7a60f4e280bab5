import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.analysis import GPU, MS, T0, Run, unpacked

from gpu_profile.analysis.runs import usable
from gpu_profile.analysis.views.drawing import stretches
from gpu_profile.analysis.views.lanes import on_host
from gpu_profile.catalogue.samples import Sample
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, POWER
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.unmixing.windows.activities import Activities
from gpu_profile.recording import SpanRecord
from gpu_profile.report.blocks import MOST_LANES, MOST_TRACKS, Scale, blocks, drawn_lanes, pack, stacked

TREES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40), st.integers(-1, 20)), min_size=1, max_size=24)


def activities(tree: list[tuple[int, int, int]]) -> Activities:
    """Executions in order of their start; a parent is one of those before."""
    rows = sorted((start, -length, parent) for start, length, parent in tree)
    starts = np.array([start for start, _, _ in rows], np.int64)
    ends = starts + np.array([-length for _, length, _ in rows], np.int64)
    parents = np.array([min(parent, i - 1) if parent < i else -1 for i, (_, _, parent) in enumerate(rows)], np.int64)
    return Activities(starts, ends, parents, np.zeros(len(rows), np.int64))


@given(TREES)
def test_on_a_track_any_two_executions_lie_apart_or_one_inside_the_other(tree: list[tuple[int, int, int]]) -> None:
    found = activities(tree)
    tracks, levels = pack(found)
    for i in range(len(tracks)):
        for j in range(i):
            if tracks[i] != tracks[j] or found.starts[i] == found.ends[i] or found.starts[j] == found.ends[j]:
                continue
            a, b, c, d = found.starts[j], found.ends[j], found.starts[i], found.ends[i]
            apart = b <= c or d <= a
            assert (
                apart or (a <= c and d <= b and levels[i] > levels[j]) or (c <= a and b <= d and levels[j] > levels[i])
            )


def test_a_child_is_on_its_parents_track_and_what_overlaps_otherwise_has_one_of_its_own() -> None:
    # A request, another that overlaps it, and a child of the second that would fit inside both.
    starts, ends = np.array([0, 10, 20, 30], np.int64), np.array([100, 110, 40, 40], np.int64)
    tracks, levels = pack(Activities(starts, ends, np.array([-1, -1, 1, 2], np.int64), np.zeros(4, np.int64)))
    assert tracks.tolist() == [0, 1, 1, 1]
    assert levels.tolist() == [0, 0, 1, 2]


def test_more_at_once_than_there_are_lanes_are_folded_into_the_last() -> None:
    count = 300
    starts = np.arange(count, dtype=np.int64)
    none = np.full(count, -1, np.int64)
    tracks, levels = pack(Activities(starts, starts + 1000, none, np.zeros(count, np.int64)))
    rows, many = stacked(tracks, levels)
    assert tracks.max() == MOST_TRACKS - 1
    assert many == MOST_TRACKS
    lanes = drawn_lanes(
        rows, starts, starts + 1000, none + 1, Scale.of(0, 2000), most=count, marked=False, names=["a"] * many
    )
    assert (lanes["count"], lanes["folded"], lanes["executions"]) == (MOST_LANES, True, count)
    assert len(lanes["names"]) == MOST_LANES
    assert unpacked(lanes, "lane").max() == MOST_LANES - 1


def test_a_track_is_used_again_once_nothing_runs_on_it() -> None:
    starts = np.array([0, 5, 20, 22, 30], np.int64)
    ends = np.array([10, 25, 40, 24, 35], np.int64)
    none = np.full(5, -1, np.int64)
    tracks, levels = pack(Activities(starts, ends, none, np.zeros(5, np.int64)))
    assert tracks.tolist() == [0, 1, 0, 2, 1]
    assert levels.tolist() == [0] * 5


def test_spans_without_ids_are_nested_by_time() -> None:
    spans = [SpanRecord("out", T0, T0 + 100), SpanRecord("in", T0 + 10, T0 + 20)]
    lanes = on_host(usable(spans))
    assert lanes is not None
    assert (lanes.tracks.tolist(), lanes.levels.tolist()) == ([0, 0], [0, 1])


# ------------------------------------------------------------------ blocks


@given(
    st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 50), st.integers(0, 3)), min_size=1, max_size=300),
    st.integers(1, 40),
)
def test_blocks_hold_every_execution_and_all_of_their_time(rows: list[tuple[int, int, int]], most: int) -> None:
    gaps, lengths, columns = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    ends = np.cumsum(gaps + lengths)
    starts = ends - lengths
    found = blocks(np.zeros(len(rows), np.int64), starts, ends, columns, most)
    assert found.counts.sum() == len(rows)
    assert (found.fills * np.maximum(found.ends - found.starts, 1)).sum() >= lengths.sum() - 1e-6
    alone = found.counts == 1
    assert {*zip(found.starts[alone].tolist(), found.ends[alone].tolist(), strict=True)} <= {
        *zip(starts.tolist(), ends.tolist(), strict=True)
    }
    assert (np.diff(found.starts) >= 0).all()
    # Blocks of one lane do not lie over each other.
    assert (found.starts[1:] >= found.ends[:-1]).all()
    if len(rows) <= most:
        assert len(found.starts) == len(rows)


def test_a_block_of_several_has_the_region_that_took_most_of_its_time_and_long_executions_stay_alone() -> None:
    starts = np.arange(1000, dtype=np.int64) * 100
    lengths = np.where(np.arange(1000) % 2, 60, 20)
    columns = np.arange(1000, dtype=np.int64) % 2
    lengths[500] = 5_000_000
    starts[501:] += 5_000_000
    found = blocks(np.zeros(1000, np.int64), starts, starts + lengths, columns, 50)
    assert len(found.starts) <= 50
    assert {*found.columns[found.counts > 2]} == {1}
    assert 5_000_000 in (found.ends - found.starts)[found.counts == 1]


# ------------------------------------------------------------------ signals


def timeline(run: Run) -> Timeline:
    found = Timeline(GPU, capacity=20_000)
    for samples in run.samples.values():
        found.append(samples)
    return found


@pytest.mark.parametrize("signal", [GRAPHICS, ENERGY])
def test_fewer_rows_keep_the_whole_integral_and_the_extremes(signal: object) -> None:
    column = next(c for s, c in timeline(Run()).columns.items() if s is signal)
    end = T0 + 30 * 10**9
    whole = stretches(column, T0, end, 10_000)
    few = stretches(column, T0, end, 20)
    assert len(few.mean) <= 20 < len(whole.mean)
    for found in (whole, few):
        mass = (found.mean * (found.ends - found.starts)).sum()
        assert mass == pytest.approx((whole.mean * (whole.ends - whole.starts)).sum())
    assert few.high.max() == whole.high.max()
    assert few.low.min() == whole.low.min()
    assert ((few.low <= few.mean + 1e-9) & (few.mean <= few.high + 1e-9)).all()


def test_a_counter_is_drawn_as_its_growth_per_second() -> None:
    line = Timeline(GPU)
    line.append(Sample(ENERGY, T0 + i * 100 * MS, T0 + i * 100 * MS, 30_000 * i) for i in range(20))
    column = line.column(ENERGY)
    assert column is not None
    found = stretches(column, T0, T0 + 1900 * MS, 1000)
    assert found.mean.tolist() == pytest.approx([300.0] * 19)
    assert found.gaps == ()


def test_windows_shorter_than_their_distance_are_no_gaps_but_missing_readings_are() -> None:
    line = Timeline(GPU)
    stamps = [i for i in range(40) if not 20 <= i < 30]
    line.append(Sample(POWER, T0 + (i * 100 - 25) * MS, T0 + i * 100 * MS, 200_000) for i in stamps)
    column = line.column(POWER)
    assert column is not None
    found = stretches(column, T0 - 25 * MS, T0 + 3900 * MS, 1000)
    assert found.gaps == ((T0 + 1900 * MS, T0 + 2975 * MS),)
    # Each reading stands since the one before.
    assert found.starts[5] == found.ends[4]
    assert found.mean.tolist() == pytest.approx([200.0] * 30)


def test_the_edges_of_the_recording_that_a_signal_does_not_reach_are_gaps() -> None:
    line = Timeline(GPU)
    line.append(Sample(GRAPHICS, T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS, 50) for i in range(10))
    column = line.column(GRAPHICS)
    assert column is not None
    found = stretches(column, T0 - 2000 * MS, T0 + 5000 * MS, 1000)
    assert found.gaps == ((T0 - 2000 * MS, T0), (T0 + 1000 * MS, T0 + 5000 * MS))


def test_a_month_fits_32_bits() -> None:
    month = 30 * 24 * 3600 * 10**9
    scale = Scale.of(T0, T0 + month)
    assert scale.steps(np.array([T0 - 5, T0 + month], np.int64)).tolist()[0] == 0
    assert 0 < scale.steps(np.array([T0 + month], np.int64))[0] < 1 << 32

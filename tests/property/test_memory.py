import sys
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.kernels import Torch

from gpu_profile.kernels.joining.columns import RecordArrays
from gpu_profile.kernels.memory.allocator import AllocatorInterval, AllocatorMeter, AllocatorUse
from gpu_profile.kernels.memory.region import RegionMemory, levels_of, merge, region_memory
from gpu_profile.kernels.memory.timeline import memory_timeline
from gpu_profile.kernels.records import Allocation

moments = st.integers(0, 40)
sizes = st.integers(-9, 9).filter(bool)
windows = st.lists(st.tuples(moments, st.integers(0, 30)).map(lambda w: (w[0], w[0] + w[1])), max_size=6).map(sorted)
memories = st.builds(
    RegionMemory,
    st.sampled_from(["torch", "driver"]),
    st.integers(-1, 1),
    *[st.integers(0, 99)] * 4,
    *[st.none() | st.integers(0, 99)] * 2,
)
regions = st.lists(memories, max_size=5, unique_by=lambda m: (m.source, m.device)).map(lambda found: merge(found, ()))


@st.composite
def histories(draw: st.DrawFn) -> list[Allocation]:
    """One allocator's records in order, with all of their totals or none."""
    total, told = draw(st.integers(0, 50)), draw(st.booleans())
    found = []
    for time in sorted(draw(st.lists(moments, max_size=15))):
        size = draw(sizes)
        total += size
        found.append(Allocation(time, 1, 0, size, total if told else None))
    return found


@given(histories(), windows, st.data())
def test_a_regions_memory_is_what_a_loop_over_each_window_finds(
    records: list[Allocation], spans: list[tuple[int, int]], data: st.DataObject
) -> None:
    members = data.draw(st.lists(st.sampled_from(range(len(records))), unique=True) if records else st.just([]))
    columns = RecordArrays(records)
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    found = region_memory(columns, np.array(members, np.int64), starts, ends, levels_of(columns))

    told = bool(records) and records[0].total is not None
    before = (records[0].total or 0) - records[0].bytes if told else 0
    peaks, rises = [], []
    for start, end in spans:
        held = before + sum(r.bytes for r in records if r.time_ns < start)
        reached = [held]
        for r in records:
            if start <= r.time_ns < end:
                reached.append(reached[-1] + r.bytes)
        peaks.append(max(reached))
        rises.append(max(reached) - held)
    peak = max(peaks) if told and peaks else None
    rise = max(rises) if rises else None
    taken = [records[m].bytes for m in members if records[m].bytes > 0]
    given = [records[m].bytes for m in members if records[m].bytes < 0]
    if records and (members or peak or rise):
        assert found == (RegionMemory("torch", 0, len(taken), sum(taken), len(given), -sum(given), peak, rise),)
    else:
        assert found == ()


@given(histories(), st.integers(4, 12))
def test_a_thinned_timeline_keeps_to_its_size_its_extremes_and_the_truth(
    records: list[Allocation], points: int
) -> None:
    levels = levels_of(RecordArrays(records))
    every, few = memory_timeline(levels), memory_timeline(levels, points=points)
    for whole, thin in zip(every, few, strict=True):
        assert len(thin.times) <= points
        assert (thin.totals.min(), thin.totals.max()) == (whole.totals.min(), whole.totals.max())
        assert (thin.times[0], thin.totals[0], thin.totals[-1]) == (whole.times[0], whole.totals[0], whole.totals[-1])
        steps = set(zip(whole.times.tolist(), whole.totals.tolist(), strict=True))
        assert set(zip(thin.times.tolist(), thin.totals.tolist(), strict=True)) <= steps


@given(regions, regions, regions)
def test_merging_recordings_does_not_depend_on_their_order(
    a: tuple[RegionMemory, ...], b: tuple[RegionMemory, ...], c: tuple[RegionMemory, ...]
) -> None:
    assert merge(a, b) == merge(b, a)
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(a, ()) == a


#: Take so many bytes, give something back (by place), begin an interval, end one (by place).
actions = st.tuples(st.sampled_from(["take", "give", "begin", "end"]), st.integers(0, 5000))


@given(st.lists(actions, max_size=30), st.sampled_from(["native", "cudaMallocAsync"]))
def test_the_true_peak_of_an_interval_is_within_its_bounds(steps: list[tuple[str, int]], backend: str) -> None:
    torch = Torch(backend=backend)
    meter = AllocatorMeter()
    device = torch.devices[0]
    began: list[tuple[AllocatorInterval, int]] = []
    ended: list[tuple[AllocatorInterval, list[int]]] = []
    held: list[int] = []

    def end(place: int) -> None:
        interval, level = began.pop(place)
        interval.end()
        ended.append((interval, device.levels[level:]))

    with _loaded(torch):
        for action, number in steps:
            if action == "take":
                held.append(torch.take(number + 1))
            elif action == "give" and held:
                torch.give(held.pop(number % len(held)))
            elif action == "begin":
                began.append((meter.begin(), len(device.levels) - 1))
            elif action == "end" and began:
                end(number % len(began))
        while began:
            end(-1)
    for interval, levels in ended:
        assert interval.uses is not None
        for use in interval.uses:
            _holds(use, levels, counted=backend == "native")
        assert interval.uses or not any(levels)


def _holds(use: AllocatorUse, levels: list[int], *, counted: bool) -> None:
    assert (use.start_bytes, use.end_bytes) == (levels[0], levels[-1])
    assert use.peak_most_bytes is not None
    assert use.peak_least_bytes <= max(levels) <= use.peak_most_bytes
    assert use.peak_bytes in (None, max(levels))
    rises = [max(0, b - a) for a, b in pairwise(levels)]
    assert use.allocated_bytes == (sum(rises) if counted else None)


class _loaded:  # noqa: N801 - reads as a word
    """`torch` is this; hypothesis gives no fixture for each example."""

    def __init__(self, torch: Torch) -> None:
        self._torch = torch

    def __enter__(self) -> None:
        self._before = sys.modules.get("torch")
        sys.modules["torch"] = self._torch  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            del sys.modules["torch"]
        else:
            sys.modules["torch"] = self._before

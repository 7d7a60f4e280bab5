import gzip
import json

import numpy as np
import pytest
from support.traces import TRACES

from gpu_profile.kernels.joining.columns import RecordArrays
from gpu_profile.kernels.memory.region import AllocatorLevel, levels_of, region_memory
from gpu_profile.kernels.memory.timeline import MemorySteps, memory_timeline
from gpu_profile.kernels.records import Allocation

#: [time in ns or -1 for what was there before, action, bytes, category], as PyTorch's memory profiler saved it.
RAW = TRACES / "hta" / "memory_timeline_raw.gz"


def levels(records: list[Allocation]) -> tuple[AllocatorLevel, ...]:
    return levels_of(RecordArrays(records))


def torch(time: int, size: int, total: int | None = None, device: int = 0) -> Allocation:
    return Allocation(time, 1, device, size, total)


def steps(found: MemorySteps) -> list[tuple[int, int]]:
    return list(zip(found.times.tolist(), found.totals.tolist(), strict=True))


@pytest.fixture(name="raw", scope="module")
def saved_timeline() -> list[tuple[int, int]]:
    return [(time, size) for time, _, size, _ in json.loads(gzip.decompress(RAW.read_bytes()))]


def test_a_timeline_begins_with_the_level_before_its_first_record() -> None:
    (found,) = memory_timeline(levels([torch(10, -300, 200), torch(20, 50, 250)]))
    assert (found.source, found.device, found.absolute) == ("torch", 0, True)
    assert steps(found) == [(10, 500), (10, 200), (20, 250)]


def test_a_window_begins_with_the_level_that_held_and_ends_before_its_end() -> None:
    records = [torch(10, 100, 100), torch(20, 50, 150), torch(30, 50, 200), torch(40, 1, 201)]
    (found,) = memory_timeline(levels(records), window=(15, 40))
    assert steps(found) == [(15, 100), (20, 150), (30, 200)]


def test_a_window_in_which_nothing_happens_is_one_step() -> None:
    (found,) = memory_timeline(levels([torch(10, 100, 100)]), window=(15, 40))
    assert steps(found) == [(15, 100)]


def test_memory_from_before_the_recording_is_the_level_at_its_start() -> None:
    (found,) = memory_timeline(levels([torch(-1, 100), torch(-1, 50), torch(30, 7)]))
    assert (found.absolute, steps(found)) == (False, [(30, 150), (30, 157)])
    (found,) = memory_timeline(levels([torch(-1, 100), torch(-1, 50)]))
    assert steps(found) == [(0, 150)]


def test_each_source_and_device_has_its_own_steps() -> None:
    records = [torch(10, 1, 1, device=1), torch(20, 2, 2), Allocation(5, 1, 0, 4, source="driver")]
    found = memory_timeline(levels(records))
    assert [(each.source, each.device, steps(each)[-1]) for each in found] == [
        ("driver", 0, (5, 4)),
        ("torch", 0, (20, 2)),
        ("torch", 1, (10, 1)),
    ]


def test_nothing_recorded_has_no_timeline() -> None:
    assert memory_timeline(levels([])) == ()


def test_a_long_rest_after_a_thinned_burst_is_drawn_at_its_own_level() -> None:
    changes = [9, -9, 5, -2] * 5
    burst = [torch(time, size) for time, size in enumerate(changes)]
    (found,) = memory_timeline(levels([*burst, torch(1_000_000, 1)]), points=7)
    assert len(found.times) < len(changes)
    assert steps(found)[-2:] == [(19, 15), (1_000_000, 16)]


def test_fewer_than_four_points_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 4, not 3"):
        memory_timeline(levels([torch(10, 1, 1)]), points=3)


def test_a_saved_memory_timeline_is_told_with_its_peak_and_end(raw: list[tuple[int, int]]) -> None:
    assert len(raw) == 16_845
    level = peak = 0
    for _, size in raw:
        level += size
        peak = max(peak, level)
    assert (level, peak) == (332_060_904, 3_082_832_104)

    (whole,) = levels([torch(time, size) for time, size in raw])
    assert (whole.totals.size, int(whole.totals[-1]), int(whole.totals.max())) == (16_845, level, peak)
    for points in (4, 60, 1000, 20_000):
        (found,) = memory_timeline([whole], points=points)
        assert len(found.times) <= points
        assert (int(found.totals[-1]), int(found.totals.max())) == (level, peak)
        assert (np.diff(found.times) >= 0).all()


def test_a_stretch_of_a_saved_memory_timeline_rises_as_counted_in_a_loop(raw: list[tuple[int, int]]) -> None:
    columns = RecordArrays([torch(time, size) for time, size in raw])
    every = levels_of(columns)
    first = min(time for time, _ in raw if time >= 0)
    for start, end in [(first, first + 10**9), (first + 300_000_000, first + 600_000_000), (first + 7, first + 8)]:
        held = sum(size for time, size in raw if time < start)
        level = peak = held
        for time, size in raw:
            if start <= time < end:
                level += size
                peak = max(peak, level)
        window = np.array([start]), np.array([end])
        (memory,) = region_memory(columns, np.zeros(0, np.int64), *window, every) or (None,)
        assert (memory.rise_bytes if memory else 0) == peak - held
        (found,) = memory_timeline(every, window=(start, end))
        assert (steps(found)[0], int(found.totals.max())) == ((start, held), peak)

import numpy as np
import pytest

from gpu_profile.kernels.joining.columns import RecordArrays
from gpu_profile.kernels.memory.region import RegionMemory, levels_of, merge, region_memory
from gpu_profile.kernels.records import HOST, Allocation


def torch(time: int, size: int, total: int | None = None, device: int = 0, source: str = "torch") -> Allocation:
    return Allocation(time, 1, device, size, total, source=source)


def region(records: list[Allocation], members: list[int], *windows: tuple[int, int]) -> tuple[RegionMemory, ...]:
    columns = RecordArrays(records)
    starts, ends = np.array(windows, np.int64).reshape(-1, 2).T
    return region_memory(columns, np.array(members, np.int64), starts, ends, levels_of(columns))


def test_only_members_are_counted_but_everybody_raises_the_peak() -> None:
    records = [torch(10, 100, 1100), torch(20, 500, 1600), torch(30, -500, 1100), torch(40, -100, 1000)]
    assert region(records, [0, 3], (5, 50)) == (RegionMemory("torch", 0, 1, 100, 1, 100, 1600, 600),)


Record = tuple[int, int, int]
Window = tuple[int, int]
#: Records as (time, bytes, level from there on), which of them are the region's, and its executions.
LEVELS: dict[str, tuple[list[Record], list[int], list[Window], tuple[int, int]]] = {
    "the level that held when it began counts for the peak": (
        [(10, 700, 700), (25, -600, 100), (30, 50, 150)], [1, 2], [(20, 40)], (700, 0)
    ),
    "before the first record the level is what that record changed": ([(10, -300, 200)], [0], [(0, 20)], (500, 0)),
    "a window includes its start and not its end": (
        [(10, 100, 100), (20, 100, 200), (30, 100, 300)], [], [(20, 30)], (200, 100)
    ),
    "the highest rise may come from another execution than the highest peak": (
        [(10, 500, 500), (15, -500, 0), (30, 900, 900), (41, 10, 910)], [0, 1, 3], [(5, 20), (40, 50)], (910, 500)
    ),
    "records need not come in order of time": (
        [(30, -100, 0), (10, 60, 60), (20, 40, 100)], [0, 1, 2], [(0, 40)], (100, 100)
    ),
    "records of one moment stay in their order": ([(10, 60, 60), (10, -60, 0), (10, 20, 20)], [], [(0, 40)], (60, 60)),
    "a window without length sees what held then": ([(10, 60, 60), (20, 5, 65)], [], [(20, 20), (15, 12)], (60, 0)),
}  # fmt: skip


@pytest.mark.parametrize(("records", "members", "windows", "expected"), LEVELS.values(), ids=LEVELS)
def test_peak_and_rise_are_of_the_levels_within_the_executions(
    records: list[Record], members: list[int], windows: list[Window], expected: tuple[int, int]
) -> None:
    (memory,) = region([torch(*record) for record in records], members, *windows)
    assert (memory.peak_bytes, memory.rise_bytes) == expected


def test_executions_that_overlap_each_rise_from_their_own_start() -> None:
    records = [torch(10, 100, 100), torch(20, 100, 200), torch(30, 100, 300), torch(40, -250, 50), torch(50, 260, 310)]
    (memory,) = region(records, [], (5, 45), (15, 35), (45, 60))
    assert (memory.peak_bytes, memory.rise_bytes) == (310, 300)
    (memory,) = region(records, [], (15, 35), (45, 60))
    assert memory.rise_bytes == 260


def test_without_totals_the_rise_is_known_and_the_peak_is_not() -> None:
    records = [torch(10, 100, source="driver"), torch(20, 50, source="driver"), torch(30, -150, source="driver")]
    assert region(records, [1], (15, 40)) == (RegionMemory("driver", 0, 1, 50, 0, 0, None, 50),)


def test_a_total_that_one_record_leaves_out_is_rebuilt_from_its_neighbours() -> None:
    records = [torch(10, 100), torch(20, 50, 1000), torch(30, 7), torch(40, -1000)]
    (level,) = levels_of(RecordArrays(records))
    assert (level.absolute, level.before, level.totals.tolist()) == (True, 850, [950, 1000, 1007, 7])


def test_without_an_execution_neither_peak_nor_rise_is_known() -> None:
    assert region([torch(10, 100, 100)], [0]) == (RegionMemory("torch", 0, 1, 100, 0, 0, None, None),)


def test_sources_and_devices_are_told_apart_and_sorted() -> None:
    records = [
        torch(10, 1, 1, device=1),
        torch(10, 2, 2, device=HOST),
        torch(10, 4, 4),
        Allocation(10, 1, 0, 8, source="driver", kind="device"),
    ]
    found = region(records, [0, 1, 2, 3], (0, 20))
    assert [(m.source, m.device, m.allocated_bytes, m.peak_bytes) for m in found] == [
        ("driver", 0, 8, None),
        ("torch", HOST, 2, 2),
        ("torch", 0, 4, 4),
        ("torch", 1, 1, 1),
    ]


def test_a_device_on_which_nothing_is_held_and_nothing_happens_is_left_out() -> None:
    records = [torch(10, 100, 100), torch(50, 100, 100, device=1), torch(60, -100, 0, device=1)]
    assert [m.device for m in region(records, [0], (0, 20))] == [0]


def test_memory_that_a_region_merely_finds_is_its_peak() -> None:
    assert region([torch(10, 100, 100)], [], (20, 30)) == (RegionMemory("torch", 0, 0, 0, 0, 0, 100, 0),)


def test_no_allocations_make_no_memory() -> None:
    assert region([], [], (0, 10)) == ()


def test_sums_of_bytes_are_exact_beyond_what_a_float_holds() -> None:
    big = (1 << 53) + 1
    (memory,) = region([torch(10, big, big), torch(20, 1, big + 1)], [0, 1], (0, 30))
    assert (memory.allocated_bytes, memory.peak_bytes) == (big + 1, big + 1)


def test_two_recordings_add_up_their_counts_and_keep_the_higher_peak() -> None:
    one = RegionMemory("torch", 0, 1, 10, 2, 20, 100, 5), RegionMemory("driver", 0, 1, 1, 0, 0, None, 1)
    other = RegionMemory("torch", 0, 3, 30, 4, 40, 90, 7), RegionMemory("driver", 0, 1, 2, 0, 0, None, None)
    assert merge(one, other) == (
        RegionMemory("driver", 0, 2, 3, 0, 0, None, 1),
        RegionMemory("torch", 0, 4, 40, 6, 60, 100, 7),
    )


def test_what_only_one_recording_has_stays_as_it_is() -> None:
    part = RegionMemory("torch", 1, 1, 10, 2, 20, 100, 5)
    assert merge((part,), ()) == merge((), (part,)) == (part,)


@pytest.mark.parametrize("overlap", [1, 5_000])
def test_many_windows_are_found_as_one_by_one(overlap: int) -> None:
    rng = np.random.default_rng(4)
    total, records = 0, []
    for time in range(2_000):
        size = int(rng.choice([1, -1]) * rng.integers(1, 1000))
        total += size
        records.append(torch(time * 5, size, total))
    starts, lengths = rng.integers(0, 10_000, 300), rng.integers(0, overlap, 300)
    windows = sorted(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))
    one_by_one = [region(records, [], window)[0] for window in windows]
    (memory,) = region(records, [], *windows)
    assert memory.peak_bytes == max(m.peak_bytes or 0 for m in one_by_one)
    assert memory.rise_bytes == max(m.rise_bytes or 0 for m in one_by_one)

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest
from support.concurrency import in_threads
from support.kernels import BLOCK, Torch
from support.programs import printed

from gpu_profile.errors import UsageError
from gpu_profile.kernels.memory.allocator import AllocatorInterval, AllocatorMeter, AllocatorUse, snapshot

K = BLOCK


@pytest.fixture(name="torch")
def loaded(monkeypatch: pytest.MonkeyPatch) -> Torch:
    return load(Torch(), monkeypatch)


T = TypeVar("T")


def load(torch: T, monkeypatch: pytest.MonkeyPatch) -> T:
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def only(interval: AllocatorInterval) -> AllocatorUse:
    assert interval.uses is not None
    (use,) = interval.uses
    return use


def test_a_region_that_raises_the_process_peak_has_it_exactly(torch: Torch) -> None:
    kept = torch.take(4 * K)
    with AllocatorMeter().begin() as interval:
        torch.give(torch.take(6 * K))
        torch.give(kept)
    use = only(interval)
    assert (use.start_bytes, use.end_bytes, use.peak_bytes) == (4 * K, 0, 10 * K)
    assert (use.allocations, use.allocated_bytes, use.frees, use.freed_bytes) == (1, 6 * K, 2, 10 * K)


def test_a_peak_below_an_earlier_one_is_only_known_between_bounds(torch: Torch) -> None:
    torch.give(torch.take(100 * K))
    with AllocatorMeter().begin() as interval:
        torch.give(torch.take(3 * K))
        torch.give(torch.take(5 * K))
    use = only(interval)
    assert use.peak_bytes is None
    assert (use.peak_least_bytes, use.peak_most_bytes) == (0, 8 * K)


def test_an_earlier_peak_bounds_one_that_could_have_been_higher(torch: Torch) -> None:
    torch.give(torch.take(10 * K))
    with AllocatorMeter().begin() as interval:
        for _ in range(5):
            torch.give(torch.take(3 * K))
    assert only(interval).peak_most_bytes == 10 * K


def test_a_region_that_only_takes_has_its_peak_exactly_even_below_an_earlier_one(torch: Torch) -> None:
    torch.give(torch.take(100 * K))
    with AllocatorMeter().begin() as interval:
        torch.take(2 * K)
    assert only(interval).peak_bytes == 2 * K


def test_an_inner_interval_narrows_the_bounds_of_the_outer_one(torch: Torch) -> None:
    torch.give(torch.take(100 * K))
    meter = AllocatorMeter()
    with meter.begin() as outer:
        held = torch.take(7 * K)
        with meter.begin() as inner:
            torch.give(held)
        torch.take(K)
    assert only(inner).peak_bytes == 7 * K
    assert only(outer).peak_bytes == 7 * K


def test_an_interval_that_ends_after_the_one_it_began_in_sees_its_own_time_only(torch: Torch) -> None:
    meter = AllocatorMeter()
    first = meter.begin()
    held = torch.take(9 * K)
    second = meter.begin()
    torch.give(held)
    first.end()
    third = meter.begin()
    torch.take(2 * K)
    second.end()
    third.end()
    assert [only(each).peak_bytes for each in (first, second, third)] == [9 * K, 9 * K, 2 * K]


def test_threads_share_a_meter(torch: Torch) -> None:
    meter = AllocatorMeter()
    found: list[AllocatorInterval] = []

    def work() -> None:
        with meter.begin() as interval:
            torch.take(K)
        found.append(interval)

    in_threads(*[work] * 8)
    assert all((only(each).allocated_bytes or 0) >= K for each in found)
    assert len(found) == 8


def test_each_device_that_was_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = load(Torch(devices=3), monkeypatch)
    torch.take(K, device=2)
    with AllocatorMeter().begin() as interval:
        torch.take(5 * K, device=1)
    assert interval.uses is not None
    assert [(use.device, use.start_bytes, use.peak_bytes) for use in interval.uses] == [(1, 0, 5 * K), (2, K, K)]


def test_only_the_devices_that_were_asked_for_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = load(Torch(devices=3), monkeypatch)
    with AllocatorMeter(devices=[1]).begin():
        pass
    assert set(torch.asked) == {"stats 1"}


def test_nothing_is_reset(torch: Torch) -> None:
    torch.give(torch.take(10 * K))
    before = {name: dict(counts) for name, counts in torch.devices[0].stats.items()}
    with AllocatorMeter().begin():
        pass
    assert torch.devices[0].stats == before


def test_memory_is_counted_from_nothing_if_cuda_starts_within_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = load(Torch(started=False), monkeypatch)
    with AllocatorMeter().begin() as interval:
        torch.started = True
        torch.give(torch.take(2 * K))
    assert torch.asked == ["stats 0"]
    assert (only(interval).start_bytes, only(interval).peak_bytes) == (0, 2 * K)


def test_without_cuda_there_is_nothing_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = load(Torch(started=False), monkeypatch)
    with AllocatorMeter().begin() as interval:
        assert interval.uses is None
        assert "not ended" in interval.reason
    assert interval.uses is None
    assert "not initialised CUDA" in interval.reason
    assert torch.asked == []


def test_without_pytorch_there_is_nothing_and_it_is_not_imported() -> None:
    program = (
        "import sys; from gpu_profile.kernels.memory.allocator import AllocatorMeter\n"
        "with AllocatorMeter().begin() as interval: pass\n"
        "assert interval.uses is None and 'torch' not in sys.modules\n"
        "print(interval.reason)"
    )
    assert "PyTorch is not loaded" in printed("-c", program)


def test_a_pytorch_that_is_still_being_imported_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for torch in (SimpleNamespace(), SimpleNamespace(cuda=SimpleNamespace())):
        load(torch, monkeypatch)
        with AllocatorMeter().begin() as interval:
            pass
        assert "not initialised CUDA" in interval.reason


def test_an_allocator_without_counters_still_tells_its_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = load(Torch(backend="cudaMallocAsync"), monkeypatch)
    torch.give(torch.take(10 * K))
    with AllocatorMeter().begin() as interval:
        torch.take(2 * K)
    use = only(interval)
    assert (use.allocations, use.allocated_bytes, use.frees, use.freed_bytes) == (None, None, None, None)
    assert (use.peak_least_bytes, use.peak_most_bytes) == (2 * K, 10 * K)


def test_without_counters_what_came_and_went_below_an_earlier_peak_is_told_as_possible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = load(Torch(backend="cudaMallocAsync"), monkeypatch)
    with AllocatorMeter().begin() as unused:
        pass
    torch.give(torch.take(10 * K))
    with AllocatorMeter().begin() as interval:
        torch.give(torch.take(2 * K))
    assert unused.uses == ()
    assert (only(interval).peak_least_bytes, only(interval).peak_most_bytes) == (0, 10 * K)


def test_counters_that_somebody_reset_are_not_told(torch: Torch) -> None:
    with AllocatorMeter().begin() as interval:
        torch.take(3 * K)
        torch.reset_counts()
        torch.take(2 * K)
    assert (only(interval).allocated_bytes, only(interval).peak_bytes) == (None, 5 * K)


def test_a_peak_that_somebody_reset_is_bounded_by_what_was_taken(torch: Torch) -> None:
    torch.give(torch.take(100 * K))
    with AllocatorMeter().begin() as interval:
        torch.give(torch.take(3 * K))
        torch.reset_peak()
        torch.give(torch.take(K))
    use = only(interval)
    assert (use.peak_least_bytes, use.peak_most_bytes) == (K, 4 * K)


def test_a_reset_peak_without_counters_has_no_upper_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = load(Torch(backend="cudaMallocAsync"), monkeypatch)
    torch.give(torch.take(100 * K))
    with AllocatorMeter().begin() as interval:
        torch.reset_peak()
        torch.take(K)
    assert (only(interval).peak_least_bytes, only(interval).peak_most_bytes) == (K, None)
    assert only(interval).peak_bytes is None


def test_an_allocator_that_has_no_statistics_says_so(torch: Torch) -> None:
    def refuse(_: int) -> None:
        raise RuntimeError("this allocator does not support getDeviceStats\nC++ stack")

    torch.cuda.memory_stats_as_nested_dict = refuse
    with AllocatorMeter().begin() as interval:
        pass
    assert interval.uses is None
    assert interval.reason.endswith("cannot be read: this allocator does not support getDeviceStats")


def test_an_interval_with_one_failed_reading_is_not_told_from_the_others(torch: Torch) -> None:
    works = torch.cuda.memory_stats_as_nested_dict
    torch.take(5 * K)
    meter = AllocatorMeter()
    torch.cuda.memory_stats_as_nested_dict = lambda _: {}
    with meter.begin() as failed:
        torch.cuda.memory_stats_as_nested_dict = works
    with meter.begin() as good:
        pass
    assert (failed.uses, "allocated_bytes" in failed.reason) == (None, True)
    assert only(good).peak_bytes == 5 * K


def test_an_interval_ends_once(torch: Torch) -> None:
    interval = AllocatorMeter().begin()
    torch.take(K)
    interval.end()
    torch.take(K)
    interval.end()
    assert only(interval).end_bytes == K


def test_an_interval_ends_when_its_region_fails(torch: Torch) -> None:
    def fail() -> None:
        torch.take(K)
        raise ValueError("out of cheese")

    interval = AllocatorMeter().begin()
    with pytest.raises(ValueError, match="cheese"), interval:
        fail()
    assert only(interval).allocated_bytes == K


def test_a_snapshot_is_told_and_written(torch: Torch, tmp_path: Path) -> None:
    torch.take(700)
    path = tmp_path / "memory.pickle"
    segments = snapshot(path)
    assert [block["requested_size"] for segment in segments for block in segment["blocks"]] == [700]
    assert pickle.loads(path.read_bytes())["segments"] == segments  # noqa: S301 - the stand-in wrote it
    assert snapshot() == segments


def test_a_snapshot_that_cannot_be_had_says_what_is_missing(torch: Torch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere/x: No such file"):
        snapshot(tmp_path / "nowhere" / "x")
    torch.cuda.memory = SimpleNamespace()
    with pytest.raises(UsageError, match="x: this PyTorch cannot write snapshots"):
        snapshot(tmp_path / "x")

    def refuse() -> None:
        raise RuntimeError("cudaMallocAsync does not yet support snapshot")

    torch.cuda.memory_snapshot = refuse
    with pytest.raises(UsageError, match="no snapshot of PyTorch's memory: cudaMallocAsync"):
        snapshot()
    torch.started = False
    with pytest.raises(UsageError, match=r"no snapshot .* put a tensor on the GPU first"):
        snapshot()


def test_the_stand_in_answers_what_the_installed_pytorch_has() -> None:
    real = pytest.importorskip("torch")
    stand_in = Torch().cuda
    assert {name for name in vars(stand_in) if not hasattr(real.cuda, name)} == set()
    assert {name for name in vars(stand_in.memory) if not hasattr(real.cuda.memory, name)} == set()

import sys
from types import SimpleNamespace

import pytest
from support.kernels import Torch

from gpu_profile.errors import UsageError
from gpu_profile.kernels.memory.history import recording_history
from gpu_profile.testing import FakeClock

US = 1_000
START_US = 1_000


@pytest.fixture(name="torch")
def loaded(monkeypatch: pytest.MonkeyPatch) -> Torch:
    torch = Torch(devices=2)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


@pytest.fixture(name="clock")
def started() -> FakeClock:
    return FakeClock(START_US * US)


def at(torch: Torch, us: int) -> None:
    torch.now_us = START_US + us


def ns(us: int) -> int:
    return (START_US + us) * US


def test_each_stretch_of_time_has_its_own_exact_peak(torch: Torch, clock: FakeClock) -> None:
    torch.take(1000)
    with recording_history(clock=clock) as history:
        at(torch, 10)
        big = torch.take(500)
        at(torch, 20)
        torch.give(big)
        at(torch, 30)
        small = torch.take(70)
        at(torch, 40)
        torch.give(small)
    assert history.reason == ""
    assert history.peak_bytes(0, ns(0), ns(50)) == 1500
    assert history.peak_bytes(0, ns(25), ns(35)) == 1070
    assert history.peak_bytes(0, ns(15), ns(25)) == 1500
    assert history.peak_bytes(0, ns(22), ns(28)) == 1000


def test_records_carry_what_was_asked_for_and_the_total_after_it(torch: Torch, clock: FakeClock) -> None:
    torch.take(1000)
    with recording_history(clock=clock) as history:
        at(torch, 10)
        torch.give(torch.take(500))
    assert [(r.time_ns, r.device, r.bytes, r.total) for r in history.records] == [
        (ns(10), 0, 500, 1500),
        (ns(10), 0, -500, 1000),
    ]


def test_a_device_without_an_allocation_keeps_what_it_held(torch: Torch, clock: FakeClock) -> None:
    torch.take(300, device=1)
    with recording_history(clock=clock) as history:
        torch.take(5)
    assert history.peak_bytes(1, ns(0), ns(9)) == 300
    assert history.peak_bytes(2, ns(0), ns(9)) is None


def test_time_that_the_history_does_not_reach_back_to_is_not_told(torch: Torch, clock: FakeClock) -> None:
    with recording_history(max_entries=3, clock=clock) as history:
        for step in range(6):
            at(torch, 10 * step)
            torch.take(100)
    assert len(history.records) == 3
    assert history.peak_bytes(0, ns(15), ns(60)) is None
    assert history.peak_bytes(0, ns(35), ns(45)) == 500
    assert history.peak_bytes(0, ns(-5), ns(60)) is None
    assert history.peak_bytes(1, ns(15), ns(60)) == 0


def test_before_the_end_nothing_is_told(torch: Torch, clock: FakeClock) -> None:
    with recording_history(clock=clock) as history:
        assert history.peak_bytes(0, ns(0), ns(9)) is None
        assert "not ended" in history.reason


def test_the_history_is_bounded_has_no_stacks_and_is_let_go_of(torch: Torch, clock: FakeClock) -> None:
    with recording_history(max_entries=7, clock=clock):
        assert torch.history == {"context": None, "stacks": "python", "max_entries": 7}
    assert torch.history is None


def test_a_history_that_somebody_records_already_goes_on(torch: Torch, clock: FakeClock) -> None:
    torch._record("all", max_entries=2)
    at(torch, -50)
    torch.take(1)
    with recording_history(clock=clock) as history:
        at(torch, 10)
        torch.take(10)
    assert torch.history == {"max_entries": 2}
    assert history.peak_bytes(0, ns(0), ns(20)) == 11
    with recording_history(clock=clock) as history:
        for step in (20, 30, 40):
            at(torch, step)
            torch.take(100)
    assert history.peak_bytes(0, ns(15), ns(50)) is None
    assert history.peak_bytes(0, ns(35), ns(50)) == 311


def test_a_failing_region_ends_the_history_and_keeps_it(torch: Torch, clock: FakeClock) -> None:
    def fail() -> None:
        torch.take(8)
        raise ValueError("out of cheese")

    with pytest.raises(ValueError, match="cheese"), recording_history(clock=clock) as found:
        fail()
    assert torch.history is None
    assert len(found.records) == 1


def test_a_history_that_cannot_be_read_says_why(torch: Torch, clock: FakeClock) -> None:
    with recording_history(clock=clock) as history:
        torch.take(8)
        del torch.devices[0].trace[0]["time_us"]
    assert (history.records, history.peak_bytes(0, ns(0), ns(9))) == ((), None)
    assert "time_us" in history.reason
    assert torch.history is None


def test_a_history_that_cannot_be_had_says_what_is_missing(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="max_entries must be at least 1, not 0"), recording_history(max_entries=0):
        pass

    def old(*, enabled: bool) -> None:
        raise AssertionError

    torch.cuda.memory._record_memory_history = old
    with pytest.raises(UsageError, match=r"no history of PyTorch's memory: .*context"), recording_history():
        pass
    torch.cuda.memory = SimpleNamespace()
    with pytest.raises(UsageError, match=r"2\.2 or newer is needed"), recording_history():
        pass
    torch.started = False
    with pytest.raises(UsageError, match="put a tensor on the GPU first"), recording_history():
        pass
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(UsageError, match="PyTorch is not loaded"), recording_history():
        pass

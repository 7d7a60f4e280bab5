"""Marks on a device that other processes have in turn with this one: no base can be had at once, so one has to wait."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.cuda import SLICE_S, FakeCuda, fake_clock, fake_cuda, fake_torch, in_thread, no_frameworks, stream_now
from support.regions import Stage

from gpu_profile import region
from gpu_profile.clock import Waitable
from gpu_profile.regions.frameworks import events, find_stream
from gpu_profile.regions.session import process
from gpu_profile.regions.streams import UNMARKED
from gpu_profile.testing import FakeClock
from gpu_profile.units import nanoseconds

MICROSECOND = 1_000
MILLISECOND = 1_000_000
#: Beside this process; a turn of all of them takes 28 ms.
OTHERS = 13
#: One pause and the calls beside it.
OFF = 30 * MICROSECOND

__all__ = ["fake_clock", "fake_cuda", "fake_torch", "no_frameworks"]


@pytest.fixture(autouse=True)
def shared(cuda: FakeCuda) -> None:
    cuda.others = OTHERS
    cuda.yield_to_program()


def refused(stream: Any, mark: object = UNMARKED) -> None:
    with pytest.raises(LookupError):
        stream.resolve(mark)


def took_ns(clock: FakeClock, call: Callable[[], object]) -> int:
    began_ns = clock.elapsed_ns()
    call()
    return clock.elapsed_ns() - began_ns


def before_each_wait(clock: FakeClock, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have `act` called whenever somebody begins to wait."""

    def wait(event: Waitable, timeout_s: float) -> bool:
        act()
        return FakeClock.wait(clock, event, timeout_s)

    monkeypatch.setattr(clock, "wait", wait)


# ---------------------------------------------------------------------- who waits


def test_who_resolves_waits_for_a_base_and_marks_that_follow_are_right(
    torch: Any, cuda: FakeCuda, clock: FakeClock
) -> None:
    stream = stream_now(clock)
    assert stream.record() is UNMARKED
    refused(stream)  # that mark is lost, but from now on there is a base
    cuda.yield_to_program()
    done_ns = cuda.launch(0.001)
    mark = stream.record()
    assert stream.resolve(mark) is None
    clock.advance(0.1)
    assert stream.resolve(mark) == pytest.approx(done_ns, abs=OFF)
    assert cuda.waits == []


def test_who_records_never_waits(torch: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    before_each_wait(clock, monkeypatch, lambda: pytest.fail("it waits"))
    stream = stream_now(clock)
    for _ in range(30):
        clock.advance(0.5)
        assert took_ns(clock, stream.record) < MILLISECOND / 2


def test_a_wait_ends_and_is_repeated_once_a_second(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    cuda.one_queue = True
    cuda.launch(3.0)  # nothing overtakes it: there is no base
    stream = stream_now(clock)
    longest = nanoseconds(events.PATIENCE_S) + MILLISECOND
    for _ in range(5):
        assert MILLISECOND < took_ns(clock, lambda: refused(stream)) < longest
        assert took_ns(clock, lambda: refused(stream)) < 10 * MICROSECOND
        clock.advance(0.9)
        # That it cannot be had at once is found meanwhile, and takes nobody's turn.
        assert took_ns(clock, stream.record) < MILLISECOND
        clock.advance(0.1)


def test_nobody_waits_for_who_waits(
    torch: Any, cuda: FakeCuda, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_now(clock)
    refused(stream)
    first, second = stream.record(), stream.record()
    clock.advance(events.STALE_S + 1)
    cuda.yield_to_program()
    found: list[Any] = []

    def meanwhile() -> None:
        if not found:
            found.append(in_thread(stream.record))
            found.append(in_thread(lambda: stream.resolve(second)))

    before_each_wait(clock, monkeypatch, meanwhile)
    moment = stream.resolve(first)  # it is time for another base, too
    assert found[0] is not UNMARKED
    assert found[1] == pytest.approx(moment, abs=10 * MICROSECOND)
    assert stream.record().base is not found[0].base


def test_with_a_base_that_is_new_enough_nobody_waits(
    torch: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_now(clock)
    refused(stream)
    before_each_wait(clock, monkeypatch, lambda: pytest.fail("it waits"))
    mark = stream.record()
    clock.advance(events.RENEW_S - 1)
    refused(stream)
    assert stream.resolve(mark) is not None


# ---------------------------------------------------------------------- what it is worth


@pytest.mark.parametrize("drift", [1e-4, -1e-4])
def test_for_minutes_marks_stay_within_half_a_millisecond_though_the_clocks_drift(
    drift: float, torch: Any, cuda: FakeCuda, clock: FakeClock
) -> None:
    cuda.drift = drift
    stream, worst = stream_now(clock), 0
    refused(stream)
    for _ in range(100):
        done_ns = cuda.launch(0.005)  # runs in three slices
        mark = stream.record()
        clock.advance(4.9871)
        worst = max(worst, abs(stream.resolve(mark) - done_ns))
    assert worst < MILLISECOND / 2 + OFF


def test_a_clock_that_is_set_back_just_as_the_device_passes_makes_no_wrong_base(
    torch: Any, cuda: FakeCuda, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns_s = 100 * SLICE_S * (1 + OTHERS)
    stream = stream_now(clock)
    left = [True]

    def set_back() -> None:
        awaited_ns = max(event.passed_ns or 0 for event in cuda.events.values()) - clock.now_ns()
        if left and awaited_ns < nanoseconds(events.PAUSE_S):
            left.clear()
            clock.set_back(turns_s)
            for event in cuda.events.values():
                assert event.passed_ns is not None
                event.passed_ns -= nanoseconds(turns_s)  # the device's clock was not set back with the host's

    before_each_wait(clock, monkeypatch, set_back)
    assert took_ns(clock, lambda: refused(stream)) < nanoseconds(events.PATIENCE_S) + MILLISECOND
    assert not left
    done_ns = cuda.launch(0.001)
    mark = stream.record()
    clock.advance(0.1)
    assert stream.resolve(mark) == pytest.approx(done_ns, abs=OFF)


def test_a_capture_is_not_spoiled_by_who_waits(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    stream, side = stream_now(clock), cuda.new_stream()
    torch.use(0, side)
    with cuda.capture(side):
        mark = stream.record()
        assert mark is UNMARKED
        in_thread(lambda: refused(stream, mark))
    assert not cuda.spoiled
    assert stream.record() is not UNMARKED


def test_a_lost_context_is_found_without_a_base_and_nobody_waits_for_it_any_more(
    torch: Any, cuda: FakeCuda, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    stream = stream_now(clock)
    cuda.failed = True
    with caplog.at_level(logging.WARNING, logger="gpu_profile"):
        for _ in range(10):
            refused(stream, stream.record())
            clock.advance(1.0)
    assert stream.lost
    assert len(caplog.records) == 1
    assert took_ns(clock, lambda: refused(stream)) == 0


def test_attempts_that_fail_take_up_no_events(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    cuda.one_queue = True
    cuda.launch(200.0)
    stream = stream_now(clock)
    for _ in range(100):
        refused(stream, stream.record())
        clock.advance(1.0)
    assert len(cuda.events) <= 2


# ---------------------------------------------------------------------- with regions


def test_regions_have_the_devices_interval_but_for_the_first(
    torch: Any, cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stage(tmp_path, monkeypatch, on_device=False) as stage:
        cuda.clock = stage.clock
        cuda.yield_to_program()
        process.use_stream(find_stream(clock=stage.clock))
        done = []
        for _ in range(3):
            with region("step"):
                done.append(cuda.launch(0.009))
            stage.run(0.3)
            cuda.yield_to_program()
        intervals = [execution.interval() for execution in stage.ended]
    assert [interval and interval.source for interval in intervals] == ["host", "device", "device"]
    assert [interval and interval.end_ns for interval in intervals[1:]] == pytest.approx(done[1:], abs=OFF)

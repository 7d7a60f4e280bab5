import logging
import os
import re
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cuda import FakeCuda, fake_clock, fake_cuda, fake_torch, in_thread, no_frameworks, stream_now
from support.regions import Stage

from gpu_profile import region
from gpu_profile.catalogue.samples import Interval
from gpu_profile.regions.execution import Execution, resolve_together
from gpu_profile.regions.frameworks import current_device, events, find_stream, libcuda
from gpu_profile.regions.frameworks.libcuda import CudaError
from gpu_profile.regions.session import process
from gpu_profile.regions.streams import UNMARKED, resolving
from gpu_profile.testing import FakeClock

MICROSECOND = 1_000
MILLISECOND = 1_000_000


__all__ = ["fake_clock", "fake_cuda", "fake_torch", "no_frameworks"]


# ---------------------------------------------------------------------- marks


def test_a_mark_resolves_to_the_moment_at_which_the_stream_passed_it_and_nobody_waits(
    torch: Any, cuda: FakeCuda, clock: FakeClock
) -> None:
    stream = stream_now(clock)
    assert stream.device_uuid == "GPU-0"
    first = stream.record()
    done_ns = cuda.launch(0.25)
    last = stream.record()
    assert stream.resolve(first) == pytest.approx(clock.now_ns(), abs=20 * MICROSECOND)
    assert stream.resolve(last) is None
    clock.advance(0.3)
    assert stream.resolve(last) == pytest.approx(done_ns, abs=10 * MICROSECOND)
    assert cuda.waits == []


def test_marks_follow_the_threads_current_stream(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    side = cuda.new_stream()
    cuda.launch(1.0)
    done_ns = cuda.launch(0.5, side)

    def on_side() -> Any:
        torch.use(0, side)
        return stream_now(clock).record()

    mark = in_thread(on_side)
    clock.advance(0.6)
    stream = stream_now(clock)
    assert stream.resolve(mark) == pytest.approx(done_ns, abs=10 * MICROSECOND)
    assert stream.resolve(stream.record()) is None  # this thread's is still at work


def test_each_device_has_its_own_base_and_an_end_stays_on_the_device_of_its_start(
    torch: Any, cuda: FakeCuda, clock: FakeClock
) -> None:
    cuda.contexts.add(1)
    cuda.streams[1] = events_stream = type(cuda.streams[0])(1)
    stream = stream_now(clock)
    torch.use(1)
    other = stream_now(clock)
    assert (stream.device_uuid, other.device_uuid) == ("GPU-0", "GPU-1")
    cuda.launch(5.0, 1)
    assert events_stream.tail_ns > clock.now_ns()
    mark, behind = stream.record(), other.record()
    assert stream.resolve(mark) is not None
    assert other.resolve(behind) is None
    assert stream_now(clock) is other


def test_a_capture_gives_no_mark_and_is_not_spoiled_by_another_thread_that_resolves(
    torch: Any, cuda: FakeCuda, clock: FakeClock
) -> None:
    stream, side = stream_now(clock), cuda.new_stream()
    before = stream.record()
    torch.use(0, side)
    with cuda.capture(side):
        mark = stream.record()
        assert in_thread(lambda: stream.resolve(before)) is not None
        clock.advance(events.RENEW_S + 1)
        assert in_thread(lambda: stream.resolve(in_thread(stream.record))) is not None
    assert not cuda.spoiled
    assert mark is UNMARKED
    with pytest.raises(LookupError):
        stream.resolve(mark)


def test_no_stream_is_made_in_a_capture(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    side = cuda.new_stream()
    torch.use(0, side)
    with cuda.capture(side):
        assert stream_now(clock) is None
    assert not cuda.spoiled
    assert stream_now(clock) is not None


@pytest.mark.parametrize("drift", [1e-4, -1e-4])
def test_over_hours_marks_stay_within_half_a_millisecond_though_the_clocks_drift(
    drift: float, torch: Any, cuda: FakeCuda, clock: FakeClock
) -> None:
    cuda.drift = drift
    worst = 0
    for _ in range(2 * 360):
        stream = stream_now(clock)
        done_ns = cuda.launch(0.05)
        mark = stream.record()
        clock.advance(10.0)
        worst = max(worst, abs(stream.resolve(mark) - done_ns))
    assert worst < MILLISECOND / 2


def test_many_marks_are_resolved_in_one_block_as_each_by_itself(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    stream, side = stream_now(clock), cuda.new_stream()
    done = [cuda.launch(0.001 * n) for n in range(3)]
    marks, here = [stream.record()], cuda.current()
    clock.advance(0.001)
    with cuda.capture(side), resolving([stream, None, stream, object()]):  # type: ignore[list-item]
        assert stream.resolve(marks[0]) is None
        clock.advance(0.1)
        assert stream.resolve(marks[0]) == pytest.approx(done[-1], abs=50 * MICROSECOND)
        # Another thread is in no block.
        assert in_thread(lambda: stream.resolve(stream.record())) is not None
    assert cuda.current() == here
    assert not cuda.spoiled
    assert stream.resolve(marks[0]) == pytest.approx(done[-1], abs=50 * MICROSECOND)


def test_executions_are_resolved_together_as_each_by_itself(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    stream = stream_now(clock)

    def run(seconds: float, *, marked: bool = True) -> Execution:
        execution = Execution("step")
        execution.start_ns = clock.now_ns()
        execution.mark_start(stream)
        cuda.launch(seconds)
        execution.end_mark = stream.record() if marked else UNMARKED
        execution.end_ns = clock.now_ns()
        return execution

    executions = [run(0.01), run(0.02), run(0.5), run(0.01, marked=False)]
    clock.advance(0.1)
    assert resolve_together(executions) == {id(executions[2])}, "the last one is to be asked for by itself"
    first, second, third, unmarked = [execution.on_device_ns for execution in executions]
    assert second[0] == first[1]
    assert (second[1] or 0) - (second[0] or 0) == pytest.approx(0.02e9, abs=1000)
    assert executions[2].active() == (second[1], None), "begun, and not yet over"
    assert third == unmarked == (None, None)
    clock.advance(1.0)
    assert resolve_together(executions) == set()
    third_now = executions[2].interval()
    assert third_now is not None
    assert third_now.source == "device"
    assert third_now.end_ns - third_now.start_ns == pytest.approx(0.5e9, abs=1000)
    assert executions[3].interval() == executions[3].host, "there is no mark of its end"
    assert stream.resolve(stream.record()) is not None

    class Other:
        device_uuid = "GPU-0"

        def record(self) -> int:
            return 1

        def resolve(self, mark: int) -> int:
            return 7

    class Broken(Other):
        @property
        def moments(self) -> Any:
            raise RuntimeError("a property")

    class Short(Other):
        def moments(self, marks: list[object]) -> list[int | None]:
            return []

    class Uncomparable:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("a mark that cannot be compared")

        __hash__ = None  # type: ignore[assignment]

    others = []
    for theirs, mark in ((Other(), 1), (Broken(), 1), (Short(), Uncomparable())):
        others.append(Execution("step"))
        others[-1].mark_start(theirs)
        others[-1].end_mark, others[-1].end_ns = mark, 8
    on_host = Execution("step")
    on_host.start_ns, on_host.end_ns = 1, 8
    late = run(0.01)
    clock.advance(1.0)
    cuda.failed = True
    assert resolve_together([*others, late, on_host]) == set()
    assert [other.interval() for other in others] == [Interval(7, 7, "device")] * 3, "they resolve one by one"
    assert late.interval() == late.host, "the device cannot tell any more"


def test_an_execution_that_two_threads_resolve_has_both_moments(
    torch: Any, cuda: FakeCuda, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, execution = stream_now(clock), Execution("step")
    execution.mark_start(stream)
    cuda.launch(0.01)
    execution.end_mark, execution.end_ns = stream.record(), clock.now_ns()
    resolve, moments = stream.resolve, stream.moments

    def other_thread_first(marks: Any) -> list[int | None]:
        clock.advance(0.1)
        assert execution.on_device() is not None
        return [None] * len(marks)

    monkeypatch.setattr(stream, "moments", other_thread_first)
    resolve_together([execution])
    whole = execution.on_device_ns
    assert None not in whole
    assert execution.interval() == Interval(whole[0] or 0, whole[1] or 0, "device")

    # The same of one that is asked for by itself: while it has the start, another thread finds both.
    execution.mark_start(stream)
    cuda.launch(0.01)
    execution.end_mark = stream.record()

    def slow(mark: Any) -> int | None:
        found: int | None = resolve(mark)
        if mark is not execution.start_mark and found is None:
            clock.advance(0.1)
            assert moments([mark, execution.start_mark])[0] is not None
            resolve_together([execution])
        return found

    monkeypatch.setattr(stream, "moments", moments)
    monkeypatch.setattr(stream, "resolve", slow)
    execution.on_device()
    assert None not in execution.on_device_ns


def test_failures_that_are_not_in_a_row_do_not_end_the_marks(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    stream = stream_now(clock)
    for _ in range(3 * events.MOST_FAILURES):
        cuda.failed = True
        stream.record()
        cuda.failed = False
        mark = stream.record()
        clock.advance(0.1)
        with stream.resolving():
            assert stream.moments([mark]) != [None]
    assert not stream.lost


def test_a_stream_of_somebody_elses_whose_block_fails_costs_no_mark(
    torch: Any, cuda: FakeCuda, clock: FakeClock
) -> None:
    class Raises:
        @property
        def resolving(self) -> Any:
            raise RuntimeError("a property")

    class Leaves:
        @contextmanager
        def resolving(self) -> Iterator[None]:
            yield
            raise RuntimeError("on its way out")

    stream = stream_now(clock)
    mark = stream.record()
    clock.advance(0.1)
    with resolving([Raises(), Leaves(), stream]):  # type: ignore[list-item]
        assert stream.resolve(mark) is not None
    with pytest.raises(ZeroDivisionError), resolving([Leaves(), stream]):  # type: ignore[list-item]
        raise ZeroDivisionError
    assert not stream._here.within


def test_a_device_that_fails_is_told_by_its_marks_not_by_the_block(
    torch: Any, cuda: FakeCuda, clock: FakeClock
) -> None:
    stream = stream_now(clock)
    mark = stream.record()
    clock.advance(0.1)
    cuda.failed = True
    with resolving([stream]), pytest.raises(CudaError):
        stream.resolve(mark)


@pytest.mark.parametrize("drift", [1e-4, -2e-5])
def test_once_two_bases_tell_the_drift_marks_are_as_good_as_a_base(
    drift: float, torch: Any, cuda: FakeCuda, clock: FakeClock
) -> None:
    cuda.drift = drift
    stream, worst = stream_now(clock), 0
    for n in range(200):
        done_ns = cuda.launch(0.0001)
        mark = stream.record()
        # The first mark counts from a base that is as old as one may be; later ones come at any age of theirs.
        clock.advance(9.5 if not n else 0.731)
        worst = max(worst, abs(stream.resolve(mark) - done_ns))
    assert worst < 20 * MICROSECOND


@pytest.mark.parametrize("step_s", [-0.05, -0.01, 0.001, 0.03, 0.06])
def test_a_clock_that_was_set_by_little_is_no_drift_either_nor_do_marks_end_before_they_began(
    step_s: float, torch: Any, cuda: FakeCuda, clock: FakeClock
) -> None:
    cuda.drift = 2e-5
    stream = stream_now(clock)
    for _ in range(60):
        stream.resolve(stream.record())
        clock.advance(1.1)
    begin, end = stream.record(), None
    cuda.launch(0.001)
    end = stream.record()
    clock.advance(0.2)
    began = stream.resolve(begin)
    (clock.advance if step_s > 0 else clock.set_back)(abs(step_s))
    for event in cuda.events.values():  # which the device's clock does not see
        if event.passed_ns is not None:
            event.passed_ns += round(step_s * 1e9)
    for n in range(12):
        done_ns = cuda.launch(0.0001)
        mark = stream.record()
        clock.advance(1.1)
        moment = stream.resolve(mark)
        if n > 6:
            assert moment == pytest.approx(done_ns, abs=40 * MICROSECOND), n
    ended = stream.resolve(end)
    assert ended - began == pytest.approx(MILLISECOND, abs=20 * MICROSECOND)


def test_a_clock_that_was_set_tells_no_drift(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    stream = stream_now(clock)
    for _ in range(8):
        stream.resolve(stream.record())
        clock.advance(1.3)
    clock.advance(0.5)  # which the device's clock does not see
    for event in cuda.events.values():
        if event.passed_ns is not None:
            event.passed_ns += 500 * MILLISECOND
    for n in range(8):
        done_ns = cuda.launch(0.0001)
        mark = stream.record()
        clock.advance(1.3)
        if n > 4:
            assert stream.resolve(mark) == pytest.approx(done_ns, abs=20 * MICROSECOND)
        else:
            stream.resolve(mark)


def test_after_a_pause_of_hours_the_first_mark_is_right(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    cuda.drift = 1e-4
    stream = stream_now(clock)
    clock.advance(7200.0)
    done_ns = cuda.launch(0.05)
    mark = stream.record()
    clock.advance(0.1)
    assert stream.resolve(mark) == pytest.approx(done_ns, abs=50 * MICROSECOND)


def test_a_clock_that_was_set_back_makes_a_new_base(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    stream = stream_now(clock)
    for event in cuda.events.values():
        assert event.passed_ns is not None
        event.passed_ns -= 3600 * 10**9  # the device's clock was not set back with the host's
    clock.set_back(3600.0)
    cuda.streams = {handle: type(queue)(queue.ordinal) for handle, queue in cuda.streams.items()}
    done_ns = cuda.launch(0.05)
    mark = stream.record()
    clock.advance(0.1)
    assert stream.resolve(mark) == pytest.approx(done_ns, abs=50 * MICROSECOND)


def test_a_device_too_busy_for_a_base_gives_no_marks_until_it_has_one(
    torch: Any, cuda: FakeCuda, clock: FakeClock
) -> None:
    cuda.one_queue = True
    cuda.launch(3.0)
    stream, asked_ns = stream_now(clock), clock.now_ns()
    assert stream.record() is UNMARKED
    assert clock.now_ns() - asked_ns < MILLISECOND  # it is not waited for
    clock.advance(4.0)
    mark = stream.record()
    assert stream.resolve(mark) == pytest.approx(clock.now_ns(), abs=50 * MICROSECOND)


# ---------------------------------------------------------------------- events are scarce


def test_events_are_used_again(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    stream = stream_now(clock)
    for _ in range(3000):
        mark = stream.record()
        clock.advance(0.01)
        assert stream.resolve(mark) is not None
    assert len(cuda.events) <= 8


def test_a_mark_keeps_its_moment_when_its_event_is_used_again(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    stream = stream_now(clock)
    mark = stream.record()
    moment = stream.resolve(mark)
    for _ in range(20):
        clock.advance(1.0)
        stream.resolve(stream.record())
    assert stream.resolve(mark) == moment


def test_only_so_many_are_unresolved_and_those_left_out_come_back(
    torch: Any, cuda: FakeCuda, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST_EVENTS", 10)
    stream = stream_now(clock)
    cuda.launch(60.0)
    marks = [stream.record() for _ in range(30)]
    taken = [mark for mark in marks if mark is not UNMARKED]
    assert 5 < len(taken) <= 10
    del marks, taken
    assert stream.record() is not UNMARKED
    assert len(cuda.events) <= 10


# ---------------------------------------------------------------------- failures


def test_a_failed_kernel_leaves_regions_alone_and_ends_the_marks_with_one_warning(
    torch: Any, cuda: FakeCuda, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    stream = stream_now(clock)
    marks = [stream.record() for _ in range(5)]
    cuda.failed = True
    with caplog.at_level(logging.WARNING, logger="gpu_profile"):
        for mark in marks:
            with pytest.raises(libcuda.CudaError, match="ILLEGAL_ADDRESS"):
                stream.resolve(mark)
        assert {stream.record() for _ in range(50)} == {UNMARKED}
    (record,) = caplog.records
    assert re.fullmatch(
        r"gpu-profile: no more device intervals on GPU-0: cuEvent\w+: CUDA_ERROR_ILLEGAL_ADDRESS \(700\)",
        record.message,
    )
    assert stream_now(clock) is None


def test_a_framework_that_raises_gives_no_stream_and_no_error(torch: Any, clock: FakeClock) -> None:
    current = find_stream(clock=clock)

    def fail() -> int:
        raise RuntimeError("CUDA error")

    torch.cuda.current_device = fail
    assert current is not None
    assert current() is None
    assert current_device() is None


def test_a_forked_child_has_no_streams(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    assert stream_now(clock) is not None
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            cuda.contexts.clear()  # CUDA cannot be used in the child of a process that has used it
            current = find_stream(clock=clock)
            os.write(writer, b"none" if current is not None and current() is None else b"some")
        finally:
            os._exit(0)
    os.close(writer)
    try:
        assert select.select([reader], [], [], 60)[0], "the child hangs"
        assert os.read(reader, 4) == b"none"
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# ---------------------------------------------------------------------- with regions


def test_regions_have_the_devices_interval(
    torch: Any, cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stage(tmp_path, monkeypatch, on_device=False) as stage:
        cuda.clock = stage.clock
        process.use_stream(find_stream(clock=stage.clock))
        done_ns = 0
        with region("step"):
            done_ns = cuda.launch(0.3)
        stage.run(0.5)
        interval = stage.only().interval()
    assert interval is not None
    assert interval.source == "device"
    assert interval.end_ns == pytest.approx(done_ns, abs=10 * MICROSECOND)


def test_a_region_in_a_capture_has_the_hosts_interval(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    side = cuda.new_stream()
    stream = stream_now(clock)
    execution = Execution("captured", None, None, None)
    torch.use(0, side)
    with cuda.capture(side):
        execution.start_ns = clock.now_ns()
        execution.mark_start(stream)
        clock.advance(0.1)
        execution.end_mark = stream.record()
        execution.end_ns = clock.now_ns()
    assert execution.interval() == execution.host

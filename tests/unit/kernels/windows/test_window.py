import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.concurrency import in_child, in_threads
from support.kernels import FakeSource, in_thread
from support.sessions import new_session

from gpu_profile import region
from gpu_profile.errors import GpuBackendError, UsageError
from gpu_profile.kernels.records import Call, Range
from gpu_profile.kernels.sources.source import WrongThreadError
from gpu_profile.kernels.windows.window import OPEN, Window, WindowContent
from gpu_profile.regions.session.session import Session
from gpu_profile.testing import START_NS, FakeClock


@pytest.fixture
def window(session: Session, source: FakeSource, clock: FakeClock) -> Window:
    return Window(source, clock=clock)


def ranges(taken: WindowContent) -> list[Range]:
    return [record for record in taken.records() if isinstance(record, Range)]


def a_region(name: str) -> Callable[[], None]:
    def run() -> None:
        with region(name, span=False):
            pass

    return run


def test_executions_of_blocks_functions_coroutines_generators_and_handles_are_collected(window: Window) -> None:
    @region("function", span=False)
    def function() -> None:
        pass

    @region("coroutine", span=False)
    async def coroutine() -> None:
        pass

    @region("generator", span=False)
    def generator() -> Iterator[int]:
        yield 1

    @region("async generator", span=False)
    async def async_generator() -> Any:
        yield 1

    async def consume() -> None:
        await coroutine()
        async for _ in async_generator():
            pass

    window.start()
    with region("block", span=False):
        pass
    function()
    list(generator())
    asyncio.run(consume())
    region.start("handle", span=False).end()
    names = [each.name for each in ranges(window.stop())]
    assert names == ["block", "function", "generator", "coroutine", "async generator", "handle"]


def test_ranges_tell_the_thread_the_times_and_the_region_around(window: Window, clock: FakeClock) -> None:
    window.start()
    clock.advance(1)
    with region("outer", span=False):
        clock.advance(2)
        with region("inner", span=False):
            clock.advance(4)
        clock.advance(8)
    other = in_thread(a_region("other"))
    here, second = threading.get_native_id(), 1_000_000_000
    assert ranges(window.stop()) == [
        Range("outer", here, START_NS + second, START_NS + 15 * second, 1, 0),
        Range("inner", here, START_NS + 3 * second, START_NS + 7 * second, 2, 1),
        Range("other", other, START_NS + 15 * second, START_NS + 15 * second, 3, 0),
    ]


def test_what_runs_around_the_start_and_at_the_end_is_cut_to_the_window(window: Window, clock: FakeClock) -> None:
    with region("outer", span=False):
        clock.advance(1)
        with region("middle", span=False):
            clock.advance(1)
            window.start()
            clock.advance(1)
        handle = region.start("later", span=False)
        clock.advance(1)
        taken = window.stop()
    handle.end()
    second = 1_000_000_000
    assert [(each.name, each.start_ns - START_NS, each.end_ns - START_NS, each.parent) for each in ranges(taken)] == [
        ("outer", 2 * second, 4 * second, 0),
        ("middle", 2 * second, 3 * second, 1),
        ("later", 3 * second, 4 * second, 1),
    ]


def test_nothing_is_collected_before_or_after(window: Window, session: Session) -> None:
    a_region("before")()
    assert not session.needs_slow_path
    window.start()
    assert session.needs_slow_path
    a_region("during")()
    taken = window.stop()
    a_region("after")()
    assert [each.name for each in taken.executions] == ["during"]
    assert not session.needs_slow_path
    assert session.watchers == ()


def test_a_session_that_begins_later_is_covered(window: Window) -> None:
    window.start()
    later = new_session()
    a_region("late")()
    assert [each.name for each in window.stop().executions] == ["late"]
    assert later.watchers == ()


def test_a_region_that_is_a_span_and_one_that_fails_are_collected(window: Window) -> None:
    window.start()
    with pytest.raises(ZeroDivisionError), region("failing"):
        raise ZeroDivisionError
    assert [each.failed for each in window.stop().executions] == [True]


def test_executions_beyond_the_most_are_counted_and_told(
    session: Session, source: FakeSource, clock: FakeClock
) -> None:
    window = Window(source, clock=clock, most_executions=2).start()
    for name in "abcde":
        a_region(name)()
    taken = window.stop()
    assert [each.name for each in taken.executions] == ["a", "b"]
    assert taken.left_out == 3
    assert taken.report().notes["executions beyond 2 in a window"] == 3


def test_threads_that_begin_regions_at_once_lose_none(window: Window) -> None:
    def many() -> None:
        for _ in range(300):
            a_region("busy")()

    window.start()
    in_threads(*[many] * 4)
    taken = window.stop()
    assert sorted(each.id for each in ranges(taken)) == list(range(1, 1201))
    assert len({id(each) for each in taken.executions}) == 1200


def test_one_window_at_a_time(window: Window, clock: FakeClock) -> None:
    window.start()
    with pytest.raises(UsageError, match="only one window"):
        Window(FakeSource(), clock=clock).start()
    window.stop()
    second = Window(FakeSource(), clock=clock).start()
    second.stop()


def test_a_window_opens_again(window: Window) -> None:
    for name in ("first", "second"):
        window.start()
        a_region(name)()
        assert [each.name for each in window.stop().executions] == [name]


def test_a_source_that_does_not_start_leaves_no_window(session: Session, clock: FakeClock) -> None:
    with pytest.raises(GpuBackendError, match="no start today"):
        Window(FakeSource(fails="start"), clock=clock).start()
    assert OPEN.holder is None
    assert not session.needs_slow_path


def test_a_source_that_does_not_stop_leaves_no_window(session: Session, clock: FakeClock) -> None:
    window = Window(FakeSource(fails="stop"), clock=clock).start()
    with pytest.raises(GpuBackendError, match="no stop today"):
        window.stop()
    assert not window.is_open
    assert not session.needs_slow_path


def test_a_window_stays_open_when_a_wrong_thread_would_close_it(session: Session, clock: FakeClock) -> None:
    window = Window(FakeSource(bound=True), clock=clock).start()
    errors: list[BaseException] = []

    def close() -> None:
        try:
            window.stop()
        except WrongThreadError as error:
            errors.append(error)

    in_thread(close)
    a_region("still seen")()
    assert len(errors) == 1
    assert [each.name for each in window.stop().executions] == ["still seen"]


def test_stopping_what_is_not_open_is_a_usage_error(window: Window) -> None:
    with pytest.raises(UsageError, match="not open"):
        window.stop()


def test_calls_of_threads_that_the_profiler_does_not_know_get_their_native_id(
    window: Window, source: FakeSource
) -> None:
    idents: list[int] = []

    def work() -> None:
        idents.append(threading.get_ident())
        a_region("elsewhere")()

    window.start()
    native = in_thread(work)
    low = idents[0] & 0xFFFF_FFFF
    threads: list[int | str] = [low, low - (1 << 32), native, "name", 5]
    for number, thread in enumerate(threads, 1):
        source.records.append(Call(number, 0, 1, thread))
    found = [record.thread for record in window.stop().records() if isinstance(record, Call)]
    assert found == [native, native, native, "name", 5]


def test_kernels_are_reported_for_the_region_that_launched_them(
    window: Window, source: FakeSource, clock: FakeClock
) -> None:
    window.start()
    clock.advance(1)
    with region("step", span=False):
        clock.advance(0.001)
        source.kernel(clock.now_ns(), ns=5000)
        clock.advance(0.001)
    report = window.stop().report()
    step = report.region("step")
    assert (step.operations, step.busy_ns) == (1, 5000)
    assert report.executions()[1].operations == 1
    assert (report.source, report.dropped) == ("fake", 7)


def test_what_was_wrong_with_a_recording_is_logged(
    window: Window, source: FakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    source.problem = "another tool holds it"
    window.start()
    window.stop().report()
    assert "another tool holds it" in caplog.text


# ---------------------------------------------------------------------- sources that are told of ranges


@pytest.fixture
def told(session: Session, clock: FakeClock) -> Iterator[tuple[Window, FakeSource]]:
    source = FakeSource(pushes=True)
    window = Window(source, clock=clock)
    window.start()
    source.log.clear()
    yield window, source
    if window.is_open:
        window.stop()


def test_nested_ranges_are_pushed_and_popped(told: tuple[Window, FakeSource]) -> None:
    _, source = told
    with region("outer", span=False):
        a_region("inner")()
        a_region("inner")()
    assert source.log == [1, 2, "pop", 3, "pop", "pop"]


def test_what_may_interleave_is_not_pushed(told: tuple[Window, FakeSource]) -> None:
    window, source = told

    @region("task", span=False)
    async def task() -> None:
        await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(task(), task())

    asyncio.run(both())
    region.start("handle", span=False).end()
    assert source.log == []
    assert len(window.stop().executions) == 3


def test_a_range_that_ends_before_what_began_inside_it_leaves_a_clean_stack(told: tuple[Window, FakeSource]) -> None:
    _, source = told
    outer, inner = region("outer", span=False), region("inner", span=False)
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    a_region("next")()
    assert source.log == [1, 2, "pop", "pop", 3, "pop"]


def test_a_range_that_outlives_the_window_is_popped(told: tuple[Window, FakeSource]) -> None:
    window, source = told
    with region("outer", span=False):
        window.stop()
    assert source.log == [1, "stop", "pop"]


def test_a_range_that_ends_in_another_thread_is_not_popped_there(told: tuple[Window, FakeSource]) -> None:
    _, source = told
    block = region("moved", span=False)
    block.__enter__()
    in_thread(block.end)
    assert source.log == [1]


# ---------------------------------------------------------------------- failures and forks


def test_a_window_that_fails_does_not_fail_the_region(session: Session, clock: FakeClock) -> None:
    class Broken(FakeSource):
        def push(self, range_id: int) -> None:
            raise RuntimeError("broken")

        def pop(self) -> None:
            raise RuntimeError("broken")

    window = Window(Broken(pushes=True), clock=clock).start()
    a_region("unharmed")()
    assert session.counts["kernel errors"] == 2
    assert [each.name for each in window.stop().executions] == ["unharmed"]


def test_a_forked_child_has_no_window(window: Window) -> None:
    window.start()
    with region("around", span=False):

        def child() -> None:
            assert not window.is_open
            assert OPEN.holder is None
            later = new_session()
            a_region("in the child")()
            assert not later.needs_slow_path
            assert Window(FakeSource(), clock=FakeClock()).start().is_open

        in_child(child)
    assert [each.name for each in window.stop().executions] == ["around"]

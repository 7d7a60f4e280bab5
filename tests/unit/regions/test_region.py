from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from functools import partial

import pytest
from opentelemetry.trace import StatusCode
from support.concurrency import in_threads
from support.regions import Stage

from gpu_profile import region
from gpu_profile.regions.region import Region, current_name

# ------------------------------------------------------------------ three ways to name a part of a program


def test_with_block_is_one_execution_from_enter_to_exit(on_host: Stage) -> None:
    start = on_host.clock.now_ns()
    with region("prefill") as running:
        assert current_name() == "prefill"
        assert running.span is not None
        on_host.clock.advance(0.25)
    assert current_name() is None
    assert running.span is None
    execution = on_host.only()
    assert (execution.name, execution.start_ns, execution.end_ns) == ("prefill", start, start + 250_000_000)
    assert not execution.failed
    on_host.flush()
    assert on_host.span("prefill").start_time == start
    assert on_host.span("prefill").end_time == start + 250_000_000


def test_bare_decorator_names_the_region_after_the_function(on_host: Stage) -> None:
    @region
    def double(x: int) -> int:
        return 2 * x

    assert double(21) == 42
    assert on_host.only().name == "test_bare_decorator_names_the_region_after_the_function.<locals>.double"


def test_decorator_with_settings_makes_every_call_an_execution(on_host: Stage) -> None:
    calls = []

    @region("step", items=8, device=on_host.uuid, span=False)
    def step(*args: int, scale: int = 1) -> tuple[tuple[int, ...], int]:
        """Do it."""
        calls.append(args)
        return args, scale

    assert step(1, 2, scale=3) == ((1, 2), 3)
    assert step() == ((), 1)
    assert calls == [(1, 2), ()]
    on_host.session.settle(final=True)
    assert [(e.name, e.items, e.device, e.span_id) for e in on_host.ended] == [("step", 8.0, on_host.uuid, 0)] * 2
    assert (step.__name__, step.__doc__) == ("step", "Do it.")
    assert inspect.signature(step) == inspect.signature(inspect.unwrap(step))


def test_decorated_methods_get_their_self(on_host: Stage) -> None:
    class Model:
        factor = 3

        @region("forward")
        def forward(self, x: int) -> int:
            return self.factor * x

        @classmethod
        @region("make")
        def make(cls) -> Model:
            return cls()

        @staticmethod
        @region("load")
        def load() -> str:
            return "weights"

    assert (Model.make().forward(2), Model.load()) == (6, "weights")
    on_host.session.settle(final=True)
    assert [e.name for e in on_host.ended] == ["make", "forward", "load"]


def test_partial_functions_can_be_decorated(on_host: Stage) -> None:
    assert region("power")(functools.partial(pow, 2))(10) == 1024
    assert on_host.only().name == "power"


def test_handle_runs_from_start_to_end_and_is_nobodys_parent(on_host: Stage) -> None:
    handle = region.start("epoch", items=1)
    assert current_name() is None
    with region("inside"):
        pass
    on_host.clock.advance(1.0)
    handle.end()
    on_host.flush()
    assert on_host.parents() == {"epoch": None, "inside": None}
    assert on_host.parent("inside") is None
    assert on_host.ended[0].end_ns - on_host.ended[0].start_ns == 1_000_000_000


def test_handle_in_a_block_is_another_execution_of_its_region(on_host: Stage) -> None:
    handle = region.start("epoch")
    with handle as another:
        on_host.clock.advance(1.0)
    assert another.end_ns
    assert not handle.end_ns
    handle.end()
    on_host.session.settle(final=True)
    assert on_host.ended == [handle, another]


def test_ending_twice_counts_once(on_host: Stage) -> None:
    handle = region.start("once")
    handle.end()
    end = handle.end_ns
    on_host.clock.advance(1.0)
    handle.end(ValueError("late"))
    handle.end()
    execution = on_host.only()
    assert (execution.end_ns, execution.failed) == (end, False)
    on_host.flush()
    assert on_host.names() == ["once"]


def test_ending_what_never_began_does_nothing(on_host: Stage) -> None:
    region("never").end()
    on_host.session.settle(final=True)
    assert on_host.ended == []


def test_handle_can_end_in_another_thread(on_host: Stage) -> None:
    handle = region.start("step")
    in_threads(handle.end)
    assert on_host.only().name == "step"


def test_block_that_another_thread_ended_is_no_parent_of_what_follows(
    on_host: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    with region("outer"):
        running = region("left open")
        running.__enter__()
        in_threads(partial(running.__exit__, None, None, None))
        with region("after"):
            assert current_name() == "after"
        assert current_name() == "outer"
    on_host.session.settle(final=True)
    assert on_host.parents() == {"outer": None, "left open": "outer", "after": "outer"}
    assert caplog.records == []


# ------------------------------------------------------------------ exceptions and results are the user's


def test_exception_passes_through_and_is_recorded(on_host: Stage) -> None:
    error = ValueError("boom")

    @region("bad")
    def bad() -> None:
        raise error

    with pytest.raises(ValueError, match="boom") as caught:
        bad()
    assert caught.value is error
    assert error.__context__ is None
    assert error.__cause__ is None
    assert on_host.only().failed
    on_host.flush()
    span = on_host.span("bad")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError: boom")
    assert [event.name for event in span.events] == ["exception"]
    assert on_host.session.joiner.verdicts.durations["bad"].errors == 1
    assert current_name() is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(0), asyncio.CancelledError()])
def test_what_ends_the_program_passes_through_and_counts_as_failed(on_host: Stage, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, region("job"):
        raise error
    assert caught.value is error
    assert on_host.only().failed
    on_host.flush()
    assert on_host.span("job").status.status_code is StatusCode.UNSET


def test_error_given_to_end_marks_the_execution_as_failed(on_host: Stage) -> None:
    handle = region.start("request")
    handle.end(TimeoutError("no answer"))
    assert on_host.only().failed
    on_host.flush()
    assert on_host.span("request").status.description == "TimeoutError: no answer"


# ------------------------------------------------------------------ nesting


def test_nested_regions_know_what_is_around_them(on_host: Stage) -> None:
    with region("request"):
        with region("prefill"), region("attention"):
            assert current_name() == "attention"
        assert current_name() == "request"
        with region("decode", span=False):
            pass
    on_host.flush()
    expected = {"request": None, "prefill": "request", "attention": "prefill", "decode": "request"}
    assert on_host.parents() == expected
    assert {name: on_host.parent(name) for name in on_host.names()} == {
        name: around for name, around in expected.items() if name != "decode"
    }


def test_regions_and_plain_spans_nest_in_each_other(on_host: Stage) -> None:
    with (
        on_host.tracer.start_as_current_span("handler"),
        region("model"),
        on_host.tracer.start_as_current_span("query"),
    ):
        pass
    on_host.flush()
    assert (on_host.parent("handler"), on_host.parent("model"), on_host.parent("query")) == (None, "handler", "model")


def test_recursion_makes_an_execution_at_every_level(on_host: Stage) -> None:
    @region("factorial")
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * factorial(n - 1)

    assert factorial(5) == 120
    on_host.session.settle(final=True)
    assert len(on_host.ended) == 6
    assert [e.parent for e in on_host.ended] == [None, *on_host.ended[:-1]]


def test_one_object_can_be_entered_again_while_it_runs(on_host: Stage) -> None:
    again = region("again")
    with again as outer:
        on_host.clock.advance(1.0)
        with again as inner:
            on_host.clock.advance(1.0)
            with pytest.raises(KeyError), again:
                raise KeyError
        assert inner is not outer
        on_host.clock.advance(1.0)
    with again:
        on_host.clock.advance(5.0)
    on_host.session.settle(final=True)
    assert [round((e.end_ns - e.start_ns) / 1e9) for e in on_host.ended] == [3, 1, 0, 5]
    assert [e.failed for e in on_host.ended] == [False, False, True, False]
    assert [e.parent for e in on_host.ended] == [None, outer, inner, None]


def test_one_object_used_by_many_threads_keeps_their_executions_apart(on_host: Stage) -> None:
    shared = region("shared")
    entered, leave = threading.Barrier(5), [threading.Event() for _ in range(4)]
    seen: list[Region] = []

    def use(i: int) -> None:
        with shared as mine:
            mine.add_items(i)
            seen.append(mine)
            entered.wait()
            leave[i].wait()
            assert not mine.end_ns
        assert mine.end_ns

    threads = [threading.Thread(target=use, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    entered.wait()
    assert len(set(seen)) == 4
    for i in (2, 0, 3, 1):
        on_host.clock.advance(1.0)
        leave[i].set()
        threads[i].join()
    on_host.session.settle(final=True)
    assert {e.items: round((e.end_ns - e.start_ns) / 1e9) for e in on_host.ended} == {2: 1, 0: 2, 3: 3, 1: 4}


def test_decorated_function_of_many_threads_counts_every_call(on_host: Stage) -> None:
    @region("work", span=False)
    def work() -> str | None:
        return current_name()

    def many() -> None:
        for _ in range(500):
            assert work() == "work"

    with region("outside"):
        in_threads(*[many] * 4)
    on_host.session.settle(final=True)
    assert on_host.calls("work") == 2000
    assert {e.parent for e in on_host.ended if e.name == "work"} == {None}


def test_blocks_that_end_in_the_wrong_order_leave_nothing_open(on_host: Stage) -> None:
    first, second = region("first"), region("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert current_name() is None
    with region("third"):
        pass
    on_host.flush()
    assert on_host.parents() == {"first": None, "second": "first", "third": None}
    assert on_host.parent("third") is None

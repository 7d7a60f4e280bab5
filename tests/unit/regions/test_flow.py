import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

import pytest
from support.regions import Stage

from gpu_profile import region
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.region import current_name


def test_async_function_is_one_execution_over_its_awaits(on_host: Stage) -> None:
    @region("fetch")
    async def fetch(x: int) -> int:
        await asyncio.sleep(0)
        assert current_name() == "fetch"
        on_host.clock.advance(1.0)
        await asyncio.sleep(0)
        return x + 1

    assert inspect.iscoroutinefunction(fetch)
    assert asyncio.run(fetch(1)) == 2
    execution = on_host.only()
    assert execution.end_ns - execution.start_ns == 1_000_000_000


def test_tasks_keep_their_regions_apart_and_inherit_what_is_around_them(on_host: Stage) -> None:
    @region("child")
    async def child(name: str) -> None:
        with region(name):
            await asyncio.sleep(0)
            assert current_name() == name
            await asyncio.sleep(0)

    async def main() -> None:
        with region("request"):
            await asyncio.gather(*(child(f"part {i}") for i in range(3)))
            assert current_name() == "request"

    asyncio.run(main())
    on_host.flush()
    assert {e.parent.name for e in on_host.ended if e.parent is not None} == {"request", "child"}
    assert {on_host.parent(f"part {i}") for i in range(3)} == {"child"}
    request = on_host.span("request").context
    assert request is not None
    children = [span for span in on_host.spans if span.name == "child"]
    assert [c.parent.span_id for c in children if c.parent is not None] == [request.span_id] * 3


def test_cancelled_task_ends_its_region_as_failed(on_host: Stage) -> None:
    @region("wait")
    async def wait() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert on_host.only().failed


def test_tasks_that_start_their_successors_do_not_hold_on_to_all_predecessors(on_host: Stage) -> None:
    async def chain(left: int) -> None:
        with region("link", span=False):
            following = asyncio.create_task(chain(left - 1)) if left else None
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if left % 50 == 0:
            on_host.session.settle(final=True)
        if following is not None:
            last.append(following)

    async def main() -> None:
        last.append(asyncio.create_task(chain(1500)))
        while last:
            await last.pop()

    last: list[asyncio.Task[None]] = []
    asyncio.run(main())
    on_host.session.settle(final=True)
    assert len(on_host.ended) == 1501

    def depth(execution: Execution) -> int:
        found = 0
        while execution.parent is not None:
            execution, found = execution.parent, found + 1
        return found

    assert depth(on_host.ended[-1]) <= 1000


# ------------------------------------------------------------------ generators


def test_generator_is_one_execution_and_its_caller_is_not_inside(on_host: Stage) -> None:
    @region("stream")
    def stream(n: int) -> Generator[int, None, str]:
        for i in range(n):
            with region(f"decode {i}"):
                assert current_name() == f"decode {i}"
                yield i
            assert current_name() == "stream"
        return "done"

    def consume() -> Generator[int, None, None]:
        result = yield from stream(2)
        assert result == "done"

    assert inspect.isgeneratorfunction(stream)
    with region("caller"):
        for i in consume():
            assert current_name() == "caller"
            with region(f"send {i}"):
                on_host.clock.advance(1.0)
        assert current_name() == "caller"
    on_host.flush()
    around = {"caller": None, "stream": "caller", "decode 0": "stream", "decode 1": "stream"}
    around |= {"send 0": "caller", "send 1": "caller"}
    assert on_host.parents() == around
    assert {name: on_host.parent(name) for name in on_host.names()} == around


def test_generator_begins_when_it_is_first_asked(on_host: Stage) -> None:
    @region("stream")
    def stream() -> Iterator[int]:
        yield 1

    asked = stream()
    on_host.clock.advance(1.0)
    start = on_host.clock.now_ns()
    assert list(asked) == [1]
    stream()
    assert on_host.only().start_ns == start


def test_generator_takes_what_is_sent_and_thrown(on_host: Stage) -> None:
    @region("echo")
    def echo() -> Generator[str, str, str]:
        said = "ready"
        while said != "stop":
            try:
                said = yield said
            except KeyError as error:
                said = f"caught {error.args[0]}"
        return "bye"

    talk = echo()
    assert next(talk) == "ready"
    assert talk.send("hello") == "hello"
    assert talk.throw(KeyError("it")) == "caught it"
    with pytest.raises(StopIteration) as stop:
        talk.send("stop")
    assert stop.value.value == "bye"
    assert not on_host.only().failed


def test_generator_that_is_closed_cleans_up_at_once_and_has_not_failed(on_host: Stage) -> None:
    closed = []

    @region("stream")
    def stream() -> Iterator[int]:
        try:
            yield 1
        finally:
            closed.append(current_name())

    asked = stream()
    next(asked)
    asked.close()  # type: ignore[attr-defined]
    assert closed == ["stream"]
    assert not on_host.only().failed


def test_generator_that_raises_has_failed(on_host: Stage) -> None:
    @region("stream")
    def stream() -> Iterator[int]:
        yield 1
        raise ValueError("boom")

    asked = stream()
    next(asked)
    with pytest.raises(ValueError, match="boom"):
        next(asked)
    assert on_host.only().failed


def test_generator_that_each_step_of_runs_in_another_context_ends_its_regions_quietly(
    on_host: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """As web frameworks iterate over a body in a pool of threads."""

    @region("body")
    def decorated() -> Iterator[int]:
        for i in range(2):
            with region("part"):
                yield i

    def plain() -> Iterator[int]:
        for i in range(2):
            with region("plain"):
                yield i

    for asked in (decorated(), plain()):
        while contextvars.copy_context().run(next, asked, None) is not None:
            pass
    on_host.session.settle(final=True)
    assert sorted(e.name for e in on_host.ended) == ["body", "part", "part", "plain", "plain"]
    assert all(e.end_ns for e in on_host.ended)
    assert caplog.records == []
    on_host.flush()
    assert len(on_host.spans) == 5


def test_async_generator_is_one_execution_and_its_caller_is_not_inside(on_host: Stage) -> None:
    @region("stream")
    async def stream(n: int) -> AsyncIterator[int]:
        for i in range(n):
            with region(f"decode {i}"):
                await asyncio.sleep(0)
                yield i
            assert current_name() == "stream"

    async def main() -> None:
        with region("caller"):
            async for i in stream(2):
                assert current_name() == "caller"
                with region(f"send {i}"):
                    await asyncio.sleep(0)

    assert inspect.isasyncgenfunction(stream)
    asyncio.run(main())
    on_host.flush()
    around = {"caller": None, "stream": "caller", "decode 0": "stream", "decode 1": "stream"}
    around |= {"send 0": "caller", "send 1": "caller"}
    assert on_host.parents() == around
    assert {name: on_host.parent(name) for name in on_host.names()} == around


def test_async_generator_takes_what_is_sent_and_thrown_and_closes_at_once(on_host: Stage) -> None:
    log: list[str] = []

    @region("echo")
    async def echo() -> Any:
        said = "ready"
        try:
            while True:
                try:
                    said = yield said
                except KeyError as error:
                    said = f"caught {error.args[0]}"
        finally:
            await asyncio.sleep(0)
            log.append(f"closed in {current_name()}")

    async def main() -> None:
        talk = echo()
        assert await anext(talk) == "ready"
        assert await talk.asend("hello") == "hello"
        assert await talk.athrow(KeyError("it")) == "caught it"
        await talk.aclose()
        log.append("after")

    asyncio.run(main())
    assert log == ["closed in echo", "after"]
    assert not on_host.only().failed

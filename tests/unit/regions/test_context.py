"""A region's part in OpenTelemetry's context: its span's parent, and baggage."""

import asyncio
import contextvars
import threading
from collections.abc import AsyncGenerator, Generator, Iterator
from pathlib import Path

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.propagate import extract, inject
from support.regions import Stage

from gpu_profile import region


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with Stage(tmp_path, monkeypatch, on_device=False) as stage:
        token = otel_context.attach(baggage.set_baggage("user", "ada"))
        yield stage
        otel_context.detach(token)


def current() -> int:
    return trace.get_current_span().get_span_context().span_id


def test_parent_of_a_region_is_the_current_span_and_of_a_span_the_region(stage: Stage) -> None:
    with stage.tracer.start_as_current_span("request"), region("outer"):
        with stage.tracer.start_as_current_span("call"), region("inner"):
            pass
        with region("sibling"):
            pass
    stage.flush()
    parents = {name: stage.parent(name) for name in ("request", "outer", "call", "inner", "sibling")}
    assert parents == {"request": None, "outer": "request", "call": "outer", "inner": "call", "sibling": "outer"}
    assert len({span.context.trace_id for span in stage.spans if span.context is not None}) == 1


def test_parent_from_another_service_is_kept(stage: Stage) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    token = otel_context.attach(extract({"traceparent": parent, "baggage": "tenant=acme"}))
    with region("step"):
        assert baggage.get_baggage("tenant") == "acme"
        onwards: dict[str, str] = {}
        inject(onwards)
        assert current() == int(onwards["traceparent"].split("-")[2], 16)
    otel_context.detach(token)
    stage.flush()
    span = stage.span("step")
    assert span.parent is not None
    assert span.context is not None
    assert (format(span.context.trace_id, "032x"), format(span.parent.span_id, "016x")) == tuple(parent.split("-")[1:3])
    assert onwards["baggage"] == "tenant=acme"


@pytest.mark.parametrize("span", [True, False])
def test_baggage_reaches_into_a_block_and_what_is_set_there_leaves_with_it(stage: Stage, span: bool) -> None:
    with region("outer", span=span):
        assert baggage.get_baggage("user") == "ada"
        token = otel_context.attach(baggage.set_baggage("step", "1"))
        with region("inner", span=span):
            assert baggage.get_all() == {"user": "ada", "step": "1"}
        assert baggage.get_all() == {"user": "ada", "step": "1"}
        otel_context.detach(token)
    assert baggage.get_all() == {"user": "ada"}


def test_baggage_reaches_functions_coroutines_and_generators(stage: Stage) -> None:
    seen: list[tuple[str, object, str]] = []

    def note(kind: str) -> None:
        running = trace.get_current_span()
        seen.append((kind, baggage.get_baggage("user"), getattr(running, "name", "")))

    @region("function")
    def function() -> None:
        note("function")

    @region("coroutine")
    async def coroutine() -> None:
        note("coroutine")
        await asyncio.sleep(0)
        note("coroutine")

    @region("generator")
    def generator() -> Generator[int]:
        note("generator")
        yield 1
        note("generator")

    @region("async generator")
    async def async_generator() -> AsyncGenerator[int]:
        note("async generator")
        yield 1

    async def run() -> None:
        await coroutine()
        async for _ in async_generator():
            assert baggage.get_baggage("user") == "ada"

    function()
    for _ in generator():
        assert baggage.get_baggage("user") == "ada"
    asyncio.run(run())
    assert len(seen) == 6
    assert all(who == "ada" and kind == name for kind, who, name in seen)


def test_context_that_is_taken_along_to_a_thread_has_both(stage: Stage) -> None:
    seen: list[tuple[object, int]] = []
    with region("outer"):
        inside = current()
        taken = contextvars.copy_context()
        thread = threading.Thread(
            target=taken.run, args=(lambda: seen.append((baggage.get_baggage("user"), current())),)
        )
        thread.start()
        thread.join()
    assert seen == [("ada", inside)]


def test_context_is_as_it_was_after_a_region_also_when_it_fails(stage: Stage) -> None:
    before = otel_context.get_current()
    with pytest.raises(KeyError), region("outer"), region("inner"):
        raise KeyError
    assert otel_context.get_current() == before

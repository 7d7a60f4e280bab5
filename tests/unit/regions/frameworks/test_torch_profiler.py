"""Regions in the traces that PyTorch's profiler saves, and what `gpu-profile kernels` makes of them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_profile import configure, region
from gpu_profile.kernels import Trace, record, report_of
from gpu_profile.regions.session import process

torch: Any = pytest.importorskip("torch")
X = torch.ones(8, 8)


@pytest.fixture(autouse=True)
def no_gpus() -> Iterator[None]:
    configure(backend="none")
    yield
    process.stop()
    configure()


def traced(run: Callable[[], object], path: Path) -> dict[str, tuple[int, dict[str, int]]]:
    """By region of the trace of `run`: how often it ran, and how often each of its three operators ran in it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        run()
    profiler.export_chrome_trace(str(path))
    report = report_of(Trace(path), source=str(path))
    found = {}
    for each in report.regions:
        operators = {name.removeprefix("aten::"): used.count for name, used in each.kernels.items()}
        found[each.name] = each.executions, {n: c for n, c in operators.items() if n in ("mm", "add", "relu")}
    return found


def test_nested_regions_are_ranges_with_spans_and_without(tmp_path: Path) -> None:
    @region("function", span=False)
    def function() -> Any:
        return torch.relu(X)

    def run() -> None:
        with region("outer"):
            torch.add(X, X)
            with region("inner", span=False):
                torch.mm(X, X)
            function()

    with region("before the profiler"):
        found = traced(run, tmp_path / "trace.json")
    assert found == {
        "outer": (1, {"add": 1, "mm": 1, "relu": 1}),
        "inner": (1, {"mm": 1}),
        "function": (1, {"relu": 1}),
    }


def test_generators_and_coroutines_are_in_their_range_in_each_step_alone(tmp_path: Path) -> None:
    @region("generator")
    def generator() -> Iterator[None]:
        torch.mm(X, X)
        yield
        torch.mm(X, X)

    @region("async generator")
    async def async_generator() -> AsyncIterator[None]:
        torch.mm(X, X)
        yield
        torch.mm(X, X)

    @region("first")
    async def first(turn: asyncio.Event) -> int:
        await turn.wait()
        torch.add(X, X)
        return 1

    @region("second")
    async def second(turn: asyncio.Event) -> int:
        turn.set()
        await asyncio.sleep(0)
        torch.relu(X)
        raise KeyError

    async def tasks() -> list[object]:
        turn = asyncio.Event()
        ended = await asyncio.gather(first(turn), second(turn), return_exceptions=True)
        async for _ in async_generator():
            torch.relu(X)
        return list(ended)

    def run() -> None:
        for _ in generator():
            torch.relu(X)
        one, error = asyncio.run(tasks())
        assert one == 1
        assert isinstance(error, KeyError)

    assert traced(run, tmp_path / "trace.json") == {
        "generator": (2, {"mm": 2}),
        "async generator": (2, {"mm": 2}),
        "first": (2, {"add": 1}),
        "second": (2, {"relu": 1}),
    }


def test_handles_may_end_in_other_threads_and_after_the_profiler(tmp_path: Path) -> None:
    still = []

    def run() -> None:
        handle = region.start("handle")
        torch.mm(X, X)
        thread = threading.Thread(target=handle.end)
        thread.start()
        thread.join()
        still.append(region.start("still"))
        torch.relu(X)  # in one of them alone: the other one has ended

    found = traced(run, tmp_path / "trace.json")
    still[0].end()
    assert found == {"handle": (1, {"mm": 1}), "still": (1, {"relu": 1})}
    assert not process.session().counts


def test_without_a_profiler_and_in_windows_of_ours_regions_have_nothing_more_to_do() -> None:
    with region("step", span=False):
        pass
    session = process.session()
    assert not session.needs_slow_path
    with record(), region("step", span=False):
        assert session.make_range is None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert session.needs_slow_path
    assert not session.needs_slow_path

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from unit.monitor.scene import Scene

from gpu_profile import configure
from gpu_profile.monitor import gpu_profile
from gpu_profile.monitor.gpu_summary import GpuSummary, ProfiledResult


@pytest.fixture
def seen() -> list[GpuSummary]:
    """What reports are handed to."""
    return []


# ---------------------------------------------------------------------- the decorator


def test_report_is_printed_by_default(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    @gpu_profile
    def work(a: int, *, b: int = 2) -> int:
        """Documented."""
        scene.work(1.0)
        return a + b

    assert work(1, b=3) == 4
    assert (work.__name__, work.__doc__) == ("work", "Documented.")
    out = capsys.readouterr().out
    assert out.startswith("[GPU 0] NVIDIA H200\n  duration: 1.0")
    assert out.count("\n") == 11


def test_report_can_be_a_function_or_nothing(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[GpuSummary] = []
    gpu_profile(report=seen.append, device=[0, 1])(scene.run)(0.5)
    assert [summary.device for summary in seen] == [0, 1]
    gpu_profile(report=False, return_profile=True)(scene.run)(0.5)
    assert capsys.readouterr().out == ""
    with pytest.raises(TypeError, match="report is True, False or a function"):
        gpu_profile(report=3)  # type: ignore[call-overload]


def test_report_that_fails_reaches_the_user(scene: Scene) -> None:
    def report(_: GpuSummary) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        gpu_profile(report=report)(scene.run)(0.5)
    assert scene.reading == []


def test_terminal_that_cannot_show_the_trace_does_not_fail_the_function(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as narrow:
        monkeypatch.setattr("sys.stdout", narrow)
        gpu_profile(scene.work)(1.0)
    assert "util trace: ?" in (tmp_path / "out").read_text()


def test_profile_is_returned_with_the_value(scene: Scene) -> None:
    @gpu_profile(return_profile=True, report=False, device=[0, 1])
    def work() -> str:
        scene.work(1.0)
        return "done"

    result = work()
    assert isinstance(result, ProfiledResult)
    assert result.value == "done"
    assert result.gpu is result.gpus[0]
    assert [summary.util_gpu_mean for summary in result.gpus] == pytest.approx([100, 0], abs=1)


def test_functions_error_passes_through_after_the_report(scene: Scene, seen: list[GpuSummary]) -> None:
    @gpu_profile(report=seen.append)
    def work() -> None:
        scene.run(0.5)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert seen[0].duration_s == pytest.approx(0.5, abs=0.01)
    scene.session.settle(final=True)
    assert scene.ended[0].failed


@pytest.mark.parametrize(
    "thing", [int, property(lambda self: 1), staticmethod(len), classmethod(lambda cls: 1), 3, "name"]
)
def test_what_is_no_function_is_refused(thing: Any) -> None:
    for decorate in (gpu_profile, gpu_profile()):
        with pytest.raises(TypeError, match=r"@gpu_profile decorates functions, not .*: put it on the function inside"):
            decorate(thing)


def test_methods_nested_and_recursive_calls_have_a_summary_and_a_region_each(scene: Scene) -> None:
    seen: list[GpuSummary] = []

    class Model:
        @gpu_profile(report=seen.append)
        def forward(self, depth: int) -> int:
            scene.run(1.0)
            return 1 + (self.forward(depth - 1) if depth else 0)

        @classmethod
        @gpu_profile(report=seen.append)
        def make(cls) -> Model:
            return cls()

        @staticmethod
        @gpu_profile(report=seen.append)
        def version() -> int:
            return 2

    assert Model.make().forward(2) == 3
    assert Model.version() == 2
    # Each of the outer ones waits for the last reading of those inside it.
    assert [summary.duration_s for summary in seen] == pytest.approx([0, 1, 2.25, 3.5, 0], abs=0.01)
    names = [name.split("<locals>.")[1] for name in scene.regions()]
    assert sorted(names) == ["Model.forward"] * 3 + ["Model.make", "Model.version"]
    assert [e.parent is not None for e in scene.ended if e.name.endswith("forward")].count(True) == 2


def test_coroutine_is_measured_while_it_runs(scene: Scene, seen: list[GpuSummary]) -> None:
    @gpu_profile(report=seen.append, return_profile=True)
    async def work(x: int) -> int:
        scene.run(0.5)
        await asyncio.sleep(0)
        scene.work(0.5)
        return x

    assert inspect.iscoroutinefunction(work)
    result = asyncio.run(work(3))
    assert (result.value, result.gpu) == (3, seen[0])
    assert result.gpu.duration_s == pytest.approx(1.0, abs=0.01)
    assert scene.regions() == [work.__qualname__]

    @gpu_profile(report=seen.append)
    async def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(fails())
    assert len(seen) == 2


def test_generator_is_measured_from_its_first_step_to_its_end(scene: Scene, seen: list[GpuSummary]) -> None:
    @gpu_profile(report=seen.append, return_profile=True)
    def talk(n: int) -> Iterator[int]:
        for i in range(n):
            scene.run(0.5)
            got = yield i
            assert got == f"got {i}"
        return "done"  # type: ignore[return-value]

    assert inspect.isgeneratorfunction(talk)
    steps: Any = talk(2)
    scene.run(1.0)
    assert next(steps) == 0
    assert steps.send("got 0") == 1
    with pytest.raises(StopIteration) as stop:
        steps.send("got 1")
    assert isinstance(stop.value.value, ProfiledResult)
    assert (stop.value.value.value, stop.value.value.gpu) == ("done", seen[0])
    assert seen[0].duration_s == pytest.approx(1.0, abs=0.01)
    assert scene.regions() == [talk.__qualname__]


def test_generator_that_is_closed_or_fails_is_summed_up(scene: Scene, seen: list[GpuSummary]) -> None:
    closed: list[str] = []

    @gpu_profile(report=seen.append)
    def count() -> Iterator[int]:
        try:
            while True:
                scene.run(0.25)
                yield 1
        finally:
            closed.append("closed")

    steps: Any = count()
    next(steps)
    steps.close()
    assert (len(seen), closed) == (1, ["closed"])
    steps = count()
    next(steps)
    with pytest.raises(KeyError):
        steps.throw(KeyError)
    assert len(seen) == 2
    assert scene.reading == []


def test_report_that_fails_on_a_closed_generator_reaches_whoever_closes_it(scene: Scene) -> None:
    def report(_: GpuSummary) -> None:
        raise OSError("disk full")

    @gpu_profile(report=report)
    def count() -> Iterator[int]:
        yield 1

    steps: Any = count()
    next(steps)
    with pytest.raises(OSError, match="disk full"):
        steps.close()


def test_async_generator_is_measured_from_its_first_step_to_its_end(scene: Scene, seen: list[GpuSummary]) -> None:
    closed: list[str] = []

    @gpu_profile(report=seen.append)
    async def count(n: int) -> AsyncIterator[int]:
        try:
            for i in range(n):
                scene.run(0.5)
                try:
                    yield i
                except KeyError:
                    yield -1
        finally:
            closed.append("closed")

    assert inspect.isasyncgenfunction(count)

    async def main() -> list[int]:
        whole = [i async for i in count(2)]
        steps: Any = count(5)
        await steps.__anext__()
        thrown = await steps.athrow(KeyError)
        await steps.aclose()
        return [*whole, thrown]

    assert asyncio.run(main()) == [0, 1, -1]
    assert closed == ["closed", "closed"]
    assert [round(summary.duration_s, 1) for summary in seen] == [1.0, 0.5]
    assert len(scene.regions()) == 2
    with pytest.raises(TypeError, match="an async generator has no return value"):
        gpu_profile(return_profile=True)(count.__wrapped__)  # type: ignore[attr-defined]


def test_async_generator_of_a_process_that_is_switched_off_just_runs(off: None) -> None:
    configure(backend="none", enabled=False)

    @gpu_profile
    async def count() -> AsyncIterator[int]:
        yield 1

    async def main() -> list[int]:
        return [i async for i in count()]

    assert asyncio.run(main()) == [1]


def test_generator_of_a_process_that_is_switched_off_just_runs(off: None) -> None:
    configure(backend="none", enabled=False)

    @gpu_profile
    def count() -> Iterator[int]:
        yield 1

    async def later() -> int:
        return 2

    assert list(count()) == [1]
    assert asyncio.run(gpu_profile(later)()) == 2


def test_threads_have_a_run_each(off: None) -> None:
    @gpu_profile(return_profile=True, report=False)
    def work(n: int) -> int:
        return n

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(100)))
    assert [result.value for result in results] == list(range(100))

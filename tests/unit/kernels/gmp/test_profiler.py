"""Ranges of a profiler on a GPU that is not there: what is counted where."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from unit.kernels.gmp.profilers import FakeGpu, kernels

from gpu_profile import region
from gpu_profile.errors import UsageError
from gpu_profile.kernels.gmp.profiler import GmpProfiler, create_profiler
from gpu_profile.regions.region import current_name


def test_kernels_belong_to_the_range_that_launched_them_and_to_those_around_it(
    ready: GmpProfiler, gpu: FakeGpu
) -> None:
    with ready.profile_range("outer"):
        gpu.launch(1)
        with ready.profile_range("inner"):
            gpu.launch(10)
            gpu.launch(20)
        gpu.launch(100)
    gpu.launch(1000)
    assert kernels(ready) == {"outer": (1, 4, 131.0), "inner": (1, 2, 30.0)}


def test_ranges_of_one_name_add_up_over_windows(ready: GmpProfiler, gpu: FakeGpu) -> None:
    for us in (1, 2, 3):
        with ready.profile_range("step"):
            gpu.launch(us)
        if us == 2:
            ready.results()
    assert kernels(ready) == {"step": (3, 3, 6.0)}
    assert gpu.windows == 2


def test_ranges_come_in_the_order_of_their_first_begin(ready: GmpProfiler) -> None:
    for name in ("c", "a", "b", "a", "c"):
        with ready.profile_range(name):
            pass
    assert list(ready.results().kernels) == ["c", "a", "b"]


def test_a_hundred_ranges_nest(ready: GmpProfiler, gpu: FakeGpu) -> None:
    blocks = [ready.profile_range(f"level {depth}") for depth in range(100)]
    for block in blocks:
        block.__enter__()
    gpu.launch(5)
    for block in reversed(blocks):
        block.__exit__(None, None, None)
    found = kernels(ready)
    assert len(found) == 100
    assert set(found.values()) == {(1, 1, 5.0)}
    assert current_name() is None


def test_one_block_is_used_again_within_itself_and_in_several_threads(ready: GmpProfiler, gpu: FakeGpu) -> None:
    block = ready.profile_range("again")
    with block:
        gpu.launch(1)
        with block:
            gpu.launch(1)
    with ThreadPoolExecutor(4) as pool:

        def work(_: int) -> None:
            with block:
                gpu.launch(1)

        list(pool.map(work, range(20)))
    assert kernels(ready) == {"again": (22, 22, 22.0)}


def test_an_exception_passes_through_and_the_range_is_counted(ready: GmpProfiler, gpu: FakeGpu) -> None:
    def fails() -> None:
        with ready.profile_range("fails"):
            gpu.launch(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with ready.profile_range("next"):
        pass
    assert kernels(ready) == {"fails": (1, 1, 1.0), "next": (1, 0, 0.0)}


def test_a_range_is_a_region(ready: GmpProfiler) -> None:
    with ready.profile_range("mine") as running:
        assert current_name() == "mine"
        running.add_items(3)
    assert running.items == 3
    assert running.end_ns


def test_plain_regions_and_ranges_of_others_are_not_listed(ready: GmpProfiler, gpu: FakeGpu) -> None:
    with ready.profile_range("mine"), region("plain"):
        gpu.launch(1)
    assert kernels(ready) == {"mine": (1, 1, 1.0)}


def test_every_kind_of_function_is_a_range_and_stays_what_it_is(ready: GmpProfiler, gpu: FakeGpu) -> None:
    @ready.profile_function("plain")
    def plain(us: int) -> int:
        """Doc."""
        gpu.launch(us)
        return us

    @ready.profile_function("async")
    async def later() -> int:
        await asyncio.sleep(0)
        gpu.launch(2)
        return 2

    @ready.profile_function("generator")
    def numbers() -> Iterator[int]:
        gpu.launch(3)
        yield 1
        gpu.launch(3)
        yield 2

    @ready.profile_function("async generator")
    async def letters() -> AsyncIterator[str]:
        gpu.launch(4)
        yield "a"

    async def gather() -> list[str]:
        return [letter async for letter in letters()]

    assert (plain(1), plain.__name__, plain.__doc__) == (1, "plain", "Doc.")
    assert (asyncio.run(later()), list(numbers()), asyncio.run(gather())) == (2, [1, 2], ["a"])
    assert inspect.iscoroutinefunction(later)
    assert kernels(ready) == {
        "plain": (1, 1, 1.0),
        "async": (1, 1, 2.0),
        "generator": (1, 2, 6.0),
        "async generator": (1, 1, 4.0),
    }
    assert not ready._collecting._running


def test_a_function_has_its_own_name_unless_told_another(ready: GmpProfiler) -> None:
    @ready.profile_function
    def bare() -> None: ...

    @ready.profile_function()
    def called() -> None: ...

    @ready.profile_range("block")
    def block() -> None: ...

    bare(), called(), block()
    here = "test_a_function_has_its_own_name_unless_told_another.<locals>"
    assert list(ready.results().kernels) == [f"{here}.bare", f"{here}.called", "block"]


def test_what_is_no_function_is_not_decorated(ready: GmpProfiler) -> None:
    with pytest.raises(TypeError, match="decorates functions"):
        ready.profile_function("class")(GmpProfiler)
    with pytest.raises(TypeError, match="non-empty string"):
        ready.profile_range("")


def test_a_decorated_function_runs_before_init_and_is_not_counted(gpu: FakeGpu) -> None:
    made = create_profiler()

    @made.profile_function("early")
    def early() -> int:
        return 1

    assert early() == 1
    made.init()
    assert made.results().kernels == {}
    early()
    assert kernels(made) == {"early": (1, 0, 0.0)}


def test_pushed_ranges_of_either_type_end_in_any_order(ready: GmpProfiler, gpu: FakeGpu) -> None:
    ready.push_range("kernels")
    ready.push_range("memory", "memory")
    gpu.launch(1)
    gpu.allocate(10)
    ready.pop_range("CONCURRENT_KERNEL")
    ready.pop_range("MEMORY")
    assert kernels(ready) == {"kernels": (1, 1, 1.0)}
    assert [entry["allocated_bytes"] for entry in ready.get_memory_activity()] == [10]


def test_a_pop_without_its_push_says_so(ready: GmpProfiler) -> None:
    with pytest.raises(UsageError, match=r"pop_range\(MEMORY\): no range of this type was pushed"):
        ready.pop_range("MEMORY")
    ready.push_range("open")
    with pytest.raises(UsageError, match="'open' is of type CONCURRENT_KERNEL"):
        ready.pop_range("MEMORY")
    with ThreadPoolExecutor(1) as pool, pytest.raises(UsageError, match="in this thread or task"):
        pool.submit(ready.pop_range).result()
    ready.pop_range()
    with pytest.raises(UsageError, match="no range"):
        ready.pop_range()


def test_two_profilers_pop_their_own(gpu: FakeGpu) -> None:
    one, other = create_profiler(), create_profiler()
    one.init()
    other.init()
    one.push_range("one")
    with pytest.raises(UsageError, match="no range"):
        other.pop_range()
    one.pop_range()

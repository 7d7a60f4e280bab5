"""Regions that are switched off, and what a region that has ended leaves behind."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextvars import copy_context

import pytest
from support.programs import printed
from support.regions import Stage, Staged

from gpu_profile import configure, region
from gpu_profile.regions.region import current_name
from gpu_profile.regions.session import process


@pytest.fixture
def off() -> Iterator[None]:
    configure(enabled=False, backend="none")
    yield
    configure()


def test_switched_off_regions_are_plain_calls(off: None) -> None:
    @region("sync", items=2, strict=True)
    def double(x: int) -> int:
        assert current_name() is None
        return 2 * x

    @region("async")
    async def later() -> int:
        return double(3)

    @region("generator")
    def numbers() -> Iterator[int]:
        yield 1
        yield 2

    @region("async generator")
    async def letters() -> AsyncIterator[str]:
        yield "a"

    async def gather() -> list[str]:
        return [letter async for letter in letters()]

    assert (double(21), asyncio.run(later()), list(numbers()), asyncio.run(gather())) == (42, 6, [1, 2], ["a"])
    with region("block", items=3) as running:
        running.add_items(1)
        assert running.span is None
    handle = region.start("handle")
    handle.end()
    assert process.running() is None, "nothing was started for it"


def test_switched_off_functions_raise_what_they_raise(off: None) -> None:
    with pytest.raises(ZeroDivisionError), region("block"):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        region("call")(lambda: 1 // 0)()


def test_a_block_that_began_before_it_was_switched_off_ends(on_host: Stage) -> None:
    with region("outer", span=False) as outer:
        process.disabled = True
        with region("inner"):
            pass
        process.disabled = False
    assert outer.end_ns
    on_host.session.settle(final=True)
    assert [execution.name for execution in on_host.ended] == ["outer"]


@pytest.mark.parametrize(("value", "off"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_environment_switches_regions_off(value: str, off: bool) -> None:
    code = "from gpu_profile import process, region\nwith region('x'): pass\nprint(process.running() is None)"
    assert printed("-c", code, GPU_PROFILE_DISABLED=value, GPU_PROFILE_BACKEND="none") == f"{off}\n"


def test_a_region_that_has_ended_is_nobodys_parent_in_a_context_that_was_copied_inside_it(on_host: Stage) -> None:
    with region("outer"), region("inner"):
        inside = copy_context()
    names: list[str | None] = []
    with region("later"):
        inside.run(lambda: names.append(current_name()))
        inside.run(region("call")(lambda: names.append(current_name())))
    assert names == [None, "call"]
    assert on_host.parents() == {"outer": None, "inner": "outer", "later": None, "call": None}


def test_of_many_regions_in_a_row_only_the_last_is_kept_alive(on_host: Stage) -> None:
    for _ in range(50):
        with region("only here", span=False):
            pass
    on_host.flush()
    on_host.ended.clear()
    gc.collect()
    alive = [found for found in gc.get_objects() if type(found).__name__ == "Region" and found.name == "only here"]
    assert len(alive) <= 1


def test_tasks_that_run_at_once_are_inside_their_own_regions(on_host: Stage) -> None:
    @region("inner", span=False)
    def inner(of: str) -> None:
        pass

    @region("outer", span=False)
    async def outer(name: str) -> None:
        with region(name, span=False):
            await asyncio.sleep(0)
            inner(name)
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(*(outer(f"task {i}") for i in range(3)))

    asyncio.run(both())
    on_host.session.settle(final=True)
    around = [e.parent.name for e in on_host.ended if e.name == "inner" and e.parent is not None]
    assert sorted(around) == ["task 0", "task 1", "task 2"]
    assert {e.parent.name for e in on_host.ended if e.name.startswith("task") and e.parent} == {"outer"}


def test_a_region_that_names_other_devices_than_its_streams_has_the_hosts_interval(staged: Staged) -> None:
    two = '[[device]]\nmodel = "H200 SXM"\n[[device]]\nmodel = "A10G"\n'
    on_host = staged(scenario=two)
    on_host.run(0.2)
    first, second = (device.uuid for device in on_host.session.sampler.listed)
    assert on_host.uuid == first
    with region("default"), region("same", device=0), region("other", device=second), region("both", device=[0, 1]):
        on_host.work(3.0, "work")
    on_host.flush()
    sources = {name: on_host.attributes(name)["interval.source"] for name in ("default", "same", "other", "both")}
    assert sources == {"default": "device", "same": "device", "other": "host", "both": "host"}
    assert on_host.attributes("both")["device.ids"] == (first, second)
    assert on_host.attributes("other")["device.ids"] == (second,)

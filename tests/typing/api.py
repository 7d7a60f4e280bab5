"""Type-checked, never run: what users' type checkers see of the public names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar, assert_type, overload

from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from gpu_profile import GpuSpanProcessor, RegionCollector, configure, region, serve_metrics, use_stream
from gpu_profile.driver.simulated import SimulatedQueue
from gpu_profile.regions.region import Region
from gpu_profile.regions.telemetry.prometheus import MetricsServer

T = TypeVar("T")


@region
def bare(a: int, *, scale: float = 1.0) -> str:
    return str(a * scale)


@region("named", items=2, span=False)
def named(a: int, *rest: bytes, **options: bool) -> list[int]:
    return [a, len(rest), len(options)]


assert_type(bare(1, scale=2.0), str)
assert_type(named(1, b"x", quick=True), list[int])
bare("no")  # type: ignore[arg-type]
bare(1, scle=2.0)  # type: ignore[call-arg]
bare()  # type: ignore[call-arg]
named(1, "x")  # type: ignore[arg-type]


@region
async def fetch(url: str, timeout: float = 1.0) -> bytes:
    return url.encode()


@region("async")
async def named_fetch(url: str) -> bytes:
    return url.encode()


def _async(take: Callable[[str], Coroutine[Any, Any, bytes]]) -> None: ...


_async(fetch)
_async(named_fetch)


async def awaits() -> None:
    assert_type(await fetch("x", timeout=2.0), bytes)
    assert_type(await named_fetch(url="x"), bytes)
    await fetch(1)  # type: ignore[arg-type]
    async for part in stream(3):
        assert_type(part, int)


@region("stream")
async def stream(n: int) -> AsyncIterator[int]:
    yield n


@region("talk")
def talk(n: int) -> Generator[int, str, bool]:
    said = yield n
    return bool(said)


@region
def numbers(n: int) -> Iterator[int]:
    yield n


assert_type(talk(1), Generator[int, str, bool])
assert_type(next(numbers(n=1)), int)


@region("generic")
def same(x: T) -> T:
    return x


assert_type(same(1), int)
assert_type(same("x"), str)


class Model:
    @region
    def forward(self, x: int) -> float:
        return x / 2

    @region("backward")
    def backward(self, x: int, *, retain: bool = False) -> None: ...

    @classmethod
    @region("load")
    def load(cls, path: str) -> Model:
        return cls()

    @staticmethod
    @region("version")
    def version() -> str:
        return ""

    @property
    @region("size")
    def size(self) -> int:
        return 1


assert_type(Model().forward(1), float)
assert_type(Model.load("x").size, int)
assert_type(Model.version(), str)
Model().backward(1, retain=True)
Model().forward("x")  # type: ignore[arg-type]


@overload
def convert(x: int) -> str: ...
@overload
def convert(x: str) -> int: ...
def convert(x: int | str) -> int | str:
    return x


assert_type(region("convert")(convert)(1), str)

with region("block", items=3, device="GPU-0", strict=True) as block:
    assert_type(block, Region)
    block.add_items(2)

handle = region.start("epoch", items=1.5, span=False)
assert_type(handle, Region)
handle.end()
handle.end(ValueError("x"))

region("x", itmes=3)  # type: ignore[call-overload]
region(3)  # type: ignore[call-overload]
region("x", 3)  # type: ignore[call-overload]

queue = SimulatedQueue("/nowhere")
configure(backend="auto", interval_s=0.1, devices=["GPU-0"], stream=queue, record=Path("runs"))
configure(stream=lambda: queue)
configure("auto")  # type: ignore[call-arg]
use_stream(queue)
use_stream(None)
use_stream(3)  # type: ignore[arg-type]

assert_type(serve_metrics(0).port, int)
assert_type(serve_metrics(address="127.0.0.1"), MetricsServer)
assert_type(GpuSpanProcessor(BatchSpanProcessor(ConsoleSpanExporter()), queue=10).overflowed, int)
RegionCollector().collect()

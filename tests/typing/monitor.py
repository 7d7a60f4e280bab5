"""Type-checked, never run: what users' type checkers see of the decorator and the monitor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, TypeVar, assert_type

from gpu_profile.monitor import GpuMonitor, GpuSample, GpuSummary, ProfiledResult, gpu_profile

T = TypeVar("T")


@gpu_profile
def bare(a: int, *, scale: float = 1.0) -> str:
    return str(a * scale)


@gpu_profile(device=1, interval_s=0.1, backend="nvml", strict=False, warmup_s=0.2, report=False)
def named(a: int, *rest: bytes, **options: bool) -> list[int]:
    return [a, len(rest), len(options)]


assert_type(bare(1, scale=2.0), str)
assert_type(named(1, b"x", quick=True), list[int])
bare("no")  # type: ignore[arg-type]
bare(1, scle=2.0)  # type: ignore[call-arg]
bare()  # type: ignore[call-arg]


@gpu_profile(return_profile=True)
def profiled(a: int) -> str:
    return str(a)


result = profiled(1)
assert_type(result, ProfiledResult[str])
assert_type(result.value, str)
assert_type(result.gpu, GpuSummary)
assert_type(result.gpus, tuple[GpuSummary, ...])
profiled("no")  # type: ignore[arg-type]


@gpu_profile()
async def fetch(url: str) -> bytes:
    return url.encode()


@gpu_profile(return_profile=True, report=False)
async def fetch_profiled(url: str) -> bytes:
    return url.encode()


def _async(take: Callable[[str], Coroutine[Any, Any, bytes]]) -> None: ...


_async(fetch)


async def awaits() -> None:
    assert_type(await fetch("x"), bytes)
    assert_type(await fetch_profiled("x"), ProfiledResult[bytes])
    await fetch(1)  # type: ignore[arg-type]
    async for part in stream(3):
        assert_type(part, int)
    async with GpuMonitor() as monitor:
        assert_type(monitor, GpuMonitor)


@gpu_profile(report=print)
async def stream(n: int) -> AsyncIterator[int]:
    yield n


@gpu_profile
def talk(n: int) -> Generator[int, str, bool]:
    said = yield n
    return bool(said)


@gpu_profile(return_profile=True)
def talk_profiled(n: int) -> Generator[int, str, bool]:
    said = yield n
    return bool(said)


@gpu_profile
def numbers(n: int) -> Iterator[int]:
    yield n


assert_type(talk(1), Generator[int, str, bool])
assert_type(talk_profiled(1), Generator[int, str, ProfiledResult[bool]])
assert_type(next(numbers(n=1)), int)


@gpu_profile
def same(x: T) -> T:
    return x


assert_type(same(1), int)
assert_type(same("x"), str)


class Model:
    @gpu_profile
    def forward(self, x: int) -> float:
        return x / 2

    @gpu_profile(return_profile=True)
    def backward(self, x: int, *, retain: bool = False) -> None: ...

    @classmethod
    @gpu_profile
    def load(cls, path: str) -> Model:
        return cls()

    @staticmethod
    @gpu_profile(report=False)
    def version() -> str:
        return ""


assert_type(Model().forward(1), float)
assert_type(Model().backward(1, retain=True), ProfiledResult[None])
assert_type(Model.load("x"), Model)
assert_type(Model.version(), str)


def wait() -> None: ...


def take(summary: GpuSummary) -> int:
    return summary.n_samples


gpu_profile(sync_fn=wait, report=take)
gpu_profile(sync_fn="auto", device=[0, "GPU-1"])
gpu_profile(sync_fn="cuda")  # type: ignore[call-overload]
gpu_profile(report=3)  # type: ignore[call-overload]
gpu_profile(intervall_s=3)  # type: ignore[call-overload]
gpu_profile(3)  # type: ignore[call-overload]

with GpuMonitor(device=0, interval_s=0.2, sync_fn=..., keep_samples=True) as mon:
    assert_type(mon, GpuMonitor)
assert_type(mon.summary, GpuSummary | None)
assert_type(mon.summaries, tuple[GpuSummary, ...])
assert_type(mon.samples, list[GpuSample])
assert_type(mon.device_samples, list[list[GpuSample]])
GpuMonitor(strict="yes")  # type: ignore[arg-type]
ProfiledResult(value=1, gpu=GpuSummary(0, "A", 1.0, 0.2))

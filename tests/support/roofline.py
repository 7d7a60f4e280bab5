"""A machine on a test's clock, and PyTorch's and CuPy's interfaces to a device over `cuda.FakeCuda`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import pytest

from gpu_profile.regions.frameworks import libcuda
from gpu_profile.roofline.ceilings.ceilings import Ceiling, Ceilings, Level
from gpu_profile.roofline.machines import cupy_machine, host_machine, torch_machine
from gpu_profile.roofline.machines.machine import Memory, Timing
from gpu_profile.roofline.precision import Precision
from gpu_profile.testing import START_NS, FakeClock
from gpu_profile.units import MIB, NS_PER_S
from support.cuda import FakeCuda

T = TypeVar("T")
GIB = 1 << 30
#: A ridge of 5 FLOP/B.
CEILINGS = Ceilings(
    machine="a test's machine",
    key={"kind": "cpu"},
    compute={Precision.FP32: Ceiling(100e9, "measured"), Precision.BF16: Ceiling(400e9, "measured")},
    levels=(Level("L3", 32 << 20, Ceiling(100e9, "measured")), Level("memory", None, Ceiling(20e9, "measured"))),
    launch_s=2e-6,
)


class FakeMachine:
    """Runs calls and reports `seconds` as their duration: a number, or a function of the number of calls so far."""

    kind = "cpu"
    device = "cpu"
    name = "a test's machine"
    uuid: str | None = None
    region_device: int | str | None = None
    key: Mapping[str, str] = {"kind": "cpu"}
    cache_bytes: int | None = 32 << 20

    def __init__(self, seconds: float | Callable[[int], float] = 1e-3) -> None:
        self.seconds = seconds
        self.ran = 0
        self.flushed = 0

    def run(self, call: Callable[[], T]) -> tuple[T, Timing]:
        """Call once."""
        result = call()
        self.ran += 1
        taken = self.seconds(self.ran) if callable(self.seconds) else self.seconds
        return result, Timing(taken, taken)

    def synchronize(self) -> None:
        """Does nothing: no work is asynchronous."""

    def flush(self) -> None:
        """Count the call."""
        self.flushed += 1

    def memory(self) -> Memory | None:
        """16 GiB, 12 of them free."""
        return Memory(GIB, GIB, GIB, 12 * GIB, 16 * GIB)


L2_BYTES = 50 * MIB


@pytest.fixture(name="clock")
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The host's clock of every machine."""
    clock = FakeClock()
    for module in (cupy_machine, host_machine, torch_machine):
        monkeypatch.setattr(module, "perf_counter", lambda: (clock.now_ns() - START_NS) / NS_PER_S)
    return clock


@pytest.fixture(name="cuda")
def fake_cuda(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Two devices; neither has a context."""
    made = FakeCuda(clock, devices=2, contexts=set())
    monkeypatch.setattr(libcuda, "_loaded", made)
    return made


@dataclass
class Stream:
    """The current stream of a device."""

    cuda: FakeCuda
    ordinal: int
    handle: int

    def is_capturing(self) -> bool:
        return self.cuda.capturing(self.handle)

    def synchronize(self) -> None:
        self.cuda.wait(f"stream of device {self.ordinal}")


class Event:
    """An event of both frameworks, created at its first record."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.handle: int | None = None

    def record(self, stream: Stream) -> None:
        with self.cuda.inside(stream.ordinal + 1):
            self.handle = self.cuda.event() if self.handle is None else self.handle
        self.cuda.record(self.handle, stream.handle, stream.ordinal + 1)

    def synchronize(self) -> None:
        assert self.handle is not None
        if not self.cuda.passed(self.handle):
            passed_ns = self.cuda.events[self.handle].passed_ns
            assert passed_ns is not None
            self.cuda.clock.advance((passed_ns - self.cuda.clock.now_ns()) / NS_PER_S)

    def elapsed_time(self, end: Event) -> float:
        assert self.handle is not None
        assert end.handle is not None
        elapsed_ns = self.cuda.elapsed_ns(self.handle, end.handle)
        assert elapsed_ns is not None
        return elapsed_ns / 1e6


@dataclass
class Accelerator:
    """`torch.cuda` or `torch.xpu`. `streams`: the current stream's handle of each device."""

    cuda: FakeCuda
    count: int = 2
    current: int = 0
    streams: dict[int, int] = field(default_factory=dict)
    overwritten: list[int] = field(default_factory=list)
    properties: Any = field(
        default_factory=lambda: SimpleNamespace(
            name="NVIDIA H200",
            L2_cache_size=L2_BYTES,
            major=9,
            minor=0,
            multi_processor_count=132,
            uuid="0a1b2c3d-0000-4000-8000-000000000000",
        )
    )

    def is_available(self) -> bool:
        return self.count > 0

    def device_count(self) -> int:
        return self.count

    def current_device(self) -> int:
        return self.current

    def get_device_properties(self, ordinal: int) -> Any:
        assert ordinal < self.count
        return self.properties

    @contextmanager
    def device(self, ordinal: int) -> Iterator[None]:
        before, self.current = self.current, ordinal
        self.cuda.contexts.add(ordinal)
        try:
            yield
        finally:
            self.current = before

    def current_stream(self, ordinal: int) -> Stream:
        return Stream(self.cuda, ordinal, self.streams.get(ordinal, ordinal))

    def is_current_stream_capturing(self) -> bool:
        return self.current_stream(self.current).is_capturing()

    def Event(self, *, enable_timing: bool) -> Event:  # noqa: N802 - PyTorch's name
        assert enable_timing
        return Event(self.cuda)

    def synchronize(self, ordinal: int) -> None:
        self.cuda.wait(f"device {ordinal}")

    def mem_get_info(self, ordinal: int) -> tuple[int, int]:
        return 100, 141

    def memory_allocated(self, ordinal: int) -> int:
        return 20

    def memory_reserved(self, ordinal: int) -> int:
        return 30

    def max_memory_allocated(self, ordinal: int) -> int:
        return 25


class Buffer:
    """A tensor or array with in-place addition only."""

    def __init__(self, size: int, overwritten: list[int]) -> None:
        self.size, self._overwritten = size, overwritten

    def add_(self, _: int) -> None:
        self._overwritten.append(self.size)

    def __iadd__(self, _: int) -> Buffer:
        self._overwritten.append(self.size)
        return self


def torch_with(*, mps: bool = False, hip: str | None = None, **accelerators: Accelerator) -> Any:
    """A module `torch` with these accelerators, such as `cuda=Accelerator(...)`."""
    torch: Any = ModuleType("torch")
    torch.__version__ = "2.9.0"
    torch.version = SimpleNamespace(cuda=None, hip=hip)
    absent = SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)
    torch.cuda = torch.xpu = absent
    for name, accelerator in accelerators.items():
        setattr(torch, name, accelerator)
        setattr(torch.version, name, None if hip else "12.8")
    torch.backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps))
    torch.uint8 = "uint8"
    torch.buffers = []

    def zeros(size: int, *, dtype: str, device: str) -> Buffer:
        assert dtype == "uint8"
        torch.buffers.append(device)
        made = next(iter(accelerators.values()), None)
        return Buffer(size, made.overwritten if made is not None else [])

    torch.zeros = zeros
    torch.inference_mode = lambda *, mode: nullcontext(mode)
    torch.no_grad = nullcontext
    return torch


def cupy_with(accelerator: Accelerator, *, hip: bool = False) -> Any:
    """A module `cupy` on the same device."""
    cupy: Any = ModuleType("cupy")
    cupy.__version__ = "14.2.0"
    pool = SimpleNamespace(malloc=object(), used_bytes=lambda: 20, total_bytes=lambda: 30)
    cupy.get_default_memory_pool = lambda: pool
    cupy.zeros = lambda size, *, dtype: Buffer(size, accelerator.overwritten)
    cupy.ndarray = type("ndarray", (), {})

    class CUDARuntimeError(RuntimeError):
        pass

    def count() -> int:
        if not accelerator.count:
            raise CUDARuntimeError("cudaErrorInsufficientDriver")
        return accelerator.count

    @contextmanager
    def device(ordinal: int) -> Iterator[None]:
        with accelerator.device(ordinal):
            yield

    cupy.cuda = SimpleNamespace(
        Device=device,
        Event=lambda: Event(accelerator.cuda),
        get_elapsed_time=lambda start, end: start.elapsed_time(end),
        get_current_stream=lambda: accelerator.current_stream(accelerator.current),
        get_allocator=lambda: pool.malloc,
        runtime=SimpleNamespace(
            is_hip=hip,
            CUDARuntimeError=CUDARuntimeError,
            getDeviceCount=count,
            getDevice=accelerator.current_device,
            memGetInfo=lambda: (100, 141),
            runtimeGetVersion=lambda: 12090,
            getDeviceProperties=lambda ordinal: {
                "name": b"NVIDIA H200",
                "l2CacheSize": L2_BYTES,
                "major": 9,
                "minor": 0,
                "multiProcessorCount": 132,
            },
        ),
    )
    return cupy


def failing(error: BaseException) -> Callable[[], Any]:
    """A function that raises this very object."""

    def fail() -> Any:
        raise error

    return fail

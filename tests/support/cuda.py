"""CUDA's contexts, streams and events as documented, on a clock that the test moves.

`FakeCuda` replaces `gpu_profile.regions.frameworks.libcuda.Cuda`. `torch_on`, `cupy_on`, `numba_on` and `jax_on` make
modules of the frameworks that use it. A device's own clock may drift, and other processes may share the device in time
slices. Every wait is counted.
"""

import ctypes
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpu_profile.regions import frameworks
from gpu_profile.regions.frameworks import find_stream, libcuda
from gpu_profile.regions.frameworks.libcuda import CudaError
from gpu_profile.testing import START_NS, FakeClock
from gpu_profile.units import NS_PER_S, nanoseconds
from support.concurrency import in_threads

#: Time of a call on the host.
CALL_S = 1e-6
#: Time slice of a process on a shared device.
SLICE_S = 2e-3


@dataclass
class FakeStream:
    """A stream. `tail_ns`: the time when its queued work will be complete."""

    ordinal: int
    tail_ns: int = 0
    capturing: bool = False


@dataclass
class FakeEvent:
    """An event that the device records at `passed_ns` of the host's clock."""

    ordinal: int
    passed_ns: int | None = None


@dataclass
class FakeCuda:
    """CUDA with `devices` visible devices. Devices in `contexts` have their primary context.

    This process and `others` always busy ones have each device for `SLICE_S` in turn.
    """

    clock: FakeClock
    devices: int = 1
    contexts: set[int] = field(default_factory=lambda: {0})
    drift: float = 0.0
    others: int = 0

    def __post_init__(self) -> None:
        self.numbers = itertools.count(1000)
        self.streams = {ordinal: FakeStream(ordinal) for ordinal in range(self.devices)}
        self.events: dict[int, FakeEvent] = {}
        self.local = threading.local()
        self.failed = False
        #: A capture in CUDA's default mode runs in some thread.
        self.captured: FakeStream | None = None
        self.spoiled = False
        self.waits: list[str] = []
        #: With a single hardware queue, no work overtakes the work of the default stream.
        self.one_queue = False

    # ------------------------------------------------------------------ the test's side

    def new_stream(self, ordinal: int = 0) -> int:
        handle = next(self.numbers)
        self.streams[handle] = FakeStream(ordinal)
        return handle

    def launch(self, seconds: float, stream: int = 0) -> int:
        """Queue work. Returns the time of its completion in ns."""
        queue = self.streams[stream]
        at_ns, left_ns = self._ours_ns(max(queue.tail_ns, self.clock.now_ns())), round(seconds * NS_PER_S)
        while self.others and left_ns > (slice_ns := nanoseconds(SLICE_S) - self._into_ns(at_ns)):
            at_ns, left_ns = self._ours_ns(at_ns + slice_ns), left_ns - slice_ns
        queue.tail_ns = at_ns + left_ns
        return queue.tail_ns

    def _into_ns(self, ns: int) -> int:
        """The ns since the start of this process's last slice."""
        return (ns - START_NS) % (nanoseconds(SLICE_S) * (1 + self.others))

    def _ours_ns(self, ns: int) -> int:
        """The first time from `ns` on at which this process has the device."""
        into = self._into_ns(ns)
        here = not self.others or into < nanoseconds(SLICE_S)
        return ns if here else ns - into + nanoseconds(SLICE_S) * (1 + self.others)

    def yield_to_program(self) -> None:
        """Advance the clock to the end of this process's slice, if it is running."""
        self.clock.advance(max(0, nanoseconds(SLICE_S) - self._into_ns(self.clock.now_ns())) / NS_PER_S)

    @contextmanager
    def capture(self, stream: int) -> Iterator[None]:
        self.captured = self.streams[stream]
        self.captured.capturing = True
        yield
        self.captured.capturing, self.captured = False, None

    def wait(self, who: str) -> None:
        self.waits.append(who)

    # ------------------------------------------------------------------ the interface of libcuda

    def _call(self, name: str, *, unsafe: bool = False) -> None:
        self.clock.advance(CALL_S)
        if self.failed:
            raise CudaError(name, 700, "CUDA_ERROR_ILLEGAL_ADDRESS")
        if unsafe and self.captured is not None and not getattr(self.local, "relaxed", False):
            self.spoiled = True
            raise CudaError(name, 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")

    def _device_ns(self, host_ns: int) -> float:
        return (host_ns - START_NS) * (1 + self.drift)

    def active(self, ordinal: int) -> bool:
        return ordinal in self.contexts

    def any_active(self) -> bool:
        return bool(self.contexts)

    def current(self) -> int | None:
        return getattr(self.local, "ordinal", None)

    def uuid(self, ordinal: int) -> str:
        return f"GPU-{ordinal}"

    def context(self, ordinal: int) -> int:
        assert ordinal in self.contexts, "would create a context"
        return ordinal + 1

    @contextmanager
    def inside(self, context: int) -> Iterator[None]:
        before = getattr(self.local, "relaxed", False), self.current()
        self.local.relaxed, self.local.ordinal = True, context - 1
        try:
            yield
        finally:
            self.local.relaxed, self.local.ordinal = before

    def stream(self) -> int:
        self._call("cuStreamCreate", unsafe=True)
        return self.new_stream(self.current() or 0)

    def capturing(self, stream: int, context: int = 0) -> bool:
        return self.streams[stream].capturing

    def event(self) -> int:
        self._call("cuEventCreate")
        handle = next(self.numbers)
        self.events[handle] = FakeEvent(self.current() or 0)
        return handle

    def record(self, event: int, stream: int, context: int) -> None:
        self._call("cuEventRecord")
        queue = self.streams[stream]
        assert queue.ordinal == self.events[event].ordinal == context - 1
        assert not queue.capturing, "an event in a graph has no time"
        tails = [queue.tail_ns, self.streams[queue.ordinal].tail_ns if self.one_queue else 0]
        self.events[event].passed_ns = self._ours_ns(max(self.clock.now_ns(), *tails))

    def passed(self, event: int) -> bool:
        self._call("cuEventQuery", unsafe=True)
        passed = self.events[event].passed_ns
        return passed is not None and passed <= self.clock.now_ns()

    def elapsed_ns(self, first: int, second: int) -> int | None:
        self._call("cuEventElapsedTime", unsafe=True)
        start, end = self.events[first], self.events[second]
        if start.ordinal != end.ordinal:
            raise CudaError("cuEventElapsedTime", 400, "CUDA_ERROR_INVALID_HANDLE")
        if start.passed_ns is None or end.passed_ns is None or end.passed_ns > self.clock.now_ns():
            return None
        milliseconds = (self._device_ns(end.passed_ns) - self._device_ns(start.passed_ns)) / 1e6
        return round(ctypes.c_float(milliseconds).value * 1e6)

    def elapsed_each(self, pairs: Iterable[tuple[int, int]]) -> list[int | None]:
        return [self.elapsed_ns(*pair) for pair in pairs]


# ---------------------------------------------------------------------- frameworks


def torch_on(cuda: FakeCuda) -> Any:
    """A PyTorch module. `torch.use(ordinal, stream)` sets the calling thread's current device and stream."""
    torch, local = ModuleType("torch"), threading.local()
    torch_any: Any = torch
    torch_any.initialized = True
    torch_any._C = SimpleNamespace()

    def use(ordinal: int, stream: int | None = None) -> None:
        local.ordinal, local.streams = ordinal, {ordinal: ordinal if stream is None else stream}

    def current_stream(ordinal: int) -> Any:
        return SimpleNamespace(cuda_stream=getattr(local, "streams", {}).get(ordinal, ordinal))

    torch_any.use = use
    torch_any.cuda = SimpleNamespace(
        is_initialized=lambda: torch_any.initialized,
        current_device=lambda: getattr(local, "ordinal", 0),
        current_stream=current_stream,
        is_current_stream_capturing=lambda: cuda.capturing(current_stream(getattr(local, "ordinal", 0)).cuda_stream),
        synchronize=lambda: cuda.wait("torch"),
    )
    return torch


def cupy_on(cuda: FakeCuda) -> Any:
    cupy: Any = ModuleType("cupy")
    cupy.ordinal = 0
    cupy.stream = 0
    cupy.cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDevice=lambda: cupy.ordinal, deviceSynchronize=lambda: cuda.wait("cupy")),
        get_current_stream=lambda: SimpleNamespace(ptr=cupy.stream),
    )
    return cupy


def numba_on(cuda: FakeCuda) -> Any:
    """The module `numba.cuda`."""
    numba: Any = ModuleType("numba.cuda")
    numba.synchronize = lambda: cuda.wait("numba")
    return numba


def jax_on(cuda: FakeCuda, *, platform: str = "gpu", devices: int = 1) -> dict[str, Any]:
    """The modules `jax` and `jax._src.xla_bridge`."""
    jax: Any = ModuleType("jax")
    bridge: Any = ModuleType("jax._src.xla_bridge")
    bridge.started = True
    bridge.backends_are_initialized = lambda: bridge.started
    jax.default_backend = lambda: platform
    jax.config = SimpleNamespace(jax_default_device=None)
    jax.local_devices = lambda: [SimpleNamespace(local_hardware_id=i) for i in range(devices)]
    jax.arrays = [SimpleNamespace(is_deleted=lambda: False), SimpleNamespace(is_deleted=lambda: True)]
    jax.live_arrays = lambda: jax.arrays
    jax.block_until_ready = lambda arrays: cuda.wait(f"jax: {len(arrays)} arrays")
    jax.effects_barrier = lambda: cuda.wait("jax: effects")
    return {"jax": jax, "jax._src.xla_bridge": bridge}


# ---------------------------------------------------------------------- fixtures


@pytest.fixture(autouse=True)
def no_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unload all frameworks, also after tests that loaded them."""
    for name in ("torch", "cupy", "numba", "numba.cuda", "jax", "jax._src.xla_bridge"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(libcuda, "_loaded", None)
    monkeypatch.setattr(frameworks, "_current_streams", {})


@pytest.fixture(name="clock")
def fake_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(name="cuda")
def fake_cuda(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    made = FakeCuda(clock)
    monkeypatch.setattr(libcuda, "_loaded", made)
    return made


@pytest.fixture(name="torch")
def fake_torch(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = torch_on(cuda)
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


def stream_now(clock: FakeClock) -> Any:
    """The calling thread's stream."""
    current = find_stream(clock=clock)
    assert current is not None
    return current()


def in_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    in_threads(lambda: results.append(function()))
    return results[0]

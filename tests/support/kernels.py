"""A synthetic program of two steps, a replacement of PyTorch's allocator, and a profiler with a test's records."""

import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_profile.errors import GpuBackendError
from gpu_profile.kernels.records import Allocation, Call, Kind, Operation, Operator, Range, RangeCounters, Record
from gpu_profile.kernels.sources.source import WrongThreadError
from gpu_profile.kernels.views import KernelReport, report_of
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import Session
from gpu_profile.testing import FakeClock
from support.sessions import new_session

MS = 1_000_000
MAIN = 100
GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>(Params)"
ADD = "void at::native::elementwise<4, at::native::AddFunctor<float>>(int, at::native::AddFunctor<float>)"
FILL = "void at::native::elementwise<4, at::native::FillFunctor<float>>(int, at::native::FillFunctor<float>)"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
COPY = "Memcpy HtoD (Pinned -> Device)"
EVIL = "</script><script>alert(1)</script><b>\"'&\x1b[31m\ud800\n"
STEPS = 2
#: From one step's start to the next one's.
MIB = 1 << 20
INSTRUCTIONS = "smsp__inst_executed.sum"


def operation(kind: Kind, start: int, end: int, name: str, cause: int | None, **more: Any) -> Operation:
    return Operation(kind, more.pop("device", 0), more.pop("stream", 7), start * MS, end * MS, name, cause, **more)


def call(cause: int, at: int, name: str = "cudaLaunchKernel", ms: int = 0) -> Call:
    return Call(cause, at * MS, at * MS + (ms * MS or 5_000), MAIN, name)


def steps() -> list[Record]:
    """The records of all steps. Each has a copy of 20 MiB, three kernels, a collective beside two of them, and a wait.

    | ms | 0-40 step | 0-10 load | 10-30 forward | 30-40 waiting | 40-50 |
    |---|---|---|---|---|---|
    | stream 7 | | copy 6-8 | gemm 12-20, add 20-22, fill 22-26 | | fill 45-46, in no region |
    | stream 20 | | | | all-reduce 24-34 | |
    """
    made: list[Record] = []
    for i in range(STEPS):
        t, c = 50 * i, 10 * i
        made += [Range("step", MAIN, t * MS, (t + 40) * MS), Range("load", MAIN, t * MS, (t + 10) * MS)]
        made += [Range("forward", MAIN, (t + 10) * MS, (t + 30) * MS)]
        made += [call(c + 1, t + 5, "cudaMemcpyAsync"), call(c + 2, t + 11), call(c + 3, t + 11), call(c + 4, t + 11)]
        made += [call(c + 5, t + 23), call(c + 6, t + 30, "cudaDeviceSynchronize", ms=4), call(c + 7, t + 44)]
        made += [operation(Kind.TRANSFER, t + 6, t + 8, COPY, c + 1, bytes=20 * MIB)]
        made += [operation(Kind.KERNEL, t + 12, t + 20, GEMM, c + 2, occupancy=0.5, blocks=2.0)]
        made += [operation(Kind.KERNEL, t + 20, t + 22, ADD, c + 3)]
        made += [operation(Kind.KERNEL, t + 22, t + 26, FILL, c + 4)]
        made += [operation(Kind.COMMUNICATION, t + 24, t + 34, REDUCE, c + 5, stream=20)]
        made += [operation(Kind.KERNEL, t + 45, t + 46, FILL, c + 7)]
        made += [
            Allocation((t + 12) * MS, MAIN, 0, 3 * MIB, 4 * MIB),
            Allocation((t + 25) * MS, MAIN, 0, -MIB, 3 * MIB),
        ]
    return made


def report(records: list[Record] | None = None, **more: Any) -> KernelReport:
    """The report of `records`, by default of `steps`."""
    return report_of(steps() if records is None else records, source="a.json", **more)


def counted() -> list[RangeCounters]:
    """Counters of another run, only for the gemm."""
    return [RangeCounters(GEMM, 0, {INSTRUCTIONS: 1000.0}) for _ in range(STEPS)]


def on_cpu() -> list[Record]:
    """A program without a GPU: one operator in a region, two outside."""
    return [
        Range("step", MAIN, 0, 10 * MS),
        Operator("aten::mm", MAIN, MS, 9 * MS),
        Operator("aten::relu", MAIN, 12 * MS, 13 * MS),
        Operator("aten::relu", MAIN, 14 * MS, 17 * MS),
    ]


def hostile() -> list[Record]:
    """Records with names that contain HTML, quotes and control characters."""
    return [
        Range(EVIL, MAIN, 0, 10 * MS),
        Call(1, MS, MS + 5, MAIN, EVIL),
        operation(Kind.KERNEL, 2, 4, EVIL, 1, stream=EVIL),
        Allocation(3 * MS, MAIN, 0, MIB, MIB, source=EVIL),
    ]


BLOCK = 512


class Device:
    def __init__(self) -> None:
        self.stats = {name: dict.fromkeys(("current", "peak", "allocated", "freed"), 0) for name in ("bytes", "calls")}
        self.live: dict[int, int] = {}
        self.levels = [0]
        self.trace: deque[dict[str, Any]] = deque()

    def move(self, address: int, size: int, sign: int) -> None:
        block = -(-size // BLOCK) * BLOCK
        for name, amount in (("bytes", block), ("calls", 1)):
            counts = self.stats[name]
            counts["current"] += sign * amount
            counts["allocated" if sign > 0 else "freed"] += amount
            counts["peak"] = max(counts["peak"], counts["current"])
        self.levels.append(self.stats["bytes"]["current"])
        if sign > 0:
            self.live[address] = size
        else:
            del self.live[address]


class Torch:
    """A module `torch` with the parts of `cuda` that the project uses."""

    def __init__(self, devices: int = 1, *, started: bool = True, backend: str = "native") -> None:
        self.started, self.backend, self.now_us = started, backend, 1_000
        self.devices = [Device() for _ in range(devices)]
        self.history: dict[str, Any] | None = None
        self.asked: list[str] = []
        self._next = BLOCK
        self._C = SimpleNamespace(_cuda_isHistoryEnabled=lambda: self.history is not None)
        self.cuda = SimpleNamespace(
            is_initialized=lambda: self.started,
            device_count=lambda: len(self.devices),
            get_allocator_backend=lambda: self.backend,
            memory_stats_as_nested_dict=self._stats,
            memory_snapshot=lambda: self._snapshot()["segments"],
            memory=SimpleNamespace(
                _record_memory_history=self._record, _snapshot=self._snapshot, _dump_snapshot=self._dump
            ),
        )

    def take(self, size: int, device: int = 0) -> int:
        """Allocate. Returns the address."""
        self._next += size + BLOCK
        self.devices[device].move(self._next, size, 1)
        self._note(device, "alloc", self._next, size)
        return self._next

    def give(self, address: int, device: int = 0) -> None:
        """Free."""
        size = self.devices[device].live[address]
        self.devices[device].move(address, size, -1)
        self._note(device, "free_requested", address, size)
        self._note(device, "free_completed", address, size)

    def reset_peak(self, device: int = 0) -> None:
        for counts in self.devices[device].stats.values():
            counts["peak"] = counts["current"]

    def reset_counts(self, device: int = 0) -> None:
        for counts in self.devices[device].stats.values():
            counts["allocated"] = counts["freed"] = 0

    def _note(self, device: int, action: str, address: int, size: int) -> None:
        if self.history is not None:
            trace = self.devices[device].trace
            trace.append({"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.now_us})
            while len(trace) > self.history["max_entries"]:
                trace.popleft()

    def _stats(self, device: int) -> dict[str, Any]:
        self.asked.append(f"stats {device}")
        stats = {name: dict(counts) for name, counts in self.devices[device].stats.items()}
        if self.backend != "native":  # the other allocator reports zeros instead
            stats["bytes"].update(allocated=0, freed=0)
            stats["calls"] = dict.fromkeys(stats["calls"], 0)
        return {"allocated_bytes": {"all": stats["bytes"]}, "allocation": {"all": stats["calls"]}}

    def _record(self, enabled: str | None, **options: Any) -> None:
        self.history = options if enabled else None
        for device in self.devices:
            device.trace.clear()

    def _snapshot(self) -> dict[str, Any]:
        segments = [
            {"device": number, "blocks": [_block(size) for size in device.live.values()]}
            for number, device in enumerate(self.devices)
            if device.live
        ]
        return {"segments": segments, "device_traces": [list(device.trace) for device in self.devices]}

    def _dump(self, path: str) -> None:
        Path(path).write_bytes(pickle.dumps(self._snapshot()))


def _block(size: int) -> dict[str, Any]:
    return {"size": -(-size // BLOCK) * BLOCK, "requested_size": size, "state": "active_allocated"}


class FakeSource:
    """A source with `records` from a test. `fails`: the call that raises. `bound`: only the starting thread can stop.

    `log` contains the calls, in order.
    """

    name = "fake"

    def __init__(self, *, fails: str = "", pushes: bool = False, bound: bool = False) -> None:
        self.fails, self.pushes, self.bound = fails, pushes, bound
        self.dropped: int | None = None
        self.records: list[Record] = []
        self.log: list[object] = []
        self.problem = ""
        self._thread: object = None

    def start(self) -> None:
        if self.fails == "start":
            raise GpuBackendError("no start today")
        self._thread = threading.get_ident()
        self.log.append("start")

    def stop(self) -> Iterable[Record]:
        if self.bound and threading.get_ident() != self._thread:
            raise WrongThreadError("another thread")
        if self.fails == "stop":
            raise GpuBackendError("no stop today")
        self.log.append("stop")
        return self._read()

    def _read(self) -> Iterator[Record]:
        if self.fails == "read":
            raise GpuBackendError("no records today")
        yield from self.records
        self.dropped = 7

    def push(self, range_id: int) -> None:
        self.log.append(range_id)

    def pop(self) -> None:
        self.log.append("pop")

    def kernel(self, start_ns: int, *, thread: int | None = None, ns: int = 1000, name: str = "gemm") -> None:
        """Add a call of this thread, and the kernel that it launched."""
        number = len(self.records) + 1
        caller = threading.get_native_id() if thread is None else thread
        self.records.append(Call(number, start_ns, start_ns + 10, caller, "cudaLaunchKernel"))
        self.records.append(Operation(Kind.KERNEL, 0, 7, start_ns + 20, start_ns + 20 + ns, name, number))


def in_thread(work: Callable[[], object], name: str = "worker") -> int:
    """Run `work` in another thread. Returns the thread's native id."""
    ids: list[int] = []

    def run() -> None:
        ids.append(threading.get_native_id())
        work()

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    return ids[0]


@contextmanager
def regions(clock: FakeClock) -> Iterator[Session]:
    """The session of the regions, driven by the test and without a driver."""
    process.configure(backend="none", stream=None, clock=clock)
    session = new_session()
    try:
        yield session
    finally:
        process.stop()
        process.configure()

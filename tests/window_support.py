"""A profiler that yields what a test says, and a process with regions on a clock that the test moves."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gpu_profile.errors import GpuBackendError
from gpu_profile.kernels.records import Call, Kind, Operation, Record
from gpu_profile.kernels.sources.source import WrongThreadError
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import Session
from gpu_profile.testing import FakeClock


class FakeSource:
    """A source whose `records` the test fills; `fails` says where it refuses, `bound` that only its starter stops it.

    `log` has what it was told, in order.
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
        """A call of this thread, and the kernel that it launched."""
        number = len(self.records) + 1
        caller = threading.get_native_id() if thread is None else thread
        self.records.append(Call(number, start_ns, start_ns + 10, caller, "cudaLaunchKernel"))
        self.records.append(Operation(Kind.KERNEL, 0, 7, start_ns + 20, start_ns + 20 + ns, name, number))


@contextmanager
def regions(clock: FakeClock) -> Iterator[Session]:
    """The session that regions meet, driven by hand and without a driver."""
    process.configure(backend="none", stream=None, clock=clock)
    session = new_session()
    try:
        yield session
    finally:
        process.stop()
        process.configure()


def new_session() -> Session:
    """Another session of the process, in place of the one before."""
    session = process._make()
    session.active = True
    process.current = session
    return session

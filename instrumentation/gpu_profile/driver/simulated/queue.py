"""The program's side of a simulated device: an asynchronous, in-order queue like a CUDA stream."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver.simulated.models import PRECISIONS, DeviceModel
from gpu_profile.driver.simulated.physics import LAUNCH_LATENCY_NS, Work, bounds, copy_ns, duration_ns
from gpu_profile.driver.simulated.scenario import Scenario, Unit, load
from gpu_profile.driver.simulated.worklog import PACK, LogWriter, RecordKind
from gpu_profile.errors import ScenarioError, UsageError
from gpu_profile.units import NS_PER_S

_MOST_CACHED: Final = 4096


@dataclass(frozen=True, slots=True)
class Mark:
    """A position in a queue, like a recorded CUDA event. The queue passes it at `passed_ns`, ns since the epoch."""

    passed_ns: int


class SimulatedQueue:
    """Launches work on one device of the simulated node in `directory`. Thread-safe; a forked child gets its own log.

    `device`: the index of a GPU, or the UUID of a GPU or MIG instance. Raises UsageError for an unknown device, and
    ScenarioError for a device with a script or in MIG mode. As a context manager it closes at the end.
    """

    def __init__(self, directory: Path | str, device: int | str = 0, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._directory = Path(directory)
        self._unit = _find(load(self._directory), device, self._directory)
        self._clock = clock
        self._lock = threading.Lock()
        self._tail_ns = 0
        self._cached: dict[Work, tuple[int, tuple[float, ...]]] = {}
        self._open()

    def _open(self) -> None:
        self._log = LogWriter(self._directory)
        self._tail_ns = 0
        self._note(RecordKind.MEMORY, 0)

    def _note(self, kind: RecordKind, size: int) -> None:
        now = self._clock.now_ns()
        self._log.append(PACK.pack(now, now, self._unit.slot, kind, 0, 0, 0.0, size, 0.0, 0.0, 0.0, 0.0))

    def _own_log(self) -> LogWriter:
        if self._log.pid != os.getpid():
            self._open()
        elif self._log.closed:
            raise UsageError(f"{self._log.path}: the queue is closed")
        return self._log

    @property
    def device_uuid(self) -> str:
        """The UUID of the device."""
        return self._unit.uuid

    @property
    def model(self) -> DeviceModel:
        """The model of the device."""
        return self._unit.model

    @property
    def pending_ns(self) -> int:
        """The ns until all launched work has run."""
        return max(0, self._tail_ns - self._clock.now_ns())

    def launch(self, work: Work, *, tag: str | None = None) -> None:
        """Queue one kernel and return immediately. `tag` names the region for `Truth`.

        Raises ValueError for work that the device does not support, such as a precision.
        """
        cached = self._cached.get(work)
        if cached is None:
            bounds(self._unit.model, work)
            amounts = (work.flops, work.bytes, work.pcie_bytes, work.nvlink_bytes, work.sms, work.occupancy)
            if len(self._cached) >= _MOST_CACHED:
                self._cached.clear()
            cached = self._cached[work] = (duration_ns(self._unit.model, work), amounts)
        self._queue(RecordKind.KERNEL, cached[0], PRECISIONS.index(work.precision), cached[1], tag)

    def copy(self, size: float, direction: Literal["to_device", "to_host"], *, tag: str | None = None) -> None:
        """Queue a copy of `size` bytes over PCIe and return immediately."""
        if size < 0 or direction not in ("to_device", "to_host"):
            raise ValueError("a copy has a size of at least 0 and goes 'to_device' or 'to_host'")
        kind = RecordKind.COPY_IN if direction == "to_device" else RecordKind.COPY_OUT
        self._queue(kind, copy_ns(self._unit.model, size), 0, (0.0, 0.0, size, 0.0, 0.0, 0.0), tag)

    def _queue(self, kind: int, length_ns: int, precision: int, amounts: tuple[float, ...], tag: str | None) -> None:
        with self._lock:
            log = self._own_log()
            number = log.tag(tag)
            start = max(self._clock.now_ns() + LAUNCH_LATENCY_NS, self._tail_ns)
            end = start + length_ns
            log.append(PACK.pack(start, end, self._unit.slot, kind, precision, number, *amounts))
            self._tail_ns = end

    def allocate(self, size: int) -> None:
        """Allocate `size` bytes of device memory. Closing the queue frees them."""
        with self._lock:
            self._own_log()
            self._note(RecordKind.MEMORY, size)

    def free(self, size: int) -> None:
        """Free `size` bytes of device memory."""
        self.allocate(-size)

    def record(self) -> Mark:
        """A mark after all work launched so far."""
        with self._lock:
            return Mark(max(self._clock.now_ns(), self._tail_ns))

    def resolve(self, mark: Mark) -> int | None:
        """The moment at which the queue passed `mark`, in ns since the epoch; None if it has not."""
        return mark.passed_ns if self._clock.now_ns() >= mark.passed_ns else None

    def synchronize(self) -> None:
        """Wait until all work launched so far has run."""
        mark = self.record()
        while (left := mark.passed_ns - self._clock.now_ns()) > 0:
            self._clock.wait(threading.Event(), left / NS_PER_S)

    def close(self) -> None:
        """End the log and free its device memory. Queued work still runs. Closing twice is fine."""
        with self._lock:
            if self._log.pid == os.getpid() and not self._log.closed:
                self._note(RecordKind.CLOSE, 0)
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _find(scenario: Scenario, device: int | str, directory: Path) -> Unit:
    unit = scenario.find(device)
    if unit is None:
        uuids = ", ".join(unit.uuid for unit in scenario.units)
        raise UsageError(f"{directory}: [device]: no device {device!r}; the simulated node has {uuids}")
    if unit.slices:
        names = ", ".join(scenario.units[slot].uuid for slot in unit.slices)
        raise ScenarioError(f"{directory}: [device {unit.index}]: is cut into instances; use one of {names}")
    if unit.phases:
        raise ScenarioError(f"{directory}: [device {unit.index}]: follows a script and takes no other work")
    return unit

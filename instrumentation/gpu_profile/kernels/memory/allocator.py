"""PyTorch's caching allocator, read directly: its use of GPU memory in an interval, without a profiler.

Only reads a PyTorch that the program has loaded and whose CUDA (or ROCm) it has initialised: it imports nothing,
creates no context, waits for no GPU, and resets nothing. Other back ends of PyTorch (MPS, XPU) are not read.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from gpu_profile.errors import UsageError

#: The allocator with cumulative counters; the counters of PyTorch's other allocator stay 0.
_COUNTED: Final = "native"


@dataclass(frozen=True, slots=True)
class AllocatorUse:
    """Use of PyTorch's allocator on one device in an interval, by all callers, in bytes of blocks.

    `start_bytes` and `end_bytes` were allocated at its start and end. The highest level between them is at least
    `peak_least_bytes` and at most `peak_most_bytes` (None: no bound). Counts are None where the allocator does not keep
    them or they were reset meanwhile.
    """

    device: int
    start_bytes: int
    end_bytes: int
    peak_least_bytes: int
    peak_most_bytes: int | None
    allocations: int | None
    allocated_bytes: int | None
    frees: int | None
    freed_bytes: int | None

    @property
    def peak_bytes(self) -> int | None:
        """The highest level, if both bounds are equal; else None."""
        return self.peak_least_bytes if self.peak_least_bytes == self.peak_most_bytes else None


class _Reading(NamedTuple):
    """The allocator's statistics of one device at a moment.

    `counts`: allocations, their bytes, frees, their bytes, all since the start. None: the allocator does not keep them.
    """

    current: int = 0
    peak: int = 0
    counts: tuple[int, ...] | None = (0, 0, 0, 0)


#: Before CUDA is initialised nothing has been allocated.
_NOTHING: Final = _Reading()


class AllocatorInterval:
    """An interval of an `AllocatorMeter`. `uses` is None until it has ended, or if it failed: see `reason`."""

    def __init__(self, meter: AllocatorMeter, readings: Mapping[int, _Reading]) -> None:
        self.uses: tuple[AllocatorUse, ...] | None = None
        self.reason = "the interval has not ended"
        self._meter = meter
        self._began = readings
        self._failed = ""
        self._least: dict[int, int] = {}
        self._most: dict[int, int | None] = {}

    def __enter__(self) -> AllocatorInterval:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """End it, from any thread. Ending it again does nothing."""
        self._meter._end(self)

    def _widen_bounds(self, device: int, least: int, most: int | None) -> None:
        """Include the bounds of a part of the interval."""
        before = self._most.get(device, 0)
        self._least[device] = max(self._least.get(device, 0), least)
        self._most[device] = None if most is None or before is None else max(before, most)

    def _sum_up(self, readings: Mapping[int, _Reading]) -> tuple[AllocatorUse, ...]:
        uses = []
        for device, now in sorted(readings.items()):
            then = self._began.get(device, _NOTHING)
            counted = _counted(then, now)
            peak = self._least[device], self._most[device]
            # Without counts, memory that was allocated and freed in between leaves no trace.
            hidden = None in counted and peak[1] != 0
            if then.current or now.current or now.peak > then.peak or any(counted) or hidden:
                uses.append(AllocatorUse(device, then.current, now.current, *peak, *counted))
        return tuple(uses)


class AllocatorMeter:
    """Measures intervals of a program, which may nest and overlap on several threads.

    The allocator keeps one peak for the whole process. Where it rose, it is the exact peak since the previous reading.
    Where it did not, the peak has bounds: the levels that were read, and the level that the bytes allocated since would
    allow. Every start and end of an interval is a reading for all open ones, so nested intervals narrow the bounds of
    the intervals around them. A peak that is reset within an interval and then exceeded again goes unnoticed.

    `devices`: CUDA ordinals; by default all that PyTorch sees. Thread-safe. A reading costs a call of
    `memory_stats_as_nested_dict` for each device.
    """

    def __init__(self, *, devices: Sequence[int] | None = None) -> None:
        self._devices = devices
        self._lock = threading.Lock()
        self._open: list[AllocatorInterval] = []
        self._last: dict[int, _Reading] = {}

    def begin(self) -> AllocatorInterval:
        """Begin an interval; use it as a context manager, or call its `end`."""
        with self._lock:
            readings, reason = self._read()
            interval = AllocatorInterval(self, readings or {})
            if readings is None:
                interval._failed = reason
            self._open.append(interval)
        return interval

    def _end(self, interval: AllocatorInterval) -> None:
        with self._lock:
            if interval not in self._open:
                return
            readings, reason = self._read()
            self._open.remove(interval)
            interval.reason = interval._failed or reason
            if readings and not interval.reason:
                interval.uses = interval._sum_up(readings)

    def _read(self) -> tuple[dict[int, _Reading] | None, str]:
        """Read all devices and widen the bounds of the open intervals; None and the reason if it failed."""
        readings, reason = _readings(self._devices)
        self._last, last = readings or {}, self._last
        if readings is None:
            for interval in self._open:
                interval._failed = reason
            return None, reason
        for device, now in readings.items():
            least, most = _bounds(last.get(device, _NOTHING), now)
            for interval in self._open:
                interval._widen_bounds(device, least, most)
        return readings, reason


def snapshot(path: Path | str | None = None) -> list[dict[str, Any]]:
    """The segments and blocks of PyTorch's allocator on all devices, as `torch.cuda.memory_snapshot()` returns them.

    With `path`, PyTorch's own snapshot is also written there, for its viewer (https://pytorch.org/memory_viz).
    UsageError if there is no PyTorch with initialised CUDA, its allocator has no snapshots, or the file cannot be
    written.
    """
    cuda, reason = initialised()
    if cuda is None:
        raise UsageError(f"no snapshot of PyTorch's memory: {reason}")
    try:
        segments: list[dict[str, Any]] = list(cuda.memory_snapshot())
        if path is not None:
            dump = getattr(cuda.memory, "_dump_snapshot", None)
            if dump is None:
                raise UsageError(f"{path}: this PyTorch cannot write snapshots (no torch.cuda.memory._dump_snapshot)")
            dump(str(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except RuntimeError as error:
        raise UsageError(f"no snapshot of PyTorch's memory: {_first_line(error)}") from error
    return segments


def initialised() -> tuple[Any, str]:
    """`torch.cuda` if the program has loaded and initialised it, else None and the reason."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None, "PyTorch is not loaded: import torch first"
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not getattr(cuda, "is_initialized", bool)():  # while it is being imported, parts are missing
        return None, "PyTorch has not initialised CUDA in this process: put a tensor on the GPU first"
    return cuda, ""


def _readings(devices: Sequence[int] | None) -> tuple[dict[int, _Reading] | None, str]:
    """The statistics of each device. Empty before CUDA is initialised, None on failure, both with the reason."""
    cuda, reason = initialised()
    if cuda is None:
        return {}, reason
    try:
        backend = getattr(cuda, "get_allocator_backend", lambda: _COUNTED)()
        wanted = range(cuda.device_count()) if devices is None else devices
        stats = {device: cuda.memory_stats_as_nested_dict(device) for device in wanted}
        return {device: _reading(stats[device], counted=backend == _COUNTED) for device in wanted}, ""
    except (RuntimeError, KeyError, AssertionError, ValueError) as error:
        return None, f"the statistics of PyTorch's allocator cannot be read: {_first_line(error)}"


def _reading(stats: Mapping[str, Any], *, counted: bool) -> _Reading:
    allocated, calls = stats["allocated_bytes"]["all"], stats["allocation"]["all"]
    counts = tuple(int(part[key]) for key in ("allocated", "freed") for part in (calls, allocated)) if counted else None
    return _Reading(int(allocated["current"]), int(allocated["peak"]), counts)


def _bounds(then: _Reading, now: _Reading) -> tuple[int, int | None]:
    """The least and the most possible peak of the level between two readings, both included."""
    if now.peak > then.peak:
        return now.peak, now.peak
    allocated = _counted(then, now)[1]
    possible = None if allocated is None else then.current + allocated
    if now.peak < then.peak:  # it was reset meanwhile
        return max(then.current, now.current, now.peak), possible
    return max(then.current, now.current), now.peak if possible is None else min(now.peak, possible)


def _counted(then: _Reading, now: _Reading) -> tuple[int | None, int | None, int | None, int | None]:
    """Allocations, their bytes, frees, their bytes; None where they do not explain the change of the level."""
    if then.counts is not None and now.counts is not None:
        calls, taken, frees, given = (after - before for before, after in zip(then.counts, now.counts, strict=True))
        if min(calls, taken, frees, given) >= 0 and taken - given == now.current - then.current:
            return calls, taken, frees, given
    return None, None, None, None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__

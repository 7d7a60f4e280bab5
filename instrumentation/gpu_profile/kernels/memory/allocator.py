"""PyTorch's caching allocator, asked directly: what happened to GPU memory in an interval, without a profiler.

Only looks at a PyTorch that the program has loaded and whose CUDA (or ROCm) it has initialised: it imports nothing,
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

#: The allocator whose cumulative counters PyTorch keeps; those of the other one stay 0.
_COUNTED: Final = "native"


@dataclass(frozen=True, slots=True)
class AllocatorUse:
    """What PyTorch's allocator did on one device in an interval, for whoever asked, in bytes of blocks.

    `start_bytes` and `end_bytes` were given out when it began and ended. The highest level between them is at least
    `peak_least_bytes` and at most `peak_most_bytes` (None: no bound is known). Counts are None where the allocator does
    not keep them or somebody reset them meanwhile.
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
        """The highest level, where it is known exactly."""
        return self.peak_least_bytes if self.peak_least_bytes == self.peak_most_bytes else None


class _Reading(NamedTuple):
    """The allocator's statistics of one device at a moment.

    `counts`: allocations, bytes of them, frees, bytes of them, all since the start; None: it does not keep them.
    """

    current: int = 0
    peak: int = 0
    counts: tuple[int, ...] | None = (0, 0, 0, 0)


#: Before CUDA is initialised nothing has been given out.
_NOTHING: Final = _Reading()


class AllocatorInterval:
    """An interval that an `AllocatorMeter` began. `uses` is there once it has ended; None: see `reason`."""

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

    def _passed(self, device: int, least: int, most: int | None) -> None:
        """Widen the bounds by a part of the interval."""
        before = self._most.get(device, 0)
        self._least[device] = max(self._least.get(device, 0), least)
        self._most[device] = None if most is None or before is None else max(before, most)

    def _sum_up(self, readings: Mapping[int, _Reading]) -> tuple[AllocatorUse, ...]:
        uses = []
        for device, now in sorted(readings.items()):
            then = self._began.get(device, _NOTHING)
            counted = _counted(then, now)
            peak = self._least[device], self._most[device]
            # Without counts, what was taken and given back in between leaves no trace.
            hidden = None in counted and peak[1] != 0
            if then.current or now.current or now.peak > then.peak or any(counted) or hidden:
                uses.append(AllocatorUse(device, then.current, now.current, *peak, *counted))
        return tuple(uses)


class AllocatorMeter:
    """Measures intervals of a program, which may nest and overlap on several threads.

    The allocator keeps one peak for the whole process. Where it rose, it is that of the time since the reading before:
    exact. Where it did not, the peak is between the levels that were read and what they and the bytes given out since
    allow. Every start and end of an interval is a reading for all that are open, so nested ones narrow the bounds of
    those around them. A peak that somebody resets within an interval and that is then exceeded again goes unnoticed.

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
        """Read all devices and tell the open intervals what passed since the reading before; None: it failed."""
        readings, reason = _readings(self._devices)
        self._last, last = readings or {}, self._last
        if readings is None:
            for interval in self._open:
                interval._failed = reason
            return None, reason
        for device, now in readings.items():
            least, most = _bounds(last.get(device, _NOTHING), now)
            for interval in self._open:
                interval._passed(device, least, most)
        return readings, reason


def snapshot(path: Path | str | None = None) -> list[dict[str, Any]]:
    """The segments and blocks of PyTorch's allocator on all devices, as `torch.cuda.memory_snapshot()` tells them.

    With `path`, PyTorch's own snapshot is also written there, for its viewer (https://pytorch.org/memory_viz).
    UsageError if there is no PyTorch with initialised CUDA, its allocator has no snapshots, or the file cannot be
    written.
    """
    cuda, reason = initialised()
    if cuda is None:
        raise UsageError(f"no snapshot of PyTorch's memory: {reason}")
    try:
        found: list[dict[str, Any]] = list(cuda.memory_snapshot())
        if path is not None:
            dump = getattr(cuda.memory, "_dump_snapshot", None)
            if dump is None:
                raise UsageError(f"{path}: this PyTorch cannot write snapshots (no torch.cuda.memory._dump_snapshot)")
            dump(str(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except RuntimeError as error:
        raise UsageError(f"no snapshot of PyTorch's memory: {_first_line(error)}") from error
    return found


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
    """The statistics of each device; none at all before CUDA is initialised, with the reason; None: it failed."""
    cuda, reason = initialised()
    if cuda is None:
        return {}, reason
    try:
        backend = getattr(cuda, "get_allocator_backend", lambda: _COUNTED)()
        wanted = range(cuda.device_count()) if devices is None else devices
        stats = {device: cuda.memory_stats_as_nested_dict(device) for device in wanted}
        return {device: _reading(stats[device], counted=backend == _COUNTED) for device in wanted}, ""
    except (RuntimeError, KeyError, AssertionError, ValueError) as error:
        return None, f"PyTorch's allocator does not tell its statistics: {_first_line(error)}"


def _reading(stats: Mapping[str, Any], *, counted: bool) -> _Reading:
    held, calls = stats["allocated_bytes"]["all"], stats["allocation"]["all"]
    counts = tuple(int(part[key]) for key in ("allocated", "freed") for part in (calls, held)) if counted else None
    return _Reading(int(held["current"]), int(held["peak"]), counts)


def _bounds(then: _Reading, now: _Reading) -> tuple[int, int | None]:
    """The least and the most that the level's peak can have been between two readings, both included."""
    if now.peak > then.peak:
        return now.peak, now.peak
    allocated = _counted(then, now)[1]
    possible = None if allocated is None else then.current + allocated
    if now.peak < then.peak:  # it was reset meanwhile
        return max(then.current, now.current, now.peak), possible
    return max(then.current, now.current), now.peak if possible is None else min(now.peak, possible)


def _counted(then: _Reading, now: _Reading) -> tuple[int | None, int | None, int | None, int | None]:
    """Allocations, bytes of them, frees, bytes of them; None where they do not explain how the level changed."""
    if then.counts is not None and now.counts is not None:
        calls, taken, frees, given = (after - before for before, after in zip(then.counts, now.counts, strict=True))
        if min(calls, taken, frees, given) >= 0 and taken - given == now.current - then.current:
            return calls, taken, frees, given
    return None, None, None, None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__

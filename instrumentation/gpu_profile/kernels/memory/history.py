"""PyTorch's own record of every allocation, for exact peaks of short stretches of time, without a profiler."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.errors import UsageError
from gpu_profile.kernels.joining.columns import RecordArrays
from gpu_profile.kernels.memory.allocator import initialised
from gpu_profile.kernels.memory.region import AllocatorLevel, levels_of
from gpu_profile.kernels.records import Allocation

_NS_PER_US: Final = 1000
#: Actions that change the level. Memory counts as freed from the request on, as in the allocator's statistics, even if
#: another stream still uses it (`free_completed`).
_SIGNS: Final[Mapping[str, int]] = {"alloc": 1, "free_requested": -1}


class MemoryHistory:
    """The result of `recording_history`, complete once the recording has ended.

    The bytes of `records` are the requested ones, which are fewer than the blocks in the allocator's statistics. Their
    totals are sums of requested bytes, too, and their threads are unknown (""). They are complete from
    `since_ns[device]` on. `reason` says why there are none.
    """

    def __init__(self) -> None:
        self.records: tuple[Allocation, ...] = ()
        self.since_ns: dict[int, int] = {}
        self.reason = "the recording has not ended"
        self._allocated: dict[int, int] = {}
        self._levels: dict[int, AllocatorLevel] = {}

    def peak_bytes(self, device: int, start_ns: int, end_ns: int) -> int | None:
        """The most bytes that were allocated at any moment of the interval, to the microsecond.

        None if the history does not reach back to its start.
        """
        since = self.since_ns.get(device)
        if since is None or start_ns < since:
            return None
        level = self._levels.get(device)
        if level is None:
            return self._allocated[device]
        # The records have whole microseconds, rounded down.
        start = np.array([start_ns // _NS_PER_US * _NS_PER_US], np.int64)
        return int(level.highest(start, np.array([end_ns], np.int64))[0])

    def _take(self, state: Mapping[str, Any], began_ns: int, limit: int) -> None:
        """Read PyTorch's snapshot. With `limit` or more entries, older ones may have been lost."""
        records: list[Allocation] = []
        since = {}
        for device, trace in enumerate(state["device_traces"]):
            self._allocated[device] = _allocated_bytes(state["segments"], device)
            since[device] = began_ns
            if trace and len(trace) >= limit:
                since[device] = max(began_ns, (int(trace[0]["time_us"]) + 1) * _NS_PER_US)
            records.extend(_records(trace, device, self._allocated[device]))
        self.records, self.since_ns = tuple(records), since
        self._levels = {level.device: level for level in levels_of(RecordArrays(records))}
        self.reason = ""


@contextmanager
def recording_history(*, max_entries: int = 100_000, clock: Clock = SYSTEM_CLOCK) -> Iterator[MemoryHistory]:
    """Let PyTorch record its allocations, without stacks, while the context is open.

    PyTorch keeps the last `max_entries` of each device. A history that is being recorded already is used, and
    continues; otherwise recording stops at the end. The level is computed backwards from the end: allocations of other
    threads at that very moment can shift it. UsageError if there is no PyTorch with initialised CUDA, or if it has no
    such history (added in 2.1, its times in 2.2).
    """
    cuda, reason = initialised()
    if cuda is None:
        raise UsageError(f"no history of PyTorch's memory: {reason}")
    if max_entries < 1:
        raise UsageError(f"max_entries must be at least 1, not {max_entries}")
    record, snapshot = (getattr(cuda.memory, name, None) for name in ("_record_memory_history", "_snapshot"))
    if record is None or snapshot is None:
        raise UsageError("no history of PyTorch's memory: this PyTorch has none; 2.2 or newer is needed")
    shared = getattr(sys.modules["torch"]._C, "_cuda_isHistoryEnabled", bool)()
    try:
        if not shared:
            record("all", context=None, stacks="python", max_entries=max_entries)
    except (TypeError, RuntimeError) as error:
        raise UsageError(f"no history of PyTorch's memory: {error}") from error
    history, began_ns = MemoryHistory(), clock.now_ns()
    try:
        yield history
    finally:
        try:
            # The limit of a history started by others is unknown: the oldest entry counts as its beginning.
            history._take(snapshot(), began_ns, 1 if shared else max_entries)
        except (RuntimeError, KeyError) as error:
            history.reason = f"PyTorch's history cannot be read: {error}"
        if not shared:
            record(None)


def _allocated_bytes(segments: Sequence[Mapping[str, Any]], device: int) -> int:
    """Requested bytes of the blocks that are allocated."""
    blocks = (block for segment in segments if segment["device"] == device for block in segment["blocks"])
    return sum(block["requested_size"] for block in blocks if block["state"] == "active_allocated")


def _records(trace: Sequence[Mapping[str, Any]], device: int, level: int) -> list[Allocation]:
    records = []
    for entry in reversed(trace):
        sign = _SIGNS.get(entry["action"])
        if sign is not None:
            size, time_ns = sign * int(entry["size"]), int(entry["time_us"]) * _NS_PER_US
            records.append(Allocation(time_ns, "", device, size, level, int(entry["addr"]), stream=entry.get("stream")))
            level -= size
    return records[::-1]

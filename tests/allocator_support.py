"""A stand-in for PyTorch's caching allocator: its statistics, one peak for all, and a bounded history."""

from __future__ import annotations

import pickle
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
    """What the program sees as `torch`: only `cuda`, and of that only what is asked of it."""

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
        """Allocate; its address."""
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
        found = {name: dict(counts) for name, counts in self.devices[device].stats.items()}
        if self.backend != "native":  # zeros stand for what the other allocator does not keep
            found["bytes"].update(allocated=0, freed=0)
            found["calls"] = dict.fromkeys(found["calls"], 0)
        return {"allocated_bytes": {"all": found["bytes"]}, "allocation": {"all": found["calls"]}}

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

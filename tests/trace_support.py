"""Traces made in tests: programs whose timing says what bounds them, and files with their events."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpu_profile.kernels.records import Allocation, Call, Counted, Kind, Launched, Operation, Operator, Range, Record

TRACES = Path(__file__).parent / "data" / "traces"
US = 1_000
MS = 1_000_000

_CATEGORY = {
    Kind.KERNEL: ("kernel", "gemm"),
    Kind.COMMUNICATION: ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
    Kind.TRANSFER: ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)"),
    Kind.COPY: ("gpu_memcpy", "Memcpy DtoD (Device -> Device)"),
    Kind.SET: ("gpu_memset", "Memset (Device)"),
}


class Program:
    """One host thread that launches work, and a GPU that runs each stream's in order, as soon as it can."""

    def __init__(self) -> None:
        self.now = 0
        self.free: dict[int, int] = {}
        self.records: list[Operation | Call] = []

    def host(self, ns: int) -> None:
        """The host does something else."""
        self.now += ns

    def launch(
        self, ns: int, kind: Kind = Kind.KERNEL, *, stream: int = 7, after: int | None = None, call: int = 5 * US
    ) -> None:
        """Launch an operation of `ns`; it waits for its stream, and for stream `after` if one is given."""
        correlation = len(self.records) + 1
        self.records.append(Call(correlation, self.now, self.now + call, 1))
        self.now += call
        waits = [self.free.get(key, 0) for key in (stream, after) if key is not None]
        start = max(self.now + 2 * US, *waits)
        self.free[stream] = start + ns
        self.records.append(Operation(kind, 0, stream, start, start + ns, _CATEGORY[kind][1], correlation))

    def join(self) -> None:
        """The host waits for the GPU."""
        self.now = max(self.now, *self.free.values())


def event(record: Record) -> dict[str, Any]:
    """A record as Kineto writes it today."""
    match record:
        case Operation():
            return _operation(record)
        case Call():
            arguments: dict[str, Any] = {"External id": 1, "cbid": 211, "correlation": record.correlation}
            if record.bytes is not None:
                arguments["size"] = str(record.bytes)
            return _lasting(record, "cuda_runtime", record.name or "cudaLaunchKernel", arguments)
        case Range():
            return _lasting(record, "user_annotation", record.name, {"External id": 1, "Ev Idx": 0})
        case Operator():
            arguments = {"External id": 1, "Ev Idx": 0}
            if record.sequence is not None:
                arguments |= {"Sequence number": record.sequence, "Fwd thread id": int(record.backward)}
            return _lasting(record, "cpu_op", record.name, arguments)
        case Allocation():
            return _allocation(record)
        case Counted():
            found = {"ph": "X", "cat": "cuda_profiler_range", "name": record.name, "pid": record.device, "tid": 0}
            return {**found, "ts": 0, "dur": 1, "args": dict(record.values)}
        case Launched():
            raise ValueError("Kineto writes no external correlations")


def _operation(record: Operation) -> dict[str, Any]:
    arguments: dict[str, Any] = {"device": record.device, "context": 1, "stream": record.stream}
    arguments["correlation"] = record.correlation
    if record.bytes is not None:
        arguments["bytes"] = record.bytes
    if record.occupancy is not None:
        arguments["est. achieved occupancy %"] = round(record.occupancy * 100)
    if record.blocks is not None:
        arguments["blocks per SM"] = record.blocks
    if record.graph:
        arguments |= {"graph id": 3, "graph node id": (3 << 32) + 1}
    category, _ = _CATEGORY[record.kind]
    found = {"ph": "X", "cat": category, "name": record.name, "pid": record.device, "tid": record.stream}
    return {**found, **_times(record), "args": arguments}


def _allocation(record: Allocation) -> dict[str, Any]:
    arguments: dict[str, Any] = {"Device Type": int(record.device >= 0), "Device Id": record.device}
    arguments |= {"Bytes": record.bytes, "Addr": record.address, "Ev Idx": 0}
    if record.total is not None:
        arguments |= {"Total Allocated": record.total, "Total Reserved": record.total}
    found = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": record.thread}
    return {**found, "ts": record.time_ns / US, "args": arguments}


def _times(record: Operation | Call | Range | Operator) -> dict[str, float]:
    return {"ts": record.start_ns / US, "dur": (record.end_ns - record.start_ns) / US}


def _lasting(record: Call | Range | Operator, category: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    found = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": record.thread}
    return {**found, **_times(record), "args": arguments}


def write(path: Path, records: Iterable[Record], **top: Any) -> Path:
    """Write a trace file, packed if its name ends in .gz."""
    text = json.dumps({"schemaVersion": 1, **top, "traceEvents": [event(r) for r in records]}, indent=1)
    data = text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path

"""Traces made in tests: programs whose timing says what bounds them, and files with their events."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpu_profile.kernels import Kind, Launch, Operation

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
        self.records: list[Operation | Launch] = []

    def host(self, ns: int) -> None:
        """The host does something else."""
        self.now += ns

    def launch(
        self, ns: int, kind: Kind = Kind.KERNEL, *, stream: int = 7, after: int | None = None, call: int = 5 * US
    ) -> None:
        """Launch an operation of `ns`; it waits for its stream, and for stream `after` if one is given."""
        correlation = len(self.records) + 1
        self.records.append(Launch(correlation, self.now, self.now + call, 1))
        self.now += call
        waits = [self.free.get(key, 0) for key in (stream, after) if key is not None]
        start = max(self.now + 2 * US, *waits)
        self.free[stream] = start + ns
        self.records.append(Operation(kind, 0, stream, start, start + ns, _CATEGORY[kind][1], correlation))

    def join(self) -> None:
        """The host waits for the GPU."""
        self.now = max(self.now, *self.free.values())


def event(record: Operation | Launch) -> dict[str, Any]:
    """A record as Kineto writes it."""
    found = {"ph": "X", "ts": record.start_ns / US, "dur": (record.end_ns - record.start_ns) / US}
    if isinstance(record, Launch):
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": record.thread}
        return {**found, **call, "args": {"External id": 1, "cbid": 211, "correlation": record.correlation}}
    arguments = {"device": record.device, "context": 1, "stream": record.stream, "correlation": record.correlation}
    category, _ = _CATEGORY[record.kind]
    return {**found, "cat": category, "name": record.name, "pid": 0, "tid": record.stream, "args": arguments}


def write(path: Path, records: Iterable[Operation | Launch], **top: Any) -> Path:
    """Write a trace file, packed if its name ends in .gz."""
    text = json.dumps({"schemaVersion": 1, **top, "traceEvents": [event(r) for r in records]}, indent=1)
    data = text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path

"""A few records for tests of what regions launched: calls with their operations, and the report of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpu_profile.kernels.records import Call, Kind, Operation, Record
from gpu_profile.kernels.views import KernelReport, report_of

MAIN, WORKER = 100, 200
US = 1_000
MS = 1_000_000


def launch(
    correlation: int, called: int, start: int, end: int, *, thread: int = MAIN, kind: Kind = Kind.KERNEL, **more: Any
) -> list[Record]:
    """A call and the operation that came of it."""
    plain = Operation(kind, 0, 7, start, end, "gemm", correlation)
    return [Call(correlation, called, called + 2, thread, "cudaLaunchKernel"), plain._replace(**more)]


def report(*records: Record | Iterable[Record]) -> KernelReport:
    flat: list[Record] = []
    for each in records:
        flat.extend(each if isinstance(each, list) else [each])  # type: ignore[list-item]
    return report_of(flat, source="a trace")

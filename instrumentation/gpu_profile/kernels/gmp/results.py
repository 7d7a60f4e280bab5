"""The results of a profiler's ranges as console text, two CSV files and plain values. Pure but for writing the files.

The layout on the console and the names of its metrics are specified by the document that `profiler` implements. Every
number is followed by its unit.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from gpu_profile.errors import UsageError
from gpu_profile.kernels.counters.formulas import TIME
from gpu_profile.kernels.memory.region import RegionMemory
from gpu_profile.kernels.records import HOST, Allocation
from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.sums import longest_first
from gpu_profile.units import MIB

_NS_PER_US: Final = 1000
#: In a folder of the user's choice, `output` by default.
RESULT_FILE: Final = "result.csv"
KERNEL_FILE: Final = "kernels.csv"


class ProfileType(StrEnum):
    """The purpose of a range: to list its kernels, or the memory that it allocates and frees."""

    CONCURRENT_KERNEL = "CONCURRENT_KERNEL"
    MEMORY = "MEMORY"


class Reduction(StrEnum):
    """How the numbers of a range's kernels become one.

    Ratios are never added up: under SUM and MEAN they are the mean weighted by the kernels' time. Metrics without a
    maximum are left out under MAX. Counts are the same under each.
    """

    SUM = "SUM"
    MAX = "MAX"
    MEAN = "MEAN"


E = TypeVar("E", bound=StrEnum)


def one_of(kind: type[E], value: str) -> E:
    """The member with this name in any case; UsageError if there is none."""
    try:
        return kind(value.upper())
    except (AttributeError, ValueError):
        what = "reduction" if kind is Reduction else "profile type"
        raise UsageError(f"there is no {what} {value!r}: use {' or '.join(kind)}") from None


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a profiler's ranges.

    `kernels` and `memory` are the ranges of either type in order of their first start; None is a range that was not
    collected at all. `allocations` are the memory records of the ranges of type MEMORY, up to the limit. `source` names
    the sources that recorded. `unrecorded` counts a range's executions during which no kernels were recorded, and
    `with_memory` names the ranges during which memory was recorded. `problems` says why something was not, one line
    each. `notes` counts unusable and ambiguous records by reason; `dropped` counts the lost records (None: unknown).
    """

    kernels: Mapping[str, RegionKernels | None] = field(default_factory=dict)
    memory: Mapping[str, RegionKernels | None] = field(default_factory=dict)
    allocations: Mapping[str, Sequence[Allocation]] = field(default_factory=dict)
    source: str = ""
    unrecorded: Mapping[str, int] = field(default_factory=dict)
    with_memory: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()
    notes: Mapping[str, int] = field(default_factory=dict)
    dropped: int | None = None

    def recorded(self, region: RegionKernels) -> bool:
        """Whether kernels were recorded during any of its executions."""
        return region.executions > self.unrecorded.get(region.name, 0)

    def memories(self, region: RegionKernels | None) -> tuple[RegionMemory, ...] | None:
        """The memory of each allocator during a range; None if it was not recorded."""
        return None if region is None or region.name not in self.with_memory else region.memory

    def values(self, region: RegionKernels, reduction: str = Reduction.SUM) -> list[Value]:
        """A range's numbers: of its kernels and copies, if they were recorded, and of its time on the host."""
        how = one_of(Reduction, reduction)
        if not self.recorded(region):
            return list(_host_values(region, how))
        parts = (_kernel_values, _host_values, _copy_values, _counter_values)
        return [value for part in parts for value in part(region, how)]


class Value(NamedTuple):
    """One number of a range. `reduction` is the one that was applied: a count stays a sum."""

    metric: str
    unit: str
    reduction: Reduction
    value: float

    def __str__(self) -> str:
        number = str(self.value) if isinstance(self.value, int) else f"{self.value:.2f}"
        return f"{self.metric}: {number} {self.unit}".rstrip()


def _kernel_values(region: RegionKernels, how: Reduction) -> Iterator[Value]:
    count, total_ns = region.kernel_count, region.kernel_ns
    name = f"{'cpu' if region.on_host else 'gpu'}__time_duration.sum"
    if how is Reduction.SUM:
        yield Value(name, "us", how, total_ns / _NS_PER_US)
    elif count:
        longest_ns = max(kernel.max_ns for kernel in region.kernels.values())
        yield Value(name, "us", how, (longest_ns if how is Reduction.MAX else total_ns / count) / _NS_PER_US)
    yield Value("operators.count" if region.on_host else "kernels.count", "", Reduction.SUM, count)
    if region.occupancy is not None and how is not Reduction.MAX:
        yield Value("kernels.estimated_occupancy", "%", Reduction.MEAN, 100 * region.occupancy)


def _host_values(region: RegionKernels, how: Reduction) -> Iterator[Value]:
    yield Value("executions.count", "", Reduction.SUM, region.executions)
    if how is Reduction.SUM:
        yield Value("host__time_duration.sum", "us", how, region.host_ns / _NS_PER_US)
    elif how is Reduction.MEAN and region.executions:
        yield Value("host__time_duration.sum", "us", how, region.host_ns / region.executions / _NS_PER_US)


def _copy_values(region: RegionKernels, _: Reduction) -> Iterator[Value]:
    if region.copies:
        yield Value("copies.count", "", Reduction.SUM, region.copy_count)
    if region.copy_bytes is not None:
        yield Value("copies.bytes", "B", Reduction.SUM, region.copy_bytes)


def _counter_values(region: RegionKernels, how: Reduction) -> Iterator[Value]:
    for metric, value in ({} if region.counters is None else region.counters.reduce(how)).items():
        # The time is already listed, as measured without counters, which slow kernels down.
        if metric != TIME:
            yield Value(metric, _unit(metric), how, int(value) if value.is_integer() else value)


def _unit(metric: str) -> str:
    """The unit of a hardware counter by NVIDIA's naming; empty for plain numbers."""
    counter, _, rollup = metric.partition(".")
    if "pct" in rollup:
        return "%"
    unit = "B" if "bytes" in counter else "ns" if counter.endswith("_duration") else ""
    return f"{unit}/s" if "per_second" in rollup else unit


# ---------------------------------------------------------------------- the console


def kernel_text(results: Results, reduction: str = Reduction.SUM) -> str:
    """The ranges of kernels as the console shows them, without a newline at the end."""
    how = one_of(Reduction, reduction)
    lines = [f"🔥 Kernel Profiling Results ({how}):", f"Number of ranges: {len(results.kernels)}"]
    if any(region is not None and region.on_host for region in results.kernels.values()):
        lines.append("No GPU operation was recorded: these are operators of the CPU.")
    ranges = {
        name: None if region is None else [str(value) for value in results.values(region, how)]
        for name, region in results.kernels.items()
    }
    return "\n".join([*lines, *_ranges(ranges, "profile_range"), *_remarks(results)])


def memory_text(results: Results) -> str:
    """The ranges of memory as the console shows them, without a newline at the end. 1 MB is 2^20 bytes there."""
    recorded = {name: results.memories(region) for name, region in results.memory.items()}
    ranges = {name: None if memories is None else list(_memory_lines(memories)) for name, memories in recorded.items()}
    return "\n".join(["💾 Memory Activity Results:", *_ranges(ranges, "profile_memory"), *_remarks(results)])


def _ranges(ranges: Mapping[str, Sequence[str] | None], how: str) -> Iterator[str]:
    """The lines of each range; None for a range that was not recorded."""
    for number, (name, lines) in enumerate(ranges.items(), 1):
        yield f"Range {number}: {name}"
        yield from (f"  {line}" for line in (["not recorded"] if lines is None else lines))
    if not ranges:
        yield f"No range was recorded: call init(), and run code in {how}()."


def _memory_lines(memories: Sequence[RegionMemory]) -> Iterator[str]:
    if not memories:
        yield f"Allocations: {_moved(0, 0)}"
        yield f"Deallocations: {_moved(0, 0)}"
    for memory in memories:
        # The document's exact lines for a single allocator of a GPU; the lines of others end with a name.
        plain = len(memories) == 1 and memory.device != HOST
        tail = "" if plain else f" [{memory.source}, {'CPU' if memory.device == HOST else f'GPU {memory.device}'}]"
        yield f"Allocations: {_moved(memory.allocations, memory.allocated_bytes)}{tail}"
        yield f"Deallocations: {_moved(memory.frees, memory.freed_bytes)}{tail}"
        if memory.peak_bytes is not None:
            yield f"Peak: {_bytes(memory.peak_bytes)}{tail}"
        elif memory.rise_bytes is not None:
            yield f"Peak above the start: {_bytes(memory.rise_bytes)}{tail}"


def _remarks(results: Results) -> list[str]:
    lines = list(results.problems)
    if results.dropped:
        lines.append(f"{results.dropped} records were lost: the numbers are too low.")
    return lines + [f"Note: {reason}: {count}" for reason, count in results.notes.items()]


def _moved(times: int, amount: int) -> str:
    return f"{times} operations, {_bytes(amount)}"


def _bytes(amount: int) -> str:
    return f"{amount} bytes ({amount / MIB:.2f} MB)"


# ---------------------------------------------------------------------- plain values


def memory_activity(results: Results) -> list[dict[str, Any]]:
    """The ranges of memory as plain values, in the order of the console; see `GmpProfiler.get_memory_activity`."""
    entries = []
    for name, region in results.memory.items():
        memories = results.memories(region)
        entry: dict[str, Any] = {"name": name, "executions": 0 if region is None else region.executions}
        for key, of in _TOTALS.items():
            entry[key] = None if memories is None else sum(getattr(memory, of) for memory in memories)
        entry["allocators"] = [
            {"source": memory.source, "device_id": memory.device}
            | {key: getattr(memory, of) for key, of in _TOTALS.items()}
            | {"peak_bytes": memory.peak_bytes, "rise_bytes": memory.rise_bytes}
            for memory in memories or ()
        ]
        entry["records"] = [_record(name, allocation) for allocation in results.allocations.get(name, ())]
        entries.append(entry)
    return entries


#: Keys of an entry, and the counts of `RegionMemory` that they show.
_TOTALS: Final = {
    "allocations": "allocations",
    "allocated_bytes": "allocated_bytes",
    "deallocations": "frees",
    "deallocated_bytes": "freed_bytes",
}


def _record(name: str, allocation: Allocation) -> dict[str, Any]:
    where = "HOST" if allocation.device == HOST else "DEVICE"
    return {
        "name": name,
        "memory_operation_type": "ALLOC" if allocation.bytes > 0 else "FREE",
        "memory_kind": allocation.kind.upper() or where,
        "correlation_id": allocation.correlation,
        "address": allocation.address or None,
        "bytes": abs(allocation.bytes),
        "timestamp": allocation.time_ns,
        "process_id": os.getpid(),
        "device_id": None if allocation.device == HOST else allocation.device,
        "context_id": allocation.context,
        "stream_id": allocation.stream,
        "is_async": allocation.asynchronous,
        "source": allocation.source,
    }


# ---------------------------------------------------------------------- files


def write(results: Results, folder: Path, reduction: str = Reduction.SUM) -> None:
    """Write `result.csv`, a row per range and metric, and `kernels.csv`, a row per range and kernel name, anew.

    Makes the folder. Raises OSError if that or the writing fails.
    """
    how = one_of(Reduction, reduction)
    folder.mkdir(parents=True, exist_ok=True)
    _rows(folder / RESULT_FILE, ("range", "metric", "unit", "reduction", "value"), _result_rows(results, how))
    columns = ("range", "kernel", "count", "total_us", "mean_us", "max_us")
    _rows(folder / KERNEL_FILE, columns, _kernel_rows(results))


def _rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    # A new file replaces the old one: a concurrent reader sees the old or the new one, whole.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(columns)
            table.writerows(rows)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _result_rows(results: Results, how: Reduction) -> Iterator[tuple[object, ...]]:
    for name, region in results.kernels.items():
        for value in () if region is None else results.values(region, how):
            yield name, value.metric, value.unit, str(value.reduction), value.value
    for name, region in results.memory.items():
        for memory in results.memories(region) or ():
            prefix = f"memory.{memory.source}.{'cpu' if memory.device == HOST else f'gpu{memory.device}'}"
            for key, of in _TOTALS.items():
                unit = "B" if key.endswith("bytes") else ""
                yield name, f"{prefix}.{key}", unit, str(Reduction.SUM), getattr(memory, of)
            for key in ("peak_bytes", "rise_bytes"):
                if getattr(memory, key) is not None:
                    yield name, f"{prefix}.{key}", "B", str(Reduction.MAX), getattr(memory, key)


def _kernel_rows(results: Results) -> Iterator[tuple[object, ...]]:
    for name, region in results.kernels.items():
        kernels = [] if region is None else longest_first(region.kernels)
        for kernel, sums in kernels:
            mean_ns = sums.total_ns / sums.count if sums.count else 0.0
            yield name, kernel, sums.count, *(ns / _NS_PER_US for ns in (sums.total_ns, mean_ns, sums.max_ns))

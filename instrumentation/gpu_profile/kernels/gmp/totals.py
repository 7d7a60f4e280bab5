"""Sums over windows, whose reports arrive one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from typing import Final

from gpu_profile.kernels.gmp.results import ProfileType, Results
from gpu_profile.kernels.records import Allocation
from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.report import ReportData

#: Memory records that a profiler lists in all; further records are in the sums only.
MOST_RECORDS: Final = 100_000


class RangeTotals:
    """The sums of a profiler's ranges. Not thread-safe."""

    def __init__(self) -> None:
        #: Names of ranges of either type, in order of their first start.
        self.names: dict[ProfileType, dict[str, None]] = {kind: {} for kind in ProfileType}
        self._problems: dict[str, None] = {}
        self._regions: dict[str, RegionKernels] = {}
        self._allocations: dict[str, list[Allocation]] = {}
        self._kept = 0
        self._sources: dict[str, None] = {}
        self._unrecorded: Counter[str] = Counter()
        self._with_memory: set[str] = set()
        self._notes: Counter[str] = Counter()
        self._dropped: int | None = None

    def problem(self, line: str) -> None:
        """Add a line to the results that says why something was not recorded; repeated lines count once."""
        self._problems.setdefault(line)

    def add(self, report: ReportData, *, recorded: bool, memory: bool, elsewhere: Container[str] = ()) -> None:
        """Add a window's report. Not `recorded`: it has the host's time only; not `memory`: no allocations.

        Of the ranges in `elsewhere`, only the GPU operations were recorded.
        """
        for region in report.regions:
            if not any(region.name in names for names in self.names.values()):
                continue  # a plain region, or another profiler's range
            previous = self._regions.get(region.name)
            self._regions[region.name] = region if previous is None else _sum(previous, region)
            here = region.name not in elsewhere
            if not recorded or (region.on_host and not here):
                self._unrecorded[region.name] += region.executions
            if memory and here:
                self._with_memory.add(region.name)
                if region.name in self.names[ProfileType.MEMORY]:
                    self._keep(region.name, report.allocations(region.name))
        self._notes.update(report.notes)
        if report.dropped is not None:
            self._dropped = (self._dropped or 0) + report.dropped
        if recorded:
            self._sources.setdefault(report.source)

    def _keep(self, name: str, allocations: Sequence[Allocation]) -> None:
        fitting = allocations[: max(0, MOST_RECORDS - self._kept)]
        self._allocations.setdefault(name, []).extend(fitting)
        self._kept += len(fitting)
        if left_out := len(allocations) - len(fitting):
            self._notes[f"memory records beyond {MOST_RECORDS:,}, which are counted but not listed"] += left_out

    def results(self) -> Results:
        """All totals so far."""
        kernels, memory = (
            {name: self._regions.get(name) for name in self.names[kind]}
            for kind in (ProfileType.CONCURRENT_KERNEL, ProfileType.MEMORY)
        )
        return Results(
            kernels=kernels,
            memory=memory,
            allocations={name: tuple(self._allocations.get(name, ())) for name in memory},
            source=", ".join(self._sources),
            unrecorded=dict(self._unrecorded),
            with_memory=frozenset(self._with_memory),
            problems=tuple(self._problems),
            notes=dict(self._notes),
            dropped=self._dropped,
        )


def _sum(one: RegionKernels, other: RegionKernels) -> RegionKernels:
    """Their sum. If one has GPU operations and the other the CPU's operators, only GPU operations count as kernels."""
    if one.on_host != other.on_host:
        # A recording shows operators only if it contains no GPU operation.
        cpu, gpu = (one, other) if one.on_host else (other, one)
        return RegionKernels(cpu.name, cpu.executions, cpu.host_ns, memory=cpu.memory) + gpu
    return one + other

"""The sums of a recording of GPU operations: the whole, and each region's part of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final, Self

import numpy as np

from gpu_profile.errors import UsageError
from gpu_profile.kernels.activity import Activity, activity_of
from gpu_profile.kernels.counters.sums import Counters, Matched
from gpu_profile.kernels.joining.columns import NONE, RecordArrays
from gpu_profile.kernels.joining.placing import place
from gpu_profile.kernels.joining.work import gpu_work, host_work
from gpu_profile.kernels.memory.timeline import MemorySteps, memory_timeline
from gpu_profile.kernels.records import Allocation, RangeCounters, Record
from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.region_sums import Adder
from gpu_profile.kernels.sums import KernelSum
from gpu_profile.recording.kernel_stamps import KernelStamps

#: Characters of the names that a message suggests.
_MOST_HINTS: Final = 80


@dataclass(frozen=True, slots=True)
class ReportData:
    """The data of a `KernelReport`: the whole, each region's part, and the records that both come from.

    `activity` sums up all GPU operations (None: there are none), `kernels` the kernels of all regions by name.
    `regions` come in order of first appearance.

    `outside` is the work launched in no region, named "". `notes` counts, by reason, unusable and ambiguous records.
    `dropped` is how many records the profiler lost; None: it does not report the number. `on_host`: there was no GPU
    operation, and `regions` and `outside` are made of the CPU's operators instead. `counted` says how many of the
    counters' records match a kernel or region; None: there were none. `cut` is the reason why the records end early;
    empty if they do not.
    """

    source: str
    activity: Activity | None
    kernels: Mapping[str, KernelSum]
    regions: tuple[RegionKernels, ...]
    outside: RegionKernels | None
    notes: Mapping[str, int]
    dropped: int | None
    on_host: bool
    counted: Matched | None
    columns: RecordArrays
    _adder: Adder
    _outermost: Mapping[str, Sequence[int]]
    cut: str = ""

    @classmethod
    def of(
        cls,
        records: Iterable[Record],
        *,
        source: str = "",
        dropped: int | None = None,
        counted: Iterable[RangeCounters] | None = None,
        notes: Mapping[str, int] | None = None,
    ) -> Self:
        """Join operations with the calls that launched them, and calls with the regions that they were made in.

        `counted` are counters of another run of the same program, joined by the names of kernels. By default, counters
        among the records are used. `notes` counts, by reason, what the reader of the records left out.
        """
        columns = RecordArrays(records)
        work, unjoined = gpu_work(columns)
        names = columns.names
        # Records of counters come without records of their kernels.
        on_host = not len(work.starts) and not columns.counted and len(columns.operators.starts) > 0
        if on_host:
            work = host_work(columns)
        placing = place(columns, work)
        adder = Adder(columns, work, placing, on_host=on_host)
        ranges = columns.ranges
        many = np.bincount(ranges.names, minlength=len(names)) if len(ranges.names) else np.zeros(0, np.int64)
        begun = sorted(placing.forest.outermost.items(), key=lambda item: min(ranges.starts[at] for at in item[1]))
        regions = [adder.region(names[number], inside, int(many[number])) for number, inside in begun]
        outside = adder.outside()
        kernels, matched = adder.everything(), None
        read = list(columns.counted if counted is None else counted)
        if read:
            counters = Counters(read)
            regions = [
                replace(each, counters=counters.of(kernels, each.kernels, each.name, executions=each.executions))
                for each in regions
            ]
            matched = counters.matched(kernels, {each.name for each in regions})
        activity = None if on_host else activity_of(columns, work)
        return cls(
            source=source,
            activity=activity,
            kernels=kernels,
            regions=tuple(regions),
            outside=outside,
            notes=Counter(notes or {}) + Counter(unjoined if activity else {}) + Counter(placing.notes),
            dropped=dropped,
            on_host=on_host,
            counted=matched,
            columns=columns,
            _adder=adder,
            _outermost={names[number]: inside for number, inside in begun},
        )

    @property
    def causes(self) -> bool:
        """Whether the recording has calls of the host. Without them, no cause of idle time can be determined."""
        return self.activity is not None and self.activity.launches > 0

    def region(self, name: str) -> RegionKernels:
        """One region; UsageError with the nearest names if there is none of this name."""
        for region in self.regions:
            if region.name == name:
                return region
        near = get_close_matches(name, self._outermost, 3, 0.4) or list(self._outermost)[:3]
        while len(near) > 1 and sum(map(len, near)) > _MOST_HINTS:
            del near[-1]
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ": there are no regions in it"
        raise UsageError(f"{self.source}: no region {name!r}{hint}")

    def executions(self) -> dict[int, RegionKernels]:
        """Each execution by itself, by the id of its range; executions without an id are left out."""
        ranges, names = self.columns.ranges, self.columns.names
        return {
            number: self._adder.region(names[int(ranges.names[at])], [at], 1)
            for at, number in enumerate(ranges.ids.tolist())
            if number
        }

    def kernel_stamps(self, since: Mapping[int, int]) -> dict[int, KernelStamps]:
        """The times of the kernels that each execution launched itself, by the id of its range.

        `since` has the start of each execution on the host, in ns. Left out are executions without kernels, with
        kernels on several devices, or with more than `MOST_STAMPED` of them.
        """
        ids = self.columns.ranges.ids.tolist()
        starts = {at: since[number] for at, number in enumerate(ids) if number in since}
        return {ids[at]: stamps for at, stamps in self._adder.kernel_stamps(starts)}

    def memory_timelines(self, region: str | None = None, *, points: int = 1000) -> list[tuple[MemorySteps, ...]]:
        """The allocated bytes of each allocator over time, in at most `points` steps: of the whole recording, or of
        each execution of a region that is in no other of the same name. UsageError if there is no such region.
        """
        if region is None:
            return [memory_timeline(self._adder.levels, points=points)]
        self.region(region)
        ranges = self.columns.ranges
        windows = [(int(ranges.starts[at]), int(ranges.ends[at])) for at in self._outermost[region]]
        return [memory_timeline(self._adder.levels, window=each, points=points) for each in sorted(windows)]

    def allocations(self, name: str) -> list[Allocation]:
        """The allocations that were made in a region, in order of time; UsageError if there is no such region."""
        self.region(name)
        columns, names, threads = self.columns.allocations, self.columns.names, self.columns.threads
        members = self._adder.members(self._outermost[name])
        order = members[np.argsort(columns.times[members], kind="stable")]
        driver = {(each.time_ns, each.address, each.bytes): each for each in self.columns.driver}
        rows = zip(*(column[order].tolist() for column in columns), strict=True)
        result = []
        for time, thread, device, moved, total, source, address in rows:
            in_use = None if total == NONE else total
            plain = Allocation(time, threads[thread], device, moved, in_use, address, names[source])
            result.append(driver.get((time, address, moved), plain))
        return result

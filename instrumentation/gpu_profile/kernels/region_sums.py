"""Sums of one region's operations among those of all others. Pure; times in ns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpu_profile.kernels.joining.columns import CODES, NONE, Numbers, RecordArrays
from gpu_profile.kernels.joining.idle import Idle, IdleTimes
from gpu_profile.kernels.joining.intervals import Cover
from gpu_profile.kernels.joining.placing import Placing
from gpu_profile.kernels.joining.work import OperationTable
from gpu_profile.kernels.memory.region import levels_of, region_memory
from gpu_profile.kernels.records import Kind
from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.sums import CopySum, KernelSum
from gpu_profile.recording.kernel_stamps import MOST_STAMPED, KernelStamps

_KERNELS: Final = (CODES[Kind.KERNEL], CODES[Kind.COMMUNICATION])
_COPIES: Final = (CODES[Kind.TRANSFER], CODES[Kind.COPY])
#: Host, device, array, peer: `HtoD`, `DeviceToHost`.
_WAY: Final = re.compile(r"(?:\b|(?<=[a-z]))([HDAP])(?:ost|evice|rray|eer)?[tT]o([HDAP])")
#: Calls of the runtime and the driver, of CUDA and HIP, in which the host waits for the GPU.
_WAITING: Final = "Synchronize"


class _Device:
    """All operations of one device, of all regions."""

    def __init__(self, work: OperationTable, here: NDArray[np.bool_]) -> None:
        kinds, starts, ends = work.kinds[here], work.starts[here], work.ends[here]
        kernel, transfer = kinds == CODES[Kind.KERNEL], kinds == CODES[Kind.TRANSFER]
        self.busy = Cover(starts, ends)
        self.kernels = Cover(starts[kernel], ends[kernel])
        self.no_transfer = Cover(starts[~transfer], ends[~transfer])
        self.idle = IdleTimes(starts, ends, work.launched[here])


class _Members:
    """Members of ranges by their indexes, in the order of the forest, so that all inside a range is one slice."""

    def __init__(self, placing: Placing, ranges: Numbers) -> None:
        some = np.flatnonzero(ranges >= 0)
        place = placing.forest.first[ranges[some]] if len(some) else np.zeros(0, np.int64)
        order = np.argsort(place, kind="stable")
        self._members, self._places = some[order], place[order]
        self._forest = placing.forest

    def inside(self, ranges: Sequence[int]) -> list[Numbers]:
        """The members inside each of the ranges."""
        first = np.searchsorted(self._places, self._forest.first[list(ranges)])
        last = np.searchsorted(self._places, self._forest.last[list(ranges)])
        return [self._members[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True)]


class Adder:
    """Adds up regions of one recording."""

    def __init__(self, columns: RecordArrays, work: OperationTable, placing: Placing, *, on_host: bool) -> None:
        self._work, self._placing, self._on_host = work, placing, on_host
        self._columns, self._ranges, self._calls, self._names = columns, columns.ranges, columns.calls, columns.names
        self._devices = {
            device: _Device(work, work.devices == device) for device in np.unique(work.devices).astype(int).tolist()
        }
        self._own, self._second = _Members(placing, placing.own), _Members(placing, placing.second)
        waiting = np.array([_WAITING in name for name in self._names], bool)
        waits = waiting[self._calls.names] if len(self._calls.names) else np.zeros(0, bool)
        self._waits = _Members(placing, np.where(waits, placing.calls, -1))
        self._allocations = _Members(placing, placing.allocations)
        self.levels = levels_of(columns)

    def region(self, name: str, ranges: Sequence[int], executions: int) -> RegionKernels:
        """The sums of these ranges under this name. None of the ranges is inside another."""
        own, second = self._own.inside(ranges), self._second.inside(ranges)
        each = [_distinct((a, b)) if len(b) else a for a, b in zip(own, second, strict=True)]
        here = np.array(ranges, np.int64)
        starts, ends = self._ranges.starts[here], self._ranges.ends[here]
        host = Cover(starts, ends)
        members = _distinct(each)
        belongs = self._placing.own[members]
        direct = (belongs >= 0) & (self._ranges.names[belongs] == self._ranges.names[here[0]])
        waits = _distinct(self._waits.inside(ranges))
        sums = self._sums(name, members, self._windows(each, starts, ends))
        return replace(
            sums,
            executions=executions,
            host_ns=int((ends - starts).sum()),
            own=int(direct.sum()),
            beside_ns=sum(device.busy.within(host) for device in self._devices.values()),
            waits=len(waits),
            wait_ns=Cover(self._calls.starts[waits], self._calls.ends[waits]).length,
            memory=region_memory(self._columns, self.members(ranges), starts, ends, self.levels),
        )

    def outside(self) -> RegionKernels | None:
        """The sums of operations in no region, from the first start to the last end; None if there are none."""
        members = np.flatnonzero(self._placing.own < 0)
        if not len(members):
            return None
        first, last = self._work.starts[members].min(), self._work.ends[members].max()
        whole = Cover(np.array([first]), np.array([last]))
        return replace(self._sums("", members, dict.fromkeys(self._devices, whole)), own=len(members))

    def everything(self) -> dict[str, KernelSum]:
        """All kernels of all regions by name."""
        return self._kernels(np.flatnonzero(np.isin(self._work.kinds, _KERNELS)))

    def kernel_stamps(self, since: Mapping[int, int]) -> Iterator[tuple[int, KernelStamps]]:
        """The kernels launched in each range but in none inside it. `since` has the starts of the wanted ranges."""
        work, own = self._work, self._placing.own
        kernels = np.flatnonzero(np.isin(work.kinds, _KERNELS) & np.isin(own, list(since)))
        # Operations are sorted by start, and stay so within each range.
        kernels = kernels[np.argsort(own[kernels], kind="stable")]
        edges = np.flatnonzero(np.diff(own[kernels], prepend=-1, append=-1)).tolist()
        for first, last in pairwise(edges):
            here = kernels[first:last]
            if last - first <= MOST_STAMPED and len(np.unique(work.devices[here])) == 1:
                at = int(own[here[0]])
                names = [self._names[name] for name in work.names[here].tolist()]
                yield at, KernelStamps.of(names, work.starts[here], work.ends[here], since[at])

    def members(self, ranges: Sequence[int]) -> Numbers:
        """The allocations that were made inside these ranges."""
        return _distinct(self._allocations.inside(ranges))

    def _windows(self, each: Sequence[Numbers], starts: Numbers, ends: Numbers) -> dict[int, Cover]:
        """By device: each execution from the earlier start to the later end, on the host or on the device.

        Operations launched after its end add the time from the first to the last of them. The time between is not
        included.
        """
        members = np.concatenate(each) if each else np.zeros(0, np.int64)
        execution = np.repeat(np.arange(len(each)), [len(part) for part in each])
        launched = self._work.launched[members]
        later = (launched >= ends[execution]) & (launched != NONE)
        nothing = np.full(len(each), NONE)
        result = {}
        for device in self._devices:
            on = self._work.devices[members] == device
            parts = [
                self._stretch(members[here], execution[here], first, last)
                for here, first, last in ((on & ~later, starts, ends), (on & later, nothing, -nothing))
            ]
            result[device] = Cover(*np.concatenate(parts, axis=1))
        return result

    def _stretch(self, members: Numbers, execution: Numbers, first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
        """Extend the executions' times to include these operations."""
        first, last = first.copy(), last.copy()
        np.minimum.at(first, execution, self._work.starts[members])
        np.maximum.at(last, execution, self._work.ends[members])
        return first, last

    def _sums(self, name: str, members: Numbers, windows: Mapping[int, Cover]) -> RegionKernels:
        work = self._work
        kinds, devices, starts, ends = (c[members] for c in (work.kinds, work.devices, work.starts, work.ends))
        span = busy = others = communication = overlap = transfer = exposed = 0
        idle = Idle()
        used = [device for device in self._devices if (devices == device).any()]
        for device in used:
            everything, window, on = self._devices[device], windows[device], devices == device
            a, b, codes = starts[on], ends[on], kinds[on]
            own = Cover(a, b)
            collective, moving = codes == CODES[Kind.COMMUNICATION], codes == CODES[Kind.TRANSFER]
            collectives, transfers = Cover(a[collective], b[collective]), Cover(a[moving], b[moving])
            span += window.length
            busy += own.length
            others += everything.busy.within(window) - own.length
            idle += everything.idle.within(window)
            communication += collectives.length
            overlap += everything.kernels.within(collectives)
            transfer += transfers.length
            exposed += transfers.length - everything.no_transfer.within(transfers)
        kernel = np.isin(kinds, _KERNELS)
        back = self._placing.backward[members]
        occupancy, of_occupancy = _weighted(work.occupancy[members], (ends - starts) * kernel)
        breadth, of_breadth = _weighted(np.minimum(work.blocks[members], 1.0), (ends - starts) * kernel)
        return RegionKernels(
            name=name,
            devices=tuple(used),
            span_ns=span,
            busy_ns=busy,
            others_ns=others,
            idle=idle,
            operations=len(members),
            launches=int((work.launched[members] != NONE).sum()),
            kernels=self._kernels(members[kernel]),
            copies=self._copies(members[np.isin(kinds, _COPIES)]),
            communication_ns=communication,
            overlap_ns=overlap,
            transfer_ns=transfer,
            exposed_transfer_ns=exposed,
            backward=int(back.sum()),
            backward_ns=sum(
                Cover(starts[back & (devices == device)], ends[back & (devices == device)]).length for device in used
            ),
            graph=int(work.graphs[members].sum()),
            occupancy_ns=occupancy,
            occupancy_of_ns=of_occupancy,
            breadth_ns=breadth,
            breadth_of_ns=of_breadth,
            on_host=self._on_host,
        )

    def _kernels(self, members: Numbers) -> dict[str, KernelSum]:
        names, which = np.unique(self._work.names[members], return_inverse=True)
        lengths = self._work.lengths[members]
        counts = np.bincount(which, minlength=len(names)).tolist()
        totals, longest = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
        np.add.at(totals, which, lengths)
        np.maximum.at(longest, which, lengths)
        sums = map(KernelSum, counts, totals.tolist(), longest.tolist())
        return {self._names[name]: each for name, each in zip(names.tolist(), sums, strict=True)}

    def _copies(self, members: Numbers) -> dict[str, CopySum]:
        result: dict[str, CopySum] = {}
        names, which = np.unique(self._work.names[members], return_inverse=True)
        for place, name in enumerate(names.tolist()):
            here = members[which == place]
            lengths, moved = self._work.lengths[here], self._work.bytes[here]
            sized = moved != NONE
            sums = CopySum(len(here), int(lengths.sum()), int(moved[sized].sum()), int(lengths[sized].sum()))
            way = direction(self._names[name])
            result[way] = result[way] + sums if way in result else sums
        return dict(sorted(result.items()))


def direction(name: str) -> str:
    """The source and target of a copy by its name: HtoD, DtoH, DtoD, PtoP, …; "other" if the name has none."""
    match = _WAY.search(name)
    return f"{match[1].upper()}to{match[2].upper()}" if match else "other"


def _distinct(each: Sequence[Numbers]) -> Numbers:
    """The numbers of all parts, each once, in order."""
    if not each:
        return np.zeros(0, np.int64)
    # Not `np.unique`, which takes several times as long for numbers that hardly repeat.
    numbers = np.sort(np.concatenate(each))
    some = np.ones(len(numbers), bool)
    some[1:] = numbers[1:] != numbers[:-1]
    return numbers[some]


def _weighted(values: NDArray[np.float32], weights: Numbers) -> tuple[float, int]:
    """The sum of values × weights over values that are no NaN, and the sum of these weights."""
    valid = ~np.isnan(values)
    return float((values[valid].astype(float) * weights[valid]).sum()), int(weights[valid].sum())

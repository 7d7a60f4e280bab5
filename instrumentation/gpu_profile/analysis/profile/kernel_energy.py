"""The energy of kernels: each region's longest kernels unmixed as regions inside it. Pure.

A second pass of the join has a column for each of a region's longest kernels, and one for its other kernels. The time
of profiled executions without a kernel counts as time outside regions: the device runs nothing of theirs. Executions
that no profiler saw keep the region's own column, so that the sensor's timing is searched in all windows. A kernel has
joules where its interval is narrow enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.analysis.device_pool import device_pool
from gpu_profile.analysis.devices import DeviceUse
from gpu_profile.analysis.profile.kernel_times import OTHERS
from gpu_profile.analysis.runs import DeviceWork
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.pools.pooled import Pooled
from gpu_profile.join.unmixing.solving.rate import WIDEST_HALF_WIDTH
from gpu_profile.join.unmixing.solving.region_columns import MOST_REGIONS
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.activities import Activities, pieces
from gpu_profile.recording import ProcessInfo, SpanRecord
from gpu_profile.report.table import printable

#: The most kernels of a region with columns of their own. Each further column widens all intervals.
MOST_KERNELS: Final = 5
#: Kernels of an execution have no energy if they ran outside it for longer than this share of their time, and for
#: longer than the clocks of marks and kernels may differ.
_MOST_OUTSIDE: Final = 0.1
_CLOCKS_NS: Final = 100_000
#: Between the names of a region and a kernel in a column's name. Printable names do not contain it.
_OF: Final = "\0"
_NO_COLUMNS: Final = f"more than {MOST_REGIONS} regions and kernels on the device"


class KernelEnergy(NamedTuple):
    """The kernels of one name in one region on one device.

    `own_ns` is their time in each of the device's executions, as the innermost activity. `joules` is their energy with
    its half-width at 95 %; None: not separated from others, for `reason`.
    """

    kernel: str
    own_ns: Floats
    joules: float | None
    half_width: float
    reason: str


@dataclass(slots=True)
class DeviceKernels:
    """The kernels on one device by region, and each execution's time outside the separated ones, in ns.

    `rest_ns` is the part without any profiled kernel, by execution. `outside` counts the profiled executions whose
    kernels are not used, because they ran outside them.
    """

    rest_ns: Floats
    regions: dict[str, list[KernelEnergy]] = field(default_factory=dict)
    outside: int = 0


class SeparateKernel(NamedTuple):
    """A kernel with energy, and its time in each execution of its region, in ns."""

    name: str
    joules: float
    half_width: float
    own_ns: Floats


class RegionEnergy(NamedTuple):
    """A region's energy on one device: its separated kernels, and the rest, which its executions share by `rest_ns`.

    `mixed_ns` is the part of `rest_ns` in which kernels ran that were not separated, for `reason`.
    """

    kernels: list[SeparateKernel]
    rest_j: float
    rest_ns: Floats
    mixed_ns: Floats
    reason: str


class _Kernels(NamedTuple):
    """All kernels with times on a device: their execution, their name, and their edges there.

    `outside` counts the executions whose kernels are left out.
    """

    owners: Ints
    names: Sequence[str]
    starts: Ints
    ends: Ints
    outside: int


def own_ns(activities: Activities, use: DeviceUse) -> Floats:
    """The time of each activity as an innermost one while the device was sampled, in ns."""
    during = activities._replace(columns=np.arange(len(activities.starts))).during(use.start_ns, use.end_ns)
    innermost = pieces(during)
    owners = during.columns[innermost.owners]
    alone, shared = ActiveTime.of(innermost, owners, owners).lengths()
    return np.bincount(owners, weights=alone + shared, minlength=len(activities.starts)).astype(np.float64)


def device_kernels(
    spans: Sequence[SpanRecord], work: DeviceWork, use: DeviceUse, processes: Sequence[ProcessInfo], several: set[int]
) -> DeviceKernels | None:
    """The energy of the kernels on a device; None without times of kernels.

    `several` are executions on more than one device: their kernels are not used, because the recording does not have
    the device of each.
    """
    kernels = _kernels(spans, work, several)
    n = len(work.keys)
    if not len(kernels.owners):
        return DeviceKernels(own_ns(work.activities, use), outside=kernels.outside) if kernels.outside else None
    every = Activities(
        np.concatenate((work.activities.starts, kernels.starts)),
        np.concatenate((work.activities.ends, kernels.ends)),
        np.concatenate((work.activities.parents, kernels.owners)),
        np.concatenate((work.activities.columns, work.activities.columns[kernels.owners])),
    )
    own = own_ns(every, use)
    result = DeviceKernels(own[:n], outside=kernels.outside)
    chosen = _chosen(work, kernels, own[n:])
    split = _split(work, every, kernels, chosen)
    pool = device_pool(use.timeline, split, processes)
    for (region, kernel), members in chosen.items():
        time = np.bincount(kernels.owners[members], weights=own[n:][members], minlength=n).astype(np.float64)
        name = f"{region}{_OF}{kernel}"
        energy = _energy(pool.pooled(name)) if name in split.executions else (None, 0.0, _NO_COLUMNS)
        result.regions.setdefault(region, []).append(KernelEnergy(kernel, time, *energy))
    return result


def region_energy(
    kernels: DeviceKernels, region: str, executions: Ints, energy_j: float, half_width_j: float
) -> RegionEnergy:
    """The parts of a region's energy. `executions` are its indices on the device.

    Kernels that draw more than the region, within both intervals, are scaled down to it. Beyond, none is separated.
    """
    every = kernels.regions[region]
    sums = sum(each.joules for each in every if each.joules is not None)
    width = half_width_j + sum(each.half_width for each in every if each.joules is not None)
    reason = "" if sums <= energy_j + width else f"they have {sums:.3g} J, more than the {energy_j:.3g} J of the region"
    scale = min(1.0, energy_j / sums) if sums > 0 else 1.0
    separate, mixed_ns = list[SeparateKernel](), np.zeros(len(executions))
    left = reason
    for each in every:
        own = each.own_ns[executions]
        if each.joules is not None and not reason and each.joules * scale > 0:
            separate.append(SeparateKernel(each.kernel, each.joules * scale, each.half_width, own))
        else:
            mixed_ns += own
            left = left or each.reason
    rest_j = max(0.0, energy_j - sum(each.joules for each in separate))
    return RegionEnergy(separate, rest_j, kernels.rest_ns[executions] + mixed_ns, mixed_ns, left)


def _kernels(spans: Sequence[SpanRecord], work: DeviceWork, several: set[int]) -> _Kernels:
    """The kernels of the executions on a device, cut to these."""
    owners, starts, ends, outside = [], [], [], 0
    names: list[str] = []
    rows = zip(work.keys.tolist(), work.activities.starts.tolist(), work.activities.ends.tolist(), strict=True)
    for owner, (key, first, last) in enumerate(rows):
        stamps = spans[key].kernels
        if stamps is None or key in several:
            continue
        a, b = (np.clip(edges, first, last) for edges in stamps.edges(spans[key].start_ns))
        whole_ns = sum(stamps.lengths_ns)
        if whole_ns - int((b - a).sum()) > max(_MOST_OUTSIDE * whole_ns, _CLOCKS_NS):
            outside += 1
            continue
        keep = np.flatnonzero(b > a)
        shown = [printable(name) or OTHERS for name in stamps.names]
        names += [shown[stamps.which[i]] for i in keep.tolist()]
        owners.append(np.full(len(keep), owner, np.int64))
        starts.append(a[keep])
        ends.append(b[keep])
    nothing = [np.zeros(0, np.int64)]
    owned, began, ended = (np.concatenate(nothing + parts) for parts in (owners, starts, ends))
    return _Kernels(owned, names, began, ended, outside)


def _chosen(work: DeviceWork, kernels: _Kernels, own: Floats) -> dict[tuple[str, str], Ints]:
    """The kernels of each region by name: the longest names, then all others as one."""
    columns = work.activities.columns[kernels.owners].tolist()
    places: dict[tuple[str, str], list[int]] = {}
    for i, (column, name) in enumerate(zip(columns, kernels.names, strict=True)):
        places.setdefault((work.regions[column], name), []).append(i)
    times = Counter({both: float(own[here].sum()) for both, here in places.items()})
    result: dict[tuple[str, str], list[int]] = {}
    named: Counter[str] = Counter()
    for (region, name), _ in times.most_common():
        first = named[region] < MOST_KERNELS and name != OTHERS
        named[region] += first
        result.setdefault((region, name if first else OTHERS), []).extend(places[region, name])
    return {both: np.sort(np.array(here, np.int64)) for both, here in result.items()}


def _split(work: DeviceWork, every: Activities, kernels: _Kernels, chosen: dict[tuple[str, str], Ints]) -> DeviceWork:
    """The executions and kernels, with columns for the kernels of as many regions as fit, the longest first.

    A profiled execution gets no length, so that its time without a kernel counts as time outside regions.
    """
    regions, columns, ends = list(work.regions), every.columns.copy(), every.ends.copy()
    kernel_names: dict[str, list[str]] = {}
    for region, name in chosen:
        kernel_names.setdefault(region, []).append(name)
    marked = Counter(work.marked)
    for region, names in kernel_names.items():
        members = [chosen[region, name] for name in names]
        if len(regions) + len(names) <= MOST_REGIONS:
            for name, own in zip(names, members, strict=True):
                columns[own + len(work.keys)] = len(regions)
                regions.append(f"{region}{_OF}{name}")
                marked[regions[-1]] = len(own)
            profiled = np.unique(kernels.owners[np.concatenate(members)])
            ends[profiled] = every.starts[profiled]
        else:
            here = np.concatenate(members) + len(work.keys)
            ends[here] = every.starts[here]
    counts = np.bincount(columns[ends > every.starts], minlength=len(regions)).tolist()
    return replace(
        work,
        activities=every._replace(columns=columns, ends=ends),
        regions=tuple(regions),
        executions={region: count for region, count in zip(regions, counts, strict=True) if count},
        marked=marked,
    )


def _energy(pooled: Pooled) -> tuple[float | None, float, str]:
    """The energy, its half-width, and why there is none."""
    share, source = pooled.energy, pooled.energy_source
    rate = pooled.rates.get(source) if source else None
    if share is None or rate is None:
        return None, 0.0, "the device has no energy of this time"
    if rate.reason or share.half_width is None:
        return None, 0.0, rate.reason or "its part of the device's energy is uncertain"
    if share.half_width > WIDEST_HALF_WIDTH * share.value:
        return None, 0.0, f"not identifiable yet: {share.value:.3g} J ±{share.half_width:.2g}"
    return share.value, share.half_width, ""

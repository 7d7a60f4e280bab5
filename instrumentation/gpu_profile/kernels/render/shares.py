"""What the views need beside a report's own sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.kernels.activity import Activity
from gpu_profile.kernels.joining.columns import CODES
from gpu_profile.kernels.joining.idle import Idle
from gpu_profile.kernels.joining.work import host_work
from gpu_profile.kernels.records import Kind
from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.report import ReportData
from gpu_profile.kernels.sums import KernelSum

_KERNELS: Final = (Kind.KERNEL, Kind.COMMUNICATION)


class Part(NamedTuple):
    """A part of a span: what it is called, and its time; `key` is that of its colour. None: not known."""

    key: str
    label: str
    ns: int | None


def parts(of: Activity | RegionKernels, *, causes: bool) -> list[Part]:
    """What a span (times its devices) is made of. They add up to it, as far as they are known.

    `causes`: whether the recording has the calls of the host, which tell why the GPU was idle.
    """
    exposed = of.communication_ns - of.overlap_ns
    work = of.busy_ns - exposed - of.exposed_transfer_ns
    found = [
        Part("work", "work", work),
        Part("communication", "communication that no kernel hides", exposed),
        Part("transfer", "copies over a link that nothing hides", of.exposed_transfer_ns),
    ]
    if isinstance(of, RegionKernels):
        found.append(Part("others", "only others' operations", of.others_ns))
    idle = of.idle
    if not causes:
        return [*found, Part("unknown", "idle, cause not in the trace", idle.total_ns)]
    return [
        *found,
        Part("host", "waiting for the host", idle.host_wait_ns - idle.launch_ns),
        Part("launch", "waiting for the host: launching", idle.launch_ns),
        Part("wait", "waiting between kernels", idle.kernel_wait_ns),
        Part("other", "waiting for something else", idle.other_ns),
        Part("unknown", "idle, cause not in the trace", idle.unknown_ns),
    ]


def idle_times(idle: Idle, *, causes: bool) -> dict[str, int | None]:
    """Nanoseconds by cause. Without the calls of the host no cause is known."""
    known = {
        "host_wait": idle.host_wait_ns,
        "launch": idle.launch_ns,
        "kernel_wait": idle.kernel_wait_ns,
        "other": idle.other_ns,
    }
    told: dict[str, int | None] = {key: ns if causes else None for key, ns in known.items()}
    return told | {"unknown": idle.unknown_ns if causes else idle.total_ns}


def all_kernels(report: ReportData) -> dict[str, KernelSum]:
    """Kernels and collectives of the whole recording by name; of one on a CPU, its operators that call no other."""
    if report.on_host:
        work = host_work(report.columns)
        names, lengths = work.names, work.ends - work.starts
    else:
        found = report.columns.operations
        among = np.isin(found.kinds, [CODES[kind] for kind in _KERNELS])
        names, lengths = found.names[among], (found.ends - found.starts)[among]
    if not len(names):
        return {}
    order = np.argsort(names, kind="stable")
    names, lengths = names[order], lengths[order]
    first = np.flatnonzero(np.diff(names, prepend=-1))
    counts = np.diff(np.append(first, len(names)))
    totals, longest = np.add.reduceat(lengths, first), np.maximum.reduceat(lengths, first)
    texts = report.columns.names
    rows = zip(names[first].tolist(), counts.tolist(), totals.tolist(), longest.tolist(), strict=True)
    return {texts[name]: KernelSum(count, total, most) for name, count, total, most in rows}


def longest_first(kernels: Mapping[str, KernelSum]) -> list[tuple[str, KernelSum]]:
    """By total time; of equal ones by name, so that the order never depends on chance."""
    return sorted(kernels.items(), key=lambda item: (-item[1].total_ns, item[0]))


def causes_known(report: ReportData) -> bool:
    """Whether the recording has calls of the host, without which nothing tells why a GPU was idle."""
    return report.activity is not None and report.activity.launches > 0

"""Devices of a recording: their history, and what each did in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gpu_profile.analysis.runs import LATEST_NS
from gpu_profile.catalogue import BUSY_SOURCES, ENERGY_SOURCES, Kind, signal
from gpu_profile.catalogue.samples import Device, DeviceKind, Sample
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.summary import RegionSummary
from gpu_profile.recording import Columns, Recording
from gpu_profile.report.table import printable
from gpu_profile.units import NS_PER_S, percent

UNSAMPLED: Final = "the device was not sampled while it ran"
#: Where samples cover less of the time, the energy that they tell is not the energy of that time.
LEAST_COVERED: Final = 0.95


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a device did between its first and its last sample, `start_ns` and `end_ns`.

    `utilization` and `power_w` are means over the time that samples cover, `coverage` and `energy_coverage` that time's
    share of the whole. `energy_j` is what was measured, where that is nearly all of it, `unattributed_j` the part of it
    that no region has. None: not known, with the reason in `reasons`.
    """

    device: Device
    timeline: Timeline
    start_ns: int
    end_ns: int
    utilization: float | None
    utilization_source: str
    coverage: float
    energy_j: float | None
    energy_source: str
    energy_coverage: float
    power_w: float | None
    unattributed_j: float | None
    reasons: tuple[str, ...]


def devices_of(recording: Recording) -> list[Device]:
    """The devices that there are samples of: GPUs first, by index."""
    known = {device.uuid: device for device in recording.devices}
    held = [known.get(uuid, Device(uuid)) for uuid, columns in recording.samples.items() if columns]
    clean = [replace(device, name=printable(device.name)) for device in held]
    none = 1 << 31
    return sorted(clean, key=lambda d: (d.kind is not DeviceKind.GPU, none if d.index is None else d.index, d.uuid))


def timeline_of(device: Device, columns: Mapping[str, Columns], impossible: list[str]) -> Timeline:
    """The device's history as the sampler would have kept it, with room for all of it."""
    capacity = 1 + max(len(column.value) for column in columns.values())
    timeline = Timeline(device, map(signal, columns), capacity=max(2, capacity))
    for key, column in columns.items():
        row = signal(key)
        starts, ends, _ = column
        right = (starts >= 0) & (starts <= ends) & (ends < LATEST_NS)
        wrong = len(right) - int(np.count_nonzero(right))
        if wrong:
            impossible.append(
                f"{wrong:,} samples of {key} of {device.uuid} left out: they end before they start, or lie beyond all "
                "calendars"
            )
        timeline.append(
            Sample(row, a, b, value) for a, b, value in zip(*(each[right].tolist() for each in column), strict=True)
        )
    return timeline


def sampled(timeline: Timeline) -> tuple[int, int] | None:
    """From when to when something is known of the device: by what its busy time and energy come from, if it has them.

    Other signals may look back much further than they were read.
    """
    main = [timeline.best(BUSY_SOURCES), timeline.best(ENERGY_SOURCES)]
    for columns in ([column for column in main if column is not None], timeline.columns.values()):
        edges = [(column.oldest_ns, column.watermark_ns) for column in columns]
        known = [(a, b) for a, b in edges if a is not None and b is not None]
        if known:
            return min(a for a, _ in known), max(b for _, b in known)
    return None


#: Why a sample is not in the history, in words. A value that a driver's buffer repeats is no loss.
_LEFT_OUT: Final = {
    "late": "are older than what came before them",
    "implausible": "have values that the device cannot have",
    "reset": "begin a counter anew: its growth in between is not known",
    "clock set back": "are from before the clock was set back",
}


def device_use(timeline: Timeline, regions: Sequence[RegionSummary]) -> DeviceUse:
    """What a device did, whose `regions` used a part of its energy."""
    start_ns, end_ns = sampled(timeline) or (0, 0)
    reasons = []
    busy, energy = timeline.best(BUSY_SOURCES), timeline.best(ENERGY_SOURCES)
    utilization, coverage, joules, watts, energy_coverage = None, 0.0, None, None, 0.0
    if busy is None:
        reasons.append("GPU busy: the device told no utilisation")
    else:
        mass, covered = busy.integral(start_ns, end_ns)
        if covered > 0:
            utilization = min(1.0, busy.signal.base(mass) / covered)
            coverage = min(1.0, covered / (end_ns - start_ns))
        else:
            reasons.append(f"GPU busy: {len(busy)} samples of {busy.signal.key} cover no time")
    if energy is None:
        reasons.append("energy: the device told neither energy nor power")
    else:
        mass, covered = energy.integral(start_ns, end_ns)
        if covered > 0:
            joules = energy.signal.base(mass) / (1 if energy.signal.kind is Kind.COUNTER else NS_PER_S)
            watts, energy_coverage = joules * NS_PER_S / covered, min(1.0, covered / (end_ns - start_ns))
            if energy_coverage < LEAST_COVERED:
                joules = None
                reasons.append(f"energy: {energy.signal.key} covers {percent(energy_coverage)} of the time")
        else:
            reasons.append(f"energy: {len(energy)} samples of {energy.signal.key} cover no time")
    reasons += [
        f"{row.key}: {column.dropped[why]:,} samples {words}"
        for row, column in timeline.columns.items()
        for why, words in _LEFT_OUT.items()
        if column.dropped[why]
    ]
    shares = [summary.energy_j for summary in regions if summary.reason != UNSAMPLED]
    known = [share for share in shares if share is not None]
    return DeviceUse(
        device=timeline.device,
        timeline=timeline,
        start_ns=start_ns,
        end_ns=end_ns,
        utilization=utilization,
        utilization_source=busy.signal.key if busy else "",
        coverage=coverage,
        energy_j=joules,
        energy_source=energy.signal.key if energy else "",
        energy_coverage=energy_coverage,
        power_w=watts,
        unattributed_j=None if joules is None or len(known) < len(shares) else _rest(joules, sum(known)),
        reasons=tuple(reasons),
    )


def _rest(whole: float, parts: float) -> float:
    """What is left, without what rounding leaves of nothing."""
    rest = whole - parts
    return rest if rest > 1e-9 * whole else 0.0

"""Devices of a recording: their history, and what each did in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gpu_profile.analysis.runs import LATEST_NS
from gpu_profile.catalogue import BUSY_SOURCES, ENERGY_SOURCES, Kind, signal
from gpu_profile.catalogue.samples import Device, DeviceKind, Sample
from gpu_profile.history.timeline import Column, Timeline
from gpu_profile.join.summary import RegionSummary
from gpu_profile.recording import Columns, Recording
from gpu_profile.report.table import printable
from gpu_profile.units import NS_PER_S, percent

UNSAMPLED: Final = "the device was not sampled while it ran"
#: Where samples cover less of the time, the energy that they tell is not the energy of that time,
LEAST_COVERED: Final = 0.95
#: but for samples of at least this share whose gaps are shorter than the sensor's window: a power that is polled a
#: little less often than it is renewed. Ours.
LEAST_SAMPLED: Final = 0.5
#: So far, in ns, one source may look back further than another, or end later: the longest window of a sensor.
_LOOKS_BACK_NS: Final = NS_PER_S


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a device did between its first and its last sample, `start_ns` and `end_ns`.

    `utilization` and `power_w` are means over the time that samples cover, `coverage` and `energy_coverage` that time's
    share of the whole. `energy_j` is the mean power times the whole time, where samples cover nearly all of it, or
    leave out short gaps only; `unattributed_j` is the part of it that no region has, where they cover nearly all, and
    `unattributed_half_width_j` that of its 95 % interval: None where some region's share is uncertain.
    None: not known, with the reason in `reasons`.
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
    unattributed_half_width_j: float | None
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
    "clock set back": "tell that the clock was set back: all before is left out",
}


def device_use(timeline: Timeline, regions: Sequence[RegionSummary]) -> DeviceUse:
    """What a device did, whose `regions` used a part of its energy."""
    reasons = []
    busy, energy = timeline.best(BUSY_SOURCES), timeline.best(ENERGY_SOURCES)
    start_ns, end_ns = _together(sampled(timeline) or (0, 0), [each for each in (busy, energy) if each is not None])
    utilization, coverage, joules, watts, energy_coverage, whole = None, 0.0, None, None, 0.0, False
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
            watts = energy.signal.base(mass) * (NS_PER_S if energy.signal.kind is Kind.COUNTER else 1) / covered
            energy_coverage = min(1.0, covered / (end_ns - start_ns))
            whole = energy_coverage >= LEAST_COVERED
            evenly = not whole and energy_coverage >= LEAST_SAMPLED
            evenly = evenly and _longest_gap_ns(energy, start_ns, end_ns) < _LOOKS_BACK_NS
            if whole or evenly:
                joules = watts * (end_ns - start_ns) / NS_PER_S
            if not whole:
                estimate = ", evenly: its mean is taken for the rest" if evenly else ""
                reasons.append(f"energy: {energy.signal.key} covers {percent(energy_coverage)} of the time{estimate}")
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
    widths = [s.energy_half_width for s in regions if s.reason != UNSAMPLED and s.energy_half_width is not None]
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
        unattributed_j=None if joules is None or not whole or len(known) < len(shares) else _rest(joules, sum(known)),
        unattributed_half_width_j=sum(widths) if len(widths) == len(shares) else None,
        reasons=tuple(reasons),
    )


def _together(known: tuple[int, int], columns: Sequence[Column]) -> tuple[int, int]:
    """From when to when all sources tell something, unless one begins or ends much later: then from the first on.

    A sensor's first window looks back to before the first reading of a counter.
    """
    starts = [start for column in columns if (start := column.oldest_ns) is not None]
    ends = [end for column in columns if (end := column.watermark_ns) is not None]
    start_ns, end_ns = max(starts, default=known[0]), min(ends, default=known[1])
    start_ns = start_ns if start_ns - known[0] <= _LOOKS_BACK_NS else known[0]
    end_ns = end_ns if known[1] - end_ns <= _LOOKS_BACK_NS else known[1]
    return (start_ns, end_ns) if start_ns < end_ns else known


def _longest_gap_ns(column: Column, start_ns: int, end_ns: int) -> int:
    """The longest time that no row covers."""
    starts, ends, _ = column.edges(start_ns, end_ns)
    if not len(starts):
        return end_ns - start_ns
    return int(np.max(np.append(starts, end_ns) - np.concatenate(([start_ns], ends)), initial=0))


def _rest(whole: float, parts: float) -> float:
    """What is left, without what rounding leaves of nothing."""
    rest = whole - parts
    return rest if rest > 1e-9 * whole else 0.0

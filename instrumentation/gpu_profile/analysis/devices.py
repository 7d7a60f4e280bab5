"""Devices of a recording: their history, and each one's utilisation and energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from gpu_profile.analysis.runs import LATEST_NS
from gpu_profile.catalogue import BUSY_SOURCES, ENERGY_SOURCES, Kind, signal
from gpu_profile.catalogue.samples import Device, DeviceKind, Sample
from gpu_profile.history.timeline import Column, Timeline
from gpu_profile.join.summary import RegionSummary
from gpu_profile.recording import Columns, Recording
from gpu_profile.recording.pauses import Pause
from gpu_profile.report.table import printable
from gpu_profile.units import NS_PER_S, percent

UNSAMPLED: Final = "the device was not sampled while it ran"
#: The least covered share of the time for which the samples' energy is that of the whole time.
LEAST_COVERED: Final = 0.95
#: This share suffices if all gaps are shorter than a sensor's longest window: power is then polled a little less often
#: than it is renewed. Ours.
LEAST_SAMPLED: Final = 0.5
#: The most that one source may look back further than another, or end later, in ns: the longest window of a sensor.
_LOOKS_BACK_NS: Final = NS_PER_S


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device's utilisation and energy between its first and its last sample, `start_ns` and `end_ns`.

    `utilization` and `power_w` are means over the time that samples cover. `coverage` and `energy_coverage` are the
    shares of the time that they cover. `energy_j` is the mean power times the whole time. It needs samples over nearly
    all of the time, or with short gaps only. `unattributed_j` is its part outside all regions, if samples cover nearly
    all. `unattributed_half_width_j` is half of its 95 % interval, None if some region's share is uncertain.
    None: unknown, with the cause in `reasons`.
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
    """The devices with samples: GPUs first, by index."""
    described = {device.uuid: device for device in recording.devices}
    sampled_devices = [described.get(uuid, Device(uuid)) for uuid, columns in recording.samples.items() if columns]
    clean = [replace(device, name=printable(device.name)) for device in sampled_devices]
    none = 1 << 31
    return sorted(clean, key=lambda d: (d.kind is not DeviceKind.GPU, none if d.index is None else d.index, d.uuid))


def timeline_of(
    device: Device, columns: Mapping[str, Columns], impossible: list[str], pauses: Sequence[Pause] = ()
) -> Timeline:
    """The device's history as in the sampler, with room for all samples. No row covers `pauses`."""
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
        cuts = np.searchsorted(ends[right], [pause.start_ns for pause in pauses], "right").tolist()
        for place, (first, last) in enumerate(pairwise([0, *cuts, None])):
            if place:
                timeline.columns[row].skip(pauses[place - 1].end_ns - pauses[place - 1].start_ns)
            timeline.append(
                Sample(row, a, b, value)
                for a, b, value in zip(*(each[right][first:last].tolist() for each in column), strict=True)
            )
    return timeline


def sampled(timeline: Timeline) -> tuple[int, int] | None:
    """The sampled time, `(start_ns, end_ns)`; None without samples.

    The sources of busy time and energy define it, if there are any: other signals may look back much further than the
    first reading.
    """
    main = [timeline.best(BUSY_SOURCES), timeline.best(ENERGY_SOURCES)]
    for columns in ([column for column in main if column is not None], timeline.columns.values()):
        edges = [(column.oldest_ns, column.watermark_ns) for column in columns]
        spans = [(a, b) for a, b in edges if a is not None and b is not None]
        if spans:
            return min(a for a, _ in spans), max(b for _, b in spans)
    return None


#: Why a sample is not in the history, in words. A value that a driver's buffer repeats is no loss.
_LEFT_OUT: Final = {
    "late": "are older than what came before them",
    "implausible": "have values that the device cannot have",
    "reset": "begin a counter anew: its growth in between is not known",
    "clock set back": "tell that the clock was set back: all before is left out",
}


def device_use(timeline: Timeline, regions: Sequence[RegionSummary]) -> DeviceUse:
    """Measure a device. `regions` are the summaries of the regions on it: their energy is subtracted."""
    reasons = []
    busy, energy = timeline.best(BUSY_SOURCES), timeline.best(ENERGY_SOURCES)
    start_ns, end_ns = _together(sampled(timeline) or (0, 0), [each for each in (busy, energy) if each is not None])
    utilization, coverage, joules, watts, energy_coverage, whole = None, 0.0, None, None, 0.0, False
    if busy is None:
        reasons.append("GPU busy: the device reported no utilisation")
    else:
        mass, covered = busy.integral(start_ns, end_ns)
        if covered > 0:
            utilization = min(1.0, busy.signal.base(mass) / covered)
            coverage = min(1.0, covered / (end_ns - start_ns))
        else:
            reasons.append(f"GPU busy: {len(busy)} samples of {busy.signal.key} cover no time")
    if energy is None:
        reasons.append("energy: the device reported neither energy nor power")
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
    own_j = [share for share in shares if share is not None]
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
        unattributed_j=None if joules is None or not whole or len(own_j) < len(shares) else _rest(joules, sum(own_j)),
        unattributed_half_width_j=sum(widths) if len(widths) == len(shares) else None,
        reasons=tuple(reasons),
    )


def _together(widest: tuple[int, int], columns: Sequence[Column]) -> tuple[int, int]:
    """The time that all sources cover. An edge that cuts off more than `_LOOKS_BACK_NS` stays at the widest source.

    A sensor's first window begins before the first reading of a counter.
    """
    starts = [start for column in columns if (start := column.oldest_ns) is not None]
    ends = [end for column in columns if (end := column.watermark_ns) is not None]
    start_ns, end_ns = max(starts, default=widest[0]), min(ends, default=widest[1])
    start_ns = start_ns if start_ns - widest[0] <= _LOOKS_BACK_NS else widest[0]
    end_ns = end_ns if widest[1] - end_ns <= _LOOKS_BACK_NS else widest[1]
    return (start_ns, end_ns) if start_ns < end_ns else widest


def _longest_gap_ns(column: Column, start_ns: int, end_ns: int) -> int:
    """The longest time without a row, in ns."""
    starts, ends, _ = column.edges(start_ns, end_ns)
    if not len(starts):
        return end_ns - start_ns
    return int(np.max(np.append(starts, end_ns) - np.concatenate(([start_ns], ends)), initial=0))


def _rest(whole: float, parts: float) -> float:
    """The difference, or 0 where it is only an error of rounding."""
    rest = whole - parts
    return rest if rest > 1e-9 * whole else 0.0

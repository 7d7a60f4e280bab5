"""From a recording to what each region did on each device, and what each device did in all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpu_profile.analysis.runs import LATEST_NS, DeviceWork, Runs, Work, gather, printable
from gpu_profile.catalogue import BUSY_SOURCES, ENERGY_SOURCES, Kind, signal
from gpu_profile.durations import DurationStats
from gpu_profile.errors import UsageError
from gpu_profile.join import Activity
from gpu_profile.pooling import Pool
from gpu_profile.recording import Columns, ProcessInfo, Recording
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Thresholds, Verdict, classify
from gpu_profile.samples import Device, DeviceKind, Event, Sample
from gpu_profile.summary import Durations, RegionSummary, summarise
from gpu_profile.timeline import Timeline
from gpu_profile.units import NS_PER_S

#: Pools take a recording in by the minute: enough windows to find the sensors' timing, and bounded memory. A recording
#: with a stray time stamp is cut into no more slices than this.
_SLICE_NS: Final = 60 * NS_PER_S
_MOST_SLICES: Final = 1_000


@dataclass(frozen=True, slots=True)
class RegionUse:
    """A region on one device, with the verdict on it.

    `items_per_s` are units of work per second of the time that was joined, `item_energy_j` what one costs on this
    device, regions inside included; what it costs in all is the sum over the region's devices. None: not known;
    `reasons` say why.
    """

    summary: RegionSummary
    verdict: Verdict
    items_per_s: float | None
    item_energy_j: float | None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a device did between its first and its last sample, `start_ns` and `end_ns`.

    `utilization` is the mean over the time that samples cover, `coverage` that time's share of the whole. `energy_j` is
    what was measured, `unattributed_j` the part of it that no region has. None: not known, with the reason in
    `reasons`.
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
    power_w: float | None
    unattributed_j: float | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Analysis:
    """What a recording says. `notes` has one line for each thing that is missing or was assumed."""

    start_ns: int
    end_ns: int
    processes: tuple[ProcessInfo, ...]
    devices: tuple[DeviceUse, ...]
    regions: tuple[RegionUse, ...]
    runs: Mapping[str, Runs]
    events: tuple[Event, ...]
    notes: tuple[str, ...]
    lost_bytes: int = 0

    def of(self, region: str) -> list[RegionUse]:
        """A region on each of its devices."""
        return [use for use in self.regions if use.summary.region == region]


def analyse(
    recording: Recording,
    *,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    devices: Sequence[str] = (),
) -> Analysis:
    """Join, pool and judge what was recorded.

    `devices` are UUIDs: where executions ran that name no device. Without them it is the recording's first GPU, as for
    a process that says nothing. UsageError if the recording has no samples of one of them.
    """
    timelines = {device.uuid: _timeline(device, recording.samples[device.uuid]) for device in _devices(recording)}
    unknown = [uuid for uuid in devices if uuid not in timelines]
    if unknown:
        there = ", ".join(timelines) or "no device"
        raise UsageError(f"the recording has no samples of {', '.join(unknown)}; it has {there}")
    defaults = tuple(devices) or tuple(timelines)[:1]
    work = gather(recording.spans, defaults)
    notes = [*recording.problems, *work.notes]
    if not timelines:
        notes.append("no samples: nothing is known of any device")
    if not work.runs:
        notes.append("no executions of regions: only devices are shown")
    elif work.homeless and not devices and len(timelines) > 1:
        notes.append(f"{work.homeless:,} executions name no device: taken to have run on {defaults[0]} (see --device)")
    uses, regions = [], []
    for uuid, mine in work.devices.items():
        timeline = timelines.get(uuid) or Timeline(Device(uuid))
        regions += list(_regions(timeline, mine, work, thresholds))
    for timeline in timelines.values():
        own = [use.summary for use in regions if use.summary.device == timeline.device]
        uses.append(_device_use(timeline, own))
    order = {name: place for place, name in enumerate(work.runs)}
    rank = {uuid: place for place, uuid in enumerate(timelines)}
    regions.sort(key=lambda use: (order[use.summary.region], rank.get(use.summary.device.uuid, len(rank))))
    start_ns, end_ns = _extent(uses, work)
    return Analysis(
        start_ns,
        end_ns,
        recording.processes,
        tuple(uses),
        tuple(regions),
        work.runs,
        tuple(sorted(recording.events, key=lambda event: event.t_ns)),
        tuple(notes),
        recording.lost_bytes,
    )


def _devices(recording: Recording) -> list[Device]:
    """The devices that there are samples of: GPUs first, by index."""
    known = {device.uuid: device for device in recording.devices}
    sampled = [known.get(uuid, Device(uuid)) for uuid, columns in recording.samples.items() if columns]
    clean = [replace(device, name=printable(device.name)) for device in sampled]
    none = 1 << 31
    return sorted(clean, key=lambda d: (d.kind is not DeviceKind.GPU, none if d.index is None else d.index, d.uuid))


def _timeline(device: Device, columns: Mapping[str, Columns]) -> Timeline:
    """The device's history as the sampler would have kept it, with room for all of it."""
    capacity = 1 + max(len(column.value) for column in columns.values())
    timeline = Timeline(device, map(signal, columns), capacity=max(2, capacity))
    for key, (starts, ends, values) in columns.items():
        row = signal(key)
        edges = zip(starts.tolist(), ends.tolist(), values.tolist(), strict=True)
        timeline.append(Sample(row, a, b, value) for a, b, value in edges if 0 <= a <= b < LATEST_NS)
    return timeline


def _extent(uses: Sequence[DeviceUse], work: Work) -> tuple[int, int]:
    """From the first thing that was recorded to the last, in ns; zeros if there is nothing."""
    starts = [use.start_ns for use in uses if use.end_ns] + [int(runs.starts_ns.min()) for runs in work.runs.values()]
    ends = [use.end_ns for use in uses if use.end_ns] + [int(runs.ends_ns.max()) for runs in work.runs.values()]
    return min(starts, default=0), max(ends, default=0)


def _regions(timeline: Timeline, mine: DeviceWork, work: Work, thresholds: Thresholds) -> Iterator[RegionUse]:
    pool = _pool(timeline, mine)
    for region, executions in mine.executions.items():
        source = "device" if mine.marked[region] == executions else "host"
        durations = _durations(work.stats[region])
        summary = summarise(pool, region, durations, interval_source=source)
        if not timeline.columns:
            summary = replace(summary, reason="the recording has no samples of this device")
        verdict = classify(summary.evidence, thresholds)
        yield _region_use(summary, verdict, whole=work.runs[region].items is not None)


def _pool(timeline: Timeline, mine: DeviceWork) -> Pool:
    edges = [(a.start_ns, a.end_ns or a.start_ns) for a in mine.activities]
    known = _known(timeline)
    edges += [known] if known else []
    start_ns, end_ns = min(edge[0] for edge in edges), max(edge[1] for edge in edges)
    pool = Pool(timeline, start_ns=start_ns)
    for region, executions in mine.executions.items():
        for _ in range(executions):
            pool.count(region)
    step = max(_SLICE_NS, (end_ns - start_ns) // _MOST_SLICES)
    waiting = iter(mine.activities)
    following = next(waiting, None)
    running: list[Activity] = []
    at = start_ns
    while at < end_ns:
        until = min(at + step, end_ns)
        running = [activity for activity in running if (activity.end_ns or 0) > at]
        while following is not None and following.start_ns < until:
            running.append(following)
            following = next(waiting, None)
        pool.advance(running, until, final=until == end_ns)
        at = until
    return pool


def _known(timeline: Timeline) -> tuple[int, int] | None:
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


def _durations(stats: DurationStats) -> Durations:
    return Durations(
        calls=stats.calls,
        errors=stats.errors,
        items=stats.items,
        total_s=stats.total_ns / NS_PER_S,
        p50_s=stats.quantile_s(0.5),
        p95_s=stats.quantile_s(0.95),
        max_s=stats.max_ns / NS_PER_S,
    )


def _region_use(summary: RegionSummary, verdict: Verdict, *, whole: bool) -> RegionUse:
    reasons = []
    if summary.busy is None:
        reasons.append(f"GPU busy: {summary.reason or 'not measured'}")
    if summary.call_energy_j is None:
        reasons.append(f"energy per call: {_no_energy(summary)}")
    items, seconds = summary.durations.items, summary.interval_s
    rate = cost = None
    if items and whole:
        rate = items * summary.executions / summary.durations.calls / seconds if seconds > 0 else None
        if summary.call_energy_j is not None:
            cost = summary.call_energy_j * summary.executions / items
    elif items:
        reasons.append("per item: only some of the executions told their items")
    return RegionUse(summary, verdict, rate, cost, tuple(reasons))


def _no_energy(summary: RegionSummary) -> str:
    if not summary.energy_source:
        return "the recording has neither energy nor power of this device"
    return summary.reason or "the mean power while the region ran cannot be told apart from its neighbours'"


def _device_use(timeline: Timeline, regions: Sequence[RegionSummary]) -> DeviceUse:
    start_ns, end_ns = _known(timeline) or (0, 0)
    reasons = []
    busy, energy = timeline.best(BUSY_SOURCES), timeline.best(ENERGY_SOURCES)
    utilization, coverage, joules, watts = None, 0.0, None, None
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
            watts = joules * NS_PER_S / covered
        else:
            reasons.append(f"energy: {len(energy)} samples of {energy.signal.key} cover no time")
    shares = [summary.energy_j for summary in regions]
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
        power_w=watts,
        unattributed_j=max(0.0, joules - sum(known)) if joules is not None and len(known) == len(shares) else None,
        reasons=tuple(reasons),
    )

"""Joins a recording: the summary and verdict of each region on each device, and the totals of each device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from gpu_profile.analysis.clocks.alignment import NodeClocks, aligned, aligned_collectives, node_clocks
from gpu_profile.analysis.device_pool import device_pool
from gpu_profile.analysis.devices import UNSAMPLED, DeviceUse, device_use, devices_of, sampled, timeline_of
from gpu_profile.analysis.ranks.causes import RankGpu
from gpu_profile.analysis.ranks.costs import RankCollectives
from gpu_profile.analysis.ranks.regions import RankSources, RegionRanks, by_rank, missing
from gpu_profile.analysis.runs import DeviceWork, RecordedWork, Runs, gather
from gpu_profile.catalogue.samples import Device, Event
from gpu_profile.errors import UsageError, few
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.region_watch import RegionChange, RegionWatch
from gpu_profile.join.remedies import DOCTOR
from gpu_profile.join.summary import Durations, RegionSummary, summarise
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.recording import ProcessInfo, Recording
from gpu_profile.recording.nccl_inspector import Collective
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Regime, Thresholds, Verdict, classify
from gpu_profile.regimes.evidence import Evidence
from gpu_profile.regimes.kernel_work import KernelWorks
from gpu_profile.regimes.operation import RegionOperations
from gpu_profile.regions.session.sensor_priors import unexpected
from gpu_profile.units import NS_PER_S, counted

_NO_DEVICE: Final = "the recording has no samples of this device"
#: The share of the busy time outside regions above which a note reports it.
_UNMARKED: Final = 0.02


@dataclass(frozen=True, slots=True)
class RegionUse:
    """A region on one device, with the verdict on it.

    `items_per_s`: items per second of joined time. `item_energy_j`: joules per item on this device, regions inside
    included. The sum over the region's devices is an item's whole energy. `failures`: executions that an exception
    ended. None: unknown, with the cause in `reasons`. `operations` and `kernels`: the work that profilers recorded in
    the region, on whatever device; None without records.
    """

    summary: RegionSummary
    verdict: Verdict
    items_per_s: float | None
    item_energy_j: float | None
    failures: int | None
    reasons: tuple[str, ...] = ()
    operations: RegionOperations | None = None
    kernels: KernelWorks | None = None

    @property
    def evidence(self) -> Evidence:
        """The evidence behind the verdict."""
        return next(each for each in _evidence(self.summary, self) if each.basis == self.verdict.basis)

    def judge(self, thresholds: Thresholds) -> Verdict:
        """The verdict under other thresholds."""
        return _verdict(_evidence(self.summary, self), thresholds)


@dataclass(frozen=True, slots=True)
class Analysis:
    """The results of one recording. `notes` has one line for each missing input and each assumption."""

    start_ns: int
    end_ns: int
    processes: tuple[ProcessInfo, ...]
    devices: tuple[DeviceUse, ...]
    regions: tuple[RegionUse, ...]
    runs: Mapping[str, Runs]
    events: tuple[Event, ...]
    notes: tuple[str, ...]
    lost_bytes: int = 0
    #: The regions that ran on several ranks of one job.
    ranks: tuple[RegionRanks, ...] = ()
    #: The changes of regions' regimes, in the order of time.
    changes: tuple[RegionChange, ...] = ()
    #: The clocks of the job's nodes. All times are by the reference's.
    clocks: NodeClocks = field(default_factory=NodeClocks)

    @property
    def simulated(self) -> bool:
        """Whether any of its processes read simulated devices."""
        return any(process.driver.partition(":")[0] == "simulated" for process in self.processes)

    def of(self, region: str) -> list[RegionUse]:
        """A region on each of its devices."""
        return [use for use in self.regions if use.summary.region == region]


def analyse(
    recording: Recording,
    *,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    devices: Sequence[str] = (),
    collectives: Sequence[Collective] = (),
) -> Analysis:
    """Join, pool and judge a recording.

    `devices`: UUIDs of the devices on which executions ran that name none. Default: the devices that their process
    expected, else the recording's first GPU. UsageError if the recording has no samples of one of the `devices`.
    `collectives`: the recorded processes' collectives, from NCCL Inspector.
    """
    clocks = node_clocks(recording, collectives)
    recording = aligned(recording, clocks)
    impossible: list[str] = []
    timelines = {
        device.uuid: timeline_of(
            device, recording.samples[device.uuid], impossible, recording.pauses.get(device.uuid, ())
        )
        for device in devices_of(recording)
    }
    unknown = [uuid for uuid in devices if uuid not in timelines]
    if unknown:
        raise UsageError(f"the recording has no samples of {few(unknown, 60)}; it has {few(timelines) or 'no device'}")
    work = gather(recording.spans, next(iter(timelines), ""), devices=devices)
    notes = [*recording.problems, *impossible, *work.notes]
    if not timelines:
        notes.append(f"no samples of any device ({DOCTOR})")
    if not work.runs:
        notes.append("no executions of regions: only devices are shown")
    elif not devices and len(timelines) > 1:
        for where, count in work.unplaced.items():
            nameless = counted(count, "execution names", "executions name")
            notes.append(f"{nameless} no device: taken to have run on {', '.join(where)} (see --device)")
    uses, regions, changes = [], [], list[RegionChange]()
    for uuid, mine in work.devices.items():
        timeline = timelines.get(uuid) or Timeline(Device(uuid))
        watch = RegionWatch(timeline, thresholds)
        pool = device_pool(timeline, mine, recording.processes, watch, changes)
        regions += list(_regions(pool, mine, work, thresholds))
        notes += [unexpected(timeline.device, signal) for signal in pool.unexpected]
        notes += _unmarked(pool)
        notes += _uncovered(timeline, mine)
    notes += [f"{use.summary.region}: {why}" for use in regions if (why := use.summary.contradiction)]
    for timeline in timelines.values():
        own = [use.summary for use in regions if use.summary.device == timeline.device]
        uses.append(device_use(timeline, own))
    order = {name: place for place, name in enumerate(work.runs)}
    rank = {uuid: place for place, uuid in enumerate(timelines)}
    regions.sort(key=lambda use: (order[use.summary.region], rank.get(use.summary.device.uuid, len(rank))))
    start_ns, end_ns = _extent(uses, work)
    if absent := missing(recording.processes, work.runs):
        notes.append(absent)
    called = RankCollectives(aligned_collectives(collectives, clocks), recording.processes) if collectives else None
    if called is not None and called.foreign:
        notes.append(f"{called.foreign:,} collectives are of processes without a rank in the recording: left out")
    notes += clocks.job.notes
    sources = RankSources(
        clocks, partial(_rank_gpus, work, regions, timelines), partial(_rank_summaries, work, regions), called
    )
    ranks = by_rank(work.runs, sources, notes)
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
        ranks,
        tuple(sorted(changes, key=lambda each: each.change.t_ns)),
        clocks,
    )


def _rank_summaries(work: RecordedWork, regions: Sequence[RegionUse], region: str) -> dict[int, RegionSummary]:
    """A region on its ranks' GPUs, as far as each rank has one of its own."""
    summaries = {use.summary.device.uuid: use.summary for use in regions if use.summary.region == region}
    own = {rank: next(iter(uuids)) for rank, uuids in work.rank_devices.items() if rank >= 0 and len(uuids) == 1}
    shared = {uuid for uuid, n in Counter(own.values()).items() if n > 1}
    return {rank: summaries[uuid] for rank, uuid in own.items() if uuid not in shared and uuid in summaries}


def _rank_gpus(
    work: RecordedWork, regions: Sequence[RegionUse], timelines: Mapping[str, Timeline], region: str, runs: Runs
) -> dict[int, RankGpu]:
    """The GPUs of a region's ranks that were sampled. `runs` are the compared executions."""
    return {
        rank: RankGpu.of(summary, timelines[summary.device.uuid], runs, rank)
        for rank, summary in _rank_summaries(work, regions, region).items()
        if summary.device.uuid in timelines
    }


def _extent(uses: Sequence[DeviceUse], work: RecordedWork) -> tuple[int, int]:
    """From the first recorded sample or execution to the last, in ns. Zeros if there is none."""
    starts = [use.start_ns for use in uses if use.end_ns] + [int(runs.starts_ns.min()) for runs in work.runs.values()]
    ends = [use.end_ns for use in uses if use.end_ns] + [int(runs.ends_ns.max()) for runs in work.runs.values()]
    return min(starts, default=0), max(ends, default=0)


def _regions(pool: Pool, mine: DeviceWork, work: RecordedWork, thresholds: Thresholds) -> Iterator[RegionUse]:
    timeline = pool.timeline
    sampled_ns = sampled(timeline)
    during = () if sampled_ns is None else mine.activities.during(*sampled_ns).columns.tolist()
    seen = None if sampled_ns is None else {mine.regions[i] for i in during}
    for region, executions in mine.executions.items():
        source = "device" if mine.marked[region] == executions else "host"
        runs = work.runs[region]
        summary = summarise(pool, region, _durations(runs), interval_source=source)
        if not timeline.columns:
            evidence = replace(summary.evidence, reason=_NO_DEVICE)
            summary = replace(summary, evidence=evidence, reason=_NO_DEVICE)
        elif seen is not None and region not in seen and summary.interval_s > 0:
            summary = _unsampled(summary)
        yield _region_use(summary, _verdict(_evidence(summary, runs), thresholds), runs)


def _evidence(summary: RegionSummary, profiled: Runs | RegionUse) -> list[Evidence]:
    """The evidence on a region, the best first: its kernels, its operations, the device's samples."""
    evidence = [each.evidence() for each in (profiled.kernels, profiled.operations) if each is not None]
    return [*evidence, summary.evidence]


def _verdict(evidence: Sequence[Evidence], thresholds: Thresholds) -> Verdict:
    """The verdict of the best evidence that gives a regime, else that of the device's samples."""
    verdicts = [classify(each, thresholds) for each in evidence]
    return next((verdict for verdict in verdicts if verdict.regime is not Regime.UNKNOWN), verdicts[-1])


def _unsampled(summary: RegionSummary) -> RegionSummary:
    """The summary without measurements: all of them are of other times."""
    evidence = replace(summary.evidence, values={}, n=0, coverage=0.0, half_width=None, reason=UNSAMPLED)
    return replace(
        summary,
        busy=None,
        busy_half_width=None,
        busy_s=None,
        busy_s_half_width=None,
        power_w=None,
        power_half_width=None,
        energy_j=None,
        energy_half_width=None,
        call_energy_j=None,
        memory_max=None,
        evidence=evidence,
        reason=UNSAMPLED,
        energy_reason=UNSAMPLED,
        rates={},
        metered=None,
        throttled={},
    )


def _uncovered(timeline: Timeline, mine: DeviceWork) -> Iterator[str]:
    """A line if executions lie outside the sampled time. Shares and rates leave them out."""
    sampled_ns = sampled(timeline)
    if sampled_ns is None:
        return
    starts, ends = mine.activities.starts, mine.activities.ends
    outside = int(np.count_nonzero((ends <= sampled_ns[0]) | (starts >= sampled_ns[1])))
    if outside:
        several = counted(outside, "execution", "executions")
        yield f"{several} ran on {timeline.device.uuid} before its first sample or after its last"


def _unmarked(pool: Pool) -> Iterator[str]:
    """A line if the device was busy outside regions for longer than errors of time stamps explain."""
    share = pool.outside(pool.busy_source())
    if share is not None and share.half_width is not None and share.value - share.half_width > _UNMARKED:
        share_text = f"{share.value * 100:.1f} % ±{share.half_width * 100:.1f}"
        yield f"{share_text} of the busy time of {pool.timeline.device.uuid} is in no region: unmarked work, or others'"


def _durations(runs: Runs) -> Durations:
    lengths = runs.durations_s
    p50, p95 = np.quantile(lengths, (0.5, 0.95)).tolist()
    return Durations(
        calls=len(lengths),
        errors=runs.failures or 0,
        items=runs.items_sum,
        total_s=int((runs.ends_ns - runs.starts_ns).sum()) / NS_PER_S,
        p50_s=p50,
        p95_s=p95,
        max_s=float(lengths.max()),
    )


def _region_use(summary: RegionSummary, verdict: Verdict, runs: Runs) -> RegionUse:
    reasons = []
    if summary.busy is None:
        reasons.append(f"GPU busy: {summary.reason or 'not measured'}")
    if summary.call_energy_j is None:
        why = summary.energy_reason or summary.reason or "no executions have ended"
        if not summary.energy_source:
            why = "the recording has neither energy nor power of this device"
        reasons.append(f"energy per call: {why}")
    items, seconds = summary.durations.items, summary.interval_s
    rate = cost = None
    if items and runs.items is not None:
        rate = items * summary.executions / summary.durations.calls / seconds if seconds > 0 else None
        if summary.call_energy_j is not None:
            cost = summary.call_energy_j * summary.executions / items
    elif items:
        reasons.append("per item: only some of the executions reported their items")
    if runs.operations is not None and runs.operations.reason:
        reasons.append(f"operations: {runs.operations.reason}")
    if runs.kernels is not None and (reason := runs.kernels.evidence().reason):
        reasons.append(f"kernels: {reason}")
    return RegionUse(summary, verdict, rate, cost, runs.failures, tuple(reasons), runs.operations, runs.kernels)

"""The clocks of a job's nodes, compared, and a recording with all times by one of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from gpu_profile.analysis.clocks.estimate import ClockOffset, estimate
from gpu_profile.analysis.clocks.jobs import Job, SpanOwners, job_of
from gpu_profile.analysis.clocks.jumps import ClockJump, in_order, without_jumps
from gpu_profile.analysis.clocks.meetings import Meetings, meetings
from gpu_profile.analysis.clocks.steps import steps
from gpu_profile.analysis.runs import LATEST_NS, device_marks, usable
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.recording import Columns, DeviceInterval, ProcessInfo, Recording, SpanRecord
from gpu_profile.recording.nccl_inspector import Collective
from gpu_profile.recording.pauses import Pause

#: Collectives in which no rank leaves before all have entered. The others pass data on in one direction.
JOINT: Final = frozenset({"AllReduce", "AllGather", "AllGatherV", "ReduceScatter", "All2All"})
#: Regions with fewer executions are not looked at beside this many with more.
_MOST_REGIONS: Final = 24
_NO_MEETING: Final = "no region keeps their ranks in step: mark a collective as a region, or give --nccl"


@dataclass(frozen=True, slots=True)
class NodeClock:
    """The clock of a node with ranks of a job. `offset` is None if it cannot be compared, with the `reason`.

    `by` names the region or the collectives that it is compared by. `whole_steps`: only by steps that the ranks take
    together.
    """

    host: str
    ranks: tuple[int, ...]
    offset: ClockOffset | None
    by: str = ""
    whole_steps: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeClocks:
    """The clocks of a job's nodes beside the `reference`'s. Empty for one node.

    The reference is the node of the lowest rank, unless its recordings have less than half of the most executions.
    """

    reference: str = ""
    nodes: tuple[NodeClock, ...] = ()
    job: Job = field(default_factory=Job)

    @property
    def offsets(self) -> dict[str, ClockOffset]:
        """The offset of each node that was compared, by host."""
        return {node.host: node.offset for node in self.nodes if node.offset is not None}

    @property
    def one_clock(self) -> bool:
        """Whether times of all ranks can be compared."""
        return all(node.offset is not None for node in self.nodes)


def node_clocks(recording: Recording, collectives: Sequence[Collective] = ()) -> NodeClocks:
    """Compare the clocks of the nodes, by the collectives or else by the regions of the recording."""
    job = job_of(recording)
    # After a restart on another node, a rank has hosts that are its last one no more.
    hosts = list(dict.fromkeys([*(job.hosts[rank] for rank in sorted(job.hosts)), *job.executions]))
    if len(hosts) < 2:
        return NodeClocks(job=job)
    # A node whose recordings are cut off has few meetings with the others.
    enough = max(job.executions.values()) / 2
    first = next(host for host in hosts if job.executions[host] >= enough)
    hosts.sort(key=lambda host: host != first)
    number = {host: i for i, host in enumerate(hosts)}
    base = min((span.start_ns for span in usable(recording.spans)), default=0)
    left_out: dict[int, str] = {}
    best: dict[int, tuple[ClockOffset, str, bool]] = {}
    candidates = [_collectives(recording, job, collectives, number, base)]
    candidates += _executions(recording, job, number, base, left_out)
    jumps: dict[int, list[ClockJump]] = {}
    there = []
    for met in filter(None, candidates):
        even, by_clock = without_jumps(met)
        there.append(even)
        jumps = jumps or by_clock
    _improve(best, [(met, False) for met in there if met.waits])
    if len(best) < len(hosts) - 1:
        _improve(best, [(taken, True) for met in there if (taken := steps(met)) is not None])
    nodes = []
    ran = {(process.host, process.rank) for process in map(recording.processes.__getitem__, job.attempts)}
    for host in hosts[1:]:
        ranks = tuple(sorted(rank for own, rank in ran if own == host and rank is not None))
        # One offset does not describe a clock that was set, nor others by a reference that was.
        jumped = next((each for each in (host, hosts[0]) if number[each] in jumps), None)
        if jumped is not None:
            own = jumps[number[jumped]]
            which = f"{jumped}'s clock" if all(each.sure for each in own) else "one of the two"
            when = " and ".join(each.text(base) for each in own)
            nodes.append(NodeClock(host, ranks, None, reason=f"{which} {when}"))
        elif (chosen := best.get(number[host])) is None:
            why = left_out[ranks[0]] if all(rank in left_out for rank in ranks) else _NO_MEETING
            nodes.append(NodeClock(host, ranks, None, reason=why))
        else:
            offset, by, whole = chosen
            nodes.append(NodeClock(host, ranks, replace(offset, at_ns=offset.at_ns + base), by, whole))
    return NodeClocks(hosts[0], tuple(nodes), job)


def _improve(best: dict[int, tuple[ClockOffset, str, bool]], ways: Sequence[tuple[Meetings, bool]]) -> None:
    """Keep the narrowest interval of each clock. Steps replace nothing that is there."""
    before = set(best)
    for met, whole in ways:
        for clock, offset in estimate(met, 0).items():
            earlier = best.get(clock)
            if clock not in before and (earlier is None or offset.half_width_ns < earlier[0].half_width_ns):
                best[clock] = offset, met.name, whole


def _executions(
    recording: Recording, job: Job, number: Mapping[str, int], base: int, left_out: dict[int, str]
) -> list[Meetings | None]:
    """The executions of each region on the ranks, attempt by attempt, by the device's clock where it marked them."""
    owners = SpanOwners(recording.processes)
    runs: dict[str, dict[int, dict[int, list[tuple[int, int]]]]] = {}
    clocks: dict[tuple[int, int], int] = {}
    for span in recording.spans:
        place = owners.of(span)
        # An execution during which the clock was set back ends before it starts. It is one of the rank's nevertheless.
        if not 0 <= min(span.start_ns, span.end_ns) <= max(span.start_ns, span.end_ns) < LATEST_NS:
            continue
        if place is None or span.rank is None or (attempt := job.attempts.get(place)) is None:
            continue
        marks = device_marks(span).values()
        edges = (span.start_ns, span.end_ns)
        if marks:
            edges = min(mark.start_ns for mark in marks), max(mark.end_ns for mark in marks)
        runs.setdefault(span.name, {}).setdefault(attempt, {}).setdefault(span.rank, []).append(edges)
        clocks[attempt, span.rank] = number[recording.processes[place].host]
    often = sorted(runs, key=lambda name: -sum(map(len, runs[name].get(0, {}).values())))[:_MOST_REGIONS]
    result: list[Meetings | None] = []
    for name in often:
        parts = []
        for attempt, ranks in runs[name].items():
            times = {rank: _edges(edges, base) for rank, edges in ranks.items()}
            numbers = {rank: clocks[attempt, rank] for rank in ranks}
            parts.append(meetings(name, times, numbers, left_out))
        covered = set[int]()
        for part in sorted((part for part in parts if part), key=lambda part: -part.entries.size):
            # Smaller parts only for nodes without ranks in a larger one.
            if not covered.issuperset(part.clocks.tolist()):
                covered.update(part.clocks.tolist())
                result.append(part)
    return result


def _edges(edges: Sequence[tuple[int, int]], base: int) -> tuple[Floats, Floats]:
    starts, ends = (in_order(np.array(edges, np.int64)) - base).T.astype(np.float64)
    return starts, ends


def _collectives(
    recording: Recording, job: Job, collectives: Sequence[Collective], number: Mapping[str, int], base: int
) -> Meetings | None:
    """The joint collectives, of the communicators that reach the most nodes."""
    places = {(process.host, process.pid): i for i, process in enumerate(recording.processes)}
    times: dict[tuple[str, str, int], dict[int, tuple[int, int]]] = {}
    clocks: dict[int, int] = {}
    for each in collectives:
        place = places.get((each.host, each.pid))
        if each.function not in JOINT or place is None or place not in job.attempts:
            continue
        rank = recording.processes[place].rank
        if rank is not None:
            key = each.communicator, each.function, each.number
            times.setdefault(key, {})[rank] = each.start_ns - base, each.end_ns - base
            clocks[rank] = number[each.host]
    reach = [len({clocks[rank] for rank in met}) for met in times.values()]
    most = max(reach, default=0)
    if most < 2:
        return None
    ranks = sorted(clocks)
    row = {rank: i for i, rank in enumerate(ranks)}
    far = [met for met, nodes in zip(times.values(), reach, strict=True) if nodes == most]
    far.sort(key=lambda met: min(met.values()))
    entries, exits = (np.full((len(ranks), len(far)), np.nan) for _ in range(2))
    for column, met in enumerate(far):
        for rank, (start, end) in met.items():
            entries[row[rank], column], exits[row[rank], column] = start, end
    return Meetings("NCCL's collectives", np.array(ranks), np.array([clocks[rank] for rank in ranks]), entries, exits)


# ---------------------------------------------------------------------- one clock for all times


def aligned(recording: Recording, clocks: NodeClocks) -> Recording:
    """The recording with all times by the reference's clock. Spans of other jobs lose their rank."""
    offsets, job, owners = clocks.offsets, clocks.job, SpanOwners(recording.processes)
    others = set(range(len(recording.processes))) - set(job.attempts) if job.attempts else set()
    foreign = bool(others) and any(owners.of(span) in others for span in recording.spans)
    if not offsets and not foreign:
        return recording
    host_of = {place: process.host for place, process in enumerate(recording.processes)}
    devices = _device_hosts(recording, host_of, owners)
    spans: list[SpanRecord] = [*recording.spans]
    places: dict[int | None, list[int]] = {}
    for i, span in enumerate(spans):
        if 0 <= span.start_ns <= span.end_ns < LATEST_NS:
            places.setdefault(owners.of(span), []).append(i)
    for place, mine in places.items():
        if place in others:
            for i in mine:
                spans[i] = spans[i]._replace(rank=None)
        elif place is not None and (offset := offsets.get(host_of[place])) is not None:
            edges = np.array([spans[i][1:3] for i in mine], np.int64)
            for i, (start, end) in zip(mine, offset.by_reference(edges).tolist(), strict=True):
                spans[i] = spans[i]._replace(
                    start_ns=start, end_ns=end, device_intervals=_marks(spans[i].device_intervals, offset)
                )
    samples = {
        uuid: signals
        if (offset := offsets.get(devices.get(uuid, ""))) is None
        else {key: _columns(columns, offset) for key, columns in signals.items()}
        for uuid, signals in recording.samples.items()
    }
    return replace(
        recording,
        processes=tuple(_process(process, offsets.get(process.host)) for process in recording.processes),
        samples=samples,
        pauses={
            uuid: pauses
            if (offset := offsets.get(devices.get(uuid, ""))) is None
            else tuple(Pause(_time(start, offset), _time(end, offset)) for start, end in pauses)
            for uuid, pauses in recording.pauses.items()
        },
        spans=tuple(spans),
        events=tuple(
            event
            if (offset := offsets.get(devices.get(event.device, ""))) is None
            else replace(event, t_ns=_time(event.t_ns, offset))
            for event in recording.events
        ),
    )


def aligned_collectives(collectives: Sequence[Collective], clocks: NodeClocks) -> list[Collective]:
    """The collectives by the reference's clock."""
    return [
        each if (offset := clocks.offsets.get(each.host)) is None else _collective(each, offset) for each in collectives
    ]


def _collective(collective: Collective, offset: ClockOffset) -> Collective:
    times = np.array([collective.launched_ns, collective.start_ns, collective.end_ns], np.int64)
    launched, start, end = offset.by_reference(times).tolist()
    return collective._replace(launched_ns=launched, start_ns=start, end_ns=end)


def _device_hosts(recording: Recording, host_of: Mapping[int, str], owners: SpanOwners) -> dict[str, str]:
    """The host of each device: of the process that recorded it, else of the executions on it."""
    hosts = dict(recording.device_hosts)
    for span in recording.spans:
        if (place := owners.of(span)) is not None and not span.assumed:
            for uuid in (*(mark.device for mark in span.device_intervals), *span.devices):
                hosts.setdefault(uuid, host_of[place])
    return hosts


def _marks(marks: tuple[DeviceInterval, ...], offset: ClockOffset) -> tuple[DeviceInterval, ...]:
    return tuple(
        mark._replace(start_ns=_time(mark.start_ns, offset), end_ns=_time(mark.end_ns, offset)) for mark in marks
    )


def _columns(columns: Columns, offset: ClockOffset) -> Columns:
    return columns._replace(t_start=offset.by_reference(columns.t_start), t_end=offset.by_reference(columns.t_end))


def _process(process: ProcessInfo, offset: ClockOffset | None) -> ProcessInfo:
    if offset is None:
        return process
    end_ns = None if process.end_ns is None else _time(process.end_ns, offset)
    return replace(process, start_ns=_time(process.start_ns, offset), end_ns=end_ns)


def _time(t_ns: int, offset: ClockOffset) -> int:
    """A time by the reference's clock; an impossible one stays."""
    if not 0 <= t_ns < LATEST_NS:
        return t_ns
    times: Ints = offset.by_reference(np.array([t_ns], np.int64))
    return int(times[0])

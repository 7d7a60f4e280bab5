"""The processes of one job among all of a recording: its ranks, their restarts, and other jobs beside it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpu_profile.errors import few
from gpu_profile.recording import ProcessInfo, Recording, SpanRecord

#: The most ranks in a line. The JSON has all.
_NAMED: Final = 60


@dataclass(frozen=True, slots=True)
class Job:
    """One job. `attempts` has its processes, by their place in the recording: which start of their rank each is.

    `hosts` has each rank's host; with processes on several hosts, that of the last one.
    """

    attempts: Mapping[int, int] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    #: The executions on each of its hosts.
    executions: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class SpanOwners:
    """The processes that ran a recording's spans: those that a span names, or the only one of its rank."""

    def __init__(self, processes: Sequence[ProcessInfo]) -> None:
        times = Counter(process.rank for process in processes)
        self._count = len(processes)
        self._only = {
            each.rank: i for i, each in enumerate(processes) if each.rank is not None and times[each.rank] == 1
        }

    def of(self, span: SpanRecord) -> int | None:
        """The place of the span's process in the recording; None if it is unknown."""
        if span.process is None:
            return None if span.rank is None else self._only.get(span.rank)
        return span.process if 0 <= span.process < self._count else None


def job_of(recording: Recording) -> Job:
    """The job with the most executions. Processes with one rank at one time are of different jobs."""
    processes, owners = recording.processes, SpanOwners(recording.processes)
    ends: dict[int, int] = {}
    executions = Counter[int]()
    for span in recording.spans:
        if span.rank is not None and (place := owners.of(span)) is not None:
            executions[place] += 1
            ends[place] = max(ends.get(place, 0), span.end_ns)
    jobs: list[list[int]] = []
    for place in sorted(executions, key=lambda place: processes[place].start_ns):
        mine = [job for job in jobs if _fits(place, job, processes, ends)]
        start_ns = processes[place].start_ns
        if mine:
            min(mine, key=lambda job: min(abs(processes[i].start_ns - start_ns) for i in job)).append(place)
        else:
            jobs.append([place])
    if not jobs:
        return Job()
    jobs.sort(key=lambda job: -sum(executions[place] for place in job))
    attempts: dict[int, int] = {}
    starts = Counter[int | None]()
    for place in jobs[0]:
        attempts[place] = starts[processes[place].rank]
        starts[processes[place].rank] += 1
    hosts = {rank: processes[place].host for place in jobs[0] if (rank := processes[place].rank) is not None}
    notes = [_other(jobs, processes)] if len(jobs) > 1 else []
    again = [rank for rank, count in starts.items() if count > 1 and rank is not None]
    if again:
        notes.append(
            f"{ranks_text(again)} ran in several processes, one after another: a restart, or several runs; "
            "their executions count together"
        )
    counts = Counter[str]()
    for place in jobs[0]:
        counts[processes[place].host] += executions[place]
    return Job(attempts, hosts, counts, tuple(notes))


def _fits(place: int, job: Sequence[int], processes: Sequence[ProcessInfo], ends: Mapping[int, int]) -> bool:
    """Whether a process can be of a job: of one size, and none of the job had its rank at the same time."""
    own = processes[place]
    return all(
        processes[other].world_size == own.world_size
        and (processes[other].rank != own.rank or ends[other] <= own.start_ns)
        for other in job
    )


def _other(jobs: Sequence[Sequence[int]], processes: Sequence[ProcessInfo]) -> str:
    sizes = few([f"{len({processes[place].rank for place in job})} ranks" for job in jobs[1:]], 40)
    hosts = few(sorted({processes[place].host for job in jobs[1:] for place in job}), 40)
    return (
        f"{len(jobs)} jobs are in the recording: ranks are compared in the one with most executions, "
        f"not in the others ({sizes} on {hosts})"
    )


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0-7, 9`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"rank{'s' * (len(ranks) > 1)} {few(texts, _NAMED)}"

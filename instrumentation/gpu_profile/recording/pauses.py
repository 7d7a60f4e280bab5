"""Time in which devices were not measured: the machine was suspended, or its clock was set ahead unrecorded. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import Kind, Signal, signal
from gpu_profile.catalogue.signals import ENERGY
from gpu_profile.clock import Moment
from gpu_profile.recording.columns import Column, Columns
from gpu_profile.recording.records import ProcessInfo
from gpu_profile.units import NS_PER_S

#: Shorter suspensions are none: two clocks are never read at the same moment. Ours.
_LEAST_NS: Final = 1_000_000
#: The least time without any reading that may be a step of the clock. Ours.
_SILENT_NS: Final = 5 * NS_PER_S
#: Readings of the counter from which a mean power is taken: about a second at 10 Hz. Ours.
_READINGS: Final = 10
#: No GPU draws less than this share of its lowest mean power elsewhere in the recording. Ours.
_LEAST_POWER: Final = 0.5


class Pause(NamedTuple):
    """A stretch of time in ns between two readings. Rows of neither counters nor other signals cover it."""

    start_ns: int
    end_ns: int


def pauses_of(
    samples: Mapping[str, Mapping[str, Columns]], writers: Mapping[str, Sequence[ProcessInfo]]
) -> tuple[dict[str, tuple[Pause, ...]], list[str]]:
    """The pauses of each device by UUID, in order, and a line for each pause of a machine.

    `samples` are by UUID and key, `writers` by UUID: the processes with the device's clock. Their recorded moments show
    suspensions; without moments, readings show pauses.
    """
    machines: dict[str, list[str]] = {}
    for uuid, processes in writers.items():
        machines.setdefault(processes[0].boot or processes[0].host, []).append(uuid)
    pauses, lines = dict[str, tuple[Pause, ...]](), list[str]()
    for uuids in machines.values():
        moments = {moment for uuid in uuids for process in writers[uuid] for moment in process.moments}
        if moments:
            by_device = {uuid: suspensions(moments, _polled([samples[uuid]])) for uuid in uuids}
        else:
            counters = [samples[uuid][ENERGY.key] for uuid in uuids if ENERGY.key in samples[uuid]]
            by_device = dict.fromkeys(uuids, unrecorded(_polled([samples[uuid] for uuid in uuids]), counters))
        pauses |= {uuid: tuple(each) for uuid, each in by_device.items() if each}
        why = (
            "it was suspended"
            if moments
            else "its energy counters stood still: it was suspended, or its clock set ahead"
        )
        lines += dict.fromkeys(
            f"{writers[uuids[0]][0].host}: {(end - start) / NS_PER_S:,.3f} s are not measured, because {why}"
            for each in by_device.values()
            for start, end in each
        )
    return pauses, lines


def without_pauses(times: Column, pauses: Iterable[Pause]) -> Column:
    """Times in ns as if the pauses had not been: a time in a pause becomes its start."""
    return times - sum((np.clip(times - start, 0, end - start) for start, end in pauses), np.zeros_like(times))


def columns_without_pauses(row: Signal, columns: Columns, pauses: Sequence[Pause]) -> Columns:
    """A signal's columns without the pauses. Where a counter grew too much in one, its later values begin anew at 0."""
    t_start, t_end = (without_pauses(times, pauses) for times in columns[:2])
    places = columns.t_end.searchsorted([start for start, _ in pauses], "right")
    return begun_anew(row, Columns(t_start, t_end, columns.value), places.tolist())


def begun_anew(row: Signal, columns: Columns, places: Iterable[int]) -> Columns:
    """The columns with a counter that begins anew at 0 at those of the `places` to which it grew too much."""
    t_end, value = columns.t_end, columns.value.copy()
    for after in places if row.kind is Kind.COUNTER else ():
        if 0 < after < len(value):
            growth, lasts_ns = int(value[after] - value[after - 1]), int(t_end[after] - t_end[after - 1])
            value[after:] -= value[after] if growth * NS_PER_S > row.limit * lasts_ns else 0
    return columns._replace(value=value)


def _polled(devices: Iterable[Mapping[str, Columns]]) -> Column:
    """The ends of all readings that a sampler asks for, each once."""
    ends = [column.t_end for own in devices for key, column in own.items() if signal(key).kind is not Kind.WINDOW_MEAN]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *ends]))


def suspensions(moments: Iterable[Moment], ends: Column) -> list[Pause]:
    """The suspensions of a machine, at the place among the ends of a device's readings where each fits."""
    ordered = sorted(set(moments), key=lambda moment: moment.elapsed_ns + moment.suspended_ns)
    pauses = []
    for before, after in pairwise(ordered):
        lasted_ns = after.suspended_ns - before.suspended_ns
        # By the last setting of the clock, as all other times.
        since, until = (m.elapsed_ns + m.suspended_ns + ordered[-1].setting_ns for m in (before, after))
        first, last = ends.searchsorted(since, "right") - 1, ends.searchsorted(until, "left")
        around = ends[max(0, first) : last + 1]
        if lasted_ns < _LEAST_NS or len(around) < 2:
            continue
        widest = int(np.diff(around).argmax())
        start = int(around[widest])
        if int(around[widest + 1]) - start >= lasted_ns:
            pauses.append(Pause(start, start + lasted_ns))
    return pauses


def unrecorded(ends: Column, counters: Sequence[Columns]) -> list[Pause]:
    """The times without any of the readings that end at `ends`, in which no energy counter grew as a GPU draws power.

    A sampler that paused leaves a counter with the growth of all the time. Without counters there are no pauses.
    """
    pauses = []
    gaps = np.diff(ends)
    for place in np.flatnonzero(gaps > _SILENT_NS).tolist() if counters else ():
        start, end = int(ends[place]), int(ends[place + 1])
        if all(_stood_still(counter, start, end) for counter in counters):
            pauses.append(Pause(start, end - int(np.median(gaps))))
    return pauses


def _stood_still(counter: Columns, start_ns: int, end_ns: int) -> bool:
    """Whether a counter grew by much less in this time than in any other of the recording."""
    ends, values = counter.t_end, counter.value.astype(np.float64)
    lasted, grew = ends[_READINGS:] - ends[:-_READINGS], values[_READINGS:] - values[:-_READINGS]
    usual = (lasted > 0) & (lasted < _SILENT_NS)
    first, last = ends.searchsorted(start_ns, "right") - 1, ends.searchsorted(end_ns, "left")
    if not usual.any() or first < 0 or last >= len(ends):
        return False
    growth = values[last] - values[first]
    return bool(0 <= growth < _LEAST_POWER * (grew[usual] / lasted[usual]).min() * (ends[last] - ends[first]))

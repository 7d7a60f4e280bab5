"""Why a rank takes longer than the others in a region: from its GPU beside the others' GPUs. Pure.

Most of the late rank's excess is either time of its GPU or time without work there. In the first case a difference of
the GPU is the cause: a power limit, clocks that the driver holds down, lower clocks. These act by the clock, so the
lower clock must explain the longer time. In the second case it is the host, or a slow link to it. Without a difference,
the cause is unknown: the rank may have more work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from statistics import median
from typing import Final

import numpy as np

from gpu_profile.analysis.runs import Runs
from gpu_profile.catalogue import BUSY_SOURCES, Signal
from gpu_profile.catalogue.signals import (
    CLOCK_SM,
    PCIE_GENERATION,
    PCIE_LANES,
    POWER_LIMIT,
    REMAP_FAILURE,
    REMAP_PENDING,
)
from gpu_profile.history.timeline import Ints, Timeline
from gpu_profile.join.summary import RegionSummary
from gpu_profile.units import percent, si

#: A limit, clock or link below the others' by more than this share is lower. Boards of one kind differ by less. Ours.
LOWER: Final = 0.03
#: The share of the region's time by which throttling must exceed the others' to be a cause. Ours.
THROTTLED_MORE: Final = 0.1
#: The part of the excess that the GPU's time, or the time without it, must have to be where it arises.
MOST: Final = 0.5
#: The least share of the time that readings of utilisation must cover.
_COVERED: Final = 0.95
#: Stretches of time that are compared to find the beginning.
_STRETCHES: Final = 20
_COMPARED: Final = (CLOCK_SM, POWER_LIMIT, PCIE_GENERATION, PCIE_LANES)
_REMAPPING: Final = (REMAP_PENDING, REMAP_FAILURE)
_HOT: Final = ("sw_thermal", "hw_thermal", "thermal_policy")


class LateCause(StrEnum):
    """Why a rank is late."""

    POWER_LIMIT = "power_limit"
    THERMAL = "thermal_throttling"
    POWER = "power_throttling"
    THROTTLED = "throttling"
    CLOCK = "clock"
    MEMORY = "memory_remapping"
    LINK = "pcie_link"
    HOST = "host"
    UNKNOWN = "unknown"


class _LostTime(Enum):
    """Where a rank loses its time."""

    GPU = auto()
    HOST = auto()
    UNCERTAIN = auto()


@dataclass(frozen=True, slots=True)
class RankGpu:
    """A rank's GPU during a region. None: not measured. `throttled`: shares of the region's time, by reason.

    `busy` is the share of the region's time in which the GPU worked, with a half-width; `bounded` is the same from the
    readings of all the time between the executions. The rest are means over the
    region's time: `clock_hz` is the clock of the multiprocessors, `generation` and `lanes` are the PCIe link's.
    """

    busy: float | None = None
    busy_half_width: float = 0.0
    bounded: tuple[float, float] | None = None
    clock_hz: float | None = None
    power_limit_w: float | None = None
    generation: float | None = None
    lanes: float | None = None
    remapping: bool | None = None
    throttled: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, summary: RegionSummary, timeline: Timeline, runs: Runs, rank: int) -> RankGpu:
        """From the region's summary on the GPU, the GPU's readings, and the rank's executions."""
        own = runs.ranks == rank
        starts, ends = runs.on_starts_ns[own], runs.on_ends_ns[own]
        means = {signal: _mean(timeline, signal, starts, ends) for signal in _COMPARED}
        half_width = summary.busy_half_width
        flags = [value for signal in _REMAPPING if (value := _mean(timeline, signal, starts, ends)) is not None]
        return cls(
            busy=None if half_width is None else summary.busy,
            busy_half_width=half_width or 0.0,
            bounded=_busy_bounds(timeline, starts, ends),
            clock_hz=means[CLOCK_SM],
            power_limit_w=means[POWER_LIMIT],
            generation=means[PCIE_GENERATION],
            lanes=means[PCIE_LANES],
            remapping=any(flags) if flags else None,
            throttled=summary.throttled,
        )


@dataclass(frozen=True, slots=True)
class Lateness:
    """Why the slowest rank of a region is late: the cause, the facts in words, and since when, in ns.

    `facts` is empty without a GPU to compare. `since_ns` is None if the rank was late from the beginning.
    """

    cause: LateCause
    facts: str
    since_ns: int | None


def lateness(late: RankGpu, others: Sequence[RankGpu], late_s: float, others_s: float) -> tuple[LateCause, str]:
    """The cause, and the facts in words. `late_s` and `others_s` are mean times of an execution."""
    place, share, longer = _place(late, others, late_s, others_s)
    differences = list(_differences(late, others, longer))
    if place is _LostTime.HOST:
        waits, link = f"its GPU has no work for {percent(1 - share, 0)} of the time", _link(late, others)
        return (LateCause.LINK, f"{link}; {waits}") if link else (LateCause.HOST, waits)
    if place is _LostTime.GPU:
        if differences:
            return differences[0]
        rest = [facts for _, facts in _differences(late, others, None)]
        why = f"it may have more work; {'; '.join(rest)}, too little for that" if rest else "it may have more work"
        clock = "" if rest else " at the others' clock"
        return LateCause.UNKNOWN, f"its GPU works longer{clock}: {why}"
    # A difference is a cause only where the time is lost.
    where = "it is uncertain whether its GPU or its host takes longer"
    return LateCause.UNKNOWN, "; ".join([where, *(facts for _, facts in differences)])


def _differences(late: RankGpu, others: Sequence[RankGpu], longer: float | None) -> Iterator[tuple[LateCause, str]]:
    """The differences that slow the GPU down, causes before their effects.

    With the share by which the GPU works `longer`, those by clocks only if the clock explains most of that.
    """
    if longer is None or _clock_explains(late, others, longer):
        yield from _clock_differences(late, others)
    if late.remapping and not any(each.remapping for each in others):
        yield LateCause.MEMORY, "rows of its memory are to be remapped"
    if link := _link(late, others):
        yield LateCause.LINK, link


def _clock_explains(late: RankGpu, others: Sequence[RankGpu], longer: float) -> bool:
    """Whether a GPU works that much longer by its clock. Without clocks that is possible."""
    present = [each.clock_hz for each in others if each.clock_hz is not None]
    if late.clock_hz is None or not present or late.clock_hz <= 0:
        return True
    return median(present) / late.clock_hz - 1 >= MOST * longer


def _clock_differences(late: RankGpu, others: Sequence[RankGpu]) -> Iterator[tuple[LateCause, str]]:
    limit = _lower(late.power_limit_w, [each.power_limit_w for each in others])
    if limit is not None and late.power_limit_w is not None:
        own, typical = si(late.power_limit_w, "W"), si(late.power_limit_w / limit, "W")
        yield LateCause.POWER_LIMIT, f"its power limit is {own}, the others' {typical}"
    clock = _lower(late.clock_hz, [each.clock_hz for each in others])
    clocks = f"its clock is {percent(clock, 0)} of the others'" if clock is not None else ""
    if (reason := _throttled_more(late, others)) is not None:
        held = f"the driver holds its clocks down for {percent(late.throttled[reason], 0)} of the time ({reason})"
        cause = LateCause.THERMAL if reason in _HOT else LateCause.POWER if "power" in reason else LateCause.THROTTLED
        yield cause, "; ".join(filter(None, (held, clocks)))
    if clocks:
        yield LateCause.CLOCK, clocks


def _link(late: RankGpu, others: Sequence[RankGpu]) -> str:
    """A slower PCIe link in words. Empty if it is as fast as the others'."""
    lanes = _lower(late.lanes, [each.lanes for each in others])
    if lanes is not None and late.lanes is not None:
        return f"its PCIe link has {late.lanes:.0f} lanes, the others' {late.lanes / lanes:.0f}"
    generation = _lower(late.generation, [each.generation for each in others])
    if generation is not None and late.generation is not None:
        return f"its PCIe link has generation {late.generation:.1f}, the others' {late.generation / generation:.1f}"
    return ""


def _place(
    late: RankGpu, others: Sequence[RankGpu], late_s: float, others_s: float
) -> tuple[_LostTime, float, float | None]:
    """Where most of the excess certainly is, the late GPU's busy share, and by which share that GPU works longer.

    Shares are comparable by one method only. Bounds go first: the estimate assumes that a GPU works evenly during an
    execution.
    """
    excess_s = late_s - others_s
    for shares in ([each.bounded for each in (late, *others)], [_estimate(each) for each in (late, *others)]):
        own, beside = shares[0], [each for each in shares[1:] if each is not None]
        if own is None or not beside or excess_s <= 0:
            continue
        typical = median([share for share, _ in beside])
        part = (own[0] * late_s - typical * others_s) / excess_s
        error = (own[1] * late_s + median([half for _, half in beside]) * others_s) / excess_s
        if part - error > MOST:
            return _LostTime.GPU, own[0], own[0] * late_s / (typical * others_s) - 1 if typical > 0 else None
        if part + error < 1 - MOST:
            return _LostTime.HOST, own[0], None
    return _LostTime.UNCERTAIN, 0.0, None


def _estimate(gpu: RankGpu) -> tuple[float, float] | None:
    return None if gpu.busy is None else (gpu.busy, gpu.busy_half_width)


def _lower(value: float | None, others: Iterable[float | None]) -> float | None:
    """A value as a share of the others' median, if it is lower. None if it is not, or not measured."""
    present = [each for each in others if each is not None]
    typical = median(present) if present else 0.0
    return value / typical if value is not None and typical > 0 and value < (1 - LOWER) * typical else None


def _throttled_more(late: RankGpu, others: Sequence[RankGpu]) -> str | None:
    """The reason of throttling with the largest excess over the others, if that is large enough for a cause."""
    more = {
        reason: share - median([each.throttled.get(reason, 0.0) for each in others])
        for reason, share in late.throttled.items()
    }
    reason = max(more, key=lambda each: more[each], default=None)
    return reason if reason is not None and more[reason] >= THROTTLED_MORE else None


def _busy_bounds(timeline: Timeline, starts: Ints, ends: Ints) -> tuple[float, float] | None:
    """The busy share of executions with a half-width, from all busy time between the first and the last of them.

    The time outside executions may have been busy or not. None with too few readings.
    """
    if not len(starts):
        return None
    first, last = int(starts.min()), int(ends.max())
    reached = np.maximum.accumulate(ends)
    inside = int((reached - np.maximum(starts, np.concatenate((starts[:1], reached[:-1])))).clip(0).sum())
    for signal in BUSY_SOURCES:
        column = timeline.column(signal)
        if column is None or (newest := column.last) is None or not inside:
            continue
        means, covered = column.means(np.array([first]), np.array([last]))
        if covered[0] < _COVERED * (last - first):
            return None
        busy, outside = float(means[0]) * (last - first), last - first - inside
        # The windows at both ends are longer than the executions there.
        unsure = newest.t_end_ns - newest.t_start_ns
        low, high = max(0.0, busy - outside - unsure), min(busy + unsure, inside)
        return (low + high) / 2 / inside, max(0.0, high - low) / 2 / inside
    return None


def _mean(timeline: Timeline, signal: Signal, starts: Ints, ends: Ints) -> float | None:
    """The mean of a signal over executions. None without readings."""
    column = timeline.column(signal)
    if column is None or not len(starts):
        return None
    means, covered = column.means(starts, ends)
    total = float(covered.sum())
    return float((means * covered).sum()) / total if total > 0 else None


def since(runs: Runs, rank: int, least: float) -> int | None:
    """When the rank began to exceed the others' mean by the share `least`, in ns. None: from the beginning.

    The time is cut into stretches with as many of its executions each.
    """
    if runs.ranks is None:
        return None
    own, rest = runs.ranks == rank, (runs.ranks != rank) & (runs.ranks >= 0)
    times, lengths = runs.starts_ns[own], runs.durations_s[own]
    stretches = min(_STRETCHES, len(times) // 2)
    if stretches < 2:
        return None
    late_from: int | None = None
    for part in np.array_split(np.arange(len(times)), stretches):
        beside = rest & (runs.starts_ns >= times[part[0]]) & (runs.starts_ns <= times[part[-1]])
        if not beside.any():
            continue
        if lengths[part].mean() <= (1 + least) * runs.durations_s[beside].mean():
            late_from = None
        elif late_from is None:
            late_from = int(times[part[0]])
    return late_from if late_from is not None and late_from - times[0] > 0 else None

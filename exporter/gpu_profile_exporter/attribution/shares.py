"""Memory and utilisation of each process on a device, if the driver's numbers are consistent. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from gpu_profile.catalogue.samples import ProcessUse
from gpu_profile_exporter.attribution.sources import HolderSource, OmissionCounts, OmissionReason

#: The driver reports utilisation in whole per cents and does not document how it rounds.
ROUNDING: Final = 0.01


class ProcessShare(NamedTuple):
    """Memory and utilisation (0 to 1) of a process; None is unknown. `pid` None: all processes beyond the budget."""

    pid: int | None
    memory_bytes: int | None
    utilization: float | None


def shares(
    uses: Iterable[ProcessUse], *, memory_bytes: int | None, most: int, tally: OmissionCounts
) -> Sequence[ProcessShare]:
    """The shares of a device with `memory_bytes` of memory, the largest first, at most `most` and one for the rest.

    A pid that is listed twice (as a compute and as a graphics process) counts once, with its larger numbers. If memory
    adds up to more than the device has, no process gets memory: nothing identifies the wrong number. The same applies
    to utilisation above 1 in total, unless rounding explains the excess. Such utilisation is scaled to 1.
    """
    by_pid: dict[int, ProcessShare] = {}
    for use in uses:
        now = ProcessShare(use.pid, _up_to(math.inf, use.memory_bytes, tally), _up_to(1.0, use.utilization, tally))
        before = by_pid.get(use.pid, now)
        memory = _larger(before.memory_bytes, now.memory_bytes)
        by_pid[use.pid] = ProcessShare(use.pid, memory, _larger(before.utilization, now.utilization))
    rows = sorted(by_pid.values(), key=lambda row: (-(row.memory_bytes or 0), row.pid or 0))
    if memory_bytes is not None and sum(row.memory_bytes or 0 for row in rows) > memory_bytes:
        tally[HolderSource.PROCESSES, OmissionReason.EXCEEDS_DEVICE] += 1
        rows = [row._replace(memory_bytes=None) for row in rows]
    rows = _within_one(rows, tally)
    if len(rows) <= most:
        return rows
    tally[HolderSource.PROCESSES, OmissionReason.BUDGET] += len(rows) - most
    return [*rows[:most], _together(rows[most:])]


def _within_one(rows: list[ProcessShare], tally: OmissionCounts) -> list[ProcessShare]:
    total = math.fsum(row.utilization or 0.0 for row in rows)
    if total <= 1.0:
        return rows
    largest = max(row.utilization or 0.0 for row in rows)
    if largest - largest / total > ROUNDING:
        tally[HolderSource.PROCESSES, OmissionReason.EXCEEDS_DEVICE] += 1
        return [row._replace(utilization=None) for row in rows]
    return [row if row.utilization is None else row._replace(utilization=row.utilization / total) for row in rows]


def _together(rest: Sequence[ProcessShare]) -> ProcessShare:
    """The sums of the rest. A sum with an unknown part is unknown."""
    memory = [row.memory_bytes for row in rest if row.memory_bytes is not None]
    utilization = [row.utilization for row in rest if row.utilization is not None]
    return ProcessShare(
        None,
        sum(memory) if len(memory) == len(rest) else None,
        min(1.0, math.fsum(utilization)) if len(utilization) == len(rest) else None,
    )


_Number = TypeVar("_Number", int, float)


def _up_to(most: float, value: _Number | None, tally: OmissionCounts) -> _Number | None:
    """The value if it is between 0 and `most`, otherwise None."""
    if value is None or 0 <= value <= most:
        return value
    tally[HolderSource.PROCESSES, OmissionReason.GARBAGE] += 1
    return None


def _larger(a: _Number | None, b: _Number | None) -> _Number | None:
    return b if a is None else a if b is None else max(a, b)

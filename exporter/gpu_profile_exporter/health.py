"""What is fresh, who answers, and whether the exporter itself is well.

Liveness is about this process alone: a GPU that is lost or a driver that hangs makes it not ready, never unhealthy,
because a restart would not bring either back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.signals import ECC_UNCORRECTED
from gpu_profile.device_state import DeviceState
from gpu_profile.sampler import GPM_S, SLOW_S, Sampler
from gpu_profile.samples import Sample
from gpu_profile.timeline import Column, Timeline
from gpu_profile.units import NS_PER_S, nanoseconds

#: A reading lives for this many periods of its tier, and for at least `SHORTEST_LIFE_S`.
LIFE_PERIODS: Final = 3
SHORTEST_LIFE_S: Final = 2.0
#: A driver in which the sampler has been for longer than this (or three intervals) does not answer.
STALLED_S: Final = 5.0

Status = Literal["ok", "degraded", "failed", "predicted_failure"]
STATES: Final[tuple[Status, ...]] = ("ok", "degraded", "failed", "predicted_failure")


@dataclass(frozen=True, slots=True)
class Health:
    """`alive`: this process does its work. `ready`: the driver answers; if not, `reason` says why in one line."""

    alive: bool
    ready: bool
    reason: str = ""


def lifetime_ns(row: Signal, interval_s: float) -> int:
    """How old a reading of `row` may become before it vanishes: three periods of its tier, at least 2 s."""
    tier_s = {Tier.SLOW: SLOW_S, Tier.GPM: GPM_S}.get(row.tier, 0.0)
    period_ns = max(nanoseconds(interval_s), nanoseconds(tier_s), row.refresh_ns)
    return max(LIFE_PERIODS * period_ns, nanoseconds(SHORTEST_LIFE_S))


def fresh(column: Column | None, now_ns: int, interval_s: float) -> Sample | None:
    """The column's newest reading, or None if there is none or it is too old to be repeated."""
    last = column.last if column is not None else None
    if last is None or now_ns - last.t_end_ns > lifetime_ns(last.signal, interval_s):
        return None
    return last


def newest_ns(timeline: Timeline) -> int | None:
    """The moment of the device's newest sample of any signal."""
    marks = (column.watermark_ns for column in list(timeline.columns.values()))
    return max((mark for mark in marks if mark is not None), default=None)


def stalled_s(sampler: Sampler, now_ns: int) -> float | None:
    """For how long the sampler has been waiting for the driver; None while that is no longer than usual."""
    turned_ns = sampler.stats.turned_ns
    waited_s = (now_ns - turned_ns) / NS_PER_S
    return waited_s if turned_ns and waited_s > max(STALLED_S, LIFE_PERIODS * sampler.interval_s) else None


def silence(sampler: Sampler, now_ns: int) -> str:
    """Why the driver does not answer; empty while it does."""
    waited_s = stalled_s(sampler, now_ns)
    if waited_s is not None:
        return f"the driver has not answered for {waited_s:.0f} s"
    if sampler.driver is None:
        return sampler.problem if sampler.stats.turned_ns else "the driver is being opened"
    return "" if sampler.stats.rounds else "the first reading is under way"


def health(sampler: Sampler, now_ns: int) -> Health:
    """The exporter's state."""
    if not sampler.running:
        return Health(alive=False, ready=False, reason="the sampler's thread has ended; restart the exporter")
    reason = silence(sampler, now_ns)
    return Health(alive=True, ready=not reason, reason=reason)


def down_reason(state: DeviceState, sampler: Sampler, now_ns: int) -> str:
    """Why a device does not answer; empty while it does."""
    if not state.up:
        return state.reason or "the device does not answer"
    return silence(sampler, now_ns)


def status(state: DeviceState, *, up: bool) -> Status:
    """The device's state in OpenTelemetry's words: `degraded` means memory errors that ECC could not correct."""
    if not up:
        return "failed"
    column = state.timeline.column(ECC_UNCORRECTED)
    last = column.last if column is not None else None
    return "degraded" if last is not None and last.value > 0 else "ok"

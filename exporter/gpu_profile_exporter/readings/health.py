"""What is fresh, who answers, and whether the exporter itself is well.

Liveness is about this process alone: a GPU that is lost or a driver that hangs makes it not ready, never unhealthy,
because a restart would not bring either back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Device, ProcessUse, Sample
from gpu_profile.catalogue.signals import ECC_UNCORRECTED, RECOVERY_ACTION, REMAP_FAILURE, REMAP_PENDING
from gpu_profile.sampling.rounds import GPM_S, RARE_S, SLOW_S, SamplerStats
from gpu_profile.units import NS_PER_S, nanoseconds

#: A reading lives for this many periods of its tier, and for at least `SHORTEST_LIFE_S`.
LIFE_PERIODS: Final = 3
SHORTEST_LIFE_S: Final = 2.0
#: A driver in which the sampler has been for longer than this (or three intervals) does not answer.
STALLED_S: Final = 5.0

#: Of the recovery actions (`nvmlDeviceGpuRecoveryAction_t`): reset the GPU, reboot, reset its bus, reboot the system.
_RESETS: Final = frozenset({1, 2, 6, 7})

Status = Literal["ok", "degraded", "failed", "predicted_failure"]
STATES: Final[tuple[Status, ...]] = ("ok", "degraded", "failed", "predicted_failure")


if TYPE_CHECKING:  # a timeline needs numpy, a ledger does not
    from gpu_profile.history.column import Column as TimelineColumn
    from gpu_profile.history.ledger import Ledger, SignalTotals
    from gpu_profile.history.timeline import Timeline

    #: What one signal's readings add up to, and the newest of them.
    Column = SignalTotals | TimelineColumn
    #: A device's columns by signal: in the exporter a ledger, in a program with a sampler of its own a timeline.
    Columns = Ledger | Timeline


class DeviceStatus(Protocol):
    """What is known of a device."""

    device: Device
    up: bool
    reason: str
    samples: int
    xids: Counter[int]
    last_xid: tuple[int, int] | None
    processes: tuple[ProcessUse, ...]
    processes_ns: int | None
    period_s: float

    @property
    def timeline(self) -> Columns:
        """Its signals."""
        ...


class SampleSource(Protocol):
    """What reads the devices, here or in other processes, and has what they said."""

    problem: str
    stats: SamplerStats

    @property
    def states(self) -> Mapping[str, DeviceStatus]:
        """The devices, by UUID."""
        ...

    @property
    def interval_s(self) -> float:
        """How often counters are read."""
        ...

    @property
    def driver(self) -> object | None:
        """The driver, None while none answers."""
        ...

    @property
    def running(self) -> bool:
        """Whether it is at work."""
        ...


@dataclass(frozen=True, slots=True)
class Health:
    """`alive`: this process does its work. `ready`: the driver answers; if not, `reason` says why in one line."""

    alive: bool
    ready: bool
    reason: str = ""


def lifetime_ns(row: Signal, interval_s: float) -> int:
    """How old a reading of `row` may become before it vanishes: three periods of its tier, at least 2 s."""
    tier_s = {Tier.SLOW: SLOW_S, Tier.RARE: RARE_S, Tier.GPM: GPM_S}.get(row.tier, 0.0)
    period_ns = max(nanoseconds(interval_s), nanoseconds(tier_s), row.refresh_ns)
    return max(LIFE_PERIODS * period_ns, nanoseconds(SHORTEST_LIFE_S))


def fresh(column: Column | None, now_ns: int, interval_s: float) -> Sample | None:
    """The column's newest reading, or None if there is none or it is too old to be repeated."""
    last = column.last if column is not None else None
    if last is None or now_ns - last.t_end_ns > lifetime_ns(last.signal, interval_s):
        return None
    return last


def interval_s(state: DeviceStatus, sampler: SampleSource) -> float:
    """How often counters of this device are read: a slow driver may take longer than was asked for."""
    return max(sampler.interval_s, state.period_s)


def newest_ns(timeline: Columns) -> int | None:
    """The moment of the device's newest sample of any signal."""
    columns: Mapping[Signal, Column] = timeline.columns
    marks = (column.watermark_ns for column in list(columns.values()))
    return max((mark for mark in marks if mark is not None), default=None)


def silence(sampler: SampleSource, now_ns: int) -> str:
    """Why the driver does not answer; empty while it does."""
    turned_ns = sampler.stats.turned_ns
    waited_s = (now_ns - turned_ns) / NS_PER_S
    if turned_ns and waited_s > max(STALLED_S, LIFE_PERIODS * sampler.interval_s):
        return f"the driver has not answered for {waited_s:.0f} s"
    if sampler.driver is None:
        return sampler.problem if turned_ns else "the driver is being opened"
    return "" if sampler.stats.rounds else "the first reading is under way"


def health(sampler: SampleSource, now_ns: int) -> Health:
    """The exporter's state."""
    if not sampler.running:
        return Health(alive=False, ready=False, reason="the sampler's thread has ended; restart the exporter")
    reason = silence(sampler, now_ns)
    return Health(alive=True, ready=not reason, reason=reason)


def down_reason(state: DeviceStatus, sampler: SampleSource, now_ns: int) -> str:
    """Why a device does not answer; empty while it does."""
    if not state.up:
        return state.reason or "the device does not answer"
    return silence(sampler, now_ns)


def status(state: DeviceStatus, sampler: SampleSource, now_ns: int) -> Status:
    """The device's state in OpenTelemetry's words (`hw.state`); the first of these that holds:

    - `failed`: it does not answer, or the driver asks for its reset or a reboot: until then no new work runs on it.
    - `predicted_failure`: a row of memory could not be remapped (NVIDIA's criterion for a replacement), or one waits
      for the next reset to be.
    - `degraded`: the driver asks for something milder, or ECC met errors since the driver was loaded that it could not
      correct.
    - `ok`: none of these, as far as the device tells.
    """
    if down_reason(state, sampler, now_ns):
        return "failed"

    def now(row: Signal) -> int:
        last = fresh(state.timeline.column(row), now_ns, interval_s(state, sampler))
        return 0 if last is None else last.value

    action = now(RECOVERY_ACTION)
    if action in _RESETS:
        return "failed"
    if now(REMAP_FAILURE) or now(REMAP_PENDING):
        return "predicted_failure"
    return "degraded" if action or now(ECC_UNCORRECTED) else "ok"

"""Freshness of readings, state of devices and driver, and the exporter's own health.

Liveness concerns this process alone. A lost GPU or a hanging driver makes it not ready, never unhealthy, because a
restart would recover neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Device, ProcessUse, Sample
from gpu_profile.catalogue.signals import ECC_UNCORRECTED, RECOVERY_ACTION, REMAP_FAILURE, REMAP_PENDING
from gpu_profile.sampling.periods import GPM_S, RARE_S, SLOW_S
from gpu_profile.sampling.rounds import SamplerStats
from gpu_profile.units import NS_PER_S, nanoseconds

#: A reading is valid for this many periods of its tier, and for at least `SHORTEST_LIFE_S`.
LIFE_PERIODS: Final = 3
SHORTEST_LIFE_S: Final = 2.0
#: A driver without an answer for longer than this, and than three intervals, counts as not answering.
STALLED_S: Final = 5.0

#: Recovery actions (`nvmlDeviceGpuRecoveryAction_t`): reset the GPU, reboot, reset its bus, reboot the system.
_RESETS: Final = frozenset({1, 2, 6, 7})

Status = Literal["ok", "degraded", "failed", "predicted_failure"]
STATES: Final[tuple[Status, ...]] = ("ok", "degraded", "failed", "predicted_failure")


if TYPE_CHECKING:  # a timeline needs numpy, a ledger does not
    from gpu_profile.history.column import Column as TimelineColumn
    from gpu_profile.history.ledger import Ledger, SignalTotals
    from gpu_profile.history.timeline import Timeline

    #: One signal's totals, and its newest reading.
    Column = SignalTotals | TimelineColumn
    #: A device's columns by signal: a ledger in the exporter, a timeline in a program with its own sampler.
    Columns = Ledger | Timeline


class DeviceStatus(Protocol):
    """The state of a device. `period_s`: the actual period of a slow driver, 0 if it keeps the interval.

    `spinning_ns`: the time that it was busy without movement; None if that was never decided.
    """

    device: Device
    up: bool
    reason: str
    samples: int
    xids: Counter[int]
    last_xid: tuple[int, int] | None
    processes: tuple[ProcessUse, ...]
    processes_ns: int | None
    period_s: float
    spinning_ns: int | None

    @property
    def timeline(self) -> Columns:
        """The columns of its signals."""
        ...


class SampleSource(Protocol):
    """Reads the devices, in this process or in others, and has their state."""

    problem: str
    stats: SamplerStats

    @property
    def states(self) -> Mapping[str, DeviceStatus]:
        """The devices, by UUID."""
        ...

    @property
    def interval_s(self) -> float:
        """The interval at which counters are read, in seconds."""
        ...

    @property
    def driver(self) -> object | None:
        """The driver. None while none answers."""
        ...

    @property
    def running(self) -> bool:
        """Whether its thread runs."""
        ...


@dataclass(frozen=True, slots=True)
class Health:
    """`alive`: this process works. `ready`: the driver answers. If not, `reason` is the cause, in one line."""

    alive: bool
    ready: bool
    reason: str = ""


def lifetime_ns(row: Signal, interval_s: float) -> int:
    """The age at which a reading of `row` expires, in ns: three periods of its tier, at least 2 s."""
    tier_s = {Tier.SLOW: SLOW_S, Tier.RARE: RARE_S, Tier.GPM: GPM_S}.get(row.tier, 0.0)
    period_ns = max(nanoseconds(interval_s), nanoseconds(tier_s), row.refresh_ns)
    return max(LIFE_PERIODS * period_ns, nanoseconds(SHORTEST_LIFE_S))


def fresh(column: Column | None, now_ns: int, interval_s: float) -> Sample | None:
    """The column's newest reading. None if there is none, or it has expired."""
    last = column.last if column is not None else None
    if last is None or now_ns - last.t_end_ns > lifetime_ns(last.signal, interval_s):
        return None
    return last


def interval_s(state: DeviceStatus, sampler: SampleSource) -> float:
    """The interval at which this device's counters are read, in seconds. A slow driver may exceed the setting."""
    return max(sampler.interval_s, state.period_s)


def newest_ns(timeline: Columns) -> int | None:
    """The time of the device's newest sample of any signal, in ns since the epoch. None if there is none."""
    columns: Mapping[Signal, Column] = timeline.columns
    marks = (column.watermark_ns for column in list(columns.values()))
    return max((mark for mark in marks if mark is not None), default=None)


def silence(sampler: SampleSource, now_ns: int) -> str:
    """Why the driver does not answer. Empty while it does."""
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
    """Why a device does not answer. Empty while it does."""
    if not state.up:
        return state.reason or "the device does not answer"
    return silence(sampler, now_ns)


def status(state: DeviceStatus, sampler: SampleSource, now_ns: int) -> Status:
    """The device's state in OpenTelemetry's terms (`hw.state`), the first of these that applies:

    - `failed`: it does not answer, or the driver requests a reset or a reboot, before which no new work runs on it.
    - `predicted_failure`: a row of memory could not be remapped (NVIDIA's criterion for a replacement), or a remapping
      is pending until the next reset.
    - `degraded`: the driver requests a milder action, or there were uncorrectable ECC errors since it was loaded.
    - `ok`: none of these, as far as the device reports.
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

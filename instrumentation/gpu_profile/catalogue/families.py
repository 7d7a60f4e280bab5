"""What the rows of a family of signals have in common: each function makes one row of its family."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.group import Group
from gpu_profile.catalogue.signal import Attributes, Dcgm, Kind, Signal, Tier
from gpu_profile.units import MIB, NS_PER_S

_MS: Final = 1_000_000
_SECOND: Final = 1_000 * _MS
_GPM_REFRESH: Final = 100 * _MS
#: The most that one row of a link's traffic or of an activity counter is trusted with, in B/s.
_FASTEST: Final = 1 << 42
#: Fine enough for a gauge, and coarse enough that a minute's integral stays exact.
_RATE_STEP: Final = 65_536.0


def task(key: str, task: str, call: str, dcgm: str | None, tier: Tier, brief: str, group: Group = Group.CORE) -> Signal:
    """A utilisation of one engine, in whole per cents over the driver's sample period (1/6 s to 1 s by model)."""
    return Signal(
        key,
        "hw.gpu.utilization",
        "1",
        Kind.WINDOW_MEAN,
        1e-2,
        100,
        tier,
        source=call,
        brief=brief,
        attributes=(("hw.gpu.task", task),),
        window_ns=_SECOND // 6,
        refresh_ns=_SECOND // 6,
        dcgm=Dcgm(dcgm, 100) if dcgm else None,
        group=group,
    )


def gauge(
    key: str,
    otel: str,
    unit: str,
    source: str,
    brief: str,
    *,
    group: Group,
    limit: int,
    quantum: float = 1.0,
    tier: Tier = Tier.RARE,
    attributes: Attributes = (),
    dcgm: Dcgm | None = None,
    lowest: int = 0,
    mig: bool = False,
) -> Signal:
    """A quantity as it is at the moment of the reading."""
    return Signal(
        key,
        otel,
        unit,
        Kind.INSTANT,
        quantum,
        limit,
        tier,
        source=source,
        brief=brief,
        attributes=attributes,
        dcgm=dcgm,
        mig=mig,
        group=group,
        lowest=lowest,
    )


def count(
    key: str,
    otel: str,
    unit: str,
    source: str,
    brief: str,
    *,
    group: Group,
    tier: Tier = Tier.RARE,
    attributes: Attributes = (),
    dcgm: str | None = None,
) -> Signal:
    """Events since the driver was loaded, or ever."""
    return Signal(
        key,
        otel,
        unit,
        Kind.COUNTER,
        1.0,
        1 << 40,
        tier,
        source=source,
        brief=brief,
        attributes=attributes,
        dcgm=Dcgm(dcgm) if dcgm else None,
        group=group,
    )


def flag(key: str, otel: str, source: str, brief: str, *, group: Group, dcgm: str | None = None) -> Signal:
    """1 for yes, 0 for no."""
    return gauge(key, otel, "{flag}", source, brief, group=group, limit=1, dcgm=Dcgm(dcgm) if dcgm else None)


def gpm(key: str, otel: str, metric: str, dcgm: str | None, brief: str, group: Group = Group.GPM) -> Signal:
    """A share of a ceiling that the driver computes between two of its counters' renewals."""
    return Signal(
        key,
        otel,
        "1",
        Kind.WINDOW_MEAN,
        1e-4,
        10_000,
        Tier.GPM,
        source=f"GPM {metric}",
        brief=brief,
        window_ns=_GPM_REFRESH,
        refresh_ns=_GPM_REFRESH,
        dcgm=Dcgm(dcgm) if dcgm else None,
        mig=True,
        group=group,
    )


def gpm_rate(key: str, link: str, metric: str, direction: str, dcgm: str, brief: str, group: Group) -> Signal:
    """Traffic over a link that the driver computes between two of its counters' renewals, in whole 64 KiB/s."""
    return Signal(
        key,
        f"nvidia.gpu.{link}.rate",
        "By/s",
        Kind.WINDOW_MEAN,
        _RATE_STEP,
        _FASTEST // int(_RATE_STEP),
        Tier.GPM,
        source=f"GPM {metric}",
        brief=brief,
        attributes=(("network.io.direction", direction),),
        window_ns=_GPM_REFRESH,
        refresh_ns=_GPM_REFRESH,
        dcgm=Dcgm(dcgm),
        group=group,
    )


THROTTLED: Final = "Time for which the driver held the clocks down, by reason"


def throttle(reason: str, field: str, dcgm: str | None, *, tier: Tier = Tier.FAST, group: Group = Group.CORE) -> Signal:
    """Time for which the clocks were held down for one reason, as the driver counts it."""
    return Signal(
        f"throttle_{reason}",
        "nvidia.gpu.throttle.time",
        "s",
        Kind.COUNTER,
        1e-9,
        2 * _SECOND,
        tier,
        source=f"field {field}",
        brief=THROTTLED,
        attributes=(("nvidia.gpu.throttle.reason", reason),),
        dcgm=Dcgm(dcgm, NS_PER_S) if dcgm else None,
        group=group,
    )


def throttle_seen(reason: str) -> Signal:
    """Time for which readings showed one reason: integrated here, for drivers that have no counter of it."""
    return Signal(
        f"throttle_seen_{reason}",
        "gpu_profile.throttle.time",
        "s",
        Kind.COUNTER,
        1e-9,
        2 * _SECOND,
        Tier.FAST,
        source="nvmlDeviceGetCurrentClocksEventReasons, integrated where the driver has no counter",
        brief="Time in which readings showed the clocks held down",
        attributes=(("nvidia.gpu.throttle.reason", reason),),
    )


def io(
    key: str,
    otel: str,
    field: str,
    direction: str,
    quantum: float,
    brief: str,
    *,
    group: Group,
    wraps_at: int = 0,
    tier: Tier = Tier.FAST,
    attributes: Attributes = (),
) -> Signal:
    """Bytes that a link carried in one direction, counted in `quantum` bytes."""
    return Signal(
        key,
        otel,
        "By",
        Kind.COUNTER,
        quantum,
        _FASTEST,
        tier,
        source=f"field {field}",
        brief=brief,
        attributes=(("network.io.direction", direction), *attributes),
        wraps_at=wraps_at,
        group=group,
    )


def clock(
    domain: str,
    nvml: str,
    dcgm: str | None,
    what: str,
    *,
    most: bool = False,
    group: Group = Group.CORE,
) -> Signal:
    """The clock of one domain, or the most that it can be, in whole MHz."""
    return gauge(
        f"clock_{domain}{'_max' if most else ''}",
        f"nvidia.gpu.clock{'.max' if most else ''}",
        "Hz",
        f"nvmlDeviceGet{'Max' if most else ''}ClockInfo {nvml}",
        f"{'Highest' if most else 'Current'} clock of the {what}",
        group=group,
        limit=100_000,
        quantum=1e6,
        tier=Tier.RARE if most else Tier.SLOW,
        attributes=(("nvidia.gpu.clock.domain", domain),),
        dcgm=Dcgm(dcgm, 1e-6) if dcgm else None,
    )


def memory(
    key: str, otel: str, source: str, brief: str, dcgm: str, *, group: Group = Group.CORE, mig: bool = False
) -> Signal:
    """An amount of memory, in whole MiB."""
    return gauge(
        key,
        otel,
        "By",
        source,
        brief,
        group=group,
        limit=1 << 24,
        quantum=float(MIB),
        tier=Tier.SLOW if group is Group.CORE else Tier.RARE,
        dcgm=Dcgm(dcgm, 1 / MIB),
        mig=mig,
    )


def power(key: str, otel: str, source: str, brief: str, window_ns: int, *, group: Group, dcgm: str | None) -> Signal:
    """Power draw over the driver's window, in mW."""
    return Signal(
        key,
        otel,
        "W",
        Kind.WINDOW_MEAN,
        1e-3,
        4_000_000,
        Tier.FAST if group is Group.CORE else Tier.SLOW,
        source=source,
        brief=brief,
        window_ns=window_ns,
        refresh_ns=100 * _MS,
        dcgm=Dcgm(dcgm) if dcgm else None,
        group=group,
    )


def power_limit(
    key: str, otel: str, source: str, brief: str, dcgm: str, *, group: Group = Group.LIMITS, tier: Tier = Tier.RARE
) -> Signal:
    """A limit of the power draw, in mW."""
    return gauge(key, otel, "W", source, brief, group=group, limit=4_000_000, quantum=1e-3, tier=tier, dcgm=Dcgm(dcgm))

"""What the rows of a family of signals have in common: each function makes one row of its family."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.signal import Dcgm, Kind, Signal, Tier

_MS: Final = 1_000_000
_SECOND: Final = 1_000 * _MS
_GPM_REFRESH: Final = 100 * _MS


def task(key: str, task: str, call: str, dcgm: str, tier: Tier, brief: str) -> Signal:
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
        dcgm=Dcgm(dcgm, 100),
    )


def gpm(key: str, otel: str, metric: str, dcgm: str | None, brief: str) -> Signal:
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
    )


def throttle(reason: str, field: str, brief: str) -> Signal:
    """Time for which the clocks were held down for one reason."""
    return Signal(
        f"throttle_{reason}",
        "nvidia.gpu.throttle.time",
        "s",
        Kind.COUNTER,
        1e-9,
        2 * _SECOND,
        Tier.FAST,
        source=f"field {field}",
        brief=brief,
        attributes=(("nvidia.gpu.throttle.reason", reason),),
    )


def io(key: str, otel: str, field: str, direction: str, quantum: float, brief: str, *, wraps_at: int = 0) -> Signal:
    """Bytes that a link carried in one direction, counted in `quantum` bytes."""
    return Signal(
        key,
        otel,
        "By",
        Kind.COUNTER,
        quantum,
        1 << 42,
        Tier.FAST,
        source=f"field {field}",
        brief=brief,
        attributes=(("network.io.direction", direction),),
        wraps_at=wraps_at,
    )


def clock(key: str, domain: str, dcgm: str, what: str) -> Signal:
    """The clock of one domain, in whole MHz."""
    return Signal(
        key,
        "nvidia.gpu.clock",
        "Hz",
        Kind.INSTANT,
        1e6,
        100_000,
        Tier.SLOW,
        source=f"nvmlDeviceGetClockInfo {domain.upper()}",
        brief=f"Current clock of the {what}",
        attributes=(("nvidia.gpu.clock.domain", domain),),
        dcgm=Dcgm(dcgm, 1e-6),
    )

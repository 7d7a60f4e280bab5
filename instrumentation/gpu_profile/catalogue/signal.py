"""A row of the signal table: its fields and their checks."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Final

from gpu_profile.catalogue.group import Group
from gpu_profile.units import NS_PER_S, PROMETHEUS_SUFFIX

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")

#: OpenTelemetry attributes that are fixed for a row, in a stable order.
Attributes = tuple[tuple[str, str], ...]


class Kind(StrEnum):
    """How a signal's values relate to time."""

    COUNTER = "counter"
    WINDOW_MEAN = "window mean"
    INSTANT = "instant"


class Tier(StrEnum):
    """The rate at which a signal is read, by the cost of a read to the driver."""

    FAST = "fast"
    SLOW = "slow"
    #: Signals that hardly ever change, or cost much to read.
    RARE = "rare"
    #: Counters that the driver computes between two samples that one thread takes at least 100 ms apart.
    GPM = "gpm"


@dataclass(frozen=True, slots=True)
class Dcgm:
    """The metric of dcgm-exporter for the same quantity. Its value is the signal's in base units times `scale`."""

    name: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """A quantity of a device. `source` is the NVML query, `brief` the description.

    Columns store whole quanta: `value * quantum` is the value in `unit` (a UCUM base unit). `limit` is the highest
    plausible value in quanta (for a counter: its growth in a second). It proves that sums do not overflow. `lowest` is
    the lowest plausible value.
    `wraps_at` is the value at which a counter restarts at 0 by itself; 0 if only a reload of the driver resets it.
    `window_ns` is the length of a reading's window, `refresh_ns` the period of the driver's renewals. Both are nominal:
    the stamps of a driver that time-stamps its readings take precedence.
    """

    key: str
    otel: str
    source: str
    brief: str
    #: The name of dcgm-exporter's metric, or an empty string; `dcgm_scale` is `Dcgm.scale`.
    dcgm_name: str = ""
    _: KW_ONLY
    unit: str
    kind: Kind
    quantum: float
    limit: int
    tier: Tier
    attributes: Attributes = ()
    window_ns: int = 0
    refresh_ns: int = 0
    wraps_at: int = 0
    dcgm_scale: float = 1.0
    mig: bool = False
    group: Group = Group.CORE
    lowest: int = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.otel):
            raise ValueError(f"{self.key}: not an OpenTelemetry name: {self.otel!r}")
        if self.unit not in PROMETHEUS_SUFFIX and not self.unit.startswith("{"):
            raise ValueError(f"{self.key}: unknown unit {self.unit!r}")
        if not self.brief or self.brief.endswith("."):
            raise ValueError(f"{self.key}: the brief must be a phrase without a full stop")
        if self.limit <= 0 or self.quantum <= 0:
            raise ValueError(f"{self.key}: quantum and limit must be positive")
        if not -self.limit <= self.lowest < self.limit:
            raise ValueError(f"{self.key}: the lowest plausible value must lie between the limit and its negative")

    @property
    def dcgm(self) -> Dcgm | None:
        """The metric of dcgm-exporter, None if it has none."""
        return Dcgm(self.dcgm_name, self.dcgm_scale) if self.dcgm_name else None

    def base(self, quanta: float) -> float:
        """`quanta` in the row's base unit."""
        return quanta * self.quantum

    def quanta(self, base: float) -> int:
        """A value in the base unit as whole quanta."""
        return round(base / self.quantum)

    @property
    def longest_exact_ns(self) -> int:
        """The longest interval whose integral provably stays below 2^62 quanta·ns."""
        bound = 1 if self.kind is Kind.COUNTER else NS_PER_S
        return max(1, (1 << 62) // self.limit * NS_PER_S // bound)

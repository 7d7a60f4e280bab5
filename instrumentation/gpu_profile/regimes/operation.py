"""The work of one operation and its distance from the machine's ceilings; and the operations of a region. Pure.

A profiler that times an operation inside a region sets `execution.operation` before the region ends. From there it
reaches the execution's span, the region's metrics and the recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpu_profile.catalogue import attributes as names
from gpu_profile.regimes.evidence import Evidence
from gpu_profile.units import NS_PER_S, percent

AttributeValue = str | int | float

#: Operations with a smaller share of a region's time are no evidence: the rest of the region decides.
LEAST_SHARE: Final = 0.5
#: Attributes of spans are 64 bits wide. A larger value would lose its whole batch.
_LARGEST: Final = (1 << 63) - 1
_UNMEASURED: Final = "the operation's launch overhead was not measured"

#: Fields of an operation and the attributes that publish them; `intensity` follows from two others.
_ATTRIBUTES: Final[Mapping[str, names.Attribute]] = {
    "flops": names.OPERATION_FLOPS,
    "at_least": names.OPERATION_AT_LEAST,
    "bytes": names.OPERATION_BYTES,
    "precision": names.OPERATION_PRECISION,
    "compute": names.OPERATION_COMPUTE,
    "ceiling": names.OPERATION_CEILING,
    "memory": names.OPERATION_MEMORY,
    "overhead": names.OPERATION_OVERHEAD,
    "intensity": names.OPERATION_INTENSITY,
    "growth": names.OPERATION_GROWTH,
    "n": names.OPERATION_N,
    "certainty": names.OPERATION_CERTAINTY,
    "reason": names.OPERATION_REASON,
}


@dataclass(frozen=True, slots=True)
class RegionOperation:
    """One operation within one execution of a region. None: unknown, with `reason`.

    `flops` and `bytes` are those of the whole execution, over all runs of the operation. `at_least` are the countable
    FLOPs if `flops` is None; `compute` is then a lower bound. `precision` names the format of the arithmetic as in data
    sheets, empty if unknown. `compute` and `memory` are the reached shares of the ceilings over the whole time,
    overhead included. `overhead` is the share of the time for launching. `growth` is the extra time of twice the size,
    as a share of the time of once. `ceiling` is the compute ceiling of its precisions in FLOP/s. `n` is the number of
    timed runs. `certainty` reduces the confidence of a verdict if
    the ceilings are uncertain.
    """

    flops: int | None = None
    bytes: int | None = None
    precision: str = ""
    compute: float | None = None
    memory: float | None = None
    overhead: float | None = None
    growth: float | None = None
    n: int = 1
    reason: str = ""
    at_least: int | None = None
    certainty: float | None = None
    ceiling: float | None = None

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; None if either is unknown or no byte is moved."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    def evidence(self) -> Evidence:
        """The evidence on this execution: its shares, with `busy` as 1 less `overhead`."""
        busy = None if self.overhead is None else 1.0 - self.overhead
        values = {"busy": busy, "compute": self.compute, "memory": self.memory, "growth": self.growth}
        shares = {key: value for key, value in values.items() if value is not None}
        reason = self.reason or ("" if "busy" in shares else _UNMEASURED)
        return Evidence("operation", shares, self.n, 1.0 if self.certainty is None else self.certainty, reason=reason)

    def attributes(self) -> dict[str, AttributeValue]:
        """The attributes of a span; unknown values are absent."""
        values = {row.name: getattr(self, field) for field, row in _ATTRIBUTES.items()}
        return {name: value for name, value in values.items() if value not in (None, "") and _fits(value)}

    @staticmethod
    def of_attributes(attributes: Mapping[str, Any]) -> RegionOperation | None:
        """The reverse, from any attributes. None if they are of no operation, or one is impossible."""
        if names.OPERATION_N.name not in attributes:
            return None
        try:
            values = {field: row.of(attributes) for field, row in _ATTRIBUTES.items() if field != "intensity"}
            return RegionOperation(**{field: value for field, value in values.items() if value is not None})
        except (TypeError, OverflowError):
            return None


def _fits(value: AttributeValue) -> bool:
    return not isinstance(value, int) or value <= _LARGEST


class RegionOperations:
    """Sums over the operations of one region. None: no execution has a value.

    `precision` is empty if they differ, or none has one. `reason` is the newest reason for an unknown value. `whole_ns`
    is the time of all the region's executions, with an operation or without.
    """

    __slots__ = ("_partial", "_precisions", "_sums", "bytes", "counted", "n", "reason", "whole_ns")

    def __init__(self) -> None:
        #: The counted FLOPs, and whether an execution could be counted only in part.
        self.counted: int | None = None
        self._partial = False
        self.bytes: int | None = None
        self.n = 0
        self.reason = ""
        self.whole_ns = 0
        self._precisions: set[str] = set()
        #: By key: the sum of its values, and the time of the executions with a value. Shares are sums over time, so
        #: that longer executions count more.
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, operation: RegionOperation, ns: int) -> None:
        """Add an execution that took `ns`."""
        ns = max(1, ns)  # a clock with coarse steps must not make it count for nothing
        self.n += operation.n
        self.reason = operation.reason or self.reason
        if operation.precision and len(self._precisions) < 2:
            self._precisions.add(operation.precision)
        counted = operation.at_least if operation.flops is None else operation.flops
        if counted is not None:
            self.counted = (self.counted or 0) + counted
            self._partial = self._partial or operation.flops is None
        if operation.flops is not None:
            self._sum("flops", operation.flops, ns)
            if operation.ceiling is not None and operation.ceiling > 0:
                self._sum("below", operation.flops, ns)
                self._sum("least_s", operation.flops / operation.ceiling, ns)
        if operation.bytes is not None:
            self.bytes = (self.bytes or 0) + operation.bytes
            self._sum("bytes", operation.bytes, ns)
        if operation.intensity is not None:
            self._sum("both", 0.0, ns)
        if operation.overhead is not None:
            evidence = operation.evidence()
            for key, value in {**evidence.values, "certainty": evidence.coverage}.items():
                self._sum(key, value * ns, ns)

    def _sum(self, key: str, value: float, ns: int) -> None:
        total, time_ns = self._sums.get(key, (0.0, 0))
        self._sums[key] = total + value, time_ns + ns

    @property
    def flops(self) -> int | None:
        """FLOPs of the executions with a count; None if one of them could be counted only in part."""
        return None if self._partial else self.counted

    @property
    def at_least(self) -> int | None:
        """The counted FLOPs if one of the executions could be counted only in part, else None."""
        return self.counted if self._partial else None

    @property
    def precision(self) -> str:
        """The format of all of their arithmetic."""
        return next(iter(self._precisions)) if len(self._precisions) == 1 else ""

    @property
    def flops_per_s(self) -> float | None:
        """FLOPs per second of the executions with a count."""
        return self._per_s("flops")

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes per second of the executions with a count."""
        return self._per_s("bytes")

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; None unless the same executions have both."""
        (flops, flops_ns), (moved, bytes_ns), (_, both_ns) = (
            self._sums.get(key, (0.0, 0)) for key in ("flops", "bytes", "both")
        )
        return flops / moved if moved and flops_ns == bytes_ns == both_ns else None

    @property
    def ceiling(self) -> float | None:
        """The compute ceiling in FLOP/s of the executions with one: their FLOPs over the least time for these."""
        flops, _ = self._sums.get("below", (0.0, 0))
        least_s, _ = self._sums.get("least_s", (0.0, 0))
        return flops / least_s if least_s else None

    @property
    def utilization(self) -> float | None:
        """The FLOPs over those that the ceiling allows in the same executions' whole time (MFU)."""
        least_s, ns = self._sums.get("least_s", (0.0, 0))
        return least_s * NS_PER_S / ns if least_s else None

    def _per_s(self, key: str) -> float | None:
        total, ns = self._sums.get(key, (0.0, 0))
        return total * NS_PER_S / ns if ns else None

    def evidence(self) -> Evidence:
        """The evidence on the region: means over time, and the share of its time that they cover."""
        _, ns = self._sums.get("busy", (0.0, 0))
        if not ns:
            return Evidence("operation", {}, self.n, 0.0, reason=self.reason or _UNMEASURED)
        share = min(1.0, ns / max(ns, self.whole_ns))
        if share < LEAST_SHARE:
            reason = f"its operations were measured for {percent(share)} of its time only"
            return Evidence("operation", {}, self.n, share, reason=reason)
        keys = ("busy", "compute", "memory", "growth")
        means = {key: total / weight for key in keys for total, weight in [self._sums.get(key, (0.0, 0))] if weight}
        certainty = self._sums["certainty"][0] / ns
        return Evidence("operation", means, self.n, share * certainty, reason=self.reason)

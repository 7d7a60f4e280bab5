"""What one operation did, and how near it came to its machine's ceilings; and what a region's operations did. Pure.

Whoever times an operation inside a region sets `execution.operation` before the region ends. From then on it is part
of what the execution's span, the region's metrics and the recording say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpu_profile.catalogue import attributes as names
from gpu_profile.regimes.evidence import Evidence
from gpu_profile.units import NS_PER_S, percent

AttributeValue = str | int | float

#: Of a region that they are a smaller part of, operations say nothing: what it does otherwise decides.
LEAST_SHARE: Final = 0.5
#: Attributes of spans are 64 bits wide; a larger one would cost its whole batch.
_LARGEST: Final = (1 << 63) - 1
_UNMEASURED: Final = "the operation's launch overhead was not measured"

#: Fields of an operation and the attributes that publish them; `intensity` follows from two others.
_ATTRIBUTES: Final[Mapping[str, names.Attribute]] = {
    "flops": names.OPERATION_FLOPS,
    "at_least": names.OPERATION_AT_LEAST,
    "bytes": names.OPERATION_BYTES,
    "precision": names.OPERATION_PRECISION,
    "compute": names.OPERATION_COMPUTE,
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
    """One operation, as it ran within one execution of a region. None: not known; `reason` says why.

    `flops` and `bytes` are what the whole execution did, however often it ran the operation; `at_least` the FLOPs of
    the part that could be counted, where `flops` is None. `compute` is then a lower bound. `precision` names the
    format of the arithmetic as data sheets do, empty if it is not known. `compute` and `memory` are shares of the
    ceilings that were reached over the whole time, overhead included. `overhead` is the share of the time that went
    into launching. `growth` is how much longer twice the size takes, as a share of the time of once. `n` timed runs
    stand behind all of it. `certainty` cuts the confidence of a verdict where the ceilings are uncertain.
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

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; None if either is unknown or no byte is moved."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    def evidence(self) -> Evidence:
        """What a verdict on this execution rests on: its shares, `busy` being 1 less `overhead`."""
        busy = None if self.overhead is None else 1.0 - self.overhead
        values = {"busy": busy, "compute": self.compute, "memory": self.memory, "growth": self.growth}
        known = {key: value for key, value in values.items() if value is not None}
        reason = self.reason or ("" if "busy" in known else _UNMEASURED)
        return Evidence("operation", known, self.n, 1.0 if self.certainty is None else self.certainty, reason=reason)

    def attributes(self) -> dict[str, AttributeValue]:
        """As attributes of a span; what is not known is absent."""
        values = {row.name: getattr(self, field) for field, row in _ATTRIBUTES.items()}
        return {name: value for name, value in values.items() if value not in (None, "") and _fits(value)}

    @staticmethod
    def of_attributes(found: Mapping[str, Any]) -> RegionOperation | None:
        """The reverse, from any attributes; None if they are of no operation, or one of them cannot be its."""
        if names.OPERATION_N.name not in found:
            return None
        try:
            values = {field: row.of(found) for field, row in _ATTRIBUTES.items() if field != "intensity"}
            return RegionOperation(**{field: value for field, value in values.items() if value is not None})
        except (TypeError, OverflowError):
            return None


def _fits(value: AttributeValue) -> bool:
    return not isinstance(value, int) or value <= _LARGEST


class RegionOperations:
    """What the operations of one region did in all. None: no execution told.

    `precision` is empty if they differ, or none told; `reason` the newest word on what is not known. `whole_ns` is the
    time of all the region's executions, with an operation or without.
    """

    __slots__ = ("_partial", "_precisions", "_sums", "bytes", "counted", "n", "reason", "whole_ns")

    def __init__(self) -> None:
        #: FLOPs that were counted, and whether one of the executions could only be counted in part.
        self.counted: int | None = None
        self._partial = False
        self.bytes: int | None = None
        self.n = 0
        self.reason = ""
        self.whole_ns = 0
        self._precisions: set[str] = set()
        #: By what was told: the sum of its values, and the time of the executions that told it. Shares are sums over
        #: time, as those who did most count most.
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, operation: RegionOperation, ns: int) -> None:
        """Add an execution that took so long."""
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
        """FLOPs of the executions that tell them; None if one of them could only be counted in part."""
        return None if self._partial else self.counted

    @property
    def at_least(self) -> int | None:
        """FLOPs that were counted, where one of the executions could only be counted in part."""
        return self.counted if self._partial else None

    @property
    def precision(self) -> str:
        """The format of all of their arithmetic."""
        return next(iter(self._precisions)) if len(self._precisions) == 1 else ""

    @property
    def flops_per_s(self) -> float | None:
        """FLOPs per second of the executions that tell them."""
        return self._per_s("flops")

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes per second of the executions that tell them."""
        return self._per_s("bytes")

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; None unless the same executions tell both."""
        (flops, flops_ns), (moved, bytes_ns), (_, both_ns) = (
            self._sums.get(key, (0.0, 0)) for key in ("flops", "bytes", "both")
        )
        return flops / moved if moved and flops_ns == bytes_ns == both_ns else None

    def _per_s(self, key: str) -> float | None:
        total, ns = self._sums.get(key, (0.0, 0))
        return total * NS_PER_S / ns if ns else None

    def evidence(self) -> Evidence:
        """What a verdict on the region rests on: means over time, and the share of its time that they are of."""
        _, ns = self._sums.get("busy", (0.0, 0))
        if not ns:
            return Evidence("operation", {}, self.n, 0.0, reason=self.reason or _UNMEASURED)
        share = min(1.0, ns / max(ns, self.whole_ns))
        if share < LEAST_SHARE:
            reason = f"its operations were measured for {percent(share)} of its time only"
            return Evidence("operation", {}, self.n, share, reason=reason)
        keys = ("busy", "compute", "memory", "growth")
        means = {key: total / known for key in keys for total, known in [self._sums.get(key, (0.0, 0))] if known}
        certainty = self._sums["certainty"][0] / ns
        return Evidence("operation", means, self.n, share * certainty, reason=self.reason)

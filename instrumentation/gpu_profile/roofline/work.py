"""How much an operation has to do: floating-point operations and bytes, and how they became known. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from gpu_profile.roofline.precision import Precision

#: No operation does more; more would not fit into what records and exports it.
MOST: Final = (1 << 63) - 1

#: `given` by the caller; `meta`: counted on tensors without data, nothing was run; `counted` while it ran; `formula`:
#: registered for this function.
Method = Literal["given", "meta", "counted", "formula"]


@dataclass(frozen=True, slots=True)
class Work:
    """What one call of an operation does. What is not known is None, and `reasons` says why.

    `flops`: floating-point operations, a multiplication and an addition being two. `bytes`: each input read once and
    each output written once, per operation; what stays in registers or caches between two operations counts as moved.
    `by_precision` parts `flops` by the format of the arithmetic; what has no ceiling of its own is in none of them.
    `operations`: how many were counted, views left out; each is at least one launch on a GPU.
    `unknown`: operations without a formula and how often each ran: their bytes are counted, their FLOPs are not.
    `working_set`: bytes of all distinct memory that is touched. `largest`: the most that one operation touches.
    `counting_s`: what counting cost within the call; 0 if it was done beside it.
    """

    flops: int | None = None
    bytes: int | None = None
    by_precision: Mapping[Precision, int] = field(default_factory=dict)
    operations: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)
    working_set: int | None = None
    largest: int | None = None
    method: Method | None = None
    counting_s: float = 0.0
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def coverage(self) -> float | None:
        """Share of the operations that have a formula for FLOPs; None if none was counted."""
        return 1.0 - sum(self.unknown.values()) / self.operations if self.operations else None

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; None if either is unknown or no byte is moved."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    @property
    def precision(self) -> Precision | None:
        """The format that most FLOPs are in; None if no FLOPs are known."""
        return max(self.by_precision, key=lambda each: self.by_precision[each], default=None)


def unknown_work(reason: str, *, method: Method | None = None) -> Work:
    """Work of which neither FLOPs nor bytes are known."""
    return Work(method=method, reasons={"flops": reason, "bytes": reason})

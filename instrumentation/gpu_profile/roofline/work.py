"""How much an operation has to do: floating-point operations and bytes, and how they became known. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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

    `flops`: floating-point operations, a multiplication and an addition being two. `at_least`: those of the part that
    has formulas, where `flops` is None because another part has none. `bytes`: each input read once and each output
    written once, per operation; what stays in registers or caches between two operations counts as moved.
    `by_precision` parts them by the format of the arithmetic; what has no ceiling of its own is in none of them.
    `operations`: how many were counted, views left out; each is at least one launch on a GPU.
    `unknown`: operations without a formula and how often each ran: their bytes are counted, their FLOPs are not.
    `unknown_bytes`: how many these are.
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
    at_least: int | None = None
    unknown_bytes: int = 0

    @property
    def coverage(self) -> float | None:
        """Share of the bytes that is moved by operations with a formula for FLOPs; None if nothing was counted."""
        if not self.operations or self.bytes is None:
            return None
        return 1.0 - self.unknown_bytes / self.bytes if self.bytes else float(not self.unknown)

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; None if either is unknown or no byte is moved."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    @property
    def precision(self) -> Precision | None:
        """The format that most FLOPs are in; None if no FLOPs are known, or only those of a part."""
        return (
            None
            if self.flops is None
            else max(self.by_precision, key=lambda each: self.by_precision[each], default=None)
        )


def unknown_work(reason: str, *, method: Method | None = None) -> Work:
    """Work of which neither FLOPs nor bytes are known."""
    return Work(method=method, reasons={"flops": reason, "bytes": reason})


#: Of a part that does nothing itself.
NOTHING: Final = Work(flops=0, bytes=0)


def added(works: Iterable[tuple[Work, int]]) -> Work:
    """Several works, each so many times, one after the other; FLOPs and bytes are known if all of theirs are.

    The distinct memory that they touch together is not known, unless it is one work, once.
    """
    each = [(work, times) for work, times in works if times]
    if len(each) == 1 and each[0][1] == 1:
        return each[0][0]
    reasons: dict[str, str] = {}
    precisions: Counter[Precision] = Counter()
    unknown: Counter[str] = Counter()
    for work, times in each:
        reasons = {**work.reasons, **reasons}
        precisions.update({name: flops * times for name, flops in work.by_precision.items()})
        unknown.update({name: count * times for name, count in work.unknown.items()})
    flops = _sum([None if work.flops is None else work.flops * times for work, times in each])
    known = sum(((work.at_least if work.flops is None else work.flops) or 0) * times for work, times in each)
    return Work(
        flops=flops,
        at_least=known if flops is None and known else None,
        bytes=_sum([None if work.bytes is None else work.bytes * times for work, times in each]),
        by_precision=dict(precisions),
        operations=sum(work.operations * times for work, times in each),
        unknown=dict(unknown),
        unknown_bytes=sum(work.unknown_bytes * times for work, times in each),
        largest=max((work.largest for work, _ in each if work.largest is not None), default=None),
        method=next((work.method for work, _ in each if work.method is not None), None),
        counting_s=sum(work.counting_s * times for work, times in each),
        reasons=reasons,
    )


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None

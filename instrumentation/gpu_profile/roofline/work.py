"""The work of an operation: its floating-point operations and bytes, and how they were determined. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from gpu_profile.roofline.precision import Precision

#: The limit of FLOPs and of bytes: recordings and span attributes have signed 64-bit integers.
MOST: Final = (1 << 63) - 1

#: `given`: by the caller. `meta`: counted on tensors without data, without running the function. `counted`: while the
#: function ran. `formula`: from the formula that is registered for this function.
Method = Literal["given", "meta", "counted", "formula"]


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one call of an operation. A value that was not determined is None, with the cause in `reasons`.

    `flops`: floating-point operations; a multiplication and an addition are two. `at_least`: if `flops` is None because
    some operations have no formula, the FLOPs of the others. `bytes`: each input read once and each output written
    once, per operation; data that stays in registers or caches between two operations counts as moved.
    `by_precision`: FLOPs by format of the arithmetic; a format without a ceiling of its own is absent.
    `operations`: number of operations counted, without views; each is at least one launch on a GPU.
    `unknown`: operations without a formula -> number of runs: their bytes are counted, their FLOPs are not.
    `unknown_bytes`: the bytes of these operations.
    `working_set`: bytes of all distinct memory touched. `largest`: the most bytes that one operation touches.
    `counting_s`: seconds that counting took within the call; 0 if it was counted outside of the call.
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
        """Share of the bytes that operations with a FLOP formula move. None if nothing was counted."""
        if not self.operations or self.bytes is None:
            return None
        return 1.0 - self.unknown_bytes / self.bytes if self.bytes else float(not self.unknown)

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte. None if either is unknown or no byte is moved."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    @property
    def precision(self) -> Precision | None:
        """The format of most FLOPs. None if `flops` is None or no FLOP has such a format."""
        return (
            None
            if self.flops is None
            else max(self.by_precision, key=lambda each: self.by_precision[each], default=None)
        )


def unknown_work(reason: str, *, method: Method | None = None) -> Work:
    """Work with unknown FLOPs and bytes, both for `reason`."""
    return Work(method=method, reasons={"flops": reason, "bytes": reason})


#: The work of a part that does nothing itself.
NOTHING: Final = Work(flops=0, bytes=0)


def added(works: Iterable[tuple[Work, int]]) -> Work:
    """The sum of `(work, times)` pairs that run one after the other. FLOPs are None if any of theirs are; so are bytes.

    The distinct memory that they touch together is unknown, except for a single work that runs once.
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
    at_least = sum(((work.at_least if work.flops is None else work.flops) or 0) * times for work, times in each)
    return Work(
        flops=flops,
        at_least=at_least if flops is None and at_least else None,
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
    counts = [value for value in values if value is not None]
    return sum(counts) if len(counts) == len(values) else None

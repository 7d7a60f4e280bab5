"""Works added up and taken apart. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from gpu_profile.roofline.precision import Precision
from gpu_profile.roofline.work import Work

K = TypeVar("K")

#: Of a part that does nothing itself.
NOTHING = Work(flops=0, bytes=0)


def added(works: Iterable[tuple[Work, int]]) -> Work:
    """Several works, each so many times, one after the other; FLOPs and bytes are known if all of theirs are.

    The distinct memory that they touch together is not known, unless it is one work, once.
    """
    each = [(work, times) for work, times in works if times]
    if len(each) == 1 and each[0][1] == 1:
        return each[0][0]
    reasons: dict[str, str] = {}
    for work, _ in each:
        for name, reason in work.reasons.items():
            reasons.setdefault(name, reason)
    precisions: Counter[Precision] = Counter()
    unknown: Counter[str] = Counter()
    for work, times in each:
        precisions.update({name: flops * times for name, flops in work.by_precision.items()})
        unknown.update({name: count * times for name, count in work.unknown.items()})
    flops = _sum((work.flops, times) for work, times in each)
    moved = _sum((work.bytes, times) for work, times in each)
    return Work(
        flops=flops,
        bytes=moved,
        by_precision={} if flops is None else dict(precisions),
        operations=sum(work.operations * times for work, times in each),
        unknown=dict(unknown),
        largest=max((work.largest for work, _ in each if work.largest is not None), default=None),
        method=next((work.method for work, _ in each if work.method is not None), None),
        counting_s=sum(work.counting_s * times for work, times in each),
        reasons=reasons,
    )


def less(whole: Work, inner: Work) -> Work:
    """What of `whole` is not in `inner`, which is a part of it. Unknown where either is."""
    if not inner.operations and inner.flops is not None and inner.bytes is not None:
        return whole
    reasons = {name: f"of a module inside of it: {reason}" for name, reason in inner.reasons.items()} | dict(
        whole.reasons
    )
    flops = None if whole.flops is None or inner.flops is None else max(0, whole.flops - inner.flops)
    moved = None if whole.bytes is None or inner.bytes is None else max(0, whole.bytes - inner.bytes)
    return Work(
        flops=flops,
        bytes=moved,
        by_precision={} if flops is None else _difference(whole.by_precision, inner.by_precision),
        operations=max(0, whole.operations - inner.operations),
        unknown=_difference(whole.unknown, inner.unknown),
        method=whole.method,
        reasons=reasons,
    )


def _sum(values: Iterable[tuple[int | None, int]]) -> int | None:
    total = 0
    for value, times in values:
        if value is None:
            return None
        total += value * times
    return total


def _difference(whole: Mapping[K, int], inner: Mapping[K, int]) -> dict[K, int]:
    return {name: left for name, count in whole.items() if (left := count - inner.get(name, 0)) > 0}

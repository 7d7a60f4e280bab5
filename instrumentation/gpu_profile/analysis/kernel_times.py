"""The kernel time of each execution that a profiler saw, by kernel, without the executions inside it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from gpu_profile.history.timeline import Ints
from gpu_profile.recording import SpanRecord
from gpu_profile.regimes.kernel_work import KernelWork
from gpu_profile.report.table import printable

#: The frame of kernels that the recording has no name for: it names the longest ones of each execution.
OTHERS: Final = "(other kernels)"


def kernel_times(spans: Sequence[SpanRecord], around: Ints) -> Counter[tuple[int, str]]:
    """By execution (its index) and kernel: the sum of durations, in ns.

    A record sums up an execution with the ones inside it. Their kernels are subtracted. If some of theirs have no names
    in the recording, the rest of the outer one has no names either.
    """
    works = {key: work for key, span in enumerate(spans) if (work := KernelWork.of_attributes(span.attributes))}
    inside: dict[int, list[KernelWork]] = {}
    for key, work in works.items():
        outer = int(around[key])
        while outer >= 0 and outer not in works:
            outer = int(around[outer])
        inside.setdefault(outer, []).append(work)
    times: Counter[tuple[int, str]] = Counter()
    for key, work in works.items():
        inner = inside.get(key, [])
        left = max(0, work.kernel_ns - sum(each.kernel_ns for each in inner))
        named = Counter[str]()
        if all(_named(each).total() >= each.kernel_ns for each in inner):
            named = _named(work)
            for each in inner:
                named.subtract(_named(each))
        for name, ns in named.most_common():
            part = min(left, max(0, ns))
            if part:
                times[key, name] += part
            left -= part
        if left:
            times[key, OTHERS] += left
    return times


def _named(work: KernelWork) -> Counter[str]:
    names: Counter[str] = Counter()
    for name, _, ns in work.top:
        names[printable(name) or OTHERS] += ns
    return names

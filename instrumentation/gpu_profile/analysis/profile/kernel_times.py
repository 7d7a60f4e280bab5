"""The kernel time of each execution that a profiler saw, by kernel, without the executions inside it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpu_profile.catalogue.attributes import KERNELS_N
from gpu_profile.history.timeline import Ints
from gpu_profile.recording import SpanRecord
from gpu_profile.regimes.kernel_work import KernelWork
from gpu_profile.report.table import printable

#: The frame of kernels that the recording has no name for: it names the longest ones of each execution.
OTHERS: Final = "(other kernels)"


@dataclass(slots=True)
class _Inner:
    """Sums of the executions inside one. `whole`: every kernel of them has a name."""

    kernel_ns: int = 0
    whole: bool = True
    named: Counter[str] = field(default_factory=Counter)

    def add(self, other: _Inner) -> None:
        self.kernel_ns += other.kernel_ns
        self.whole = self.whole and other.whole
        self.named.update(other.named)


def kernel_times(spans: Sequence[SpanRecord], around: Ints) -> Iterator[tuple[int, Counter[str]]]:
    """Executions (their index) and the durations of their kernels by name, in ns. The last execution comes first.

    A record sums up an execution with the ones inside it. Their kernels are subtracted. If some of theirs have no names
    in the recording, the rest of the outer one has no names either. `around` has the index of the execution around
    each, which is lower; -1 for none.
    """
    inside: dict[int, _Inner] = {}
    for key in range(len(spans) - 1, -1, -1):
        attributes = spans[key].attributes
        if key not in inside and KERNELS_N.name not in attributes:
            continue
        inner = inside.pop(key, _Inner())
        work = KernelWork.of_attributes(attributes)
        whole = inner
        if work is not None:
            named: Counter[str] = Counter()
            for name, _, ns in work.top:
                named[printable(name) or OTHERS] += ns
            whole = _Inner(work.kernel_ns, named.total() >= work.kernel_ns, named)
            if own := _own(whole, inner):
                yield key, own
        if (outer := int(around[key])) >= 0:
            inside.setdefault(outer, _Inner()).add(whole)


def _own(whole: _Inner, inner: _Inner) -> Counter[str]:
    """The kernels of an execution without the ones inside it."""
    left = max(0, whole.kernel_ns - inner.kernel_ns)
    own: Counter[str] = Counter()
    for name, ns in whole.named.most_common() if inner.whole else ():
        own[name] = min(left, max(0, ns - inner.named[name]))
        left -= own[name]
    own[OTHERS] += left
    return +own

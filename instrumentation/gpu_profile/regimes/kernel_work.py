"""A profiler's records of one execution of a region, and of all profiled executions of a region. Pure.

The reader of the records sets `execution.kernels`. From there it reaches the execution's span, the region's metrics and
the recording.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

from gpu_profile.catalogue import Metric
from gpu_profile.catalogue import attributes as names
from gpu_profile.catalogue import metrics as rows
from gpu_profile.catalogue.attributes import Attribute
from gpu_profile.regimes.evidence import Evidence
from gpu_profile.units import NS_PER_S

AttributeValue = str | int | float | Sequence[str] | Sequence[int] | Sequence[float]

#: The most kernels that are named.
MOST_TOP: Final = 5
#: The most names of kernels in a region's sums.
_MOST_NAMES: Final = 200
#: Names of templates have thousands of characters; this many distinguish them.
_LONGEST_NAME: Final = 500
#: Attributes of spans are 64 bits wide. A larger value would lose its whole batch.
_LARGEST: Final = (1 << 63) - 1
#: No execution takes longer than 146 years.
_LONGEST_S: Final = (1 << 62) / NS_PER_S

_EVIDENCE: Final[Mapping[str, Attribute]] = {
    "busy": names.KERNELS_BUSY_SHARE,
    "work": names.KERNELS_WORK_SHARE,
    "communication": names.KERNELS_COMMUNICATION_SHARE,
    "transfer": names.KERNELS_TRANSFER_SHARE,
    "host_wait": names.KERNELS_HOST_WAIT_SHARE,
    "launch": names.KERNELS_LAUNCH_SHARE,
    "other_wait": names.KERNELS_OTHER_WAIT_SHARE,
    "others": names.KERNELS_OTHERS_SHARE,
    "kernel_s": names.KERNELS_MEAN,
}


def _row(attribute: Attribute, default: int | None = 0, *, metric: Metric | None = None) -> Any:
    return field(default=default, metadata={"attribute": attribute, "metric": metric})


@dataclass(slots=True, kw_only=True)
class KernelSums:
    """Sums over the GPU operations of a region; to add a quantity, add a row. Times in ns; None: not in the records.

    `kernel_ns` sums the durations of kernels. `span_ns` is the time of the devices from a start to its end, on the host
    or there. In `busy_ns` of it the region's own operations ran, in `others_ns` only operations of others. The rest is
    idle: `host_wait_ns`, including `launch_ns` for launching, and `other_wait_ns`, as in `kernels.Idle`. `copy_ns` sums
    the durations of copies. In `communication_ns` a collective ran, in `overlap_ns` of that another kernel beside it.
    `backward` counts operations of the backward pass of the region's forward operations. `peak_bytes` is the most
    memory that was allocated at one time meanwhile.
    """

    kernels: int = _row(names.KERNELS_COUNT, metric=rows.REGION_KERNELS)
    kernel_ns: int = _row(names.KERNELS_TIME, metric=rows.REGION_KERNEL_TIME)
    span_ns: int = _row(names.KERNELS_SPAN)
    busy_ns: int = _row(names.KERNELS_BUSY)
    others_ns: int = _row(names.KERNELS_OTHERS)
    host_wait_ns: int | None = _row(names.KERNELS_HOST_WAIT, None, metric=rows.REGION_HOST_WAIT)
    launch_ns: int | None = _row(names.KERNELS_LAUNCH, None)
    other_wait_ns: int | None = _row(names.KERNELS_OTHER_WAIT, None)
    copies: int = _row(names.KERNELS_COPIES)
    copy_bytes: int | None = _row(names.KERNELS_COPIED, None, metric=rows.REGION_COPIED)
    copy_ns: int = _row(names.KERNELS_COPY_TIME)
    communication_ns: int = _row(names.KERNELS_COMMUNICATION, metric=rows.REGION_COMMUNICATION)
    overlap_ns: int = _row(names.KERNELS_OVERLAP)
    backward: int = _row(names.KERNELS_BACKWARD)
    allocated_bytes: int | None = _row(names.KERNELS_ALLOCATED, None)
    freed_bytes: int | None = _row(names.KERNELS_FREED, None)
    peak_bytes: int | None = _row(names.KERNELS_PEAK, None)

    @property
    def whole_ns(self) -> int:
        """The whole for shares: the span without the time in which only others' operations ran."""
        return self.span_ns - self.others_ns


class Quantity(NamedTuple):
    """A field of `KernelSums`, and its attribute and metric. `optional`: it may be missing from the records.

    In output it is a count under its own name, or, for a time, seconds under a name that ends in `_s`.
    """

    name: str
    attribute: Attribute
    metric: Metric | None
    optional: bool

    @property
    def time(self) -> bool:
        """Whether it is a time, in ns."""
        return self.name.endswith("_ns")

    @property
    def key(self) -> str:
        """Its name in output."""
        return f"{self.name[:-3]}_s" if self.time else self.name

    def of(self, sums: KernelSums) -> int | float | None:
        """Its value in output."""
        value: int | None = getattr(sums, self.name)
        return _seconds(value) if self.time else value

    def read(self, attributes: Mapping[str, Any]) -> int | None:
        """Its value from attributes."""
        value: Any = self.attribute.of(attributes)
        return _in_ns(value) if self.time and value is not None else value


QUANTITIES: Final = tuple(
    Quantity(each.name, each.metadata["attribute"], each.metadata["metric"], each.default is None)
    for each in fields(KernelSums)
)


@dataclass(slots=True, kw_only=True)
class KernelWork(KernelSums):
    """The GPU operations that one execution launched. Treat it as immutable.

    `occupancy` is estimated, 0-1, a mean over `kernel_ns`. `top` are the kernels with the longest total time: name,
    count, and total ns. `evidence` has the basis `kernels`. Its shares are of `whole_ns`, but `others` of `span_ns`.
    """

    evidence: Evidence
    occupancy: float | None = None
    top: tuple[tuple[str, int, int], ...] = ()

    def attributes(self) -> dict[str, AttributeValue]:
        """The attributes of a span; unknown values are absent."""
        values: dict[Attribute, AttributeValue | None] = {names.KERNELS_N: self.evidence.n}
        sums = {each.attribute: each.of(self) for each in QUANTITIES}
        values |= {row: value for row, value in sums.items() if value is None or value <= _LARGEST}
        values |= {row: self.evidence.get(key) for key, row in _EVIDENCE.items()}
        values[names.KERNELS_OCCUPANCY] = self.occupancy
        values[names.KERNELS_COVERAGE] = self.evidence.coverage
        values[names.KERNELS_REASON] = self.evidence.reason or None
        top = self.top[:MOST_TOP]
        if top:
            values[names.KERNELS_TOP_NAMES] = tuple(_short(name) for name, _, _ in top)
            values[names.KERNELS_TOP_COUNTS] = tuple(count for _, count, _ in top)
            values[names.KERNELS_TOP_TIMES] = tuple(ns / NS_PER_S for _, _, ns in top)
        return {row.name: value for row, value in values.items() if value is not None}

    def events(self) -> list[dict[str, str | int | float]]:
        """The attributes of a span's events named `KERNEL_EVENT`: one for each of the top kernels, longest first."""
        return [
            {
                names.KERNEL_NAME.name: _short(name),
                names.KERNEL_COUNT.name: count,
                names.KERNEL_TIME.name: ns / NS_PER_S,
            }
            for name, count, ns in self.top[:MOST_TOP]
        ]

    @staticmethod
    def of_attributes(attributes: Mapping[str, Any]) -> KernelWork | None:
        """The reverse, from any attributes. None if they are of no kernels, or one of them has an impossible value."""
        if names.KERNELS_N.name not in attributes:
            return None
        try:
            values: dict[str, Any] = {each.name: each.read(attributes) for each in QUANTITIES}
            if any(values[each.name] is None and not each.optional for each in QUANTITIES):
                return None
            shares = {key: value for key, row in _EVIDENCE.items() if (value := row.of(attributes)) is not None}
            coverage, n = names.KERNELS_COVERAGE.of(attributes) or 0.0, names.KERNELS_N.of(attributes) or 0
            evidence = Evidence("kernels", shares, n, coverage, reason=names.KERNELS_REASON.of(attributes) or "")
            lists = (names.KERNELS_TOP_NAMES, names.KERNELS_TOP_COUNTS, names.KERNELS_TOP_TIMES)
            top = zip(*(row.of(attributes) or () for row in lists), strict=True)
            return KernelWork(
                evidence=evidence,
                occupancy=names.KERNELS_OCCUPANCY.of(attributes),
                top=tuple((name, count, _in_ns(seconds)) for name, count, seconds in top)[:MOST_TOP],
                **values,
            )
        except (TypeError, ValueError, OverflowError):
            return None


@dataclass(slots=True)
class KernelWorks(KernelSums):
    """Sums over the profiled `executions` of a region, the base of all rates. None: not in any record.

    `peak_bytes` is the highest of them.
    """

    executions: int = 0
    _n: int = 0
    _reason: str = ""
    #: By key: the sum of value × weight, and the sum of the weights, over the executions with a value.
    _means: dict[str, tuple[float, int]] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)
    _times: Counter[str] = field(default_factory=Counter)

    def add(self, work: KernelWork) -> None:
        """Add an execution."""
        self.executions += 1
        for name, *_ in QUANTITIES:
            value = getattr(work, name)
            if value is not None:
                before = getattr(self, name) or 0
                setattr(self, name, max(before, value) if name == "peak_bytes" else before + value)
        if work.occupancy is not None:
            self._mean("occupancy", work.occupancy, work.kernel_ns)
        for name, count, ns in work.top:
            self._counts[name] += count
            self._times[name] += ns
        if len(self._times) > _MOST_NAMES:
            self._times = Counter(dict(self._times.most_common(_MOST_NAMES // 2)))
            self._counts = Counter({name: self._counts[name] for name in self._times})
        evidence = work.evidence
        self._n += evidence.n
        self._reason = evidence.reason or self._reason
        # An execution that launched nothing has no span, and no weight in the other means.
        launched = bool(evidence.values)
        self._mean("coverage", evidence.coverage if launched else 0.0, max(int(launched), work.whole_ns))
        # The mean duration is weighted by kernels, shares by time.
        weights = {"kernel_s": work.kernels, "others": work.span_ns}
        for key, value in evidence.values.items():
            self._mean(key, value, max(1, weights.get(key, work.whole_ns)))

    def _mean(self, key: str, value: float, weight: int) -> None:
        total, weights = self._means.get(key, (0.0, 0))
        self._means[key] = total + value * weight, weights + weight

    def _mean_of(self, key: str) -> float | None:
        total, weights = self._means.get(key, (0.0, 0))
        return total / weights if weights else None

    @property
    def mean_kernel_ns(self) -> float | None:
        """Mean duration of a kernel; None if there was none."""
        return self.kernel_ns / self.kernels if self.kernels else None

    @property
    def occupancy(self) -> float | None:
        """The estimated occupancy, 0-1: a mean over the kernel time of the executions that have it."""
        return self._mean_of("occupancy")

    @property
    def overlap_ratio(self) -> float | None:
        """The share of the communication beside kernels of another kind; None without communication."""
        return self.overlap_ns / self.communication_ns if self.communication_ns else None

    @property
    def top(self) -> tuple[tuple[str, int, int], ...]:
        """The kernels with the longest total time: name, count, total ns. Only the executions' own `top` count."""
        longest = self._times.most_common(MOST_TOP)
        return tuple((name, self._counts[name], ns) for name, ns in longest)

    def counters(self) -> dict[Metric, float]:
        """The region's metrics of profiled executions; unknown values are absent."""
        values: dict[Metric, float | None] = {
            rows.REGION_PROFILED: self.executions,
            rows.REGION_PROFILED_TIME: _seconds(self.whole_ns),
        }
        values |= {each.metric: each.of(self) for each in QUANTITIES if each.metric is not None}
        return {row: float(value) for row, value in values.items() if value is not None}

    def evidence(self) -> Evidence:
        """The evidence on the region: means over `whole_ns` of the executions."""
        means = {key: mean for key in _EVIDENCE if (mean := self._mean_of(key)) is not None}
        if not means:
            return Evidence("kernels", {}, self._n, 0.0, reason=self._reason or "nothing was launched in it")
        return Evidence("kernels", means, self._n, self._mean_of("coverage") or 0.0, reason=self._reason)


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_S


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _in_ns(seconds: float) -> int:
    if not 0 <= seconds < _LONGEST_S:
        raise ValueError(f"{seconds} s is no length of time")
    return round(seconds * NS_PER_S)

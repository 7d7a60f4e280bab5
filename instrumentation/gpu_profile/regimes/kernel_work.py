"""What a profiler's records say of one execution of a region; and of all executions that a profiler saw. Pure.

Whoever reads the records sets `execution.kernels`. From then on it is part of what the execution's span, the region's
metrics and the recording say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

from gpu_profile.catalogue import Metric
from gpu_profile.catalogue import attributes as names
from gpu_profile.catalogue import metrics as rows
from gpu_profile.catalogue.attributes import Attribute
from gpu_profile.regimes.evidence import Evidence
from gpu_profile.units import NS_PER_S

AttributeValue = str | int | float | Sequence[str] | Sequence[int] | Sequence[float]

#: Kernels that are told by name.
MOST_TOP: Final = 5
#: Names of kernels that a region's sums hold at once.
_MOST_NAMES: Final = 200
#: Names of templates run to thousands of characters; this much tells them apart.
_LONGEST_NAME: Final = 500
#: Attributes of spans are 64 bits wide; a larger one would cost its whole batch.
_LARGEST: Final = (1 << 63) - 1
#: No execution takes longer than 146 years.
_LONGEST_S: Final = (1 << 62) / NS_PER_S

_COUNTS: Final[Mapping[str, Attribute]] = {
    "kernels": names.KERNELS_COUNT,
    "copies": names.KERNELS_COPIES,
    "copy_bytes": names.KERNELS_COPIED,
    "backward": names.KERNELS_BACKWARD,
    "allocated_bytes": names.KERNELS_ALLOCATED,
    "freed_bytes": names.KERNELS_FREED,
    "peak_bytes": names.KERNELS_PEAK,
}
_TIMES: Final[Mapping[str, Attribute]] = {
    "kernel_ns": names.KERNELS_TIME,
    "span_ns": names.KERNELS_SPAN,
    "busy_ns": names.KERNELS_BUSY,
    "others_ns": names.KERNELS_OTHERS,
    "host_wait_ns": names.KERNELS_HOST_WAIT,
    "launch_ns": names.KERNELS_LAUNCH,
    "other_wait_ns": names.KERNELS_OTHER_WAIT,
    "copy_ns": names.KERNELS_COPY_TIME,
    "communication_ns": names.KERNELS_COMMUNICATION,
    "overlap_ns": names.KERNELS_OVERLAP,
}
_EVIDENCE: Final[Mapping[str, Attribute]] = {
    "busy": names.KERNELS_BUSY_SHARE,
    "work": names.KERNELS_WORK_SHARE,
    "communication": names.KERNELS_COMMUNICATION_SHARE,
    "transfer": names.KERNELS_TRANSFER_SHARE,
    "host_wait": names.KERNELS_HOST_WAIT_SHARE,
    "launch": names.KERNELS_LAUNCH_SHARE,
    "other_wait": names.KERNELS_OTHER_WAIT_SHARE,
    "kernel_s": names.KERNELS_MEAN,
}
#: What may be missing from a profiler's records.
_OPTIONAL: Final = frozenset(
    {"copy_bytes", "allocated_bytes", "freed_bytes", "peak_bytes", "host_wait_ns", "launch_ns", "other_wait_ns"}
)
_SUMS: Final = (*(name for name in _COUNTS if name != "peak_bytes"), *_TIMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWork:
    """The GPU operations that one execution launched. Times in ns; None: not in the records.

    `kernel_ns` sums the durations of its kernels. `span_ns` is the time of its devices from its start to its end, on
    the host or there; in `busy_ns` of it its own operations ran, in `others_ns` only those of others. The rest is idle:
    `host_wait_ns`, of which launching took `launch_ns`, and `other_wait_ns`, as in `kernels.Idle`. `copy_ns` sums the
    durations of its copies. In `communication_ns` one of its collectives ran, in `overlap_ns` of that another kernel
    beside it.
    `occupancy` is estimated, 0-1, a mean over `kernel_ns`. `backward` operations are of the backward pass of what ran
    forward in it. `peak_bytes` is the most that the allocator had given out meanwhile. `top` are the kernels that took
    longest: name, count, and ns in all. `evidence`, of the basis `kernels`, is what a verdict on it rests on.
    """

    evidence: Evidence
    kernels: int = 0
    kernel_ns: int = 0
    span_ns: int = 0
    busy_ns: int = 0
    others_ns: int = 0
    host_wait_ns: int | None = None
    launch_ns: int | None = None
    other_wait_ns: int | None = None
    copies: int = 0
    copy_bytes: int | None = None
    copy_ns: int = 0
    communication_ns: int = 0
    overlap_ns: int = 0
    occupancy: float | None = None
    backward: int = 0
    allocated_bytes: int | None = None
    freed_bytes: int | None = None
    peak_bytes: int | None = None
    top: tuple[tuple[str, int, int], ...] = ()

    @property
    def whole_ns(self) -> int:
        """What the shares in `evidence` are of: the span without the time in which only others' operations ran."""
        return self.span_ns - self.others_ns

    def attributes(self) -> dict[str, AttributeValue]:
        """As attributes of a span; what is not known is absent."""
        told: dict[Attribute, AttributeValue | None] = {names.KERNELS_N: self.evidence.n}
        told |= {row: _fitting(getattr(self, name)) for name, row in _COUNTS.items()}
        told |= {row: _seconds(getattr(self, name)) for name, row in _TIMES.items()}
        told |= {row: self.evidence.get(key) for key, row in _EVIDENCE.items()}
        told[names.KERNELS_OCCUPANCY] = self.occupancy
        told[names.KERNELS_COVERAGE] = self.evidence.coverage
        told[names.KERNELS_REASON] = self.evidence.reason or None
        top = self.top[:MOST_TOP]
        if top:
            told[names.KERNELS_TOP_NAMES] = tuple(_short(name) for name, _, _ in top)
            told[names.KERNELS_TOP_COUNTS] = tuple(count for _, count, _ in top)
            told[names.KERNELS_TOP_TIMES] = tuple(ns / NS_PER_S for _, _, ns in top)
        return {row.name: value for row, value in told.items() if value is not None}

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
    def of_attributes(found: Mapping[str, Any]) -> KernelWork | None:
        """The reverse, from any attributes; None if they are of no kernels, or one of them cannot be theirs."""
        if names.KERNELS_N.name not in found:
            return None
        try:
            values: dict[str, Any] = {name: _count(found, row) for name, row in _COUNTS.items()}
            values |= {name: _nanoseconds(found, row) for name, row in _TIMES.items()}
            if any(value is None and name not in _OPTIONAL for name, value in values.items()):
                return None
            told = {key: value for key, row in _EVIDENCE.items() if (value := _number(found, row)) is not None}
            coverage, n = _number(found, names.KERNELS_COVERAGE), _count(found, names.KERNELS_N)
            evidence = Evidence("kernels", told, n or 0, coverage or 0.0, reason=_text(found, names.KERNELS_REASON))
            return KernelWork(
                evidence=evidence, occupancy=_number(found, names.KERNELS_OCCUPANCY), top=_top(found), **values
            )
        except (TypeError, ValueError, OverflowError):
            return None


@dataclass(slots=True)
class KernelWorks:
    """Sums over the `executions` of a region that a profiler saw, which all rates are of. None: no execution told.

    The fields are those of `KernelWork`; `peak_bytes` is the highest of them.
    """

    executions: int = 0
    kernels: int = 0
    kernel_ns: int = 0
    span_ns: int = 0
    busy_ns: int = 0
    others_ns: int = 0
    host_wait_ns: int | None = None
    launch_ns: int | None = None
    other_wait_ns: int | None = None
    copies: int = 0
    copy_bytes: int | None = None
    copy_ns: int = 0
    communication_ns: int = 0
    overlap_ns: int = 0
    backward: int = 0
    allocated_bytes: int | None = None
    freed_bytes: int | None = None
    peak_bytes: int | None = None
    _n: int = 0
    _reason: str = ""
    #: By what was told: the sum of value × weight, and the sum of the weights.
    _means: dict[str, tuple[float, int]] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)
    _times: Counter[str] = field(default_factory=Counter)

    def add(self, work: KernelWork) -> None:
        """Add an execution."""
        self.executions += 1
        for name in _SUMS:
            value = getattr(work, name)
            if value is not None:
                setattr(self, name, (getattr(self, name) or 0) + value)
        if work.peak_bytes is not None:
            self.peak_bytes = max(self.peak_bytes or 0, work.peak_bytes)
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
        # What launched nothing has no span, and nothing to say of the others.
        known = bool(evidence.values)
        self._mean("coverage", evidence.coverage if known else 0.0, max(int(known), work.whole_ns))
        for key, value in evidence.values.items():
            # The mean duration is of the kernels, shares are of time.
            self._mean(key, value, max(1, work.kernels if key == "kernel_s" else work.whole_ns))

    def _mean(self, key: str, value: float, weight: int) -> None:
        total, weights = self._means.get(key, (0.0, 0))
        self._means[key] = total + value * weight, weights + weight

    def _mean_of(self, key: str) -> float | None:
        total, weights = self._means.get(key, (0.0, 0))
        return total / weights if weights else None

    @property
    def whole_ns(self) -> int:
        """What shares are of: the spans without the time in which only others' operations ran."""
        return self.span_ns - self.others_ns

    @property
    def mean_kernel_ns(self) -> float | None:
        """Mean duration of a kernel; None if there was none."""
        return self.kernel_ns / self.kernels if self.kernels else None

    @property
    def occupancy(self) -> float | None:
        """The estimated occupancy, 0-1: a mean over the time of the kernels that tell it."""
        return self._mean_of("occupancy")

    @property
    def overlap_ratio(self) -> float | None:
        """The share of the communication beside kernels of another kind; None without communication."""
        return self.overlap_ns / self.communication_ns if self.communication_ns else None

    @property
    def top(self) -> tuple[tuple[str, int, int], ...]:
        """Kernels that took longest: name, count, ns in all; of those executions in whose own `top` they are."""
        longest = self._times.most_common(MOST_TOP)
        return tuple((name, self._counts[name], ns) for name, ns in longest)

    def counters(self) -> dict[Metric, float]:
        """As the region metrics that count profiled executions; what is not known is absent."""
        told: dict[Metric, float | None] = {
            rows.REGION_PROFILED: self.executions,
            rows.REGION_PROFILED_TIME: _seconds(self.whole_ns),
            rows.REGION_KERNELS: self.kernels,
            rows.REGION_KERNEL_TIME: _seconds(self.kernel_ns),
            rows.REGION_COPIED: self.copy_bytes,
            rows.REGION_COMMUNICATION: _seconds(self.communication_ns),
            rows.REGION_HOST_WAIT: _seconds(self.host_wait_ns),
        }
        return {row: float(value) for row, value in told.items() if value is not None}

    def evidence(self) -> Evidence:
        """What a verdict on the region rests on: means over `whole_ns` of the executions."""
        means = {key: mean for key in _EVIDENCE if (mean := self._mean_of(key)) is not None}
        if not means:
            return Evidence("kernels", {}, self._n, 0.0, reason=self._reason or "nothing was launched in it")
        return Evidence("kernels", means, self._n, self._mean_of("coverage") or 0.0, reason=self._reason)


def _fitting(value: int | None) -> int | None:
    return None if value is None or value > _LARGEST else value


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_S


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is no count")
    return value


def _finite(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _in_ns(value: object) -> int:
    seconds = _finite(value)
    if not 0 <= seconds < _LONGEST_S:
        raise ValueError(f"{seconds} s is no length of time")
    return round(seconds * NS_PER_S)


def _count(found: Mapping[str, Any], row: Attribute) -> int | None:
    value = found.get(row.name)
    return None if value is None else _whole(value)


def _number(found: Mapping[str, Any], row: Attribute) -> float | None:
    value = found.get(row.name)
    return None if value is None else _finite(value)


def _nanoseconds(found: Mapping[str, Any], row: Attribute) -> int | None:
    value = found.get(row.name)
    return None if value is None else _in_ns(value)


def _text(found: Mapping[str, Any], row: Attribute) -> str:
    value = found.get(row.name, "")
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _top(found: Mapping[str, Any]) -> tuple[tuple[str, int, int], ...]:
    columns = [
        found.get(row.name, ()) for row in (names.KERNELS_TOP_NAMES, names.KERNELS_TOP_COUNTS, names.KERNELS_TOP_TIMES)
    ]
    if not all(isinstance(column, list | tuple) for column in columns):
        raise TypeError("the top kernels are no lists")
    top = []
    for name, count, seconds in zip(*columns, strict=True):
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is not text")
        top.append((name, _whole(count), _in_ns(seconds)))
    return tuple(top[:MOST_TOP])

"""Hardware counters of kernels, joined with the regions that launched them. Pure.

Counters are read in a run of their own. So a record belongs to the timed run's kernels of exactly its name, and is
never matched by order or count. Where several regions launched kernels of one name, the records may not identify the
region. Estimates are kept apart from exact values.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from gpu_profile.errors import UsageError
from gpu_profile.kernels.counters.formulas import FORMULAS, SECONDS, TIME, Terms, adds_up, parts_of
from gpu_profile.kernels.records import RangeCounters
from gpu_profile.kernels.sums import KernelSum, merged

REDUCTIONS: Final = ("SUM", "MAX", "MEAN")


class CounterSum(NamedTuple):
    """One metric that adds up, over kernels of a region.

    `shared` is an estimate, guaranteed to be in `low` to `high`; `exact` comes on top. `most` is the highest record
    that may be the region's. The records cover `kernels` of the region's kernels, which took `ns` in the timed run.
    Fractions result from names with more kernels than records.
    """

    exact: float
    shared: float
    low: float
    high: float
    most: float
    kernels: float
    ns: float

    @property
    def value(self) -> float:
        """The best single figure."""
        return self.exact + self.shared

    def plus(self, other: CounterSum) -> CounterSum:
        """The sum of both, which are of different kernels."""
        sums = (a + b for a, b in zip(self, other, strict=True))
        return CounterSum(*sums)._replace(most=max(self.most, other.most))

    def times(self, factor: float) -> CounterSum:
        """The sum in another unit, of the same kernels."""
        values = (self.exact, self.shared, self.low, self.high, self.most)
        exact, shared, low, high, most = (factor * value for value in values)
        return CounterSum(exact, shared, low, high, most, self.kernels, self.ns)


class CounterMean(NamedTuple):
    """One metric that does not add up: its mean is `weighted` / `ns`, each kernel weighted by its duration.

    `least` and `most` are the lowest and highest record that may be the region's; `kernels` as in `CounterSum`.
    """

    weighted: float
    least: float
    most: float
    kernels: float
    ns: float

    def plus(self, other: CounterMean) -> CounterMean:
        """The combination of both, which are of different kernels."""
        sums = (a + b for a, b in zip(self, other, strict=True))
        return CounterMean(*sums)._replace(least=min(self.least, other.least), most=max(self.most, other.most))


class Figure(NamedTuple):
    """The value of a formula. `coverage` is the share of the region's kernel time that has records.

    `exact`: no part of it was shared out among regions.
    """

    value: float
    unit: str
    coverage: float | None
    exact: bool


@dataclass(frozen=True, slots=True)
class CounterSums:
    """One region's counters by metric; `kernels` and `kernel_ns` are all its kernels in the timed run."""

    sums: Mapping[str, CounterSum]
    means: Mapping[str, CounterMean]
    kernels: int
    kernel_ns: int

    def coverage(self, metric: str) -> float | None:
        """The share of the region's kernel time that has records of a metric; None if it has no kernel time."""
        counter = self.sums.get(metric) or self.means.get(metric)
        return min(1.0, (counter.ns if counter else 0.0) / self.kernel_ns) if self.kernel_ns else None

    def figures(self) -> dict[str, Figure]:
        """The values of `FORMULAS` by name; absent if a metric is missing, or the metrics cover different kernels."""
        figures: dict[str, Figure] = {}
        for formula in FORMULAS:
            figure = self._figure(formula.unit, formula.of, formula.over)
            if figure is not None:
                figures.setdefault(formula.name, figure)
        return figures

    def reduce(self, reduction: str = "SUM") -> dict[str, float]:
        """One value for each metric: the SUM over the region's kernels, their MEAN, or the MAX of one record.

        Ratios are never added up. SUM and MEAN rebuild them from sums where these were counted, and else use the mean
        weighted by duration. SUM of a `.max` is its highest record, of a `.min` its lowest. MEAN is absent where the
        timed run has no kernels to divide by. UsageError for an unknown reduction.
        """
        if reduction not in REDUCTIONS:
            raise UsageError(f"reduction {reduction!r}: unknown; choose one of {', '.join(REDUCTIONS)}")
        if reduction == "MAX":
            return {metric: each.most for part in (self.sums, self.means) for metric, each in part.items()}
        if reduction == "SUM":
            values = {metric: each.value for metric, each in self.sums.items()}
        else:
            values = {metric: each.value / each.kernels for metric, each in self.sums.items() if each.kernels}
        for metric, mean in self.means.items():
            value = self._unsummed(metric, mean, reduction)
            if value is not None:
                values[metric] = value
        return values

    def __add__(self, other: CounterSums) -> CounterSums:
        sums = merged(self.sums, other.sums, CounterSum.plus)
        means = merged(self.means, other.means, CounterMean.plus)
        return CounterSums(sums, means, self.kernels + other.kernels, self.kernel_ns + other.kernel_ns)

    def _unsummed(self, metric: str, mean: CounterMean, reduction: str) -> float | None:
        rollup = metric.partition(".")[2]
        if reduction == "SUM" and rollup in ("max", "min"):
            return mean.most if rollup == "max" else mean.least
        factor, of, over = parts_of(metric)
        figure = self._figure("", of, over) if of else None
        if figure is not None:
            return factor * figure.value
        return mean.weighted / mean.ns if mean.ns else None

    def _figure(self, unit: str, of: Terms, over: Terms | None) -> Figure | None:
        above = self._total(of)
        if above is None:
            return None
        coverage = min(1.0, above.ns / self.kernel_ns) if self.kernel_ns else None
        value, exact = above.value, above.low == above.high
        if over is not None:
            below = self._total(over)
            if over == SECONDS and TIME not in self.sums:
                # The timed run's time: the run with counters did not read its own.
                below = CounterSum(above.ns * 1e-9, 0, 0, 0, 0, above.kernels, above.ns)
            if below is None or not below.value or not _alike(above, below):
                return None
            value, exact = value / below.value, exact and below.low == below.high
        return Figure(value, unit, coverage, exact)

    def _total(self, terms: Terms) -> CounterSum | None:
        total: CounterSum | None = None
        for metric, factor in terms.items():
            counter = self.sums.get(metric)
            if counter is None or (total is not None and not _alike(total, counter)):
                return None
            scaled = counter.times(factor)
            total = scaled if total is None else total.plus(scaled)._replace(kernels=counter.kernels, ns=counter.ns)
        return total


def _alike(one: CounterSum, other: CounterSum) -> bool:
    return math.isclose(one.kernels, other.kernels) and math.isclose(one.ns, other.ns)


# ---------------------------------------------------------------------- the join


class _Records:
    """The values of one metric in all records of one name, in ascending order."""

    def __init__(self, values: Sequence[tuple[float, float | None]]) -> None:
        self.values = sorted(value for value, _ in values)
        self.sums = list(accumulate(self.values, initial=0))
        weights = [ns for _, ns in values if ns]
        if len(weights) < len(values):
            weights = [1.0] * len(values)
        # Weights become shares first, so that no product can overflow.
        whole = math.fsum(weights)
        mean = math.fsum(value * (ns / whole) for (value, _), ns in zip(values, weights, strict=True))
        self.mean = min(max(mean, self.values[0]), self.values[-1])

    def total(self, whole: KernelSum, part: KernelSum) -> CounterSum:
        """The part of a region that launched `part` of the kernels of this name."""
        records, kernels = len(self.values), whole.count
        pairs = min(records, kernels)
        # The least and the greatest number of the region's kernels with a record.
        fewest, most = max(0, pairs - (kernels - part.count)), min(part.count, pairs)
        low = self.sums[fewest]
        high = max(low, self.sums[-1] - self.sums[records - most])
        ours = part.count / kernels
        covered = (self.values[-1], part.count * (pairs / kernels), part.total_ns * (pairs / kernels))
        if records == kernels and (part.count == kernels or self.values[0] == self.values[-1]):
            return CounterSum(low, 0, 0, 0, *covered)
        # By duration: the work of kernels of one name correlates with their time much more than with their number.
        share = part.total_ns / whole.total_ns if whole.total_ns else ours
        estimate = min(max(self.sums[-1] * (pairs / records) * share, low), high)
        return CounterSum(0, estimate, low, high, *covered)

    def weighted(self, whole: KernelSum, part: KernelSum) -> CounterMean:
        """As `total`, for a metric that does not add up."""
        covered = min(1.0, len(self.values) / whole.count)
        ns = part.total_ns * covered
        return CounterMean(self.mean * ns, self.values[0], self.values[-1], part.count * covered, ns)


class Counters:
    """Counter records by name, made once for all regions."""

    def __init__(self, counted: Iterable[RangeCounters]) -> None:
        values: dict[str, dict[str, list[tuple[float, float | None]]]] = defaultdict(lambda: defaultdict(list))
        for record in counted:
            of = values[record.name]
            for metric, value in record.values.items():
                if math.isfinite(value):
                    of[metric].append((value, record.values.get(TIME)))
        self._names = {name: {key: _Records(each) for key, each in of.items()} for name, of in values.items()}

    def of(
        self,
        whole: Mapping[str, KernelSum],
        region: Mapping[str, KernelSum],
        name: str,
        *,
        executions: int | None = None,
    ) -> CounterSums | None:
        """The counters of the region `name`; None if there are none.

        `whole` and `region` are the kernels of the timed run and of the region in it, by name. A metric of a kernel's
        name is exact if there are as many records as kernels, and all kernels are the region's or all records are
        equal. Otherwise it is shared out by duration, within the bounds. Nothing is scaled up: kernels without a record
        lower the coverage. Records with the region's own name are ranges of whole executions, and go before the records
        of its kernels. The timed run has `executions` of them (None: as many as records). A name that is also a
        kernel's is the kernel's.
        """
        kernels = sum(part.count for part in region.values())
        kernel_ns = sum(part.total_ns for part in region.values())
        sums: dict[str, CounterSum] = {}
        means: dict[str, CounterMean] = {}
        own = {} if name in whole else self._names.get(name, {})
        for metric, records in own.items():
            # A range of the region covers all kernels of one execution.
            every = KernelSum(executions or len(records.values), kernel_ns, 0)
            share = min(1.0, len(records.values) / every.count) * kernels
            if adds_up(metric):
                sums[metric] = records.total(every, every)._replace(kernels=share)
            else:
                means[metric] = records.weighted(every, every)._replace(kernels=share)
        for kernel, part in region.items():
            if not part.count:
                continue
            all_of_it = max(whole.get(kernel, part), part, key=lambda each: each.count)
            more = {metric: each for metric, each in self._names.get(kernel, {}).items() if metric not in own}
            totals = {metric: each.total(all_of_it, part) for metric, each in more.items() if adds_up(metric)}
            others = {metric: each.weighted(all_of_it, part) for metric, each in more.items() if not adds_up(metric)}
            sums = merged(sums, totals, CounterSum.plus)
            means = merged(means, others, CounterMean.plus)
        return CounterSums(sums, means, kernels, kernel_ns) if sums or means else None

    def matched(self, whole: Mapping[str, KernelSum], regions: Collection[str] = ()) -> Matched:
        """The match of the records with the kernels of the timed run; `regions` are the names of its regions."""
        counts = {name: max((len(r.values) for r in of.values()), default=0) for name, of in self._names.items()}
        ranges = sum(count for name, count in counts.items() if name in regions and name not in whole)
        records = Counter({name: count for name, count in counts.items() if name in whole or name not in regions})
        kernels = Counter({name: kernel.count for name, kernel in whole.items()})
        return Matched((records & kernels).total(), ranges, dict(records - kernels), dict(kernels - records))


@dataclass(frozen=True, slots=True)
class Matched:
    """How records and kernels match: `pairs` of a record and a kernel of one name, and `ranges` of whole regions.

    `records` without a kernel and `kernels` without a record are counted by name.
    """

    pairs: int
    ranges: int
    records: Mapping[str, int]
    kernels: Mapping[str, int]

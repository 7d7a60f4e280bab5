"""Hardware counters of kernels, joined with the regions that launched them. Pure.

Counters are read in a run of their own, so a record belongs to the timed run's kernels of exactly its name, never to
one by order or count. Where several regions launched kernels of one name, the records cannot always tell whose they
are: what is an estimate is kept apart from what is exact.
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

    `shared` is an estimate, for certain between `low` and `high`; `exact` comes on top. `most` is the highest record
    that may be the region's. The records stand for `kernels` of the region's kernels, which took `ns` in the timed run;
    fractions come from names with more kernels than records.
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
        """Both, of different kernels."""
        sums = (a + b for a, b in zip(self, other, strict=True))
        return CounterSum(*sums)._replace(most=max(self.most, other.most))

    def times(self, factor: float) -> CounterSum:
        """The same in another unit, of the same kernels."""
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
        """Both, of different kernels."""
        sums = (a + b for a, b in zip(self, other, strict=True))
        return CounterMean(*sums)._replace(least=min(self.least, other.least), most=max(self.most, other.most))


class Figure(NamedTuple):
    """What a formula gives. `coverage` is the share of the region's kernel time that counters stand behind.

    `exact`: nothing in it was shared out among regions.
    """

    value: float
    unit: str
    coverage: float | None
    exact: bool


@dataclass(frozen=True, slots=True)
class CounterSums:
    """What counters say of one region, by metric; `kernels` and `kernel_ns` are all its kernels in the timed run."""

    sums: Mapping[str, CounterSum]
    means: Mapping[str, CounterMean]
    kernels: int
    kernel_ns: int

    def coverage(self, metric: str) -> float | None:
        """The share of the region's kernel time that has records of a metric; None if it has no kernel time."""
        found = self.sums.get(metric) or self.means.get(metric)
        return min(1.0, (found.ns if found else 0.0) / self.kernel_ns) if self.kernel_ns else None

    def figures(self) -> dict[str, Figure]:
        """What `FORMULAS` give, by name; absent where a metric is missing, or the metrics stand for unlike kernels."""
        found: dict[str, Figure] = {}
        for formula in FORMULAS:
            figure = self._figure(formula.unit, formula.of, formula.over)
            if figure is not None:
                found.setdefault(formula.name, figure)
        return found

    def reduce(self, reduction: str = "SUM") -> dict[str, float]:
        """One value for each metric: the SUM over the region's kernels, their MEAN, or the MAX of one record.

        Ratios are never added up. SUM and MEAN rebuild them from sums where these were counted, and else take the mean
        weighted by duration. SUM gives a `.max` its highest record, a `.min` its lowest. MEAN is absent where the timed
        run has no kernels to divide by. An unknown reduction is a `UsageError`.
        """
        if reduction not in REDUCTIONS:
            raise UsageError(f"reduction {reduction!r}: unknown; choose one of {', '.join(REDUCTIONS)}")
        if reduction == "MAX":
            return {metric: found.most for part in (self.sums, self.means) for metric, found in part.items()}
        if reduction == "SUM":
            values = {metric: found.value for metric, found in self.sums.items()}
        else:
            values = {metric: found.value / found.kernels for metric, found in self.sums.items() if found.kernels}
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
                # The timed run's own; a run with counters that were read without the time has none.
                below = CounterSum(above.ns * 1e-9, 0, 0, 0, 0, above.kernels, above.ns)
            if below is None or not below.value or not _alike(above, below):
                return None
            value, exact = value / below.value, exact and below.low == below.high
        return Figure(value, unit, coverage, exact)

    def _total(self, terms: Terms) -> CounterSum | None:
        total: CounterSum | None = None
        for metric, factor in terms.items():
            found = self.sums.get(metric)
            if found is None or (total is not None and not _alike(total, found)):
                return None
            scaled = found.times(factor)
            total = scaled if total is None else total.plus(scaled)._replace(kernels=found.kernels, ns=found.ns)
        return total


def _alike(one: CounterSum, other: CounterSum) -> bool:
    return math.isclose(one.kernels, other.kernels) and math.isclose(one.ns, other.ns)


# ---------------------------------------------------------------------- the join


class _Records:
    """The values of one metric in all records of one name, in rising order."""

    def __init__(self, values: Sequence[tuple[float, float | None]]) -> None:
        self.values = sorted(value for value, _ in values)
        self.sums = list(accumulate(self.values, initial=0))
        weights = [ns for _, ns in values if ns]
        if len(weights) < len(values):
            weights = [1.0] * len(values)
        # Weights are made shares first, so that no product can overflow.
        whole = math.fsum(weights)
        mean = math.fsum(value * (ns / whole) for (value, _), ns in zip(values, weights, strict=True))
        self.mean = min(max(mean, self.values[0]), self.values[-1])

    def total(self, whole: KernelSum, part: KernelSum) -> CounterSum:
        """The part of a region that launched `part` of the kernels of this name."""
        records, kernels = len(self.values), whole.count
        pairs = min(records, kernels)
        # Of the region's kernels, at least and at most so many have a record.
        fewest, most = max(0, pairs - (kernels - part.count)), min(part.count, pairs)
        low = self.sums[fewest]
        high = max(low, self.sums[-1] - self.sums[records - most])
        ours = part.count / kernels
        covered = (self.values[-1], part.count * (pairs / kernels), part.total_ns * (pairs / kernels))
        if records == kernels and (part.count == kernels or self.values[0] == self.values[-1]):
            return CounterSum(low, 0, 0, 0, *covered)
        # By duration: the work of kernels of one name goes with their time much more than with their number.
        share = part.total_ns / whole.total_ns if whole.total_ns else ours
        estimate = min(max(self.sums[-1] * (pairs / records) * share, low), high)
        return CounterSum(0, estimate, low, high, *covered)

    def weighted(self, whole: KernelSum, part: KernelSum) -> CounterMean:
        """The same of a metric that does not add up."""
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
        self._names = {name: {key: _Records(found) for key, found in of.items()} for name, of in values.items()}

    def of(
        self,
        whole: Mapping[str, KernelSum],
        region: Mapping[str, KernelSum],
        name: str,
        *,
        executions: int | None = None,
    ) -> CounterSums | None:
        """What the records say of the region `name`; None if nothing.

        `whole` and `region` are the kernels of the timed run and of the region in it, by name. A metric of a kernel's
        name is exact if there are as many records as kernels, and all kernels are the region's or all records are
        equal. Else it is shared out by duration, within what is possible at all. Nothing is scaled up: what has no
        record lowers the coverage. Records named after the region itself are ranges of whole executions, of which the
        timed run has `executions` (None: as many as records), and go before those of its kernels; a name that is also
        a kernel's is the kernel's.
        """
        kernels = sum(part.count for part in region.values())
        kernel_ns = sum(part.total_ns for part in region.values())
        sums: dict[str, CounterSum] = {}
        means: dict[str, CounterMean] = {}
        own = {} if name in whole else self._names.get(name, {})
        for metric, records in own.items():
            # A range of the region stands for all kernels of one execution.
            every = KernelSum(executions or len(records.values), kernel_ns, 0)
            share = min(1.0, len(records.values) / every.count) * kernels
            if adds_up(metric):
                sums[metric] = records.total(every, every)._replace(kernels=share)
            else:
                means[metric] = records.weighted(every, every)._replace(kernels=share)
        for kernel, part in region.items():
            if not part.count:
                continue
            all_of_it = max(whole.get(kernel, part), part, key=lambda found: found.count)
            more = {metric: each for metric, each in self._names.get(kernel, {}).items() if metric not in own}
            totals = {metric: each.total(all_of_it, part) for metric, each in more.items() if adds_up(metric)}
            others = {metric: each.weighted(all_of_it, part) for metric, each in more.items() if not adds_up(metric)}
            sums = merged(sums, totals, CounterSum.plus)
            means = merged(means, others, CounterMean.plus)
        return CounterSums(sums, means, kernels, kernel_ns) if sums or means else None

    def matched(self, whole: Mapping[str, KernelSum], regions: Collection[str] = ()) -> Matched:
        """How the records and the kernels of the timed run go together; `regions` are the names of its regions."""
        counts = {name: max((len(r.values) for r in of.values()), default=0) for name, of in self._names.items()}
        ranges = sum(count for name, count in counts.items() if name in regions and name not in whole)
        records = Counter({name: count for name, count in counts.items() if name in whole or name not in regions})
        kernels = Counter({name: kernel.count for name, kernel in whole.items()})
        return Matched((records & kernels).total(), ranges, dict(records - kernels), dict(kernels - records))


@dataclass(frozen=True, slots=True)
class Matched:
    """What belongs together: `pairs` of a record and a kernel of one name, and `ranges` of whole regions.

    `records` without a kernel and `kernels` without a record are counted by name.
    """

    pairs: int
    ranges: int
    records: Mapping[str, int]
    kernels: Mapping[str, int]

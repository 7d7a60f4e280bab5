"""Verdicts on workloads of known physics: how many are wrong, silent, fragile, and as sure as they should be.

Samples become a verdict as those of a span do: a device's history, the readings of one execution, evidence, `classify`.
The workloads and their right verdicts are in `regime_workloads` and `regime_recordings`; stderr gets every failure.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any, Final

import numpy as np

from benchmarks import spinning
from benchmarks.regime_recordings import RecordedWorkload, interval_of, recorded_workloads, recording_of
from benchmarks.regime_sensors import watched
from benchmarks.regime_workloads import UNKNOWN, PublishedWorkload, workloads
from benchmarks.rows import Row
from gpu_profile.catalogue import BUSY_SOURCES
from gpu_profile.catalogue.samples import Interval
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.summary import read_span, span_evidence
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Thresholds, Verdict, classify
from gpu_profile.regimes.evidence import Basis, Evidence
from gpu_profile.regimes.verdict import first_verdict

#: Boards of each published workload: gains and noise of their own.
SEEDS: Final = 5
#: From here on, a verdict is one that people act on.
SURE: Final = 0.7
#: Above this, a verdict should not hang on a threshold.
FIRM: Final = 0.6
#: How far a threshold moves.
_MOVED: Final = 0.15
_BINS: Final = 10
#: Failures that a row names.
_NAMED: Final = 8
Workload = PublishedWorkload | RecordedWorkload


@dataclass(frozen=True, slots=True)
class JudgedWorkload:
    """A workload on one board, the evidence of one basis, and the verdict on it."""

    work: Workload
    basis: Basis
    evidence: Evidence
    verdict: Verdict

    @property
    def said(self) -> bool:
        """Whether there is an answer."""
        return str(self.verdict.regime) != UNKNOWN

    @property
    def wrong(self) -> bool:
        """Whether there is an answer, and it is none of the right ones."""
        return self.said and str(self.verdict.regime) not in self.work.right(self.basis)

    @property
    def name(self) -> str:
        """The workload and its basis, for people."""
        return f"{self.work.name} ({self.basis})" if self.basis == "coarse" else self.work.name

    def flips(self) -> Iterator[str]:
        """The moved thresholds under which the regime is another."""
        for name, thresholds in moved(DEFAULT_THRESHOLDS):
            other = first_verdict(self.evidence, thresholds)
            if other.regime is not self.verdict.regime:
                yield f"{name} to {other.regime}"


def moved(thresholds: Thresholds) -> Iterator[tuple[str, Thresholds]]:
    """Every threshold, lower and higher by 15 %, one at a time. A whole number moves by at least one."""
    for field in fields(thresholds):
        value = getattr(thresholds, field.name)
        for sign in (-1, 1):
            if isinstance(value, int):
                other: Any = value + sign * max(1, round(value * _MOVED))
            else:
                other = min(1.0, value * (1 + sign * _MOVED))
            yield f"{field.name} {sign * _MOVED:+.0%}", replace(thresholds, **{field.name: other})


def evidence_of(timeline: Timeline, interval: Interval) -> Evidence:
    """The evidence on one execution, with the device's busy share over the whole history."""
    reading = read_span(timeline, interval)
    busy = timeline.best(BUSY_SOURCES)
    overall = None
    if busy is not None and busy.watermark_ns is not None:
        whole = read_span(timeline, Interval(busy.oldest_ns or interval.start_ns, busy.watermark_ns))
        overall = None if (mean := whole.get(BUSY_SOURCES)) is None else mean.mean
    return span_evidence(timeline, reading, overall)


def judged(seeds: int = SEEDS) -> Iterator[JudgedWorkload]:
    """All workloads by all bases that their machines have."""
    for work in workloads():
        bases: list[Basis] = ["counters"] if work.machine.gpm else []
        bases += [] if work.machine.mig else ["coarse"]
        for basis in bases:
            for seed in range(seeds):
                evidence = evidence_of(*watched(work, basis, seed))
                yield JudgedWorkload(work, basis, evidence, classify(evidence))
    for where, regions in groupby(recorded_workloads(), key=lambda work: work.recording):
        wanted = list(regions)
        for basis in ("counters", "coarse"):
            timeline, recording = recording_of(where, basis)
            for region in wanted:
                evidence = evidence_of(timeline, interval_of(region, recording))
                yield JudgedWorkload(region, basis, evidence, classify(evidence))


def rows(seeds: int = SEEDS) -> Iterator[Row]:
    """The rows of the group."""
    cases = list(judged(seeds))
    said = [case for case in cases if case.said]
    sys.stderr.write(f"{failures(cases)}\n\n{reliability(said)}\n")
    wrong = [case for case in said if case.wrong]
    sure = [case for case in said if case.verdict.confidence >= SURE]
    bad = [case for case in sure if case.wrong]
    yield _row(f"wrong at confidence >={SURE}", bad, len(sure), "none", not bad)
    yield _row("wrong in all", wrong, len(cases), "<=3 %", len(wrong) <= 0.03 * len(cases))
    for basis, most in (("counters", 0.15), ("coarse", 0.5)):
        some = [case for case in cases if case.basis == basis]
        silent = [case for case in some if not case.said]
        # First the names of those whose evidence decides.
        silent.sort(key=lambda case: UNKNOWN in case.work.accepted)
        yield _row(f"UNKNOWN, {basis}", silent, len(some), f"<={100 * most:.0f} %", len(silent) <= most * len(some))
    firm = [case for case in said if case.verdict.confidence > FIRM]
    flipped = [case for case in firm if next(case.flips(), None)]
    yield _row(f"above {FIRM} that flip if one threshold moves by 15 %", flipped, len(firm), "none", not flipped)
    yield from spinning.rows()
    error = calibration_error(said)
    worst = ", ".join(f"{low:.1f}: {right:.0%} of {n}" for low, n, _, right in bins(said))
    figure = f"{error:.3f}; right from a confidence of {worst}"
    yield Row("regimes: expected calibration error", figure, reach="<=0.05", ok=error <= 0.05, cost=error)


def _row(name: str, some: Sequence[JudgedWorkload], of: int, reach: str, ok: bool) -> Row:
    share = len(some) / of if of else 0.0
    figure = f"{len(some)} of {of} ({share:.1%})" + (f": {named(some)}" if some else "")
    return Row(f"regimes: {name}", figure, reach=reach, ok=ok, cost=share)


def named(cases: Iterable[JudgedWorkload]) -> str:
    """The workloads of some cases with their verdicts, without repetitions, shortened."""
    best: dict[str, JudgedWorkload] = {}
    for case in cases:
        if case.name not in best or case.verdict.confidence > best[case.name].verdict.confidence:
            best[case.name] = case
    texts = [name + (f" {c.verdict.regime} {c.verdict.confidence:.2f}" if c.said else "") for name, c in best.items()]
    more = len(texts) - _NAMED
    return ", ".join(texts[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def bins(cases: Sequence[JudgedWorkload]) -> Iterator[tuple[float, int, float, float]]:
    """Of each tenth of confidence with verdicts: where it begins, their number, mean confidence, and share of right."""
    told = np.array([case.verdict.confidence for case in cases])
    right = np.array([not case.wrong for case in cases])
    places = np.minimum((told * _BINS).astype(int), _BINS - 1)
    for place in range(_BINS):
        here = places == place
        if here.any():
            yield place / _BINS, int(here.sum()), float(told[here].mean()), float(right[here].mean())


def calibration_error(cases: Sequence[JudgedWorkload]) -> float:
    """The mean distance of confidence from the share of right verdicts, over tenths of confidence (Naeini 2015)."""
    return sum(n * abs(told - right) for _, n, told, right in bins(cases)) / max(1, len(cases))


def reliability(cases: Sequence[JudgedWorkload]) -> str:
    """The table behind the calibration error."""
    lines = [f"{'confidence':<12}{'verdicts':>10}{'mean':>8}{'right':>8}"]
    lines += [f"{low:<12.1f}{n:>10}{told:>8.2f}{right:>8.2f}" for low, n, told, right in bins(cases)]
    return "\n".join(lines)


def failures(cases: Sequence[JudgedWorkload]) -> str:
    """Each workload with a wrong, missing or fragile verdict: verdicts with their number, the right ones, and why."""
    lines = []
    for name, some in groupby(cases, key=lambda case: case.name):
        group = list(some)
        case = group[0]
        wrong = Counter(str(each.verdict.regime) for each in group if each.wrong)
        silent = UNKNOWN not in case.work.right(case.basis) and sum(not each.said for each in group)
        flips = sorted({f for each in group if each.said and each.verdict.confidence > FIRM for f in each.flips()})
        if not (wrong or silent or flips):
            continue
        top = max((each.verdict.confidence for each in group if each.wrong), default=0.0)
        told = [f"{n} of {len(group)} {regime}, up to {top:.2f}" for regime, n in wrong.items()]
        told += [f"{silent} of {len(group)} UNKNOWN"] if silent else []
        told += [f"flips: {', '.join(flips)}"] if flips else []
        right = ", ".join(sorted(case.work.right(case.basis)))
        lines.append(f"{name}: {'; '.join(told)} | right: {right} | {case.work.why}")
    return "\n".join(lines)

"""The rates of regions that are shorter than a sensor's window, with what is not known of them. Pure.

A sensor that averages over 100 ms cannot see a 5 ms region; the mean of the windows that overlap it converges to the
device's global mean, however long one waits. But every window is a known mixture: its value is the sum, over regions,
of the share of the window in which the region was active times the region's own rate. Over many windows these are
linear equations, and least squares gives the rates back, with intervals, or shows that the equations do not determine
them.

An interval is the hull of those that hold under everything that the windows do not rule out: that stamps err as much as
they may (`stamps`), that the sensor's timing is another one, that rates vary in the ways that `probes` stand for, that
work goes on after regions' ends, that power outside regions is constant after all, or that nothing works there, that
windows have more in common with their neighbours than their noise. A rate is refused if the hull is wide or lies
outside physics, and the reason is what contributes the most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.equations import Equations
from gpu_profile.join.unmixing.probes import Prior, ProbeGroup, ProbeKind, groups_of
from gpu_profile.join.unmixing.shrinkage import CERTAIN, Posterior, omitted, shrink, shrink_without
from gpu_profile.join.unmixing.stamps import StampErrors
from gpu_profile.join.unmixing.undetermined import Undetermined

#: 97.5 % quantile of the normal distribution: half-widths are of 95 % intervals.
Z95: Final = 1.959964
#: The same of Student's t, for 1 to 15 degrees of freedom.
_T95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_LEAST_WIDTH: Final = 0.003  #: no half-width is below this share of its rate
#: A rate is given if its half-width is below this share of it (or of the mean of the signal, if that is larger).
WIDEST_HALF_WIDTH: Final = 0.25
#: This share of the highest rate is next to nothing: a rate that is known by a part of it is known.
_NOTHING: Final = 0.005
#: Rates are taken for steady if errors of stamps explain this share of what steady rates leave, and no more than that.
_MOSTLY: Final = 1 / 3
_TOO_MUCH: Final = 3.0
#: A rate is impossible if it is further beyond physics than this many half-widths: one at its edge is by chance.
_IMPOSSIBLE: Final = 2.0
#: Columns with less than this share of a mixture may be left out of its rate: regions overlap for nanoseconds where
#: marks are rounded, and no window tells that rate. It is at most `most`, or so many times the signal's mean.
_LEAST_SHARE, _HIGHEST = 1e-4, 300.0
#: Fewer windows than this per unknown say nothing about the noise.
WINDOWS_PER_RATE: Final = 4
_SURELY: Final = 1e200  #: what is taken to be 0 is known as well as this
_FEWEST_BLOCKS: Final = 6  #: blocks of windows from which their differences tell anything
_BEYOND: Final = 3.0  #: the data contradict a prior if they move it by more standard deviations than this
#: What physics says of how large a group's unknowns are counts for as much as so many of them.
_BOUND: Final = 2
LOCK_STEP: Final = "not identifiable: the regions run in lock-step with the sensor's window"
TIMING: Final = "not identifiable: several timings of the sensor fit"
ROUNDED: Final = "not identifiable: its readings hardly differ by more than their rounding"
#: Rounding to a step leaves a variance of a twelfth of its square where readings differ enough for it to even out.
#: Where less than this share of that is left, it does not.
_EVEN: Final = 0.15
#: That nothing works outside regions holds for most programs. It is ruled out if it leaves this share more of the
#: variance besides: the equations are an approximation, whose error no number of windows evens out.
_MISFIT: Final = 0.05
_TIMING: Final = (ProbeKind.LAG, ProbeKind.WINDOW)
Variances = Mapping[ProbeGroup, float]  #: the variance of each group's unknowns
#: The simplest rate outside regions that is considered.
Idle = Literal["varies", "steady", "none"]


class Rate(NamedTuple):
    """A region's rate of a signal while it is active: value, half-width of its 95 % interval, windows behind it.

    `reason` is empty if the value can be used, else it says why not. `method` tells rates from the equations from the
    mean of the windows that overlap the region, whose half-width is what the rest of those windows leaves open.
    """

    value: float
    half_width: float
    n: int
    reason: str = ""
    method: Literal["unmixed", "overlap"] = "unmixed"


class Fit:
    """The rates of one of the signals of `equations`, and how far each may be off.

    `errors` is what errors of stamps may add to the equations.
    `others` are the `rates` and `steady` ones under other timings of the sensor that the windows do not rule out,
    `[2, columns]` each. No rate is above `most`. `start` are the variances that the search for those of the groups
    begins with. So many windows tell as much as one that is independent of the others would: `effect`.
    If `idle` is "steady", intervals include the rates that follow if the rate outside regions is steady; if it is
    "none", also those that follow if there is none; unless the windows rule that out. Readings are multiples of `step`.
    `prior` is what is known of the timing beforehand.
    """

    def __init__(
        self, equations: Equations, output: int = 0, *, errors: StampErrors | None = None,
        others: Sequence[Floats] = (), most: float = np.inf, start: Variances | None = None,
        effect: float = 1.0, idle: Idle = "varies", step: float = 0.0, prior: Prior | None = None,
    ) -> None:  # fmt: skip
        self.n, self.most = equations.n, most
        self._first = p = len(equations.probes)
        self._probes = equations.probes
        self._seen = equations.seen[p:].copy()
        gram, columns = equations.gram, equations.columns
        size = len(gram)
        self._gram = gram[p:, p:].copy()
        self._moment = equations.moment[p:, output].copy() if self.n else np.zeros(columns)
        self._unseen = np.diag(self._gram) <= 0
        self._diagonal = np.where(self._unseen, 1.0, np.diag(self._gram))
        self.solution, self.noise, self._scores = np.zeros(size), np.inf, np.zeros((0, size))
        #: The rates, but for what errors of stamps do to them, and the covariance of their errors.
        self.found = Posterior(self.solution, np.zeros((size, size)), np.inf, {}, 0.0)
        #: By column: the rate while it alone is active.
        self._alone: dict[int, Rate] = {}
        self._offsets = np.zeros((0, 2, columns))
        #: By how much each simpler rate outside regions would change the rates, if it is not ruled out.
        self._simpler = np.zeros((0, columns))
        self._means = equations.averages
        self.mean, self._groups = 0.0, groups_of(self._probes)
        self._after = self._groups.pop(ProbeGroup.AFTER, np.zeros(0, np.int64))
        self._step, self._shares = step, equations.total[p:] / max(1, self.n)
        #: The rates by column if they do not vary, and by how much they change if things go on after regions' ends.
        self.steady, self._followed = np.zeros(columns), np.zeros(columns)
        #: How well each unknown was known beforehand, in windows' variances, and the least variance of a window.
        self._known_before, self._least = np.zeros(size), 0.0
        if self.n:
            self._solve(equations, output, gram, errors, start, effect, idle, prior)
            own = np.array([self._means @ self.solution, self.steady])
            #: By timing: how far rates are from these, and steady ones from steady ones.
            self._offsets = np.array([self._padded(other, own) - own for other in others]).reshape(-1, 2, columns)

    def _solve(
        self, equations: Equations, output: int, gram: Floats, errors: StampErrors | None,
        start: Variances | None, effect: float, idle: Idle, prior: Prior | None,
    ) -> None:  # fmt: skip
        p, columns, size = self._first, equations.columns, len(gram)
        square = float(equations.square[output])
        self.mean = abs(float(equations.sum[output])) / self.n
        ceilings = np.full(columns, self.most)
        # What runs in nobody's time is not heavier than what regions do in the busiest window.
        ceilings[0] = min(self.most, float(equations.highest[output]))
        errors = errors or StampErrors(np.zeros((columns, columns)))
        self.steady = steady = np.linalg.lstsq(self._gram, self._moment, rcond=None)[0].astype(np.float64)
        left = max(square - float(steady @ self._moment), 1e-300)
        explained = errors.least * float(steady @ errors.most @ steady) / left
        if explained > _TOO_MUCH:
            errors, explained = errors._replace(least=0.0, likely=0.5), 0.0
        self._open = Undetermined(self._gram, self._moment, square, errors, ceilings, self.most)
        called_for = gram
        if explained > _MOSTLY:
            # What errors of stamps do is no sign that rates vary.
            called_for = gram.copy()
            for places in self._groups.values():
                called_for[places], called_for[:, places] = 0.0, 0.0
        # Of windows that repeat each other, two for each unknown are taken for different, or no noise would be left.
        effect = min(effect, max(1.0, self.n / (2 * size)))
        moment, n = equations.moment[:, output], max(1, round(self.n / effect))
        sums = omitted(self._after, called_for) / effect, moment / effect, square / effect, n
        if prior is not None:
            self._know(prior, sums, start)
            known = np.diag(self._known_before)
            sums, called_for, gram = (sums[0] + known, *sums[1:]), called_for + effect * known, gram + effect * known
        self.found = found = shrink(*sums, self._groups, self.mean, start, self._least)
        self.solution = found.solution
        if idle != "varies" and len(self._after):
            self._followed = self._change_if_followed(found, called_for / effect, sums)
        self._simpler = self._changes(idle, found, sums)
        self.solution[p:] += self._open.moved
        if self.n > int((self._seen > 0).sum()):
            self.noise = found.noise
        self._cluster(equations, output, gram)

    def _know(self, prior: Prior, sums: tuple[Floats, Floats, float, int], start: Variances | None) -> None:
        """What is known beforehand counts as windows that show it."""
        self._least = prior.misfit**2 * max(0.0, sums[2] / sums[3] - self.mean**2)
        noise = shrink(*sums, self._groups, self.mean, start, self._least).noise
        spreads = np.array([prior.spreads_ms.get(probe.kind, np.inf) for probe in self._probes])
        self._known_before[: self._first] = noise / spreads**2

    def _change_if_followed(self, found: Posterior, gram: Floats, sums: tuple[Floats, Floats, float, int]) -> Floats:
        """By how much what goes on after regions' ends, as far as the windows call for it, changes the rates."""
        groups = {**self._groups, ProbeGroup.AFTER: self._after}
        followed = shrink(gram, *sums[1:], groups, self.mean, found.variances, self._least)
        return self._means @ (followed.solution - found.solution)

    def _changes(self, idle: Idle, found: Posterior, sums: tuple[Floats, Floats, float, int]) -> Floats:
        """By how much each simpler rate outside regions, if it is not ruled out, would change the rates by column."""
        varying, sure = self._groups.get(ProbeGroup.IDLE, np.zeros(0, np.int64)), CERTAIN + _MISFIT * sums[-1]
        steady, none = (varying, CERTAIN), (np.append(varying, self._first), sure)
        held: list[tuple[Ints, float]] = {"varies": [], "steady": [steady], "none": [steady, none]}[idle]
        rest = *sums, self._groups, self.mean
        others = [shrink_without(at, found, *rest, certain, self._least) for at, certain in held]
        return np.array([o.solution - found.solution for o in others]).reshape(-1, len(found.solution)) @ self._means.T

    @staticmethod
    def _padded(rates: Floats, own: Floats) -> Floats:
        return np.concatenate((rates[:, : own.shape[1]], own[:, rates.shape[1] :]), axis=1)

    def _cluster(self, equations: Equations, output: int, gram: Floats) -> None:
        """By how much each block of windows moves the solution: the sum of squares is the covariance of its errors by
        what windows of a block have in common."""
        sums = equations.blocks()[:, :, output]
        self._blocks = len(sums)
        if len(sums) < _FEWEST_BLOCKS or not 0 < self.noise < np.inf:
            return
        # The blocks' sums are taken at the equations' reference; here they are wanted at this solution.
        change = np.where(equations.covered, self.solution - equations.reference[:, output], 0.0)
        scores = (sums - gram @ change / len(sums)) @ self.found.covariance / self.noise
        self._scores = (scores - scores.mean(axis=0)) * math.sqrt(len(sums) / (len(sums) - 1))

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """The columns that a window had."""
        return ~self._unseen

    @property
    def precision(self) -> Floats:
        """How well the coefficient of each probe was known to be 0 beforehand, in windows' variances: 0 for those of
        the timing, which are in no group, where nothing is known of them."""
        result = self._known_before[: self._first].copy()
        result[self._after] = _SURELY
        for group, places in self._groups.items():
            if self.found.variances.get(group) and np.isfinite(self.noise):
                result[places] = self.noise / self.found.variances[group]
        return result

    @property
    def rates(self) -> Floats:
        """The rates by column, within physics."""
        return np.clip(self._means @ self.solution, 0.0, self.most)

    def correction(self, kind: ProbeKind) -> float:
        """What a probe of the timing says that it is off by, in ms; 0 if there is no such probe."""
        return next((float(self.solution[i]) for i, probe in enumerate(self._probes) if probe.kind is kind), 0.0)

    def contradicts(self, prior: Prior) -> bool:
        """Whether the windows draw the timing further from what is known of it than chance does, and out of it."""
        drawn = {kind: spread**2 - self.uncertainty(kind) ** 2 for kind, spread in prior.spreads_ms.items()}
        least = {kind: max(spread**2, _BEYOND**2 * drawn[kind]) for kind, spread in prior.spreads_ms.items()}
        return any(self.correction(kind) ** 2 > square for kind, square in least.items())

    def uncertainty(self, kind: ProbeKind) -> float:
        """The standard deviation of that, in ms."""
        places = [i for i, probe in enumerate(self._probes) if probe.kind is kind]
        return math.sqrt(max(0.0, float(self.found.covariance[places[0], places[0]]))) if places else math.inf

    # ------------------------------------------------------------------ answers

    def drawn_to(self, mean: float, spread: float) -> Floats:
        """The rates by column if they come from a normal distribution: the less the windows say of one, the nearer it
        is to the mean."""
        units = self._means
        known = ~self._unseen & np.isfinite(self.noise)
        doubt = (units @ self.found.covariance @ units.T)[np.ix_(known, known)]
        result = np.full(len(units), mean)
        result[known] += spread**2 * np.linalg.solve(doubt + spread**2 * np.eye(len(doubt)), self.rates[known] - mean)
        drawn: Floats = np.clip(result, 0.0, self.most)
        return drawn

    def rate(self, weights: Floats) -> Rate:
        """The rate of a mixture of columns in proportion to `weights`, which add up to 1: a region and those inside."""
        if self.n == 0:
            return Rate(0.0, np.inf, 0, "no samples yet")
        used = np.flatnonzero(weights)
        if len(used) != 1:
            return self._narrowest(weights)
        # One column's is asked for again and again until more windows come.
        if (column := int(used[0])) not in self._alone:
            self._alone[column] = self._narrowest(weights)
        return self._alone[column]

    def _narrowest(self, weights: Floats) -> Rate:
        """The rate with or without the columns that are hardly there, whichever is known better."""
        found, bulk = self._rate(weights), np.where(weights < _LEAST_SHARE, 0.0, weights)
        left = float((weights - bulk).sum()) * min(self.most, _HIGHEST * self.mean)
        without = self._rate(bulk, left) if left else found
        return min(found, without, key=lambda rate: (bool(rate.reason), rate.half_width))

    def _rate(self, weights: Floats, unknown: float = 0.0) -> Rate:
        n, value = int(self._seen[weights > 0].max(initial=0)), float(weights @ self._means @ self.solution)
        half_width = sum(self._widths(weights).values()) + unknown
        reason = self._reason(weights, value, half_width, n)
        result = Rate(min(max(value, 0.0), self.most), half_width, n, reason)
        return (self._overlap(weights, n) or result) if reason else result

    def _widths(self, weights: Floats) -> dict[str, float]:
        """What the half-width is made of, by cause."""
        used = weights > 0
        if not np.isfinite(self.noise) or (used & self._unseen).any():
            return {LOCK_STEP: math.inf}
        opened = self._open.farthest(weights, self.rates)
        if not np.isfinite(opened):
            return {LOCK_STEP: math.inf}
        direction = (self._open.determined(weights) if opened else weights) @ self._means
        along = self.found.covariance @ direction
        variance = float(direction @ along)
        own = {group: min(variance, self.found.due_to(places, along)) for group, places in self._groups.items()}
        # How large a group's unknowns may be is known from those unknowns, and from what physics leaves: Student's t.
        beyond = {group: (_t95(len(self._groups[group]) + _BOUND) / Z95) ** 2 - 1 for group in own}
        spread = variance + sum(part * beyond[group] for group, part in own.items())
        # No sensor is steadier than this, and no program.
        widths = {"": max(Z95 * math.sqrt(max(0.0, spread)), _LEAST_WIDTH * abs(float(direction @ self.solution)))}
        for group, part in own.items():
            if part > 0:
                widths[f"not identifiable: {group}"] = widths[""] * part * (1 + beyond[group]) / spread
        free = np.array([i for i, probe in enumerate(self._probes) if probe.kind in _TIMING], np.int64)
        if len(free) and variance > 0:
            widths[TIMING] = widths[""] * min(1.0, self.found.due_to(free, along) / variance)
        widths[""] -= sum(width for cause, width in widths.items() if cause)
        together = float(np.linalg.norm(self._scores @ direction))
        if together > 0:
            blocks = _t95(self._blocks - 1) * together
            widths["not identifiable: the windows contradict steady rates"] = max(0.0, blocks - sum(widths.values()))
        # The rate that follows from a simpler one outside regions is taken to be no surer than this one.
        idle = f"not identifiable: {ProbeGroup.IDLE}"
        widths[idle] = widths.get(idle, 0.0) + float(np.abs(self._simpler @ weights).max(initial=0.0))
        widths[f"not identifiable: {ProbeGroup.AFTER}"] = abs(float(self._followed @ weights))
        if self.noise < _EVEN * self._step**2 / 12:
            widths[ROUNDED] = self._rounded(weights, variance)
        shift = float(self._open.unsure @ weights)
        widths[LOCK_STEP] = shift + opened
        widths[TIMING] = widths.get(TIMING, 0.0) + max(0.0, self._apart(weights, 0) - shift)
        return widths

    def _rounded(self, weights: Floats, variance: float) -> float:
        """How far rounding all readings in the worst direction moves the rate, within physics.

        An estimate with this variance is a sum of the readings with weights whose sum of squares is `variance / noise`,
        so their sum of magnitudes is no larger than the root of `n` times that (Cauchy and Schwarz).
        """
        half = self._step / 2
        moved = half * math.sqrt(self.n * variance / self.noise) if self.noise > 0 else math.inf
        used = weights > 0
        share = float((self._shares[used] / weights[used]).min())
        value, mean = float(weights @ self.rates), min(self.mean, self.most)
        low = self.most - (self.most - mean + half) / share if share > 0 and math.isfinite(self.most) else -math.inf
        high = (mean + half) / share if share > 0 else math.inf
        return min(moved, max(value - max(0.0, low), min(self.most, high) - value, 0.0))

    def _apart(self, weights: Floats, steady: Literal[0, 1]) -> float:
        """How far the rate, or the steady one, may be from what it is under another timing."""
        return float(np.abs(self._offsets[:, steady] @ weights).max(initial=0.0))

    def _reason(self, weights: Floats, value: float, half_width: float, n: int) -> str:
        """Why a rate is not given; empty if it is."""
        if n < WINDOWS_PER_RATE or self.n < WINDOWS_PER_RATE * len(self._gram):
            return f"too few samples ({n})"
        if self._too_wide(value, half_width):
            widths = self._widths(weights)
            cause = max(widths, key=widths.__getitem__)
            return cause or f"not identifiable yet: ±{half_width:.3g} around {value:.3g}"
        slack = _IMPOSSIBLE * half_width + self._next_to_nothing
        if value + slack < 0 or value - slack > self.most:
            return f"not identifiable: {value:.3g} ± {half_width:.3g} is not possible"
        return ""

    def _too_wide(self, rate: float, half_width: float) -> bool:
        return not half_width <= WIDEST_HALF_WIDTH * max(abs(rate), self.mean, self._next_to_nothing)

    @property
    def _next_to_nothing(self) -> float:
        return _NOTHING * self.most if np.isfinite(self.most) else 0.0

    def _overlap(self, weights: Floats, n: int) -> Rate | None:
        """The mean of the windows by their overlap with the columns, if those fill them well enough.

        Where the columns are active for a share `f` of such windows, their mean is `f·rate + (1 - f)·rest`. No column's
        rate is above its ceiling, what it would be if its windows held nothing else; nor is, so, the rest, which bounds
        the rate without solving any equations.
        """
        used = weights > 0
        share = float(self._gram[used].sum())
        unseen = used & self._unseen
        # Of a column that no window had, nothing is known but the highest rate that there can be.
        if not n or share <= 0 or not np.isfinite(self.noise) or (unseen.any() and not np.isfinite(self.most)):
            return None
        # Shares of a window add up to 1, so that a row of the equations adds up to the column's own share.
        filled = float(self._gram[np.ix_(used, used)].sum()) / share
        mean = float(self._moment[used].sum()) / share
        ceilings = np.where(unseen, self.most, np.minimum(self.most, self._moment / self._diagonal))
        rest = float(self._gram[np.ix_(used, ~used)].sum(axis=0) @ ceilings[~used]) / share
        # The columns are in the windows in proportions of their own, which may differ from the ones asked for.
        surplus = weights - np.where(used, self._gram[used].sum(axis=0), 0.0) / (filled * share)
        low = (mean - rest) / filled + float(np.minimum(surplus, 0.0) @ ceilings)
        high = mean / filled + float(np.maximum(surplus, 0.0) @ ceilings)
        low, high = max(0.0, low), min(self.most, high)
        if low > high:
            # The windows contradict the bounds: columns of next to no time are all rounding.
            return None
        noise = Z95 * float(np.sqrt(self.noise / (filled * share)))
        # Which windows overlap the columns, and how far, is known no better than the timing.
        rate, half_width = (low + high) / 2, (high - low) / 2 + noise + self._apart(weights, 1)
        return None if self._too_wide(rate, half_width) else Rate(rate, half_width, n, "", "overlap")


def _t95(freedom: int) -> float:
    """The 97.5 % quantile of Student's t."""
    return _T95[min(max(freedom, 1), len(_T95)) - 1]

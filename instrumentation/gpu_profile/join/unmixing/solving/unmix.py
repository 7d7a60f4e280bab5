"""Rates of regions that are shorter than a sensor's window, with confidence intervals. Pure.

A sensor that averages over 100 ms cannot resolve a 5 ms region. The mean of the windows that overlap the region
converges to the device's global mean, however many there are. But every window is a mixture with measured proportions:
its value is the sum, over regions, of the share of the window in which each was active times its own rate. Many windows
give linear equations. Least squares solves them for the rates, with intervals, or shows that they are undetermined.

An interval is the hull of the intervals under every assumption that the windows do not rule out. Stamps may be off by
as much as `stamps` allows. The sensor may have another timing. Rates may vary as `probes` model it. Work may continue
after regions' ends. Power outside regions may be constant, or 0. Errors of neighbouring windows may be
correlated. A rate is refused if the hull is wide or lies outside physics. The reason names the largest part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, Literal

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.normal_equations import NormalEquations
from gpu_profile.join.unmixing.solving.overlap import overlapping
from gpu_profile.join.unmixing.solving.rate import (
    STAMPED,
    UNMARKED,
    WIDEST_HALF_WIDTH,
    Z95,
    Rate,
    biased,
    not_yet,
    rounded,
    t95,
    total,
    ways_of,
    within,
)
from gpu_profile.join.unmixing.solving.shrinkage import CERTAIN, Posterior, changes_without, shrink
from gpu_profile.join.unmixing.solving.stamps import StampErrors
from gpu_profile.join.unmixing.solving.undetermined import Undetermined, changed
from gpu_profile.join.unmixing.solving.unmarked import steady_rates
from gpu_profile.join.unmixing.windows.probes import BESIDE, Bools, Prior, ProbeGroup, ProbeKind, groups_of

_LEAST_WIDTH: Final = 0.003  #: no half-width is below this share of its rate
_NOTHING: Final = 0.005  #: half-widths are judged against at least this share of the highest possible rate
#: Rates count as steady if errors of stamps explain from this share to this multiple of the residuals of steady rates.
_MOSTLY: Final = 1 / 3
_TOO_MUCH: Final = 3.0
_IMPOSSIBLE: Final = 2.0  #: a rate is impossible so many half-widths outside physics. Noise puts some just outside
_BUSIEST: Final = 1.5  #: pauses draw at most this multiple of the busiest window's rate
#: Columns with less than this share of a mixture may be left out of its rate: regions overlap for nanoseconds where
#: marks are rounded, and no window determines that rate. It is at most `most`, or this multiple of the signal's mean.
_LEAST_SHARE, _HIGHEST = 1e-4, 300.0
WINDOWS_PER_RATE: Final = 4  #: with fewer windows per unknown, the noise cannot be estimated
_SURELY: Final = 1e200  #: prior precision of a coefficient that is taken to be 0
_FEWEST_BLOCKS: Final = 6  #: blocks of windows that their correlation is estimated from
_BEYOND: Final = 3.0  #: the windows contradict a prior if they move it by more standard deviations than this
#: Degrees of freedom that the physical limit adds to the estimated variance of a group's unknowns.
_BOUND: Final = 2
UNSTEADY: Final = "not identifiable: the windows contradict steady rates"
LOCK_STEP: Final = "not identifiable: the regions run in lock-step with the sensor's window"
TIMING: Final = "not identifiable: several timings of the sensor fit"
ROUNDED: Final = "not identifiable: its readings hardly differ by more than their rounding"
#: Rounding to a step adds a variance of step²/12. A residual below this share of it shows that none averages out.
_EVEN: Final = 0.15
#: In most programs nothing works outside regions. That is ruled out only if it leaves this share more of the variance
#: as well: the equations are an approximation, and no number of windows averages out their error.
_MISFIT: Final = 0.05
_TIMING: Final = (ProbeKind.LAG, ProbeKind.WINDOW)
Variances = Mapping[ProbeGroup, float]  #: the variance of each group's unknowns
#: The simplest rate outside regions that intervals include.
Idle = Literal["varies", "steady", "none"]


class Fit:
    """The rates of one signal of `equations`, and how far each may be off.

    `errors` bounds the contribution of stamp errors to the equations. `others` holds, for each other timing of the
    sensor that the windows do not rule out, the rates and the steady rates, `[2, columns]`. No rate is above `most`.
    `start` gives the variances at which the search for the groups' variances begins. `effect` windows carry as much
    information as one independent window. With `idle` "steady", intervals include the rates under a steady rate outside
    regions; with "none", also the rates under none; each unless the windows rule it out. Readings are multiples of
    `step`, and nearly all are `alike`. `prior` is that of the timing. Of columns `in_step`, windows show the total.
    """

    def __init__(
        self, equations: Equations, output: int = 0, *, errors: StampErrors | None = None,
        others: Sequence[Floats] = (), most: float = np.inf, start: Variances | None = None,
        effect: float = 1.0, idle: Idle = "varies", step: float = 0.0, alike: bool = False,
        prior: Prior | None = None, in_step: Bools | None = None,
    ) -> None:  # fmt: skip
        self.n, self.most = equations.n, most
        self._first = p = len(equations.probes)
        self._probes, self._seen = equations.probes, equations.seen.copy()
        gram, columns = equations.gram, equations.columns
        #: The mean square of each unknown's column over the windows that contain its region.
        self.squares = np.diag(gram) / equations.windows
        size, self._errors = len(gram), errors or StampErrors(np.zeros((columns, columns)))
        self._gram = gram[p:, p:].copy()
        self._moment = equations.moment[p:, output].copy() if self.n else np.zeros(columns)
        self._unseen, self._followed = np.diag(self._gram) <= 0, equations.followed
        self.solution, self.noise, self._scores = np.zeros(size), np.inf, np.zeros((0, size))
        #: The rates before the correction for stamp errors, and the covariance of their errors.
        self.posterior = Posterior(self.solution, np.zeros((size, size)), np.inf, {}, 0.0)
        self.highest = most  #: the highest possible rate outside regions: the busiest window's
        #: By column: its rate alone.
        self._alone: dict[int, Rate] = {}
        self._offsets, self._left_out = np.zeros((0, 2, columns)), np.zeros(columns)
        #: The changes of the rates by each simpler rate outside regions that is not ruled out, and without each kind of
        #: the probes `BESIDE`.
        self._simpler, self._cut, self._means = np.zeros((0, columns)), np.zeros((1, columns)), equations.averages
        self.mean, self._groups, self._shares = 0.0, groups_of(self._probes), equations.total[p:] / max(1, self.n)
        self._after = self._groups.pop(ProbeGroup.AFTER, np.zeros(0, np.int64))
        self._step, self._alike, self._in_step = step, alike, in_step
        #: The rates by column if they do not vary, and their change if work continues after regions' ends.
        self.steady, self._continued = np.zeros(columns), np.zeros(columns)
        #: The prior precision of each unknown, in units of a window's variance, and the least variance of a window.
        self._prior_precision, self._least = np.zeros(size), 0.0
        if self.n:
            self._solve(equations, output, gram, start, effect, idle, prior)
            own = np.array([self._means @ self.solution, self.steady])
            #: By timing: the distance of its rates from these, and of its steady rates from these steady rates.
            every = [np.hstack((other[:, :columns], own[:, other.shape[1] :])) for other in others]
            self._offsets = np.array(every).reshape(-1, 2, columns) - own

    def _solve(
        self, equations: Equations, output: int, gram: Floats,
        start: Variances | None, effect: float, idle: Idle, prior: Prior | None,
    ) -> None:  # fmt: skip
        p, columns, size = self._first, equations.columns, len(gram)
        self.mean = equations.mean(output)
        ceilings = np.full(columns, self.most)
        # Work outside regions draws no more than regions do in the busiest window.
        ceilings[0] = min(self.most, float(equations.highest[output]))
        errors, constant = self._errors, equations.steady(output, gram)
        steady, doubt = steady_rates(constant)
        self.steady, left = steady, max(constant.square - float(steady @ constant.moment), 1e-300)
        explained = errors.least * float(steady @ errors.most @ steady) / left
        if explained > _TOO_MUCH:
            errors, explained = errors._replace(least=0.0, likely=0.5), 0.0
        self.highest = float(ceilings[0])
        # If windows repeat each other, two per unknown still count as different: otherwise no noise would be left.
        effect = min(effect * self.n / equations.distinct, max(1.0, self.n / (2 * size)))
        n = max(1, round(self.n / effect))
        self._open = Undetermined(constant, n, errors, ceilings, self.most, self._in_step)
        unmarked = errors.unmarked * errors.possible(steady, Z95 * doubt)
        self._unmarked = changed(constant, steady, unmarked)
        called_for = gram
        if explained > _MOSTLY:
            # Errors of stamps are no evidence that rates vary.
            called_for = gram.copy()
            for places in self._groups.values():
                called_for[places], called_for[:, places] = 0.0, 0.0
        moment, square = equations.moment[:, output], float(equations.square[output])
        evidence = NormalEquations(called_for / effect, moment / effect, square / effect, n, self.mean)
        if prior is not None:
            self._set_prior(prior, evidence.without(self._after), start)
            evidence = evidence._replace(gram=evidence.gram + np.diag(self._prior_precision))
        sums = evidence.without(self._after)
        self.posterior = posterior = shrink(sums, self._groups, start, self._least)
        self.solution = posterior.solution
        if idle != "varies" and len(self._after):
            self._continued = self._change_if_continued(posterior, evidence)
        rest, kinds = (posterior, sums, self._groups, self._least), [probe.kind for probe in self._probes]
        cut = [(np.array([i for i, each in enumerate(kinds) if each is kind], np.int64), math.inf) for kind in BESIDE]
        simpler = self._simpler_rates(idle, posterior, n)
        self._simpler, self._cut = (changes_without(each, *rest) @ self._means.T for each in (simpler, cut))
        self.solution[p:] += self._open.moved
        if self.n > int((self._seen > 0).sum()):
            self.noise = posterior.noise
        self._cluster(equations, output)

    def _set_prior(self, prior: Prior, sums: NormalEquations, start: Variances | None) -> None:
        """Set the prior precision of the timing: it counts as windows that show the prior's values."""
        self._least = prior.misfit**2 * max(0.0, sums.square / sums.n - self.mean**2)
        noise = shrink(sums, self._groups, start, self._least).noise
        spreads = np.array([prior.spreads_ms.get(probe.kind, np.inf) for probe in self._probes])
        self._prior_precision[: self._first] = noise / spreads**2

    def _change_if_continued(self, fit: Posterior, sums: NormalEquations) -> Floats:
        """By how much work after regions' ends changes the rates, as far as the windows support it."""
        groups = {**self._groups, ProbeGroup.AFTER: self._after}
        continued = shrink(sums, groups, fit.variances, self._least)
        return self._means @ (continued.solution - fit.solution)

    def _simpler_rates(self, idle: Idle, fit: Posterior, n: int) -> list[tuple[Ints, float]]:
        """The unknowns that each simpler rate outside regions does without, and the evidence that rules it out."""
        varying, sure = self._groups.get(ProbeGroup.IDLE, np.zeros(0, np.int64)), CERTAIN + _MISFIT * n
        # Programs work in regions. Pauses that draw more than every region, only because they draw more than other
        # pauses, show that work in regions is taken for work beside them.
        outside, *inside = (self._means @ fit.solution)[self.seen].tolist() if self.seen[0] else [0.0]
        beside = outside > max(inside, default=math.inf) and self.steady[0] < self.steady[1:].max()
        steady, none = (varying, math.inf if beside else CERTAIN), (np.append(varying, self._first), sure)
        return [steady, none][: ("varies", "steady", "none").index(idle)]

    def _cluster(self, equations: Equations, output: int) -> None:
        """Compute by how much each block of windows moves the solution. The sum of the squares is the covariance of the
        solution's errors that comes from correlation between the windows of a block."""
        if not 0 < self.noise < np.inf:
            return
        self._left_out = equations.left_out(output)
        apart = equations.blocks()[:, :, output]
        if len(apart) >= _FEWEST_BLOCKS:
            scale = math.sqrt(len(apart) / (len(apart) - 1)) / self.noise
            self._scores = apart @ self.posterior.covariance * scale

    @property
    def seen(self) -> Bools:
        """The columns that were active in at least one window."""
        return ~self._unseen

    @property
    def precision(self) -> Floats:
        """The prior precision of each probe's coefficient around 0, in units of a window's variance.

        The probes of the timing are in no group: without a prior, their precision is 0."""
        result = self._prior_precision[: self._first].copy()
        result[self._after] = _SURELY
        for group, places in self._groups.items():
            if self.posterior.variances.get(group) and np.isfinite(self.noise):
                result[places] = self.noise / self.posterior.variances[group]
        return result

    @property
    def rates(self) -> Floats:
        """The rates by column, within physics."""
        return np.clip(self._means @ self.solution, 0.0, self.most)

    @property
    def if_unmarked(self) -> Floats:
        """The rates by column, within physics, if executions without a mark have the largest effect on them."""
        return np.clip(self._means @ self.solution + self._unmarked, 0.0, self.most)

    def correction(self, kind: ProbeKind) -> float:
        """The correction, in ms, that the coefficient of a probe of the timing asks for; 0 without such a probe."""
        return next((float(self.solution[i]) for i, probe in enumerate(self._probes) if probe.kind is kind), 0.0)

    def contradicts(self, prior: Prior) -> bool:
        """Whether the windows move the timing further from its prior than chance does, and out of the prior's range."""
        drawn = {kind: spread**2 - self.uncertainty(kind) ** 2 for kind, spread in prior.spreads_ms.items()}
        least = {kind: max(spread**2, _BEYOND**2 * drawn[kind]) for kind, spread in prior.spreads_ms.items()}
        return any(self.correction(kind) ** 2 > square for kind, square in least.items())

    def uncertainty(self, kind: ProbeKind) -> float:
        """The standard deviation of the `correction`, in ms; infinite without such a probe."""
        places = [i for i, probe in enumerate(self._probes) if probe.kind is kind]
        return math.sqrt(max(0.0, float(self.posterior.covariance[places[0], places[0]]))) if places else math.inf

    # ------------------------------------------------------------------ answers

    def drawn_to(self, mean: float, spread: float) -> Floats:
        """The rates by column under a normal prior with this mean and standard deviation: the less the windows
        determine a rate, the nearer it is to the mean."""
        units = self._means
        used = ~self._unseen & np.isfinite(self.noise)
        doubt = (units @ self.posterior.covariance @ units.T)[np.ix_(used, used)]
        result = np.full(len(units), mean)
        result[used] += spread**2 * np.linalg.solve(doubt + spread**2 * np.eye(len(doubt)), self.rates[used] - mean)
        drawn: Floats = np.clip(result, 0.0, self.most)
        return drawn

    def rate(self, weights: Floats) -> Rate:
        """The rate of a mixture of columns, such as a region and those inside it. `weights` add up to 1."""
        if self.n == 0:
            return Rate(0.0, np.inf, 0, "no samples yet")
        used = np.flatnonzero(weights)
        if len(used) != 1:
            return self._narrowest(weights)
        # The rate of one column is requested repeatedly until more windows arrive.
        if (column := int(used[0])) not in self._alone:
            self._alone[column] = self._narrowest(weights)
        return self._alone[column]

    def _narrowest(self, weights: Floats) -> Rate:
        """The rate with or without the columns of negligible weight, whichever is narrower."""
        full, bulk = self._rate(weights), np.where(weights < _LEAST_SHARE, 0.0, weights)
        left = float((weights - bulk).sum()) * min(self.most, _HIGHEST * self.mean)
        without = self._rate(bulk, left) if left else full
        return min(full, without, key=lambda rate: (bool(rate.reason), rate.half_width))

    def _rate(self, weights: Floats, unknown: float = 0.0) -> Rate:
        n, widths = int(self._seen[weights > 0].max(initial=0)), self._widths(weights)
        widths[""] = widths.get("", 0.0) + unknown
        value, half_width = float(weights @ self._means @ self.solution), total(widths)
        reason = self._reason(weights, widths, value, half_width, n) or self._outside
        result = Rate(min(max(value, 0.0), self.most), half_width, n, reason)
        doubtful = reason or self._too_wide(value, half_width)
        return (self._overlap(weights, n) or result) if doubtful else result

    @cached_property
    def _outside(self) -> str:
        """Why no rate is right: pauses certainly draw far more than the busiest window. Empty if they do not."""
        outside = np.eye(1, len(self._means))[0]
        value, half_width = float(outside @ self._means @ self.solution), total(self._widths(outside))
        if value - half_width <= _BUSIEST * self.highest:
            return ""
        return f"not identifiable: {value:.3g} ± {half_width:.3g} outside regions is not possible"

    def _widths(self, weights: Floats) -> dict[str, float]:
        """The parts of the half-width by cause."""
        used = weights > 0
        if not np.isfinite(self.noise) or (used & self._unseen).any():
            return {LOCK_STEP: math.inf}
        opened = self._open.farthest(weights, self._means @ self.solution)
        if not np.isfinite(opened):
            return {LOCK_STEP: math.inf}
        direction = (self._open.determined(weights) if opened else weights) @ self._means
        along = self.posterior.covariance @ direction
        variance = float(direction @ along)
        own = {group: min(variance, self.posterior.due_to(places, along)) for group, places in self._groups.items()}
        # A group's variance is estimated from its own unknowns and from the physical limit: hence Student's t.
        beyond = {group: (t95(len(self._groups[group]) + _BOUND) / Z95) ** 2 - 1 for group in own}
        spread = variance + sum(part * beyond[group] for group, part in own.items())
        # No sensor and no program is steadier than this.
        widths = {"": max(Z95 * math.sqrt(max(0.0, spread)), _LEAST_WIDTH * abs(float(direction @ self.solution)))}
        for group, part in own.items():
            if part > 0:
                widths[f"not identifiable: {group}"] = widths[""] * part * (1 + beyond[group]) / spread
        free = np.array([i for i, probe in enumerate(self._probes) if probe.kind in _TIMING], np.int64)
        if len(free) and variance > 0:
            widths[TIMING] = widths[""] * min(1.0, self.posterior.due_to(free, along) / variance)
        widths[""] -= sum(width for cause, width in widths.items() if cause)
        blocks = t95(len(self._scores) - 1) * float(np.linalg.norm(self._scores @ direction))
        # Where the common factor followed the mix of regions, the one may pass for the other.
        besides = abs(float(self._followed @ weights)) + abs(float(self._left_out @ weights))
        widths[UNSTEADY] = max(0.0, blocks - sum(widths.values())) + besides
        if self._uneven:
            widths[ROUNDED] = self._rounded(weights, variance)
        widths[LOCK_STEP] = self._open.unsure(weights) + opened
        widths[STAMPED] = self._errors.moved(weights, self.rates, self._shares)
        for cause, ways in self._ways(weights).items():
            widths[cause] = widths.get(cause, 0.0) + max(ways)
        return widths

    def _ways(self, weights: Floats) -> dict[str, tuple[float, float]]:
        """By cause: the largest decrease and increase of the rate under other assumptions, as certain as this one."""
        # Power may vary in other ways than these outside regions and in shared time: their effects count both ways. The
        # kinds of `BESIDE` are the first terms of a series, and the smaller effect shows the size of the next.
        idle, beside = np.abs(self._simpler @ weights).max(initial=0.0), np.abs(self._cut @ weights).min()
        return {
            f"not identifiable: {ProbeGroup.IDLE}": (float(idle), float(idle)),
            f"not identifiable: {ProbeGroup.BESIDE}": (float(beside), float(beside)),
            f"not identifiable: {ProbeGroup.AFTER}": ways_of(self._continued @ weights),
            UNMARKED: ways_of(self._unmarked @ weights),
            TIMING: ways_of(self._offsets[:, 0] @ weights, self._open.unsure(weights)),
        }

    @property
    def _uneven(self) -> float:
        """The step of readings if their rounding does not average out, else 0."""
        return self._step if self._alike or self.noise < _EVEN * self._step**2 / 12 else 0.0

    def _rounded(self, weights: Floats, variance: float) -> float:
        """The largest change of the rate by rounding, within physics. Any timing fits readings that are alike."""
        used = weights > 0
        share = float((self._shares[used] / weights[used]).min())
        moved = math.sqrt(self.n * variance / self.noise) if self.noise > 0 and not self._alike else math.inf
        value, mean = float(weights @ self.rates), min(self.mean, self.most)
        return rounded(value, self._uneven / 2, moved, mean, share, self.most)

    def _reason(self, weights: Floats, widths: Mapping[str, float], value: float, half_width: float, n: int) -> str:
        """Why a rate is not given; empty if it is."""
        if n < WINDOWS_PER_RATE or self.n < WINDOWS_PER_RATE * len(self._gram):
            return f"too few samples ({n})"
        # The estimate may not be in the middle of the possible rates.
        if self._too_wide(value, half_width) and self._too_wide(*within(value, widths, self._ways(weights), self.most)):
            cause = max(widths, key=lambda each: widths[each])
            return cause or not_yet(value, half_width, widths[""], self._widest(value))
        slack = _IMPOSSIBLE * half_width + self._next_to_nothing
        if value + slack < 0 or value - slack > self.most:
            return f"not identifiable: {value:.3g} ± {half_width:.3g} is not possible"
        return ""

    def _too_wide(self, rate: float, half_width: float) -> bool:
        return not half_width <= self._widest(rate)

    def _widest(self, rate: float) -> float:
        return WIDEST_HALF_WIDTH * max(abs(rate), self.mean, self._next_to_nothing)

    @property
    def _next_to_nothing(self) -> float:
        return _NOTHING * self.most if np.isfinite(self.most) else 0.0

    def _overlap(self, weights: Floats, n: int) -> Rate | None:
        """The mean of the windows that overlap the columns, if the columns fill them well enough."""
        bounds = overlapping(self._gram, self._moment, weights, self.most)
        if not n or not np.isfinite(self.noise) or bounds is None:
            return None
        low, high, windows, filled = bounds
        rate, noise = (low + high) / 2, Z95 * math.sqrt(self.noise / windows)
        # Other timings change how much windows overlap. The windows' rest magnifies rounding.
        moved = self._open.by_exchange(weights, self.rates) + self._errors.moved(weights, self.rates, self._shares)
        for changes in (self._offsets[:, 1], self._unmarked, self._continued):
            moved += float(np.max(np.abs(changes @ weights), initial=0.0))
        moved += (high - low) / 2 + self._uneven / 2 * (1 / filled - 1)
        half_width = max(biased(noise, moved), _LEAST_WIDTH * rate)
        return None if self._too_wide(rate, half_width) else Rate(rate, half_width, n, "", "overlap")

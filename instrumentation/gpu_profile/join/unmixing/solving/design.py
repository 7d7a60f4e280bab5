"""Windows, and their equations under a timing of the sensor. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats, Ints, Singles
from gpu_profile.join.unmixing.solving.sums import LeftOut, Sums
from gpu_profile.join.unmixing.windows.active_time import ActiveTime, Placed
from gpu_profile.join.unmixing.windows.beside import beside
from gpu_profile.join.unmixing.windows.pauses import yield_to_program
from gpu_profile.join.unmixing.windows.probes import CENTRED, PAUSES, VARIED, Probe, ProbeKind, run_time, slots_of
from gpu_profile.join.unmixing.windows.sensor import Sensor, clear_of, moments_of
from gpu_profile.units import NS_PER_S

#: Windows whose equations are made at once: more would need more memory, fewer more time.
_AT_ONCE: Final = 512
#: The unit of a probe's lag and window, in ns.
_MS: Final = 1e6
#: Windows are alike if, in each of this many parts, the active shares differ by at most this much of a part.
_PARTS: Final = 4
_ALIKE: Final = 0.04
#: A counter's growth over more periods than this is spread over this number: a gap of hours has tens of thousands.
_MOST_PERIODS: Final = 16
#: A sampler was starved during a window of more than this many usual ones. A missed renewal makes a window of two.
STARVED: Final = 2.5
#: The probes of the timing, in the order of their effects in `Design.probes`.
_TIMING: Final = (ProbeKind.LAG, ProbeKind.LAG_DRIFT, ProbeKind.WINDOW)

#: Rows of equations, one per window: shares, values, probes, and how often each counts.
Rows = tuple[Floats, Floats, Floats, Ints]


class Windows(NamedTuple):
    """Windows of a family: the stamps of their edges in ns since the epoch, and every signal's integrals over them."""

    starts: Ints
    ends: Ints
    masses: Floats

    @classmethod
    def joined(cls, some: Sequence[Windows]) -> Windows:
        """Several sets of windows as one."""
        starts, ends, masses = zip(*some, strict=True)
        return cls(np.concatenate(starts), np.concatenate(ends), np.concatenate(masses))

    def where(self, keep: npt.NDArray[np.bool_]) -> Windows:
        """The windows to keep."""
        return self if keep.all() else Windows(self.starts[keep], self.ends[keep], self.masses[keep])

    def parts(self) -> Iterator[Windows]:
        """The windows in chunks."""
        n, count = len(self.ends), -(-len(self.ends) // _AT_ONCE)
        for i in range(count):
            cut = slice(i * n // count, (i + 1) * n // count)
            yield Windows(self.starts[cut], self.ends[cut], self.masses[cut])


class Design:
    """The equations of windows under given sensor timings. `values[n, signals]` are the signals' means.

    `counts`: the masses are a counter's growth. Windows without a clear position between renewals are left out. For a
    sensor that `follows` without a period, shares and means are weighted by the windows' lengths. `usual_ns` is the
    usual length, if it is known.

    Several sensors must have the same `form`. Then `n` counts the windows of the first sensor, of the next, and so on:
    `rows` has each one's slice. `patterns` needs a single sensor, and `probes` sensors with equal windows.
    """

    def __init__(self, windows: Windows, *sensors: Sensor, counts: bool, usual_ns: float = 0) -> None:
        yield_to_program()
        placed = [sensor.placed(windows.ends) for sensor in sensors]
        self._sensors, sensor = placed, placed[0]
        n, edges = len(windows.ends), np.concatenate((windows.starts, windows.ends))
        moments = moments_of(placed, edges)
        starts, ends = moments[:, :n], moments[:, n:]
        keep = ends > starts
        #: By sensor: windows that contradict it, because the counter grew in no time.
        self.contradicting = (~keep & (windows.masses[:, 0] > 0) & counts).sum(axis=1)
        #: By sensor: windows left out, because a renewal is too near to determine on which side of it they are.
        self.unclear = np.zeros(len(placed), np.int64)
        self._counts = counts
        #: The windows, which of them each sensor leaves out as unclear, and the times between their moments.
        self._unclear: tuple[Windows, npt.NDArray[np.bool_], Ints] | None = None
        if sensor.period_ns and not sensors[0].follows:
            clear = clear_of(placed, edges)
            clear = keep & clear[:, :n] & clear[:, n:]
            left = keep.sum(axis=1) - clear.sum(axis=1)
            enough = 2 * left <= keep.sum(axis=1)
            self.unclear[enough] = left[enough]
            kept = np.where(enough[:, None], clear, keep)
            self._unclear, keep = (windows, keep & ~kept, ends - starts), kept
        bounds = [0, *keep.sum(axis=1).cumsum().tolist()]
        self.rows = [slice(*each) for each in pairwise(bounds)]
        of, window = np.nonzero(keep)
        #: By row, the index of its sensor.
        self._of = of
        #: For windows with several parts, the index of each one's first part.
        self._first: Ints | None = None
        self._starts, self._ends = starts, ends = starts[keep], ends[keep]
        self.ends = windows.ends[window]
        # A counter grew between the moments. The driver averaged a mean over the time between its stamps.
        lengths = ends - starts if counts else self.ends - windows.starts[window]
        values = windows.masses[window] * NS_PER_S / lengths[:, None]
        self._weights = np.ones(len(lengths))
        if sensor.follows:
            # Inaccurate moments move mass between short and long rows: weights by length keep the sums right.
            for rows in self.rows:
                usual_ns = usual_ns or lengths[rows].sum() / max(1, len(lengths[rows]))
                starved = lengths[rows] > STARVED * usual_ns
                self._weights[rows] = np.sqrt(np.where(starved, 1.0, lengths[rows] / max(1.0, usual_ns)))
        self.values: Floats = values * self._weights[:, None]
        self._look(placed, lengths, counts=counts)

    def _look(self, placed: Sequence[Sensor], lengths: Ints, *, counts: bool) -> None:
        """Set the moments up to which active time is looked up, and their factors and scales."""
        sensor, of, starts, ends = placed[0], self._of, self._starts, self._ends
        self._factors = sensor.kernel()[1]
        if sensor.window_ns:
            # Kernels of one form differ only in scale.
            self._offsets = np.array([each.kernel()[0] for each in placed])
            self._factors = self._factors * sensor.window_ns
            self._scale = self._weights / np.array([each.window_ns for each in placed])[of]
            if counts and sensor.period_ns:
                # Growth over several periods belongs to a window in each of them. A sample stands for many periods.
                period = np.array([each.period_ns for each in placed])[of]
                periods = np.maximum(1, np.rint(lengths / period).astype(np.int64))
                many = np.minimum(periods, _MOST_PERIODS)
                self._first, row = np.cumsum(many) - many, np.repeat(np.arange(len(many)), many)
                self._scale = (self._scale / many)[row]
                back = (np.arange(len(row)) - self._first[row]) * periods[row] // many[row]
                ends, of = ends[row] - back * period[row], of[row]
            moments = ends + self._offsets.T[:, of]
        else:
            spread = sensor.spread()[:, None]
            moments = np.concatenate((ends + spread, starts + spread))
            self._scale = self._weights / (ends - starts)
        #: By index along the moments of one offset, the index of the sensor.
        self._moments_of = of
        #: Grouped by offset: lookups are faster if moments come in order of time.
        self._moments = moments.ravel()
        #: For a single sensor, each moment once: the place of every one of them. Windows share their edges.
        self._place: Ints | None = None
        self._placed: tuple[ActiveTime, Placed | None] | None = None
        if len(placed) == 1:
            self._moments, self._place = np.unique(self._moments, return_inverse=True)

    def times(self, active: ActiveTime, columns: int, usual_ns: int) -> Ints:
        """How often each row counts: once, or as often as `usual_ns` fits in the long pieces of a starved sampler's
        window. So sums over rows are over time. Pieces are long from half of `usual_ns` on: the program may have
        stopped with the sampler, and no other window shows that. Shorter executions have others like them."""
        times = np.ones(len(self._ends), np.int64)
        for i in np.flatnonzero(self._ends - self._starts > STARVED * usual_ns).tolist() if usual_ns else ():
            spent = active.spent(int(self._starts[i]), int(self._ends[i]), columns, least_ns=usual_ns // 2)
            times[i] = max(1, round(float(spent.sum()) / usual_ns))
        return times

    @staticmethod
    def form(sensor: Sensor) -> tuple[int, ...]:
        """The properties that sensors of one design share."""
        framed, renewed = bool(sensor.window_ns), bool(sensor.period_ns)
        return framed, sensor.smooth, renewed, sensor.follows, sensor.blur_ns, sensor.jitter_ns

    def _weighted(self, integrals: Floats, factors: Floats | None = None) -> Floats:
        """By window: the weighted sum of integrals up to each moment, `[rows, moments]` to `[n, rows]`."""
        factors = self._factors if factors is None else factors
        integrals = integrals if self._place is None else integrals.take(self._place, axis=1)
        parts = integrals.reshape(len(integrals), len(factors), -1)
        result: Floats = ((factors @ parts) * self._scale).T
        return result if self._first is None else np.add.reduceat(result, self._first, axis=0)

    def _latest(self) -> Ints | None:
        """For each moment, the latest one of its sensor; None for a single sensor."""
        if self._place is not None:
            return None
        latest, of = np.full(len(self.rows), np.iinfo(np.int64).min), self._moments_of
        parts = self._moments.reshape(-1, len(of))
        np.maximum.at(latest, of, parts.max(axis=0))
        return np.tile(latest[of], len(parts))

    def left_out(self) -> list[LeftOut]:
        """By sensor: the windows left out."""
        ranges = [(math.inf, -math.inf)] * len(self.rows)
        if self._unclear is not None:
            windows, out, lengths = self._unclear
            for i in np.flatnonzero(self.unclear):
                each, period = out[i], self._sensors[i].period_ns
                ranges[i] = _range(windows.where(each), lengths[i, each] / period, period, counts=self._counts)
        every = zip(self.unclear.tolist(), self.contradicting.tolist(), ranges, strict=True)
        return [LeftOut(unclear, contradicting, *values) for unclear, contradicting, values in every]

    def shares(self, active: ActiveTime, columns: int) -> Floats:
        """The active share of every window by column, `[n, columns]`."""
        if not len(self._moments):
            return np.zeros((0, columns))
        if self._sensors[0].smooth:
            some = zip(self._sensors, self.rows, strict=True)
            smoothed = [_smoothed(active, columns, sensor, self._ends[rows]) for sensor, rows in some]
            shares: Floats = np.concatenate(smoothed, axis=1).T * self._weights[:, None]
        else:
            shares = self._weighted(active.until(self._moments, columns, self._placed_in(active)))
        rest = self._weights - shares[:, 1:].sum(axis=1)
        shares[:, 0] = np.minimum(np.maximum(rest, 0.0), self._weights)
        return shares

    def _placed_in(self, active: ActiveTime) -> Placed | None:
        """The places of the moments among the pieces of active time. Kept, because shares and probes need them."""
        if self._placed is None or self._placed[0] is not active:
            self._placed = active, active.placed(self._moments)
        return self._placed[1]

    def patterns(self, active: ActiveTime, columns: int) -> Floats:
        """The active shares in each part of every window by column: `[n, parts * columns]`, without column 0."""
        sensor, ends = self._sensors[0], self._ends
        # For a smoothing sensor, the time with most of the weight.
        starts = ends - sensor.length_ns if sensor.length_ns else self._starts
        edges = starts[:, None] + np.outer(ends - starts, np.arange(_PARTS + 1)) // _PARTS
        passed = active.until(edges.ravel(), columns)
        ran = np.diff(passed.reshape(columns, *edges.shape), axis=2) / np.maximum(1, np.diff(edges, axis=1))
        result: Floats = ran[1:].transpose(1, 0, 2).reshape(len(edges), (columns - 1) * _PARTS)
        return result

    def probes(
        self, active: ActiveTime, probes: Sequence[Probe], shares: Floats, rates: Floats, origin_ns: int,
        centres: Floats | Singles | None = None,
    ) -> Floats:  # fmt: skip
        """The probes of every window, `[n, probes]`.

        `rates` weight the timing's probes by column, `[columns]` or `[sensors, columns]`. Run time counts from
        `origin_ns`. `centres` has the means of the probes `CENTRED` by column: tails first, then `BESIDE` unless no
        time is shared. None: there are no such probes.
        """
        n, columns = shares.shape
        if not n or not probes:
            return np.zeros((n, len(probes)))
        plan = _Plan.of(tuple(probes), columns)
        running, varied = active.varied(self._moments, plan.slots, self._placed_in(active))
        running[0] = 1.0 - running[1:].sum(axis=0)
        weights = np.zeros((len(self.rows), columns))
        weights[:, : min(columns, rates.shape[-1])] = rates[..., :columns]
        drawn = self._drawn(weights, running)
        integrals = [drawn, *varied.values(), active.gaps.integrals(self._moments, self._latest())]
        if centres is not None:
            integrals.append(active.tails(self._moments, plan.slots))
            if centres.shape[1] > len(integrals[-1]):
                integrals.append(beside(active, self._moments, plan.slots))
        # All at once: for a few windows, numpy's cost per call dominates.
        weighted = self._weighted(np.concatenate(integrals))
        if centres is not None and centres.size:
            # Centred over the time of each column, so that rates are means that include the effects of others.
            size = min(columns, len(centres))
            weighted[:, -centres.shape[1] :] -= shares[:, :size] @ centres[:size]
        time = run_time(self.ends, origin_ns)
        timing = np.zeros((n, len(_TIMING)))
        timing[:, 0] = weighted[:, 0] * -_MS
        timing[:, 1] = timing[:, 0] * time
        if self._sensors[0].window_ns:
            moved = self._weighted(drawn, self._factors * self._offsets[0])[:, 0]
            moved -= np.einsum("nc,nc->n", shares, weights[self._of])
            timing[:, 2] = moved * (_MS / self._sensors[0].window_ns)
        effects = np.concatenate((timing, shares * time[:, None], weighted[:, 1:]), axis=1)
        return effects.take(plan.places, axis=1)

    def _drawn(self, weights: Floats, running: Floats) -> Floats:
        """The rate at each moment, `[1, moments]`, from each sensor's rates and from what is running."""
        if self._place is not None:
            return weights @ running
        parts = running.reshape(len(running), -1, len(self._moments_of))
        drawn: Floats = np.einsum("nc,cmn->mn", weights[self._moments_of], parts).reshape(1, -1)
        return drawn


class Observed(NamedTuple):
    """Windows under timings: their design, and the shares `[rows, columns]` and values `[rows]` of its rows."""

    design: Design
    shares: Floats
    values: Floats

    def predicted(self, rates: Sequence[Floats]) -> Floats:
        """The values `[rows]` that the rates under each timing predict."""
        predicted = [self.shares[rows] @ each for rows, each in zip(self.design.rows, rates, strict=True)]
        return np.concatenate(predicted)

    def clipped(self, predicted: Floats, limit: float) -> Observed:
        """The same windows with residuals from the prediction clipped to the limit."""
        return self._replace(values=clipped_to(self.design.values[:, 0], predicted, limit))


def clipped_to(values: Floats, predicted: Floats, limit: float) -> Floats:
    """Values with residuals from the prediction clipped to the limit."""
    clipped: Floats = predicted + np.clip(values - predicted, -limit, limit)
    return clipped


def by_form(sensors: Iterable[Sensor], also: Callable[[Sensor], int] = lambda _: 0) -> Iterable[list[Sensor]]:
    """Sensors without repetitions, in groups for one design: with one `Design.form` and one value of `also`."""
    forms: dict[tuple[int, ...], list[Sensor]] = {}
    for sensor in dict.fromkeys(sensors):
        forms.setdefault((*Design.form(sensor), also(sensor)), []).append(sensor)
    return forms.values()


def totals(some: Iterable[Observed]) -> list[Sums]:
    """By sensor: the sums over all windows."""
    result: list[Sums] = []
    for design, shares, values in some:
        of = zip(design.rows, design.left_out(), strict=True)
        sums = [Sums.of(shares[rows], values[rows], left_out) for rows, left_out in of]
        result = [one.plus(more) for one, more in zip(result, sums, strict=True)] if result else sums
    return result


def _range(windows: Windows, periods: Floats, period_ns: int, *, counts: bool) -> tuple[float, float]:
    """The range of the windows' values, whichever side of a renewal their edges are on. A counter may have grown for a
    period more or less than its `periods`."""
    masses = windows.masses[:, 0]
    if not counts:
        values = masses * NS_PER_S / (windows.ends - windows.starts)
        return float(values.min()), float(values.max())
    values, periods = masses * NS_PER_S / period_ns, np.rint(periods)
    return float((values / np.maximum(1, periods - 1)).min()), float((values / (periods + 1)).max())


class _Plan(NamedTuple):
    """The layout of probes: for each column, its slot among the probed columns or -1; for each probe, its place among
    all effects that `Design.probes` computes."""

    slots: Ints
    places: Ints

    @staticmethod
    @lru_cache(16)
    def of(probes: tuple[Probe, ...], columns: int) -> _Plan:
        """The layout of some probes. Cached, because the same probes are requested repeatedly."""
        slots, none = slots_of(probes, columns), np.zeros(columns, np.int64)
        places, first = dict[ProbeKind, Ints](), 0
        for kinds, within in (
            (_TIMING, none[:1]),
            ((ProbeKind.DRIFT,), np.arange(columns)),
            (VARIED, slots),
            (PAUSES, none[:1]),
            (CENTRED, slots),
        ):
            for kind in kinds:
                places[kind] = first + within
                first += 1 + int(within.max())
        return _Plan(slots, np.array([places[kind][column] for kind, column in probes]))


def _smoothed(active: ActiveTime, columns: int, sensor: Sensor, ends: Ints) -> Floats:
    """A smoothing sensor's readings at moments, averaged over its spread: `[columns, moments]`."""
    moments = ends[:, None] + sensor.spread()
    order = np.argsort(moments.ravel(), kind="stable")
    values = np.empty((columns, moments.size))
    values[:, order] = active.smoothed(moments.ravel()[order], columns, sensor.window_ns)
    smoothed: Floats = values.reshape(columns, *moments.shape).mean(axis=2)
    return smoothed


def alike(patterns: Floats) -> Ints:
    """The group of each window: windows with nearly equal active shares, `patterns[n, k]`, form a group."""
    if not len(patterns):
        return np.zeros(0, np.int64)
    groups: Ints = np.unique(np.rint(patterns / _ALIKE), axis=0, return_inverse=True)[1].ravel()
    return groups


def design_effect(errors: Floats, groups: Ints, unknowns: int) -> float:
    """The number of windows that carry as much information as one independent window: 1 if no two are alike.

    Noise differs between similar windows. An error of the equations does not, so repetitions add no information. The
    result is the mean square of the groups' common errors over that of all errors (Kish, *Survey Sampling*, 1965,
    ch. 5). It is infinite with no more groups than unknowns: then the unknowns fit anything.
    """
    counts = np.bincount(groups)
    if len(counts) == len(errors):
        return 1.0
    if len(counts) <= unknowns:
        return math.inf
    common = float((np.bincount(groups, errors) ** 2 / counts).sum()) / (len(counts) - unknowns)
    square = float(errors @ errors) / len(errors)
    return max(1.0, common / square) if square > 0 else 1.0

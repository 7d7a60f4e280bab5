"""Looking for a sensor's timing in its windows, and the equations that follow from one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.active_time import ActiveTime, SampledTime
from gpu_profile.join.unmixing.sensor import (
    FINE_STEPS_NS,
    IN_STEP,
    JITTERS_NS,
    LONGEST_LAG_NS,
    STEP_NS,
    Sensor,
    following,
    in_step,
    lagging,
    renewing,
    renews_faster,
    shapes,
    unsteadiness_ns,
)
from gpu_profile.join.unmixing.unmix import Z95, Unmixer
from gpu_profile.units import NS_PER_S

#: The coarse grid is tried on the newest windows alone...
_COARSE: Final = 500
#: ... and on active time at moments so far apart.
_ROUGH_NS: Final = 2_000_000
#: More pieces of active time than this are searched by what is active of each half millisecond, which is less work and
#: off by an eighth of one at a window's edges at most; unless they are few for so many cells, or cells are too many.
_MANY_PIECES: Final = 4000
_CELL_NS: Final = 500_000
_CELLS_PER_PIECE: Final = 3
_MOST_CELLS: Final = 1_000_000
#: Windows whose equations are made at once: more would take room, fewer time.
_AT_ONCE: Final = 512
#: Of many shapes, so many are tried with renewals too.
_SHAPES: Final = 2
#: So many points of the coarse grid are followed to their minimum.
_STARTS: Final = 12
#: Scores are differences of log likelihoods, doubled. A timing is a rival of the best one if it is less than this away,
#: not followed to its minimum if it is further away than this, and not looked at more closely than on the coarse grid,
#: where a neighbour's score is all that is known, beyond this.
_CERTAIN: Final = 20.0
_HOPELESS: Final = 60.0
_FAR_OFF: Final = 200.0
#: A sensor that renews itself, but with a lag of its own besides, has this much against it to begin with.
_STRANGE: Final = 20.0
#: How far from the minimum its curvature is measured, and the most that a lag is said to be off.
_NEAR_NS: Final = 1_000_000
_WORST_LAG_NS: Final = 10_000_000
#: A stamp's error is only believed in if it leaves this much less of the residual: chance finds a little.
_BETTER: Final = 0.98


class Windows(NamedTuple):
    """Windows of a family: the stamps of their edges in ns since the epoch, and every signal's masses over them."""

    starts: Ints
    ends: Ints
    masses: Floats

    @classmethod
    def joined(cls, some: Sequence[Windows]) -> Windows:
        """Several as one."""
        starts, ends, masses = zip(*some, strict=True)
        return cls(np.concatenate(starts), np.concatenate(ends), np.concatenate(masses))

    def where(self, keep: npt.NDArray[np.bool_]) -> Windows:
        """Some of them."""
        return self if keep.all() else Windows(self.starts[keep], self.ends[keep], self.masses[keep])

    def parts(self) -> Iterator[Windows]:
        """All of them, some at a time."""
        n, count = len(self.ends), -(-len(self.ends) // _AT_ONCE)
        for i in range(count):
            cut = slice(i * n // count, (i + 1) * n // count)
            yield Windows(self.starts[cut], self.ends[cut], self.masses[cut])


def design_of(
    windows: Windows, active: ActiveTime | SampledTime, columns: int, sensor: Sensor, *, counts: bool
) -> tuple[Floats, Floats]:
    """Shares of every window by column, `[n, columns]`, and the signals' means over it, if the sensor is as given.

    `counts`: the masses are a counter's growth. Windows of which it is unclear what they are of are left out; those of
    a sensor that `follows` without a period are weighted by their lengths, both shares and means.
    """
    follows, sensor = sensor.follows, sensor.placed(windows.ends)
    starts, ends = sensor.moments(windows.starts), sensor.moments(windows.ends)
    keep = ends > starts
    if sensor.period_ns and not follows:
        clear = keep & sensor.clear(windows.starts) & sensor.clear(windows.ends)
        if clear.sum() * 2 >= keep.sum():
            keep = clear
    if not keep.all():
        starts, ends = starts[keep], ends[keep]
        windows = windows.where(keep)
    # A counter grew between the moments; a mean was taken by the driver over whatever it covered.
    lengths = ends - starts if counts else windows.ends - windows.starts
    values = windows.masses * NS_PER_S / lengths[:, None]
    # Moments that are off make much of a short row what belongs to a long one: by length, sums come out right.
    weights = np.sqrt(lengths / lengths.mean()) if sensor.follows and len(lengths) else None
    if sensor.window_ns:
        offsets, factors = sensor.kernel()
        shares = _weighted(active, ends[:, None] + offsets, factors, columns)
    else:
        spread = sensor.spread()
        offsets, factors = np.append(spread, spread), np.repeat([1.0, -1.0], len(spread)) / len(spread)
        edges = np.concatenate((ends[:, None] + spread, starts[:, None] + spread), axis=1)
        shares = _weighted(active, edges, factors, columns) / (ends - starts)[:, None]
    shares[:, 0] = np.clip(1.0 - shares[:, 1:].sum(axis=1), 0.0, 1.0)
    if weights is not None:
        shares, values = shares * weights[:, None], values * weights[:, None]
    return shares, values


def _weighted(active: ActiveTime | SampledTime, moments: Ints, factors: Floats, columns: int) -> Floats:
    """The sum over each row's moments of the columns' active time up to them, times `factors`: `[n, columns]`."""
    flat = moments.ravel()
    if not len(flat):
        return np.zeros((0, columns))
    if isinstance(active, SampledTime):
        sampled: Floats = (active.until(flat, columns).reshape(columns, *moments.shape) @ factors).T
        return sampled
    order = np.argsort(flat, kind="stable")
    flat = flat[order]
    sums = active.until(flat, columns)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    result: Floats = (sums[:, place].reshape(columns, *moments.shape) @ factors).T
    return result


class Found(NamedTuple):
    """A timing, the mean squared error that it leaves, and how far its lag may be off (a standard deviation).

    `rivals` are other timings that the windows do not rule out. `repeats` windows tell as much as one would if they did
    not overlap.
    """

    sensor: Sensor
    residual: float
    lag_sd_ns: float
    rivals: tuple[Sensor, ...]
    repeats: float


class Search:
    """The search for the timing of one family in `windows`, whose first signal is `lead`.

    `known` are timings that an earlier search could not rule out: they are followed too.
    """

    def __init__(
        self, lead: Signal, windows: Windows, active: ActiveTime, columns: int, most: float,
        *, known: Sequence[Sensor] = (),
    ) -> None:  # fmt: skip
        self.lead = lead
        self.windows = windows
        self.columns = columns
        self.most = most
        self._reach_ns = LONGEST_LAG_NS + max(shape.reach_ns for shape in shapes(lead)) + 2 * lead.refresh_ns
        self._pieces = active
        self._active = self._coarse()
        self._known = known
        self._alone = windows._replace(masses=windows.masses[:, :1])
        self._unsteadiness_ns = unsteadiness_ns(windows.ends)
        #: The catalogue's period is only nominal: what the readings show goes first.
        self._faster = renews_faster(lead, windows.ends)
        if self._faster:
            # A reading may be as old as the sensor's period, which is no longer than what lies between two.
            self._unsteadiness_ns += int(np.median(windows.ends - windows.starts)) // 4
        #: Sums of squares are not more exact than this, and no fit is better.
        means = self._alone.masses[:, 0] * NS_PER_S / (windows.ends - windows.starts)
        self._least = 1e-9 * float((means**2).mean()) + 1e-30
        self._variance = float(means.var())

    def _coarse(self) -> ActiveTime | SampledTime:
        """Active time as it is searched."""
        active = self._pieces
        if len(active.starts) <= _MANY_PIECES or not len(self.windows.ends):
            return active
        start, end = int(self.windows.starts[0]) - self._reach_ns, int(self.windows.ends[-1]) + self._reach_ns
        cells = (end - start) // _CELL_NS
        if cells > _CELLS_PER_PIECE * len(active.starts) or cells * self.columns > _MOST_CELLS:
            return active
        return active.sampled(start, end, _CELL_NS, self.columns)

    def _fitted(self, sensor: Sensor, windows: Windows, active: ActiveTime | SampledTime) -> Unmixer:
        unmixer = Unmixer(self.most)
        for part in windows.parts():
            unmixer.add(*design_of(part, active, self.columns, sensor, counts=self.lead.kind is Kind.COUNTER))
        return unmixer

    def residual(self, sensor: Sensor) -> float:
        """Mean squared error that a timing leaves."""
        return self._left(self._fitted(sensor, self._alone, self._active), len(self.windows.ends))

    def _left(self, fitted: Unmixer, n: int) -> float:
        """The mean squared error of `n` windows, where nothing but their mean tells those that were left out."""
        used = fitted.n / n
        return max(self._least, (used * fitted.residual if used else 0.0) + (1 - used) * self._variance)

    def run(self) -> Found:
        """The timing under which the windows are the most likely."""
        known = [sensor for sensor in self._known if sensor.follows == self._faster]
        if self._faster:
            # A period that is looked for is found anew with every reading more.
            known = [sensor for sensor in known if not sensor.period_ns]
        starts = [sensor._replace(blur_ns=FINE_STEPS_NS[0]) for sensor in known]
        starts += [start for start in self._starts() if all(_apart(start, known) for known in starts)]
        tried = [self._refined(start) for start in starts]
        best, left = min(tried, key=lambda t: self._score(*t))
        most = self._score(best, left) + _CERTAIN
        rivals = tuple(t[0] for t in tried if _apart(t[0], best) and self._score(*t) < most)
        return Found(best, left, self._lag_sd_ns(best, left), rivals, self._repeats(best))

    def _score(self, sensor: Sensor, left: float) -> float:
        """Twice how much less likely (natural logarithm) the windows are than with a residual of 1.

        A timing that is not how such sensors work has to be that much better.
        """
        strange = (
            self.lead.refresh_ns and not self._faster and not sensor.in_step and (sensor.lag_ns or not sensor.period_ns)
        )
        return len(self.windows.ends) * float(np.log(left)) + (_STRANGE if strange else 0.0)

    def _starts(self) -> list[Sensor]:
        """The best points of the coarse grid that are not each other's neighbours, moved to the best near them."""
        alone = self._alone
        few = Windows(alone.starts[-_COARSE:], alone.ends[-_COARSE:], alone.masses[-_COARSE:])
        start, end = int(few.starts[0]) - self._reach_ns, int(few.ends[-1]) + self._reach_ns
        rough = self._pieces.sampled(start, end, _ROUGH_NS, self.columns)

        def ranked(grid: list[Sensor]) -> list[tuple[float, int, Sensor]]:
            left = [self._left(self._fitted(sensor, few, rough), len(few.ends)) for sensor in grid]
            return [
                (self._score(sensor, one), i, sensor) for i, (sensor, one) in enumerate(zip(grid, left, strict=True))
            ]

        step = in_step(self.lead, self.windows.ends)
        every = [shape._replace(follows=self._faster) for shape in shapes(self.lead)]
        # What differs between stamps that are in step is the reader's doing: no lag behind a stamp is worth trying.
        tried = ranked(lagging(every)) if step < IN_STEP or self._faster else []
        if self._faster:
            tried += ranked(following(every, self.windows.starts, self.windows.ends))
        elif self.lead.refresh_ns:
            if tried and len(every) > _SHAPES:
                least = {shape: min(score for score, _, s in tried if _shape(s) == shape) for shape in every}
                every = sorted(every, key=least.__getitem__)[:_SHAPES]
            tried += ranked(renewing(every, self.lead, self.windows.ends))
        apart: list[Sensor] = []
        first = min(tried)[0]
        for score, _, sensor in sorted(tried):
            if len(apart) == _STARTS or score > first + _FAR_OFF:
                break
            if all(_apart(sensor, other) for other in apart):
                apart.append(sensor)
        # In a loop that hardly varies, what is right and what is wrong are few milliseconds apart.
        nearer = [min(ranked([*start.around(FINE_STEPS_NS[0])])) for start in apart]
        most = min(nearer)[0] + _HOPELESS
        return [start for score, _, start in nearer if score < most]

    def _refined(self, sensor: Sensor) -> tuple[Sensor, float]:
        left = np.inf
        if not sensor.in_step:
            sensor = self._jittered(sensor, self.residual(sensor))
        for step in FINE_STEPS_NS[1:]:
            tried = [(near, self.residual(near)) for near in sensor.around(step)]
            sensor, left = min(tried, key=lambda t: self._score(*t))
        return sensor, left

    def _jittered(self, sensor: Sensor, left: float) -> Sensor:
        """The sensor with that error of its stamps which leaves clearly less residual; as it is if none does."""
        best, least = sensor, left * _BETTER
        for jitter in JITTERS_NS:
            if jitter > 2 * self._unsteadiness_ns + JITTERS_NS[0]:
                break
            tried = sensor._replace(jitter_ns=jitter)
            left = self.residual(tried)
            if left < least:
                best, least = tried, left
        return best

    def _lag_sd_ns(self, sensor: Sensor, left: float) -> float:
        """From how fast the residual grows beside its minimum: with `n` windows, `2 σ² / (n · residual'')`."""
        sides = [self.residual(sensor._replace(lag_ns=sensor.lag_ns + move)) for move in (-_NEAR_NS, _NEAR_NS)]
        bend = (sum(sides) - 2 * left) / _NEAR_NS**2
        n = len(self.windows.ends)
        spread = np.sqrt(2 * left / (bend * n)) if bend > 0 else np.inf
        return float(np.hypot(min(spread, _WORST_LAG_NS), sensor.blur_ns / np.sqrt(12)))

    def _repeats(self, sensor: Sensor) -> float:
        """How much larger the variances of the rates are than if the windows' errors were independent.

        Newey and West, Econometrica 55 (1987), 703, in short: what the errors of windows that overlap have in common,
        times what their shares have in common, which is what the windows have.
        """
        steps = np.diff(self.windows.ends)
        length = sensor.window_ns * (2 if sensor.smooth else 1)
        overlapping = int(length // max(1, int(np.median(steps)))) if len(steps) else 0
        if overlapping < 2:
            return 1.0
        counts, rates = self.lead.kind is Kind.COUNTER, self._fitted(sensor, self._alone, self._active).rates()
        errors = np.concatenate(
            [
                values[:, 0] - shares @ rates
                for shares, values in (
                    design_of(part, self._active, self.columns, sensor, counts=counts) for part in self._alone.parts()
                )
            ]
        )
        square = float(errors @ errors)
        alike = sum(
            float(errors[lag:] @ errors[:-lag]) / square * (1 - lag / overlapping)
            for lag in range(1, min(overlapping, len(errors)))
        )
        return max(1.0, 1 + 2 * alike) if square > 0 else 1.0

    def swing(self, found: Found) -> Floats:
        """By how much each column's rate of each signal may be off as the timing is: a standard deviation."""
        outputs = range(self.windows.masses.shape[1])

        def rates(sensor: Sensor) -> Floats:
            fitted = self._fitted(sensor, self.windows, self._active)
            return np.array([fitted.rates(output) for output in outputs]).T

        sensor = found.sensor
        late, early = (rates(sensor._replace(lag_ns=sensor.lag_ns + move)) for move in (_NEAR_NS, -_NEAR_NS))
        result: Floats = (late - early) * (found.lag_sd_ns / (2 * _NEAR_NS))
        if found.rivals:
            here = rates(sensor)
            apart = np.abs(np.array([rates(rival) - here for rival in found.rivals])).max(axis=0)
            # Any of the rivals may be the truth; signs are those of the swing, so that what goes together stays so.
            result = np.copysign(np.hypot(result, apart / Z95), result)
        return result


def _shape(sensor: Sensor) -> Sensor:
    return Sensor(window_ns=sensor.window_ns, smooth=sensor.smooth)


def _apart(one: Sensor, other: Sensor) -> bool:
    """Whether two timings are not just neighbours on the grid."""
    if _shape(one) != _shape(other) or (one.period_ns, one.follows) != (other.period_ns, other.follows):
        return True
    if one.period_ns and not one.follows:
        turn = (one.phase_ns - one.lag_ns - other.phase_ns + other.lag_ns) % one.period_ns
        return min(turn, one.period_ns - turn) > STEP_NS
    return abs(one.lag_ns - other.lag_ns) > STEP_NS

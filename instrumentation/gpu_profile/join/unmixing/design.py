"""Windows, and the equations that they make under a timing of the sensor. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.active_time import ActiveTime, SampledTime
from gpu_profile.join.unmixing.probes import Kind, Probe, run_time
from gpu_profile.join.unmixing.sensor import Sensor
from gpu_profile.units import NS_PER_S

#: Windows whose equations are made at once: more would take room, fewer time.
_AT_ONCE: Final = 512
#: The unit of a lag and of a window in their probes.
_MS: Final = 1e6
#: Windows are alike if what ran in each of these parts of them is the same but for this share of a part.
_PARTS: Final = 4
_ALIKE: Final = 0.04


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


class Design:
    """The equations of some windows if the sensor is as given. `values[n, signals]` are the signals' means.

    `counts`: the masses are a counter's growth. Windows of which it is unclear what they are of are left out; those of
    a sensor that `follows` without a period are weighted by their lengths, both shares and means.
    """

    def __init__(self, windows: Windows, sensor: Sensor, *, counts: bool) -> None:
        follows, sensor = sensor.follows, sensor.placed(windows.ends)
        starts, ends = sensor.moments(windows.starts), sensor.moments(windows.ends)
        keep = ends > starts
        #: How many windows contradict the sensor: the counter grew in what would be no time.
        self.contradicting = int((~keep & (windows.masses[:, 0] > 0)).sum()) if counts else 0
        #: ... and how many are left out because a renewal is too near to tell which side of it they are on.
        self.unclear = 0
        if sensor.period_ns and not follows:
            clear = keep & sensor.clear(windows.starts) & sensor.clear(windows.ends)
            if clear.sum() * 2 >= keep.sum():
                self.unclear = int(keep.sum() - clear.sum())
                keep = clear
        if not keep.all():
            starts, ends = starts[keep], ends[keep]
            windows = windows.where(keep)
        self.ends = windows.ends
        # A counter grew between the moments; a mean was taken by the driver over whatever it covered.
        lengths = ends - starts if counts else windows.ends - windows.starts
        values = windows.masses * NS_PER_S / lengths[:, None]
        # Moments that are off make much of a short row what belongs to a long one: by length, sums come out right.
        self._weights = np.sqrt(lengths / lengths.mean()) if sensor.follows and len(lengths) else np.ones(len(lengths))
        self.values: Floats = values * self._weights[:, None]
        self._window_ns = sensor.window_ns
        #: Where each window begins and ends, of a smoothing sensor's those times in which most of it is.
        self._spans = (ends - (sensor.window_ns * (2 if sensor.smooth else 1) or ends - starts), ends)
        self._scale = self._weights
        self._smooth = (ends[:, None] + sensor.spread()) if sensor.smooth else None
        if sensor.window_ns:
            self._offsets, self._factors = sensor.kernel()
            moments = ends[:, None] + self._offsets
        else:
            spread = sensor.spread()
            self._offsets = np.append(spread, spread)
            self._factors = np.repeat([1.0, -1.0], len(spread)) / len(spread)
            moments = np.concatenate((ends[:, None] + spread, starts[:, None] + spread), axis=1)
            self._scale = self._weights / (ends - starts)
        flat = moments.ravel()
        self._shape = moments.shape
        self._order = np.argsort(flat, kind="stable")
        self._moments = flat[self._order]
        self._place = np.empty_like(self._order)
        self._place[self._order] = np.arange(len(self._order))

    def _weighted(self, integrals: Floats, factors: Floats | None = None) -> Floats:
        """What integrals up to each moment, `[rows, moments]`, say of each window: `[n, rows]`."""
        parts = integrals[:, self._place].reshape(len(integrals), *self._shape)
        result: Floats = (parts @ (self._factors if factors is None else factors)).T * self._scale[:, None]
        return result

    def shares(self, active: ActiveTime | SampledTime, columns: int) -> Floats:
        """Shares of every window by column, `[n, columns]`."""
        if not len(self._moments):
            return np.zeros((0, columns))
        if self._smooth is not None and isinstance(active, ActiveTime):
            flat = self._smooth.ravel()
            order = np.argsort(flat, kind="stable")
            found = np.empty((columns, len(flat)))
            found[:, order] = active.smoothed(flat[order], columns, self._window_ns)
            shares: Floats = found.reshape(columns, *self._smooth.shape).mean(axis=2).T * self._weights[:, None]
        else:
            shares = self._weighted(active.until(self._moments, columns))
        shares[:, 0] = np.clip(self._weights - shares[:, 1:].sum(axis=1), 0.0, self._weights)
        return shares

    def patterns(self, active: ActiveTime | SampledTime, columns: int) -> Floats:
        """What ran in each part of every window, as shares of the part by column: `[n, parts * columns]`."""
        starts, ends = self._spans
        edges = starts[:, None] + np.outer(ends - starts, np.arange(_PARTS + 1)) // _PARTS
        order = np.argsort(edges.ravel(), kind="stable")
        passed = np.empty((columns, edges.size))
        passed[:, order] = active.until(edges.ravel()[order], columns)
        ran = np.diff(passed.reshape(columns, *edges.shape), axis=2) / np.maximum(1, np.diff(edges, axis=1))
        result: Floats = ran[1:].transpose(1, 0, 2).reshape(len(edges), (columns - 1) * _PARTS)
        return result

    def probes(
        self, active: ActiveTime, probes: Sequence[Probe], shares: Floats, rates: Floats, origin_ns: int
    ) -> Floats:
        """The probes of every window, `[n, probes]`.

        `rates` are those that the timing's probes are weighted by, by column; run time counts from `origin_ns`.
        """
        n, columns = shares.shape
        result = np.zeros((n, len(probes)))
        if not n or not probes:
            return result
        slots = np.full(columns, -1)
        probed = sorted({p.column for p in probes if p.column > 0})
        slots[probed] = np.arange(len(probed))
        running, varied = active.varied(self._moments, slots)
        running[0] = 1.0 - running[1:].sum(axis=0)
        weights = np.zeros(columns)
        weights[: min(columns, len(rates))] = rates[:columns]
        drawn = (weights @ running)[None, :]
        found: dict[Kind, Floats] = {kind: self._weighted(each) for kind, each in varied.items()}
        found |= {kind: self._weighted(each[None, :]) for kind, each in active.gaps.integrals(self._moments).items()}
        time = run_time(self.ends, origin_ns)
        lag = -self._weighted(drawn)[:, 0] * _MS
        for i, (kind, column) in enumerate(probes):
            if kind is Kind.DRIFT:
                result[:, i] = shares[:, column] * time
            elif kind is Kind.LAG:
                result[:, i] = lag
            elif kind is Kind.LAG_DRIFT:
                result[:, i] = lag * time
            elif kind is Kind.WINDOW:
                moved = self._weighted(drawn, self._factors * self._offsets)[:, 0] - shares @ weights
                result[:, i] = moved * (_MS / self._window_ns)
            else:
                result[:, i] = found[kind][:, slots[column] if column else 0]
        return result


def alike(patterns: Floats) -> Ints:
    """The group of each window, of which `patterns[n, k]` are what ran in it: those of a group are alike."""
    if not len(patterns):
        return np.zeros(0, np.int64)
    groups: Ints = np.unique(np.rint(patterns / _ALIKE), axis=0, return_inverse=True)[1].ravel()
    return groups


def design_effect(errors: Floats, groups: Ints, unknowns: int) -> float:
    """How many windows tell as much as one would if they were independent: 1 if no two are alike.

    Noise differs between windows that are alike. What is wrong with the equations does not, and shows once, however
    often they come: the mean square of what groups of them have in common, over that of all errors (Kish, *Survey
    Sampling*, 1965, ch. 5). It is infinite if there are no more groups than unknowns, which then fit anything.
    """
    counts = np.bincount(groups)
    if len(counts) == len(errors):
        return 1.0
    if len(counts) <= unknowns:
        return math.inf
    common = float((np.bincount(groups, errors) ** 2 / counts).sum()) / (len(counts) - unknowns)
    square = float(errors @ errors) / len(errors)
    return max(1.0, common / square) if square > 0 else 1.0

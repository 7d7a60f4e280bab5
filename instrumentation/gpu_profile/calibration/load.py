"""A known load on a device, and its share in any window of a sensor. Pure."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats, Ints

Shape = Literal["interval", "mean", "exponential"]

_MS: Final = 1e6


class Load(NamedTuple):
    """The only work on the device: edges in ns by the clock of the stamps, and the level of each, from 0."""

    starts: Ints
    ends: Ints
    levels: Ints

    @property
    def kinds(self) -> int:
        """The number of levels."""
        return int(self.levels.max(initial=-1)) + 1


class Renewed(NamedTuple):
    """Renewals: their moments in ms after the origin, the readings, the moments of the renewals before, and weights.
    A weight is the inverse of the standard deviation, up to a factor."""

    at: Floats
    values: Floats
    before: Floats
    weights: Floats

    @classmethod
    def of(cls, at: Floats, values: Floats, before: Floats) -> Self:
        """Observations with equal weights."""
        return cls(at, values, before, np.ones(len(at)))

    def where(self, part: slice | npt.NDArray[np.bool_]) -> Renewed:
        """A part of the renewals."""
        return Renewed(*(column[part] for column in self))


class LoadTime:
    """The time that each level has been on until any moment, in ms."""

    def __init__(self, load: Load, origin_ns: int) -> None:
        self.count = load.kinds
        self._edges, self._sums = [], []
        for level in range(load.kinds):
            mine = load.levels == level
            edges = np.column_stack([(part[mine] - origin_ns) / _MS for part in (load.starts, load.ends)]).ravel()
            lengths = edges[1::2] - edges[::2]
            sums = np.concatenate(([0.0], np.repeat(np.cumsum(lengths), 2)[:-1]))
            self._edges.append(edges)
            self._sums.append(sums)

    def until(self, moments: Floats) -> Floats:
        """The time until every moment, `[levels, *moments.shape]`."""
        return np.array([np.interp(moments, e, s) for e, s in zip(self._edges, self._sums, strict=True)])

    def shares(self, seen: Renewed, shape: Shape, lag: Floats | float, window: float) -> Floats:
        """The share of each level in each observation, `[levels, *lag.shape, n]`."""
        at = seen.at - np.asarray(lag)[..., None]
        if shape == "interval":
            before = seen.before - np.asarray(lag)[..., None]
            return (self.until(at) - self.until(before)) / (seen.at - seen.before)
        if shape == "mean":
            return (self.until(at) - self.until(at - window)) / window
        return np.array([followed(at, edges, window) for edges in self._edges])


def followed(moments: Floats, edges: Floats, constant: float) -> Floats:
    """The output at `moments` of an exponential filter. Its input switches on and off by turns at `edges`. Times in ms.

    It is the exact solution of `constant * dy/dt = input - y` from 0 on.
    """
    shown = [0.0]
    for i, share in enumerate(np.exp(-np.diff(edges) / constant).tolist()):
        level = 1.0 if i % 2 == 0 else 0.0
        shown.append(level + (shown[-1] - level) * share)
    at = np.maximum(moments, edges[0])
    place = np.searchsorted(edges, at, side="right") - 1
    levels = np.where(place % 2 == 0, 1.0, 0.0)
    filtered: Floats = levels + (np.array(shown)[place] - levels) * np.exp((edges[place] - at) / constant)
    return filtered

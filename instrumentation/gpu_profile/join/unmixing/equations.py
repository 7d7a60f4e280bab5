"""The normal equations of many windows, kept as sums: what any number of windows says, in a fixed space. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.least_squares import least_of_each
from gpu_profile.join.unmixing.probes import Probe, ProbeKind

#: Windows are summed by blocks of time, whose differences show what windows have in common with their neighbours.
#: With this many, every two become one.
_MOST_BLOCKS: Final = 16
#: Multiplications of one product of rows: for more than some 400,000, OpenBLAS has all cores wait for one another.
_AT_ONCE: Final = 200_000
#: This share of a probe's own strength is rounding.
_ROUNDING: Final = 1e-11
_Float = TypeVar("_Float", np.float64, np.float32)


class Equations:
    """Sums over windows. Unknowns are the probes' coefficients, then the columns' rates, nobody's first.

    `probes` are those of every window that is added; signals share the windows. `columns` are there to begin with.
    """

    def __init__(self, probes: Sequence[Probe] = (), columns: int = 1) -> None:
        self.probes = tuple(probes)
        size = len(self.probes) + columns
        #: Of equations without probes: what they were on average over the time of their columns.
        self.means: dict[Probe, float] = {}
        self.n = 0
        #: Half of the symmetric `gram`, which is most of what there is to keep.
        self._upper: Floats = np.zeros(size * (size + 1) // 2)
        #: By signal: sums with each unknown, of values, and of their squares, and the highest value.
        self.moment: Floats = np.zeros((size, 1))
        self.sum: Floats = np.zeros(1)
        self.square: Floats = np.zeros(1)
        self.highest: Floats = np.zeros(1)
        #: Sums of each unknown's columns, and the windows that had some of it.
        self.total: Floats = np.zeros(size)
        self.seen = np.zeros(size, np.int64)
        #: The solution that the blocks' sums are taken at; there are none before there is one.
        self.reference: Floats = np.zeros((size, 1))
        #: The unknowns that it covers: windows that have others are in no block.
        self.covered = np.zeros(size, bool)
        #: Windows of each block, and its sums of the unknowns' columns times what the reference leaves.
        self._blocks: list[tuple[int, Floats]] = []
        self._block = 1

    @property
    def gram(self) -> Floats:
        """Sums of products of each two unknowns' columns."""
        return unpacked(self._upper, len(self.total))

    @property
    def averages(self) -> Floats:
        """What sums of the unknowns are the mean rates of columns over all of their time: `[columns, unknowns]`."""
        p = len(self.probes)
        result = np.eye(self.columns, len(self.total), p)
        for i, (kind, column) in enumerate(self.probes):
            # What follows a region is around its mean over the time of each column already.
            if 0 <= column < self.columns and self.total[p + column] > 0 and kind is not ProbeKind.TAIL:
                result[column, i] = self.total[i] / self.total[p + column]
        return result

    def without_probes(self, precision: Floats) -> Equations:
        """What the windows say of the columns' mean rates: of the probes' coefficients, only how they go with those.

        `precision` is how well each coefficient was known to be 0 beforehand, in windows' variances.
        """
        result, p = Equations(), len(self.probes)
        averages = self.averages
        result.means = {
            probe: float(averages[probe.column, i])
            for i, probe in enumerate(self.probes)
            if 0 <= probe.column < self.columns
        }
        # With probes around their means over the time of their column, its rate is the mean.
        around = np.eye(len(self.total))
        around[p:, :p] = -averages[:, :p]
        gram, moment = around.T @ self.gram @ around, around.T @ self.moment
        own = np.diag(gram)[:p]
        inner = gram[:p, :p] + np.diag(precision + _ROUNDING * own + (own <= 0))
        goes_with, left = np.linalg.solve(inner, gram[:p, p:]), np.linalg.solve(inner, moment[:p])
        into = around @ np.concatenate((-goes_with, np.eye(self.columns)))
        result.n, result._block = self.n, self._block
        result.sum, result.highest = self.sum.copy(), self.highest.copy()
        result._upper = packed(gram[p:, p:] - gram[p:, :p] @ goes_with)
        result.moment = moment[p:] - gram[p:, :p] @ left
        result.square = self.square - (moment[:p] * left).sum(axis=0)
        result.total, result.seen = self.total[p:].copy(), self.seen[p:].copy()
        result.covered = self.covered[p:].copy()
        result.reference = np.linalg.solve(around, self.reference)[p:].astype(np.float64)
        result._blocks = [(n, (into.T @ sums).astype(np.float32)) for n, sums in self._blocks]
        return result

    def with_probes(self, probes: Sequence[Probe]) -> Equations:
        """The same equations, which have no probes, for windows that have these to be added."""
        result, p = self.copy(), len(probes)
        result.probes = tuple(probes)
        into = np.concatenate((self._means_of(probes, self.columns), np.eye(self.columns)), axis=1)
        result._upper = packed(into.T @ self.gram @ into)
        result.moment, result.total = into.T @ self.moment, self.total @ into
        result.reference = np.pad(self.reference, ((p, 0), (0, 0)))
        result.seen = np.append(np.zeros(p, np.int64), self.seen)
        result.covered = np.append(np.full(p, self.covered.any()), self.covered)
        result._blocks = [(n, (into.T @ sums).astype(np.float32)) for n, sums in self._blocks]
        return result

    def _means_of(self, probes: Sequence[Probe], columns: int) -> Floats:
        """What probes were on average, at their columns: `[columns, probes]`."""
        result = np.zeros((columns, len(probes)))
        for i, probe in enumerate(probes):
            if 0 <= probe.column < columns:
                result[probe.column, i] = self.means.get(probe, 0.0)
        return result

    def copy(self) -> Equations:
        """The same equations, to go on from twice."""
        result = Equations(self.probes)
        result.n, result._block = self.n, self._block
        result.means = dict(self.means)
        for name in ("_upper", "moment", "sum", "square", "highest", "total", "seen", "reference", "covered"):
            setattr(result, name, getattr(self, name).copy())
        result._blocks = [(n, sums.copy()) for n, sums in self._blocks]
        return result

    @property
    def columns(self) -> int:
        """Columns so far, nobody's included."""
        return len(self.total) - len(self.probes)

    def add(self, shares: Floats, values: Floats, probes: Floats | None = None) -> None:
        """Take windows in.

        `shares[n, k]` is the share of each window in which each column was active, `values[n]` or `values[n, s]` what
        the sensor said, and `probes[n, p]` are the windows' probes.
        """
        if not len(values):
            return
        probes = np.zeros((len(values), len(self.probes))) if probes is None else probes
        values = values[:, None] if values.ndim == 1 else values
        outputs = values.shape[1]
        if self.n == 0:
            self.moment = np.zeros((len(self.total), outputs))
            self.sum, self.square, self.highest = np.zeros(outputs), np.zeros(outputs), np.zeros(outputs)
            if self.reference.shape[1] != outputs:
                self.reference = np.zeros((len(self.total), outputs))
        self._grow(shares.shape[1])
        rows = np.concatenate((probes, shares), axis=1)
        size = rows.shape[1]
        parts = np.array_split(rows, 1 + len(rows) * size**2 // _AT_ONCE)
        products = np.sum([part.T @ part for part in parts], axis=0)
        if size < len(self.total):
            products = np.pad(products, (0, len(self.total) - size))
        self._upper += packed(products)
        self.moment[:size] += rows.T @ values
        self.total[:size] += rows.sum(axis=0)
        self.seen[:size] += np.count_nonzero(rows > 0, axis=0)
        self.sum += values.sum(axis=0)
        self.square += (values**2).sum(axis=0)
        self.highest = np.maximum(self.highest, values.max(axis=0))
        self.n += len(values)
        if self.covered.any():
            known = ~(rows[:, ~self.covered[:size]] != 0).any(axis=1)
            self._add_blocks(rows[known], (values - rows @ self.reference[:size])[known])

    def _add_blocks(self, rows: Floats, errors: Floats) -> None:
        size, at = rows.shape[1], 0
        while at < len(rows):
            if not self._blocks or self._blocks[-1][0] >= self._block:
                if len(self._blocks) == _MOST_BLOCKS:
                    self._halve()
                    continue
                self._blocks.append((0, np.zeros(self.moment.shape, np.float32)))
            n, sums = self._blocks[-1]
            part = slice(at, at + self._block - n)
            sums[:size] += rows[part].T @ errors[part]
            took = len(rows[part])
            self._blocks[-1] = n + took, sums
            at += took

    def _halve(self) -> None:
        self._blocks = [
            (a + b, first + second)
            for (a, first), (b, second) in zip(self._blocks[::2], self._blocks[1::2], strict=True)
        ]
        self._block *= 2

    def refer(self, solution: Floats, seen: Ints) -> None:
        """Take the blocks' sums at another solution, which so many windows of each unknown told of. If it covers more
        unknowns, the blocks begin anew."""
        self._grow(len(solution) - len(self.probes))
        covered = seen > 0
        covered[: len(self.probes)] = True
        if (covered & ~self.covered).any():
            self._blocks, self._block = [], 1
        # Each block has its part of the equations of all windows.
        moved = self.gram @ (solution - self.reference) / max(1, self.n)
        self._blocks = [(n, (sums - moved * n).astype(np.float32)) for n, sums in self._blocks]
        self.reference, self.covered = solution, covered

    def blocks(self) -> Floats:
        """The sums of every block that is at least half full: `[blocks, unknowns, signals]`."""
        full = [sums for n, sums in self._blocks if 2 * n >= self._block]
        return np.array(full, np.float64).reshape(len(full), *self.moment.shape)

    def _grow(self, columns: int) -> None:
        more = columns - self.columns
        if more > 0:
            self._upper = packed(np.pad(self.gram, (0, more)))
            self.moment = np.pad(self.moment, ((0, more), (0, 0)))
            self.total, self.seen = np.pad(self.total, (0, more)), np.pad(self.seen, (0, more))
            self.covered = np.pad(self.covered, (0, more))
            self._blocks = [(n, np.pad(sums, ((0, more), (0, 0)))) for n, sums in self._blocks]
        if (more := len(self.total) - len(self.reference)) > 0:
            self.reference = np.pad(self.reference, ((0, more), (0, 0)))

    def leave(self, outputs: list[int]) -> None:
        """Go on without some of the signals."""
        if self.n:
            self.moment, self.reference = (np.delete(a, outputs, axis=1) for a in (self.moment, self.reference))
            self.sum, self.square, self.highest = (np.delete(a, outputs) for a in (self.sum, self.square, self.highest))
            self._blocks = [(n, np.delete(sums, outputs, axis=1)) for n, sums in self._blocks]

    def merge(self, column: int, into: int) -> None:
        """Make a column part of another, as if they had always been one, and free it. Its probes say nothing more."""
        self._grow(max(column, into) + 1)
        place, target = len(self.probes) + column, len(self.probes) + into
        gram = self.gram
        gram[target] += gram[place]
        gram[:, target] += gram[:, place]
        self.moment[target] += self.moment[place]
        self.total[target] += self.total[place]
        # Windows that met both count twice: they cannot be told apart any more.
        self.seen[target] = min(self.n, self.seen[target] + self.seen[place])
        for _, sums in self._blocks:
            sums[target] += sums[place]
        gone = [place, *(i for i, probe in enumerate(self.probes) if probe.column == column)]
        gram[gone], gram[:, gone] = 0.0, 0.0
        self.moment[gone], self.total[gone], self.seen[gone] = 0.0, 0.0, 0
        self._upper = packed(gram)
        for _, sums in self._blocks:
            sums[gone] = 0.0
        self.reference[gone] = 0.0


class Sums(NamedTuple):
    """Normal equations of `n` windows: sums of products of shares, of shares and values, of values. Of those left out,
    `unclear` ones may be of either side of a renewal; in `contradicting` ones a counter grew in what would be no time.
    """

    n: int
    unclear: int
    contradicting: int
    gram: Floats
    moment: Floats
    square: float

    @property
    def alike(self) -> float:
        """How many windows each fitted one stands for: unclear ones speak neither for a timing nor against it."""
        return (self.n + self.unclear) / max(1, self.n)

    @classmethod
    def of(cls, shares: Floats, values: Floats, unclear: int, contradicting: int) -> Sums:
        """Of windows with these shares and values, and of so many that were left out."""
        return cls(len(values), unclear, contradicting, shares.T @ shares, shares.T @ values, float(values @ values))

    def plus(self, other: Sums) -> Sums:
        """Those of more windows."""
        left_out = self.unclear + other.unclear, self.contradicting + other.contradicting
        moment, square = self.moment + other.moment, self.square + other.square
        return Sums(self.n + other.n, *left_out, self.gram + other.gram, moment, square)

    def rates(self, most: float) -> Floats:
        """The rates by column, within physics."""
        return rates_of_each([self], most)[0]

    def residual(self, rates: Floats) -> float:
        """The sum of squares that these rates leave."""
        return max(0.0, float(self.square - 2 * rates @ self.moment + rates @ self.gram @ rates))


def rates_of_each(some: Sequence[Sums], most: float) -> list[Floats]:
    """The rates of each that leave the least, within physics."""
    return least_of_each(np.array([each.gram for each in some]), np.array([each.moment for each in some]), most)


def sized(values: Floats, size: int) -> Floats:
    """The first `size` values, with zeros for those that are missing."""
    return np.append(values[:size], np.zeros(max(0, size - len(values))))


def packed(matrix: Floats) -> Floats:
    """The upper half of a symmetric matrix."""
    half: Floats = matrix.take(_upper(len(matrix))[0])
    return half


def unpacked(half: npt.NDArray[_Float], size: int) -> npt.NDArray[_Float]:
    """The symmetric matrix of that half."""
    result = np.empty(size * size, half.dtype)
    for places in _upper(size):
        result[places] = half
    return result.reshape(size, size)


@lru_cache(8)
def _upper(size: int) -> tuple[Ints, Ints]:
    """The places of the upper half of a matrix, and of the lower one, row by row."""
    rows, columns = np.triu_indices(size)
    return rows * size + columns, columns * size + rows

"""The normal equations of any number of windows, kept as sums in constant space. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats, Ints, Singles
from gpu_profile.join.unmixing.solving.normal_equations import NormalEquations
from gpu_profile.join.unmixing.windows.probes import BESIDE, CENTRED, Probe

#: Windows are summed in blocks of time. The differences between blocks show the correlation of neighbouring windows.
#: At this number of blocks, every two become one.
_MOST_BLOCKS: Final = 16
#: Multiplications in one product of rows: above some 400,000, OpenBLAS makes all cores wait for one another.
_AT_ONCE: Final = 200_000
#: The largest coefficient of a probe `BESIDE`, in means of the signal.
_LARGEST: Final = 2.0
#: The share of a probe's own strength that is rounding.
_ROUNDING: Final = 1e-11
_Float = TypeVar("_Float", np.float64, np.float32)


class Equations:
    """Sums over windows. The unknowns are the probes' coefficients, then the rate outside regions, then regions' rates.

    `probes` are the probes of every added window. All signals share the windows. `columns` is the initial number.
    """

    def __init__(self, probes: Sequence[Probe] = (), columns: int = 1) -> None:
        self.probes = tuple(probes)
        size = len(self.probes) + columns
        #: For equations without probes: the mean of each former probe over its column's time.
        self.means: dict[Probe, float] = {}
        #: Windows, as often as they count; and each once.
        self.n = self.distinct = 0
        #: The upper half of the symmetric `gram`: it takes most of the memory.
        self._upper: Floats = np.zeros(size * (size + 1) // 2)
        #: By signal: sums of products with each unknown, of values, and of their squares, and the highest value.
        self.moment: Floats = np.zeros((size, 1))
        self.sum: Floats = np.zeros(1)
        self.square: Floats = np.zeros(1)
        self.highest: Floats = np.zeros(1)
        #: By unknown: the sum of its column. By column: the number of windows with some of it.
        self.total: Floats = np.zeros(size)
        self.seen = np.zeros(columns, np.int64)
        self._taken: Floats = np.zeros((2, 0))
        #: The solution to which the blocks' sums refer, in their precision. There are no blocks before the first.
        self.reference: Singles = np.zeros((size, 1), np.float32)
        #: The unknowns that the reference covers. Windows with other unknowns are in no block.
        self.covered = np.zeros(size, bool)
        #: By block: its windows, and the sums of the unknowns' columns times the residuals from the reference.
        self._blocks: list[tuple[int, Floats]] = []
        self._block = 1
        #: The same sums over all windows that were left out; empty without such windows.
        self._left_out: list[Singles] = []

    @property
    def gram(self) -> Floats:
        """Sums of products of every two unknowns' columns."""
        return unpacked(self._upper, len(self.total))

    @property
    def averages(self) -> Floats:
        """The matrix from unknowns to the columns' mean rates over all of their time: `[columns, unknowns]`."""
        p = len(self.probes)
        result = np.eye(self.columns, len(self.total), p)
        for i, (kind, column) in enumerate(self.probes):
            if 0 <= column < self.columns and self.total[p + column] > 0 and kind not in CENTRED:
                result[column, i] = self.total[i] / self.total[p + column]
        return result

    def steady(self, output: int = 0, gram: Floats | None = None) -> NormalEquations:
        """The equations of a signal's steady rates by column, without the probes. `gram` is that of all unknowns, if it
        is at hand.

        Executions that run at once change no steady rate: the probes `BESIDE` are eliminated. Without noise, they could
        pass for columns that they hardly differ from, so their coefficients are within `_LARGEST` means of the signal.
        """
        p, gram = len(self.probes), self.gram if gram is None else gram
        own, moment, square = gram[p:, p:].copy(), self.moment[p:, output].copy(), float(self.square[output])
        beside = np.array([i for i, probe in enumerate(self.probes) if probe.kind in BESIDE], np.int64)
        largest = (_LARGEST * float(self.sum[output])) ** 2 / max(1, self.n)
        if len(beside) and largest > 0:
            left = square - float(np.linalg.lstsq(own, moment)[0] @ moment)
            inner = gram[beside[:, None], beside] + max(left / largest, _ROUNDING) * np.eye(len(beside))
            across, along = gram[p:, beside], self.moment[beside, output]
            own -= across @ np.linalg.solve(inner, across.T)
            moment -= across @ (explained := np.linalg.solve(inner, along))
            square -= float(along @ explained)
        return NormalEquations(own, moment, square, self.n, self.mean(output))

    def mean(self, output: int) -> float:
        """The magnitude of a signal's mean."""
        return abs(float(self.sum[output])) / max(1, self.n)

    def without_probes(self, precision: Floats) -> Equations:
        """The equations of the columns' mean rates, with the probes' coefficients eliminated.

        `precision` is the prior precision of each coefficient around 0, in units of a window's variance.
        """
        result, p = Equations(), len(self.probes)
        averages = self.averages
        result.means = {
            probe: float(averages[probe.column, i])
            for i, probe in enumerate(self.probes)
            if 0 <= probe.column < self.columns
        }
        # Relative to probes centred over the time of their column, its rate is the mean.
        around = np.eye(len(self.total))
        around[p:, :p] = -averages[:, :p]
        gram, moment = around.T @ self.gram @ around, around.T @ self.moment
        own = np.diag(gram)[:p]
        inner = gram[:p, :p] + np.diag(precision + _ROUNDING * own + (own <= 0))
        goes_with, left = np.linalg.solve(inner, gram[:p, p:]), np.linalg.solve(inner, moment[:p])
        into = around @ np.concatenate((-goes_with, np.eye(self.columns)))
        result.n, result.distinct, result._block = self.n, self.distinct, self._block
        result.sum, result.highest = self.sum.copy(), self.highest.copy()
        result._upper = packed(gram[p:, p:] - gram[p:, :p] @ goes_with)
        result.moment = moment[p:] - gram[p:, :p] @ left
        result.square = self.square - (moment[:p] * left).sum(axis=0)
        result.total, result.seen, result._taken = self.total[p:].copy(), self.seen.copy(), self._taken.copy()
        result.covered = self.covered[p:].copy()
        result.reference = np.linalg.solve(around, self.reference)[p:].astype(np.float32)
        result._blocks = [(n, (into.T @ sums).astype(np.float32)) for n, sums in self._blocks]
        result._left_out = [(into.T @ sums).astype(np.float32) for sums in self._left_out]
        return result

    def with_probes(self, probes: Sequence[Probe]) -> Equations:
        """These equations, which have no probes, extended to windows with probes."""
        result, p = self.copy(), len(probes)
        result.probes = tuple(probes)
        into = np.concatenate((self._probe_means(probes, self.columns), np.eye(self.columns)), axis=1)
        result._upper = packed(into.T @ self.gram @ into)
        result.moment, result.total = into.T @ self.moment, self.total @ into
        result.reference = np.pad(self.reference, ((p, 0), (0, 0)))
        result.covered = np.append(np.full(p, self.covered.any()), self.covered)
        result._blocks = [(n, (into.T @ sums).astype(np.float32)) for n, sums in self._blocks]
        result._left_out = [(into.T @ sums).astype(np.float32) for sums in self._left_out]
        return result

    def _probe_means(self, probes: Sequence[Probe], columns: int) -> Floats:
        """The means of probes over the time of their columns: `[columns, probes]`."""
        result = np.zeros((columns, len(probes)))
        for i, probe in enumerate(probes):
            if 0 <= probe.column < columns:
                result[probe.column, i] = self.means.get(probe, 0.0)
        return result

    @property
    def windows(self) -> Ints:
        """By unknown: the windows that contain its column, at least 1. The timing is in all of them."""
        of = [column if column < self.columns else -1 for _, column in self.probes]
        counts = np.append(self.seen, self.n)
        windows: Ints = np.maximum(1, np.append(counts[np.array(of, np.int64)], self.seen))
        return windows

    def copy(self) -> Equations:
        """An independent copy."""
        result = Equations(self.probes)
        result.n, result.distinct, result._block = self.n, self.distinct, self._block
        result.means = dict(self.means)
        for name in ("_upper", "moment", "sum", "square", "highest", "total", "seen", "_taken", "reference", "covered"):
            setattr(result, name, getattr(self, name).copy())
        result._blocks = [(n, sums.copy()) for n, sums in self._blocks]
        result._left_out = [sums.copy() for sums in self._left_out]
        return result

    @property
    def columns(self) -> int:
        """Columns so far, the one outside regions included."""
        return len(self.total) - len(self.probes)

    def add(
        self, shares: Floats, values: Floats, probes: Floats | None = None, times: Ints | None = None,
        near: npt.NDArray[np.bool_] | None = None, predicted: npt.NDArray[np.bool_] | None = None,
    ) -> None:  # fmt: skip
        """Add windows, each as often as `times[n]` says, else once. Windows that are not `near[n]` are left out. The
        residuals of those that are not `predicted[n]` are errors of the reference, so blocks have none of them.

        `shares[n, k]` is the share of each window in which each column was active, `values[n]` or `values[n, s]` are
        the readings, and `probes[n, p]` the windows' probes.
        """
        if not len(values):
            return
        probes = np.zeros((len(values), len(self.probes))) if probes is None else probes
        rows, values = np.concatenate((probes, shares), axis=1), values.reshape(len(values), -1)
        self.distinct += len(values) if near is None else int(near.sum())
        if times is not None and times.max() > 1:
            rows, values = rows.repeat(times, axis=0), values.repeat(times, axis=0)
            near, predicted = (each if each is None else each.repeat(times) for each in (near, predicted))
        if self.n == 0:
            self._begin(values.shape[1])
        self._grow(shares.shape[1])
        if near is not None and not near.all():
            self._leave_out(rows[~near], values[~near])
            rows, values = rows[near], values[near]
            predicted = predicted if predicted is None else predicted[near]
        if len(values):
            self._sum(rows, values)
            self._add_blocks(rows, values, predicted)

    def _begin(self, outputs: int) -> None:
        """Make the sums of products with values for this number of signals."""
        self.moment = np.zeros((len(self.total), outputs))
        self.sum, self.square, self.highest = np.zeros(outputs), np.zeros(outputs), np.zeros(outputs)
        if self.reference.shape[1] != outputs:
            self.reference = np.zeros((len(self.total), outputs), np.float32)

    def _leave_out(self, rows: Floats, values: Floats) -> None:
        size = rows.shape[1]
        self._left_out = self._left_out or [np.zeros_like(self.reference)]
        self._left_out[0][:size] += rows.T @ (values - rows @ self.reference[:size])

    def _sum(self, rows: Floats, values: Floats) -> None:
        size, products = rows.shape[1], _products(rows)
        if size < len(self.total):
            products = np.pad(products, (0, len(self.total) - size))
        self._upper += packed(products)
        self.moment[:size] += rows.T @ values
        self.total[:size] += rows.sum(axis=0)
        self.seen[: size - len(self.probes)] += (rows[:, len(self.probes) :] > 0).sum(axis=0)
        self.sum += values.sum(axis=0)
        self.square += (values**2).sum(axis=0)
        self.highest = np.maximum(self.highest, values.max(axis=0))
        self.n += len(values)

    def _add_blocks(self, rows: Floats, values: Floats, predicted: npt.NDArray[np.bool_] | None) -> None:
        if not self.covered.any():
            return
        size, at = rows.shape[1], 0
        errors, covered = values - rows @ self.reference[:size], self.covered[:size]
        usable = ~(rows[:, ~covered] != 0).any(axis=1) & (True if predicted is None else predicted)
        rows, errors = rows[usable], errors[usable]
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
        """Move the blocks' sums to another solution, based on `seen` windows per column. If it covers more columns,
        the blocks begin anew."""
        self._grow(len(solution) - len(self.probes))
        covered = np.append(np.ones(len(self.probes), bool), seen > 0)
        if (covered & ~self.covered).any():
            self._blocks, self._block = [], 1
        # Each block takes its share of the equations of all windows.
        reference = (solution - self.put_back()[:, None]).astype(np.float32)
        moved = self.gram @ (reference.astype(np.float64) - self.reference) / max(1, self.n)
        self._blocks = [(n, (sums - moved * n).astype(np.float32)) for n, sums in self._blocks]
        self.reference, self.covered = reference, covered

    def taking(self, taken: Floats) -> Equations:
        """These equations, with more sums that common factors took from the values of windows in them."""
        if taken.size:
            self._grow(taken.shape[1])
            self._taken = self.taken
            self._taken[:, : taken.shape[1]] += taken
        return self

    @property
    def taken(self) -> Floats:
        """By column, of the only signal: the sums that common factors took from its windows (`CommonFactor.taken`)."""
        return np.pad(self._taken, ((0, 0), (0, self.columns - self._taken.shape[1])))

    def put_back(self) -> Floats:
        """By unknown: the part of its rate that common factors took from the windows."""
        return np.append(np.zeros(len(self.probes)), self.taken[0]) / np.where(self.total > 0, self.total, np.inf)

    @property
    def followed(self) -> Floats:
        """By column: the part of its rate that is due to other factors in its time than on average."""
        (taken, could), total = self.taken, self.total[len(self.probes) :]
        usual = could * (taken.sum() / could.sum()) if could.any() else 0.0
        followed: Floats = (taken - usual) / np.where(total > 0, total, np.inf)
        return followed

    def blocks(self) -> Floats:
        """By how much the sums of every block that is at least half full differ from its share of their total, whatever
        solution they refer to: `[blocks, unknowns, signals]`."""
        full = [block for block in self._blocks if 2 * block[0] >= self._block]
        windows = np.array([float(n) for n, _ in full])
        sums = np.array([each for _, each in full], np.float64).reshape(len(full), *self.moment.shape)
        apart: Floats = sums - (windows / max(1.0, windows.sum()))[:, None, None] * sums.sum(axis=0)
        return apart

    def left_out(self, output: int) -> Floats:
        """By column: the residuals of a signal in the windows that were left out, by which the mean of all of the
        column's time differs."""
        own = np.maximum(self.total[len(self.probes) :], 1e-9)
        return self._left_out[0][len(self.probes) :, output] / own if self._left_out else np.zeros(self.columns)

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
            self._left_out = [np.pad(sums, ((0, more), (0, 0))) for sums in self._left_out]

    def leave(self, outputs: list[int]) -> None:
        """Drop some of the signals."""
        if self.n:
            self.moment = np.delete(self.moment, outputs, axis=1)
            self.reference = np.delete(self.reference, outputs, axis=1)
            self._left_out = [np.delete(sums, outputs, axis=1) for sums in self._left_out]
            self.sum, self.square, self.highest = (np.delete(a, outputs) for a in (self.sum, self.square, self.highest))
            self._blocks = [(n, np.delete(sums, outputs, axis=1)) for n, sums in self._blocks]

    def merge(self, column: int, into: int) -> None:
        """Merge a column into another, as if they had always been one, and free it. Its probes are dropped."""
        self._grow(max(column, into) + 1)
        place, target = len(self.probes) + column, len(self.probes) + into
        gram = self.gram
        gram[target] += gram[place]
        gram[:, target] += gram[:, place]
        self.moment[target] += self.moment[place]
        self.total[target] += self.total[place]
        # Windows with both columns count twice: the counts do not separate them.
        self.seen[into] = min(self.n, self.seen[into] + self.seen[column])
        if self._taken.any():
            self._taken = self.taken
            self._taken[:, into] += self._taken[:, column]
            self._taken[:, column] = 0.0
        every: list[npt.NDArray[Any]] = [*(sums for _, sums in self._blocks), *self._left_out]
        for sums in every:
            sums[target] += sums[place]
        gone = [place, *(i for i, probe in enumerate(self.probes) if probe.column == column)]
        gram[gone], gram[:, gone] = 0.0, 0.0
        self.moment[gone], self.total[gone], self.seen[column] = 0.0, 0.0, 0
        self._upper = packed(gram)
        for sums in every:
            sums[gone] = 0.0
        # The array may belong to a solution that is in use elsewhere.
        self.reference = self.reference.copy()
        self.reference[gone] = 0.0


def _products(rows: Floats) -> Floats:
    """The sums of products of every two columns."""
    most = 1 + _AT_ONCE // rows.shape[1] ** 2
    result: Floats = rows[:most].T @ rows[:most]
    for at in range(most, len(rows), most):
        part = rows[at : at + most]
        result += part.T @ part
    return result


def sized(values: Floats, size: int) -> Floats:
    """The first `size` values, padded with zeros."""
    return np.append(values[:size], np.zeros(max(0, size - len(values))))


def packed(matrix: Floats) -> Floats:
    """The upper half of a symmetric matrix."""
    half: Floats = matrix.take(_upper(len(matrix))[0])
    return half


def unpacked(half: npt.NDArray[_Float], size: int) -> npt.NDArray[_Float]:
    """The symmetric matrix whose upper half is `half`."""
    result = np.empty(size * size, half.dtype)
    for places in _upper(size):
        result[places] = half
    return result.reshape(size, size)


@lru_cache(8)
def _upper(size: int) -> tuple[Ints, Ints]:
    """The indices of a matrix's upper half, and of its lower half, row by row."""
    rows, columns = np.triu_indices(size)
    return rows * size + columns, columns * size + rows

"""Which columns share time with which, as sums over all shared time. Pure."""

from __future__ import annotations

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.windows.activities import Pieces, concurrency
from gpu_profile.join.unmixing.windows.beside import functions


class ConcurrentTime:
    """Sums over the time in which several executions run, by the columns of shared time.

    At each moment of it, an equal part of the device belongs to each execution.
    """

    def __init__(self) -> None:
        #: Over each column's parts of the time: the part of every column, and its `functions`. `[3, columns, columns]`
        self._sums: Floats = np.zeros((3, 0, 0))

    def add(self, innermost: Pieces, shared: Ints, columns: int) -> None:
        """Add pieces. `shared` is the column of shared time of each, among `columns` so far."""
        more = columns - self._sums.shape[1]
        self._sums = np.pad(self._sums, ((0, 0), (0, more), (0, more)))
        used, place = np.unique(shared, return_inverse=True)
        times, count = concurrency(innermost)
        changes = np.zeros((len(used), len(times)))
        for moments, sign in ((innermost.starts, 1.0), (innermost.ends, -1.0)):
            np.add.at(changes, (place, np.searchsorted(times, moments)), sign)
        open_ = np.cumsum(changes, axis=1)[:, :-1]
        parts = open_ / np.maximum(count[:-1], 1)
        lengths = np.where(count[:-1] > 1, np.diff(times), 0)
        self._sums[:, used[:, None], used] += (parts * lengths) @ np.stack((parts, *functions(open_))).swapaxes(1, 2)

    def merge(self, gone: int, into: int) -> None:
        """Merge a column into another, and free it."""
        if max(gone, into) < self._sums.shape[1]:
            for rows in (self._sums.swapaxes(0, 1), self._sums.transpose(2, 0, 1)):
                rows[into] += rows[gone]
                rows[gone] = 0.0

    def joint(self, rows: Ints, columns: int) -> Floats:
        """The matrix from columns' rates to the device's rate while each of some columns is active: `[rows, columns]`.

        Rows add up to 1. For a column that is active alone, the device's rate is its own. While several are active, it
        is the mean of theirs: the equations determine only the mean of regions that are always active together.
        """
        size = self._sums.shape[1]
        result, summed = np.zeros((len(rows), columns)), rows < size
        result[summed, :size] = self._sums[0, rows[summed]]
        times = result.sum(axis=1)
        alone = np.flatnonzero(times <= 0)
        result[alone, rows[alone]] = times[alone] = 1.0
        result /= times[:, None]
        return result

    def centres(self, chosen: Ints, columns: int) -> Floats:
        """By column: the multiples of its part of the time that centre the `functions` of the `chosen` columns:
        `[columns, 2 * chosen]`, or `[columns, 0]` if these have no shared time.

        The integral of any column's part times a centred function is 0. So mean rates over these parts do not depend on
        the coefficients of the functions.
        """
        parts, *sums = self._sums
        used, own = np.flatnonzero(parts.diagonal()), np.isin(chosen, np.flatnonzero(parts.diagonal()))
        result = np.zeros((2, columns, len(chosen)))
        if not own.any():
            return result[0, :, :0]
        for each, sum_ in zip(result, sums, strict=True):
            of = np.ix_(used, chosen[own])
            each[np.ix_(used, own)] = np.linalg.lstsq(parts[np.ix_(used, used)], sum_[of])[0]
        return np.hstack(tuple(result))

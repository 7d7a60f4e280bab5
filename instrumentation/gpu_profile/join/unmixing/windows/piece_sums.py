"""Sums over pieces of time, by row and moment. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats, Ints

#: Indices of columns: two bytes each, because there are many pieces.
Columns = npt.NDArray[np.integer[Any]]


def cumulative(rows: Columns, values: Floats, count: int) -> Floats:
    """Cumulative sums of the values by row, -1 for none: `[count, values + 1]`."""
    result = np.zeros((count, len(values) + 1))
    some = np.flatnonzero(rows >= 0)
    result[rows[some], some + 1] = values[some]
    return np.cumsum(result, axis=1, out=result)


def first_moments(begun: Ints, pieces: int) -> tuple[Ints, Ints | None]:
    """The first moment, in order, at which each of the pieces has begun, and the place of each moment in that order;
    None if they are in order. `begun` is the number of pieces that have begun at each moment."""
    rank = None
    if (begun[1:] < begun[:-1]).any():
        order = begun.argsort(kind="stable")
        begun, rank = begun[order], order.argsort()
    return begun.searchsorted(np.arange(pieces), side="right"), rank


def sum_begun(rows: Columns, values: Sequence[Floats], first: Ints, rank: Ints | None, out: Floats) -> None:
    """Sums by row over the pieces that have begun, of one or several values of each: in `out[values, rows, moments]`.
    `first` and `rank` are the result of `first_moments`."""
    count, width = out.shape[1], out.shape[2] + 1
    cells = rows * np.int64(width) + first
    for each, weights in zip(out, values, strict=True):
        sums = np.bincount(cells, weights, count * width).reshape(count, width)[:, :-1]
        sums.cumsum(axis=1, out=each)
        if rank is not None:
            each[...] = each[:, rank]


def order_of(values: Ints) -> Ints | slice:
    """The order in which values are sorted."""
    return slice(None) if (values[1:] >= values[:-1]).all() else np.argsort(values, kind="stable")


def inside(starts: Ints | Floats, ends: Ints | Floats, at: Ints | Floats) -> tuple[Ints, Ints]:
    """Every pair of a piece and one of the sorted moments within it."""
    first, last = np.searchsorted(at, starts, side="right"), np.searchsorted(at, ends)
    count = np.maximum(last - first, 0)
    which = np.repeat(np.arange(len(starts)), count)
    return which, np.arange(len(which)) + np.repeat(first - np.cumsum(count) + count, count)


def passed(starts: Floats, ends: Floats, at: Floats, column: Columns, columns: int, weights: Floats) -> Floats:
    """By column: the sum over its pieces of the elapsed part at each sorted moment, times the piece's weight. One
    result per row of the weights: `[rows, columns, moments]`."""
    edges = np.concatenate((starts, ends))
    width = len(at) + 1
    row = column.astype(np.int64) * width
    cells = np.searchsorted(at, edges, side="right") + np.concatenate((row, row))
    result = np.empty((len(weights), columns, len(at)))
    for each, weight in zip(result, weights, strict=True):
        sign = np.concatenate((weight, -weight))
        # Pieces that run at a moment count from their start, ended ones with their whole length.
        open_ = np.bincount(cells, sign, columns * width).reshape(columns, width)[:, :-1]
        times = np.bincount(cells, sign * edges, columns * width).reshape(columns, width)[:, :-1]
        np.subtract(at * np.cumsum(open_, axis=1), np.cumsum(times, axis=1), out=each)
    return result

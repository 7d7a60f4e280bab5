"""The energy of iterations by request and phase, from the terms of their parts and runs. Pure.

A request's share of an iteration is linear in its work. In a run of decode, the work is one token and a context that
grows by one. So sums over a run follow from running sums over the iterations, whatever the number of requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.serving.pricing.terms import DURATION, Terms, per_unit
from gpu_profile.serving.work import PHASES, DecodeRuns, Iterations, RequestPhase, WorkQuantity

#: Parts in one computation, to limit the memory.
_AT_ONCE: Final = 8192


class ChargedParts(NamedTuple):
    """The parts of requests, a row for each request and phase.

    `totals[rows, 5 + missed]` are J, J without equal parts of fixed costs, device s, the sum of squares of J over the
    iterations, tokens, and the modelled J in windows left out. `terms[rows, TERMS]` are the terms.
    """

    request: Ints
    phase: Ints
    totals: Floats
    terms: Floats

    def by(self, owner: Ints) -> ChargedParts:
        """The sums of the rows of each owner and phase. `owner[rows]` are numbers in place of the requests'."""
        keys = owner * PHASES + self.phase
        order = np.argsort(keys, kind="stable")
        keys, starts = np.unique(keys[order], return_index=True)
        totals, terms = (np.add.reduceat(each[order], starts) for each in (self.totals, self.terms))
        return ChargedParts(keys // PHASES, keys % PHASES, totals, terms)

    def rows(self) -> Iterator[tuple[int, int, list[float], Floats]]:
        """The rows: each request with its phase, totals and terms."""
        return zip(self.request.tolist(), self.phase.tolist(), self.totals.tolist(), self.terms, strict=True)


def charged_parts(
    some: Iterations, terms: Terms, prices: Floats, devices: int, weights: Floats, clean: Floats, inside: Floats,
    missed: Sequence[Floats],
) -> ChargedParts:  # fmt: skip
    """The parts of all requests. An iteration's modelled energy counts with its weight; `clean` is its part in windows
    that are used, `missed` in windows left out by reason, and `inside` in all windows: `[iterations]` each."""
    unit_j, fixed = per_unit(terms.shares, prices), terms.fixed @ prices
    seconds = terms.shares[:, :, DURATION] * devices
    result = [_of_runs(some.runs, terms, unit_j, fixed, seconds, weights, clean, inside, missed)]
    for first in range(0, len(some.parts.request), _AT_ONCE):
        part = some.parts.rows(first, first + _AT_ONCE)
        of, work = part.iteration, part.work
        energy = np.einsum("mk,mk->m", work, unit_j[of])
        equal = fixed[of] * work[:, WorkQuantity.REQUESTS]
        given = energy * weights[of]
        columns = np.column_stack((
            given, given - equal * weights[of], np.einsum("mk,mk->m", work, seconds[of]) * clean[of], given**2,
            work[:, WorkQuantity.TOKENS] * inside[of], *(energy * each[of] for each in missed),
        ))  # fmt: skip
        own = np.matmul((work * clean[of, None])[:, None], terms.shares[of])[:, 0]
        result.append(ChargedParts(part.request, part.phase, columns, own).by(part.request))
    every = ChargedParts(*(np.concatenate(each) for each in zip(*result, strict=True)))
    # A request has a run for each batch of iterations.
    return every.by(every.request)


def _of_runs(
    runs: DecodeRuns, terms: Terms, unit_j: Floats, fixed: Floats, seconds: Floats, weights: Floats, clean: Floats,
    inside: Floats, missed: Sequence[Floats],
) -> ChargedParts:  # fmt: skip
    """The same for runs of decode."""

    def both(shares: Floats) -> tuple[Floats, Floats]:
        """Of one request in decode: the share without context, and for each token of context."""
        return shares[:, WorkQuantity.TOKENS] + shares[:, WorkQuantity.REQUESTS], shares[:, WorkQuantity.DECODE_CONTEXT]

    def summed(values: Floats) -> Floats:
        """The sums over the iterations of each run, from sums between the ends of runs."""
        sums = np.zeros((max(1, len(edges)), values.shape[1]))
        np.cumsum(np.add.reduceat(values[: edges.max(initial=0)], edges[:-1]), axis=0, out=sums[1:])
        result: Floats = sums[last] - sums[first]
        return result

    n = len(weights)
    edges, places = np.unique(np.concatenate((runs.first, runs.last)), return_inverse=True)
    first, last = places[: len(runs.first)], places[len(runs.first) :]
    (alone, by_context), (alone_s, by_context_s), own = both(unit_j), both(seconds), both(terms.shares)
    none, place = np.zeros(n), np.arange(n, dtype=np.float64)
    alone_columns = np.column_stack((
        alone * weights, (alone - fixed) * weights, alone_s * clean, inside, *(alone * each for each in missed),
        own[0] * clean[:, None],
    ))  # fmt: skip
    columns = np.column_stack((
        by_context * weights, by_context * weights, by_context_s * clean, none, *(by_context * each for each in missed),
        own[1] * clean[:, None],
    ))  # fmt: skip
    # The context in iteration `i` of a run is `i` and a constant.
    constant = (runs.context - runs.first)[:, None]
    linear = summed(alone_columns + place[:, None] * columns) + constant * summed(columns)
    rest, slope = alone * weights + place * by_context * weights, by_context * weights
    squares = summed(np.column_stack((rest**2, 2 * rest * slope, slope**2)))
    square = squares[:, [0]] + constant * squares[:, [1]] + constant**2 * squares[:, [2]]
    totals = 4 + len(missed)
    return ChargedParts(
        runs.request, np.full(len(runs.request), int(RequestPhase.DECODE)),
        np.concatenate((linear[:, :3], square, linear[:, 3:totals]), axis=1), linear[:, totals:],
    )  # fmt: skip

"""The terms of an iteration's cost, and their shares by quantity. Pure.

A cost is a sum of terms, each with an unknown price. A request's share of a term is its Aumann-Shapley value: the
integral of the term's gradient along the mix of the iteration, times the request's own quantities (Aumann and Shapley,
*Values of Non-Atomic Games*, 1974). The part of a term that remains without work is shared in equal parts by the
iteration's requests. Shares of an iteration add up to the term.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.serving.work import QUANTITIES, WorkQuantity

#: Tokens in an iteration from which each may cost more or less: the dense layers read their weights in the time in
#: which they compute for some hundreds of tokens, and few tokens reach few experts.
_BENDS: Final = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_LINEAR: Final = np.array(list(WorkQuantity))
#: The price of these quantities may depend on the number of requests in the iteration.
_LOADED: Final = (WorkQuantity.TOKENS, WorkQuantity.PREFILL_CONTEXT, WorkQuantity.DECODE_CONTEXT, WorkQuantity.REQUESTS)


class TermGroup(StrEnum):
    """Terms that the model may need, shrunk together. The values are texts of refusals."""

    BEND = "the price of a token changes with the tokens in an iteration"
    LOAD = "prices change with the number of requests in an iteration"


#: The term of an iteration's measured duration, and the one of each iteration.
DURATION, EACH = 0, 1
_FIRST_BEND: Final = 2 + len(_LINEAR)
_FIRST_LOAD: Final = _FIRST_BEND + len(_BENDS)
TERMS: Final = _FIRST_LOAD + len(_LOADED)
#: The terms that no model goes without.
LEAST_TERMS: Final = _FIRST_BEND
GROUPS: Final[dict[TermGroup, Ints]] = {
    TermGroup.BEND: np.arange(_FIRST_BEND, _FIRST_LOAD),
    TermGroup.LOAD: np.arange(_FIRST_LOAD, TERMS),
}
#: The terms of single quantities, and the groups' terms as slices.
_OWN, _BEND, _LOAD = np.arange(2, _FIRST_BEND), slice(_FIRST_BEND, _FIRST_LOAD), slice(_FIRST_LOAD, TERMS)


class Terms(NamedTuple):
    """Terms of iterations in units of `scales`, which make the prices of a group comparable.

    `values[n, TERMS]` are the terms, and `shares[n, QUANTITIES, TERMS]` the part of each that one unit of a quantity
    bears. The equal parts of fixed terms are in the column of `REQUESTS`. They are `fixed[n, TERMS]` for one request.
    """

    values: Floats
    shares: Floats
    fixed: Floats


def scales_of(work: Floats) -> Floats:
    """A typical value of every term, from the work of many iterations: `[TERMS]`. 1 for terms that never occur."""
    values = values_of(np.ones(len(work)), work)
    typical = np.sqrt((values**2).mean(axis=0)) if len(work) else np.ones(TERMS)
    typical[DURATION] = 1.0
    result: Floats = np.where(typical > 0, typical, 1.0)
    return result


def terms_of(seconds: Floats, work: Floats, duration_prices: Floats, scales: Floats) -> Terms:
    """The terms of iterations with these durations and quantities.

    `duration_prices[TERMS]` predicts durations from the other terms, and so shares out the measured ones.
    """
    n = len(work)
    values = values_of(seconds, work) / scales
    shares, fixed = np.zeros((n, QUANTITIES, TERMS)), np.zeros((n, TERMS))
    requests = work[:, WorkQuantity.REQUESTS]
    fixed[:, EACH] = 1 / scales[EACH] / np.maximum(requests, 1.0)
    shares[:, WorkQuantity.REQUESTS, EACH] = fixed[:, EACH]
    shares[:, _LINEAR, _OWN] = 1 / scales[_OWN]
    tokens = np.maximum(work[:, WorkQuantity.TOKENS], 1e-9)
    shares[:, WorkQuantity.TOKENS, _BEND] = values[:, _BEND] / tokens[:, None]
    # A product of two quantities: half of it is the integral along each. The square of one is all its own.
    shares[:, _LOADED, GROUPS[TermGroup.LOAD]] += requests[:, None] / scales[_LOAD] / 2
    shares[:, WorkQuantity.REQUESTS, _LOAD] += work[:, _LOADED] / scales[_LOAD] / 2
    predicted = values @ duration_prices
    measured = np.where(predicted > 0, seconds / np.maximum(predicted, 1e-12), 0.0)
    shares[:, :, DURATION] = per_unit(shares, duration_prices) * measured[:, None]
    fixed[:, DURATION] = (fixed @ duration_prices) * measured
    # Without a prediction, a duration is a fixed cost.
    alone = np.where(predicted > 0, 0.0, seconds / np.maximum(requests, 1.0))
    shares[:, WorkQuantity.REQUESTS, DURATION] += alone
    fixed[:, DURATION] += alone
    return Terms(values, shares, fixed)


def per_unit(shares: Floats, prices: Floats) -> Floats:
    """The price of one unit of each quantity: `[n, QUANTITIES]`. As one product of a matrix, at a third of the time."""
    return (shares.reshape(-1, TERMS) @ prices).reshape(len(shares), QUANTITIES)


def gradients_of(seconds: Floats, work: Floats, duration_prices: Floats, scales: Floats, terms: Floats) -> Floats:
    """By how much the terms of iterations grow with one more unit of each quantity: `[n, QUANTITIES, TERMS]`.

    Parameters as in `terms_of`. `terms[n, TERMS]` are its values.
    """
    result = np.zeros((len(work), QUANTITIES, TERMS))
    result[:, _LINEAR, _OWN] = 1 / scales[_OWN]
    result[:, WorkQuantity.TOKENS, _BEND] = (work[:, [WorkQuantity.TOKENS]] > _BENDS) / scales[_BEND]
    result[:, _LOADED, GROUPS[TermGroup.LOAD]] += work[:, [WorkQuantity.REQUESTS]] / scales[_LOAD]
    result[:, WorkQuantity.REQUESTS, _LOAD] += work[:, _LOADED] / scales[_LOAD]
    predicted = terms @ duration_prices
    measured = np.where(predicted > 0, seconds / np.maximum(predicted, 1e-12), 0.0)
    result[:, :, DURATION] = (result @ duration_prices) * measured[:, None]
    return result


def values_of(seconds: Floats, work: Floats) -> Floats:
    """The terms in their own units: `[n, TERMS]`."""
    tokens, requests = work[:, WorkQuantity.TOKENS], work[:, WorkQuantity.REQUESTS]
    return np.column_stack((
        seconds, np.ones(len(work)), work, np.maximum(0.0, tokens[:, None] - _BENDS),
        work[:, _LOADED] * requests[:, None],
    ))  # fmt: skip

"""An estimate of the energy that a prefix cache saves. Pure."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.rate import WIDEST_HALF_WIDTH
from gpu_profile.serving.pricing.cost_sums import MEMORY_S, CostSums
from gpu_profile.serving.pricing.model import CostModel
from gpu_profile.serving.pricing.terms import TERMS, Terms
from gpu_profile.serving.streams.pass_parts import prefill_work
from gpu_profile.serving.work import Iterations, RequestPhase, WorkQuantity

#: The work that a prefix cache spares.
_CACHEABLE: Final = (WorkQuantity.TOKENS, WorkQuantity.PREFILL_CONTEXT)


class PrefillGrowth:
    """By how much the terms of recent iterations with prefill grow with more work."""

    def __init__(self) -> None:
        #: The tokens of prefill, and over these the sums of the terms' growth with each of `_CACHEABLE`.
        self._tokens, self._terms = 0.0, np.zeros((len(_CACHEABLE), TERMS))

    def take(self, model: CostModel, some: Iterations, terms: Terms, clean: Floats) -> None:
        """Add the growth of the terms of iterations with prefill, weighted by its tokens in windows that are used."""
        if len(some.starts):
            parts = some.parts
            prefill = parts.work[:, WorkQuantity.TOKENS] * (parts.phase == RequestPhase.PREFILL)
            tokens = clean * np.bincount(parts.iteration, prefill, len(some.starts))
            fade = math.exp(-float(some.ends[-1] - some.starts[0]) / 1e9 / MEMORY_S)
            self._tokens = fade * self._tokens + float(tokens.sum())
            used = np.flatnonzero(tokens)  # few iterations have prefill
            gradients = model.gradients(some.seconds[used], some.work[used], terms.values[used])
            weighted = np.einsum("n,nqk->qk", tokens[used], gradients[:, _CACHEABLE])
            self._terms = fade * self._terms + weighted

    def saving(self, model: CostModel, cached: int) -> float | None:
        """An estimate of the energy in J that `cached` first tokens of a prompt would have cost: the growth of the
        modelled energy of recent iterations with prefill for one more token. None while that is not certain enough."""
        if self._tokens <= 0:
            return None
        work = np.array(prefill_work(cached, 0))[list(_CACHEABLE)]
        sums = CostSums(terms=work @ self._terms / self._tokens)
        sums.joules[RequestPhase.PREFILL] = joules = float(sums.terms @ model.prices.solution[1:])
        return joules if sums.half_width(model) <= WIDEST_HALF_WIDTH * joules else None

"""The sums of a request's or a tenant's cost, the energy that is missing in them, and their half-width. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.rate import WIDEST_HALF_WIDTH
from gpu_profile.serving.pricing.charging import ChargedParts
from gpu_profile.serving.pricing.model import CostModel
from gpu_profile.serving.pricing.sharing import WHOLE_TIMES, Unallocated
from gpu_profile.serving.pricing.terms import TERMS
from gpu_profile.serving.work import PHASES, RequestPhase

#: A request or tenant has a value if at most this share of its energy is missing.
MOST_MISSING: Final = 0.05
#: Tokens of a request in no iteration are rounding below this share.
_TOKENS_ROUNDING: Final = 0.01
#: The time constant of the memory of a tenant's half-width, in s.
MEMORY_S: Final = 600.0


class RequestCost(NamedTuple):
    """The cost of one request so far.

    `joules` is its full energy by `RequestPhase`, `half_width_j` that of the 95 % interval of the sum. `marginal_j` is
    the energy without its equal parts of fixed costs. `device_s` is its share of the time in iterations, of all devices
    together. The values must not be used if there is a `reason`.
    """

    joules: tuple[float, float]
    half_width_j: float
    marginal_j: float
    device_s: float
    reason: Unallocated | None


def _by_phase() -> list[float]:
    # Sums of single rows: operations on arrays of two values would cost ten times as much.
    return [0.0] * PHASES


@dataclass(slots=True)
class CostSums:
    """One request's or tenant's sums: J, marginal J, device s and tokens by phase, and terms.

    `square` is the sum of squares of the energies of its iterations, `missing_j` the modelled energy of windows that
    were left out, by reason, and `refused_j` the energy that was refused. `lacking` are tokens that are in no
    iteration, or may be, by phase. The tokens of prefill may be off by `unsure`.
    """

    joules: list[float] = field(default_factory=_by_phase)
    marginal_j: list[float] = field(default_factory=_by_phase)
    device_s: list[float] = field(default_factory=_by_phase)
    tokens: list[float] = field(default_factory=_by_phase)
    lacking: list[float] = field(default_factory=_by_phase)
    terms: Floats = field(default_factory=lambda: np.zeros(TERMS))
    square: float = 0.0
    unsure: float = 0.0
    missing_j: dict[Unallocated, float] = field(default_factory=lambda: defaultdict(float))
    refused_j: float = 0.0

    def add(self, phase: int, total: Sequence[float], terms: Floats, missed: Sequence[Unallocated]) -> None:
        """Add a row of `ChargedParts`. `missed` are the reasons of the last totals."""
        joules, marginal_j, device_s, square, tokens, *missing = total
        self.joules[phase] += joules
        self.marginal_j[phase] += marginal_j
        self.device_s[phase] += device_s
        self.square += square
        self.tokens[phase] += tokens
        for reason, missing_j in zip(missed, missing, strict=True):
            self.missing_j[reason] += missing_j
        self.terms += terms

    def add_all(self, phase: RequestPhase, charged: ChargedParts, missed: Sequence[Unallocated]) -> None:
        """Add all parts of a phase: J, terms, and the missing energy that is not of whole stretches."""
        mine = charged.phase == phase
        self.joules[phase] += float(charged.totals[mine, 0].sum())
        for place, reason in enumerate(missed, 5):
            if reason not in WHOLE_TIMES:
                self.missing_j[reason] += float(charged.totals[mine, place].sum())
        self.terms += charged.terms[mine].sum(axis=0)

    def without(self, tokens: Sequence[float]) -> list[float]:
        """A request's tokens that are in no iteration so far, by phase."""
        return [
            expected - counted if counted < (1 - _TOKENS_ROUNDING) * expected else 0.0
            for expected, counted in zip(tokens, self.tokens, strict=True)
        ]

    def lack(self, tokens: Sequence[float]) -> None:
        """Add tokens that are in no iteration, by phase."""
        self.lacking = [before + each for before, each in zip(self.lacking, tokens, strict=True)]

    def fade(self, factor: float) -> None:
        """Scale a tenant's sums: old ones say little about the present."""
        for phase in RequestPhase:
            self.joules[phase] *= factor
            self.tokens[phase] *= factor
            self.lacking[phase] *= factor
        self.unsure *= factor
        self.terms *= factor
        self.refused_j *= factor
        for reason in self.missing_j:
            self.missing_j[reason] *= factor

    @property
    def absent(self) -> dict[Unallocated, float]:
        """The energy that is not in `joules`, by reason. Lacking tokens count as much as the others of their phase."""
        if max(self.lacking) <= 0:
            return self.missing_j
        lacking_j = 0.0
        for joules, tokens, lacking in zip(self.joules, self.tokens, self.lacking, strict=True):
            if lacking > 0:
                lacking_j += joules * lacking / tokens if tokens > 0 and lacking < math.inf else math.inf
        return self.missing_j | {Unallocated.REQUEST: self.missing_j.get(Unallocated.REQUEST, 0.0) + lacking_j}

    def refusal(self, model: CostModel, half_width_j: float | None = None) -> Unallocated | None:
        """Why the sums have no value, None if they have. `half_width_j` is that of `half_width`, if it is known."""
        joules, absent = sum(self.joules), self.absent
        if sum(absent.values()) > MOST_MISSING / (1 - MOST_MISSING) * max(joules, 1e-12):
            return max(absent, key=absent.__getitem__)
        width_j = self.half_width(model) if half_width_j is None else half_width_j
        if width_j > WIDEST_HALF_WIDTH * max(joules, 1e-12):
            if model.misfit > WIDEST_HALF_WIDTH / 2:
                return Unallocated.REJECTED
            return Unallocated.NEW_WORK if model.unseen(self.terms, joules) else Unallocated.NOT_IDENTIFIABLE
        return None

    def half_width(self, model: CostModel) -> float:
        """The half-width of the 95 % interval of the energy in J."""
        return half_widths(model, [self])[0]


def half_widths(model: CostModel, some: Sequence[CostSums]) -> list[float]:
    """The half-widths of the 95 % intervals of energies in J."""
    joules, unsure_j = np.array([sum(each.joules) for each in some]), np.zeros(len(some))
    for place, each in enumerate(some):
        if each.unsure and (tokens := each.tokens[RequestPhase.PREFILL]):
            unsure_j[place] = each.unsure / tokens * each.joules[RequestPhase.PREFILL]
    priced = model.prices.half_widths(np.array([each.terms for each in some]), joules)
    result: list[float] = (priced + unsure_j + model.misfit * joules).tolist()
    return result

"""The account of one engine: which request, tenant and phase each joule of its devices was for. Pure.

Readings wait until the engine's iterations of their time have arrived. Once there are enough windows, a cost model is
fitted. Then each window is shared out: the energy outside iterations to nobody, the modelled energy of iterations to
their requests, and the rest of the window in proportion. Energy that cannot be shared out is unallocated, with a
reason. All parts add up to the counters' growth, in whole microjoules.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.rate import WIDEST_HALF_WIDTH
from gpu_profile.serving.model import LOOK_BACK_NS, CostModel
from gpu_profile.serving.pass_parts import prefill_work
from gpu_profile.serving.sharing import WHOLE_TIMES, Spoiled, Unallocated, WindowParts, over_iterations
from gpu_profile.serving.terms import DURATION, TERMS, Terms
from gpu_profile.serving.windows import CounterReadings, CumulativeTerms, rows
from gpu_profile.serving.work import UNKNOWN_REQUEST, Iterations, RequestPhase, WorkQuantity

_UJ: Final = 1_000_000
#: The most windows and parts that wait for a model.
_MOST_KEPT, _MOST_PARTS = 3000, 300_000
#: Energy of unknown requests is rounding below this share.
_ROUNDING: Final = 1e-6
#: A request or tenant has a value if at most this share of its energy is missing.
_MOST_MISSING: Final = 0.05
#: The time constant of the memory of a tenant's half-width, in s.
_MEMORY_S: Final = 600.0
#: The work that a prefix cache spares.
_CACHEABLE: Final = (WorkQuantity.TOKENS, WorkQuantity.PREFILL_CONTEXT)
#: Parts in one computation, to limit the memory.
_AT_ONCE: Final = 8192


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


@dataclass(slots=True)
class _Sums:
    """One request's or tenant's sums: J, marginal J and device s by phase, terms, the sum of squares of the energies of
    its iterations, the modelled energy of windows that were left out, by reason, and the energy that was refused."""

    joules: Floats = field(default_factory=lambda: np.zeros(len(RequestPhase)))
    marginal_j: Floats = field(default_factory=lambda: np.zeros(len(RequestPhase)))
    device_s: Floats = field(default_factory=lambda: np.zeros(len(RequestPhase)))
    terms: Floats = field(default_factory=lambda: np.zeros(TERMS))
    square: float = 0.0
    missing_j: dict[Unallocated, float] = field(default_factory=lambda: defaultdict(float))
    refused_j: float = 0.0

    def fade(self, factor: float) -> None:
        """Scale a tenant's sums: those of long ago say little about the present."""
        for name in ("joules", "terms", "refused_j"):
            setattr(self, name, getattr(self, name) * factor)
        for reason in self.missing_j:
            self.missing_j[reason] *= factor


class EngineAccount:
    """Shares out the energy of one engine's devices.

    `tenant_of` gives the tenant of a request's number. Totals by tenant and phase: `microjoules`, and `device_s` in s.
    The tenant None has the work of unknown requests.
    """

    def __init__(self, tenant_of: Callable[[int], Hashable], devices: int = 1) -> None:
        self._tenant_of, self._devices = tenant_of, devices
        self._iterations, self._readings = Iterations.none(), CounterReadings(np.zeros(0, np.int64), np.zeros(0))
        self._spoiled = Spoiled()
        self._offset_j = 0.0  # the energy before the counters' latest restart
        self._fresh_iterations, self._kept, self._shared_since_ns = Iterations.none(), 0, 0
        self.model = CostModel()
        self._requests: dict[int, _Sums] = defaultdict(_Sums)
        self._tenants: dict[Hashable, _Sums] = defaultdict(_Sums)
        self._phases = {phase: _Sums() for phase in RequestPhase}
        #: Of recent prefill: its tokens, and over these the sums of the terms' growth with each of `_CACHEABLE`.
        self._prefill_tokens, self._prefill_terms = 0.0, np.zeros((len(_CACHEABLE), TERMS))
        self.microjoules: dict[tuple[Hashable, RequestPhase], int] = defaultdict(int)
        self.device_s: dict[tuple[Hashable, RequestPhase], float] = defaultdict(float)
        #: By reason: energy that is no tenant's, in whole µJ.
        self.unallocated: dict[Unallocated, int] = defaultdict(int)

    # ------------------------------------------------------------------ taking in

    def take(self, iterations: Iterations) -> None:
        """Add iterations, later than all earlier ones."""
        if len(iterations.starts):
            self._iterations = _later(self._iterations, iterations)
            if not self.model.locked:
                self._fresh_iterations = _later(self._fresh_iterations, iterations)

    def read(self, readings: CounterReadings) -> None:
        """Add readings of the energy counters, later than all earlier ones. A window in which a counter falls (its
        driver was loaded again) has no energy."""
        before = self._readings
        if not len(readings.times):
            return
        last_j = float(before.joules[-1]) if len(before.joules) else float(readings.joules[0])
        growth = np.diff(readings.joules + self._offset_j, prepend=last_j)
        for place in np.flatnonzero(growth < 0).tolist():
            times = np.concatenate((before.times[-1:], readings.times))
            at = place + len(times) - len(readings.times)
            self.spoil(int(times[max(0, at - 1)]), int(times[at]), Unallocated.RESTART)
        joules = last_j + np.cumsum(np.maximum(growth, 0.0))
        self._offset_j += float(joules[-1]) - (float(readings.joules[-1]) + self._offset_j)
        self._readings = CounterReadings(
            np.concatenate((before.times, readings.times)), np.concatenate((before.joules, joules))
        )

    def spoil(self, start_ns: int, end_ns: int, reason: Unallocated) -> None:
        """Leave out the windows that overlap a time: iterations were lost, or others used the devices."""
        self._spoiled.add(start_ns, end_ns, reason)

    @property
    def held_uj(self) -> int:
        """The growth of the counters that waits to be shared out, in µJ."""
        joules = self._readings.joules
        return round(float(joules[-1]) * _UJ) - round(float(joules[0]) * _UJ) if len(joules) else 0

    @property
    def waiting_parts(self) -> int:
        """Parts of iterations that wait to be shared out."""
        return len(self._iterations.parts.request)

    def settle(self, complete_ns: int) -> None:
        """Share out the windows with all of their iterations. `complete_ns` is the time up to which all have."""
        locked, model = self.model.locked, self.model
        if not locked:
            n = int(np.searchsorted(self._readings.times, complete_ns, side="right"))
            fresh = self._readings.before(n).since(self._kept)
            reasons = self._spoiled.by_window(self._readings.times[:n])
            good = [reason is None for reason in reasons]
            model.keep(self._fresh_iterations, fresh, np.array([False, *good][self._kept : n], bool))
            self._kept, self._fresh_iterations = n, Iterations.none()
        if model.ready:
            n = int(np.searchsorted(self._readings.times, complete_ns + model.lag.ns, side="right"))
            if n >= 2:
                self._share(self._readings.before(n), add=locked)
                self._drop(n - 1)
        elif self._kept > _MOST_KEPT or self.waiting_parts > _MOST_PARTS:
            self._give_up_half()
        elif first := next((at for at, reason in enumerate(reasons) if reason not in WHOLE_TIMES), len(reasons)):
            self._give_up(first)  # no model needs these windows
        if model.locked and model.misfit > WIDEST_HALF_WIDTH:
            self._begin_anew()

    def _give_up_half(self) -> None:
        """Leave the older half of the time that waits for a model unallocated."""
        if half := self._kept // 2:
            self._give_up(half)
        else:
            # Without readings, only iterations use memory.
            n = len(self._iterations.starts) // 2
            self.spoil(int(self._iterations.starts[0]), int(self._iterations.ends[n]), Unallocated.LOST)
            self._iterations = self._iterations.since(n + 1)

    def _give_up(self, n: int) -> None:
        """Leave the first windows unallocated."""
        times, joules = self._readings.before(n + 1)
        whole = round(float(joules[-1]) * _UJ) - round(float(joules[0]) * _UJ)
        for reason, growth_j in zip(self._spoiled.by_window(times), np.diff(joules).tolist(), strict=True):
            if reason in WHOLE_TIMES:
                whole -= self._add(reason, growth_j, whole)
        self._add(Unallocated.NOT_YET, whole / _UJ, whole)
        self._drop(n)

    def _begin_anew(self) -> None:
        """Learn prices anew: the engine has another language model, or other work runs beside it."""
        self.model, self._kept, self._fresh_iterations = CostModel(), 0, self._iterations
        self._prefill_tokens, self._prefill_terms = 0.0, np.zeros_like(self._prefill_terms)
        # Their terms are those of a refuted model: their energy counts as refused until it has faded.
        for total in (*self._tenants.values(), *self._phases.values()):
            total.terms = np.zeros(TERMS)
            total.refused_j += float(total.joules.sum())
        for sums in self._requests.values():
            sums.missing_j[Unallocated.LOST] = math.inf

    def _drop(self, n: int) -> None:
        """Drop the first readings, and the iterations before the others."""
        self._readings, self._kept = self._readings.since(n), max(0, self._kept - n)
        before_ns = int(self._readings.times[0]) - self.model.lag.ns - (0 if self.model.locked else LOOK_BACK_NS)
        first = int(np.searchsorted(self._iterations.ends, before_ns, side="right"))
        self._iterations = self._iterations.since(first) if first else self._iterations
        self._spoiled.forget(before_ns)

    @property
    def shared_until_ns(self) -> int:
        """The end of the windows that have been shared out or left out, by the iterations' time. 0 before the first
        reading."""
        return int(self._readings.times[0]) - self.model.lag.ns if len(self._readings.times) else 0

    # ------------------------------------------------------------------ sharing out

    def _share(self, readings: CounterReadings, *, add: bool) -> None:
        model = self.model
        if not self._shared_since_ns:
            self._shared_since_ns = int(readings.times[0]) - model.lag.ns
            for request in set(self._iterations.between(0, self._shared_since_ns).parts.request.tolist()):
                if request != UNKNOWN_REQUEST:
                    self._requests[request].missing_j[Unallocated.LOST] = math.inf
        moments = readings.times - model.lag.ns
        some = self._iterations.between(int(moments[0]), int(moments[-1]))
        terms = model.terms(some)
        shares, joules = rows(readings, model.lag.ns, CumulativeTerms.of(some.starts, some.ends, terms.values))
        reasons = self._spoiled.by_window(moments)
        if add:
            good = np.array([reason is None for reason in reasons])
            model.add(some.since(int(np.searchsorted(some.starts, moments[0]))), shares[good], joules[good])
        parts = WindowParts.of(shares, joules, model.prices, reasons, self._spoiled.lost_s(moments))
        whole = round(float(readings.joules[-1]) * _UJ) - round(float(readings.joules[0]) * _UJ)
        for reason, unallocated_j in parts.unallocated.items():
            whole -= self._add(reason, unallocated_j, whole)
        weights, clean = (over_iterations(moments, each, some) for each in (parts.given, parts.counted))
        missed = {reason: over_iterations(moments, each, some) for reason, each in parts.missing.items()}
        by_tenant = self._charge(model, some, terms, weights, clean, missed)
        whole -= self._settle_tenants(by_tenant, float(moments[-1] - moments[0]) / 1e9, whole)
        unknown_j = float(parts.shared.sum()) - sum(float(each.joules.sum()) for each in by_tenant.values())
        if unknown_j > _ROUNDING * float(parts.shared.sum()):
            whole -= self._add(Unallocated.REQUEST, unknown_j, whole)
        self._add(Unallocated.UNEXPLAINED, whole / _UJ, whole)

    def _add(self, reason: Unallocated, joules: float, most: int) -> int:
        """Count energy as unallocated, at most `most` µJ. Returns the µJ."""
        counted = min(max(0, round(joules * _UJ)), max(0, most))
        if counted:
            self.unallocated[reason] += counted
        return counted

    def _charge(
        self, model: CostModel, some: Iterations, terms: Terms, weights: Floats, clean: Floats,
        missed: Mapping[Unallocated, Floats],
    ) -> dict[Hashable, _Sums]:  # fmt: skip
        """Add the parts' energies to their requests, and return the sums by tenant. An iteration's modelled energy
        counts with its weight. `clean` is its part in windows that are used, `missed` in those left out, by reason."""
        by_tenant: dict[Hashable, _Sums] = defaultdict(_Sums)
        self._take_prefill(some, terms, clean)
        prices = model.prices.solution[1:]
        by_quantity, fixed = terms.shares @ prices, terms.fixed @ prices
        seconds = terms.shares[:, :, DURATION] * self._devices
        parts = some.parts
        for first in range(0, len(parts.request), _AT_ONCE):
            part = parts.rows(first, first + _AT_ONCE)
            of, work = part.iteration, part.work
            energy = (work * by_quantity[of]).sum(axis=1)
            equal = fixed[of] * work[:, WorkQuantity.REQUESTS]
            columns = np.column_stack((
                energy * weights[of], (energy - equal) * weights[of], (work * seconds[of]).sum(axis=1) * clean[of],
                (energy * weights[of]) ** 2, *(energy * each[of] for each in missed.values()),
            ))  # fmt: skip
            own = np.einsum("mk,mkf->mf", work * clean[of, None], terms.shares[of])
            keys = part.request * len(RequestPhase) + part.phase
            order = np.argsort(keys, kind="stable")
            keys, starts = np.unique(keys[order], return_index=True)
            totals, own_totals = (np.add.reduceat(each[order], starts) for each in (columns, own))
            for of_phase, sums in self._phases.items():
                mine = keys % len(RequestPhase) == of_phase
                sums.joules[of_phase] += totals[mine, 0].sum()
                for place, reason in enumerate(missed, 4):
                    if reason not in WHOLE_TIMES:
                        sums.missing_j[reason] += float(totals[mine, place].sum())
                sums.terms += own_totals[mine].sum(axis=0)
            for key, total, own_total in zip(keys.tolist(), totals.tolist(), own_totals, strict=True):
                request, phase = divmod(key, len(RequestPhase))
                named = request != UNKNOWN_REQUEST
                targets = [by_tenant[self._tenant_of(request) if named else None]]
                for sums in (*targets, self._requests[request]) if named else targets:
                    sums.joules[phase] += total[0]
                    sums.marginal_j[phase] += total[1]
                    sums.device_s[phase] += total[2]
                    sums.square += total[3]
                    for reason, missing_j in zip(missed, total[4:], strict=True):
                        sums.missing_j[reason] += missing_j
                    sums.terms += own_total
        return by_tenant

    def _take_prefill(self, some: Iterations, terms: Terms, clean: Floats) -> None:
        """Add the growth of the terms of iterations with prefill, weighted by its tokens in windows that are used."""
        if len(some.starts):
            parts = some.parts
            prefill = parts.work[:, WorkQuantity.TOKENS] * (parts.phase == RequestPhase.PREFILL)
            tokens = clean * np.bincount(parts.iteration, prefill, len(some.starts))
            fade = math.exp(-float(some.ends[-1] - some.starts[0]) / 1e9 / _MEMORY_S)
            self._prefill_tokens = fade * self._prefill_tokens + float(tokens.sum())
            weighted = np.einsum("n,nqk->qk", tokens, self.model.gradients(some, terms)[:, _CACHEABLE])
            self._prefill_terms = fade * self._prefill_terms + weighted

    def _settle_tenants(self, by_tenant: dict[Hashable, _Sums], elapsed_s: float, most: int) -> int:
        """Add the tenants' energies to the totals, or to a refusal. Returns the µJ, at most `most`."""
        added = 0
        for total in (*self._tenants.values(), *self._phases.values()):
            total.fade(math.exp(-elapsed_s / _MEMORY_S))
        for tenant, sums in by_tenant.items():
            total = self._tenants[tenant]
            total.joules += sums.joules
            total.terms += sums.terms
            # Of a whole stretch that was left out, a tenant has nothing. Its other energy is complete.
            for reason in sums.missing_j.keys() - WHOLE_TIMES:
                total.missing_j[reason] += sums.missing_j[reason]
            refusal = self._refusal(self.model, total)
            for phase in RequestPhase:
                counted = min(max(0, int(float(sums.joules[phase]) * _UJ)), most - added)
                if refusal is None:
                    self.microjoules[tenant, phase] += counted
                    self.device_s[tenant, phase] += max(0.0, float(sums.device_s[phase]))
                else:
                    self.unallocated[refusal] += counted
                    total.refused_j += counted / _UJ
                    self._phases[phase].refused_j += counted / _UJ
                added += counted
        return added

    def _refusal(self, model: CostModel, total: _Sums) -> Unallocated | None:
        joules = float(total.joules.sum())
        missing = total.missing_j
        if sum(missing.values()) > _MOST_MISSING / (1 - _MOST_MISSING) * max(joules, 1e-12):
            return max(missing, key=missing.__getitem__)
        if self._half_width(model, total) > WIDEST_HALF_WIDTH * max(joules, 1e-12):
            return Unallocated.REJECTED if model.misfit > WIDEST_HALF_WIDTH / 2 else Unallocated.NOT_IDENTIFIABLE
        return None

    @staticmethod
    def _half_width(model: CostModel, sums: _Sums) -> float:
        joules = sums.joules.sum(keepdims=True)
        return float(model.prices.half_widths(sums.terms[None, :], joules)[0]) + model.misfit * float(joules[0])

    # ------------------------------------------------------------------ answers

    def half_width(self, tenant: Hashable) -> float | None:
        """The half-width of a tenant's energy of the last minutes as a share of it. None without a value, and after
        refusals."""
        return self._share_half_width(self._tenants.get(tenant))

    def phase_half_width(self, phase: RequestPhase) -> float | None:
        """The same for a phase of all requests together."""
        return self._share_half_width(self._phases[phase])

    def _share_half_width(self, sums: _Sums | None) -> float | None:
        if not self.model.ready or sums is None or self._refusal(self.model, sums) is not None:
            return None
        joules = float(sums.joules.sum())
        return self._half_width(self.model, sums) / joules if sums.refused_j <= _MOST_MISSING * joules else None

    def cost(self, request: int) -> RequestCost | None:
        """The cost of a request as far as windows are shared out, or None if it has had no part in one yet."""
        sums = self._requests.get(request)
        if sums is None or not self.model.ready:
            return None
        joules = float(sums.joules.sum())
        noise = 1.96 * np.sqrt(max(0.0, sums.square) * self.model.relative_noise)
        half_width = float(np.hypot(self._half_width(self.model, sums), noise)) + max(0.0, sum(sums.missing_j.values()))
        reason = self._refusal(self.model, sums)
        if reason is None and half_width > WIDEST_HALF_WIDTH * joules:
            reason = Unallocated.NOT_IDENTIFIABLE
        by_phase = float(sums.joules[RequestPhase.PREFILL]), float(sums.joules[RequestPhase.DECODE])
        return RequestCost(by_phase, half_width, float(sums.marginal_j.sum()), float(sums.device_s.sum()), reason)

    def saving(self, cached: int) -> float | None:
        """An estimate of the energy in J that `cached` first tokens of a prompt would have cost: the growth of the
        modelled energy of recent iterations with prefill for one more token. None while that is not certain enough."""
        if not self.model.ready or self._prefill_tokens <= 0:
            return None
        work = np.array(prefill_work(cached, 0))[list(_CACHEABLE)]
        sums = _Sums(terms=work @ self._prefill_terms / self._prefill_tokens)
        sums.joules[RequestPhase.PREFILL] = joules = float(sums.terms @ self.model.prices.solution[1:])
        return joules if self._half_width(self.model, sums) <= WIDEST_HALF_WIDTH * joules else None

    def forget(self, requests: Iterable[int]) -> None:
        """Drop the sums of requests that have ended. Tenants keep their totals."""
        for request in requests:
            self._requests.pop(request, None)


def _later(before: Iterations, iterations: Iterations) -> Iterations:
    return Iterations.joined([each for each in (before, iterations) if len(each.starts)])

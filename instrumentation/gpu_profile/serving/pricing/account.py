"""The account of one engine: which request, tenant and phase each joule of its devices was for. Pure.

Readings wait until the engine's iterations of their time have arrived. Once there are enough windows, a cost model is
fitted. Then each window is shared out: the energy outside iterations to nobody, the modelled energy of iterations to
their requests, and the rest of the window in proportion. Energy that cannot be shared out is unallocated, with a
reason. All parts add up to the counters' growth, in whole microjoules.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.rate import WIDEST_HALF_WIDTH
from gpu_profile.serving.pricing import sharing
from gpu_profile.serving.pricing.charging import charged_parts
from gpu_profile.serving.pricing.cost_sums import MEMORY_S, MOST_MISSING, CostSums, RequestCost, half_widths
from gpu_profile.serving.pricing.model import LOOK_BACK_NS, CostModel
from gpu_profile.serving.pricing.savings import PrefillGrowth
from gpu_profile.serving.pricing.sharing import WHOLE_TIMES, Spoiled, Unallocated, WindowParts
from gpu_profile.serving.pricing.terms import TERMS, Terms
from gpu_profile.serving.pricing.windows import CounterReadings, CumulativeTerms, rows
from gpu_profile.serving.work import UNKNOWN_REQUEST, Iterations, RequestPhase

_UJ: Final = 1_000_000
#: The most windows and parts that wait for a model.
_MOST_KEPT, _MOST_PARTS = 3000, 300_000
#: Energy of unknown requests is rounding below this share.
_ROUNDING: Final = 1e-6
#: Windows this long after an iteration, and until this long before the next one, are idle and show nothing new.
_IDLE_NS, _IDLE_EDGE_NS = 10_000_000_000, 2_000_000_000


class EngineAccount:
    """Shares out the energy of one engine's devices.

    `tenant_of` gives the tenant of a request's number, None if the request is not known any more. Totals by tenant and
    phase: `microjoules`, and `device_s` in s. The tenant None has the work of unknown requests.
    """

    def __init__(self, tenant_of: Callable[[int], Hashable], devices: int = 1) -> None:
        self._tenant_of, self._devices = tenant_of, devices
        self._iterations, self._readings = Iterations.none(), CounterReadings(np.zeros(0, np.int64), np.zeros(0))
        self._spoiled = Spoiled()
        self._offset_j = 0.0  # the energy before the counters' latest restart
        self._fresh_iterations, self._kept, self._shared_since_ns = Iterations.none(), 0, 0
        #: The end of the last iteration, and of the idle time that is left out.
        self._busy_until_ns, self._idle_until_ns = 0, 0
        self.model = CostModel()
        self._requests: dict[int, CostSums] = defaultdict(CostSums)
        self._tenants: dict[Hashable, CostSums] = defaultdict(CostSums)
        self._phases, self._growth = {phase: CostSums() for phase in RequestPhase}, PrefillGrowth()
        self.microjoules: dict[tuple[Hashable, RequestPhase], int] = defaultdict(int)
        self.device_s: dict[tuple[Hashable, RequestPhase], float] = defaultdict(float)
        #: By reason: energy that is no tenant's, in whole µJ.
        self.unallocated: dict[Unallocated, int] = defaultdict(int)

    # ------------------------------------------------------------------ taking in

    def take(self, iterations: Iterations) -> None:
        """Add iterations, later than all earlier ones."""
        if len(iterations.starts):
            starts, ends = iterations.starts, iterations.ends
            if not self._busy_until_ns:
                # Nothing shows whether the engine worked before its first message.
                self.spoil(0, int(starts[0]), Unallocated.NOT_YET)
            before = np.concatenate(([self._busy_until_ns or starts[0]], ends[:-1]))
            for place in np.flatnonzero(starts - before > _IDLE_NS + _IDLE_EDGE_NS).tolist():
                self._idle(int(before[place]), int(starts[place]))
            self._busy_until_ns = int(ends[-1])
            self._miss(iterations.between(0, self.shared_until_ns))
            self._iterations = Iterations.joined((self._iterations, iterations))
            if not self.model.locked:
                self._fresh_iterations = Iterations.joined((self._fresh_iterations, iterations))

    def _miss(self, late: Iterations) -> None:
        """Iterations of a time that was shared out without them: their messages were late."""
        if len(late.starts) and self.model.ready:
            part = np.minimum((self.shared_until_ns - late.starts) / np.maximum(late.ends - late.starts, 1), 1.0)
            none, terms = np.zeros(len(part)), self.model.terms(late)
            missed = self._charge(self.model, late, terms, none, none, part, {Unallocated.LOST: part})
            self._settle_tenants(missed, 0.0, 0)
        else:
            for request in late.requests - {UNKNOWN_REQUEST}:
                self._requests[request].missing_j[Unallocated.LOST] = math.inf

    def read(self, readings: CounterReadings) -> None:
        """Add readings of the energy counters, later than all earlier ones. A window in which a counter falls (its
        driver was loaded again) has no energy."""
        before = self._readings
        if not len(readings.times):
            return
        last_j = float(before.joules[-1]) if len(before.joules) else float(readings.joules[0])
        growth = np.diff(np.concatenate(([last_j], readings.joules + self._offset_j)))
        for place in np.flatnonzero(growth < 0).tolist():
            times = np.concatenate((before.times[-1:], readings.times))
            at = place + len(times) - len(readings.times)
            self.spoil(int(times[max(0, at - 1)]), int(times[at]), Unallocated.RESTART)
        joules = last_j + np.cumsum(np.maximum(growth, 0.0))
        self._offset_j += float(joules[-1]) - (float(readings.joules[-1]) + self._offset_j)
        self._readings = CounterReadings(
            np.concatenate((before.times, readings.times)), np.concatenate((before.joules, joules))
        )

    def set_back(self) -> None:
        """The clock was set back. The energy that waits is unallocated, and the next reading continues the last one."""
        if len(self._readings.times):
            waiting_uj = self.held_uj
            self._add(Unallocated.LOST, waiting_uj / _UJ, waiting_uj)
            self._readings = CounterReadings(np.zeros(1, np.int64), self._readings.joules[-1:])
        self._iterations = self._fresh_iterations = Iterations.none()
        self._spoiled, self._busy_until_ns, self._idle_until_ns = Spoiled(), 0, 0
        self._shared_since_ns = self._kept = 0
        self._requests.clear()
        if not self.model.locked:
            self.model = CostModel(self.model.lag)

    def _idle(self, since_ns: int, until_ns: int) -> None:
        """Leave out the windows of a time without iterations, except near its ends."""
        start_ns, end_ns = max(since_ns + _IDLE_NS, self._idle_until_ns), until_ns - _IDLE_EDGE_NS
        if end_ns > start_ns:
            self.spoil(start_ns, end_ns, Unallocated.IDLE)
            self._idle_until_ns = end_ns

    def spoil(self, start_ns: int, end_ns: int, reason: Unallocated) -> None:
        """Leave out the windows that overlap a time: iterations were lost, or others used the devices."""
        self._spoiled.add(start_ns, end_ns, reason)

    @property
    def held_uj(self) -> int:
        """The growth of the counters that waits to be shared out, in µJ."""
        return self._readings.growth_uj

    @property
    def waiting_parts(self) -> int:
        """Parts and runs of iterations that wait to be shared out."""
        return len(self._iterations.parts.request) + len(self._iterations.runs.request)

    def settle(self, complete_ns: int) -> None:
        """Share out the windows with all of their iterations. `complete_ns` is the time up to which all have."""
        locked, model = self.model.locked, self.model
        if not self._busy_until_ns:
            n = int(np.searchsorted(self._readings.times, complete_ns - LOOK_BACK_NS)) - 1
            if (n := max(n, sharing.first_kept(self._spoiled.by_window(self._readings.times)))) > 0:
                self._give_up(n)
            return
        if complete_ns > self._busy_until_ns + _IDLE_NS + _IDLE_EDGE_NS:
            self._idle(self._busy_until_ns, complete_ns)
        self._readings = self._readings.moving(max(1, self._kept), self._busy_until_ns)
        if not model.ready:
            every = self._spoiled.by_window(self._readings.times)
            self._readings = self._readings.thinned([each is Unallocated.IDLE for each in every], self._kept)
        if not locked:
            last_ns = min(complete_ns, self._busy_until_ns + _IDLE_NS)
            n = max(self._kept, int(np.searchsorted(self._readings.times, last_ns, side="right")))
            fresh = self._readings.before(n).since(self._kept)
            reasons = self._spoiled.by_window(self._readings.times[:n])
            good = [reason is None for reason in reasons]
            model.keep(self._fresh_iterations, fresh, np.array([False, *good][self._kept : n], bool))
            self._kept, self._fresh_iterations = n, Iterations.none()
            if model.refuted:
                self._give_up(max(0, n - 1), Unallocated.REJECTED)
                self._begin_anew()
                return
        if model.ready:
            n = int(np.searchsorted(self._readings.times, complete_ns + model.lag.ns, side="right"))
            if n >= 2:
                self._share(self._readings.before(n), add=locked)
        elif self._kept > _MOST_KEPT or self.waiting_parts > _MOST_PARTS:
            self._give_up_half()
        elif first := sharing.first_kept(reasons):
            self._give_up(first)  # no model needs these windows
        if model.refuted:
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

    def _give_up(self, n: int, why: Unallocated = Unallocated.NOT_YET) -> None:
        """Leave the first windows unallocated. Their requests lack their energy, their tenants do not."""
        times, joules = left = self._readings.before(n + 1)
        whole = left.growth_uj
        for reason, growth_j in zip(self._spoiled.by_window(times), np.diff(joules).tolist(), strict=True):
            if reason in WHOLE_TIMES or reason is Unallocated.IDLE:
                whole -= self._add(reason, growth_j, whole)
        self._add(why, whole / _UJ, whole)
        for request in self._iterations.between(*(times[[0, -1]] - self.model.lag.ns).tolist()).requests:
            if request != UNKNOWN_REQUEST and self._tenant_of(request) is not None:
                self._requests[request].missing_j[why] = math.inf
        self._drop(n)

    def _begin_anew(self) -> None:
        """Learn prices anew: the engine has another language model, or other work runs beside it."""
        self.model, self._fresh_iterations = CostModel(self.model.lag), self._iterations
        self._kept = self._shared_since_ns = 0
        self._growth = PrefillGrowth()
        # Their terms are those of a refuted model: their energy counts as refused until it has faded.
        for total in (*self._tenants.values(), *self._phases.values()):
            total.terms = np.zeros(TERMS)
            total.refused_j += sum(total.joules)
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
            for request in self._iterations.between(0, self._shared_since_ns).requests - {UNKNOWN_REQUEST}:
                self._requests[request].missing_j[Unallocated.LOST] = math.inf
        moments = readings.times - model.lag.ns
        some = self._iterations.between(int(moments[0]), int(moments[-1]))
        terms = model.terms(some)
        shares, joules = rows(readings, model.lag.ns, CumulativeTerms.of(some.starts, some.ends, terms.values))
        reasons = self._spoiled.by_window(moments)
        good = np.array([reason is None for reason in reasons])
        if not add:
            model.test(shares[good], joules[good])
        else:
            began = slice(int(np.searchsorted(some.starts, moments[0])), None)
            model.add(terms.values[began], some.seconds[began], shares[good], joules[good])
        if model.refuted:
            self._give_up(len(joules), Unallocated.REJECTED)
            return
        for place in np.flatnonzero(model.new(shares) & good).tolist():
            reasons[place] = Unallocated.NEW_WORK
        parts = WindowParts.of(shares, joules, model.prices, reasons, self._spoiled.lost_s(moments))
        whole = readings.growth_uj
        for reason, unallocated_j in parts.unallocated.items():
            whole -= self._add(reason, unallocated_j, whole)
        by_tenant: dict[Hashable, CostSums] = {}
        if len(some.starts):
            values = np.stack((parts.given, parts.counted, np.ones(len(joules)), *parts.missing.values()))
            weights, clean, inside, *absent = sharing.over_iterations(moments, values, some)
            missed = dict(zip(parts.missing, absent, strict=True))
            by_tenant = self._charge(model, some, terms, weights, clean, inside, missed)
        whole -= self._settle_tenants(by_tenant, float(moments[-1] - moments[0]) / 1e9, whole)
        unknown_j = float(parts.shared.sum()) - sum(sum(each.joules) for each in by_tenant.values())
        if unknown_j > _ROUNDING * float(parts.shared.sum()):
            whole -= self._add(Unallocated.REQUEST, unknown_j, whole)
        self._add(Unallocated.UNEXPLAINED, whole / _UJ, whole)
        self._drop(len(joules))

    def _add(self, reason: Unallocated, joules: float, most: int) -> int:
        """Count energy as unallocated, at most `most` µJ. Returns the µJ."""
        counted = min(max(0, round(joules * _UJ)), max(0, most))
        if counted:
            self.unallocated[reason] += counted
        return counted

    def _charge(
        self, model: CostModel, some: Iterations, terms: Terms, weights: Floats, clean: Floats, inside: Floats,
        missed: Mapping[Unallocated, Floats],
    ) -> dict[Hashable, CostSums]:  # fmt: skip
        """Add the parts' energies to their requests, and return the sums by tenant. An iteration's modelled energy
        counts with its weight. `clean` is its part in windows that are used, `missed` in windows left out, by reason,
        and `inside` in all windows."""
        by_tenant: dict[Hashable, CostSums] = defaultdict(CostSums)
        self._growth.take(model, some, terms, clean)
        charged = charged_parts(
            some, terms, model.prices.solution[1:], self._devices, weights, clean, inside, tuple(missed.values())
        )
        reasons, requests = tuple(missed), charged.request.tolist()
        for of_phase, sums in self._phases.items():
            sums.add_all(of_phase, charged, reasons)
        tenants = [None if each == UNKNOWN_REQUEST else self._tenant_of(each) for each in requests]
        for tenant, (request, phase, totals, own) in zip(tenants, charged.rows(), strict=True):
            # Of a request that was forgotten, nobody asks for the cost.
            if tenant is not None:
                self._requests[request].add(phase, totals, own, reasons)
        places = {tenant: place for place, tenant in enumerate(dict.fromkeys(tenants))}
        names = list(places)
        owners = np.array([places[tenant] for tenant in tenants], np.int64)
        for place, phase, totals, own in charged.by(owners).rows():
            by_tenant[names[place]].add(phase, totals, own, reasons)
        return by_tenant

    def _settle_tenants(self, by_tenant: dict[Hashable, CostSums], elapsed_s: float, most: int) -> int:
        """Add the tenants' energies to the totals, or to a refusal. Returns the µJ, at most `most`."""
        added = 0
        for total in (*self._tenants.values(), *self._phases.values()):
            total.fade(math.exp(-elapsed_s / MEMORY_S))
        for tenant, sums in by_tenant.items():
            total = self._tenants[tenant]
            for phase in RequestPhase:
                total.joules[phase] += sums.joules[phase]
                total.tokens[phase] += sums.tokens[phase]
            total.terms += sums.terms
            # Of a whole stretch that was left out, a tenant has nothing. Its other energy is complete.
            for reason in sums.missing_j.keys() - WHOLE_TIMES:
                total.missing_j[reason] += sums.missing_j[reason]
            refusal = total.refusal(self.model)
            for phase in RequestPhase:
                counted = min(max(0, int(sums.joules[phase] * _UJ)), most - added)
                if refusal is None:
                    self.microjoules[tenant, phase] += counted
                    self.device_s[tenant, phase] += max(0.0, sums.device_s[phase])
                else:
                    self.unallocated[refusal] += counted
                    total.refused_j += counted / _UJ
                    self._phases[phase].refused_j += counted / _UJ
                added += counted
        return added

    # ------------------------------------------------------------------ answers

    def half_width(self, tenant: Hashable) -> float | None:
        """The half-width of a tenant's energy of the last minutes as a share of it. None if it has no value."""
        return self._share_half_width(self._tenants.get(tenant))

    def phase_half_width(self, phase: RequestPhase) -> float | None:
        """The same for a phase of all requests together."""
        return self._share_half_width(self._phases[phase])

    def _share_half_width(self, sums: CostSums | None) -> float | None:
        if not self.model.ready or sums is None or sums.refusal(self.model, width := sums.half_width(self.model)):
            return None
        joules = sum(sums.joules)
        if not joules or sums.refused_j > MOST_MISSING * joules:
            return None
        return (width + max(0.0, sum(sums.absent.values()))) / joules

    def costs(self, requests: Iterable[int]) -> dict[int, RequestCost]:
        """The costs of requests as far as windows are shared out, without those that have had no part in one yet."""
        some = {each: self._requests[each] for each in requests if each in self._requests}
        if not some or not self.model.ready:
            return {}
        noise, sums = self.model.relative_noise, list(some.values())
        least_j = self.model.approximations(np.array([each.terms for each in sums]))
        widths = np.maximum(half_widths(self.model, sums), least_j).tolist()
        return {each: self._cost(some[each], noise, width_j) for each, width_j in zip(some, widths, strict=True)}

    def _cost(self, sums: CostSums, relative_noise: float, priced_j: float) -> RequestCost:
        joules = sum(sums.joules)
        noise = 1.96 * math.sqrt(max(0.0, sums.square) * relative_noise)
        half_width = math.hypot(priced_j, noise) + max(0.0, sum(sums.absent.values()))
        too_wide = Unallocated.NOT_IDENTIFIABLE if half_width > WIDEST_HALF_WIDTH * joules else None
        reason = sums.refusal(self.model, priced_j) or too_wide
        by_phase = sums.joules[RequestPhase.PREFILL], sums.joules[RequestPhase.DECODE]
        return RequestCost(by_phase, half_width, sum(sums.marginal_j), sum(sums.device_s), reason)

    def ended(self, request: int, tokens: Sequence[float], began_ns: int) -> None:
        """A request that began at a time has ended, with `tokens` by phase. Tokens that are in no iteration so far
        will be in none: their energy is missing in its cost and in its tenant's."""
        sums = self._requests[request]
        lacking = sums.without(tokens)
        sums.lack(lacking)
        # The energy before the first window that was shared out is nobody's.
        if 0 < self._shared_since_ns <= began_ns:
            self._tenants[self._tenant_of(request)].lack(lacking)

    def lack(self, request: int, phase: RequestPhase, tokens: float, of_tenant: float) -> None:
        """So many tokens that are in no iteration may be a request's, and so many its tenant's."""
        if (tenant := self._tenant_of(request)) is not None:
            self._requests[request].lacking[phase] += tokens
            self._tenants[tenant].lacking[phase] += of_tenant

    def doubt(self, request: int, tokens: float, of_tenant: float) -> None:
        """The tokens of a request's prefill may be off by so many, and its tenant's by `of_tenant`."""
        self._requests[request].unsure += tokens
        self._tenants[self._tenant_of(request)].unsure += of_tenant

    def saving(self, cached: int) -> float | None:
        """An estimate of the energy in J that `cached` first tokens of a prompt would have cost. None while that is not
        certain enough."""
        return self._growth.saving(self.model, cached) if self.model.ready else None

    def forget(self, requests: Iterable[int]) -> None:
        """Drop the sums of requests that have ended. Tenants keep their totals."""
        for request in requests:
            self._requests.pop(request, None)

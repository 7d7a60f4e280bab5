"""One engine: its messages, its requests and the energy of its GPUs on their way to the estimator, and its metrics."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from gpu_profile.catalogue import serving as rows
from gpu_profile.catalogue.metric import Metric
from gpu_profile.clock import Clock
from gpu_profile.sampling.periods import PROCESSES_S
from gpu_profile.sampling.tracked import TrackedDevice
from gpu_profile.serving.joined import ServingEngine
from gpu_profile.serving.pricing.account import EngineAccount
from gpu_profile.serving.pricing.cost_sums import RequestCost
from gpu_profile.serving.pricing.model import FIRST_AT
from gpu_profile.serving.pricing.sharing import WHOLE_TIMES, Unallocated
from gpu_profile.serving.streams.finished import CostRefusal, FinishedRequest
from gpu_profile.serving.streams.request_spans import ServedRequest, SpanFault
from gpu_profile.serving.streams.tenants import ModelUse
from gpu_profile.serving.streams.workers import EngineWorker, WorkerRole
from gpu_profile.serving.work import RequestPhase
from gpu_profile.units import nanoseconds
from gpu_profile_exporter.config import ServingSettings
from gpu_profile_exporter.readings.readings import MetricReading
from gpu_profile_exporter.serving.energy import EnergySum
from gpu_profile_exporter.serving.listener import EngineListener
from gpu_profile_exporter.serving.programs import OtherPrograms
from gpu_profile_exporter.serving.tickets import LATE, CostTicket

#: Most requests that wait for the next step.
_MOST_PENDING: Final = 20_000
#: Costs come at most this long after a list of processes that covers the last iteration: two steps, and the counter's
#: lag.
_BEHIND_S: Final = 5.0
_UJ: Final = 1e6
_PHASES: Final = {RequestPhase.PREFILL: "prefill", RequestPhase.DECODE: "decode"}
#: Why no tenant has costs now, in words.
REFUSALS: Final = {
    CostRefusal.NO_SPANS: "no costs by request: no span of a request for a minute",
    CostRefusal.SPECULATIVE: "no costs by request: several tokens come from one iteration, which is not modelled yet",
    CostRefusal.PUBLISHERS: "no costs by request: several publishers use the GPUs",
    CostRefusal.STAGES: "no costs: the engine is a pipeline, whose stages do not report when they work",
}


class EngineProgress(NamedTuple):
    """How far an engine's energy is shared out.

    `until_ns`: the end of that time in ns since the epoch. `iterations` and `joules` still wait. `remark`: why there
    are no prices, or no costs by request now.
    """

    until_ns: int
    iterations: int
    joules: float
    remark: str


class ServedEngine:
    """The costs of one engine. One thread calls `step`; any thread may call `add`, `energy.take` and read `latest`.

    `behind_s` is as in `OtherPrograms`.
    """

    def __init__(
        self, name: str, listener: EngineListener, clock: Clock, settings: ServingSettings, *, behind_s: float
    ) -> None:
        self.name, self.worker = name, EngineWorker.named(name)
        #: The energy of its GPUs. None until the GPUs have answered.
        self.energy: EnergySum | None = None
        #: The metrics, as of the last step.
        self.latest: list[MetricReading] = []
        self._listener, self._clock, self._settings = listener, clock, settings
        # A span must not leave while the last iteration of its request may still wait for others.
        self._behind_s, wait_s = behind_s, settings.wait_s
        self._deadline_ns = nanoseconds(max(wait_s - _BEHIND_S - PROCESSES_S - behind_s, wait_s / 2))
        self._estimator: ServingEngine | None = None
        self._programs: OtherPrograms | None = None
        self._uuids: tuple[str, ...] = ()
        self._pending: deque[tuple[ServedRequest, CostTicket]] = deque()
        self._lock = threading.Lock()
        #: The tickets of waiting spans, by the id and the end of their requests.
        self._tickets: WeakValueDictionary[tuple[str, int | None], CostTicket] = WeakValueDictionary()
        #: The latest costs of requests that the engine reported itself, by the same. Their spans may come later.
        self._unclaimed: dict[tuple[str, int | None], RequestCost | StrEnum] = {}
        self._refused: Counter[str] = Counter()
        self._messages = 0
        self._tokens: Counter[tuple[ModelUse, RequestPhase]] = Counter()
        self._cached: Counter[ModelUse] = Counter()
        self._saved_j: defaultdict[ModelUse, float] = defaultdict(float)
        self._ended: Counter[ModelUse] = Counter()
        #: J and tokens of the requests with a complete cost, by tenant and phase: their ratio is the price of tokens.
        self.priced: defaultdict[tuple[str, str], tuple[float, int]] = defaultdict(lambda: (0.0, 0))
        self._attributes: dict[tuple[str, ...], dict[str, str]] = {}

    def begin(self, uuids: tuple[str, ...]) -> None:
        """Set the engine's GPUs."""
        self._uuids = uuids
        self._estimator = ServingEngine(
            self._settings.tenant or None,
            len(uuids),
            most_tenants=self._settings.tenants,
            deadline_ns=self._deadline_ns,
            role=self.worker.role,
        )
        self._programs = OtherPrograms(self.name, uuids, self._clock, behind_s=self._behind_s)
        self.energy = EnergySum(uuids, renewals=True)

    # ------------------------------------------------------------------ requests

    def add(self, request: ServedRequest, ticket: CostTicket) -> None:
        """Add a request that has ended."""
        with self._lock:
            if len(self._pending) < _MOST_PENDING:
                self._pending.append((request, ticket))
                return
            self._refused["no_room"] += 1
        ticket.reason = "no_room"

    def refuse(self, reason: str) -> None:
        """Count a span of a request that cannot be used."""
        with self._lock:
            self._refused[reason] += 1

    def _pass_on(self, estimator: ServingEngine) -> None:
        with self._lock:
            pending = [self._pending.popleft() for _ in range(len(self._pending))]
        for request, ticket in pending:
            taken = estimator.add(request)
            if isinstance(taken, FinishedRequest):
                key = taken.id, taken.end_ns
                self._tickets[key] = ticket
                if (cost := self._unclaimed.pop(key, None)) is not None:
                    self._give(key, cost)
            else:
                ticket.reason = str(taken)
            if taken is SpanFault.REPEATED:
                continue
            use = estimator.uses.of(request.tenant, request.model)
            # A request of two workers ends on the second one, which has no prefix cache.
            if self.worker.role is not WorkerRole.PREFILL:
                self._ended[use] += 1
            for phase, n in zip(RequestPhase, self._computed(request), strict=True):
                if n:
                    self._tokens[use, phase] += n
            if request.cached is not None and self.worker.role is not WorkerRole.DECODE:
                self._cached[use] += request.cached
                ticket.saved_j = estimator.account.saving(request.cached)
                if ticket.saved_j is not None:
                    self._saved_j[use] += ticket.saved_j

    def _give(self, key: tuple[str, int | None], cost: RequestCost | StrEnum) -> CostTicket | None:
        """Give a span its cost, or the reason why there is none. Returns its ticket if it waits."""
        ticket = self._tickets.pop(key, None)
        if isinstance(cost, RequestCost) and ticket is not None:
            ticket.cost = cost
        elif ticket is not None:
            ticket.reason = str(cost)
        return ticket

    # ------------------------------------------------------------------ the step

    def step(self, states: Mapping[str, TrackedDevice]) -> None:
        """Pass on the arrivals, share out the energy of the time that is complete, and renew the metrics. `states` are
        the node's devices, by UUID."""
        estimator, energy, programs = self._estimator, self.energy, self._programs
        if estimator is None or energy is None or programs is None:
            return
        for frames, arrival_ns in self._listener.take(self.name):
            self._messages += 1
            estimator.message(frames, arrival_ns)
        self._pass_on(estimator)
        times, joules, resets = energy.readings()
        for start_ns, end_ns in resets:
            estimator.account.spoil(start_ns, end_ns, Unallocated.RESTART)
        estimator.read(times, joules, energy.last_ns)
        for start_ns, end_ns in programs.look(states, estimator.last_iteration_ns):
            estimator.account.spoil(start_ns, end_ns, Unallocated.OTHERS)
        estimator.settle(self._clock.now_ns(), programs.listed_until_ns())
        for request, cost in estimator.finished():
            key = request.id, request.end_ns
            ticket = self._give(key, cost)
            if ticket is None and request.end_ns is None:
                self._unclaimed[key] = cost
                if len(self._unclaimed) > _MOST_PENDING:
                    del self._unclaimed[next(iter(self._unclaimed))]
            if isinstance(cost, RequestCost):
                self._price(request, ticket, cost)
        likely = Unallocated.NOT_YET if not estimator.account.model.ready else LATE
        likely = Unallocated.OTHERS if programs.count else likely
        for ticket in list(self._tickets.values()):
            ticket.likely = str(estimator.refusal or likely)
        self.latest = list(self._readings(estimator))

    def _price(self, request: FinishedRequest, ticket: CostTicket | None, cost: RequestCost) -> None:
        """Add a request to the price of its tenant's tokens. The noise of single requests averages out in the sum."""
        spent = request if request.prompt is not None or ticket is None else ticket.request
        partial = (Unallocated.LOST, Unallocated.REQUEST, *WHOLE_TIMES)
        if spent is None or spent.prompt is None or cost.reason in partial:
            return
        for phase, tokens in zip(RequestPhase, self._computed(spent), strict=True):
            joules, n = self.priced[request.use.tenant, _PHASES[phase]]
            self.priced[request.use.tenant, _PHASES[phase]] = joules + cost.joules[phase], n + tokens

    def _computed(self, request: ServedRequest | FinishedRequest) -> tuple[int, int]:
        """The tokens that the engine computed for a request, by phase."""
        return self.worker.counts((request.prompt or 0) - (request.cached or 0), request.completion or 0)

    @property
    def progress(self) -> EngineProgress | None:
        """How far energy is shared out, as of the last step. None before the GPUs have answered."""
        estimator, programs = self._estimator, self._programs
        if estimator is None or programs is None:
            return None
        account = estimator.account
        remark = "" if estimator.refusal is None else REFUSALS[estimator.refusal]
        if not self._messages:
            remark = "no message has arrived"
        elif programs.count:
            remark = "another program works on the GPUs: the energy of this time is unallocated"
        elif not account.model.ready:
            remark = f"no prices yet: {account.model.waiting} readings of the counter, at least {FIRST_AT} are needed"
        return EngineProgress(account.shared_until_ns, estimator.waiting, account.held_uj / _UJ, remark)

    # ------------------------------------------------------------------ metrics

    def _about(self, *pairs: str) -> dict[str, str]:
        """The engine, and names and values in turn: the same mapping each time. Empty values are left out."""
        made = self._attributes.get(pairs)
        if made is None:
            values = zip(pairs[::2], pairs[1::2], strict=True)
            made = self._attributes[pairs] = {"engine": self.name} | {name: value for name, value in values if value}
        return made

    def _of(self, use: Hashable, *pairs: str) -> dict[str, str]:
        """Attributes with a tenant and its model. Work without a span has none."""
        tenant, model = use if isinstance(use, ModelUse) else ("", "")
        return self._about("tenant", tenant, "model", model, *pairs)

    def _readings(self, estimator: ServingEngine) -> Iterator[MetricReading]:
        yield from self._costs(estimator.account)
        for (use, phase), n in self._tokens.items():
            yield MetricReading(rows.SERVING_TOKENS, self._of(use, "phase", _PHASES[phase]), n)
        counted: tuple[tuple[Metric, Mapping[ModelUse, float]], ...] = (
            (rows.SERVING_CACHED, self._cached),
            (rows.SERVING_SAVED, self._saved_j),
            (rows.SERVING_REQUESTS, self._ended),
        )
        for metric, counts in counted:
            for use, value in counts.items():
                yield MetricReading(metric, self._of(use), value)
        yield MetricReading(rows.SERVING_MESSAGES, self._about(), self._messages)
        yield MetricReading(rows.SERVING_LOST, self._about(), estimator.lost_messages)
        yield MetricReading(rows.SERVING_WAITING, self._about(), estimator.waiting)
        refused = Counter(self._listener.dropped(self.name))
        with self._lock:
            refused.update(self._refused)
        refused.update({str(reason): n for reason, n in estimator.refused_messages.items()})
        refused.update({str(reason): n for reason, n in estimator.refused_requests.items()})
        for reason, n in sorted(refused.items()):
            yield MetricReading(rows.SERVING_REFUSED, self._about("reason", reason), n)
        if self._programs is not None and (others := self._programs.count) is not None:
            yield MetricReading(rows.SERVING_OTHERS, self._about(), others)
        for uuid in self._uuids:
            yield MetricReading(rows.SERVING_DEVICE, self._about("hw.id", uuid), 1)

    def _costs(self, account: EngineAccount) -> Iterator[MetricReading]:
        for (use, phase), microjoules in account.microjoules.items():
            yield MetricReading(rows.SERVING_ENERGY, self._of(use, "phase", _PHASES[phase]), microjoules / _UJ)
        for (use, phase), seconds in account.device_s.items():
            yield MetricReading(rows.SERVING_DEVICE_TIME, self._of(use, "phase", _PHASES[phase]), seconds)
        for use in dict.fromkeys(use for use, _ in account.microjoules):
            half_width = account.half_width(use)
            if half_width is not None:
                yield MetricReading(rows.SERVING_HALF_WIDTH, self._of(use), half_width)
        for phase, name in _PHASES.items():
            half_width = account.phase_half_width(phase)
            if half_width is not None:
                yield MetricReading(rows.SERVING_PHASE_HALF_WIDTH, self._about("phase", name), half_width)
        for reason in Unallocated:
            # From 0, so that increase() sees the first joules.
            joules = account.unallocated.get(reason, 0) / _UJ
            yield MetricReading(rows.SERVING_UNALLOCATED, self._about("reason", str(reason)), joules)

"""One engine: its messages, its requests' spans and its devices' energy, joined into costs. Pure.

Messages arrive while iterations run, spans when requests end, readings of the energy at any time. Iterations wait until
all of their requests have ended, or for `deadline_ns`. Then they enter the account. If iterations run and no request
has ended for a minute, there are no spans: costs are given by phase, and for no tenant.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from enum import StrEnum
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.serving.pricing.account import EngineAccount
from gpu_profile.serving.pricing.cost_sums import RequestCost
from gpu_profile.serving.pricing.pipelines import PipelineWatch
from gpu_profile.serving.pricing.sharing import Unallocated
from gpu_profile.serving.pricing.windows import CounterReadings
from gpu_profile.serving.streams.finished import CostRefusal, FinishedRequest
from gpu_profile.serving.streams.forward_pass import MessageError, MessageFault, decoded
from gpu_profile.serving.streams.membership import MOST_REQUESTS, Membership, PlacingFault
from gpu_profile.serving.streams.pass_times import CLOCK_STEP_NS, KEPT_BACK_NS, PublishedPasses, TimedPasses
from gpu_profile.serving.streams.request_spans import Attributes, ServedRequest, SpanFault, served_request
from gpu_profile.serving.streams.span_arrivals import SpanArrivals
from gpu_profile.serving.streams.tenants import ModelUses
from gpu_profile.serving.streams.workers import WorkerRole
from gpu_profile.serving.work import BatchedRequest

_S: Final = 10**9
DEADLINE_NS: Final = 120 * _S
#: Without a request for this long while iterations run, there are no spans.
_NO_SPANS_NS: Final = 60 * _S
#: A span may describe iterations whose messages arrive a little later.
_SPAN_EARLY_NS: Final = 200_000_000
#: Another publisher takes over from one that has been silent for this long.
_SILENT_NS: Final = 5 * _S
#: An idle engine's next message may be this much later than the start of its iteration.
_IDLE_BEHIND_NS: Final = 3 * _S
#: Energy of so much time is shared out at once, as each time costs as much. The oldest waits for at most this part of
#: the deadline.
_AT_ONCE_NS, _HELD = 5 * _S, 3
#: The most requests whose costs wait to be collected.
_MOST_FINISHED: Final = 10_000


class ServingEngine:
    """The costs of one engine, which uses `devices` devices.

    `tenant_attribute` names the attribute of requests' spans that has the tenant. None: all requests are of one tenant.
    `role` is the part of requests that it computes.
    Energies of requests and of tenants by model, as `ModelUse`, are in `account`. Call `settle` every second or two.
    """

    def __init__(
        self,
        tenant_attribute: str | None = None,
        devices: int = 1,
        *,
        most_tenants: int = 64,
        deadline_ns: int = DEADLINE_NS,
        role: WorkerRole = WorkerRole.WHOLE,
    ) -> None:
        self._tenant_attribute, self._deadline_ns, self._role = tenant_attribute, deadline_ns, role
        #: The labels of tenants and models.
        self.uses = ModelUses(most_tenants)
        self.account = EngineAccount(self._use_of, devices)
        self._passes, self._membership, self._pipeline = PublishedPasses(), Membership(role), PipelineWatch()
        self._publisher: tuple[str, int] | None = None
        #: The ends of a time with two publishers, and of the last iteration, the start of the first, the last readings.
        self._shared_until_ns = self._last_ns = self._first_ns = self._last_time_ns = self._read_ns = 0
        #: Requests by number, and numbers by the names that the engine reports. Ended requests wait for a place, and
        #: then for their cost.
        self._requests: dict[int, FinishedRequest] = {}
        self._numbers: dict[str, int] = {}
        self._next = 0
        self._unplaced: deque[tuple[int, ServedRequest]] = deque()
        self._ending: deque[tuple[int, str]] = deque(maxlen=2 * MOST_REQUESTS)
        self._ended: deque[tuple[int, int]] = deque()
        self._finished: deque[tuple[FinishedRequest, RequestCost | StrEnum]] = deque(maxlen=_MOST_FINISHED)
        self._spans = SpanArrivals(deadline_ns)
        #: Whether the engine reports the requests of its iterations.
        self._reports = False
        #: Why tenants have no costs now, None if they have.
        self.refusal: CostRefusal | None = None
        #: The time of iterations that were dropped because there were no readings.
        self._unread: tuple[int, int] | None = None
        #: Spans of requests that cannot be used, and requests without a place in the iterations, by reason.
        self.refused_requests: dict[SpanFault | PlacingFault, int] = defaultdict(int)

    @property
    def refused_messages(self) -> dict[MessageFault, int]:
        """Messages that were refused, by reason."""
        return self._passes.refused

    @property
    def lost_messages(self) -> int:
        """Messages that did not arrive, by their sequence."""
        return self._passes.gaps

    @property
    def waiting(self) -> int:
        """Iterations that wait for their requests."""
        return len(self._membership)

    def _use_of(self, number: int) -> Hashable:
        request = self._requests.get(number)
        return None if request is None else request.use

    # ------------------------------------------------------------------ taking in

    def message(self, frames: Sequence[bytes], arrival_ns: int) -> None:
        """Add a message that arrived at a time. A wrong one is counted, never raised.

        Raises:
            UsageError: msgspec is not installed.
        """
        try:
            message = decoded(frames)
        except MessageError as error:
            self._passes.refused[error.fault] += 1
            return
        if message.prefills or message.decodes:
            self._reports = message.requests is not None
        if message.age_s:
            arrival_ns -= round(message.age_s * 1e9)
        self._passes.take(message, arrival_ns)
        if message.ended:
            self._ending.extend((arrival_ns, name) for name in message.ended)

    def request(self, name: str, start_ns: int, attributes: Attributes) -> FinishedRequest | StrEnum | None:
        """Add a span that has ended, by its name, its start and its attributes.

        Returns the request with the id and the end that `finished` gives, with no end if the engine reports requests
        itself, the reason why a span cannot be used, or None if it is no request's.
        """
        request = served_request(name, start_ns, attributes, self._tenant_attribute)
        if isinstance(request, SpanFault):
            self.refused_requests[request] += 1
        return self.add(request) if isinstance(request, ServedRequest) else request

    def add(self, request: ServedRequest) -> FinishedRequest | StrEnum:
        """The same for a span that has been read."""
        if request.id and self._spans.is_copy(request):
            self.refused_requests[SpanFault.REPEATED] += 1
            return SpanFault.REPEATED
        if self._role is WorkerRole.DECODE:
            # The cached tokens are those of the prefill worker.
            request = request._replace(cached=None)
        if len(self._unplaced) >= MOST_REQUESTS or len(self._requests) >= 2 * MOST_REQUESTS:
            self.refused_requests[PlacingFault.FULL] += 1
            return PlacingFault.FULL
        if self._reports:
            # It has its place already.
            return FinishedRequest(request.id, self.uses.of(request.tenant, request.model))
        taken = FinishedRequest(
            request.id, self.uses.of(request.tenant, request.model), request.prompt, request.completion,
            request.cached, request.scheduled_ns, request.end_ns,
        )  # fmt: skip
        self._unplaced.append((self._numbered(taken), request))
        self._spans.add(request)
        return taken

    def _numbered(self, request: FinishedRequest) -> int:
        self._next += 1
        self._requests[self._next] = request
        return self._next

    def _number_of(self, request: BatchedRequest) -> int:
        """The number of a request that the engine reports."""
        number = self._numbers.get(request.id)
        if number is None:
            if len(self._numbers) >= MOST_REQUESTS:
                # An engine that never reports ends: the request that began first is taken to have ended.
                self._drop(self._numbers.pop(next(iter(self._numbers))))
            number = self._numbered(FinishedRequest(request.id, self.uses.of(request.tenant, "")))
            self._numbers[request.id] = number
        return number

    def read(self, times: Sequence[int] | Ints, joules: Sequence[float] | Floats, read_ns: int = 0) -> None:
        """Add readings of the energy counters, in J, summed over the devices, at times in ns since the epoch, without
        those that are not later than earlier ones or not finite. Readings up to `read_ns` were made, and may follow."""
        later = []
        for time_ns, value in zip(times, joules, strict=True):
            if time_ns < self._last_time_ns - CLOCK_STEP_NS:
                self._set_back()
            if time_ns > self._last_time_ns and math.isfinite(value):
                self._last_time_ns = int(time_ns)
                later.append((self._last_time_ns, float(value)))
        self._read_ns = max(read_ns, self._last_time_ns)
        if later:
            kept_times, kept_j = zip(*later, strict=True)
            self.account.read(CounterReadings(np.array(kept_times, np.int64), np.array(kept_j)))

    def _set_back(self) -> None:
        """The clock was set back: the times of all that waits belong to the old one."""
        for number in [*(number for number, _ in self._unplaced), *(number for _, number in self._ended)]:
            self._finished.append((self._requests[number], Unallocated.LOST))
            self._requests.pop(number)
        self._unplaced.clear()
        self._ended.clear()
        self._membership = Membership(self._role)
        self._shared_until_ns = self._last_ns = self._first_ns = self._last_time_ns = self._read_ns = 0
        self._unread = None
        self._spans.restart()
        self.account.set_back()

    # ------------------------------------------------------------------ sharing out

    @property
    def last_iteration_ns(self) -> int:
        """The end of the last iteration with a final time, in ns since the epoch. 0 before the first one."""
        return self._last_ns

    def settle(self, now_ns: int, alone_until_ns: int | None = None) -> None:
        """Share out the energy of all time before the first iteration that waits.

        `alone_until_ns`: up to here, the times in which other programs worked are in the account. None: no such times
        are reported.
        """
        passes = self._from_one_publisher(self._passes.settled(now_ns), now_ns)
        self._pipeline.add(passes.counts)
        if self._pipeline.recognised:
            self._refuse_pipeline(passes, now_ns)
            return
        self._membership.add(passes)
        self._place(now_ns)
        without_ns = self._without_spans_ns(now_ns)
        phases_only = self._membership.speculative or without_ns is not None
        before_ns = now_ns - self._deadline_ns if without_ns is None else without_ns
        spans_until_ns = self._spans.complete_until_ns(now_ns)
        stream = self._passes.streams.get(self._publisher) if self._publisher else None
        if without_ns is None and stream is not None and not stream.busy and stream.arrival_ns < spans_until_ns:
            before_ns = spans_until_ns  # all requests have ended
        batch = self._membership.leave(
            before_ns, self._number_of, phases_only=phases_only, spans_until_ns=spans_until_ns
        )
        self.refusal = (
            CostRefusal.PUBLISHERS if self._shared_until_ns > now_ns - _NO_SPANS_NS
            else CostRefusal.SPECULATIVE if self._membership.speculative
            else CostRefusal.NO_SPANS if without_ns is not None
            else None
        )  # fmt: skip
        iterations = batch.iterations()
        if self._read_ns > now_ns - _NO_SPANS_NS:
            for reason, times in ((Unallocated.LOST, batch.lost), (Unallocated.REQUEST, batch.unclear)):
                for start_ns, end_ns in times:
                    self.account.spoil(start_ns, end_ns, reason)
            if self._unread is not None:
                self.account.spoil(*self._unread, Unallocated.LOST)
                self._unread = None
            for number, tokens, of_tenant in batch.unsure:
                self.account.doubt(number, tokens, of_tenant)
            for lacking in batch.lacking:
                self.account.lack(*lacking)
            self.account.take(iterations)
            complete_ns = min(self._complete_ns(now_ns), now_ns if alone_until_ns is None else alone_until_ns)
            shared_ns = self.account.shared_until_ns
            if complete_ns - shared_ns >= _AT_ONCE_NS or now_ns - shared_ns >= self._deadline_ns / _HELD:
                self.account.settle(complete_ns)
        elif len(iterations.starts):
            # Without readings, iterations would only use memory. Their time is left out if readings come later.
            self._unread = int((self._unread or iterations.starts)[0]), int(iterations.ends[-1])
        self._collect(now_ns)

    def _refuse_pipeline(self, passes: TimedPasses, now_ns: int) -> None:
        """Leave the energy of a pipeline's iterations unallocated, and refuse its requests."""
        if self.refusal is not CostRefusal.STAGES:
            self.refusal = CostRefusal.STAGES
            self._membership = Membership(self._role)
            self.account.spoil(0, now_ns, Unallocated.STAGES)
            self.account.settle(now_ns)
            self.account.set_back()
            self.account.spoil(0, now_ns, Unallocated.STAGES)  # readings of this time may follow
        until_ns = now_ns - _IDLE_BEHIND_NS
        for marked in self._pipeline.marked(passes, until_ns):
            self.account.spoil(*marked)
        self.account.settle(until_ns)
        for number in [*(number for number, _ in self._unplaced), *(number for _, number in self._ended)]:
            self._refuse(number, PlacingFault.STAGES)
        self._unplaced.clear()
        self._ended.clear()
        self._ending.clear()

    def _from_one_publisher(self, settled: dict[tuple[str, int], TimedPasses], now_ns: int) -> TimedPasses:
        """The iterations of the engine's publisher. Others have used the devices too, so that nothing is certain."""
        if settled and self._publisher not in settled:
            stream = self._passes.streams.get(self._publisher) if self._publisher else None
            if stream is None or stream.arrival_ns < now_ns - _SILENT_NS:
                self._publisher = max(settled, key=lambda key: len(settled[key].messages))
        for key, passes in settled.items():
            if key != self._publisher:
                self._shared_until_ns = now_ns
                self.account.spoil(int(passes.starts[0]), int(passes.ends[-1]), Unallocated.SHARED)
        passes = settled.get(self._publisher or ("", -1), TimedPasses.of((), (), []))
        passes = passes.cut(int(np.searchsorted(passes.starts, self._last_ns)))
        if passes.messages:
            self._first_ns, self._last_ns = self._first_ns or int(passes.starts[0]), int(passes.ends[-1])
        return passes

    def _place(self, now_ns: int) -> None:
        """Find the iterations of the requests that have ended, once all of these have arrived."""
        self._spans.step(now_ns)
        for _ in range(len(self._unplaced)):
            number, request = self._unplaced.popleft()
            if request.end_ns > now_ns + self._deadline_ns:
                self._refuse(number, SpanFault.RANGE)
            elif request.end_ns > now_ns - self._deadline_ns and not self._has_iterations(request.end_ns, now_ns):
                self._unplaced.append((number, request))
            elif (fault := self._membership.place(number, request)) is not None:
                self._refuse(number, fault)
            else:
                self._ended.append((request.end_ns, number))

    def _has_iterations(self, end_ns: int, now_ns: int) -> bool:
        """Whether the iterations up to the end of a request have arrived. Messages may be late by seconds."""
        if end_ns > now_ns - KEPT_BACK_NS - _SPAN_EARLY_NS:
            return False
        stream = self._passes.streams.get(self._publisher) if self._publisher else None
        if stream is None or end_ns - self._membership.delay_ns <= self._last_ns:
            return True
        # A request that ends with the last iteration before an idle time has a stamp that is a little later.
        quiet = stream.arrival_ns < now_ns - (_SILENT_NS if stream.busy else KEPT_BACK_NS)
        return quiet and end_ns < stream.arrival_ns + _SPAN_EARLY_NS

    def _refuse(self, number: int, fault: SpanFault | PlacingFault) -> None:
        """A request has no place in the iterations. Its tenant lacks its tokens."""
        request = self._requests[number]
        self.refused_requests[fault] += 1
        self._finished.append((request, fault))
        self._end(number)
        self._drop(number)

    def _end(self, number: int) -> None:
        """The account has all iterations of a request that it will get."""
        request = self._requests[number]
        if request.tokens is not None:
            # Of a request that began before the first message, nobody has the other tokens.
            whole = request.scheduled_ns >= self._first_ns
            prompt, others = request.tokens
            tokens = 0 if self._role is WorkerRole.DECODE else prompt, others
            self.account.ended(number, tokens, request.scheduled_ns if whole else 0)

    def _without_spans_ns(self, now_ns: int) -> int | None:
        """The time of the iterations that need not wait for spans, because there have been none for long. None: all
        must wait."""
        last_ns, waiting_ns = self._spans.last_ns or 0, self._membership.first_start_ns
        if waiting_ns is None or waiting_ns < last_ns or now_ns - max(last_ns, self._first_ns) < _NO_SPANS_NS:
            # Of iterations before the last span, the requests are as complete as they will be.
            return None
        return now_ns if self._spans.last_ns is None else now_ns - _NO_SPANS_NS

    def _complete_ns(self, now_ns: int) -> int:
        """The time up to which all iterations are in the account."""
        waiting_ns = self._membership.first_start_ns
        if waiting_ns is not None:
            return waiting_ns
        stream = self._passes.streams.get(self._publisher) if self._publisher else None
        if stream is not None and stream.busy and stream.arrival_ns > now_ns - self._deadline_ns:
            return self._last_ns
        return now_ns - _IDLE_BEHIND_NS

    # ------------------------------------------------------------------ requests that have ended

    def _collect(self, now_ns: int) -> None:
        """Collect the costs of requests that have ended, once their iterations are shared out."""
        waiting_ns = self._membership.first_start_ns or now_ns
        for _ in range(len(self._ending)):
            end_ns, name = self._ending.popleft()
            if end_ns >= waiting_ns or end_ns > now_ns - KEPT_BACK_NS:
                self._ending.append((end_ns, name))
            elif (number := self._numbers.pop(name, None)) is not None:
                self._ended.append((end_ns, number))
        # The request's last iteration may end a little later than its stamp.
        until_ns = self.account.shared_until_ns - _SPAN_EARLY_NS
        rest = [each for each in self._ended if each[0] >= until_ns]
        many = max(0, len(rest) - MOST_REQUESTS)
        due = [number for end_ns, number in self._ended if end_ns < until_ns] + [number for _, number in rest[:many]]
        self._ended = deque(rest[many:])
        for number in due:
            self._end(number)
        costs = self.account.costs(due)
        for number in due:
            self._finished.append((self._requests[number], costs.get(number, Unallocated.NOT_YET)))
            self._drop(number)

    def _drop(self, number: int) -> None:
        self.account.forget([number])
        self._requests.pop(number, None)

    def finished(self) -> list[tuple[FinishedRequest, RequestCost | StrEnum]]:
        """Requests that have ended, each once, with their costs, once the energy of their iterations is shared out, or
        with the reason why they have none."""
        result = list(self._finished)
        self._finished.clear()
        return result

"""The tickets with which spans of requests wait for their costs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from gpu_profile.catalogue import serving as names
from gpu_profile.clock import Clock
from gpu_profile.serving.streams.workers import WorkerRole

if TYPE_CHECKING:
    from gpu_profile.serving.pricing.cost_sums import RequestCost
    from gpu_profile.serving.streams.request_spans import ServedRequest

#: The reason of a request without a cost at the end of its wait.
LATE: Final = "not_settled_in_time"
#: The reason of a request of two workers if the other worker's span has not come.
_MISSING: Final = "span_missing"


class CostTicket:
    """The cost of one request, once it is known. Until `deadline_ns`, it may still come.

    `role` is the part of the request that its engine computes.
    """

    __slots__ = (
        "__weakref__", "_clock", "_deadline_ns", "_wait_ns", "cost", "likely", "paired", "prefill", "reason", "request",
        "role", "saved_j", "sent",
    )  # fmt: skip

    def __init__(self, clock: Clock, wait_ns: int, role: WorkerRole = WorkerRole.WHOLE) -> None:
        self._clock, self._wait_ns, self.role = clock, wait_ns, role
        self._deadline_ns = clock.now_ns() + wait_ns
        self.cost: RequestCost | None = None
        #: The request. None if its span cannot be used.
        self.request: ServedRequest | None = None
        #: An estimate of the energy that its cached tokens would have cost, in J. None if there is none.
        self.saved_j: float | None = None
        #: Why there is no cost. Set once it is certain.
        self.reason = ""
        #: Why there may be none at the end of the wait.
        self.likely = LATE
        #: Whether the span was sent with its attributes.
        self.sent = False
        #: Whether the cost of the request's prefill, on another worker, belongs to this one's total, and its ticket.
        self.paired, self.prefill = False, None  # type: bool, CostTicket | None

    @property
    def is_ready(self) -> bool:
        """Whether the wait is over."""
        left_ns = self._deadline_ns - self._clock.now_ns()
        # After the clock was set back, the deadline may be hours away.
        return self._is_complete or not 0 < left_ns <= self._wait_ns

    @property
    def _is_settled(self) -> bool:
        return self.cost is not None or bool(self.reason)

    @property
    def _is_complete(self) -> bool:
        if not self._is_settled or not self.paired or self._refusal:
            return self._is_settled
        return self.prefill is not None and self.prefill._is_settled

    @property
    def _refusal(self) -> str:
        """Why there is no cost, "" if there is one."""
        if self.cost is None:
            return self.reason or self.likely
        return "" if self.cost.reason is None else str(self.cost.reason)

    def attributes(self) -> dict[str, float | str]:
        """The span's attributes: the cost, or the reason why there is none."""
        whole = {names.REQUEST_WORKER.name: str(self.role)} if self.role else {}
        return self._own() | whole | (self._total() if self.paired else {})

    def _total(self) -> dict[str, float | str]:
        """The cost of both workers, or the reason why there is none."""
        other = self.prefill
        missing = f"prefill: {_MISSING if other is None else other._refusal}"
        if self.cost is None or self._refusal:
            return {names.REQUEST_TOTAL_REASON.name: f"decode: {self._refusal}"}
        if other is None or other.cost is None or other._refusal:
            return {names.REQUEST_TOTAL_REASON.name: missing}
        before_j, own_j = float(sum(other.cost.joules)), float(sum(self.cost.joules))
        return {
            names.REQUEST_PREFILL.name: before_j,
            names.REQUEST_TOTAL.name: before_j + own_j,
            # The workers have counters of their own, so that their errors are independent.
            names.REQUEST_TOTAL_HALF_WIDTH.name: math.hypot(other.cost.half_width_j, self.cost.half_width_j),
        }

    def _own(self) -> dict[str, float | str]:
        cost = self.cost
        if cost is None or cost.reason is not None:
            return {names.REQUEST_REASON.name: self._refusal}
        result: dict[str, float | str] = {
            names.REQUEST_ENERGY.name: float(sum(cost.joules)),
            names.REQUEST_MARGINAL.name: float(cost.marginal_j),
            names.REQUEST_HALF_WIDTH.name: float(cost.half_width_j),
            names.REQUEST_DEVICE_TIME.name: float(cost.device_s),
        }
        if self.saved_j is not None:
            result[names.REQUEST_SAVED.name] = self.saved_j
        return result

"""The tickets with which spans of requests wait for their costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpu_profile.catalogue import serving as names
from gpu_profile.clock import Clock

if TYPE_CHECKING:
    from gpu_profile.serving.cost_sums import RequestCost
    from gpu_profile.serving.request_spans import ServedRequest

#: The reason of a request without a cost at the end of its wait.
LATE: Final = "not_settled_in_time"


class CostTicket:
    """The cost of one request, once it is known. Until `deadline_ns`, it may still come."""

    __slots__ = ("__weakref__", "_clock", "_deadline_ns", "_wait_ns", "cost", "likely", "reason", "request", "saved_j")

    def __init__(self, clock: Clock, wait_ns: int) -> None:
        self._clock, self._wait_ns = clock, wait_ns
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

    @property
    def is_ready(self) -> bool:
        """Whether the wait is over."""
        left_ns = self._deadline_ns - self._clock.now_ns()
        # After the clock was set back, the deadline may be hours away.
        return self.cost is not None or bool(self.reason) or not 0 < left_ns <= self._wait_ns

    def attributes(self) -> dict[str, float | str]:
        """The span's attributes: the cost, or the reason why there is none."""
        cost = self.cost
        if cost is None or cost.reason is not None:
            reason = self.reason if cost is None else str(cost.reason)
            return {names.REQUEST_REASON.name: reason or self.likely}
        result: dict[str, float | str] = {
            names.REQUEST_ENERGY.name: float(sum(cost.joules)),
            names.REQUEST_MARGINAL.name: float(cost.marginal_j),
            names.REQUEST_HALF_WIDTH.name: float(cost.half_width_j),
            names.REQUEST_DEVICE_TIME.name: float(cost.device_s),
        }
        if self.saved_j is not None:
            result[names.REQUEST_SAVED.name] = self.saved_j
        return result

"""The difference between the lateness of ends and of starts that windows show. Pure.

If all ends are later than starts by the same time, no scatter of stamps shows it. But windows that end within
executions show when work ends. So their likelihood under shorter executions shows the difference. The stamps are the
same for all sensors, so the losses of likelihood of all of them add up. The difference counts only if the evidence
against none is very strong (Kass and Raftery, Journal of the American Statistical Association 90 (1995), 773).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from gpu_profile.catalogue import Signal
from gpu_profile.join.unmixing.solving.shrinkage import CERTAIN
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.shortened import shortened

#: The differences that are compared with none. Work before the start of an execution is power outside regions.
_DIFFERENCES_NS: Final = (200_000, 400_000, 800_000, 1_600_000)
#: Evidence is very strong from this difference of twice a log likelihood on.
_STRONG: Final = 10.0


class LateEnds:
    """The evidence of each sensor's windows on the difference between the lateness of ends and of starts."""

    def __init__(self) -> None:
        #: By leading signal, and by difference in ns: twice the loss of log likelihood, up to a constant.
        self._losses: dict[Signal, dict[int, float]] = {}

    def compare(self, lead: Signal, effect: float, active: ActiveTime, loss: Callable[[ActiveTime], float]) -> None:
        """Compare the windows of a family under shorter executions than in the `active` time.

        `loss` is twice the loss of log likelihood under an active time, up to a constant. `effect` windows carry as
        much information as one independent window.
        """
        losses = {0: loss(active)}
        for difference in _DIFFERENCES_NS:
            losses[difference] = each = loss(shortened(active, difference))
            if each > losses[0] + CERTAIN * effect:
                # Larger ones are even less likely.
                break
        self._losses[lead] = {difference: each / effect for difference, each in losses.items()}

    @property
    def certain_ns(self) -> int:
        """The largest difference that the windows of all sensors do not rule out; 0 if there may be none.

        It is also 0 if the largest one compared is not ruled out: then executions contain pauses, and no stamp is late.
        """
        losses = {
            difference: sum(each.get(difference, math.inf) for each in self._losses.values())
            for difference in (0, *_DIFFERENCES_NS)
        }
        most = min(losses.values()) + _STRONG
        possible = [difference for difference, each in losses.items() if each < most]
        return possible[-1] if possible[0] and possible[-1] < _DIFFERENCES_NS[-1] else 0

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

import numpy as np

from gpu_profile.catalogue import Signal
from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.rate import Z95
from gpu_profile.join.unmixing.solving.shrinkage import CERTAIN
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.shortened import shortened

#: The differences that are compared with none. Work before the start of an execution is power outside regions.
_DIFFERENCES_NS: Final = (200_000, 400_000, 800_000, 1_600_000)
#: Evidence is very strong from this difference of twice a log likelihood on.
_STRONG: Final = 10.0
#: Regions' differences may vary, and windows show their mean. If they are exponential, 95 % are below three times that.
_ONE_REGION: Final = 3.0


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

    def possible_ns(self, by_stamps: Floats) -> Floats:
        """By column: the largest difference that the windows of all sensors do not rule out. The scatter of stamps
        allows those `by_stamps`.

        If the evidence against none is very strong, differences are at least the largest one not ruled out. That is 0
        if no compared one is ruled out: then executions contain pauses, and no stamp is late.
        """
        differences = np.array((0.0, *_DIFFERENCES_NS))
        losses = np.array([sum(each.get(one, math.inf) for each in self._losses.values()) for one in differences])
        far, end = np.sqrt(losses - losses.min()), len(_DIFFERENCES_NS)
        if far[0] ** 2 >= _STRONG:
            last = int(np.flatnonzero(far**2 < _STRONG)[-1])
            return by_stamps if last == end else np.maximum(by_stamps, differences[last])
        last = int(np.flatnonzero(far < Z95)[-1])
        if last == end:
            return by_stamps
        # The distance from the likeliest difference is nearly proportional to the root of the loss.
        beyond = (Z95 - far[last]) / (far[last + 1] - far[last]) * (differences[last + 1] - differences[last])
        result: Floats = np.minimum(by_stamps, _ONE_REGION * (differences[last] + beyond))
        return result

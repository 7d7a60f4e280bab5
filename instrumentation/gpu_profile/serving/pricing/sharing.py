"""The parts of each window: idle time, iterations, and energy of no request, with a reason. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.serving.pricing.prices import LITTLE, Prices
from gpu_profile.serving.pricing.terms import DURATION
from gpu_profile.serving.work import Iterations

#: A residual above this many standard deviations is not shared out.
_OUTLIER: Final = 3.0


class Unallocated(StrEnum):
    """Why energy is no request's. The values are also those of the label `reason`."""

    IDLE = "idle"
    NOT_YET = "not_identifiable_yet"
    NOT_IDENTIFIABLE = "not_identifiable"
    REJECTED = "model_rejected"
    UNEXPLAINED = "unexplained"
    NEW_WORK = "work_not_seen_before"
    LOST = "iterations_lost"
    REQUEST = "request_not_known"
    SHARED = "devices_shared"
    OTHERS = "other_programs"
    RESTART = "counter_restarted"
    STAGES = "pipeline_stages"


#: Of several reasons for a window, the last one counts. All others are above these.
_RANKS: Final = {Unallocated.IDLE: 0, Unallocated.LOST: 1}
#: Reasons for which whole stretches of time are left out: the windows beside them are complete.
WHOLE_TIMES: Final = frozenset({
    Unallocated.SHARED, Unallocated.OTHERS, Unallocated.RESTART, Unallocated.STAGES, Unallocated.NEW_WORK,
})  # fmt: skip


def first_kept(reasons: Sequence[Unallocated | None]) -> int:
    """The number of windows at the beginning that are left out as a whole."""
    return next((at for at, reason in enumerate(reasons) if reason not in WHOLE_TIMES), len(reasons))


class Spoiled:
    """Stretches of time to leave out, with the reason."""

    def __init__(self) -> None:
        self._some: list[tuple[int, int, Unallocated]] = []

    def add(self, start_ns: int, end_ns: int, reason: Unallocated) -> None:
        """Add a stretch."""
        self._some.append((start_ns, end_ns, reason))

    def forget(self, before_ns: int) -> None:
        """Drop stretches that ended before a time."""
        self._some = [each for each in self._some if each[1] > before_ns]

    def by_window(self, moments: Ints) -> list[Unallocated | None]:
        """By window between moments: the reason to leave it out, or None. Idle time counts least, then
        lost iterations."""
        reasons: list[Unallocated | None] = [None] * max(0, len(moments) - 1)
        for start_ns, end_ns, reason in sorted(self._some, key=lambda each: _RANKS.get(each[2], len(_RANKS))):
            low = max(0, int(np.searchsorted(moments, start_ns, side="right")) - 1)
            high = min(len(reasons), int(np.searchsorted(moments, end_ns, side="left")))
            reasons[low:high] = [reason] * max(0, high - low)
        return reasons

    def lost_s(self, moments: Ints) -> Floats:
        """By window between moments: the time of lost iterations in s."""
        result = np.zeros(len(moments) - 1)
        for start_ns, end_ns, reason in self._some:
            if reason is Unallocated.LOST:
                low, high = max(0, int(np.searchsorted(moments, start_ns)) - 1), int(np.searchsorted(moments, end_ns))
                edges = np.clip(moments[low : high + 1], start_ns, end_ns)
                result[low : low + len(edges) - 1] += (edges[1:] - edges[:-1]) / 1e9
        return result


class WindowParts(NamedTuple):
    """The parts of windows: J of iterations by window, and J that is nobody's by reason, over all windows.

    The others have a value by window, for one J of modelled energy of an iteration: `given` the energy it gets,
    `missing` the energy that is missing beside it, by reason. `counted` is 1 if the window counts.
    """

    shared: Floats
    unallocated: Mapping[Unallocated, float]
    given: Floats
    missing: Mapping[Unallocated, Floats]
    counted: Floats

    @classmethod
    def of(
        cls, shares: Floats, joules: Floats, prices: Prices, reasons: Sequence[Unallocated | None], lost_s: Floats
    ) -> WindowParts:
        """From the equations of windows, and the reasons to leave some out. `lost_s` is the time of lost iterations."""
        lost = np.array([each is Unallocated.LOST for each in reasons])
        counts = lost | np.array([each is None for each in reasons])
        modelled = np.maximum(shares[:, 1:] @ prices.solution[1:], 0.0)
        outside_s, whole_s = np.maximum(shares[:, 0] - lost_s, 0.0), shares[:, 0] + shares[:, 1 + DURATION]
        if prices.outside_is_clear:
            outside = prices.outside_w * outside_s
        else:
            # The prices of iterations are clear: the rest of the energy is of the time outside.
            outside = np.where(outside_s > LITTLE * whole_s, np.maximum(joules - modelled, 0.0), 0.0)
        outside = np.where((shares[:, 1 + DURATION] > 0) | (lost_s > 0), np.minimum(outside, joules), joules)
        # Beside lost iterations, the others' energy is as modelled.
        usual_j = _OUTLIER * np.sqrt(prices.noise)
        most = np.where(lost, modelled, modelled + usual_j)
        shared = np.where(counts & (modelled > 0), np.clip(joules - outside, 0.0, most), 0.0)
        rest = joules - outside - shared
        unallocated = {Unallocated.IDLE: float(outside[counts].sum()), Unallocated.LOST: float(rest[lost].sum())}
        per_joule = np.where(modelled > 0, 1 / np.maximum(modelled, 1e-12), 0.0)
        missing = {Unallocated.LOST: rest * per_joule * lost} if lost.any() else {}
        # It may be of the iterations all the same, as after a change of the language model. If there is less energy
        # than usual, that of the iterations may be in other windows.
        beyond = np.maximum(rest, 0.0) + np.maximum(modelled - usual_j - shared, 0.0)
        beyond = np.where(counts & ~lost, beyond, 0.0) * per_joule
        if beyond.any():
            missing[Unallocated.UNEXPLAINED] = beyond
        for reason in {each for each in reasons if each not in (None, Unallocated.LOST)}:
            here = np.array([each is reason for each in reasons])
            unallocated[Unallocated(reason)] = unallocated.get(Unallocated(reason), 0.0) + float(joules[here].sum())
            missing[Unallocated(reason)] = here * (modelled > 0)
        return cls(shared, unallocated, shared * per_joule, missing, counts * 1.0)


def over_iterations(moments: Ints, values: Floats, some: Iterations) -> Floats:
    """The means over each iteration of functions that have a value in each window, and are 0 outside all windows:
    `values[functions, windows]`, and `[functions, iterations]`."""
    since = moments[0]
    at, edges = moments - since, np.concatenate((some.starts, some.ends)) - since
    result = np.empty((len(values), len(some.starts)))
    lengths = np.maximum(some.ends - some.starts, 1)
    for row, integral in zip(result, np.cumsum(values * np.diff(moments), axis=1), strict=True):
        whole = np.interp(edges, at, np.concatenate(([0.0], integral)))
        row[:] = (whole[len(row) :] - whole[: len(row)]) / lengths
    return result

"""The conditions in the rules for sensors: how far the scores are from each, and what lowers the confidence. Pure."""

from __future__ import annotations

import math
from typing import Final

from gpu_profile.regimes.rule import below, least, of_ceiling
from gpu_profile.regimes.scores import Scores
from gpu_profile.regimes.thresholds import Thresholds
from gpu_profile.units import percent

#: The longest gap before a kernel, in kernels of the shortest kind.
LONGEST_LAUNCH: Final = 5
#: The confidence factor of a rule with evidence that other causes give as well, such as a wait from launches.
HINT: Final = 0.6
#: The same for waits that may be launches of small kernels, and for memory that is touched all the time.
EITHER: Final = 0.72


def copies_factor(s: Scores, _limits: Thresholds) -> float:
    """Reduced if PCIe is not measured, and busy time leaves copies out: they may fill the time."""
    return 1.0 if s.pcie is not None or s.copies_are_busy else HINT


def launches_factor(s: Scores, limits: Thresholds) -> float:
    """Reduced if the wait may be the launches of kernels: counters cannot separate them from other waits of the host.

    The wait may also be copies if these are not measured. Kernels for which launches matter are too short to keep the
    multiprocessors occupied. A launch takes at most some five times as long as the shortest of them (2-4 µs; 1-20 µs).
    """
    small = s.sm is None or s.sm < limits.broad_sm
    launches = small and s.waiting < LONGEST_LAUNCH * s.working
    return min(EITHER if launches else 1.0, copies_factor(s, limits))


def host_wait(s: Scores, limits: Thresholds) -> float | None:
    """How far the time in which nothing is visible is ahead of work and of other waits."""
    return longest(s.waiting, s, limits, s.copying, s.exchanging, s.media)


def unlike_copies(s: Scores, limits: Thresholds) -> float | None:
    """How far the wait is from copies that a host thread stages: by their traffic, else by the power of kernels."""
    if copies_unseen(s, limits):
        return None
    if s.staged is not None:
        return s.waiting - s.staged - (s.copying or 0.0)
    if s.compute is not None or s.busy < limits.idle_busy or s.power is None:
        return 1.0
    return s.power - limits.quiet_power


def unheld_power(s: Scores, limits: Thresholds) -> float | None:
    """The power that it would draw at its highest clock: power falls with more than the square of a clock that the
    driver holds down. At most 1, the limit."""
    if s.power is None or s.clock is None or s.throttled is None or s.throttled < limits.half:
        return s.power
    return min(1.0, s.power / max(s.clock, 0.1) ** 2)


def drawn(s: Scores) -> str:
    """The power in words; with the clock where the driver holds it down."""
    clock = "" if s.clock is None or s.clock > 0.95 else f" at {percent(s.clock, 0)} of its highest clock"
    return f"{of_ceiling(s.power)} of its power limit{clock}"


def copy_advice(s: Scores) -> str:
    """Pinning helps copies that are no faster than staged ones."""
    pinned = s.pcie is not None and s.pcie > 0.5 * (s.copying or 0.0)
    step = "overlap or shrink them" if pinned else "pin host memory, overlap or shrink them"
    return f"data over PCIe take {percent(s.copying or 0, 0)} of the time: {step}"


def waiting_share(s: Scores) -> float | None:
    """The time in which kernels only hold multiprocessors, if work holds all of them."""
    return None if s.held is None or s.sm is None or s.held >= 1 else max(0.0, (1.0 - s.sm) / (1.0 - s.held))


def may_wait(s: Scores) -> bool:
    """Whether kernels hold multiprocessors while nothing moves."""
    return s.held is not None and s.held > 0


def held_by_waits(s: Scores, limits: Thresholds) -> float | None:
    """How far kernels that hold multiprocessors and move nothing are ahead of work."""
    share = waiting_share(s)
    if s.held is None or share is None or s.held < limits.silent / 2 or s.held > limits.narrow_sm:
        return None
    # Small kernels leave gaps between them.
    gaps = s.busy - (1.0 - limits.idle_busy)
    return least(share - limits.half, below(s.compute, limits), below(s.memory, limits), gaps)


def network_factor(s: Scores, limits: Thresholds) -> float:
    """Reduced if kernels may exchange the data with the network: they keep the GPU busy, and both ways are in use."""
    few = s.resident is None or s.resident < limits.used_sm
    both = (s.both_ways or 0.0) > limits.both_ways * (0.75 if s.copies_are_busy else 0.5)
    return HINT if both and few and (s.copying or 0.0) + s.busy - 1.0 > limits.silent else 1.0


def network_kernels(s: Scores, limits: Thresholds) -> float | None:
    """How far the evidence is from any but that of kernels on few multiprocessors that move data both ways."""
    return least(s.busy - limits.spinning_busy, minus(s.both_ways, limits.both_ways), minus(limits.used_sm, s.resident))


def short_kernels_factor(s: Scores, limits: Thresholds) -> float:
    """Reduced without the signs of short kernels: gaps between them, and some movement. A long kernel on few
    multiprocessors, or one that polls, has neither."""
    gaps = s.busy < 1.0 - limits.idle_busy
    moves = s.moving is None or s.moving >= least_moving(limits)
    sure = gaps and moves and not may_wait(s) and (s.sm or 0.0) < limits.narrow_sm
    return 1.0 if sure else HINT


def long_kernels_factor(s: Scores, limits: Thresholds) -> float:
    """Reduced if gaps between kernels show that they are short: launching them may limit them, not latency."""
    return 1.0 if s.busy >= 1.0 - limits.idle_busy else HINT


def copies_unseen(s: Scores, limits: Thresholds) -> bool:
    """Whether memory moves while no kernel runs, and no counter shows whether copies do it."""
    unseen = s.pcie is None and not s.copies_are_busy
    return unseen and s.moving is not None and s.moving > s.busy + least_moving(limits) / 2


def at_rest(s: Scores, limits: Thresholds) -> float | None:
    """How far the multiprocessors are from any visible activity: by their counters, else by power and memory's time."""
    if s.compute is not None and s.memory is not None:
        return limits.silent - max(s.compute, s.memory) * s.working - max(s.nvlink or 0.0, s.media or 0.0)
    return least(
        minus(limits.quiet_power, s.power), minus(limits.silent, s.controller), limits.silent - (s.media or 0.0)
    )


def still(s: Scores, limits: Thresholds) -> float | None:
    """How far a busy GPU is from any movement."""
    if s.moving is not None:
        carried = max(s.pcie or 0.0, s.nvlink or 0.0)
        quiet = min((1.0 - s.moving / least_moving(limits)) * limits.sure_margin, limits.silent - carried)
        return min(s.busy - limits.spinning_busy, quiet)
    return least(s.busy - limits.spinning_busy, at_rest(s, limits), limits.silent - (s.pcie or 0.0))


def waiting_kernel(s: Scores, limits: Thresholds) -> float | None:
    """How far the evidence is from that of any kernel but one that waits."""
    return least(still(s, limits), minus(limits.quiet_power, s.power))


def least_moving(limits: Thresholds) -> float:
    """The activity below which no counter shows progress: of a polling kernel, they show up to 0.01."""
    return limits.silent / 2


def alive(s: Scores, limits: Thresholds) -> float | None:
    """How far the evidence is from that of a kernel that only waits. Many small kernels leave gaps between them."""
    if s.moving is None:
        return None
    return max((s.moving / least_moving(limits) - 1.0) * limits.sure_margin, limits.spinning_busy - s.busy)


def at_clock(s: Scores) -> str:
    """The share of the highest clock, if it is below 95 %."""
    return "" if s.clock is None or s.clock > 0.95 else f", at {percent(s.clock, 0)} of its highest clock"


def longest(time: float | None, s: Scores, limits: Thresholds, *others: float | None) -> float | None:
    """How far a wait is ahead of the others and, by its share of the two together, of work."""
    if time is None:
        return None
    work = s.working / (s.working + time) if s.working + time > 0 else 1.0
    return min(limits.starved_busy - work, *(time - (other or 0.0) for other in others))


def narrowness(s: Scores, limits: Thresholds) -> float | None:
    """How much the lack of multiprocessors in use limits the work; negative if something else is the larger limit.

    The reached share of a ceiling is the share of the multiprocessors in use times the share that each reaches. The
    smaller factor is the cause: it is the breadth if it is below the root of the product.
    """
    if s.compute is None or s.memory is None or s.sm is None or s.breadth is None:
        return None
    return max(limits.narrow_sm - s.sm, math.sqrt(max(s.compute, s.memory)) - s.breadth)


def minus(a: float | None, b: float | None) -> float | None:
    """A difference, None if either is unknown."""
    return None if a is None or b is None else a - b

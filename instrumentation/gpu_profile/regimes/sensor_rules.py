"""The rules for what sensors say: activity counters, or utilisation and power alone. Tried in order."""

from __future__ import annotations

import math
from typing import Final

from gpu_profile.regimes.rule import Regime, Rule, least
from gpu_profile.regimes.scores import Scores
from gpu_profile.regimes.thresholds import Thresholds
from gpu_profile.summary import Basis
from gpu_profile.units import percent

_ALL: Final[frozenset[Basis]] = frozenset({"counters", "coarse"})
_COUNTERS: Final[frozenset[Basis]] = frozenset({"counters"})
_COARSE: Final[frozenset[Basis]] = frozenset({"coarse"})
#: The gap before a kernel, in kernels of the shortest kind.
_LONGEST_LAUNCH: Final = 5
#: Of a rule whose evidence other causes give as well, such as the time in which memory was touched.
_HINT: Final = 0.6


def _launches(s: Scores, limits: Thresholds) -> float:
    """Less, if the wait may be the launches of kernels: counters cannot tell these from other waits of the host.

    Kernels for which launches matter are too short to keep the multiprocessors occupied, and a launch takes at most
    some five times as long as the shortest of them (2-4 µs; 1-20 µs).
    """
    small = s.sm is not None and s.sm < limits.broad_sm
    return _HINT if small and s.waiting < _LONGEST_LAUNCH * s.working else 1.0


SENSOR_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "busy < idle, on a device whose links are idle as well",
        Regime.IDLE,
        lambda s, t: least(
            t.idle_busy - s.busy,
            None if s.device_busy is None else t.idle_busy - s.device_busy,
            # A copy is something to do, and it keeps no multiprocessor busy.
            t.idle_busy - max(s.pcie or 0.0, s.nvlink or 0.0),
        ),
        lambda _: "nothing runs on this GPU: give it work, or give it up",
        _ALL,
        lambda t: t.idle_busy,
    ),
    Rule(
        "copies over PCIe take longest",
        Regime.TRANSFER_BOUND,
        lambda s, t: _longest(s.copying, s, t, s.exchanging, s.waiting),
        lambda s: f"copies take {percent(s.copying or 0, 0)} of the time: pin host memory, overlap or shrink them",
        _ALL,
    ),
    Rule(
        "exchanges over NVLink take longest",
        Regime.COMMUNICATION_BOUND,
        lambda s, t: _longest(s.exchanging, s, t, s.copying, s.waiting),
        lambda s: f"exchanges take {percent(s.exchanging or 0, 0)} of the time: overlap them with computation",
        _COUNTERS,
    ),
    Rule(
        "exchanges over NVLink take longest, if no kernel hides them",
        Regime.COMMUNICATION_BOUND,
        lambda s, t: _longest(s.exchanging, s, t, s.copying, s.waiting),
        lambda _: "NVLink is in use for most of the time: see whether exchanges overlap with computation",
        _COARSE,
        hint=lambda _s, _t: _HINT,
    ),
    Rule(
        "waits of another kind take longest",
        Regime.HOST_BOUND,
        lambda s, t: _longest(s.waiting, s, t, s.copying, s.exchanging),
        lambda s: f"the GPU waits {percent(s.waiting, 0)} of this region for the host: prefetch, or raise num_workers",
        _ALL,
        hint=_launches,
    ),
    Rule(
        "memory and compute >= ceiling, close together",
        Regime.BALANCED,
        lambda s, t: (
            None
            if s.compute is None or s.memory is None
            else min(s.compute - t.ceiling, s.memory - t.ceiling, t.balanced - abs(s.compute - s.memory))
        ),
        lambda _: "both ceilings are near: only less work, or another precision, makes this faster",
        _COUNTERS,
    ),
    Rule(
        "memory >= ceiling, above compute",
        Regime.MEMORY_BOUND,
        lambda s, t: _above(s.memory, s.compute, t),
        lambda s: (
            f"memory runs at {percent(s.memory or 0, 0)} of its ceiling: fuse kernels, or use a smaller data type"
        ),
        _COUNTERS,
    ),
    Rule(
        "compute >= ceiling, above memory",
        Regime.COMPUTE_BOUND,
        lambda s, t: _above(s.compute, s.memory, t),
        lambda s: f"a pipe runs at {percent(s.compute or 0, 0)} of its ceiling: a lower precision or fewer FLOPs help",
        _COUNTERS,
    ),
    Rule(
        "no ceiling near, for want of multiprocessors in use",
        Regime.OVERHEAD_BOUND,
        lambda s, t: least(_narrowness(s, t), _below(s.compute, t), _below(s.memory, t)),
        lambda s: f"kernels fill {percent(s.sm or 0, 0)} of the GPU: batch more, fuse, or capture a CUDA graph",
        _COUNTERS,
    ),
    Rule(
        "no ceiling near, on multiprocessors that are in use",
        Regime.LATENCY_BOUND,
        lambda s, t: least(_minus(0.0, _narrowness(s, t)), _below(s.compute, t), _below(s.memory, t)),
        lambda _: "warps wait on latency: more parallelism per kernel, fewer dependent steps",
        _COUNTERS,
    ),
    Rule(
        "busy, high power, low memory-controller time",
        Regime.COMPUTE_BOUND,
        lambda s, t: least(
            s.busy - t.broad_sm,
            _minus(s.power, t.hot_power),
            None if s.controller is None else t.ceiling - s.controller,
        ),
        lambda _: "it draws the power of arithmetic; GPM counters (Hopper or newer) or a trace would tell for sure",
        _COARSE,
        hint=lambda _s, _t: _HINT,
    ),
    Rule(
        "busy, high power, memory-controller time >= ceiling",
        Regime.MEMORY_BOUND,
        # A kernel that waits touches memory all the time as well, but moving data at the ceiling takes power.
        lambda s, t: least(s.busy - t.broad_sm, _minus(s.power, t.hot_power), _minus(s.controller, t.ceiling)),
        lambda _: "memory is touched most of the time; GPM counters (Hopper or newer) or a trace would tell for sure",
        _COARSE,
        hint=lambda _s, _t: _HINT,
    ),
)


def _longest(time: float | None, s: Scores, limits: Thresholds, *others: float | None) -> float | None:
    """How far a wait is ahead of the others and, by its share of the two together, of work."""
    if time is None:
        return None
    work = s.working / (s.working + time) if s.working + time > 0 else 1.0
    return min(limits.starved_busy - work, *(time - (other or 0.0) for other in others))


def _narrowness(s: Scores, limits: Thresholds) -> float | None:
    """How far breadth is below what it must be not to be what keeps work from its ceilings.

    What is reached of a ceiling is the share of the multiprocessors in use times what each of these reaches. The
    smaller factor is the cause: breadth, where it is below the root of the product.
    """
    if s.compute is None or s.memory is None or s.sm is None or s.breadth is None:
        return None
    return max(limits.narrow_sm - s.sm, math.sqrt(max(s.compute, s.memory)) - s.breadth)


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _below(score: float | None, limits: Thresholds) -> float | None:
    """How far a score is from taking half of the time: above that, something else is no larger cause."""
    return None if score is None else limits.half - score


def _above(score: float | None, other: float | None, limits: Thresholds) -> float | None:
    """How far `score` is above its ceiling and above the other; unknown if either is: what is absent is not 0."""
    if score is None or other is None:
        return None
    return min(score - limits.ceiling, score - other - limits.balanced)

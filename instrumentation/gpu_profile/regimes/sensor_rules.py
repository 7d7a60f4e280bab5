"""The rules for sensors: activity counters, or utilisation and power alone. Tried in order."""

from __future__ import annotations

import math
from typing import Final

from gpu_profile.regimes.evidence import Basis
from gpu_profile.regimes.rule import Regime, Rule, above, below, both_near, least, of_ceiling
from gpu_profile.regimes.scores import Scores
from gpu_profile.regimes.thresholds import Thresholds
from gpu_profile.units import percent

_ALL: Final[frozenset[Basis]] = frozenset({"counters", "coarse"})
_COUNTERS: Final[frozenset[Basis]] = frozenset({"counters"})
_COARSE: Final[frozenset[Basis]] = frozenset({"coarse"})
#: The longest gap before a kernel, in kernels of the shortest kind.
_LONGEST_LAUNCH: Final = 5
#: The confidence factor of a rule with evidence that other causes give as well, such as a wait from launches.
_HINT: Final = 0.6
#: The confidence factor of rules on power and on the time of memory accesses: neither measures the bound itself.
_TRACES: Final = 0.45


def _copies(s: Scores, _limits: Thresholds) -> float:
    """Reduced if PCIe is not measured: copies may fill the time."""
    return 1.0 if s.pcie is not None else _HINT


def _launches(s: Scores, limits: Thresholds) -> float:
    """Reduced if the wait may be the launches of kernels: counters cannot separate them from other waits of the host.

    The wait may also be copies if these are not measured. Kernels for which launches matter are too short to keep the
    multiprocessors occupied. A launch takes at most some five times as long as the shortest of them (2-4 µs; 1-20 µs).
    """
    small = s.sm is None or s.sm < limits.broad_sm
    launches = small and s.waiting < _LONGEST_LAUNCH * s.working
    return _HINT if launches else _copies(s, limits)


SENSOR_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "busy < idle, on a device whose links are idle as well",
        Regime.IDLE,
        lambda s, t: least(
            t.idle_busy - s.busy,
            None if s.device_busy is None else t.idle_busy - s.device_busy,
            # A copy is work, and it keeps no multiprocessor busy.
            t.idle_busy - max(s.pcie or 0.0, s.nvlink or 0.0),
        ),
        lambda s: f"this GPU is busy {percent(s.device_busy or 0, 1)} of the time: give it work, or give it up",
        _ALL,
        lambda t: t.idle_busy,
        hint=_copies,
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
        lambda s: f"NVLink is in use {percent(s.exchanging or 0, 0)} of the time: see whether computation overlaps it",
        _COARSE,
        hint=lambda _s, _t: _TRACES,
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
        both_near,
        lambda s: (
            f"a pipe runs at {of_ceiling(s.compute)} of its ceiling and memory at {of_ceiling(s.memory)}:"
            " only less work, or another precision, makes this faster"
        ),
        _COUNTERS,
    ),
    Rule(
        "memory >= ceiling, above compute",
        Regime.MEMORY_BOUND,
        lambda s, t: above(s.memory, s.compute, t),
        lambda s: f"memory runs at {of_ceiling(s.memory)} of its ceiling: fuse kernels, or use a smaller data type",
        _COUNTERS,
    ),
    Rule(
        "compute >= ceiling, above memory",
        Regime.COMPUTE_BOUND,
        lambda s, t: above(s.compute, s.memory, t),
        lambda s: (
            f"a pipe runs at {of_ceiling(s.compute)} of its ceiling{_at_clock(s)}:"
            " a lower precision or fewer FLOPs help"
        ),
        _COUNTERS,
    ),
    Rule(
        "no ceiling near, for want of multiprocessors in use",
        Regime.OVERHEAD_BOUND,
        lambda s, t: least(_narrowness(s, t), below(s.compute, t), below(s.memory, t)),
        lambda s: f"kernels fill {percent(s.sm or 0, 0)} of the GPU: batch more, fuse, or capture a CUDA graph",
        _COUNTERS,
    ),
    Rule(
        "no ceiling near, on multiprocessors that are in use",
        Regime.LATENCY_BOUND,
        lambda s, t: least(
            _minus(s.sm, t.used_sm), _minus(0.0, _narrowness(s, t)), below(s.compute, t), below(s.memory, t)
        ),
        lambda s: (
            f"{of_ceiling(s.sm)} of the GPU is in use, but no ceiling is reached to more than"
            f" {of_ceiling(max(s.compute or 0.0, s.memory or 0.0))}:"
            " more parallelism per kernel, fewer dependent steps"
        ),
        _COUNTERS,
    ),
    Rule(
        "busy, high power, low memory-controller time",
        Regime.COMPUTE_BOUND,
        lambda s, t: least(s.busy - t.broad_sm, _minus(s.power, t.full_power), _minus(t.ceiling, s.controller)),
        lambda s: (
            f"it draws {percent(s.power or 0, 0)} of its power limit, as arithmetic does: try a lower precision; GPM"
            " counters (Hopper or newer) or a trace would tell for sure"
        ),
        _COARSE,
        hint=lambda _s, _t: _TRACES,
    ),
    Rule(
        "busy, power high but below the limit, memory-controller time >= ceiling, no pipe known to be near its own",
        Regime.MEMORY_BOUND,
        # A kernel that waits touches memory all the time as well, but moving data at the ceiling takes power.
        # Arithmetic also touches memory all the time, but draws all of the power limit. A pipe's activity may be known
        # without that of DRAM.
        lambda s, t: least(
            t.ceiling - (s.compute or 0.0),
            s.busy - t.broad_sm,
            _minus(s.power, t.hot_power),
            _minus(t.limit_power, s.power),
            _minus(s.controller, t.ceiling),
        ),
        lambda s: (
            f"memory is touched {of_ceiling(s.controller)} of the time: fuse kernels; GPM counters (Hopper or newer)"
            " or a trace would tell for sure"
        ),
        _COARSE,
        hint=lambda _s, _t: _TRACES,
    ),
)


def _at_clock(s: Scores) -> str:
    """The share of the highest clock, if it is below 95 %."""
    return "" if s.clock is None or s.clock > 0.95 else f", at {percent(s.clock, 0)} of its highest clock"


def _longest(time: float | None, s: Scores, limits: Thresholds, *others: float | None) -> float | None:
    """How far a wait is ahead of the others and, by its share of the two together, of work."""
    if time is None:
        return None
    work = s.working / (s.working + time) if s.working + time > 0 else 1.0
    return min(limits.starved_busy - work, *(time - (other or 0.0) for other in others))


def _narrowness(s: Scores, limits: Thresholds) -> float | None:
    """How much the lack of multiprocessors in use limits the work; negative if something else is the larger limit.

    The reached share of a ceiling is the share of the multiprocessors in use times the share that each reaches. The
    smaller factor is the cause: it is the breadth if it is below the root of the product.
    """
    if s.compute is None or s.memory is None or s.sm is None or s.breadth is None:
        return None
    return max(limits.narrow_sm - s.sm, math.sqrt(max(s.compute, s.memory)) - s.breadth)


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b

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
#: Where the evidence lacks them. The GPU may be older than Hopper, the user without permission, the group off.
COUNTERS: Final = "activity counters (gpu-profile doctor: why they are missing)"
#: The longest gap before a kernel, in kernels of the shortest kind.
_LONGEST_LAUNCH: Final = 5
#: The confidence factor of a rule with evidence that other causes give as well, such as a wait from launches.
_HINT: Final = 0.6
#: The same for waits that may be launches of small kernels, and for memory that is touched all the time.
_EITHER: Final = 0.72
_TRACE_DECIDES: Final = "a trace of its kernels decides it: torch.profiler's by gpu-profile kernels"
#: The confidence factor of rules on power, and on NVLink without counters of kernels.
_TRACES: Final = 0.95


def _copies(s: Scores, _limits: Thresholds) -> float:
    """Reduced if PCIe is not measured, and busy time leaves copies out: they may fill the time."""
    return 1.0 if s.pcie is not None or s.copies_are_busy else _HINT


def _launches(s: Scores, limits: Thresholds) -> float:
    """Reduced if the wait may be the launches of kernels: counters cannot separate them from other waits of the host.

    The wait may also be copies if these are not measured. Kernels for which launches matter are too short to keep the
    multiprocessors occupied. A launch takes at most some five times as long as the shortest of them (2-4 µs; 1-20 µs).
    """
    small = s.sm is None or s.sm < limits.broad_sm
    launches = small and s.waiting < _LONGEST_LAUNCH * s.working
    return min(_EITHER if launches else 1.0, _copies(s, limits))


def _host_wait(s: Scores, limits: Thresholds) -> float | None:
    """How far the time in which nothing is visible is ahead of work and of other waits."""
    return _longest(s.waiting, s, limits, s.copying, s.exchanging, s.media)


def _unlike_copies(s: Scores, limits: Thresholds) -> float | None:
    """How far the wait is from copies that a host thread stages: by their traffic, else by the power of kernels."""
    if s.staged is not None:
        return s.waiting - s.staged - (s.copying or 0.0)
    if s.compute is not None or s.busy < limits.idle_busy or s.power is None:
        return 1.0
    return s.power - limits.quiet_power


def _unheld_power(s: Scores, limits: Thresholds) -> float | None:
    """The power that it would draw at its highest clock: power falls with more than the square of a clock that the
    driver holds down. At most 1, the limit."""
    if s.power is None or s.clock is None or s.throttled is None or s.throttled < limits.half:
        return s.power
    return min(1.0, s.power / max(s.clock, 0.1) ** 2)


def _at_rest(s: Scores, limits: Thresholds) -> float | None:
    """How far the multiprocessors are from any visible activity: by their counters, else by power and memory's time."""
    if s.compute is not None and s.memory is not None:
        return limits.silent - max(s.compute, s.memory) * s.working - max(s.nvlink or 0.0, s.media or 0.0)
    return least(
        _minus(limits.quiet_power, s.power), _minus(limits.silent, s.controller), limits.silent - (s.media or 0.0)
    )


def _still(s: Scores, limits: Thresholds) -> float | None:
    """How far a busy GPU is from any movement."""
    if s.moving is not None:
        return min(s.busy - limits.spinning_busy, (1.0 - s.moving / _least_moving(limits)) * limits.sure_margin)
    return least(s.busy - limits.spinning_busy, _at_rest(s, limits), limits.silent - (s.pcie or 0.0))


def _waiting_kernel(s: Scores, limits: Thresholds) -> float | None:
    """How far the evidence is from that of any kernel but one that waits."""
    return least(_still(s, limits), _minus(limits.quiet_power, s.power))


def _least_moving(limits: Thresholds) -> float:
    """The activity below which no counter shows progress: of a polling kernel, they show up to 0.01."""
    return limits.silent / 2


def _alive(s: Scores, limits: Thresholds) -> float | None:
    """How far the evidence is from that of a kernel that only waits. Many small kernels leave gaps between them."""
    if s.moving is None:
        return None
    return max((s.moving / _least_moving(limits) - 1.0) * limits.sure_margin, limits.spinning_busy - s.busy)


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


SENSOR_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "busy all the time, but nothing moves, power is low, and no region ends",
        Regime.SPINNING,
        lambda s, t: least(_minus(s.stalled, t.half), _still(s, t), _minus(t.hot_power, s.power)),
        lambda s: (
            f"a kernel has kept {percent(s.busy, 0)} of the time without moving data: see which call the program and"
            " its peers wait in"
        ),
        _ALL,
    ),
    Rule(
        "video engines take longest",
        Regime.MEDIA_BOUND,
        lambda s, t: least(
            _minus(s.media, t.engine_ceiling), _longest(s.media, s, t, s.copying, s.exchanging, s.waiting)
        ),
        lambda s: (
            f"a video engine is busy {percent(s.media or 0, 0)} of the time: fewer or smaller frames, or more GPUs"
        ),
        _ALL,
    ),
    Rule(
        "busy < idle, on a device whose links and video engines are idle as well",
        Regime.IDLE,
        lambda s, t: least(
            t.idle_busy - s.busy,
            None if s.device_busy is None else t.idle_busy - s.device_busy,
            # A copy is work, and it keeps no multiprocessor busy.
            t.idle_busy - max(s.pcie or 0.0, s.nvlink or 0.0, s.media or 0.0),
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
        "nothing moves but data over PCIe, at the rate of staged copies or above",
        Regime.TRANSFER_BOUND,
        # Small kernels between the copies are work of the host.
        lambda s, t: least(
            _minus(s.staged, t.staged), _at_rest(s, t), max(t.idle_busy - s.working, s.busy - t.spinning_busy)
        ),
        lambda s: (
            f"PCIe carries {percent(s.pcie or 0, 0)} of its capacity, and nothing else happens: pin host memory, or"
            " prefetch managed memory"
        ),
        _ALL,
        lambda t: t.silent,
        # A host that prepares pinned data in between gives the same evidence.
        hint=lambda _s, _t: _HINT,
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
        lambda s, t: least(_host_wait(s, t), _unlike_copies(s, t)),
        lambda s: f"the GPU waits {percent(s.waiting, 0)} of this region for the host: prefetch, or raise num_workers",
        _ALL,
        hint=_launches,
    ),
    Rule(
        "the longest wait may be the host's, or that for copies from pageable memory",
        Regime.UNKNOWN,
        _host_wait,
        lambda _s: _TRACE_DECIDES,
        _ALL,
    ),
    Rule(
        "a pipe and the memory limit the work by turns",
        Regime.MIXED,
        lambda s, t: None if s.part is None else min(s.part, 1.0 - s.part) - t.mixed_part,
        lambda s: (
            f"a pipe limits some {percent(s.part or 0, 0)} of the time, memory the rest: make a region of each kind of"
            " work"
        ),
        _COUNTERS,
    ),
    Rule(
        "its windows differ: phases take turns",
        Regime.MIXED,
        lambda s, t: _minus(s.uneven, t.uneven),
        lambda s: (
            f"its activity varies by {percent(s.uneven or 0, 0)} from window to window: make a region of each phase"
        ),
        _COUNTERS,
        lambda t: t.uneven,
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
        "busy, but nothing that is counted moves, at the power of a kernel that waits, with few warps",
        Regime.SPINNING,
        lambda s, t: least(_waiting_kernel(s, t), _minus(t.few_warps, s.warps)),
        lambda s: (
            f"a kernel keeps the GPU busy for {percent(s.busy, 0)} of the time and moves nothing: see whether the"
            " program and its peers make progress"
        ),
        _COUNTERS,
        # A few dependent accesses to caches look the same.
        hint=lambda _s, _t: _HINT,
    ),
    Rule(
        "busy, but nothing that is counted moves: a kernel waits, or works in caches alone",
        Regime.UNKNOWN,
        _waiting_kernel,
        lambda _s: "see whether the program and its peers make progress; Nsight Compute shows what a kernel does",
        _ALL,
    ),
    Rule(
        "no ceiling near, for want of multiprocessors in use",
        Regime.OVERHEAD_BOUND,
        lambda s, t: least(_narrowness(s, t), below(s.compute, t), below(s.memory, t), _alive(s, t)),
        lambda s: f"kernels fill {percent(s.sm or 0, 0)} of the GPU: batch more, fuse, or capture a CUDA graph",
        _COUNTERS,
    ),
    Rule(
        "no ceiling near, on multiprocessors that are in use by few warps",
        Regime.LATENCY_BOUND,
        lambda s, t: least(
            _minus(s.sm, t.used_sm),
            _minus(0.0, _narrowness(s, t)),
            below(s.compute, t),
            below(s.memory, t),
            _minus(t.few_warps, s.warps),
            _alive(s, t),
        ),
        lambda s: (
            f"{of_ceiling(s.sm)} of the GPU is in use, with {percent(s.warps or 0, 0)} of the warps that fit, and no"
            f" ceiling is reached to more than {of_ceiling(max(s.compute or 0.0, s.memory or 0.0))}:"
            " more parallelism per kernel, fewer dependent steps"
        ),
        _COUNTERS,
    ),
    Rule(
        "no counted ceiling is near, though many warps are resident",
        Regime.UNKNOWN,
        lambda s, t: least(
            _minus(s.sm, t.used_sm), below(s.compute, t), below(s.memory, t), _minus(s.warps, t.few_warps)
        ),
        lambda _s: (
            "caches, shared memory, special functions or atomics may limit it, which no counter shows; Nsight Compute"
            " does"
        ),
        _COUNTERS,
    ),
    Rule(
        "busy, high power, low memory-controller time",
        Regime.COMPUTE_BOUND,
        lambda s, t: least(
            s.busy - t.broad_sm, _minus(_unheld_power(s, t), t.full_power), _minus(t.ceiling, s.controller)
        ),
        lambda s: (
            f"it draws {percent(s.power or 0, 0)} of its power limit, as arithmetic does: try a lower precision;"
            f" a trace or {COUNTERS} decide it"
        ),
        _COARSE,
        hint=lambda _s, _t: _TRACES,
    ),
    Rule(
        "busy, power high but below the limit, memory touched all the time, no pipe known to be near its own",
        Regime.MEMORY_BOUND,
        # A kernel that waits touches memory all the time as well, but moving data at the ceiling takes power.
        # Arithmetic also touches memory all the time, but draws all of the power limit. A pipe's activity may be known
        # without that of DRAM.
        lambda s, t: least(
            t.ceiling - (s.compute or 0.0),
            s.busy - t.broad_sm,
            _minus(s.power, t.hot_power),
            _minus(t.limit_power, s.power),
            _minus(s.controller, t.touched),
        ),
        lambda s: (
            f"memory is touched {of_ceiling(s.controller)} of the time: fuse kernels; a trace or {COUNTERS} decide it"
        ),
        _COARSE,
        hint=lambda _s, _t: _EITHER,
    ),
)

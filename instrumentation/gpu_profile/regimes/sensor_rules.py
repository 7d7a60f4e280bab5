"""The rules for sensors: activity counters, or utilisation and power alone. Tried in order."""

from __future__ import annotations

from typing import Final

from gpu_profile.regimes.evidence import Basis
from gpu_profile.regimes.rule import Regime, Rule, above, below, both_near, least, of_ceiling
from gpu_profile.regimes.sensor_conditions import (
    EITHER,
    HINT,
    alive,
    at_clock,
    at_rest,
    copies_factor,
    copies_unseen,
    copy_advice,
    drawn,
    held_by_waits,
    host_wait,
    launches_factor,
    long_kernels_factor,
    longest,
    may_wait,
    minus,
    narrowness,
    network_factor,
    network_kernels,
    short_kernels_factor,
    still,
    unheld_power,
    unlike_copies,
    waiting_kernel,
    waiting_share,
)
from gpu_profile.units import percent

_ALL: Final[frozenset[Basis]] = frozenset({"counters", "coarse"})
_COUNTERS: Final[frozenset[Basis]] = frozenset({"counters"})
_COARSE: Final[frozenset[Basis]] = frozenset({"coarse"})
#: Where the evidence lacks them. The GPU may be older than Hopper, the user without permission, the group off, the run
#: too short.
COUNTERS: Final = "activity counters, in a longer run if the GPU has them (see gpu-profile doctor)"
_TRACE_DECIDES: Final = "a trace of its kernels decides it: torch.profiler's by gpu-profile kernels"
#: The confidence factor of rules on power, and on NVLink without counters of kernels.
_TRACES: Final = 0.95


SENSOR_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "busy all the time, but nothing moves, power is low, and no region ends",
        Regime.SPINNING,
        lambda s, t: least(minus(s.stalled, t.half), still(s, t), minus(t.hot_power, s.power)),
        lambda s: (
            f"a kernel keeps the GPU busy for {percent(s.busy, 0)} of the time, and no data move: see which call the"
            " program and its peers wait in"
        ),
        _ALL,
    ),
    Rule(
        "video engines take longest",
        Regime.MEDIA_BOUND,
        lambda s, t: least(
            minus(s.media, t.engine_ceiling), longest(s.media, s, t, s.copying, s.exchanging, s.waiting)
        ),
        lambda s: (
            f"a video engine is busy {percent(s.media or 0, 0)} of the time: process fewer or smaller frames, or use"
            " more GPUs"
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
            t.idle_busy - max(s.copying or 0.0, s.nvlink or 0.0, s.media or 0.0, (s.staged or 0.0) / 2),
            None if copies_unseen(s, t) else 1.0,
        ),
        lambda s: f"this GPU is busy {percent(s.device_busy or 0, 1)} of the time: give it work, or give it up",
        _ALL,
        lambda t: t.idle_busy,
        hint=copies_factor,
    ),
    Rule(
        "kernels on few multiprocessors exchange data over PCIe, as much out as in, for most of the time",
        Regime.COMMUNICATION_BOUND,
        lambda s, t: least(longest(s.copying, s, t, s.exchanging, s.waiting), network_kernels(s, t)),
        lambda s: f"the network moves data for {percent(s.copying or 0, 0)} of the time: overlap it with computation",
        _COUNTERS,
    ),
    Rule(
        "kernels on few multiprocessors move data over PCIe both ways: a network's, or pages of managed memory",
        Regime.UNKNOWN,
        # A network adapter may be slower than the link, and so may the moves of pages.
        lambda s, t: least(network_kernels(s, t), at_rest(s, t), minus(s.pcie, 2.0 * t.silent)),
        lambda _s: _TRACE_DECIDES,
        _COUNTERS,
    ),
    Rule(
        "copies over PCIe take longest",
        Regime.TRANSFER_BOUND,
        lambda s, t: longest(s.copying, s, t, s.exchanging, s.waiting),
        copy_advice,
        _ALL,
        hint=network_factor,
    ),
    Rule(
        "nothing moves but data over PCIe, at the rate of staged copies or above",
        Regime.TRANSFER_BOUND,
        # Small kernels between the copies are work of the host.
        lambda s, t: least(
            minus(s.staged, t.staged), at_rest(s, t), max(t.idle_busy - s.working, s.busy - t.spinning_busy)
        ),
        lambda s: (
            f"PCIe carries {percent(s.pcie or 0, 0)} of its capacity, and nothing else happens: pin host memory, or"
            " prefetch managed memory"
        ),
        _ALL,
        lambda t: t.silent,
        # A host that prepares pinned data in between gives the same evidence.
        hint=lambda _s, _t: HINT,
    ),
    Rule(
        "exchanges over NVLink take longest",
        Regime.COMMUNICATION_BOUND,
        lambda s, t: longest(s.exchanging, s, t, s.copying, s.waiting),
        lambda s: f"exchanges take {percent(s.exchanging or 0, 0)} of the time: overlap them with computation",
        _COUNTERS,
    ),
    Rule(
        "exchanges over NVLink take longest, if no kernel hides them",
        Regime.COMMUNICATION_BOUND,
        # At the power limit, computation hides them.
        lambda s, t: least(longest(s.exchanging, s, t, s.copying, s.waiting), t.limit_power - (s.power or 0.0)),
        lambda s: f"NVLink is in use {percent(s.exchanging or 0, 0)} of the time: see whether computation overlaps it",
        _COARSE,
        hint=lambda s, _t: HINT if s.power is None else _TRACES,
    ),
    Rule(
        "waits of another kind take longest",
        Regime.HOST_BOUND,
        lambda s, t: least(host_wait(s, t), unlike_copies(s, t)),
        lambda s: (
            f"the GPU waits {percent(s.waiting, 0)} of this region for the host: prefetch input (num_workers), or"
            " launch less and synchronise less (CUDA graphs)"
        ),
        _ALL,
        hint=launches_factor,
    ),
    Rule(
        "the longest wait may be the host's, or that for copies from pageable memory",
        Regime.UNKNOWN,
        host_wait,
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
        lambda s: (
            f"memory runs at {of_ceiling(s.memory)} of its ceiling: reuse data that was read (larger batches, fused"
            " kernels), or use a smaller data type"
        ),
        _COUNTERS,
    ),
    Rule(
        "compute >= ceiling, above memory",
        Regime.COMPUTE_BOUND,
        lambda s, t: above(s.compute, s.memory, t),
        lambda s: (
            f"a pipe runs at {of_ceiling(s.compute)} of its ceiling{at_clock(s)}: a lower precision or fewer FLOPs help"
        ),
        _COUNTERS,
    ),
    Rule(
        "kernels that move nothing hold multiprocessors for most of the time, by turns with work",
        Regime.COMMUNICATION_BOUND,
        held_by_waits,
        lambda s: (
            f"kernels hold {percent(s.held or 0, 0)} of the multiprocessors and move nothing for"
            f" {percent(waiting_share(s) or 0, 0)} of the time, as collectives that wait for a peer or the network:"
            " compare the ranks"
        ),
        _COUNTERS,
        # Many small kernels between large ones look alike.
        hint=lambda _s, _t: HINT,
    ),
    Rule(
        "its windows differ: phases take turns",
        Regime.MIXED,
        lambda s, t: minus(s.uneven, t.uneven),
        lambda s: (
            f"its activity varies by {of_ceiling(s.uneven)} of the ceiling between windows: make a region of each phase"
        ),
        _COUNTERS,
        lambda t: t.uneven,
        # Phases of one kind may differ as much.
        hint=lambda _s, _t: HINT,
    ),
    Rule(
        "busy, but nothing that is counted moves, at the power of a kernel that waits, with few warps",
        Regime.SPINNING,
        lambda s, t: least(waiting_kernel(s, t), minus(t.few_warps, s.warps)),
        lambda s: (
            f"a kernel keeps the GPU busy for {percent(s.busy, 0)} of the time and moves nothing: see whether the"
            " program and its peers make progress"
        ),
        _COUNTERS,
        # A few dependent accesses to caches look the same.
        hint=lambda _s, _t: HINT,
    ),
    Rule(
        "busy, but nothing that is counted moves: a kernel waits, or works in caches alone",
        Regime.UNKNOWN,
        waiting_kernel,
        lambda _s: "see whether the program and its peers make progress; Nsight Compute shows what a kernel does",
        _ALL,
    ),
    Rule(
        "no ceiling near, for want of multiprocessors in use",
        Regime.OVERHEAD_BOUND,
        lambda s, t: least(narrowness(s, t), below(s.compute, t), below(s.memory, t), alive(s, t)),
        lambda s: (
            f"kernels fill {percent(s.sm or 0, 0)} of the GPU: batch more, fuse, or capture a CUDA graph"
            + ("; or a collective waits for its peers" if may_wait(s) else "")
        ),
        _COUNTERS,
        hint=short_kernels_factor,
    ),
    Rule(
        "no ceiling near, on multiprocessors that are in use by few warps",
        Regime.LATENCY_BOUND,
        lambda s, t: least(
            minus(s.sm, t.used_sm),
            minus(0.0, narrowness(s, t)),
            below(s.compute, t),
            below(s.memory, t),
            minus(t.few_warps, s.warps),
            alive(s, t),
        ),
        lambda s: (
            f"{of_ceiling(s.sm)} of the GPU is in use, with {percent(s.warps or 0, 0)} of the warps that fit, and no"
            f" ceiling is reached to more than {of_ceiling(max(s.compute or 0.0, s.memory or 0.0))}:"
            " more parallelism per kernel, fewer dependent steps"
        ),
        _COUNTERS,
        hint=long_kernels_factor,
    ),
    Rule(
        "no counted ceiling is near, though many warps are resident",
        Regime.UNKNOWN,
        lambda s, t: least(
            minus(s.sm, t.used_sm), below(s.compute, t), below(s.memory, t), minus(s.warps, t.few_warps)
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
            s.busy - t.broad_sm, minus(unheld_power(s, t), t.full_power), minus(t.ceiling, s.controller)
        ),
        lambda s: f"it draws {drawn(s)}, as arithmetic does: try a lower precision; a trace or {COUNTERS} decide it",
        _COARSE,
        # Any kernel on a hot GPU has its clock held down.
        hint=lambda s, t: _TRACES if (s.power or 0.0) >= t.full_power else HINT,
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
            minus(s.power, t.hot_power),
            minus(t.limit_power, s.power),
            minus(s.controller, t.touched),
        ),
        lambda s: (
            f"memory is touched {of_ceiling(s.controller)} of the time: fuse kernels; a trace or {COUNTERS} decide it"
        ),
        _COARSE,
        hint=lambda _s, _t: EITHER,
    ),
)

"""THE table of regimes: what bounds a region, by which rule, on which evidence. Pure.

Rules are rows, tried in order; the first that fires gives the verdict. Thresholds are data (`Thresholds`), each with
its source. `classify` is total: it always answers, and `UNKNOWN` with a reason is an answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Final

from gpu_profile.summary import Basis, Evidence
from gpu_profile.units import percent


class Regime(Enum):
    """What bounds a region. `str()` gives the bare name."""

    IDLE = "The GPU has nothing to do, here or elsewhere"
    HOST_BOUND = "The GPU waits for input or for Python"
    TRANSFER_BOUND = "The GPU waits for copies over PCIe"
    COMMUNICATION_BOUND = "The GPU waits for other GPUs"
    OVERHEAD_BOUND = "The GPU's work comes in pieces too small to fill it"
    LATENCY_BOUND = "Work is resident, but neither the pipes nor the memory are near a ceiling"
    MEMORY_BOUND = "Device-memory bandwidth limits the work"
    COMPUTE_BOUND = "A compute pipe limits the work"
    BALANCED = "A compute pipe and the memory are both near their ceilings"
    UNKNOWN = "The evidence does not tell"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The numbers in the rules. All are ratios unless they say otherwise.

    `idle_busy`: KempnerPulse's idle class, all activities below 5 %. `starved_busy`: a wait that leaves work less than
    this share of the two together is the larger of them; the half is ours. `ceiling`, `balanced`: Nsight Compute's
    speed-of-light rule (latency bound below 60 %, balanced within 10 points). `half`: what reaches less of both
    ceilings spends the larger part of its time on something else; between the two nothing is said. `dram_ceiling`: DCGM
    documents about 80 % of the DRAM activity as the practical maximum. `tensor_ceiling`: dcgmproftester saturates the
    tensor pipe at about 93 %. `broad_sm`: DCGM, SM activity of 80 % is necessary for effective use. `narrow_sm`:
    KempnerPulse's "busy, low SM". `memory_sm`: this share of the multiprocessors is taken to saturate device memory;
    ours. `pcie_ceiling`: headers of 20 to 28 bytes to 128 or 256 of payload leave about 85 % of the link's rate.
    `nvlink_ceiling`: NCCL's all-reduce reaches about 80 % of what the links carry (bus bandwidths of some 235 of
    300 GB/s on an A100, 370 of 450 on an H100). `nvlink_memory`: the share of DRAM bandwidth that full NVLinks take by
    themselves, for what is sent is read and what is received is written; 19 % (H200) to 33 % (V100) by data sheet.
    `hot_power`: half of a power limit is more than a stalled GPU draws; ours, coarse. `least_n`: windows below
    which nothing is said. `sure_margin`: the distance from a threshold at which a verdict is as sure as its basis
    allows. `least_margin`: at less than this no verdict rests on sensors, for the rates that they give are no
    better than some per cent. `well_fed`: in a trace, gpu-idle finds nothing to mend from this busy share on.
    `short_kernel`: in seconds, gpu-idle's mean kernel of launch-bound work, 25 µs.
    """

    idle_busy: float = 0.05
    starved_busy: float = 0.5
    ceiling: float = 0.6
    half: float = 0.5
    balanced: float = 0.1
    dram_ceiling: float = 0.8
    tensor_ceiling: float = 0.93
    broad_sm: float = 0.8
    narrow_sm: float = 0.25
    memory_sm: float = 0.5
    pcie_ceiling: float = 0.85
    nvlink_ceiling: float = 0.8
    nvlink_memory: float = 0.25
    hot_power: float = 0.5
    least_n: int = 4
    sure_margin: float = 0.2
    least_margin: float = 0.03
    well_fed: float = 0.8
    short_kernel: float = 25e-6

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"{field.name} must be positive, not {value}")


#: How sure a verdict can be at most, by what it rests on: counters can miss a cause, utilisation nearly always does.
BEST_CONFIDENCE: Final[dict[Basis, float]] = {"kernels": 0.95, "operation": 0.95, "counters": 0.9, "coarse": 0.6}


@dataclass(frozen=True, slots=True)
class Waits:
    """How a trace's time divides: `work`, `communication` and `transfer` that nothing hides, and idle time.

    `host`: there was nothing launched; `launch` is its part in launching calls and the framework's work around them.
    `other`: something was launched, and waited. None: the trace does not hold it. `kernel_s`: the mean kernel.
    """

    work: float | None
    communication: float | None
    transfer: float | None
    host: float | None
    launch: float | None
    other: float | None
    kernel_s: float | None

    @staticmethod
    def of(evidence: Evidence) -> Waits | None:
        """What the basis `kernels` knows."""
        if evidence.basis != "kernels":
            return None
        keys = ("work", "communication", "transfer", "host_wait", "launch", "other_wait", "kernel_s")
        values = (evidence.get(key) for key in keys)
        return Waits(*(None if value is None or not math.isfinite(value) else value for value in values))

    def hungry(self, limits: Thresholds) -> float | None:
        """How far work is below what a well-fed GPU does; None if the trace does not hold what it waits for."""
        return None if self.work is None or self.host is None else limits.well_fed - self.work

    def longest(self, wait: float | None, *others: float | None) -> float | None:
        """How far a wait is ahead of others."""
        return None if wait is None else wait - max(other or 0.0 for other in others)


@dataclass(frozen=True, slots=True)
class Scores:
    """Evidence as the rules read it; None where it is unknown.

    `working`, `copying`, `exchanging` and `waiting` share the region's time out, and add up to 1. What a link carried
    over what it can carry is how long it was in use; of that, only what no kernel hides is time that it cost. NVLink's
    collectives run as kernels that keep the GPU busy and do nothing else, so their time is taken out of the busy time,
    unless a pipe or the memory was at work meanwhile. `copying` over PCIe is what fits beside the busy time.

    While the GPU works, `compute` is the busiest pipe over its ceiling times the clock ratio (pipe activity is
    counted per cycle: at half the clock, half of the peak), `memory` the DRAM activity over its practical ceiling
    without what the exchanges themselves read and write, `sm` the share of the multiprocessors in use, and
    `breadth` how much of the nearer of the two ceilings these could reach. `throttled` is the share of time for
    which the driver held the clocks down: a modifier, no cause.
    """

    busy: float
    device_busy: float | None
    working: float
    copying: float | None
    exchanging: float | None
    waiting: float
    compute: float | None
    memory: float | None
    sm: float | None
    breadth: float | None
    pcie: float | None
    nvlink: float | None
    power: float | None
    controller: float | None
    throttled: float | None
    trace: Waits | None = None

    @staticmethod
    def of(evidence: Evidence, limits: Thresholds) -> Scores:
        """The scores of evidence that knows `busy`."""
        busy, sm, dram = evidence.values["busy"], evidence.get("sm"), evidence.get("dram")
        pcie, nvlink = evidence.get("pcie"), evidence.get("nvlink")
        pipes = [evidence.get("fp32"), evidence.get("fp64"), evidence.get("fp16")]
        tensor = evidence.get("tensor")
        if tensor is not None:
            pipes.append(tensor / limits.tensor_ceiling)
        known = [pipe for pipe in pipes if pipe is not None]
        clock = evidence.get("clock")
        compute = max(known) * (1.0 if clock is None else clock) if known else None
        own = None if dram is None else max(0.0, dram - (nvlink or 0.0) * limits.nvlink_memory)
        memory = None if own is None else own / limits.dram_ceiling
        at_ceiling = max(compute or 0.0, memory or 0.0)
        exchanging = None if nvlink is None else max(0.0, min(nvlink / limits.nvlink_ceiling, 1.0 - at_ceiling))
        taken = max(busy, exchanging or 0.0)
        copying = None if pcie is None else max(0.0, min(pcie / limits.pcie_ceiling, 1.0 - taken))
        working = max(0.0, busy - (exchanging or 0.0))
        scale = max(working, 0.01)
        breadth = _over(sm, scale)
        if breadth is not None and (memory or 0.0) > (compute or 0.0):
            breadth = min(1.0, breadth / limits.memory_sm)
        return Scores(
            busy=busy,
            device_busy=evidence.get("device_busy"),
            working=working,
            copying=copying,
            exchanging=exchanging,
            waiting=max(0.0, 1.0 - taken - (copying or 0.0)),
            compute=_over(compute, scale),
            memory=_over(memory, scale),
            sm=_over(sm, scale),
            breadth=breadth,
            pcie=pcie,
            nvlink=nvlink,
            power=evidence.get("power"),
            controller=_over(evidence.get("memory_controller"), scale),
            throttled=evidence.get("throttled"),
            trace=Waits.of(evidence),
        )


def _over(value: float | None, scale: float) -> float | None:
    return None if value is None else value / scale


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: if `margin(scores, thresholds)` is a number >= 0, the regime holds, by that margin.

    A negative margin says how far it is from holding; None, that the evidence for it is missing. `widest` is the
    largest margin that there can be, for rules that have less room than a sure verdict asks for elsewhere. `hint` is
    the share of what the basis allows that the rule's evidence is good for: 1 unless it suits other causes as well.
    """

    name: str
    regime: Regime
    margin: Callable[[Scores, Thresholds], float | None]
    advice: Callable[[Scores], str]
    bases: frozenset[Basis]
    widest: Callable[[Thresholds], float] = lambda _: math.inf
    hint: Callable[[Scores, Thresholds], float] = lambda _s, _t: 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A regime with what it rests on. `confidence` is 0-1; `advice` is one next step in plain words."""

    regime: Regime
    confidence: float
    basis: Basis
    rule: str
    margin: float
    n: int
    coverage: float
    advice: str = ""
    runner_up: Regime | None = None
    scores: Scores | None = None


def _least(*margins: float | None) -> float | None:
    known = [margin for margin in margins if margin is not None and not math.isnan(margin)]
    return min(known) if len(known) == len(margins) else None


_ALL: Final[frozenset[Basis]] = frozenset({"counters", "coarse"})
_COUNTERS: Final[frozenset[Basis]] = frozenset({"counters"})
_COARSE: Final[frozenset[Basis]] = frozenset({"coarse"})
_KERNELS: Final[frozenset[Basis]] = frozenset({"kernels"})
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


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "busy < idle, on a device whose links are idle as well",
        Regime.IDLE,
        lambda s, t: _least(
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
        lambda s, t: _least(_narrowness(s, t), _below(s.compute, t), _below(s.memory, t)),
        lambda s: f"kernels fill {percent(s.sm or 0, 0)} of the GPU: batch more, fuse, or capture a CUDA graph",
        _COUNTERS,
    ),
    Rule(
        "no ceiling near, on multiprocessors that are in use",
        Regime.LATENCY_BOUND,
        lambda s, t: _least(_minus(0.0, _narrowness(s, t)), _below(s.compute, t), _below(s.memory, t)),
        lambda _: "warps wait on latency: more parallelism per kernel, fewer dependent steps",
        _COUNTERS,
    ),
    Rule(
        "busy, high power, low memory-controller time",
        Regime.COMPUTE_BOUND,
        lambda s, t: _least(
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
        lambda s, t: _least(s.busy - t.broad_sm, _minus(s.power, t.hot_power), _minus(s.controller, t.ceiling)),
        lambda _: "memory is touched most of the time; GPM counters (Hopper or newer) or a trace would tell for sure",
        _COARSE,
        hint=lambda _s, _t: _HINT,
    ),
    # ------------------------------------------------------------------ traces: the longest wait is the answer
    Rule(
        "in a trace, communication that nothing hides takes longest",
        Regime.COMMUNICATION_BOUND,
        lambda s, t: _waits(s, lambda w: _least(w.hungry(t), w.longest(w.communication, w.transfer, w.host, w.other))),
        lambda s: f"communication takes {_share(s, 'communication')} of the time: overlap it with computation",
        _KERNELS,
    ),
    Rule(
        "in a trace, copies that nothing hides take longest",
        Regime.TRANSFER_BOUND,
        lambda s, t: _waits(s, lambda w: _least(w.hungry(t), w.longest(w.transfer, w.communication, w.host, w.other))),
        lambda s: f"copies take {_share(s, 'transfer')} of the time: pin host memory, overlap or shrink them",
        _KERNELS,
    ),
    Rule(
        "in a trace, short kernels, and launching them takes longest",
        Regime.OVERHEAD_BOUND,
        lambda s, t: _waits(s, lambda w: _least(w.hungry(t), _shortness(w, t), _launching(w))),
        lambda s: (
            f"launching takes {_share(s, 'launch')} of the time: batch more, fuse kernels, or capture a CUDA graph"
        ),
        _KERNELS,
    ),
    Rule(
        "in a trace, busy < idle",
        Regime.IDLE,
        lambda s, t: _waits(s, lambda w: _least(w.hungry(t), 1.0 - s.busy / t.idle_busy)),
        lambda _: "hardly anything runs on this GPU: give it work, or look at a shorter part of the trace",
        _KERNELS,
    ),
    Rule(
        "in a trace, waiting for the host takes longest",
        Regime.HOST_BOUND,
        lambda s, t: _waits(s, lambda w: _least(w.hungry(t), w.longest(w.host, w.communication, w.transfer, w.other))),
        lambda s: f"the GPU waits {_share(s, 'host')} of the time for the host: prefetch, or raise num_workers",
        _KERNELS,
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


def _waits(s: Scores, margin: Callable[[Waits], float | None]) -> float | None:
    return None if s.trace is None else margin(s.trace)


def _shortness(w: Waits, limits: Thresholds) -> float | None:
    return None if w.kernel_s is None else 1.0 - w.kernel_s / limits.short_kernel


def _launching(w: Waits) -> float | None:
    """How far launching, and the GPU's own way from kernel to kernel, are ahead of any other wait."""
    if w.host is None or w.launch is None:
        return None
    return w.longest(w.launch + (w.other or 0.0), w.host - w.launch, w.communication, w.transfer)


def _share(s: Scores, key: str) -> str:
    return percent(getattr(s.trace, key, None) or 0.0, 0)


def _below(score: float | None, limits: Thresholds) -> float | None:
    """How far a score is from taking half of the time: above that, something else is no larger cause."""
    return None if score is None else limits.half - score


def _above(score: float | None, other: float | None, limits: Thresholds) -> float | None:
    """How far `score` is above its ceiling and above the other; unknown if either is: what is absent is not 0."""
    if score is None or other is None:
        return None
    return min(score - limits.ceiling, score - other - limits.balanced)


DEFAULT_THRESHOLDS: Final = Thresholds()


def classify(evidence: Evidence, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> Verdict:
    """Judge a region by the first rule that fires. Confidence grows with the margin up to what the basis allows."""
    busy = evidence.get("busy")
    if busy is None:
        return _unknown(evidence, evidence.reason or "no samples cover the region")
    if evidence.n < thresholds.least_n:
        windows = "GPU operations" if evidence.basis == "kernels" else "sensor windows"
        return _unknown(evidence, f"only {evidence.n} {windows}, {thresholds.least_n} are needed")
    scores = Scores.of(evidence, thresholds)
    margins = [(rule, rule.margin(scores, thresholds)) for rule in RULES if evidence.basis in rule.bases]
    fired = next(((rule, margin) for rule, margin in margins if margin is not None and margin >= 0), None)
    if fired is None:
        return _unknown(evidence, _unfit(scores), scores)
    rule, margin = fired
    others = [(m, r.regime) for r, m in margins if m is not None and r.regime is not rule.regime]
    # The nearest other answer: what it would be if the numbers were a little different.
    runner_up = max(others, key=lambda other: min(other[0], 0.0), default=(0.0, None))[1]
    enough = min(thresholds.sure_margin, rule.widest(thresholds))
    if scores.trace is None and margin < thresholds.least_margin and rule.regime is not Regime.IDLE:
        return _unknown(evidence, f"too close to call: {rule.regime}, or {runner_up or 'another'}", scores)
    return Verdict(
        regime=rule.regime,
        confidence=rule.hint(scores, thresholds) * _confidence(evidence, margin, enough, thresholds),
        basis=evidence.basis,
        rule=rule.name,
        margin=margin,
        n=evidence.n,
        coverage=evidence.coverage,
        advice=rule.advice(scores) + _throttling(scores, thresholds),
        runner_up=runner_up,
        scores=scores,
    )


def _confidence(evidence: Evidence, margin: float, enough: float, limits: Thresholds) -> float:
    """Half at a threshold, all of what the basis allows `enough` away from it; less where values are uncertain."""
    sure = min(1.0, margin / enough)
    doubt = min(1.0, (evidence.half_width or 0.0) / limits.sure_margin)
    best = BEST_CONFIDENCE[evidence.basis]
    return best * (0.5 + 0.5 * sure * (1.0 - 0.5 * doubt)) * min(1.0, max(0.0, evidence.coverage))


def _throttling(scores: Scores, limits: Thresholds) -> str:
    share = scores.throttled or 0.0
    return f"; its clocks were held down {percent(share, 0)} of the time" if share >= limits.idle_busy else ""


def _unfit(scores: Scores) -> str:
    if scores.trace is not None:
        if scores.trace.host is None:
            return "the trace holds no calls of the host: record its activities as well"
        return "kernel times alone do not tell what bounds this: activity counters would"
    missing = [field.name for field in fields(scores) if getattr(scores, field.name) is None and field.name != "trace"]
    return "no rule fits the evidence" + (f" (unknown: {', '.join(missing)})" if missing else "")


def _unknown(evidence: Evidence, reason: str, scores: Scores | None = None) -> Verdict:
    return Verdict(Regime.UNKNOWN, 0.0, evidence.basis, reason, 0.0, evidence.n, evidence.coverage, scores=scores)

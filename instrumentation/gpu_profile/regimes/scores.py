"""Evidence in the form that the rules read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from gpu_profile.regimes.evidence import Evidence
from gpu_profile.regimes.thresholds import Thresholds

#: A regression can return rates a little outside 0 to 1. A value beyond these is no measurement.
_LOWEST, _HIGHEST = -0.1, 1.5
#: Shares of one time with a larger sum than this are inconsistent.
_WHOLE: Final = 1.05
#: Values that can be any positive number: seconds, and the extra time of twice the work.
_UNBOUNDED: Final = frozenset({"kernel_s", "growth"})
_SHARES: Final = ("work", "communication", "transfer", "host_wait", "other_wait")


def sound(evidence: Evidence) -> Evidence:
    """The evidence without impossible values: NaN, infinities, ratios far outside 0 to 1. These become unknown.

    Values slightly below 0 become 0. If the shares of a trace's time add up to more than the whole, all are left out.
    """
    values = {key: max(0.0, value) for key, value in evidence.values.items() if _possible(key, value)}
    if evidence.basis == "kernels" and sum(values.get(key, 0.0) for key in _SHARES) > _WHOLE:
        values = {key: value for key, value in values.items() if key not in _SHARES}
    return evidence if values == evidence.values else replace(evidence, values=values)


def _possible(key: str, value: float) -> bool:
    return _LOWEST <= value <= (math.inf if key in _UNBOUNDED else _HIGHEST) and math.isfinite(value)


#: With work below `well_fed`, the longest wait takes more than this share: a smaller wait is no cause.
SLIGHT: Final = 0.05


@dataclass(frozen=True, slots=True)
class Waits:
    """The parts of a trace's time, or of a region's span. With `unknown` they add up to 1.

    `work`; `communication` and `transfer` that nothing hides; `others`: only operations of others ran on the device;
    and idle time. `host`: nothing was launched; `launch` is its part in launching calls and the framework's work around
    them. `gaps`: between one kernel and the next. `other`: an operation was launched and waited longer than that.
    None: not in the trace. `kernel_s`: the mean kernel, in seconds.
    """

    work: float | None
    communication: float | None
    transfer: float | None
    host: float | None
    launch: float | None
    gaps: float
    other: float | None
    others: float
    idle: float
    kernel_s: float | None

    @staticmethod
    def of(evidence: Evidence, limits: Thresholds) -> Waits | None:
        """The parts from evidence of the basis `kernels`, else None. Its shares are of the time without that of others.

        Waits of launched operations are gaps between kernels if the mean wait is short.
        """
        if evidence.basis != "kernels":
            return None
        others = min(1.0, evidence.get("others") or 0.0)
        own = 1.0 - others
        keys = ("work", "communication", "transfer", "host_wait", "launch", "other_wait")
        work, communication, transfer, host, launch, other = (
            None if (share := evidence.get(key)) is None else share * own for key in keys
        )
        kernel_s, ran, gaps = evidence.get("kernel_s"), (work or 0.0) + (communication or 0.0), 0.0
        if other and kernel_s is not None and other * kernel_s < limits.short_kernel * ran:
            gaps, other = other, 0.0
        idle = max(0.0, 1.0 - evidence.values["busy"]) * own
        return Waits(work, communication, transfer, host, launch, gaps, other, others, idle, kernel_s)

    def shortfall(self, limits: Thresholds) -> float | None:
        """How far work is below that of a well-fed GPU; None if the trace does not have the host's waits."""
        return None if self.work is None or self.host is None else limits.well_fed - self.work

    @property
    def unknown(self) -> float:
        """The unexplained share: the GPU was idle, and the trace does not have the cause."""
        parts = (self.work, self.communication, self.transfer, self.host, self.gaps, self.other, self.others)
        return max(0.0, 1.0 - sum(share or 0.0 for share in parts))

    def longest(self, wait: float | None, *alternatives: float | None) -> float | None:
        """How far a wait is ahead of its `alternatives`, of others' operations, and of the unknown time.

        None if it is too small to be a cause.
        """
        if wait is None or wait < SLIGHT:
            return None
        return wait - max(self.unknown, self.others, *(rival or 0.0 for rival in alternatives))


@dataclass(frozen=True, slots=True)
class Scores:
    """Evidence in the form that the rules read; None where it is unknown.

    `working`, `copying`, `exchanging` and `waiting` divide the region's time, and add up to 1. A link's traffic over
    its capacity is the time for which it was in use. Only time that no kernel hides is a cost. NVLink's collectives
    run as kernels that keep the GPU busy and do nothing else. So their time is subtracted from the busy time, unless
    a pipe or the memory was at work meanwhile. So is that of copies over PCIe which exceeds the time beside the busy
    time: utilisation counts copies as busy, and kernels that read host memory, or a network's buffers, wait for the
    link. `copies_are_busy`: the busy time is NVML's utilisation, which counts copies; GPM's does not. `staged` is the
    further time that the traffic over PCIe would take if a host thread staged it: it may be a part of `waiting`. In
    the time of a video engine nothing waits. `media` is the busiest video engine's share of the time.

    `moving` is the highest activity of pipes and memory. `warps`
    are the resident warps over the most that fit on the multiprocessors in use. `part` and `uneven` compare the
    region's windows: the share of the time in which a pipe limits it, if memory does for the rest; and the standard
    deviation of the windows' higher activity. `held` is the share of the multiprocessors that kernels hold while
    nothing moves. `both_ways` is PCIe's lesser direction over the busier. `stalled` is 1 if the program ended no
    region for long, else 0.

    The next scores are of the time in which the GPU works. `compute` is the busiest pipe over its ceiling. `memory` is
    the DRAM activity, without the exchanges' own reads and writes, over its practical ceiling. `sm` is the share of the
    multiprocessors in use, `resident` the same over all of the busy time, `breadth` the share of the nearer ceiling
    that these could reach.

    `compute` is not multiplied by `clock`, the clock over the highest: pipe activity counts cycles, and so does the
    pipe's capacity. A pipe that issues in nine cycles of ten takes nine tenths of the time at any clock. DRAM has its
    own clock, and is no nearer to its ceiling at a lower one. The product is another quantity: the reached share of the
    data sheet's peak (arXiv 2605.20799 calls it OFU). `clock` and `throttled`, the share of time in which the driver
    lowered the clocks, are modifiers, no causes.

    For the basis `operation`, `compute` and `memory` are the FLOPs and bytes per second over measured ceilings.
    `waiting` is its overhead, the share of the time for launching. `growth` is the extra time of twice the work, as a
    share of the time of once.
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
    resident: float | None
    breadth: float | None
    pcie: float | None
    nvlink: float | None
    copies_are_busy: bool
    staged: float | None
    media: float | None
    moving: float | None
    warps: float | None
    both_ways: float | None
    part: float | None
    uneven: float | None
    held: float | None
    stalled: float | None
    power: float | None
    controller: float | None
    growth: float | None
    clock: float | None
    throttled: float | None
    trace: Waits | None = None

    @staticmethod
    def of(evidence: Evidence, limits: Thresholds) -> Scores:
        """The scores of evidence that has `busy`."""
        busy, sm, dram = evidence.values["busy"], evidence.get("sm"), evidence.get("dram")
        pcie, nvlink, occupancy = evidence.get("pcie"), evidence.get("nvlink"), evidence.get("occupancy")
        pipes = [evidence.get(pipe) for pipe in ("fp32", "fp64", "fp16", "integer")]
        tensor = evidence.get("tensor")
        if tensor is not None:
            pipes.append(tensor / limits.tensor_ceiling)
        measured = [pipe for pipe in pipes if pipe is not None]
        compute = max(measured) if measured else None
        own = None if dram is None else max(0.0, dram - (nvlink or 0.0) * limits.nvlink_memory)
        memory = None if own is None else own / limits.dram_ceiling
        if evidence.basis == "operation":
            compute, memory = evidence.get("compute"), evidence.get("memory")
        at_ceiling = max(compute or 0.0, memory or 0.0)
        exchanging = None if nvlink is None else max(0.0, min(nvlink / limits.nvlink_ceiling, 1.0 - at_ceiling))
        media = evidence.get("media")
        taken = max(busy, exchanging or 0.0)
        copying, inside = None, 0.0
        if pcie is not None:
            moved, beside = pcie / limits.pcie_ceiling, 1.0 - taken
            spare = min(busy, 1.0 - _nearest(evidence, compute, memory)) - (exchanging or 0.0)
            inside = max(0.0, min(moved if evidence.basis == "coarse" else moved - beside, spare))
            copying = inside + max(0.0, min(moved - inside, beside))
        # GPM leaves copies out of the busy time, and utilisation counts them, also slow ones.
        utilization = evidence.get("utilization")
        if evidence.basis == "counters" and utilization is not None and copying is not None:
            copying = max(copying, inside + min(utilization - taken, 1.0 - taken))
        working = max(0.0, busy - (exchanging or 0.0) - inside)
        waiting = max(0.0, 1.0 - max(taken + (copying or 0.0) - inside, media or 0.0))
        staged = max(0.0, (evidence.get("staged") or 0.0) - (copying or 0.0))
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
            waiting=waiting,
            compute=_over(compute, scale),
            memory=_over(memory, scale),
            sm=_over(sm, scale),
            resident=_over(sm, max(busy, 0.01)),
            breadth=breadth,
            pcie=pcie,
            nvlink=nvlink,
            copies_are_busy=evidence.basis == "coarse",
            staged=None if evidence.get("staged") is None else staged,
            media=media,
            moving=max(*measured, dram) if measured and dram is not None else None,
            warps=None if sm is None or occupancy is None else min(1.0, occupancy / max(sm, 0.01)),
            both_ways=evidence.get("both_ways"),
            part=evidence.get("part"),
            uneven=evidence.get("uneven"),
            held=evidence.get("held"),
            stalled=evidence.get("stalled"),
            power=evidence.get("power"),
            controller=_over(evidence.get("memory_controller"), scale),
            growth=evidence.get("growth"),
            clock=evidence.get("clock"),
            throttled=evidence.get("throttled"),
            trace=Waits.of(evidence, limits),
        )


def _nearest(evidence: Evidence, *of_ceilings: float | None) -> float:
    """How near the work is to a ceiling, for copies that may run inside of it. 1, which excludes them, if unknown."""
    signs = of_ceilings
    if evidence.basis == "coarse":
        signs = evidence.get("power"), evidence.get("memory_controller")
    given = [sign for sign in signs if sign is not None]
    return max(given) if len(given) == len(signs) else 1.0


def _over(value: float | None, scale: float) -> float | None:
    return None if value is None else value / scale

"""Evidence as the rules read it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from gpu_profile.regimes.evidence import Evidence
from gpu_profile.regimes.thresholds import Thresholds

#: A rate that regression gives can be a little outside of 0 to 1; from here on it is no measurement.
_LOWEST, _HIGHEST = -0.1, 1.5
#: Shares of one time that add up to more than this do not belong together.
_WHOLE: Final = 1.05
#: What can be any positive number: seconds, and how much longer twice the work takes.
_UNBOUNDED: Final = frozenset({"kernel_s", "growth"})
_SHARES: Final = ("work", "communication", "transfer", "host_wait", "other_wait")


def sound(evidence: Evidence) -> Evidence:
    """The evidence without what cannot be: NaN, infinities, ratios far outside of 0 to 1. What is left out is unknown.

    What is slightly below 0 is 0. Shares of a trace's time that add up to more than it are all left out.
    """
    values = {key: max(0.0, value) for key, value in evidence.values.items() if _possible(key, value)}
    if evidence.basis == "kernels" and sum(values.get(key, 0.0) for key in _SHARES) > _WHOLE:
        values = {key: value for key, value in values.items() if key not in _SHARES}
    return evidence if values == evidence.values else replace(evidence, values=values)


def _possible(key: str, value: float) -> bool:
    return _LOWEST <= value <= (math.inf if key in _UNBOUNDED else _HIGHEST) and math.isfinite(value)


#: Where work is less than `well_fed`, the longest wait takes more than this share: less is no cause, nor the next one.
SLIGHT: Final = 0.05


@dataclass(frozen=True, slots=True)
class Waits:
    """How a trace's time, or a region's span, divides; the parts add up to 1 with what is `unknown`.

    `work`, `communication` and `transfer` that nothing hides; `others`: only operations of others ran on the device;
    and idle time. `host`: there was nothing launched; `launch` is its part in launching calls and the framework's work
    around them. `gaps`: the way from one kernel to the next; `other`: something was launched, and waited for longer.
    None: the trace does not hold it. `kernel_s`: the mean kernel.
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
        """What the basis `kernels` knows, whose shares are of the time without that of others.

        Waits of operations that had been launched are gaps between kernels if the mean one is short.
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

    def hungry(self, limits: Thresholds) -> float | None:
        """How far work is below what a well-fed GPU does; None if the trace does not hold what it waits for."""
        return None if self.work is None or self.host is None else limits.well_fed - self.work

    @property
    def unknown(self) -> float:
        """The share that nothing accounts for: the GPU was idle, and the trace does not hold why."""
        known = (self.work, self.communication, self.transfer, self.host, self.gaps, self.other, self.others)
        return max(0.0, 1.0 - sum(share or 0.0 for share in known))

    def longest(self, wait: float | None, *rivals: float | None) -> float | None:
        """How far a wait is ahead of others, of others' operations, and of what is unknown.

        None if it is next to nothing, and no cause.
        """
        if wait is None or wait < SLIGHT:
            return None
        return wait - max(self.unknown, self.others, *(rival or 0.0 for rival in rivals))


@dataclass(frozen=True, slots=True)
class Scores:
    """Evidence as the rules read it; None where it is unknown.

    `working`, `copying`, `exchanging` and `waiting` share the region's time out, and add up to 1. What a link carried
    over what it can carry is how long it was in use; of that, only what no kernel hides is time that it cost. NVLink's
    collectives run as kernels that keep the GPU busy and do nothing else, so their time is taken out of the busy time,
    unless a pipe or the memory was at work meanwhile. `copying` over PCIe is what fits beside the busy time.

    While the GPU works, `compute` is the busiest pipe over its ceiling, `memory` the DRAM activity over its practical
    ceiling without what the exchanges themselves read and write, `sm` the share of the multiprocessors in use, and
    `breadth` how much of the nearer of the two ceilings these could reach.

    `compute` is not multiplied by `clock`, the clock over the highest: pipe activity counts cycles, and so does what
    the pipe can do. A pipe that issues in nine cycles of ten takes nine tenths of the time at any clock, and DRAM,
    whose clock is its own, is no nearer to its ceiling because of a lower one. The product is another quantity, how
    much of the data sheet's peak is reached (arXiv 2605.20799 calls it OFU). `clock` and `throttled`, the share of time
    for which the driver held the clocks down, are modifiers, no causes.

    Of the basis `operation`, `compute` and `memory` are the FLOPs and bytes per second over measured ceilings,
    `waiting` is its overhead, the share of the time that launching takes, and `growth` how much longer twice the work
    takes, as a share of the time of once.
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
    growth: float | None
    clock: float | None
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
        compute = max(known) if known else None
        own = None if dram is None else max(0.0, dram - (nvlink or 0.0) * limits.nvlink_memory)
        memory = None if own is None else own / limits.dram_ceiling
        if evidence.basis == "operation":
            compute, memory = evidence.get("compute"), evidence.get("memory")
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
            growth=evidence.get("growth"),
            clock=evidence.get("clock"),
            throttled=evidence.get("throttled"),
            trace=Waits.of(evidence, limits),
        )


def _over(value: float | None, scale: float) -> float | None:
    return None if value is None else value / scale

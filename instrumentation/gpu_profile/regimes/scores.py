"""Evidence as the rules read it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpu_profile.regimes.thresholds import Thresholds
from gpu_profile.summary import Evidence


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

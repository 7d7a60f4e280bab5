"""Scripts: phases of synthetic work. The stated work determines both the signals and the true regime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gpu_profile.driver.simulated.activity import Chain, Cycle, SimulatedActivity, integrated, pieces
from gpu_profile.driver.simulated.models import PRECISIONS, DeviceModel, Precision
from gpu_profile.driver.simulated.physics import Work, bounds, copy_ns, duration_ns
from gpu_profile.driver.simulated.worklog import RECORD, RecordKind, Records
from gpu_profile.units import nanoseconds

MOST_LAUNCHES: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One step of work, repeated for `duration_s` seconds.

    A step copies `pcie_bytes` to the device and runs `launches` kernels of `flops` and `bytes` each. After each kernel,
    the device waits `launch_gap_s` for the next launch. The step ends with `host_wait_s` of other work on the host.
    `duty` and `period_s` make a square wave instead: one kernel per period, which is busy for `duty` of it. It runs at
    the shares `compute` and `memory` of the device's peaks. A phase without work is idle.
    """

    duration_s: float
    name: str = ""
    flops: float = 0.0
    bytes: float = 0.0
    precision: Precision = "bf16"
    sms: float = 1.0
    occupancy: float = 0.5
    launches: int = 1
    launch_gap_s: float = 0.0
    host_wait_s: float = 0.0
    pcie_bytes: float = 0.0
    nvlink_bytes: float = 0.0
    duty: float | None = None
    period_s: float | None = None
    compute: float = 0.6
    memory: float = 0.3


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a phase on one model: its records from time 0, their summed time in ns, and its length in ns."""

    records: Records
    busy_ns: int
    length_ns: int


def _kernel(phase: Phase, model: DeviceModel) -> Work | None:
    kernel = Work(
        phase.flops, phase.bytes, phase.precision, phase.sms, phase.occupancy, nvlink_bytes=phase.nvlink_bytes
    )
    if phase.duty is not None and phase.period_s is not None:
        seconds = phase.duty * phase.period_s
        flops = phase.compute * model.peak_flops[phase.precision] * seconds
        size = phase.memory * model.dram_bytes_per_s * seconds
        return replace(kernel, flops=flops, bytes=size, nvlink_bytes=0.0, seconds=seconds)
    return kernel if phase.flops or phase.bytes or phase.nvlink_bytes else None


def step(phase: Phase, model: DeviceModel) -> Step:
    """One step of `phase` on `model`. Raises ValueError for work that the model does not support."""
    kernel, rows, t = _kernel(phase, model), [], 0
    copied = copy_ns(model, phase.pcie_bytes) if phase.pcie_bytes else 0
    if copied:
        rows.append((0, copied, 0, RecordKind.COPY_IN, 0, 0, 0.0, 0.0, phase.pcie_bytes, 0.0, 0.0, 0.0))
        t = copied
    gap, wait = nanoseconds(phase.launch_gap_s), nanoseconds(phase.host_wait_s)
    if kernel is not None and phase.duty != 0:
        if kernel.seconds is None:
            bounds(model, kernel)
        elif phase.period_s is not None:
            wait = nanoseconds(phase.period_s) - nanoseconds(kernel.seconds)
        code = PRECISIONS.index(kernel.precision)
        amounts = (kernel.flops, kernel.bytes, 0.0, kernel.nvlink_bytes, kernel.sms, kernel.occupancy)
        for _ in range(phase.launches):
            end = t + duration_ns(model, kernel)
            rows.append((t, end, 0, RecordKind.KERNEL, code, 0, *amounts))
            t = end + gap
    records = np.array(rows, RECORD)
    return Step(records, int((records["end"] - records["start"]).sum()), max(1, t + wait))


def script(phases: Sequence[Phase], model: DeviceModel, *, loop: bool) -> SimulatedActivity:
    """The activity of a device that runs `phases` from time 0, once or for ever."""
    parts: list[tuple[SimulatedActivity, int]] = []
    for phase in phases:
        one = step(phase, model)
        edges, together, _ = pieces(model, one.records, 0)
        parts.append((Cycle(integrated(edges, together), one.length_ns), nanoseconds(phase.duration_s)))
    chain = Chain(parts)
    return Cycle(chain, sum(length for _, length in parts)) if loop else chain

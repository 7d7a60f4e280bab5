"""The text that the profiler prints when it is created: the machine, the regimes, and the ceilings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu_profile.regimes import Regime, Thresholds
from gpu_profile.roofline.ceilings.ceilings import Ceiling, Ceilings
from gpu_profile.roofline.machines.machine import Machine
from gpu_profile.units import percent, si

_LINE: Final = "=" * 50
#: Why a CPU was chosen by default, by kind of machine.
_WHY: Final = {"cpu": "no GPU was found", "host": "finding GPUs needs PyTorch, which is not installed"}
_MISSION: Final = (
    (Regime.OVERHEAD_BOUND, "launching takes longer than the work"),
    (Regime.MEMORY_BOUND, "memory bandwidth limits performance"),
    (Regime.COMPUTE_BOUND, "arithmetic limits performance"),
)


def heading(machine: Machine, *, chosen: bool) -> Iterator[str]:
    """The machine and the regimes. `chosen`: the caller named the device."""
    yield "gpu-profile Auto-Calibration"
    yield _LINE
    if machine.kind in _WHY:
        yield f"CPU: {machine.name}" + ("" if chosen else f" ({_WHY[machine.kind]}: the CPU itself is measured)")
    else:
        yield f"GPU Detected: {machine.name}"
    yield "Mission: determine the regime of each operation"
    for regime, meaning in _MISSION:
        yield f"   • {regime}: {meaning}"
    yield ""


def summary(ceilings: Ceilings, thresholds: Thresholds, remark: str) -> Iterator[str]:
    """The ceilings and thresholds. `remark`: the origin of the ceilings, such as `measured now`."""
    yield ""
    yield "Calibration Complete!" + (f" ({remark})" if remark else "")
    for level in reversed(ceilings.levels):
        name = "Max Memory Bandwidth" if level.up_to is None else f"   in {level.name}, up to {_size(level.up_to)}"
        yield f"   {name}: {_ceiling(level.bandwidth, 'B/s')}"
    for precision, ceiling in ceilings.compute.items():
        ridge = ceilings.ridge(precision)
        yield f"   Max Compute FLOPS, {precision}: {_ceiling(ceiling, 'FLOP/s')}" + (
            "" if ridge is None else f", ridge {ridge:.3g} FLOP/B"
        )
    if ceilings.launch_s is not None:
        cold = "" if ceilings.cold_launch_s is None else f", {si(ceilings.cold_launch_s, 's')} with cold caches"
        yield f"   Empty launch: {si(ceilings.launch_s, 's')}{cold}"
    for name, reason in ceilings.missing.items():
        yield f"   {name}: not known: {reason}"
    yield f"   Memory Threshold: {percent(thresholds.ceiling)} of the bandwidth"
    yield f"   Compute Threshold: {percent(thresholds.ceiling)} of the precision's FLOP/s"
    yield _LINE


def _ceiling(ceiling: Ceiling, unit: str) -> str:
    source = "" if ceiling.source == "measured" else f" ({ceiling.source})"
    return f"{si(ceiling.value, unit)}{source}" + (f" ({ceiling.note})" if ceiling.note else "")


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"

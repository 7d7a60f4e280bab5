"""Recordings of jobs with one late rank, each rank on a GPU of its own: what makes it late is known."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from gpu_profile.analysis.ranks.causes import LateCause
from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.catalogue.signals import (
    CLOCK_SM,
    GRAPHICS,
    PCIE_GENERATION,
    PCIE_LANES,
    POWER_LIMIT,
    REMAP_PENDING,
    THROTTLES,
)
from gpu_profile.recording import DeviceInterval, ProcessInfo, Recording, SpanRecord
from support.analysis import T0, to_columns

_MS: Final = 1_000_000
_POWER, _THERMAL = THROTTLES[0], THROTTLES[1]


@dataclass(frozen=True)
class RankWorld:
    """A rank's step: time of the host and of the GPU in ms, and the state of its GPU."""

    host_ms: float = 40.0
    gpu_ms: float = 160.0
    clock_hz: float = 1.7e9
    limit_w: float = 700.0
    lanes: int = 16
    generation: int = 5
    remapping: int = 0
    power_throttled: float = 0.1
    thermally_throttled: float = 0.0


#: The late rank's world, by the cause that must be found.
LATE: Final = {
    LateCause.POWER_LIMIT: RankWorld(gpu_ms=220, clock_hz=1.2e9, limit_w=400, power_throttled=0.95),
    LateCause.THERMAL: RankWorld(gpu_ms=210, clock_hz=1.3e9, thermally_throttled=0.6),
    LateCause.POWER: RankWorld(gpu_ms=190, clock_hz=1.45e9, power_throttled=0.5),
    LateCause.CLOCK: RankWorld(gpu_ms=220, clock_hz=1.25e9),
    LateCause.MEMORY: RankWorld(gpu_ms=200, remapping=1),
    LateCause.LINK: RankWorld(host_ms=120, lanes=4),
    LateCause.HOST: RankWorld(host_ms=120),
    LateCause.UNKNOWN: RankWorld(gpu_ms=220),
}


def late_job(
    cause: LateCause, *, ranks: int = 4, late: int = 1, steps: int = 60, from_step: int = 0, seed: int = 0
) -> Recording:
    """A recording in which a rank is late from a step on."""
    drawn = np.random.default_rng(seed)
    spans, devices, samples = list[SpanRecord](), list[Device](), {}
    for rank in range(ranks):
        device = Device(f"GPU-{rank:02d}", index=rank, name="NVIDIA H200", clock_max_hz=1_980_000_000)
        devices.append(device)
        worlds = [LATE[cause] if rank == late and step >= from_step else RankWorld() for step in range(steps)]
        spread = 1 + 0.03 * drawn.standard_normal((2, steps)).clip(-2, 2)
        host = np.array([world.host_ms for world in worlds]) * spread[0] * _MS
        gpu = np.array([world.gpu_ms for world in worlds]) * spread[1] * _MS
        ends = np.cumsum(host + gpu + 5 * _MS)
        starts = ends - host - gpu
        for step, (start, end) in enumerate(zip(starts, ends, strict=True)):
            edges = T0 + int(start), T0 + int(end)
            interval = DeviceInterval(device.uuid, 0, *edges)
            spans.append(
                SpanRecord("step", *edges, id=f"{rank:08x}{step:08x}", rank=rank, device_intervals=(interval,))
            )
        own = _samples(worlds, np.column_stack((starts, starts + host, ends)))
        samples[device.uuid] = {signal.key: to_columns(rows) for signal, rows in own.items()}
    processes = tuple(
        ProcessInfo("0.1.0", "node-a", 100 + rank, T0, "nvml", "580.1", T0 + 10**12, rank=rank, world_size=ranks)
        for rank in range(ranks)
    )
    return Recording(processes, tuple(devices), samples, tuple(spans), (), ())


def _samples(worlds: list[RankWorld], steps: np.ndarray) -> dict[Signal, list[Sample]]:
    """Readings every 100 ms. `steps[n, 3]`: the start, the start on the GPU, and the end of each step in ns."""
    stamps = np.arange(0, int(steps[-1, 2]), 100 * _MS)
    edges = np.concatenate(([0.0], steps.ravel()))
    during = np.clip(np.searchsorted(steps[:, 0], stamps, side="right") - 1, 0, len(worlds) - 1)

    def integral(in_host: list[float], on_gpu: list[float]) -> np.ndarray:
        rates = np.column_stack((np.zeros(len(worlds)), in_host, on_gpu)).ravel()
        return np.interp(stamps, edges, np.concatenate(([0.0], np.cumsum(rates * np.diff(edges)))))

    busy = np.diff(integral([0.0] * len(worlds), [1.0] * len(worlds))) / (100 * _MS)
    result = {
        GRAPHICS: [
            Sample(GRAPHICS, T0 + int(end) - 100 * _MS, T0 + int(end), GRAPHICS.quanta(float(share)))
            for end, share in zip(stamps[1:], busy, strict=True)
        ]
    }
    for signal, shares in (
        (_POWER, [world.power_throttled for world in worlds]),
        (_THERMAL, [world.thermally_throttled for world in worlds]),
    ):
        result[signal] = [
            Sample(signal, T0 + int(at), T0 + int(at), round(total))
            for at, total in zip(stamps, integral(shares, shares), strict=True)
        ]
    for signal, name in (
        (CLOCK_SM, "clock_hz"),
        (POWER_LIMIT, "limit_w"),
        (PCIE_LANES, "lanes"),
        (PCIE_GENERATION, "generation"),
        (REMAP_PENDING, "remapping"),
    ):
        result[signal] = [
            Sample(signal, T0 + int(at), T0 + int(at), signal.quanta(getattr(worlds[step], name)))
            for at, step in zip(stamps, during, strict=True)
        ]
    return result

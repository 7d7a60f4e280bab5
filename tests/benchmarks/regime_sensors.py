"""What a board's sensors say of a published workload, as the history of a device.

Each board has gains of its own, each window has noise, percentages are whole, counters wrap. Gains and noise are drawn
from a seed. Two sets of sensors: `counters` is all that NVML and GPM offer on Hopper. `coarse` is what is left
without GPM: utilisation of the GPU, of its memory and of its video engines, power, clocks and throttling. The counters
of the links stay on Hopper, as recorded (tests/data/hardware); on older boards the worst case is assumed: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from zlib import crc32

import numpy as np

from benchmarks.regime_machines import SHARES, Phase
from benchmarks.regime_workloads import PublishedWorkload
from gpu_profile.analysis.devices import timeline_of
from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, DeviceKind, Interval
from gpu_profile.history.timeline import Floats, Ints, Timeline
from gpu_profile.recording import Columns
from gpu_profile.regimes.evidence import Basis
from gpu_profile.units import NS_PER_S

T0: Final = 1_700_000_000 * NS_PER_S
SECONDS: Final = 12
#: Phases shorter than this together are constant for every sensor.
_BLURRED_S: Final = 4e-3
_UUID: Final = "GPU-bench"
#: GPM's signals by the share that they show.
_GPM: Final[Mapping[Signal, str]] = {
    rows.GRAPHICS: "graphics",
    rows.SM: "sm",
    rows.OCCUPANCY: "occupancy",
    rows.TENSOR: "tensor",
    rows.DRAM: "dram",
    rows.FP64: "fp64",
    rows.FP32: "fp32",
    rows.FP16: "fp16",
    rows.INTEGER: "integer",
}
_LINKS: Final[Mapping[Signal, str]] = {
    rows.PCIE_RX: "pcie_rx",
    rows.PCIE_TX: "pcie_tx",
    rows.NVLINK_RX: "nvlink_rx",
    rows.NVLINK_TX: "nvlink_tx",
}
#: Quiet links carry this much, in B/s (recorded: polling, and the driver's own).
_QUIET: Final = 4e6


class BoardSensors:
    """The sensors of one board that runs a workload. `seed` draws its gains and its noise."""

    def __init__(self, work: PublishedWorkload, seed: int, seconds: int = SECONDS) -> None:
        self._work, self._on, self._seconds = work, work.machine, seconds
        self._rng = np.random.default_rng([crc32(work.name.encode()), seed])
        #: A sensor's gain, by name: 2 %, 3 % for power (within the 5 % of Yang 2024, SC24).
        self._gain = {name: self._rng.normal(1, 0.02) for name in (*SHARES, "watts")}
        self._gain["watts"] = self._rng.normal(1, 0.03)
        #: "Busy" of the memory controller over the share of the bandwidth: 1.13 to 1.33 on the recorded boards.
        self._controller = self._rng.uniform(1.1, 1.4)
        self._edges, self._totals = self._run()

    def _run(self) -> tuple[Floats, dict[str, Floats]]:
        """Edges of phases in s, and the running total of each quantity at these."""
        phases = self._work.phases
        cycle = sum(phase.seconds for phase in phases)
        if cycle < _BLURRED_S:
            lengths = np.full(self._seconds * 10 + 20, 0.1)
            parts = np.zeros(len(lengths), int)
            table = [{n: sum(self._of(p, n) * p.seconds for p in phases) / cycle for n in self._names()}]
        else:
            turns = int(self._seconds / cycle) + 2
            parts = np.tile(np.arange(len(phases)), turns)
            lengths = np.array([p.seconds for p in phases])[parts] * self._rng.normal(1, 0.03, len(parts)).clip(
                0.8, 1.2
            )
            table = [{name: self._of(phase, name) for name in self._names()} for phase in phases]
        edges = np.concatenate(([0.0], np.cumsum(lengths)))
        totals = {}
        for name in self._names():
            rate = np.array([each[name] for each in table])[parts]
            totals[name] = np.concatenate(([0.0], np.cumsum(rate * lengths)))
        return edges, totals

    @property
    def edges(self) -> Floats:
        """The beginnings of the phases that it runs, and the end of the last, in s."""
        return self._edges

    def _names(self) -> tuple[str, ...]:
        return (*SHARES, "watts", "clock", "controller")

    def _of(self, phase: Phase, name: str) -> float:
        if name == "watts":
            return phase.watts
        if name == "clock":
            return phase.clock_hz
        if name == "controller":
            return min(1.0, self._controller * phase.shares.get("dram", 0.0))
        return phase.shares.get(name, 0.0)

    def _means(self, name: str, starts: Floats, ends: Floats) -> Floats:
        total = self._totals[name]
        mean: Floats = (np.interp(ends, self._edges, total) - np.interp(starts, self._edges, total)) / (ends - starts)
        return mean

    def shares(self, name: str, starts: Floats, ends: Floats) -> Floats:
        """An activity counter over windows: 0 stays 0, all else has a gain and noise."""
        mean = self._means(name, starts, ends)
        noise = self._rng.normal(0, 1, len(mean)) * (0.006 * mean + 0.002 * (mean > 1e-3))
        seen: Floats = np.clip(mean * self._gain[name] + noise, 0.0, 1.0)
        return seen

    def percent(self, name: str, starts: Floats, ends: Floats) -> Ints:
        """Utilisation in whole per cent, rounded down; the last of a busy window is often missing (recorded: 99)."""
        mean = self._means(name, starts, ends) - self._rng.uniform(0, 0.01, len(starts))
        whole: Ints = np.floor(100 * np.clip(mean, 0.0, 1.0) + 0.5).astype(np.int64)
        return whole

    def total(self, name: str, times: Floats, per_second: float, floor: float = 0.0) -> Floats:
        """A running total of a rate that is a share of `per_second`."""
        total = np.interp(times, self._edges, self._totals[name])
        grown: Floats = total * self._gain[name] * per_second + floor * times
        return grown

    def watts(self, starts: Floats, ends: Floats) -> Floats:
        """Power over windows. The board holds its limit by this very sensor, so it shows no more than that."""
        noise = self._rng.normal(1, 0.004, len(ends))
        power = np.minimum(self._means("watts", starts, ends) * self._gain["watts"], 0.99 * self._work.limit_w)
        seen: Floats = power * noise
        return seen

    def clock_mhz(self, times: Floats) -> Ints:
        """The clock at some moments, in steps of 15 MHz."""
        clock: Ints = (np.round(self._means("clock", times - 0.01, times) / 15e6) * 15).astype(np.int64)
        return clock


def device_of(work: PublishedWorkload) -> Device:
    """The device as the driver describes it."""
    on = work.machine
    return Device(
        _UUID,
        kind=DeviceKind.MIG if on.mig else DeviceKind.GPU,
        parent="GPU-parent" if on.mig else None,
        index=0,
        name=on.name,
        clock_max_hz=round(on.clock_max_hz),
        pcie_bytes_per_s=None if on.mig else round(on.pcie),
        nvlink_bytes_per_s=round(on.nvlink) or None if not on.mig else None,
    )


def watched(work: PublishedWorkload, basis: Basis, seed: int) -> tuple[Timeline, Interval]:
    """A device's history while it runs the workload all the time, and one execution of the region that it is."""
    samples = _samples(work, basis, BoardSensors(work, seed), np.random.default_rng([seed, 7]))
    columns = {
        signal.key: Columns(
            T0 + np.rint(starts * NS_PER_S).astype(np.int64), T0 + np.rint(ends * NS_PER_S).astype(np.int64), values
        )
        for signal, (starts, ends, values) in samples.items()
    }
    return timeline_of(device_of(work), columns, []), Interval(T0 + NS_PER_S, T0 + (SECONDS - 1) * NS_PER_S, "device")


_Series = tuple[Floats, Floats, Ints]


def _samples(
    work: PublishedWorkload, basis: Basis, board: BoardSensors, rng: np.random.Generator
) -> dict[Signal, _Series]:
    on = work.machine
    times = np.arange(0.1, SECONDS, 0.05) + rng.uniform(0, 0.002, len(np.arange(0.1, SECONDS, 0.05)))
    windows = times[::2]
    out: dict[Signal, _Series] = {}
    if not on.mig:
        out |= _board(work, board, times)
    if on.gpm and basis == "counters":
        for signal, name in _GPM.items():
            out[signal] = _shown(board, signal, name, windows)
    if on.gpm and not on.mig:
        for signal, name in _LINKS.items():
            peak = on.pcie if "pcie" in name else on.nvlink
            quanta = (board.total(name, times, peak, _QUIET) / signal.quantum).astype(np.int64)
            out[signal] = (times, times, quanta % (signal.wraps_at or 1 << 62))
    return out


def _shown(board: BoardSensors, signal: Signal, name: str, times: Floats) -> _Series:
    starts, ends = times[:-1], times[1:]
    return starts, ends, np.rint(board.shares(name, starts, ends) / signal.quantum).astype(np.int64)


def _board(work: PublishedWorkload, board: BoardSensors, times: Floats) -> dict[Signal, _Series]:
    on = work.machine
    period = 0.2 if on.gpm else 1 / 6
    ends = np.arange(2 * period, SECONDS, period)
    names = {
        rows.UTILIZATION: "busy",
        rows.MEMORY_CONTROLLER: "controller",
        rows.DECODER: "decoder",
        rows.ENCODER: "encoder",
    }
    out: dict[Signal, _Series] = {
        signal: (ends - period, ends, board.percent(name, ends - period, ends)) for signal, name in names.items()
    }
    slow = np.arange(0.5, SECONDS, 1.0)
    out[rows.CLOCK_SM] = (slow, slow, board.clock_mhz(slow))
    out[rows.POWER_LIMIT] = (slow, slow, np.full(len(slow), round(work.limit_w * 1000)))
    joules = np.concatenate(([0.0], np.cumsum(board.watts(times[:-1], times[1:]) * np.diff(times))))
    out[rows.ENERGY] = (times, times, (joules * 1000).astype(np.int64))
    short = times[2:]
    out[rows.POWER] = (short - 0.025, short, np.rint(board.watts(short - 0.025, short) * 1000).astype(np.int64))
    for signal in rows.THROTTLES:
        reason = dict(signal.attributes)["nvidia.gpu.throttle.reason"]
        name = {"sw_power_cap": "capped", "sw_thermal": "hot"}.get(reason)
        held = board.total(name, times, 1.0) if name else np.zeros(len(times))
        out[signal] = (times, times, (np.minimum(held, times) * NS_PER_S).astype(np.int64))
    return out

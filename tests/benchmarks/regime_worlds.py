"""Random workloads whose regime follows from their physics, and what a device's sensors make of them.

A workload is stated in FLOPs, bytes, multiprocessors, launch gaps, copies and waits. Its label is where its time goes:
no threshold of the classifier is read here. The signals come from the same statement through the simulator's sensors,
with what real sensors add: a gain of their own on each device, noise in each window, whole per cent, power that no
linear model knows to better than a third, and a memory controller whose "busy" may count time or traffic. They reach
the verdict the way that a program's do: timeline, pool, summary, classify.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.driver.simulated.activity import Chain, Cycle, RunningTotals, Shifted, SimulatedActivity
from gpu_profile.driver.simulated.models import MODELS, PRECISIONS, DeviceModel
from gpu_profile.driver.simulated.physics import WIDTH, SimulatedQuantity, limited, rates
from gpu_profile.driver.simulated.sensors import Sensors
from gpu_profile.driver.simulated.worklog import RECORD, RecordKind
from gpu_profile.history.timeline import Floats, Timeline
from gpu_profile.join.summary import Durations, summarise
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.windows.activities import DeviceExecution
from gpu_profile.regimes import Regime, Verdict, classify
from gpu_profile.regimes.evidence import Evidence
from gpu_profile.units import NS_PER_S

MS: Final = 1_000_000
T0: Final = 1_700_000_000 * NS_PER_S
SECONDS: Final = 30
#: Times that are within this share of the longest are as long as it: either is a right answer.
TIE: Final = 0.1
#: What good kernels get out of a ceiling differs by this much from kernel to kernel, and no sensor tells by how much:
#: of a kernel whose two times are as close as that, it is right as well to say that both ceilings are near.
CLOSE: Final = 0.25
#: What 16 lanes carry one way by PCIe generation, as the driver reports it, in B/s.
LINKS: Final = {4: 31_507_692_307, 5: 63_015_384_608}
#: The host's work for one copy, in s: a call and the driver's set-up take 5 to 12 µs whatever the size.
_SET_UP: Final = (5e-6, 12e-6)
#: The figures that the verdicts' tables print come from workloads that nobody looked at when rules were made.
HELD_OUT: Final = 2_026
#: A grid with less work than this takes a GPU in all leaves multiprocessors empty: a block lasts a few µs.
_BLOCK_S: Final = 5e-6
_GPM: Final = {
    rows.GRAPHICS: SimulatedQuantity.BUSY,
    rows.SM: SimulatedQuantity.SM,
    rows.OCCUPANCY: SimulatedQuantity.OCCUPANCY,
    rows.TENSOR: SimulatedQuantity.TENSOR,
    rows.DRAM: SimulatedQuantity.DRAM,
    rows.FP64: SimulatedQuantity.FP64,
    rows.FP32: SimulatedQuantity.FP32,
}
#: More than the simulator's own models: one newer and larger, two without NVLink, by data sheet.
DEVICES: Final[Mapping[str, DeviceModel]] = {
    **MODELS,
    "B200": replace(
        MODELS["H200 SXM"],
        key="B200",
        name="NVIDIA B200",
        tdp_w=1000.0,
        peak_flops={"fp64": 37e12, "fp32": 75e12, "tf32": 1.1e15, "bf16": 2.25e15, "fp16": 2.25e15, "fp8": 4.5e15},
        dram_bytes_per_s=8.0e12,
        nvlink_bytes_per_s=900e9,
    ),
    "RTX PRO 6000": replace(
        MODELS["H200 SXM"],
        key="RTX PRO 6000",
        name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        tdp_w=600.0,
        peak_flops={"fp64": 1.97e12, "fp32": 126e12, "tf32": 252e12, "bf16": 504e12, "fp16": 504e12, "fp8": 1.007e15},
        dram_bytes_per_s=1.792e12,
        nvlink_bytes_per_s=0.0,
    ),
    "L40S": replace(
        MODELS["L4"],
        key="L40S",
        name="NVIDIA L40S",
        tdp_w=350.0,
        idle_w=30.0,
        sm_clock_mhz=2520,
        peak_flops={"fp64": 1.43e12, "fp32": 91.6e12, "tf32": 183e12, "bf16": 362e12, "fp16": 362e12, "fp8": 733e12},
        dram_bytes_per_s=0.864e12,
    ),
}
#: How often each is drawn; three workloads in five run on a device with activity counters.
_DRAWN: Final = {
    "H200 SXM": 0.2,
    "H100 SXM": 0.18,
    "B200": 0.12,
    "RTX PRO 6000": 0.1,
    "A100 80 SXM": 0.12,
    "A10G": 0.1,
    "L4": 0.09,
    "L40S": 0.09,
}


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """A number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: how long it runs in s, its amounts, the mean share of multiprocessors with warps, what bounds it,
    whether both ceilings are near, and the resident share of the warps that fit on a multiprocessor in use."""

    seconds: float
    flops: float
    bytes: float
    precision: str
    sms: float
    cause: Regime
    close: bool = False
    warps: float = 0.5


@dataclass(frozen=True, slots=True)
class Workload:
    """A region's step: kernels with a gap after each, a copy to the device, an exchange over NVLink, a wait; in s.

    `shares` are how the time of kernels and gaps is divided between the kinds of kernel. `clock` is the clock while it
    works over the highest. `copy_set_up` is the part of the copy's time in which calls are set up and no byte moves.
    `beside` is what runs between the region's executions, None for nothing.
    """

    model: DeviceModel
    clock: float
    kernels: tuple[Kernel, ...] = ()
    shares: tuple[float, ...] = ()
    gap_s: float = 0.0
    kernels_s: float = 0.0
    copy_s: float = 0.0
    copy_set_up: float = 0.0
    exchange_s: float = 0.0
    wait_s: float = 0.1
    beside: Workload | None = None

    @property
    def times(self) -> dict[Regime, float]:
        """Seconds of a step by what they are spent on."""
        spent: dict[Regime, float] = defaultdict(float)
        for kernel, share in zip(self.kernels, self.shares, strict=True):
            time = self.kernels_s * share
            spent[kernel.cause] += time * kernel.seconds / (kernel.seconds + self.gap_s)
            spent[Regime.OVERHEAD_BOUND] += time * self.gap_s / (kernel.seconds + self.gap_s)
        spent[Regime.TRANSFER_BOUND] = self.copy_s * (1 - self.copy_set_up)
        spent[Regime.COMMUNICATION_BOUND] = self.exchange_s
        # While a copy is set up, the GPU waits for the host's call.
        spent[Regime.HOST_BOUND] = self.wait_s + self.copy_s * self.copy_set_up
        return spent

    @property
    def used(self) -> float:
        """The share of a step in which something runs or is copied."""
        times = self.times
        return 1.0 - times[Regime.HOST_BOUND] / sum(times.values())

    @property
    def strict(self) -> frozenset[Regime]:
        """The regimes that most of the time goes to: one, unless others tie with it."""
        if not (self.kernels or self.beside):
            return frozenset({Regime.IDLE})
        times = self.times
        longest = max(times.values())
        return frozenset(regime for regime, time in times.items() if time > (1 - TIE) * longest)

    @property
    def truth(self) -> frozenset[Regime]:
        """What it is right to say: `strict`, and what follows from `CLOSE`, or from a device that hardly does anything.

        Kernels on both sides of the ridge that tie are balanced too.
        """
        right = self.strict
        if self.used < TIE and (self.beside is None or self.beside.used < TIE):
            return right | {Regime.IDLE}
        ridge = {Regime.COMPUTE_BOUND, Regime.MEMORY_BOUND, Regime.BALANCED}
        if ridge & right and all(kernel.close for kernel in self.kernels if kernel.cause in ridge):
            return right | {Regime.BALANCED}
        return right | {Regime.BALANCED} if right >= ridge - {Regime.BALANCED} else right


def kernel(rng: np.random.Generator, model: DeviceModel, precision: str) -> Kernel:
    """A random kernel: arithmetic intensity around the ridge, any size, one in six on few multiprocessors.

    One in six waits on its own dependencies. Every kernel starts and drains in a time in which no warp is resident.
    """
    # What good kernels get out of a pipe and of DRAM, as a share of the data sheet.
    flops_per_s = rng.uniform(0.8, 0.95) * model.peak_flops[precision]
    bytes_per_s = rng.uniform(0.75, 0.9) * model.dram_bytes_per_s
    whole_gpu_s, intensity = log_uniform(rng, 1e-6, 2e-2), 2.0 ** rng.uniform(-4, 4)
    compute_s, memory_s = whole_gpu_s * min(1.0, intensity), whole_gpu_s * min(1.0, 1 / intensity)
    sms = min(1.0, whole_gpu_s / _BLOCK_S)
    if rng.random() < 1 / 6:
        sms = min(sms, log_uniform(rng, 0.02, 0.5))
    flops, size = flops_per_s * compute_s, bytes_per_s * memory_s
    # Half of the multiprocessors saturate DRAM. Arithmetic and traffic overlap nearly, not wholly.
    breadth = sms if compute_s > memory_s else min(1.0, 2 * sms)
    compute_s, memory_s = compute_s / sms, memory_s / min(1.0, 2 * sms)
    stalls = log_uniform(rng, 1.3, 10) if rng.random() < 1 / 6 else 1.0
    body_s = (compute_s**8 + memory_s**8) ** (1 / 8) * stalls
    seconds = body_s + rng.uniform(1.5e-6, 3e-6)
    resident = body_s / seconds
    if whole_gpu_s < seconds / 2:
        # Neither ceiling is half reached: what costs more, missing blocks and starts, or what the blocks wait for?
        cause = Regime.OVERHEAD_BOUND if breadth * resident < 1 / stalls else Regime.LATENCY_BOUND
    elif min(compute_s, memory_s) > (1 - TIE) * max(compute_s, memory_s):
        cause = Regime.BALANCED
    else:
        cause = Regime.COMPUTE_BOUND if compute_s > memory_s else Regime.MEMORY_BOUND
    close = min(compute_s, memory_s) > (1 - CLOSE) * max(compute_s, memory_s)
    # By Little's law: latency that is not hidden by so much leaves too few warps by as much.
    return Kernel(seconds, flops, size, precision, sms * resident, cause, close, 0.5 / stalls)


def draw(rng: np.random.Generator) -> Workload:
    """A random workload on a random device."""
    model = DEVICES[str(rng.choice(list(_DRAWN), p=list(_DRAWN.values())))]
    # A power limit or heat lowers the multiprocessors' clock, at worst to less than half; the memory keeps its own.
    clock = rng.uniform(0.4, 1.0) if rng.random() < 0.4 else 1.0
    model = replace(model, peak_flops={name: peak * clock for name, peak in model.peak_flops.items()})
    beside = _work(rng, model, clock) if rng.random() < 0.5 else None
    if rng.random() < 0.06:
        return Workload(model, clock, beside=beside)
    return replace(_work(rng, model, clock), beside=beside)


def _work(rng: np.random.Generator, model: DeviceModel, clock: float) -> Workload:
    count = int(rng.choice([1, 2, 3], p=(0.65, 0.3, 0.05)))
    precision = str(rng.choice(list(model.peak_flops)))
    kernels = tuple(kernel(rng, model, precision) for _ in range(count))
    there = [1.0, rng.random() < 0.35, bool(model.nvlink_bytes_per_s) and rng.random() < 0.5, rng.random() < 0.5]
    parts = np.exp(rng.normal(0, 1.3, 4)) * there
    kernels_s, copy_s, exchange_s, wait_s = (parts / parts.sum() * log_uniform(rng, 0.008, 0.15)).tolist()
    # From one value to a whole batch in a copy.
    moving, set_up = log_uniform(rng, 16e3, 256e6) / model.pcie_bytes_per_s, rng.uniform(*_SET_UP)
    return Workload(
        model,
        clock,
        kernels,
        tuple(rng.dirichlet(np.ones(count)).tolist()),
        log_uniform(rng, 1e-6, 2e-5) if rng.random() < 0.4 else 0.0,
        kernels_s,
        copy_s,
        set_up / (set_up + moving),
        exchange_s,
        wait_s,
    )


@dataclass(frozen=True, slots=True)
class Instrument:
    """How one device's sensors are off: a gain for each column, the noise of a window, and what draws its power.

    `counts_time` is 1 for a memory controller that is busy whenever memory is touched, 0 for one that counts traffic.
    """

    gains: Floats
    noise: float
    weights: tuple[float, float, float]
    counts_time: float

    @staticmethod
    def draw(rng: np.random.Generator) -> Instrument:
        """A device: gains within some 2 %, windows within half a point to one, and power within a third."""
        sm, pipe, dram = 0.15 * rng.uniform(0.6, 1.4), 0.85 * rng.uniform(0.7, 1.3), 0.55 * rng.uniform(0.6, 1.4)
        return Instrument(rng.normal(1, 0.02, WIDTH), rng.uniform(0.005, 0.01), (sm, pipe, dram), rng.random())

    def seen(self, model: DeviceModel, rates: Floats) -> Floats:
        """Rates with the power and the controller's time of this device."""
        out = rates.copy()
        sm, pipe, dram = self.weights
        busiest = max(out[SimulatedQuantity.TENSOR], out[SimulatedQuantity.FP64], out[SimulatedQuantity.FP32])
        dynamic = sm * out[SimulatedQuantity.SM] + pipe * busiest + dram * out[SimulatedQuantity.DRAM]
        out[SimulatedQuantity.ENERGY] = min(1.0, dynamic) * (model.tdp_w - model.idle_w)
        if out[SimulatedQuantity.MEMORY_BUSY]:
            out[SimulatedQuantity.MEMORY_BUSY] = max(out[SimulatedQuantity.DRAM], 1e-6) ** (1 - self.counts_time)
        return out

    def read(self, rng: np.random.Generator, mean: Floats) -> Floats:
        """Activity counters of one window."""
        seen: Floats = np.clip(mean * self.gains + rng.normal(0, self.noise, WIDTH), 0, 1)
        return seen


# ---------------------------------------------------------------------- what runs, and what sensors say of it


def _per_second(model: DeviceModel, kind: RecordKind, seconds: float, **amounts: float) -> Floats:
    record = np.zeros(1, RECORD)
    record["kind"], record["end"] = kind, max(1, round(seconds * NS_PER_S))
    for name, amount in amounts.items():
        record[name] = amount
    together: Floats = limited(model, rates(model, record))[0]
    return together


def activity(rng: np.random.Generator, work: Workload, device: Instrument, steps: int = 7) -> Cycle:
    """The running totals of a workload's steps, whose parts vary by a tenth from step to step."""
    model, parts = work.model, []
    if work.copy_s:
        size = work.copy_s * model.pcie_bytes_per_s * rng.uniform(0.9, 1.0)
        size *= 1 - work.copy_set_up
        parts.append((work.copy_s, _per_second(model, RecordKind.COPY_IN, work.copy_s, pcie=size)))
    for one, share in zip(work.kernels, work.shares, strict=True):
        each = _per_second(
            model,
            RecordKind.KERNEL,
            one.seconds,
            flops=one.flops,
            bytes=one.bytes,
            sms=one.sms,
            occupancy=one.warps,
            precision=PRECISIONS.index(one.precision),
        )
        # Windows are 100 ms and more: what takes µs is as good as spread evenly.
        parts.append((work.kernels_s * share, each * (one.seconds / (one.seconds + work.gap_s))))
    if work.exchange_s:
        size = work.exchange_s * model.nvlink_bytes_per_s * rng.uniform(0.7, 0.9)
        # A collective's kernel runs on a few multiprocessors for as long as the exchange takes.
        each = _per_second(
            model,
            RecordKind.KERNEL,
            work.exchange_s,
            nvlink=size,
            bytes=2 * size,
            sms=rng.uniform(0.06, 0.2),
            occupancy=0.3,
        )
        parts.append((work.exchange_s, each))
    parts.append((work.wait_s, np.zeros(WIDTH)))
    lengths = np.concatenate([[s * rng.uniform(0.9, 1.1) for s, _ in parts] for _ in range(steps)])
    edges = np.concatenate(([0], np.cumsum(np.rint(lengths * NS_PER_S).astype(np.int64) + 1)))
    growth = (
        np.vstack([device.seen(model, each) for _ in range(steps) for _, each in parts])
        * (np.diff(edges) / NS_PER_S)[:, None]
    )
    return Cycle(RunningTotals(edges, np.cumsum(np.vstack([np.zeros(WIDTH), growth]), axis=0)), int(edges[-1]))


def run(work: Workload, rng: np.random.Generator) -> tuple[Pool, int]:
    """Half a minute of executions with pauses between them, read ten times a second; and how many there were."""
    device = Instrument.draw(rng)
    doing = activity(rng, work, device)
    beside: SimulatedActivity = (
        activity(rng, work.beside, device)
        if work.beside
        else RunningTotals(np.array([0, NS_PER_S]), np.zeros((2, WIDTH)))
    )
    parts: list[tuple[SimulatedActivity, int]] = []
    active: list[DeviceExecution] = []
    t = 0
    while t < SECONDS * NS_PER_S:
        length, pause = (round(log_uniform(rng, 0.15, 1.5) * NS_PER_S) for _ in range(2))
        active.append(DeviceExecution(len(active), None, "work", T0 + t, T0 + t + length))
        parts += [(doing, length), (beside, pause)]
        t += length + pause
    sensors = Sensors(work.model, Shifted(Chain(parts), T0), T0)
    pool = Pool(_timeline(work), start_ns=T0 + NS_PER_S)
    ticks = T0 + NS_PER_S // 2 + np.cumsum(rng.integers(102 * MS, 108 * MS, SECONDS * 9))
    last, before = int(ticks[0]), sensors.gpm_snapshot(int(ticks[0]))
    energy, drawn = 0.0, sensors.energy_mj(last, T0)
    for number, now in enumerate(ticks.tolist()):
        now_mj = sensors.energy_mj(now, T0)
        energy, drawn = energy + (now_mj - drawn) * max(0.0, rng.normal(1, 0.01)), now_mj
        samples = [
            Sample(rows.ENERGY, now, now, int(energy)),
            Sample(rows.THROTTLES[0], now, now, sensors.throttled_ns(now)),
            Sample(rows.PCIE_RX, now, now, sensors.counted(SimulatedQuantity.PCIE_RX, now)),
            Sample(rows.PCIE_TX, now, now, sensors.counted(SimulatedQuantity.PCIE_TX, now)),
        ]
        if work.model.nvlink_bytes_per_s:
            total = sensors.counted(SimulatedQuantity.NVLINK, now) // 1024
            samples += [Sample(signal, now, now, total) for signal in (rows.NVLINK_RX, rows.NVLINK_TX)]
        if number % 9 == 0:
            samples += _slow(work, sensors, now)
        after = sensors.gpm_snapshot(now)
        if work.model.gpm and after[0] > before[0]:
            mean = (after[1] - before[1]) * (NS_PER_S / (after[0] - before[0]))
            noisy = device.read(rng, mean)
            samples += [Sample(row, last, now, row.quanta(float(noisy[column]))) for row, column in _GPM.items()]
            samples.append(Sample(rows.FP16, last, now, 0))
        if not work.model.gpm:
            ends, busy, memory = sensors.utilization_samples(now, last)
            period = work.model.utilization_refresh_ns
            for end, gpu, controller in zip(ends.tolist(), busy.tolist(), memory.tolist(), strict=True):
                samples.append(Sample(rows.UTILIZATION, end - period, end, gpu))
                samples.append(Sample(rows.MEMORY_CONTROLLER, end - period, end, controller))
        pool.timeline.append(samples)
        last, before = now, after
        if number % 90 == 89:
            pool.advance(active, now, final=now == ticks[-1])
    for _ in active:
        pool.count("work")
    return pool, len(active)


def _timeline(work: Workload) -> Timeline:
    model = work.model
    signals: list[Signal] = [
        rows.ENERGY,
        rows.POWER_LIMIT,
        rows.CLOCK_SM,
        rows.THROTTLES[0],
        rows.PCIE_RX,
        rows.PCIE_TX,
    ]
    signals += [rows.NVLINK_RX, rows.NVLINK_TX] if model.nvlink_bytes_per_s else []
    signals += [*_GPM, rows.FP16] if model.gpm else [rows.UTILIZATION, rows.MEMORY_CONTROLLER]
    device = Device(
        "GPU-study",
        name=model.name,
        clock_max_hz=model.sm_clock_mhz * 1_000_000,
        pcie_bytes_per_s=LINKS[model.pcie_generation],
        nvlink_bytes_per_s=round(model.nvlink_bytes_per_s) or None,
    )
    return Timeline(device, signals, capacity=2_000)


def _slow(work: Workload, sensors: Sensors, now: int) -> list[Sample]:
    busy = sensors.mean(SimulatedQuantity.BUSY, sensors.refreshed(now, 100 * MS), 100 * MS) > 0
    clock = work.model.sm_clock_mhz * work.clock if busy else work.model.idle_clock_mhz
    return [
        Sample(rows.CLOCK_SM, now, now, round(clock)),
        Sample(rows.POWER_LIMIT, now, now, round(work.model.tdp_w * 1000)),
    ]


# ---------------------------------------------------------------------- the study


@dataclass(frozen=True, slots=True)
class Case:
    """A workload, what it is, what the classifier says, and of what."""

    seed: int
    work: Workload
    truth: frozenset[Regime]
    verdict: Verdict
    evidence: Evidence

    @property
    def right(self) -> bool:
        """Whether the verdict is (one of) what physics says."""
        return self.verdict.regime in self.truth

    @property
    def strictly_right(self) -> bool:
        """Whether it is right with no allowance but for ties."""
        return self.verdict.regime in self.work.strict

    @property
    def label(self) -> Regime:
        """The truth as one word: the verdict where it is right, else what takes longest."""
        return self.verdict.regime if self.right else max(self.truth, key=lambda r: self.work.times[r])


def case(seed: int, *, family: int = HELD_OUT) -> Case:
    """The workload number `seed` of a family, judged."""
    rng = np.random.default_rng([family, seed])
    work = draw(rng)
    pool, calls = run(work, rng)
    summary = summarise(pool, "work", Durations(calls=calls), interval_source="device")
    return Case(seed, work, work.truth, classify(summary.evidence), summary.evidence)

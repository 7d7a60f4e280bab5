"""Published machine models, and the physics of what runs on them: kernels, copies, collectives, video engines, waits.

A kernel is stated in amounts: FLOPs by pipe, bytes by level, warps, dependent accesses. Its time is that of the slowest
resource. The activity of a resource is its amount over what it could have done in that time. Power is the sum over
resources; if it exceeds the limit, the clock falls until it does not. No threshold of the classifier is read here.

Multiprocessors, lanes, peaks, bandwidths of memory and links, limits and engines are by data sheet. Figures that no
sheet has are recorded or estimated, and called so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

#: A kernel that does nothing takes this long on the device, in s (`tiny` of tests/data/hardware/h100 and h200).
LEAST_KERNEL_S: Final = 2.2e-6
#: Cycles from one dependent arithmetic instruction to the next on Ampere (Abdelkhalik 2022, arXiv 2208.11174).
_DEPENDENT_CYCLES: Final = 4
#: Dynamic power of the multiprocessors grows with about this power of the clock: f times V squared, V nearly in step.
_CLOCK_EXPONENT: Final = 2.4
#: Completions and requests flow against the data of a copy: 5.1 of 58.9 GB/s (`others.from_host` of the H100).
_AGAINST: Final = 0.087
#: Requests of reads by kernels are 24-byte headers per 128-byte line.
_REQUESTS: Final = 0.19
#: Shares of peaks. Names are those of the catalogue's signals where there is one; `l2` and `shared` have no signal.
SHARES: Final = (
    "busy", "graphics", "sm", "occupancy", "tensor", "fp64", "fp32", "fp16", "integer", "dram", "l2", "shared",
    "pcie_rx", "pcie_tx", "nvlink_rx", "nvlink_tx", "decoder", "encoder", "capped", "hot",
)  # fmt: skip
#: Resources in the clock domain of the multiprocessors.
_CLOCKED: Final = ("tensor", "fp64", "fp32", "fp16", "integer", "l2", "shared")


@dataclass(frozen=True, slots=True)
class Machine:
    """A board by its data sheet.

    `clock_hz` is the clock that it sustains without a limit, `clock_max_hz` the one that NVML gives as the highest.
    `asleep_w` and `idle_w` are the power without and with a context. `fp32`, `fp64` and `integer` are lanes per
    multiprocessor and clock; `tensor` is FLOPs per multiprocessor and clock. Bandwidths are in B/s one way: `pcie` of
    the lanes, `pinned` what a copy reaches, `pageable` what a host thread stages. `watts` is the dynamic power of each
    resource at its peak. `issue_s` is the host's time for a launch, `node_s` the gap between the kernels of a graph.
    `decoders` and `encoders` are the frames of 1080p per second of all video engines.
    """

    key: str
    name: str
    sms: int
    clock_hz: float
    clock_max_hz: float
    asleep_w: float
    idle_w: float
    limit_w: float
    fp32: int
    fp64: int
    integer: int
    tensor: Mapping[str, int]
    warps: int
    dram: float
    dram_latency_s: float
    l2: float
    l2_bytes: int
    l2_latency_s: float
    pcie: float
    pinned: float
    pageable: float
    nvlink: float
    watts: Mapping[str, float]
    decoders: float
    encoders: float = 0.0
    issue_s: float = 4.5e-6
    node_s: float = 1.1e-6
    shared: int = 128
    gpm: bool = False
    mig: bool = False

    def peak(self, resource: str, precision: str = "bf16") -> float:
        """What a resource does in a second at `clock_hz`: lane operations, FLOPs or bytes."""
        if resource in ("dram", "l2", "pcie", "nvlink"):
            return float(getattr(self, resource))
        if resource == "tensor":
            return self.sms * self.clock_hz * self.tensor[precision]
        lanes = 2 * self.fp32 if resource == "fp16" else getattr(self, resource)
        return float(self.sms * self.clock_hz * lanes)

    def sliced(self, sms: int, memory: float, name: str) -> Machine:
        """A MIG instance: its multiprocessors, and its share of memory, L2 and power. It sees no link."""
        share = sms / self.sms
        return replace(
            self,
            key=f"{self.key} {name}",
            name=f"{self.name} MIG {name}",
            sms=sms,
            dram=self.dram * memory,
            l2=self.l2 * memory,
            idle_w=0.0,
            asleep_w=0.0,
            limit_w=(self.limit_w - self.idle_w) * share,
            watts={key: value * (memory if key in ("dram", "l2") else share) for key, value in self.watts.items()},
            mig=True,
        )


#: Dynamic power of an H100 by resource at its peak, W. Fitted to tests/data/hardware/h100 (`solo`): `gather` 290 W at
#: 0.25 of the bandwidth, `copy` 523 W at 0.89, FP32 products 662 W at 0.75, BF16 products 681 W at 0.93 and 1470 MHz.
#: The parts that were not recorded (FP64, FP16, integer, L2, shared memory, links) are estimates.
_H100_WATTS: Final = {
    "sm": 70.0, "tensor": 850.0, "fp32": 593.0, "fp64": 480.0, "fp16": 450.0, "integer": 250.0, "l2": 90.0,
    "shared": 110.0, "dram": 300.0, "links": 25.0,
}  # fmt: skip


def _scaled(total: float, **others: float) -> dict[str, float]:
    """The watts of another board: an H100's split, scaled so that a tuned product reaches the board's limit."""
    return {key: value * total for key, value in _H100_WATTS.items()} | others


#: H100 SXM5 data sheet and Hopper white paper: 132 multiprocessors, 67 TFLOPS FP32, 34 FP64, 989 BF16 and 1979 FP8
#: (dense), 64 INT32 lanes, 3.35 TB/s, 50 MB of L2, 700 W, PCIe 5.0 x16, NVLink 900 GB/s in both directions, 7 NVDEC.
#: Idle and PCIe: recorded. Bandwidth of L2, latencies, host copies, power asleep, frames per engine: estimated.
H100: Final = Machine(
    "H100", "NVIDIA H100 80GB HBM3", 132, 1.98e9, 1.98e9, 74, 124, 700, 128, 64, 64,
    {"tf32": 2048, "bf16": 4096, "fp8": 8192, "int8": 8192}, 64, 3.352e12, 560e-9, 5.5e12, 50 << 20, 140e-9,
    63.0e9, 58.9e9, 11e9, 450e9, _H100_WATTS, 7 * 800.0, gpm=True,
)  # fmt: skip
#: H200 data sheet: an H100 with 4.8 TB/s of HBM3e. Power at full bandwidth fitted to the recording (577 W); idle power
#: estimated from its tiny kernels (122 W).
H200: Final = replace(
    H100, key="H200", name="NVIDIA H200", dram=4.8e12, idle_w=112.0, watts={**_H100_WATTS, "dram": 370.0}
)
#: A100 80GB SXM4 data sheet and Ampere white paper: 108 multiprocessors, 1410 MHz, 19.5 TFLOPS FP32, 9.7 FP64, 312
#: BF16, 2.039 TB/s, 40 MB of L2 (5120 B per clock at best), 400 W, PCIe 4.0 x16, NVLink 600 GB/s,
#: 5 NVDEC. The rest as for the H100, and all watts: estimated.
A100: Final = Machine(
    "A100", "NVIDIA A100-SXM4-80GB", 108, 1.41e9, 1.41e9, 52, 68, 400, 64, 32, 64,
    {"tf32": 1024, "bf16": 2048, "int8": 4096}, 64, 2.039e12, 440e-9, 4.6e12, 40 << 20, 145e-9,
    31.5e9, 26.2e9, 9e9, 300e9, _scaled(0.42, tensor=270.0, fp32=190.0, dram=175.0, sm=38.0), 5 * 700.0,
)  # fmt: skip
#: RTX 4090, Ada white paper: 128 multiprocessors, 2520 MHz boost (boards run at 2.7 GHz; NVML's highest is 3105),
#: 82.6 TFLOPS FP32, FP64 a 64th, INT32 on half of the lanes, 165 BF16 with FP32 sums and 330 FP8, 1008 GB/s, 72 MB of
#: L2, 450 W, PCIe 4.0 x16, no NVLink, 1 NVDEC and 2 NVENC. The rest, and all watts: estimated.
RTX4090: Final = Machine(
    "RTX4090", "NVIDIA GeForce RTX 4090", 128, 2.70e9, 3.105e9, 20, 56, 450, 128, 2, 64,
    {"tf32": 256, "bf16": 512, "fp8": 1024, "int8": 1024}, 48, 1.008e12, 550e-9, 5.0e12, 72 << 20, 110e-9,
    31.5e9, 25.4e9, 12e9, 0.0, _scaled(0.5, tensor=270.0, fp32=330.0, dram=95.0, sm=55.0, fp64=40.0), 900.0, 700.0,
)  # fmt: skip
#: L4 data sheet: 58 multiprocessors, 2040 MHz, 30.3 TFLOPS FP32, 121 BF16 and 242 FP8 (dense), 300 GB/s, 48 MB of L2,
#: 72 W, PCIe 4.0 x16, 4 NVDEC and 2 NVENC. It meets its power limit with most loads. The rest, and all
#: watts: estimated.
L4: Final = Machine(
    "L4", "NVIDIA L4", 58, 2.04e9, 2.04e9, 12, 28, 72, 128, 2, 64,
    {"tf32": 512, "bf16": 1024, "fp8": 2048, "int8": 2048}, 48, 0.300e12, 580e-9, 1.9e12, 48 << 20, 120e-9,
    31.5e9, 25.0e9, 9e9, 0.0, _scaled(0.11, tensor=105.0, fp32=95.0, dram=21.0, sm=9.0, fp64=5.0), 4 * 800.0, 1200.0,
)  # fmt: skip
MACHINES: Final = (H100, H200, A100, RTX4090, L4)


@dataclass(frozen=True, slots=True)
class LaunchedKernel:
    """One launch. `amounts` by resource: lane operations (an FMA is one), tensor FLOPs, bytes.

    `sms` is the share of multiprocessors with blocks, `warps` the resident warps on each of these. `flight` is bytes in
    flight per warp, `ilp` independent instructions per warp. `chain_s` is the time of accesses that wait for each
    other. `reach` is what the slowest resource gets out of its peak.
    """

    amounts: Mapping[str, float]
    sms: float = 1.0
    warps: float = 32.0
    flight: float = 1024.0
    ilp: float = 4.0
    chain_s: float = 0.0
    reach: float = 0.9
    precision: str = "bf16"

    def seconds(self, on: Machine, clock: float) -> float:
        """How long it runs at this share of the clock."""
        lanes = min(1.0, self.warps * self.ilp * 32 / _DEPENDENT_CYCLES / on.fp32)
        times = [self.chain_s / (1 if self.amounts.get("dram") else clock)]
        for name, amount in self.amounts.items():
            peak = on.peak("pcie" if "pcie" in name else "nvlink" if "nvlink" in name else name, self.precision)
            if name in _CLOCKED:
                peak *= clock * (self.sms if name != "l2" else min(1.0, 2 * self.sms))
                peak *= lanes if name in ("fp32", "fp64", "fp16", "integer") else 1.0
            elif name == "dram":
                peak = min(peak * min(1.0, 3 * self.sms), self._in_flight(on) / on.dram_latency_s / self.reach)
            times.append(amount / (peak * self.reach))
        return max(*times, LEAST_KERNEL_S)

    def resident(self, on: Machine) -> float:
        """Resident warps as a share of the most that fit."""
        return self.sms * min(self.warps, on.warps) / on.warps

    def _in_flight(self, on: Machine) -> float:
        """Little's law: bytes under way on all multiprocessors."""
        return on.sms * self.sms * min(self.warps, on.warps) * self.flight


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time with constant rates: shares of peaks by `SHARES`, the power, and the clock."""

    seconds: float
    watts: float
    clock_hz: float
    shares: Mapping[str, float] = field(default_factory=dict)

    def over(self, seconds: float) -> Phase:
        """The same for longer or shorter."""
        return replace(self, seconds=seconds)


def blend(*phases: Phase, seconds: float | None = None) -> Phase:
    """Phases so short that no sensor separates them, as one."""
    whole = sum(phase.seconds for phase in phases)
    names = {name for phase in phases for name in phase.shares}
    return Phase(
        whole if seconds is None else seconds,
        sum(phase.watts * phase.seconds for phase in phases) / whole,
        sum(phase.clock_hz * phase.seconds for phase in phases) / whole,
        {name: sum(p.shares.get(name, 0.0) * p.seconds for p in phases) / whole for name in names},
    )


def execute(
    on: Machine, kernel: LaunchedKernel, *, limit_w: float | None = None, hottest: float = 1.0, beside: float = 0.0
) -> Phase:
    """One launch, at the highest clock within the power limit. `hottest`: the clock's share that the heat allows.
    `beside`: watts of what runs beside it."""
    limit, low, high = limit_w or on.limit_w, 0.1, hottest
    if _power(on, kernel, high) + beside > limit:
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if _power(on, kernel, middle) + beside <= limit else (low, middle)
        high = low
    seconds = kernel.seconds(on, high)
    shares = _shares(on, kernel, high)
    shares["capped"] = float(high < hottest * 0.999)
    shares["hot"] = float(hottest < 1.0 and high == hottest)
    return Phase(seconds, min(limit, _power(on, kernel, high)), on.clock_hz * high, shares)


def _shares(on: Machine, kernel: LaunchedKernel, clock: float) -> dict[str, float]:
    seconds = kernel.seconds(on, clock)
    shares = {"busy": 1.0, "graphics": 1.0, "sm": kernel.sms, "occupancy": kernel.resident(on)}
    for name, amount in kernel.amounts.items():
        link = "pcie" if "pcie" in name else "nvlink" if "nvlink" in name else name
        peak = on.peak(link, kernel.precision) * (clock if name in _CLOCKED else 1.0)
        shares[name] = min(1.0, amount / (peak * seconds))
    if "pcie_rx" in shares:
        shares["pcie_tx"] = max(shares.get("pcie_tx", 0.0), shares["pcie_rx"] * _REQUESTS)
    return shares


def _power(on: Machine, kernel: LaunchedKernel, clock: float) -> float:
    shares = _shares(on, kernel, clock)
    clocked = sum(on.watts[name] * shares.get(name, 0.0) for name in _CLOCKED)
    # Warps that wait issue nothing: one that spins on 1 of 132 multiprocessors costs 3 W (recorded, `others.spinning`).
    issuing = 0.15 + 3 * sum(shares.get(name, 0.0) for name in (*_CLOCKED, "dram"))
    clocked += on.watts["sm"] * kernel.sms * min(1.0, issuing)
    links = on.watts["links"] * max((shares.get(name, 0.0) for name in ("pcie_rx", "pcie_tx", "nvlink_tx")), default=0)
    clocked *= float(clock**_CLOCK_EXPONENT)
    return on.idle_w + clocked + on.watts["dram"] * shares.get("dram", 0.0) + links


def sleep(on: Machine) -> Phase:
    """No process has a context: the board lowers its clocks to a tenth or so."""
    return Phase(1.0, on.asleep_w, 0.15 * on.clock_hz)


def wait(on: Machine, seconds: float) -> Phase:
    """Nothing runs, but a context exists: clocks stay up."""
    return Phase(seconds, on.idle_w, on.clock_hz)


def launches(on: Machine, kernel: LaunchedKernel, every_s: float, seconds: float) -> Phase:
    """Launches one after the other: each begins `every_s` after the last, or when the last has ended and a gap."""
    phase = execute(on, kernel)
    return blend(phase, wait(on, max(on.node_s, every_s - phase.seconds)), seconds=seconds)


def copy(on: Machine, size: float, way: str, *, pinned: bool = True) -> Phase:
    """A copy by an engine. Utilisation counts it, no activity counter does (as recorded). From pageable memory, a host
    thread moves the bytes through a pinned buffer, and the engine waits for it."""
    rate = on.pinned if pinned else on.pageable
    other = "pcie_tx" if way == "pcie_rx" else "pcie_rx"
    share, active = rate / on.pcie, rate / on.pinned
    shares = {"busy": active, way: share, other: share * _AGAINST, "dram": rate / on.dram}
    return Phase(size / rate, on.idle_w + on.watts["links"] * share, on.clock_hz, shares)


def video(on: Machine, *, decoded: float = 0.0, encoded: float = 0.0, kernels: float = 0.02) -> Phase:
    """A second of video engines at so many frames of 1080p, and of small kernels between them, `kernels` of the time.

    A frame is read and written some four times: 3.1 MB each."""
    decoder = min(1.0, decoded / on.decoders)
    encoder = min(1.0, encoded / on.encoders) if on.encoders else 0.0
    frames = decoder * on.decoders + encoder * on.encoders
    shares = {
        "decoder": decoder,
        "encoder": encoder,
        "busy": kernels,
        "graphics": kernels,
        "sm": kernels * 0.4,
        "occupancy": kernels * 0.2,
        "integer": kernels * 0.08,
        "dram": min(0.5, 4 * 3.1e6 * frames / on.dram),
        "pcie_tx": min(0.5, 0.25 * 3.1e6 * frames / on.pcie),
    }
    active = on.watts["sm"] * (0.4 * max(decoder, encoder) + kernels * 0.4) + on.watts["dram"] * shares["dram"]
    return Phase(1.0, on.idle_w + active, on.clock_hz, shares)

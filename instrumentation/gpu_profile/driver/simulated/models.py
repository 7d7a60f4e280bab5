"""GPU models that a simulated node can hold.

Peaks are dense data-sheet rates (FLOP/s, B/s). Power windows are those of Yang, Adamek and Armour ("Part-time Power
Measurements", SC24, arXiv 2312.02741); idle power, clocks at idle and reserved memory are typical values, not promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"]
#: The order is that of the codes in a work log.
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
TENSOR: Final = frozenset({"tf32", "bf16", "fp16", "fp8"})

_MS: Final = 1_000_000
_TERA: Final = 1e12
_A100_SLICES: Final = {"1g.10gb": (1, 1), "2g.20gb": (2, 2), "3g.40gb": (3, 4), "4g.40gb": (4, 4), "7g.80gb": (7, 8)}
_H200_SLICES: Final = {"1g.18gb": (1, 1), "2g.35gb": (2, 2), "3g.71gb": (3, 4), "4g.71gb": (4, 4), "7g.141gb": (7, 8)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """What one model of GPU can do and how its sensors behave.

    `peak_flops` is in FLOP/s by precision, `dram_bytes_per_s`, `pcie_bytes_per_s` and `nvlink_bytes_per_s` per
    direction in B/s (0: it has no NVLink). `power_average` says whether the driver has a 1 s mean beside the instant
    reading. `mig` maps a profile to its compute slices of 7 and memory slices of 8. `nvlinks` and `c2c_links` count its
    links to other GPUs and to its CPU; with a `fabric`, the former go through switches. A GPU with `unified_memory` has
    none of its own. `saves_power`: at idle it lowers its performance state and its PCIe link's generation.
    """

    key: str
    name: str
    memory_mib: int
    reserved_mib: int
    sms: int
    idle_w: float
    tdp_w: float
    sm_clock_mhz: int
    idle_clock_mhz: int
    memory_clock_mhz: int
    peak_flops: Mapping[str, float]
    dram_bytes_per_s: float
    pcie_generation: int
    pcie_bytes_per_s: float
    nvlink_bytes_per_s: float
    gpm: bool
    power_average: bool
    power_window_ns: int
    memory_temperature: bool
    compute_capability: str = "9.0"
    vbios_version: str = "96.00.89.00.01"
    part_number: str = "900-21010-0000-000"
    nvlinks: int = 0
    fabric: bool = False
    c2c_links: int = 0
    ecc: bool = True
    jpeg: bool = True
    fan: bool = False
    saves_power: bool = False
    temperature_margin: bool = True
    unified_memory: bool = False
    power_refresh_ns: int = 100 * _MS
    utilization_window_ns: int = 1_000 * _MS // 6
    utilization_refresh_ns: int = 1_000 * _MS // 6
    mig: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def slice(self, profile: str) -> DeviceModel:
        """The model of a MIG instance: its share of multiprocessors, bandwidth, memory and dynamic power."""
        compute, memory = self.mig[profile]
        sms = self.sms if compute == 7 else self.sms * compute // 8
        share = sms / self.sms
        return replace(
            self,
            key=f"{self.key} {profile}",
            name=f"{self.name} MIG {profile}",
            memory_mib=self.memory_mib * memory // 8,
            reserved_mib=self.reserved_mib * memory // 8,
            sms=sms,
            idle_w=0.0,
            tdp_w=(self.tdp_w - self.idle_w) * share,
            peak_flops={precision: peak * share for precision, peak in self.peak_flops.items()},
            dram_bytes_per_s=self.dram_bytes_per_s * memory / 8,
            nvlink_bytes_per_s=0.0,
            nvlinks=0,
            mig={},
        )


def _peaks(fp64: float, fp32: float, tf32: float, half: float, fp8: float | None) -> dict[str, float]:
    rates = {"fp64": fp64, "fp32": fp32, "tf32": tf32, "bf16": half, "fp16": half, "fp8": fp8}
    return {precision: rate * _TERA for precision, rate in rates.items() if rate is not None}


_HOPPER_PEAKS: Final = _peaks(33.5, 67.0, 494.7, 989.4, 1979.0)

_H100: Final = DeviceModel(
    key="H100 SXM",
    name="NVIDIA H100 80GB HBM3",
    memory_mib=81_559,
    reserved_mib=641,
    sms=132,
    idle_w=70.0,
    tdp_w=700.0,
    sm_clock_mhz=1980,
    idle_clock_mhz=345,
    memory_clock_mhz=2619,
    peak_flops=_HOPPER_PEAKS,
    dram_bytes_per_s=3.352e12,
    pcie_generation=5,
    pcie_bytes_per_s=55e9,
    nvlink_bytes_per_s=450e9,
    gpm=True,
    power_average=True,
    power_window_ns=25 * _MS,
    memory_temperature=True,
    nvlinks=18,
    fabric=True,
    mig=_A100_SLICES,
)

MODELS: Final[Mapping[str, DeviceModel]] = {
    model.key: model
    for model in (
        replace(
            _H100,
            key="H200 SXM",
            name="NVIDIA H200",
            memory_mib=143_771,
            idle_w=75.0,
            memory_clock_mhz=3201,
            dram_bytes_per_s=4.8e12,
            mig=_H200_SLICES,
        ),
        _H100,
        replace(
            _H100,
            key="A100 80 SXM",
            name="NVIDIA A100-SXM4-80GB",
            memory_mib=81_920,
            sms=108,
            idle_w=60.0,
            tdp_w=400.0,
            sm_clock_mhz=1410,
            idle_clock_mhz=210,
            memory_clock_mhz=1593,
            peak_flops=_peaks(9.7, 19.5, 156.0, 312.0, None),
            dram_bytes_per_s=2.039e12,
            pcie_generation=4,
            pcie_bytes_per_s=26e9,
            nvlink_bytes_per_s=300e9,
            gpm=False,
            power_average=False,
            compute_capability="8.0",
            vbios_version="92.00.9E.00.01",
            part_number="692-2G506-0212-002",
            nvlinks=12,
            fabric=False,
            temperature_margin=False,
        ),
        replace(
            _H100,
            key="A10G",
            name="NVIDIA A10G",
            memory_mib=23_028,
            reserved_mib=491,
            sms=80,
            idle_w=16.0,
            tdp_w=300.0,
            sm_clock_mhz=1710,
            idle_clock_mhz=210,
            memory_clock_mhz=6251,
            peak_flops=_peaks(0.55, 35.0, 35.0, 70.0, None),
            dram_bytes_per_s=0.6e12,
            pcie_generation=4,
            pcie_bytes_per_s=26e9,
            nvlink_bytes_per_s=0.0,
            gpm=False,
            power_window_ns=100 * _MS,
            memory_temperature=False,
            compute_capability="8.6",
            vbios_version="94.02.75.00.01",
            part_number="900-2G133-0020-000",
            nvlinks=0,
            fabric=False,
            jpeg=False,
            saves_power=True,
            temperature_margin=False,
            mig={},
        ),
        replace(
            _H100,
            key="L4",
            name="NVIDIA L4",
            memory_mib=23_034,
            reserved_mib=450,
            sms=58,
            idle_w=12.0,
            tdp_w=72.0,
            sm_clock_mhz=2040,
            idle_clock_mhz=210,
            memory_clock_mhz=6251,
            peak_flops=_peaks(0.47, 30.3, 60.0, 121.0, 242.5),
            dram_bytes_per_s=0.3e12,
            pcie_generation=4,
            pcie_bytes_per_s=26e9,
            nvlink_bytes_per_s=0.0,
            gpm=False,
            power_window_ns=100 * _MS,
            memory_temperature=False,
            compute_capability="8.9",
            vbios_version="95.04.29.00.06",
            part_number="900-2G193-0000-001",
            nvlinks=0,
            fabric=False,
            saves_power=True,
            mig={},
        ),
        replace(
            _H100,
            key="GB200",
            name="NVIDIA GB200",
            memory_mib=189_471,
            reserved_mib=780,
            sms=148,
            idle_w=140.0,
            tdp_w=1200.0,
            sm_clock_mhz=2062,
            idle_clock_mhz=120,
            memory_clock_mhz=3996,
            peak_flops=_peaks(40.0, 80.0, 1250.0, 2500.0, 5000.0),
            dram_bytes_per_s=8e12,
            nvlink_bytes_per_s=900e9,
            compute_capability="10.0",
            vbios_version="97.00.B9.00.10",
            part_number="900-2G548-0001-000",
            c2c_links=10,
            mig={},
        ),
        replace(
            _H100,
            key="GB10",
            name="NVIDIA GB10",
            memory_mib=122_880,
            reserved_mib=0,
            sms=48,
            idle_w=4.0,
            tdp_w=100.0,
            sm_clock_mhz=2418,
            idle_clock_mhz=208,
            memory_clock_mhz=4266,
            peak_flops=_peaks(0.48, 31.0, 62.0, 125.0, 250.0),
            dram_bytes_per_s=0.273e12,
            nvlink_bytes_per_s=0.0,
            gpm=False,
            memory_temperature=False,
            compute_capability="12.1",
            vbios_version="",
            part_number="",
            nvlinks=0,
            fabric=False,
            ecc=False,
            saves_power=True,
            unified_memory=True,
            mig={},
        ),
        replace(
            _H100,
            key="RTX 4090",
            name="NVIDIA GeForce RTX 4090",
            memory_mib=24_564,
            reserved_mib=483,
            sms=128,
            idle_w=20.0,
            tdp_w=450.0,
            sm_clock_mhz=3105,
            idle_clock_mhz=210,
            memory_clock_mhz=10_501,
            peak_flops=_peaks(1.29, 82.6, 82.6, 165.2, 330.0),
            dram_bytes_per_s=1.008e12,
            pcie_generation=4,
            pcie_bytes_per_s=26e9,
            nvlink_bytes_per_s=0.0,
            gpm=False,
            power_window_ns=100 * _MS,
            memory_temperature=False,
            compute_capability="8.9",
            vbios_version="95.02.3C.40.05",
            part_number="900-1G136-2530-000",
            nvlinks=0,
            fabric=False,
            ecc=False,
            fan=True,
            saves_power=True,
            mig={},
        ),
    )
}

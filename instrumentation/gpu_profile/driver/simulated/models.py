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
    reading. `mig` maps a profile to its compute slices of 7 and memory slices of 8.
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
            mig={},
        ),
    )
}

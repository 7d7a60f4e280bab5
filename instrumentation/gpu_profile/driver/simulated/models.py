"""GPU models of simulated nodes.

Peaks are dense data-sheet rates (FLOP/s, B/s). Power windows are from Yang, Adamek and Armour ("Part-time Power
Measurements", SC24, arXiv 2312.02741). Idle power, idle clocks and reserved memory are typical values, not promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"]
#: The order is that of the codes in a work log.
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
TENSOR: Final = frozenset({"tf32", "bf16", "fp16", "fp8"})

_MS: Final = 1_000_000
_TERA: Final = 1e12
#: The practical rate of a PCIe link of 16 lanes, one way, in B/s by generation.
_PCIE_BYTES_PER_S: Final = {4: 26e9, 5: 55e9}


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """Capabilities and sensors of one GPU model.

    `peak_flops` is in FLOP/s by precision. `dram_bytes_per_s` is in B/s. `pcie_bytes_per_s` and `nvlink_bytes_per_s`
    are in B/s per direction (0: no NVLink). `power_average`: the driver has a 1 s mean besides the instant reading.
    `mig` maps a profile to its compute slices of 7 and memory slices of 8. `nvlinks` and `c2c_links` are the numbers of
    links to other GPUs and to its CPU. `fabric`: NVLinks go through switches. `unified_memory`: the GPU has no memory
    of its own. `saves_power`: at idle, it lowers its performance state and its PCIe link's generation.
    """

    key: str
    name: str
    compute_capability: str
    vbios_version: str
    part_number: str
    memory_mib: int
    reserved_mib: int
    sms: int
    idle_w: float
    tdp_w: float
    sm_clock_mhz: int
    idle_clock_mhz: int
    memory_clock_mhz: int
    pcie_generation: int
    nvlinks: int
    nvlink_bytes_per_s: float
    dram_bytes_per_s: float
    peak_flops: Mapping[str, float]
    gpm: bool = False
    fabric: bool = False
    c2c_links: int = 0
    ecc: bool = True
    jpeg: bool = True
    fan: bool = False
    saves_power: bool = False
    memory_temperature: bool = False
    temperature_margin: bool = True
    unified_memory: bool = False
    power_average: bool = True
    power_window_ns: int = 100 * _MS
    power_refresh_ns: int = 100 * _MS
    utilization_window_ns: int = 1_000 * _MS // 6
    utilization_refresh_ns: int = 1_000 * _MS // 6
    mig: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def pcie_bytes_per_s(self) -> float:
        """The rate of its PCIe link, one way."""
        return _PCIE_BYTES_PER_S[self.pcie_generation]

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
    """FLOP/s by precision, from TFLOP/s."""
    rates = {"fp64": fp64, "fp32": fp32, "tf32": tf32, "bf16": half, "fp16": half, "fp8": fp8}
    return {precision: rate * _TERA for precision, rate in rates.items() if rate is not None}


_HOPPER_PEAKS: Final = _peaks(33.5, 67.0, 494.7, 989.4, 1979.0)
_SHORT_NS: Final = 25 * _MS
#: Common values of boards with stacked memory, and of such boards with NVLink switches.
_STACKED: Final[Mapping[str, Any]] = {"power_window_ns": _SHORT_NS, "memory_temperature": True}
_SWITCHED: Final[Mapping[str, Any]] = {**_STACKED, "gpm": True, "fabric": True}
#: As measured on two boards (tests/gpu/fit.py).
_H100: Final[Mapping[str, Any]] = {**_SWITCHED, "utilization_window_ns": 200 * _MS, "utilization_refresh_ns": 200 * _MS}
#: MIG profiles of 80 GB and of 141 GB.
_80_GB: Final = {"1g.10gb": (1, 1), "2g.20gb": (2, 2), "3g.40gb": (3, 4), "4g.40gb": (4, 4), "7g.80gb": (7, 8)}
_141_GB: Final = {"1g.18gb": (1, 1), "2g.35gb": (2, 2), "3g.71gb": (3, 4), "4g.71gb": (4, 4), "7g.141gb": (7, 8)}

#: One row per model, in the order of the fields of `DeviceModel`. First line: names and versions. Second line: memory
#: and reserved memory (MiB), multiprocessors, idle and highest power (W), highest, idle and memory clock (MHz), PCIe
#: generation, NVLinks and their rate one way (B/s), memory bandwidth (B/s). Third line: peaks and options.
_TABLE: Final = (
    DeviceModel(
        "H200 SXM", "NVIDIA H200", "9.0", "96.00.89.00.01", "900-21010-0000-000",
        143_771, 641, 132,  75.0,  700.0, 1980, 345,   3201, 5, 18, 450e9, 4.800e12,
        _HOPPER_PEAKS, **_SWITCHED, mig=_141_GB),
    DeviceModel(
        "H100 SXM", "NVIDIA H100 80GB HBM3", "9.0", "96.00.89.00.01", "900-21010-0000-000",
         81_559, 480, 132,  74.0,  700.0, 1980, 345,   2619, 5, 18, 450e9, 3.352e12,
        _HOPPER_PEAKS, **_H100, mig=_80_GB),
    DeviceModel(
        "A100 80 SXM", "NVIDIA A100-SXM4-80GB", "8.0", "92.00.9E.00.01", "692-2G506-0212-002",
         81_920, 641, 108,  60.0,  400.0, 1410, 210,   1593, 4, 12, 300e9, 2.039e12,
        _peaks(9.7, 19.5, 156.0, 312.0, None), **_STACKED, power_average=False, temperature_margin=False, mig=_80_GB),
    DeviceModel(
        "A10G", "NVIDIA A10G", "8.6", "94.02.75.00.01", "900-2G133-0020-000",
         23_028, 491,  80,  16.0,  300.0, 1710, 210,   6251, 4,  0,   0e9, 0.600e12,
        _peaks(0.55, 35.0, 35.0, 70.0, None), jpeg=False, saves_power=True, temperature_margin=False),
    DeviceModel(
        "L4", "NVIDIA L4", "8.9", "95.04.29.00.06", "900-2G193-0000-001",
         23_034, 450,  58,  12.0,   72.0, 2040, 210,   6251, 4,  0,   0e9, 0.300e12,
        _peaks(0.47, 30.3, 60.0, 121.0, 242.5), saves_power=True),
    DeviceModel(
        "GB200", "NVIDIA GB200", "10.0", "97.00.B9.00.10", "900-2G548-0001-000",
        189_471, 780, 148, 140.0, 1200.0, 2062, 120,   3996, 5, 18, 900e9, 8.000e12,
        _peaks(40.0, 80.0, 1250.0, 2500.0, 5000.0), **_SWITCHED, c2c_links=10),
    DeviceModel(
        "GB10", "NVIDIA GB10", "12.1", "", "",
        122_880,   0,  48,   4.0,  100.0, 2418, 208,   4266, 5,  0,   0e9, 0.273e12,
        _peaks(0.48, 31.0, 62.0, 125.0, 250.0), power_window_ns=_SHORT_NS,
        ecc=False, saves_power=True, unified_memory=True),
    DeviceModel(
        "RTX 4090", "NVIDIA GeForce RTX 4090", "8.9", "95.02.3C.40.05", "900-1G136-2530-000",
         24_564, 483, 128,  20.0,  450.0, 3105, 210, 10_501, 4,  0,   0e9, 1.008e12,
        _peaks(1.29, 82.6, 82.6, 165.2, 330.0), ecc=False, fan=True, saves_power=True),
)  # fmt: skip
MODELS: Final[Mapping[str, DeviceModel]] = {model.key: model for model in _TABLE}

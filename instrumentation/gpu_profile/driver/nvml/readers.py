"""How each row of the catalogue is read through NVML: one reader per row, its names those of `nvml.h`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from gpu_profile.catalogue import SIGNALS, Kind, Signal, Tier, signal
from gpu_profile.catalogue.board import POWER
from gpu_profile.catalogue.links import (
    C2C_ERROR_KINDS,
    MOST_C2C_LINKS,
    MOST_NVLINKS,
    NVLINK_ERROR_KINDS,
    NVLINK_LINK_ERROR_KINDS,
    PCIE_ERROR_KINDS,
)
from gpu_profile.catalogue.memory import ECC_COUNTS, ECC_KINDS, ECC_PLACES, SRAM_UNITS
from gpu_profile.driver.nvml import queries
from gpu_profile.driver.nvml.queries import Query
from gpu_profile.units import MIB, NS_PER_S

#: `scopeId` of the NVLink throughput fields that means the sum over all links (`nvml.h`).
ALL_LINKS: Final = 0xFFFF_FFFF
_PERCENT: Final = 0.01


@dataclass(frozen=True, slots=True)
class Reader:
    """The sources of one signal, best first: a field value, the driver's sample buffer, a query, a GPM metric.

    `pick` takes the signal's value, in its quanta, out of the query's answer; None if it tells none now. A GPM metric's
    value is `gpm_unit` of the signal's base unit. A polled window mean covers the time since the reading before, but
    never more than `longest_ns`. A signal that is integrated from a bit of NVML's throttle reasons names that `bit`.
    """

    signal: Signal
    field: str = ""
    scope: int = 0
    buffer: str = ""
    query: Query | None = None
    pick: Callable[[Any], int | None] = int
    gpm: str = ""
    gpm_unit: float = _PERCENT
    bit: str = ""
    longest_ns: int = NS_PER_S
    #: Whether the signal is a counter, whose values have no limit.
    counts: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", self.signal.kind is Kind.COUNTER)


def _first(pair: Any) -> int:
    return int(pair[0])


def _mebibytes(member: str) -> Callable[[Any], int]:
    return lambda found: round(getattr(found, member) / MIB)


def _pstate(state: int) -> int | None:
    return None if state > 15 else state  # 32: not known


def _fabric_status(info: Any) -> int | None:
    # Before that it is no result of anything.
    return int(info.status) if info.state == _FABRIC_COMPLETED else None


_FABRIC_COMPLETED: Final = 3

#: Signals that are a field and nothing else, without the prefix `NVML_FI_DEV_`.
_FIELDS: Final[Mapping[str, str]] = {
    "energy": "TOTAL_ENERGY_CONSUMPTION",
    "temperature_memory": "MEMORY_TEMP",
    "power_limit_requested": "POWER_REQUESTED_LIMIT",
    "recovery_action": "GET_GPU_RECOVERY_ACTION",
    "pcie_rx": "PCIE_COUNT_RX_BYTES",
    "pcie_tx": "PCIE_COUNT_TX_BYTES",
    "pcie_replays": "PCIE_REPLAY_COUNTER",
    "remapped_rows_correctable": "REMAPPED_COR",
    "remapped_rows_uncorrectable": "REMAPPED_UNC",
    "remap_pending": "REMAPPED_PENDING",
    "remap_failure": "REMAPPED_FAILURE",
    "retired_pages_single_bit": "RETIRED_SBE",
    "retired_pages_double_bit": "RETIRED_DBE",
    "retired_pages_pending": "RETIRED_PENDING",
    "ecc_mode": "ECC_CURRENT",
    "ecc_mode_pending": "ECC_PENDING",
    "c2c_links": "C2C_LINK_COUNT",
    "throttle_sw_power_cap": "PERF_POLICY_POWER",
    "throttle_sw_thermal": "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "throttle_hw_thermal": "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "throttle_hw_power_brake": "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
    "throttle_sync_boost": "PERF_POLICY_SYNC_BOOST",
    "throttle_thermal_policy": "PERF_POLICY_THERMAL",
    "throttle_board_limit": "PERF_POLICY_BOARD_LIMIT",
    "throttle_low_utilization": "PERF_POLICY_LOW_UTILIZATION",
    "throttle_reliability": "PERF_POLICY_RELIABILITY",
    "throttle_application_clocks": "PERF_POLICY_TOTAL_APP_CLOCKS",
    "throttle_base_clocks": "PERF_POLICY_TOTAL_BASE_CLOCKS",
    **{f"pcie_errors_{kind}": f"PCIE_COUNT_{nvml}" for kind, nvml in PCIE_ERROR_KINDS.items()},
    **{f"nvlink_errors_{kind}": f"NVLINK_{nvml}_ERROR_COUNT_TOTAL" for kind, nvml in NVLINK_ERROR_KINDS.items()},
    **{
        f"temperature_margin_limit_{name}": f"TEMPERATURE_{name.upper()}_TLIMIT"
        for name in ("shutdown", "slowdown", "gpu_max", "mem_max")
    },
}
_BITS: Final = {
    "sw_power_cap": "SwPowerCap",
    "sw_thermal": "SwThermalSlowdown",
    "hw_thermal": "HwThermalSlowdown",
    "hw_power_brake": "HwPowerBrakeSlowdown",
    "sync_boost": "SyncBoost",
}
_GPM_METRICS: Final = {
    "graphics": "GRAPHICS_UTIL",
    "sm": "SM_UTIL",
    "occupancy": "SM_OCCUPANCY",
    "tensor": "ANY_TENSOR_UTIL",
    "dram": "DRAM_BW_UTIL",
    "fp64": "FP64_UTIL",
    "fp32": "FP32_UTIL",
    "fp16": "FP16_UTIL",
    "integer": "INTEGER_UTIL",
    "tensor_hmma": "HMMA_TENSOR_UTIL",
    "tensor_imma": "IMMA_TENSOR_UTIL",
    "tensor_dfma": "DFMA_TENSOR_UTIL",
    "tensor_dmma": "DMMA_TENSOR_UTIL",
}
#: These are in MiB/s.
_GPM_RATES: Final = {
    "pcie_rx_rate": "PCIE_RX_PER_SEC",
    "pcie_tx_rate": "PCIE_TX_PER_SEC",
    "nvlink_rx_rate": "NVLINK_TOTAL_RX_PER_SEC",
    "nvlink_tx_rate": "NVLINK_TOTAL_TX_PER_SEC",
    "c2c_rx_rate": "C2C_TOTAL_RX_PER_SEC",
    "c2c_tx_rate": "C2C_TOTAL_TX_PER_SEC",
}
_DOMAINS: Final = {"sm": "SM", "memory": "MEM", "graphics": "GRAPHICS", "video": "VIDEO"}
_MODULE, _MEMORY_SCOPE = 1, 2  # NVML_POWER_SCOPE_MODULE and _MEMORY


def _field(key: str, field: str, scope: int = 0, **more: Any) -> Reader:
    return Reader(signal(key), field=f"NVML_FI_DEV_{field}", scope=scope, **more)


def _asked(key: str, query: Query, pick: Callable[[Any], int | None] = int) -> Reader:
    return Reader(signal(key), query=query, pick=pick)


def _rows() -> Iterator[Reader]:
    for key, buffer, member in (("utilization", "GPU", "gpu"), ("memory_controller", "MEMORY", "memory")):
        yield Reader(
            signal(key), buffer=f"NVML_{buffer}_UTILIZATION_SAMPLES", query=queries.RATES, pick=attrgetter(member)
        )
    for key, name in (("encoder", "Encoder"), ("decoder", "Decoder"), ("jpeg", "Jpg"), ("optical_flow", "Ofa")):
        yield _asked(key, queries.plain(f"nvmlDeviceGet{name}Utilization"), _first)
    for member in ("used", "free", "reserved"):
        yield _asked(f"memory_{member}", queries.MEMORY, _mebibytes(member))
    for member in ("Used", "Total"):
        yield _asked(f"bar1_{member.lower()}", queries.BAR1, _mebibytes(f"bar1{member}"))
    yield from _board()
    for key, field in _FIELDS.items():
        yield _field(key, field)
    for key, bit in _BITS.items():
        yield Reader(signal(f"throttle_seen_{key}"), query=queries.REASONS, bit=f"nvmlClocksEventReason{bit}")
    yield from _links()
    yield from _ecc()
    for key, metric in _GPM_METRICS.items():
        yield Reader(signal(key), gpm=f"NVML_GPM_METRIC_{metric}")
    for key, metric in _GPM_RATES.items():
        yield Reader(signal(key), gpm=f"NVML_GPM_METRIC_{metric}", gpm_unit=float(MIB))


def _board() -> Iterator[Reader]:
    # The sensor's own window is a part of its refresh period; a reading is taken to stand for the time since the last
    # one, as long as that is at most two periods.
    yield _field("power", "POWER_INSTANT", longest_ns=2 * POWER.refresh_ns)
    yield _field("power_average", "POWER_AVERAGE", query=queries.POWER)
    yield _field("power_module", "POWER_INSTANT", _MODULE, longest_ns=2 * NS_PER_S)
    yield _field("power_module_average", "POWER_AVERAGE", _MODULE, longest_ns=2 * NS_PER_S)
    yield _field("power_memory_average", "POWER_AVERAGE", _MEMORY_SCOPE, longest_ns=2 * NS_PER_S)
    yield _asked("power_limit", queries.ENFORCED_LIMIT)
    yield _field("power_limit_default", "POWER_DEFAULT_LIMIT", query=queries.DEFAULT_LIMIT)
    yield _field("power_limit_min", "POWER_MIN_LIMIT", query=queries.LIMITS, pick=_first)
    yield _field("power_limit_max", "POWER_MAX_LIMIT", query=queries.LIMITS, pick=lambda limits: int(limits[1]))
    yield _asked("temperature", queries.TEMPERATURE)
    for name in ("shutdown", "slowdown", "gpu_max", "mem_max"):
        threshold = f"NVML_TEMPERATURE_THRESHOLD_{name.upper()}"
        yield _asked(f"temperature_limit_{name}", queries.plain("nvmlDeviceGetTemperatureThreshold", threshold))
    yield _asked("temperature_margin", queries.MARGIN)
    yield _asked("fan", queries.FAN)
    yield _asked("pstate", queries.PSTATE, _pstate)
    yield _asked("throttle_reasons", queries.REASONS)
    for domain, name in _DOMAINS.items():
        yield _asked(f"clock_{domain}", queries.plain("nvmlDeviceGetClockInfo", f"NVML_CLOCK_{name}"))
        yield _asked(f"clock_{domain}_max", queries.plain("nvmlDeviceGetMaxClockInfo", f"NVML_CLOCK_{name}"))


def _links() -> Iterator[Reader]:
    for key, part in (("generation", "Generation"), ("width", "Width")):
        yield _asked(f"pcie_link_{key}", queries.plain(f"nvmlDeviceGetCurrPcieLink{part}"))
        yield _asked(f"pcie_link_{key}_max", queries.plain(f"nvmlDeviceGetMaxPcieLink{part}"))
    for way in ("rx", "tx"):
        carried = f"NVLINK_THROUGHPUT_DATA_{way.upper()}"
        yield _field(f"nvlink_{way}", carried, ALL_LINKS)
        for link in range(MOST_NVLINKS):
            yield _field(f"nvlink_{link}_{way}", carried, link)
    for link in range(MOST_NVLINKS):
        yield _field(f"nvlink_{link}_state", "NVLINK_GET_STATE", link)
        for kind, name in NVLINK_LINK_ERROR_KINDS.items():
            yield _field(f"nvlink_{link}_errors_{kind}", f"NVLINK_{name}", link)
    for link in range(MOST_C2C_LINKS):
        yield _field(f"c2c_{link}_state", "C2C_LINK_GET_STATUS", link)
        for kind, name in C2C_ERROR_KINDS.items():
            yield _field(f"c2c_{link}_errors_{kind}", f"C2C_LINK_ERROR_{name}", link)
    yield _asked("fabric_state", queries.FABRIC, attrgetter("state"))
    yield _asked("fabric_status", queries.FABRIC, _fabric_status)
    yield _asked("fabric_health", queries.FABRIC, attrgetter("healthMask"))


def _ecc() -> Iterator[Reader]:
    for kind, nvml_kind in ECC_KINDS.items():
        yield _field(f"ecc_{kind}", f"ECC_{nvml_kind}_VOL_TOTAL")
        yield _field(f"ecc_aggregate_{kind}", f"ECC_{nvml_kind}_AGG_TOTAL")
        for count, nvml_count in ECC_COUNTS.items():
            yield _asked(f"ecc_{count}_{kind}_sram", queries.sram_errors(kind.upper(), count.upper()))
            for place, nvml_place in ECC_PLACES.items():
                if (kind, place) != ("corrected", "control"):
                    yield _field(f"ecc_{count}_{kind}_{place}", f"ECC_{nvml_kind}_{nvml_count}_{nvml_place}")
    for unit, member in SRAM_UNITS.items():
        yield _asked(f"ecc_sram_{unit}", queries.SRAM, attrgetter(member))
    yield _asked("ecc_sram_exceeded", queries.SRAM, attrgetter("bThresholdExceeded"))


_BY_SIGNAL: Final = {reader.signal: reader for reader in _rows()}
#: Every signal of the catalogue and its reader, in the catalogue's order.
READERS: Final = {row: _BY_SIGNAL[row] for row in SIGNALS}
TIERS: Final = (Tier.FAST, Tier.SLOW, Tier.RARE)

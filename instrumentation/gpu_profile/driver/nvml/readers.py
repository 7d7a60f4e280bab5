"""The sources in NVML of each row of the catalogue: one reader per row, with the names of `nvml.h`.

The row's `source` names a field value or a GPM metric. All other and additional sources are defined here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Final

from gpu_profile.catalogue import SIGNALS, Kind, Signal, Tier
from gpu_profile.catalogue.board import POWER
from gpu_profile.catalogue.memory import ECC_COUNTS, ECC_KINDS, REPAIRS, SPARE_ROWS, SRAM_UNITS
from gpu_profile.driver.nvml import queries
from gpu_profile.driver.nvml.queries import Query
from gpu_profile.units import MIB, NS_PER_S

#: `scopeId` of the NVLink throughput fields for the sum over all links (`nvml.h`).
ALL_LINKS: Final = 0xFFFF_FFFF
#: `NVML_POWER_SCOPE_MODULE` and `_MEMORY`.
_SCOPES: Final = {"MODULE": 1, "MEMORY": 2}
#: Sources in the catalogue, such as `field NVLINK_GET_STATE, link 3` and `GPM SM_UTIL`.
_FIELD: Final = re.compile(r"field (\w+)(?:, (all links)|, link (\d+)|, scope (\w+))?")
_GPM: Final = re.compile(r"GPM (\w+)")
_PERCENT: Final = 0.01


@dataclass(frozen=True, slots=True)
class Reader:
    """The sources of one signal, best first: the driver's sample buffer, a field value, a query, a GPM metric.

    `pick` extracts the signal's value, in quanta, from the query's result; None if there is none now. One unit of a GPM
    metric is `gpm_unit` of the signal's base unit. A polled window mean covers the time since the reading before, but
    at most `longest_ns`. `bit`: the bit of NVML's throttle reasons from which the signal is integrated.
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
    #: Whether the signal is a counter. Its values have no limit.
    counts: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", self.signal.kind is Kind.COUNTER)


def _first(pair: Any) -> int:
    return int(pair[0])


def _mebibytes(member: str) -> Callable[[Any], int | None]:
    def pick(memory: Any) -> int | None:
        amount = getattr(memory, member, None)  # the older function has fewer members
        return None if amount is None else round(amount / MIB)

    return pick


def _pstate(state: int) -> int | None:
    return None if state > 15 else state  # 32 is NVML's code for unknown


def _fabric_status(info: Any) -> int | None:
    # The status is meaningless until the registration has completed.
    return int(info.status) if info.state == _FABRIC_COMPLETED else None


_FABRIC_COMPLETED: Final = 3


def _fabric_summary(info: Any) -> int | None:
    return int(info.healthSummary) or None  # 0 is NVML's code for no summary


def _asked(query: Query, pick: Callable[[Any], int | None] = int) -> dict[str, Any]:
    return {"query": query, "pick": pick}


def _options() -> Iterator[tuple[str, dict[str, Any]]]:
    """By key of a signal: arguments of its reader, besides the field or metric in its row's source."""
    for key, buffer, member in (("utilization", "GPU", "gpu"), ("memory_controller", "MEMORY", "memory")):
        yield key, {**_asked(queries.RATES, attrgetter(member)), "buffer": f"NVML_{buffer}_UTILIZATION_SAMPLES"}
    for key, name in (("encoder", "Encoder"), ("decoder", "Decoder"), ("jpeg", "Jpg"), ("optical_flow", "Ofa")):
        yield key, _asked(queries.plain(f"nvmlDeviceGet{name}Utilization"), _first)
    for member in ("used", "free", "reserved"):
        yield f"memory_{member}", _asked(queries.MEMORY, _mebibytes(member))
    for member in ("Used", "Total"):
        yield f"bar1_{member.lower()}", _asked(queries.BAR1, _mebibytes(f"bar1{member}"))
    yield from _board()
    for key, bit in _BITS.items():
        yield f"throttle_seen_{key}", {"query": queries.REASONS, "bit": f"nvmlClocksEventReason{bit}"}
    for key, part in (("generation", "Generation"), ("width", "Width")):
        yield f"pcie_link_{key}", _asked(queries.plain(f"nvmlDeviceGetCurrPcieLink{part}"))
        yield f"pcie_link_{key}_max", _asked(queries.plain(f"nvmlDeviceGetMaxPcieLink{part}"))
    yield "fabric_state", _asked(queries.FABRIC, attrgetter("state"))
    yield "fabric_status", _asked(queries.FABRIC, _fabric_status)
    yield "fabric_health", _asked(queries.FABRIC, attrgetter("healthMask"))
    yield "fabric_health_summary", _asked(queries.FABRIC_3, _fabric_summary)
    for kind in ECC_KINDS:
        for count in ECC_COUNTS:
            yield f"ecc_{count}_{kind}_sram", _asked(queries.sram_errors(kind.upper(), count.upper()))
    for unit, member in SRAM_UNITS.items():
        yield f"ecc_sram_{unit}", _asked(queries.SRAM, attrgetter(member))
    yield "ecc_sram_exceeded", _asked(queries.SRAM, attrgetter("bThresholdExceeded"))
    for spare in SPARE_ROWS:
        yield f"spare_rows_{spare}", _asked(queries.ROW_REMAPPER, attrgetter(spare))
    for part, place in REPAIRS.items():
        yield f"repair_pending_{part}", _asked(queries.REPAIR, itemgetter(place))


_BITS: Final = {
    "sw_power_cap": "SwPowerCap",
    "sw_thermal": "SwThermalSlowdown",
    "hw_thermal": "HwThermalSlowdown",
    "hw_power_brake": "HwPowerBrakeSlowdown",
    "sync_boost": "SyncBoost",
}


def _board() -> Iterator[tuple[str, dict[str, Any]]]:
    # The sensor's window is shorter than its refresh period. A reading is used for the time since the last one, up to
    # two periods.
    yield "power", {"longest_ns": 2 * POWER.refresh_ns, "buffer": "NVML_TOTAL_POWER_SAMPLES"}
    yield "power_average", _asked(queries.POWER)
    for key in ("power_module", "power_module_average", "power_memory_average"):
        yield key, {"longest_ns": 2 * NS_PER_S}
    yield "power_limit", _asked(queries.ENFORCED_LIMIT)
    yield "power_limit_default", _asked(queries.DEFAULT_LIMIT)
    yield "power_limit_min", _asked(queries.LIMITS, _first)
    yield "power_limit_max", _asked(queries.LIMITS, lambda limits: int(limits[1]))
    yield "temperature", _asked(queries.TEMPERATURE)
    for name in ("shutdown", "slowdown", "gpu_max", "mem_max"):
        threshold = f"NVML_TEMPERATURE_THRESHOLD_{name.upper()}"
        yield f"temperature_limit_{name}", _asked(queries.plain("nvmlDeviceGetTemperatureThreshold", threshold))
    yield "temperature_margin", _asked(queries.MARGIN)
    yield "fan", _asked(queries.FAN)
    yield "pstate", _asked(queries.PSTATE, _pstate)
    yield "throttle_reasons", _asked(queries.REASONS)
    yield "addressing_mode", _asked(queries.ADDRESSING)
    yield "confidential_compute", _asked(queries.CONFIDENTIAL)
    for domain, name in (("sm", "SM"), ("memory", "MEM"), ("graphics", "GRAPHICS"), ("video", "VIDEO")):
        yield f"clock_{domain}", _asked(queries.plain("nvmlDeviceGetClockInfo", f"NVML_CLOCK_{name}"))
        yield f"clock_{domain}_max", _asked(queries.plain("nvmlDeviceGetMaxClockInfo", f"NVML_CLOCK_{name}"))


def _reader(row: Signal, options: dict[str, Any]) -> Reader:
    if field := _FIELD.search(row.source):
        name, every, link, scope = field.groups()
        number = ALL_LINKS if every else int(link) if link else _SCOPES.get(scope, 0)
        family = "NVML_FI_" if name.startswith("PWR_") else "NVML_FI_DEV_"
        return Reader(row, field=family + name, scope=number, **options)
    if metric := _GPM.match(row.source):
        unit = float(MIB) if row.unit == "By/s" else _PERCENT  # rates are in MiB/s
        return Reader(row, gpm=f"NVML_GPM_METRIC_{metric[1]}", gpm_unit=unit)
    return Reader(row, **options)


_OPTIONS: Final = dict(_options())
#: Every signal of the catalogue and its reader, in the catalogue's order.
READERS: Final = {row: _reader(row, _OPTIONS.get(row.key, {})) for row in SIGNALS}
TIERS: Final = (Tier.FAST, Tier.SLOW, Tier.RARE)

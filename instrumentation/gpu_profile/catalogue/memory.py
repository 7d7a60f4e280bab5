"""The signals of device memory: amounts in use, and errors."""

from __future__ import annotations

from functools import partial
from typing import Final

from gpu_profile.catalogue.families import count, flag, gauge
from gpu_profile.catalogue.group import Group
from gpu_profile.catalogue.signal import Signal, Tier
from gpu_profile.units import MIB

#: An amount of memory, in whole MiB.
_memory: Final = partial(gauge, unit="By", quantum=float(MIB), limit=1 << 24, tier=Tier.SLOW, dcgm_scale=1 / MIB)
_bar1: Final = partial(_memory, tier=Tier.RARE, group=Group.PCIE_DETAIL)

MEMORY_USED: Final = _memory(
    "memory_used",
    "hw.gpu.memory.usage",
    "nvmlDeviceGetMemoryInfo_v2 used",
    "Device memory in use",
    "DCGM_FI_DEV_FB_USED",
    mig=True,
)
MEMORY_FREE: Final = _memory(
    "memory_free",
    "nvidia.gpu.memory.free",
    "nvmlDeviceGetMemoryInfo_v2 free",
    "Device memory that can still be allocated",
    "DCGM_FI_DEV_FB_FREE",
    mig=True,
    group=Group.CORE_DETAIL,
)
MEMORY_RESERVED: Final = _memory(
    "memory_reserved",
    "nvidia.gpu.memory.reserved",
    "nvmlDeviceGetMemoryInfo_v2 reserved",
    "Device memory that the driver and firmware keep for themselves",
    "DCGM_FI_DEV_FB_RESERVED",
    group=Group.CORE_DETAIL,
)
MEMORY: Final = (MEMORY_USED, MEMORY_FREE, MEMORY_RESERVED)
BAR1: Final = (
    _bar1(
        "bar1_used",
        "nvidia.gpu.bar1.usage",
        "nvmlDeviceGetBAR1MemoryInfo bar1Used",
        "Part of the BAR1 window in use, through which the host sees device memory",
        "DCGM_FI_DEV_BAR1_USED",
    ),
    _bar1(
        "bar1_total",
        "nvidia.gpu.bar1.limit",
        "nvmlDeviceGetBAR1MemoryInfo bar1Total",
        "Size of the BAR1 window",
        "DCGM_FI_DEV_BAR1_TOTAL",
    ),
)

#: NVML's names of the two kinds of error, by ours.
ECC_KINDS: Final = {"corrected": "SBE", "uncorrected": "DBE"}
#: NVML's names of the two ways to count, by ours: since the driver was loaded, and ever.
ECC_COUNTS: Final = {"volatile": "VOL", "aggregate": "AGG"}
#: NVML's names of places that have field values, by ours.
ECC_PLACES: Final = {"dram": "DEV", "l1": "L1", "l2": "L2", "registers": "REG", "texture": "TEX", "control": "CBU"}
#: Units of the GPU with their own counts of uncorrectable SRAM errors, and the members of NVML's struct.
SRAM_UNITS: Final = {
    "l2": "aggregateUncBucketL2",
    "sm": "aggregateUncBucketSm",
    "pcie": "aggregateUncBucketPcie",
    "microcontroller": "aggregateUncBucketMcu",
    "other": "aggregateUncBucketOther",
}
#: The classes of memory banks by the spare rows that they have left, from all to none.
SPARE_ROWS: Final = ("max", "high", "partial", "low", "none")
#: Parts of a GPU with a repair status, and the places of their flags in the binding's answer.
REPAIRS: Final = {"channel": 0, "tpc": 1}
#: Whether NVML has a field for a place: the control logic has no correctable errors.
_HAS_FIELD: Final = frozenset((kind, place) for kind in ECC_KINDS for place in ECC_PLACES) - {("corrected", "control")}
_SINCE: Final = "Memory errors since the driver was loaded"
_EVER: Final = "Memory errors in the GPU's life"
_errors: Final = partial(count, unit="{error}", group=Group.ECC_DETAIL)


def _total(
    kind: str, count: str, key: str, otel: str, brief: str, *more: tuple[str, str], tier: Tier, group: Group
) -> Signal:
    nvml = f"ECC_{ECC_KINDS[kind]}_{ECC_COUNTS[count]}_TOTAL"
    attributes, dcgm = (("error.type", kind), *more), f"DCGM_FI_DEV_{nvml}"
    return _errors(key, otel, f"field {nvml}", brief, dcgm, attributes=attributes, tier=tier, group=group)


ECC_CORRECTED, ECC_UNCORRECTED = (
    _total(kind, "volatile", f"ecc_{kind}", "hw.errors", _SINCE, ("hw.type", "gpu"), tier=Tier.SLOW, group=Group.ECC)
    for kind in ECC_KINDS
)
_ECC_AGGREGATE: Final = tuple(
    _total(
        kind,
        "aggregate",
        f"ecc_aggregate_{kind}",
        "nvidia.gpu.ecc.aggregate",
        _EVER,
        tier=Tier.RARE,
        group=Group.ECC_DETAIL,
    )
    for kind in ECC_KINDS
)


def _place(kind: str, count: str, place: str) -> Signal:
    nvml = f"ECC_{ECC_KINDS[kind]}_{ECC_COUNTS[count]}_{ECC_PLACES.get(place, 'SRM')}"
    return _errors(
        f"ecc_{count}_{kind}_{place}",
        f"nvidia.gpu.ecc.{count}.location",
        "nvmlDeviceGetMemoryErrorCounter SRAM" if place == "sram" else f"field {nvml}",
        _SINCE if count == "volatile" else _EVER,
        f"DCGM_FI_DEV_{nvml}",
        attributes=(("error.type", kind), ("nvidia.gpu.memory.location", place)),
    )


_ECC_DETAIL: Final = (
    *(
        _place(kind, count, place)
        for count in ECC_COUNTS
        for kind in ECC_KINDS
        for place in (*ECC_PLACES, "sram")
        if place == "sram" or (kind, place) in _HAS_FIELD
    ),
    *(
        _errors(
            f"ecc_sram_{unit}",
            "nvidia.gpu.ecc.sram.location",
            f"nvmlDeviceGetSramEccErrorStatus {member}",
            "Uncorrectable SRAM errors in the GPU's life",
            attributes=(("nvidia.gpu.memory.location", unit),),
        )
        for unit, member in SRAM_UNITS.items()
    ),
    flag(
        "ecc_sram_exceeded",
        "nvidia.gpu.ecc.sram.exceeded",
        "nvmlDeviceGetSramEccErrorStatus bThresholdExceeded",
        "1 if there were more SRAM errors than NVIDIA allows for, else 0",
        "DCGM_FI_DEV_THRESHOLD_SRM",
        group=Group.ECC_DETAIL,
    ),
    flag(
        "ecc_mode",
        "nvidia.gpu.ecc.mode",
        "field ECC_CURRENT",
        "1 while ECC is on, else 0",
        "DCGM_FI_DEV_ECC_CURRENT",
        group=Group.ECC_DETAIL,
    ),
    flag(
        "ecc_mode_pending",
        "nvidia.gpu.ecc.mode.pending",
        "field ECC_PENDING",
        "1 if ECC is on after the next reset, else 0",
        "DCGM_FI_DEV_ECC_PENDING",
        group=Group.ECC_DETAIL,
    ),
)


REMAPPED_ROWS: Final = tuple(
    count(
        f"remapped_rows_{kind}",
        "nvidia.gpu.remapped_rows",
        f"field {field}",
        "Memory rows that spare ones stand in for",
        dcgm,
        unit="{row}",
        attributes=(("nvidia.gpu.memory.cause", kind),),
        group=Group.ECC,
    )
    for kind, field, dcgm in (
        ("correctable", "REMAPPED_COR", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS"),
        ("uncorrectable", "REMAPPED_UNC", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"),
    )
)
REMAP_PENDING: Final = flag(
    "remap_pending",
    "nvidia.gpu.remapped_rows.pending",
    "field REMAPPED_PENDING",
    "1 if rows are remapped at the next reset, else 0",
    "DCGM_FI_DEV_ROW_REMAP_PENDING",
    group=Group.ECC,
)
REMAP_FAILURE: Final = flag(
    "remap_failure",
    "nvidia.gpu.remapped_rows.failure",
    "field REMAPPED_FAILURE",
    "1 if the remapping of a row has failed, else 0",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    group=Group.ECC,
)
_SPARES: Final = (
    *(
        gauge(
            f"spare_rows_{spare}",
            "nvidia.gpu.remapped_rows.banks",
            f"nvmlDeviceGetRowRemapperHistogram {spare}",
            "Memory banks by the spare rows that they have left, from max (all) to none",
            f"DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_{spare.upper()}",
            unit="{bank}",
            limit=1 << 24,
            attributes=(("nvidia.gpu.memory.spare_rows", spare),),
            group=Group.ECC_DETAIL,
        )
        for spare in SPARE_ROWS
    ),
    *(
        gauge(
            f"remapped_banks_{state}",
            "nvidia.gpu.remapped_banks",
            f"field {state.upper()}_BANK_REMAPPINGS",
            "Remappings of memory banks, by whether they are active",
            unit="{bank}",
            limit=1 << 24,
            attributes=(("nvidia.gpu.memory.remapping", state),),
            group=Group.ECC_DETAIL,
        )
        for state in ("active", "inactive")
    ),
    *(
        gauge(
            f"spare_banks_{spare}",
            "nvidia.gpu.remapped_banks.groups",
            f"field BANK_REMAPPER_HISTOGRAM_{spare.upper()}",
            "Groups of memory banks with all (max) or none of their spare banks left",
            unit="{group}",
            limit=1 << 24,
            attributes=(("nvidia.gpu.memory.spare_banks", spare),),
            group=Group.ECC_DETAIL,
        )
        for spare in ("max", "none")
    ),
    flag(
        "remapped_banks_pending",
        "nvidia.gpu.remapped_banks.pending",
        "field PENDING_BANK_REMAPPING",
        "1 if the remapping of a memory bank is pending, else 0",
        group=Group.ECC_DETAIL,
    ),
    *(
        flag(
            f"repair_pending_{part}",
            "nvidia.gpu.repair.pending",
            "nvmlDeviceGetRepairStatus",
            "1 if a repair of this part of the GPU is pending, else 0",
            attributes=(("nvidia.gpu.repair.part", part),),
            group=Group.ECC_DETAIL,
        )
        for part in REPAIRS
    ),
)
_RETIRED: Final = (
    *(
        count(
            f"retired_pages_{cause}",
            "nvidia.gpu.retired_pages",
            f"field {field}",
            "Memory pages that were taken out of use (before Ampere)",
            f"DCGM_FI_DEV_{field}",
            unit="{page}",
            attributes=(("nvidia.gpu.memory.cause", cause),),
            group=Group.ECC,
        )
        for cause, field in (("single_bit", "RETIRED_SBE"), ("double_bit", "RETIRED_DBE"))
    ),
    gauge(
        "retired_pages_pending",
        "nvidia.gpu.retired_pages.pending",
        "field RETIRED_PENDING",
        "Memory pages that are taken out of use at the next reboot",
        "DCGM_FI_DEV_RETIRED_PENDING",
        unit="{page}",
        limit=1 << 20,
        group=Group.ECC,
    ),
)

MEMORY_ERRORS: Final[tuple[Signal, ...]] = (
    ECC_CORRECTED,
    ECC_UNCORRECTED,
    *_ECC_AGGREGATE,
    *REMAPPED_ROWS,
    REMAP_PENDING,
    REMAP_FAILURE,
    *_RETIRED,
    *_ECC_DETAIL,
    *_SPARES,
)

"""The signals of device memory: how much is in use, and what went wrong in it."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue import families
from gpu_profile.catalogue.group import Group
from gpu_profile.catalogue.signal import Dcgm, Signal, Tier

_CALL: Final = "nvmlDeviceGetMemoryInfo_v2"
MEMORY_USED: Final = families.memory(
    "memory_used",
    "hw.gpu.memory.usage",
    f"{_CALL} used",
    "Device memory in use",
    "DCGM_FI_DEV_FB_USED",
    mig=True,
)
MEMORY_FREE: Final = families.memory(
    "memory_free",
    "nvidia.gpu.memory.free",
    f"{_CALL} free",
    "Device memory that can still be allocated",
    "DCGM_FI_DEV_FB_FREE",
    mig=True,
)
MEMORY_RESERVED: Final = families.memory(
    "memory_reserved",
    "nvidia.gpu.memory.reserved",
    f"{_CALL} reserved",
    "Device memory that the driver and firmware keep for themselves",
    "DCGM_FI_DEV_FB_RESERVED",
)
BAR1_USED: Final = families.memory(
    "bar1_used",
    "nvidia.gpu.bar1.usage",
    "nvmlDeviceGetBAR1MemoryInfo bar1Used",
    "Part of the BAR1 window in use, through which the host sees device memory",
    "DCGM_FI_DEV_BAR1_USED",
    group=Group.PCIE_DETAIL,
)
BAR1_TOTAL: Final = families.memory(
    "bar1_total",
    "nvidia.gpu.bar1.limit",
    "nvmlDeviceGetBAR1MemoryInfo bar1Total",
    "Size of the BAR1 window",
    "DCGM_FI_DEV_BAR1_TOTAL",
    group=Group.PCIE_DETAIL,
)

#: NVML's names of the two kinds of error, by ours.
ECC_KINDS: Final = {"corrected": "SBE", "uncorrected": "DBE"}
#: NVML's names of the two ways to count, by ours: since the driver was loaded, and ever.
ECC_COUNTS: Final = {"volatile": "VOL", "aggregate": "AGG"}
#: NVML's names of places that have field values, by ours.
ECC_PLACES: Final = {"dram": "DEV", "l1": "L1", "l2": "L2", "registers": "REG", "texture": "TEX", "control": "CBU"}
#: Units of the GPU by which uncorrectable SRAM errors are told, with the member of NVML's struct.
SRAM_UNITS: Final = {
    "l2": "aggregateUncBucketL2",
    "sm": "aggregateUncBucketSm",
    "pcie": "aggregateUncBucketPcie",
    "microcontroller": "aggregateUncBucketMcu",
    "other": "aggregateUncBucketOther",
}
#: Whether NVML has a field for a place: the control logic has no correctable errors.
_HAS_FIELD: Final = frozenset((kind, place) for kind in ECC_KINDS for place in ECC_PLACES) - {("corrected", "control")}


def _total(kind: str, count: str, otel: str, tier: Tier, brief: str, extra: tuple[tuple[str, str], ...]) -> Signal:
    name = f"ECC_{ECC_KINDS[kind]}_{ECC_COUNTS[count]}_TOTAL"
    return families.count(
        f"ecc_{kind}" if count == "volatile" else f"ecc_{count}_{kind}",
        otel,
        "{error}",
        f"field {name}",
        brief,
        group=Group.ECC,
        tier=tier,
        attributes=(("error.type", kind), *extra),
        dcgm=f"DCGM_FI_DEV_{name}",
    )


_SINCE = "Memory errors since the driver was loaded"
_HW_TYPE: Final = (("hw.type", "gpu"),)
ECC_CORRECTED: Final = _total("corrected", "volatile", "hw.errors", Tier.SLOW, _SINCE, _HW_TYPE)
ECC_UNCORRECTED: Final = _total("uncorrected", "volatile", "hw.errors", Tier.SLOW, _SINCE, _HW_TYPE)
_EVER = "Memory errors in the GPU's life"
ECC_AGGREGATE: Final = tuple(
    _total(kind, "aggregate", "nvidia.gpu.ecc.aggregate", Tier.RARE, _EVER, ()) for kind in ECC_KINDS
)


def _place(kind: str, count: str, place: str) -> Signal:
    nvml = f"ECC_{ECC_KINDS[kind]}_{ECC_COUNTS[count]}_{ECC_PLACES.get(place, 'SRM')}"
    call = "nvmlDeviceGetMemoryErrorCounter SRAM"
    return families.count(
        f"ecc_{count}_{kind}_{place}",
        f"nvidia.gpu.ecc.{count}.location",
        "{error}",
        call if place == "sram" else f"field {nvml}",
        _SINCE if count == "volatile" else _EVER,
        group=Group.ECC_DETAIL,
        attributes=(("error.type", kind), ("nvidia.gpu.memory.location", place)),
        dcgm=f"DCGM_FI_DEV_{nvml}",
    )


ECC_LOCATIONS: Final = tuple(
    _place(kind, count, place)
    for count in ECC_COUNTS
    for kind in ECC_KINDS
    for place in (*ECC_PLACES, "sram")
    if place == "sram" or (kind, place) in _HAS_FIELD
)
ECC_SRAM: Final = tuple(
    families.count(
        f"ecc_sram_{unit}",
        "nvidia.gpu.ecc.sram.location",
        "{error}",
        f"nvmlDeviceGetSramEccErrorStatus {member}",
        "Uncorrectable SRAM errors in the GPU's life",
        group=Group.ECC_DETAIL,
        attributes=(("nvidia.gpu.memory.location", unit),),
    )
    for unit, member in SRAM_UNITS.items()
)
ECC_SRAM_EXCEEDED: Final = families.flag(
    "ecc_sram_exceeded",
    "nvidia.gpu.ecc.sram.exceeded",
    "nvmlDeviceGetSramEccErrorStatus bThresholdExceeded",
    "1 if there were more SRAM errors than NVIDIA allows for, else 0",
    group=Group.ECC_DETAIL,
    dcgm="DCGM_FI_DEV_THRESHOLD_SRM",
)
ECC_MODE: Final = families.flag(
    "ecc_mode",
    "nvidia.gpu.ecc.mode",
    "field ECC_CURRENT",
    "1 while ECC is on, else 0",
    group=Group.ECC_DETAIL,
    dcgm="DCGM_FI_DEV_ECC_CURRENT",
)
ECC_MODE_PENDING: Final = families.flag(
    "ecc_mode_pending",
    "nvidia.gpu.ecc.mode.pending",
    "field ECC_PENDING",
    "1 if ECC is on after the next reset, else 0",
    group=Group.ECC_DETAIL,
    dcgm="DCGM_FI_DEV_ECC_PENDING",
)


def _rows(kind: str, field: str, dcgm: str) -> Signal:
    return families.count(
        f"remapped_rows_{kind}",
        "nvidia.gpu.remapped_rows",
        "{row}",
        f"field {field}",
        "Memory rows that spare ones stand in for",
        group=Group.ECC,
        attributes=(("nvidia.gpu.memory.cause", kind),),
        dcgm=dcgm,
    )


REMAPPED_ROWS: Final = (
    _rows("correctable", "REMAPPED_COR", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS"),
    _rows("uncorrectable", "REMAPPED_UNC", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"),
)
REMAP_PENDING: Final = families.flag(
    "remap_pending",
    "nvidia.gpu.remapped_rows.pending",
    "field REMAPPED_PENDING",
    "1 if rows are remapped at the next reset, else 0",
    group=Group.ECC,
    dcgm="DCGM_FI_DEV_ROW_REMAP_PENDING",
)
REMAP_FAILURE: Final = families.flag(
    "remap_failure",
    "nvidia.gpu.remapped_rows.failure",
    "field REMAPPED_FAILURE",
    "1 if the remapping of a row has failed, else 0",
    group=Group.ECC,
    dcgm="DCGM_FI_DEV_ROW_REMAP_FAILURE",
)


def _pages(cause: str, field: str) -> Signal:
    return families.count(
        f"retired_pages_{cause}",
        "nvidia.gpu.retired_pages",
        "{page}",
        f"field {field}",
        "Memory pages that were taken out of use (before Ampere)",
        group=Group.ECC,
        attributes=(("nvidia.gpu.memory.cause", cause),),
        dcgm=f"DCGM_FI_DEV_{field}",
    )


RETIRED_PAGES: Final = (_pages("single_bit", "RETIRED_SBE"), _pages("double_bit", "RETIRED_DBE"))
RETIRED_PENDING: Final = families.gauge(
    "retired_pages_pending",
    "nvidia.gpu.retired_pages.pending",
    "{page}",
    "field RETIRED_PENDING",
    "Memory pages that are taken out of use at the next reboot",
    group=Group.ECC,
    limit=1 << 20,
    dcgm=Dcgm("DCGM_FI_DEV_RETIRED_PENDING"),
)

MEMORY: Final[tuple[Signal, ...]] = (MEMORY_USED, MEMORY_FREE, MEMORY_RESERVED)
MEMORY_ERRORS: Final[tuple[Signal, ...]] = (
    ECC_CORRECTED,
    ECC_UNCORRECTED,
    *ECC_AGGREGATE,
    *REMAPPED_ROWS,
    REMAP_PENDING,
    REMAP_FAILURE,
    *RETIRED_PAGES,
    RETIRED_PENDING,
    *ECC_LOCATIONS,
    *ECC_SRAM,
    ECC_SRAM_EXCEEDED,
    ECC_MODE,
    ECC_MODE_PENDING,
)

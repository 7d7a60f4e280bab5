"""The signals of the links to the host and to other GPUs: PCIe, NVLink and its fabric, and chip-to-chip (C2C)."""

from __future__ import annotations

from functools import partial
from typing import Final

from gpu_profile.catalogue.families import FASTEST, RECEIVED, SENT, count, counter, flag, gauge
from gpu_profile.catalogue.group import Group
from gpu_profile.catalogue.signal import Signal, Tier

#: Bytes that a link carried in one direction, counted in `quantum` bytes.
_io: Final = partial(counter, unit="By", limit=FASTEST)
# The header says of both that they "can be wrapped", and nothing of the other counters.
_pcie_io: Final = partial(_io, quantum=1.0, tier=Tier.FAST, wraps_at=1 << 32, group=Group.PCIE)
_nvlink_io: Final = partial(_io, quantum=1024.0, group=Group.NVLINK)
_errors: Final = partial(count, unit="{error}")
#: A property of the PCIe link, now or at most.
_pcie_link: Final = partial(gauge, limit=64, lowest=1, group=Group.PCIE)
_fabric: Final = partial(gauge, group=Group.FABRIC)

PCIE_RX: Final = _pcie_io(
    "pcie_rx", "hw.gpu.io", "field PCIE_COUNT_RX_BYTES", "Bytes that the GPU received over PCIe", attributes=RECEIVED
)
PCIE_TX: Final = _pcie_io(
    "pcie_tx", "hw.gpu.io", "field PCIE_COUNT_TX_BYTES", "Bytes that the GPU sent over PCIe", attributes=SENT
)
PCIE_REPLAYS: Final = count(
    "pcie_replays",
    "nvidia.gpu.pcie.replays",
    "field PCIE_REPLAY_COUNTER",
    "PCIe packets that had to be sent again",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    unit="{replay}",
    tier=Tier.SLOW,
    group=Group.PCIE,
)
_PCIE_LINK: Final = (
    _pcie_link(
        "pcie_link_generation",
        "nvidia.gpu.pcie.link.generation",
        "nvmlDeviceGetCurrPcieLinkGeneration",
        "Generation at which the PCIe link runs now; an idle GPU lowers it",
        "DCGM_FI_DEV_PCIE_LINK_GEN",
        unit="{generation}",
        group=Group.PCIE_DETAIL,
    ),
    _pcie_link(
        "pcie_link_generation_max",
        "nvidia.gpu.pcie.link.generation.max",
        "nvmlDeviceGetMaxPcieLinkGeneration",
        "Highest PCIe generation that GPU and system both have",
        "DCGM_FI_DEV_PCIE_MAX_LINK_GEN",
        unit="{generation}",
        group=Group.PCIE_DETAIL,
    ),
    _pcie_link(
        "pcie_link_width",
        "nvidia.gpu.pcie.link.width",
        "nvmlDeviceGetCurrPcieLinkWidth",
        "Lanes that the PCIe link uses now",
        "DCGM_FI_DEV_PCIE_LINK_WIDTH",
        unit="{lane}",
    ),
    _pcie_link(
        "pcie_link_width_max",
        "nvidia.gpu.pcie.link.width.max",
        "nvmlDeviceGetMaxPcieLinkWidth",
        "Most PCIe lanes that GPU and system both have",
        "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH",
        unit="{lane}",
    ),
)
PCIE_GENERATION, _, PCIE_LANES, _ = _PCIE_LINK
#: Kinds of PCIe errors: our name, and NVML's.
PCIE_ERROR_KINDS: Final = {
    "correctable": "CORRECTABLE_ERRORS",
    "nak_received": "NAKS_RECEIVED",
    "nak_sent": "NAKS_SENT",
    "receiver": "RECEIVER_ERROR",
    "bad_tlp": "BAD_TLP",
    "bad_dllp": "BAD_DLLP",
    "non_fatal": "NON_FATAL_ERROR",
    "fatal": "FATAL_ERROR",
    "unsupported_request": "UNSUPPORTED_REQ",
    "lcrc": "LCRC_ERROR",
    "lane": "LANE_ERROR",
}
_PCIE_ERRORS: Final = tuple(
    _errors(
        f"pcie_errors_{kind}",
        "nvidia.gpu.pcie.errors",
        f"field PCIE_COUNT_{nvml}",
        "PCIe errors by kind; one event may count as several",
        attributes=(("error.type", kind),),
        group=Group.PCIE_DETAIL,
    )
    for kind, nvml in PCIE_ERROR_KINDS.items()
)

NVLINK_RX: Final = _nvlink_io(
    "nvlink_rx",
    "nvidia.gpu.nvlink.io",
    "field NVLINK_THROUGHPUT_DATA_RX, all links",
    "Payload bytes received over all NVLinks",
    attributes=RECEIVED,
    tier=Tier.FAST,
)
NVLINK_TX: Final = _nvlink_io(
    "nvlink_tx",
    "nvidia.gpu.nvlink.io",
    "field NVLINK_THROUGHPUT_DATA_TX, all links",
    "Payload bytes sent over all NVLinks",
    attributes=SENT,
    tier=Tier.FAST,
)
NVLINK_ERRORS: Final = tuple(
    _errors(
        f"nvlink_errors_{kind}",
        "nvidia.gpu.nvlink.errors",
        f"field NVLINK_{kind.upper()}_ERROR_COUNT_TOTAL",
        "Errors on all NVLinks, by kind",
        f"DCGM_FI_DEV_NVLINK_{kind.upper()}_ERROR_COUNT_TOTAL",
        attributes=(("error.type", kind),),
        group=Group.NVLINK,
    )
    for kind in ("crc_flit", "crc_data", "replay", "recovery")
)

#: The most NVLinks of a GPU (Hopper and Blackwell), and the most links to its CPU (GH200).
_MOST_NVLINKS: Final = 18
_MOST_C2C_LINKS: Final = 10
#: Kinds of errors of one NVLink: our name, and NVML's.
_NVLINK_LINK_ERRORS: Final = {
    "crc": "ERROR_DL_CRC",
    "replay": "ERROR_DL_REPLAY",
    "recovery": "ERROR_DL_RECOVERY",
    "receive": "COUNT_RCV_ERRORS",
    "symbol": "COUNT_SYMBOL_ERRORS",
}


def _nvlink(number: int) -> tuple[Signal, ...]:
    link = (("nvidia.gpu.nvlink.link", str(number)),)
    return (
        *(
            _nvlink_io(
                f"nvlink_{number}_{way}",
                "nvidia.gpu.nvlink.link.io",
                f"field NVLINK_THROUGHPUT_DATA_{way.upper()}, link {number}",
                "Payload bytes over one NVLink, seen from the GPU",
                attributes=(*direction, *link),
                tier=Tier.SLOW,
                group=Group.NVLINK_DETAIL,
            )
            for way, direction in (("rx", RECEIVED), ("tx", SENT))
        ),
        *(
            _errors(
                f"nvlink_{number}_errors_{kind}",
                "nvidia.gpu.nvlink.link.errors",
                f"field NVLINK_{nvml}, link {number}",
                "Errors on one NVLink, by kind",
                attributes=(("error.type", kind), *link),
                group=Group.NVLINK_DETAIL,
            )
            for kind, nvml in _NVLINK_LINK_ERRORS.items()
        ),
        flag(
            f"nvlink_{number}_state",
            "nvidia.gpu.nvlink.link.state",
            f"field NVLINK_GET_STATE, link {number}",
            "1 while the NVLink is active, else 0",
            attributes=link,
            group=Group.NVLINK_DETAIL,
        ),
    )


NVLINK_LINKS: Final = tuple(row for number in range(_MOST_NVLINKS) for row in _nvlink(number))


def _c2c(number: int) -> tuple[Signal, ...]:
    link = (("nvidia.gpu.c2c.link", str(number)),)
    return (
        flag(
            f"c2c_{number}_state",
            "nvidia.gpu.c2c.link.state",
            f"field C2C_LINK_GET_STATUS, link {number}",
            "1 while the chip-to-chip link is active, else 0",
            attributes=link,
            group=Group.C2C,
        ),
        *(
            _errors(
                f"c2c_{number}_errors_{kind}",
                "nvidia.gpu.c2c.link.errors",
                f"field C2C_LINK_ERROR_{nvml}, link {number}",
                "Errors on one chip-to-chip link, by kind",
                attributes=(("error.type", kind), *link),
                group=Group.C2C,
            )
            for kind, nvml in (("interrupt", "INTR"), ("replay", "REPLAY"), ("replay_back_to_back", "REPLAY_B2B"))
        ),
    )


LINKS: Final[tuple[Signal, ...]] = (
    PCIE_RX,
    PCIE_TX,
    PCIE_REPLAYS,
    *_PCIE_LINK,
    *_PCIE_ERRORS,
    NVLINK_RX,
    NVLINK_TX,
    *NVLINK_ERRORS,
    *NVLINK_LINKS,
    _fabric(
        "fabric_state",
        "nvidia.gpu.fabric.state",
        "nvmlDeviceGetGpuFabricInfoV state",
        "Joining the NVLink fabric: 1 not begun, 2 under way, 3 done",
        "DCGM_FI_DEV_FABRIC_MANAGER_STATUS",
        unit="{state}",
        limit=3,
        lowest=1,
    ),
    _fabric(
        "fabric_status",
        "nvidia.gpu.fabric.status",
        "nvmlDeviceGetGpuFabricInfoV status",
        "NVML's return code of joining the NVLink fabric, once that is done: 0 is success",
        "DCGM_FI_DEV_FABRIC_MANAGER_ERROR_CODE",
        unit="{code}",
        limit=999,
    ),
    _fabric(
        "fabric_health",
        "nvidia.gpu.fabric.health",
        "nvmlDeviceGetGpuFabricInfoV healthMask",
        "Health of the NVLink fabric, as NVML's bit mask: two bits for each question, 1 yes, 2 no",
        "DCGM_FI_DEV_FABRIC_HEALTH_MASK",
        unit="{bitmask}",
        limit=(1 << 24) - 1,
    ),
    _fabric(
        "fabric_health_summary",
        "nvidia.gpu.fabric.health.overall",
        "nvmlDeviceGetGpuFabricInfoV healthSummary",
        "Health of the NVLink fabric in one number: 1 healthy, 2 unhealthy, 3 limited capacity",
        "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY",
        unit="{state}",
        limit=3,
        lowest=1,
    ),
    gauge(
        "c2c_links",
        "nvidia.gpu.c2c.links",
        "field C2C_LINK_COUNT",
        "Chip-to-chip links to the CPU",
        "DCGM_FI_DEV_C2C_LINK_COUNT",
        unit="{link}",
        limit=64,
        lowest=1,
        group=Group.C2C,
    ),
    *(row for number in range(_MOST_C2C_LINKS) for row in _c2c(number)),
)

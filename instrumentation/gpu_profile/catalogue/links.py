"""The signals of the links to the host and to other GPUs: PCIe, NVLink and its fabric, and chip-to-chip (C2C)."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue import families
from gpu_profile.catalogue.group import Group
from gpu_profile.catalogue.signal import Dcgm, Signal, Tier

# The header says of both that they "can be wrapped", and nothing of the other counters.
PCIE_RX: Final = families.io(
    "pcie_rx",
    "hw.gpu.io",
    "PCIE_COUNT_RX_BYTES",
    "receive",
    1.0,
    "Bytes that the GPU received over PCIe",
    group=Group.PCIE,
    wraps_at=1 << 32,
)
PCIE_TX: Final = families.io(
    "pcie_tx",
    "hw.gpu.io",
    "PCIE_COUNT_TX_BYTES",
    "transmit",
    1.0,
    "Bytes that the GPU sent over PCIe",
    group=Group.PCIE,
    wraps_at=1 << 32,
)
PCIE_REPLAYS: Final = families.count(
    "pcie_replays",
    "nvidia.gpu.pcie.replays",
    "{replay}",
    "field PCIE_REPLAY_COUNTER",
    "PCIe packets that had to be sent again",
    group=Group.PCIE,
    tier=Tier.SLOW,
    dcgm="DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
)


def _link(key: str, otel: str, unit: str, call: str, brief: str, dcgm: str) -> Signal:
    return families.gauge(
        f"pcie_link_{key}",
        f"nvidia.gpu.pcie.link.{otel}",
        unit,
        f"nvmlDeviceGet{call}",
        brief,
        group=Group.PCIE,
        limit=64,
        dcgm=Dcgm(f"DCGM_FI_DEV_PCIE_{dcgm}"),
        lowest=1,
    )


PCIE_LINK: Final = (
    _link(
        "generation",
        "generation",
        "{generation}",
        "CurrPcieLinkGeneration",
        "Generation at which the PCIe link runs now; an idle GPU lowers it",
        "LINK_GEN",
    ),
    _link(
        "generation_max",
        "generation.max",
        "{generation}",
        "MaxPcieLinkGeneration",
        "Highest PCIe generation that GPU and system both have",
        "MAX_LINK_GEN",
    ),
    _link("width", "width", "{lane}", "CurrPcieLinkWidth", "Lanes that the PCIe link uses now", "LINK_WIDTH"),
    _link(
        "width_max",
        "width.max",
        "{lane}",
        "MaxPcieLinkWidth",
        "Most PCIe lanes that GPU and system both have",
        "MAX_LINK_WIDTH",
    ),
)
#: Our name of a kind of PCIe error, and NVML's.
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
PCIE_ERRORS: Final = tuple(
    families.count(
        f"pcie_errors_{kind}",
        "nvidia.gpu.pcie.errors",
        "{error}",
        f"field PCIE_COUNT_{nvml}",
        "PCIe errors by kind; one event may count as several",
        group=Group.PCIE_DETAIL,
        attributes=(("error.type", kind),),
    )
    for kind, nvml in PCIE_ERROR_KINDS.items()
)

NVLINK_RX: Final = families.io(
    "nvlink_rx",
    "nvidia.gpu.nvlink.io",
    "NVLINK_THROUGHPUT_DATA_RX, all links",
    "receive",
    1024.0,
    "Payload bytes received over all NVLinks",
    group=Group.NVLINK,
)
NVLINK_TX: Final = families.io(
    "nvlink_tx",
    "nvidia.gpu.nvlink.io",
    "NVLINK_THROUGHPUT_DATA_TX, all links",
    "transmit",
    1024.0,
    "Payload bytes sent over all NVLinks",
    group=Group.NVLINK,
)
#: Our name of a kind of NVLink error, and NVML's in the fields that sum over all links.
NVLINK_ERROR_KINDS: Final = {
    "crc_flit": "CRC_FLIT",
    "crc_data": "CRC_DATA",
    "replay": "REPLAY",
    "recovery": "RECOVERY",
}
NVLINK_ERRORS: Final = tuple(
    families.count(
        f"nvlink_errors_{kind}",
        "nvidia.gpu.nvlink.errors",
        "{error}",
        f"field NVLINK_{nvml}_ERROR_COUNT_TOTAL",
        "Errors on all NVLinks, by kind",
        group=Group.NVLINK,
        attributes=(("error.type", kind),),
        dcgm=f"DCGM_FI_DEV_NVLINK_{nvml}_ERROR_COUNT_TOTAL",
    )
    for kind, nvml in NVLINK_ERROR_KINDS.items()
)

#: The most NVLinks that a GPU has (Hopper and Blackwell), and the most links to its CPU (GH200).
MOST_NVLINKS: Final = 18
MOST_C2C_LINKS: Final = 10
#: Our name of a kind of error of one NVLink, and NVML's.
NVLINK_LINK_ERROR_KINDS: Final = {
    "crc": "ERROR_DL_CRC",
    "replay": "ERROR_DL_REPLAY",
    "recovery": "ERROR_DL_RECOVERY",
    "receive": "COUNT_RCV_ERRORS",
    "symbol": "COUNT_SYMBOL_ERRORS",
}


def _nvlink(number: int) -> tuple[Signal, ...]:
    link = (("nvidia.gpu.nvlink.link", str(number)),)
    where = f"link {number}"
    carried = "Payload bytes over one NVLink, seen from the GPU"
    return (
        *(
            families.io(
                f"nvlink_{number}_{way}",
                "nvidia.gpu.nvlink.link.io",
                f"NVLINK_THROUGHPUT_DATA_{way.upper()}, {where}",
                direction,
                1024.0,
                carried,
                group=Group.NVLINK_DETAIL,
                tier=Tier.SLOW,
                attributes=link,
            )
            for way, direction in (("rx", "receive"), ("tx", "transmit"))
        ),
        *(
            families.count(
                f"nvlink_{number}_errors_{kind}",
                "nvidia.gpu.nvlink.link.errors",
                "{error}",
                f"field NVLINK_{nvml}, {where}",
                "Errors on one NVLink, by kind",
                group=Group.NVLINK_DETAIL,
                attributes=(("error.type", kind), *link),
            )
            for kind, nvml in NVLINK_LINK_ERROR_KINDS.items()
        ),
        families.gauge(
            f"nvlink_{number}_state",
            "nvidia.gpu.nvlink.link.state",
            "{flag}",
            f"field NVLINK_GET_STATE, {where}",
            "1 while the NVLink is active, else 0",
            group=Group.NVLINK_DETAIL,
            limit=1,
            attributes=link,
        ),
    )


NVLINK_LINKS: Final = tuple(row for number in range(MOST_NVLINKS) for row in _nvlink(number))

#: Our name of a kind of C2C error, and NVML's.
C2C_ERROR_KINDS: Final = {"interrupt": "INTR", "replay": "REPLAY", "replay_back_to_back": "REPLAY_B2B"}
C2C_COUNT: Final = families.gauge(
    "c2c_links",
    "nvidia.gpu.c2c.links",
    "{link}",
    "field C2C_LINK_COUNT",
    "Chip-to-chip links to the CPU",
    group=Group.C2C,
    limit=64,
    dcgm=Dcgm("DCGM_FI_DEV_C2C_LINK_COUNT"),
    lowest=1,
)


def _c2c(number: int) -> tuple[Signal, ...]:
    link = (("nvidia.gpu.c2c.link", str(number)),)
    where = f"link {number}"
    return (
        families.gauge(
            f"c2c_{number}_state",
            "nvidia.gpu.c2c.link.state",
            "{flag}",
            f"field C2C_LINK_GET_STATUS, {where}",
            "1 while the chip-to-chip link is active, else 0",
            group=Group.C2C,
            limit=1,
            attributes=link,
        ),
        *(
            families.count(
                f"c2c_{number}_errors_{kind}",
                "nvidia.gpu.c2c.link.errors",
                "{error}",
                f"field C2C_LINK_ERROR_{nvml}, {where}",
                "Errors on one chip-to-chip link, by kind",
                group=Group.C2C,
                attributes=(("error.type", kind), *link),
            )
            for kind, nvml in C2C_ERROR_KINDS.items()
        ),
    )


C2C_LINKS: Final = tuple(row for number in range(MOST_C2C_LINKS) for row in _c2c(number))

FABRIC_STATE: Final = families.gauge(
    "fabric_state",
    "nvidia.gpu.fabric.state",
    "{state}",
    "nvmlDeviceGetGpuFabricInfoV state",
    "Joining the NVLink fabric: 1 not begun, 2 under way, 3 done",
    group=Group.FABRIC,
    limit=3,
    lowest=1,
    dcgm=Dcgm("DCGM_FI_DEV_FABRIC_MANAGER_STATUS"),
)
FABRIC_STATUS: Final = families.gauge(
    "fabric_status",
    "nvidia.gpu.fabric.status",
    "{code}",
    "nvmlDeviceGetGpuFabricInfoV status",
    "NVML's return code of joining the NVLink fabric, once that is done: 0 is success",
    group=Group.FABRIC,
    limit=999,
    dcgm=Dcgm("DCGM_FI_DEV_FABRIC_MANAGER_ERROR_CODE"),
)
FABRIC_HEALTH: Final = families.gauge(
    "fabric_health",
    "nvidia.gpu.fabric.health",
    "{bitmask}",
    "nvmlDeviceGetGpuFabricInfoV healthMask",
    "Health of the NVLink fabric, as NVML's bit mask: two bits for each question, 1 yes, 2 no",
    group=Group.FABRIC,
    limit=(1 << 24) - 1,
    dcgm=Dcgm("DCGM_FI_DEV_FABRIC_HEALTH_MASK"),
)

LINKS: Final[tuple[Signal, ...]] = (
    PCIE_RX,
    PCIE_TX,
    PCIE_REPLAYS,
    *PCIE_LINK,
    *PCIE_ERRORS,
    NVLINK_RX,
    NVLINK_TX,
    *NVLINK_ERRORS,
    *NVLINK_LINKS,
    FABRIC_STATE,
    FABRIC_STATUS,
    FABRIC_HEALTH,
    C2C_COUNT,
    *C2C_LINKS,
)

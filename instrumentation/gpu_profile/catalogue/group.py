"""The groups of signals that `--collect` switches on and off, by the names that users type."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Group(StrEnum):
    """A group of signals. Groups that are off are not read. A name with `-detail` extends the group before it."""

    CORE = "core"
    CORE_DETAIL = "core-detail"
    MEDIA = "media"
    PCIE = "pcie"
    PCIE_DETAIL = "pcie-detail"
    NVLINK = "nvlink"
    NVLINK_DETAIL = "nvlink-detail"
    ECC = "ecc"
    ECC_DETAIL = "ecc-detail"
    FABRIC = "fabric"
    GPM = "gpm"
    PIPES = "pipes"
    GPM_DETAIL = "gpm-detail"
    CLOCKS = "clocks"
    LIMITS = "limits"
    MODULE = "module"
    C2C = "c2c"
    MODES = "modes"


#: The signals of each group, in one line.
GROUPS: Final[Mapping[Group, str]] = {
    Group.CORE: "utilisation, memory in use, power, energy, temperatures, clocks, throttle time, state; always on",
    Group.CORE_DETAIL: "utilisation of the memory controller, free and reserved memory, P-state, sync boost",
    Group.MEDIA: "utilisation of the video, JPEG and optical-flow engines",
    Group.PCIE: "PCIe bytes, replays, and the link's width, now and at most",
    Group.PCIE_DETAIL: "PCIe errors by kind, the link's generation, now and at most, and the BAR1 window",
    Group.NVLINK: "bytes and errors of all NVLinks together",
    Group.NVLINK_DETAIL: "bytes, errors and state of each NVLink",
    Group.ECC: "memory errors since the driver was loaded, remapped rows and retired pages",
    Group.ECC_DETAIL: "memory errors in the GPU's life and by place, ECC mode, spare rows and banks, pending repairs",
    Group.FABRIC: "state and health of the GPU's membership in its NVLink fabric",
    Group.GPM: "activity of multiprocessors, tensor pipes and DRAM (Hopper and newer)",
    Group.PIPES: "activity of the FP64, FP32, FP16 and integer pipes, and occupancy (Hopper and newer)",
    Group.GPM_DETAIL: "tensor pipes by kind and their stalls; PCIe, NVLink and C2C rates (Hopper and newer)",
    Group.CLOCKS: "every clock domain with its maximum, and the rarer reasons for throttling",
    Group.LIMITS: "limits of power and temperature, the margin to them, and the fan",
    Group.MODULE: "power of the whole superchip module and of the memory",
    Group.C2C: "chip-to-chip links of superchips: state and errors",
    Group.MODES: "addressing mode, confidential computing and power smoothing",
}

#: The exporter's default: at most 60 series a GPU, with every signal in the dashboard and the alerts of grafana/.
DEFAULT_GROUPS: Final = frozenset({Group.CORE, Group.PCIE, Group.NVLINK, Group.ECC, Group.GPM})
#: The default of a process that profiles itself: the signals behind regions and their regimes.
LIBRARY_GROUPS: Final = frozenset(
    {Group.CORE, Group.CORE_DETAIL, Group.MEDIA, Group.PCIE, Group.NVLINK, Group.GPM, Group.PIPES}
)
ALL_GROUPS: Final = frozenset(Group)

"""The groups of signals that can be switched on and off, by the names that people type."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Group(StrEnum):
    """A group of signals. What is off is not read at all. A name with `-detail` splits up what its group sums up."""

    CORE = "core"
    MEDIA = "media"
    PCIE = "pcie"
    PCIE_DETAIL = "pcie-detail"
    NVLINK = "nvlink"
    NVLINK_DETAIL = "nvlink-detail"
    ECC = "ecc"
    ECC_DETAIL = "ecc-detail"
    FABRIC = "fabric"
    GPM = "gpm"
    GPM_DETAIL = "gpm-detail"
    CLOCKS = "clocks"
    LIMITS = "limits"
    MODULE = "module"
    C2C = "c2c"


#: What each group is, in one line.
GROUPS: Final[Mapping[Group, str]] = {
    Group.CORE: "utilisation, memory, power, energy, temperatures, clocks, throttle time, state; always on",
    Group.MEDIA: "utilisation of the video, JPEG and optical-flow engines",
    Group.PCIE: "PCIe bytes, replays, and the link's generation and width, now and at most",
    Group.PCIE_DETAIL: "PCIe errors by kind, and the BAR1 window",
    Group.NVLINK: "bytes and errors of all NVLinks together",
    Group.NVLINK_DETAIL: "bytes, errors and state of each NVLink",
    Group.ECC: "memory errors in all, remapped rows and retired pages",
    Group.ECC_DETAIL: "memory errors by the place in which they happened, and the ECC mode",
    Group.FABRIC: "whether the GPU has joined its NVLink fabric, and how well",
    Group.GPM: "activity counters of Hopper and newer: multiprocessors, tensor and other pipes, DRAM, PCIe",
    Group.GPM_DETAIL: "tensor pipes by kind, the integer pipe, NVLink and C2C rates (Hopper and newer)",
    Group.CLOCKS: "every clock domain with its maximum, and the rarer reasons for throttling",
    Group.LIMITS: "limits of power and temperature, the margin to them, and the fan",
    Group.MODULE: "power of the whole superchip module and of the memory",
    Group.C2C: "chip-to-chip links of superchips: state and errors",
}

#: What is read unless told otherwise: at most 100 series a GPU, those of the exporter itself included.
DEFAULT_GROUPS: Final = frozenset(
    {Group.CORE, Group.MEDIA, Group.PCIE, Group.NVLINK, Group.ECC, Group.FABRIC, Group.GPM}
)
#: What a process reads of itself unless told otherwise: what regions and their regimes are judged by.
LIBRARY_GROUPS: Final = frozenset({Group.CORE, Group.PCIE, Group.NVLINK, Group.GPM})
ALL_GROUPS: Final = frozenset(Group)

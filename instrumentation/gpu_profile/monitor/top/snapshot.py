"""The data of one drawing: devices, processes, holders and regions, without a source. None is always unknown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gpu_profile.units import NS_PER_S

#: The length of a bin of the last minute, and the number of bins.
BIN_NS: Final = NS_PER_S // 4
BINS: Final = 240


@dataclass(frozen=True, slots=True)
class LastMinute:
    """A signal's means in bins of `BIN_NS`. `first` is the number of the first bin since the epoch.

    `covered_ns` is the part of each bin that samples cover; without any, its mean has no meaning.
    """

    first: int = 0
    means: Sequence[float] = ()
    covered_ns: Sequence[int] = ()

    @property
    def end(self) -> int:
        """The number of the bin after the last one; 0 without bins."""
        return self.first + len(self.means)

    def columns(self, most: int, end: int) -> list[float | None]:
        """The means of `most` equal steps up to the bin number `end`, oldest first; None for a step without samples.

        The edges of steps are multiples of their length since the epoch, so that a drawing moves in whole columns.
        """
        if most < 1:
            return []
        size = -(-BINS // most)
        last = -(-end // size)
        masses, totals = [0.0] * most, [0] * most
        for number, (mean, covered) in enumerate(zip(self.means, self.covered_ns, strict=True), self.first):
            place = number // size - last + most
            if 0 <= place < most:
                masses[place] += mean * covered
                totals[place] += covered
        return [mass / total if total else None for mass, total in zip(masses, totals, strict=True)]


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """A device over the last second. Ratios are 0-1; the rest is in base units.

    `label` is the GPU's index, with the instance's id for a MIG instance. `throttles`: the reasons of the last second
    with their shares, the largest first; None if the driver reports none of them. `xid`: the code of the newest XID
    error since the view began. `reason`: why it is down. `power_scale_w`: the last limit of its power, of any age.
    """

    uuid: str
    label: str
    name: str = ""
    order: int = 0
    utilisation: float | None = None
    sm: float | None = None
    dram: float | None = None
    tensor: float | None = None
    memory_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_scale_w: float | None = None
    temperature: float | None = None
    temperature_memory: float | None = None
    clock_hz: float | None = None
    pcie_rx: float | None = None
    pcie_tx: float | None = None
    throttles: tuple[tuple[str, float], ...] | None = None
    up: bool = True
    reason: str = ""
    xid: int | None = None
    busy: LastMinute = field(default_factory=LastMinute)
    power: LastMinute = field(default_factory=LastMinute)


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """A process on a device. `name` is empty if it is unknown."""

    device: str
    order: int
    pid: int
    name: str = ""
    memory_bytes: int | None = None
    utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class HolderLine:
    """A pod, container, job or unit that holds a device."""

    device: str
    order: int
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class RegionLine:
    """A region's rates over the last minute, per second. `regime` has most of the calls; empty if none has one."""

    name: str
    calls: float | None = None
    joules: float | None = None
    joules_uncertain: float | None = None
    busy: float | None = None
    busy_uncertain: float | None = None
    regime: str = ""


@dataclass(frozen=True, slots=True)
class TopSnapshot:
    """Everything that one drawing shows.

    `source` names the driver, `time` is the local time. `waiting`: the driver has not answered yet. `problem`: the
    reason if there is no driver. A note gives the reason for an empty table.
    """

    source: str = ""
    time: str = ""
    waiting: bool = False
    problem: str = ""
    devices: tuple[DeviceLine, ...] = ()
    processes: tuple[ProcessLine, ...] = ()
    holders: tuple[HolderLine, ...] = ()
    regions: tuple[RegionLine, ...] = ()
    process_note: str = ""
    region_note: str = ""

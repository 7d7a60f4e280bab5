"""The values that pass through the system: devices, samples and intervals. Frozen; time is int ns since the epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from gpu_profile.catalogue import Signal


class DeviceKind(StrEnum):
    """The kind of a device."""

    GPU = "gpu"
    MIG = "mig"


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or MIG instance, identified by its UUID.

    `parent` is the UUID of the GPU of a MIG instance. `index` is NVML's physical index (of the parent for a MIG
    instance): a label for people, never an identity. `memory_bytes` is the total, `clock_max_hz` the highest clock of
    the multiprocessors. `pcie_bytes_per_s` and `nvlink_bytes_per_s` are the one-way bandwidths of the link to the host,
    and of all links to other GPUs together. These are None if the driver does not report them. `minor` is the number in
    `/dev/nvidiaN`. A MIG instance has a `mig_profile` (`3g.40gb`) and the id of its GPU instance, `mig_instance`. Its
    `mig_placement` is the profile's id and the first memory slice (`9-4`); only privileged users can read it.
    `vbios_version`, `part_number` (of the board) and `compute_capability` (`9.0`) are empty if unknown. Serial numbers
    are left out on purpose.
    """

    uuid: str
    parent: str | None = None
    kind: DeviceKind = DeviceKind.GPU
    index: int | None = None
    name: str = ""
    pci_bus_id: str = ""
    memory_bytes: int | None = None
    clock_max_hz: int | None = None
    pcie_bytes_per_s: int | None = None
    nvlink_bytes_per_s: int | None = None
    minor: int | None = None
    vbios_version: str = ""
    part_number: str = ""
    compute_capability: str = ""
    mig_profile: str = ""
    mig_instance: int | None = None
    mig_placement: str = ""

    def filled_from(self, before: Device) -> Device:
        """A copy with missing values filled in from `before`."""
        holes = {f.name: getattr(before, f.name) for f in fields(self) if getattr(self, f.name) in (None, "")}
        return replace(self, **holes)

    @property
    def identity(self) -> dict[str, str]:
        """The known facts of the device, by the attributes of `gpu_profile.device.info`."""
        values = {
            "hw.id": self.uuid,
            "hw.name": self.name,
            "hw.parent": self.parent,
            "hw.firmware_version": self.vbios_version,
            "pci.bus_id": self.pci_bus_id,
            "index": self.index,
            "minor": self.minor,
            "kind": self.kind.value,
            "board.part_number": self.part_number,
            "cuda.compute_capability": self.compute_capability,
            "mig.profile": self.mig_profile,
            "mig.instance": self.mig_instance,
        }
        return {key: str(value) for key, value in values.items() if value not in (None, "")}


class Sample(NamedTuple):
    """One reading of one signal, `value` in the quanta of its catalogue row.

    A window mean covers `(t_start_ns, t_end_ns]`. An instant has `t_start_ns == t_end_ns`. A counter's value is the
    running total at `t_end_ns`; its `t_start_ns` equals `t_end_ns` too.
    """

    signal: Signal
    t_start_ns: int
    t_end_ns: int
    value: int


#: `Sample(*values)` takes twice as long: its constructor is a Python function.
plain_sample: Final[Callable[[type[Sample], tuple[Signal, int, int, int]], Sample]] = tuple.__new__


class Interval(NamedTuple):
    """A half-open stretch of time `[start_ns, end_ns)` and the source of its edges.

    `device`: the moments at which the GPU's stream passed the region's first and last mark. `host`: the calling
    thread's clock.
    """

    start_ns: int
    end_ns: int
    source: Literal["host", "device"] = "host"


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a device, such as an XID error or a driver reload."""

    device: str
    t_ns: int
    kind: str
    code: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process's use of a device. `utilization` is its mean (ratio) since the previous query.

    A quantity that the driver does not report is None.
    """

    pid: int
    memory_bytes: int | None = None
    utilization: float | None = None

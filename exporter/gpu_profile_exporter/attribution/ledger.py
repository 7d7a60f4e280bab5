"""Energy of devices by holder, and the time for which each was held. Pure.

The growth of a device's energy between two refreshes is its only holder's, if both refreshes report the same one. Else
it is nobody's, with a reason. So the sums of a device are together the growth of its energy, in whole uJ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from gpu_profile.catalogue import ENERGY_SOURCES, Kind, Signal
from gpu_profile.catalogue.allocation import HELD_ENERGY, HELD_TIME, UNHELD_ENERGY
from gpu_profile.catalogue.samples import Device
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.attribution.allocation import DeviceHolder
from gpu_profile_exporter.attribution.sources import HolderSource, Reason
from gpu_profile_exporter.readings.health import DeviceStatus
from gpu_profile_exporter.readings.readings import MetricReading

#: Pairs of device and holder with sums. Sums of a holder that has left are published for a quarter of an hour.
MOST_HOLDERS: Final = 4_096
KEPT_NS: Final = 900 * NS_PER_S
#: Sources that speak for all work on a device, in the order of precedence.
_PRECEDENCE: Final = ((HolderSource.KUBELET, HolderSource.DRA), (HolderSource.SLURM,), (HolderSource.CONTAINERS,))
#: The attributes that identify a holder: of the first group with a value. Containers of a pod are one holder.
_IDENTITIES: Final = (
    ("k8s.namespace.name", "k8s.pod.name"),
    ("slurm.job.id",),
    ("container.id", "container.runtime.name", "k8s.pod.uid"),
    ("systemd.unit.name",),
)
_UJ: Final = 1_000_000

#: Sorted pairs of attributes and values.
HolderName = tuple[tuple[str, str], ...]


class Unheld(StrEnum):
    """Why energy of a device is no holder's. Values of the label `reason`."""

    NOT_HELD = "not_held"
    SHARED = "shared"
    CHANGED = "changed"
    NOT_KNOWN = "holder_not_known"
    BUDGET = "budget"


class MeteredDevice(NamedTuple):
    """A device, and its energy so far in uJ by `source`; None if it has none."""

    device: Device
    energy_uj: int | None
    source: Signal | None = None

    @classmethod
    def of(cls, state: DeviceStatus) -> MeteredDevice:
        """From the sums of its signals, as its energy is published."""
        for signal in ENERGY_SOURCES:
            column = state.timeline.column(signal)
            if column is not None and not column.stuck:
                # A counter's growth, or the integral of a power over ns.
                per = 1 if signal.kind is Kind.COUNTER else NS_PER_S
                return cls(state.device, round(column.total_mass * signal.quantum * _UJ / per), signal)
        return cls(state.device, None)


def holders_of(
    uuids: Sequence[str], rows: Iterable[DeviceHolder], status: Mapping[HolderSource, Reason | None]
) -> frozenset[HolderName] | None:
    """The holders of a device with these UUIDs: its own and its MIG instances'. None if they are uncertain."""
    there = [row for row in rows if row.uuid in uuids]
    for sources in _PRECEDENCE:
        names = {_name(dict(row.attributes)) for row in there if row.source in sources}
        if names:
            return None if () in names else frozenset(names)
    answers = (status.get(source, Reason.NOT_FOUND) for sources in _PRECEDENCE for source in sources)
    return frozenset() if None in answers else None


def _name(attributes: Mapping[str, str]) -> HolderName:
    for keys in _IDENTITIES:
        if name := tuple((key, attributes[key]) for key in keys if key in attributes):
            return name
    return ()


@dataclass(slots=True)
class _HolderSums:
    """The sums of a holder on one device.

    `energy_uj` is None until it has been the only one. `held_ns` is None if it holds only parts of the device.
    """

    attributes: Mapping[str, str]
    energy_uj: int | None = None
    held_ns: int | None = None
    seen_ns: int = 0


@dataclass(slots=True)
class _DeviceSums:
    """The last refresh of a device, and its energy that is no holder's."""

    held_by: frozenset[HolderName] | None
    energy_uj: int | None
    source: Signal | None
    unheld_uj: dict[Unheld, int] = field(default_factory=dict)
    answered: bool = False


class HolderLedger:
    """The sums by device and holder since the start. One thread calls `take`, any may call `readings`."""

    def __init__(self) -> None:
        self._devices: dict[str, _DeviceSums] = {}
        self._sums: dict[tuple[str, HolderName], _HolderSums] = {}
        self._taken_ns: int | None = None
        self._readings: list[MetricReading] = []

    def take(
        self,
        now_ns: int,
        devices: Sequence[MeteredDevice],
        rows: Sequence[DeviceHolder],
        status: Mapping[HolderSource, Reason | None],
    ) -> None:
        """Add the growth since the refresh before, from the state and the holders of all devices at `now_ns`."""
        since_ns = max(0, now_ns - self._taken_ns) if self._taken_ns is not None else 0
        self._taken_ns = now_ns
        for metered in devices:
            self._take(metered, devices, rows, status, now_ns, since_ns)
        self._sums = {key: each for key, each in self._sums.items() if now_ns - each.seen_ns <= KEPT_NS}
        self._readings = list(self._made())

    def _take(
        self,
        metered: MeteredDevice,
        devices: Sequence[MeteredDevice],
        rows: Sequence[DeviceHolder],
        status: Mapping[HolderSource, Reason | None],
        now_ns: int,
        since_ns: int,
    ) -> None:
        uuid, energy_uj = metered.device.uuid, metered.energy_uj
        own = holders_of([uuid], rows, status)
        # The energy of a GPU is also that of its MIG instances.
        instances = [each.device.uuid for each in devices if each.device.parent == uuid]
        held_by = holders_of([uuid, *instances], rows, status) if instances else own
        last = self._devices.get(uuid)
        if last is None:
            last = self._devices[uuid] = _DeviceSums(held_by, energy_uj, metered.source)
        for name in own or ():
            if (sums := self._held(uuid, name, now_ns)) is not None:
                sums.held_ns = (sums.held_ns or 0) + (since_ns if name in (last.held_by or ()) else 0)
        if energy_uj is not None and last.energy_uj is not None and last.source is metered.source:
            self._share(uuid, last, held_by, energy_uj - last.energy_uj, now_ns)
        if energy_uj is not None and held_by is not None and len(held_by) == 1:
            # From 0 on, so that increase() sees the first joules.
            sums = self._held(uuid, next(iter(held_by)), now_ns)
            if sums is not None and sums.energy_uj is None:
                sums.energy_uj = 0
        last.answered |= held_by is not None
        last.held_by, last.energy_uj, last.source = held_by, energy_uj, metered.source

    def _share(
        self, uuid: str, last: _DeviceSums, held_by: frozenset[HolderName] | None, grown_uj: int, now_ns: int
    ) -> None:
        if held_by != last.held_by:
            reason = Unheld.CHANGED
        elif held_by is None:
            reason = Unheld.NOT_KNOWN
        elif not held_by:
            reason = Unheld.NOT_HELD
        elif len(held_by) > 1:
            reason = Unheld.SHARED
        elif (sums := self._held(uuid, next(iter(held_by)), now_ns)) is not None:
            sums.energy_uj = (sums.energy_uj or 0) + grown_uj
            return
        else:
            reason = Unheld.BUDGET
        if grown_uj:
            last.unheld_uj[reason] = last.unheld_uj.get(reason, 0) + grown_uj

    def _held(self, uuid: str, name: HolderName, now_ns: int) -> _HolderSums | None:
        """The sums of a holder, seen now. None beyond the limit."""
        sums = self._sums.get((uuid, name))
        if sums is None:
            if len(self._sums) >= MOST_HOLDERS:
                return None
            sums = self._sums[uuid, name] = _HolderSums({"hw.id": uuid, **dict(name)})
        sums.seen_ns = now_ns
        return sums

    def _made(self) -> Iterator[MetricReading]:
        for sums in self._sums.values():
            if sums.energy_uj is not None:
                yield MetricReading(HELD_ENERGY, sums.attributes, sums.energy_uj / _UJ)
        for sums in self._sums.values():
            if sums.held_ns is not None:
                yield MetricReading(HELD_TIME, sums.attributes, sums.held_ns / NS_PER_S)
        for uuid, device in self._devices.items():
            # Without any source, nothing can be said about holders.
            for reason, energy_uj in device.unheld_uj.items() if device.answered else ():
                yield MetricReading(UNHELD_ENERGY, {"hw.id": uuid, "reason": reason.value}, energy_uj / _UJ)

    def readings(self) -> Sequence[MetricReading]:
        """The sums as of the last refresh, metric by metric."""
        return self._readings

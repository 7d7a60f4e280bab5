"""Energy of devices by holder, and the time for which each was held. Pure.

The growth of a device's energy between two readings is its only holder's, if each refresh from the first reading to the
second reports the same one. That of a GPU with several holders of its MIG instances is shared out by the instances'
activities, as far as these show it. All else is nobody's, with a reason. So the sums of a device are together the
growth of its energy, in whole uJ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from gpu_profile.catalogue import ENERGY_SOURCES, Kind, Signal
from gpu_profile.catalogue.allocation import HELD_ENERGY, HELD_TIME, UNHELD_ENERGY
from gpu_profile.catalogue.samples import Device
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.attribution.allocation import DeviceHolder
from gpu_profile_exporter.attribution.instance_windows import REFUSED, EnergyParts
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
    ("k8s.pod.uid",),
    ("container.id", "container.runtime.name"),
    ("systemd.unit.name",),
)
_UJ: Final = 1_000_000
#: Shares that add up to 1 but for this much leave nothing.
_ROUNDING: Final = 1e-9

#: Sorted pairs of attributes and values.
HolderName = tuple[tuple[str, str], ...]
#: The parts of a GPU's energy of `(since, until]`: from its UUID, both times, and the group of each of its instances.
Division = Callable[[str, int, int, Mapping[str, Hashable]], EnergyParts]


def undivided(_gpu: str, _since_ns: int, _until_ns: int, _groups: Mapping[str, Hashable]) -> EnergyParts:
    """No parts: the `Division` without activities of instances."""
    return REFUSED


class Unheld(StrEnum):
    """Why energy of a device is no holder's. Values of the label `reason`."""

    NOT_HELD = "not_held"
    IDLE = "idle"
    SHARED = "shared"
    CHANGED = "changed"
    NOT_KNOWN = "holder_not_known"
    BUDGET = "budget"


class MeteredDevice(NamedTuple):
    """A device, and its energy so far in uJ by `source`, up to `until_ns`. None if it has none."""

    device: Device
    energy_uj: int | None
    source: Signal | None = None
    until_ns: int | None = None

    @classmethod
    def of(cls, state: DeviceStatus) -> MeteredDevice:
        """From the sums of its signals, as its energy is published."""
        for signal in ENERGY_SOURCES:
            column = state.timeline.column(signal)
            if column is not None and not column.stuck:
                # A counter's growth, or the integral of a power over ns.
                per = 1 if signal.kind is Kind.COUNTER else NS_PER_S
                energy_uj = round(column.total_mass * signal.quantum * _UJ / per)
                return cls(state.device, energy_uj, signal, column.watermark_ns)
        return cls(state.device, None)

    def grown_uj(self, last: MeteredDevice) -> int | None:
        """The growth since the refresh before. None if the two energies are not of one counter."""
        if self.energy_uj is None or last.energy_uj is None or self.source is not last.source:
            return None
        # An instance that was made anew begins at 0.
        return max(0, self.energy_uj - last.energy_uj)

    def took_longer(self, last: MeteredDevice, longest_ns: int) -> bool:
        """Whether the growth since `last` took longer, or the clock was set back meanwhile."""
        return not 0 <= (self.until_ns or 0) - (last.until_ns or 0) <= longest_ns


def holders_of(
    rows: Iterable[DeviceHolder], status: Mapping[HolderSource, Reason | None], silent: Collection[HolderSource] = ()
) -> frozenset[HolderName] | None:
    """The holders of a device, from the rows of it and its MIG instances. None if they are uncertain.

    `silent`: the sources that have answered before and do not now. They could name a holder that precedes others.
    """
    there = list(rows)
    for sources in _PRECEDENCE:
        names = {_name(dict(row.attributes)) for row in there if row.source in sources}
        if names:
            return None if () in names else frozenset(names)
        if any(source in silent for source in sources):
            return None
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
    """The last refresh of a device, and its energy that is no holder's.

    `metered` is its newest reading, first seen at `read_ns`. `doubt`: why the growth since then is no holder's.
    `instances`: the UUIDs of its MIG instances.
    """

    held_by: frozenset[HolderName] | None
    instances: Sequence[str]
    metered: MeteredDevice
    read_ns: int
    seen_ns: int
    doubt: Unheld | None = None
    unheld_uj: dict[Unheld, int] = field(default_factory=dict)
    answered: bool = False


class HolderLedger:
    """The sums by device and holder since the start. One thread calls `take`, any may call `readings`.

    `longest_ns`: between two refreshes that are further apart, holders could have come and gone. `divide` gives the
    parts of a GPU's energy by its MIG instances.
    """

    def __init__(self, longest_ns: int, divide: Division = undivided) -> None:
        self._longest_ns, self._divide = longest_ns, divide
        self._devices: dict[str, _DeviceSums] = {}
        self._sums: dict[tuple[str, HolderName], _HolderSums] = {}
        self._taken_ns: int | None = None
        self._answered: set[HolderSource] = set()
        self._readings: list[MetricReading] = []

    def take(
        self,
        now_ns: int,
        devices: Sequence[MeteredDevice],
        rows: Iterable[DeviceHolder],
        status: Mapping[HolderSource, Reason | None],
    ) -> None:
        """Add the growth since the refresh before, from the state and the holders of all devices at `now_ns`.

        `now_ns` is of a clock that nobody sets.
        """
        since_ns = now_ns - self._taken_ns if self._taken_ns is not None else 0
        self._taken_ns = now_ns
        self._answered.update(source for source, reason in status.items() if reason is None)
        silent = {source for source in self._answered if status.get(source) is not None}
        by_uuid: defaultdict[str, list[DeviceHolder]] = defaultdict(list)
        for row in rows:
            by_uuid[row.uuid].append(row)
        instances: defaultdict[str, list[str]] = defaultdict(list)
        for metered in devices:
            if metered.device.parent is not None:
                instances[metered.device.parent].append(metered.device.uuid)
        # Instances first: their holders decide who has a part of their GPU's energy.
        for metered in sorted(devices, key=lambda each: each.device.parent is None):
            uuid = metered.device.uuid
            own = held_by = holders_of(by_uuid[uuid], status, silent)
            if uuid in instances:
                # The energy of a GPU is also that of its MIG instances.
                parts = (row for part in (uuid, *instances[uuid]) for row in by_uuid[part])
                held_by = holders_of(parts, status, silent)
            self._take(metered, own or frozenset(), held_by, now_ns, since_ns, instances.get(uuid, []))
        self._sums = {key: each for key, each in self._sums.items() if now_ns - each.seen_ns <= KEPT_NS}
        self._devices = {key: each for key, each in self._devices.items() if now_ns - each.seen_ns <= KEPT_NS}
        self._readings = list(self._made())

    def _take(
        self,
        metered: MeteredDevice,
        own: frozenset[HolderName],
        held_by: frozenset[HolderName] | None,
        now_ns: int,
        since_ns: int,
        instances: Sequence[str],
    ) -> None:
        uuid = metered.device.uuid
        last = self._devices.get(uuid)
        if last is None:
            last = self._devices[uuid] = _DeviceSums(held_by, instances, metered, now_ns, now_ns)
        paused = max(since_ns, now_ns - last.seen_ns) > self._longest_ns
        for name in own:
            if (sums := self._held(uuid, name, now_ns)) is not None:
                stayed = not paused and name in (last.held_by or ())
                sums.held_ns = (sums.held_ns or 0) + (since_ns if stayed else 0)
        if metered.energy_uj is not None:
            # From 0 on, so that increase() sees the first joules.
            last.unheld_uj = last.unheld_uj or dict.fromkeys(Unheld, 0)
            only = next(iter(held_by)) if held_by is not None and len(held_by) == 1 else None
            if only is not None and (sums := self._held(uuid, only, now_ns)) is not None:
                sums.energy_uj = sums.energy_uj or 0
        if last.doubt is None:
            if paused or held_by is None or last.held_by is None:
                last.doubt = Unheld.NOT_KNOWN
            elif held_by != last.held_by or (len(held_by) > 1 and set(instances) != set(last.instances)):
                last.doubt = Unheld.CHANGED
        if metered.energy_uj is not None and metered.until_ns != last.metered.until_ns:
            self._take_growth(last, metered, held_by, now_ns, [] if own else instances)
            last.metered, last.read_ns, last.doubt = metered, now_ns, None
            for instance in instances:
                self._devices[instance].doubt = None
        last.answered |= held_by is not None
        last.held_by, last.instances, last.seen_ns = held_by, instances, now_ns

    def _take_growth(
        self,
        last: _DeviceSums,
        metered: MeteredDevice,
        held_by: frozenset[HolderName] | None,
        now_ns: int,
        instances: Sequence[str],
    ) -> None:
        grown_uj, longest_ns = metered.grown_uj(last.metered), now_ns - last.read_ns + self._longest_ns
        if not grown_uj:
            return
        doubt = Unheld.NOT_KNOWN if metered.took_longer(last.metered, longest_ns) else last.doubt
        if instances and doubt is None and len(held_by or ()) > 1:
            self._share_among_instances(last, metered, instances, grown_uj, now_ns)
        else:
            self._share(last, doubt, held_by or frozenset(), grown_uj)

    def _share(self, last: _DeviceSums, doubt: Unheld | None, held_by: frozenset[HolderName], grown_uj: int) -> None:
        reason = doubt
        if reason is None and not held_by:
            reason = Unheld.NOT_HELD
        elif reason is None and len(held_by) > 1:
            reason = Unheld.SHARED
        elif reason is None:
            sums = self._sums.get((last.metered.device.uuid, next(iter(held_by))))
            if sums is not None:
                sums.energy_uj = (sums.energy_uj or 0) + grown_uj
                return
            reason = Unheld.BUDGET
        last.unheld_uj[reason] += grown_uj

    def _share_among_instances(
        self, last: _DeviceSums, metered: MeteredDevice, instances: Sequence[str], grown_uj: int, now_ns: int
    ) -> None:
        groups = {instance: self._group(instance) for instance in instances}
        gpu = metered.device.uuid
        parts = self._divide(gpu, last.metered.until_ns or 0, metered.until_ns or 0, groups)
        for group in groups.values():
            if not isinstance(group, Unheld) and (gpu, group) in self._sums:
                self._held(gpu, group, now_ns)  # its series stays, though its energy may be refused
        shares: dict[Hashable, float] = {**parts.groups, Unheld.IDLE: parts.idle or 0.0}
        share_sum, given_uj = 0.0, 0
        for group in sorted(set(groups.values()), key=str):
            share_sum += shares.get(group, 0.0)
            # Rounded sums, so that the parts are together the rounded whole.
            part_uj = min(grown_uj, round(share_sum * grown_uj)) - given_uj
            given_uj += part_uj
            if isinstance(group, Unheld):
                last.unheld_uj[group] += part_uj
            elif group in shares:
                self._add_part(last, gpu, group, part_uj, now_ns)
        left_uj, idle_share = grown_uj - given_uj, shares[Unheld.IDLE]
        idle_uj = left_uj if share_sum + idle_share > 1 - _ROUNDING else min(left_uj, round(idle_share * grown_uj))
        last.unheld_uj[Unheld.IDLE] += idle_uj
        last.unheld_uj[Unheld.SHARED] += left_uj - idle_uj

    def _group(self, instance: str) -> HolderName | Unheld:
        """The only holder of an instance since the GPU's last reading, or why there is none."""
        device = self._devices[instance]
        if device.doubt is not None or not device.held_by:
            return device.doubt or Unheld.NOT_HELD
        return next(iter(device.held_by)) if len(device.held_by) == 1 else Unheld.SHARED

    def _add_part(self, last: _DeviceSums, gpu: str, name: HolderName, part_uj: int, now_ns: int) -> None:
        sums = self._held(gpu, name, now_ns)
        if sums is None:
            last.unheld_uj[Unheld.BUDGET] += part_uj
        elif sums.energy_uj is None:
            # From 0 on, so that increase() sees the first joules.
            sums.energy_uj = 0
            last.unheld_uj[Unheld.SHARED] += part_uj
        else:
            sums.energy_uj += part_uj

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

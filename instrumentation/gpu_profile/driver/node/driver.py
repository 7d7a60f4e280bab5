"""The driver `node[:DIR]`: the samples that one process of this node has read, with no call of NVML."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpu_profile.catalogue import DEFAULT_GROUPS, SIGNALS, Group, Signal, Tier
from gpu_profile.catalogue.samples import Device, Event, ProcessUse, Sample
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver.node.layout import LayoutError
from gpu_profile.driver.node.reader import RingReader
from gpu_profile.driver.node.table import NodeDevice, TableFile, TimelineTable, device_files, pid_namespace, visible
from gpu_profile.driver.null import SilentDriver
from gpu_profile.driver.protocol import Capability
from gpu_profile.errors import DeviceLost, GpuBackendError
from gpu_profile.units import NS_PER_S

#: A table that was not touched for so long has no writer any more; nor has a device that had no row for so long, or for
#: so many of its intervals.
STALE_S: Final = 4.0
STALE_INTERVALS: Final = 5
#: Rows are fetched so often at most: to wake up for each costs more than to read several at once. A span waits for its
#: samples for 1 s, and a sample comes up to 0.25 s after the time that it is of.
BATCH_S: Final = 0.7
#: By so much the last samples come after the time that they are of: an exporter fetches what the driver buffers once a
#: second. Who ends waits for them.
LAG_S: Final = 1.2
_LONGEST_LAG_S: Final = 3.0
_AVAILABLE: Final = Capability(available=True)


class NodeDriver(SilentDriver):
    """Serves the samples of the timeline in `directory` that are read after it was opened.

    A device whose writer says that it is lost, or whose samples stop, raises DeviceLost; GpuBackendError where there is
    no timeline, nobody keeps it any more, or its writer has no driver. Signals of other `groups` are left out.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock = SYSTEM_CLOCK,
        groups: Collection[Group] = DEFAULT_GROUPS,
        files: Path = Path("/dev"),
    ) -> None:
        self.directory: Final = directory
        self.name: Final = f"node:{directory}"
        self._clock = clock
        self._groups = frozenset(groups) | {Group.CORE}
        self._device_files = files
        self._file = TableFile(directory)
        self._readers: dict[str, dict[str, RingReader]] = {}
        #: Files that are none of ours, and those that could not be opened, which are tried again; and why.
        self._refused: dict[str, str] = {}
        self._unopened: dict[str, str] = {}
        self._capabilities: dict[str, tuple[NodeDevice, Mapping[Signal, Capability]]] = {}
        self._opened_ns = clock.now_ns()
        self._event_ns = clock.now_ns()
        table = self._table()
        self.version: Final = table.driver_version
        #: The driver that the samples are read through.
        self.recorded_driver: Final = table.driver
        self.interval_s: Final = table.interval_s
        self.batch_s: Final = max(BATCH_S, table.interval_s)
        self.lag_s: Final = min(LAG_S + table.interval_s, _LONGEST_LAG_S)
        #: Whether another driver should go on: asked now and then by whoever may change over.
        self.superseded: Callable[[], bool] | None = None

    def _table(self) -> TimelineTable:
        table = self._file.read()
        if table.ended:
            raise GpuBackendError(f"the timeline in {self.directory} has ended: its writer has stopped")
        age_s = (self._clock.now_ns() - self._file.touched_ns) / NS_PER_S
        if abs(age_s) > STALE_S:
            raise GpuBackendError(
                f"the timeline in {self.directory} was last kept {age_s:.0f} s ago: its writer is gone"
            )
        if table.problem and not any(one.up for one in table.devices):
            raise GpuBackendError(f"the writer of the timeline in {self.directory} has no driver: {table.problem}")
        return table

    def devices(self) -> Sequence[Device]:
        """The devices of the table that this process's `/dev` shows; all of them where it shows none."""
        return [one.device for one in visible(self._table().devices, device_files(self._device_files))]

    @property
    def covers(self) -> bool:
        """Whether the table has every GPU that this process's `/dev` shows, and any at all, each with new samples."""
        whole = [one for one in self._table().devices if one.up and one.device.parent is None]
        known = {one.device.minor for one in whole if self._is_fresh(self._newest_ns(one))}
        return bool(known) and device_files(self._device_files) <= known

    def starves(self) -> bool:
        """Whether a device of this process is up, as the table says, and has no new samples that can be read. False
        where there is no timeline: then reading fails."""
        try:
            up = [one for one in visible(self._table().devices, device_files(self._device_files)) if one.up]
        except GpuBackendError:
            return False
        return any(not self._is_fresh(self._newest_ns(one)) for one in up)

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        """The signals that the device's newest file has; why others are absent, as its writer says."""
        one = self._known(device)
        held = self._capabilities.get(device.uuid)
        if held is not None and held[0] is one:
            return held[1]
        readers = self._opened(one)
        newest = readers.get(one.files[0]) if one.files else None
        # Before its first sample a device has no file: its writer lists all that it cannot read.
        here = newest.signals if newest is not None else self._listed(one)
        unread = self._refused | self._unopened
        refused = next((unread[name] for name in one.files if name in unread), "")
        found = {
            signal: _AVAILABLE
            if signal in here
            else Capability(False, one.absent.get(signal.key) or refused or "not in the node's timeline")
            for signal in SIGNALS
        }
        if newest is not None:
            self._capabilities[device.uuid] = one, found
        return found

    def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
        """With `FAST`, all that is new in the device's files, of every tier: they are read together."""
        if tier is not Tier.FAST:
            return ()
        try:
            one = self._known(device)
        except GpuBackendError:
            # What was written before the end comes first.
            if samples := self._read(self._readers.get(device.uuid, {})):
                return samples
            raise
        if not one.up:
            raise DeviceLost(one.reason or "lost")
        samples = self._read(self._opened(one))
        self._check_fresh(one)
        return samples

    def _read(self, readers: Mapping[str, RingReader]) -> list[Sample]:
        samples: list[Sample] = []
        for reader in readers.values():
            with suppress(OSError):
                samples += reader.read()
        if len(readers) > 1:
            samples.sort(key=_end)
        return samples

    def events(self) -> Sequence[Event]:
        """What has happened since the driver was opened and was not told before."""
        since = self._event_ns
        found = [event for event in self._table().events if event.t_ns > since]
        self._event_ns = max((event.t_ns for event in found), default=since)
        return found

    def processes(self, device: Device) -> Sequence[ProcessUse]:
        """Who uses the device, as its writer was told; nobody where the writer numbers processes otherwise."""
        uses = self._known(device).processes
        return uses if uses and self._table().pid_namespace == pid_namespace() else ()

    def close(self) -> None:
        """Close the files."""
        for readers in self._readers.values():
            for reader in readers.values():
                reader.close()
        self._readers.clear()

    # ------------------------------------------------------------------

    def _known(self, device: Device) -> NodeDevice:
        for one in self._table().devices:
            if one.device.uuid == device.uuid:
                return one
        raise DeviceLost(f"{device.uuid} is not in the timeline in {self.directory}")

    def _opened(self, one: NodeDevice) -> Mapping[str, RingReader]:
        """The device's files, those that are new opened, those that are not listed any more closed."""
        readers = self._readers.setdefault(one.device.uuid, {})
        if list(readers) == [name for name in one.files if name not in self._refused]:
            return readers
        for name in [name for name in readers if name not in one.files]:
            readers.pop(name).close()
        for name in one.files:
            if name in readers or name in self._refused:
                continue
            try:
                reader = RingReader(self.directory / name, wants=self._wants)
            except OSError as error:
                self._unopened[name] = f"{name}: {error.strerror or error}"
                continue
            except LayoutError as error:
                self._refused[name] = f"{name}: {error}"
                continue
            self._unopened.pop(name, None)
            if reader.uuid != one.device.uuid:
                reader.close()
                self._refused[name] = f"{name}: of another device"
                continue
            if reader.created_ns <= self._opened_ns:
                reader.skip()  # what was begun later is all new
            readers[name] = reader
        ordered = {name: readers[name] for name in one.files if name in readers}
        self._readers[one.device.uuid] = ordered
        return ordered

    def _listed(self, one: NodeDevice) -> Collection[Signal]:
        """What a device without a file yet should have; nothing where it has one that cannot be read."""
        return [] if one.files else [row for row in SIGNALS if row.key not in one.absent and self._wants(row)]

    def _wants(self, signal: Signal) -> bool:
        return signal.group in self._groups

    def _newest_ns(self, one: NodeDevice) -> int:
        return max((reader.newest_ns or 0 for reader in self._opened(one).values()), default=0)

    def _is_fresh(self, newest_ns: int) -> bool:
        limit_s = max(STALE_S, STALE_INTERVALS * self.interval_s)
        return bool(newest_ns) and abs(self._clock.now_ns() - newest_ns) <= limit_s * NS_PER_S

    def _check_fresh(self, one: NodeDevice) -> None:
        newest_ns = self._newest_ns(one)
        if not self._is_fresh(newest_ns):
            age = f"for {(self._clock.now_ns() - newest_ns) / NS_PER_S:.0f} s" if newest_ns else "yet"
            unread = self._refused | self._unopened
            why = "".join(f" ({unread[name]})" for name in one.files[:1] if name in unread)
            raise DeviceLost(f"the timeline in {self.directory} has had no sample of {one.device.uuid} {age}{why}")


def _end(sample: Sample) -> int:
    return sample.t_end_ns

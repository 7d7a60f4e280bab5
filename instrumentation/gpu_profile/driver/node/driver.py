"""The driver `node[:DIR]`: serves the samples that another process of this node reads, without calling NVML."""

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
from gpu_profile.units import NS_PER_S, nanoseconds

#: A table that was not touched for this long has lost its writer. A device without a new row for this long, or for
#: `STALE_INTERVALS` of its intervals if that is longer, counts as lost.
STALE_S: Final = 4.0
STALE_INTERVALS: Final = 5
#: The shortest time between two reads of rows: waking up for each row costs more than reading several at once. A span
#: waits 1 s for its samples, and a sample arrives up to 0.25 s after its end.
BATCH_S: Final = 0.7
#: The delay of the newest samples: the exporter drains the driver's buffers once a second. A process that ends waits
#: this long for its last samples.
LAG_S: Final = 1.2
_LONGEST_LAG_S: Final = 3.0
_AVAILABLE: Final = Capability(available=True)


class NodeDriver(SilentDriver):
    """Serves the samples that are written to the timeline in `directory` after it was opened.

    `history_s`: also those of this time before, as far as the files have them.
    DeviceLost for a device that the writer reports as lost, or without new samples. GpuBackendError if there is no
    timeline, its writer is gone, or its writer has no driver. Signals of other `groups` are left out.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock = SYSTEM_CLOCK,
        groups: Collection[Group] = DEFAULT_GROUPS,
        files: Path = Path("/dev"),
        history_s: float = 0.0,
    ) -> None:
        self.directory: Final = directory
        self.name: Final = f"node:{directory}"
        self._clock = clock
        self._groups = frozenset(groups) | {Group.CORE}
        self._device_files = files
        self._file = TableFile(directory)
        self._readers: dict[str, dict[str, RingReader]] = {}
        #: Reasons by file: files with a wrong content, and files that could not be opened, which is tried again.
        self._refused: dict[str, str] = {}
        self._unopened: dict[str, str] = {}
        self._capabilities: dict[str, tuple[NodeDevice, Mapping[Signal, Capability]]] = {}
        self._lost_before = 0
        self._opened_ns = clock.now_ns()
        self._since_ns = self._opened_ns - nanoseconds(history_s) if history_s else None
        table = self._table()
        #: The events that were there at the start or have been served. Times do not tell: the clock may be set back.
        self._events = set(table.events)
        self.version: Final = table.driver_version
        #: The driver with which the writer reads the samples.
        self.recorded_driver: Final = table.driver
        self.interval_s: Final = table.interval_s
        self.batch_s: Final = max(BATCH_S, table.interval_s)
        self.lag_s: Final = min(LAG_S + table.interval_s, _LONGEST_LAG_S)
        #: Returns True if another driver should take over. The sampler calls it from time to time.
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
        """The devices of the table that this process's `/dev` shows, or all of them if it shows none."""
        return [one.device for one in visible(self._table().devices, device_files(self._device_files))]

    @property
    def covers_all_gpus(self) -> bool:
        """Whether the table has at least one GPU and every GPU that `/dev` shows, each with new samples."""
        whole = [one for one in self._table().devices if one.up and one.device.parent is None]
        fresh = {one.device.minor for one in whole if self._is_fresh(self._newest_ns(one))}
        return bool(fresh) and device_files(self._device_files) <= fresh

    def lacks_fresh_samples(self) -> bool:
        """Whether a device of this process is up by the table, but has no new readable samples.

        False if there is no timeline: reading raises in that case.
        """
        try:
            up = [one for one in visible(self._table().devices, device_files(self._device_files)) if one.up]
        except GpuBackendError:
            return False
        return any(not self._is_fresh(self._newest_ns(one)) for one in up)

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        """The signals in the device's newest file, and the writer's reasons for absent ones."""
        one = self._row(device)
        cached = self._capabilities.get(device.uuid)
        if cached is not None and cached[0] is one:
            return cached[1]
        readers = self._open_readers(one)
        newest = readers.get(one.files[0]) if one.files else None
        # Before its first sample a device has no file, but the table lists the signals that the writer cannot read.
        here = newest.signals if newest is not None else self._expected(one)
        unread = self._refused | self._unopened
        refused = next((unread[name] for name in one.files if name in unread), "")
        capabilities = {
            signal: _AVAILABLE
            if signal in here
            else Capability(False, one.absent.get(signal.key) or refused or "not in the node's timeline")
            for signal in SIGNALS
        }
        if newest is not None:
            self._capabilities[device.uuid] = one, capabilities
        return capabilities

    def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
        """With `FAST`, the new samples of every tier, because they are read together. Nothing with other tiers."""
        if tier is not Tier.FAST:
            return ()
        try:
            one = self._row(device)
        except GpuBackendError:
            # Serve the samples that were written before the timeline ended.
            if samples := self._read(self._readers.get(device.uuid, {})):
                return samples
            raise
        if not one.up:
            raise DeviceLost(one.reason or "lost")
        samples = self._read(self._open_readers(one))
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
        """The events since the driver was opened, each once."""
        events = [event for event in self._table().events if event not in self._events]
        self._events.update(events)
        return events

    def processes(self, device: Device) -> Sequence[ProcessUse]:
        """The processes on the device, as read by the writer. Empty if its PID namespace is not this process's."""
        uses = self._row(device).processes
        return uses if uses and self._table().pid_namespace == pid_namespace() else ()

    @property
    def lost_rows(self) -> int:
        """Rows that were overwritten before they were read, or were damaged."""
        return self._lost_before + sum(reader.lost for files in self._readers.values() for reader in files.values())

    def _close_reader(self, reader: RingReader) -> None:
        self._lost_before += reader.lost
        reader.close()

    def close(self) -> None:
        """Close the files."""
        for readers in self._readers.values():
            for reader in readers.values():
                self._close_reader(reader)
        self._readers.clear()

    # ------------------------------------------------------------------

    def _row(self, device: Device) -> NodeDevice:
        for one in self._table().devices:
            if one.device.uuid == device.uuid:
                return one
        raise DeviceLost(f"{device.uuid} is not in the timeline in {self.directory}")

    def _open_readers(self, one: NodeDevice) -> Mapping[str, RingReader]:
        """Readers of the device's files. Opens new files, and closes files that the table no longer lists."""
        readers = self._readers.setdefault(one.device.uuid, {})
        if list(readers) == [name for name in one.files if name not in self._refused]:
            return readers
        for name in [name for name in readers if name not in one.files]:
            self._close_reader(readers.pop(name))
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
                reader.skip(self._since_ns)  # all rows of a later file are new
            readers[name] = reader
        ordered = {name: readers[name] for name in one.files if name in readers}
        self._readers[one.device.uuid] = ordered
        return ordered

    def _expected(self, one: NodeDevice) -> Collection[Signal]:
        """The signals that a device without a file should have later. Empty if it has a file, which is unreadable."""
        return [] if one.files else [row for row in SIGNALS if row.key not in one.absent and self._wants(row)]

    def _wants(self, signal: Signal) -> bool:
        return signal.group in self._groups

    def _newest_ns(self, one: NodeDevice) -> int:
        now_ns = self._clock.now_ns()
        newest = (reader.newest_ns(now_ns) for reader in self._open_readers(one).values())
        return min(newest, key=lambda end_ns: abs(now_ns - end_ns), default=0)

    def _is_fresh(self, newest_ns: int) -> bool:
        limit_s = max(STALE_S, STALE_INTERVALS * self.interval_s)
        return bool(newest_ns) and abs(self._clock.now_ns() - newest_ns) <= limit_s * NS_PER_S

    def _check_fresh(self, one: NodeDevice) -> None:
        newest_ns = self._newest_ns(one)
        if not self._is_fresh(newest_ns):
            age_s = (self._clock.now_ns() - newest_ns) / NS_PER_S
            age = f"for {age_s:.0f} s" if age_s > 0 else "since the clock was set back"
            age = age if newest_ns else "yet"
            unread = self._refused | self._unopened
            why = "".join(f" ({unread[name]})" for name in one.files[:1] if name in unread)
            raise DeviceLost(f"the timeline in {self.directory} has had no sample of {one.device.uuid} {age}{why}")


def _end(sample: Sample) -> int:
    return sample.t_end_ns

"""Writes the directory of the node's timeline: the table, and the list of files in it. Runs in the exporter."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from gpu_profile.clock import Clock
from gpu_profile.driver.node.layout import LONGEST_HEAD, SUFFIX, LayoutError, read_head
from gpu_profile.driver.node.table import NAME, NodeDevice, TimelineTable, pid_namespace, replace, touch
from gpu_profile.errors import UsageError
from gpu_profile.units import nanoseconds

if TYPE_CHECKING:
    from gpu_profile.catalogue import Signal
    from gpu_profile.catalogue.samples import Event
    from gpu_profile.driver import Capability
    from gpu_profile.sampling.tracked import TrackedDevice
    from gpu_profile_exporter.readings.readings import DriverFacts

#: The interval at which an unchanged table is touched, so that its readers see that it is current.
TOUCH_S: Final = 1.0
#: The interval at which files without recent writes are removed.
SWEEP_S: Final = 10.0
#: The number of events in a table, the newest ones.
_EVENTS: Final = 64
_LOCK: Final = ".lock"
_PRIVATE: Final = 0o700
_NAME: Final = re.compile(rf"[0-9a-f]{{16}}{re.escape(SUFFIX)}")
_log = logging.getLogger("gpu_profile_exporter")


@dataclass(frozen=True, slots=True)
class TimelineOptions:
    """The timeline's directory, the retention of samples in seconds, and the files' mode and group."""

    directory: Path
    retention_s: float = 600.0
    mode: int = 0o644
    group: int | None = None


class ReaderReport(Protocol):
    """The reports of readers, as an `Intake` has them."""

    driver: DriverFacts | None
    problem: str
    events: deque[Event]

    @property
    def states(self) -> Mapping[str, TrackedDevice]:
        """The devices by UUID."""
        ...


class NodeTimeline:
    """Writes the timeline's directory for one exporter. Not thread-safe.

    UsageError if the directory cannot be written, or another exporter uses it. Later failures are logged and retried.
    """

    def __init__(self, options: TimelineOptions, *, interval_s: float, clock: Clock) -> None:
        self.options = options
        #: Returns the allocations of each device, by UUID.
        self.holders: Callable[[], Mapping[str, Sequence[Mapping[str, str]]]] = dict
        self._interval_s = interval_s
        self._clock = clock
        #: The listed files of each device, the newest first.
        self._files: dict[str, list[str]] = {}
        self._table: TimelineTable | None = None
        self._inode = 0
        #: The time of the last write to each file, as of the last sweep.
        self._written_ns: dict[str, int] = {}
        self._absences: dict[str, tuple[Mapping[Signal, Capability], Mapping[str, str]]] = {}
        self._touch_due = self._sweep_due = 0.0
        self._problem = ""
        try:
            self._make_directory()
            self._lock = self._locked()
        except OSError as error:
            raise UsageError(f"--timeline: {options.directory}: {error.strerror or error}") from error
        for path in options.directory.glob(f".{NAME}.*"):  # left by an exporter that was killed during a write
            with suppress(OSError):
                path.unlink()
        self._adopt()

    def _make_directory(self) -> None:
        directory, mode = self.options.directory, self.options.mode
        # Users with read access to the files may also list and enter the directory.
        rights = 0o700 | mode & 0o077 | (mode & 0o044) >> 2
        made = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
        status = directory.stat()
        # An existing directory keeps its mode, except a private one of this user, such as the release socket's.
        if made or (status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == _PRIVATE):
            if self.options.group is not None:
                os.chown(directory, -1, self.options.group)
            directory.chmod(rights)

    def _locked(self) -> int:
        path = self.options.directory / _LOCK
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise UsageError(f"--timeline: another exporter keeps {self.options.directory}") from None
        return fd

    def _adopt(self) -> None:
        """List the files that previous exporters left: they are part of the history."""
        heads = []
        for path in self.options.directory.glob(f"*{SUFFIX}"):
            with suppress(OSError, LayoutError):
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    head = read_head(os.pread(fd, LONGEST_HEAD, 0), os.fstat(fd).st_size)
                finally:
                    os.close(fd)
                if path.name == f"{head.generation:016x}{SUFFIX}":
                    heads.append((head.created_ns, head.uuid, path.name))
        for _, uuid, name in sorted(heads, reverse=True):
            self._files.setdefault(uuid, []).append(name)

    @property
    def settings(self) -> dict[str, Any]:
        """The timeline's settings for reader processes."""
        options = self.options
        return {
            "timeline": str(options.directory.absolute()),
            "retention_s": options.retention_s,
            "timeline_mode": options.mode,
            "timeline_group": options.group,
        }

    def add_file(self, uuid: str, name: str) -> None:
        """List a new file, to which a reader writes the samples of this device."""
        files = self._files.setdefault(uuid, [])
        if name and name not in files:
            files.insert(0, name)
            self._touch_due = 0.0

    def keep(self, report: ReaderReport) -> None:
        """Write the table if it has changed, else touch it. Also removes old files. Does nothing within `TOUCH_S`."""
        now = time.monotonic()
        if now < self._touch_due:
            return
        self._touch_due = now + TOUCH_S
        if now >= self._sweep_due:
            self._sweep_due = now + SWEEP_S
            self._sweep()
        table = self._current(report)
        try:
            if table == self._table and self._is_ours():
                touch(self.options.directory, self._clock.now_ns())
            else:
                self._write(table)
        except OSError as error:
            self._table = None
            with suppress(OSError, UsageError):  # the directory may have been removed
                self._make_directory()
                lock = self._locked()
                os.close(self._lock)
                self._lock = lock
            if str(error) != self._problem:
                _log.warning("the timeline's table cannot be written: %s", error)
            self._problem = str(error)
        else:
            self._problem = ""

    def close(self, report: ReaderReport) -> None:
        """Mark the table as ended. The files stay, as history for the next exporter."""
        with suppress(OSError):
            self._write(self._current(report, ended=True))
        os.close(self._lock)

    def _write(self, table: TimelineTable) -> None:
        options, now_ns = self.options, self._clock.now_ns()
        self._inode = replace(options.directory, table, now_ns, mode=options.mode, group=options.group)
        self._table = table

    def _is_ours(self) -> bool:
        """True if the present table is the one that was written last."""
        return (self.options.directory / NAME).lstat().st_ino == self._inode

    def _current(self, report: ReaderReport, *, ended: bool = False) -> TimelineTable:
        driver, holders = report.driver, self.holders()
        return TimelineTable(
            self._interval_s,
            self.options.retention_s,
            "" if driver is None else driver.origin or driver.name,
            "" if driver is None else driver.version,
            "" if driver is not None else report.problem,
            ended,
            pid_namespace(),
            tuple(
                NodeDevice(
                    state.device,
                    state.up,
                    state.reason,
                    tuple(self._files.get(uuid, ())),
                    self._absent(uuid, state.capabilities),
                    None if state.processes_ns is None else tuple(state.processes),
                    tuple(holders.get(uuid, ())),
                )
                for uuid, state in list(report.states.items())
            ),
            tuple(report.events)[-_EVENTS:],
        )

    def _absent(self, uuid: str, capabilities: Mapping[Signal, Capability]) -> Mapping[str, str]:
        """The reasons for signals that are not read. Cached while the capabilities are the same object."""
        cached = self._absences.get(uuid)
        if cached is None or cached[0] is not capabilities:
            reasons = {row.key: can.reason for row, can in capabilities.items() if not can.available}
            cached = self._absences[uuid] = capabilities, reasons
        return cached[1]

    def _sweep(self) -> None:
        """Remove files without a write for the retention time.

        Only if the previous sweep saw the same last write: after a change of the clock, files in use look old too.
        """
        now_ns, before, self._written_ns = time.time_ns(), self._written_ns, {}
        for path in self.options.directory.glob(f"*{SUFFIX}"):
            with suppress(OSError):
                written_ns = self._written_ns[path.name] = path.lstat().st_mtime_ns
                old = abs(now_ns - written_ns) > nanoseconds(self.options.retention_s)
                if old and before.get(path.name) == written_ns and _is_samples_file(path.name):
                    path.unlink()
                    for files in self._files.values():
                        if path.name in files:
                            files.remove(path.name)


def _is_samples_file(name: str) -> bool:
    return _NAME.fullmatch(name) is not None

"""The directory of the node's timeline: its table, and the files that are listed in it. The exporter keeps it."""

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
    from gpu_profile.sampling.tracked import Tracked
    from gpu_profile_exporter.readings.readings import DriverFacts

#: The table is touched this often, which tells readers that it still holds.
TOUCH_S: Final = 1.0
#: Files that nobody writes to any more are looked for this often.
SWEEP_S: Final = 10.0
#: Events that a table tells of.
_EVENTS: Final = 64
_LOCK: Final = ".lock"
_PRIVATE: Final = 0o700
_NAME: Final = re.compile(rf"[0-9a-f]{{16}}{re.escape(SUFFIX)}")
_log = logging.getLogger("gpu_profile_exporter")


@dataclass(frozen=True, slots=True)
class TimelineOptions:
    """Where the timeline is, for how long samples are kept, and who may read it."""

    directory: Path
    retention_s: float = 600.0
    mode: int = 0o644
    group: int | None = None


class ReaderReport(Protocol):
    """What readers have said, as an `Intake` has it."""

    driver: DriverFacts | None
    problem: str
    events: deque[Event]

    @property
    def states(self) -> Mapping[str, Tracked]:
        """The devices by UUID."""
        ...


class NodeTimeline:
    """Keeps the timeline's directory for one exporter.

    UsageError if the directory cannot be written, or another exporter keeps it. What fails later is logged and tried
    again. One thread calls.
    """

    def __init__(self, options: TimelineOptions, *, interval_s: float, clock: Clock) -> None:
        self.options = options
        #: Who holds the devices, by UUID.
        self.holders: Callable[[], Mapping[str, Sequence[Mapping[str, str]]]] = dict
        self._interval_s = interval_s
        self._clock = clock
        #: By device, the files that are listed, the newest first.
        self._files: dict[str, list[str]] = {}
        self._table: TimelineTable | None = None
        self._inode = 0
        #: When files were last written to, at the sweep before.
        self._written_ns: dict[str, int] = {}
        self._absences: dict[str, tuple[Mapping[Signal, Capability], Mapping[str, str]]] = {}
        self._touch_due = self._sweep_due = 0.0
        self._problem = ""
        try:
            self._make_directory()
            self._lock = self._locked()
        except OSError as error:
            raise UsageError(f"--timeline: {options.directory}: {error.strerror or error}") from error
        for path in options.directory.glob(f".{NAME}.*"):  # of an exporter that was killed while it wrote one
            with suppress(OSError):
                path.unlink()
        self._adopt()

    def _make_directory(self) -> None:
        directory, mode = self.options.directory, self.options.mode
        # Who may read the files may look into the directory.
        rights = 0o700 | mode & 0o077 | (mode & 0o044) >> 2
        made = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
        status = directory.stat()
        # One that was there keeps its rights, but for one of this user alone, as the release socket makes it.
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
        """List what an exporter before this one has left, which is history still."""
        found = []
        for path in self.options.directory.glob(f"*{SUFFIX}"):
            with suppress(OSError, LayoutError):
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    head = read_head(os.pread(fd, LONGEST_HEAD, 0), os.fstat(fd).st_size)
                finally:
                    os.close(fd)
                if path.name == f"{head.generation:016x}{SUFFIX}":
                    found.append((head.created_ns, head.uuid, path.name))
        for _, uuid, name in sorted(found, reverse=True):
            self._files.setdefault(uuid, []).append(name)

    @property
    def settings(self) -> dict[str, Any]:
        """What reader processes are told."""
        options = self.options
        return {
            "timeline": str(options.directory.absolute()),
            "retention_s": options.retention_s,
            "timeline_mode": options.mode,
            "timeline_group": options.group,
        }

    def add_file(self, uuid: str, name: str) -> None:
        """A reader writes samples of this device to a new file."""
        files = self._files.setdefault(uuid, [])
        if name and name not in files:
            files.insert(0, name)
            self._touch_due = 0.0

    def keep(self, report: ReaderReport) -> None:
        """Write the table if it has changed, touch it if it has not, and remove what is too old."""
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
            with suppress(OSError, UsageError):  # somebody may have removed it
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
        """Say that nobody keeps it any more. The files stay: they are history for who comes next."""
        with suppress(OSError):
            self._write(self._current(report, ended=True))
        os.close(self._lock)

    def _write(self, table: TimelineTable) -> None:
        options, now_ns = self.options, self._clock.now_ns()
        self._inode = replace(options.directory, table, now_ns, mode=options.mode, group=options.group)
        self._table = table

    def _is_ours(self) -> bool:
        """Whether the table that is there is the one that was put there."""
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
        """Why signals are not read, made once for each answer of the driver."""
        held = self._absences.get(uuid)
        if held is None or held[0] is not capabilities:
            reasons = {row.key: can.reason for row, can in capabilities.items() if not can.available}
            held = self._absences[uuid] = capabilities, reasons
        return held[1]

    def _sweep(self) -> None:
        """Remove files that were not written to for as long as samples are kept.

        Not at first sight: where the clock is set, files look old that are written to all the time.
        """
        now_ns, before, self._written_ns = time.time_ns(), self._written_ns, {}
        for path in self.options.directory.glob(f"*{SUFFIX}"):
            with suppress(OSError):
                written_ns = self._written_ns[path.name] = path.lstat().st_mtime_ns
                old = abs(now_ns - written_ns) > nanoseconds(self.options.retention_s)
                if old and before.get(path.name) == written_ns and _ours(path.name):
                    path.unlink()
                    for files in self._files.values():
                        if path.name in files:
                            files.remove(path.name)


def _ours(name: str) -> bool:
    return _NAME.fullmatch(name) is not None

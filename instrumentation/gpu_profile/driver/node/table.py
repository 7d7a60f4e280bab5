"""`table.json`: the devices of the node's timeline, their files, events, processes and holders.

The writer replaces the whole file with `rename`, so that readers never see a part of it. Readers ignore unknown keys.
A table with an invalid device is refused as a whole: without it, others would look like the only ones.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from gpu_profile.catalogue.samples import Device, DeviceKind, Event, ProcessUse
from gpu_profile.errors import GpuBackendError

NAME: Final = "table.json"
VERSION: Final = 3
#: The default directory of the timeline.
DIRECTORY: Final = Path("/run/gpu-profile")
#: The environment variable with another directory.
VARIABLE: Final = "GPU_PROFILE_TIMELINE"
#: The most bytes of a table: 64 GPUs with 7 instances each need less than 1 MB.
_LONGEST: Final = 1 << 24
#: A table is padded with one space per step of its time, modulo `_STEPS`, so that each new table has another size.
_STEP_NS: Final = 1_000_000
_STEPS: Final = 4093


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """The latest description of a device.

    `files`: the names of its files, the newest first. `absent`: key of a signal -> why it is not read. `processes`:
    None if the writer does not list processes. `holders`: the known pods and containers that use the device, as
    OpenTelemetry's attributes.
    """

    device: Device
    up: bool
    reason: str
    files: tuple[str, ...]
    absent: Mapping[str, str]
    processes: tuple[ProcessUse, ...] | None = None
    holders: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TimelineTable:
    """The content of a table.

    The writer reads fast signals every `interval_s` with `driver`, and keeps samples for `retention_s`. `problem`: why
    there is no driver, or empty. `ended`: the writer has stopped. `pid_namespace`: the namespace of the process ids.
    """

    interval_s: float
    retention_s: float
    driver: str
    driver_version: str
    problem: str
    ended: bool
    pid_namespace: str
    devices: tuple[NodeDevice, ...]
    events: tuple[Event, ...]

    @property
    def text(self) -> str:
        """As JSON. Equal GPUs share their reasons, because every reader parses each new table as a whole."""
        absences: list[Mapping[str, str]] = []
        for device in self.devices:
            if device.absent not in absences:
                absences.append(dict(device.absent))
        content = {
            "version": VERSION,
            "interval_s": self.interval_s,
            "retention_s": self.retention_s,
            "driver": self.driver,
            "driver_version": self.driver_version,
            "problem": self.problem,
            "ended": self.ended,
            "pid_namespace": self.pid_namespace,
            "absences": absences,
            "devices": [_device_row(device, absences.index(device.absent)) for device in self.devices],
            "events": [asdict(event) for event in self.events],
        }
        return json.dumps(content, separators=(",", ":"))


def _device_row(one: NodeDevice, absent: int) -> dict[str, Any]:
    about = {key: value for key, value in asdict(one.device).items() if value not in (None, "")}
    uses = None if one.processes is None else [[use.pid, use.memory_bytes, use.utilization] for use in one.processes]
    return about | {
        "kind": one.device.kind.value,
        "up": one.up,
        "reason": one.reason,
        "files": list(one.files),
        "absent": absent,
        "processes": uses,
        "holders": [dict(holder) for holder in one.holders],
    }


def parse(text: str) -> TimelineTable:
    """The table in JSON text. ValueError, with the reason, if it is invalid."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("not an object")
    if content.get("version") != VERSION:
        raise ValueError(f"version {content.get('version')!r}, but this gpu-profile reads version {VERSION}")
    try:
        absences = [{str(key): str(value) for key, value in row.items()} for row in content["absences"]]
        return TimelineTable(
            float(content["interval_s"]),
            float(content["retention_s"]),
            str(content["driver"]),
            str(content["driver_version"]),
            str(content["problem"]),
            bool(content["ended"]),
            str(content["pid_namespace"]),
            tuple(_device(row, absences) for row in content["devices"]),
            tuple(Event(**{f.name: row.get(f.name, f.default) for f in fields(Event)}) for row in content["events"]),
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


_FACTS: Final = {f.name for f in fields(Device)}


def _device(row: Mapping[str, Any], absences: Sequence[Mapping[str, str]]) -> NodeDevice:
    facts = {key: value for key, value in row.items() if key in _FACTS}
    uses = row["processes"]
    names = [str(name) for name in row["files"]]
    return NodeDevice(
        Device(**facts | {"kind": DeviceKind(row["kind"])}),
        bool(row["up"]),
        str(row["reason"]),
        tuple(name for name in names if "/" not in name and not name.startswith(".")),
        absences[int(row["absent"])],
        None if uses is None else tuple(ProcessUse(*use) for use in uses),
        tuple({str(key): str(value) for key, value in holder.items()} for holder in row.get("holders", ())),
    )


class TableFile:
    """The table in a directory. Reads the file again after it was replaced."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self._seen: tuple[int, int] | None = None
        self._table: TimelineTable | None = None
        #: When the writer last touched the table, in ns since the epoch. It does so about once a second.
        self.touched_ns = 0

    def read(self) -> TimelineTable:
        """The current table. GpuBackendError if it is missing, invalid, or anybody could have written it."""
        try:
            status = self.path.stat()
            self.touched_ns = status.st_mtime_ns
            seen = status.st_ino, status.st_size
            if self._table is None or seen != self._seen:
                self._table, self._seen = self._load(), seen
        except OSError as error:
            raise GpuBackendError(
                f"no timeline of this node in {self.path.parent}: {error.strerror or error}"
            ) from error
        except (ValueError, RecursionError) as error:
            raise GpuBackendError(f"{self.path}: not a table that can be read: {error}") from error
        return self._table

    def _load(self) -> TimelineTable:
        directory = self.path.parent.stat()
        if directory.st_mode & stat.S_IWOTH and not directory.st_mode & stat.S_ISVTX:
            raise ValueError("anybody may write to its directory")
        fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ValueError("not a regular file")
            with os.fdopen(fd, "rb", closefd=False) as file:
                data = file.read(_LONGEST + 1)
        finally:
            os.close(fd)
        if len(data) > _LONGEST:
            raise ValueError(f"longer than {_LONGEST} bytes")
        return parse(data.decode())


def touch(directory: Path, now_ns: int) -> None:
    """Set the table's time stamp, which shows readers that the writer lives. OSError if the table is gone."""
    os.utime(directory / NAME, ns=(now_ns, now_ns), follow_symlinks=False)


def replace(directory: Path, table: TimelineTable, now_ns: int, *, mode: int, group: int | None) -> int:
    """Replace the table, and return the inode number of the new one.

    OSError if it cannot be written. The old table stays in that case.
    """
    temporary = directory / f".{NAME}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            # A file system may reuse the old table's inode for the new one. Their sizes still differ.
            file.write(table.text + " " * (now_ns // _STEP_NS % _STEPS))
            file.flush()
            if group is not None:
                os.fchown(fd, -1, group)
            os.fchmod(fd, mode)
            os.utime(fd, ns=(now_ns, now_ns))
            inode = os.fstat(fd).st_ino
        temporary.replace(directory / NAME)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return inode


def directory_of(argument: str | None, environ: Mapping[str, str]) -> Path:
    """The directory of the driver `node:ARGUMENT`, or of `node` in this environment."""
    return Path(argument or environ.get(VARIABLE) or DIRECTORY)


def visible(devices: Sequence[NodeDevice], minors: Collection[int]) -> list[NodeDevice]:
    """The devices with these device minors, and their instances. All devices without minors, as in a sidecar."""
    if not minors:
        return list(devices)
    numbers = {one.device.uuid: one.device.minor for one in devices}
    return [one for one in devices if numbers.get(one.device.parent or one.device.uuid) in minors]


def device_files(directory: Path = Path("/dev")) -> frozenset[int]:
    """The numbers N of the files `/dev/nvidiaN` that this process can see."""
    with suppress(OSError):
        names = os.listdir(directory)  # noqa: PTH208 - names alone
        suffixes = (name.removeprefix("nvidia") for name in names if name.startswith("nvidia"))
        return frozenset(int(number) for number in suffixes if number.isascii() and number.isdecimal())
    return frozenset()


def pid_namespace() -> str:
    """The PID namespace of this process; empty if it cannot be read."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - a link to nothing
    return ""

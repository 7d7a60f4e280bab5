"""`table.json`: the devices of the node's timeline, their files, and what cannot be said in samples.

It is replaced as a whole, by `rename`, so that a reader never sees half of it. Keys that a reader does not know are
skipped; of a device that it cannot understand it knows nothing.
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
VERSION: Final = 2
#: Where the timeline is, unless told otherwise.
DIRECTORY: Final = Path("/run/gpu-profile")
#: The variable that names another directory.
VARIABLE: Final = "GPU_PROFILE_TIMELINE"
#: A table is no longer than this: 64 GPUs with 7 instances each have less than 1 MB.
_LONGEST: Final = 1 << 24
#: A table is padded by one space for each step of its time, and by none after so many.
_STEP_NS: Final = 1_000_000
_STEPS: Final = 4093


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """A device as its reader last described it.

    `files` are the names of its files, the newest first. `absent` says why a signal is not read, by its key.
    `processes` is None where nobody asks who uses devices. `holders` are its pods and containers, by OpenTelemetry's
    attributes, as far as they are known.
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

    Fast signals are read every `interval_s` through `driver`, and kept for `retention_s`. `problem` says why there is
    no driver, if so. `ended`: the exporter has stopped. `pid_namespace` is the namespace of the process ids.
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
        """As JSON."""
        told = {
            "version": VERSION,
            "interval_s": self.interval_s,
            "retention_s": self.retention_s,
            "driver": self.driver,
            "driver_version": self.driver_version,
            "problem": self.problem,
            "ended": self.ended,
            "pid_namespace": self.pid_namespace,
            "devices": [_device_row(device) for device in self.devices],
            "events": [asdict(event) for event in self.events],
        }
        return json.dumps(told, separators=(",", ":"))


def _device_row(one: NodeDevice) -> dict[str, Any]:
    about = {key: value for key, value in asdict(one.device).items() if value not in (None, "")}
    uses = None if one.processes is None else [[use.pid, use.memory_bytes, use.utilization] for use in one.processes]
    return about | {
        "kind": one.device.kind.value,
        "up": one.up,
        "reason": one.reason,
        "files": list(one.files),
        "absent": dict(one.absent),
        "processes": uses,
        "holders": [dict(holder) for holder in one.holders],
    }


def parse(text: str) -> TimelineTable:
    """A table from JSON; ValueError with the reason for what is none."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    if found.get("version") != VERSION:
        raise ValueError(f"version {found.get('version')!r}, but this gpu-profile reads version {VERSION}")
    try:
        return TimelineTable(
            float(found["interval_s"]),
            float(found["retention_s"]),
            str(found["driver"]),
            str(found["driver_version"]),
            str(found["problem"]),
            bool(found["ended"]),
            str(found["pid_namespace"]),
            tuple(_device(row) for row in found["devices"]),
            tuple(Event(**{f.name: row.get(f.name, f.default) for f in fields(Event)}) for row in found["events"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


_FACTS: Final = {f.name for f in fields(Device)}


def _device(row: Mapping[str, Any]) -> NodeDevice:
    facts = {key: value for key, value in row.items() if key in _FACTS}
    uses = row["processes"]
    names = [str(name) for name in row["files"]]
    return NodeDevice(
        Device(**facts | {"kind": DeviceKind(row["kind"])}),
        bool(row["up"]),
        str(row["reason"]),
        tuple(name for name in names if "/" not in name and not name.startswith(".")),
        {str(key): str(value) for key, value in row["absent"].items()},
        None if uses is None else tuple(ProcessUse(*use) for use in uses),
        tuple({str(key): str(value) for key, value in holder.items()} for holder in row.get("holders", ())),
    )


class TableFile:
    """The table in a directory, read again when it has been replaced."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self._seen: tuple[int, int] | None = None
        self._table: TimelineTable | None = None
        #: When its writer was last alive: it touches the table about once a second.
        self.touched_ns = 0

    def read(self) -> TimelineTable:
        """The table as it is now; GpuBackendError if there is none, or none that can be trusted or understood."""
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
    """Say that the table still holds; OSError if it is gone."""
    os.utime(directory / NAME, ns=(now_ns, now_ns), follow_symlinks=False)


def replace(directory: Path, table: TimelineTable, now_ns: int, *, mode: int, group: int | None) -> int:
    """Put a table in place of the one that is there, and return its inode number.

    OSError if it cannot be written, and the old one stays.
    """
    temporary = directory / f".{NAME}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            # A file system may give a new table the inode of the one before: then its size tells them apart.
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
    """The directory that is meant by `node:ARGUMENT`, or by `node` in this environment."""
    return Path(argument or environ.get(VARIABLE) or DIRECTORY)


def visible(devices: Sequence[NodeDevice], minors: Collection[int]) -> list[NodeDevice]:
    """Those of the node's devices whose device files have these numbers; all if there are none, as in a sidecar."""
    if not minors:
        return list(devices)
    numbers = {one.device.uuid: one.device.minor for one in devices}
    return [one for one in devices if numbers.get(one.device.parent or one.device.uuid) in minors]


def device_files(directory: Path = Path("/dev")) -> frozenset[int]:
    """The numbers N of the files `/dev/nvidiaN` that this process can see."""
    with suppress(OSError):
        names = os.listdir(directory)  # noqa: PTH208 - names alone
        found = (name.removeprefix("nvidia") for name in names if name.startswith("nvidia"))
        return frozenset(int(number) for number in found if number.isascii() and number.isdecimal())
    return frozenset()


def pid_namespace() -> str:
    """The namespace that this process's numbers of processes are of; empty if the system does not tell."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - a link to nothing
    return ""

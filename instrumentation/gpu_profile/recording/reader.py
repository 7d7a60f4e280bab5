"""Reads recordings: every intact record, with an account of the damage."""

from __future__ import annotations

import fcntl
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from gpu_profile.catalogue import Kind
from gpu_profile.catalogue import signal as signal_row
from gpu_profile.catalogue.samples import Device, Event
from gpu_profile.errors import RecordingError
from gpu_profile.recording.columns import Block, Column, Columns, decode_blocks, joined, merged, rescaled
from gpu_profile.recording.format import HEADER_SIZE, SUFFIX, FileRecord, RecordType, frames, header_problem, inflate
from gpu_profile.recording.pauses import Pause, begun_anew, pauses_of
from gpu_profile.recording.records import ProcessInfo, SpanRecord, from_fields
from gpu_profile.recording.set_clocks import SetClock, recorded_clock, set_clock

_T = TypeVar("_T")
#: The most process numbers in a line.
_NAMED: Final = 8

#: Errors of decoding a record with a right checksum and wrong content: another program wrote it.
_MALFORMED: Final = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    EOFError,
    SyntaxError,
    struct.error,
)


@dataclass(frozen=True, slots=True)
class Recording:
    """The content of a directory of recorded files.

    `samples` maps a device's UUID to a mapping from the signal's key to its columns. `lost_bytes` counts the bytes
    outside all intact records. `problems` has one line for each missing part, with file and place. `device_hosts` maps
    a device's UUID to the host of the process that recorded it. `pauses` maps it to the times without measurement.
    """

    processes: tuple[ProcessInfo, ...]
    devices: tuple[Device, ...]
    samples: Mapping[str, Mapping[str, Columns]]
    spans: tuple[SpanRecord, ...]
    events: tuple[Event, ...]
    notes: tuple[Mapping[str, Any], ...]
    lost_bytes: int = 0
    problems: tuple[str, ...] = ()
    device_hosts: Mapping[str, str] = field(default_factory=dict)
    pauses: Mapping[str, tuple[Pause, ...]] = field(default_factory=dict)


class Cut(NamedTuple):
    """A damaged tail that `repair` removed: `lost_bytes` bytes of `path` from byte `offset` on."""

    path: Path
    offset: int
    lost_bytes: int


def read_recording(directory: str | os.PathLike[str], *, since_ns: int = 0) -> Recording:
    """Every intact record in the files of `directory`, in the order of file names and then of writing.

    Two readers of one sensor add no information. So where several processes sampled the same signal of a device at the
    same time, the readings of the longest stretch count, and the others fill its gaps. Where the clock of a host was
    set, its earlier times are moved to its last setting, with a line in `problems`. Files of processes that began
    to record before `since_ns` are left out.

    RecordingError if the directory does not exist or has no recording, or if a file in it is no recording of a version
    that this one reads. Damage is no error: `lost_bytes` counts it, and `problems` lists it.
    """
    paths = _files(Path(directory))
    content = _RecordingContent(since_ns, several=len(paths) > 1)
    for path in paths:
        content.file(path, _bytes(path))
    content.undo_settings()
    samples: dict[str, dict[str, Columns]] = {}
    for (device, key), blocks in content.blocks.items():
        samples.setdefault(device, {})[key] = merged([joined(own) for own in blocks.values()])
    pauses, lines = pauses_of(samples, content.writers())
    return Recording(
        tuple(content.processes),
        tuple(content.devices.values()),
        samples,
        tuple(content.spans),
        tuple(content.events),
        tuple(content.notes),
        content.lost_bytes,
        tuple(dict.fromkeys([*content.problems, *lines, *content.unended()])),
        content.device_hosts,
        pauses,
    )


def repair(directory: Path) -> tuple[Cut, ...]:
    """Cut the damaged tail off each file of `directory`, and return the cuts.

    A file with an incomplete header is removed: it has no content. Damage between intact records stays: a reader skips
    it. RecordingError as in `read_recording`, or if a damaged file cannot be changed or is still being written.
    """
    cuts = []
    for path in _files(directory):
        data = _bytes(path)
        _check_header(path, data)
        end = HEADER_SIZE
        for record in frames(data):
            end = record.end
        if len(data) < HEADER_SIZE:
            end = 0
        if end < len(data) or not data:
            _cut(path, end)
            cuts.append(Cut(path, end, len(data) - end))
    return tuple(cuts)


def _cut(path: Path, end: int) -> None:
    try:
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(end)
        if end == 0:
            path.unlink()
    except BlockingIOError as error:
        raise RecordingError(f"{path}: is still being written; stop that process first") from error
    except OSError as error:
        raise RecordingError(f"{path}: cannot be repaired: {error.strerror}") from error


def _files(directory: Path) -> list[Path]:
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)
    except NotADirectoryError as error:
        raise RecordingError(
            f"{directory}: not a recording but a file; give the directory that holds it: {directory.parent}"
        ) from error
    except FileNotFoundError as error:
        raise RecordingError(f"{directory}: not a recording: {error.strerror}") from error
    except OSError as error:
        raise RecordingError(f"{directory}: cannot be read: {error.strerror}") from error
    if not paths:
        raise RecordingError(f"{directory}: not a recording: no {SUFFIX} file in it")
    return paths


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error.strerror}") from error


def _check_header(path: Path, data: bytes) -> str | None:
    """A line if the header is incomplete, None if it is right. RecordingError if the file cannot be of this version."""
    problem = header_problem(data)
    if problem is None:
        return None
    offset, reason = problem
    line = f"{path}: byte {offset}: {reason}"
    if len(data) >= HEADER_SIZE or offset < len(data):
        raise RecordingError(line)
    return line


@dataclass
class _RecordingContent:
    """The records read so far, of processes that began at `since_ns` or later. `several`: it has more than one file."""

    since_ns: int = 0
    several: bool = False
    processes: list[ProcessInfo] = field(default_factory=list)
    devices: dict[str, Device] = field(default_factory=dict)
    #: By device and signal, and then by file.
    blocks: dict[tuple[str, str], dict[Path, list[Columns]]] = field(default_factory=dict)
    spans: list[SpanRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    notes: list[Mapping[str, Any]] = field(default_factory=list)
    device_hosts: dict[str, str] = field(default_factory=dict)
    #: By file with a process: the places of its process, spans and events.
    parts: dict[Path, tuple[int, slice, slice]] = field(default_factory=dict)
    lost_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    #: PIDs of files without an end mark: of processes that still write, and of processes that are gone.
    writing: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)

    def unended(self) -> Iterator[str]:
        """A line for the processes that ended without their last records, and one for those that still record."""
        if self.gone:
            yield (
                f"{_processes(self.gone)} ended without handing in the last regions and samples: "
                "killed by a signal such as SIGKILL or SIGHUP, ended by a crash, or left by os._exit"
            )
        if self.writing:
            yield f"{_processes(self.writing)} still recorded when the files were read"

    def file(self, path: Path, data: bytes) -> None:
        """Add a file. RecordingError if it is no recording of this version."""
        problem = _check_header(path, data)
        if problem is not None:
            self._lost(problem, len(data))
            return
        process: ProcessInfo | None = None
        end_ns: int | None = None
        at = HEADER_SIZE
        first_span, first_event = len(self.spans), len(self.events)
        for record in frames(data):
            self._gap(path, at, record.start)
            at = record.end
            try:
                if record.type == RecordType.PROCESS:
                    process = from_fields(ProcessInfo, _object(record))
                    if process.start_ns < self.since_ns:
                        return
                elif record.type == RecordType.END:
                    end_ns = int(_object(record)["end_ns"])
                else:
                    self._record(path, record)
            except _MALFORMED as error:
                reason = f"{type(error).__name__}: {error}"[:200]
                size = record.end - record.start
                self._lost(f"{path}: byte {record.start}: malformed record of {size} bytes skipped ({reason})", size)
        self._gap(path, at, len(data), "the file is cut off or damaged there")
        if process is not None:
            own = slice(first_span, len(self.spans)), slice(first_event, len(self.events))
            self.parts[path] = len(self.processes), *own
            self._written_by(replace(process, end_ns=end_ns), path, first_span)
        else:
            self.problems.append(f"{path}: byte {HEADER_SIZE}: no record of the process that wrote the file")
        if end_ns is None and process is not None:
            (self.writing if _is_written(path) else self.gone).append(process.pid)

    def _written_by(self, process: ProcessInfo, path: Path, first_span: int) -> None:
        """Add the process that wrote a file, and note it in the file's spans and devices."""
        if self.several or process.rank is not None:
            rank, place = process.rank, len(self.processes)
            self.spans[first_span:] = [span._replace(rank=rank, process=place) for span in self.spans[first_span:]]
        self.processes.append(process)
        for (device, _), blocks in self.blocks.items():
            if path in blocks:
                self.device_hosts.setdefault(device, process.host)

    def undo_settings(self) -> None:
        """Move the times of hosts whose clocks were set to the last setting."""
        machines: dict[str, list[Path]] = {}
        for path, (place, *_) in self.parts.items():
            machines.setdefault(self.processes[place].boot or self.processes[place].host, []).append(path)
        for paths in machines.values():
            written = [self.processes[self.parts[path][0]] for path in paths]
            moments = [moment for process in written for moment in process.moments]
            clock = recorded_clock(moments) if moments else set_clock(self._polled(paths))
            if clock is None:
                continue
            self.problems.append(f"{written[0].host}: {clock.text}")
            if not moments:
                own = {device for (device, _), blocks in self.blocks.items() if not blocks.keys().isdisjoint(paths)}
                # A container has a name of its own, and the clock of the machine that has its GPUs.
                paths += [path for path in self.parts if path not in paths and self._runs_on(path, own)]
            for path in paths:
                self._set(clock, path)

    def _polled(self, paths: Sequence[Path]) -> list[Column]:
        """The ends of the polled readings of each signal in each of some files, in the order of writing."""
        return [
            np.concatenate([block.t_end for block in blocks[path]])
            for (_, key), blocks in self.blocks.items()
            for path in paths
            if path in blocks and signal_row(key).kind is not Kind.WINDOW_MEAN
        ]

    def writers(self) -> dict[str, list[ProcessInfo]]:
        """For each device with samples, the processes with its clock: first the ones that recorded it."""
        result: dict[str, list[ProcessInfo]] = {}
        for (device, _), blocks in self.blocks.items():
            own = [self.processes[self.parts[path][0]] for path in blocks if path in self.parts]
            boots = {process.boot for process in own} - {""}
            if own:
                result.setdefault(device, []).extend([*own, *(each for each in self.processes if each.boot in boots)])
        return result

    def _runs_on(self, path: Path, devices: set[str]) -> bool:
        """Whether a file has executions on some of the devices, and no readings of its own."""
        if self.processes[self.parts[path][0]].moments or any(path in blocks for blocks in self.blocks.values()):
            return False
        marked = (
            [*span.devices, *(mark.device for mark in span.device_intervals)]
            for span in self.spans[self.parts[path][1]]
        )
        return any(not devices.isdisjoint(each) for each in marked)

    def _set(self, clock: SetClock, path: Path) -> None:
        place, spans, events = self.parts[path]
        process, own, seen = self.processes[place], self.spans[spans], self.events[events]
        first, self.spans[spans] = clock.process(process.start_ns, own)
        times = clock.ahead((event.t_ns for event in seen), polled=True)
        self.events[events] = [replace(each, t_ns=each.t_ns - by) for each, by in zip(seen, times, strict=True)]
        rows = 0
        for (_, key), blocks in self.blocks.items():
            if path in blocks:
                t_start, t_end, value = (np.concatenate(column) for column in zip(*blocks[path], strict=True))
                by = np.array(clock.ahead(t_end.tolist(), polled=True), np.int64)
                steps = (np.flatnonzero(np.diff(by)) + 1).tolist()
                blocks[path] = [begun_anew(signal_row(key), Columns(t_start - by, t_end - by, value), steps)]
                if len(by) > rows:
                    first, rows = int(by[0]), len(by)
        end_ns = process.end_ns if process.end_ns is None else process.end_ns - clock.ahead([process.end_ns])[0]
        self.processes[place] = replace(process, start_ns=process.start_ns - first, end_ns=end_ns)

    def _gap(self, path: Path, start: int, end: int, why: str = "damaged") -> None:
        if end > start:
            self._lost(f"{path}: byte {start}: {end - start} bytes lost: {why}", end - start)

    def _lost(self, problem: str, size: int) -> None:
        self.lost_bytes += size
        self.problems.append(problem)

    def _record(self, path: Path, record: FileRecord) -> None:
        if record.type == RecordType.SAMPLES:
            # All blocks of a record are decoded before one is added: a malformed record must leave nothing behind.
            for block in list(decode_blocks(inflate(record.payload))):
                self._block(path, block)
        elif record.type == RecordType.DEVICES:
            self.devices.update((device.uuid, device) for device in _list(record, Device))
        elif record.type == RecordType.SPANS:
            self.spans += _list(record, SpanRecord)
        elif record.type == RecordType.EVENTS:
            self.events += _list(record, Event)
        elif record.type == RecordType.NOTES:
            self.notes += [dict(note) for note in _objects(record)]
        elif record.type == RecordType.UNWRITTEN:
            lost = _object(record)
            self.problems.append(
                f"{path}: byte {record.start}: {lost['samples']} samples and {lost['facts']} facts before this place "
                f"were not written: {lost['reason']}"
            )
        else:
            self.problems.append(
                f"{path}: skipped records of unknown type {record.type}: a newer gpu-profile wrote them"
            )

    def _block(self, path: Path, block: Block) -> None:
        try:
            row = signal_row(block.signal)
        except KeyError:
            self.problems.append(f"{path}: skipped signal {block.signal!r}: unknown to this gpu-profile")
            return
        if (row.unit, str(row.kind)) != (block.unit, block.kind):
            self.problems.append(
                f"{path}: skipped signal {block.signal!r}: a {block.kind} in {block.unit} there, "
                f"a {row.kind} in {row.unit} in this gpu-profile"
            )
            return
        try:
            value = block.value if block.quantum == row.quantum else rescaled(block.value, block.quantum, row.quantum)
        except (ValueError, ArithmeticError) as error:
            self.problems.append(f"{path}: skipped samples of {block.signal!r} in quanta of {block.quantum}: {error}")
            return
        own = self.blocks.setdefault((block.device, row.key), {}).setdefault(path, [])
        own.append(Columns(block.t_start, block.t_end, value))


def _is_written(path: Path) -> bool:
    """Whether its writer still has the lock on it. The lock of a dead process is gone, even before it is reaped."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # some network file systems have no locks
        return False
    return False


def _processes(pids: Sequence[int]) -> str:
    numbers = ", ".join(map(str, sorted(pids)[:_NAMED])) + (", …" if len(pids) > _NAMED else "")
    return f"{len(pids)} process{'es' if len(pids) > 1 else ''} (pid {numbers})"


def _object(record: FileRecord) -> dict[str, Any]:
    return dict(json.loads(inflate(record.payload)))


def _objects(record: FileRecord) -> list[Mapping[str, Any]]:
    objects: list[Mapping[str, Any]] = json.loads(inflate(record.payload))
    return objects


def _list(record: FileRecord, kind: type[_T]) -> list[_T]:
    return [from_fields(kind, values) for values in _objects(record)]

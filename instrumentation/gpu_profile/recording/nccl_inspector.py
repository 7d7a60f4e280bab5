"""Collectives from the files of NCCL Inspector, a profiler plugin in NCCL's repository (`plugins/profiler/inspector`).

It writes one file for each process, `HOST-pidPID.log`, with one JSON object a line: formats v4.0 (NCCL 2.28) to v4.3.
Up to v4.2 each record names its process and communicator. From v4.3 on, a record belongs to the last `dump_stats`
record before it. Time stamps are in µs by the node's clock, and only in verbose files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpu_profile.errors import UsageError

ENDING: Final = ".log"
#: A longer line is damage: a record of a collective on 64 channels has 15 kB.
_LONGEST_LINE: Final = 1 << 20
#: The most collectives of all files. They take some 500 MB.
MOST_COLLECTIVES: Final = 2_000_000
#: Times from here on (the year 2116) are damage.
_LATEST_US: Final = (1 << 62) // 1000
_LARGEST: Final = 1 << 62
#: The file system's longest name, and the longest name of a function.
_LONGEST_NAME: Final = 255
_VERBOSE: Final = "no time stamps: set NCCL_INSPECTOR_DUMP_VERBOSE=1"


class Collective(NamedTuple):
    """One collective on one rank. Times are in ns since the epoch, by the clock of `host`.

    `communicator`, `function` and `number` are the same on all ranks that took part, `size` is their number.
    `launched_ns` is the call on the host. From `start_ns` to `end_ns` its kernel ran, first channel to last.
    """

    host: str
    pid: int
    communicator: str
    function: str
    number: int
    size: int
    message_bytes: int
    launched_ns: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class InspectorFiles:
    """The content of some files. `problems` has one line for each file with missing or damaged records."""

    collectives: tuple[Collective, ...]
    problems: tuple[str, ...] = ()


class _UnusableError(Exception):
    """A record that is left out; its text is the reason."""


@dataclass(slots=True)
class _InspectorReader:
    collectives: list[Collective] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    #: Texts that many records have in common, each kept once.
    texts: dict[str, str] = field(default_factory=dict)

    def file(self, path: Path) -> None:
        """Add a file. UsageError if it cannot be read."""
        left_out, dropped = Counter[str](), 0
        header: Mapping[str, Any] = {}
        metadata: Mapping[str, Any] = {}
        for line in _lines(path, left_out):
            if len(self.collectives) >= MOST_COLLECTIVES:
                self.problems.append(
                    f"{path.name}: only the first {MOST_COLLECTIVES:,} collectives of all files are read"
                )
                break
            try:
                record = _object(line)
                header, metadata = _part(record, "header", header), _part(record, "metadata", metadata)
                if "dump_stats" in record:
                    dropped += _number(_part(record, "dump_stats", {}), "coll_dropped_since_last_dump", 0)
                if "coll_perf" in record:
                    self.collectives.append(self._collective(_part(record, "coll_perf", {}), header, metadata))
            except _UnusableError as problem:
                left_out[str(problem)] += 1
        self.problems += [f"{path.name}: {count:,} records left out: {reason}" for reason, count in left_out.items()]
        if dropped:
            raised = "raise NCCL_INSPECTOR_DUMP_COLL_RING_SIZE"
            self.problems.append(f"{path.name}: NCCL Inspector dropped {dropped:,} collectives: {raised}")

    def _collective(
        self, values: Mapping[str, Any], header: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> Collective:
        if not header or not metadata:
            raise _UnusableError("no process and communicator before them")
        traced = values.get("event_trace_ts")
        if type(traced) is not dict:
            raise _UnusableError(_VERBOSE)
        channels = traced.get("kernel_events")
        if type(channels) is not list or not all(type(each) is dict for each in channels):
            raise _UnusableError("no list of kernel events")
        starts = [_time_us(each, "kernel_start_ts") for each in channels]
        ends = [_time_us(each, "kernel_stop_ts") for each in channels]
        launched = _time_us(traced, "coll_start_ts")
        # A channel without an event has zeros.
        began, ended = min(filter(None, starts), default=0), max(ends, default=0)
        if not launched or not began or ended < began:
            raise _UnusableError("impossible time stamps")
        return Collective(
            self._text(metadata, "hostname"),
            _number(metadata, "pid"),
            self._text(header, "id"),
            self._text(values, "coll"),
            _number(values, "coll_sn"),
            _number(header, "n_ranks"),
            _number(values, "coll_msg_size_bytes"),
            launched * 1000,
            began * 1000,
            ended * 1000,
        )

    def _text(self, values: Mapping[str, Any], key: str) -> str:
        value = values.get(key)
        if type(value) is not str or not value or len(value) > _LONGEST_NAME:
            raise _UnusableError(f"no {key}")
        return self.texts.setdefault(value, value)


def read_inspector(path: Path) -> InspectorFiles:
    """The collectives in a file of NCCL Inspector, or in all files of a folder that end in `.log`.

    UsageError if there is none, or if the path cannot be read.
    """
    try:
        paths = [path]
        if path.is_dir():
            # A pipe would never end.
            paths = sorted(each for each in path.iterdir() if each.suffix == ENDING and each.is_file())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    reader = _InspectorReader()
    for each in paths:
        reader.file(each)
    if not reader.collectives:
        why = reader.problems[0] if reader.problems else f"no file with records that ends in {ENDING}"
        raise UsageError(f"{path}: no collectives of NCCL Inspector: {why}"[:200])
    return InspectorFiles(tuple(reader.collectives), tuple(reader.problems))


def _lines(path: Path, left_out: Counter[str]) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while line := file.readline(_LONGEST_LINE):
                if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
                    left_out["longer than 1 MiB"] += 1
                    while (rest := file.readline(_LONGEST_LINE)) and not rest.endswith(b"\n"):
                        pass
                elif line.strip():
                    yield line
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _UnusableError("no JSON: cut off or damaged") from error
    if type(record) is not dict:
        raise _UnusableError("no object")
    return record


def _part(record: Mapping[str, Any], key: str, default: Mapping[str, Any]) -> Mapping[str, Any]:
    value = record.get(key, default)
    if not isinstance(value, Mapping):
        raise _UnusableError(f"{key} is no object")
    return value


def _number(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = values.get(key, default)
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise _UnusableError(f"no {key}")
    return value


def _time_us(values: Mapping[str, Any], key: str) -> int:
    """A time stamp; 0 if it is missing."""
    value = values.get(key, 0)
    if type(value) is not int or not 0 <= value < _LATEST_US:
        raise _UnusableError("impossible time stamps")
    return value

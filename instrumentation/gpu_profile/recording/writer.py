"""Writes a recording: buffered in columns, appended in whole records."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Device, Event, Sample
from gpu_profile.clock import Clock, StepWatch
from gpu_profile.errors import RecordingError
from gpu_profile.recording.columns import encode_blocks
from gpu_profile.recording.format import MAX_PAYLOAD, SUFFIX, RecordType, frame, header, to_json
from gpu_profile.recording.rank import Rank, rank
from gpu_profile.recording.records import ProcessInfo, SpanRecord, to_fields
from gpu_profile.units import NS_PER_S

_FLUSH_EVERY_NS: Final = NS_PER_S
#: Without a flush by its owner, a writer flushes at this size. It bounds the memory, and the size of a record.
_MOST_SAMPLES: Final = 1 << 16
_MOST_TEXT: Final = 1 << 22
#: The most readings of the clock that a file has: it was set half as often.
_MOST_MOMENTS: Final = 200
#: The kernel's random name for the time since the machine has started.
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class RecordingWriter:
    """Appends this process's samples and facts to one new file in `directory`, which is created if missing.

    The owner calls `maybe_flush` from its loop; then `kill -9` loses at most the last second. Threads may share a
    writer. It belongs to the process that created it: a forked child needs its own. Every method raises
    `RecordingError` with path and reason if the file cannot be written. The data of that flush are then lost and
    counted in the file. The file stays readable, and the next flush tries again.

    `now_ns` gives nanoseconds since the epoch. With `clock`, which then replaces it, the file also has the moments at
    which the clock was set. `driver` is the driver's name and `driver_version` its version.
    """

    def __init__(
        self,
        directory: Path,
        *,
        now_ns: Callable[[], int] = time.time_ns,
        clock: Clock | None = None,
        driver: str = "",
        driver_version: str = "",
    ) -> None:
        self._now_ns = now_ns if clock is None else clock.now_ns
        self._clock_steps = None if clock is None else StepWatch(clock)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._columns: dict[tuple[str, Signal], array[int]] = {}
        self._samples = 0
        self._texts: dict[RecordType, list[str]] = {}
        self._text_size = 0
        self._devices: dict[str, Device] = {}
        #: The numbers of samples and facts that could not be written, and the reason; empty if there are none.
        self._unwritten = 0, 0, ""
        self._flushed_ns = self._now_ns()
        place = rank(os.environ) or Rank(None, None, None)
        self._process = ProcessInfo(
            _version(),
            socket.gethostname(),
            self._pid,
            self._flushed_ns,
            driver,
            driver_version,
            rank=place.rank,
            local_rank=place.local_rank,
            world_size=place.size,
            boot="" if clock is None else _boot(),
            moments=() if self._clock_steps is None else (self._clock_steps.last,),
        )
        #: Whether the process has changed since its last record.
        self._renewed = False
        host = re.sub(r"[^A-Za-z0-9.-]", "_", self._process.host)[:64] or "host"
        self.path: Final = directory / f"{host}-{self._pid}-{self._process.start_ns}{SUFFIX}"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, flags, 0o644)
        except OSError as error:
            raise RecordingError(f"{self.path}: cannot be created: {_reason(error)}") from error
        with suppress(OSError):  # some network file systems have no locks; they only keep `repair` away from live files
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._size = 0
        try:
            self._append(header() + self._described())
        except RecordingError:
            os.close(self._fd)
            with suppress(OSError):
                self.path.unlink()
            raise

    def _described(self) -> bytes:
        return frame(RecordType.PROCESS, to_json(to_fields(self._process)).encode())

    @property
    def driver(self) -> str:
        """The driver's name; empty until it is set."""
        return self._process.driver

    def set_driver(self, name: str, version: str) -> None:
        """Set the driver, if it was unknown when the file was created."""
        self._check_owner()
        with self._lock:
            self._process = replace(self._process, driver=name, driver_version=version)
            self._append(self._described())

    def device(self, device: Device) -> None:
        """Add a device. An unchanged device is written once."""
        if self._devices.get(device.uuid) != device:
            self._fact(RecordType.DEVICES, to_fields(device))
            self._devices[device.uuid] = device

    def sample(self, device_uuid: str, sample: Sample) -> None:
        """Buffer one sample until the next flush. RecordingError if a number does not fit 64 bits."""
        self.samples(device_uuid, (sample,))

    def samples(self, device_uuid: str, samples: Iterable[Sample]) -> None:
        """Buffer samples until the next flush. RecordingError if a number does not fit 64 bits."""
        self._check_owner()
        with self._lock:
            for sample in samples:
                column = self._columns.setdefault((device_uuid, sample.signal), array("q"))
                try:
                    column.extend(sample[1:])
                except (OverflowError, TypeError) as error:
                    del column[len(column) // 3 * 3 :]
                    reason = f"{sample.signal.key} {sample[1:]}: not three 64 bit numbers"
                    raise RecordingError(f"{self.path}: {reason}") from error
                self._samples += 1
                if self._samples >= _MOST_SAMPLES:
                    self._flush()

    def span(self, span: SpanRecord) -> None:
        """Buffer one execution of a region until the next flush."""
        self._fact(RecordType.SPANS, to_fields(span))

    def event(self, event: Event) -> None:
        """Buffer an event of a device until the next flush."""
        self._fact(RecordType.EVENTS, to_fields(event))

    def note(self, note: Mapping[str, Any]) -> None:
        """Buffer any other JSON object until the next flush, such as the truth of a simulated device."""
        self._fact(RecordType.NOTES, dict(note))

    def flush(self) -> None:
        """Append all buffered data. From here on they survive the process."""
        self._check_owner()
        with self._lock:
            self._flush()

    def maybe_flush(self) -> None:
        """`flush`, if the last one is a second or more ago (or in the future, after the clock was set back)."""
        with self._lock:
            self._look_at_clock()
        if not 0 <= self._now_ns() - self._flushed_ns < _FLUSH_EVERY_NS:
            self.flush()

    def close(self) -> None:
        """Flush, append the end mark and close. A second call has no effect. A forked child writes nothing."""
        if os.getpid() != self._pid:
            self._release()
            return
        with self._lock:
            if self._fd >= 0:
                try:
                    self._flush(frame(RecordType.END, to_json({"end_ns": self._now_ns()}).encode()))
                finally:
                    self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with suppress(*(() if error is None else (RecordingError,))):  # the user's own exception goes first
            self.close()

    def _release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _check_owner(self) -> None:
        # Before the lock: a child that was forked while another thread had it would wait for ever.
        if os.getpid() != self._pid:
            raise RecordingError(f"{self.path}: belongs to process {self._pid}; open a writer in the forked child")
        if self._fd < 0:
            raise RecordingError(f"{self.path}: the recording is closed")

    def _fact(self, kind: RecordType, fact: dict[str, Any]) -> None:
        self._check_owner()
        try:
            text = to_json(fact)
        except ValueError as error:
            raise RecordingError(f"{self.path}: {kind.name.lower()}: {error}") from error
        if len(text) > MAX_PAYLOAD // 2:
            raise RecordingError(f"{self.path}: {kind.name.lower()}: {len(text)} bytes, at most {MAX_PAYLOAD // 2} fit")
        with self._lock:
            self._texts.setdefault(kind, []).append(text)
            self._text_size += len(text)
            if self._text_size >= _MOST_TEXT:
                self._flush()

    def _flush(self, end: bytes = b"") -> None:
        columns, self._columns = self._columns, {}
        texts, self._texts = self._texts, {}
        samples, self._samples, self._text_size = self._samples, 0, 0
        self._flushed_ns = self._now_ns()
        columns = {key: column for key, column in columns.items() if column}
        self._look_at_clock()
        data = [self._described()] if self._renewed else []
        data += [frame(kind, f"[{','.join(texts[kind])}]".encode()) for kind in sorted(texts)]
        if columns:
            data.append(frame(RecordType.SAMPLES, encode_blocks(columns)))
        lost_samples, lost_facts, reason = self._unwritten
        if reason:
            unwritten = {"samples": lost_samples, "facts": lost_facts, "reason": reason}
            data.append(frame(RecordType.UNWRITTEN, to_json(unwritten).encode()))
        if not data and not end:
            return
        try:
            self._append(b"".join(data) + end)
        except RecordingError as error:
            # Devices are few, and all other records refer to them: they are kept. The rest would fill the memory.
            self._texts = {kind: facts for kind, facts in texts.items() if kind == RecordType.DEVICES}
            facts = sum(len(lost) for kind, lost in texts.items() if kind != RecordType.DEVICES)
            self._unwritten = lost_samples + samples, lost_facts + facts, str(error)
            raise
        self._unwritten, self._renewed = (0, 0, ""), False

    def _look_at_clock(self) -> None:
        step = self._clock_steps.step() if self._clock_steps is not None else None
        moments = self._process.moments
        if step is not None and len(moments) < _MOST_MOMENTS:
            self._process, self._renewed = replace(self._process, moments=(*moments, *step)), True

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            with suppress(OSError):  # a reader skips half a record too, so a failing truncation loses nothing more
                os.ftruncate(self._fd, self._size)
            raise RecordingError(f"{self.path}: cannot be written: {_reason(error)}") from error
        self._size += len(data)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _version() -> str:
    from importlib import metadata  # takes 15 ms, and regions import this module

    try:
        return metadata.version("gpu-profile")
    except metadata.PackageNotFoundError:
        return "unknown"

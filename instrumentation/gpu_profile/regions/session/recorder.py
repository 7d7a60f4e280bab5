"""Keeps what a sampler and a session see: samples as they are read, executions once it is known when they ran."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

from gpu_profile.catalogue.samples import Device, Event, Interval, Sample
from gpu_profile.driver import live_driver
from gpu_profile.errors import RecordingError
from gpu_profile.recording import DeviceInterval, RecordingWriter, SpanRecord
from gpu_profile.regions.execution import AWAIT_S, Execution
from gpu_profile.regions.session.session import Session
from gpu_profile.units import NS_PER_S

_log = logging.getLogger("gpu_profile")

#: The directory to record into where the code does not say.
RECORD_VARIABLE: Final = "GPU_PROFILE_RECORD"
#: The driver, as `--backend` names it, whose samples a parent process records into that directory.
SAMPLED_VARIABLE: Final = "GPU_PROFILE_SAMPLED"


class Recorder:
    """Writes into `directory`. `driver()` gives the driver's name and version once it is known.

    With `strict` a failing disk raises RecordingError in the caller; else it ends the recording with one log line, and
    the process goes on. `samples` and `spans` count what was taken, `problem` says why the recording ended early. What
    comes after `close()` starts another file. `devices_of` says where an execution ran that has no marks of a device.
    """

    def __init__(
        self,
        directory: Path,
        *,
        now_ns: Callable[[], int],
        driver: Callable[[], tuple[str, str]],
        strict: bool = False,
        devices_of: Callable[[Execution], Iterable[Device]] = lambda _: (),
    ) -> None:
        self.directory = directory
        self.samples = 0
        self.spans = 0
        self.problem = ""
        #: The file that was begun last.
        self.path: Path | None = None
        self._now_ns = now_ns
        self._driver = driver
        self._strict = strict
        self._devices_of = devices_of
        #: Executions that have ended, but whose stream has not passed their marks.
        self._waiting: deque[Execution] = deque()
        #: The same, but for what a profiler's window says of them; in order of their end.
        self._awaiting: list[Execution] = []
        self._writer: RecordingWriter | None = None
        self._lock = threading.Lock()

    def _write(self, action: Callable[[RecordingWriter], None]) -> bool:
        with self._lock:
            if self.problem:
                return False
            try:
                if self._writer is None:
                    name, version = self._driver()
                    self._writer = RecordingWriter(
                        self.directory, now_ns=self._now_ns, driver=name, driver_version=version
                    )
                    self.path = self._writer.path
                elif not self._writer.driver and (known := self._driver())[0]:
                    self._writer.set_driver(*known)
                action(self._writer)
                self._writer.maybe_flush()
            except RecordingError as error:
                self._fail(error)
                return False
        return True

    def open(self) -> None:
        """Make the directory and the file now, not with the first sample."""
        self._write(lambda _: None)

    def _fail(self, error: RecordingError) -> None:
        self.problem = str(error)
        if self._strict:
            raise error
        _log.error("gpu-profile: the recording ends here: %s", error)

    def take(self, device: Device, samples: Sequence[Sample]) -> None:
        """A sampler's sink."""

        def write(writer: RecordingWriter) -> None:
            writer.device(device)
            writer.samples(device.uuid, samples)

        if self._write(write):
            self.samples += len(samples)

    def take_event(self, event: Event) -> None:
        """A sampler's event."""
        self._write(lambda writer: writer.event(event))

    def take_ended(self, execution: Execution) -> None:
        """A session's execution that has ended: written at once, or after its stream has passed its marks.

        Samples that the join waits for matter nothing here, and what is written survives the process. One that a
        profiler's window has seen waits until `take_read`.
        """
        self._waiting.append(execution)
        while self._waiting and self._waiting[0].interval() is not None:
            self._write_or_await(self._waiting.popleft())

    def take_settled(self, execution: Execution) -> None:
        """A session's execution that nobody waits for any more: written, if it was not, with what is known."""
        if execution in self._waiting:
            self._waiting.remove(execution)
            self._write_or_await(execution)

    def take_read(self) -> None:
        """Write the executions whose window of the profiler has been read, or for which nobody waits any more."""
        aside, self._awaiting = self._awaiting, []
        for execution in aside:
            self._write_or_await(execution)

    def _write_or_await(self, execution: Execution) -> None:
        # It seems to have ended in the future if the clock was set back meanwhile.
        if execution.awaited and 0 <= self._now_ns() - execution.end_ns < AWAIT_S * NS_PER_S:
            self._awaiting.append(execution)
        else:
            self._write_span(execution, execution.interval())

    def _write_span(self, execution: Execution, interval: Interval | None) -> None:
        on_device: tuple[DeviceInterval, ...] = ()
        devices: tuple[str, ...] = ()
        if execution.stream is not None and interval is not None and interval.source == "device":
            on_device = (DeviceInterval(execution.stream.device_uuid, 0, interval.start_ns, interval.end_ns),)
        else:
            devices = tuple(device.uuid for device in self._devices_of(execution))
            if not devices and isinstance(execution.device, str):
                devices = (execution.device,)  # not known here, but perhaps to whoever samples
        parent = execution.parent
        # An execution without a span is in its parent's trace, if that has one.
        trace_id = execution.trace_id or (parent.trace_id if parent is not None else 0)
        span = SpanRecord(
            name=execution.name,
            start_ns=execution.start_ns,
            end_ns=execution.end_ns,
            trace_id=f"{trace_id:032x}" if trace_id else "",
            span_id=f"{execution.span_id:016x}" if execution.span_id else "",
            parent_span_id=f"{parent.span_id:016x}" if parent is not None and parent.span_id else None,
            device_intervals=on_device,
            items=execution.items,
            attributes=execution.profiled(),
            id="" if execution.span_id else _identifier(execution),
            parent=None if parent is None or parent.span_id else _identifier(parent),
            failed=execution.failed,
            devices=devices,
            assumed=bool(devices) and execution.device is None,
        )
        if self._write(lambda writer: writer.span(span)):
            self.spans += 1

    def close(self) -> None:
        """Write what is kept and the end mark. Closing twice is fine."""
        left = [*self._awaiting, *self._waiting]
        self._awaiting.clear()
        self._waiting.clear()
        for execution in left:
            self._write_span(execution, execution.interval())
        with self._lock:
            writer, self._writer = self._writer, None
            try:
                if writer is not None:
                    writer.close()
            except RecordingError as error:
                if not self.problem:
                    self._fail(error)


def _identifier(execution: Execution) -> str:
    """16 hex digits that stay the same as long as the execution exists, and that no other execution has.

    Made from its place in memory and its start: no two have both. So a child can name a parent that still runs, or that
    was written long ago, and nothing has to be kept for it.
    """
    return blake2b(b"%d %d" % (id(execution), execution.start_ns), digest_size=8).hexdigest()


def record_session(session: Session, directory: Path) -> Recorder:
    """Record everything that `session` sees from now on into `directory`.

    Samples are left out where a parent process (`gpu-profile run`) reads the same devices into the same place.
    """

    def driver() -> tuple[str, str]:
        opened = session.sampler.driver
        return (live_driver(opened), opened.version) if opened is not None else ("", "")

    def sampled_by_parent() -> bool:
        opened = session.sampler.driver
        return _sampled_by_parent(directory, "" if opened is None else opened.name)

    recorder = Recorder(directory, now_ns=session.clock.now_ns, driver=driver, devices_of=session.joiner.devices_of)

    def take(device: Device, samples: Sequence[Sample]) -> None:
        if not sampled_by_parent():
            recorder.take(device, samples)

    def take_event(event: Event) -> None:
        if not sampled_by_parent():
            recorder.take_event(event)

    def step(final: bool) -> bool:  # noqa: ARG001 - the last one is followed by `close`
        recorder.take_read()
        return False

    session.sampler.sinks.append(take)
    session.sampler.event_sinks.append(take_event)
    session.joiner.on_end.append(recorder.take_ended)
    session.joiner.on_settled.append(recorder.take_settled)
    session.on_step.append(step)
    session.on_stop.append(recorder.close)
    recorder.open()  # a process that is killed before its first record is named all the same
    return recorder


def _sampled_by_parent(directory: Path, driver: str) -> bool:
    spec = os.environ.get(SAMPLED_VARIABLE)
    if spec is None or os.environ.get(RECORD_VARIABLE) != str(directory):
        return False
    word = driver.partition(":")[0]
    return spec == driver or (spec == "auto" and word in ("nvml", "smi", "node")) or spec == word == "node"

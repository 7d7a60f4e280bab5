"""Records a session: samples as they are read, executions once their intervals are resolved."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Final

from gpu_profile.catalogue.samples import Device, Event, Interval, Sample
from gpu_profile.clock import Clock
from gpu_profile.driver import live_driver
from gpu_profile.errors import RecordingError
from gpu_profile.recording import DeviceInterval, RecordingWriter, SpanRecord
from gpu_profile.regions.execution import AWAIT_S, Execution
from gpu_profile.regions.session.session import RECORD_VARIABLE, Session
from gpu_profile.units import NS_PER_S

_log = logging.getLogger("gpu_profile")

#: The driver, as `--backend` names it, that a parent process samples into that directory.
SAMPLED_VARIABLE: Final = "GPU_PROFILE_SAMPLED"


class Recorder:
    """Writes samples, events and executions into `directory`.

    `driver()` returns the driver's name and version, both empty before it is open. `devices_of` returns the devices of
    an execution without a device interval. With `strict` a failing disk raises RecordingError in the caller. Otherwise
    it ends the recording with one log line and the process continues.
    `samples` and `spans` are counts of the rows written; `problem` is the reason of an early end. Data that arrives
    after `close()` starts another file.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock,
        driver: Callable[[], tuple[str, str]],
        strict: bool = False,
        devices_of: Callable[[Execution], Iterable[Device]] = lambda _: (),
    ) -> None:
        self.directory = directory
        self.samples = 0
        self.spans = 0
        self.problem = ""
        #: The newest file.
        self.path: Path | None = None
        self._clock = clock
        self._driver = driver
        self._strict = strict
        self._devices_of = devices_of
        #: Ended executions, from the first with marks that its stream has not passed.
        self._waiting: deque[Execution] = deque()
        #: Ended executions that wait for the results of a profiler's window, in order of their end.
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
                        self.directory, clock=self._clock, driver=name, driver_version=version
                    )
                    self.path = self._writer.path
                elif not self._writer.driver and (opened := self._driver())[0]:
                    self._writer.set_driver(*opened)
                action(self._writer)
                self._writer.maybe_flush()
            except RecordingError as error:
                self._fail(error)
                return False
        return True

    def open(self) -> None:
        """Create the directory and the file now instead of with the first sample."""
        self._write(lambda _: None)

    def _fail(self, error: RecordingError) -> None:
        self.problem = str(error)
        if self._strict:
            raise error
        _log.error("gpu-profile: the recording ends here: %s", error)

    def take(self, device: Device, samples: Sequence[Sample]) -> None:
        """Write samples of a device. A sink for a sampler."""

        def write(writer: RecordingWriter) -> None:
            writer.device(device)
            writer.samples(device.uuid, samples)

        if self._write(write):
            self.samples += len(samples)

    def take_event(self, event: Event) -> None:
        """Write an event. A sink for a sampler."""
        self._write(lambda writer: writer.event(event))

    def take_ended(self, execution: Execution) -> None:
        """Write an ended execution at once, or after its stream has passed its marks.

        It does not wait for samples, so that it survives the process. An execution inside a profiler's window waits
        until `take_read`.
        """
        self._waiting.append(execution)
        while self._waiting and self._waiting[0].interval() is not None:
            self._write_or_await(self._waiting.popleft())

    def take_settled(self, execution: Execution) -> None:
        """Write an execution that the join has finished with, if it still waits, with the interval it has."""
        if execution in self._waiting:
            self._waiting.remove(execution)
            self._write_or_await(execution)

    def take_read(self) -> None:
        """Write the executions that were waiting for a profiler's window and no longer are."""
        aside, self._awaiting = self._awaiting, []
        for execution in aside:
            self._write_or_await(execution)

    def _write_or_await(self, execution: Execution) -> None:
        # Below 0 if the clock was set back meanwhile.
        if execution.awaits_kernels and 0 <= self._clock.now_ns() - execution.end_ns < AWAIT_S * NS_PER_S:
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
                devices = (execution.device,)  # unknown here, but perhaps not to the process that samples
        parent = execution.parent
        # An execution without a span is in its parent's trace, if its parent has a span.
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
            kernels=execution.kernel_stamps,
            set_ns=min(0, execution.skipped_ns),
        )
        if self._write(lambda writer: writer.span(span)):
            self.spans += 1

    def close(self) -> None:
        """Write the waiting executions and the end mark. A second call does nothing."""
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
    """16 hex digits, unique and constant for as long as the execution exists.

    Hashed from its address and its start: no two executions share both. So a child can name a parent that still runs or
    was written long ago, without a table of identifiers.
    """
    return blake2b(b"%d %d" % (id(execution), execution.start_ns), digest_size=8).hexdigest()


def driver_of(session: Session) -> tuple[str, str]:
    """The name and the version of the driver that reads a session's GPUs; both are empty before it is open."""
    opened = session.sampler.driver
    return (live_driver(opened), opened.version) if opened is not None else ("", "")


def record_session(session: Session, directory: Path) -> Recorder:
    """Record the samples, events and executions of `session` into `directory` from now on.

    Samples are omitted where a parent process (`gpu-profile run`) records the same driver into the same directory.
    """

    def sampled_by_parent() -> bool:
        opened = session.sampler.driver
        return _sampled_by_parent(directory, "" if opened is None else opened.name)

    driver, devices_of = partial(driver_of, session), session.joiner.devices_of
    recorder = Recorder(directory, clock=session.clock, driver=driver, devices_of=devices_of)

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
    recorder.open()  # a process that is killed before its first record then still has a file
    return recorder


def _sampled_by_parent(directory: Path, driver: str) -> bool:
    spec = os.environ.get(SAMPLED_VARIABLE)
    if spec is None or os.environ.get(RECORD_VARIABLE) != str(directory):
        return False
    word = driver.partition(":")[0]
    return spec == driver or (spec == "auto" and word in ("nvml", "smi", "node")) or spec == word == "node"

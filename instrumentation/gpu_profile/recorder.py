"""Keeps what a sampler and a session see: samples as they are read, spans once their device intervals are known."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_profile.errors import RecordingError
from gpu_profile.executions import Execution
from gpu_profile.recording import DeviceInterval, RecordingWriter, SpanRecord
from gpu_profile.samples import Device, Event, Sample
from gpu_profile.session import Session

_log = logging.getLogger("gpu_profile")


class Recorder:
    """Writes into `directory`. `driver()` gives the driver's name and version once it is known.

    With `strict` a failing disk raises RecordingError in the caller; else it ends the recording with one log line, and
    the process goes on. `samples` and `spans` count what was taken, `problem` says why the recording ended early. What
    comes after `close()` starts another file.
    """

    def __init__(
        self,
        directory: Path,
        *,
        now_ns: Callable[[], int],
        driver: Callable[[], tuple[str, str]],
        strict: bool = False,
    ) -> None:
        self.directory = directory
        self.samples = 0
        self.spans = 0
        self.problem = ""
        self._now_ns = now_ns
        self._driver = driver
        self._strict = strict
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

    def take_span(self, execution: Execution) -> None:
        """A session's settled execution."""
        interval = execution.interval()
        on_device: tuple[DeviceInterval, ...] = ()
        if execution.stream is not None and interval is not None and interval.source == "device":
            on_device = (DeviceInterval(execution.stream.device_uuid, 0, interval.start_ns, interval.end_ns),)
        parent = execution.parent
        span = SpanRecord(
            name=execution.name,
            start_ns=execution.start_ns,
            end_ns=execution.end_ns,
            trace_id=f"{execution.trace_id:032x}" if execution.trace_id else "",
            span_id=f"{execution.span_id:016x}" if execution.span_id else "",
            parent_span_id=f"{parent.span_id:016x}" if parent is not None and parent.span_id else None,
            device_intervals=on_device,
            items=execution.items,
        )
        if self._write(lambda writer: writer.span(span)):
            self.spans += 1

    def close(self) -> None:
        """Write what is kept and the end mark. Closing twice is fine."""
        with self._lock:
            writer, self._writer = self._writer, None
            try:
                if writer is not None:
                    writer.close()
            except RecordingError as error:
                if not self.problem:
                    self._fail(error)


def record_session(session: Session, directory: Path) -> Recorder:
    """Record everything that `session` sees from now on into `directory`."""

    def driver() -> tuple[str, str]:
        opened = session.sampler.driver
        return (opened.name, opened.version) if opened is not None else ("", "")

    recorder = Recorder(directory, now_ns=session.clock.now_ns, driver=driver)
    session.sampler.sinks.append(recorder.take)
    session.sampler.event_sinks.append(recorder.take_event)
    session.on_settled.append(recorder.take_span)
    session.on_stop.append(recorder.close)
    return recorder

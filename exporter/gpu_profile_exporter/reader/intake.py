"""Receives the messages of readers: devices, samples, processes on the devices, events, and the cost of reading."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from gpu_profile.catalogue import SIGNALS, signal
from gpu_profile.catalogue.samples import Device, DeviceKind, Event, ProcessUse
from gpu_profile.clock import Clock, StepWatch
from gpu_profile.driver.protocol import AVAILABLE, absent
from gpu_profile.history.ledger import Ledger
from gpu_profile.join.spinning import SpinningDetector
from gpu_profile.sampling.rounds import MOST_EVENTS, SamplerStats
from gpu_profile.sampling.tracked import TrackedDevice, available, follow_clock
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.reader.process import ReaderProcess
from gpu_profile_exporter.reader.settings import HOME
from gpu_profile_exporter.reader.wire import Message
from gpu_profile_exporter.readings.health import LIFE_PERIODS, SHORTEST_LIFE_S
from gpu_profile_exporter.readings.readings import DriverFacts

if TYPE_CHECKING:
    from gpu_profile_exporter.reader.timeline import NodeTimeline

#: The problem before the first message of a reader.
NOT_STARTED: Final = "not started"
#: The longest pause of a slow driver that counts in full, and the factor by which a pause decays with each delivery.
_LONGEST_PERIOD_S: Final = 4.0
_FADING: Final = 0.8
_STEP_S: Final = 0.5
#: A supervisor whose last turn is longer ago was stopped: it has at least two in a second.
_STOPPED_S: Final = 1.0
#: The longest wait of a scrape for the samples that were sent meanwhile, or that readers are to send now.
_CATCH_UP_S: Final = 0.04
#: Samples that came at most this long ago are new enough for a scrape.
FRESH_S: Final = 0.25
_log = logging.getLogger("gpu_profile_exporter")


@dataclass(slots=True)
class DeviceReports(TrackedDevice):
    """The reports of readers on one device. `heard`: monotonic time in seconds of the last samples."""

    timeline: Ledger
    heard: float = 0.0
    pause_s: float = 0.0

    def received(self, now: float) -> None:
        """Note samples received at `now`, in monotonic seconds. `period_s` follows from the longest recent pause."""
        pause_s = min(now - self.heard, _LONGEST_PERIOD_S) if self.heard else 0.0
        self.heard, self.pause_s = now, max(pause_s, _FADING * self.pause_s)
        # In steps, because each new value rebuilds cached attributes. 0 if the shortest lifetime covers the pause.
        long = LIFE_PERIODS * self.pause_s > SHORTEST_LIFE_S
        self.period_s = ceil(self.pause_s / _STEP_S) * _STEP_S if long else 0.0


class Intake:
    """Receives messages, and has the attributes of a `Sampler`. One thread calls `take`; any thread may read."""

    def __init__(self, *, interval_s: float, clock: Clock, timeline: NodeTimeline | None = None) -> None:
        self.clock = clock
        self.interval_s = interval_s
        self.stats = SamplerStats()
        self.states: dict[str, DeviceReports] = {}
        self.problem = NOT_STARTED
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        #: Called in the supervisor's thread with each event.
        self.event_sinks: list[Callable[[Event], None]] = []
        #: Called in the supervisor's thread with each device's samples, as the readers send them.
        self.sample_sinks: list[Callable[[str, list[int]], None]] = []
        #: The driver, once one has answered.
        self.driver: DriverFacts | None = None
        #: Whether the driver reports events, which a separate process then receives.
        self.listens = False
        #: The node's timeline, if it is kept.
        self._timeline = timeline
        self._detectors: dict[str, SpinningDetector] = {}
        #: The devices that the supervisor has declared lost, because their readers cannot report it.
        self.lost: set[str] = set()
        self._clock_steps = StepWatch(clock)
        #: Monotonic times, in s, of the end of the supervisor's last turn, and of the first one after a stop.
        self._turned, self._resumed = time.monotonic(), 0.0
        #: Monotonic time, in s, of the newest samples of the reader of all GPUs, and the notice of them.
        self._sampled, self._samples_came = 0.0, threading.Condition()

    def now_ns(self) -> int:
        """The present by the setting of the clock at the last samples, in ns since the epoch. From any thread.

        Their age follows from it, also if the clock has been set since then. If this process was stopped, the samples
        of that time wait in the pipes, or in readers whose pipe is full: this waits up to `_CATCH_UP_S` for them.
        """
        now = time.monotonic()
        if self._turned < now - _STOPPED_S or self._resumed > now - _STOPPED_S:
            while (
                self._now_ns() - self.stats.turned_ns > _STOPPED_S * NS_PER_S and time.monotonic() < now + _CATCH_UP_S
            ):
                time.sleep(0.002)
        return self._now_ns()

    def refresh(self) -> None:
        """Receive the samples that wait in the readers, unless some came within `FRESH_S`. From any other thread.

        Waits up to `_CATCH_UP_S` for them.
        """
        sampled = self._sampled
        if time.monotonic() - sampled > FRESH_S and self._request_samples():
            with self._samples_came:
                self._samples_came.wait_for(lambda: self._sampled > sampled, _CATCH_UP_S)

    def _request_samples(self) -> bool:
        """Let the readers send their samples now. False if there is none."""
        return False

    def _now_ns(self) -> int:
        last = self._clock_steps.last
        return last.now_ns + self.clock.elapsed_ns() - last.elapsed_ns

    @property
    def timeline_settings(self) -> Mapping[str, Any]:
        """The timeline's settings for reader processes. Empty without a timeline."""
        return {} if self._timeline is None else self._timeline.settings

    def keep_timeline(self, *, ended: bool = False) -> None:
        """At the end of a turn: write the state to the timeline's table. `ended`: mark it as ended, and close it."""
        before, self._turned = self._turned, time.monotonic()
        if self._turned - before > _STOPPED_S:
            self._resumed = self._turned
        if self._timeline is not None:
            if ended:
                self._timeline.close(self)
            else:
                self._timeline.keep(self)

    def take(self, process: ReaderProcess, message: Message) -> None:
        """Process one message of a reader."""
        kind, *rest = message
        match kind:
            case "round":
                self._take_round(process, *rest)
            case "device":
                self._take_device(process, *rest)
            case "state":
                self._take_state(*rest)
            case "gone":
                process.uuids.discard(rest[0])
                state = self.states.get(rest[0])
                # If the GPU has moved to its own reader, that one lists its MIG instances.
                if state is not None and state.device.kind is DeviceKind.MIG and process.reads(state.device.index):
                    self.gone(state, "")
            case "open":
                process.stale_since = None
                if process.key >= HOME:
                    self._opened(process, *rest)
            case "problem":
                process.stale_since = (process.stale_since or time.monotonic()) if rest[1] else None
                if process.key >= HOME:
                    self._no_driver_for(process, rest[0])
            case "file":
                self._take_file(*rest)
            case "events":
                for row in rest[0]:
                    self._record_event(Event(*row))

    def _take_file(self, uuid: str, name: str) -> None:
        if self._timeline is not None:
            self._timeline.add_file(uuid, name)

    def _opened(
        self, process: ReaderProcess, name: str, version: str, origin: str, versions: Any, listens: bool
    ) -> None:
        if process.only is None:
            self.driver, self.problem, self.listens = DriverFacts(name, version, origin, versions), "", listens

    def _no_driver_for(self, process: ReaderProcess, reason: str) -> None:
        if process.only is None:
            self.no_driver(reason, process.uuids)
            return
        for state in self.states.values():
            if state.device.index == process.only:
                self.down(state, reason)

    def no_driver(self, reason: str, uuids: Collection[str]) -> None:
        """Record that the driver does not answer, and mark these devices as down."""
        if reason != self.problem:
            # The first problem is for the caller of `start()` to report.
            _log.log(
                logging.DEBUG if self.problem == NOT_STARTED else logging.WARNING, "no GPU can be read: %s", reason
            )
        self.driver, self.problem = None, reason
        self.stats.turned_ns = self.clock.now_ns()
        for uuid in list(uuids):
            if uuid in self.states:
                self.down(self.states[uuid], reason)

    def lose(self, state: DeviceReports, reason: str) -> None:
        """Mark a device as lost, and report it as an event: no reader can."""
        was_up = state.up
        self.down(state, reason)
        if was_up:
            _log.warning("%s: %s", state.device.uuid, reason)
            self.lost.add(state.device.uuid)
            self._record_event(Event(state.device.uuid, self.clock.now_ns(), "lost", message=reason))

    def gone(self, state: DeviceReports, reason: str) -> None:
        """Handle a device that is no longer present: a MIG instance is removed, a GPU is lost but may come back."""
        if state.device.kind is DeviceKind.GPU:
            self.lose(state, reason)
        else:
            state.timeline.count_dropped(self.stats.dropped)
            del self.states[state.device.uuid]
            self._detectors.pop(state.device.uuid, None)

    def down(self, state: DeviceReports, reason: str) -> None:
        """Mark a device as not answering."""
        state.up, state.reason = False, reason
        state.processes, state.processes_ns = (), None

    def _take_device(
        self, process: ReaderProcess, fields: dict[str, Any], signals: list[tuple[str, bool, str]]
    ) -> None:
        device = Device(**fields | {"kind": DeviceKind(fields["kind"])})
        capabilities = {signal(key): AVAILABLE if can else absent(reason) for key, can, reason in signals}
        process.uuids.add(device.uuid)
        state = self.states.get(device.uuid)
        if state is None:
            self.states[device.uuid] = DeviceReports(device, Ledger(available(capabilities)), capabilities)
            return
        state.device, state.capabilities = device, capabilities
        state.timeline.add(available(capabilities))
        state.__post_init__()

    def _take_state(self, uuid: str, up: bool, reason: str, processes_ns: int | None, uses: list[Any]) -> None:
        state = self.states.get(uuid)
        if state is None:
            return
        if up and not state.up:
            _log.warning("%s answers again", uuid)
            if uuid in self.lost:
                self._record_event(Event(uuid, self.clock.now_ns(), "back"))
        elif not up and state.up:
            _log.warning("%s: %s", uuid, reason)
        self.lost.discard(uuid)
        state.up, state.reason = up, reason
        state.processes, state.processes_ns = tuple(ProcessUse(*use) for use in uses), processes_ns

    def _take_round(
        self,
        process: ReaderProcess,
        turned_ns: int,
        rounds: int,
        late_ns: int,
        busy: dict[str, int],
        errors: dict[str, int],
        _: dict[str, int],
        samples: dict[str, list[int]],
    ) -> None:
        stats, now = self.stats, time.monotonic()
        now_ns = follow_clock(self._clock_steps, self.states.values(), turned_ns)
        stats.turned_ns = turned_ns  # from any reader: the driver as a whole answers
        if process.only is None:
            stats.late_ns = late_ns
            stats.rounds += rounds
        for tier, ns in busy.items():
            stats.busy_ns[tier] += ns
        for name, n in errors.items():
            stats.errors[name] += n
        for uuid, values in samples.items():
            state = self.states.get(uuid)
            if state is None or not values:
                continue
            state.received(now)
            for sink in self.sample_sinks:
                sink(uuid, values)
            if uuid in self.lost:
                self.lost.discard(uuid)
                state.up, state.reason = True, ""
                _log.warning("%s answers again", uuid)
                self._record_event(Event(uuid, self.clock.now_ns(), "back"))
            signals = map(SIGNALS.__getitem__, values[::4])
            rows = zip(signals, values[1::4], values[2::4], values[3::4], strict=True)
            taken = state.timeline.append(rows, now_ns)
            state.samples += taken
            self._look_for_spinning(state, now_ns)
            stats.samples += taken
        if process.only is None:
            with self._samples_came:
                self._sampled = now
                self._samples_came.notify_all()

    def _look_for_spinning(self, state: DeviceReports, now_ns: int) -> None:
        uuid = state.device.uuid
        detector = self._detectors.get(uuid)
        if detector is None:
            detector = self._detectors[uuid] = SpinningDetector(state.device, state.timeline)
        before, spin = detector.spin, detector.advance(now_ns)
        state.spinning_ns = detector.total_ns
        if spin is not None and before is None:
            _log.warning("%s: %s", uuid, spin.text(now_ns))
            self._record_event(Event(uuid, spin.onset_ns, "spinning", message=spin.text(now_ns)))
        elif before is not None and spin is None:
            _log.info("%s does not spin any more", uuid)
            self._record_event(Event(uuid, now_ns, "moving", message="it does not spin any more"))

    def _record_event(self, event: Event) -> None:
        self.events.append(event)
        state = self.states.get(event.device)
        if state is not None:
            state.take_event(event)
        for sink in list(self.event_sinks):
            sink(event)

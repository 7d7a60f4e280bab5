"""A driver that plays a recording."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpu_profile.catalogue import SIGNALS, Kind, Signal
from gpu_profile.catalogue import signal as signal_row
from gpu_profile.catalogue.samples import Device, DeviceKind, Event, Sample
from gpu_profile.clock import SYSTEM_CLOCK, Clock, StepWatch
from gpu_profile.driver.null import SilentDriver
from gpu_profile.driver.protocol import Capability
from gpu_profile.errors import UsageError
from gpu_profile.recording import Columns, Recording, read_recording
from gpu_profile.recording.pauses import Pause, columns_without_pauses, without_pauses
from gpu_profile.units import NS_PER_S


class ReplayDriver(SilentDriver):
    """Serves the samples and events of the recording in `directory` when they are due. `drain` returns all samples.

    Recorded time starts with the driver and runs `speed` times as fast as the elapsed time of `clock`. The sample with
    the earliest end is due immediately. Time stamps are shifted and scaled to match, so that the samples seem to happen
    now. The pauses of the recording take no time. With `shift=False` stamps stay as recorded. `speed` never changes
    values. With `loop`, the recording starts again after its end, and counters continue from their last values.
    `problems` lists the damage of the recording.

    RecordingError if the recording cannot be read. UsageError for a speed that is not positive, or `loop` without
    `shift`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock = SYSTEM_CLOCK,
        speed: float = 1.0,
        loop: bool = False,
        shift: bool = True,
    ) -> None:
        if not 0 < speed < float("inf"):
            raise UsageError(f"replay of {directory}: speed {speed} is not a positive number")
        if loop and not shift:
            raise UsageError(f"replay of {directory}: a loop needs shifted time stamps, or time would run backwards")
        recording = read_recording(directory)
        self.name: Final = f"replay:{directory}"
        self.version: Final = recording.processes[0].driver_version if recording.processes else ""
        #: The driver that read the recorded samples.
        self.recorded_driver: Final = recording.processes[0].driver if recording.processes else ""
        self.problems: Final = recording.problems
        self._clock, self._clock_steps = clock, StepWatch(clock)
        self._devices = _devices(recording)
        self._signals = {device: {signal_row(key) for key in columns} for device, columns in recording.samples.items()}
        pauses = recording.pauses if shift else {}
        self._tracks = {
            device: _track(columns, pauses.get(device, ())) for device, columns in recording.samples.items()
        }
        events = [
            replace(event, t_ns=int(without_pauses(np.array(event.t_ns), pauses.get(event.device, ()))))
            for event in recording.events
        ]
        self._events = sorted(events, key=lambda event: event.t_ns)
        self._event_track = _Track(np.array([event.t_ns for event in self._events], dtype=np.int64))
        tracks = [track for track in (*self._tracks.values(), self._event_track) if len(track.t_end)]
        origin = min((int(track.t_end[0]) for track in tracks), default=0)
        last = max((int(track.t_end[-1]) for track in tracks), default=0)
        period = last - origin + _usual_step(tracks) if loop and tracks else 0
        self._time = _Time(clock.now_ns(), origin, last, period, speed, shift)

    def devices(self) -> Sequence[Device]:
        """The recorded devices, parents first. A device without a recorded description has only its UUID."""
        return self._devices

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        """A signal is available if the recording has samples of it."""
        recorded = self._signals.get(device.uuid, set())
        absent = Capability(False, "not in the recording")
        return {row: Capability(True) if row in recorded else absent for row in SIGNALS}

    def drain(self, device: Device) -> Sequence[Sample]:
        """The samples that became due since the last call, in the order of their ends."""
        track = self._tracks.get(device.uuid)
        if track is None:
            return ()
        now_ns = self._now_ns()
        return [
            Sample(
                track.signals[track.row[at]],
                self._time.stamp(int(track.t_start[at]), lap),
                self._time.stamp(int(track.t_end[at]), lap),
                int(track.value[at]) + lap * track.growth[track.row[at]],
            )
            for lap, at in track.due(self._time, now_ns)
        ]

    def events(self) -> Sequence[Event]:
        """The events that became due since the last call, in order."""
        now_ns = self._now_ns()
        due = self._event_track.due(self._time, now_ns)
        return [replace(self._events[at], t_ns=self._time.stamp(self._events[at].t_ns, lap)) for lap, at in due]

    def _now_ns(self) -> int:
        """The present. If the clock was set, the replay goes on by its new setting."""
        step = self._clock_steps.step()
        if step is not None:
            self._time = replace(self._time, start=self._time.start + step.ahead_ns)
        return self._clock.now_ns()


@dataclass(frozen=True, slots=True)
class _Time:
    """Maps the clock to recorded time and back. `period`: the length of a lap in recorded ns, 0 without a loop."""

    start: int
    origin: int
    last: int
    period: int
    speed: float
    shift: bool

    def recorded(self, now: int) -> int:
        """The recorded time at `now`. It keeps growing through all laps."""
        passed = now - self.start
        return self.origin + (passed if self.speed == 1 else int(passed * self.speed))

    def stamp(self, t_ns: int, lap: int) -> int:
        if not self.shift:
            return t_ns
        passed = t_ns - self.origin + lap * self.period
        return self.start + (passed if self.speed == 1 else round(passed / self.speed))


_NONE: Final = np.empty(0, dtype=np.int64)


class _Track:
    """The samples of one device in the order of their ends, and the next one to serve."""

    def __init__(
        self,
        t_end: NDArray[np.int64],
        t_start: NDArray[np.int64] = _NONE,
        value: NDArray[np.int64] = _NONE,
        row: NDArray[np.int64] = _NONE,
        signals: Sequence[Signal] = (),
        growth: Sequence[int] = (),
    ) -> None:
        self.t_end = t_end
        self.t_start = t_start
        self.value = value
        #: `row`: the index in `signals` of each sample. `growth`: the growth of each counter in a lap, else 0.
        self.row = row
        self.signals = signals
        self.growth = growth
        self._lap = 0
        self._next = 0

    def due(self, time: _Time, now: int) -> Iterator[tuple[int, int]]:
        """`(lap, position)` of the samples that became due since the last call."""
        while len(self.t_end):
            limit = min(time.recorded(now) - self._lap * time.period, time.last)
            stop = int(np.searchsorted(self.t_end, limit, side="right"))
            for at in range(self._next, stop):
                yield self._lap, at
            self._next = max(self._next, stop)
            if not time.period or time.recorded(now) < time.origin + (self._lap + 1) * time.period:
                return
            self._lap, self._next = self._lap + 1, 0


def _track(recorded: Mapping[str, Columns], pauses: Sequence[Pause]) -> _Track:
    signals = [signal_row(key) for key in recorded]
    columns = [columns_without_pauses(signal_row(key), column, pauses) for key, column in recorded.items()]
    t_start, t_end, value = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(t_end, kind="stable")
    return _Track(
        t_end[order],
        t_start[order],
        value[order],
        np.repeat(np.arange(len(signals)), [len(column.t_end) for column in columns])[order],
        signals,
        [
            int(column.value[-1]) - int(column.value[0]) if row.kind is Kind.COUNTER else 0
            for row, column in zip(signals, columns, strict=True)
        ],
    )


def _usual_step(tracks: Sequence[_Track]) -> int:
    """The median time in ns between recorded moments: the pause before a loop starts again."""
    steps = np.diff(np.unique(np.concatenate([track.t_end for track in tracks])))
    return max(1, int(np.median(steps))) if len(steps) else NS_PER_S


def _devices(recording: Recording) -> tuple[Device, ...]:
    devices = {device.uuid: device for device in recording.devices}
    for uuid in recording.samples:
        kind = DeviceKind.MIG if uuid.startswith("MIG-") else DeviceKind.GPU
        devices.setdefault(uuid, Device(uuid, kind=kind))
    return tuple(sorted(devices.values(), key=lambda device: device.kind is DeviceKind.MIG))

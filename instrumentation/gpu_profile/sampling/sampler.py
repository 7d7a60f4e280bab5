"""Rounds in a thread of their own, which fill timelines. Other threads can trigger a round and wait for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.clock import SYSTEM_CLOCK, Alarm, Clock
from gpu_profile.driver import Capability, Driver
from gpu_profile.history.timeline import Timeline
from gpu_profile.sampling.rounds import RETRY_S, Rounds
from gpu_profile.sampling.tracked import TrackedDevice, available

_log = logging.getLogger("gpu_profile")

#: Called in the sampler's thread with the samples of a read.
Sink = Callable[[Device, Sequence[Sample]], None]


@dataclass(slots=True)
class DeviceState(TrackedDevice):
    """The sampler's state of one device: its history, besides the state that rounds keep."""

    timeline: Timeline

    @classmethod
    def of(cls, device: Device, capabilities: Mapping[Signal, Capability], capacity: int) -> DeviceState:
        """A newly listed device. Its timeline has room for `capacity` readings per signal."""
        return cls(device, Timeline(device, available(capabilities), capacity=capacity), capabilities)


class Sampler(Rounds[DeviceState]):
    """Reads the devices of the driver that `open_driver` gives, every `interval_s`, into timelines.

    `retention_s` bounds the history; the other options are those of `Rounds`. Nothing is read before `start()` or the
    first `step()`.
    """

    def __init__(
        self,
        open_driver: Callable[[], Driver],
        *,
        interval_s: float = 0.1,
        retention_s: float = 600.0,
        choose: Callable[[Driver, Sequence[Device]], Container[str]] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        sinks: Iterable[Sink] = (),
        processes: bool = False,
    ) -> None:
        super().__init__(
            open_driver,
            DeviceState.of,
            interval_s=interval_s,
            retention_s=retention_s,
            choose=choose,
            clock=clock,
            sinks=sinks,
            processes=processes,
        )
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._wake = Alarm()
        #: Whether the round that `_wake` requests reads everything, and whether a round is in progress.
        self._whole = self._in_round = False
        self._round = threading.Condition()

    # ------------------------------------------------------------------ what was read

    @property
    def timelines(self) -> list[Timeline]:
        """The timelines of all devices so far, in the driver's order."""
        return [state.timeline for state in list(self.states.values())]

    def timeline(self, uuid: str) -> Timeline | None:
        """The timeline of one device."""
        state = self.states.get(uuid)
        return state.timeline if state else None

    # ------------------------------------------------------------------ rounds that others wait for

    def relist_devices(self) -> None:
        """List the devices in the next round, and start it now: the choice of devices has changed."""
        self._due.pop("devices", None)
        self.wake(quick=True)

    def flush(self, timeout_s: float = 0.25) -> bool:
        """Read everything once more now, and wait until that is done.

        False if there is no driver, it took longer than `timeout_s`, or sampling was stopped: a closed driver stays
        closed.
        """
        if self._stop.is_set():
            return False
        if not self.running or threading.current_thread() is self._thread:
            self.step(force=True)
            return self.driver is not None
        with self._round:
            target = self.next_round()
            self._round.wait_for(lambda: self.stats.rounds >= target or self._failed or self._trigger(), timeout_s)
            return self.stats.rounds >= target

    def next_round(self) -> int:
        """The value of `stats.rounds` after the first round that begins after this call."""
        with self._round:
            return self.stats.rounds + (2 if self._in_round else 1)

    def wake(self, *, quick: bool = False) -> None:
        """Like `flush`, without waiting. `quick`: without the signals that change slowly."""
        if self.running and threading.current_thread() is not self._thread:
            self._whole |= not quick
            self._wake.set()
        elif not self._stop.is_set():
            self.step(force=True)

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called, and `start` not since."""
        return self._stop.is_set()

    @property
    def _failed(self) -> bool:
        """Whether opening a driver has failed. False while the first one is still being opened."""
        return self.driver is None and self.stats.turned_ns > 0

    def _trigger(self) -> bool:
        self.wake()
        return False

    def _begin(self) -> None:
        self._in_round = True

    def _end(self, now: int, *, read: bool) -> None:
        with self._round:
            super()._end(now, read=read)
            self._in_round = False
            self._round.notify_all()

    # ------------------------------------------------------------------ the thread

    def start(self) -> None:
        """Sample in a thread of its own until `stop()`."""
        # One event per thread: a thread that hung when it was stopped must not resume beside its successor.
        stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(stop,), name="gpu-profile-sampler", daemon=True)
        thread.start()
        self._thread, self._stop = thread, stop

    @property
    def running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stop the thread and close the driver. A thread that hangs in the driver is left behind, as a daemon."""
        self._stop.set()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout_s)
        if thread is None or not thread.is_alive():
            self.close()

    def _run(self, stop: threading.Event) -> None:
        delay = 0.0
        while not stop.is_set():
            forced = self.clock.wait(self._wake, delay)
            if stop.is_set():
                return
            self._wake.clear()
            whole, self._whole = self._whole, False
            try:
                delay = self.step(force=forced and whole, quick=forced)
            except Exception:  # noqa: BLE001 - the host's process must not lose its sampling to our defect
                self._in_round = False
                self.stats.errors["internal"] += 1
                _log.exception("gpu-profile: the sampler failed; it goes on")
                delay = RETRY_S

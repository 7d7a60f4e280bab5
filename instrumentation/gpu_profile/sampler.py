"""The one place that reads drivers: a thread that turns devices into timelines, and measures itself.

`step()` does what is due and says when it wants to be called again, so that tests drive it with a fake clock. A device
that is lost, and a driver that goes away, are states here, never exceptions: the others go on, and both are tried
again until they are back.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpu_profile.catalogue import Tier
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.device_state import DeviceState
from gpu_profile.driver import Driver
from gpu_profile.errors import DeviceLost, GpuBackendError, GpuProfileError
from gpu_profile.samples import Device, DeviceKind, Event, Sample
from gpu_profile.timeline import Timeline
from gpu_profile.units import NS_PER_S, nanoseconds

_log = logging.getLogger("gpu_profile")

#: How long after a failure a lost device or driver is tried again.
RETRY_S: Final = 1.0
#: What the driver buffers is fetched this often; the shortest buffer known holds about 2 s.
DRAIN_S: Final = 0.25
SLOW_S: Final = 1.0
#: Who asks for an interval of their own sums up one run: memory in use and temperature are then read this often.
ASKED_SLOW_S: Final = 0.2
#: Devices come and go (hot-plug, MIG): they are listed anew this often.
DEVICES_S: Final = 5.0
#: Events that are kept for whoever asks.
MOST_EVENTS: Final = 1_000
#: GPM refuses windows that are not longer than its refresh of 100 ms; the rest is for a wake-up that comes early.
GPM_S: Final = 0.105

#: What is read device by device.
_READS: Final = frozenset({Tier.FAST, Tier.SLOW, Tier.GPM, "drain"})
#: What is read in a round that somebody waits for who has had a whole one.
_QUICK: Final = _READS - {Tier.SLOW}

#: Called in the sampler's thread with what was just read.
Sink = Callable[[Device, Sequence[Sample]], None]


@dataclass(slots=True)
class SamplerStats:
    """What sampling costs: `busy_ns` by tier is time spent inside the driver, `late_ns` how far behind the last round
    started. `turned_ns` is when the last `step()` ended, with a driver or without."""

    rounds: int = 0
    turned_ns: int = 0
    samples: int = 0
    late_ns: int = 0
    busy_ns: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


class Sampler:
    """Reads the devices of the driver that `open_driver` gives, every `interval_s`, into timelines.

    `retention_s` bounds the history. `choose` says which of the driver's devices are read, by their UUIDs; without it,
    all are. `sinks` see every sample too (a recording). Nothing is read before `start()` or the first `step()`. While
    there is anyone who `ask`s for a shorter interval, that one is kept.
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
    ) -> None:
        if not interval_s > 0:
            raise ValueError(f"the sampling interval must be positive, not {interval_s} s")
        self.clock = clock
        self.stats = SamplerStats()
        self.states: dict[str, DeviceState] = {}
        self.driver: Driver | None = None
        self.problem = "not started"
        #: Every device of the driver, whether it is read or not.
        self.listed: tuple[Device, ...] = ()
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._open_driver = open_driver
        self._choose = choose
        self.sinks = list(sinks)
        #: Called in the sampler's thread with every event.
        self.event_sinks: list[Callable[[Event], None]] = []
        self._own_ns = nanoseconds(interval_s)
        self._asked: list[int] = []
        self._retention_s = retention_s
        self._due: dict[str, int] = {}
        self._retry_ns = 0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._wake = threading.Event()
        #: Whether the round that `_wake` asks for reads everything, and whether one is under way.
        self._whole = self._in_round = False
        self._round = threading.Condition()

    # ------------------------------------------------------------------ the outside

    @property
    def interval_s(self) -> float:
        """How often counters are read now."""
        return min([self._own_ns, *self._asked]) / NS_PER_S

    def ask(self, interval_s: float) -> None:
        """Read counters at least this often from the next round on, until as much is released."""
        self._asked.append(nanoseconds(interval_s))

    def release(self, interval_s: float) -> None:
        """Take one `ask` for this interval back."""
        self._asked.remove(nanoseconds(interval_s))

    def look_again(self) -> None:
        """List the devices in the next round, and have that now: others are to be read."""
        self._due.pop("devices", None)
        self.wake(quick=True)

    @property
    def timelines(self) -> list[Timeline]:
        """The timelines of the devices that were ever seen, in the driver's order."""
        return [state.timeline for state in list(self.states.values())]

    def timeline(self, uuid: str) -> Timeline | None:
        """The timeline of one device."""
        state = self.states.get(uuid)
        return state.timeline if state else None

    def open(self) -> None:
        """Open the driver now, in this thread; raises GpuBackendError if it cannot be used."""
        driver = self._open_driver()
        try:
            self._enumerate(driver)
        except GpuProfileError:
            driver.close()
            raise
        self.driver, self.problem = driver, ""

    def start(self) -> None:
        """Sample in a thread of its own until `stop()`."""
        # One event per thread: one that hung when it was stopped must not come back to life beside its successor.
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
            self._close()

    def flush(self, timeout_s: float = 0.25) -> bool:
        """Have everything read once more now, and wait for it.

        False if there is no driver, it took too long, or sampling was stopped: what is closed stays closed.
        """
        if self._stop.is_set():
            return False
        if not self.running or threading.current_thread() is self._thread:
            self.step(force=True)
            return self.driver is not None
        with self._round:
            target = self.next_round()
            self._round.wait_for(lambda: self.stats.rounds >= target or self._refused or self._nudge(), timeout_s)
            return self.stats.rounds >= target

    def next_round(self) -> int:
        """What `stats.rounds` is once a round has ended that begins after this call."""
        with self._round:
            return self.stats.rounds + (2 if self._in_round else 1)

    def wake(self, *, quick: bool = False) -> None:
        """As `flush` without waiting; `quick`: not what changes slowly."""
        if self.running and threading.current_thread() is not self._thread:
            self._whole |= not quick
            self._wake.set()
        elif not self._stop.is_set():
            self.step(force=True)

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called and nothing started it again."""
        return self._stop.is_set()

    @property
    def _refused(self) -> bool:
        """Whether a driver was asked for and there is none: not while the first one is still being opened."""
        return self.driver is None and self.stats.turned_ns > 0

    def _nudge(self) -> bool:
        self.wake()
        return False

    # ------------------------------------------------------------------ the thread

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

    def step(self, *, force: bool = False, quick: bool = False) -> float:
        """Read what is due (all if `force`, what changes fast if `quick`) and return the seconds until more is due."""
        now = self.clock.now_ns()
        if self.driver is None and not self._reopen(now):
            self.stats.turned_ns = self.clock.now_ns()
            with self._round:
                self._round.notify_all()
            return max(0.0, (self._retry_ns - now) / NS_PER_S)
        self._in_round, must = True, _QUICK if quick else ()
        tiers = [t for t, period in self._periods() if self._is_due(t, period, now, force=force or t in must)]
        driver = self.driver
        if tiers and driver is not None:
            try:
                if "devices" in tiers:
                    self._enumerate(driver)
                reads = [tier for tier in tiers if tier in _READS]
                for state in list(self.states.values()):
                    self._read(driver, state, reads, now)
                if "events" in tiers:
                    self._take_events(driver.events())
            except GpuBackendError as error:
                self._lose_driver(str(error), now)
        self.stats.turned_ns = self.clock.now_ns()
        with self._round:
            self._in_round = False
            self.stats.rounds += 1
            self._round.notify_all()
        return max(0.0, (min(self._due.values(), default=now) - self.clock.now_ns()) / NS_PER_S)

    def _take_events(self, events: Sequence[Event]) -> None:
        self.events.extend(events)
        for event in events:
            _log.warning("gpu-profile: %s: %s %s %s", event.device, event.kind, event.code, event.message)
            for sink in self.event_sinks:
                sink(event)

    def _periods(self) -> tuple[tuple[str, int], ...]:
        interval = nanoseconds(self.interval_s)
        gpm = any(state.has_gpm for state in self.states.values())
        if not gpm:  # its rounds, which no others fall in with, would be half of what sampling costs
            self._due.pop(Tier.GPM, None)
        return (
            (Tier.FAST, interval),
            *(((Tier.GPM, max(interval, nanoseconds(GPM_S))),) if gpm else ()),
            ("drain", nanoseconds(DRAIN_S)),
            (Tier.SLOW, max(interval, nanoseconds(ASKED_SLOW_S if self._asked else SLOW_S))),
            ("events", nanoseconds(SLOW_S)),
            ("devices", nanoseconds(DEVICES_S)),
        )

    def _is_due(self, tier: str, period: int, now: int, *, force: bool) -> bool:
        due = self._due.get(tier, now)
        if due - now > period:
            # A shorter interval was asked for, or the clock was set back: catching up with it could take hours.
            due -= (due - now) // period * period
        if now < due and not force:
            return False
        if tier == Tier.FAST:
            self.stats.late_ns = max(0, now - due)
        # The grid keeps its phase, and a round that was missed is not made up for.
        self._due[tier] = due + period * max(1, -((due - now - 1) // period)) if now >= due else due
        return True

    def _read(self, driver: Driver, state: DeviceState, tiers: Sequence[str], now: int) -> None:
        if not state.up:
            if _waiting(state.retry_ns, now):
                return
            # A driver may have nothing to drain from a device that is lost, and say so in peace: only a read tells.
            tiers = [Tier.FAST]
        try:
            samples: list[Sample] = []
            started = self.clock.now_ns()
            for tier in tiers:
                if tier == "drain":
                    samples += driver.drain(state.device)
                elif tier is Tier.GPM:
                    samples += driver.boundary(state.device)
                else:
                    samples += driver.read(state.device, Tier(tier))
                ended = self.clock.now_ns()
                self.stats.busy_ns[str(tier)] += ended - started
                started = ended
        except DeviceLost as error:
            if state.up:
                _log.warning("gpu-profile: %s: %s", state.device.uuid, error)
            state.up, state.reason = False, str(error)
            state.retry_ns = now + nanoseconds(RETRY_S)
            self.stats.errors["device lost"] += 1
            return
        if not state.up:
            _log.warning("gpu-profile: %s is back", state.device.uuid)
            state.up, state.reason = True, ""
            state.renew(driver)
        taken = state.timeline.append(samples)
        state.samples += taken
        self.stats.samples += taken
        if self.sinks:
            for sink in list(self.sinks):
                sink(state.device, samples)

    def _reopen(self, now: int) -> bool:
        if _waiting(self._retry_ns, now):
            return False
        try:
            self.open()
        except GpuProfileError as error:
            self._lose_driver(str(error), now)
            return False
        _log.info("gpu-profile: reading %d devices through %s", len(self.states), self.driver and self.driver.name)
        return True

    def _lose_driver(self, reason: str, now: int) -> None:
        if reason != self.problem:
            _log.warning("gpu-profile: no driver: %s", reason)
        self.problem = reason
        self.stats.errors["driver"] += 1
        self._retry_ns = now + nanoseconds(RETRY_S)
        for state in self.states.values():
            state.up, state.reason = False, reason
        self._close()

    def _enumerate(self, driver: Driver) -> None:
        """Take in devices that are new, and let go of MIG instances that were reconfigured away."""
        self.listed = tuple(driver.devices())
        chosen = None if self._choose is None else self._choose(driver, self.listed)
        present = {device.uuid: device for device in self.listed if chosen is None or device.uuid in chosen}
        for uuid, state in list(self.states.items()):
            if uuid not in present and state.device.kind is DeviceKind.MIG:
                del self.states[uuid]
        for device in present.values():
            known = self.states.get(device.uuid)
            if known is None:
                capabilities = driver.capabilities(device)
                capacity = max(64, min(1 << 20, int(self._retention_s / self.interval_s)))
                self.states[device.uuid] = DeviceState.of(device, capabilities, capacity)
            elif self.driver is not driver:
                known.device = device
                known.renew(driver)
                known.up, known.reason = True, ""

    def _close(self) -> None:
        driver, self.driver = self.driver, None
        if driver is not None:
            try:
                driver.close()
            except GpuProfileError as error:
                _log.debug("gpu-profile: closing the driver: %s", error)


def _waiting(retry_ns: int, now: int) -> bool:
    """Whether it is too early for another try; never for longer than `RETRY_S`, even if the clock was set back."""
    return 0 < retry_ns - now <= nanoseconds(RETRY_S)

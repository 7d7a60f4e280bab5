"""The one place that calls drivers: what is due when, of which device, and what to do if one fails.

`step()` does what is due and says when it wants to be called again, whoever calls it: a thread, another process's loop,
a test with a fake clock. A device that is lost, and a driver that goes away, are states here, never exceptions: the
others go on, and both are tried again until they are back.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Device, DeviceKind, Event, Sample
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver import Capability, Driver, lag_s
from gpu_profile.errors import DeviceLost, GpuBackendError, GpuProfileError
from gpu_profile.sampling.tracked import Tracked
from gpu_profile.units import NS_PER_S, nanoseconds

_log = logging.getLogger("gpu_profile")

#: How long after a failure a lost device or driver is tried again.
RETRY_S: Final = 1.0
#: What the driver buffers is fetched this often; the shortest buffer known holds about 2 s.
DRAIN_S: Final = 0.25
SLOW_S: Final = 1.0
#: What hardly ever changes: limits, the widest link, remapped rows.
RARE_S: Final = 10.0
#: Who asks for an interval of their own sums up one run: memory in use and temperature are then read this often.
ASKED_SLOW_S: Final = 0.2
#: Who uses a device is asked this often, if at all.
PROCESSES_S: Final = 5.0
#: Devices come and go (hot-plug, MIG): they are listed anew this often.
DEVICES_S: Final = 5.0
#: Events that are kept for whoever asks.
MOST_EVENTS: Final = 1_000
#: GPM refuses windows that are not longer than its refresh of 100 ms; the rest is for a wake-up that comes early.
GPM_S: Final = 0.105

_DRAIN_NS, _SLOW_NS, _RARE_NS, _ASKED_SLOW_NS, _PROCESSES_NS, _GPM_NS = map(
    nanoseconds, (DRAIN_S, SLOW_S, RARE_S, ASKED_SLOW_S, PROCESSES_S, GPM_S)
)

#: What is read device by device.
_READS: Final = frozenset({*Tier, "drain", "processes"})
#: What is read in a round that somebody waits for who has had a whole one.
_QUICK: Final = frozenset({Tier.FAST, Tier.GPM, "drain"})

T = TypeVar("T", bound=Tracked)


@dataclass(slots=True)
class SamplerStats:
    """What sampling costs: `busy_ns` by tier is time spent inside the driver, `late_ns` how far behind the last round
    started. `turned_ns` is when the last `step()` ended, with a driver or without. `dropped` are the samples that were
    left out of devices that are gone since, by reason."""

    rounds: int = 0
    turned_ns: int = 0
    samples: int = 0
    late_ns: int = 0
    busy_ns: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


class Rounds(Generic[T]):
    """Reads the devices of the driver that `open_driver` gives, every `interval_s`.

    `track(device, capabilities, capacity)` makes the state of a device that is met for the first time, with room for
    `retention_s`. `choose` says which of the driver's devices are read, by their UUIDs; without it, all are. They are
    listed anew every `devices_s`. GPM's windows are of `gpm_s` at least; where all devices have them, what the driver
    buffers is fetched every `drain_s`. `sinks` see every sample too (a recording). `processes`: ask who uses the
    devices. Nothing is read before the first `step()`. While there is anyone who `ask`s for a shorter interval, that is
    kept.
    """

    def __init__(
        self,
        open_driver: Callable[[], Driver],
        track: Callable[[Device, Mapping[Signal, Capability], int], T],
        *,
        interval_s: float = 0.1,
        retention_s: float = 600.0,
        choose: Callable[[Driver, Sequence[Device]], Container[str]] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        sinks: Iterable[Callable[[Device, Sequence[Sample]], None]] = (),
        processes: bool = False,
        devices_s: float = DEVICES_S,
        gpm_s: float = GPM_S,
        drain_s: float = DRAIN_S,
    ) -> None:
        if not interval_s > 0:
            raise ValueError(f"the sampling interval must be positive, not {interval_s} s")
        self.clock = clock
        self.stats = SamplerStats()
        self.states: dict[str, T] = {}
        self.driver: Driver | None = None
        self.problem = "not started"
        #: Every device of the driver, whether it is read or not.
        self.listed: tuple[Device, ...] = ()
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._open_driver = open_driver
        self._track = track
        self._choose = choose
        self.sinks = list(sinks)
        #: Called with every event, where `step` is.
        self.event_sinks: list[Callable[[Event], None]] = []
        self._own_ns = nanoseconds(interval_s)
        #: How often a driver that hands on what another process reads has samples, and how often it is worth asking.
        self._drivers_own_ns = self._batch_ns = 0
        self._asked: list[int] = []
        self._retention_s = retention_s
        self._processes = processes
        self._devices_ns = nanoseconds(devices_s)
        self._gpm_ns, self._drain_ns = nanoseconds(gpm_s), nanoseconds(drain_s)
        self._due: dict[str, int] = {}
        self._retry_ns = 0

    # ------------------------------------------------------------------ the outside

    @property
    def interval_s(self) -> float:
        """How often counters are read now."""
        return self._interval_ns / NS_PER_S

    @property
    def _interval_ns(self) -> int:
        asked = min(self._own_ns, *self._asked) if self._asked else self._own_ns
        return max(asked, self._drivers_own_ns)

    def ask(self, interval_s: float) -> None:
        """Read counters at least this often from the next round on, until as much is released."""
        self._asked.append(nanoseconds(interval_s))

    def release(self, interval_s: float) -> None:
        """Take one `ask` for this interval back."""
        self._asked.remove(nanoseconds(interval_s))

    def open(self) -> Driver:
        """Open the driver now; raises GpuBackendError if it cannot be used."""
        driver = self._open_driver()
        self._drivers_own_ns = nanoseconds(getattr(driver, "interval_s", 0.0))
        self._batch_ns = nanoseconds(getattr(driver, "batch_s", 0.0))
        try:
            self._enumerate(driver)
        except GpuProfileError:
            driver.close()
            raise
        self.driver, self.problem = driver, ""
        return driver

    def close(self) -> None:
        """Close the driver; the next `step` opens it again."""
        driver, self.driver = self.driver, None
        if driver is not None:
            try:
                driver.close()
            except GpuProfileError as error:
                _log.debug("gpu-profile: closing the driver: %s", error)

    # ------------------------------------------------------------------ a round

    def step(self, *, force: bool = False, quick: bool = False) -> float:
        """Read what is due (all if `force`, what changes fast if `quick`) and return the seconds until more is due."""
        now = self.clock.now_ns()
        if self.driver is None and not self._reopen(now):
            self._end(self.clock.now_ns(), read=False)
            return max(0.0, (self._retry_ns - now) / NS_PER_S)
        self._begin()
        tiers = self._due_now(now, force=force, quick=quick)
        driver = self.driver
        if tiers and driver is not None:
            try:
                reads = [tier for tier in tiers if tier in _READS]
                if "devices" in tiers:
                    driver = self._preferred(driver)
                    try:
                        self._enumerate(driver)
                    except GpuBackendError:
                        if lag_s(driver):  # what another process wrote before its end is still there
                            self._read_all(driver, reads, now)
                        raise
                self._read_all(driver, reads, now)
                if "events" in tiers:
                    self._take_events(driver.events())
            except GpuBackendError as error:
                self._lose_driver(str(error), now)
                if lag_s(driver):  # only that other process has ended: there may be another driver, at once
                    self._retry_ns = 0
        ended = self.clock.now_ns()
        self._end(ended, read=True)
        return max(0.0, (min(self._due.values(), default=now) - ended) / NS_PER_S)

    def _begin(self) -> None:
        """A round begins, with a driver."""

    def _end(self, now: int, *, read: bool) -> None:
        """A turn ends, in which there was a driver to `read`."""
        self.stats.turned_ns = now
        self.stats.rounds += read

    def _take_events(self, events: Sequence[Event]) -> None:
        for event in events:
            _log.warning("gpu-profile: %s: %s %s %s", event.device, event.kind, event.code, event.message)
            self._happened(event)

    def _happened(self, event: Event) -> None:
        self.events.append(event)
        state = self.states.get(event.device)
        if state is not None:
            state.take_event(event)
        for sink in list(self.event_sinks):
            sink(event)

    def _periods(self) -> list[tuple[str, int]]:
        interval = self._interval_ns
        periods: list[tuple[str, int]] = [(Tier.FAST, interval)]
        drain_ns = _DRAIN_NS
        if any(state.has_gpm for state in self.states.values()):
            periods.append((Tier.GPM, max(interval, self._gpm_ns)))
            if all(state.has_gpm for state in self.states.values()):
                drain_ns = self._drain_ns
        else:  # its rounds, which no others fall in with, would be half of what sampling costs
            self._due.pop(Tier.GPM, None)
        periods += (
            ("drain", drain_ns),
            (Tier.SLOW, max(interval, _ASKED_SLOW_NS if self._asked else _SLOW_NS)),
            (Tier.RARE, max(interval, _RARE_NS)),
            ("events", _SLOW_NS),
            ("devices", self._devices_ns),
        )
        if self._processes:
            periods.append(("processes", _PROCESSES_NS))
        batch = self._batch_ns
        return [(tier, max(period, batch)) for tier, period in periods] if batch else periods

    def _due_now(self, now: int, *, force: bool, quick: bool) -> list[str]:
        tiers: list[str] = []
        half, together = max(self._interval_ns, self._batch_ns) // 2, False
        for tier, period in self._periods():
            # What falls due within half of the next interval comes along: to wake up costs as much as to read.
            alone = tier is Tier.FAST or (tier is Tier.GPM and self._gpm_ns <= _GPM_NS)
            slack = 0 if alone else min(half, period // 2)
            due = self._due.get(tier, now)
            if due - now > period + slack:
                # A shorter interval was asked for, or the clock was set back: catching up with it could take hours.
                due -= (due - now) // period * period
            moment = now + slack if together else now
            if moment >= due:
                # The grid keeps its phase, and a round that was missed is not made up for.
                self._due[tier] = due + period * max(1, -((due - moment - 1) // period))
            else:
                self._due[tier] = due
                if not force and not (quick and tier in _QUICK):
                    continue
            if tier is Tier.FAST:
                self.stats.late_ns = max(0, now - due)
                together = now >= due
            tiers.append(tier)
        return tiers

    def _read_all(self, driver: Driver, tiers: Sequence[str], now: int) -> None:
        spent = dict.fromkeys(tiers, 0)
        try:
            started = self.clock.now_ns()
            for state in list(self.states.values()):
                started = self._read(driver, state, tiers, now, started, spent)
        finally:
            for tier, ns in spent.items():
                self.stats.busy_ns[str(tier)] += ns

    def _read(
        self, driver: Driver, state: T, tiers: Sequence[str], now: int, started: int, spent: dict[str, int]
    ) -> int:
        """Read one device; returns the moment of its end."""
        if not state.up:
            if _waiting(state.retry_ns, now):
                return started
            # A driver may have nothing to drain from a device that is lost, and say so in peace: only a read tells.
            tiers = [Tier.FAST]
        device, now_ns = state.device, self.clock.now_ns
        samples: list[Sample] = []
        try:
            for tier in tiers:
                if tier is Tier.GPM:
                    samples += driver.boundary(device)
                elif isinstance(tier, Tier):
                    samples += driver.read(device, tier)
                elif tier == "drain":
                    samples += driver.drain(device)
                else:
                    state.processes, state.processes_ns = tuple(driver.processes(device)), now
                ended = now_ns()
                spent[tier] = spent.get(tier, 0) + ended - started
                started = ended
        except DeviceLost as error:
            self._lose(state, str(error), now)
            return now_ns()
        if not state.up:
            self._find(driver, state, now)
        if samples:
            taken = state.timeline.append(samples, now)
            state.samples += taken
            self.stats.samples += taken
        if self.sinks:
            for sink in list(self.sinks):
                sink(device, samples)
        return started

    def _find(self, driver: Driver, state: T, now: int) -> None:
        _log.warning("gpu-profile: %s is back", state.device.uuid)
        state.up, state.reason, state.lost = True, "", False
        state.renew(driver)
        self._happened(Event(state.device.uuid, now, "back"))

    def _lose(self, state: T, reason: str, now: int) -> None:
        if state.up:
            _log.warning("gpu-profile: %s: %s", state.device.uuid, reason)
            self._happened(Event(state.device.uuid, now, "lost", message=reason))
        state.up, state.reason, state.lost = False, reason, True
        state.processes, state.processes_ns = (), None
        state.retry_ns = now + nanoseconds(RETRY_S)
        self.stats.errors["device lost"] += 1

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

    def _preferred(self, driver: Driver) -> Driver:
        """The driver itself, or the one that it says has come."""
        superseded = getattr(driver, "superseded", None)
        if superseded is None or not superseded():
            return driver
        self.close()
        driver = self.open()
        _log.info("gpu-profile: reading %d devices through %s from now on", len(self.states), driver.name)
        return driver

    def _lose_driver(self, reason: str, now: int) -> None:
        if reason != self.problem:
            _log.warning("gpu-profile: no driver: %s", reason)
        self.problem = reason
        self.stats.errors["driver"] += 1
        self._retry_ns = now + nanoseconds(RETRY_S)
        for state in self.states.values():
            state.up, state.reason = False, reason
        self.close()

    def _enumerate(self, driver: Driver) -> None:
        """Take in devices that are new, and let go of MIG instances that were reconfigured away."""
        self.listed = tuple(driver.devices())
        chosen = None if self._choose is None else self._choose(driver, self.listed)
        present = {device.uuid: device for device in self.listed if chosen is None or device.uuid in chosen}
        for uuid, state in list(self.states.items()):
            if uuid not in present and state.device.kind is DeviceKind.MIG:
                state.timeline.count_dropped(self.stats.dropped)
                del self.states[uuid]
        for device in present.values():
            known = self.states.get(device.uuid)
            if known is None:
                capacity = max(64, min(1 << 20, int(self._retention_s / self.interval_s)))
                self.states[device.uuid] = self._track(device, driver.capabilities(device), capacity)
                continue
            # Another GPU was added or taken out, or what could not be read when it was met can be now.
            if known.device != device:
                known.device = device.with_facts_of(known.device)
            if self.driver is not driver:
                known.renew(driver)
                # One that was lost itself may be listed all the same: it is up once it is read.
                if not known.lost:
                    known.up, known.reason = True, ""
                known.retry_ns = 0


def _waiting(retry_ns: int, now: int) -> bool:
    """Whether it is too early for another try; never for longer than `RETRY_S`, even if the clock was set back."""
    return 0 < retry_ns - now <= nanoseconds(RETRY_S)

"""The only caller of drivers: when each device is read, and what follows a failure.

`step()` does everything that is due and returns the seconds until the next call. Any caller may drive it: a thread,
another process's loop, a test with a fake clock. A lost device and a lost driver are states here, never exceptions: the
other devices are still read, and both are retried until they return.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Device, DeviceKind, Event, Sample
from gpu_profile.clock import SYSTEM_CLOCK, Clock, StepWatch
from gpu_profile.driver import Capability, Driver, lag_s
from gpu_profile.errors import DeviceLost, GpuBackendError, GpuProfileError
from gpu_profile.sampling.periods import CATCH_UP, DEVICES_S, DRAIN_S, GPM_S, ReadPeriod, read_periods
from gpu_profile.sampling.tracked import TrackedDevice, follow_clock
from gpu_profile.units import NS_PER_S, nanoseconds

_log = logging.getLogger("gpu_profile")

#: Time between retries of a lost device or driver.
RETRY_S: Final = 1.0
MOST_EVENTS: Final = 1_000  # that are kept for callers

_FAST, _GPM = Tier.FAST, Tier.GPM  # enum's own attributes are slow
#: The kinds of reads per device.
_READS: Final = frozenset({*Tier, "drain", "processes", CATCH_UP})
#: The kinds of reads of a quick round, after a caller has already had a complete one.
_QUICK: Final = frozenset({Tier.FAST, Tier.GPM, "drain"})

T = TypeVar("T", bound=TrackedDevice)


@dataclass(slots=True)
class SamplerStats:
    """The cost of sampling. `busy_ns` by tier is time inside the driver, `late_ns` how late the last round started.
    `turned_ns` is the end of the last `step()`, with a driver or without. `dropped` counts, by reason, the left-out
    samples of devices that are gone."""

    rounds: int = 0
    turned_ns: int = 0
    samples: int = 0
    late_ns: int = 0
    busy_ns: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


class Rounds(Generic[T]):
    """Reads the devices of the driver that `open_driver` returns, every `interval_s`.

    `track(device, capabilities, capacity)` makes the state of a new device, with room for `retention_s`. `choose`
    returns the UUIDs of the devices to read; without it, all are read. Devices are listed every `devices_s`. GPM
    windows last at least `gpm_s`. The driver's buffers are drained every `drain_s` if all devices have GPM, else every
    `DRAIN_S`. `sinks` receive every sample too (a recording). `processes`: also query the processes on the devices.
    Nothing is read before the first `step()`. While a caller requests a shorter interval with `ask`, it applies.
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
        self._open_driver, self._track, self._choose = open_driver, track, choose
        self.sinks = list(sinks)
        #: Called with every event, in the thread of `step`.
        self.event_sinks: list[Callable[[Event], None]] = []
        self._own_ns, self._devices_ns = nanoseconds(interval_s), nanoseconds(devices_s)
        #: For a driver that passes on another process's samples: their interval, and the useful time between reads.
        self._drivers_own_ns = self._batch_ns = 0
        self._asked: list[int] = []
        self._retention_s, self._processes = retention_s, processes
        self._gpm_ns, self._drain_ns = nanoseconds(gpm_s), nanoseconds(drain_s)
        self._due: dict[str, int] = {}
        self._retry_ns, self._clock_steps = 0, StepWatch(clock)

    # ------------------------------------------------------------------ the outside

    @property
    def interval_s(self) -> float:
        """The current interval of the fast signals."""
        return self._interval_ns / NS_PER_S

    @property
    def _interval_ns(self) -> int:
        asked = min(self._own_ns, *self._asked) if self._asked else self._own_ns
        return max(asked, self._drivers_own_ns)

    @property
    def _catch_up_ns(self) -> int:
        """The period of reads between rounds; 0 if a round every interval misses no restart of a counter."""
        longest = self.driver.catch_up_ns if self.driver is not None else 0
        return self._interval_ns // -(-self._interval_ns // longest) if 0 < longest < self._interval_ns else 0

    def ask(self, interval_s: float) -> None:
        """Request at least this interval from the next round on, until `release`."""
        self._asked.append(nanoseconds(interval_s))

    def release(self, interval_s: float) -> None:
        """Withdraw one `ask` for this interval."""
        self._asked.remove(nanoseconds(interval_s))

    def open(self) -> Driver:
        """Open the driver now. Raises GpuBackendError if it cannot be used."""
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
        """Close the driver. The next `step` opens it again."""
        driver, self.driver = self.driver, None
        if driver is not None:
            try:
                driver.close()
            except GpuProfileError as error:
                _log.debug("gpu-profile: closing the driver: %s", error)

    # ------------------------------------------------------------------ a round

    def step(self, *, force: bool = False, quick: bool = False) -> float:
        """Read everything due (all if `force`, fast signals too if `quick`). Returns the seconds until more is due."""
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
                        if lag_s(driver):  # the other process's last samples can still be read
                            self._read_all(driver, reads, now)
                        raise
                self._read_all(driver, reads, now)
                if "events" in tiers:
                    self._take_events(driver.events())
            except GpuBackendError as error:
                self._lose_driver(str(error), now)
                if lag_s(driver):  # only the other process has ended: another driver may exist already
                    self._retry_ns = 0
        ended = self.clock.now_ns()
        if CATCH_UP not in self._due and (period := self._catch_up_ns):
            self._due[CATCH_UP] = now + period  # a counter has begun to move in this round
        self._end(ended, read=bool(tiers))
        return max(0.0, (min(self._due.values(), default=now) - ended) / NS_PER_S)

    def _begin(self) -> None:
        """Called when a round with a driver begins."""

    def _end(self, now: int, *, read: bool) -> None:
        """Called when a `step` ends. `read`: there was a driver to read."""
        self.stats.turned_ns = now
        self.stats.rounds += read

    def _take_events(self, events: Sequence[Event]) -> None:
        for event in events:
            _log.warning("gpu-profile: %s: %s %s %s", event.device, event.kind, event.code, event.message)
            self._record_event(event)

    def _record_event(self, event: Event) -> None:
        self.events.append(event)
        state = self.states.get(event.device)
        if state is not None:
            state.take_event(event)
        for sink in list(self.event_sinks):
            sink(event)

    def _due_now(self, now: int, *, force: bool, quick: bool) -> list[str]:
        tiers: list[str] = []
        dues, together = self._due, False
        for tier, period, slack in self._periods():
            due = dues.get(tier, now)
            moment = now + slack if together else now
            if moment < due <= now + period + slack and not force and not (quick and tier in _QUICK):
                continue
            if due - now > period + slack:
                # A shorter interval was requested, or the clock was set back: waiting for `due` could take hours.
                due -= (due - now) // period * period
            if moment >= due:
                # The grid keeps its phase, and a missed round is not repeated.
                dues[tier] = due + period * max(1, -((due - moment - 1) // period))
            else:
                dues[tier] = due
                if not force and not (quick and tier in _QUICK):
                    continue
            if tier is _FAST:
                self.stats.late_ns = max(0, now - due)
                together = now >= due
            elif tier == CATCH_UP and _FAST in tiers:
                continue  # the round reads these counters too
            tiers.append(tier)
        return tiers

    def _periods(self) -> Sequence[ReadPeriod]:
        have_gpm = tuple([state.has_gpm for state in self.states.values()])
        if True not in have_gpm:  # separate GPM rounds would be half of the cost of sampling
            self._due.pop(_GPM, None)
        catch_up_ns = self._catch_up_ns if CATCH_UP in self._due else 0
        if not catch_up_ns:
            self._due.pop(CATCH_UP, None)
        return read_periods(
            self._interval_ns,
            batch_ns=self._batch_ns,
            asked=bool(self._asked),
            have_gpm=have_gpm,
            gpm_ns=self._gpm_ns,
            drain_ns=self._drain_ns,
            devices_ns=self._devices_ns,
            catch_up_ns=catch_up_ns,
            processes=self._processes,
        )

    def _read_all(self, driver: Driver, tiers: Sequence[str], now: int) -> None:
        spent = dict.fromkeys(tiers, 0)
        try:
            started = self.clock.elapsed_ns()
            for state in list(self.states.values()):
                started = self._read(driver, state, tiers, now, started, spent)
        finally:
            for tier, ns in spent.items():
                self.stats.busy_ns[str(tier)] += ns

    def _read(
        self, driver: Driver, state: T, tiers: Sequence[str], now: int, started: int, spent: dict[str, int]
    ) -> int:
        """Read one device. Returns the elapsed time at the end, in ns; `started` is that at the start."""
        if not state.up:
            if _waiting(state.retry_ns, now):
                return started
            # A driver may report an empty buffer for a lost device: only a read shows whether it is back.
            tiers = [Tier.FAST]
        device, elapsed_ns = state.device, self.clock.elapsed_ns
        samples: list[Sample] = []
        try:
            for tier in tiers:
                if isinstance(tier, Tier):
                    samples += driver.boundary(device) if tier is _GPM else driver.read(device, tier)
                elif tier == CATCH_UP:
                    driver.catch_up(device)
                elif tier == "drain":
                    samples += driver.drain(device)
                else:
                    state.processes, state.processes_ns = tuple(driver.processes(device)), now
                ended = elapsed_ns()
                spent[tier] = spent.get(tier, 0) + ended - started
                started = ended
        except DeviceLost as error:
            self._mark_lost(state, str(error), now)
            return elapsed_ns()
        if not state.up:
            self._mark_back(driver, state, now)
        if samples:
            taken = state.timeline.append(samples, self._follow_clock(now))
            state.samples += taken
            self.stats.samples += taken
        for sink in list(self.sinks):
            sink(device, samples)
        return started

    def _follow_clock(self, now: int) -> int:
        """Before samples are added: the time at which they were read, after the steps of the clock since the last."""
        return follow_clock(self._clock_steps, self.states.values(), now)

    def _mark_back(self, driver: Driver, state: T, now: int) -> None:
        _log.warning("gpu-profile: %s is back", state.device.uuid)
        state.up, state.reason, state.lost = True, "", False
        state.renew(driver)
        self._record_event(Event(state.device.uuid, now, "back"))

    def _mark_lost(self, state: T, reason: str, now: int) -> None:
        if state.up:
            _log.warning("gpu-profile: %s: %s", state.device.uuid, reason)
            self._record_event(Event(state.device.uuid, now, "lost", message=reason))
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
        """The driver itself, or a better one that has become available."""
        superseded = getattr(driver, "superseded", None)
        if superseded is None or not superseded():
            return driver
        self.close()
        driver = self.open()
        _log.info("gpu-profile: reading %d devices through %s from now on", len(self.states), driver.name)
        return driver

    def _lose_driver(self, reason: str, now: int) -> None:
        if reason != self.problem:
            _log.warning("gpu-profile: no GPU can be read: %s", reason)
        self.problem = reason
        self.stats.errors["driver"] += 1
        self._retry_ns = now + nanoseconds(RETRY_S)
        for state in self.states.values():
            state.up, state.reason = False, reason
        self.close()

    def _enumerate(self, driver: Driver) -> None:
        """Add new devices, and remove MIG instances that a reconfiguration has deleted."""
        self.listed = tuple(driver.devices())
        chosen = None if self._choose is None else self._choose(driver, self.listed)
        present = {device.uuid: device for device in self.listed if chosen is None or device.uuid in chosen}
        for uuid, state in list(self.states.items()):
            if uuid not in present and state.device.kind is DeviceKind.MIG:
                state.timeline.count_dropped(self.stats.dropped)
                del self.states[uuid]
        for device in present.values():
            tracked = self.states.get(device.uuid)
            if tracked is None:
                capacity = max(64, min(1 << 20, int(self._retention_s / self.interval_s)))
                self.states[device.uuid] = self._track(device, driver.capabilities(device), capacity)
                continue
            # The facts of a device may change: another GPU was added or removed, or a failed query now succeeds.
            if tracked.device != device:
                tracked.device = device.filled_from(tracked.device)
            if self.driver is not driver:
                tracked.renew(driver)
                # A lost device may be listed all the same: it is up once it has been read.
                if not tracked.lost:
                    tracked.up, tracked.reason = True, ""
                tracked.retry_ns = 0


def _waiting(retry_ns: int, now: int) -> bool:
    """Whether it is too early for another try. Never for longer than `RETRY_S`, even if the clock was set back."""
    return 0 < retry_ns - now <= nanoseconds(RETRY_S)

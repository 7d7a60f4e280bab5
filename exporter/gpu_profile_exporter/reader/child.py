"""The reader process: reads the driver in rounds and sends the samples to the supervisor. Needs no numpy.

It ends when the supervisor closes one of its pipes.
"""

from __future__ import annotations

import os
import select
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpu_profile.catalogue import SIGNALS, Signal, Tier
from gpu_profile.catalogue.samples import Device, Event, Sample
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver import Capability, Driver
from gpu_profile.driver.grammar import open_driver
from gpu_profile.errors import StaleLibraryError
from gpu_profile.sampling.periods import RARE_S, SLOW_S
from gpu_profile.sampling.rounds import Rounds
from gpu_profile.sampling.tracked import TrackedDevice, available
from gpu_profile.units import NS_PER_S, nanoseconds
from gpu_profile_exporter.reader.counting import DeviceCounting
from gpu_profile_exporter.reader.heartbeat import DRIVER, Heartbeat
from gpu_profile_exporter.reader.listening import Listening
from gpu_profile_exporter.reader.observed_driver import READ_S, REOPEN_S, START_S, ObservedDriver
from gpu_profile_exporter.reader.settings import COUNTER, LISTENER, ReaderSettings
from gpu_profile_exporter.reader.wire import Incoming, Message, send

if TYPE_CHECKING:
    from gpu_profile.driver.node.writer import RingOptions
    from gpu_profile_exporter.reader.ring import DeviceRing

#: The interval at which devices are listed, to detect new GPUs and MIG instances.
DEVICES_S: Final = 2.0
#: The length of GPM's windows, and the interval at which the driver's slow counters are read.
WINDOW_S: Final = 0.25
#: The shortest interval at which samples are sent, unless the supervisor orders it: waking it costs more than they do.
SEND_S: Final = 0.5
_NUMBERS: Final = {signal: number for number, signal in enumerate(SIGNALS)}


class Outbox:
    """Queues a device's samples, as a flat list: signal's number, start in ns, end in ns, value, and so on.

    With a `ring` it also writes them to the node's timeline.
    """

    def __init__(self, ring: DeviceRing | None = None) -> None:
        #: The samples' values, each first with the signal itself.
        self.values: list[Any] = []
        self.ring = ring

    def add(self, signals: Iterable[Signal]) -> None:
        """Add signals to the ring. The supervisor receives them with the capabilities."""
        if self.ring is not None:
            self.ring.add(signals)

    def append(self, samples: Sequence[Sample], now_ns: int) -> int:
        """Queue samples. Returns their number."""
        if self.ring is not None:
            self.ring.append(samples, now_ns)
        self.values += chain.from_iterable(samples)
        return len(samples)

    def skip(self, ahead_ns: int) -> None:
        """Does nothing, as `ReaderLoop` does not follow the clock."""

    def set_back(self, now_ns: int, latest_ns: int) -> None:
        """Does nothing, as `skip`."""

    def count_dropped(self, totals: Counter[str]) -> None:
        """Does nothing: the supervisor checks the samples and counts the dropped ones."""

    def take(self) -> list[int]:
        """Remove and return all queued values."""
        values, self.values = self.values, []
        values[::4] = map(_NUMBERS.__getitem__, values[::4])
        return values


class ReaderLoop(Rounds[TrackedDevice]):
    """The rounds of a reader process. Publishes the call in progress, and reports changes after each round."""

    def __init__(self, settings: ReaderSettings, where: Heartbeat, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(
            self._open,
            lambda device, can, _: TrackedDevice(device, Outbox(self._ring(device.uuid, available(can))), can),
            interval_s=settings.interval_s,
            devices_s=DEVICES_S,
            processes=settings.processes,
            gpm_s=WINDOW_S,
            drain_s=SLOW_S,
            clock=clock,
        )
        self._settings = settings
        self._options = _ring_options(settings) if settings.timeline else None
        self._where = where
        self._leave: Collection[int | None] = settings.leave
        self._observed: ObservedDriver | None = None
        #: The result of `_compared` at the last messages of `_about_devices`.
        self._sent_about: list[object] = []
        self._sent_devices: dict[str, tuple[Mapping[Signal, Capability], Device]] = {}
        self._sent_states: dict[str, tuple[bool, str, int | None]] = {}
        self._sent_files: dict[str, str] = {}
        self._sent_problem: tuple[str, bool] | None = None
        self._sent_busy: dict[str, int] = {}
        self._sent_errors: dict[str, int] = {}
        self._sent_rounds = 0
        self._round_sent_ns = 0
        self._stale = False
        self._events: list[Event] = []
        self.event_sinks.append(lambda event: self._events.append(event))  # noqa: PLW0108 - the list is replaced

    def _ring(self, uuid: str, signals: Iterable[Signal]) -> DeviceRing | None:
        if self._options is None:
            return None
        from gpu_profile_exporter.reader.ring import DeviceRing

        return DeviceRing(self._options, uuid, signals)

    def _open(self) -> Driver:
        self._where.enter(DRIVER, START_S)
        self._observed, self._stale = None, False
        try:
            settings = self._settings
            driver = open_driver(
                settings.driver,
                clock=self.clock,
                groups=settings.groups,
                enter=self._enter,
                events=False,
                counters_s=WINDOW_S,
            )
        except StaleLibraryError:
            self._stale = True
            raise
        alone = settings.only is not None
        # GPUs that were read before open promptly, or hang.
        open_s = settings.open_s if alone or not self.states else min(settings.open_s, REOPEN_S)
        self._observed = ObservedDriver(driver, self._where, self.clock, open_s=open_s, alone=alone)
        return self._observed

    def _enter(self, index: int) -> bool:
        """True if the driver may call this GPU. The driver asks just before it does."""
        only = self._settings.only
        if index != only if only is not None else index in self._leave:
            return False
        observed = self._observed
        limit = self._settings.open_s if observed is None else READ_S if observed.listed else observed.open_s
        self._where.enter(index, limit)
        return True

    def follow(self, order: Message) -> None:
        """Carry out an order of the supervisor. Unknown orders are ignored."""
        if order[0] == "send":
            self._round_sent_ns = 0
        elif order[0] == "leave":
            self.leave(frozenset(order[1]))
        elif order[0] == "only":
            self._settings = replace(self._settings, only=order[1])
            self.leave({state.device.index for state in self.states.values()} - {order[1]})
            if self._observed is not None:
                self._observed.be_alone()
        elif order[0] == "reopen":
            # Everything is sent again: the supervisor has discarded it, because GPUs may get other indices.
            self._sent_problem = None
            self._sent_about.clear()
            self._sent_devices.clear()
            self._sent_states.clear()
            self.close()
            self._where.leave()

    def leave(self, indices: Collection[int | None]) -> None:
        """Stop reading these GPUs, by NVML index: another process reads them."""
        self._leave = indices
        for uuid, state in list(self.states.items()):
            if state.device.index in indices:
                if (ring := _ring_of(state)) is not None:
                    ring.close()
                del self.states[uuid]
        self._due.pop("devices", None)

    def _follow_clock(self, now: int) -> int:
        """The receivers of the samples notice themselves that the clock was set."""
        return now

    def close(self) -> None:
        """Close the driver, and write the samples of the timeline that wait for others."""
        super().close()
        for state in self.states.values():
            if (ring := _ring_of(state)) is not None:
                ring.flush()

    def step(self, *, force: bool = False, quick: bool = False) -> float:
        """As `Rounds.step`, and publishes the call in progress."""
        self._where.enter(DRIVER, START_S if self.driver is None else READ_S)
        delay = super().step(force=force, quick=quick)
        # Not after an exception: the supervisor then still sees the call in which the reader ended.
        self._where.leave()
        return delay

    # ------------------------------------------------------------------ reports to the supervisor

    def news(self, now_ns: int) -> list[Message]:
        """The messages to send now. Samples wait for `SEND_S`, for an order, or for another message."""
        messages: list[Message] = []
        # Equal objects are replaced too, so that the next comparison is one of the same objects.
        before, self._sent_about = self._sent_about, self._compared()
        if self._sent_about != before:
            messages += self._about_devices()
        messages += self._about_driver()
        if self._events:
            events, self._events = self._events, []
            messages.append(("events", [(e.device, e.t_ns, e.kind, e.code, e.message) for e in events]))
        sent_ns = self._round_sent_ns
        if messages or now_ns - sent_ns >= nanoseconds(SEND_S) - nanoseconds(0.01) or now_ns < sent_ns:
            messages.append(self._round())
            self._round_sent_ns = now_ns
        return messages

    def _about_driver(self) -> Iterable[Message]:
        # If the driver is lost during a read, a version mismatch shows only when it is opened again.
        about = self.problem, self._stale
        if about == self._sent_problem:
            return
        self._sent_problem = about
        if self.driver is None:
            yield "problem", self.problem, self._stale
        else:
            driver = self.driver
            origin = self._observed.driver if self._observed is not None else driver
            versions = dict(getattr(origin, "versions", {}))
            recorded = getattr(origin, "recorded_driver", driver.name)
            yield "open", driver.name, driver.version, recorded, versions, hasattr(origin, "watched")

    def _compared(self) -> list[object]:
        """The contents of the messages of `_about_devices`. Nearly always the same objects as in the last round."""
        states = self.states.values()
        about: list[object] = [(s.device, s.capabilities, s.up, s.reason, s.processes_ns) for s in states]
        if self._options is not None:
            about += [ring.name for state in states if (ring := _ring_of(state)) is not None]
        return about

    def _about_devices(self) -> Iterable[Message]:
        for uuid in [uuid for uuid in self._sent_devices if uuid not in self.states]:
            del self._sent_devices[uuid]
            self._sent_states.pop(uuid, None)
            yield "gone", uuid
        for uuid, state in self.states.items():
            about = state.capabilities, state.device
            sent = self._sent_devices.get(uuid)
            if sent != about:
                self._sent_devices[uuid] = about
                yield "device", _plain(state.device), [(row.key, c.available, c.reason) for row, c in about[0].items()]
            ring = _ring_of(state)
            if ring is not None and self._sent_files.get(uuid) != ring.name:
                self._sent_files[uuid] = ring.name
                yield "file", uuid, ring.name
            if self._sent_states.get(uuid) != (state.up, state.reason, state.processes_ns):
                self._sent_states[uuid] = state.up, state.reason, state.processes_ns
                if ring is not None and not state.up:
                    ring.flush()
                uses = [(use.pid, use.memory_bytes, use.utilization) for use in state.processes]
                yield "state", uuid, state.up, state.reason, state.processes_ns, uses

    def _round(self) -> Message:
        stats = self.stats
        busy = {tier: ns - self._sent_busy.get(tier, 0) for tier, ns in stats.busy_ns.items()}
        errors = {name: n - self._sent_errors.get(name, 0) for name, n in stats.errors.items()}
        self._sent_busy, self._sent_errors = dict(stats.busy_ns), dict(stats.errors)
        rounds, self._sent_rounds = stats.rounds - self._sent_rounds, stats.rounds
        took = self._observed.take() if self._observed is not None else {}
        samples = {uuid: box.take() for uuid, state in self.states.items() if isinstance(box := state.timeline, Outbox)}
        return "round", stats.turned_ns, rounds, stats.late_ns, busy, errors, took, samples


def _ring_of(state: TrackedDevice) -> DeviceRing | None:
    return state.timeline.ring if isinstance(state.timeline, Outbox) else None


def _ring_options(settings: ReaderSettings) -> RingOptions:
    # Imported here because only a reader with a timeline needs it.
    from gpu_profile.driver.node.writer import RingOptions

    periods = {
        Tier.FAST: settings.interval_s,
        Tier.GPM: max(settings.interval_s, WINDOW_S),
        Tier.SLOW: max(settings.interval_s, SLOW_S),
        Tier.RARE: max(settings.interval_s, RARE_S),
    }
    return RingOptions(
        Path(settings.timeline),
        {tier: nanoseconds(seconds) for tier, seconds in periods.items()},
        nanoseconds(settings.retention_s),
        nanoseconds(max(settings.interval_s, WINDOW_S)),
        settings.timeline_mode,
        settings.timeline_group,
    )


def _plain(device: Device) -> dict[str, Any]:
    return {name: str(value) if name == "kind" else value for name, value in asdict(device).items()}


def run(settings: ReaderSettings, clock: Clock = SYSTEM_CLOCK) -> None:
    """Run the process that `settings` describe, until the supervisor closes a pipe."""
    where, orders = Heartbeat(settings.where_fd), Incoming()
    loop = _loop(settings, where, clock)
    try:
        while True:
            delay = loop.step()
            ended_ns = clock.elapsed_ns()
            for message in loop.news(clock.now_ns()):
                send(settings.out_fd, message)  # blocks while the exporter is stopped and the pipe is full
            where.turn()
            sent_s = (clock.elapsed_ns() - ended_ns) / NS_PER_S
            ready, _, _ = select.select([settings.orders_fd], [], [], max(0.0, delay - sent_s))
            if not ready:
                continue
            data = os.read(settings.orders_fd, 1 << 16)
            if not data:
                break
            for order in orders.feed(data):
                loop.follow(order)
    except BrokenPipeError:  # the supervisor reads no more
        pass
    loop.close()


def _loop(settings: ReaderSettings, where: Heartbeat, clock: Clock) -> ReaderLoop | Listening | DeviceCounting:
    if settings.key == LISTENER:
        return Listening(settings, where, clock)
    return DeviceCounting(where, clock) if settings.key == COUNTER else ReaderLoop(settings, where, clock)

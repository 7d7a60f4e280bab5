"""The reader process: rounds over the driver, each round's samples sent to the keeper. Needs no numpy.

It ends when its keeper does, or tells it to.
"""

from __future__ import annotations

import os
import select
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from gpu_profile.catalogue import SIGNALS, Signal, Tier
from gpu_profile.catalogue.samples import Device, Event, Sample
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver import Capability, Driver
from gpu_profile.driver.grammar import open_driver
from gpu_profile.driver.node.writer import RingOptions
from gpu_profile.errors import StaleLibraryError
from gpu_profile.sampling.rounds import RARE_S, SLOW_S, Rounds
from gpu_profile.sampling.tracked import Tracked, available
from gpu_profile.units import nanoseconds
from gpu_profile_exporter.reader.counting import DeviceCounting
from gpu_profile_exporter.reader.listening import Listening
from gpu_profile_exporter.reader.marked import READ_S, REOPEN_S, START_S, Marked
from gpu_profile_exporter.reader.ring import DeviceRing
from gpu_profile_exporter.reader.settings import COUNTER, LISTENER, ReaderSettings
from gpu_profile_exporter.reader.whereabouts import DRIVER, Whereabouts
from gpu_profile_exporter.reader.wire import Incoming, Message, send

#: GPUs and MIG instances that come are met within this.
DEVICES_S: Final = 2.0
#: Samples are sent on this often, at most; to wake the keeper up costs more than they do.
SEND_S: Final = 0.25
#: Who has nothing to say says so this often, for who is silent is taken for dead.
SIGN_S: Final = 1.0
_NUMBERS: Final = {signal: number for number, signal in enumerate(SIGNALS)}


class Outbox:
    """Where a device's samples wait to be sent: `[number of the signal, start, end, value] * n`.

    With a `ring` they go into the node's timeline too.
    """

    def __init__(self, ring: DeviceRing | None = None) -> None:
        self.values: list[int] = []
        self.ring = ring

    def add(self, signals: Iterable[Signal]) -> None:
        """The keeper learns of signals from capabilities."""
        if self.ring is not None:
            self.ring.add(signals)

    def append(self, samples: Sequence[Sample], now_ns: int) -> int:
        """Take samples in."""
        if self.ring is not None:
            self.ring.append(samples, now_ns)
        values, before = self.values, len(self.values)
        for row, start, end, value in samples:
            values += (_NUMBERS[row], start, end, value)
        return (len(values) - before) // 4

    def count_dropped(self, totals: Counter[str]) -> None:
        """None: the keeper judges the samples."""

    def take(self) -> list[int]:
        """What waits, which then waits no more."""
        values, self.values = self.values, []
        return values


class ReaderLoop(Rounds[Tracked]):
    """Rounds that tell the keeper where they are, and after each what is new."""

    def __init__(self, settings: ReaderSettings, where: Whereabouts, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(
            self._open,
            lambda device, known, _: Tracked(device, Outbox(self._ring(device.uuid, available(known))), known),
            interval_s=settings.interval_s,
            devices_s=DEVICES_S,
            processes=settings.processes,
            gpm_s=SEND_S,
            drain_s=SLOW_S,
            clock=clock,
        )
        self._settings = settings
        self._options = _ring_options(settings) if settings.timeline else None
        self._where = where
        self._leave: Collection[int | None] = settings.leave
        self._marked: Marked | None = None
        self._told: dict[str, tuple[Mapping[Signal, Capability], Device]] = {}
        self._told_state: dict[str, tuple[bool, str, int | None]] = {}
        self._told_files: dict[str, str] = {}
        self._told_problem: tuple[str, bool] | None = None
        self._told_busy: dict[str, int] = {}
        self._told_errors: dict[str, int] = {}
        self._told_rounds = 0
        self._sent_ns = 0
        self._stale = False
        self._happenings: list[Event] = []
        self.event_sinks.append(lambda event: self._happenings.append(event))  # noqa: PLW0108 - it is renewed

    def _ring(self, uuid: str, signals: Iterable[Signal]) -> DeviceRing | None:
        return None if self._options is None else DeviceRing(self._options, uuid, signals)

    def _open(self) -> Driver:
        self._where.enter(DRIVER, START_S)
        self._marked, self._stale = None, False
        try:
            settings = self._settings
            driver = open_driver(
                settings.driver,
                clock=self.clock,
                groups=settings.groups,
                enter=self._enter,
                events=False,
                counters_s=SEND_S,
            )
        except StaleLibraryError:
            self._stale = True
            raise
        alone = settings.only is not None
        # What was read before opens promptly, or hangs too.
        open_s = settings.open_s if alone or not self.states else min(settings.open_s, REOPEN_S)
        self._marked = Marked(driver, self._where, self.clock, open_s=open_s, alone=alone)
        return self._marked

    def _enter(self, index: int) -> bool:
        """Whether the driver may talk to this GPU; called just before it does."""
        only = self._settings.only
        if index != only if only is not None else index in self._leave:
            return False
        marked = self._marked
        limit = self._settings.open_s if marked is None else READ_S if marked.listed else marked.open_s
        self._where.enter(index, limit)
        return True

    def follow(self, order: Message) -> None:
        """Do what the keeper orders; what is not known is left."""
        if order[0] == "leave":
            self.leave(frozenset(order[1]))
        elif order[0] == "only":
            self._settings = replace(self._settings, only=order[1])
            self.leave({state.device.index for state in self.states.values()} - {order[1]})
            if self._marked is not None:
                self._marked.be_alone()
        elif order[0] == "reopen":
            # The keeper has forgotten what was told, for GPUs may have other indices then.
            self._told_problem = None
            self._told.clear()
            self._told_state.clear()
            self.close()
            self._where.leave()

    def leave(self, indices: Collection[int | None]) -> None:
        """Leave these GPUs to others from now on."""
        self._leave = indices
        for uuid, state in list(self.states.items()):
            if state.device.index in indices:
                del self.states[uuid]
        self._due.pop("devices", None)

    def step(self, *, force: bool = False, quick: bool = False) -> float:
        """As `Rounds.step`; the keeper knows all the while what is being talked to."""
        self._where.enter(DRIVER, START_S if self.driver is None else READ_S)
        delay = super().step(force=force, quick=quick)
        # Not if that failed: the place where a reader ended is told to its keeper.
        self._where.leave()
        return delay

    # ------------------------------------------------------------------ what the keeper is told

    def news(self, now_ns: int) -> list[Message]:
        """What the keeper does not know yet. Samples wait until it is worth waking it up."""
        found = [*self._about_devices(), *self._about_driver()]
        if self._happenings:
            events, self._happenings = self._happenings, []
            found.append(("events", [(e.device, e.t_ns, e.kind, e.code, e.message) for e in events]))
        if found or now_ns - self._sent_ns >= nanoseconds(SEND_S) - nanoseconds(0.01) or now_ns < self._sent_ns:
            found.append(self._round())
            self._sent_ns = now_ns
        return found

    def _about_driver(self) -> Iterable[Message]:
        # A driver that is lost in the middle of a read only turns out to be another version's when it is opened again.
        about = self.problem, self._stale
        if about == self._told_problem:
            return
        self._told_problem = about
        if self.driver is None:
            yield "problem", self.problem, self._stale
        else:
            driver = self.driver
            origin = self._marked.driver if self._marked is not None else driver
            versions = dict(getattr(origin, "versions", {}))
            recorded = getattr(origin, "recorded_driver", driver.name)
            yield "open", driver.name, driver.version, recorded, versions, hasattr(origin, "watched")

    def _about_devices(self) -> Iterable[Message]:
        for uuid in [uuid for uuid in self._told if uuid not in self.states]:
            del self._told[uuid]
            self._told_state.pop(uuid, None)
            yield "gone", uuid
        for uuid, state in self.states.items():
            about = state.capabilities, state.device
            told = self._told.get(uuid)
            if told is None or told[0] is not about[0] or told[1] != about[1]:
                self._told[uuid] = about
                yield "device", _plain(state.device), [(row.key, c.available, c.reason) for row, c in about[0].items()]
            ring = state.timeline.ring if isinstance(state.timeline, Outbox) else None
            if ring is not None and self._told_files.get(uuid) != ring.name:
                self._told_files[uuid] = ring.name
                yield "file", uuid, ring.name
            if self._told_state.get(uuid) != (state.up, state.reason, state.processes_ns):
                self._told_state[uuid] = state.up, state.reason, state.processes_ns
                uses = [(use.pid, use.memory_bytes, use.utilization) for use in state.processes]
                yield "state", uuid, state.up, state.reason, state.processes_ns, uses

    def _round(self) -> Message:
        stats = self.stats
        busy = {tier: ns - self._told_busy.get(tier, 0) for tier, ns in stats.busy_ns.items()}
        errors = {name: n - self._told_errors.get(name, 0) for name, n in stats.errors.items()}
        self._told_busy, self._told_errors = dict(stats.busy_ns), dict(stats.errors)
        rounds, self._told_rounds = stats.rounds - self._told_rounds, stats.rounds
        took = self._marked.take() if self._marked is not None else {}
        samples = {uuid: box.take() for uuid, state in self.states.items() if isinstance(box := state.timeline, Outbox)}
        return "round", stats.turned_ns, rounds, stats.late_ns, busy, errors, took, samples


def _ring_options(settings: ReaderSettings) -> RingOptions:
    periods = {
        Tier.FAST: settings.interval_s,
        Tier.GPM: max(settings.interval_s, SEND_S),
        Tier.SLOW: max(settings.interval_s, SLOW_S),
        Tier.RARE: max(settings.interval_s, RARE_S),
    }
    return RingOptions(
        Path(settings.timeline),
        {tier: nanoseconds(seconds) for tier, seconds in periods.items()},
        nanoseconds(settings.retention_s),
        nanoseconds(max(settings.interval_s, SEND_S)),
        settings.timeline_mode,
        settings.timeline_group,
    )


def _plain(device: Device) -> dict[str, Any]:
    return {name: str(value) if name == "kind" else value for name, value in asdict(device).items()}


def run(settings: ReaderSettings, clock: Clock = SYSTEM_CLOCK) -> None:
    """Read until the keeper goes or says so."""
    loop = _loop(settings, Whereabouts(settings.where_fd), clock)
    orders, spoken_ns = Incoming(), 0
    try:
        while True:
            delay = loop.step()
            news, now_ns = loop.news(clock.now_ns()), clock.elapsed_ns()
            if not news and now_ns - spoken_ns > nanoseconds(SIGN_S):
                news = [("alive",)]
            for message in news:
                send(settings.out_fd, message)
                spoken_ns = now_ns
            ready, _, _ = select.select([settings.orders_fd], [], [], delay)
            if not ready:
                continue
            data = os.read(settings.orders_fd, 1 << 16)
            if not data:
                break
            for order in orders.feed(data):
                loop.follow(order)
    except BrokenPipeError:  # nobody reads any more
        pass
    loop.close()


def _loop(settings: ReaderSettings, where: Whereabouts, clock: Clock) -> ReaderLoop | Listening | DeviceCounting:
    if settings.key == LISTENER:
        return Listening(settings, where, clock)
    return DeviceCounting(where, clock) if settings.key == COUNTER else ReaderLoop(settings, where, clock)

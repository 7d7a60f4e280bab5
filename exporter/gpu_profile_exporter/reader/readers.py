"""The keeper of reader processes: it has what they read, sees which GPU holds one up, and has another read the others.

Normally one process reads every GPU. When a call to a GPU takes long, the process stays with that one until it answers
promptly, and another reads the others; so it is with one that is slow each time. No driver is called here.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from gpu_profile.catalogue.samples import DeviceKind
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile_exporter.reader.intake import DeviceReports, Intake
from gpu_profile_exporter.reader.marked import OPEN_S, REOPEN_S, START_S
from gpu_profile_exporter.reader.pace import Pace
from gpu_profile_exporter.reader.presence import Losses, Presence, StaleLibrary
from gpu_profile_exporter.reader.process import ReaderProcess
from gpu_profile_exporter.reader.processes import ReaderProcesses
from gpu_profile_exporter.reader.registrations import Registrations
from gpu_profile_exporter.reader.settings import COUNTER, HOME, LISTENER, ReaderSettings
from gpu_profile_exporter.reader.timeline import NodeTimeline
from gpu_profile_exporter.reader.whereabouts import DRIVER
from gpu_profile_exporter.reader.wire import WireError
from gpu_profile_exporter.readings.readings import MetricReading

_log = logging.getLogger("gpu_profile_exporter")

#: How often readers are looked after, besides when they say something.
TEND_S: Final = 0.1
#: A reader that hangs is killed and tried again after so long.
PATIENCE_S: Final = 4.0
#: A reader that says nothing for so long, and is not in the driver, has been stopped.
SILENT_S: Final = 5.0
#: The kernel's list of GPUs is looked at this often.
LOOK_S: Final = 1.0
#: An end of these kinds does not tell anything of the GPU that was being read.
_FROM_OUTSIDE: Final = frozenset({None, 0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP})
_OTHERS: Final = {LISTENER: "the listener for events", COUNTER: "the process that counts GPUs"}


class Readers(Intake):
    """Reads every GPU through processes of its own, and shows what a `Sampler` shows.

    `groups` are the names of the groups of signals to read, `processes` whether to ask who uses the GPUs.
    """

    def __init__(
        self,
        driver: str,
        *,
        interval_s: float = 0.1,
        groups: Iterable[str] = (),
        processes: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        timeline: NodeTimeline | None = None,
        spawn: Callable[[ReaderSettings], ReaderProcess] | None = None,
    ) -> None:
        super().__init__(interval_s=interval_s, clock=clock, timeline=timeline)
        self._settings = ReaderSettings(
            driver, interval_s, tuple(groups), processes, -1, -1, -1, **self.timeline_settings
        )
        self._processes = ReaderProcesses(spawn, self._settings_for)
        #: How often readers were started again, by reason.
        self.restarts = self._processes.restarts
        self._pace = Pace()
        self._library = StaleLibrary()
        self._presence = Presence()
        self._losses = Losses()
        self._registrations = Registrations()
        self._look_due = self._released_until = 0.0
        #: Held while readers are started, so that none is after a release.
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._poke, self._poked = os.pipe()

    # ------------------------------------------------------------------ the outside

    def start(self) -> None:
        """Start a reader, and a thread that keeps it."""
        self._processes.watch(self._poke)
        os.write(self._poked, b"x")
        self._thread = threading.Thread(target=self._run, name="gpu-profile-readers", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the keeper's thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def pids(self) -> list[int]:
        """The readers' process ids, those included that are about to end."""
        return self._processes.pids

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the readers and the thread."""
        self._stop.set()
        os.write(self._poked, b"x")
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout_s)
        self._processes.kill()

    def readings(self, _: int) -> Iterator[MetricReading]:
        """What readers use of the machine, and how often they were started again."""
        return self._processes.readings()

    def release(self, seconds: float, *, timeout_s: float = 5.0) -> bool:
        """Let go of every GPU for so long; True once nothing of ours holds one any more."""
        with self._starting:
            self._released_until = time.monotonic() + seconds
        os.write(self._poked, b"x")
        if not seconds:
            return True
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._processes.gone:
                return True
            time.sleep(0.01)
        return False

    @property
    def released_s(self) -> float:
        """For how long the GPUs are still let go of."""
        return max(0.0, self._released_until - time.monotonic())

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._turn()
            except Exception:  # noqa: BLE001 - one defect must not end what keeps the readers
                self.stats.errors["internal"] += 1
                _log.exception("keeping the readers failed; it goes on")
                self._stop.wait(1.0)
        self._processes.kill()
        self.keep_timeline(ended=True)
        for process in self._processes:
            process.wait(0.5)

    def _turn(self) -> None:
        for process in self._processes.ready(TEND_S):
            if process is None:
                os.read(self._poke, 64)
            else:
                self._hear(process)
        self._tend()
        self.keep_timeline()

    def _hear(self, process: ReaderProcess) -> None:
        try:
            self._take_in(process)
        except (WireError, OSError) as error:
            _log.error("a reader cannot be understood (%s); it is started again", error)
            self._processes.end(process, "died")
            return
        if process.hung_up:
            self._died(process)

    def _take_in(self, process: ReaderProcess) -> None:
        for message in process.messages():
            self.take(process, message)
            if message[0] == "round":
                self._judge(process, message[6])
            elif message[0] == "open" and process.key >= HOME:
                self._reconcile(process)
            elif message[0] == "count":
                known = sum(state.device.kind is DeviceKind.GPU for state in self.states.values())
                self._meet(self._presence.counted(message[1], known))

    # ------------------------------------------------------------------ looking after them

    def _judge(self, process: ReaderProcess, took: dict[str, int]) -> None:
        """Give a GPU that answers slowly a reader of its own, and take back one that answers promptly or is gone."""
        now = time.monotonic()
        if process.only is not None and not process.uuids:
            self._pace.answered(process.only, 0, now)
        for uuid, ns in took.items():
            state = self.states.get(uuid)
            if state is None or state.device.index is None:
                continue
            index = state.device.index
            if process.only is not None:
                self._pace.answered(index, ns, now)
            elif self._pace.slow(uuid, ns) and len(process.uuids) > 1:
                _log.warning("%s answers slowly (%.2f s): it gets a reader of its own", uuid, ns / 1e9)
                process.order_leave(process.leave | {index})
                self._processes.want(index)

    def _tend(self) -> None:
        now = time.monotonic()
        self._processes.tend(now)
        if self._stop.is_set():
            return
        with self._starting:
            if now < self._released_until:
                self._let_go()
                return
            self._processes.want(*self._wanted())
            problem = self._processes.start(now)
        if problem and self._processes[HOME] is None:
            self.no_driver(f"no process can be started to read the GPUs: {problem}", self.states)
        for process in self._processes:
            where = process.where
            if where is not None and where.slow:
                self._relieve(process, where.gpu, where.seconds, now)
            if process.exit_code is not None:
                self._died(process)
            elif where is not None and where.late:
                self._hung(process, where.gpu, where.seconds)
            elif where is None and self._silent(process, now):
                _log.warning("a reader of the GPUs has said nothing for %.1f s", now - process.heard)
                self._processes.end(process, "hung", at_once=True)
            elif self._library.due(process.stale_since, now, well=self.driver is not None):
                _log.warning("the driver's library is of another version than the driver: it is loaded anew")
                self._processes.end(process, "stale_library")
        for index in self._pace.prompt(now):
            self._take_home(index)
        self._listen(now)
        if now >= self._look_due:
            self._look_due = now + LOOK_S
            self._meet(self._presence.look())
            self._look_for_lost(now)

    def _relieve(self, process: ReaderProcess, index: int, seconds: float, now: float) -> None:
        """Have another process read the GPUs that wait for a call to this one, if any do."""
        mine = {state.device.uuid for state in self._meant(process, index)}
        gpus = len({state.device.index for state in self.states.values() if state.up})
        alone = index < 0 or self._processes[index] is not None or process.uuids <= mine
        if process.key == HOME and not alone and self._pace.held_up(len(self._processes.apart) + 1, gpus, now):
            _log.warning("GPU %d has not answered for %.2f s: another process reads the others", index, seconds)
            self._pace.forget(index)
            process.uuids = mine
            with self._starting:
                self._processes.hand_over(process, index)
                if now >= self._released_until:
                    self._processes.start(now)

    def _wanted(self) -> Iterator[int]:
        yield HOME
        if self.listens:
            yield LISTENER
        if not self._presence.visible and self.driver is not None and self.driver.name == "nvml":
            yield COUNTER

    def _meet(self, new: Collection[str]) -> None:
        """Have NVML started anew where GPUs have come: it lists none that came after its start."""
        if new:
            _log.info("NVML is started anew: GPUs were added (%s)", ", ".join(sorted(new)))
            self._reopen()

    def _look_for_lost(self, now: float) -> None:
        """See which devices nobody reads, and have NVML started anew, ever more seldom, for GPUs that stay lost."""
        read = self._read()
        unread = [uuid for uuid, state in self.states.items() if state.up and uuid not in read]
        for uuid in self._losses.unread(unread, now):
            self.gone(self.states[uuid], "no process reads it")
        # Without a driver all are down; one that hangs has a reader of its own, which starts NVML each time.
        states = self.states.items() if self.driver is not None else ()
        if self._losses.revive([uuid for uuid, state in states if self._missing(state)], now):
            self._reopen()

    def _reconcile(self, process: ReaderProcess) -> None:
        """Take the devices that a newly opened driver should list and does not for gone: they went unnoticed."""
        read = self._read()
        unlisted = [state for uuid, state in self.states.items() if uuid not in read]
        # Its NVML may count otherwise than those before: what has which index is known once they were started anew.
        before = [other for other in self._processes if other.handed_over and process.key == HOME and unlisted]
        for other in before:
            if (where := other.where) is not None and where.slow and where.gpu == other.only:
                self._hung(other, where.gpu, 0.0)
            self._processes.end(other, "hung", at_once=True)
        for state in unlisted:
            if process.reads(state.device.index) and not before:
                self.gone(state, "the driver does not list it any more")

    def _read(self) -> frozenset[str]:
        """The devices that some process reads."""
        return frozenset[str]().union(*(process.uuids for process in self._processes))

    def _reopen(self) -> None:
        for process in self._processes:
            process.order_reopen()

    def _silent(self, process: ReaderProcess, now: float) -> bool:
        limit = SILENT_S if process.heard > process.started else START_S
        if now - process.heard > limit:
            # It may have been this process that was stopped: what was said meanwhile waits in the pipe.
            self._hear(process)
        return now - process.heard > limit and self._processes[process.key] is process

    def _listen(self, now: float) -> None:
        """Name the GPUs that answer to the listener."""
        listener = self._processes[LISTENER]
        if listener is not None and (gpus := self._registrations.due(self.states.values(), now)) != listener.watches:
            listener.order_watch(gpus)

    def _settings_for(self, key: int) -> ReaderSettings:
        settings = self._settings
        self._pace.forget(key)
        if key == LISTENER:
            name = self.driver.name if self.driver is not None and settings.driver == "auto" else settings.driver
            return replace(settings, driver=name, other=key)
        if key == COUNTER:
            return replace(settings, other=key)
        # One that has been read before opens promptly, or hangs too: then it gets a reader of its own.
        if key == HOME:
            leave = tuple(sorted(self._processes.apart))
            return replace(settings, leave=leave, open_s=REOPEN_S if self.states else OPEN_S)
        return replace(settings, only=key, open_s=PATIENCE_S)

    def _take_home(self, index: int) -> None:
        home, own = self._processes[HOME], self._processes[index]
        if home is not None and own is not None:
            _log.info("GPU %d answers promptly again: it is read with the others", index)
            self._processes.remove(own)
            home.order_leave(home.leave - {index})

    def _missing(self, state: DeviceReports) -> bool:
        """Whether this is a GPU that may not be there: it is down, and no call to it hangs."""
        hangs = state.device.uuid in self.lost and state.device.index in self._processes.apart
        return not state.up and not hangs and state.device.kind is DeviceKind.GPU

    def _meant(self, process: ReaderProcess, index: int) -> list[DeviceReports]:
        """The devices that a process means by an NVML index; none if that is not sure.

        Before it has listed any, its NVML may count otherwise than the one before, if a GPU has gone or come.
        """
        states = list(self.states.values())
        if process.uuids:
            states = [state for state in states if state.device.uuid in process.uuids]
        elif any(map(self._missing, states)):
            return []
        return [state for state in states if state.device.index == index]

    def _hung(self, process: ReaderProcess, index: int, seconds: float) -> None:
        if process.key < HOME:
            _log.warning("%s has been hanging for %.1f s; it is started again", _OTHERS[process.key], seconds)
            self._registrations.put_off(index, time.monotonic())
            self._processes.end(process, "hung")
            return
        if index == DRIVER:
            reason = f"the driver has not answered for {seconds:.0f} s"
            _log.warning("%s; its reader is started again", reason)
            if process.only is None:
                self.no_driver(reason, process.uuids)
            self._processes.end(process, "hung")
            return
        for state in self._meant(process, index):
            self.lose(state, "a call to it hangs in the driver")
        if process.only is None:
            # The others first: this one has all the time there is.
            self._processes.want(index)
            self._processes.end(process, "hung", at_once=True, held=index)
        elif seconds > PATIENCE_S:
            self._processes.end(process, "hung", at_once=True)

    def _died(self, process: ReaderProcess) -> None:
        process.wait(0.1)  # it may have hung up a moment ago
        with suppress(WireError, OSError):
            self._take_in(process)
        code, where = process.exit_code, process.where
        index = process.only
        crashed = where is not None and where.gpu >= 0 and code not in _FROM_OUTSIDE
        if process.key < HOME:
            _log.warning("%s ended (%s); it is started again", _OTHERS[process.key], code)
            if where is not None and crashed:
                self._registrations.put_off(where.gpu, time.monotonic())
            self._processes.end(process, "died")
            return
        _log.warning("a reader of the GPUs ended (%s); it is started again", code)
        if index is None and where is not None and crashed:
            _log.warning("it ended in a call to GPU %d, which gets a reader of its own", where.gpu)
            index = where.gpu
            self._processes.want(index)
        if index is not None:
            for state in self._meant(process, index):
                self.down(state, "its reader ended in a call to it")
        self._processes.end(process, "died", at_once=index != process.only)

    def _let_go(self) -> None:
        reason = "released on request, so that the GPUs can be reset or reconfigured"
        for process in self._processes:
            self.restarts["released"] += 1
            self._processes.remove(process)
        self._processes.forget_due()
        self.stats.turned_ns = self.clock.now_ns()
        if self.problem != reason:
            _log.warning("the GPUs are released for %.0f s", self.released_s)
            self.no_driver(reason, self.states)

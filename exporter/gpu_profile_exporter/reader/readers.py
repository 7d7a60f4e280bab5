"""The supervisor of reader processes: collects their readings, detects hangs, and isolates slow GPUs.

Normally one process reads all GPUs. If a call to a GPU takes long, that process keeps this GPU until it answers
promptly, and another one reads the others. A GPU that stays slow gets its own process too. No driver is called here.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpu_profile.catalogue.samples import DeviceKind
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile_exporter.reader.heartbeat import DRIVER
from gpu_profile_exporter.reader.intake import DeviceReports, Intake
from gpu_profile_exporter.reader.observed_driver import OPEN_S, REOPEN_S, START_S
from gpu_profile_exporter.reader.pace import Pace
from gpu_profile_exporter.reader.presence import Losses, Presence, StaleLibrary
from gpu_profile_exporter.reader.process import ReaderProcess
from gpu_profile_exporter.reader.processes import ReaderProcesses
from gpu_profile_exporter.reader.registrations import Registrations
from gpu_profile_exporter.reader.settings import COUNTER, HOME, LISTENER, ReaderSettings
from gpu_profile_exporter.reader.wire import WireError
from gpu_profile_exporter.readings.readings import MetricReading

if TYPE_CHECKING:
    from gpu_profile_exporter.reader.timeline import NodeTimeline

_log = logging.getLogger("gpu_profile_exporter")

#: A GPU's own reader is killed and restarted if a call takes longer than this.
PATIENCE_S: Final = 4.0
#: A process that ends no turn for this time, and is in no call, is replaced, as one that a signal stopped is at once.
SILENT_S: Final = 5.0
#: The interval at which the kernel's list of GPUs is read.
LOOK_S: Final = 1.0
#: Exit codes without evidence of a fault of the GPU that was being read.
_FROM_OUTSIDE: Final = frozenset({None, 0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP})
_OTHERS: Final = {LISTENER: "the listener for events", COUNTER: "the process that counts GPUs"}


class Readers(Intake):
    """Reads every GPU through separate processes, and has the attributes of a `Sampler`.

    `groups`: names of the groups of signals to read. `processes`: also list the processes on each GPU.
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
        #: Restarts of readers, by reason.
        self.restarts = self._processes.restarts
        self._pace = Pace()
        self._library = StaleLibrary()
        self._presence, self._losses = Presence(), Losses()
        self._registrations = Registrations()
        self._look_due = self._released_until = 0.0
        #: Locked while readers are started, so that none starts during a release.
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    # ------------------------------------------------------------------ any thread

    def start(self) -> None:
        """Start the supervisor's thread, which starts the readers."""
        self._processes.wake()
        self._thread = threading.Thread(target=self._run, name="gpu-profile-readers", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the supervisor's thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def pids(self) -> list[int]:
        """The readers' process ids, including killed ones that have not ended yet."""
        return self._processes.pids

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the readers and the thread."""
        self._stop.set()
        self._processes.wake()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout_s)
        self._processes.kill()

    def readings(self, _: int) -> Iterator[MetricReading]:
        """The readers' CPU time and memory, and their restarts."""
        return self._processes.readings()

    def _request_samples(self) -> bool:
        return self.running and self._processes.request_samples()

    def release(self, seconds: float, *, timeout_s: float = 5.0) -> bool:
        """Release every GPU for this time. True once no reader is left; False if one remains after `timeout_s`."""
        with self._starting:
            self._released_until = time.monotonic() + seconds
        self._processes.wake()
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
        """The rest of a release, in seconds."""
        return max(0.0, self._released_until - time.monotonic())

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._turn()
            except Exception:  # noqa: BLE001 - one defect must not end the supervisor
                self.stats.errors["internal"] += 1
                _log.exception("supervising the readers failed; trying again")
                self._stop.wait(1.0)
        self._processes.kill()
        self.keep_timeline(ended=True)
        for process in self._processes:
            process.wait(0.5)

    def _turn(self) -> None:
        for process in self._processes.ready():
            self._receive(process)
        self._supervise()
        self.keep_timeline()

    def _receive(self, process: ReaderProcess) -> None:
        try:
            self._take_messages(process)
        except (WireError, OSError) as error:
            _log.error("a reader sent an invalid message (%s); it is started again", error)
            self._processes.end(process, "died")
            return
        if process.pipe_closed:
            self._died(process)

    def _take_messages(self, process: ReaderProcess) -> None:
        for message in process.messages():
            self.take(process, message)
            if message[0] == "round":
                self._judge(process, message[6])
            elif message[0] == "open" and process.key >= HOME:
                self._reconcile(process)
            elif message[0] == "count":
                gpus = sum(state.device.kind is DeviceKind.GPU for state in self.states.values())
                self._handle_added(self._presence.counted(message[1], gpus))

    # ------------------------------------------------------------------ supervising

    def _judge(self, process: ReaderProcess, took: dict[str, int]) -> None:
        """Note each GPU's longest call, in ns. A slow GPU gets its own reader, an absent one counts as prompt."""
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

    def _supervise(self) -> None:
        now = time.monotonic()
        self._processes.maintain(now)
        if self._stop.is_set():
            return
        with self._starting:
            if now < self._released_until:
                self._release_all()
                return
            self._processes.want(*self._wanted())
            problem = self._processes.start(now)
        if problem and self._processes[HOME] is None:
            self.no_driver(f"no process can be started to read the GPUs: {problem}", self.states)
        for process in self._processes:
            where = process.where
            if where is not None and where.slow:
                self._isolate(process, where.gpu, where.seconds, now)
            if process.exit_code is not None:
                self._died(process)
            elif where is not None and where.late:
                self._hung(process, where.gpu, where.seconds)
            elif where is None and self._silent(process, now):
                _log.warning("a reader of the GPUs has done nothing for %.1f s", now - process.active)
                self._processes.end(process, "hung", at_once=True)
            elif self._library.due(process.stale_since, now, well=self.driver is not None):
                _log.warning("the driver's library is of another version than the driver: it is loaded anew")
                self._processes.end(process, "stale_library")
        for index in self._pace.prompt(now):
            self._rejoin(index)
        self._order_watch(now)
        if now >= self._look_due:
            self._look_due = now + LOOK_S
            self._handle_added(self._presence.look())
            self._check_lost(now)

    def _isolate(self, process: ReaderProcess, index: int, seconds: float, now: float) -> None:
        """If a call to this GPU delays other GPUs, start another process for those."""
        own = {state.device.uuid for state in self._devices_at(process, index)}
        gpus = len({state.device.index for state in self.states.values() if not self._missing(state)})
        # Before its first list, a process is about to read all GPUs that no other one does.
        waiting = process.uuids or self.states.keys() - self._read()
        alone = index < 0 or self._processes[index] is not None or waiting <= own or not (process.uuids or own)
        apart, hang = len(self._processes.apart) + 1, self._processes.one_hangs
        if process.key == HOME and not alone and self._pace.may_isolate(apart, gpus, now, hangs=hang):
            _log.warning("GPU %d has not answered for %.2f s: another process reads the others", index, seconds)
            self._pace.forget(index)
            process.uuids = own
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

    def _handle_added(self, new: Collection[str]) -> None:
        """Restart NVML if GPUs were added: it does not list GPUs added after its start."""
        if new:
            _log.info("NVML is started anew: GPUs were added (%s)", ", ".join(sorted(new)))
            self._reopen()

    def _check_lost(self, now: float) -> None:
        """Mark devices that no process reads as lost. Restart NVML for lost GPUs, at increasing intervals."""
        read = self._read()
        unread = [uuid for uuid, state in self.states.items() if state.up and uuid not in read]
        for uuid in self._losses.unread(unread, now):
            self.gone(self.states[uuid], "no process reads it")
        # Without a driver all GPUs are down. A GPU that hangs has its own reader, which starts NVML at each restart.
        states = self.states.items() if self.driver is not None else ()
        if self._losses.revive([uuid for uuid, state in states if self._missing(state)], now):
            self._reopen()

    def _reconcile(self, process: ReaderProcess) -> None:
        """Handle the devices that a newly opened driver should list but does not: they disappeared unnoticed."""
        read = self._read()
        unlisted = [state for uuid, state in self.states.items() if uuid not in read]
        # Its NVML may number GPUs differently than that of older processes. These are restarted, to number them alike.
        older = [other for other in self._processes if other.handed_over and process.key == HOME and unlisted]
        for other in older:
            if (where := other.where) is not None and where.slow and where.gpu == other.only:
                self._hung(other, where.gpu, 0.0)
            self._processes.end(other, "hung", at_once=True)
        for state in unlisted:
            if process.reads(state.device.index) and not older:
                self.gone(state, "the driver does not list it any more")

    def _read(self) -> frozenset[str]:
        """The UUIDs of the devices that a process reads."""
        return frozenset[str]().union(*(process.uuids for process in self._processes))

    def _reopen(self) -> None:
        for process in self._processes:
            process.order_reopen()

    def _silent(self, process: ReaderProcess, now: float) -> bool:
        limit = SILENT_S if process.active > process.started else START_S
        if now - process.active > limit:
            # The exporter itself may have been stopped: then messages wait in the pipe.
            self._receive(process)
        return now - process.active > limit and self._processes[process.key] is process

    def _order_watch(self, now: float) -> None:
        """Order the listener to watch the GPUs that answer, if these have changed."""
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
        # GPUs that were read before open promptly, or hang: then they get their own reader.
        if key == HOME:
            leave = tuple(sorted(self._processes.apart))
            return replace(settings, leave=leave, open_s=REOPEN_S if self.states else OPEN_S)
        return replace(settings, only=key, open_s=PATIENCE_S)

    def _rejoin(self, index: int) -> None:
        home, own = self._processes[HOME], self._processes[index]
        if home is not None and own is not None:
            _log.info("GPU %d answers promptly again: it is read with the others", index)
            self._processes.remove(own)
            home.order_leave(home.leave - {index})

    def _missing(self, state: DeviceReports) -> bool:
        """True for a GPU that may be absent: it is down, and no call to it hangs."""
        hangs = state.device.uuid in self.lost and state.device.index in self._processes.apart
        return not state.up and not hangs and state.device.kind is DeviceKind.GPU

    def _devices_at(self, process: ReaderProcess, index: int) -> list[DeviceReports]:
        """The devices with this NVML index in a process. Empty if that is uncertain.

        After a GPU was added or lost, NVML may number GPUs differently in a process that has not listed any yet.
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
        for state in self._devices_at(process, index):
            self.lose(state, "a call to it hangs in the driver")
        if process.only is None:
            # The others are read again at once, this one after the killed process has ended.
            self._processes.want(index)
            self._processes.end(process, "hung", at_once=True, held=index)
        elif seconds > PATIENCE_S:
            self._processes.end(process, "hung", at_once=True)

    def _died(self, process: ReaderProcess) -> None:
        process.wait(0.1)  # it may have closed its pipe just before its end
        with suppress(WireError, OSError):
            self._take_messages(process)
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
            for state in self._devices_at(process, index):
                self.down(state, "its reader ended in a call to it")
        self._processes.end(process, "died", at_once=index != process.only)

    def _release_all(self) -> None:
        reason = "released on request, so that the GPUs can be reset or reconfigured"
        for process in self._processes:
            self.restarts["released"] += 1
            self._processes.remove(process)
        self._processes.forget_due()
        self.stats.turned_ns = self.clock.now_ns()
        if self.problem != reason:
            _log.warning("the GPUs are released for %.0f s", self.released_s)
            self.no_driver(reason, self.states)

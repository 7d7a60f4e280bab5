"""The keeper of reader processes: it has what they read, sees which GPU holds one up, and gives that one another.

Normally one process reads every GPU. A GPU whose call hangs costs that process its life: it is killed and started anew
without that GPU, which gets a process of its own until it answers again; so does, without a death, a GPU that answers
slowly. The driver is never called here.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from gpu_profile.catalogue.self_metrics import READER_CPU, READER_MEMORY, READER_RESTARTS
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile_exporter.reader.child import Settings
from gpu_profile_exporter.reader.intake import Intake
from gpu_profile_exporter.reader.marked import OPEN_S, REOPEN_S, START_S
from gpu_profile_exporter.reader.process import Process
from gpu_profile_exporter.reader.usage import ended_cpu_s, total
from gpu_profile_exporter.reader.whereabouts import DRIVER, EVENTS
from gpu_profile_exporter.reader.wire import WireError
from gpu_profile_exporter.readings.readings import Reading

_log = logging.getLogger("gpu_profile_exporter")

#: How often readers are looked after, besides when they say something.
TEND_S: Final = 0.25
#: A GPU whose reads take longer than this, `SLOW_ROUNDS` times in a row, would hold the others up.
SLOW_S: Final = 0.15
SLOW_ROUNDS: Final = 3
#: One that has answered faster than `PROMPT_S` for so long is read with the others again.
PROMPT_S: Final = 0.05
PROMPT_FOR_S: Final = 10.0
#: A reader that hangs is killed and tried again after so long.
PATIENCE_S: Final = 4.0
#: A reader that says nothing for so long, and is not in the driver, has been stopped.
SILENT_S: Final = 5.0
#: Where waiting for events hangs, GPUs are read without for so long.
DEAF_S: Final = 60.0
#: A library that is not the driver's version is looked up anew this often, and after a while more rarely.
STALE_S: Final = 3.0
STALE_LATER_S: Final = 30.0
_STALE_FOR_S: Final = 600.0
#: The pause before a reader that died is started again, which doubles each time until it is the longest.
_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 4.0
_ENOUGH_S: Final = 10.0
#: An end of these kinds does not tell anything of the GPU that was being read.
_FROM_OUTSIDE: Final = frozenset({None, 0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP})
_ALL: Final[dict[str, str]] = {}
_REASONS: Final = {reason: {"reason": reason} for reason in ("died", "hung", "released", "stale_library")}


class Readers(Intake):
    """Reads every GPU through processes of its own, into timelines.

    It shows what a `Sampler` shows: `states`, `stats`, `problem`, `events`. `groups` are the names of the groups of
    signals to read, `processes` whether to ask who uses the GPUs.
    """

    def __init__(
        self,
        driver: str,
        *,
        interval_s: float = 0.1,
        groups: Iterable[str] = (),
        processes: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        spawn: Callable[[Settings], Process] = Process,
    ) -> None:
        super().__init__(interval_s=interval_s, clock=clock)
        #: How often readers were started again, by reason.
        self.restarts: Counter[str] = Counter(dict.fromkeys(_REASONS, 0))
        self._settings = Settings(driver, interval_s, tuple(groups), processes, -1, -1, -1)
        self._spawn = spawn
        self._home: Process | None = None
        self._apart: dict[int, Process] = {}
        #: Readers that were killed and are not gone yet, for a call may hold them in the kernel, and what is not read
        #: again until they are: a GPU, or (None) all that are read together.
        self._dying: list[tuple[Process, int | None]] = []
        self._slow: Counter[str] = Counter()
        self._prompt_since: dict[int, float] = {}
        self._again: dict[int | None, float] = {}
        self._pause: dict[int | None, float] = {}
        self._stale_since: float | None = None
        self._deaf_until = 0.0
        self._released_until = 0.0
        #: Held while readers are started, so that none is after a release.
        self._starting = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._poke, self._poked = os.pipe()

    # ------------------------------------------------------------------ the outside

    def start(self) -> None:
        """Start a reader, and a thread that keeps it."""
        self._selector.register(self._poke, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="gpu-profile-readers", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the keeper's thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def pids(self) -> list[int]:
        """The readers' process ids, those included that are about to end."""
        return [process.pid for process in (*self._all(), *(process for process, _ in self._dying))]

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the readers and the thread."""
        self._stop.set()
        os.write(self._poked, b"x")
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout_s)
        for process in self._all():
            process.kill()

    def readings(self, _: int) -> Iterator[Reading]:
        """What readers use of the machine, and how often they were started again."""
        used = total(self.pids)
        if used is not None:
            # Without those that have ended, the counter would go back whenever one is started again.
            yield Reading(READER_CPU, _ALL, used.cpu_s + ended_cpu_s())
            yield Reading(READER_MEMORY, _ALL, used.resident_bytes)
        for reason, n in sorted(self.restarts.items()):
            yield Reading(READER_RESTARTS, _REASONS[reason], n)

    def release(self, seconds: float, *, timeout_s: float = 5.0) -> bool:
        """Let go of every GPU for so long; True once nothing of ours holds one any more."""
        with self._starting:
            self._released_until = time.monotonic() + seconds
        os.write(self._poked, b"x")
        if not seconds:
            return True
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not self._all() and not self._dying:
                return True
            time.sleep(0.01)
        return False

    @property
    def released_s(self) -> float:
        """For how long the GPUs are still let go of."""
        return max(0.0, self._released_until - time.monotonic())

    def _all(self) -> list[Process]:
        return [process for process in (self._home, *list(self._apart.values())) if process is not None]

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._turn()
            except Exception:  # noqa: BLE001 - one defect must not end what keeps the readers
                self.stats.errors["internal"] += 1
                _log.exception("keeping the readers failed; it goes on")
                self._stop.wait(1.0)
        for process in self._all():
            process.kill()
            process.wait(0.5)

    def _turn(self) -> None:
        self._tend()
        for key, _ in self._selector.select(TEND_S):
            if key.data is None:
                os.read(self._poke, 64)
            else:
                self._hear(key.data)

    def _hear(self, process: Process) -> None:
        try:
            for message in process.messages():
                self.take(process, message)
                if message[0] == "round":
                    self._judge(process, message[6])
        except (WireError, OSError) as error:
            _log.error("a reader cannot be understood (%s); it is started again", error)
            self._end(process, "died")
            return
        if process.hung_up:
            self._died(process)

    # ------------------------------------------------------------------ looking after them

    def _judge(self, process: Process, took: dict[str, int]) -> None:
        """Give a GPU that answers slowly a reader of its own, and take back one that answers promptly or is gone."""
        if process.only is not None and not process.uuids:
            self._prompt_since.setdefault(process.only, time.monotonic())
        for uuid, ns in took.items():
            state = self.states.get(uuid)
            if state is None or state.device.index is None:
                continue
            index = state.device.index
            if process.only is None:
                self._slow[uuid] = self._slow[uuid] + 1 if ns > SLOW_S * 1e9 else 0
                if self._slow[uuid] >= SLOW_ROUNDS and len(process.uuids) > 1:
                    _log.warning("%s answers slowly (%.2f s): it gets a reader of its own", uuid, ns / 1e9)
                    self._slow[uuid] = 0
                    process.order_leave(process.leave | {index})
                    self._again.setdefault(index, 0.0)
            elif ns > PROMPT_S * 1e9:
                self._prompt_since.pop(index, None)
            else:
                self._prompt_since.setdefault(index, time.monotonic())

    def _tend(self) -> None:
        now = time.monotonic()
        self._reap()
        if self._stop.is_set():
            return
        with self._starting:
            if now < self._released_until:
                self._let_go()
                return
            self._start_what_is_due(now)
        for process in self._all():
            where = process.where
            if process.exit_code is not None:
                self._died(process)
            elif where is not None and where.late:
                self._hung(process, where.gpu, where.seconds)
            elif where is None and now - process.heard > (SILENT_S if process.heard > process.started else START_S):
                _log.warning("a reader of the GPUs has said nothing for %.1f s", now - process.heard)
                self._end(process, "hung", at_once=True)
            elif process.stale_since is not None and now - process.stale_since > self._stale_pause(now):
                _log.warning("the driver's library is of another version than the driver: it is loaded anew")
                self._end(process, "stale_library")
        for index, since in list(self._prompt_since.items()):
            if now - since > PROMPT_FOR_S and index in self._apart and self._home is not None:
                self._take_home(index)

    def _stale_pause(self, now: float) -> float:
        if self._stale_since is None or self.driver is not None:
            self._stale_since = now
        return STALE_S if now - self._stale_since < _STALE_FOR_S else STALE_LATER_S

    def _start_what_is_due(self, now: float) -> None:
        for only in (None, *self._again):
            running = self._home if only is None else self._apart.get(only)
            held = any(index == only for _, index in self._dying)
            if running is not None or held or now < self._again.get(only, 0.0):
                continue
            self._again.pop(only, None)
            self._begin(only)
            return  # the rest in the next turn: `_again` has changed

    def _begin(self, only: int | None) -> None:
        apart = {*self._apart, *(index for index in self._again if index is not None)}
        leave = () if only is not None else tuple(sorted(apart))
        # One that has been read before opens promptly, or hangs too: then it gets a reader of its own.
        open_s = PATIENCE_S if only is not None else REOPEN_S if self.states else OPEN_S
        try:
            deaf_s = max(0.0, self._deaf_until - time.monotonic())
            settings = replace(self._settings, only=only, leave=leave, open_s=open_s, deaf_s=deaf_s)
            process = self._spawn(settings)
        except OSError as error:
            _log.error("a reader cannot be started (%s); it is tried again", error)
            self._again[only] = time.monotonic() + LONGEST_PAUSE_S
            if only is None:
                self.no_driver(f"no process can be started to read the GPUs: {error}", self.states)
            return
        self._selector.register(process.fd, selectors.EVENT_READ, process)
        if only is None:
            self._home = process
        else:
            self._apart[only] = process

    def _take_home(self, index: int) -> None:
        _log.info("GPU %d answers promptly again: it is read with the others", index)
        self._remove(self._apart[index])
        if self._home is not None:
            self._home.order_leave(self._home.leave - {index})

    def _hung(self, process: Process, index: int, seconds: float) -> None:
        if index == EVENTS:
            _log.warning("waiting for events has been hanging for %.1f s; none are told for %.0f s", seconds, DEAF_S)
            self._deaf_until = time.monotonic() + DEAF_S
            self._end(process, "hung", at_once=True)
            return
        if index == DRIVER:
            reason = f"the driver has not answered for {seconds:.0f} s"
            _log.warning("%s; its reader is started again", reason)
            if process.only is None:
                self.no_driver(reason, process.uuids)
            self._end(process, "hung")
            return
        for state in self.of_gpu(index):
            self.lose(state, "a call to it hangs in the driver")
        if process.only is None:
            # The others first: this one has all the time there is.
            self._again.setdefault(index, 0.0)
            self._end(process, "hung", at_once=True, held=index)
        elif seconds > PATIENCE_S:
            self._end(process, "hung", at_once=True)

    def _died(self, process: Process) -> None:
        process.wait(0.1)  # it may have hung up a moment ago
        code, where = process.exit_code, process.where
        _log.warning("a reader of the GPUs ended (%s); it is started again", code)
        index = process.only
        if index is None and where is not None and where.gpu >= 0 and code not in _FROM_OUTSIDE:
            _log.warning("it ended in a call to GPU %d, which gets a reader of its own", where.gpu)
            index = where.gpu
            self._again.setdefault(index, 0.0)
        if index is not None:
            for state in self.of_gpu(index):
                self.down(state, "its reader ended in a call to it")
        self._end(process, "died", at_once=index != process.only)

    def _end(self, process: Process, why: str, *, at_once: bool = False, held: int | None = None) -> None:
        """Kill a reader; another one takes its place, later if that did not last.

        `held`: the GPU that may keep it from ending, if it read others too.
        """
        self.restarts[why] += 1
        lasted = time.monotonic() - process.started
        pause = (
            0.0
            if at_once or lasted > _ENOUGH_S
            else min(LONGEST_PAUSE_S, max(_PAUSE_S, 2 * self._pause.get(process.only, 0.0)))
        )
        self._pause[process.only] = pause
        self._again[process.only] = time.monotonic() + pause
        self._remove(process, held)

    def _remove(self, process: Process, held: int | None = None) -> None:
        self._selector.unregister(process.fd)
        process.kill()
        # First of all, so that there is no moment at which it is nowhere.
        self._dying.append((process, process.only if held is None else held))
        if process is self._home:
            self._home = None
        else:
            self._apart = {index: other for index, other in self._apart.items() if other is not process}
            if process.only is not None:
                self._prompt_since.pop(process.only, None)
        process.wait(0.02)
        self._reap()

    def _reap(self) -> None:
        left = []
        for process, only in self._dying:
            if process.exit_code is not None:
                process.close()
            else:
                left.append((process, only))
        self._dying = left

    def _let_go(self) -> None:
        reason = "released on request, so that the GPUs can be reset or reconfigured"
        for process in self._all():
            self.restarts["released"] += 1
            self._remove(process)
        self._again.clear()
        self.stats.turned_ns = self.clock.now_ns()
        if self.problem != reason:
            _log.warning("the GPUs are released for %.0f s", self.released_s)
            self.no_driver(reason, self.states)

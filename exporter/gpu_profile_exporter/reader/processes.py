"""Starts, kills, reaps and restarts the supervisor's processes.

A killed process may remain in a kernel call. Until it has ended, no other process is started for its GPU or its key.
"""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from gpu_profile.catalogue.self_metrics import READER_CPU, READER_MEMORY, READER_RESTARTS
from gpu_profile_exporter.reader.launcher import Launcher
from gpu_profile_exporter.reader.process import ReaderProcess
from gpu_profile_exporter.reader.settings import HOME, ReaderSettings
from gpu_profile_exporter.reader.usage import Usage, ended_cpu_s, shared_bytes, total
from gpu_profile_exporter.readings.readings import MetricReading

_log = logging.getLogger("gpu_profile_exporter")

#: The pause before a restart. It doubles each time, up to the longest.
_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 4.0
#: The same for a process that has read several GPUs: readings expire after 2 s, and a start takes up to 1 s.
_LONGEST_OF_ALL_S: Final = 0.4
#: A process that lasted longer than this is restarted without a pause.
_ENOUGH_S: Final = 10.0
#: The interval at which processes are checked.
SUPERVISE_S: Final = 0.1
#: While all is well they are checked when samples arrive, which wakes the supervisor anyway. A reader is overdue this
#: time after the end of its last turn: a round at 10 Hz, and some delay.
OVERDUE_S: Final = 0.4
#: Then a call to a GPU is checked at this interval, until it is slow.
_CALL_S: Final = 0.025
#: The interval at which the memory of the processes is measured. Each time costs as much as a second of their samples.
MEMORY_S: Final = 30.0
#: Calls of `wake` that one wake-up answers.
_WAKES: Final = 1 << 16
_NONE: Final[dict[str, str]] = {}
#: Reasons to restart processes.
_REASONS: Final = {reason: {"reason": reason} for reason in ("died", "hung", "released", "stale_library")}


class ReaderProcesses:
    """At most one process for each key: `HOME`, `LISTENER`, `COUNTER`, or a GPU that is read apart, by NVML index."""

    def __init__(
        self, spawn: Callable[[ReaderSettings], ReaderProcess] | None, settings: Callable[[int], ReaderSettings]
    ) -> None:
        #: Restarts by reason.
        self.restarts: Counter[str] = Counter(dict.fromkeys(_REASONS, 0))
        self._launcher = Launcher()
        #: The last measurement of memory: its time, the pids, and bytes.
        self._measured: tuple[float, list[int], int | None] = 0.0, [], None
        self._spawn = spawn or partial(ReaderProcess, launcher=self._launcher)
        self._settings = settings
        self._running: dict[int, ReaderProcess] = {}
        #: Killed processes that have not ended yet, each with the key that is not started again before.
        self._dying: list[tuple[ReaderProcess, int]] = []
        self._due: dict[int, float] = {}
        self._pause: dict[int, float] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        #: Whether readers are to send their samples at the next wake-up.
        self._samples_wanted = False

    def __iter__(self) -> Iterator[ReaderProcess]:
        """The running processes. Thread-safe."""
        return iter(list(self._running.values()))

    def __getitem__(self, key: int) -> ReaderProcess | None:
        """The running process of this key. None if there is none."""
        return self._running.get(key)

    @property
    def pids(self) -> list[int]:
        """The process ids, including killed processes that have not ended yet."""
        return [pid for process in (*self, *(process for process, _ in self._dying)) if (pid := process.pid)]

    def readings(self) -> Iterator[MetricReading]:
        """The processes' CPU time and memory, and the restarts by reason."""
        (used, ended_s), (_, _, memory) = self._used(), self._measured
        if used is not None:
            # Includes ended processes: else the counter would decrease at each restart.
            yield MetricReading(READER_CPU, _NONE, used.cpu_s + ended_s)
        if memory is not None:
            yield MetricReading(READER_MEMORY, _NONE, memory)
        for reason, n in sorted(self.restarts.items()):
            yield MetricReading(READER_RESTARTS, _REASONS[reason], n)

    def _used(self) -> tuple[Usage | None, float]:
        """The usage of the running processes, and the CPU time of the ended ones in seconds."""
        ended_s = ended_cpu_s()
        while True:
            used, before_s, ended_s = total(self._all_pids()), ended_s, ended_cpu_s()
            # Measured again if another thread reaped a process meanwhile, because that could count twice.
            if ended_s == before_s:
                return used, ended_s

    @property
    def apart(self) -> set[int]:
        """The GPUs that have their own process, or are to get one, by NVML index."""
        return {key for key in (*self._running, *self._due) if key >= 0}

    @property
    def one_hangs(self) -> bool:
        """Whether a call hangs in a process that was restricted to its GPU because it delayed others."""
        return any(one.handed_over and (call := one.where) is not None and call.late for one in self)

    @property
    def gone(self) -> bool:
        """True if no process is left, killed ones included."""
        return not self._running and not self._dying

    def wake(self) -> None:
        """Let `ready` return. From any thread."""
        with suppress(BlockingIOError):  # it is full of earlier calls
            os.write(self._wake_write, b"x")

    def request_samples(self) -> bool:
        """Let the readers send their samples now. False if none runs. From any thread."""
        if not self._running:
            return False
        self._samples_wanted = True
        self.wake()
        return True

    def ready(self) -> list[ReaderProcess]:
        """Wait for data, until a check is due, or until `wake`. Returns the processes that sent data."""
        pause_s = self.pause_s(time.monotonic())
        while not (ready := self._selector.select(pause_s)):
            # Turns end without a message, and are seen only now.
            if (pause_s := self.pause_s(time.monotonic())) <= SUPERVISE_S:
                break
        processes = [process for key, _ in ready if (process := key.data) is not None]
        if len(processes) < len(ready):
            os.read(self._wake_read, _WAKES)
            if self._samples_wanted:
                self._samples_wanted = False
                for process in self:
                    if process.key >= HOME:
                        process.order_send()
        return processes

    def pause_s(self, now: float) -> float:
        """The time until the next check of the processes, unless a turn ends or data arrive before."""
        home = self._running.get(HOME)
        if home is None or self._due or self._dying:
            return SUPERVISE_S
        # The first samples of a process are awaited from its start on.
        wait_s = (home.active + OVERDUE_S if home.heard > home.started else home.started) - now
        if wait_s >= SUPERVISE_S:
            return wait_s
        call = home.where
        return max(wait_s, SUPERVISE_S if call is None or call.gpu < 0 or call.slow else _CALL_S)

    def close(self) -> None:
        """Free the selector and the pipe."""
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # ------------------------------------------------------------------ starting

    def want(self, *keys: int) -> None:
        """Request a start of these as soon as possible, if they do not run."""
        for key in keys:
            if key not in self._running:
                self._due.setdefault(key, 0.0)

    def forget_due(self) -> None:
        """Cancel all pending starts."""
        self._due.clear()

    def start(self, now: float) -> str:
        """Start the processes that are due, `HOME` first. Returns the error if one cannot be started, else empty."""
        for key in sorted(self._due, key=lambda key: (key != HOME, key < HOME, key)):
            blocked = any(index == key for _, index in self._dying)
            if not blocked and now >= self._due[key] and (problem := self._start(key)):
                return problem
        return self._launcher.refusal

    def _start(self, key: int) -> str:
        try:
            process = self._spawn(self._settings(key))
        except OSError as error:
            _log.error("a reader cannot be started (%s); it is tried again", error)
            self._due[key] = time.monotonic() + LONGEST_PAUSE_S
            return str(error)
        del self._due[key]
        self._selector.register(process.fd, selectors.EVENT_READ, process)
        self._running[key] = process
        return ""

    # ------------------------------------------------------------------ ending

    def end(self, process: ReaderProcess, why: str, *, at_once: bool = False, held: int | None = None) -> None:
        """Kill a process and schedule its successor, after a pause if it did not last `_ENOUGH_S`.

        `held`: the GPU in whose call it may remain, if it read other GPUs too.
        """
        self.restarts[why] += 1
        lasted = time.monotonic() - process.started
        longest_s = _LONGEST_OF_ALL_S if process.only is None and process.uuids else LONGEST_PAUSE_S
        pause = (
            0.0
            if at_once or lasted > _ENOUGH_S
            else min(longest_s, max(_PAUSE_S, 2 * self._pause.get(process.key, 0.0)))
        )
        self._pause[process.key] = pause
        self._due[process.key] = time.monotonic() + pause
        self.remove(process, held)

    def _replace_stopped(self, now: float) -> None:
        """Replace the readers that a signal has stopped, before the readings of their GPUs expire."""
        for process in self:
            overdue = now - process.active > OVERDUE_S or ((call := process.where) is not None and call.slow)
            if process.key >= HOME and overdue and process.stopped:
                _log.warning("a signal has stopped a reader of the GPUs; it is started again")
                self.end(process, "hung", at_once=True)

    def hand_over(self, process: ReaderProcess, index: int) -> None:
        """Restrict a process to the GPU that delays it. Another one is due at once for the other GPUs."""
        key = process.key
        process.order_only(index)
        # Added before it is removed elsewhere, so that other threads always see it.
        self._running[index] = process
        del self._running[key]
        self._due.pop(index, None)
        self._due[key] = 0.0

    def remove(self, process: ReaderProcess, held: int | None = None) -> None:
        """Kill a process without a successor. `held`: as in `end`."""
        self._selector.unregister(process.fd)
        process.kill()
        # Added before it is removed elsewhere, so that other threads always see it.
        self._dying.append((process, process.key if held is None else held))
        self._running.pop(process.key, None)
        process.wait(0.02)
        self.reap()

    def maintain(self, now: float) -> None:
        """Reap ended processes, replace stopped ones, and measure the memory of all: at a scrape that would take too
        long."""
        self.reap()
        self._launcher.renew()
        self._replace_stopped(now)
        pids, (last, measured, _) = self._all_pids(), self._measured
        if pids != measured or now - last >= MEMORY_S:
            self._measured = now, pids, shared_bytes(pids)

    def _all_pids(self) -> list[int]:
        launcher = self._launcher.pid
        return self.pids if launcher is None else [launcher, *self.pids]

    def reap(self) -> None:
        """Close the killed processes that have ended."""
        left = []
        for process, key in self._dying:
            if process.exit_code is not None:
                process.close()
            else:
                left.append((process, key))
        self._dying = left

    def kill(self) -> None:
        """Kill all running processes, without removing them, and the launcher."""
        for process in self:
            process.kill()
        self._launcher.close()

"""The keeper's processes by what they are for: started when they are due, killed, waited for, started again.

One that is killed may be held in the kernel by a call. Its GPU, or the driver, is then left alone until it is gone.
"""

from __future__ import annotations

import logging
import selectors
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from gpu_profile.catalogue.self_metrics import READER_CPU, READER_MEMORY, READER_RESTARTS
from gpu_profile_exporter.reader.launcher import Launcher
from gpu_profile_exporter.reader.process import ReaderProcess
from gpu_profile_exporter.reader.settings import HOME, ReaderSettings
from gpu_profile_exporter.reader.usage import Usage, ended_cpu_s, shared_bytes, total
from gpu_profile_exporter.readings.readings import MetricReading

_log = logging.getLogger("gpu_profile_exporter")

#: The pause before a process that ended is started again, which doubles each time until it is the longest.
_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 4.0
_ENOUGH_S: Final = 10.0
#: How often the memory of the processes is measured.
MEMORY_S: Final = 10.0
_NONE: Final[dict[str, str]] = {}
#: Why processes were ended.
_REASONS: Final = {reason: {"reason": reason} for reason in ("died", "hung", "released", "stale_library")}


class ReaderProcesses:
    """At most one process for each key: `HOME`, `LISTENER`, `COUNTER`, or a GPU that is read apart, by NVML index."""

    def __init__(
        self, spawn: Callable[[ReaderSettings], ReaderProcess] | None, settings: Callable[[int], ReaderSettings]
    ) -> None:
        #: How often processes were started again, by reason.
        self.restarts: Counter[str] = Counter(dict.fromkeys(_REASONS, 0))
        self._launcher = Launcher()
        #: When, of which processes, and their memory in bytes.
        self._measured: tuple[float, list[int], int | None] = 0.0, [], None
        self._spawn = spawn or partial(ReaderProcess, launcher=self._launcher)
        self._settings = settings
        self._running: dict[int, ReaderProcess] = {}
        #: Processes that were killed and are not gone yet, and what is not started again until they are.
        self._dying: list[tuple[ReaderProcess, int]] = []
        self._due: dict[int, float] = {}
        self._pause: dict[int, float] = {}
        self._selector = selectors.DefaultSelector()

    def __iter__(self) -> Iterator[ReaderProcess]:
        """Those that run. Any thread may ask."""
        return iter(list(self._running.values()))

    def __getitem__(self, key: int) -> ReaderProcess | None:
        """The process of this key; None while there is none."""
        return self._running.get(key)

    @property
    def pids(self) -> list[int]:
        """Process ids, those included that are about to end."""
        return [pid for process in (*self, *(process for process, _ in self._dying)) if (pid := process.pid)]

    def readings(self) -> Iterator[MetricReading]:
        """What they use of the machine, and how often they were started again."""
        (used, ended_s), (_, _, memory) = self._used(), self._measured
        if used is not None:
            # Without those that have ended, the counter would go back whenever one is started again.
            yield MetricReading(READER_CPU, _NONE, used.cpu_s + ended_s)
        if memory is not None:
            yield MetricReading(READER_MEMORY, _NONE, memory)
        for reason, n in sorted(self.restarts.items()):
            yield MetricReading(READER_RESTARTS, _REASONS[reason], n)

    def _used(self) -> tuple[Usage | None, float]:
        """What those that run use, and the CPU time of those that have ended."""
        ended_s = ended_cpu_s()
        while True:
            used, before_s, ended_s = total(self._all_pids()), ended_s, ended_cpu_s()
            # One that another thread saw the end of meanwhile would count as both.
            if ended_s == before_s:
                return used, ended_s

    @property
    def apart(self) -> set[int]:
        """The GPUs that have a process of their own, or are to get one."""
        return {key for key in (*self._running, *self._due) if key >= 0}

    @property
    def gone(self) -> bool:
        """Whether there is none any more."""
        return not self._running and not self._dying

    def watch(self, fd: int) -> None:
        """Let `ready` tell of this descriptor too."""
        self._selector.register(fd, selectors.EVENT_READ, None)

    def ready(self, timeout_s: float) -> list[ReaderProcess | None]:
        """The processes that have said something within `timeout_s`, and None for other descriptors."""
        return [key.data for key, _ in self._selector.select(timeout_s)]

    def close(self) -> None:
        """Free the selector."""
        self._selector.close()

    # ------------------------------------------------------------------ starting

    def want(self, *keys: int) -> None:
        """Have these started as soon as may be."""
        for key in keys:
            if key not in self._running:
                self._due.setdefault(key, 0.0)

    def forget_due(self) -> None:
        """Start nothing that was due."""
        self._due.clear()

    def start(self, now: float) -> str:
        """Start what is due, first what reads all GPUs. Why not, if a process cannot be started."""
        for key in sorted(self._due, key=lambda key: (key != HOME, key < HOME, key)):
            held = any(index == key for _, index in self._dying)
            if not held and now >= self._due[key] and (problem := self._start(key)):
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
        """Kill a process; another one takes its place, later if that did not last.

        `held`: the GPU that may keep it from ending, if it read others too.
        """
        self.restarts[why] += 1
        lasted = time.monotonic() - process.started
        pause = (
            0.0
            if at_once or lasted > _ENOUGH_S
            else min(LONGEST_PAUSE_S, max(_PAUSE_S, 2 * self._pause.get(process.key, 0.0)))
        )
        self._pause[process.key] = pause
        self._due[process.key] = time.monotonic() + pause
        self.remove(process, held)

    def hand_over(self, process: ReaderProcess, index: int) -> None:
        """Let a process go on with the GPU that holds it up; another one reads the others, at once."""
        key = process.key
        process.order_only(index)
        # First of all, so that there is no moment at which it is nowhere.
        self._running[index] = process
        del self._running[key]
        self._due.pop(index, None)
        self._due[key] = 0.0

    def remove(self, process: ReaderProcess, held: int | None = None) -> None:
        """Kill a process for good."""
        self._selector.unregister(process.fd)
        process.kill()
        # First of all, so that there is no moment at which it is nowhere.
        self._dying.append((process, process.key if held is None else held))
        self._running.pop(process.key, None)
        process.wait(0.02)
        self.reap()

    def tend(self, now: float) -> None:
        """Let go of those that have ended, and measure what the others hold: at a scrape that would take too long."""
        self.reap()
        pids, (last, measured, _) = self._all_pids(), self._measured
        if pids != measured or now - last >= MEMORY_S:
            self._measured = now, pids, shared_bytes(pids)

    def _all_pids(self) -> list[int]:
        launcher = self._launcher.pid
        return self.pids if launcher is None else [launcher, *self.pids]

    def reap(self) -> None:
        """Let go of those that have ended."""
        left = []
        for process, key in self._dying:
            if process.exit_code is not None:
                process.close()
            else:
                left.append((process, key))
        self._dying = left

    def kill(self) -> None:
        """Kill all that run, which are not removed, and the launcher."""
        for process in self:
            process.kill()
        self._launcher.close()

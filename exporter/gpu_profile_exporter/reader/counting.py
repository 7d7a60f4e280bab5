"""The process that counts GPUs with a newly started NVML. Used where the kernel's list is not visible."""

from __future__ import annotations

from contextlib import suppress
from time import process_time_ns
from typing import Final

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver.nvml.enumeration import count_gpus
from gpu_profile.driver.nvml.errors import UninitializedError
from gpu_profile.driver.nvml.library import NvmlLibrary
from gpu_profile.errors import GpuProfileError
from gpu_profile.units import NS_PER_S, nanoseconds
from gpu_profile_exporter.reader.heartbeat import DRIVER, Heartbeat
from gpu_profile_exporter.reader.observed_driver import START_S
from gpu_profile_exporter.reader.wire import Message

#: The shortest interval between counts, and the largest share of a core for them: NVML may take 0.1 s to start.
COUNT_S: Final = 2.0
SHARE: Final = 0.002
#: The longest time between two turns, which show the supervisor that this process runs.
_LONGEST_STEP_S: Final = 2.0


class DeviceCounting:
    """Starts NVML, counts the GPUs and stops it, periodically. It has the methods of `child.ReaderLoop`."""

    def __init__(self, where: Heartbeat, clock: Clock = SYSTEM_CLOCK) -> None:
        self._where = where
        self._clock = clock
        self._library: NvmlLibrary | None = None
        self._due_ns = 0
        #: The newest count, and the last one that was sent. None after a failure, as the driver may be a newer one.
        self._count: int | None = None
        self._sent: int | None = None

    def follow(self, order: Message) -> None:
        """Does nothing: this process has no orders."""

    def step(self) -> float:
        """Count if it is due. Returns the seconds until the next call."""
        now_ns = self._clock.elapsed_ns()
        if now_ns >= self._due_ns:
            self._where.enter(DRIVER, START_S)
            self._count, cost_ns = None, 0
            with suppress(GpuProfileError, UninitializedError):
                library = self._opened()
                cost_ns = -process_time_ns()
                try:
                    library.start()
                    self._count = count_gpus(library)
                finally:
                    library.stop()
                    cost_ns += process_time_ns()
            self._where.leave()
            self._due_ns = now_ns + max(nanoseconds(COUNT_S), round(cost_ns / SHARE))
        return min(_LONGEST_STEP_S, max(0.0, (self._due_ns - self._clock.elapsed_ns()) / NS_PER_S))

    def _opened(self) -> NvmlLibrary:
        """The library, stopped. It is loaded once, because loading costs more than starting."""
        if self._library is None:
            self._library = NvmlLibrary()
        self._library.stop()
        return self._library

    def news(self, _: int) -> list[Message]:
        """The newest count, if it is another one than the last: a message wakes the supervisor."""
        count, sent = self._count, self._sent
        self._sent = count
        return [] if count is None or count == sent else [("count", count)]

    def close(self) -> None:
        """Does nothing: NVML is stopped already."""

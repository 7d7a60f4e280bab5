"""The process that receives the events of GPUs. It outlives the processes that read them.

The driver reports an XID error once, to the processes that have registered for it. A reader is killed when a GPU hangs,
and then XIDs are raised; so another process registers. It calls a GPU only to register, and only a GPU that answers:
the supervisor selects them. Afterwards it polls its event set, which a GPU that hangs does not block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpu_profile.catalogue.samples import Event
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver import Driver
from gpu_profile.driver.grammar import open_driver
from gpu_profile.errors import GpuProfileError, StaleLibraryError
from gpu_profile.units import nanoseconds
from gpu_profile_exporter.reader.heartbeat import DRIVER, EVENTS, Heartbeat
from gpu_profile_exporter.reader.observed_driver import LIST_S, READ_S, START_S
from gpu_profile_exporter.reader.settings import ReaderSettings
from gpu_profile_exporter.reader.wire import Message

#: The interval at which it polls for events. A kill loses the events since the last poll.
LISTEN_S: Final = 0.5
#: The same after events. A poll returns a limited number of them, so more may wait.
MORE_S: Final = 0.1
#: The interval at which it tries to open the driver and to register missing GPUs. The driver adds pauses of its own.
RETRY_S: Final = 1.0


class Listening:
    """Receives the events of the GPUs that the supervisor selects. It has the methods of `child.ReaderLoop`."""

    def __init__(self, settings: ReaderSettings, where: Heartbeat, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings = settings
        self._where = where
        self._clock = clock
        self._driver: Driver | None = None
        #: The UUIDs of the GPUs to watch, by NVML index.
        self._wanted: Mapping[int, str] = {}
        self._missing: frozenset[int] = frozenset()
        self._retry_ns = 0
        self._events: list[Event] = []
        #: Whether events are sent before the next step, which then registers GPUs.
        self._send_first = False
        self._problem: tuple[str, bool] = "", False
        self._sent_problem: tuple[str, bool] | None = None

    def follow(self, order: Message) -> None:
        """Carry out an order of the supervisor. Unknown orders are ignored."""
        if order[0] == "watch":
            self._wanted, self._retry_ns = order[1], 0
        elif order[0] == "reopen":
            self.step()  # events raised so far would be lost with the event set
            self.close()
            self._where.leave()
            self._driver, self._retry_ns = None, 0

    def step(self) -> float:
        """Poll for events and register GPUs. Returns the seconds until the next call."""
        now_ns, sent_first = self._clock.elapsed_ns(), self._send_first
        due, self._send_first = now_ns >= self._retry_ns, False
        try:
            if self._driver is not None and not self._problem[0] and not sent_first:
                self._poll(self._driver)
            # A registration may hang, and a kill then loses the events that have not been sent.
            self._send_first = due and bool(self._events)
            if due and not self._events:
                self._retry_ns = now_ns + nanoseconds(RETRY_S)
                self._poll(self._register())
        except GpuProfileError as error:
            self._problem = str(error), isinstance(error, StaleLibraryError)
        self._where.leave()
        return 0.0 if self._send_first else MORE_S if self._events else LISTEN_S

    def _poll(self, driver: Driver) -> None:
        self._where.enter(EVENTS, READ_S)
        self._events += driver.events()
        self._problem = "", False

    def _register(self) -> Driver:
        if self._driver is None:
            self._where.enter(DRIVER, START_S)
            self._driver = open_driver(self._settings.driver, clock=self._clock, groups=(), enter=self._enter)
        watched: frozenset[str] = getattr(self._driver, "watched", frozenset())
        self._missing = frozenset(index for index, uuid in self._wanted.items() if uuid not in watched)
        if self._missing:
            self._where.enter(DRIVER, LIST_S)
            self._driver.devices()
        return self._driver

    def _enter(self, index: int) -> bool:
        """True if the driver may call this GPU. The driver asks just before it does."""
        if index in self._missing:
            self._where.enter(index, LIST_S)
        return index in self._missing

    def news(self, _: int) -> list[Message]:
        """The messages since the last call."""
        messages: list[Message] = []
        if self._problem != self._sent_problem:
            self._sent_problem = self._problem
            messages.append(("problem", *self._problem) if self._problem[0] else ("open",))
        if self._events:
            events, self._events = self._events, []
            messages.append(("events", [(e.device, e.t_ns, e.kind, e.code, e.message) for e in events]))
        return messages

    def close(self) -> None:
        """Close the driver."""
        self._where.enter(DRIVER, LIST_S)
        if self._driver is not None:
            self._driver.close()

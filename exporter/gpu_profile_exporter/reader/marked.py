"""A driver of which can be seen from outside what it is doing right now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Device, Event, ProcessUse, Sample
from gpu_profile.clock import Clock
from gpu_profile.driver import Capability, Driver
from gpu_profile.errors import GpuProfileError
from gpu_profile_exporter.reader.whereabouts import DRIVER, ELSEWHERE, Whereabouts

#: What one call to a GPU may take while others wait to be read, and while none does: its readings live for as long.
READ_S: Final = 0.5
ALONE_S: Final = 2.0
#: What opening a GPU may take while no other waits: without persistence mode it is initialised first.
OPEN_S: Final = 4.0
#: What starting the driver may take, and listing the GPUs for the first time: as much as initialising 8 of them one
#: after another. Later lists are prompt.
START_S: Final = 30.0
LIST_S: Final = 1.0
#: What opening a GPU may take while others are being read.
REOPEN_S: Final = 1.0
T = TypeVar("T")


class Marked:
    """A driver whose every call of a device is told of in `where` while it lasts, and timed.

    `open_s` is what opening a GPU may take before any is read; `alone`: afterwards too, for there is only one.
    """

    def __init__(
        self, driver: Driver, where: Whereabouts, clock: Clock, *, open_s: float = OPEN_S, alone: bool = False
    ) -> None:
        self.driver = driver
        self._where = where
        self._now_ns = clock.now_ns
        self._open_s = open_s
        self._alone = alone
        self._opened: set[str] = set()
        self._took: dict[str, int] = {}
        #: Whether the GPUs have been listed once.
        self.listed = False

    def take(self) -> dict[str, int]:
        """The longest that a call of each device has taken since, in ns."""
        took, self._took = self._took, {}
        return took

    def be_alone(self) -> None:
        """There is only one GPU from now on."""
        self._alone = True

    def _call(self, device: Device, call: Callable[..., T], *arguments: object) -> T:
        opened = device.uuid in self._opened
        # A GPU that was away, or is met for the first time, is opened first.
        limit_s = self.open_s if not opened else ALONE_S if self._alone else READ_S
        self._where.enter(ELSEWHERE if device.index is None else device.index, limit_s)
        started = self._now_ns()
        try:
            result = call(device, *arguments)
        except GpuProfileError:
            self._opened.discard(device.uuid)
            self._where.enter(DRIVER, READ_S)
            raise
        if opened:
            self._took[device.uuid] = max(self._took.get(device.uuid, 0), self._now_ns() - started)
        self._opened.add(device.uuid)
        self._where.enter(DRIVER, READ_S)
        return result

    @property
    def open_s(self) -> float:
        """What opening a GPU may take now."""
        return self._open_s

    def _reading(self) -> None:
        if not self._alone:
            self._open_s = min(self._open_s, REOPEN_S)

    @property
    def name(self) -> str:
        """The driver's name in the grammar of `--driver`."""
        return self.driver.name

    @property
    def version(self) -> str:
        """Version of the driver on the node."""
        return self.driver.version

    def devices(self) -> Sequence[Device]:
        """As the driver's."""
        self._where.enter(DRIVER, LIST_S if self.listed else START_S)
        found = self.driver.devices()
        self.listed = True
        self._where.enter(DRIVER, READ_S)
        return found

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        """As the driver's."""
        self._opened.discard(device.uuid)
        return self._call(device, self.driver.capabilities)

    def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
        """As the driver's."""
        try:
            return self._call(device, self.driver.read, tier)
        finally:
            self._reading()

    def drain(self, device: Device) -> Sequence[Sample]:
        """As the driver's."""
        return self._call(device, self.driver.drain)

    def boundary(self, device: Device) -> Sequence[Sample]:
        """As the driver's."""
        return self._call(device, self.driver.boundary)

    def events(self) -> Sequence[Event]:
        """As the driver's."""
        self._where.enter(DRIVER, READ_S)
        return self.driver.events()

    def processes(self, device: Device) -> Sequence[ProcessUse]:
        """As the driver's."""
        return self._call(device, self.driver.processes)

    def close(self) -> None:
        """Close the driver."""
        self._where.enter(DRIVER, LIST_S)
        self.driver.close()

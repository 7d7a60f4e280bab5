"""Wraps a driver and publishes the call in progress, so that the supervisor can detect a hang."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Device, Event, ProcessUse, Sample
from gpu_profile.clock import Clock
from gpu_profile.driver import Capability, Driver
from gpu_profile.errors import GpuProfileError
from gpu_profile_exporter.reader.heartbeat import DRIVER, ELSEWHERE, Heartbeat

#: Time limit of a call to a GPU while other GPUs wait to be read.
READ_S: Final = 0.5
#: Time limit of a call to a GPU that is read alone: the shortest lifetime of its readings.
ALONE_S: Final = 2.0
#: Time limit of opening a GPU while no other waits: without persistence mode the driver initialises it first.
OPEN_S: Final = 4.0
#: Time limit of starting the driver and of the first list of GPUs: it may initialise 8 of them one after another.
START_S: Final = 30.0
LIST_S: Final = 1.0  #: Later lists are prompt.
#: Time limit of opening a GPU while others are being read.
REOPEN_S: Final = 1.0
T = TypeVar("T")


class ObservedDriver:
    """Publishes each call of a driver in `where` while it lasts, and times the calls of devices.

    `open_s`: time limit of opening a GPU before the first read, then at most `REOPEN_S`, unless it is read `alone`.
    """

    def __init__(
        self, driver: Driver, where: Heartbeat, clock: Clock, *, open_s: float = OPEN_S, alone: bool = False
    ) -> None:
        self.driver = driver
        self._where = where
        self._elapsed_ns = clock.elapsed_ns
        self._open_s = open_s
        self._alone = alone
        self._opened: set[str] = set()
        self._took: dict[str, int] = {}
        #: Whether the GPUs have been listed at least once.
        self.listed = False

    def take(self) -> dict[str, int]:
        """The longest call of each device since the last `take`, in ns by UUID. Calls that opened it do not count."""
        took, self._took = self._took, {}
        return took

    def be_alone(self) -> None:
        """Only one GPU is read from now on."""
        self._alone = True

    def _call(self, device: Device, call: Callable[..., T], *arguments: object) -> T:
        uuid, elapsed_ns = device.uuid, self._elapsed_ns
        opened = uuid in self._opened
        # The first call opens the GPU, and so does the first call after a failure.
        limit_s = self._open_s if not opened else ALONE_S if self._alone else READ_S
        self._where.enter(ELSEWHERE if device.index is None else device.index, limit_s)
        started = elapsed_ns()
        try:
            result = call(device, *arguments)
        except GpuProfileError:
            self._opened.discard(uuid)
            self._where.enter(DRIVER, READ_S)
            raise
        if not opened:
            self._opened.add(uuid)
        elif (took := elapsed_ns() - started) > self._took.get(uuid, -1):
            self._took[uuid] = took
        self._where.enter(DRIVER, READ_S)
        return result

    @property
    def open_s(self) -> float:
        """The current time limit of opening a GPU, in seconds."""
        return self._open_s

    @property
    def name(self) -> str:
        """The driver's name in the grammar of `--driver`."""
        return self.driver.name

    @property
    def version(self) -> str:
        """Version of the driver on the node."""
        return self.driver.version

    def devices(self) -> Sequence[Device]:
        """See `Driver.devices`."""
        self._where.enter(DRIVER, LIST_S if self.listed else START_S)
        devices = self.driver.devices()
        self.listed = True
        self._where.enter(DRIVER, READ_S)
        return devices

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        """See `Driver.capabilities`."""
        self._opened.discard(device.uuid)
        return self._call(device, self.driver.capabilities)

    def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
        """See `Driver.read`."""
        try:
            return self._call(device, self.driver.read, tier)
        finally:
            if self._open_s > REOPEN_S and not self._alone:
                self._open_s = REOPEN_S

    @property
    def catch_up_ns(self) -> int:
        """See `Driver.catch_up_ns`."""
        return self.driver.catch_up_ns

    def catch_up(self, device: Device) -> None:
        """See `Driver.catch_up`."""
        self._call(device, self.driver.catch_up)

    def drain(self, device: Device) -> Sequence[Sample]:
        """See `Driver.drain`."""
        return self._call(device, self.driver.drain)

    def boundary(self, device: Device) -> Sequence[Sample]:
        """See `Driver.boundary`."""
        return self._call(device, self.driver.boundary)

    def events(self) -> Sequence[Event]:
        """See `Driver.events`."""
        self._where.enter(DRIVER, READ_S)
        return self.driver.events()

    def processes(self, device: Device) -> Sequence[ProcessUse]:
        """See `Driver.processes`."""
        return self._call(device, self.driver.processes)

    def close(self) -> None:
        """Close the driver."""
        self._where.enter(DRIVER, LIST_S)
        self.driver.close()

"""All readings of a node at one time. Scrapes and pushes start from here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from gpu_profile.clock import Clock
from gpu_profile_exporter.readings.health import SampleSource
from gpu_profile_exporter.readings.readings import DriverFacts, Identity, MetricReading, readings


class Reporter(Protocol):
    """A part of the exporter that reports on itself: the readers, the attribution, the push, the server."""

    def readings(self, now_ns: int) -> Iterator[MetricReading]:
        """Its own metrics at `now_ns`."""
        ...


class Reads(SampleSource, Reporter, Protocol):
    """Reads the devices in other processes."""

    def refresh(self) -> None:
        """Receive the samples that wait in the readers."""
        ...

    def now_ns(self) -> int:
        """The present by the setting of the clock at the last samples, in ns since the epoch."""
        ...

    @property
    def driver(self) -> DriverFacts | None:
        """The driver. None while none answers."""
        ...


class NodeReadings:
    """Callable: yields the readings of all devices, then of every reporter.

    `spec`: the driver's name until one has answered. `label`: transforms the readings of devices, such as to add their
    allocations.
    """

    def __init__(
        self,
        readers: Reads,
        spec: str,
        version: str,
        *,
        clock: Clock,
        label: Callable[[Iterator[MetricReading]], Iterator[MetricReading]] | None = None,
    ) -> None:
        self.readers = readers
        #: The parts of the exporter that report on themselves. Others may be added.
        self.reporters: list[Reporter] = [readers]
        self._spec = spec
        self._version = version
        self._clock = clock
        self._label = label

    def __call__(self) -> Iterator[MetricReading]:
        """The readings of this moment."""
        self.readers.refresh()
        now_ns = self._clock.now_ns()
        of_devices = readings(self.readers, self.identity, self.readers.now_ns())
        yield from of_devices if self._label is None else self._label(of_devices)
        for reporter in self.reporters:
            yield from reporter.readings(now_ns)

    @property
    def identity(self) -> Identity:
        """The driver and the exporter, with versions."""
        driver = self.readers.driver
        if driver is None:
            return Identity(self._spec, "", self._version)
        return Identity(driver.name, driver.version, self._version, tuple(sorted(driver.versions.items())))

    @property
    def simulated(self) -> bool:
        """Whether the devices are simulated, or were when they were recorded."""
        driver = self.readers.driver
        return (driver.origin if driver is not None else self._spec).partition(":")[0] == "simulated"


def without_devices(readings: Iterator[MetricReading]) -> Iterator[MetricReading]:
    """The readings without a device. For a sidecar, because the node's exporter publishes those of devices."""
    return (reading for reading in readings if "hw.id" not in reading.attributes)

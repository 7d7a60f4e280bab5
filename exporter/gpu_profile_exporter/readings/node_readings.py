"""Everything that a node has to say at a moment: where a scrape and a push start from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from gpu_profile.clock import Clock
from gpu_profile_exporter.readings.health import SampleSource
from gpu_profile_exporter.readings.readings import DriverFacts, Identity, MetricReading, readings


class Reporter(Protocol):
    """A part of the exporter that reports on itself: the readers, the attribution, the push, the server."""

    def readings(self, now_ns: int) -> Iterator[MetricReading]:
        """What it has to say at `now_ns`."""
        ...


class Reads(SampleSource, Reporter, Protocol):
    """What reads the devices in other processes."""

    @property
    def driver(self) -> DriverFacts | None:
        """The driver, None while none answers."""
        ...


class NodeReadings:
    """Called, it gives the readings of all devices and of every part that reports on itself.

    `spec` names the driver until one has answered. `label` adds to the readings of devices who holds them.
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
        #: Parts that report on themselves; others may be added.
        self.reporters: list[Reporter] = [readers]
        self._spec = spec
        self._version = version
        self._clock = clock
        self._label = label

    def __call__(self) -> Iterator[MetricReading]:
        """What is known now."""
        now_ns = self._clock.now_ns()
        of_devices = readings(self.readers, self.identity, now_ns)
        yield from of_devices if self._label is None else self._label(of_devices)
        for reporter in self.reporters:
            yield from reporter.readings(now_ns)

    @property
    def identity(self) -> Identity:
        """Who is being read by whom."""
        driver = self.readers.driver
        if driver is None:
            return Identity(self._spec, "", self._version)
        return Identity(driver.name, driver.version, self._version, tuple(sorted(driver.versions.items())))

    @property
    def simulated(self) -> bool:
        """Whether the devices are not real, or were not when they were recorded."""
        driver = self.readers.driver
        return (driver.origin if driver is not None else self._spec).partition(":")[0] == "simulated"


def without_devices(readings: Iterator[MetricReading]) -> Iterator[MetricReading]:
    """The readings that are of no device: a sidecar's node has an exporter that publishes those."""
    return (reading for reading in readings if "hw.id" not in reading.attributes)

"""What a driver must do. Counters come first, so that it fits AMD's accumulators and Level Zero's counters too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Device, Event, ProcessUse, Sample


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether a driver can read a signal of a device, and if not, why."""

    available: bool
    reason: str = ""


class Driver(Protocol):
    """A source of devices and samples. Not thread-safe: one sampler owns it, in one thread.

    No method raises for a quantity that cannot be had: its sample is absent and `capabilities` says why. A device that
    is lost raises `DeviceLost` from `read`, `drain` and `boundary`; a driver that is gone raises `GpuBackendError`.
    """

    @property
    def name(self) -> str:
        """The driver's name in the grammar of `--driver`."""
        ...

    @property
    def version(self) -> str:
        """Version of the driver on the node, or an empty string."""
        ...

    def devices(self) -> Sequence[Device]:
        """The devices that can be read now, parents before their MIG instances."""
        ...

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        """Every signal of the catalogue, with whether it can be read and why not."""
        ...

    def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
        """Read the signals of `tier` (FAST or SLOW) now."""
        ...

    def drain(self, device: Device) -> Sequence[Sample]:
        """Samples that the driver buffered since the last drain, oldest first. A drained signal is never in `read`."""
        ...

    def boundary(self, device: Device) -> Sequence[Sample]:
        """Close the GPM window that is open, open the next, and return the closed one's samples.

        Nothing is returned if the window is younger than the driver's refresh period.
        """
        ...

    def events(self) -> Sequence[Event]:
        """What happened to devices since the last call."""
        ...

    def processes(self, device: Device) -> Sequence[ProcessUse]:
        """Who uses the device now."""
        ...

    def close(self) -> None:
        """Release the driver's handles. Closing twice is fine."""
        ...


def live_driver(driver: Driver) -> str:
    """The name of the driver that reads the GPUs now: for the node's timeline, that of the process which keeps it."""
    recorded: str = getattr(driver, "recorded_driver", "")
    return recorded if recorded and driver.name.startswith("node:") else driver.name


def lag_s(driver: Driver | None) -> float:
    """By how many seconds a driver's last samples come after the time that they are of, beyond NVML's own."""
    found: float = getattr(driver, "lag_s", 0.0)
    return found

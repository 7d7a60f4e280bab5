"""The interface of drivers. It is built around counters, so that it also fits AMD's accumulators and Level Zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Device, Event, ProcessUse, Sample


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether a driver can read a signal of a device. `reason` says why not."""

    available: bool
    reason: str = ""


AVAILABLE: Final = Capability(available=True)


@lru_cache(maxsize=512)
def absent(reason: str) -> Capability:
    """One object for all signals and devices with this reason: a device has hundreds of signals."""
    return Capability(available=False, reason=reason)


class Driver(Protocol):
    """A source of devices and samples. Not thread-safe: one sampler owns it, in one thread.

    No method raises for a quantity that is not available: its sample is absent, and `capabilities` gives the reason.
    `read`, `drain` and `boundary` raise `DeviceLost` if the device is lost, and `GpuBackendError` if the driver is.
    """

    @property
    def name(self) -> str:
        """The driver's name in the grammar of `--driver`."""
        ...

    @property
    def version(self) -> str:
        """Version of the GPU driver on the node, or an empty string."""
        ...

    def devices(self) -> Sequence[Device]:
        """The devices that can be read now, parents before their MIG instances."""
        ...

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        """The capability of every signal of the catalogue."""
        ...

    def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
        """Read the signals of `tier` (FAST or SLOW) now."""
        ...

    @property
    def catch_up_ns(self) -> int:
        """The time after the last round within which `catch_up` is needed; 0 if it is not."""
        ...

    def catch_up(self, device: Device) -> None:
        """Read, between two rounds, the counters that restart too soon to be read once a round."""
        ...

    def drain(self, device: Device) -> Sequence[Sample]:
        """Samples that the driver buffered since the last drain, oldest first. `read` never returns drained signals."""
        ...

    def boundary(self, device: Device) -> Sequence[Sample]:
        """Close the current GPM window, open the next, and return the samples of the closed one.

        Returns nothing if the window is younger than the driver's refresh period.
        """
        ...

    def events(self) -> Sequence[Event]:
        """Events of devices since the last call."""
        ...

    def processes(self, device: Device) -> Sequence[ProcessUse]:
        """The processes that use the device now."""
        ...

    def close(self) -> None:
        """Release the driver's handles. Closing twice is fine."""
        ...


def live_driver(driver: Driver) -> str:
    """The name of the driver that reads the GPUs now. For the node's timeline, the driver of its writer."""
    recorded: str = getattr(driver, "recorded_driver", "")
    return recorded if recorded and driver.name.startswith("node:") else driver.name


def is_simulated(driver: Driver) -> bool:
    """Whether simulated GPUs are read now, here or by the writer of the node's timeline."""
    return live_driver(driver).partition(":")[0] == "simulated"


def lag_s(driver: Driver | None) -> float:
    """Seconds by which a driver delivers its samples later than NVML would."""
    seconds: float = getattr(driver, "lag_s", 0.0)
    return seconds

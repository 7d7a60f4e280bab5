"""The driver of a machine without GPUs, and a base class with empty results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gpu_profile.catalogue import SIGNALS, Signal, Tier
from gpu_profile.catalogue.samples import Device, Event, ProcessUse, Sample
from gpu_profile.driver.protocol import Capability


class SilentDriver:
    """A driver without devices and samples. Drivers override the methods that they support."""

    catch_up_ns: int = 0

    def catch_up(self, device: Device) -> None:
        """No counter restarts."""

    def devices(self) -> Sequence[Device]:
        """None."""
        return ()

    def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
        """Nothing."""
        return ()

    def drain(self, device: Device) -> Sequence[Sample]:
        """Nothing."""
        return ()

    def boundary(self, device: Device) -> Sequence[Sample]:
        """Nothing."""
        return ()

    def events(self) -> Sequence[Event]:
        """None."""
        return ()

    def processes(self, device: Device) -> Sequence[ProcessUse]:
        """None."""
        return ()

    def close(self) -> None:
        """Nothing to release."""


class NullDriver(SilentDriver):
    """A driver without devices. `reason`: why there are none, in one line."""

    name: Final = "none"
    version: Final = ""

    def __init__(self, reason: str = "no driver was asked for (none)") -> None:
        self.reason: Final = reason

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        """No signal can be read, for `reason`."""
        return dict.fromkeys(SIGNALS, Capability(False, self.reason))

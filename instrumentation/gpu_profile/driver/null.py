"""The driver of a machine without GPUs, and what any driver answers where it has nothing to tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gpu_profile.catalogue import SIGNALS, Signal, Tier
from gpu_profile.catalogue.samples import Device, Event, ProcessUse, Sample
from gpu_profile.driver.protocol import Capability


class SilentDriver:
    """Finds and reads nothing. Drivers overrule what they can tell."""

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
    """No devices. `reason` says in one line why, for whoever asks what is missing."""

    name: Final = "none"
    version: Final = ""

    def __init__(self, reason: str = "no driver was asked for (none)") -> None:
        self.reason: Final = reason

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        """Nothing can be read, for the driver's reason."""
        return dict.fromkeys(SIGNALS, Capability(False, self.reason))

"""What a sampler knows of one device: its history, beside what its rounds keep of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Device
from gpu_profile.driver import Capability
from gpu_profile.history.timeline import Timeline
from gpu_profile.tracked import Tracked, available


@dataclass(slots=True)
class DeviceState(Tracked):
    """What the sampler knows of one device."""

    timeline: Timeline

    @classmethod
    def of(cls, device: Device, capabilities: Mapping[Signal, Capability], capacity: int) -> DeviceState:
        """A device that is met for the first time; its timeline has room for `capacity` readings a signal."""
        return cls(device, Timeline(device, available(capabilities), capacity=capacity), capabilities)

"""What a sampler knows of one device: what can be read of it, what was, and whether it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.driver import Capability, Driver
from gpu_profile.samples import Device
from gpu_profile.timeline import Timeline


@dataclass(slots=True)
class DeviceState:
    """What the sampler knows of one device."""

    device: Device
    timeline: Timeline
    capabilities: Mapping[Signal, Capability]
    up: bool = True
    reason: str = ""
    retry_ns: int = 0
    samples: int = 0
    has_gpm: bool = False

    def __post_init__(self) -> None:
        self.has_gpm = any(signal.tier is Tier.GPM for signal in _available(self.capabilities))

    @classmethod
    def of(cls, device: Device, capabilities: Mapping[Signal, Capability], capacity: int) -> DeviceState:
        """A device that is met for the first time; its timeline has room for `capacity` readings a signal."""
        return cls(device, Timeline(device, _available(capabilities), capacity=capacity), capabilities)

    def renew(self, driver: Driver) -> None:
        """Ask again what the device can do: it was away, or the driver may be a newer one."""
        self.capabilities = driver.capabilities(self.device)
        self.timeline.add(_available(self.capabilities))
        self.__post_init__()


def _available(capabilities: Mapping[Signal, Capability]) -> list[Signal]:
    return [signal for signal, capability in capabilities.items() if capability.available]

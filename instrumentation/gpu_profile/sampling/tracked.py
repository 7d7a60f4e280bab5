"""A device as those see it who read it: what it can tell, whether it answers, who uses it, what happened to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Device, Event, ProcessUse, Sample
from gpu_profile.driver import Capability, Driver


class Keeper(Protocol):
    """Where a device's samples go: a timeline, or a way to one in another process."""

    def add(self, signals: Iterable[Signal]) -> None:
        """The device has these signals too."""
        ...

    def append(self, samples: Sequence[Sample], now_ns: int) -> int:
        """Take samples in, in any order of signals, that were read by `now_ns`; returns how many were new."""
        ...

    def count_dropped(self, totals: Counter[str]) -> None:
        """Add the samples that were left out here, by reason, to `totals`."""
        ...


@dataclass(slots=True)
class Tracked:
    """One device. `processes` is who used it at `processes_ns`; None: nobody has asked yet.

    `lost`: it did not answer itself when it was last read, which a driver that is gone does not say of it.
    `xids` counts its XID errors by code; `last_xid` is the code and the moment of the newest. `period_s` is how often
    samples come where that is known to be more seldom than asked for, as with a slow driver.
    """

    device: Device
    timeline: Keeper
    capabilities: Mapping[Signal, Capability]
    up: bool = True
    reason: str = ""
    lost: bool = False
    retry_ns: int = 0
    samples: int = 0
    period_s: float = 0.0
    has_gpm: bool = False
    xids: Counter[int] = field(default_factory=Counter)
    last_xid: tuple[int, int] | None = None
    processes: tuple[ProcessUse, ...] = ()
    processes_ns: int | None = None

    def __post_init__(self) -> None:
        self.has_gpm = any(signal.tier is Tier.GPM for signal in available(self.capabilities))

    def renew(self, driver: Driver) -> None:
        """Ask again what the device can do: it was away, or the driver may be a newer one."""
        self.capabilities = driver.capabilities(self.device)
        self.timeline.add(available(self.capabilities))
        self.__post_init__()

    def take_event(self, event: Event) -> None:
        """Count what happened to the device."""
        if event.kind == "xid" and event.code is not None:
            self.xids[event.code] += 1
            self.last_xid = event.code, event.t_ns


def available(capabilities: Mapping[Signal, Capability]) -> list[Signal]:
    """The signals that can be read."""
    return [signal for signal, capability in capabilities.items() if capability.available]

"""A device as its reader sees it: capabilities, availability, processes and events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Device, Event, ProcessUse, Sample
from gpu_profile.clock import StepWatch
from gpu_profile.driver import Capability, Driver
from gpu_profile.units import NS_PER_S

#: History starts anew after a step back of at least this size. Below, two samples hardly overlap. Ours.
LEAST_BACK_NS: Final = NS_PER_S // 10


class SampleSink(Protocol):
    """The sink of a device's samples: a timeline, or a connection to one in another process."""

    def add(self, signals: Iterable[Signal]) -> None:
        """Add signals that the device has too."""
        ...

    def append(self, samples: Sequence[Sample], now_ns: int) -> int:
        """Add samples at `now_ns`, in any order of signals. Returns the number of new ones."""
        ...

    def skip(self, ahead_ns: int) -> None:
        """The clock was set ahead by this much since the last samples."""
        ...

    def set_back(self, now_ns: int, latest_ns: int) -> None:
        """The clock was set back to `now_ns` since the last samples. It had shown times up to `latest_ns`."""
        ...

    def count_dropped(self, totals: Counter[str]) -> None:
        """Add the number of samples that were left out here, by reason, to `totals`."""
        ...


@dataclass(slots=True)
class TrackedDevice:
    """One device. `processes` are the processes that used it at `processes_ns`, which is None before the first query.

    `lost`: the device itself failed its last read; the loss of a whole driver does not set it. `xids` counts its XID
    errors by code. `last_xid` is the code and the time, in ns, of the newest. `period_s` is the time between samples if
    it is longer than requested, as with a slow driver; else 0. `spinning_ns` is the time that it was busy without
    movement, from a detector above; None if there is none, or it could not decide yet.
    """

    device: Device
    timeline: SampleSink
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
    spinning_ns: int | None = None

    def __post_init__(self) -> None:
        self.has_gpm = any(signal.tier is Tier.GPM for signal in available(self.capabilities))

    def renew(self, driver: Driver) -> None:
        """Query the capabilities again: the device was away, or the driver may be a newer one."""
        self.capabilities = driver.capabilities(self.device)
        self.timeline.add(available(self.capabilities))
        self.__post_init__()

    def take_event(self, event: Event) -> None:
        """Count the event if it is an XID error."""
        if event.kind == "xid" and event.code is not None:
            self.xids[event.code] += 1
            self.last_xid = event.code, event.t_ns


def available(capabilities: Mapping[Signal, Capability]) -> list[Signal]:
    """The signals that can be read."""
    return [signal for signal, capability in capabilities.items() if capability.available]


def follow_clock(clock_steps: StepWatch, states: Iterable[TrackedDevice], read_ns: int) -> int:
    """Before samples are added: leave out time that never passed, and restart where time passes again.

    All samples that were added until now have times by the earlier setting. Returns `read_ns`, the time at which the
    new samples were read, or the present if that time may be by an earlier setting.
    """
    step = clock_steps.step()
    if step is not None and step.ahead_ns > 0:
        for state in states:
            state.timeline.skip(step.ahead_ns)
    elif step is not None and step.ahead_ns <= -LEAST_BACK_NS:
        for state in states:
            state.timeline.set_back(*step.between_ns)
    return read_ns if read_ns >= clock_steps.set_ns else clock_steps.last.now_ns

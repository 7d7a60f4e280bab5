"""Timer on a machine, noted while it works and compared afterwards."""

from __future__ import annotations

from collections.abc import Callable
from resource import RUSAGE_SELF, getrusage
from time import perf_counter
from typing import Any

from gpu_profile.errors import UsageError
from gpu_profile.roofline.machines.machine import Machine

#: What PyTorch drives by streams and events.
_STREAMED = ("cuda", "xpu")


class HostTimer:
    """By the host's clock: for a device that has done its work when a call returns.

    `at_once`: what is between two moments can be told as soon as they are noted.
    """

    at_once = True
    now: Callable[[], float] = staticmethod(perf_counter)

    def seconds(self, start: float, end: float) -> float:
        """From one reading to the other."""
        return end - start

    def settle(self) -> None:
        """All moments that were noted have come."""

    def faults(self) -> int:
        """First touches of memory so far, as in `Timing.faults`, of the process; about 1 µs."""
        return getrusage(RUSAGE_SELF).ru_minflt


class EventTimer:
    """By events on whichever stream of the device is current when they are noted. The host does not wait for them.

    `module` is PyTorch's for the kind of device, such as `torch.cuda`. Each moment is an event of its own, about 1 µs
    of the host's time.
    """

    at_once = False

    def __init__(self, module: Any, ordinal: int) -> None:
        self._module = module
        self._ordinal = ordinal

    def now(self) -> Any:
        """Record an event."""
        event = self._module.Event(enable_timing=True)
        event.record(self._module.current_stream(self._ordinal))
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """What passed on the device between the two."""
        return float(start.elapsed_time(end)) * 1e-3

    def settle(self) -> None:
        """Wait for the whole device, as events may be on several of its streams."""
        self._module.synchronize(self._ordinal)

    def faults(self) -> int:
        """The host's memory is not what the device works on."""
        return 0


#: Notes moments and tells what is between two of them.
Timer = HostTimer | EventTimer


def timer_for(machine: Machine) -> Timer:
    """For a machine of PyTorch's. UsageError for one whose modules cannot be told apart."""
    if machine.kind == "cpu":
        return HostTimer()
    if machine.kind in _STREAMED:
        import torch

        return EventTimer(getattr(torch, machine.kind), machine.ordinal)  # type: ignore[attr-defined]
    raise UsageError(
        f"profile_model times modules on the CPU and by events on {' and '.join(_STREAMED)} devices, "
        f"not on {machine.kind}: profile the model as one operation, with GPUProfiler.profile_with_result"
    )

"""Clocks of the devices: each reading is recorded in the run, and readings are compared afterwards."""

from __future__ import annotations

from collections.abc import Callable
from resource import RUSAGE_SELF, getrusage
from time import perf_counter
from typing import Any

from gpu_profile.errors import UsageError
from gpu_profile.roofline.machines.machine import Machine

#: Types of devices that PyTorch drives with streams and events.
_STREAMED = ("cuda", "xpu")


class HostTimer:
    """The host's clock, for a device whose work is done when a call returns.

    `at_once`: `seconds` may be called as soon as both readings are taken.
    """

    at_once = True
    now: Callable[[], float] = staticmethod(perf_counter)

    def seconds(self, start: float, end: float) -> float:
        """The seconds from one reading to the other."""
        return end - start

    def settle(self) -> None:
        """Does nothing: readings of the host's clock are complete at once."""

    def faults(self) -> int:
        """First touches of memory by the process so far, as in `Timing.faults`. Takes about 1 µs."""
        return getrusage(RUSAGE_SELF).ru_minflt


class EventTimer:
    """Events on the device's current stream. The host does not wait for them.

    `module`: PyTorch's module for the kind of device, such as `torch.cuda`. Each reading is an event of its own and
    takes about 1 µs of the host's time.
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
        """The seconds on the device between the two events."""
        return float(start.elapsed_time(end)) * 1e-3

    def settle(self) -> None:
        """Wait for the whole device, as events may be on several of its streams."""
        self._module.synchronize(self._ordinal)

    def faults(self) -> int:
        """0: the device does not work on the host's memory."""
        return 0


#: Takes readings, and computes the seconds between two of them.
Timer = HostTimer | EventTimer


def timer_for(machine: Machine) -> Timer:
    """The timer for a machine of PyTorch's. Raises UsageError if its modules cannot be timed separately."""
    if machine.kind == "cpu":
        return HostTimer()
    if machine.kind in _STREAMED:
        import torch

        return EventTimer(getattr(torch, machine.kind), machine.ordinal)  # type: ignore[attr-defined]
    raise UsageError(
        f"profile_model times modules on the CPU and by events on {' and '.join(_STREAMED)} devices, "
        f"not on {machine.kind}: profile the model as one operation, with GPUProfiler.profile_with_result"
    )

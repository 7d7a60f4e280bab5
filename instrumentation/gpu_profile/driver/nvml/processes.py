"""Who uses a device: the processes that the driver lists, what each holds, and how busy it kept the multiprocessors."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from gpu_profile.catalogue.samples import ProcessUse
from gpu_profile.clock import Clock
from gpu_profile.driver.nvml.enumeration import EnumeratedDevice
from gpu_profile.driver.nvml.errors import NEVER
from gpu_profile.driver.nvml.library import NvmlLibrary
from gpu_profile.units import NS_PER_S

#: Each lists processes of its kind; one that computes and draws is in two of them, with all its memory in both.
_LISTS: Final = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
_UTILIZATION: Final = "nvmlDeviceGetProcessUtilization"
#: What stands for "not known": of the memory, and of the ids of a process outside MIG.
_UNKNOWN_BYTES: Final = (1 << 64) - 1
_NO_INSTANCE: Final = (1 << 32) - 1
#: A driver's time stamp further from the clock than this is not used.
_PLAUSIBLE_NS: Final = 5 * NS_PER_S
#: The driver keeps some hundred samples, 1/6 s to 1 s apart: those of a longer time may no longer be all there.
_REACH_NS: Final = 15 * NS_PER_S


class DeviceProcesses:
    """The users of one device, and from when on their utilisation has not been told yet."""

    def __init__(self, library: NvmlLibrary, clock: Clock, uuid: str) -> None:
        self._library = library
        self._clock = clock
        self._uuid = uuid
        #: What this binding and this device have.
        self._calls = [name for name in (*_LISTS, _UTILIZATION) if hasattr(library.api, name)]
        self._last_us: int | None = None

    def uses(self, found: EnumeratedDevice) -> list[ProcessUse]:
        """Everyone on the device now, by pid.

        A GPU that is cut into MIG instances lists nobody: whoever uses it is listed by an instance. `utilization` is
        the mean share of the multiprocessors' time since the last call, as the driver averages its own samples; None
        at the first call, after a pause that these do not span, for a process that they say nothing of, and on MIG.
        """
        if found.cut:
            return []
        held: dict[int, int | None] = {}
        for name in _LISTS:
            for row in self._ask(name, found.handle) or ():
                if found.instance is not None and row.gpuInstanceId not in (found.instance, _NO_INSTANCE):
                    continue  # a neighbour's
                known, memory = held.get(row.pid), row.usedGpuMemory
                if memory is not None and 0 <= memory < _UNKNOWN_BYTES:
                    known = max(known or 0, memory)
                held[row.pid] = known
        shares = self._shares(found) if held else self._begin()
        return [ProcessUse(pid, memory, shares.get(pid)) for pid, memory in held.items()]

    def _ask(self, name: str, handle: Any, *arguments: int) -> Any:
        """The driver's answer, None without one; what it never answers is not asked again."""
        if name not in self._calls:
            return None
        errors = self._library.errors
        try:
            return getattr(self._library.api, name)(handle, *arguments)
        except errors.failures as failure:
            # The binding's way to say that there was no error and nothing to tell.
            if getattr(failure, "value", None) == self._library.api.NVML_SUCCESS:
                return None
            if errors.met(failure, name, self._uuid).action in NEVER:
                self._calls.remove(name)
            return None

    def _begin(self) -> dict[int, float]:
        self._last_us = self._clock.now_ns() // 1000
        return {}

    def _shares(self, found: EnumeratedDevice) -> dict[int, float]:
        """Mean utilisation by pid since the last call."""
        last_us, now_ns = self._last_us, self._clock.now_ns()
        self._begin()
        if found.instance is not None or last_us is None or not 0 < now_ns - last_us * 1000 <= _REACH_NS:
            return {}
        rows: defaultdict[int, list[int]] = defaultdict(list)
        stamps: set[int] = set()
        for row in self._ask(_UTILIZATION, found.handle, last_us) or ():
            stamp_us, percent = row.timeStamp, row.smUtil
            # Some drivers leave rows in the array that they never wrote (Syllo/nvtop#110).
            if last_us < stamp_us <= (now_ns + _PLAUSIBLE_NS) // 1000 and percent <= 100:
                rows[row.pid].append(percent)
                stamps.add(stamp_us)
        if stamps:
            self._last_us = max(stamps)
        # Once for each process: the driver took the mean itself. Else these are its samples, without those of 0.
        samples = 1 if all(len(percents) == 1 for percents in rows.values()) else len(stamps)
        return {pid: sum(percents) / samples / 100 for pid, percents in rows.items()}

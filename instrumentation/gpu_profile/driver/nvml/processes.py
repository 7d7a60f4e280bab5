"""The processes on a device, with their memory and their utilisation of the multiprocessors."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from gpu_profile.catalogue.samples import ProcessUse
from gpu_profile.clock import Clock
from gpu_profile.driver.nvml.enumeration import EnumeratedDevice
from gpu_profile.driver.nvml.errors import NEVER
from gpu_profile.driver.nvml.library import NvmlLibrary
from gpu_profile.units import NS_PER_S

#: Each lists processes of one kind. A process that computes and draws is in two lists, with all of its memory in both.
_LISTS: Final = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
_UTILIZATION: Final = "nvmlDeviceGetProcessUtilization"
#: NVML's values for unknown memory, and for the instance id of a process outside MIG.
_UNKNOWN_BYTES: Final = (1 << 64) - 1
_NO_INSTANCE: Final = (1 << 32) - 1
#: A driver's time stamp further from the clock than this is not used.
_PLAUSIBLE_NS: Final = 5 * NS_PER_S
#: The driver keeps about a hundred samples, 1/6 s to 1 s apart. It may have dropped some of a longer time.
_REACH_NS: Final = 15 * NS_PER_S


class DeviceProcesses:
    """The processes on one device, and the start of their unread utilisation samples."""

    def __init__(self, library: NvmlLibrary, clock: Clock, uuid: str) -> None:
        self._library = library
        self._clock = clock
        self._uuid = uuid
        #: The functions that this binding has and this device supports.
        self._calls = [name for name in (*_LISTS, _UTILIZATION) if hasattr(library.api, name)]
        self._last_us: int | None = None

    def uses(self, entry: EnumeratedDevice) -> list[ProcessUse]:
        """The processes on the device now, one entry per pid. Empty for a GPU in MIG mode: its instances list them.

        `utilization` is the mean share of the multiprocessors' time since the last call, from the driver's samples. It
        is None at the first call, after a pause that the samples do not span, without samples of the process, and on
        MIG instances.
        """
        if entry.mig_mode:
            return []
        memory: dict[int, int | None] = {}
        for name in _LISTS:
            for row in self._ask(name, entry.handle) or ():
                if entry.instance is not None and row.gpuInstanceId not in (entry.instance, _NO_INSTANCE):
                    continue  # on another instance of the same GPU
                most, used = memory.get(row.pid), row.usedGpuMemory
                if used is not None and 0 <= used < _UNKNOWN_BYTES:
                    most = max(most or 0, used)
                memory[row.pid] = most
        shares = self._shares(entry) if memory else self._begin()
        return [ProcessUse(pid, used, shares.get(pid)) for pid, used in memory.items()]

    def _ask(self, name: str, handle: Any, *arguments: int) -> Any:
        """The function's result; None if it fails. A function that fails for good is not called again."""
        if name not in self._calls:
            return None
        errors = self._library.errors
        try:
            return getattr(self._library.api, name)(handle, *arguments)
        except errors.failures as failure:
            # The binding raises NVML_SUCCESS if the list is empty.
            if getattr(failure, "value", None) == self._library.api.NVML_SUCCESS:
                return None
            if errors.judge(failure, name, self._uuid).action in NEVER:
                self._calls.remove(name)
            return None

    def _begin(self) -> dict[int, float]:
        self._last_us = self._clock.now_ns() // 1000
        return {}

    def _shares(self, entry: EnumeratedDevice) -> dict[int, float]:
        """Mean utilisation by pid since the last call."""
        last_us, now_ns = self._last_us, self._clock.now_ns()
        self._begin()
        if entry.instance is not None or last_us is None or not 0 < now_ns - last_us * 1000 <= _REACH_NS:
            return {}
        rows: defaultdict[int, list[int]] = defaultdict(list)
        stamps: set[int] = set()
        for row in self._ask(_UTILIZATION, entry.handle, last_us) or ():
            stamp_us, percent = row.timeStamp, row.smUtil
            # Some drivers return rows that they never wrote (Syllo/nvtop#110).
            if last_us < stamp_us <= (now_ns + _PLAUSIBLE_NS) // 1000 and percent <= 100:
                rows[row.pid].append(percent)
                stamps.add(stamp_us)
        if stamps:
            self._last_us = max(stamps)
        # One row per process: the driver averaged them. Otherwise the rows are its samples, without samples of 0.
        samples = 1 if all(len(percents) == 1 for percents in rows.values()) else len(stamps)
        return {pid: sum(percents) / samples / 100 for pid, percents in rows.items()}

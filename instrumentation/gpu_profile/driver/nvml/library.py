"""NVML in this process: the binding, its state, and the functions that are called directly."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from gpu_profile.driver.nvml.errors import RULES, Action, ErrorPolicy, gone
from gpu_profile.errors import GpuBackendError

#: Fields that NVML renumbered: 251 to 253 in nvml.h 12.9 to 13.0.39 (drivers 575 to 580.65), 269 to 271 from 13.1 on
#: (nvidia-ml-py from 13.580.82 on). Earlier drivers do not have them. In each release, the other numbers belong to
#: other fields. No header documents the numbers of drivers between 580.65 and 580.82.
_MOVED: Final = tuple(
    f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{name}_SLOWDOWN" for name in ("SW_THERM", "HW_THERM", "HW_POWER_BRAKE")
)
_MOVED_BY_RELEASE: Final = (((580, 82), None, 269), ((575, 0), (580, 65), 251))


class NvmlLibrary:
    """Starts and stops NVML once in each process that uses it.

    `api` is the module `pynvml`. `field_values`, `samples` and `event_wait` are the C functions
    `nvmlDeviceGetFieldValues`, `nvmlDeviceGetSamples` and `nvmlEventSetWait_v2`, or None if the driver lacks them. The
    binding's wrappers build new arrays or raise an exception at each call, which costs more than the call itself.
    """

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise GpuBackendError(
                "NVML: the Python package nvidia-ml-py is not installed; run: pip install nvidia-ml-py"
            ) from None
        self.api: Any = pynvml
        self.errors = ErrorPolicy(pynvml)
        self.field_values: Any = None
        self.samples: Any = None
        self.event_wait: Any = None
        self.version = self.nvml_version = self.cuda_version = ""
        self._pid: int | None = None
        self.start()

    @property
    def started(self) -> bool:
        """Whether this process started NVML. A forked child must not use its parent's handles."""
        return self._pid == os.getpid()

    def start(self) -> None:
        """Start NVML. GpuBackendError, with the reason in one line, if it fails."""
        try:
            self.api.nvmlInit()
            self._pid = os.getpid()
            self.version = self._text(self.api.nvmlSystemGetDriverVersion())
        except self.errors.failures as failure:
            name = self.errors.name(failure)
            self.errors.counts[name] += 1
            self.stop()
            rule = RULES.get(name)
            words = rule.words if rule and rule.action is not Action.RESTART else "check the GPUs with nvidia-smi"
            raise gone(name)(f"NVML: could not be started ({name}): {words}") from failure
        self.nvml_version = self._text(self._optional("nvmlSystemGetNVMLVersion") or "")
        cuda = self._optional("nvmlSystemGetCudaDriverVersion_v2")
        self.cuda_version = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""
        self.field_values = self._resolve("nvmlDeviceGetFieldValues")
        self.samples = self._resolve("nvmlDeviceGetSamples")
        self.event_wait = self._resolve("nvmlEventSetWait_v2")

    def forget(self) -> None:
        """Mark NVML as not started, without a shutdown: it was shut down already, or the parent started it."""
        self._pid = None

    def stop(self) -> None:
        """Shut NVML down if this process started it."""
        if self.started:
            self._pid = None
            self.errors.release(self.api.nvmlShutdown)

    def constant(self, name: str) -> int | None:
        """The binding's constant of this name; None if the binding is too old to have it."""
        value: int | None = getattr(self.api, name, None)
        return value

    def field(self, name: str) -> int | None:
        """The number of a field, None if unknown. Of renumbered fields, the driver's version determines it."""
        if name not in _MOVED:
            return self.constant(name)
        match = re.match(r"(\d+)\.(\d+)", self.version)
        release = (int(match[1]), int(match[2])) if match else (0, 0)
        for since, until, first in _MOVED_BY_RELEASE:
            if since <= release and (until is None or release <= until):
                return first + _MOVED.index(name)
        return None

    def _optional(self, name: str) -> Any:
        """The result of a function without arguments; None if it fails or is missing."""
        function = getattr(self.api, name, None)
        try:
            return None if function is None else function()
        except self.errors.failures:
            return None

    def _resolve(self, name: str) -> Any:
        """The C function of this name. `_nvmlGetFunctionPointer` is private, so the binding may drop it."""
        look_up = getattr(self.api, "_nvmlGetFunctionPointer", None)
        if look_up is None:
            return getattr(getattr(self.api, "nvmlLib", None), name, None)
        try:
            return look_up(name)
        except self.errors.failures:
            return None

    @staticmethod
    def _text(value: Any) -> str:
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

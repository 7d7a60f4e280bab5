"""NVML as this process has started it: the binding, its state, and the functions that are called directly."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from gpu_profile.driver.nvml.errors import RULES, Action, ErrorPolicy, gone
from gpu_profile.errors import GpuBackendError

#: Fields that NVML gave other numbers: 251 to 253 in nvml.h 12.9 to 13.0.39, which go with drivers from 575 to 580.65;
#: 269 to 271 from 13.1 on, as in nvidia-ml-py from 13.580.82 on. Earlier drivers do not have them; in each release the
#: other numbers belong to other fields. No header tells which numbers drivers between 580.65 and 580.82 use.
_MOVED: Final = tuple(
    f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{name}_SLOWDOWN" for name in ("SW_THERM", "HW_THERM", "HW_POWER_BRAKE")
)
_MOVED_BY_RELEASE: Final = (((580, 82), None, 269), ((575, 0), (580, 65), 251))


class NvmlLibrary:
    """Starts and stops NVML once in each process that uses it.

    `api` is the module `pynvml`. `field_values` and `samples` are the resolved `nvmlDeviceGetFieldValues` and
    `nvmlDeviceGetSamples`, or None if the driver has none: the binding's own wrappers build their arrays anew at each
    call, which costs more than the call itself.
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
        self.version = self.nvml_version = self.cuda_version = ""
        self._pid: int | None = None
        self.start()

    @property
    def started(self) -> bool:
        """Whether NVML was started by this very process: a child must not use what its parent opened."""
        return self._pid == os.getpid()

    def start(self) -> None:
        """Start NVML; GpuBackendError says in one line why it cannot be."""
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

    def forget(self) -> None:
        """NVML was shut down, or belongs to the parent: there is nothing of ours to release."""
        self._pid = None

    def stop(self) -> None:
        """Shut NVML down if this process started it."""
        if self.started:
            self._pid = None
            self.errors.release(self.api.nvmlShutdown)

    def constant(self, name: str) -> int | None:
        """The binding's constant of this name, None if it is too old to know it."""
        value: int | None = getattr(self.api, name, None)
        return value

    def field(self, name: str) -> int | None:
        """The number of a field in this driver, whatever the binding's release; None if either does not have it."""
        if name not in _MOVED:
            return self.constant(name)
        found = re.match(r"(\d+)\.(\d+)", self.version)
        release = (int(found[1]), int(found[2])) if found else (0, 0)
        for since, until, first in _MOVED_BY_RELEASE:
            if since <= release and (until is None or release <= until):
                return first + _MOVED.index(name)
        return None

    def _optional(self, name: str) -> Any:
        """What a function of the system says, None if it fails."""
        function = getattr(self.api, name, None)
        try:
            return None if function is None else function()
        except self.errors.failures:
            return None

    def _resolve(self, name: str) -> Any:
        """The C function of this name. `_nvmlGetFunctionPointer` is private, so the binding may lose it."""
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

"""The table from NVML's return codes to the driver's actions.

The codes and their meaning are NVIDIA's (`nvmlReturn_t` in `nvml.h`). They are looked up by name, so that no number is
repeated here.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from gpu_profile.errors import DeviceLost, GpuBackendError, StaleLibraryError

_LOG: Final = logging.getLogger("gpu_profile.driver.nvml")

NOT_KNOWN_TO_BINDING: Final = "not known to this nvidia-ml-py"
NOT_KNOWN_TO_DRIVER: Final = "not known to this driver"
NOT_ON_MIG: Final = "not available on a MIG instance"
CUT: Final = ", which is cut into MIG instances"
NEEDS_HOPPER: Final = "needs Hopper or newer"
NO_SENSOR: Final = "not there: the driver says 0"


class Action(Enum):
    """The consequence of a failed call."""

    #: The device will never provide the signal: it is absent, and not read again.
    ABSENT = auto()
    #: Like `ABSENT`, but an administrator can change it: warn once.
    DENIED = auto()
    #: Normal: there is no new value.
    NOTHING_NOW = auto()
    #: This device stopped answering.
    LOST = auto()
    #: NVML as a whole cannot be used.
    GONE = auto()
    #: NVML was not started in this process.
    RESTART = auto()
    #: Temporary: count it, and try again at the next read.
    TRANSIENT = auto()


#: Actions after which the signal stays absent.
NEVER: Final = frozenset({Action.ABSENT, Action.DENIED})


class ErrorRule(NamedTuple):
    """One row: the action, and the reason or remedy in words."""

    action: Action
    words: str


RULES: Final[dict[str, ErrorRule]] = {
    "UNINITIALIZED": ErrorRule(Action.RESTART, "NVML was not started in this process"),
    "INVALID_ARGUMENT": ErrorRule(Action.ABSENT, "not known to this driver"),
    "NOT_SUPPORTED": ErrorRule(Action.ABSENT, "not supported by this GPU"),
    "FUNCTION_NOT_FOUND": ErrorRule(Action.ABSENT, "not known to this driver"),
    "ARGUMENT_VERSION_MISMATCH": ErrorRule(Action.ABSENT, "not known to this driver"),
    "DEPRECATED": ErrorRule(Action.ABSENT, "no longer offered by this driver"),
    "NO_PERMISSION": ErrorRule(Action.DENIED, "not permitted for this user"),
    "OPERATING_SYSTEM": ErrorRule(Action.DENIED, "blocked by the operating system or the container's device rules"),
    "NOT_FOUND": ErrorRule(Action.NOTHING_NOW, "no data yet"),
    "NO_DATA": ErrorRule(Action.NOTHING_NOW, "no data yet"),
    "NOT_READY": ErrorRule(Action.NOTHING_NOW, "no data yet"),
    "TIMEOUT": ErrorRule(Action.NOTHING_NOW, "nothing within the time allowed"),
    "GPU_IS_LOST": ErrorRule(
        Action.LOST, "it fell off the bus; check the kernel log for its XID, then reset it or reboot"
    ),
    "RESET_REQUIRED": ErrorRule(Action.LOST, "it needs a reset: nvidia-smi --gpu-reset, or reboot"),
    "GPU_NOT_FOUND": ErrorRule(Action.LOST, "the driver no longer knows it; list the GPUs with nvidia-smi -L"),
    "LIBRARY_NOT_FOUND": ErrorRule(
        Action.GONE,
        "libnvidia-ml.so.1 was not found; install the NVIDIA driver, or start the container with its GPUs (--gpus all)",
    ),
    "DRIVER_NOT_LOADED": ErrorRule(
        Action.GONE, "the NVIDIA kernel driver is not loaded; load it (modprobe nvidia) and check with nvidia-smi"
    ),
    "LIB_RM_VERSION_MISMATCH": ErrorRule(
        Action.GONE,
        "libnvidia-ml.so.1 and the loaded kernel driver have different versions; restart this process, or the "
        "container if its library is older than the node's driver",
    ),
}
_OTHER: Final = ErrorRule(Action.TRANSIENT, "failed this time")


def gone(name: str) -> type[GpuBackendError]:
    """The exception for the NVML error of this name, whose action is `GONE`."""
    return StaleLibraryError if name == "LIB_RM_VERSION_MISMATCH" else GpuBackendError


class UninitializedError(Exception):
    """NVML must be started (again) before the call can succeed. Never leaves the driver."""


class ErrorPolicy:
    """Applies the table to failures, and counts the failures that deserve an operator's attention.

    `counts` maps an NVML error's name without its prefix (`GPU_IS_LOST`) to its number of occurrences. Codes for an
    absent quantity or for no new value are no errors, and not counted. A repeated problem is logged once.
    """

    def __init__(self, api: Any) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: tuple[type[Exception], ...] = (api.NVMLError,)
        if hasattr(api, "NVMLLibraryMismatchError"):
            self.failures += (api.NVMLLibraryMismatchError,)
        prefix = "NVML_ERROR_"
        self._names = {getattr(api, name): name.removeprefix(prefix) for name in dir(api) if name.startswith(prefix)}
        self._logged: set[tuple[str, str]] = set()

    def name(self, failure: Exception | int) -> str:
        """The error's name without its prefix. The binding's mismatch error means that a symbol is missing."""
        code = failure if isinstance(failure, int) else getattr(failure, "value", None)
        if code is None:
            return "FUNCTION_NOT_FOUND"
        return self._names.get(code, f"CODE_{code}")

    def judge(self, failure: Exception | int, call: str, uuid: str = "") -> ErrorRule:
        """Count a failure of `call` on a device, and return its rule.

        DeviceLost, GpuBackendError or UninitializedError if the action is LOST, GONE or RESTART.
        """
        name = self.name(failure)
        rule = RULES.get(name, _OTHER)
        if rule.action in {Action.ABSENT, Action.NOTHING_NOW}:
            return rule
        self.counts[name] += 1
        match rule.action:
            case Action.RESTART:
                raise UninitializedError(call)
            case Action.LOST:
                raise DeviceLost(f"NVML: GPU {uuid}: {call}: {rule.words}")
            case Action.GONE:
                raise gone(name)(f"NVML: {rule.words}")
        self.warn(name, call, uuid, f"{rule.words} ({name})")
        return rule

    def release(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function that releases a resource. A failure is counted and otherwise ignored."""
        try:
            function(*arguments)
        except self.failures as failure:
            self.counts[self.name(failure)] += 1

    def implausible(self, source: str, uuid: str, value: float) -> None:
        """Count a value that cannot be true and was left out."""
        self.counts["IMPLAUSIBLE_VALUE"] += 1
        self.warn("IMPLAUSIBLE_VALUE", source, uuid, f"{value:g} cannot be true and was left out")

    def warn(self, name: str, source: str, uuid: str, words: str) -> None:
        """Log a problem the first time that it occurs on a device."""
        if (name, uuid) not in self._logged:
            self._logged.add((name, uuid))
            _LOG.warning("NVML: %s: %s: %s; logged once", uuid or "this node", source, words)

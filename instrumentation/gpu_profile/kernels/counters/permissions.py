"""Whether this process may read the GPU's hardware counters, and the meaning of CUPTI's errors.

Recording kernels, copies and calls (tracing) needs no privilege. Counters do, unless the driver lets everybody read
them: https://developer.nvidia.com/ERR_NVGPUCTRPERM, which names the driver's option, both capabilities and the flag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

_SYS_ADMIN, _PERFMON = 21, 38
#: The first driver that accepts CAP_PERFMON in place of CAP_SYS_ADMIN.
_PERFMON_SINCE: Final = 565
_OPTION: Final = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"
_TO_DO: Final = (
    f"as an administrator, write '{_OPTION}' to a file in /etc/modprobe.d on the host and load the driver anew; or run "
    "with CAP_SYS_ADMIN (CAP_PERFMON from driver 565 on), in a container with --cap-add=SYS_ADMIN"
)


@dataclass(frozen=True, slots=True)
class CounterAccess:
    """`allowed` is None if it cannot be determined. `reason` explains it. `to_do` is the remedy ("": none needed)."""

    allowed: bool | None
    reason: str
    to_do: str = ""


def counter_access(proc: Path = Path("/proc")) -> CounterAccess:
    """Whether this process may read counters, by the driver's parameters and the process's capabilities in `proc`."""
    parameters = proc / "driver/nvidia/params"
    try:
        match = re.search(r"^RmProfilingAdminOnly: *(\d+)", parameters.read_text(), re.MULTILINE)
    except OSError as error:
        return CounterAccess(None, f"{parameters}: {error.strerror}")
    if match is None:
        return CounterAccess(None, f"{parameters} has no RmProfilingAdminOnly")
    if match[1] == "0":
        return CounterAccess(True, "the driver lets everybody read them (RmProfilingAdminOnly: 0)")
    return _administrator(proc, f"the driver keeps them for administrators (RmProfilingAdminOnly: {match[1]})")


def _administrator(proc: Path, policy: str) -> CounterAccess:
    capabilities = _capabilities(proc / "self/status")
    if capabilities is None:
        return CounterAccess(None, f"{policy}, and this process's capabilities cannot be read", _TO_DO)
    names = {_SYS_ADMIN: "CAP_SYS_ADMIN", _PERFMON: "CAP_PERFMON"}
    name = next((name for bit, name in names.items() if capabilities >> bit & 1), "")
    if not name:
        return CounterAccess(False, f"{policy}, and this process has neither CAP_SYS_ADMIN nor CAP_PERFMON", _TO_DO)
    if name == "CAP_PERFMON" and _release(proc / "driver/nvidia/version") < _PERFMON_SINCE:
        return CounterAccess(False, f"{policy}, and accepts CAP_PERFMON only from driver {_PERFMON_SINCE} on", _TO_DO)
    if _nested(proc / "self/uid_map"):
        return CounterAccess(False, f"{policy}, and {name} of a user namespace is not the host's", _TO_DO)
    return CounterAccess(True, f"this process has {name}")


def _capabilities(status: Path) -> int | None:
    try:
        match = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1], 16) if match else None


def _release(version: Path) -> int:
    """The driver's release, 0 if it cannot be read."""
    try:
        match = re.search(r"\b(\d{3,})\.\d+", version.read_text())
    except OSError:
        return 0
    return int(match[1]) if match else 0


def _nested(uid_map: Path) -> bool:
    """Whether the process is in a user namespace of its own, as in a container without root."""
    try:
        return uid_map.read_text().split() != ["0", "0", "4294967295"]
    except OSError:
        return False


#: CUptiResult: its meaning here, and the remedy.
_CODES: Final[Mapping[int, tuple[str, str]]] = {
    8: ("out of memory", "record for a shorter time"),
    15: ("CUPTI could not start", "the driver may be older than CUPTI: update it, or install an older cupti-python"),
    26: ("the counters are in use", "stop the other tool; DCGM's with 'dcgmi profile --pause'"),
    27: ("this GPU or driver does not support it", "record with PyTorch's profiler"),
    33: ("a virtual GPU does not allow it", "ask for a profiling-enabled vGPU"),
    35: ("the driver keeps counters for administrators", _TO_DO),
    38: ("this GPU is too new for CUPTI's old profiling calls", "update cupti-python"),
    39: (
        "another tool of this process holds CUPTI",
        "end PyTorch's profiler, Nsight, compute-sanitizer or cuda-gdb first, or record with PyTorch's profiler alone",
    ),
    40: ("the host does not let this virtual machine profile", "enable profiling for the vGPU on the host"),
    41: ("confidential computing does not allow it", "profile with it off"),
    42: ("mining GPUs do not allow it", "use another GPU"),
    43: ("an instance of a GPU (MIG) does not allow it", "use a whole GPU"),
    45: ("Windows's subsystem for Linux does not allow it", "use Linux"),
    999: ("CUPTI does not say why", "see whether nvidia-smi works, and whether the driver fits CUPTI's version"),
}


#: The first cupti-python with PM sampling.
SAMPLES_SINCE: Final = (13, 3)


def sampling_release() -> tuple[int, int] | None:
    """Major and minor release of the installed cupti-python; None without one."""
    try:
        match = re.match(r"(\d+)\.(\d+)", metadata.version("cupti-python"))
    except metadata.PackageNotFoundError:
        return None
    return (int(match[1]), int(match[2])) if match else None


def explain(code: int) -> str:
    """One line on a CUptiResult that is an error: its meaning and the remedy."""
    meaning, to_do = _CODES.get(code, ("not known here", "look it up in CUPTI's documentation (CUptiResult)"))
    return f"{meaning} (CUPTI error {code}): {to_do}"

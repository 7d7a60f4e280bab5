"""Where attribution comes from, why a source may be silent, and why something it said is not published."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum


class HolderSource(StrEnum):
    """Who says that somebody holds a device."""

    KUBELET = "kubelet"
    DRA = "dra"
    SLURM = "slurm"
    CONTAINERS = "containers"
    PROCESSES = "processes"


class Reason(StrEnum):
    """Why a source says nothing."""

    STARTING = "starting"
    #: Nothing that a source could say would be about a device that is known.
    NO_DEVICES = "no_devices"
    NOT_FOUND = "not_found"
    DENIED = "denied"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    UNSUPPORTED = "unsupported"
    GARBAGE = "garbage"
    TOO_LARGE = "too_large"
    MISSING_PACKAGE = "missing_package"
    #: The driver names processes by the host's pids, which mean nothing in a namespace of one's own.
    PID_NAMESPACE = "pid_namespace"
    #: The driver's list of processes is not read, or is older than what may be published.
    NO_PROCESSES = "no_processes"
    STALE = "stale"
    FAILED = "failed"


class LeftOut(StrEnum):
    """Why one item of a source is not published."""

    GARBAGE = "garbage"
    TOO_LARGE = "too_large"
    #: A symbolic link, which could lead anywhere.
    LINK = "link"
    UNKNOWN_DEVICE = "unknown_device"
    #: A device's name that two devices could have.
    AMBIGUOUS = "ambiguous"
    #: Two pods that hold what only one can: one of them is over, and the source does not say which.
    CONFLICT = "conflict"
    #: The process began after the driver had listed its pid, or while it was looked up.
    PID_REUSED = "pid_reused"
    #: The processes of a device together have more than the device.
    EXCEEDS_DEVICE = "exceeds_device"
    BUDGET = "budget"


class Unavailable(Exception):  # noqa: N818 - a state of the world
    """A source cannot be read; never leaves this package."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason


def reason_of(error: OSError) -> Reason:
    """What the system's refusal of a file or socket means."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Reason.NOT_FOUND
    if isinstance(error, PermissionError):
        return Reason.DENIED
    if isinstance(error, TimeoutError):
        return Reason.TIMEOUT
    return Reason.UNREACHABLE


#: What was left out so far: grows only.
Tally = Counter[tuple[HolderSource, LeftOut]]

"""The sources of attribution, the reasons why a source has no answer, and the reasons why an item is omitted."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum


class HolderSource(StrEnum):
    """The system that reports a holder of a device."""

    KUBELET = "kubelet"
    DRA = "dra"
    SLURM = "slurm"
    CONTAINERS = "containers"
    PROCESSES = "processes"


class Reason(StrEnum):
    """Why a source has no answer."""

    STARTING = "starting"
    #: The driver lists no devices, so that no answer could be matched to one.
    NO_DEVICES = "no_devices"
    NOT_FOUND = "not_found"
    DENIED = "denied"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    UNSUPPORTED = "unsupported"
    GARBAGE = "garbage"
    TOO_LARGE = "too_large"
    MISSING_PACKAGE = "missing_package"
    #: The driver names processes by the host's pids, which mean nothing in the exporter's own pid namespace.
    PID_NAMESPACE = "pid_namespace"
    #: The driver's list of processes is not read, or is too old to be published.
    NO_PROCESSES = "no_processes"
    STALE = "stale"
    FAILED = "failed"


class OmissionReason(StrEnum):
    """Why one item of a source is not published."""

    GARBAGE = "garbage"
    TOO_LARGE = "too_large"
    #: A symbolic link, which could lead anywhere.
    LINK = "link"
    UNKNOWN_DEVICE = "unknown_device"
    #: A device name that matches two devices.
    AMBIGUOUS = "ambiguous"
    #: Two pods hold a device that only one can hold. One pod has ended, and the source does not say which.
    CONFLICT = "conflict"
    #: The process began after the driver had listed its pid, or during the look-up.
    PID_REUSED = "pid_reused"
    #: The processes of a device together use more than the device has.
    EXCEEDS_DEVICE = "exceeds_device"
    BUDGET = "budget"


class Unavailable(Exception):  # noqa: N818 - a state of the world
    """A source cannot be read. Never leaves this package."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason


def reason_of(error: OSError) -> Reason:
    """The reason that corresponds to an error on a file or socket."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Reason.NOT_FOUND
    if isinstance(error, PermissionError):
        return Reason.DENIED
    if isinstance(error, TimeoutError):
        return Reason.TIMEOUT
    return Reason.UNREACHABLE


#: Counts of omitted items since the start.
OmissionCounts = Counter[tuple[HolderSource, OmissionReason]]

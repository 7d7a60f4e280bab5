"""The errors that gpu-profile raises for its users. Imports no other module of ours.

Each message is one line with the missing or wrong thing, its place and the remedy. A command prints it and exits with
the class's `exit_code`, without a traceback. It has at most 200 characters: `few` shortens lists of names.
"""

from __future__ import annotations

from collections.abc import Iterable


def few(names: Iterable[object], room: int = 100) -> str:
    """Names in a message: at least one, and as many as fit into `room` characters. The rest is counted."""
    listed = [*map(str, names)]
    kept = max((n for n in range(1, len(listed) + 1) if len(", ".join(listed[:n])) <= room), default=1)
    rest = f" and {len(listed) - kept} more" if len(listed) > kept else ""
    return ", ".join(listed[:kept]) + rest


class GpuProfileError(Exception):
    """Base of every error that gpu-profile raises on purpose."""

    exit_code = 1


class UsageError(GpuProfileError):
    """A wrong argument or setting: an unknown device, a taken port, a bad option."""

    exit_code = 2


class GpuBackendError(GpuProfileError):
    """The requested driver cannot be used."""


class StaleLibraryError(GpuBackendError):
    """The driver's library and the driver have different versions. Only a new process can load the right library."""


class UnknownBackendError(GpuBackendError):
    """There is no driver of that name: the user's mistake, not the node's."""

    exit_code = 2


class ScenarioError(UsageError):
    """A simulated node's scenario or work log is not valid: file, place and reason."""


class RecordingError(UsageError):
    """A recording cannot be read or written: file, place and reason."""


class DeviceLost(GpuProfileError):  # noqa: N818 - a state of the world, in the driver's own words
    """A device stopped answering: it fell off the bus, is being reset, or the driver was reloaded under it."""


class TimelineError(GpuProfileError):
    """A timeline in shared memory cannot be read: its writer stopped while it was moving rows."""

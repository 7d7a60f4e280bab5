"""Looks up the processes on devices in `/proc`: their names, containers, jobs and units.

Reads files that every user may read, and an executable's link where permitted. Never reads command lines, because
arguments may contain secrets. A pid identifies a process only together with its start time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from gpu_profile_exporter.attribution import cgroups
from gpu_profile_exporter.attribution.cgroups import Place
from gpu_profile_exporter.attribution.sources import (
    HolderSource,
    OmissionCounts,
    OmissionReason,
    Reason,
    Unavailable,
    reason_of,
)

#: The inode of the first pid namespace (Linux, include/linux/proc_ns.h, PROC_PID_INIT_INO).
_HOST_NAMESPACE: Final = "pid:[4026531836]"
_STAT_BYTES: Final = 4096
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
#: Fields 5 and 22 of proc_pid_stat(5), counted from the state, which is field 3.
_GROUP, _START = 5 - 3, 22 - 3


class HostProcess(NamedTuple):
    """A running process. `started` is in clock ticks since the boot. `name` is "" unless requested.

    `group` is its process group: the processes that a command has started, unless they left it.
    """

    pid: int
    group: int
    started: int
    name: str
    place: Place


class Uptime(NamedTuple):
    """Seconds since the boot at the time of reading."""

    seconds: float

    @classmethod
    def read(cls, proc: Path) -> Uptime:
        """Read `proc/uptime`. Raises Unavailable if it is missing or malformed."""
        try:
            return cls(float(_read(proc / "uptime", 128).split()[0]))
        except OSError as error:
            raise Unavailable(reason_of(error), "/proc/uptime") from error
        except (ValueError, IndexError) as error:
            raise Unavailable(Reason.GARBAGE, "/proc/uptime") from error


def require_host_pids(proc: Path) -> None:
    """Raise Unavailable unless `proc` shows the host's processes. In another pid namespace, pids differ."""
    try:
        if str((proc / "self" / "ns" / "pid").readlink()) == _HOST_NAMESPACE:
            return
    except OSError:
        pass
    try:  # the host's /proc, mounted into a container: only the host's shows kernel thread 2
        if _read(proc / "2" / "comm", 64).strip() == "kthreadd":
            return
    except OSError:
        pass
    raise Unavailable(Reason.PID_NAMESPACE)


def look_up(
    pids: Iterable[int], *, proc: Path, uptime: Uptime, listed_s_ago: float, names: bool, tally: OmissionCounts
) -> dict[int, HostProcess]:
    """The processes among `pids`, which the driver listed `listed_s_ago` seconds before `uptime`.

    Omits processes that have ended, and processes that began after the list was made: those reuse a listed pid.
    """
    processes: dict[int, HostProcess] = {}
    latest = (uptime.seconds - max(0.0, listed_s_ago)) * _TICKS_PER_S
    for pid in pids:
        try:
            group, started, comm = _stat(proc / str(pid))
            text = _read(proc / str(pid) / "cgroup", cgroups.MOST_BYTES)
            name = _name(proc / str(pid), comm) if names else ""
            again = _stat(proc / str(pid))[1]
        except OSError:
            continue
        except ValueError:
            tally[HolderSource.PROCESSES, OmissionReason.GARBAGE] += 1
            continue
        # Both clocks are rounded down to a tick. Only a process that is a tick older is certainly older.
        if again != started or started + 1 > latest:
            tally[HolderSource.PROCESSES, OmissionReason.PID_REUSED] += 1
            continue
        processes[pid] = HostProcess(pid, group, started, name, cgroups.place(text))
    return processes


def _stat(directory: Path) -> tuple[int, int, str]:
    """Process group, start time in ticks, and the name. Raises ValueError if the file is malformed."""
    # The name is enclosed in parentheses and may contain any byte, also parentheses and spaces.
    text = _read(directory / "stat", _STAT_BYTES)
    head, opened, rest = text.partition("(")
    name, closed, tail = rest.rpartition(")")
    fields = tail.split()
    if not (head.strip().isdigit() and opened and closed and len(fields) > _START):
        raise ValueError(f"{directory}/stat is no stat file")
    group, started = fields[_GROUP], fields[_START]
    if not all(re.fullmatch(r"[0-9]{1,20}", each) for each in (group, started)):
        raise ValueError(f"{directory}/stat has no process group or no start time")
    return int(group), int(started), name


def _name(directory: Path, comm: str) -> str:
    """The executable's file name, or the kernel's name of the process if the link is not readable."""
    try:
        target = str((directory / "exe").readlink()).removesuffix(" (deleted)")
    except OSError:
        target = comm
    name = target.rpartition("/")[2].encode("utf-8", "replace").decode("utf-8")
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)[:255]


def _read(path: Path, most: int) -> str:
    with path.open("rb") as file:
        return file.read(most).decode("utf-8", "replace")

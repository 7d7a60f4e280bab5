"""The host's processor and memory as this process may use them: cores, caches, and what its cgroup leaves of both.

Linux's own files below `root`: `/proc`, `/sys/devices/system/cpu`, `/sys/fs/cgroup` (versions 1 and 2). A file that is
missing or says something else tells nothing; no function raises for it.
"""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from gpu_profile.roofline.machines.machine import Memory

ROOT: Final = Path("/")
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
#: A list of processors that claims more than this is not one.
_MOST_CPUS: Final = 1 << 16


class Cache(NamedTuple):
    """One level of the caches for data: the bytes of all of that level's that the process's cores have, together."""

    level: int
    total: int


@dataclass(frozen=True, slots=True)
class Processor:
    """`cores`: those that this process may use; a part of one where its cgroup allows so much time. `caches`: the
    smallest level first, none if they are not known.
    """

    name: str
    cores: float
    caches: tuple[Cache, ...]

    @property
    def cache_bytes(self) -> int | None:
        """The last-level cache, of all sockets and core complexes together; None if it is not known."""
        return self.caches[-1].total if self.caches else None


def processor(root: Path = ROOT, cpus: Collection[int] | None = None) -> Processor:
    """What this process runs on; `cpus` are the numbers of those that it may run on, by default its affinity's."""
    found = os.sched_getaffinity(0) if cpus is None else cpus
    return Processor(_name(root), _cores(root, len(found)), _caches(root, found))


def memory(root: Path = ROOT) -> Memory | None:
    """The host's memory and this process's part, in bytes; `allocated` and `reserved` are both its resident set.

    `free` and `total` are the cgroup's where that has a lower limit; files' pages that have not been used lately count
    as free, as the kernel gives them up first. None if `/proc` does not tell.
    """
    process, host = _kibibytes(root / "proc/self/status"), _kibibytes(root / "proc/meminfo")
    try:
        resident, total, free = process["VmRSS"], host["MemTotal"], host["MemAvailable"]
    except KeyError:
        return None
    for group in _groups(root, "memory"):
        limit = _number(group / "memory.max", group / "memory.limit_in_bytes")
        # Version 1 writes a huge number for no limit.
        if limit is None or limit >= host["MemTotal"]:
            continue
        total = min(total, limit)
        used = _number(group / "memory.current", group / "memory.usage_in_bytes")
        if used is not None:
            free = min(free, limit, max(0, limit - used + _idle_pages(group)))
    # Some sandboxes tell no peak; it is never below what there is now.
    return Memory(resident, resident, max(resident, process.get("VmHWM", 0) or _peak()), free, total)


def _name(root: Path) -> str:
    """As `/proc/cpuinfo` has it: Arm's has numbers instead of a name, POWER's says `cpu`."""
    fields: dict[str, str] = {}
    for line in _text(root / "proc/cpuinfo").splitlines():
        field, colon, value = line.partition(":")
        if colon and value.strip():
            fields.setdefault(field.strip(), value.strip())
    for field in ("model name", "cpu"):
        if field in fields:
            return " ".join(fields[field].split())
    arm = [fields[field] for field in ("CPU implementer", "CPU part") if field in fields]
    # platform.processor() would start a program.
    return " ".join([platform.machine() or "processor", *arm])


def _cores(root: Path, affinity: int) -> float:
    cores = float(affinity)
    for group in _groups(root, "cpu"):
        words = _text(group / "cpu.max").split()
        if len(words) != 2:
            words = [_text(group / f"cpu.cfs_{which}_us").strip() for which in ("quota", "period")]
        # "max" and -1 stand for no limit.
        if all(word.isdecimal() for word in words) and int(words[0]) and int(words[1]):
            cores = min(cores, int(words[0]) / int(words[1]))
    return cores


def _caches(root: Path, cpus: Collection[int]) -> tuple[Cache, ...]:
    totals: defaultdict[int, int] = defaultdict(int)
    covered: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for cpu in sorted(cpus):
        for folder in sorted((root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index[0-9]*")):
            kind, level = _text(folder / "type").strip(), _number(folder / "level")
            size = _size(_text(folder / "size").strip())
            if kind == "Instruction" or level is None or not size or cpu in covered[kind, level]:
                continue
            covered[kind, level] |= _cpu_list(_text(folder / "shared_cpu_list")) | {cpu}
            totals[level] += size
    return tuple(Cache(level, totals[level]) for level in sorted(totals))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the process's cgroup and of those above it, of either version; they need not exist.

    In a container the path may be the host's while the mount shows the container's group alone, at its top.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            mounts = [f"sys/fs/cgroup/{controller}"]
        else:
            continue
        place = PurePosixPath("/" if ".." in path else path)
        for mount in mounts:
            for each in (place, *place.parents):
                yield root / mount / str(each).lstrip("/")


def _idle_pages(group: Path) -> int:
    """Version 1 counts the groups below apart, in lines that begin with `total_`."""
    found = dict(line.partition(" ")[::2] for line in _text(group / "memory.stat").splitlines())
    value = found.get("total_inactive_file") or found.get("inactive_file") or ""
    return int(value) if value.isdecimal() else 0


def _peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _kibibytes(file: Path) -> dict[str, int]:
    """Lines such as `MemTotal:  24684096 kB`, in bytes."""
    found = {}
    for line in _text(file).splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdecimal():
            found[name] = int(words[0]) << 10
    return found


def _number(*files: Path) -> int | None:
    """What the first of these that holds a whole number says."""
    return next((int(text) for file in files if (text := _text(file).strip()).isdecimal()), None)


def _size(text: str) -> int:
    """Such as `32768K`; 0 if it is none."""
    digits, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    return int(digits) * unit if digits.isdecimal() else 0


def _cpu_list(text: str) -> set[int]:
    """Such as `0-3,8`."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        last = last or first
        if first.isdecimal() and last.isdecimal() and int(last) < _MOST_CPUS:
            found.update(range(int(first), int(last) + 1))
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

"""The host's cores, caches and memory, within the limits of this process's affinity and cgroup.

Reads Linux's files below `root`: `/proc`, `/sys/devices/system/cpu`, `/sys/fs/cgroup` (versions 1 and 2). A missing
or malformed file counts as unknown; no function raises for it.
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
#: A range of processor numbers that ends here or above is malformed.
_MOST_CPUS: Final = 1 << 16


class Cache(NamedTuple):
    """One level of the data caches. `total`: bytes of all caches of this level of the process's cores together."""

    level: int
    total: int


@dataclass(frozen=True, slots=True)
class Processor:
    """`cores`: how many this process may use; a fraction if its cgroup limits the time. `caches`: the smallest level
    first; empty if unknown.
    """

    name: str
    cores: float
    caches: tuple[Cache, ...]

    @property
    def cache_bytes(self) -> int | None:
        """Bytes of the last-level caches of all sockets and core complexes together. None if unknown."""
        return self.caches[-1].total if self.caches else None


def processor(root: Path = ROOT, cpus: Collection[int] | None = None) -> Processor:
    """The processor of this process. `cpus`: the numbers of the cores that it may use, by default its affinity."""
    usable = os.sched_getaffinity(0) if cpus is None else cpus
    return Processor(_name(root), _cores(root, len(usable)), _caches(root, usable))


def memory(root: Path = ROOT) -> Memory | None:
    """The host's memory and this process's part, in bytes. `allocated` and `reserved` are both its resident set.

    `free` and `total` are the cgroup's if its limit is lower. The cgroup's inactive file pages count as free, because
    the kernel reclaims them first. None if `/proc` lacks the numbers.
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
    # Some sandboxes report no peak. The peak is at least the present value.
    return Memory(resident, resident, max(resident, process.get("VmHWM", 0) or _peak()), free, total)


def _name(root: Path) -> str:
    """The name in `/proc/cpuinfo`. On Arm it has numbers instead of a name, on POWER the field is `cpu`."""
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
        # "max" and -1 mean no limit.
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
    """The folders of the process's cgroup and its ancestors, in versions 1 and 2. They need not exist.

    In a container the path may be the host's, while the mount has only the container's group, as its root.
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
    """Bytes of inactive file pages. Version 1 has the sum with all child groups in lines that begin with `total_`."""
    fields = dict(line.partition(" ")[::2] for line in _text(group / "memory.stat").splitlines())
    value = fields.get("total_inactive_file") or fields.get("inactive_file") or ""
    return int(value) if value.isdecimal() else 0


def _peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _kibibytes(file: Path) -> dict[str, int]:
    """Name -> bytes of the lines such as `MemTotal:  24684096 kB`."""
    sizes = {}
    for line in _text(file).splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdecimal():
            sizes[name] = int(words[0]) << 10
    return sizes


def _number(*files: Path) -> int | None:
    """The number in the first of these files that contains a whole number."""
    return next((int(text) for file in files if (text := _text(file).strip()).isdecimal()), None)


def _size(text: str) -> int:
    """Bytes of a size such as `32768K`; 0 if it is malformed."""
    digits, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    return int(digits) * unit if digits.isdecimal() else 0


def _cpu_list(text: str) -> set[int]:
    """The numbers in a list such as `0-3,8`."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        last = last or first
        if first.isdecimal() and last.isdecimal() and int(last) < _MOST_CPUS:
            numbers.update(range(int(first), int(last) + 1))
    return numbers


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

"""The traces of one distributed run: which rank is the slowest, and what differs between it and the others. Pure.

Ranks wait for each other in collectives. Therefore a rank's own time is the span of its GPU operations without the
communication that nothing hides. The slowest rank has the longest own time; the others wait for it in theirs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from gpu_profile.errors import UsageError
from gpu_profile.kernels.activity import Activity
from gpu_profile.kernels.sums import KernelSum
from gpu_profile.units import percent

#: A rank is slower than the others if its own time exceeds their median by this share.
NOTABLE: Final = 0.02
_ENDINGS: Final = (".json", ".json.gz")
#: A letter before it makes it another word.
_NUMBER: Final = re.compile(r"(?<![^\W\d_])rank[_.-]?(\d+)", re.IGNORECASE)

#: The parts of a rank's own time, which add up to it: name -> its ns in a trace.
PARTS: Final[Mapping[str, Callable[[Activity], int]]] = {
    "work": lambda a: a.work_ns,
    "exposed copies": lambda a: a.exposed_transfer_ns,
    "waiting for the host": lambda a: a.idle.host_wait_ns,
    "waiting between kernels": lambda a: a.idle.kernel_wait_ns,
    "other waiting": lambda a: a.idle.other_ns,
    "idle of unknown cause": lambda a: a.idle.unknown_ns,
}


@dataclass(frozen=True, slots=True)
class RankSums:
    """One rank's trace in sums. `rank` is its name, at first that of its file; `number` is None if unknown.

    `cut` is the reason why the trace ends early; empty if it does not.
    """

    rank: str
    activity: Activity
    kernels: Mapping[str, KernelSum]
    cut: str = ""
    number: int | None = None

    @property
    def own_ns(self) -> int:
        """The span over its devices without exposed communication."""
        return self.activity.device_ns - self.activity.exposed_communication_ns


@dataclass(frozen=True, slots=True)
class Slowest:
    """The slowest rank beside the median of the others. `excess_ns` is the difference of their own times.

    `parts` and `kernels` are the parts of own time and the kernels that take longer than the median of the others, by
    name, the largest difference first.
    """

    rank: str
    own_ns: int
    others_ns: int
    parts: tuple[tuple[str, int], ...]
    kernels: tuple[tuple[str, int], ...]

    @property
    def excess_ns(self) -> int:
        """How much longer its own time is than the median of the others."""
        return self.own_ns - self.others_ns


def slowest(ranks: Sequence[RankSums]) -> Slowest | str:
    """The slowest of the ranks, or the sentence why none is. Cut traces are shorter than their run and not compared."""
    whole = [each for each in ranks if not each.cut]
    if len(whole) < 2:
        return "no slowest rank: that takes at least two whole traces with GPU operations"
    for number, times in Counter(each.number for each in whole if each.number is not None).items():
        if times > 1:
            return f"no slowest rank: rank {number} has {times} traces: leave one of each rank in the folder"
    last = max(whole, key=lambda each: each.own_ns)
    others = [each for each in whole if each is not last]
    others_ns = _median([each.own_ns for each in others])
    if last.own_ns - others_ns <= NOTABLE * others_ns:
        return f"no rank is slower: the longest own time is at most {percent(NOTABLE, 0)} above the others' median"
    parts = {name: of(last.activity) - _median([of(each.activity) for each in others]) for name, of in PARTS.items()}
    kernels = Counter(
        {
            name: total.total_ns
            - _median([each.kernels[name].total_ns if name in each.kernels else 0 for each in others])
            for name, total in last.kernels.items()
            if "nccl" not in name.lower() and "rccl" not in name.lower()
        }
    )
    return Slowest(last.rank, last.own_ns, others_ns, _longer(parts), _longer(kernels))


def traces_in(folder: Path) -> list[Path]:
    """The traces in a folder, by name. UsageError if there are none, or if the folder cannot be read.

    A trace counts once: under its own name if links to it are in the folder too, uncompressed if it also is compressed.
    """
    try:
        files = [path for path in folder.iterdir() if path.name.endswith(_ENDINGS) and path.is_file()]
        traces: dict[str, Path] = {}
        for path in sorted(files, key=lambda path: (path.is_symlink(), path.name)):
            traces.setdefault(str(path.resolve()).removesuffix(".gz"), path)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}") from error
    if not files:
        raise UsageError(f"{folder}: no traces in it, which end in {' or '.join(_ENDINGS)}")
    return sorted(traces.values())


def number_of(file: Path, rank: int | None) -> int | None:
    """A rank's number: `rank`, which is the one in its trace, else the one in the file's name. None without either."""
    match = _NUMBER.search(file.name) if rank is None else None
    return int(match[1]) if match else rank


def named(ranks: Sequence[RankSums]) -> list[RankSums]:
    """The same ranks, named by number if no other one has the same, else by file."""
    many = Counter(each.number for each in ranks)
    unique = [each.number is not None and many[each.number] == 1 for each in ranks]
    return [replace(each, rank=str(each.number)) if one else each for each, one in zip(ranks, unique, strict=True)]


def in_order(ranks: Sequence[RankSums]) -> list[RankSums]:
    """By number; ranks without one come last."""
    return sorted(ranks, key=lambda each: (each.number is None, each.number or 0, each.rank))


def _median(values: Sequence[int]) -> int:
    return round(median(values))


def _longer(differences: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    longer = [(name, ns) for name, ns in differences.items() if ns > 0]
    return tuple(sorted(longer, key=lambda item: -item[1]))

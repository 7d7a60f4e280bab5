"""The traces of one distributed run: which rank is the slowest, and what differs between it and the others. Pure.

Ranks wait for each other in collectives. Therefore a rank's own time is the span of its GPU operations without the
communication that nothing hides. The slowest rank has the longest own time; the others wait for it in theirs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from gpu_profile.errors import UsageError
from gpu_profile.kernels.activity import Activity
from gpu_profile.kernels.sums import KernelSum

#: A rank is slower than the others if its own time exceeds their median by this share.
NOTABLE: Final = 0.02
_ENDINGS: Final = (".json", ".json.gz")
_NUMBER: Final = re.compile(r"rank[_.-]?(\d+)", re.IGNORECASE)

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
    """One rank's trace in sums. `cut` is the reason why the trace ends early; empty if it does not."""

    rank: str
    activity: Activity
    kernels: Mapping[str, KernelSum]
    cut: str = ""

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

    @property
    def notable(self) -> bool:
        """Whether the rank is slower than the others at all."""
        return self.excess_ns > NOTABLE * self.others_ns


def slowest(ranks: Sequence[RankSums]) -> Slowest | None:
    """The slowest of the ranks. None if fewer than two traces are whole: a cut trace is shorter than its run."""
    whole = [each for each in ranks if not each.cut]
    if len(whole) < 2:
        return None
    last = max(whole, key=lambda each: each.own_ns)
    others = [each for each in whole if each is not last]
    parts = {name: of(last.activity) - _median([of(each.activity) for each in others]) for name, of in PARTS.items()}
    kernels = Counter(
        {
            name: total.total_ns
            - _median([each.kernels[name].total_ns if name in each.kernels else 0 for each in others])
            for name, total in last.kernels.items()
            if "nccl" not in name.lower() and "rccl" not in name.lower()
        }
    )
    return Slowest(last.rank, last.own_ns, _median([each.own_ns for each in others]), _longer(parts), _longer(kernels))


def traces_in(folder: Path) -> list[Path]:
    """The traces in a folder, by name. UsageError if there are none, or if the folder cannot be read."""
    try:
        files = sorted(path for path in folder.iterdir() if path.name.endswith(_ENDINGS) and path.is_file())
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}") from error
    if not files:
        raise UsageError(f"{folder}: no traces in it, which end in {' or '.join(_ENDINGS)}")
    return files


def in_order(ranks: Sequence[RankSums]) -> list[RankSums]:
    """By number; names that are no numbers come last."""
    return sorted(ranks, key=lambda each: (not each.rank.isdecimal(), int(each.rank) if each.rank.isdecimal() else 0))


def named(files: Sequence[Path], ranks: Sequence[int | None]) -> list[str]:
    """A name for each file's rank: the number in the trace, else the one in the file's name, else the file's name.

    Files of which several have the same number are named after the file.
    """
    names = [
        str(rank) if rank is not None else match[1] if (match := _NUMBER.search(path.name)) else path.name
        for path, rank in zip(files, ranks, strict=True)
    ]
    many = Counter(names)
    return [name if many[name] == 1 else path.name for name, path in zip(names, files, strict=True)]


def _median(values: Sequence[int]) -> int:
    return round(median(values))


def _longer(differences: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    longer = [(name, ns) for name, ns in differences.items() if ns > 0]
    return tuple(sorted(longer, key=lambda item: -item[1]))

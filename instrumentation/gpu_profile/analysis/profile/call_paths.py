"""The call path of each recorded execution: its process, and the regions from the outermost one inwards. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from gpu_profile.analysis.runs import RecordedWork
from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.windows.activities import MOST_DEEP
from gpu_profile.recording import Recording, SpanRecord
from gpu_profile.report.table import printable

#: The most call paths. Executions on any further one are listed below their process alone.
MOST_PATHS: Final = 10_000
#: The most regions of a path. An execution further inside is listed below the first ones of its path.
_MOST_FRAMES: Final = min(100, MOST_DEEP)


class CallPaths:
    """`of` has each execution's path: an index, from which `frames` makes the names, the outermost first.

    `cut` counts the executions with an incomplete path.
    """

    def __init__(self, recording: Recording, spans: Sequence[SpanRecord], work: RecordedWork) -> None:
        #: By path: the path around it (-1: none), its last frame, and how many frames it has.
        self._rows: list[tuple[int, str, int]] = []
        self._numbers: dict[tuple[int, str], int] = {}
        self.cut = 0
        regions = tuple(work.runs)
        paths: list[int] = []
        rows = zip(_processes(recording, spans), work.around.tolist(), work.columns.tolist(), strict=True)
        for process, around, column in rows:
            # The one around comes first in the order of the spans.
            parent = paths[around] if around >= 0 else self._number(-1, process)
            paths.append(self._path(parent, regions[column]))
        self.of: Ints = np.array(paths, np.int64)

    def _path(self, parent: int, region: str) -> int:
        if (number := self._numbers.get((parent, region))) is not None:
            return number
        above, _, depth = self._rows[parent]
        if len(self._rows) < MOST_PATHS and depth < _MOST_FRAMES:
            return self._number(parent, region)
        self.cut += 1
        while depth >= _MOST_FRAMES or (len(self._rows) >= MOST_PATHS and above >= 0):
            parent = above
            above, _, depth = self._rows[parent]
        return self._number(parent, region)

    def _number(self, parent: int, frame: str) -> int:
        number = self._numbers.setdefault((parent, frame), len(self._rows))
        if number == len(self._rows):
            self._rows.append((parent, frame, 1 + (self._rows[parent][2] if parent >= 0 else 0)))
        return number

    def frames(self, path: int) -> tuple[str, ...]:
        """The names of a path, the outermost first."""
        names = []
        while path >= 0:
            path, name, _ = self._rows[path]
            names.append(name)
        return tuple(reversed(names))


def _processes(recording: Recording, spans: Sequence[SpanRecord]) -> Iterator[str]:
    """The name of each span's process: its rank if it has one, its host and its number."""
    names = [
        f"{'' if each.rank is None else f'rank {each.rank}, '}{printable(each.host)} (pid {each.pid})"
        for each in recording.processes
    ]
    unknown = names[0] if len(names) == 1 else f"one of {len(names)} processes"
    by_rank: dict[int | None, str] = {
        each.rank: name for each, name in zip(recording.processes, names, strict=True) if each.rank is not None
    }
    return (by_rank.get(span.rank, unknown) if span.process is None else names[span.process] for span in spans)

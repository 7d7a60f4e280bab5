"""The times of one execution's kernels on its device, as a recording has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

#: An execution with more kernels than this is recorded without their times: one record must stay small.
MOST_STAMPED: Final = 20_000
#: Names of templates have thousands of characters; this many distinguish them.
_LONGEST_NAME: Final = 500
#: Times beyond 146 years would overflow as sums.
_LATEST_NS: Final = 1 << 62


class KernelStamps(NamedTuple):
    """The kernels that an execution launched outside the executions inside it, all on one device, by their start.

    `names` are their names, each once. The other columns have a value for each kernel: `which` is the index of its
    name. `gaps_ns` is the time from the start before it, at first the execution's on the host, to its own.
    `lengths_ns` is its duration. Starts may be later than the execution's end on the host.
    """

    names: tuple[str, ...]
    which: tuple[int, ...]
    gaps_ns: tuple[int, ...]
    lengths_ns: tuple[int, ...]

    @classmethod
    def of(
        cls, names: Sequence[str], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], since_ns: int
    ) -> KernelStamps:
        """From a name for each kernel and their times in ns, in the order of starts. `since_ns`: the execution's."""
        number = {name: i for i, name in enumerate(dict.fromkeys(name[:_LONGEST_NAME] for name in names))}
        which = tuple(number[name[:_LONGEST_NAME]] for name in names)
        gaps = np.diff(starts, prepend=since_ns)
        return cls(tuple(number), which, tuple(gaps.tolist()), tuple((ends - starts).tolist()))

    def edges(self, since_ns: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Starts and ends of the kernels in ns. `since_ns`: the execution's start on the host."""
        starts = since_ns + np.cumsum(np.array(self.gaps_ns, np.int64))
        return starts, starts + np.array(self.lengths_ns, np.int64)

    @classmethod
    def read(cls, value: Sequence[Sequence[object]]) -> KernelStamps:
        """From JSON. TypeError or ValueError if its columns are no such columns."""
        names, *columns = value
        numbers: list[tuple[int, ...]] = []
        for column in columns:
            if not all(type(each) is int and abs(each) < _LATEST_NS for each in column):
                raise TypeError("kernels have whole numbers as times")
            numbers.append(tuple(column))  # type: ignore[arg-type]
        if not all(isinstance(name, str) for name in names) or len(numbers) != 3 or len({*map(len, numbers)}) != 1:
            raise ValueError("kernels have names and three columns of one length")
        which, gaps, lengths = numbers
        if not all(0 <= each < len(names) for each in which) or min(lengths, default=0) < 0:
            raise ValueError("kernels have a name and a length that is not negative")
        if max(abs(sum(gaps)), sum(lengths)) >= _LATEST_NS:
            raise ValueError("kernels lie beyond all calendars")
        return cls(tuple(map(str, names)), which, gaps, lengths)

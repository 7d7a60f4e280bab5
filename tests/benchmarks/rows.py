"""One line of the benchmarks' table, and how to time."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

HEADER: Final = "name | figure | baseline | ratio | reach | ok | accepted"


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured, beside what, and what it has to reach. `-`: there is no such thing for this row.

    `cost` is what `accepted` compares; None where nothing but `ok` is to be compared.
    """

    name: str
    figure: str
    baseline: str = "-"
    ratio: str = "-"
    reach: str = "-"
    ok: bool = True
    cost: float | None = None

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "falls short"
        return " | ".join((self.name, self.figure, self.baseline, self.ratio, self.reach, verdict))


def best(action: Callable[[], object], bursts: int = 5) -> float:
    """Seconds of the fastest of some runs: what else the machine does only ever adds."""
    times = []
    for _ in range(bursts):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return min(times)

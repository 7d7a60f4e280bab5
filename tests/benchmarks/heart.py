"""The heart: the timeline and its joins, unmixing and regimes, each against what people use instead."""

from collections.abc import Iterator

from benchmarks import comparison, joins, regimes, unmixing
from benchmarks.rows import Row


def rows() -> Iterator[Row]:
    """The heart's rows."""
    yield from _rows(unmixing.SEEDS, regimes.WORKLOADS, comparison.PAIRS)


def sample() -> Iterator[Row]:
    """The same rows from a third of the worlds, a thirtieth of the workloads, and a fifth of the pairs of runs."""
    yield from _rows(unmixing.SEEDS // 3, regimes.WORKLOADS // 30, comparison.PAIRS // 5)


def _rows(seeds: int, workloads: int, pairs: int) -> Iterator[Row]:
    yield from joins.rows()
    yield from unmixing.rows(seeds)
    yield from regimes.rows(workloads)
    yield from regimes.real_traces()
    yield from comparison.rows(pairs)

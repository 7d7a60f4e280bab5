"""The heart: the timeline and its joins, unmixing and regimes, each against what people use instead."""

from collections.abc import Iterator

from benchmarks import comparison, joins, regimes, unmixing
from benchmarks.rows import Row


def rows() -> Iterator[Row]:
    """The heart's rows."""
    yield from joins.rows()
    yield from unmixing.rows()
    yield from regimes.rows()
    yield from regimes.real_traces()
    yield from comparison.rows()

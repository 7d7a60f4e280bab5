"""The ratios that matter most, in a minute: CI prints them. Fewer turns, the same rows."""

from collections.abc import Iterator

from benchmarks import joins, library, region_cost, rendering, sampler_cost, unmixing
from benchmarks.rows import Row


def rows() -> Iterator[Row]:
    """Import, regions, sampling, joins, unmixing, rendering."""
    yield library.import_time()
    yield from region_cost.bare()
    yield from sampler_cost.at_10_hz(2.0, rounds=1)
    yield from joins.exact()
    yield joins.reading()
    yield from unmixing.random_order()
    yield from rendering.against_client()

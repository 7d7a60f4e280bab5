"""What an exporter costs a node, and whether its numbers are right.

In `exporter_*.py`, `alert_noise.py`, `live_page.py`, `node_timeline.py`, `rendering.py` and `server_load.py`.

Exporters whose memory is looked at run all the while, at a few per cent of a core. What is timed runs by itself; what
is only worked out, with other times than this machine's, runs together at the end.
"""

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from support.nvml_stub.build import CannotBuildError

from benchmarks import (
    alert_noise,
    exporter_aliasing,
    exporter_cost,
    exporter_faults,
    exporter_load,
    exporter_memory,
    live_page,
    node_timeline,
    rendering,
    server_load,
)
from benchmarks.exporter_children import Bench
from benchmarks.rows import Row

#: What is timed. Each takes a minute or two at most.
_TIMED: Final[tuple[Callable[[Bench], Iterator[Row]], ...]] = (
    exporter_cost.rows,
    lambda _: rendering.rows(),
    exporter_load.rows,
    lambda _: server_load.rows(),
    node_timeline.rows,
    live_page.rows,
)


def rows() -> Iterator[Row]:
    """The exporter's rows; some eight minutes."""
    yield from _rows(1)


def sample() -> Iterator[Row]:
    """The same rows from a third of the faults."""
    yield from _rows(3)


def _rows(every: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as directory:
        try:
            bed = Bench(Path(directory))
        except CannotBuildError as error:
            yield Row("exporter", f"not measured: {error}", ok=False)
            return
        with exporter_memory.running(bed) as exporters, ThreadPoolExecutor(1) as aside:
            for timed in _TIMED:
                yield from timed(bed)
            hour = aside.submit(exporter_memory.hour_row, bed)
            yield from exporter_aliasing.rows(workers=1)
            yield hour.result()
            yield from exporters.rows()
        yield from exporter_faults.rows(every)
        yield from alert_noise.rows()

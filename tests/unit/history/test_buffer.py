import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from unit.history.columns import T0, THROTTLE, reading, window

from gpu_profile.catalogue.signals import UTILIZATION
from gpu_profile.history.rows import Cumulative
from gpu_profile.history.timeline import Column

# ---------------------------------------------------------------------- eviction, readers, buffers


def test_eviction_keeps_the_newest_rows_and_their_sums() -> None:
    held = Column(UTILIZATION, 4)
    for i in range(1000):
        held.append(window(T0 + 10 * i, T0 + 10 * (i + 1), i % 100))
        kept = min(i + 1, 4)
        assert len(held) == kept
        assert held.oldest_ns == T0 + 10 * (i + 1 - kept)
        expected = sum(10 * (j % 100) for j in range(i + 1 - kept, i + 1))
        assert held.integral(0, T0 + 10**9) == Cumulative(expected, 10 * kept)
    assert held.total_mass == sum(10 * (i % 100) for i in range(1000))


class Spy:
    """Words that call back after each one that the writer stores."""

    def __init__(self, words: Any, on_write: Callable[[], None]) -> None:
        self._words = words
        self._on_write = on_write

    def __getitem__(self, key: int) -> Any:
        return self._words[key]

    def __setitem__(self, key: int, value: int) -> None:
        self._words[key] = value
        self._on_write()


def test_between_any_two_writes_of_the_writer_a_reader_sees_whole_rows_or_waits() -> None:
    buffer = bytearray(Column.size(4))
    writer, reader = Column(THROTTLE, 4, buffer), Column(THROTTLE, 4, buffer)
    seen = 0

    def check() -> None:
        nonlocal seen
        if int(reader._header[2]) % 2:
            return
        oldest, newest = reader.oldest_ns, reader.watermark_ns
        if oldest is None or newest is None or newest == oldest:
            return
        # The counter grows by its own time: every part of it weighs its length.
        assert reader.integral(oldest, newest) == Cumulative(newest - oldest, newest - oldest)
        assert reader.integral(oldest, oldest + 3).mass == 3
        seen += 1

    writer._words = Spy(writer._words, check)
    for i in range(100):
        writer.append(reading(T0 + 10 * i, 10 * i))
    assert seen > 600


WRITER = """
import mmap, sys
from gpu_profile.catalogue.signals import UTILIZATION
from gpu_profile.catalogue.samples import Sample
from gpu_profile.history.timeline import Column
with open(sys.argv[1], "r+b") as file:
    column = Column(UTILIZATION, 6, mmap.mmap(file.fileno(), 0))
for i in range(int(sys.argv[2])):
    column.append(Sample(UTILIZATION, 10 * i, 10 * i + 10, i % 97))
"""


def test_a_reader_in_another_process_never_sees_torn_rows_while_the_writer_evicts(tmp_path: Path) -> None:
    import mmap

    total = 30_000
    path = tmp_path / "column"
    path.write_bytes(bytes(Column.size(6)))
    before = np.concatenate(([0], np.cumsum([10 * (i % 97) for i in range(total)])))

    def mass_up_to(t: int) -> int:
        return int(before[t // 10]) + (t // 10 % 97) * (t % 10)

    with path.open("r+b") as file:
        reader = Column(UTILIZATION, 6, mmap.mmap(file.fileno(), 0))
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(total)], env={"PYTHONPATH": _PACKAGES})
    moments = set()
    try:
        while (mark := reader.watermark_ns) != 10 * total:
            assert writer.poll() in (None, 0), "the writer died"
            if mark is None:
                continue
            b = mark - 3
            mass, covered = reader.integral(0, b)
            assert mass == mass_up_to(b) - mass_up_to(b - covered)
            rows = reader.rows(0, 10 * total)
            assert set(np.diff(rows.values) % 97) <= {1}
            assert set(rows.lengths.tolist()) <= {10}
            last = reader.last
            assert last is not None
            assert last.value == last.t_start_ns // 10 % 97
            moments.add(mark)
    finally:
        writer.kill()
        writer.wait()
    assert reader.integral(0, 10 * total).covered_ns == 60
    assert moments, "the writer was done before anything was read"


_PACKAGES = str(Path(__file__).parents[3] / "instrumentation")

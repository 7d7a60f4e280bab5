"""Columns that a process writes and others read, in the same memory at the same time."""

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest

from gpu_profile.catalogue.signals import GRAPHICS, UTILIZATION
from gpu_profile.errors import TimelineError
from gpu_profile.history import buffer as buffers
from gpu_profile.history.column import Column

PACKAGES = str(Path(__file__).parents[2] / "instrumentation")
CAPACITY = 64

#: Row i is `(10 i, 10 i + 10]` with the value i % 97 in one column and i % 89 in the other.
WRITER = """
import mmap, sys
from gpu_profile.catalogue.signals import GRAPHICS, UTILIZATION
from gpu_profile.history.column import Column
from gpu_profile.catalogue.samples import Sample
capacity, total = int(sys.argv[2]), int(sys.argv[3])
with open(sys.argv[1], "r+b") as file:
    memory = memoryview(mmap.mmap(file.fileno(), 0))
half = Column.size(capacity)
a, b = Column(UTILIZATION, capacity, memory[:half]), Column(GRAPHICS, capacity, memory[half:])
for i in range(total):
    a.append(Sample(UTILIZATION, 10 * i, 10 * i + 10, i % 97))
    b.append(Sample(GRAPHICS, 10 * i, 10 * i + 10, i % 89))
print("done", flush=True)
sys.stdin.read()
"""

#: Dies between its two marks, as if it had been killed while it moved rows.
STOPPED = WRITER.replace(
    "for i in range(total):",
    """
def stop():
    print("moving", flush=True)
    sys.stdin.read()
Column._take_rows = lambda *_: stop()
for i in range(total):""",
)


@contextmanager
def writing(code: str, memory: str, total: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", code, memory, str(CAPACITY), str(total)]
    environment = {"PYTHONPATH": PACKAGES, "PATH": os.environ.get("PATH", "")}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def opened(memory: mmap.mmap | memoryview) -> tuple[Column, Column]:
    view, half = memoryview(memory), Column.size(CAPACITY)
    return Column(UTILIZATION, CAPACITY, view[:half]), Column(GRAPHICS, CAPACITY, view[half:])


def mapped(path: Path) -> mmap.mmap:
    path.write_bytes(bytes(2 * Column.size(CAPACITY)))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def mass(values: int, a: int, b: int) -> int:
    """The mass of `(a, b]` where row i has the value i % values."""
    return sum((t // 10 % values) * min(10, b - t) for t in range(a // 10 * 10, b, 10)) - (a // 10 % values) * (a % 10)


def check(columns: tuple[Column, Column]) -> int:
    """Look at all that can be read, and at how it fits together; returns the newest moment."""
    mark: int | None = 0
    for column, values in zip(columns, (97, 89), strict=True):
        mark = column.watermark_ns
        if mark is None:
            return 0
        low, high = mark - 10 * CAPACITY // 2 + 3, mark - 4
        found = column.integral(max(0, low), high)
        # What was moved out in between is not covered; the rest is whole rows up to the end.
        assert found.mass == mass(values, high - found.covered_ns, high)
        rows = column.rows(0, 1 << 60)
        assert set(np.diff(rows.values).tolist()) <= {1, 1 - values}
        assert set(rows.lengths.tolist()) <= {10}
        last = column.last
        assert last is not None
        assert last.value == last.t_start_ns // 10 % values
        starts = np.arange(max(0, low), high, 13)
        masses, covered = column.integrals(starts, np.full_like(starts, high))
        for b_mass, b_covered in zip(masses.tolist(), covered.tolist(), strict=True):
            assert b_mass == mass(values, high - b_covered, high)
    return mark or 0


def test_readers_never_see_torn_rows_while_the_writer_appends_and_moves_as_fast_as_it_can(tmp_path: Path) -> None:
    total = 20_000
    memory = mapped(tmp_path / "columns")
    columns = opened(memory)
    seen: set[int] = set()
    with writing(WRITER, str(tmp_path / "columns"), total) as process:
        while (mark := check(columns)) < 10 * total:
            assert process.poll() is None
            seen.add(mark)
    assert len(seen) > 2, "the writer was done before anything was read"
    assert [len(column) for column in columns] == [CAPACITY, CAPACITY]


def test_columns_live_in_named_shared_memory_as_well() -> None:
    memory = SharedMemory(create=True, size=2 * Column.size(CAPACITY))
    try:
        path = f"/dev/shm/{memory.name}"
        with writing(WRITER, path, 1000) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"done\n"
            assert memory.buf is not None
            columns = opened(memory.buf)
            assert check(columns) == 10_000
            del columns
    finally:
        memory.unlink()
        _close(memory)


def _close(memory: SharedMemory) -> None:
    import gc

    gc.collect()
    memory.close()


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_a_reader_of_a_writer_that_died_while_it_moved_rows_is_told_and_does_not_hang(
    tmp_path: Path, kill: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "PATIENCE", 10_000)
    columns = opened(mapped(tmp_path / "columns"))
    with writing(STOPPED, str(tmp_path / "columns"), 1000) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"moving\n"
        process.send_signal(kill)
        process.wait()
    for ask in (
        lambda: columns[0].integral(0, 100),
        lambda: columns[0].watermark_ns,
        lambda: columns[0].integrals(np.array([0]), np.array([9])),
    ):
        with pytest.raises(TimelineError, match="utilization: its rows have been moving for too long"):
            ask()
    assert columns[1].watermark_ns


def test_a_writer_that_is_killed_between_moves_leaves_all_that_it_published(tmp_path: Path) -> None:
    columns = opened(mapped(tmp_path / "columns"))
    with writing(WRITER, str(tmp_path / "columns"), 100) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        process.kill()
    assert check(columns) == 1000

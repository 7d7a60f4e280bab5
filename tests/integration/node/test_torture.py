"""Processes that write files of the node's timeline, are killed while they do, and read them, all at the same time.

Every value is a function of its signal and its time, so that a sample shows whether it is of one row alone.
"""

import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, TypedDict
from unittest.mock import patch

import pytest
from support.programs import ROOT, environment
from unit.driver.node.rings import GPU, PERIODS_NS, listed, put, table

from gpu_profile.catalogue import ALL_GROUPS, SIGNALS, Kind, Signal, Tier
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Sample
from gpu_profile.driver.node.driver import NodeDriver
from gpu_profile.driver.node.layout import RowRing, read_head, streams_for
from gpu_profile.driver.node.reader import RingReader
from gpu_profile.driver.node.writer import RingOptions, RingWriter
from gpu_profile.errors import DeviceLost
from gpu_profile.testing import FakeClock

T: Final = 1_700_000_000_000_000_000
#: From one round to the next.
STEP: Final = 1000
#: All that are read fast, so with window means that have streams of their own, and some of those that are read slowly.
USED: Final = (
    *(signal for signal in SIGNALS if signal.tier is Tier.FAST),
    *[signal for signal in SIGNALS if signal.tier is Tier.SLOW][::4],
)
#: The signals that have a row of their own in each round, one for each stream.
FIRST: Final = [
    stream.columns[0].signal for stream in streams_for(USED, periods_ns={}, retention_ns=1) if stream.columns[0].signal
]
NUMBERS: Final = {signal: number for number, signal in enumerate(SIGNALS)}


def value_of(signal: Signal, end_ns: int) -> int:
    most = 1 << (62 if signal.kind is Kind.COUNTER else 30)
    return (end_ns * 0x9E3779B97F4A7C15 + NUMBERS[signal] * 0xC2B2AE3D27D4EB4F) % most


def length_of(signal: Signal, end_ns: int) -> int:
    if signal.kind is not Kind.WINDOW_MEAN:
        return 0
    # Samples of power follow one another, and lie in a row together.
    return STEP // 2 if signal is rows.POWER else 1 + (end_ns * 0x94D049BB133111EB + NUMBERS[signal]) % 1_000_000_000


def made(signal: Signal, end_ns: int) -> Sample:
    return Sample(signal, end_ns - length_of(signal, end_ns), end_ns, value_of(signal, end_ns))


def round_of(number: int) -> list[Sample]:
    end = T + number * STEP
    return [made(rows.POWER, end - STEP // 2), *(made(signal, end) for signal in USED)]


# ---------------------------------------------------------------------- the processes


def told_to_end() -> bool:
    """Whether the test has closed this process's standard input."""
    return bool(select.select([0], [], [], 0)[0])


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


def in_pieces(fd: int, row: bytes, at: int) -> int:
    """Write a row as it may look from another processor: in parts, the last before the first, for a long time."""
    cuts = [0, *sorted(random.sample(range(8, len(row), 8), 2)), len(row)]
    for start, end in random.sample(list(pairwise(cuts)), 3):
        os.pwritev(fd, [row[start:end]], at + start)
    return len(row)


def write(directory: str, retention_s: str, first: str, step: str, most: str, pause_s: str, pieces: str) -> None:
    """Write rounds `first`, `first + step`, ... until `most` are written, or it is told to end; say how many."""
    making = RingOptions(Path(directory), PERIODS_NS, int(float(retention_s) * 1e9))
    ring = RingWriter(making, GPU.uuid, USED, T)
    say(ring.name)
    sys.stdin.readline()
    done = 0
    with patch.object(os, "pwrite", in_pieces) if int(pieces) else nullcontext():
        while done < int(most) and (done % 16 or not told_to_end()):
            ring.append(round_of(int(first) + done * int(step)))
            done += 1
            if float(pause_s):
                time.sleep(float(pause_s))
    say(done)


class Read(TypedDict):
    """What a reader has seen: samples by signal, rows that were lost, samples that nobody wrote or out of order."""

    counts: dict[str, int]
    lost: int
    wrong: list[str]


def read(path: str) -> None:
    """Read all that comes until it is told to end, and then the rest."""
    reader = RingReader(Path(path))
    say("ready")
    found: list[Sample] = []
    after = 0
    while after < 3:
        after += told_to_end()
        found += reader.read()  # looked at later: the more often it reads meanwhile, the more torn rows it meets
    counts: Counter[str] = Counter()
    last: dict[Signal, int] = {}
    wrong: list[str] = []
    for sample in found:
        signal, _, end, _ = sample
        if sample != made(signal, end) or (end - T) % (STEP // 2) or end <= last.get(signal, 0):
            wrong.append(f"{signal.key} {sample[1:]} after {last.get(signal, 0)}")
        counts[signal.key] += 1
        last[signal] = end
    say(Read(counts=counts, lost=reader.lost, wrong=wrong[:10]))


class Child:
    """One of the functions above in a process of its own."""

    def __init__(self, *words: object) -> None:
        paths = [str(ROOT / part) for part in ("instrumentation", "exporter", "tests")]
        self.process = subprocess.Popen(
            [sys.executable, __file__, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(PYTHONPATH=os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def hear(self) -> object:
        line = self.stdout.readline()
        assert line, "it has ended"
        return json.loads(line)

    def go(self) -> None:
        self.stdin.write("go\n")
        self.stdin.flush()

    def end(self) -> object:
        """Tell it to end; what it says last."""
        self.stdin.close()
        found = self.hear()
        assert self.process.wait() == 0
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        with suppress(BrokenPipeError):
            self.stdin.close()
        self.stdout.close()


@contextmanager
def child(*words: object) -> Iterator[Child]:
    running = Child(*words)
    try:
        yield running
    finally:
        running.close()


@contextmanager
def in_memory(otherwise: Path) -> Iterator[Path]:
    """A directory of a tmpfs, as in production, if this machine has one to write to."""
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK):
        with tempfile.TemporaryDirectory(dir=memory) as directory:
            yield Path(directory)
    else:
        yield otherwise


# ---------------------------------------------------------------------- the tests


def beside(
    place: Path, *, retention_s: float, most: int, pause_s: float = 0, pieces: bool = False, for_s: float | None = None
) -> None:
    """A writer beside four readers, for so long or until it is done: no sample is wrong, and each row is accounted for.

    Of a ring that is large enough no row is lost.
    """
    with ExitStack() as stack:
        writer = stack.enter_context(child("write", place, retention_s, 0, 1, most, pause_s, int(pieces)))
        path = place / str(writer.hear())
        readers = [stack.enter_context(child("read", path)) for _ in range(4)]
        assert [reader.hear() for reader in readers] == ["ready"] * 4
        writer.go()
        if for_s is None:
            written = writer.hear()
        else:
            time.sleep(for_s)
            written = writer.end()
        assert isinstance(written, int)
        found = [reader.end() for reader in readers]
    assert written > 0
    slots = [stream.slots for stream in streams_of(path)]
    assert len(slots) == len(FIRST)
    for one in found:
        assert isinstance(one, dict)
        assert one["wrong"] == []
        counts = {signal: one["counts"].get(signal.key, 0) // (2 if signal is rows.POWER else 1) for signal in USED}
        assert all(counts.values())
        assert sum(counts[signal] for signal in FIRST) + one["lost"] == written * len(slots)
        if written < min(slots):
            assert one["lost"] == 0
            assert set(counts.values()) == {written}


@pytest.mark.parametrize("pieces", [False, True])
def test_readers_that_are_overtaken_all_the_time_never_take_a_row_that_is_torn(tmp_path: Path, pieces: bool) -> None:
    with in_memory(tmp_path) as place:
        beside(place, retention_s=0, most=1 << 40, pieces=pieces, for_s=0.5)


def test_nor_on_a_disk_whose_file_system_has_locks_of_its_own(tmp_path: Path) -> None:
    beside(tmp_path, retention_s=0, most=1 << 40, for_s=0.5)


def test_readers_of_rings_that_are_large_enough_lose_nothing(tmp_path: Path) -> None:
    beside(tmp_path, retention_s=1000, most=300, pause_s=0.001)


def streams_of(path: Path) -> tuple[RowRing, ...]:
    return read_head(path.read_bytes(), path.stat().st_size).streams


@pytest.mark.parametrize("seed", range(8))
def test_a_writer_that_is_killed_leaves_rows_that_are_right_and_one_torn_at_most(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - no secret
    with child("write", tmp_path, draw.choice([0, 10]), 0, 1, 1 << 40, 0, seed % 2) as writer:
        path = tmp_path / str(writer.hear())
        reader = RingReader(path)
        writer.go()
        while not reader.read():
            assert writer.process.poll() is None
        time.sleep(draw.random() * 0.05)
        writer.process.kill()
        writer.process.wait()
    reader.close()
    data, torn = path.read_bytes(), 0
    for stream in streams_of(path):
        for slot in range(stream.slots):
            row = data[stream.offset + slot * stream.row.size :][: stream.row.size]
            number, *_, check = stream.row.unpack(row)
            whole = check == stream.check(row[:-8], int(path.stem, 16))
            assert not whole or (number - 1) % stream.slots == slot
            torn += any(row) and not whole
    assert torn <= 1
    late = RingReader(path)
    found = [sample for _ in range(3) for sample in late.read()]
    late.close()
    assert found
    assert [sample for sample in found if sample != made(sample.signal, sample.t_end_ns)] == []
    for signal in {sample.signal for sample in found}:
        ends = [sample.t_end_ns for sample in found if sample.signal is signal]
        step = STEP // 2 if signal is rows.POWER else STEP
        assert ends == list(range(ends[0], ends[-1] + 1, step))


def test_two_writers_of_one_device_are_read_together_in_the_order_of_time(tmp_path: Path) -> None:
    """As where an exporter starts a second process for a GPU whose first one hangs, and goes on."""
    most = 600
    with (
        child("write", tmp_path, 1000, 0, 2, most, 0, 0) as one,
        child("write", tmp_path, 1000, 1, 2, most, 0, 1) as other,
    ):
        names = [str(writer.hear()) for writer in (one, other)]
        put(tmp_path, table(listed(GPU, *names)), T)
        driver = NodeDriver(tmp_path, clock=FakeClock(T - 1), groups=ALL_GROUPS, files=tmp_path)
        (device,) = driver.devices()
        one.go()
        other.go()
        found: list[Sample] = []
        after = 0
        while after < 3:
            # Three times more after both have said that they are done.
            after += len(select.select([one.stdout, other.stdout], [], [], 0)[0]) == 2
            with suppress(DeviceLost):  # before there is a row
                batch = driver.read(device, Tier.FAST)
                assert [s.t_end_ns for s in batch] == sorted(s.t_end_ns for s in batch)
                found += batch
        assert [one.end(), other.end()] == [most, most]
    driver.close()
    assert [sample for sample in found if sample != made(sample.signal, sample.t_end_ns)] == []
    for signal in USED:
        for writers in (0, 1):
            ends = [end for row, _, end, _ in found if row is signal and (end - T + STEP // 2) // STEP % 2 == writers]
            assert ends == sorted(set(ends))
            assert len(ends) == most * (2 if signal is rows.POWER else 1)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:])
    else:
        read(*sys.argv[2:])

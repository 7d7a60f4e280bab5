"""`ring.c`, a reader that knows the format from its page alone, finds what `RingReader` finds, and refuses the rest."""

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from unit.driver.node.rings import writer

from gpu_profile.catalogue import SIGNALS, Kind, Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Sample
from gpu_profile.driver.node.layout import POINT, LayoutError, RowCell, RowRing, read_head
from gpu_profile.driver.node.reader import RingReader

FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror", "-std=c11", "-D_GNU_SOURCE")
S = 1_000_000_000
T = 1_700_000_000 * S
SOME = (rows.ENERGY, rows.PCIE_RX, rows.TEMPERATURE, rows.UTILIZATION, rows.POWER)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler (cc) on PATH")
    target = tmp_path_factory.mktemp("ring") / "ring"
    source = Path(__file__).with_name("ring.c")
    done = subprocess.run([compiler, *FLAGS, source, "-o", target], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def drawing(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - the same every time


class Line(NamedTuple):
    """A line of the program: a sample in base units; `length_ns` is that of a window mean."""

    signal: str
    end_ns: int
    value: float
    unit: str
    length_ns: int | None


def ran(program: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments], capture_output=True, encoding="utf-8", errors="replace", timeout=60, check=False
    )


def printed(program: Path, path: Path) -> list[Line]:
    done = ran(program, path)
    assert (done.returncode, done.stderr) == (0, "")
    words = [line.split(" ") for line in done.stdout.splitlines()]
    return [Line(key, int(end), float(v), unit, int(*more) if more else None) for key, end, v, unit, *more in words]


def as_line(sample: Sample) -> Line:
    signal, start, end, value = sample
    return Line(
        signal.key, end, signal.base(value), signal.unit, end - start if signal.kind is Kind.WINDOW_MEAN else None
    )


def newest(path: Path) -> dict[Signal, Line]:
    """By signal what `RingReader` finds; it passes over a damaged row at its second look."""
    reader = RingReader(path)
    found = {sample.signal: as_line(sample) for _ in range(5) for sample in reader.read()}
    reader.close()
    return found


def sample_of(signal: Signal, end: int, draw: random.Random) -> Sample:
    most = (1 << (63 if signal.kind is Kind.COUNTER else 31)) - 1
    value = draw.choice([0, 1, draw.randrange(1000), draw.randint(-most, most), most, -most])
    length = draw.choice([0, 1, S, 4 * S, draw.randrange(9 * S)]) if signal.kind is Kind.WINDOW_MEAN else 0
    return Sample(signal, end - length, end, value)


def written(
    directory: Path, signals: Sequence[Signal], n: int, *,
    seed: int = 0, absent: float = 0.0, retention_s: float = 600, counters_s: float = 0.0,
) -> tuple[Path, list[Sample]]:  # fmt: skip
    """A file after `n` rounds, of each of which a share `absent` of the samples is missing; and all samples."""
    draw = drawing(seed)
    ring = writer(directory, signals, retention_s=retention_s, counters_s=counters_s)
    sent = []
    for i in range(n):
        whole = i == n - 3  # a reader need not find what was in the oldest row alone
        samples = [sample_of(row, T + 10 * S * i, draw) for row in signals if whole or draw.random() >= absent]
        ring.append(samples)
        sent += samples
    ring.close()
    return directory / ring.name, sent


def streams_of(path: Path) -> tuple[RowRing, ...]:
    return read_head(path.read_bytes(), path.stat().st_size).streams


def change(path: Path, at: Iterable[int], draw: random.Random) -> None:
    """Change these bytes."""
    data = bytearray(path.read_bytes())
    for place in at:
        data[place] ^= draw.randrange(1, 256)
    path.write_bytes(data)


def agrees(program: Path, path: Path) -> dict[str, Line]:
    """What the program prints, which is what `RingReader` finds."""
    lines = printed(program, path)
    by_key = {line.signal: line for line in lines}
    assert len(by_key) == len(lines)
    assert by_key == {signal.key: line for signal, line in newest(path).items()}
    return by_key


@pytest.mark.parametrize(("n", "absent"), [(1, 0.0), (3, 0.5), (20, 0.0), (60, 0.7)])
@pytest.mark.parametrize(("retention_s", "counters_s"), [(600, 0), (0, 0), (600, 0.25)])
def test_it_prints_the_newest_sample_of_every_signal_of_the_catalogue(
    program: Path, tmp_path: Path, n: int, absent: float, retention_s: float, counters_s: float
) -> None:
    path, _ = written(tmp_path, SIGNALS, n, seed=n, absent=absent, retention_s=retention_s, counters_s=counters_s)
    found = agrees(program, path)
    assert len(found) == len(SIGNALS)


def test_of_streams_that_went_round_it_prints_what_was_written_last(program: Path, tmp_path: Path) -> None:
    ring = writer(tmp_path, (rows.ENERGY, rows.PCIE_RX, rows.TEMPERATURE), retention_s=0)
    assert [stream.slots for stream in streams_of(tmp_path / ring.name)] == [16, 16]
    for i in range(1000):
        end = T + i * S
        ring.append([Sample(rows.ENERGY, end, end, 5 * i), Sample(rows.PCIE_RX, end, end, i)][: 1 + (i < 990)])
        ring.append([Sample(rows.TEMPERATURE, end, end, i)])
    assert set(printed(program, tmp_path / ring.name)) == {
        as_line(Sample(rows.ENERGY, T + 999 * S, T + 999 * S, 5 * 999)),
        as_line(Sample(rows.PCIE_RX, T + 989 * S, T + 989 * S, 989)),
        as_line(Sample(rows.TEMPERATURE, T + 999 * S, T + 999 * S, 999)),
    }
    agrees(program, tmp_path / ring.name)


def test_of_a_file_without_rows_it_prints_nothing(program: Path, tmp_path: Path) -> None:
    path, _ = written(tmp_path, SIGNALS, 0)
    assert printed(program, path) == []


def test_a_window_mean_of_several_columns_and_a_long_one_end_where_their_rows_end(
    program: Path, tmp_path: Path
) -> None:
    ring = writer(tmp_path, SOME)
    ring.append([Sample(rows.POWER, T + i * S, T + (i + 1) * S, 100 + i) for i in range(11)])
    ring.append([Sample(rows.UTILIZATION, T, T + 9 * S, 50)])
    found = agrees(program, tmp_path / ring.name)
    assert found["power"] == Line("power", T + 11 * S, rows.POWER.base(110), "W", S)
    assert found["utilization"] == Line("utilization", T + 9 * S, rows.UTILIZATION.base(50), "1", S)


def test_of_several_reads_in_a_row_it_prints_the_newest(program: Path, tmp_path: Path) -> None:
    ring = writer(tmp_path, SOME, counters_s=0.25)
    for i in range(5):
        end = T + i * S // 10
        ring.append([Sample(rows.PCIE_RX, end, end, i), *[Sample(rows.ENERGY, end + 7, end + 7, i)] * (i == 2)])
    ring.close()
    found = agrees(program, tmp_path / ring.name)
    assert found["pcie_rx"] == as_line(Sample(rows.PCIE_RX, T + 4 * S // 10, T + 4 * S // 10, 4))
    assert found["energy"] == as_line(Sample(rows.ENERGY, T + 2 * S // 10 + 7, T + 2 * S // 10 + 7, 2))


@pytest.mark.parametrize("back", [0, 1, 2])
def test_a_damaged_row_is_passed_over(program: Path, tmp_path: Path, back: int) -> None:
    path, _ = written(tmp_path, SOME, 10)
    before = printed(program, path)
    data, draw = path.read_bytes(), drawing(back)
    for stream in streams_of(path):
        at = stream.offset + (_rows(data, stream) - 1 - back) * stream.row.size
        change(path, [at + draw.randrange(stream.row.size)], draw)
    found = agrees(program, path)
    assert found.keys() == {signal.key for signal in SOME}
    assert (list(found.values()) == before) == (back > 0)


def _rows(data: bytes, stream: RowRing) -> int:
    """How many rows there are in a stream that has not come round."""
    return max(int(row[0]) for row in stream.row.iter_unpack(data[stream.offset : stream.end]))


@pytest.mark.parametrize("seed", range(20))
def test_what_it_prints_of_a_file_whose_rows_are_damaged_was_written(program: Path, tmp_path: Path, seed: int) -> None:
    draw = drawing(seed)
    path, sent = written(tmp_path, SOME, 40, seed=seed, absent=0.2, retention_s=0)
    lines = {Line(s.signal.key, s.t_end_ns, s.signal.base(s.value), s.signal.unit, None) for s in sent}
    first = min(stream.offset for stream in streams_of(path))
    change(path, [draw.randrange(first, path.stat().st_size) for _ in range(draw.choice([1, 20, 300]))], draw)
    assert {line._replace(length_ns=None) for line in printed(program, path)} <= lines | _parts(sent)


def _parts(sent: list[Sample]) -> set[Line]:
    """Of long window means the parts that they are written as."""
    found = set()
    for signal, start, end, value in sent:
        for until in range(start + 4 * S, end, 4 * S):
            found.add(Line(signal.key, until, signal.base(value), signal.unit, None))
    return found


def refused(program: Path, path: Path) -> None:
    done = ran(program, path)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.startswith("not as it should be")


def test_a_file_that_is_cut_off_is_refused_wherever(program: Path, tmp_path: Path) -> None:
    path, _ = written(tmp_path, SOME, 3, retention_s=0)
    data = path.read_bytes()
    first = min(stream.offset for stream in streams_of(path))
    for length in [*range(0, first, 9), first, *range(first + 1, len(data), 61), len(data) - 1]:
        path.write_bytes(data[:length])
        done = ran(program, path)
        assert done.returncode == 1, length
        assert length > first or not done.stdout


def test_a_header_in_which_bytes_were_changed_is_refused(program: Path, tmp_path: Path) -> None:
    draw = drawing(3)
    path, _ = written(tmp_path, SOME, 3, retention_s=0)
    data = path.read_bytes()
    first = min(stream.offset for stream in streams_of(path))
    for i in range(200):
        path.write_bytes(data)
        change(path, draw.sample(range(first), draw.choice([1, 1, 2, 5])) if i else [8], draw)
        refused(program, path)
        with pytest.raises(LayoutError):
            RingReader(path)


def test_a_header_that_lies_makes_no_crash_though_its_check_fits(program: Path, tmp_path: Path) -> None:
    draw = drawing(4)
    path, _ = written(tmp_path, SOME, 3, retention_s=0)
    data = path.read_bytes()
    first = min(stream.offset for stream in streams_of(path))
    taken = 0
    for _ in range(250):
        changed = bytearray(data)
        for place in draw.sample(range(8, first), draw.choice([1, 1, 2, 5])):
            changed[place] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])
        *_, streams, columns = struct.unpack_from("<8sHHH", changed)
        struct.pack_into("<Q", changed, 128, 0)
        told = changed[: 136 + 40 * streams + 64 * columns]
        struct.pack_into("<Q", changed, 128, check(told[: len(told) // 8 * 8]))
        path.write_bytes(changed)
        done = ran(program, path)
        assert done.returncode in (0, 1), done
        taken += done.returncode == 0
        with suppress(LayoutError):
            reader = RingReader(path)
            reader.read()
            reader.close()
    assert 0 < taken < 250


def check(data: bytes | bytearray) -> int:
    """Of a header, as the page describes it."""
    found = 0
    for (word,) in struct.iter_unpack("<Q", data):
        found = (found * 0x1B873593CC9E2D51 + word) % (2**64 - 59)
    return found


def test_the_page_has_the_numbers_of_the_check() -> None:
    page = (Path(__file__).parents[3] / "docs" / "node-timeline.md").read_text(encoding="utf-8")
    stream = RowRing("fast", 1000, 16, [RowCell("energy", b"c", rows.ENERGY)])
    row = struct.pack("<QqQ", 1, 1_700_000_000_000_000_000, 2**64 - 5)
    assert f"have the check {stream.check(row, 2)}." in page
    assert f"the point {POINT}:" in page


def test_what_is_no_file_of_the_timeline_is_refused(program: Path, tmp_path: Path) -> None:
    path, _ = written(tmp_path, SOME, 3, retention_s=0)
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("hello " * 10_000)
    (tmp_path / "noise").write_bytes(drawing(5).randbytes(100_000))
    (tmp_path / "zeros").write_bytes(bytes(100_000))
    (tmp_path / "link").symlink_to(path.name)
    os.mkfifo(tmp_path / "pipe")
    for name in ("empty", "text", "noise", "zeros", "link", "pipe", "missing", "."):
        refused(program, tmp_path / name)
    assert ran(program).returncode == 1
    assert ran(program, path, path).returncode == 1

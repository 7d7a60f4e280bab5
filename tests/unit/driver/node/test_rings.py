"""Files of the node's timeline: what is written is read, and nothing else is."""

import os
import random
import struct
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.driver.node.rings import GPU, writer

from gpu_profile.catalogue import SIGNALS, Kind, Signal, Tier
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Sample
from gpu_profile.driver.grammar import open_driver
from gpu_profile.driver.node import layout
from gpu_profile.driver.node.layout import LayoutError
from gpu_profile.driver.node.reader import RingReader
from gpu_profile.driver.node.writer import RingOptions, RingWriter
from gpu_profile.sampling.tracked import available

S = 1_000_000_000
T = 1_700_000_000 * S


def reading(signal: Signal, at: int, value: int) -> Sample:
    return Sample(signal, at, at, value)


def by_signal(samples: list[Sample]) -> dict[Signal, list[Sample]]:
    return {signal: [s for s in samples if s.signal is signal] for signal in dict.fromkeys(s.signal for s in samples)}


def rounds(n: int, *, first: int = 0) -> list[list[Sample]]:
    """Energy, traffic and mean power of rounds a tenth of a second apart."""
    return [
        [
            reading(rows.NVLINK_RX, T + i * S // 10, i * 100),
            reading(rows.PCIE_RX, T + i * S // 10, i * 3),
            Sample(rows.POWER_AVERAGE, T + i * S // 10 - S, T + i * S // 10, 500 + i),
        ]
        for i in range(first, first + n)
    ]


USED = (rows.NVLINK_RX, rows.PCIE_RX, rows.POWER_AVERAGE)


def test_a_reader_gets_what_was_written_since_and_the_file_says_whose_it_is(tmp_path: Path) -> None:
    ring = writer(tmp_path, USED, now_ns=5)
    reader = RingReader(tmp_path / ring.name)
    assert (reader.uuid, reader.generation, reader.created_ns) == (GPU.uuid, ring.generation, 5)
    assert reader.signals == set(USED)
    assert reader.read() == []
    for samples in rounds(3):
        ring.append(samples)
    assert by_signal(reader.read()) == by_signal([s for samples in rounds(3) for s in samples])
    assert reader.read() == []
    ring.append(rounds(1, first=3)[0])
    assert set(reader.read()) == set(rounds(1, first=3)[0])
    assert reader.newest_ns(T + S) == T + 3 * S // 10
    assert reader.lost == 0


def test_a_round_is_one_row_of_each_stream(tmp_path: Path) -> None:
    ring = writer(tmp_path, USED)
    (stream,) = layout.read_head((tmp_path / ring.name).read_bytes(), 1 << 20).streams
    ring.append(rounds(1)[0])
    data = (tmp_path / ring.name).read_bytes()
    assert stream.row.unpack_from(data, stream.offset)[0] == 1
    assert data[stream.offset + stream.row.size :].count(0) == len(data) - stream.offset - stream.row.size


def test_what_is_read_together_is_one_row_though_the_driver_stamps_each_signal_by_itself(tmp_path: Path) -> None:
    ring = writer(tmp_path, USED)
    reader = RingReader(tmp_path / ring.name)
    made = [
        reading(rows.NVLINK_RX, T + 3_000_001, 1),
        reading(rows.PCIE_RX, T, 2),
        Sample(rows.POWER_AVERAGE, T - S, T + 7, 500),
    ]
    ring.append(made)
    assert _written(tmp_path / ring.name) == {"fast": 1}
    assert set(reader.read()) == set(made)
    # Not those that are further apart than an age can say, nor a second sample of a signal.
    ring.append(
        [reading(rows.PCIE_RX, T + S, 3), reading(rows.NVLINK_RX, T + 6 * S, 4), reading(rows.PCIE_RX, T + S, 5)]
    )
    assert _written(tmp_path / ring.name) == {"fast": 4}
    assert {(sample.t_end_ns, sample.value) for sample in reader.read()} == {(T + S, 3), (T + 6 * S, 4), (T + S, 5)}


def test_the_reads_from_one_read_of_the_slow_counters_to_the_next_share_a_row(tmp_path: Path) -> None:
    ring = writer(tmp_path, (*USED, rows.ENERGY), counters_s=0.25)
    reader = RingReader(tmp_path / ring.name)
    sent = []
    for i, plain in enumerate(rounds(6)):
        samples = plain + [reading(rows.ENERGY, T + i * S // 10 + 5, i)] * (i % 3 == 2)
        ring.append(samples)
        sent += samples
        assert _written(tmp_path / ring.name) == {"fast": (i + 1) // 3}
    found = reader.read()
    assert by_signal(found) == by_signal(sent)
    # Without the counters, a row waits until it is full. Energy never waits.
    for samples in rounds(2, first=6):
        ring.append(samples)
    assert reader.read() == []
    ring.append([reading(rows.ENERGY, T + S, 9)])
    assert len(reader.read()) == 7


def test_a_row_waits_no_longer_than_to_the_next_read_of_the_slow_counters_nor_after_the_end(tmp_path: Path) -> None:
    ring = writer(tmp_path, (rows.UTILIZATION, rows.TEMPERATURE), counters_s=0.25)
    reader = RingReader(tmp_path / ring.name)
    first = Sample(rows.UTILIZATION, T - S // 10, T, 40)
    ring.append([first])
    ring.append([reading(rows.TEMPERATURE, T + S // 5, 50)])
    assert {sample.signal for sample in reader.read()} == {rows.TEMPERATURE}
    ring.append([reading(rows.TEMPERATURE, T + S // 4, 50)])
    assert first in reader.read()
    last = Sample(rows.UTILIZATION, T, T + S, 40)
    ring.append([last])
    ring.close()
    assert reader.read() == [last]


def test_the_end_of_a_batch_that_is_longer_than_a_row_does_not_wait(tmp_path: Path) -> None:
    ring = writer(tmp_path, (rows.POWER,), counters_s=0.25)
    reader = RingReader(tmp_path / ring.name)
    step = S // 50
    every = [Sample(rows.POWER, T + i * step, T + (i + 1) * step, i) for i in range(77)]
    ring.append(every[:50])
    assert reader.read() == every[:50]
    ring.append(every[50:62])
    assert reader.read() == []
    ring.append(every[62:])
    assert reader.read() == every[50:70]


def _written(path: Path) -> dict[str, int]:
    """How many rows were written of each stream."""
    data = path.read_bytes()
    found = {}
    for stream in layout.read_head(data, len(data)).streams:
        at = range(stream.offset, stream.end, stream.row.size)
        found[stream.name] = max(struct.unpack_from("<Q", data, place)[0] for place in at)
    return found


@pytest.mark.parametrize("drained", [(4,), (2, 3), (10,)])
def test_all_signals_of_an_h100_are_kept_for_as_long_as_was_asked_for(tmp_path: Path, drained: tuple[int, ...]) -> None:
    """As an H100's driver answers: power 50 times a second, utilisation five, a stamp of its own for every counter and
    every call. `drained`: the rounds from one drain of the driver's buffers to the next."""
    every = [signal for signal in SIGNALS if signal.tier is not Tier.RARE]
    ring = writer(tmp_path, every, retention_s=60, counters_s=0.25)
    end = due = drains = 0
    for turn in range(700):
        now = T + turn * S // 10
        made = []
        passed = 0
        if turn == due:
            passed = drained[(drains - 1) % len(drained)] if drains else 0
            due, drains = turn + drained[drains % len(drained)], drains + 1
        for n, signal in enumerate(every):
            if signal is rows.POWER or layout.is_buffered(signal):
                length, each = (20_000_000, 4) if signal is rows.POWER else (200_000_000, 4)
                first, last = ((turn - passed) * S // 10 // length, turn * S // 10 // length)
                ends = [T + (i + 1) * length for i in range(first, last)]
                made += [Sample(signal, at - length, at, each) for at in ends]
                continue
            period = {Tier.FAST: 1, Tier.GPM: 3, Tier.SLOW: 10}[signal.tier]
            if turn % (3 if signal in rows.SLOW_COUNTERS else period) == 0:
                end = now if signal.tier is Tier.GPM else now + n * 1_003
                made.append(Sample(signal, end - S if signal.kind is Kind.WINDOW_MEAN else end, end, n))
        ring.append(made)
    ring.flush()
    found = by_signal(RingReader(tmp_path / ring.name).read())
    assert set(found) == set(every)
    for signal, samples in found.items():
        assert samples[-1].t_end_ns - samples[0].t_start_ns >= 58 * S, signal.key


def test_windows_of_more_than_four_seconds_are_kept_for_as_long_as_was_asked_for(tmp_path: Path) -> None:
    every = [signal for signal in SIGNALS if signal.tier is Tier.GPM] + [rows.POWER_AVERAGE, rows.PCIE_RX]
    periods = dict.fromkeys(Tier, 9 * S)
    ring = RingWriter(RingOptions(tmp_path, periods, 180 * S), GPU.uuid, every, 1)
    for turn in range(40):
        end = T + turn * 9 * S
        ring.append([Sample(s, end - 9 * S if s.kind is Kind.WINDOW_MEAN else end, end, turn) for s in every])
    found = by_signal(RingReader(tmp_path / ring.name).read())
    for signal in every:
        assert found[signal][-1].t_end_ns - found[signal][0].t_start_ns >= 160 * S, signal.key
        assert found[signal] == sorted(found[signal], key=lambda sample: sample.t_end_ns)


def test_one_who_comes_later_gets_all_that_is_there_or_only_the_newest(tmp_path: Path) -> None:
    ring = writer(tmp_path, USED, retention_s=10)
    for samples in rounds(1000):
        ring.append(samples)
    every = by_signal(RingReader(tmp_path / ring.name).read())[rows.NVLINK_RX]
    assert [s.value for s in every] == [100 * i for i in range(900, 1000)]
    late = RingReader(tmp_path / ring.name)
    late.skip()
    assert set(late.read()) == set(rounds(1, first=999)[0])


def test_one_who_comes_later_may_begin_at_a_moment(tmp_path: Path) -> None:
    ring = writer(tmp_path, USED, retention_s=10)
    every = rounds(1000)
    for samples in every:
        ring.append(samples)

    def values(since_ns: int) -> list[int]:
        late = RingReader(tmp_path / ring.name)
        late.skip(since_ns)
        return [s.value for s in by_signal(late.read())[rows.NVLINK_RX]]

    (moment,) = (s.t_end_ns for s in every[970] if s.signal is rows.NVLINK_RX)
    assert values(moment) == [100 * i for i in range(970, 1000)]
    assert values(moment + 1) == [100 * i for i in range(971, 1000)]
    assert values(0) == [100 * i for i in range(900, 1000)], "all that there is"
    assert values(1 << 62) == [99_900], "the newest in any case"


def test_one_who_is_overtaken_goes_on_with_the_oldest_rows_and_says_how_many_it_lost(tmp_path: Path) -> None:
    ring = writer(tmp_path, USED, retention_s=10)
    reader = RingReader(tmp_path / ring.name)
    for samples in rounds(250):
        ring.append(samples)
    found = by_signal(reader.read())[rows.NVLINK_RX]
    assert [s.value for s in found] == [100 * i for i in range(150, 250)]
    assert reader.lost == 150


SOME = (
    rows.ENERGY,
    rows.PCIE_RX,
    rows.POWER,
    rows.POWER_AVERAGE,
    rows.UTILIZATION,
    rows.TEMPERATURE,
    rows.MEMORY_USED,
    rows.SM,
    rows.DRAM,
    rows.THROTTLES[0],
)
samples_of = st.tuples(st.sampled_from(SOME), st.integers(0, 50), st.integers(0, 12 * S), st.integers(0, 200))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(samples_of, max_size=8), max_size=12), st.integers(0, 3), st.sampled_from([0.0, 0.25]))
def test_whatever_comes_in_any_order_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[tuple[Signal, int, int, int]]],
    extra: int,
    counters_s: float,
) -> None:
    """Law: the samples of each signal come out, readings in their order, long window means as several."""
    folder = tmp_path_factory.mktemp("rings")
    ring = writer(folder, SIGNALS, counters_s=counters_s)
    reader = RingReader(folder / ring.name)
    sent: dict[Signal, list[Sample]] = {}
    found: dict[Signal, list[Sample]] = {}
    for number, batch in enumerate(batches):
        made = []
        for signal, step, length, value in batch:
            end = T + (number * 60 + step) * S
            start = end - length if signal.kind is Kind.WINDOW_MEAN else end
            made.append(Sample(signal, start, end, value))
        ring.append(made)
        for sample in made:
            sent.setdefault(sample.signal, []).append(sample)
        if number % (extra + 1) == 0:
            for sample in reader.read():
                found.setdefault(sample.signal, []).append(sample)
    ring.close()
    for sample in reader.read():
        found.setdefault(sample.signal, []).append(sample)
    assert reader.lost == 0
    assert set(found) == set(sent)
    for signal, wanted in sent.items():
        if signal.kind is not Kind.WINDOW_MEAN:
            assert found[signal] == wanted
            continue
        missing = Counter(wanted)
        whole: list[Sample] = []
        for sample in found[signal]:
            if missing[sample]:
                missing[sample] -= 1
            elif whole and whole[-1].t_end_ns == sample.t_start_ns and not missing[whole[-1]]:
                # A long window is written as several.
                whole.append(Sample(signal, whole.pop().t_start_ns, sample.t_end_ns, sample.value))
            else:
                whole.append(sample)
        assert sorted(whole) == sorted(missing.elements())


def test_what_a_cell_cannot_hold_is_left_out_and_no_other_sample_with_it(tmp_path: Path) -> None:
    ring = writer(tmp_path, (rows.ENERGY, rows.TEMPERATURE, rows.UTILIZATION))
    reader = RingReader(tmp_path / ring.name)
    ring.append(
        [
            reading(rows.ENERGY, T, 1 << 63),
            reading(rows.ENERGY, T + 1, (1 << 63) - 1),
            reading(rows.TEMPERATURE, T, 1 << 40),
            Sample(rows.UTILIZATION, T, T + 5, -(1 << 31)),
            Sample(rows.UTILIZATION, T + 5, T + 9, 7),
            reading(rows.PCIE_RX, T, 3),
        ]
    )
    assert set(reader.read()) == {reading(rows.ENERGY, T + 1, (1 << 63) - 1), Sample(rows.UTILIZATION, T + 5, T + 9, 7)}


def test_a_row_that_is_torn_is_waited_for_and_a_damaged_one_passed_over_at_the_second_look(tmp_path: Path) -> None:
    ring = writer(tmp_path, USED)
    reader = RingReader(tmp_path / ring.name)
    for samples in rounds(5):
        ring.append(samples)
    path = tmp_path / ring.name
    (stream,) = layout.read_head(path.read_bytes(), 1 << 20).streams
    at = stream.offset + 2 * stream.row.size + 20
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([whole[at] ^ 1]))
    first = by_signal(reader.read())[rows.NVLINK_RX]
    assert [s.value for s in first] == [0, 100]
    with path.open("r+b") as file:  # another process's stores have come
        file.seek(at)
        file.write(whole[at : at + 1])
    assert [s.value for s in by_signal(reader.read())[rows.NVLINK_RX]] == [200, 300, 400]
    for samples in rounds(4, first=5):
        ring.append(samples)
    at = stream.offset + 6 * stream.row.size + 30
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff\xee")
    assert [s.value for s in by_signal(reader.read())[rows.NVLINK_RX]] == [500]
    assert [s.value for s in by_signal(reader.read())[rows.NVLINK_RX]] == [700, 800]
    assert reader.lost == 1


@pytest.mark.parametrize("seed", range(40))
def test_a_changed_bit_never_makes_another_sample(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - no secret
    ring = writer(tmp_path, SIGNALS, retention_s=10)
    sent = []
    for samples in rounds(150):
        ring.append(samples)
        sent += samples
    path = tmp_path / ring.name
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 3, 200])):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)
    try:
        found = RingReader(path).read()
    except LayoutError:
        return
    assert set(found) <= set(sent)


@pytest.mark.parametrize("length", [0, 1, 100, 135, 136, 200, 1000, 3000])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, length: int) -> None:
    ring = writer(tmp_path, USED)
    ring.append(rounds(1)[0])
    path = tmp_path / ring.name
    os.truncate(path, length)
    with pytest.raises(LayoutError):
        RingReader(path)


def test_files_that_are_none_of_ours_are_refused_and_none_blocks(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello " * 1000)
    with pytest.raises(LayoutError, match="magic"):
        RingReader(tmp_path / "text")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LayoutError, match="regular"):
        RingReader(tmp_path / "pipe")
    ring = writer(tmp_path, USED)
    (tmp_path / "link").symlink_to(ring.name)
    with pytest.raises(OSError, match="symbolic links"):
        RingReader(tmp_path / "link")
    other = bytearray((tmp_path / ring.name).read_bytes())
    for version in (2, 4):
        struct.pack_into("<H", other, 8, version)
        (tmp_path / "other").write_bytes(other)
        with pytest.raises(LayoutError, match=f"version {version}, but this gpu-profile reads version 3"):
            RingReader(tmp_path / "other")


def test_a_signal_that_means_something_else_in_the_file_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = writer(tmp_path, USED)
    ring.append(rounds(1)[0])
    known = {key: signal for key, signal in layout._BY_KEY.items() if key != "pcie_rx"}
    monkeypatch.setattr(layout, "_BY_KEY", known | {"nvlink_rx": rows.PCIE_TX})
    assert {s.signal for s in RingReader(tmp_path / ring.name).read()} == {rows.POWER_AVERAGE}


def test_a_file_system_that_is_full_is_an_error_and_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = writer(tmp_path, USED)
    reader = RingReader(tmp_path / ring.name)
    write, full = os.pwrite, [False]

    def pwrite(fd: int, data: bytes, at: int) -> int:
        if full[0]:
            raise OSError(28, "No space left on device")
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    ring.append(rounds(1)[0])
    full[0] = True
    with pytest.raises(OSError, match="No space"):
        ring.append(rounds(1, first=1)[0])
    full[0] = False
    ring.append(rounds(1, first=2)[0])
    assert [s.value for s in by_signal(reader.read())[rows.NVLINK_RX]] == [0, 200]


def test_no_file_is_left_where_its_header_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 3)
    with pytest.raises(OSError, match="no room"):
        writer(tmp_path, USED)
    assert list(tmp_path.iterdir()) == []


def test_eight_gpus_read_ten_times_a_second_for_ten_minutes_take_little(tmp_path: Path) -> None:
    driver = open_driver("simulated")
    signals = available(driver.capabilities(driver.devices()[0]))
    driver.close()
    ring = writer(tmp_path, [signal for signal in signals if signal.tier is not Tier.GPM], counters_s=0.25)
    assert 8 * (tmp_path / ring.name).stat().st_size <= 8 << 20


def test_the_page_has_the_numbers_of_the_code() -> None:
    page = (Path(__file__).parents[4] / "docs" / "node-timeline.md").read_text()
    assert f"at the point {layout.POINT}:" in page
    for struct_, name in ((layout.HEADER, "header"), (layout.STREAM, "stream"), (layout.COLUMN, "column")):
        assert f"| {name}, {struct_.size} bytes |" in page


def test_readings_that_end_at_moments_of_their_own_are_kept_as_long_as_all_others(tmp_path: Path) -> None:
    """As NVML gives them: each instant by a call of its own, energy and throttle time apart from other counters."""
    slow = (rows.MEMORY_USED, rows.TEMPERATURE, rows.CLOCK_SM, rows.POWER_LIMIT)
    fast = (rows.ENERGY, rows.THROTTLES[0], rows.PCIE_RX, rows.PCIE_TX)
    ring = writer(tmp_path, (*slow, *fast), retention_s=60)
    for i in range(900):
        at = T + i * S // 10
        made = [reading(signal, at + 5, i) for signal in fast[2:]] + [reading(signal, at + 9, i) for signal in fast[:2]]
        if i % 10 == 0:
            made += [reading(signal, at + 100 * n, i) for n, signal in enumerate(slow, start=1)]
        ring.append(made)
    found = by_signal(RingReader(tmp_path / ring.name).read())
    for signal in (*slow, *fast):
        assert found[signal][-1].t_end_ns - found[signal][0].t_end_ns >= 58 * S


def test_no_number_has_the_same_check_as_another_or_as_none() -> None:
    stream = layout.RowRing("x", 1000, 16, [layout.RowCell("energy", b"c", rows.ENERGY)])
    checks = {stream.check(stream.body.pack(1, T, value), 7) for value in (layout.NO_COUNT, *range(200), (1 << 63) - 1)}
    assert len(checks) == 202


@pytest.mark.parametrize("damaged", [1, 40])
def test_damage_at_the_ring_s_end_or_longer_than_what_is_read_at_once_holds_nobody_up(
    tmp_path: Path, damaged: int
) -> None:
    ring = writer(tmp_path, USED, retention_s=10)
    reader = RingReader(tmp_path / ring.name)
    path = tmp_path / ring.name
    (stream,) = layout.read_head(path.read_bytes(), 1 << 20).streams
    for samples in rounds(stream.slots):
        ring.append(samples)
    with path.open("r+b") as file:
        for slot in range(stream.slots - damaged, stream.slots):
            file.seek(stream.offset + slot * stream.row.size + 20)
            file.write(b"\xff\xee\xdd")
    reader.read()
    for samples in rounds(2, first=stream.slots):
        ring.append(samples)
    found = [s for _ in range(3) for s in reader.read() if s.signal is rows.NVLINK_RX]
    assert found[-1].value == 100 * (stream.slots + 1)
    assert reader.lost == damaged


def test_a_window_of_a_day_pushes_nothing_out_of_the_ring(tmp_path: Path) -> None:
    ring = writer(tmp_path, USED)
    for samples in rounds(3):
        ring.append(samples)
    ring.append([Sample(rows.POWER_AVERAGE, 0, T + S, 400)])
    found = by_signal(RingReader(tmp_path / ring.name).read())
    assert len(found[rows.NVLINK_RX]) == 3
    assert sum(s.t_end_ns - s.t_start_ns for s in found[rows.POWER_AVERAGE] if s.value == 400) == 60 * S


@pytest.mark.parametrize("left", ["header", "nothing"])
def test_a_file_that_is_cut_off_while_it_is_read_has_nothing_new(tmp_path: Path, left: str) -> None:
    ring = writer(tmp_path, USED)
    reader = RingReader(tmp_path / ring.name)
    os.truncate(tmp_path / ring.name, 136 if left == "header" else 0)
    assert reader.read() == []

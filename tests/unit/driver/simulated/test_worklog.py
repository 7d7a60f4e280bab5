import os
from pathlib import Path

import pytest

from gpu_profile.driver.simulated.worklog import HEADER, MAGIC, PACK, SIZE, LogReader, LogWriter
from gpu_profile.errors import ScenarioError


def kernel(start: int, end: int, device: int = 0, tag: int = 0, kind: int = 0, flops: float = 1.0) -> bytes:
    return PACK.pack(start, end, device, kind, 0, tag, flops, 0.0, 0.0, 0.0, 1.0, 0.5)


def starts(reader: LogReader) -> list[int]:
    return [int(start) for batch in reader.poll() for start in batch.records["start"]]


def test_each_record_is_read_once_and_in_order(tmp_path: Path) -> None:
    writer, reader = LogWriter(tmp_path), LogReader(tmp_path, 1)
    writer.append(kernel(1, 2) + kernel(3, 4))
    assert starts(reader) == [1, 3]
    writer.append(kernel(5, 6))
    assert starts(reader) == [5]
    assert starts(reader) == []


def test_torn_tail_waits_for_its_rest(tmp_path: Path) -> None:
    writer, reader = LogWriter(tmp_path), LogReader(tmp_path, 1)
    record = kernel(1, 2)
    writer.append(record[:40])
    assert starts(reader) == []
    writer.append(record[40:])
    assert starts(reader) == [1]


def test_log_that_appears_later_is_found(tmp_path: Path) -> None:
    reader = LogReader(tmp_path, 1)
    assert starts(reader) == []
    LogWriter(tmp_path).append(kernel(1, 2))
    LogWriter(tmp_path).append(kernel(3, 4))
    assert sorted(starts(reader)) == [1, 3]


def test_header_that_is_half_written_is_not_an_error_yet(tmp_path: Path) -> None:
    log = tmp_path / "work-1-0.log"
    log.write_bytes(MAGIC[:3])
    reader = LogReader(tmp_path, 1)
    assert starts(reader) == []
    log.write_bytes(HEADER.pack(MAGIC, 1, SIZE, 1, 0) + kernel(7, 8))
    assert starts(reader) == [7]


def test_names_of_any_length_come_back(tmp_path: Path) -> None:
    writer, reader = LogWriter(tmp_path), LogReader(tmp_path, 1)
    names = ["a", "", "x" * 40, "y" * 41, "ü" * 100]
    numbers = [writer.tag(name) for name in names]
    assert [writer.tag(name) for name in names] == numbers
    writer.append(kernel(1, 2, tag=numbers[-1]))
    assert starts(reader) == [1]
    assert [reader.name(0, number) for number in numbers] == names
    assert reader.name(0, writer.tag(None)) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello", r"\[byte 0\]: not a work log"),
        (HEADER.pack(b"OTHERLOG", 1, SIZE, 1, 0), r"\[byte 0\]: not a work log"),
        (HEADER.pack(MAGIC, 2, SIZE, 1, 0), r"\[byte 8\]: version 2"),
        (HEADER.pack(MAGIC, 1, 32, 1, 0), r"\[byte 8\]: version 1 with records of 32 bytes"),
        (HEADER.pack(MAGIC, 1, SIZE, 1, 0) + kernel(1, 2) + kernel(2, 1), r"\[byte 128\]: a record ends before"),
        (HEADER.pack(MAGIC, 1, SIZE, 1, 0) + kernel(1, 2, device=1), r"\[byte 64\]: a device beyond the scenario's 1"),
        (HEADER.pack(MAGIC, 1, SIZE, 1, 0) + kernel(1, 2, kind=9), r"\[byte 64\]: unknown kind"),
        (HEADER.pack(MAGIC, 1, SIZE, 1, 0) + kernel(1, 2, flops=float("nan")), r"\[byte 64\]: an amount"),
    ],
)
def test_broken_log_is_reported_with_file_byte_and_reason(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "work-1-0.log").write_bytes(content)
    with pytest.raises(ScenarioError, match="work-1-0.log: " + message):
        LogReader(tmp_path, 1).poll()


def test_log_that_shrinks_is_reported(tmp_path: Path) -> None:
    writer, reader = LogWriter(tmp_path), LogReader(tmp_path, 1)
    writer.append(kernel(1, 2) + kernel(3, 4))
    reader.poll()
    os.truncate(writer.path, 100)
    with pytest.raises(ScenarioError, match=r"\[byte 100\]: the log was cut short"):
        reader.poll()


def test_other_files_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "work-1-0.log.bak").write_bytes(b"x" * 100)
    assert starts(LogReader(tmp_path, 1)) == []


def test_directory_that_cannot_be_written_is_a_scenario_error(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot write a work log"):
        LogWriter(tmp_path / "none")

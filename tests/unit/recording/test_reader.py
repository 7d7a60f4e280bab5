import json
import os
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from support.recordings import Now, T, power, triples

from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.errors import RecordingError
from gpu_profile.recording import (
    Recording,
    RecordingWriter,
    SpanRecord,
    format,  # noqa: A004 - the module's name
    read_recording,
    repair,
)

GPU = Device("GPU-1", index=0, name="A100", pci_bus_id="00000000:07:00.0", memory_bytes=40 << 30)
GOLDEN = Path(__file__).parents[2] / "golden" / "recording-v1"


def fields_of(fact: Any) -> dict[str, Any]:
    return dict(fact._asdict()) if isinstance(fact, SpanRecord) else asdict(fact)


def only_file(directory: Path) -> Path:
    (path,) = directory.glob("*.gpr")
    return path


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Three flushes, one sample and one note each, and the end mark."""
    with RecordingWriter(tmp_path, now_ns=Now()) as writer:
        for n in range(3):
            writer.sample("GPU-1", power(n))
            writer.note({"n": n})
            writer.flush()
    return tmp_path


def starts(path: Path) -> list[int]:
    return [record.start for record in format.frames(path.read_bytes())]


def test_version_1_stays_readable_for_ever() -> None:
    recording = read_recording(GOLDEN)
    expected = json.loads((GOLDEN / "expected.json").read_text())
    unknown = expected.pop("unknown")

    def as_then(facts: Sequence[Any], name: str) -> list[dict[str, Any]]:
        """The fields that version 1 wrote: later ones have their defaults."""
        return [{key: fields_of(fact)[key] for key in expected[name][0]} for fact in facts]

    assert {
        "processes": as_then(recording.processes, "processes"),
        "devices": as_then(recording.devices, "devices"),
        "samples": {
            device: {key: triples(columns) for key, columns in signals.items()}
            for device, signals in recording.samples.items()
        },
        "spans": json.loads(json.dumps(as_then(recording.spans, "spans"))),
        "events": as_then(recording.events, "events"),
        "notes": list(recording.notes),
        "lost_bytes": recording.lost_bytes,
    } == expected
    assert [f"unknown type {number}" in recording.problems[0] for number in unknown] == [True]


def test_the_files_of_several_processes_are_one_recording_ordered_by_time(tmp_path: Path) -> None:
    for at in (20, 10):
        now = Now()
        now.ns = T + at
        with RecordingWriter(tmp_path, now_ns=now) as writer:
            writer.device(GPU)
            writer.samples("GPU-1", [power(at), power(at + 5)])
    recording = read_recording(tmp_path)
    assert len(recording.processes) == 2
    assert recording.devices == (GPU,)
    assert (recording.samples["GPU-1"]["power"].t_end - T).tolist() == [10, 15, 20, 25]


S = 1_000_000_000


def write(directory: Path, *stretches: tuple[float, float, float], start: int = T) -> None:
    """A process that samples power at these moments: from, to, and every so many seconds."""
    now = Now()
    now.ns = start
    with RecordingWriter(directory, now_ns=now) as writer:
        for first, last, step in stretches:
            count = round((last - first) / step) + 1
            writer.samples("GPU-1", [power(start + round((first + i * step) * S) - T) for i in range(count)])


def seconds(directory: Path) -> list[float]:
    return [round(at / S, 3) for at in (read_recording(directory).samples["GPU-1"]["power"].t_end - T).tolist()]


def test_what_two_processes_sampled_at_the_same_time_counts_once(tmp_path: Path) -> None:
    write(tmp_path, (0, 8, 1))
    write(tmp_path, (3.25, 6.25, 1), start=T + 1)
    assert seconds(tmp_path) == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_a_process_that_sampled_longer_fills_in_before_and_after(tmp_path: Path) -> None:
    write(tmp_path, (0, 6, 1))
    write(tmp_path, (4.5, 9.5, 1), start=T + 1)
    # The second one's moments are counted from its own start, a nanosecond later.
    assert seconds(tmp_path) == [0, 1, 2, 3, 4, 5, 6, 6.5, 7.5, 8.5, 9.5]


def test_a_process_that_paused_leaves_the_pause_to_others(tmp_path: Path) -> None:
    write(tmp_path, (0, 8, 2), (40, 48, 2))
    write(tmp_path, (5, 25, 5), start=T + 1)
    assert seconds(tmp_path) == [0, 2, 4, 5, 10, 15, 20, 25, 40, 42, 44, 46, 48]


def test_files_of_processes_that_began_earlier_can_be_left_out(tmp_path: Path) -> None:
    write(tmp_path, (0, 1, 1))
    write(tmp_path, (5, 6, 1), start=T + S)
    recording = read_recording(tmp_path, since_ns=T + S)
    assert [process.start_ns for process in recording.processes] == [T + S]
    assert (recording.samples["GPU-1"]["power"].t_end - T).tolist() == [6 * S, 7 * S]


def test_a_launchers_words_on_the_process_come_back_with_it_and_its_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "3"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    with RecordingWriter(tmp_path, now_ns=Now()) as writer:
        writer.span(SpanRecord("step", T, T + 1))
        writer.sample("GPU-1", power(7))
    recording = read_recording(tmp_path)
    (process,) = recording.processes
    assert (process.rank, process.local_rank, process.world_size) == (3, 1, 4)
    assert [(span.rank, span.process) for span in recording.spans] == [(3, 0)]
    assert recording.device_hosts == {"GPU-1": process.host}


@pytest.mark.parametrize(
    ("content", "place", "reason"),
    [
        (b"PK\x03\x04 something else", 0, "not a recording of gpu-profile"),
        (b"\x89GPR\n\x1a\n cut by a text-mode transfer", 0, "not a recording of gpu-profile"),
        (format.header()[:9] + b"\xff" + format.header()[10:], 8, "damaged header"),
    ],
)
def test_a_file_that_is_not_ours_is_named_with_place_and_reason(
    tmp_path: Path, content: bytes, place: int, reason: str
) -> None:
    (tmp_path / "a.gpr").write_bytes(content)
    for use in (read_recording, repair):
        with pytest.raises(RecordingError, match=f"a.gpr: byte {place}: {reason}"):
            use(tmp_path)


def test_a_newer_version_is_refused_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format, "VERSION", 2)
    (tmp_path / "a.gpr").write_bytes(format.header())
    monkeypatch.undo()
    with pytest.raises(RecordingError, match=r"a\.gpr: byte 8: version 2, but this gpu-profile reads version 1"):
        read_recording(tmp_path)


def test_no_recording_is_an_error_that_names_the_directory(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=rf"{tmp_path}: not a recording: no \.gpr file"):
        read_recording(tmp_path)
    with pytest.raises(RecordingError, match="missing: not a recording: No such file"):
        read_recording(tmp_path / "missing")


def test_a_truncated_tail_loses_only_the_tail_and_says_how_much(recorded: Path) -> None:
    path = only_file(recorded)
    cut = starts(path)[5] + 11
    os.truncate(path, cut)
    recording = read_recording(recorded)
    assert [note["n"] for note in recording.notes] == [0, 1]
    assert recording.lost_bytes == 11
    assert f"{path}: byte {cut - 11}: 11 bytes lost: the file is cut off" in recording.problems[0]


def test_damage_in_the_middle_loses_only_the_record_it_hits(recorded: Path) -> None:
    path = only_file(recorded)
    data = bytearray(path.read_bytes())
    places = starts(path)
    data[places[1] + 4 : places[1] + 12] = b"\xff" * 8
    path.write_bytes(data)
    recording = read_recording(recorded)
    assert [note["n"] for note in recording.notes] == [1, 2]
    assert len(recording.samples["GPU-1"]["power"].value) == 3
    assert recording.lost_bytes == places[2] - places[1]
    assert recording.problems == (f"{path}: byte {places[1]}: {places[2] - places[1]} bytes lost: damaged",)


def test_repair_cuts_the_damaged_tail_and_says_what_it_cut(recorded: Path) -> None:
    path = only_file(recorded)
    end = starts(path)[-1]
    os.truncate(path, end + 5)
    assert repair(recorded) == ((path, end, 5),)
    assert path.stat().st_size == end
    assert repair(recorded) == ()
    assert read_recording(recorded).lost_bytes == 0


def test_repair_keeps_what_follows_damage_and_removes_a_file_without_a_header(recorded: Path) -> None:
    path = only_file(recorded)
    data = bytearray(path.read_bytes())
    data[starts(path)[1] + 20] ^= 1
    path.write_bytes(data)
    stump = recorded / "stump.gpr"
    stump.write_bytes(format.header()[:5])
    assert f"{stump}: byte 5: cut off within the 16 byte header" in read_recording(recorded).problems
    assert repair(recorded) == ((stump, 0, 5),)
    assert path.read_bytes() == data
    assert not stump.exists()


def test_repair_leaves_a_file_alone_that_is_still_being_written(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path)
    with writer.path.open("ab") as file:
        file.write(b"half a record")
    with pytest.raises(RecordingError, match="is still being written"):
        repair(tmp_path)
    writer.close()
    assert read_recording(tmp_path).lost_bytes == len(b"half a record")


def _write_with(directory: Path, **changes: object) -> Recording:
    changed = replace(rows.POWER, **changes)  # type: ignore[arg-type]
    with RecordingWriter(directory, now_ns=Now()) as writer:
        writer.samples("GPU-1", [Sample(changed, T, T + 1, 1_500), Sample(changed, T + 1, T + 2, -2)])
        writer.sample("GPU-1", Sample(rows.TEMPERATURE, T, T, 60))
    return read_recording(directory)


def test_a_signal_from_a_newer_catalogue_is_skipped_and_named(tmp_path: Path) -> None:
    recording = _write_with(tmp_path, key="flux")
    assert set(recording.samples["GPU-1"]) == {"temperature"}
    assert "skipped signal 'flux': unknown" in recording.problems[0]


def test_a_signal_whose_unit_has_changed_is_skipped_and_named(tmp_path: Path) -> None:
    recording = _write_with(tmp_path, unit="J")
    assert set(recording.samples["GPU-1"]) == {"temperature"}
    assert "skipped signal 'power': a window mean in J there" in recording.problems[0]


@pytest.mark.parametrize(("quantum", "values"), [(1e-6, [2, 0]), (1.0, [1_500_000, -2_000]), (0.002, [3_000, -4])])
def test_a_quantum_that_has_changed_keeps_the_meaning_of_values(
    tmp_path: Path, quantum: float, values: list[int]
) -> None:
    recording = _write_with(tmp_path, quantum=quantum)
    assert recording.samples["GPU-1"]["power"].value.tolist() == values
    assert recording.problems == ()


def test_a_value_that_does_not_fit_todays_quantum_is_skipped_and_named(tmp_path: Path) -> None:
    recording = _write_with(tmp_path, quantum=1e20)
    assert set(recording.samples["GPU-1"]) == {"temperature"}
    assert "skipped samples of 'power' in quanta of 1e+20" in recording.problems[0]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (format.RecordType.SAMPLES, b""),
        (format.RecordType.SAMPLES, b"\xff\xff\xff\xff[]"),
        (format.RecordType.SAMPLES, b"\x02\0\0\0[]no array"),
        (format.RecordType.SPANS, b'[{"name": "x"}]'),
        (format.RecordType.SPANS, b"[" * 100_000),
        (format.RecordType.DEVICES, b'[{"uuid": 7}]'),
        (format.RecordType.DEVICES, b'[{"name": "no uuid"}]'),
        (format.RecordType.DEVICES, b'[{"uuid": "GPU-1", "kind": "quantum"}]'),
        (format.RecordType.SPANS, b'[{"name": "x", "start_ns": 1.5, "end_ns": 2}]'),
        (format.RecordType.SPANS, b'[{"name": "x", "start_ns": 1, "end_ns": 2, "device_intervals": [["GPU-1", 7]]}]'),
        (format.RecordType.EVENTS, b"{}{}"),
        (format.RecordType.NOTES, b"[7]"),
        (format.RecordType.UNWRITTEN, b"{}"),
        (format.RecordType.PROCESS, b"\xff"),
        (format.RecordType.END, b"[]"),
    ],
)
def test_a_malformed_record_with_a_right_checksum_is_skipped_and_counted(
    tmp_path: Path, kind: format.RecordType, content: bytes
) -> None:
    with RecordingWriter(tmp_path, now_ns=Now()) as writer:
        writer.note({"before": 1})
        writer.flush()
        record = format.frame(kind, content)
        with writer.path.open("ab") as file:
            file.write(record)
        writer.note({"after": 1})
    recording = read_recording(tmp_path)
    assert recording.notes == ({"before": 1}, {"after": 1})
    assert recording.lost_bytes == len(record)
    assert "malformed record" in recording.problems[0]


def test_a_field_of_a_later_version_is_ignored_and_one_that_is_missing_has_its_default(recorded: Path) -> None:
    with only_file(recorded).open("ab") as file:
        file.write(format.frame(format.RecordType.DEVICES, b'[{"uuid": "GPU-7", "colour": "green"}]'))
    assert read_recording(recorded).devices == (Device("GPU-7"),)


@pytest.mark.parametrize(
    "payload", [b"not deflated", zlib.compress(bytes(10_000)), zlib.compress(b"[]")[:-1]], ids=["raw", "bomb", "cut"]
)
def test_a_payload_that_does_not_inflate_within_bounds_is_skipped(
    recorded: Path, payload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(format, "MAX_PAYLOAD", 5_000)
    monkeypatch.setattr(zlib, "compress", lambda _: payload)
    record = format.frame(format.RecordType.NOTES, b"")
    with only_file(recorded).open("ab") as file:
        file.write(record)
    recording = read_recording(recorded)
    assert len(recording.notes) == 3
    assert recording.lost_bytes == len(record)


def test_other_files_in_the_directory_are_left_alone(recorded: Path) -> None:
    shutil.copy(__file__, recorded / "notes.txt")
    assert read_recording(recorded).problems == ()
    assert repair(recorded) == ()

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.catalogue import SIGNALS
from gpu_profile.catalogue.samples import Device, DeviceKind, Event, Sample
from gpu_profile.errors import RecordingError
from gpu_profile.recording import DeviceInterval, Recording, RecordingWriter, SpanRecord, read_recording, repair
from gpu_profile.recording.kernel_stamps import KernelStamps

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
text = st.text(max_size=8)
uuids = st.sampled_from(["GPU-a", "GPU-b", "MIG-c"])
# Steps of realistic size, so that several samples share a record's scale, and any numbers at all.
times = st.one_of(int64, st.integers(0, 1000).map(lambda n: 1_750_000_000_000_000_000 + 10_000_000 * n))
samples = st.tuples(uuids, st.builds(Sample, st.sampled_from(SIGNALS), times, times, int64))
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), text),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=5,
)
objects = st.dictionaries(text, plain, max_size=3)
devices = st.builds(
    Device, uuids, st.none() | text, st.sampled_from(DeviceKind), st.none() | int64, text, text, st.none() | int64
)
intervals = st.builds(DeviceInterval, uuids, st.integers(0, 1 << 64), int64, int64)
#: Columns are as long as each other, as `KernelStamps.of` makes them.
stamps = st.lists(st.tuples(text, st.integers(0, 1 << 50), st.integers(0, 1 << 50)), max_size=3).map(
    lambda rows: KernelStamps.of(
        [name for name, _, _ in rows],
        np.array([start for _, start, _ in rows], np.int64),
        np.array([start + length for _, start, length in rows], np.int64),
        since_ns=0,
    )
)
spans = st.builds(
    SpanRecord,
    text,
    int64,
    int64,
    text,
    text,
    st.none() | text,
    st.lists(intervals, max_size=2).map(tuple),
    st.none() | st.integers() | st.floats(allow_nan=False),
    objects,
    text,
    st.none() | text,
    st.none() | st.booleans(),
    st.lists(uuids, max_size=2).map(tuple),
    st.booleans(),
    kernels=st.none() | stamps,
)
events = st.builds(Event, uuids, int64, text, st.none() | int64, text)
entries = st.lists(
    st.one_of(
        st.tuples(st.just("sample"), samples),
        st.tuples(st.just("device"), devices),
        st.tuples(st.just("span"), spans),
        st.tuples(st.just("event"), events),
        st.tuples(st.just("note"), objects),
        st.tuples(st.just("flush"), st.none()),
    ),
    max_size=20,
)
Entries = list[tuple[str, Any]]
#: A place in a file, taken modulo its length.
places = st.integers(0, (1 << 16) - 1)


@contextmanager
def recorded(entries: Entries) -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory() as name:
        with RecordingWriter(Path(name), now_ns=lambda: 1_750_000_000_000_000_000) as writer:
            for what, value in entries:
                if what == "sample":
                    writer.sample(*value)
                elif what == "flush":
                    writer.flush()
                else:
                    getattr(writer, what)(value)
        yield Path(name), writer.path


def rows(recording: Recording) -> Counter[tuple[str, str, int, int, int]]:
    return Counter(
        (device, key, *row)
        for device, signals in recording.samples.items()
        for key, columns in signals.items()
        for row in zip(*(column.tolist() for column in columns), strict=True)
    )


def written(entries: Entries, kind: str) -> list[Any]:
    return [value for what, value in entries if what == kind]


@given(entries)
def test_what_is_recorded_is_what_is_read(entries: Entries) -> None:
    with recorded(entries) as (directory, _):
        recording = read_recording(directory)
    assert recording.problems == ()
    assert list(recording.devices) == list({device.uuid: device for device in written(entries, "device")}.values())
    assert list(recording.spans) == written(entries, "span")
    assert list(recording.events) == written(entries, "event")
    assert list(recording.notes) == written(entries, "note")
    assert rows(recording) == Counter(
        (device, sample.signal.key, *sample[1:]) for device, sample in written(entries, "sample")
    )
    for signals in recording.samples.values():
        for columns in signals.values():
            assert columns.t_end.tolist() == sorted(columns.t_end.tolist())


def holds_only_intact_records(recording: Recording, whole: Recording) -> None:
    assert rows(recording) <= rows(whole)
    for name in ("spans", "events", "notes"):
        rest = iter(getattr(whole, name))
        assert all(any(each == other for other in rest) for each in getattr(recording, name)), "not a subsequence"
    assert {device.uuid for device in recording.devices} <= {device.uuid for device in whole.devices}


def differs(recording: Recording, whole: Recording) -> bool:
    return any(
        getattr(recording, name) != getattr(whole, name)
        for name in ("processes", "devices", "spans", "events", "notes")
    ) or rows(recording) != rows(whole)


@given(entries, places)
def test_any_truncation_loses_only_the_tail_and_says_so(entries: Entries, length: int) -> None:
    with recorded(entries) as (directory, path):
        whole, content = read_recording(directory), path.read_bytes()
        length %= len(content)
        path.write_bytes(content[:length])
        recording = read_recording(directory)
        holds_only_intact_records(recording, whole)
        assert recording.problems
        assert recording.lost_bytes <= length
        repaired = {cut.path: cut for cut in repair(directory)}
        assert sum(cut.lost_bytes for cut in repaired.values()) == recording.lost_bytes
        if path.exists():
            again = read_recording(directory)
            assert again.lost_bytes == 0
            assert not differs(again, recording)


@given(entries, places, st.integers(1, 255))
def test_any_flipped_bits_lose_only_the_records_they_hit_and_say_so(entries: Entries, place: int, bits: int) -> None:
    with recorded(entries) as (directory, path):
        whole, content = read_recording(directory), bytearray(path.read_bytes())
        place %= len(content)
        content[place] ^= bits
        path.write_bytes(content)
        try:
            recording = read_recording(directory)
        except RecordingError as error:
            refused = str(error)
        else:
            refused = ""
        if refused:
            assert place < 16, "only a damaged header makes a file unreadable"
            assert f"{path}: byte " in refused
        else:
            holds_only_intact_records(recording, whole)
            assert recording.lost_bytes > 0
            assert recording.problems


@given(entries, st.binary(max_size=60), places)
def test_foreign_bytes_anywhere_are_counted_and_cost_no_record_beside_them(
    entries: Entries, foreign: bytes, place: int
) -> None:
    with recorded(entries) as (directory, path):
        whole, content = read_recording(directory), path.read_bytes()
        place = 16 + place % (len(content) - 15)
        path.write_bytes(content[:place] + foreign + content[place:])
        recording = read_recording(directory)
        holds_only_intact_records(recording, whole)
        assert recording.lost_bytes >= len(foreign)


@given(st.binary(max_size=200))
def test_a_file_of_any_bytes_is_read_or_refused_with_place_and_reason(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "any.gpr").write_bytes(content)
        try:
            recording = read_recording(Path(name))
            assert recording.lost_bytes == len(content)
        except RecordingError as error:
            refused = str(error)
        else:
            refused = "any.gpr: byte "
    assert "any.gpr: byte " in refused

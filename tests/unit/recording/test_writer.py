import os
import signal
from functools import partial
from pathlib import Path

import pytest
from support.concurrency import in_threads
from support.programs import python
from support.recordings import Now, T, files_end_at, power, triples

from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, DeviceKind, Event, Sample
from gpu_profile.errors import RecordingError
from gpu_profile.recording import DeviceInterval, RecordingWriter, SpanRecord, read_recording

SECOND = 1_000_000_000
GPU = Device("GPU-1", index=0, name="A100", pci_bus_id="00000000:07:00.0", memory_bytes=40 << 30)
MIG = Device("MIG-1", parent="GPU-1", kind=DeviceKind.MIG)
SPAN = SpanRecord(
    "step",
    T,
    T + 5,
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    span_id="00f067aa0ba902b7",
    parent_span_id="00f067aa0ba902b8",
    device_intervals=(DeviceInterval("GPU-1", 7, T + 1, T + 4),),
    items=32,
    attributes={"lr": 0.1, "name": "é☃"},
)
EVENT = Event("GPU-1", T, "xid", 48, "double bit error")


def test_everything_that_was_written_is_read_again(tmp_path: Path) -> None:
    now = Now()
    with RecordingWriter(tmp_path, now_ns=now, driver="nvml", driver_version="580.1") as writer:
        writer.device(GPU)
        writer.device(MIG)
        writer.device(GPU)
        writer.samples("GPU-1", [power(0), power(10, -1), Sample(rows.ENERGY, T, T, 9)])
        writer.flush()
        writer.sample("GPU-1", power(20))
        writer.span(SPAN)
        writer.event(EVENT)
        writer.note({"truth": {"busy": 0.25}})
        now.ns = T + 7
    recording = read_recording(tmp_path)
    assert recording.devices == (GPU, MIG)
    assert {key: triples(columns) for key, columns in recording.samples["GPU-1"].items()} == {
        "power": [[T - 25, T, 250_000], [T - 15, T + 10, -1], [T - 5, T + 20, 250_000]],
        "energy": [[T, T, 9]],
    }
    assert (recording.spans, recording.events, recording.notes) == ((SPAN,), (EVENT,), ({"truth": {"busy": 0.25}},))
    assert (recording.lost_bytes, recording.problems) == (0, ())
    (process,) = recording.processes
    assert (process.pid, process.start_ns, process.end_ns) == (os.getpid(), T, T + 7)
    assert (process.driver, process.driver_version) == ("nvml", "580.1")


@pytest.mark.parametrize("name", ["SIGKILL", "SIGHUP"])
def test_a_killed_process_loses_only_what_it_had_not_flushed(name: str, tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from gpu_profile.recording import RecordingWriter
writer = RecordingWriter(Path({str(tmp_path)!r}))
writer.note({{"n": 1}})
writer.flush()
writer.note({{"n": 2}})
os.kill(os.getpid(), signal.{name})
"""
    done = python("-c", program)
    recording = read_recording(tmp_path)
    assert done.returncode == -signal.Signals[name]
    assert recording.notes == ({"n": 1},)
    assert recording.processes[0].end_ns is None
    assert "ended without handing in the last regions and samples" in recording.problems[0]
    assert "a signal such as SIGKILL or SIGHUP, ended by a crash" in recording.problems[0]


def test_maybe_flush_writes_once_a_second_and_after_the_clock_was_set_back(tmp_path: Path) -> None:
    now = Now()
    writer = RecordingWriter(tmp_path, now_ns=now)
    sizes = []
    for at in (SECOND - 1, SECOND, SECOND + 1, 2 * SECOND, 0):
        writer.note({"at": at})
        now.ns = T + at
        writer.maybe_flush()
        sizes.append(len(read_recording(tmp_path).notes))
    writer.close()
    assert sizes == [0, 2, 2, 4, 5]


def test_a_writer_that_nobody_flushes_does_not_grow_without_bound(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, now_ns=Now())
    writer.samples("GPU-1", (power(n) for n in range(1 << 16)))
    assert len(read_recording(tmp_path).samples["GPU-1"]["power"].value) == 1 << 16
    writer.close()


def test_a_full_disk_is_an_error_and_leaves_a_file_that_can_be_read_and_goes_on(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, now_ns=Now())
    writer.note({"n": 1})
    writer.flush()
    size = writer.path.stat().st_size
    writer.device(GPU)
    writer.samples("GPU-1", (power(n, n * n * 7919 % 1013) for n in range(1000)))
    writer.span(SPAN)
    reason = rf"{writer.path}: cannot be written: File too large"
    with files_end_at(size + 100), pytest.raises(RecordingError, match=reason):
        writer.flush()
    assert writer.path.stat().st_size == size
    writer.note({"n": 2})
    writer.close()
    recording = read_recording(tmp_path)
    assert (recording.lost_bytes, recording.samples, recording.spans) == (0, {}, ())
    assert recording.notes == ({"n": 1}, {"n": 2})
    assert recording.devices == (GPU,)
    (problem,) = recording.problems
    assert "1000 samples and 1 facts before this place were not written" in problem
    assert "File too large" in problem


def test_a_directory_that_cannot_be_made_is_an_error_with_path_and_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match=r"file/in.*cannot be created: Not a directory"):
        RecordingWriter(tmp_path / "file" / "in")


def test_a_number_beyond_64_bits_is_refused_and_the_rest_kept(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, now_ns=Now()) as writer:
        writer.sample("GPU-1", power(1))
        with pytest.raises(RecordingError, match="not three 64 bit numbers"):
            writer.sample("GPU-1", power(2, 1 << 63))
        with pytest.raises(RecordingError, match="energy"):
            writer.sample("GPU-1", Sample(rows.ENERGY, T, T, 1 << 64))
        writer.sample("GPU-1", power(3))
    recording = read_recording(tmp_path)
    assert triples(recording.samples["GPU-1"]["power"]) == [[T - 24, T + 1, 250_000], [T - 22, T + 3, 250_000]]
    assert set(recording.samples["GPU-1"]) == {"power"}


def test_what_json_cannot_hold_is_kept_as_text(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, now_ns=Now()) as writer:
        writer.span(SPAN._replace(attributes={"path": Path("a"), "tuple": (1, 2)}))
    assert read_recording(tmp_path).spans[0].attributes == {"path": "a", "tuple": [1, 2]}


def test_a_note_that_holds_itself_is_refused(tmp_path: Path) -> None:
    note: dict[str, object] = {}
    note["self"] = note
    with RecordingWriter(tmp_path, now_ns=Now()) as writer, pytest.raises(RecordingError, match=r"notes: Circular"):
        writer.note(note)


def test_closing_twice_is_fine_and_writing_afterwards_an_error(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path)
    writer.close()
    writer.close()
    for write in (writer.flush, lambda: writer.event(EVENT), lambda: writer.sample("GPU-1", power(1))):
        with pytest.raises(RecordingError, match="is closed"):
            write()


def test_a_forked_child_cannot_write_into_its_parents_file(tmp_path: Path) -> None:
    program = f"""
import os
from pathlib import Path
from gpu_profile.errors import RecordingError
from gpu_profile.recording import RecordingWriter
writer = RecordingWriter(Path({str(tmp_path)!r}))
writer.note({{"by": "parent"}})
if (child := os.fork()) == 0:
    try:
        writer.note({{"by": "child"}})
    except RecordingError as error:
        writer.close()
        os._exit(7 if "belongs to process" in str(error) else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
writer.close()
raise SystemExit(code)
"""
    done = python("-c", program)
    assert done.returncode == 7
    assert read_recording(tmp_path).notes == ({"by": "parent"},)


def test_an_error_of_the_user_is_not_hidden_by_one_of_the_recording(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path)
    writer.note({})
    with files_end_at(writer.path.stat().st_size), pytest.raises(KeyError, match="user"), writer:
        raise KeyError("user")


def test_several_threads_may_write_at_once(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path) as writer:

        def write(thread: int) -> None:
            for n in range(200):
                writer.sample(f"GPU-{thread}", power(n))
                writer.note({"thread": thread, "n": n})
                if n % 10 == 0:
                    writer.flush()

        in_threads(*(partial(write, n) for n in range(4)))
    recording = read_recording(tmp_path)
    assert [len(recording.samples[f"GPU-{n}"]["power"].value) for n in range(4)] == [200] * 4
    assert len(recording.notes) == 800

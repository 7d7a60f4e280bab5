from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from exporter_process import environment

from gpu_profile import process
from gpu_profile.catalogue.signals import ENERGY
from gpu_profile.driver import simulated
from gpu_profile.errors import RecordingError
from gpu_profile.executions import Execution
from gpu_profile.recorder import Recorder
from gpu_profile.recording import DeviceInterval, Recording, read_recording
from gpu_profile.regions import region
from gpu_profile.samples import Device, Sample
from gpu_profile.testing import START_NS, FakeClock

GPU = Device("GPU-A", index=0, name="A100")

#: Records into its second argument, if there is one, else where the environment says; tells what it did.
SERVICE = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from gpu_profile import configure, region
from gpu_profile.driver.simulated import SimulatedQueue, Work, create

node = create(sys.argv[1])
queue = SimulatedQueue(node)
trace.set_tracer_provider(TracerProvider())
configure(backend=f"simulated:{node}", stream=queue, interval_s=0.02, record=sys.argv[2] if sys.argv[2:] else None)
contexts = []
with region("request", strict=True):  # not before the driver is there
    contexts.append(trace.get_current_span().get_span_context())
    with region("step", items=3):
        contexts.append(trace.get_current_span().get_span_context())
        queue.launch(Work(seconds=0.05, flops=1e9))
queue.synchronize()
print(json.dumps([queue.device_uuid, *((f"{c.trace_id:032x}", f"{c.span_id:016x}") for c in contexts)]))
"""


def energy(at_s: float, joules: int) -> Sample:
    at = START_NS + int(at_s * 1e9)
    return Sample(ENERGY, at, at, joules * 1000)


def recorder(directory: Path, clock: FakeClock, *, strict: bool = False) -> Recorder:
    return Recorder(directory, now_ns=clock.now_ns, driver=lambda: ("nvml", "580.1"), strict=strict)


def execution(name: str, start_ns: int, end_ns: int, parent: Execution | None = None) -> Execution:
    made = Execution(name, parent, None, None)
    made.start_ns, made.end_ns = start_ns, end_ns
    return made


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """A full disk, as the system sees it."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


def intact(directory: Path) -> Recording:
    found = read_recording(directory)
    assert found.problems == ()
    return found


# ---------------------------------------------------------------------- a recorder by itself


def test_nothing_is_written_before_there_is_something_to_record(tmp_path: Path) -> None:
    recorder(tmp_path / "recording", FakeClock()).close()
    assert list(tmp_path.iterdir()) == []


def test_samples_come_back_with_their_device_and_driver(tmp_path: Path) -> None:
    clock = FakeClock()
    mine = recorder(tmp_path, clock)
    mine.take(GPU, [energy(0, 5), energy(1, 7)])
    mine.take(GPU, [])
    mine.take(GPU, [energy(2, 9)])
    mine.close()
    found = intact(tmp_path)
    assert found.devices == (GPU,)
    assert found.samples[GPU.uuid]["energy"].value.tolist() == [5000, 7000, 9000]
    assert [(p.driver, p.driver_version) for p in found.processes] == [("nvml", "580.1")]
    assert (mine.samples, mine.spans, mine.problem) == (3, 0, "")


def test_a_device_that_is_described_anew_is_recorded_anew(tmp_path: Path) -> None:
    mine = recorder(tmp_path, FakeClock())
    mine.take(GPU, [energy(0, 5)])
    renamed = Device(GPU.uuid, index=1, name="A100")
    mine.take(renamed, [energy(1, 7)])
    mine.close()
    assert intact(tmp_path).devices == (renamed,)


def test_an_execution_comes_back_as_a_span_with_its_parent_and_items(tmp_path: Path) -> None:
    mine = recorder(tmp_path, FakeClock())
    parent = execution("request", START_NS, START_NS + 9)
    parent.trace_id, parent.span_id = 0xABC, 0x1
    child = execution("step", START_NS + 2, START_NS + 5, parent)
    child.trace_id, child.span_id, child.items = 0xABC, 0x2, 4.0
    mine.take_span(child)
    mine.take_span(parent)
    mine.close()
    step, request = intact(tmp_path).spans
    assert (step.name, step.start_ns, step.end_ns, step.items) == ("step", START_NS + 2, START_NS + 5, 4.0)
    assert (step.trace_id, step.span_id, step.parent_span_id) == (f"{0xABC:032x}", f"{2:016x}", f"{1:016x}")
    assert (request.parent_span_id, request.items, request.device_intervals) == (None, None, ())
    assert mine.spans == 2


def test_an_execution_without_a_span_has_no_identifiers(tmp_path: Path) -> None:
    mine = recorder(tmp_path, FakeClock())
    mine.take_span(execution("step", START_NS, START_NS + 1, execution("request", START_NS, START_NS + 2)))
    mine.close()
    (step,) = intact(tmp_path).spans
    assert (step.trace_id, step.span_id, step.parent_span_id) == ("", "", None)


def test_what_comes_after_the_end_starts_another_file(tmp_path: Path) -> None:
    clock = FakeClock()
    mine = recorder(tmp_path, clock)
    mine.take(GPU, [energy(0, 5)])
    mine.close()
    mine.close()
    clock.advance(60)
    mine.take(GPU, [energy(60, 8)])
    mine.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert intact(tmp_path).samples[GPU.uuid]["energy"].value.tolist() == [5000, 8000]


def test_what_is_older_than_a_second_survives_a_process_that_never_says_goodbye(tmp_path: Path) -> None:
    clock = FakeClock()
    mine = recorder(tmp_path, clock)
    for i in range(31):
        mine.take(GPU, [energy(i / 10, i)])
        clock.advance(0.1)
    found = read_recording(tmp_path)
    assert found.samples[GPU.uuid]["energy"].value.tolist()[:21] == [i * 1000 for i in range(21)]
    mine.close()


# ---------------------------------------------------------------------- a disk that fails


def test_a_failing_disk_ends_the_recording_with_one_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    mine = recorder(tmp_path, clock)
    mine.take(GPU, [energy(0, 5)])
    (path,) = tmp_path.iterdir()
    with files_end_at(path.stat().st_size + 10):
        for i in range(1, 50):
            clock.advance(0.1)
            mine.take(GPU, [energy(i / 10, 5 + i)])
            mine.take_span(execution("step", START_NS, START_NS + 1))
        mine.close()
    assert caplog.messages == [f"gpu-profile: the recording ends here: {path}: cannot be written: File too large"]
    assert mine.problem == f"{path}: cannot be written: File too large"
    assert (mine.samples, mine.spans) == (10, 9), "what could not be kept is not counted"
    read_recording(tmp_path)


def test_a_disk_that_fails_only_at_the_end_is_told_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine = recorder(tmp_path, FakeClock())
    mine.take(GPU, [energy(0, 5)])
    (path,) = tmp_path.iterdir()
    with files_end_at(path.stat().st_size):
        mine.close()
    assert [message.startswith("gpu-profile: the recording ends here: ") for message in caplog.messages] == [True]


def test_with_strict_a_failing_disk_raises_once(tmp_path: Path) -> None:
    clock = FakeClock()
    mine = recorder(tmp_path, clock, strict=True)
    mine.take(GPU, [energy(0, 5)])
    (path,) = tmp_path.iterdir()
    clock.advance(2)
    with files_end_at(path.stat().st_size + 10):
        with pytest.raises(RecordingError, match="cannot be written: File too large"):
            mine.take(GPU, [energy(2, 7)])
        mine.take(GPU, [energy(3, 8)])
        mine.close()
    assert mine.samples == 1


@pytest.mark.parametrize("strict", [False, True])
def test_a_directory_that_cannot_be_made_is_told_when_it_is_opened(tmp_path: Path, *, strict: bool) -> None:
    (tmp_path / "file").touch()
    mine = recorder(tmp_path / "file" / "recording", FakeClock(), strict=strict)
    if strict:
        with pytest.raises(RecordingError, match="cannot be created: Not a directory"):
            mine.open()
    else:
        mine.open()
    assert "cannot be created" in mine.problem


# ---------------------------------------------------------------------- a process that records itself


@pytest.mark.parametrize("by", ["environment", "configure"])
def test_a_process_records_its_samples_and_spans_where_it_is_told_to(by: str, tmp_path: Path) -> None:
    node, directory = tmp_path / "node", tmp_path / "recording"
    arguments = [str(node)] if by == "environment" else [str(node), str(directory)]
    env = {"GPU_PROFILE_RECORD": str(directory)} if by == "environment" else {}
    done = subprocess.run(
        [sys.executable, "-c", SERVICE, *arguments],
        capture_output=True,
        text=True,
        env=environment(**env),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    uuid, (trace_id, request_id), (_, step_id) = json.loads(done.stdout)
    found = intact(directory)
    (info,) = found.processes
    assert info.driver.startswith("simulated:")
    assert info.end_ns is not None
    assert uuid in [device.uuid for device in found.devices]
    assert len(found.samples[uuid]["energy"].value) >= 1
    spans = {span.name: span for span in found.spans}
    assert set(spans) == {"request", "step"}
    request, step = spans["request"], spans["step"]
    assert {request.trace_id, step.trace_id} == {trace_id}
    assert (request.span_id, step.span_id, step.parent_span_id) == (request_id, step_id, request_id)
    assert (request.parent_span_id, step.items) == (None, 3)
    (interval,) = step.device_intervals
    assert interval == DeviceInterval(uuid, 0, interval.start_ns, interval.end_ns)
    assert interval.end_ns - interval.start_ns == pytest.approx(50e6, rel=0.05)
    assert interval.end_ns > step.end_ns, "the GPU runs behind the host"


def test_a_full_disk_does_not_disturb_the_process_that_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = simulated.create(tmp_path / "node")
    (tmp_path / "file").touch()
    process.configure(backend=f"simulated:{node}", interval_s=0.02, record=tmp_path / "file")
    try:
        with region("step", span=False, strict=True):
            process.session().flush()
    finally:
        process.stop()
        process.configure()
    told = [message for message in caplog.messages if "the recording ends here" in message]
    assert len(told) == 1
    assert "cannot be created" in told[0]
    assert "Traceback" not in caplog.text

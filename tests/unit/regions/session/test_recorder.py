from pathlib import Path

import pytest
from support.drivers import FakeDriver
from support.recordings import files_end_at
from support.regions import BLANK, HUNGRY, PRODUCT, TALKING

from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.catalogue.signals import ENERGY
from gpu_profile.errors import RecordingError
from gpu_profile.recording import DeviceInterval, KernelStamps, Recording, read_recording
from gpu_profile.regimes.kernel_work import KernelWork
from gpu_profile.regimes.operation import RegionOperation
from gpu_profile.regions.execution import AWAIT_S, Execution
from gpu_profile.regions.session.recorder import SAMPLED_VARIABLE, Recorder, driver_of, record_session
from gpu_profile.regions.session.session import RECORD_VARIABLE, Session
from gpu_profile.testing import START_NS, FakeClock

GPU = Device("GPU-A", index=0, name="A100")


def energy(at_s: float, joules: int) -> Sample:
    at = START_NS + int(at_s * 1e9)
    return Sample(ENERGY, at, at, joules * 1000)


def recorder(directory: Path, clock: FakeClock, *, strict: bool = False) -> Recorder:
    return Recorder(directory, clock=clock, driver=lambda: ("nvml", "580.1"), strict=strict)


def execution(name: str, start_ns: int, end_ns: int, parent: Execution | None = None) -> Execution:
    made = Execution(name, parent, None, None)
    made.start_ns, made.end_ns = start_ns, end_ns
    return made


def intact(directory: Path) -> Recording:
    found = read_recording(directory)
    assert found.problems == ()
    return found


@pytest.fixture
def mine(tmp_path: Path, clock: FakeClock) -> Recorder:
    return recorder(tmp_path, clock)


# ---------------------------------------------------------------------- a recorder by itself


def test_nothing_is_written_before_there_is_something_to_record(tmp_path: Path) -> None:
    recorder(tmp_path / "recording", FakeClock()).close()
    assert list(tmp_path.iterdir()) == []


def test_samples_come_back_with_their_device_and_driver(tmp_path: Path, mine: Recorder) -> None:
    mine.take(GPU, [energy(0, 5), energy(1, 7)])
    mine.take(GPU, [])
    mine.take(GPU, [energy(2, 9)])
    mine.close()
    found = intact(tmp_path)
    assert found.devices == (GPU,)
    assert found.samples[GPU.uuid]["energy"].value.tolist() == [5000, 7000, 9000]
    assert [(p.driver, p.driver_version) for p in found.processes] == [("nvml", "580.1")]
    assert (mine.samples, mine.spans, mine.problem) == (3, 0, "")


def test_a_device_that_is_described_anew_is_recorded_anew(tmp_path: Path, mine: Recorder) -> None:
    mine.take(GPU, [energy(0, 5)])
    renamed = Device(GPU.uuid, index=1, name="A100")
    mine.take(renamed, [energy(1, 7)])
    mine.close()
    assert intact(tmp_path).devices == (renamed,)


def test_an_execution_comes_back_as_a_span_with_its_parent_and_items(tmp_path: Path, mine: Recorder) -> None:
    parent = execution("request", START_NS, START_NS + 9)
    parent.trace_id, parent.span_id = 0xABC, 0x1
    child = execution("step", START_NS + 2, START_NS + 5, parent)
    child.trace_id, child.span_id, child.items = 0xABC, 0x2, 4.0
    mine.take_ended(child)
    mine.take_ended(parent)
    mine.close()
    step, request = intact(tmp_path).spans
    assert (step.name, step.start_ns, step.end_ns, step.items) == ("step", START_NS + 2, START_NS + 5, 4.0)
    assert (step.trace_id, step.span_id, step.parent_span_id) == (f"{0xABC:032x}", f"{2:016x}", f"{1:016x}")
    assert (request.parent_span_id, request.items, request.device_intervals) == (None, None, ())
    assert mine.spans == 2


def test_executions_without_spans_keep_who_ran_inside_whom_in_whatever_order_they_end(tmp_path: Path) -> None:
    mine = recorder(tmp_path, FakeClock())
    request = execution("request", START_NS, START_NS + 9)
    other = execution("request", START_NS, START_NS + 9)
    steps = [execution("step", START_NS + i, START_NS + i + 1, whose) for i, whose in enumerate((request, other))]
    late = execution("late", START_NS + 8, START_NS + 20, request)
    for each in (*steps, request, other, late):
        mine.take_ended(each)
    mine.close()
    found = intact(tmp_path).spans
    assert {(span.trace_id, span.span_id, span.parent_span_id) for span in found} == {("", "", None)}
    assert len({span.id for span in found}) == 5
    first, second, theirs, others, last = found
    assert (first.parent, second.parent, last.parent) == (theirs.id, others.id, theirs.id)
    assert (theirs.parent, others.parent) == (None, None)


def test_an_execution_without_a_span_inside_one_with_a_span_is_in_its_trace_and_the_reverse(tmp_path: Path) -> None:
    mine = recorder(tmp_path, FakeClock())
    outer = execution("outer", START_NS, START_NS + 9)
    outer.trace_id, outer.span_id = 0xABC, 0x1
    between = execution("between", START_NS + 1, START_NS + 8, outer)
    inner = execution("inner", START_NS + 2, START_NS + 7, between)
    inner.trace_id, inner.span_id = 0xABC, 0x2
    for each in (inner, between, outer):
        mine.take_ended(each)
    mine.close()
    inner_span, between_span, outer_span = intact(tmp_path).spans
    assert (inner_span.parent, inner_span.parent_span_id, inner_span.id) == (between_span.id, None, "")
    assert (between_span.parent, between_span.parent_span_id) == (None, outer_span.span_id)
    assert (between_span.trace_id, between_span.span_id) == (outer_span.trace_id, "")


def test_what_is_known_of_an_operation_comes_back(tmp_path: Path, mine: Recorder) -> None:
    for operation in (PRODUCT, BLANK, None):
        each = execution("op", START_NS, START_NS + 9)
        if operation is not None:
            each.operation = operation
        mine.take_ended(each)
    mine.close()
    product, blank, plain = intact(tmp_path).spans
    again = RegionOperation.of_attributes(product.attributes)
    assert again is not None
    assert again.attributes() == pytest.approx(PRODUCT.attributes())
    assert RegionOperation.of_attributes(blank.attributes) == BLANK
    assert plain.attributes == {}


def test_what_is_known_of_kernels_comes_back_beside_an_operation(tmp_path: Path, mine: Recorder) -> None:
    both, kernels = execution("both", START_NS, START_NS + 9), execution("kernels", START_NS, START_NS + 9)
    both.operation, both.kernels, kernels.kernels = BLANK, HUNGRY, TALKING
    kernels.kernel_stamps = KernelStamps(("gemm", "relu"), (0, 1, 0), (20, 30, -5), (10, 10, 10))
    mine.take_ended(both)
    mine.take_ended(kernels)
    mine.close()
    first, second = intact(tmp_path).spans
    assert (RegionOperation.of_attributes(first.attributes), KernelWork.of_attributes(first.attributes)) == (
        BLANK,
        HUNGRY,
    )
    assert (RegionOperation.of_attributes(second.attributes), KernelWork.of_attributes(second.attributes)) == (
        None,
        TALKING,
    )
    assert (first.kernels, second.kernels) == (None, kernels.kernel_stamps)


def test_an_execution_is_written_when_the_window_that_saw_it_was_read(tmp_path: Path, clock: FakeClock) -> None:
    mine = recorder(tmp_path, clock)
    first, second, plain = (execution(name, START_NS, START_NS + 9) for name in ("first", "second", "plain"))
    first.awaits_kernels = second.awaits_kernels = True
    clock.advance(0.1)
    for each in (first, second, plain):
        mine.take_ended(each)
    clock.advance(2)
    for each in (first, second, plain):
        mine.take_settled(each)
    mine.take_read()
    assert mine.spans == 1
    second.kernels, second.awaits_kernels = HUNGRY, False
    mine.take_read()
    assert mine.spans == 2
    clock.advance(AWAIT_S)
    mine.take_read()
    assert mine.spans == 3
    mine.close()
    found = {span.name: KernelWork.of_attributes(span.attributes) for span in intact(tmp_path).spans}
    assert found == {"plain": None, "second": HUNGRY, "first": None}


def test_what_waits_for_a_window_is_written_at_the_end(tmp_path: Path, clock: FakeClock, mine: Recorder) -> None:
    each = execution("step", START_NS, START_NS + 9)
    each.awaits_kernels = True
    clock.advance(0.1)
    mine.take_ended(each)
    assert mine.spans == 0
    mine.close()
    mine.close()
    assert [span.name for span in intact(tmp_path).spans] == ["step"]


def test_an_execution_says_whether_it_failed_and_where_it_ran(tmp_path: Path) -> None:
    guess = Device("GPU-B")

    def devices_of(each: Execution) -> tuple[Device, ...]:
        return (guess,) if each.device is None else ()  # what is named is not among the devices here

    mine = Recorder(tmp_path, clock=FakeClock(), driver=lambda: ("nvml", ""), devices_of=devices_of)
    told, untold = execution("told", START_NS, START_NS + 1), execution("untold", START_NS, START_NS + 1)
    told.device, told.failed = GPU.uuid, True
    mine.take_ended(told)
    mine.take_ended(untold)
    mine.close()
    found = [(span.name, span.devices, span.assumed, span.failed) for span in intact(tmp_path).spans]
    assert found == [("told", (GPU.uuid,), False, True), ("untold", (guess.uuid,), True, False)]


class Stream:
    """A stream whose marks are passed when the test says so."""

    device_uuid = GPU.uuid

    def __init__(self) -> None:
        self.passed: dict[object, int] = {}

    def record(self) -> object:
        return object()

    def resolve(self, mark: object) -> int | None:
        return self.passed.get(mark)


def on_stream(stream: Stream, start_ns: int) -> Execution:
    made = execution("step", 0, 0)
    made.mark_start(stream)
    made.start_ns, made.end_ns, made.end_mark = start_ns, start_ns + 5, stream.record()
    return made


def test_an_execution_on_a_stream_is_written_once_its_marks_are_passed_or_nobody_waits_any_more(tmp_path: Path) -> None:
    mine, stream = recorder(tmp_path, FakeClock()), Stream()
    first, second, third = (on_stream(stream, START_NS + i) for i in range(3))
    for each in (first, second):
        mine.take_ended(each)
    assert mine.spans == 0
    stream.passed = {first.start_mark: START_NS + 3, first.end_mark: START_NS + 30}
    mine.take_ended(third)
    assert mine.spans == 1
    for each in (first, second):
        mine.take_settled(each)
    assert mine.spans == 2, "each is written once"
    mine.close()
    found = intact(tmp_path).spans
    assert [span.start_ns for span in found] == [START_NS, START_NS + 1, START_NS + 2]
    assert [span.device_intervals for span in found] == [
        (DeviceInterval(GPU.uuid, 0, START_NS + 3, START_NS + 30),),
        (),
        (),
    ]
    assert [span.devices for span in found] == [(), (GPU.uuid,), (GPU.uuid,)]


def test_what_comes_after_the_end_starts_another_file(tmp_path: Path, clock: FakeClock, mine: Recorder) -> None:
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
            mine.take_ended(execution("step", START_NS, START_NS + 1))
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


def test_with_strict_a_failing_disk_raises_once(tmp_path: Path, clock: FakeClock) -> None:
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


# ---------------------------------------------------------------------- beside a parent that records the same devices


@pytest.mark.parametrize(
    ("sampled", "driver", "elsewhere", "kept"),
    [
        (None, "nvml", False, True),
        ("nvml", "nvml", False, False),
        ("auto", "nvml", False, False),
        ("auto", "smi", False, False),
        ("auto", "simulated:/node", False, True),
        ("simulated:/node", "simulated:/node", False, False),
        ("simulated:/node", "simulated:/other", False, True),
        ("nvml", "nvml", True, True),
        ("auto", "node:/run", False, False),
        ("node", "node:/run", False, False),
        ("node:/run", "node:/run", False, False),
        ("node:/run", "node:/other", False, True),
        ("nvml", "node:/run", False, True),
    ],
)
def test_samples_are_left_to_a_parent_that_records_the_same_driver_into_the_same_place(
    sampled: str | None,
    driver: str,
    elsewhere: bool,
    kept: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clock: FakeClock,
) -> None:
    if sampled is not None:
        monkeypatch.setenv(SAMPLED_VARIABLE, sampled)
    monkeypatch.setenv(RECORD_VARIABLE, str(tmp_path / "elsewhere" if elsewhere else tmp_path))
    session = Session(lambda: FakeDriver(clock, [GPU], name=driver), clock=clock)
    record_session(session, tmp_path)
    for _ in range(3):
        session.sampler.step(force=True)
        clock.advance(0.1)
    session.on_stop[-1]()
    session.sampler.stop()
    assert bool(intact(tmp_path).samples) is kept


def test_the_recorded_driver_is_the_one_that_reads_the_gpus_of_the_node(clock: FakeClock) -> None:
    driver = FakeDriver(clock, [GPU], name="node:/run", recorded_driver="simulated:/node")
    session = Session(lambda: driver, clock=clock)
    assert driver_of(session) == ("", "")
    session.sampler.step(force=True)
    assert driver_of(session) == ("simulated:/node", "1")
    session.sampler.stop()


def test_a_session_writes_what_waits_for_a_window_in_the_step_after_it_was_read(tmp_path: Path) -> None:
    clock = FakeClock()
    session = Session(lambda: FakeDriver(clock, [GPU]), clock=clock)
    mine = record_session(session, tmp_path)
    step, plain = (execution(name, START_NS, START_NS + 9) for name in ("step", "plain"))
    step.awaits_kernels = True
    clock.advance(0.1)
    session.began.extend((step, plain))
    session.sampler.step(force=True)
    session.settle()
    assert mine.spans == 1
    step.kernels, step.awaits_kernels = HUNGRY, False
    session.settle()
    assert mine.spans == 2
    session.on_stop[-1]()
    session.sampler.stop()
    found = {span.name: KernelWork.of_attributes(span.attributes) for span in intact(tmp_path).spans}
    assert found == {"plain": None, "step": HUNGRY}

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from support.concurrency import in_threads
from support.programs import environment, printed
from unit.kernels.sources.cupti.records import FakeCupti, install, real

from gpu_profile.errors import GpuBackendError
from gpu_profile.kernels.records import Call, Launched, Operation, Record
from gpu_profile.kernels.sources.cupti import CuptiSource
from gpu_profile.kernels.sources.cupti import rows as r
from gpu_profile.kernels.sources.cupti import source as source_module
from gpu_profile.regions.frameworks import libcuda


@pytest.fixture
def cupti(monkeypatch: pytest.MonkeyPatch) -> FakeCupti:
    return install(monkeypatch)


def source(**options: Any) -> CuptiSource:
    return CuptiSource(synchronise=lambda: None, **options)


@pytest.fixture
def recording(cupti: FakeCupti) -> CuptiSource:
    """One that has started."""
    made = source()
    made.start()
    return made


def test_what_happens_between_start_and_stop_is_recorded_once(cupti: FakeCupti) -> None:
    recording = source()
    cupti.kernel(1)
    recording.start()
    cupti.call(2)
    cupti.kernel(2, grid_x=66, grid_y=1, grid_z=1)
    records = recording.stop()
    cupti.kernel(3)
    found = list(records)
    assert [type(each) for each in found] == [Call, Operation]
    assert [each.correlation for each in found if isinstance(each, (Call, Operation))] == [2, 2]
    assert isinstance(found[1], Operation)
    assert found[1].blocks == 0.5  # of the device that was in use already
    assert list(records) == []
    with pytest.raises(GpuBackendError, match="does not record"):
        recording.stop()
    assert (recording.dropped, recording.skipped) == (0, {})


def test_records_are_taken_before_cupti_uses_the_buffer_anew_and_may_be_read_in_another_thread(
    cupti: FakeCupti, recording: CuptiSource
) -> None:
    for correlation in range(1, 4):
        cupti.kernel(correlation, name=f"kernel{correlation}")
        cupti.deliver()
    cupti.kernel(4, name="kernel4")
    found: list[Record] = []
    records = recording.stop()
    in_threads(lambda: found.extend(records))
    assert [each.name for each in found if isinstance(each, Operation)] == [f"kernel{number}" for number in range(1, 5)]


def test_buffers_are_large_and_every_kind_is_off_after_the_end(cupti: FakeCupti, recording: CuptiSource) -> None:
    assert r.KERNEL not in cupti.enabled
    assert cupti.enabled == {*source_module._NEEDED, *source_module._WANTED, r.DEVICE}
    assert ("runtime", int(real.runtime_api_trace_cbid["cudaGetLastError_v3020"])) in cupti.quiet
    recording.stop()
    assert (cupti.enabled, cupti.flushed) == (set(), [1])
    assert set(cupti.buffers) == {(8 << 20, 0)}


def test_the_names_of_quiet_calls_are_the_packages() -> None:
    for interface, names in source_module._QUIET.items():
        assert set(names) <= {each.name for each in getattr(real, f"{interface}_api_trace_cbid")}


def test_calls_belong_to_the_innermost_range_of_their_own_thread(cupti: FakeCupti, recording: CuptiSource) -> None:
    recording.push(1)
    recording.push(2)
    cupti.call(10)
    in_threads(partial(cupti.call, 11))
    recording.pop()
    cupti.call(12)
    recording.pop()
    cupti.call(13)
    recording.pop()  # one too many is no matter
    found = list(recording.stop())
    assert [each for each in found if isinstance(each, Launched)] == [Launched(10, 2), Launched(12, 1)]
    threads = {each.correlation: each.thread for each in found if isinstance(each, Call)}
    assert threads[10] == threading.get_native_id()
    assert threads[11] != threads[10]


def test_a_range_that_was_left_open_is_not_a_later_recordings(cupti: FakeCupti, recording: CuptiSource) -> None:
    recording.push(1)
    recording.stop()
    recording.start()
    cupti.call(10)
    recording.push(1)
    cupti.call(11)
    recording.pop()
    found = list(recording.stop())
    assert [each for each in found if isinstance(each, Launched)] == [Launched(11, 1)]


def test_nothing_is_pushed_while_nothing_records(cupti: FakeCupti) -> None:
    recording = source()
    recording.push(1)
    recording.pop()
    recording.start()
    recording.stop()
    recording.push(2)
    assert not getattr(cupti.ids, "stacks", None)


def test_what_is_lost_is_counted_whoever_lost_it(cupti: FakeCupti) -> None:
    recording = source(most_records=3)
    recording.start()  # the device is a record too
    cupti.lost = 5
    for correlation in range(1, 5):
        cupti.kernel(correlation, end=0 if correlation == 1 else 40)
    records = recording.stop()
    assert [each.correlation for each in records if isinstance(each, Operation)] == [2]
    assert recording.skipped == {"without a time: it had not ended": 1}
    assert recording.dropped == 5 + 2 + 1
    recording.start()
    assert list(recording.stop()) == []
    assert recording.dropped == 0


@pytest.mark.parametrize("call", ["activity_flush_all", "other user"])
def test_where_the_lost_cannot_be_counted_their_number_is_not_known(
    cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch, call: str, recording: CuptiSource
) -> None:
    if call == "other user":
        monkeypatch.setattr(source_module, "other_user", lambda: "PyTorch's profiler has begun")
    cupti.refuses[call] = 999
    list(recording.stop())
    assert recording.dropped is None


def test_a_record_that_cannot_be_read_is_counted_and_the_others_are_kept(cupti: FakeCupti) -> None:
    class Broken:
        @property
        def kind(self) -> int:
            raise RuntimeError("gone")

    recording = source()
    recording.start()
    cupti.pending.append((Broken(), bytearray()))
    rows = r.CuptiRows(10)
    rows.add([Broken()])
    assert rows.left_out == 1
    source_module._completed([Broken()])
    cupti.pending.clear()
    cupti.kernel(1)
    assert [each.correlation for each in recording.stop() if isinstance(each, Operation)] == [1]
    assert recording.dropped == 1


def test_the_gpus_are_waited_for_before_the_end_and_their_failure_is_the_programs_own(cupti: FakeCupti) -> None:
    def synchronise() -> None:
        cupti.kernel(1)
        raise RuntimeError("an illegal memory access was encountered")

    recording = CuptiSource(synchronise=synchronise)
    recording.start()
    assert [each.correlation for each in recording.stop() if isinstance(each, Operation)] == [1]


def test_every_gpu_in_use_is_waited_for_in_its_own_context_and_no_other_is_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    class Cuda:
        def count(self) -> int:
            return 3

        def active(self, ordinal: int) -> bool:
            return ordinal != 1

        def context(self, ordinal: int) -> int:
            return 100 + ordinal

        @contextmanager
        def inside(self, context: int) -> Iterator[None]:
            done.append(f"into {context}")
            yield
            done.append(f"out of {context}")

    library = SimpleNamespace(cuCtxSynchronize=lambda: done.append("wait"))
    monkeypatch.setattr(source_module, "ctypes", SimpleNamespace(CDLL=lambda name: library))
    monkeypatch.setattr(libcuda, "loaded", lambda: None)
    source_module.wait_for_devices()
    assert not done
    monkeypatch.setattr(libcuda, "loaded", Cuda)
    source_module.wait_for_devices()
    assert done == ["into 100", "wait", "out of 100", "into 102", "wait", "out of 102"]


@pytest.mark.parametrize("what", ["set_thread_id_type", "activity_register_callbacks", r.RUNTIME, r.CONCURRENT_KERNEL])
def test_a_refusal_is_one_line_with_what_to_do_and_nothing_stays_on(cupti: FakeCupti, what: str | int) -> None:
    recording = source()
    cupti.refuses[what] = 39
    with pytest.raises(GpuBackendError) as refused:
        recording.start()
    assert str(refused.value).startswith(
        "CUPTI cannot record: another tool of this process holds CUPTI (CUPTI error 39)"
    )
    assert "\n" not in str(refused.value)
    assert not cupti.enabled
    with pytest.raises(GpuBackendError, match="does not record"):
        recording.stop()
    cupti.refuses.clear()
    recording.start()
    cupti.kernel(1)
    assert len(list(recording.stop())) == 1


def test_records_that_can_be_done_without_are_left_out(cupti: FakeCupti) -> None:
    recording = source()
    cupti.refuses = {r.MEMORY2: 27, r.DEVICE: 14}
    recording.start()
    cupti.kernel(1, grid_x=66, grid_y=1, grid_z=1)
    (found,) = recording.stop()
    assert isinstance(found, Operation)
    assert found.blocks is None


def test_only_one_source_records_at_a_time(cupti: FakeCupti) -> None:
    first, second = source(), source()
    first.start()
    for each in (first, second):
        with pytest.raises(GpuBackendError, match="another window"):
            each.start()
    with pytest.raises(GpuBackendError, match="does not record"):
        second.stop()
    cupti.kernel(1)
    assert len(list(first.stop())) == 1
    second.start()
    assert list(second.stop()) == []


def test_a_package_that_cannot_be_imported_is_one_line(cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupti", None)
    with pytest.raises(GpuBackendError, match=r"^cupti-python cannot be imported: ModuleNotFoundError: .*cupti"):
        source().start()


def test_what_is_in_the_way_is_said_and_nothing_is_touched(cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "hindrance", lambda: "Nsight holds CUPTI: run without it")
    with pytest.raises(GpuBackendError, match=r"^Nsight holds CUPTI: run without it$"):
        source().start()
    assert cupti.callbacks is None


def test_records_that_come_when_nothing_records_are_let_go(cupti: FakeCupti, recording: CuptiSource) -> None:
    recording.stop()
    cupti.pending.append((object(), bytearray()))
    source_module._completed([object()])
    assert source_module._requested() == (8 << 20, 0)
    assert recording.dropped == 0


def run(script: str) -> str:
    """What a process of its own prints, with the fake in place."""
    before = """
import os, sys, threading
import pytest
from unit.kernels.sources.cupti.records import install
from gpu_profile.kernels.sources.cupti import CuptiSource
monkeypatch = pytest.MonkeyPatch()
"""
    paths = environment()["PYTHONPATH"] + ":" + str(__file__).rpartition("/unit/")[0]
    return printed("-c", before + script, PYTHONPATH=paths)


def test_in_a_forked_child_it_is_dead_and_the_parent_goes_on() -> None:
    script = """
from gpu_profile.kernels.sources.cupti import source as module
process = module._process
cupti = install(monkeypatch)
module._process = process
recording = CuptiSource(synchronise=lambda: None)
recording.start()
child = os.fork()
if not child:
    recording.push(1)
    recording.pop()
    assert not getattr(cupti.ids, "stacks", None)
    for use in (recording.stop, recording.start, CuptiSource().start):
        try:
            use()
        except Exception as error:
            print(error, flush=True)
    assert cupti.enabled, "the child touched CUPTI"
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
cupti.kernel(1)
print(len(list(recording.stop())), flush=True)
"""
    refused = "CUPTI does not work in a forked process whose parent has used it: start the process with spawn"
    assert run(script).splitlines() == ["this source does not record: start it first", refused, refused, "1"]


def test_a_recording_that_is_open_when_the_program_ends_is_ended_after_all_that_may_want_it() -> None:
    script = """
import atexit
from gpu_profile.kernels.sources.cupti import source as module
from gpu_profile.kernels.sources.source import _end_all
process = module._process
cupti = install(monkeypatch)
module._process = process
recording = CuptiSource(synchronise=lambda: print("waited"))
recording.start()
atexit.unregister(_end_all)
atexit.register(lambda: print(cupti.enabled, cupti.flushed))
atexit.register(_end_all)
atexit.register(lambda: print(bool(cupti.enabled), cupti.flushed))
"""
    assert run(script).splitlines() == ["True []", "set() [1]"]


def test_nothing_of_cupti_is_imported_before_it_is_asked_for() -> None:
    script = """
import sys
import gpu_profile.kernels
from gpu_profile.kernels.sources.cupti import hindrance
from gpu_profile.kernels.sources.cupti.obstacles import loaded
hindrance()
print({"cupti", "torch"} & set(sys.modules), loaded("libcupti.so.13"))
"""
    assert printed("-c", script) == "set() False\n"

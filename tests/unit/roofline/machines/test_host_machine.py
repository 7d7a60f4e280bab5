import mmap

import pytest
from support.programs import printed
from support.roofline import failing

from gpu_profile.errors import UsageError
from gpu_profile.roofline.machines.host_machine import Host, allocated, flush_bytes
from gpu_profile.roofline.machines.machine import Machine, Timing
from gpu_profile.testing import FakeClock
from gpu_profile.units import MIB


def test_a_call_runs_once_and_both_its_times_are_the_hosts(clock: FakeClock) -> None:
    calls = []

    def call() -> str:
        clock.advance(0.25)
        calls.append(1)
        return "result"

    machine: Machine = Host()
    result, timing = machine.run(call)
    # The interpreter may touch memory for the first time in any call.
    assert (result, timing._replace(faults=0)) == ("result", Timing(0.25, 0.25))
    assert calls == [1]


@pytest.mark.parametrize("error", [ValueError("the user's"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_passes_through_untouched_and_the_next_call_is_timed(error: BaseException) -> None:
    machine = Host()
    with pytest.raises(type(error)) as met:
        machine.run(failing(error))
    assert met.value is error
    assert met.value.__cause__ is met.value.__context__ is None
    assert machine.run(lambda: 5)[0] == 5


def test_it_is_no_gpu_and_says_what_it_is() -> None:
    machine = Host()
    assert (machine.kind, machine.device, machine.uuid, machine.region_device) == ("host", "host", None, None)
    assert machine.key["processor"] == machine.name
    assert float(machine.key["cores"]) > 0
    found = machine.memory()
    assert found is not None
    assert found.allocated > 0


def test_the_key_changes_with_the_number_of_threads_that_numpy_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    machine = Host()
    before = dict(machine.key)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    assert machine.key == {**before, "OPENBLAS_NUM_THREADS": "1"}


@pytest.mark.parametrize("cache", [None, 100 * MIB, 32 * MIB + 8000])
def test_flushing_writes_all_of_one_buffer_that_is_kept(cache: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "cache_bytes", cache)
    machine = Host()
    machine.flush()
    buffer = machine._buffer
    assert buffer is not None
    assert len(buffer) == flush_bytes(cache)
    buffer[:] = b"\1" * len(buffer)
    machine.flush()
    assert machine._buffer is buffer
    assert bytes(buffer) == bytes(len(buffer))


@pytest.mark.parametrize(
    ("error", "words"),
    [(MemoryError(), "no memory"), (RuntimeError("CUDA out of memory.\nSee …"), "CUDA out of memory.")],
)
def test_without_room_for_the_buffer_flushing_is_refused_in_one_line(error: Exception, words: str) -> None:
    def allocate(_: int) -> bytes:
        raise error

    with pytest.raises(UsageError) as met:
        allocated(allocate, 64 * MIB, "cuda:0")
    assert str(met.value) == (
        f"cuda:0: no 64 MiB to overwrite its caches with: {words}; free memory, or leave out flush"
    )


def test_it_needs_no_framework() -> None:
    script = """
import sys
sys.modules.update(dict.fromkeys(("torch", "cupy"), None))
from gpu_profile.roofline.machines.devices import machine
host = machine()
host.flush()
print(host.kind, host.run(lambda: 7)[0], host.key["cores"] != "")
print([name for name in ("torch", "cupy", "matplotlib", "pynvml") if sys.modules.get(name)])
"""
    assert printed("-c", script).splitlines() == ["host 7 True", "[]"]


def test_pages_that_are_touched_for_the_first_time_are_counted() -> None:
    # Of its own mapping: what an allocator has, it may have had before.
    _, timing = Host().run(lambda: mmap.mmap(-1, 16 * MIB).write(b"\1" * (16 * MIB)))
    assert timing.faults >= 8
    assert Host().run(int)[1].faults < 8

"""CuPy's machines, on a model of CUDA and of CuPy's interface to it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from support.cuda import FakeCuda
from support.roofline import L2_BYTES, Accelerator, cupy_with, failing, fake_clock, fake_cuda

from gpu_profile.errors import UsageError
from gpu_profile.regions.frameworks import libcuda
from gpu_profile.roofline.machines.cupy_machine import CupyDevice
from gpu_profile.roofline.machines.machine import Machine, Memory

__all__ = ["fake_clock", "fake_cuda"]


@pytest.fixture(name="gpus")
def fake_gpus(cuda: FakeCuda) -> Accelerator:
    return Accelerator(cuda)


@pytest.fixture(name="cupy")
def fake_cupy(gpus: Accelerator, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = cupy_with(gpus)
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return made


def test_device_time_is_from_event_to_event(cupy: Any, cuda: FakeCuda) -> None:
    machine: Machine = CupyDevice(0)
    cuda.launch(0.5)

    def call() -> str:
        cuda.clock.advance(0.002)
        cuda.launch(0.010)
        return "result"

    result, timing = machine.run(call)
    assert result == "result"
    assert timing.device_s == pytest.approx(0.010, abs=1e-6)
    assert timing.host_s == pytest.approx(0.002, abs=1e-5)
    assert cuda.waits == []


def test_a_call_runs_with_its_device_current_on_the_current_stream(
    cupy: Any, gpus: Accelerator, cuda: FakeCuda
) -> None:
    side = cuda.new_stream(1)
    gpus.streams[1] = side
    machine = CupyDevice(1)
    assert machine.run(gpus.current_device)[0] == 1
    assert machine.run(lambda: cuda.launch(0.020, side))[1].device_s == pytest.approx(0.020, abs=1e-6)
    assert gpus.current == 0


def test_the_users_exception_is_the_same_object_and_the_machine_goes_on(
    cupy: Any, gpus: Accelerator, cuda: FakeCuda
) -> None:
    machine, error = CupyDevice(1), ValueError("the user's")
    with pytest.raises(ValueError, match="the user's") as met:
        machine.run(failing(error))
    assert met.value is error
    assert gpus.current == 0
    assert machine.run(lambda: cuda.launch(0.010, 1))[1].device_s == pytest.approx(0.010, abs=1e-6)


def test_in_a_capture_nothing_runs(cupy: Any, gpus: Accelerator, cuda: FakeCuda) -> None:
    side = cuda.new_stream()
    gpus.streams[0] = side
    machine = CupyDevice(0)
    with cuda.capture(side):
        with pytest.raises(UsageError, match="cupy:0: the current stream is being captured into a graph"):
            machine.run(lambda: pytest.fail("ran"))
        with pytest.raises(UsageError):
            machine.flush()
    assert gpus.overwritten == []


def test_flushing_overwrites_several_times_the_cache(cupy: Any, gpus: Accelerator) -> None:
    machine = CupyDevice(0)
    machine.flush()
    machine.flush()
    assert gpus.overwritten == [4 * L2_BYTES] * 2


def test_memory_is_the_pools_and_the_devices_but_absent_with_another_allocator(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = CupyDevice(0)
    assert machine.memory() == Memory(allocated=20, reserved=30, peak=30, free=100, total=141)
    monkeypatch.setattr(cupy.cuda, "get_allocator", object)
    assert machine.memory() is None


def test_it_says_what_it_is(cupy: Any, cuda: FakeCuda) -> None:
    machine = CupyDevice(1)
    assert (machine.kind, machine.device, machine.name, machine.uuid) == ("cupy", "cupy:1", "NVIDIA H200", "GPU-1")
    assert machine.region_device == "GPU-1"
    assert machine.cache_bytes == L2_BYTES
    assert machine.key == {
        "device": "NVIDIA H200",
        "cupy": "14.2.0",
        "cuda": "12090",
        "capability": "9.0",
        "multiprocessors": "132",
        "uuid": "GPU-1",
    }


def test_without_the_drivers_library_the_ordinal_serves(
    cupy: Any, gpus: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libcuda, "loaded", lambda: None)
    gpus.current = 1
    assert CupyDevice().region_device == 1


def test_an_amd_gpu_has_no_uuid_of_nvmls(gpus: Accelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy_with(gpus, hip=True))
    machine = CupyDevice(0)
    assert (machine.uuid, machine.region_device) == (None, None)


def test_without_cupy_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(UsageError, match="needs CuPy: pip install") as met:
        CupyDevice()
    assert "\n" not in str(met.value)

"""CuPy's machines, on a model of CUDA and of CuPy's interface to it."""

import sys
from typing import Any

import pytest
from support.cuda import FakeCuda
from support.roofline import L2_BYTES, Accelerator, cupy_with

from gpu_profile.errors import UsageError
from gpu_profile.regions.frameworks import libcuda
from gpu_profile.roofline.machines.cupy_machine import CupyDevice
from gpu_profile.roofline.machines.machine import Memory


@pytest.fixture(name="gpus")
def fake_gpus(cuda: FakeCuda) -> Accelerator:
    return Accelerator(cuda)


@pytest.fixture(name="cupy")
def fake_cupy(gpus: Accelerator, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = cupy_with(gpus)
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return made


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

"""The machines of PyTorch: the processor for real where PyTorch is installed, accelerators on a model of CUDA."""

import gc
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cuda import FakeCuda
from support.roofline import L2_BYTES, Accelerator, Buffer, failing, torch_with

from gpu_profile.driver import simulated
from gpu_profile.errors import UsageError
from gpu_profile.regions.frameworks import libcuda
from gpu_profile.roofline.machines import torch_machine
from gpu_profile.roofline.machines.machine import Machine, Memory, Timing
from gpu_profile.roofline.machines.nvml_facts import nvml_facts
from gpu_profile.roofline.machines.torch_machine import TorchAccelerator, TorchCpu, TorchMps
from gpu_profile.testing import FakeClock
from gpu_profile.units import MIB

# ---------------------------------------------------------------------- the processor


def test_the_processor_runs_a_call_once_and_returns_its_result(torch: Any) -> None:
    machine: Machine = TorchCpu()
    calls = []

    def call() -> Any:
        calls.append(1)
        return torch.ones(3, requires_grad=True) * 2

    result, timing = machine.run(call)
    assert calls == [1]
    assert result.grad_fn is not None
    assert timing.device_s == timing.host_s > 0


def test_the_processors_key_has_what_its_ceilings_depend_on_now(torch: Any) -> None:
    machine = TorchCpu()
    key, threads = machine.key, torch.get_num_threads()
    assert key["torch"] == torch.__version__
    assert key["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert key["threads"] == str(threads)
    try:
        torch.set_num_threads(threads + 1)
        assert machine.key == {**key, "threads": str(threads + 1)}
    finally:
        torch.set_num_threads(threads)


def test_the_processor_is_flushed_in_inference_mode_and_out_of_it(torch: Any) -> None:
    machine = TorchCpu()
    with torch.inference_mode():
        machine.flush()
    machine.flush()
    with torch.no_grad():
        machine.flush()
    buffer = machine._overwrite._buffer
    assert buffer.numel() == max(128 * MIB, 4 * (machine.cache_bytes or 0))
    assert int(buffer[0]) == int(buffer[-1]) == 3


def test_a_flush_leaves_the_default_device_and_the_random_state_alone(torch: Any) -> None:
    state = torch.get_rng_state()
    with torch.device("meta"):
        TorchCpu().flush()
        assert torch.ones(1).is_meta
    assert torch.equal(state, torch.get_rng_state())


# ---------------------------------------------------------------------- accelerators: caches and memory


def test_flushing_overwrites_several_times_the_cache_in_a_buffer_that_dies_with_the_machine(gpus: Accelerator) -> None:
    machine = TorchAccelerator("cuda", 1)
    assert machine.cache_bytes == L2_BYTES
    machine.flush()
    machine.flush()
    assert gpus.overwritten == [4 * L2_BYTES] * 2
    assert sys.modules["torch"].buffers == ["cuda:1"]
    buffer: weakref.ref[Buffer] = weakref.ref(machine._overwrite._buffer)
    del machine
    gc.collect()
    assert buffer() is None


def test_a_full_device_is_not_flushed_and_one_line_says_why(gpus: Accelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 100 MiB\nmore")

    monkeypatch.setattr(sys.modules["torch"], "zeros", full)
    with pytest.raises(UsageError, match="cuda:0: no 200 MiB to overwrite its caches with") as met:
        TorchAccelerator("cuda", 0).flush()
    assert "\n" not in str(met.value)


def test_memory_is_the_allocators_and_the_devices_or_absent(gpus: Accelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = TorchAccelerator("cuda", 0)
    assert machine.memory() == Memory(allocated=20, reserved=30, peak=25, free=100, total=141)
    monkeypatch.setattr(Accelerator, "mem_get_info", lambda *_: failing(RuntimeError("cannot query"))())
    assert machine.memory() is None


# ---------------------------------------------------------------------- accelerators: identity


def test_a_gpu_is_known_by_the_uuid_that_the_driver_gives(gpus: Accelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = TorchAccelerator("cuda", 1)
    assert (machine.kind, machine.device, machine.name) == ("cuda", "cuda:1", "NVIDIA H200")
    assert machine.uuid == machine.region_device == "GPU-1"
    monkeypatch.setattr(FakeCuda, "uuid", lambda *_: "MIG-1")
    assert TorchAccelerator("cuda", 1).region_device == "MIG-1"


def test_without_the_drivers_library_the_uuid_is_torchs_or_else_the_ordinal_serves(
    gpus: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libcuda, "loaded", lambda: None)
    assert TorchAccelerator("cuda", 0).uuid == "GPU-0a1b2c3d-0000-4000-8000-000000000000"
    del gpus.properties.uuid
    machine = TorchAccelerator("cuda", 1)
    assert machine.uuid is None
    assert machine.region_device == 1


def test_without_a_number_it_is_the_current_device(gpus: Accelerator) -> None:
    gpus.current = 1
    assert TorchAccelerator("cuda").device == "cuda:1"


def test_the_key_of_a_gpu_has_what_nvml_says_of_its_board(
    gpus: Accelerator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import pynvml

    simulated.create(tmp_path / "node")
    with simulated.installed(tmp_path / "node"):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        monkeypatch.setattr(FakeCuda, "uuid", lambda *_: uuid)
        key = TorchAccelerator("cuda", 0).key
        assert key["driver"] == pynvml.nvmlSystemGetDriverVersion()
        assert key["max_sm_clock_mhz"] == str(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))
        assert float(key["power_limit_w"]) == pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
        # It is still started: only the machine's own use has ended.
        assert pynvml.nvmlDeviceGetCount() > 0
        pynvml.nvmlShutdown()
    assert key["uuid"] == uuid
    assert (key["torch"], key["cuda"], key["capability"], key["multiprocessors"]) == ("2.9.0", "12.8", "9.0", "132")
    assert all(key.values())


def test_a_board_that_nvml_does_not_know_tells_its_driver_alone(tmp_path: Path) -> None:
    simulated.create(tmp_path / "node")
    with simulated.installed(tmp_path / "node"):
        assert set(nvml_facts("GPU-unknown")) == {"driver"}


def test_without_nvml_the_key_does_without_it(gpus: Accelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    key = TorchAccelerator("cuda", 0).key
    assert "driver" not in key
    assert key["uuid"] == "GPU-0"


def test_an_amd_gpu_has_no_uuid_of_nvmls_and_no_regions_device(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Accelerator(cuda, properties=SimpleNamespace(name="AMD Instinct MI300X", gcnArchName="gfx942", uuid="53-4"))
    monkeypatch.setitem(sys.modules, "torch", torch_with(cuda=gpus, hip="6.4"))
    machine = TorchAccelerator("cuda", 0)
    assert (machine.uuid, machine.region_device, machine.cache_bytes) == (None, None, None)
    assert machine.key == {
        "device": "AMD Instinct MI300X",
        "torch": "2.9.0",
        "hip": "6.4",
        "capability": "gfx942",
        "uuid": "53-4",
    }


def test_an_intel_gpu_is_timed_the_same_way(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Accelerator(cuda, properties=SimpleNamespace(name="Intel Max 1550", driver_version="1.6.3"))
    monkeypatch.setitem(sys.modules, "torch", torch_with(xpu=gpus))
    machine = TorchAccelerator("xpu", 0)
    assert (machine.device, machine.uuid, machine.region_device) == ("xpu:0", None, None)
    assert machine.key["driver"] == "1.6.3"
    assert machine.run(lambda: cuda.launch(0.010))[1].device_s == pytest.approx(0.010, abs=1e-6)


# ---------------------------------------------------------------------- Apple


def test_an_apple_gpu_is_timed_from_wait_to_wait(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = torch_with(mps=True)
    queued = [0.5]

    def synchronize() -> None:
        clock.advance(sum(queued))
        queued.clear()

    def call() -> str:
        clock.advance(0.002)
        queued.append(0.010)
        return "result"

    torch.mps = SimpleNamespace(synchronize=synchronize)
    monkeypatch.setitem(sys.modules, "torch", torch)
    machine: Machine = TorchMps()
    assert machine.run(call) == ("result", Timing(pytest.approx(0.012), pytest.approx(0.002)))  # type: ignore[arg-type]
    machine.flush()
    assert torch.buffers == ["mps"]
    assert machine.memory() is None
    assert torch_machine.TorchMps.region_device is None
    assert machine.key["torch"] == "2.9.0"

"""The machines of PyTorch: the processor for real where PyTorch is installed, accelerators on a model of CUDA."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cuda import FakeCuda
from support.roofline import L2_BYTES, Accelerator, Buffer, failing, fake_clock, fake_cuda, torch_with

from gpu_profile.driver import simulated
from gpu_profile.errors import UsageError
from gpu_profile.regions.frameworks import libcuda
from gpu_profile.roofline.machines import torch_machine
from gpu_profile.roofline.machines.machine import Machine, Memory, Timing
from gpu_profile.roofline.machines.nvml_facts import nvml_facts
from gpu_profile.roofline.machines.torch_machine import TorchAccelerator, TorchCpu, TorchMps
from gpu_profile.testing import START_NS, FakeClock
from gpu_profile.units import MIB, NS_PER_S

__all__ = ["fake_clock", "fake_cuda"]


@pytest.fixture(name="torch")
def real_torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(name="gpus")
def fake_gpus(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """`torch.cuda` with two devices."""
    gpus = Accelerator(cuda)
    monkeypatch.setitem(sys.modules, "torch", torch_with(cuda=gpus))
    return gpus


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


def test_without_torch_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"needs PyTorch: pip install 'gpu-profile\[roofline\]'") as met:
        TorchCpu()
    assert "\n" not in str(met.value)


# ---------------------------------------------------------------------- accelerators: time


def test_device_time_is_from_event_to_event_without_what_was_queued_before(gpus: Accelerator, cuda: FakeCuda) -> None:
    machine: Machine = TorchAccelerator("cuda", 0)
    cuda.launch(0.5)

    def call() -> str:
        cuda.clock.advance(0.002)
        cuda.launch(0.010)
        return "result"

    result, timing = machine.run(call)
    assert result == "result"
    assert timing.device_s == pytest.approx(0.010, abs=1e-6)
    assert timing.host_s == pytest.approx(0.002, abs=1e-5)


def test_a_call_that_the_host_holds_up_takes_the_device_as_long(gpus: Accelerator, cuda: FakeCuda) -> None:
    _, timing = TorchAccelerator("cuda", 0).run(lambda: cuda.clock.advance(0.003))
    assert timing.device_s == pytest.approx(0.003, abs=1e-5)


def test_only_the_call_is_waited_for_not_other_streams(gpus: Accelerator, cuda: FakeCuda) -> None:
    other = cuda.new_stream()
    ends_ns = cuda.launch(9.0, other)
    TorchAccelerator("cuda", 0).run(lambda: cuda.launch(0.010))
    assert START_NS + 0.010 * NS_PER_S < cuda.clock.now_ns() < ends_ns
    assert cuda.waits == []


def test_the_current_stream_is_the_one_that_is_timed(gpus: Accelerator, cuda: FakeCuda) -> None:
    side = cuda.new_stream(1)
    gpus.streams[1] = side
    _, timing = TorchAccelerator("cuda", 1).run(lambda: cuda.launch(0.020, side))
    assert timing.device_s == pytest.approx(0.020, abs=1e-6)


def test_a_call_runs_with_its_device_current_and_no_other_gets_a_context(gpus: Accelerator, cuda: FakeCuda) -> None:
    machine = TorchAccelerator("cuda", 1)
    machine.run(lambda: None)
    machine.flush()
    machine.memory()
    assert machine.run(gpus.current_device)[0] == 1
    assert gpus.current == 0
    assert cuda.contexts == {1}
    assert cuda.waits == ["stream of device 1"]  # until the cache is overwritten


def test_calls_within_calls_are_each_timed(gpus: Accelerator, cuda: FakeCuda) -> None:
    machine = TorchAccelerator("cuda", 0)
    for _ in range(2):
        (_, inner), outer = machine.run(lambda: machine.run(lambda: cuda.launch(0.010)))
        assert inner.device_s == pytest.approx(0.010, abs=1e-5)
        assert inner.device_s < outer.device_s < 0.011


def test_events_are_used_again(gpus: Accelerator, cuda: FakeCuda) -> None:
    machine = TorchAccelerator("cuda", 0)
    for _ in range(5):
        machine.run(lambda: cuda.launch(0.001))
    assert len(cuda.events) == 2


# ---------------------------------------------------------------------- accelerators: what goes wrong


@pytest.mark.parametrize("error", [ValueError("the user's"), KeyboardInterrupt()])
def test_the_users_exception_is_the_same_object_and_the_machine_goes_on(
    error: BaseException, gpus: Accelerator, cuda: FakeCuda
) -> None:
    machine = TorchAccelerator("cuda", 1)
    with pytest.raises(type(error)) as met:
        machine.run(failing(error))
    assert met.value is error
    assert met.value.__cause__ is met.value.__context__ is None
    assert gpus.current == 0
    _, timing = machine.run(lambda: cuda.launch(0.010, 1))
    assert timing.device_s == pytest.approx(0.010, abs=1e-6)


def test_an_error_that_the_device_reports_late_passes_through(
    gpus: Accelerator, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = RuntimeError("CUDA error: an illegal memory access was encountered")
    machine = TorchAccelerator("cuda", 0)
    machine.run(lambda: None)
    monkeypatch.setattr("support.roofline.Event.synchronize", lambda event: failing(late)())
    with pytest.raises(RuntimeError) as met:
        machine.run(lambda: None)
    assert met.value is late


def test_in_a_capture_nothing_runs_and_one_line_says_why(gpus: Accelerator, cuda: FakeCuda) -> None:
    side = cuda.new_stream()
    gpus.streams[0] = side
    machine = TorchAccelerator("cuda", 0)
    with cuda.capture(side):
        with pytest.raises(UsageError, match="cuda:0: the current stream is being captured into a graph") as met:
            machine.run(lambda: pytest.fail("ran"))
        with pytest.raises(UsageError):
            machine.flush()
    assert "\n" not in str(met.value)
    assert not cuda.spoiled
    assert gpus.overwritten == []


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

"""What PyTorch's and CuPy's GPUs have in common: how calls are timed by events, on a model of CUDA."""

import sys
from collections.abc import Callable
from functools import partial

import pytest
from support.cuda import FakeCuda
from support.roofline import Accelerator, cupy_with, failing

from gpu_profile.errors import UsageError
from gpu_profile.roofline.machines.cupy_machine import CupyDevice
from gpu_profile.roofline.machines.machine import Machine
from gpu_profile.roofline.machines.torch_machine import TorchAccelerator
from gpu_profile.testing import START_NS
from gpu_profile.units import NS_PER_S

Make = Callable[[int], Machine]


@pytest.fixture(name="gpus")
def for_either(gpus: Accelerator, monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    monkeypatch.setitem(sys.modules, "cupy", cupy_with(gpus))
    return gpus


@pytest.fixture(name="make", params=[partial(TorchAccelerator, "cuda"), CupyDevice], ids=["torch", "cupy"])
def a_framework_s(request: pytest.FixtureRequest, gpus: Accelerator) -> Make:
    """The machine of this number."""
    made: Make = request.param
    return made


# ---------------------------------------------------------------------- time


def test_device_time_is_from_event_to_event_without_what_was_queued_before(make: Make, cuda: FakeCuda) -> None:
    machine = make(0)
    cuda.launch(0.5)

    def call() -> str:
        cuda.clock.advance(0.002)
        cuda.launch(0.010)
        return "result"

    result, timing = machine.run(call)
    assert result == "result"
    assert timing.device_s == pytest.approx(0.010, abs=1e-6)
    assert timing.host_s == pytest.approx(0.002, abs=1e-5)


def test_a_call_that_the_host_holds_up_takes_the_device_as_long(make: Make, cuda: FakeCuda) -> None:
    _, timing = make(0).run(lambda: cuda.clock.advance(0.003))
    assert timing.device_s == pytest.approx(0.003, abs=1e-5)


def test_only_the_call_is_waited_for_not_other_streams(make: Make, cuda: FakeCuda) -> None:
    other = cuda.new_stream()
    ends_ns = cuda.launch(9.0, other)
    make(0).run(lambda: cuda.launch(0.010))
    assert START_NS + 0.010 * NS_PER_S < cuda.clock.now_ns() < ends_ns
    assert cuda.waits == []


def test_the_current_stream_is_the_one_that_is_timed(make: Make, gpus: Accelerator, cuda: FakeCuda) -> None:
    side = cuda.new_stream(1)
    gpus.streams[1] = side
    _, timing = make(1).run(lambda: cuda.launch(0.020, side))
    assert timing.device_s == pytest.approx(0.020, abs=1e-6)


def test_a_call_runs_with_its_device_current_and_no_other_gets_a_context(
    make: Make, gpus: Accelerator, cuda: FakeCuda
) -> None:
    machine = make(1)
    machine.run(lambda: None)
    machine.flush()
    machine.memory()
    assert machine.run(gpus.current_device)[0] == 1
    assert gpus.current == 0
    assert cuda.contexts == {1}
    assert cuda.waits == ["stream of device 1"]  # until the cache is overwritten


def test_calls_within_calls_are_each_timed(make: Make, cuda: FakeCuda) -> None:
    machine = make(0)
    for _ in range(2):
        (_, inner), outer = machine.run(lambda: machine.run(lambda: cuda.launch(0.010)))
        assert inner.device_s == pytest.approx(0.010, abs=1e-5)
        assert inner.device_s < outer.device_s < 0.011


def test_events_are_used_again(make: Make, cuda: FakeCuda) -> None:
    machine = make(0)
    for _ in range(5):
        machine.run(lambda: cuda.launch(0.001))
    assert len(cuda.events) == 2


# ---------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("error", [ValueError("the user's"), KeyboardInterrupt()])
def test_the_users_exception_is_the_same_object_and_the_machine_goes_on(
    error: BaseException, make: Make, gpus: Accelerator, cuda: FakeCuda
) -> None:
    machine = make(1)
    with pytest.raises(type(error)) as met:
        machine.run(failing(error))
    assert met.value is error
    assert met.value.__cause__ is met.value.__context__ is None
    assert gpus.current == 0
    _, timing = machine.run(lambda: cuda.launch(0.010, 1))
    assert timing.device_s == pytest.approx(0.010, abs=1e-6)


def test_an_error_that_the_device_reports_late_passes_through(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    late = RuntimeError("CUDA error: an illegal memory access was encountered")
    machine = make(0)
    machine.run(lambda: None)
    monkeypatch.setattr("support.roofline.Event.synchronize", lambda event: failing(late)())
    with pytest.raises(RuntimeError) as met:
        machine.run(lambda: None)
    assert met.value is late


def test_in_a_capture_nothing_runs_and_one_line_says_why(make: Make, gpus: Accelerator, cuda: FakeCuda) -> None:
    side = cuda.new_stream()
    gpus.streams[0] = side
    machine = make(0)
    says = f"{machine.device}: the current stream is being captured into a graph"
    with cuda.capture(side):
        with pytest.raises(UsageError, match=says) as met:
            machine.run(lambda: pytest.fail("ran"))
        with pytest.raises(UsageError):
            machine.flush()
    assert "\n" not in str(met.value)
    assert not cuda.spoiled
    assert gpus.overwritten == []

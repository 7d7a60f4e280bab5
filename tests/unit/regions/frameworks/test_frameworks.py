import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from support.cuda import (
    FakeCuda,
    cupy_on,
    fake_clock,
    fake_cuda,
    fake_torch,
    in_thread,
    jax_on,
    no_frameworks,
    numba_on,
    stream_now,
)

from gpu_profile.regions.frameworks import current_device, find_stream, find_sync, libcuda
from gpu_profile.testing import FakeClock

MICROSECOND = 1_000


__all__ = ["fake_clock", "fake_cuda", "fake_torch", "no_frameworks"]


# ---------------------------------------------------------------------- what is alive


def nothing() -> bool:
    return (find_stream(), find_sync(), current_device()) == (None, None, None)


def test_without_a_framework_there_is_nothing_and_none_is_imported() -> None:
    assert nothing()
    assert not {"torch", "cupy", "numba.cuda", "jax"} & sys.modules.keys()


def test_torch_that_has_not_used_cuda_is_left_alone(torch: Any) -> None:
    torch.initialized = False
    torch.cuda.current_device = None  # to call it would initialise CUDA
    assert nothing()


@pytest.mark.parametrize("name", ["torch", "cupy", "numba.cuda", "jax"])
def test_a_framework_that_is_being_imported_is_not_alive(
    name: str, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda.contexts.clear()
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert nothing()


@pytest.mark.parametrize(("name", "make"), [("cupy", cupy_on), ("numba.cuda", numba_on)])
def test_others_are_alive_once_a_device_has_a_context(
    name: str, make: Callable[[FakeCuda], Any], cuda: FakeCuda, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, make(cuda))
    cuda.contexts.clear()
    assert nothing()
    cuda.contexts.add(0)
    assert current_device() == 0
    done_ns = cuda.launch(0.01)
    stream = stream_now(clock)
    mark = stream.record()
    clock.advance(0.02)
    assert stream.resolve(mark) == pytest.approx(done_ns, abs=10 * MICROSECOND)
    sync = find_sync()
    assert sync is not None
    sync()
    assert cuda.waits == [name.removesuffix(".cuda")]


def test_without_the_driver_library_there_are_no_marks(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libcuda, "_loaded", None)
    assert find_stream() is None


def test_a_device_without_a_context_is_not_given_one(torch: Any, cuda: FakeCuda, clock: FakeClock) -> None:
    cuda.devices = 2
    torch.use(1)
    current = find_stream(clock=clock)
    assert current is not None
    assert current() is None
    find_sync()()  # type: ignore[misc]
    assert cuda.waits == []


def test_jax_on_a_cpu_or_not_started_is_not_alive(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = jax_on(cuda, platform="cpu")
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert nothing()
    modules["jax"].default_backend = lambda: pytest.fail("would start a backend")
    modules["jax._src.xla_bridge"].started = False
    assert nothing()


# ---------------------------------------------------------------------- waiting, and the device


def test_jax_waits_for_the_arrays_that_are_alive_and_has_no_marks(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, module in jax_on(cuda).items():
        monkeypatch.setitem(sys.modules, name, module)
    assert find_stream() is None
    sync = find_sync()
    assert sync is not None
    sync()
    assert cuda.waits == ["jax: 1 arrays", "jax: effects"]
    assert current_device() == 0


def test_jax_on_several_devices_has_a_current_one_only_if_it_was_set(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = jax_on(cuda, devices=4)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert current_device() is None
    modules["jax"].config.jax_default_device = modules["jax"].local_devices()[2]
    assert current_device() == 2


def test_several_frameworks_are_all_waited_for(torch: Any, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy_on(cuda))
    monkeypatch.setitem(sys.modules, "numba.cuda", numba_on(cuda))
    find_sync()()  # type: ignore[misc]
    assert cuda.waits == ["torch", "cupy", "numba"]


def test_a_wait_in_a_capture_does_nothing(torch: Any, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = cupy_on(cuda)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    side = cuda.new_stream()
    torch.use(0, side)
    cupy.stream = side
    with cuda.capture(side):
        find_sync()()  # type: ignore[misc]
    assert cuda.waits == []


def test_what_a_wait_raises_reaches_the_caller(torch: Any) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    torch.cuda.synchronize = fail
    sync = find_sync()
    assert sync is not None
    with pytest.raises(RuntimeError, match="illegal memory access"):
        sync()


def test_the_current_device_is_the_calling_threads(torch: Any, cuda: FakeCuda) -> None:
    torch.use(3)
    assert current_device() == 3
    assert in_thread(current_device) == 0

"""The real calls, by ctypes, on a driver library that is compiled here and loaded in a process of its own."""

import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.programs import python

from gpu_profile.regions.frameworks.libcuda import Cuda

STUB = Path(__file__).parents[3] / "data" / "libcuda_stub.c"

BEFORE = """
import ctypes, sys, threading, time
from types import ModuleType, SimpleNamespace
from gpu_profile.regions.frameworks import current_device, find_stream, find_sync, libcuda
assert libcuda.loaded() is None and find_stream() is None
stub = ctypes.CDLL(sys.argv[1])
stub.stub_launch.argtypes = ctypes.c_void_p, ctypes.c_int64
stub.stub_capture.argtypes = ctypes.c_void_p, ctypes.c_int
stub.stub_tail.argtypes, stub.stub_tail.restype = (ctypes.c_void_p,), ctypes.c_int64
here, handles = [0], {}
torch = sys.modules["torch"] = ModuleType("torch")
torch._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda device: handles.get(device, 0))
torch.cuda = SimpleNamespace(is_initialized=lambda: True, current_device=lambda: here[0])
stub.stub_enter(0)
cuda, current = libcuda.loaded(), find_stream()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("libcuda") / "libcuda.so.1"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", os.fspath(path), os.fspath(STUB)]
    subprocess.run(command, check=True)
    return path


def run(library: Path, script: str) -> None:
    done = python("-W", "error", "-c", BEFORE + textwrap.dedent(script), os.fspath(library))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mark_is_passed_when_the_stream_has_come_to_it(library: Path) -> None:
    run(
        library,
        """
        stream = current()
        assert stream.device_uuid == "GPU-" + "-".join(["a0" * 4, "a0" * 2, "a0" * 2, "a0" * 2, "a0" * 6])
        stub.stub_launch(None, 30_000_000)
        mark, done_ns = stream.record(), stub.stub_tail(None)
        assert stream.resolve(mark) is None
        while (found := stream.resolve(mark)) is None:
            time.sleep(0.002)
        assert abs(found - done_ns) < 1_000_000
        """,
    )


def test_distances_of_many_events_are_those_of_each(library: Path) -> None:
    run(
        library,
        """
        events = [cuda.event() for _ in range(200)]
        for event in events:
            cuda.record(event, 0, 0)
            time.sleep(0.0001)
        pairs = [(events[0], event) for event in events]
        assert cuda.elapsed_each(pairs) == [cuda.elapsed_ns(*pair) for pair in pairs]
        assert cuda.elapsed_each([]) == []
        stub.stub_launch(None, 10_000_000_000)
        cuda.record(events[3], 0, 0)
        found = cuda.elapsed_each(pairs[:5])
        assert found[3] is None and None not in found[:3] and found[4] is not None
        """,
    )


def test_a_thread_without_a_context_marks_in_that_of_the_device_and_is_left_as_it_was(library: Path) -> None:
    run(
        library,
        """
        stream, found = current(), []
        def work():
            mark = stream.record()
            found.extend([mark, cuda.current(), stream.resolve(mark), cuda.current()])
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found[1] is None and found[2] is not None and found[3] is None
        pushes = ctypes.c_int.in_dll(stub, "stub_pushes")
        before = pushes.value
        stream.record()
        assert pushes.value == before, "the usual mark costs no push"
        """,
    )


def test_a_capture_in_another_thread_survives_the_questions(library: Path) -> None:
    run(
        library,
        """
        stream = current()
        mark = stream.record()
        with cuda.inside(cuda.context(0)):
            side = cuda.stream()
        stub.stub_capture(side, 1)
        handles[0] = side
        assert repr(stream.record()) == "UNMARKED"
        handles[0] = 0  # a mark on the default stream would spoil the capture, too
        assert repr(stream.record()) == "UNMARKED"
        assert stream.resolve(mark) is not None
        assert not ctypes.c_int.in_dll(stub, "stub_spoiled").value
        try:
            cuda.passed(mark.base.event)
        except libcuda.CudaError as error:
            assert str(error) == "cuEventQuery: CUDA_ERROR_OTHER (900)"
        else:
            raise AssertionError("the stub does not mind")
        """,
    )


def test_contexts_are_seen_and_never_made(library: Path) -> None:
    run(
        library,
        """
        assert (cuda.count(), cuda.active(0), cuda.active(1), cuda.active(7)) == (2, True, False, False)
        here[0] = 1
        assert current() is None and not cuda.active(1)
        stub.stub_activate(1)
        stub.stub_enter(1)
        time.sleep(0.001)
        assert current().device_uuid.startswith("MIG-a0a0") and current().device_uuid.endswith("a1")
        assert current_device() == 1 and cuda.current() == 1
        stream = current()
        here[0] = 0
        stub.stub_enter(0)
        mark = stream.record()
        assert stream.resolve(mark) is not None, "its end is marked in its own context"
        """,
    )


class Failing:
    """A driver of which every call gives this code."""

    def __init__(self, code: int) -> None:
        self.code = code

    def __getattr__(self, name: str) -> Callable[..., int]:
        def function(*_: object) -> int:
            return self.code

        setattr(self, name, function)
        return function


@pytest.mark.parametrize(("code", "capturing"), [(901, True), (906, True), (710, False), (719, False)])
def test_a_context_that_a_kernel_has_broken_is_not_taken_for_a_capture(code: int, capturing: bool) -> None:
    driver: Any = Failing(code)
    assert Cuda(driver).capturing(0) is capturing

"""Marks on real CUDA streams. Not run where there is no GPU; what they promise is tested on a model of CUDA everywhere.

A process that has used CUDA cannot be forked or told to forget it, so each test has a process of its own.
"""

import textwrap

import pytest
from support.programs import printed

pytestmark = pytest.mark.gpu

# A device that other processes share gives a base only to who waits for it, as the joiner's thread does.
MARKED = """
import time
from gpu_profile.regions.frameworks.events import UNMARKED
def marked(stream, within_s=20.0):
    end = time.monotonic() + within_s
    while (mark := stream.record()) is UNMARKED and time.monotonic() < end:
        try:
            stream.resolve(mark)
        except LookupError:
            time.sleep(0.01)
    return mark
"""

TORCH = f"""
{MARKED}
import threading
import torch
from gpu_profile.regions.frameworks import current_device, find_stream, find_sync
assert (find_stream(), find_sync(), current_device()) == (None, None, None)
size = 8192
matrix = torch.randn(size, size, device="cuda")
def work(times=20):
    for _ in range(times):
        torch.mm(matrix, matrix)
work()
torch.cuda.synchronize()
stream = find_stream()()
assert marked(stream) is not UNMARKED
def resolved(mark, within_s=20.0):
    end = time.monotonic() + within_s
    while (found := stream.resolve(mark)) is None and time.monotonic() < end:
        time.sleep(0.001)
    return found
"""


def run(script: str, before: str = TORCH, needs: str = "torch") -> None:
    """In a process of its own; skips where the framework is missing or has no GPU."""
    pytest.importorskip(needs)
    printed("-c", before + textwrap.dedent(script))


def test_an_interval_by_marks_is_what_synchronising_measures() -> None:
    run(
        """
        first = stream.record()
        began = time.time_ns()
        work(50)
        last = stream.record()
        assert stream.resolve(last) is None, "the host ran ahead"
        torch.cuda.synchronize()
        ended = time.time_ns()
        start, end = resolved(first), resolved(last)
        assert abs(start - began) < 2_000_000 and abs(end - ended) < 2_000_000, (start - began, end - ended)
        """
    )


def test_the_device_is_the_one_that_torch_names() -> None:
    run(
        """
        assert current_device() == 0
        assert str(torch.cuda.get_device_properties(0).uuid) in stream.device_uuid
        """
    )


def test_a_stream_of_the_threads_own_and_a_thread_that_never_used_cuda() -> None:
    run(
        """
        side, found = torch.cuda.Stream(), []
        work(100)
        with torch.cuda.stream(side):
            found.append(stream.record())
        thread = threading.Thread(target=lambda: found.append(stream.record()))
        thread.start()
        thread.join()
        assert resolved(found[0], 0.05) is not None, "it does not wait for the default stream"
        assert found[1] is not UNMARKED and resolved(found[1]) is not None
        """
    )


def test_a_capture_has_no_marks_and_survives_those_who_resolve() -> None:
    run(
        """
        side, other, over, asked = torch.cuda.Stream(), torch.ones(1000, device="cuda"), threading.Event(), []
        def resolving():
            with torch.cuda.stream(side):
                while not over.is_set():
                    other.add_(1)
                    asked.append(resolved(stream.record()))
        thread = threading.Thread(target=resolving)
        thread.start()
        while len(asked) < 10:
            time.sleep(0.001)
        graph = torch.cuda.CUDAGraph()
        small = torch.ones(1000, device="cuda")
        with torch.cuda.graph(graph):
            before = len(asked)
            for _ in range(20000):
                small.add_(1)
            assert len(asked) > before, "nobody asked meanwhile"
            assert stream.record() is UNMARKED
            find_sync()()
        over.set()
        thread.join()
        graph.replay()
        torch.cuda.synchronize()
        assert small[0].item() > 1000
        """
    )


def test_a_mark_costs_the_host_microseconds() -> None:
    run(
        """
        marks = [stream.record() for _ in range(1000)]
        torch.cuda.synchronize()
        for mark in marks:
            resolved(mark)
        del marks, mark
        began = time.perf_counter()
        marks = [stream.record() for _ in range(1000)]
        cost = (time.perf_counter() - began) / 1000
        print(f"{cost * 1e6:.2f} us")
        assert cost < 20e-6
        """
    )


def test_a_failed_kernel_leaves_record_quiet() -> None:
    run(
        """
        index = torch.tensor([10**9], device="cuda")
        matrix.view(-1)[index]
        mark = stream.record()
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            pass
        for _ in range(20):
            stream.record()
        assert stream.record() is UNMARKED and find_stream()() is None
        """
    )


@pytest.mark.parametrize(
    ("needs", "begin", "work"),
    [
        ("cupy", "import cupy; x = cupy.ones((4096, 4096))", "x @ x"),
        ("numba", "import numba.cuda, numpy; x = numba.cuda.to_device(numpy.ones(1 << 24))", "x.copy_to_host()"),
    ],
)
def test_other_frameworks_have_marks(needs: str, begin: str, work: str) -> None:
    before = f"""
{MARKED}
{begin}
from gpu_profile.regions.frameworks import current_device, find_stream, find_sync
"""
    run(
        f"""
        stream = find_stream()()
        {work}
        marked(stream)
        mark = stream.record()
        find_sync()()
        assert abs(stream.resolve(mark) - time.time_ns()) < 50_000_000
        assert current_device() == 0
        """,
        before,
        needs,
    )

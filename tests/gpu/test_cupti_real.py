"""CUPTI on a real GPU. Run on an H200 with cupti-python 13.0.1; see `tests/unit/kernels/cupti`.

Each test has a process of its own: CUPTI cannot be taken back from one.
"""

import textwrap

import pytest
from support.programs import printed

pytestmark = pytest.mark.gpu

BEFORE = """
import threading, time
import torch
from gpu_profile.errors import GpuBackendError
from gpu_profile.kernels.sources.cupti import CuptiSource
from gpu_profile.kernels.records import HOST, Allocation, Call, Kind, Launched, Operation
source = CuptiSource()
def records():
    return list(source.stop())
def kernels(found):
    return [each for each in found if type(each) is Operation and each.kind is Kind.KERNEL]
matrix = torch.randn(2048, 2048, device="cuda")
torch.mm(matrix, matrix)
torch.cuda.synchronize()
"""


def run(script: str) -> None:
    """In a process of its own; skips where PyTorch or CUPTI is missing."""
    pytest.importorskip("torch")
    pytest.importorskip("cupti")
    printed("-c", BEFORE + textwrap.dedent(script))


def test_every_kernel_is_recorded_with_the_call_that_launched_it_and_todays_time() -> None:
    run(
        """
        source.start()
        began = time.time_ns()
        for _ in range(100):
            torch.mm(matrix, matrix)
        found = records()
        ended = time.time_ns()
        launched = {each.correlation: each for each in found if type(each) is Call}
        assert len(kernels(found)) >= 100 and source.dropped == 0, (len(found), source.dropped, source.skipped)
        for each in kernels(found):
            call = launched[each.correlation]
            assert began <= call.start_ns <= each.start_ns < each.end_ns <= ended, (began, call, each, ended)
            assert call.thread == threading.get_native_id() and "aunch" in call.name, call
            assert each.device == 0 and each.blocks > 0, each
        """
    )


def test_calls_tell_the_range_that_they_were_made_in() -> None:
    run(
        """
        for number in (1, 2):
            source.start()
            source.push(number)
            torch.mm(matrix, matrix)
            source.pop()
            torch.mm(matrix, matrix)
            found = records()
            ranges = {each.correlation: each.range for each in found if type(each) is Launched}
            assert [ranges.get(each.correlation) for each in sorted(kernels(found), key=lambda k: k.start_ns)] \\
                == [number, None], (ranges, kernels(found))
        """
    )


def test_copies_sets_and_memory_of_the_driver_are_recorded_with_their_bytes() -> None:
    run(
        """
        host = torch.ones(1 << 20, pin_memory=True)
        source.start()
        device = host.to("cuda", non_blocking=True)
        torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(64 << 20))
        torch.cuda.empty_cache()
        device.zero_()
        device.clone()
        found = records()
        copies = {each.name: each for each in found if type(each) is Operation and each.kind is not Kind.KERNEL}
        assert copies["Memcpy HtoD (Pinned -> Device)"].bytes == 4 << 20, copies
        taken = [each for each in found if type(each) is Allocation and each.device != HOST]
        assert any(each.bytes >= 64 << 20 for each in taken) and any(each.bytes < 0 for each in taken), taken
        # Static variables of modules that were loaded meanwhile (`device static`) nobody called for.
        called = [each for each in taken if each.kind == "device"]
        assert all(each.thread == threading.get_native_id() for each in called), taken
        """
    )


def test_kernels_of_a_graph_are_marked_and_have_its_launch() -> None:
    run(
        """
        graph, output = torch.cuda.CUDAGraph(), torch.empty_like(matrix)
        with torch.cuda.graph(graph):
            torch.add(matrix, 1, out=output)
        source.start()
        graph.replay()
        found = records()
        calls = {each.correlation: each.name for each in found if type(each) is Call}
        (kernel,) = kernels(found)
        assert kernel.graph and calls[kernel.correlation] == "cudaGraphLaunch", (kernel, calls)
        """
    )


def test_pytorchs_profiler_and_cupti_keep_out_of_each_others_way() -> None:
    run(
        """
        with torch.profiler.profile() as profile:
            try:
                source.start()
            except GpuBackendError as error:
                assert "PyTorch's profiler" in str(error)
            else:
                raise AssertionError("it started")
            torch.mm(matrix, matrix)
        source.start()
        torch.mm(matrix, matrix)
        assert kernels(records())
        with torch.profiler.profile() as profile:
            torch.mm(matrix, matrix)
            torch.cuda.synchronize()
        assert any("Launch" in each.name for each in profile.events())
        """
    )


def test_many_threads_and_full_buffers_lose_nothing_and_never_hang() -> None:
    run(
        """
        small = torch.ones(16, device="cuda")
        source.start()
        def work():
            for _ in range(20000):
                small.add(1)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        found = records()
        assert len(kernels(found)) == 80000 and source.dropped == 0, (len(kernels(found)), source.dropped)
        """
    )

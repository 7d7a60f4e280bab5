"""Windows of PyTorch's profiler and of CUPTI on a real GPU. Not run where there is none.

What they promise is tested on stand-ins, and on a CPU, everywhere. Each test has a process of its own, since a process
that has used CUPTI keeps its state.
"""

import textwrap

import pytest
from support.programs import printed

pytestmark = pytest.mark.gpu

BEFORE = """
import threading, time
import torch
from gpu_profile import configure, process, region
from gpu_profile.kernels.windows.sampling import Sampling
from gpu_profile.kernels.sources.opening import open_source
from gpu_profile.kernels.sources.torch_source import TorchSource, waits_for_gpu
from gpu_profile.kernels.windows.window import Window, record
configure(backend="none")
"""
TORCH = """
matrix = torch.randn(4096, 4096, device="cuda")
def work(times=5):
    for _ in range(times):
        torch.mm(matrix, matrix)
work()
torch.cuda.synchronize()
"""


def run(script: str, *, needs: str = "torch", work: str = TORCH) -> None:
    """In a process of its own; skips where what it needs is missing."""
    pytest.importorskip(needs)
    printed("-c", BEFORE + work + textwrap.dedent(script))


@pytest.mark.parametrize("source", ["torch", "cupti"])
def test_kernels_belong_to_the_region_that_launched_them(source: str) -> None:
    run(
        f"""
        with record({source!r}) as recording:
            with region("first", span=False):
                work(3)
            with region("second", span=False):
                work(7)
        report = recording.report
        assert not report.on_host
        assert report.region("first").kernel_count == 3, report.region("first")
        assert report.region("second").kernel_count == 7, report.region("second")
        assert report.region("second").busy_ns > report.region("first").busy_ns
        """,
        needs="cupti" if source == "cupti" else "torch",
    )


@pytest.mark.parametrize("source", ["torch", "cupti"])
def test_calls_of_other_threads_belong_to_their_regions(source: str) -> None:
    run(
        f"""
        def other():
            with region("other", span=False):
                work(4)
        with record({source!r}) as recording:
            with region("main", span=False):
                thread = threading.Thread(target=other)
                thread.start()
                thread.join()
                work(2)
        assert recording.report.region("other").kernel_count == 4
        assert recording.report.region("main").own == recording.report.region("main").operations
        assert recording.report.region("main").kernel_count == 2
        """,
        needs="cupti" if source == "cupti" else "torch",
    )


def test_times_of_the_gpu_lie_within_the_window() -> None:
    run(
        """
        source = TorchSource()
        before = time.time_ns()
        source.start()
        work()
        records = list(source.stop())
        after = time.time_ns()
        kernels = [r for r in records if type(r).__name__ == "Operation"]
        assert len(kernels) >= 5
        assert all(before <= r.start_ns <= r.end_ns <= after for r in kernels)
        """
    )


@pytest.mark.parametrize("source", ["auto", "cupti"])
def test_sampling_gives_executions_their_kernels(source: str) -> None:
    run(
        f"""
        sampling = Sampling(window_s=0.05, source={source!r})
        sample = sampling.arm()
        assert sample, sampling.stats
        executions = []
        while not sample.over.is_set():
            with region("step", span=False) as execution:
                work(3)
            executions.append(execution)
        sampling.read()
        assert sampling.stats.windows == 1, sampling.stats
        told = [execution.kernels for execution in executions if execution.kernels]
        assert told and {{each.kernels for each in told}} == {{3}}, told
        assert process.current.joiner.verdicts.kernels["step"].executions == len(told)
        sampling.stop()
        """,
        needs="cupti" if source == "cupti" else "torch",
    )


def test_a_gpu_that_is_not_used_yet_gets_no_context_from_sampling() -> None:
    run(
        """
        assert waits_for_gpu()
        sampling = Sampling()
        assert not sampling.arm()
        assert not torch.cuda.is_initialized()
        """,
        work="",
    )

"""Ranges in several threads, under PyTorch's own profiler, which records the host's side of threads in its own way."""

from collections.abc import Iterator

import pytest
from support.kernels import in_thread

from gpu_profile.kernels.gmp.profiler import GmpProfiler, create_profiler
from gpu_profile.kernels.gmp.results import kernel_text, memory_text
from gpu_profile.kernels.sources.torch_source import TorchSource

torch = pytest.importorskip("torch")

FLOATS = 1_000_000


@pytest.fixture
def made() -> Iterator[GmpProfiler]:
    made = create_profiler(output=None)
    made.init()
    yield made
    made.disable()


def kernels(made: GmpProfiler) -> None:
    with made.profile_range("kernels"):
        torch.ones(FLOATS).neg_()


def memory(made: GmpProfiler) -> None:
    with made.profile_memory("memory"):
        torch.empty(FLOATS)


def test_operators_of_threads_that_have_ended_are_told(made: GmpProfiler) -> None:
    for _ in range(3):
        in_thread(lambda: kernels(made))
    found = made.results().kernels["kernels"]
    assert found is not None
    assert found.executions == found.kernels["aten::neg_"].count == 3
    assert made.results().problems == ()


def test_memory_of_a_thread_that_has_ended_is_told(made: GmpProfiler) -> None:
    for _ in range(2):
        in_thread(lambda: memory(made))
    (entry,) = made.get_memory_activity()
    assert (entry["allocations"], entry["allocated_bytes"]) == (2, 2 * 4 * FLOATS)
    assert made.results().problems == ()


@pytest.mark.skipif(not TorchSource(all_threads=True).all_threads, reason="this PyTorch records one thread only")
def test_memory_beside_the_kernels_of_other_threads_is_not_told_as_zero(made: GmpProfiler) -> None:
    def both() -> None:
        with made.profile_range("kernels"):
            memory(made)

    in_thread(both)
    assert "Range 1: memory\n  not recorded" in memory_text(made.results())


def test_of_threads_beside_the_one_that_is_recorded_only_the_host_s_time_is_told(made: GmpProfiler) -> None:
    with made.profile_range("main"):
        torch.ones(FLOATS).neg_()
        in_thread(lambda: kernels(made))
        in_thread(lambda: memory(made))
    found = made.results()
    main = found.kernels["main"]
    assert main is not None
    assert main.kernels["aten::neg_"].count == 1
    text = kernel_text(found)
    assert "Range 2: kernels\n  executions.count: 1\n" in text
    assert "recorded for the thread MainThread" in text
    assert "not recorded" in memory_text(found)


def test_a_thread_that_may_not_close_the_window_says_who_may(made: GmpProfiler) -> None:
    kernels(made)
    told: list[str] = []
    in_thread(lambda: told.extend(made.results().problems))
    assert told == [
        "A window is open that only the thread MainThread can close: results since its opening are not included yet."
    ]
    found = made.results()
    assert found.problems == ()
    assert found.kernels["kernels"] is not None
    assert found.kernels["kernels"].executions == 1


def test_a_thread_that_disables_has_the_window_close_when_its_own_comes_to_that(made: GmpProfiler) -> None:
    with made.profile_range("main"):
        in_thread(made.disable)
        assert torch.autograd._profiler_enabled()
    assert not torch.autograd._profiler_enabled()

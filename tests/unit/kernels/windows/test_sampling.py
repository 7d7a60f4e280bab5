import importlib.util
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.concurrency import in_child
from support.kernels import FakeSource, in_thread
from support.programs import python
from support.sessions import new_session

from gpu_profile import region
from gpu_profile.errors import GpuBackendError, UsageError
from gpu_profile.kernels.records import Operator
from gpu_profile.kernels.windows import sampling as module
from gpu_profile.kernels.windows.sample import LONGEST_S
from gpu_profile.kernels.windows.sampling import MOST_FAILURES, Sampling, sample_regions
from gpu_profile.kernels.windows.window import Window
from gpu_profile.recording import KernelStamps
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import Session
from gpu_profile.testing import FakeClock


@pytest.fixture
def sampling(session: Session, source: FakeSource, clock: FakeClock) -> Iterator[Sampling]:
    """Driven by hand: `arm` and `read` are what its thread does."""
    made = Sampling(window_s=0.5, clock=clock, opener=lambda spec: source)
    yield made
    made.stop()


def run(name: str, clock: FakeClock, seconds: float, source: FakeSource | None = None) -> Execution:
    """One execution, with a kernel in it."""
    with region(name, span=False) as execution:
        clock.advance(seconds / 2)
        if source is not None:
            source.kernel(clock.now_ns(), ns=4000)
        clock.advance(seconds / 2)
    return execution


# ---------------------------------------------------------------------- when a window opens and closes


def test_without_a_window_due_regions_have_nothing_more_to_do(
    sampling: Sampling, session: Session, clock: FakeClock
) -> None:
    assert not session.needs_slow_path
    run("step", clock, 1)
    assert sampling.arm()
    assert session.needs_slow_path
    run("step", clock, 1)
    assert not session.needs_slow_path


def test_the_next_outermost_region_opens_a_window_and_its_end_closes_it(
    sampling: Sampling, source: FakeSource, clock: FakeClock
) -> None:
    sampling.arm()
    assert source.log == []
    with region("step", span=False):
        assert source.log == ["start"]
        run("inner", clock, 1)
        assert source.log == ["start"]
    assert source.log == ["start", "stop"]


def test_a_region_inside_another_opens_none(sampling: Sampling, source: FakeSource, clock: FakeClock) -> None:
    with region("outer", span=False):
        sampling.arm()
        run("inner", clock, 1)
        assert source.log == []
    run("next", clock, 1)
    assert source.log == ["start", "stop"]


def test_handles_and_generators_open_none(sampling: Sampling, source: FakeSource) -> None:
    @region("generator", span=False)
    def generator() -> Iterator[int]:
        yield 1

    sampling.arm()
    region.start("handle", span=False).end()
    list(generator())
    assert source.log == []


def test_short_regions_are_taken_together_until_the_window_is_over(
    sampling: Sampling, source: FakeSource, clock: FakeClock
) -> None:
    sampling.arm()
    executions = [run("short", clock, 0.2) for _ in range(4)]
    assert source.log == ["start", "stop"]
    assert [execution.awaits_kernels for execution in executions] == [True, True, True, False]


def test_only_the_thread_that_opened_it_closes_it(sampling: Sampling, source: FakeSource, clock: FakeClock) -> None:
    sampling.arm()
    run("here", clock, 0.1)
    in_thread(lambda: run("there", clock, 1))
    assert source.log == ["start"]
    run("here", clock, 0.1)
    assert source.log == ["start", "stop"]


def test_a_window_that_nobody_closes_is_closed_by_the_samplings_thread(
    sampling: Sampling, source: FakeSource, clock: FakeClock
) -> None:
    sample = sampling.arm()
    assert sample
    with region("long", span=False) as execution:
        clock.advance(LONGEST_S - 0.01)
        sample.close_late()
        assert source.log == ["start"]
        clock.advance(0.02)
        in_thread(sample.close_late)
        assert source.log == ["start", "stop"]
        sampling.read()
        assert not execution.awaits_kernels
        assert execution.kernels is None


def test_one_that_only_its_own_thread_may_close_stays_open_for_it(session: Session, clock: FakeClock) -> None:
    source = FakeSource(bound=True)
    sampling = Sampling(window_s=0.5, clock=clock, opener=lambda spec: source)
    sample = sampling.arm()
    assert sample
    with region("long", span=False):
        clock.advance(2 * LONGEST_S)
        in_thread(sample.close_late)
        assert source.log == ["start"]
    assert source.log == ["start", "stop"]
    sampling.stop()


def test_a_clock_that_is_set_back_does_not_keep_a_window_open(
    sampling: Sampling, source: FakeSource, clock: FakeClock
) -> None:
    sampling.arm()
    with region("step", span=False):
        clock.set_back(3600)
    assert source.log == ["start", "stop"]


def test_a_session_that_begins_while_a_window_is_due_is_covered(
    sampling: Sampling, source: FakeSource, clock: FakeClock
) -> None:
    sampling.arm()
    later = new_session()
    run("step", clock, 1)
    assert source.log == ["start", "stop"]
    assert later.watchers == ()


# ---------------------------------------------------------------------- what comes of it


def test_executions_and_regions_get_what_their_kernels_did(
    sampling: Sampling, session: Session, source: FakeSource, clock: FakeClock
) -> None:
    sampling.arm()
    first = run("step", clock, 0.3, source)
    second = run("step", clock, 0.3, source)
    assert (first.awaits_kernels, second.awaits_kernels) == (True, True)
    sampling.read()
    assert not first.awaits_kernels
    for execution in (first, second):
        assert execution.kernels is not None
        assert (execution.kernels.kernels, execution.kernels.kernel_ns) == (1, 4000)
        assert execution.kernel_stamps == KernelStamps(("gemm",), (0,), (150_000_020,), (4_000,))
    assert session.joiner.verdicts.kernels["step"].executions == 2


def test_one_that_still_runs_when_the_window_closes_is_let_go_without_figures(
    sampling: Sampling, session: Session, source: FakeSource, clock: FakeClock
) -> None:
    sampling.arm()
    with region("step", span=False):
        handle = region.start("request", span=False)
        clock.advance(1)
    sampling.read()
    assert not handle.awaits_kernels
    assert handle.kernels is None
    assert set(session.joiner.verdicts.kernels) == {"step"}
    handle.end()


def test_operators_of_a_cpu_are_no_kernels(
    sampling: Sampling, session: Session, source: FakeSource, clock: FakeClock
) -> None:
    sampling.arm()
    with region("step", span=False) as execution:
        begun_ns = clock.now_ns()
        source.records.append(Operator("aten::mm", threading.get_native_id(), begun_ns + 10, begun_ns + 20))
        clock.advance(1)
    sampling.read()
    assert execution.kernels is None
    assert not execution.awaits_kernels
    assert sampling.stats.host_only == sampling.stats.windows == 1
    assert session.joiner.verdicts.kernels == {}


def test_the_statistics_tell_what_it_cost(sampling: Sampling, source: FakeSource, clock: FakeClock) -> None:
    def slow(seconds: float, then: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            clock.advance(seconds)
            return then()

        return call

    source.start = slow(0.25, source.start)  # type: ignore[method-assign]
    source.stop = slow(0.125, source.stop)  # type: ignore[method-assign]
    sampling.arm()
    run("step", clock, 1, source)
    sampling.read()
    stats = sampling.stats
    assert (stats.windows, stats.executions, stats.failures, stats.left_out) == (1, 1, 0, 0)
    assert (stats.start_s, stats.stop_s, stats.read_s) == (0.25, 0.125, 0.0)


# ---------------------------------------------------------------------- failures


@pytest.mark.parametrize("where", ["start", "stop", "read"])
def test_a_window_that_fails_is_counted_and_lets_every_execution_go(
    session: Session, clock: FakeClock, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    sampling = Sampling(window_s=0.5, clock=clock, opener=lambda spec: FakeSource(fails=where))
    executions = []
    for _ in range(2):
        assert sampling.arm()
        executions += [run("step", clock, 0.3) for _ in range(2)]
        sampling.read()
    assert (sampling.stats.failures, any(execution.awaits_kernels for execution in executions)) == (2, False)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"no {'records' if where == 'read' else where} today" in caplog.text
    sampling.stop()


def test_three_failures_in_a_row_end_it_with_one_warning(
    session: Session, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(spec: str) -> FakeSource:
        raise GpuBackendError("nobody can record")

    sampling = Sampling(window_s=0.5, clock=clock, source="torch", opener=missing)
    for _ in range(MOST_FAILURES):
        assert sampling.running
        assert not sampling.arm()
    assert not sampling.running
    assert [record.getMessage() for record in caplog.records if "no more" in record.message] == [
        "gpu-profile: kernels are sampled no more, since 3 windows failed one after another: nobody can record"
    ]
    sampling.stop()


def test_a_window_that_works_forgives_those_that_failed_before(
    sampling: Sampling, source: FakeSource, clock: FakeClock
) -> None:
    for fails in ("start", "start", "", "start", "start"):
        source.fails = fails
        sampling.arm()
        run("step", clock, 1)
        sampling.read()
    assert sampling.running
    assert (sampling.stats.failures, sampling.stats.windows) == (4, 1)


def test_a_gpu_whose_records_another_tool_holds_counts_as_a_failure(
    sampling: Sampling, session: Session, source: FakeSource, clock: FakeClock
) -> None:
    source.problem = "another tool holds CUPTI"
    sampling.arm()
    execution = run("step", clock, 1)
    sampling.read()
    assert (sampling.stats.failures, sampling.stats.windows) == (1, 0)
    assert not execution.awaits_kernels
    assert session.joiner.verdicts.kernels == {}


def test_another_window_is_left_alone(sampling: Sampling, source: FakeSource, clock: FakeClock) -> None:
    sampling.arm()
    other = Window(FakeSource(), clock=clock).start()
    run("step", clock, 1)
    assert source.log == []
    assert (sampling.stats.skipped, sampling.stats.failures) == (1, 0)
    assert not sampling.arm()
    other.stop()
    assert sampling.arm()


def test_there_is_no_window_while_the_gpu_is_unused(
    sampling: Sampling, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "waits_for_gpu", lambda: True)
    assert not sampling.arm()
    monkeypatch.setattr(module, "waits_for_gpu", lambda: False)
    assert sampling.arm()


@pytest.mark.parametrize(("spec", "installed", "failures"), [("auto", True, 0), ("auto", False, 5), ("torch", True, 5)])
def test_a_program_may_import_pytorch_late(
    session: Session, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, spec: str, installed: bool, failures: int
) -> None:
    def refuse(spec: str) -> FakeSource:
        raise GpuBackendError("nothing can record kernels")

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    sampling = Sampling(clock=clock, source=spec, opener=refuse)
    assert not any(sampling.arm() for _ in range(5))
    assert sampling.stats.failures == failures
    assert sampling.running == (not failures)
    sampling.stop()


def test_a_process_that_must_not_sample_ends_it(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "may_sample", lambda: False)
    assert not sampling.arm()
    assert not sampling.running


# ---------------------------------------------------------------------- the end


def test_stopping_closes_and_reads_an_open_window(
    sampling: Sampling, session: Session, source: FakeSource, clock: FakeClock
) -> None:
    sampling.arm()
    first = run("step", clock, 0.1, source)
    sampling.stop()
    assert source.log == ["start", "stop"]
    assert not first.awaits_kernels
    assert first.kernels is not None
    assert not sampling.arm()
    run("step", clock, 1)
    assert source.log == ["start", "stop"]


def test_a_window_that_is_open_at_the_exit_is_read_without_a_word() -> None:
    pytest.importorskip("torch")
    script = """
import time, torch
from gpu_profile import configure, region
from gpu_profile.kernels import sample_regions
from gpu_profile.kernels.windows.window import OPEN
configure(backend="none", stream=None)
sample_regions(every_s=0.01, window_s=100)
end = time.monotonic() + 60
while OPEN.holder is None and time.monotonic() < end:
    with region("step", span=False):
        torch.ones(4).exp()
assert OPEN.holder is not None
"""
    done = python("-c", script)
    assert done.returncode == 0
    assert "failed" not in done.stderr


def test_a_forked_child_does_not_sample(sampling: Sampling, source: FakeSource, clock: FakeClock) -> None:
    assert module._SAMPLING.take(sampling)
    sampling.arm()

    def child() -> tuple[object, ...]:
        later = new_session()
        run("in the child", clock, 1)
        return sampling.running, bool(later.needs_slow_path), source.log, module._SAMPLING.holder

    assert in_child(child) == "(False, False, [], None)"
    run("in the parent", clock, 1)
    assert source.log == ["start", "stop"]


@pytest.mark.parametrize("times", [{"every_s": 0}, {"window_s": -1}, {"every_s": float("inf")}])
def test_times_that_are_not_positive_are_a_usage_error(times: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="positive"):
        sample_regions(**times)


def test_an_unknown_source_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="choose among"):
        sample_regions(source="nsys")


# ---------------------------------------------------------------------- on its own, with PyTorch on a CPU


def test_it_samples_a_program_by_itself_one_at_a_time_and_stops() -> None:
    torch: Any = pytest.importorskip("torch")
    process.configure(backend="none", stream=None)
    sampling = sample_regions(every_s=0.01, window_s=0.01)
    try:
        with pytest.raises(UsageError, match="already"):
            sample_regions()
        end = time.monotonic() + 60
        while sampling.stats.windows < 2 and time.monotonic() < end:
            with region("step", span=False):
                torch.ones(4).exp()
        assert sampling.stats.windows >= 2
        assert sampling.stats.failures == 0
        assert sampling.stats.host_only == sampling.stats.windows
        assert sampling.stats.executions >= 2
        sampling.stop()
        assert not any(thread.name == "gpu-profile-kernels" for thread in threading.enumerate())
        again = sample_regions()
        again.stop()
    finally:
        sampling.stop()
        process.stop()
        process.configure()

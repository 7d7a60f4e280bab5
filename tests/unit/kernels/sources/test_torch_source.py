"""PyTorch's profiler on a CPU. What it does with GPUs is held by stand-ins here, and by tests/gpu."""

import gc
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.concurrency import in_child
from support.kernels import in_thread
from support.programs import python

from gpu_profile.errors import GpuBackendError, UsageError
from gpu_profile.kernels.records import Allocation, Operator
from gpu_profile.kernels.sources.source import WrongThreadError
from gpu_profile.kernels.sources.torch_source import LOG_VARIABLE, TorchSource

torch: Any = pytest.importorskip("torch")
knows_all_threads = pytest.mark.skipif(
    not TorchSource(all_threads=True).all_threads, reason="this PyTorch records one thread only"
)


def script(text: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, for what may crash it."""
    before = """
    import sys, threading
    import torch
    from gpu_profile.errors import GpuBackendError
    from gpu_profile.kernels.sources.torch_source import TorchSource
    """
    return python("-c", textwrap.dedent(before) + textwrap.dedent(text))


# ---------------------------------------------------------------------- what is recorded


def test_operators_come_with_this_threads_native_id_and_times_since_the_epoch(source: TorchSource) -> None:
    source.start()
    before = time.time_ns()
    torch.ones(4).exp()
    after = time.time_ns()
    found = [record for record in source.stop() if isinstance(record, Operator) and record.name == "aten::exp"]
    assert [each.thread for each in found] == [threading.get_native_id()]
    assert before - 1000 <= found[0].start_ns <= found[0].end_ns <= after + 1000


def test_allocations_of_the_starting_thread_are_recorded(source: TorchSource) -> None:
    source.start()
    kept = torch.empty(1 << 20, dtype=torch.uint8)
    del kept
    sizes = [record.bytes for record in source.stop() if isinstance(record, Allocation)]
    assert 1 << 20 in sizes
    assert -(1 << 20) in sizes


def test_one_source_records_again_and_again(source: TorchSource) -> None:
    for _ in range(3):
        source.start()
        torch.ones(4).exp()
        names = [record.name for record in source.stop() if isinstance(record, Operator)]
        assert names.count("aten::exp") == 1


def test_records_may_be_read_in_another_thread_while_the_next_recording_runs(source: TorchSource) -> None:
    source.start()
    torch.ones(4).exp()
    first = source.stop()
    source.start()
    torch.ones(4).cos()
    found: list[Any] = []
    in_thread(lambda: found.extend(first))
    second = list(source.stop())
    assert "aten::exp" in {record.name for record in found if isinstance(record, Operator)}
    assert "aten::cos" in {record.name for record in second if isinstance(record, Operator)}


def test_the_temporary_file_is_gone_once_it_is_read(
    source: TorchSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source.start()
    torch.ones(4).exp()
    assert list(source.stop())
    assert list(tmp_path.iterdir()) == []
    source.start()
    torch.ones(4).exp()
    records = source.stop()
    next(records)
    assert list(tmp_path.iterdir())
    del records
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_in_the_environment(source: TorchSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOG_VARIABLE, raising=False)
    source.start()
    source.stop()
    assert LOG_VARIABLE not in os.environ
    monkeypatch.setenv(LOG_VARIABLE, "2")
    source.start()
    source.stop()
    assert os.environ[LOG_VARIABLE] == "2"


def test_kineto_writes_nothing_on_stderr() -> None:
    done = script("source = TorchSource(); source.start(); torch.ones(2).exp(); print(len(list(source.stop())) > 0)")
    assert (done.stdout, done.stderr) == ("True\n", "")


# ---------------------------------------------------------------------- threads


def test_another_thread_may_not_stop_it_and_it_goes_on(source: TorchSource) -> None:
    source.start()
    errors: list[BaseException] = []

    def stop() -> None:
        try:
            source.stop()
        except WrongThreadError as error:
            errors.append(error)

    in_thread(stop)
    torch.ones(4).exp()
    assert "MainThread" in str(errors[0])
    assert "aten::exp" in {record.name for record in source.stop() if isinstance(record, Operator)}


@knows_all_threads
def test_with_all_threads_any_thread_may_stop_it_and_their_operators_are_recorded() -> None:
    source = TorchSource(all_threads=True)
    assert source.all_threads
    source.start()
    in_thread(lambda: torch.ones(4).exp())
    torch.ones(4).cos()
    found: list[Any] = []
    in_thread(lambda: found.extend(source.stop()))
    threads = {record.name: record.thread for record in found if isinstance(record, Operator)}
    assert threads["aten::cos"] == threading.get_native_id() != threads["aten::exp"]


def test_a_pytorch_that_does_not_know_all_threads_records_one(monkeypatch: pytest.MonkeyPatch) -> None:
    profiling = sys.modules["torch._C._profiler"]
    config = profiling._ExperimentalConfig

    def older(**options: Any) -> Any:
        if options:
            raise TypeError(f"unexpected keyword {next(iter(options))!r}")
        return config()

    monkeypatch.setattr(profiling, "_ExperimentalConfig", older)
    source = TorchSource(all_threads=True)
    assert not source.all_threads
    source.start()
    torch.ones(4).exp()
    assert "aten::exp" in {record.name for record in source.stop() if isinstance(record, Operator)}


@knows_all_threads
def test_one_whose_thread_is_gone_is_given_up_and_the_next_one_works() -> None:
    done = script(
        """
        source = TorchSource()
        thread = threading.Thread(target=source.start)
        thread.start(); thread.join()
        try:
            source.stop()
        except GpuBackendError as error:
            print(error)
        source.start(); torch.ones(2).exp()
        print(len(list(source.stop())) > 0)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "what PyTorch's profiler recorded is lost: its thread ended before it was stopped",
        "True",
    ]


@pytest.mark.parametrize(
    "start",
    [
        "source = TorchSource(all_threads=True); source.start()",
        "source = TorchSource(); t = threading.Thread(target=source.start); t.start(); t.join()",
    ],
)
def test_a_process_that_exits_while_it_records_does_not_crash(start: str) -> None:
    done = script(f"{start}; torch.ones(2).exp(); print('end')")
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_a_forked_child_cannot_stop_its_parents(source: TorchSource) -> None:
    source.start()

    def child() -> None:
        with pytest.raises(GpuBackendError, match="before the fork"):
            source.stop()

    in_child(child)
    torch.ones(4).exp()
    assert "aten::exp" in {record.name for record in source.stop() if isinstance(record, Operator)}


def test_what_runs_at_the_exit_still_gets_the_records() -> None:
    done = script(
        """
        import atexit
        source = TorchSource()
        atexit.register(lambda: print(len(list(source.stop())) > 0))
        source.start()
        torch.ones(2).exp()
        """
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


# ---------------------------------------------------------------------- other profilers


@knows_all_threads
@pytest.mark.parametrize("all_threads", [False, True])
def test_it_does_not_start_while_the_users_profiler_runs_and_that_keeps_its_records(
    source: TorchSource, all_threads: bool
) -> None:
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=all_threads)
    with torch.profiler.profile(experimental_config=config) as theirs:
        with pytest.raises(GpuBackendError, match="runs already in this process"):
            source.start()
        torch.ones(4).exp()
    assert "aten::exp" in {event.name for event in theirs.events()}


def test_a_profiler_that_the_user_starts_meanwhile_keeps_its_records_and_nothing_crashes() -> None:
    done = script(
        """
        def stop():
            try:
                source.stop()
            except GpuBackendError as error:
                print(error)
        for source in (TorchSource(), TorchSource(all_threads=True)):
            source.start()
            with torch.profiler.profile() as theirs:
                torch.ones(2).exp()
                stop()
                torch.ones(2).cos()
            print({"aten::exp", "aten::cos"} <= {event.name for event in theirs.events()})
            source.start()
            with torch.profiler.profile() as theirs:
                torch.ones(2).exp()
            stop()
            print("aten::exp" in {event.name for event in theirs.events()})
            source.start(); torch.ones(2).exp()
            print(len(list(source.stop())) > 0)
        """
    )
    lost = "what PyTorch's profiler recorded is lost: another one was started meanwhile"
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [lost, "True", lost, "True", "True"] * 2


# ---------------------------------------------------------------------- failures


def test_starting_twice_and_stopping_what_was_not_started_are_errors(source: TorchSource) -> None:
    with pytest.raises(GpuBackendError, match="start it first"):
        source.stop()
    source.start()
    with pytest.raises(GpuBackendError, match="stop it first"):
        source.start()
    source.stop()


def test_a_pytorch_without_kineto_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.profiler, "kineto_available", lambda: False)
    with pytest.raises(GpuBackendError, match="no Kineto"):
        TorchSource()


@pytest.mark.parametrize("where", ["start", "stop"])
def test_a_profiler_that_fails_gives_one_line(source: TorchSource, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def fail(self: object) -> None:
        raise RuntimeError("kineto is unwell\nat line 3")

    if where == "stop":
        source.start()
    running = source._profiler
    with monkeypatch.context() as patch:
        patch.setattr(torch.profiler.profile, where, fail)
        with pytest.raises(GpuBackendError, match=f"did not {where}: kineto is unwell$"):
            source.start() if where == "start" else source.stop()
    if running is not None:
        running.stop()


@pytest.mark.parametrize("fault", ["nothing written", "cut off", "no such folder", "refused"])
def test_records_that_cannot_be_read_are_an_error_that_names_the_folder(
    source: TorchSource, monkeypatch: pytest.MonkeyPatch, fault: str, tmp_path: Path
) -> None:
    def export(self: object, path: str) -> None:
        if fault == "refused":
            raise RuntimeError("Trace is already saved.")
        if fault == "cut off":
            Path(path).write_text('{"traceEvents": [{"ph": "X"')

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", export)
    folder = tmp_path / "gone" if fault == "no such folder" else tmp_path
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    source.start()
    records = source.stop()
    with pytest.raises(UsageError, match=f"could not be read .*; is {folder} full") as caught:
        list(records)
    assert "\n" not in str(caught.value)
    assert source.problem == str(caught.value)

"""When a profiler records, and what it says when it cannot."""

import gc
import sys
import threading

import pytest
from support.concurrency import in_child
from unit.kernels.gmp.profilers import FakeGpu, kernels

from gpu_profile import configure
from gpu_profile.errors import UsageError
from gpu_profile.kernels.gmp import collecting, profiler
from gpu_profile.kernels.gmp.profiler import GmpProfiler, create_profiler
from gpu_profile.kernels.windows.window import WindowContent


def test_nothing_begins_before_init(gpu: FakeGpu) -> None:
    made = create_profiler()
    for early in (
        lambda: made.profile_range("x"),
        lambda: made.profile_memory("x"),
        lambda: made.push_range("x"),
        made.enable,
        lambda: profiler.profile_range("x"),
        lambda: profiler.profile_memory("x"),
    ):
        with pytest.raises(UsageError, match=r"call init\(\) first"):
            early()
    made.disable()
    assert not gpu.windows


@pytest.mark.parametrize("name", ["AVG", "", None, 3])
def test_unknown_names_are_told_with_those_that_there_are(ready: GmpProfiler, name: str) -> None:
    for wrong in (ready.print_profiler_ranges, profiler.print_results):
        with pytest.raises(UsageError, match="use SUM or MAX or MEAN"):
            wrong(name)
    with pytest.raises(UsageError, match="use CONCURRENT_KERNEL or MEMORY"):
        ready.profile_range("x", name)


def test_disabled_ranges_are_not_counted_and_cost_no_window(ready: GmpProfiler, gpu: FakeGpu) -> None:
    with ready.profile_range("a"):
        gpu.launch(1)
    ready.stop_range_profiling()
    assert not gpu.recording
    with ready.profile_range("a"):
        gpu.launch(1)
    ready.start_range_profiling()
    ready.init()
    with ready.profile_range("a"):
        gpu.launch(1)
    assert kernels(ready) == {"a": (2, 2, 2.0)}


def test_regions_that_are_switched_off_open_no_window(gpu: FakeGpu, capsys: pytest.CaptureFixture[str]) -> None:
    configure(enabled=False, backend="none")
    made = create_profiler()
    made.init()
    with made.profile_range("off"):
        pass
    made.print_profiler_ranges()
    assert not gpu.windows
    assert "Number of ranges: 0" in capsys.readouterr().out


class Age:
    """How old windows are; the session's threads would move a clock of the process."""

    s = 0.0


@pytest.fixture
def age(monkeypatch: pytest.MonkeyPatch) -> Age:
    made = Age()
    monkeypatch.setattr(collecting._OpenWindow, "age_ns", lambda window: int(made.s * 1e9))
    return made


def test_a_window_closes_once_it_is_old_and_no_range_runs(gpu: FakeGpu, age: Age) -> None:
    made = create_profiler(window_s=10)
    made.init()
    with made.profile_range("outer"):
        with made.profile_range("inner"):
            age.s = 11
        assert gpu.recording
    assert not gpu.recording
    age.s = 9
    with made.profile_range("young"):
        pass
    assert gpu.recording
    age.s = -51
    with made.profile_range("the clock was set back"):
        pass
    assert not gpu.recording
    assert [sums and sums.executions for sums in made.results().kernels.values()] == [1, 1, 1, 1]


def test_a_window_closes_when_many_ranges_have_begun(gpu: FakeGpu) -> None:
    made = create_profiler(most_executions=10)
    made.init()
    for _ in range(35):
        with made.profile_range("step"):
            gpu.launch(1)
    assert kernels(made) == {"step": (35, 35, 35.0)}
    assert gpu.windows == 4


def test_ranges_that_one_window_has_no_room_for_are_told(gpu: FakeGpu) -> None:
    made = create_profiler(most_executions=5)
    made.init()
    with made.profile_range("outer"):
        for _ in range(20):
            with made.profile_range("inner"):
                pass
    assert list(made.results().notes.values()) == [11]


def test_a_window_closes_although_others_run_when_it_is_much_too_old(gpu: FakeGpu, age: Age) -> None:
    made = create_profiler(window_s=1)
    made.init()
    begun, go = threading.Event(), threading.Event()

    def other() -> None:
        with made.profile_range("long"):
            begun.set()
            go.wait(30)

    thread = threading.Thread(target=other)
    with made.profile_range("opens"):
        thread.start()
        begun.wait(30)
        age.s = 2
    assert gpu.recording
    age.s = 7
    with made.profile_range("short"):
        pass
    assert not gpu.recording
    go.set()
    thread.join()
    assert not made._collecting._running


@pytest.mark.parametrize("options", [{"window_s": 0}, {"window_s": float("nan")}, {"most_executions": 0}])
def test_options_that_cannot_be_are_told(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="above 0"):
        create_profiler(**options)  # type: ignore[arg-type]


def test_an_unknown_source_is_told_at_once() -> None:
    with pytest.raises(UsageError, match="choose among auto, torch, cupti"):
        create_profiler(source="nsys")


def test_without_a_source_the_host_s_time_is_told_and_why(
    ready: GmpProfiler, gpu: FakeGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.broken = "nothing can record: pip install something"
    with ready.profile_range("a"):
        pass
    with ready.profile_memory("m"):
        pass
    ready.print_profiler_ranges()
    ready.print_memory_activity()
    out = capsys.readouterr().out
    assert "Nothing recorded kernels: nothing can record: pip install something\n" in out
    assert "  executions.count: 1\n  host__time_duration.sum: " in out
    assert "gpu__" not in out
    assert "Range 1: m\n  not recorded\n" in out
    (entry,) = ready.get_memory_activity()
    assert entry["allocations"] is None


def test_who_could_not_record_is_asked_again_once_pytorch_is_there(
    ready: GmpProfiler, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    gpu.broken = "no torch"
    with ready.profile_range("before"):
        pass
    gpu.broken = ""
    with ready.profile_range("still before"):
        gpu.launch(1)
    monkeypatch.setitem(sys.modules, "torch", collecting)
    with ready.profile_range("after"):
        gpu.launch(1)
    assert kernels(ready) == {"before": (1, 0, 0.0), "still before": (1, 0, 0.0), "after": (1, 1, 1.0)}
    assert ready.results().unrecorded == {"before": 1, "still before": 1}


def test_the_second_profiler_says_which_one_records(gpu: FakeGpu) -> None:
    first, second = create_profiler(name="the first"), create_profiler(name="the second")
    first.init()
    second.init()
    with first.profile_range("a"), second.profile_range("b"):
        gpu.launch(1)
    assert kernels(first) == {"a": (1, 1, 1.0)}
    found = second.results()
    assert found.kernels == {"b": None}
    assert found.problems[0].startswith("the first was recording when ranges of the second began")
    with second.profile_range("b"):
        gpu.launch(2)
    assert kernels(second) == {"b": (1, 1, 2.0)}


def test_a_profiler_that_is_forgotten_leaves_no_window_open(gpu: FakeGpu) -> None:
    made = create_profiler()
    made.init()
    with made.profile_range("a"):
        pass
    assert gpu.recording
    del made
    gc.collect()
    assert not gpu.recording
    other = create_profiler()
    other.init()
    with other.profile_range("b"):
        gpu.launch(1)
    assert kernels(other) == {"b": (1, 1, 1.0)}


@pytest.mark.parametrize("where", ["stop", "report"])
def test_records_that_are_lost_are_told_and_the_next_are_there(
    ready: GmpProfiler, gpu: FakeGpu, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError("no space left")

    with ready.profile_range("a"), monkeypatch.context() as patched:
        if where == "stop":
            patched.setattr(gpu, "stop", fails)
        else:
            patched.setattr(WindowContent, "report", fails)
        problems = ready.results().problems
        assert len(problems) == 1
        assert "no space left" in problems[0]
    with ready.profile_range("b"):
        gpu.launch(1)
    assert ready.results().kernels["a"] is None
    found = ready.results().kernels["b"]
    assert found is not None
    assert found.kernel_count == 1


def test_results_may_be_asked_for_inside_a_range(ready: GmpProfiler, gpu: FakeGpu) -> None:
    with ready.profile_range("outer"):
        gpu.launch(1)
        assert kernels(ready) == {"outer": (1, 1, 1.0)}
        with ready.profile_range("inner"):
            gpu.launch(2)
    found = kernels(ready)
    assert found["inner"] == (1, 1, 2.0)
    assert found["outer"][2] == 3.0


def test_a_forked_child_records_once_it_asks_to(ready: GmpProfiler, gpu: FakeGpu) -> None:
    def child() -> tuple[list[str], list[object], object]:
        with ready.profile_range("child"):
            pass
        told = list(ready.results().problems)
        none: list[object] = list(ready.results().kernels)
        ready.init()
        with ready.profile_range("child"):
            gpu.launch(5)
        return told, none, kernels(ready)

    with ready.profile_range("parent"):
        gpu.launch(1)
        said = in_child(child)
    line = "This process was forked: call init() in it to record its ranges."
    assert said == repr(([line], [], {"child": (1, 1, 5.0)}))
    assert kernels(ready) == {"parent": (1, 1, 1.0)}

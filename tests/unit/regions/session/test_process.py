import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.concurrency import in_child
from support.programs import ran
from support.regions import Stage

from gpu_profile import GpuBackendError, configure, region, use_stream
from gpu_profile.catalogue import LIBRARY_GROUPS
from gpu_profile.driver import simulated
from gpu_profile.driver.grammar import BACKEND_VARIABLE
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import Session

ROOT = Path(__file__).parents[4]


@pytest.fixture
def clean() -> Iterator[None]:
    """A process that has no session, before and after."""
    configure(backend="none")
    yield
    process.stop()
    configure()


def python(code: str, *arguments: str, **environment: str) -> str:
    """What a fresh interpreter prints; it must end well and say nothing else."""
    words = [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", code, *arguments]
    done = ran(words, PYTHONPATH=f"{ROOT / 'instrumentation'}:{ROOT / 'tests'}", **environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


# ------------------------------------------------------------------ settings


@pytest.mark.usefixtures("clean")
def test_settings_that_make_no_sense_are_refused_and_change_nothing() -> None:
    before = process.settings()
    with pytest.raises(GpuBackendError, match=r"unknown driver 'nvlm'.*did you mean 'nvml'\?"):
        configure(backend="nvlm")
    for seconds in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive"):
            configure(interval_s=seconds)
        with pytest.raises(ValueError, match="positive"):
            configure(retention_s=seconds)
    assert process.settings() is before


@pytest.mark.usefixtures("clean")
def test_settings_come_from_the_code_then_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = simulated.create(tmp_path / "node")
    monkeypatch.setenv(BACKEND_VARIABLE, f"simulated:{node}")
    configure(devices="GPU-1")
    assert process.settings().devices == ("GPU-1",)
    opened = process.settings().open_driver()
    assert opened.name.startswith("simulated")
    known = opened.capabilities(opened.devices()[0])
    assert {row.group for row, can in known.items() if can.available} == LIBRARY_GROUPS
    opened.close()
    configure(backend="none", devices=["GPU-1", "GPU-2"])
    assert process.settings().devices == ("GPU-1", "GPU-2")
    assert process.settings().open_driver().name == "none"


def test_configuring_again_ends_the_session_and_the_next_region_starts_another(stage: Stage) -> None:
    with region("before"):
        configure(backend="none")
        assert process.running() is None
    with region("after"):
        pass
    found = process.session()
    assert found is not stage.session
    found.settle(final=True)
    assert set(found.joiner.verdicts.durations) == {"after"}


def test_stream_can_be_named_while_regions_run(stage: Stage) -> None:
    use_stream(None)
    with region("host"):
        pass
    use_stream(lambda: stage.queue)
    with region("device"):
        pass
    stage.session.settle(final=True)
    assert [(e.name, e.stream is None) for e in stage.ended] == [("host", True), ("device", False)]
    use_stream(None)
    assert process.settings().stream is None


# ------------------------------------------------------------------ the one session


@pytest.mark.usefixtures("clean")
def test_nothing_runs_before_the_first_region_and_one_session_serves_all() -> None:
    assert process.running() is None
    with region("first", span=False):
        first = process.running()
    with region("second", span=False):
        assert process.session() is first
    assert first is not None
    assert first.active
    assert not first.ignoring


@pytest.mark.usefixtures("clean")
def test_hooks_meet_every_session_until_they_are_taken_off() -> None:
    met: list[Session] = []
    process.on_start(met.append)
    first = process.session()
    assert met == [first]
    late: list[Session] = []
    process.on_start(late.append)
    assert late == [first]
    process.stop()
    second = process.session()
    assert met == [first, second] == [*late[:1], second]
    process.off_start(met.append)
    process.off_start(late.append)
    process.stop()
    process.session()
    assert met == [first, second]


def test_stop_takes_a_last_sample_and_what_is_left(stage: Stage) -> None:
    stage.run(0.5)
    with region("train"):
        stage.work(2.0, "train")
    process.stop()
    assert process.running() is None
    assert stage.calls("train") == 1
    assert stage.attributes("train")["scope"] == "span"
    assert stage.attributes("train")["coverage"] > 0.9


@pytest.mark.usefixtures("clean")
def test_dataloader_worker_leaves_sampling_to_its_parent_and_counts_its_regions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(backend=f"simulated:{simulated.create(tmp_path / 'node')}")
    data = types.ModuleType("torch.utils.data")
    data.get_worker_info = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.data", data)
    for _ in range(100):
        with region("augment", span=False, strict=True):
            pass
    found = process.session()
    process.stop()
    assert found.joiner.verdicts.durations["augment"].calls == 100
    assert found.sampler.driver is None or found.sampler.driver.name == "none"


def test_half_imported_torch_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.data", types.ModuleType("torch.utils.data"))
    assert not process._in_dataloader_worker()


@pytest.mark.usefixtures("clean")
def test_signal_handler_may_run_a_region_at_any_moment() -> None:
    seen: list[str] = []

    def handle(_number: int, _frame: FrameType | None) -> None:
        with region("handler", span=False):
            seen.append("handled")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with process._lock:  # as if the first region were starting the session
            signal.raise_signal(signal.SIGUSR1)
        for _ in range(50):
            with region("main", span=False):
                signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(seen) == 51
    found = process.session()
    found.settle(final=True)
    assert (found.joiner.verdicts.durations["main"].calls, found.joiner.verdicts.durations["handler"].calls) == (50, 51)


# ------------------------------------------------------------------ fork


def test_fork_inside_a_region_leaves_the_parent_as_it_was_and_the_child_ends_quietly(stage: Stage) -> None:
    around = region("around")

    def child() -> str:
        with region("child"):
            pass
        # The region around the fork has ended here too: its span is the parent's to send.
        around.__exit__(None, None, None)
        stage.provider.force_flush()
        counted = process.session()
        counted.settle(final=True)
        return f"{stage.names()} {sorted(counted.joiner.verdicts.durations)}"

    def parent() -> None:
        with region("parent"):
            stage.run(0.1)

    with around:
        assert in_child(child, parent) == "['child'] ['child']"
    stage.flush()
    assert sorted(stage.names()) == ["around", "parent"]
    assert sorted(stage.session.joiner.verdicts.durations) == ["around", "parent"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_starts_a_session_of_its_own_with_threads(clean: None) -> None:
    with region("parent", span=False):
        pass
    mine = process.running()
    assert mine is not None

    def child() -> str:
        before = process.running()
        with region("child", span=False):
            pass
        own = process.session()
        own.stop()
        return f"{before} {own is mine} {own.forked} {dict(own.joiner.verdicts.calls)}"

    assert in_child(child) == "None False False {('child', 'UNKNOWN', ''): 1}"
    assert mine.active
    assert not mine.forked


FORK = """
import multiprocessing, sys
from gpu_profile import configure, process, region
from gpu_profile.driver.simulated import SimulatedQueue, Work

configure(backend=f"simulated:{sys.argv[1]}")

def child():
    queue = SimulatedQueue(sys.argv[1])
    configure(backend=f"simulated:{sys.argv[1]}", stream=queue)
    with region("child", strict=True):
        queue.launch(Work(seconds=0.2, flops=1e12))
        queue.synchronize()
    session = process.session()
    session.flush()
    assert session.sampler.states, session.sampler.problem
    assert list(session.joiner.verdicts.durations) == ["child"], session.durations

if __name__ == "__main__":
    with region("parent", strict=True):
        context = multiprocessing.get_context(sys.argv[2])
        started = context.Process(target=child)
        started.start()
        started.join(30)
        assert started.exitcode == 0, started.exitcode
    session = process.session()
    session.flush()
    assert list(session.joiner.verdicts.durations) == ["parent"], session.durations
    print("done")
"""


def test_forked_child_reads_the_same_gpus_as_its_parent(tmp_path: Path) -> None:
    node = simulated.create(tmp_path / "node")
    assert python(FORK, str(node), "fork") == "done\n"


IMPORTING = """
import os, sys, threading, time

importing = threading.Event()

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy.ma":
            importing.set()
            time.sleep(0.3)

sys.meta_path.insert(0, Slow())
from gpu_profile import configure, region
from gpu_profile.driver.simulated import SimulatedQueue, Work

queue = SimulatedQueue(sys.argv[1])
configure(backend=f"simulated:{sys.argv[1]}", stream=queue)
with region("parent"):
    queue.launch(Work(seconds=0.1, flops=1e12))
    queue.synchronize()
assert importing.wait(20)
pid = os.fork()
if not pid:
    thread = threading.Thread(target=__import__, args=("numpy.ma",), daemon=True)
    thread.start()
    thread.join(10)
    os._exit(int(thread.is_alive()))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_child_can_import_what_its_parents_sampler_was_importing_when_it_was_forked(tmp_path: Path) -> None:
    assert python(IMPORTING, str(simulated.create(tmp_path / "node"))) == "0\n"


# ------------------------------------------------------------------ the end of a process

EXIT = """
import atexit, sys, time
if "late" in sys.argv:
    @atexit.register
    def last():
        with region("at exit", span=False):
            print("ran", process.session().ignoring)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry import trace

class Printer(SpanExporter):
    def export(self, spans):
        for span in spans:
            print(span.name, "joined" if "gpu_profile.device.ids" in span.attributes else span.attributes)
        return SpanExportResult.SUCCESS

def provide():
    trace.set_tracer_provider(TracerProvider())
if "before" in sys.argv:
    provide()
from gpu_profile import GpuSpanProcessor, configure, process, region
from gpu_profile.driver.simulated import SimulatedQueue, Work
if "before" not in sys.argv:
    provide()
trace.get_tracer_provider().add_span_processor(GpuSpanProcessor(BatchSpanProcessor(Printer())))
queue = SimulatedQueue(sys.argv[1])
configure(backend=f"simulated:{sys.argv[1]}", stream=queue)
with region("first", strict=True):
    time.sleep(0.3)
with region("train"):
    queue.launch(Work(seconds=1.2, flops=1e12))
    queue.synchronize()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_spans_that_wait_at_the_end_of_a_program_are_joined_and_sent(tmp_path: Path, when: str) -> None:
    node = simulated.create(tmp_path / "node")
    assert python(EXIT, str(node), when).splitlines()[-1] == "train joined"


def test_region_after_the_end_of_sampling_runs(tmp_path: Path) -> None:
    node = simulated.create(tmp_path / "node")
    assert python(EXIT, str(node), "late").splitlines()[-1] == "ran True"


def test_program_without_a_driver_hears_of_it_once_and_runs(tmp_path: Path) -> None:
    code = """
import logging, sys, time
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from gpu_profile import process, region
for _ in range(3):
    with region("step", span=False):
        time.sleep(0.05)
while not process.session().sampler.stats.turned_ns:
    time.sleep(0.01)
"""
    said = python(code, GPU_PROFILE_BACKEND=f"replay:{tmp_path / 'nothing'}").splitlines()
    assert len(said) == 1
    assert said[0].startswith("gpu-profile: no GPU can be read: ")
    assert str(tmp_path / "nothing") in said[0]


@pytest.mark.parametrize("name", ["interval_s", "retention_s"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "0.1"])
def test_a_length_of_time_is_a_positive_number(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be a positive number of seconds, not "):
        process.configure(**{name: value})

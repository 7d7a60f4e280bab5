"""Every way out of a process hands in its regions and spans, or the recording names the process."""

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.programs import environment, ran

from gpu_profile.recording import Recording, read_recording

#: Runs `work` in children as its first argument says; spans go to the file that the environment names, region by line.
PROGRAM = '''
import ctypes, multiprocessing, os, signal, sys, threading, time
from concurrent.futures import ProcessPoolExecutor
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from gpu_profile import region

busy = threading.Lock()

class ToFile(SpanExporter):
    def export(self, spans):
        with busy, open(os.environ["SPANS"], "a") as file:
            file.write("".join(f"{span.name}\\n" for span in spans))
        return SpanExportResult.SUCCESS

trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(ToFile()))

@region("work")
def work(number=0):
    return number

def vanish():
    work()
    os._exit(3)

class Numbers:
    def __len__(self):
        return 3
    def __getitem__(self, number):
        return work(number)

def stuck():
    """In a call that neither a signal nor anything else ends."""
    mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)

def main(way, method):
    context = multiprocessing.get_context(method)
    if way in ("process", "vanish", "while opening"):
        if way == "while opening":
            work()
        child = context.Process(target=vanish if way == "vanish" else work)
        child.start()
        child.join()
        print(child.exitcode)
    elif way == "pool":
        with context.Pool(1) as pool:
            pool.map(work, range(3))
            workers = list(pool._pool)
        # A pool tells its workers to end, and ends those that have not by then with a signal: either is right.
        print("ended" if {worker.exitcode for worker in workers} <= {0, -signal.SIGTERM} else workers)
    elif way == "executor":
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            print(*pool.map(work, range(3)))
    elif way == "loader":
        from torch.utils.data import DataLoader
        print(*(int(batch) for batch in DataLoader(Numbers(), num_workers=1, multiprocessing_context=context)))
    else:
        if way == "handler before":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        work()
        if way == "handler after":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        if way == "handler for a while":
            came = threading.Event()
            ours = signal.signal(signal.SIGTERM, lambda *_: came.set())
            print("ready", flush=True)
            came.wait(60)
            signal.signal(signal.SIGTERM, ours)
            time.sleep(3)  # longer than a stuck main thread is given
            sys.exit(7)
        if way == "chained":
            before = signal.signal(signal.SIGTERM, lambda *given: before(*given))
        if way == "locked":
            busy.acquire()
        print("ready", flush=True)
        stuck() if way == "stuck" else time.sleep(60)

if __name__ == "__main__":
    main(*sys.argv[1:])
'''


class Place:
    """Where the program is, and what it leaves."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM)
        self._spans, self._recording = folder / "spans", folder / "recording"
        self.environment = environment(
            SPANS=str(self._spans), GPU_PROFILE_RECORD=str(self._recording), GPU_PROFILE_BACKEND="none"
        )

    def words(self, way: str, method: str) -> list[str]:
        return [sys.executable, "-W", "ignore::DeprecationWarning", str(self.program), way, method]

    def spans(self) -> Counter[str]:
        return Counter(self._spans.read_text().splitlines() if self._spans.exists() else [])

    def recording(self) -> Recording:
        return read_recording(self._recording)

    def recorded(self) -> Counter[str]:
        return Counter(span.name for span in self.recording().spans)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize(
    ("way", "said", "calls"),
    [("process", "0", 1), ("pool", "ended", 3), ("executor", "0 1 2", 3), ("loader", "0 1 2", 3)],
)
def test_children_hand_in_their_regions_and_spans(place: Place, way: str, said: str, calls: int, method: str) -> None:
    if way == "loader":
        pytest.importorskip("torch")
    done = ran(place.words(way, method), **place.environment)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, said, "")
    assert place.spans() == {"work": calls}
    assert place.recorded() == {"work": calls}
    assert place.recording().problems == ()


def test_a_child_that_is_forked_while_the_driver_is_being_opened_hands_in_everything(place: Place) -> None:
    """In another thread; a module that is half imported at the fork stays so in the child."""
    place.environment["GPU_PROFILE_BACKEND"] = "simulated"
    done = ran(place.words("while opening", "fork"), **place.environment)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "0", "")
    assert place.spans() == place.recorded() == {"work": 2}
    assert place.recording().problems == ()


@pytest.mark.parametrize("way", ["sleeping", "stuck", "chained"])
def test_sigterm_ends_a_process_with_its_own_status_after_everything_was_handed_in(place: Place, way: str) -> None:
    assert terminated(place, way) == -signal.SIGTERM
    assert place.spans() == {"work": 1}
    assert place.recording().problems == ()


def test_an_exporter_that_waits_for_the_interrupted_code_does_not_hold_up_the_end(place: Place) -> None:
    assert terminated(place, "locked") == -signal.SIGTERM


@pytest.mark.parametrize("way", ["handler before", "handler after", "handler for a while"])
def test_the_program_s_own_handler_of_sigterm_decides(place: Place, way: str) -> None:
    assert terminated(place, way) == 7
    assert place.spans() == {"work": 1}


def test_a_child_that_leaves_no_way_is_named(place: Place) -> None:
    done = ran(place.words("vanish", "fork"), **place.environment)
    assert (done.stdout.strip(), done.stderr) == ("3", "")
    (problem,) = place.recording().problems
    assert problem.startswith("1 process (pid ")
    assert "ended without handing in the last regions and samples" in problem


def test_the_report_of_a_run_names_it_too(place: Place) -> None:
    words = [sys.executable, "-m", "gpu_profile.cli", "--backend", "none", "--", *place.words("vanish", "fork")]
    done = ran(words, **{**place.environment, "GPU_PROFILE_RECORD": ""})
    assert "1 process (pid " in done.stderr
    assert "ended without handing in the last regions and samples" in done.stderr


def terminated(place: Place, way: str) -> int:
    """The status of a process that gets SIGTERM once it is ready."""
    words = place.words(way, "fork")
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=place.environment, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            process.terminate()
            return process.wait(60)
        finally:
            process.kill()

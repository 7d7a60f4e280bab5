"""`GPUProfiler`: what is given to it, what it prints, and where it runs."""

import builtins
import functools
import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.programs import printed
from support.roofline import CEILINGS, FakeMachine

from gpu_profile.errors import UsageError
from gpu_profile.regions import running
from gpu_profile.roofline import GPUProfiler
from gpu_profile.roofline.call import BoundCall
from gpu_profile.roofline.ceilings import cache, calibration
from gpu_profile.roofline.machines import devices

torch = pytest.importorskip("torch")
x = torch.ones(16, 16)


def made(**options: Any) -> GPUProfiler:
    defaults: dict[str, Any] = {"quiet": True, "ceilings": CEILINGS, "regions": False}
    return GPUProfiler("cpu", **defaults | options)


# ------------------------------------------------------------------ what it prints


def test_it_prints_its_machine_and_ceilings_unless_it_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    made(quiet=True)
    assert capsys.readouterr().out == ""
    made(quiet=False)
    said = capsys.readouterr().out
    assert said.startswith("gpu-profile Auto-Calibration\n")
    assert "Calibration Complete! (as given)\n" in said


def test_an_output_that_cannot_write_every_character_gets_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    made(quiet=False)
    assert b"   ? OVERHEAD_BOUND: launching" in written.getvalue()


@pytest.mark.parametrize("output", [None, object(), io.StringIO()], ids=["none", "of another kind", "closed"])
def test_without_an_output_nothing_is_said_and_nothing_fails(output: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(output, io.StringIO):
        output.close()
    monkeypatch.setattr(sys, "stdout", output)
    assert made(quiet=False).profile_operation(torch.mm, x, x)["flops"] == 2 * 16**3


# ------------------------------------------------------------------ its options


def test_profile_operation_is_the_profile_without_the_result() -> None:
    profile = made().profile_operation(torch.add, x, x, repeats=3, warmup=1, flush=True, name="sum", alpha=2)
    assert (profile["operation"], profile["runs"]["n"], profile["runs"]["caches"]) == ("sum", 3, "cold")


def test_the_doubling_test_says_how_much_longer_twice_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = made()
    for ratio, bound in ((1.2, True), (1.9, False)):
        # Seven timed runs, two to begin with, then twice and once by turns.
        twice_s = 1e-3 * ratio
        machine = FakeMachine(functools.partial(lambda twice_s, run: 1e-3 if run <= 9 or run % 2 else twice_s, twice_s))
        monkeypatch.setattr(profiler, "machine", machine)
        found = profiler.overhead_test(torch.cos, x)
        assert found["ratio"] == pytest.approx(ratio)
        assert found["overhead_bound"] is bound
        assert found["runtime_ms"] == 1.0


def test_a_doubling_test_that_cannot_be_done_says_why_in_one_line() -> None:
    def only_sixteen(a: Any) -> Any:
        assert len(a) == 16
        return a

    with pytest.raises(UsageError, match=r"^only_sixteen: the doubling test cannot be done: arguments of twice .*$"):
        made().overhead_test(only_sixteen, x)
    result, profile = made().profile_with_result(only_sixteen, x, growth=True)
    assert result is x
    assert profile["growth"] is None
    assert "AssertionError" in profile["reasons"]["growth"]


def test_without_anything_to_double_nothing_runs() -> None:
    with pytest.raises(UsageError, match="needs an argument that is itself a tensor"):
        made().profile_operation(pytest.fail, "it ran", growth=True)


def test_what_was_given_stays_and_a_second_pass_adds_what_was_not() -> None:
    profile = made().profile_operation(lambda: x @ x, flops=5, passes=2)
    assert (profile["flops"], profile["bytes"]) == (5, 2 * 4 * 16 * 16)
    assert not {"flops", "bytes"} & profile["reasons"].keys()


@pytest.mark.parametrize(
    ("device", "there", "refused"),
    [("mps", "mps:0", False), ("cuda:1", "cuda:1", False), ("cuda:1", "cuda:0", True), ("cupy:0", "cuda:0", True)],
)
def test_a_device_is_known_by_its_number_if_it_has_one(
    device: str, there: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = FakeMachine()
    machine.device = device
    monkeypatch.setattr(devices, "devices_of", lambda _: {there})
    call = BoundCall(torch.cos, (x,), {})
    if refused:
        with pytest.raises(UsageError, match=f"cos: its arguments are on {there}, this profiler is for {device}"):
            call.check_device(machine)
    else:
        call.check_device(machine)


# ------------------------------------------------------------------ regions


def test_spans_of_the_user_s_within_the_function_are_children_of_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(running, "tracer", provider.get_tracer("gpu_profile"))
    theirs = provider.get_tracer("theirs")

    def operation() -> Any:
        with theirs.start_as_current_span("within"):
            return x @ x

    with theirs.start_as_current_span("around"):
        made(regions=True).profile_operation(operation, flops=8192, bytes=2048)
    provider.shutdown()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert spans.keys() == {"around", "operation", "within"}
    for child, parent in (("within", "operation"), ("operation", "around")):
        above, expected = spans[child].parent, spans[parent].context
        assert above is not None
        assert expected is not None
        assert above.span_id == expected.span_id


# ------------------------------------------------------------------ calibration


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Calibrations that take a moment."""
    whole = calibration.calibrate
    monkeypatch.setattr(cache, "calibrate", lambda machine, **options: whole(machine, **options | {"budget_s": 0.01}))
    monkeypatch.setattr(cache, "ATTEMPTS", 1)
    monkeypatch.setenv("GPU_PROFILE_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("short")
def test_ctrl_c_during_calibration_leaves_no_setting_behind_and_the_next_profiler_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = torch.get_float32_matmul_precision(), torch.get_num_threads(), torch.get_rng_state()
    interrupted = torch.mm

    def interrupts(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "mm", interrupts)
    with pytest.raises(KeyboardInterrupt):
        GPUProfiler("cpu", quiet=True)
    monkeypatch.setattr(torch, "mm", interrupted)
    assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert GPUProfiler("cpu", quiet=True).ceilings.compute


@pytest.mark.usefixtures("short")
def test_memory_that_runs_out_during_calibration_costs_a_ceiling_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(torch, "full", full)
    profiler = GPUProfiler("cpu")
    assert "   memory: not known: not enough free memory\n" in capsys.readouterr().out
    profile = profiler.profile_operation(torch.neg, x)
    assert profile["regime"] == "UNKNOWN"
    assert profile["reasons"]["memory ceiling"] == "not enough free memory"


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("place", ["a file", "under a file", "read-only", "too long"])
def test_a_folder_that_nothing_can_be_kept_in_costs_a_remark(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "read-only").mkdir(mode=0o500)
    if place == "read-only":  # root may write there all the same
        monkeypatch.setattr(Path, "mkdir", _refuse)
    names = {"a file": "file", "under a file": "file/below", "read-only": "read-only", "too long": "x" * 5000}
    monkeypatch.setenv("GPU_PROFILE_CACHE", str(tmp_path / names[place]))
    monkeypatch.setattr("gpu_profile.roofline.ceilings.ceilings.MOST_WAITED", 1.0)
    assert GPUProfiler("cpu").ceilings.compute
    assert "Calibration Complete! (measured now; not kept: " in capsys.readouterr().out


def _refuse(*_: Any, **__: Any) -> None:
    raise PermissionError(13, "Permission denied")


# ------------------------------------------------------------------ processes


def run(code: str, **variables: str) -> str:
    return printed("-W", "error", "-c", code, PYTHONPATH=os.pathsep.join(sys.path), **variables)


WITHOUT_TORCH = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "cupy", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from support.roofline import CEILINGS
from gpu_profile import configure
from gpu_profile.errors import UsageError
from gpu_profile.roofline import GPUProfiler, create_performance_plots, profile_model
configure(backend="none")
for device in (None, "host"):
    profiler = GPUProfiler(device, ceilings=CEILINGS)
    result, profile = profiler.profile_with_result(sorted, [2, 1], flops=1, bytes=16)
    assert (result, profile["flops"]) == ([1, 2], 1)
    assert profiler.profile_with_result(sorted, [2, 1], lightweight=True)[0] == [1, 2]
    assert profiler.profile_operation(sorted, [2, 1], passes=2)["reasons"]["flops"].startswith("without PyTorch")
asked = [lambda each=each: GPUProfiler(each) for each in ("cpu", "cuda", 0, "cupy", "toaster")]
asked += [lambda: create_performance_plots("x.png", profiler=profiler), lambda: profile_model(len, 1)]
for each in asked:
    try:
        each()
    except UsageError as error:
        print("ERROR", error)
"""


def test_without_pytorch_plain_functions_are_profiled_and_all_else_says_what_to_install() -> None:
    said = run(WITHOUT_TORCH)
    assert "(finding GPUs needs PyTorch, which is not installed: the CPU itself is measured)" in said
    errors = [line for line in said.splitlines() if line.startswith("ERROR")]
    assert len(errors) == 7
    assert sum("pip install" in error for error in errors) == 6
    assert "device='toaster': there is no such device; there are: host" in said


FORKED = """
import os, torch
from support.roofline import CEILINGS
from gpu_profile import configure
from gpu_profile.roofline import GPUProfiler
from gpu_profile.roofline.call import BoundCall
from gpu_profile.roofline.ceilings import cache
from gpu_profile.roofline.counting import dry_run, undispatched
torch.set_num_threads(1)
configure(backend="none")
profiler = GPUProfiler("cpu", quiet=True, ceilings=CEILINGS)
with dry_run._copying, dry_run._lock, undispatched._lock, cache._one_at_a_time:
    # As if another thread held them.
    child = os.fork()
    if not child:
        a = torch.ones(4, 4)
        assert profiler.profile_operation(torch.mm, a, a)["flops"] == 128
        assert profiler.profile_operation(lambda: a @ a, passes=2)["flops"] == 128
        assert cache._one_at_a_time.acquire(timeout=1)
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_profiles_whatever_its_parent_s_threads_were_doing() -> None:
    assert run("import warnings\nwarnings.simplefilter('ignore', DeprecationWarning)\n" + FORKED) == "7\n"


def test_a_cupy_that_is_blocked_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(UsageError, match=r"there are: cpu, host$"):
        GPUProfiler("toaster")


def test_the_options_of_a_profile_are_no_builtins_of_the_caller_s() -> None:
    assert made().profile_operation(bytes, 5, bytes=5, flops=0)["bytes"] == len(builtins.bytes(5))

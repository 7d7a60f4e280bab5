import importlib.metadata
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pynvml
import pytest

from gpu_profile.clock import Clock
from gpu_profile.driver import Driver, grammar
from gpu_profile.driver.grammar import GRAMMAR, check_spec, open_driver
from gpu_profile.driver.null import NullDriver
from gpu_profile.driver.simulated import create
from gpu_profile.driver.simulated.scenario import FILE
from gpu_profile.errors import GpuBackendError, GpuProfileError, RecordingError, ScenarioError, UsageError
from gpu_profile.recording import RecordingWriter
from gpu_profile.testing import FakeClock


def fails(message: str) -> Callable[..., Driver]:
    def opener(clock: Clock, **_: object) -> Driver:
        raise GpuBackendError(message)

    return opener


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(grammar, "_nvml", fails("NVML Shared Library Not Found"))


def test_none_is_the_null_driver() -> None:
    driver = open_driver(" none ")
    assert isinstance(driver, NullDriver)
    assert driver.reason == "no driver was asked for (none)"


def test_replay_opens_the_recording_in_the_directory(tmp_path: Path) -> None:
    RecordingWriter(tmp_path / "a:b").close()
    assert open_driver(f"replay:{tmp_path}/a:b").name == f"replay:{tmp_path}/a:b"
    with pytest.raises(RecordingError, match="missing: not a recording"):
        open_driver(f"replay:{tmp_path}/missing")


def test_simulated_reads_a_simulated_node_through_nvml_until_it_is_closed() -> None:
    library = pynvml.nvmlLib
    driver = open_driver("simulated", clock=FakeClock())
    word, _, directory = driver.name.partition(":")
    assert word == "simulated"
    assert Path(directory).is_dir()
    assert driver.devices()
    driver.close()
    driver.close()
    assert pynvml.nvmlLib is library
    assert not Path(directory).exists()


def test_simulated_with_a_directory_leaves_it_where_it_is(tmp_path: Path, clock: FakeClock) -> None:
    create(tmp_path, clock=clock)
    driver = open_driver(f"simulated:{tmp_path}", clock=clock)
    assert driver.name == f"simulated:{tmp_path}"
    driver.close()
    assert list(tmp_path.iterdir())


def test_closing_a_simulated_driver_leaves_one_alone_that_was_opened_since() -> None:
    first, second = open_driver("simulated"), open_driver("simulated")
    first.close()
    assert second.devices()
    second.close()


def test_simulated_with_a_bad_scenario_is_refused_and_leaves_nothing_installed(tmp_path: Path) -> None:
    library = pynvml.nvmlLib
    (tmp_path / FILE).write_text("]")
    with pytest.raises(ScenarioError, match=str(tmp_path)):
        open_driver(f"simulated:{tmp_path}")
    assert pynvml.nvmlLib is library


@pytest.mark.usefixtures("_no_gpu")
def test_auto_without_a_gpu_says_what_was_looked_for_and_what_to_do() -> None:
    with pytest.raises(GpuBackendError) as raised:
        open_driver("auto")
    message = str(raised.value)
    assert "libnvidia-ml.so.1" in message
    assert "NVML Shared Library Not Found" in message
    assert "nvidia-smi not found on PATH" in message
    assert "simulated" in message
    assert "\n" not in message


def test_auto_takes_nvml_before_nvidia_smi_and_nvidia_smi_before_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, smi = NullDriver("nvml"), NullDriver("smi")
    monkeypatch.setattr(grammar, "_nvml", lambda clock, **_: nvml)
    monkeypatch.setattr(grammar, "_smi", lambda clock: smi)
    assert open_driver("auto") is nvml
    monkeypatch.setattr(grammar, "_nvml", fails("gone"))
    assert open_driver("auto") is smi


@pytest.mark.usefixtures("_no_gpu")
def test_a_driver_that_is_asked_for_by_name_is_never_replaced_by_another() -> None:
    with pytest.raises(GpuBackendError, match="nvidia-smi not found"):
        open_driver("smi")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nvlm", "did you mean 'nvml'?"),
        ("Simulate", "did you mean 'simulated'?"),
        ("", "unknown driver ''"),
        ("cuda", "unknown driver 'cuda': one of " + GRAMMAR.replace("|", r"\|").replace("[", r"\[")[:20]),
        ("nvml:0", "'nvml' takes nothing after it"),
        ("none:", "'none' takes nothing after it"),
        ("replay", "write replay:DIR"),
        ("replay:", "write replay:DIR"),
        ("simulated:", "write simulated:DIR"),
    ],
)
def test_a_word_that_is_not_in_the_grammar_is_refused_with_a_hint(spec: str, message: str) -> None:
    for use in (check_spec, open_driver):
        with pytest.raises(GpuBackendError, match=message):
            use(spec)


@pytest.mark.parametrize("spec", ["nvlm", " nvlm ", "nvml:0", "replay"])
def test_a_wrong_value_of_the_variable_is_refused_by_the_variable_s_name(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PROFILE_BACKEND", spec)
    for use in (check_spec, open_driver):
        with pytest.raises(GpuBackendError, match=r"^GPU_PROFILE_BACKEND: ") as error:
            use(spec)
        assert len(str(error.value)) <= 200
        with pytest.raises(GpuBackendError, match=r"^unknown driver 'cuda'"):
            use("cuda")


@pytest.mark.parametrize("spec", ["auto", "nvml", "smi", "none", "simulated", "simulated:/nowhere", "replay:/nowhere"])
def test_checking_a_spec_opens_nothing(spec: str) -> None:
    check_spec(spec)


def _install(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    point = EntryPoint("rocm", f"{__name__}:{target}", "gpu_profile.drivers")
    points = EntryPoints([point])
    monkeypatch.setattr(EntryPoint, "load", lambda self: globals()[self.attr])
    monkeypatch.setattr(importlib.metadata, "entry_points", points.select)


def opens(argument: str | None, clock: Clock) -> Driver:
    return NullDriver(f"rocm with {argument!r} at {clock.now_ns()}")


def breaks(argument: str | None, clock: Clock) -> Driver:
    raise ZeroDivisionError("oops")


def refuses(argument: str | None, clock: Clock) -> Driver:
    raise UsageError("no such file")


def test_a_package_adds_a_driver_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, "opens")
    check_spec("rocm")
    for spec, argument in (("rocm", None), ("rocm:", ""), ("rocm:a:b", "a:b")):
        driver = open_driver(spec, clock=FakeClock(5))
        assert isinstance(driver, NullDriver)
        assert driver.reason == f"rocm with {argument!r} at 5"


def test_an_added_driver_is_suggested_and_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, "opens")
    with pytest.raises(GpuBackendError, match=r"replay:DIR\|rocm; did you mean 'rocm'"):
        open_driver("rocmm")


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        ("breaks", GpuBackendError, r"driver 'rocm' \(.*:breaks\): ZeroDivisionError: oops"),
        ("refuses", UsageError, "no such file"),
    ],
)
def test_an_added_driver_that_fails_is_one_of_our_errors(
    monkeypatch: pytest.MonkeyPatch, target: str, kind: type[GpuProfileError], message: str
) -> None:
    _install(monkeypatch, target)
    with pytest.raises(kind, match=message):
        open_driver("rocm")

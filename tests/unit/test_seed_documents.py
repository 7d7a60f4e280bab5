"""What the documents that the library follows show runs as they show it; `tests/data/seed` holds their code."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest
from markdown_it import MarkdownIt

import gpu_profile
from gpu_profile import GpuBackendError, configure, monitor
from gpu_profile.driver.grammar import BACKEND_VARIABLE, check_spec
from gpu_profile.monitor import GpuMonitor, GpuSample, GpuSummary, ProfiledResult
from gpu_profile.regions.session import process

NEVER = threading.Event()
PAGES = Path(__file__).parents[1] / "data" / "seed"
PARSER = MarkdownIt("commonmark")
API = (PAGES / "api.md").read_text(encoding="utf-8")
#: What each line of the documents' list of fields means.
FIELDS = {
    "device/name": {"device", "name"},
    "duration": {"duration_s"},
    "sample count / interval": {"n_samples", "interval_s"},
    "util.gpu mean/p50/p95/max": {"util_gpu_mean", "util_gpu_p50", "util_gpu_p95", "util_gpu_max"},
    "util.mem mean": {"util_mem_mean"},
    "memory used max / total": {"mem_used_max_mb", "mem_total_mb"},
    "power mean/max": {"power_mean_w", "power_max_w"},
    "temperature max": {"temp_max_c"},
    "busy time estimate": {"busy_time_est_s"},
    "sparkline (mini utilization trace)": {"sparkline"},
}


def blocks(page: str, info: str = "python") -> list[str]:
    tokens = PARSER.parse((PAGES / page).read_text(encoding="utf-8"))
    return [token.content for token in tokens if token.type == "fence" and token.info == info]


def section(title: str) -> list[str]:
    """The items of the list under a heading."""
    (text,) = re.findall(rf"^## {re.escape(title)}$(.*?)(?=^## |^```|\Z)", API, re.MULTILINE | re.DOTALL)
    return re.findall(r"^- (.*)$", text, re.MULTILINE)


def names(items: list[str]) -> list[str]:
    return [name for item in items for name in re.findall(r"(?:`|\*\*)(\w+)(?:`|\*\*|:)", item)]


class Matrix:
    """What the fake torch multiplies."""

    def __matmul__(self, other: Matrix) -> Matrix:
        return self


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand-ins for torch and CuPy, on no GPU at all: calls of their synchronise are noted."""
    called: list[str] = []
    torch, cupy = ModuleType("torch"), ModuleType("cupy")
    torch.cuda = SimpleNamespace(synchronize=lambda: called.append("torch"))  # type: ignore[attr-defined]

    def randn(*_: int, device: str) -> Matrix:
        called.append(device)
        return Matrix()

    torch.randn = randn  # type: ignore[attr-defined]
    stream = SimpleNamespace(null=SimpleNamespace(synchronize=lambda: called.append("cupy")))
    cupy.cuda = SimpleNamespace(Stream=stream)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return called


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`auto` is a simulated GPU."""
    monkeypatch.setenv(BACKEND_VARIABLE, "simulated")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    configure()
    yield
    process.stop()


def run(code: str, **given: Any) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__", **given}
    exec(compile(code, "<document>", "exec", flags=0, dont_inherit=True), namespace)  # noqa: S102
    return namespace


@pytest.mark.usefixtures("simulated")
def test_quick_example_runs_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    run(blocks("index.md")[0])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("[GPU 0] NVIDIA ")
    assert re.fullmatch(r"  duration: 0\.\d{3}s \| samples: \d+ @ 0\.200s", lines[1])


@pytest.mark.usefixtures("simulated")
def test_torch_example_runs_as_written_and_synchronises_before_and_after(
    frameworks: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run(blocks("index.md")[1])
    assert frameworks == ["torch", "cuda", "cuda", "torch"]
    out = capsys.readouterr().out
    assert "@ 0.100s" in out
    assert "notes: warmup ignored: first 0.20s | the warmup is longer than the run" in out


def test_index_has_no_other_code() -> None:
    assert len(blocks("index.md")) == 2


@pytest.mark.parametrize("code", blocks("concepts.md"))
def test_code_of_the_concepts_runs_as_written(code: str, frameworks: list[str]) -> None:
    made = run(code, torch=sys.modules["torch"], GpuMonitor=GpuMonitor)
    if "sync_fn" in made:
        GpuMonitor(sync_fn=made["sync_fn"])
        made["sync_fn"]()
        assert len(frameworks) == 1


@pytest.mark.usefixtures("simulated")
def test_busy_time_estimate_is_the_documents_formula() -> None:
    (formula,) = blocks("concepts.md", info="")
    with GpuMonitor() as running:
        process.session().clock.wait(NEVER, 0.3)
    summary = running.summary
    assert summary is not None
    assert summary.coverage == 1.0
    util = SimpleNamespace(gpu=summary.util_gpu_mean)
    found = run(formula, duration_s=summary.duration_s, mean=float, util=util)["busy_time_est_s"]
    assert summary.busy_time_est_s == pytest.approx(found)


def test_public_names_are_there() -> None:
    made = run(blocks("api.md")[0])
    for name in ("gpu_profile", "GpuMonitor", "GpuSummary", "GpuSample", "ProfiledResult"):
        assert made[name] is getattr(monitor, name)
    assert made["GpuBackendError"] is GpuBackendError
    assert gpu_profile.gpu_profile is monitor.gpu_profile


@pytest.mark.usefixtures("simulated")
def test_monitor_runs_as_written() -> None:
    made = run(blocks("api.md")[1], GpuMonitor=GpuMonitor)
    assert isinstance(made["summary"], GpuSummary)
    assert isinstance(made["mon"], GpuMonitor)


def test_decorator_has_the_documented_parameters_and_defaults() -> None:
    (code,) = blocks("api.md", info="python signature")
    (function,) = ast.parse(code.strip().replace("@gpu_profile(", "def gpu_profile(") + ": ...").body
    assert isinstance(function, ast.FunctionDef)
    defaults = [ast.literal_eval(default) for default in function.args.defaults]
    documented = dict(zip([argument.arg for argument in function.args.args], defaults, strict=True))
    parameters = [p for p in inspect.signature(monitor.gpu_profile).parameters.values() if p.name != "function"]
    assert {p.name: p.default for p in parameters} == documented
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters)
    assert names(section("`gpu_profile`: parameters")) == list(documented)


def test_documented_backends_are_known() -> None:
    (item,) = (item for item in section("`gpu_profile`: parameters") if item.startswith("**backend**"))
    found = re.findall(r'`"(\w+)"`', item)
    assert found == ["auto", "nvml", "smi", "none"]
    for backend in found:
        check_spec(backend)


def test_monitor_has_the_documented_parameters_and_the_decorators_defaults() -> None:
    parameters = inspect.signature(GpuMonitor).parameters
    assert list(parameters) == names(section("`GpuMonitor`: parameters"))
    decorator = inspect.signature(monitor.gpu_profile).parameters
    for name, parameter in parameters.items():
        assert parameter.default == (False if name == "keep_samples" else decorator[name].default)


def test_monitor_has_the_documented_attributes() -> None:
    assert names(section("`GpuMonitor`: attributes")) == ["summary", "samples"]
    hints = {name: get_type_hints(getattr(GpuMonitor, name).fget)["return"] for name in ("summary", "samples")}
    assert set(get_args(hints["summary"])) == {GpuSummary, type(None)}
    assert get_args(hints["samples"]) == (GpuSample,)


def test_summary_has_the_documented_fields_is_frozen_and_formats_itself() -> None:
    items = section("`GpuSummary`: fields")
    assert items == list(FIELDS)
    assert {name for item in items for name in FIELDS[item]} <= {field.name for field in dataclasses.fields(GpuSummary)}
    summary = GpuSummary(0, "A", 1.0, 0.2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        summary.name = "B"  # type: ignore[misc]
    assert summary.format().startswith("[GPU 0] A\n")


def test_profiled_result_is_made_as_documented() -> None:
    summary = GpuSummary(0, "A", 1.0, 0.2)
    result = ProfiledResult(value=1, gpu=summary)
    assert (result.value, result.gpu) == (1, summary)

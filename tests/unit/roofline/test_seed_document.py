"""What the document of operations shows runs with the import line changed, on the CPU where it says `cuda`."""

import json
import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
from support.programs import printed
from support.roofline import CEILINGS

from gpu_profile import configure
from gpu_profile.cli import run
from gpu_profile.roofline.ceilings import cache as ceiling_cache
from gpu_profile.roofline.ceilings.ceilings import Ceilings
from gpu_profile.roofline.machines.devices import machine as machine_of
from gpu_profile.roofline.plots import panels
from gpu_profile.roofline.profiler import GPUProfiler
from gpu_profile.roofline.sweep import Row, sweep

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

PAGE = (Path(__file__).parents[2] / "data" / "seed" / "operations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("gpu-profile")
]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ceilings:
    """Ceilings of this CPU are in the cache, so that nothing has to be measured."""
    configure(backend="none")
    monkeypatch.setenv("GPU_PROFILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    machine = machine_of("cpu")
    known = Ceilings.from_json(CEILINGS.to_json() | {"key": dict(machine.key), "calibrated_ns": time.time_ns()})
    assert ceiling_cache.store(known) == ""
    return known


def swept_briefly(profiler: GPUProfiler, *, budget_s: float) -> list[Row]:
    return sweep(profiler, budget_s=budget_s / 10)


def translated(block: str) -> str:
    return block.replace("gpu_regime_profiler", "gpu_profile.roofline").replace("device='cuda'", "device='cpu'")


def test_its_python_runs_from_top_to_bottom(
    kept: Ceilings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.setattr(panels, "sweep", swept_briefly)
    names: dict[str, Any] = {"x": torch.ones(1_000)}
    for block in BLOCKS:
        exec(compile(translated(block), "operations.md", "exec"), names)  # noqa: S102 - the project's own file
    printed = capsys.readouterr().out
    assert "Result shape: torch.Size([2000, 2000])" in printed
    assert re.search(r"^Runtime: [\d.]+ ms$", printed, re.MULTILINE)
    assert re.search(r"^Regime: [A-Z_]+$", printed, re.MULTILINE)
    assert re.search(r"^FLOPS utilization: [\d.]+%$", printed, re.MULTILINE)
    assert set(names["profile"]) == {"runtime_ms", "regime"}
    assert (tmp_path / "gpu_performance_analysis.png").read_bytes().startswith(b"\x89PNG")


def test_the_panel_has_what_its_panel_has(kept: Ceilings, capsys: pytest.CaptureFixture[str]) -> None:
    from gpu_profile.roofline import GPUProfiler

    GPUProfiler()
    printed = capsys.readouterr().out
    for line in (
        "Auto-Calibration",
        "OVERHEAD_BOUND",
        "MEMORY_BOUND",
        "COMPUTE_BOUND",
        "Calibration Complete!",
        "Max Memory Bandwidth: 20.0 GB/s",
        "Max Compute FLOPS, fp32: 100 GFLOP/s",
        "Memory Threshold: 60.0 %",
        "Compute Threshold: 60.0 %",
        "no GPU was found",
    ):
        assert line in printed


def test_its_command_draws_the_panels(kept: Ceilings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert ["gpu-profile", "--visualize"] in COMMANDS
    monkeypatch.setattr(panels, "sweep", swept_briefly)
    assert run(["--visualize"]) == 0
    assert (tmp_path / "gpu_performance_analysis.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("words", [words for words in COMMANDS if "--visualize" not in words], ids=" ".join)
def test_its_commands_run(words: list[str], kept: Ceilings, tmp_path: Path) -> None:
    code = "import sys; from gpu_profile.cli import run; sys.exit(run(sys.argv[1:]))"
    found = printed("-c", code, *words[1:], "--json", cwd=tmp_path, GPU_PROFILE_CACHE=str(tmp_path / "cache"))
    assert json.loads(found)["operation"] == words[2]

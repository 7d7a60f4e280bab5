"""The code of the page on operations runs from top to bottom."""

import os
import re
import time
from pathlib import Path

import pytest
from support.programs import printed
from support.roofline import CEILINGS

from gpu_profile.roofline.ceilings import cache
from gpu_profile.roofline.ceilings.ceilings import Ceilings
from gpu_profile.roofline.machines.devices import machine

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "roofline.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
#: The page's sweep takes twenty seconds.
SHORT = """
from gpu_profile import configure
from gpu_profile.roofline.plots import panels
configure(backend="none")
panels.create_performance_plots.__kwdefaults__["budget_s"] = 0.2
"""


def test_its_python_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PROFILE_CACHE", os.fspath(tmp_path))
    key = dict(machine("cpu").key)
    assert cache.store(Ceilings.from_json(CEILINGS.to_json() | {"key": key, "calibrated_ns": time.time_ns()})) == ""
    assert len(BLOCKS) == 5
    code = SHORT + "\n".join(BLOCKS)
    said = printed("-W", "error::UserWarning", "-c", code, cwd=tmp_path, GPU_PROFILE_CACHE=os.fspath(tmp_path))
    assert re.search(r"^[\d.]+ ms, [A-Z_]+: ", said, re.MULTILINE)
    assert f"{3 * 2000 * 2000 * 4} formula" in said
    assert (tmp_path / "gpu_performance_analysis.png").exists()
    assert (tmp_path / "model.png").exists()


def test_every_key_of_a_profile_is_in_its_table() -> None:
    from gpu_profile.roofline import GPUProfiler

    found = GPUProfiler("cpu", quiet=True, ceilings=CEILINGS, regions=False).profile_operation(len, "a", flops=1)
    table = PAGE[PAGE.index("## Results") : PAGE.index("The regime is the shared engine")]
    told = set(re.findall(r"`(\w+)`", table))
    assert set(found) <= told
    assert set(found["runs"]) <= told
    assert set(found["counted"]) <= told

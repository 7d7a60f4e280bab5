"""The code of the PyTorch tutorial runs as it is written, and has the regions that it promises."""

import os
import re
from pathlib import Path

import pytest
from support.programs import printed

from gpu_profile.driver import simulated

pytest.importorskip("torch")

PAGE = (Path(__file__).parents[3] / "docs" / "tutorials" / "pytorch.md").read_text(encoding="utf-8")
TRAIN, COMPILE, LIGHTNING, TRANSFORMERS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

AFTER = """
import runpy
names = runpy.run_path("train.py", run_name="__main__")
from gpu_profile.regions.session import process
session = process.session()
session.flush()
print(*{judged.summary.region for judged in session.regions()}, sep=",")
"""


def run(script: str, tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(TRAIN)
    simulated.create(tmp_path / "node")
    backend = f"simulated:{tmp_path / 'node'}"
    return printed("-c", script, cwd=tmp_path, GPU_PROFILE_BACKEND=backend, TMPDIR=os.fspath(tmp_path))


def test_the_training_has_the_regions_of_the_pages_table(tmp_path: Path) -> None:
    table = re.findall(
        r"^\| (`.*?`) \| .* \|$", PAGE[PAGE.index("| region |") : PAGE.index("## What to")], re.MULTILINE
    )
    promised = set(re.findall(r"`([^`]+)`", " ".join(table)))
    assert len(promised) == 9
    assert set(run(AFTER, tmp_path).strip().split(",")) == promised


@pytest.mark.parametrize(
    ("block", "needs"), [(COMPILE, "torch"), (LIGHTNING, "lightning"), (TRANSFORMERS, "transformers")]
)
def test_the_other_blocks_run_after_it(block: str, needs: str, tmp_path: Path) -> None:
    pytest.importorskip(needs)
    run(f"import runpy\nnames = runpy.run_path('train.py')\nexec({block!r}, names)", tmp_path)

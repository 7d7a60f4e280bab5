"""The example that profiles a small PyTorch program runs as it stands, from a shell."""

import csv
import re
from pathlib import Path

import pytest
from support.programs import python

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "hello_kernels.py"
RANGES = [
    "matrix_operations",
    "elementwise_operations",
    "forward_pass",
    "layers",
    "convolution",
    "pooling",
    "reduction_operations",
]


def test_the_example_tells_every_kind_of_work(tmp_path: Path) -> None:
    done = python(EXAMPLE, "cpu", cwd=tmp_path, GPU_PROFILE_BACKEND="none", PYTHONIOENCODING="utf-8")
    # PyTorch says so itself, of what the first round had allocated.
    said = [line for line in done.stderr.splitlines() if "Memory block of unknown size" not in line]
    assert (done.returncode, said) == (0, [])
    assert re.findall(r"^Range \d: (.*)$", done.stdout, re.MULTILINE) == [*RANGES, "memory_ops"]
    times = [float(us) for us in re.findall(r"^  cpu__time_duration\.sum: ([\d.]+) us$", done.stdout, re.MULTILINE)]
    assert len(times) == len(RANGES)
    assert all(times)
    moved = 3 * 5 * 4 * 1024 * 1024
    assert re.search(rf"^  Allocations: 15 operations, {moved} bytes \(60\.00 MB\)", done.stdout, re.MULTILINE)
    with (tmp_path / "output" / "result.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    by_range = {row["range"]: row["value"] for row in rows if row["metric"] == "executions.count"}
    assert by_range == dict.fromkeys(RANGES, "3")
    with (tmp_path / "output" / "kernels.csv").open(newline="", encoding="utf-8") as file:
        operators = {row["kernel"] for row in csv.DictReader(file) if row["range"] == "reduction_operations"}
    assert {"aten::sum", "aten::max"} <= operators

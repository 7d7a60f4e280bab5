"""What the library costs the process that uses it, and how far the demonstration is from the truth."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import busy_time, foreign, frameworks, long_run, region_cost, sampler_cost
from benchmarks.rows import Row, best
from gpu_profile.driver import simulated

_ROOT = Path(__file__).resolve().parents[2]


def rows() -> Iterator[Row]:
    """The library's rows."""
    yield from _rows(busy_time.PHASES, 24)


def sample() -> Iterator[Row]:
    """The same rows from an eighth of the regions whose busy time is looked for, and an eighth of the day."""
    yield from _rows(busy_time.PHASES // 8, 3)


def _rows(phases: int, hours: int) -> Iterator[Row]:
    yield import_time()
    yield _wheel_size()
    yield from region_cost.rows()
    yield from frameworks.rows()
    yield from foreign.rows()
    yield from sampler_cost.rows()
    yield from long_run.rows(hours)
    yield from busy_time.rows(phases)
    yield from _demonstration()


def import_time() -> Row:
    def run(code: str) -> float:
        return best(lambda: subprocess.run([sys.executable, "-c", code], check=True), 9)

    bare = run("pass")
    ours, theirs = run("import gpu_profile") - bare, run("import opentelemetry.trace") - bare
    ratio = ours / theirs
    figure = f"{ours * 1e3:.1f} ms"
    return Row(
        "import gpu_profile",
        figure,
        f"import opentelemetry.trace {theirs * 1e3:.0f} ms",
        f"{ratio:.2f}x",
        "<=1x",
        ratio <= 1,
        ratio,
    )


def _wheel_size() -> Row:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", directory, str(_ROOT)]
        subprocess.run(command, check=True, capture_output=True)
        size = sum(path.stat().st_size for path in Path(directory).glob("*.whl"))
    return Row("wheel", f"{size / 1e3:.0f} kB", cost=size / 1e3)


def _demonstration(seconds: int = 20) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as directory:
        node = simulated.create(Path(directory) / "node")
        command = [sys.executable, "-m", "gpu_profile_exporter.demo.service", "--directory", str(node)]
        command += ["--metrics", "0", "--seconds", str(seconds)]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    for region in json.loads(lines[-1])["comparison"]:
        for quantity in ("busy_s", "energy_j"):
            true = region[f"true_{quantity}"]
            if true < 0.05:
                continue
            device = abs(region[f"device_{quantity}"] / true - 1)
            host = region[f"host_{quantity}"]
            yield Row(
                f"demo, {region['region']}, {'GPU busy time' if quantity == 'busy_s' else 'energy'}",
                f"{device * 100:.1f} % off by device intervals",
                "not given" if host is None else f"{abs(host / true - 1) * 100:.0f} % off by host intervals",
            )

"""What the library costs the process that uses it, and how far the demonstration is from the truth."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.rows import Row, best
from gpu_profile.driver import simulated

_ROOT = Path(__file__).resolve().parents[2]


def rows() -> Iterator[Row]:
    """The library's rows."""
    yield _import_time()
    yield _wheel_size()
    yield from _demonstration()
    yield from _region_cost()


def _import_time() -> Row:
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
    )


def _wheel_size() -> Row:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", directory, str(_ROOT)]
        subprocess.run(command, check=True, capture_output=True)
        size = sum(path.stat().st_size for path in Path(directory).glob("*.whl"))
    return Row("wheel", f"{size / 1e3:.0f} kB")


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


def _region_cost() -> Iterator[Row]:
    code = """
import time, sys
from gpu_profile import configure, region
from opentelemetry import trace
configure(backend="none")
def bare(): pass
r = region("x", span=False)
decorated = region("x", span=False)(bare)
def with_region():
    with r: pass
def with_span():
    with tracer.start_as_current_span("x"): pass
tracer = trace.get_tracer("t")
def cost(f, n=400, bursts=400):
    result = 1e9
    for _ in range(bursts):
        t = time.perf_counter()
        for _ in range(n): f()
        result = min(result, (time.perf_counter() - t) / n)
    return result
b = cost(bare)
print(*(f"{(cost(f) - b) * 1e6:.3f}" for f in (decorated, with_region, with_span)))
"""
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    decorated, block, noop = (float(part) for part in out.split())
    for name, cost in (("decorator, span=False", decorated), ("with region, span=False", block)):
        yield Row(
            name,
            f"{cost:.2f} µs over a bare call",
            f"OpenTelemetry's no-op span {noop:.2f} µs",
            f"{noop / cost:.1f}x less",
        )

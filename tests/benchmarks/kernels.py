"""Reading a saved trace as a stream, against `json.load` of the whole; each in a process of its own."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.rows import Row
from gpu_profile.kernels import Trace, measure

_ROOT: Final = Path(__file__).parents[2]
_TRACES: Final = _ROOT / "tests" / "data" / "traces"
#: Trace, busy and communication time in µs, as other code found them.
_KNOWN: Final = (
    ("hta/alexnet_a100", 66_141, 0),
    ("hta/ddp_a100_nccl_rank0", 157_500, 46_876),
    ("hta/mi250_minitoy_rocm62", 149, 0),
    ("kineto/resnet50_workers0", 603_558, 0),
)
#: Some steps of training; a trace of minutes is what memory matters for, so its events are repeated.
_STEPS: Final = _TRACES / "kineto" / "resnet50_workers0.json.gz"
_REPEAT: Final = 4

_OURS: Final = """
import sys, time
sys.path.insert(0, {packages!r})
from pathlib import Path
from gpu_profile.kernels import Trace, measure
started = time.perf_counter()
busy_ns = measure(Trace(Path({path!r}))).busy_ns
"""
_THEIRS: Final = """
import gzip, json, time
started = time.perf_counter()
with gzip.open({path!r}, "rt") as file:
    events = json.load(file)["traceEvents"]
kinds = {{"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}}
until, busy_ns = 0, 0
for start, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in kinds):
    busy_ns += 1000 * max(0, end - max(start, until))
    until = max(until, end)
"""
#: `VmHWM` is this program's own; what getrusage tells may be the parent's, from before the exec.
_TELL: Final = """
taken = time.perf_counter() - started
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(taken, int(peak), busy_ns)
"""


def rows() -> Iterator[Row]:
    """The rows of the kernels."""
    wrong = [name for name, *known in _KNOWN if _sums(name) != known]
    yield Row(
        f"busy and communication time of {len(_KNOWN)} recorded traces",
        f"{len(_KNOWN) - len(wrong)} equal",
        reach="all equal",
        ok=not wrong,
    )
    with tempfile.TemporaryDirectory() as directory:
        large = Path(directory) / "trace.json.gz"
        size = f"{_repeat(large) / 1e6:.0f} MB of JSON"
        ours, theirs = _best(_OURS, large), _best(_THEIRS, large)
    same = ours[2] == theirs[2]
    yield Row(
        f"trace of {size}, peak RSS of the process",
        f"{ours[1] / 1024:.0f} MiB",
        f"json.load {theirs[1] / 1024:.0f} MiB",
        f"{ours[1] / theirs[1] * 100:.0f} %",
        "<=25 %, same busy time",
        ours[1] <= 0.25 * theirs[1] and same,
    )
    yield Row(
        f"trace of {size}, time to the busy time",
        f"{ours[0]:.2f} s",
        f"json.load {theirs[0]:.2f} s",
        f"{theirs[0] / ours[0]:.2f}x",
        ">=1x, same busy time",
        ours[0] <= theirs[0] and same,
    )


def _repeat(path: Path) -> int:
    """Write the trace with its events repeated; its size before packing. What overlaps counts once, so sums stay."""
    with gzip.open(_STEPS, "rt") as file:
        head, events = file.read().split('"traceEvents":[', 1)
    events = events.rstrip().removesuffix("]}")
    text = f'{head}"traceEvents":[{",".join([events] * _REPEAT)}]}}'
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(text)
    return len(text)


def _sums(name: str) -> list[int]:
    found = measure(Trace(_TRACES / f"{name}.json.gz"))
    return [] if found is None else [round(found.busy_ns / 1000), round(found.communication_ns / 1000)]


def _best(program: str, path: Path, runs: int = 2) -> tuple[float, int, int]:
    """Seconds of reading, peak KiB of the process, and the busy time in ns; the fastest of some runs."""
    text = (program + _TELL).format(path=str(path), packages=str(_ROOT / "instrumentation"))
    found = []
    for _ in range(runs):
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        seconds, peak, busy_ns = done.stdout.split()
        found.append((float(seconds), int(peak), int(busy_ns)))
    return min(found)

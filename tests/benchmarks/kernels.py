"""Reading a saved trace as a stream, against `json.load` of the whole; each in a process of its own."""

import gzip
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from support.traces import RESNET, TRACES

from benchmarks.counters import twin_rows
from benchmarks.kernel_energy import kernel_energy_rows
from benchmarks.kernel_goldens import golden_rows
from benchmarks.rows import Row
from benchmarks.windows import window_rows

_ROOT: Final = Path(__file__).parents[2]
#: Some steps of training; a trace of minutes is what memory matters for, so its events are repeated.
_STEPS: Final = TRACES / f"{RESNET}.json.gz"
_REPEAT: Final = 4
_LARGER: Final = 16
_LAUNCHES: Final = 50_000
_KERNEL_NS: Final = 8_100

_OURS: Final = """
import sys, time
sys.path.insert(0, {packages!r})
from pathlib import Path
from gpu_profile.kernels import Trace, report_of
started = time.perf_counter()
report = report_of(Trace(Path({path!r})))
busy_ns = report.activity.busy_ns
"""
#: A launch in today's form: an operator, its call, the arrow to the kernel, and the kernel.
_LAUNCH: Final = """
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 100, "tid": 100,
    "ts": %(ts)s, "dur": 12.345,
    "args": { "External id": %(id)d, "Record function id": 0, "Ev Idx": %(id)d }
  },
  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 100, "tid": 100,
    "ts": %(ts)s, "dur": 5.211,
    "args": { "External id": %(id)d, "cbid": 211, "correlation": %(correlation)d }
  },
  {
    "ph": "s", "id": %(correlation)d, "pid": 100, "tid": 100, "ts": %(ts)s,
    "cat": "ac2g", "name": "ac2g"
  },
  {
    "ph": "X", "cat": "kernel", "pid": 0, "tid": 7,
    "name": "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "ts": %(ts)s, "dur": 8.100,
    "args": {
      "External id": %(id)d, "queued": 0, "device": 0, "context": 1, "stream": 7,
      "correlation": %(correlation)d, "registers per thread": 16, "shared memory": 0,
      "blocks per SM": 3.5, "warps per SM": 14.5, "grid": [378, 1, 1], "block": [128, 1, 1],
      "est. achieved occupancy %%": 22
    }
  }"""
#: What reads a trace into a table, as HTA does, and does the least with it.
_THEIRS: Final = """
import gzip, json, time
import pandas
started = time.perf_counter()
with gzip.open({path!r}, "rt") as file:
    events = pandas.DataFrame(json.load(file)["traceEvents"])
kinds = {{"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}}
operations = events[events["cat"].isin(kinds)].sort_values("ts")
until, busy_ns = 0, 0
for start, length in zip(operations["ts"], operations["dur"]):
    busy_ns += int(1000 * max(0, start + length - max(start, until)))
    until = max(until, start + length)
"""
#: `VmHWM` is this program's own; what getrusage tells may be the parent's, from before the exec.
_TELL: Final = """
taken = time.perf_counter() - started
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(taken, int(peak), busy_ns)
"""


def rows() -> Iterator[Row]:
    """The rows of the kernels."""
    yield from golden_rows()
    yield from twin_rows()
    yield from reading_rows()
    yield from lean_rows()
    yield from window_rows()
    yield from kernel_energy_rows()


def reading_rows() -> Iterator[Row]:
    """Reading a trace and adding up the whole and every region, against reading it into a table."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json.gz"
        size = _repeat(path, _REPEAT)
        ours, theirs = _best(_OURS, path), _best(_THEIRS, path)
        larger = _repeat(path, _LARGER)
        grown = _best(_OURS, path, runs=1)
    same = ours[2] == theirs[2] == grown[2]
    named = f"trace of {size / 1e6:.0f} MB of JSON with its regions"
    yield Row(
        f"{named}, peak RSS of the process",
        f"{ours[1] / 1024:.0f} MiB",
        f"json.load and pandas {theirs[1] / 1024:.0f} MiB",
        f"{ours[1] / theirs[1] * 100:.0f} %",
        "<=25 %, same busy time",
        ours[1] <= 0.25 * theirs[1] and same,
        ours[1] / theirs[1],
    )
    yield Row(
        f"{named}, time",
        f"{ours[0]:.2f} s",
        f"json.load and pandas {theirs[0]:.2f} s",
        f"{theirs[0] / ours[0]:.2f}x",
        ">=1x, same busy time",
        ours[0] <= theirs[0] and same,
        ours[0] / theirs[0],
    )
    slope = (grown[1] - ours[1]) * 1024 / (larger - size)
    whole = ours[1] / 1024 + slope * (4e9 - size) / (1 << 20)
    yield Row(
        f"the same of {larger / 1e6:.0f} MB",
        f"{grown[1] / 1024:.0f} MiB in {grown[0]:.1f} s",
        f"{slope * 100:.0f} bytes more for 100 of JSON: {whole / 1024:.1f} GiB for 4 GB",
        reach="4 GB in less than 2 GiB",
        ok=whole < 2048 and same,
    )


def lean_rows() -> Iterator[Row]:
    """The same of a trace of today's form with few arguments: the profiler's own work is most of the time."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json.gz"
        size = _lean(path, _LAUNCHES)
        ours, theirs = _best(_OURS, path, runs=3), _best(_THEIRS, path, runs=3)
    exact = ours[2] == _LAUNCHES * _KERNEL_NS
    yield Row(
        f"trace of {size / 1e6:.0f} MB of JSON with {4 * _LAUNCHES:,} events of today's form, time",
        f"{ours[0]:.2f} s",
        f"json.load and pandas {theirs[0]:.2f} s",
        f"{theirs[0] / ours[0]:.2f}x",
        ">=1x, exact busy time",
        ours[0] <= theirs[0] and exact,
        ours[0] / theirs[0],
    )


def _lean(path: Path, launches: int) -> int:
    """Write a trace of so many launches as Kineto writes it today; its size before packing."""
    size, began = 0, 1_700_000_000_000_000
    with gzip.open(path, "wt", compresslevel=1) as file:
        size += file.write('{"traceEvents": [')
        for i in range(launches):
            ts = f"{began + 20 * i}.{i % 1000:03d}"
            size += file.write(("," if i else "") + _LAUNCH % {"id": i, "correlation": i + 1, "ts": ts})
        size += file.write("]}")
    return size


def _repeat(path: Path, times: int) -> int:
    """Write the trace with its events repeated; its size before packing. What overlaps counts once, so sums stay."""
    with gzip.open(_STEPS, "rt") as file:
        head, events = file.read().split('"traceEvents":[', 1)
    events = events.rstrip().removesuffix("]}")
    text = f'{head}"traceEvents":[{",".join([events] * times)}]}}'
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(text)
    return len(text)


def _best(program: str, path: Path, runs: int = 2) -> tuple[float, int, int]:
    """Seconds of reading, peak KiB of the process, and the busy time in ns; the fastest of some runs."""
    text = (program + _TELL).format(path=str(path), packages=str(_ROOT / "instrumentation"))
    found = []
    for _ in range(runs):
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        seconds, peak, busy_ns = done.stdout.split()
        found.append((float(seconds), int(peak), int(busy_ns)))
    return min(found)

"""What recording costs a program on this machine's CPU, beside PyTorch's profiler used by hand."""

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pandas

from benchmarks.rows import Row, best
from gpu_profile import configure, region
from gpu_profile.kernels import Recording, record
from gpu_profile.regions.session import process

_STEPS: Final = 40
_REGIONS: Final = 2_000


def window_rows() -> Iterator[Row]:
    """Rows of windows; none where PyTorch is missing."""
    try:
        import torch
    except ImportError:
        yield Row("recording in a program", "needs PyTorch: not measured")
        return
    configure(backend="none")
    layers = [part for _ in range(6) for part in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    model, batch = torch.nn.Sequential(*layers), torch.randn(64, 256)

    def steps() -> None:
        for _ in range(_STEPS):
            model(batch).sum().backward()

    steps()
    _recorded(steps)  # the first start imports a part of PyTorch
    by_hand, recorded, read = _by_hand(torch, steps), *_recorded(steps)
    for _ in range(4):
        by_hand = tuple(map(min, by_hand, _by_hand(torch, steps)))
        again = _recorded(steps)
        recorded, read = min(recorded, again[0]), min(read, again[1])
    bare = best(steps)
    per_step = 1e3 / _STEPS
    yield Row(
        "a step of training on the CPU in a window, its start and stop shared out",
        f"{recorded * per_step:.2f} ms",
        f"torch.profiler by hand {by_hand[0] * per_step:.2f} ms, no profiler {bare * per_step:.2f} ms",
        f"{recorded / by_hand[0]:.2f}x",
        "<=1.1x torch.profiler",
        recorded <= 1.1 * by_hand[0],
        recorded / by_hand[0],
    )
    yield Row(
        "reading its records and joining them with regions",
        f"{read * per_step:.2f} ms a step",
        f"export, json.load and pandas {by_hand[1] * per_step:.2f} ms",
        f"{read / by_hand[1]:.2f}x the time",
        cost=read / by_hand[1],
    )
    outside, inside = best(_regions), _inside()
    yield Row(
        "a region without a span in a window",
        f"{inside / _REGIONS * 1e6:.2f} µs",
        f"without one {outside / _REGIONS * 1e6:.2f} µs",
        cost=inside / outside,
    )
    process.stop()


def _by_hand(torch: Any, steps: Any) -> tuple[float, ...]:
    """Seconds under PyTorch's own profiler, and for reading what it has into a table."""
    profiler = torch.profiler
    started = time.perf_counter()
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        steps()
    taken = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        found.export_chrome_trace(str(path))
        with path.open() as file:
            pandas.DataFrame(json.load(file)["traceEvents"])
    return taken - started, time.perf_counter() - taken


def _recorded(steps: Any) -> tuple[float, float]:
    """Seconds in a window, and for its report."""
    started = time.perf_counter()
    with record("torch") as recording, region("steps", span=False):
        steps()
    taken = time.perf_counter()
    if _operators(recording) < _STEPS:
        raise RuntimeError("a window on the CPU records operators")
    return taken - started, time.perf_counter() - taken


def _operators(recording: Recording) -> int:
    return recording.report.region("steps").operations


def _regions() -> None:
    for _ in range(_REGIONS):
        with region("inner", span=False):
            pass


def _inside() -> float:
    seconds = []
    for _ in range(5):
        with record("torch"):
            seconds.append(best(_regions, 1))
    return min(seconds)

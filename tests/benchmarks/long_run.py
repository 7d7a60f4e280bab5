"""A day at 100 Hz on a simulated clock: whether memory stays flat, and whether the day's summary is right.

What is simulated is the GPU and the clock; sampler, timelines, join and regions are the real ones. The driver hands out
its samples as NVML does its buffers, 10 s of them at a time, so that 8.6 million rounds of a sampler need not be made:
every sample goes through the timeline by itself all the same.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    _TESTS = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(_TESTS), str(_TESTS.parent / "instrumentation")]

from benchmarks.long_run_worlds import run
from benchmarks.rows import Row

_FLAT_MIB: Final = 3.0
_EXACT: Final = 1e-5


def rows(hours: int = 24) -> Iterator[Row]:
    """The rows of a long run."""
    memory: list[float] = []
    started = time.process_time()
    day = run(3600 * hours, hz=100, note=lambda: memory.append(_resident_mib()))
    took = time.process_time() - started
    growth = max(memory) - memory[0]
    yield Row(
        f"memory over {hours} h at 100 Hz (simulated clock, drained by 10 s), retention 10 min",
        f"+{growth:.1f} MiB from hour 1 to the end, {memory[0]:.0f} MiB resident ({took:.0f} s of CPU)",
        "all rows as int64 columns "
        f"{sum(column.size(3600 * hours * 100) for column in day.timeline.columns.values()) / 2 / (1 << 20):,.0f} MiB",
        "-",
        f"<={_FLAT_MIB:g} MiB",
        growth <= _FLAT_MIB,
        memory[0],
    )
    errors = day.errors()
    covered = min(day.busy.coverage, day.energy.coverage, day.memory.coverage)
    calls = day.regions["short"].summary.durations.calls
    yield Row(
        f"one region of {hours} h over 10 min of history, and {calls:,} short ones",
        ", ".join(f"{name} {error:.1g}" for name, error in errors.items()) + f" off; {covered:.4%} covered",
        "the whole history by its formula",
        "-",
        f"<={_EXACT:g}, p50 and p95 <=1 %",
        all(
            error <= (0.01 if name.startswith("p") and name[1:].isdigit() else _EXACT) for name, error in errors.items()
        )
        and covered >= 0.9999
        and calls == 360 * hours,
    )


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / (1 << 20)


if __name__ == "__main__":
    for row in rows(*map(int, sys.argv[1:])):
        print(row, flush=True)

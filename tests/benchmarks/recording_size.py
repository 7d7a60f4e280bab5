"""How large a recording gets: one GPU, 12 signals at 100 Hz for an hour of synthetic time, written once a second.

`python tests/benchmarks/recording_size.py [SECONDS]` prints megabytes per GPU-hour and what writing and reading cost.
Every reading differs from the one before (no sensor that holds its value for 100 ms), so this is a heavy case.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.recording import RecordingWriter, read_recording

SIGNALS: tuple[Signal, ...] = (
    rows.UTILIZATION,
    rows.MEMORY_CONTROLLER,
    rows.MEMORY_USED,
    rows.POWER,
    rows.ENERGY,
    rows.TEMPERATURE,
    rows.CLOCK_SM,
    rows.PCIE_RX,
    rows.PCIE_TX,
    rows.SM,
    rows.TENSOR,
    rows.DRAM,
)
HZ = 100
UUID = "GPU-9f1c2f5e-6a0b-4c1d-8e2f-0123456789ab"
START_NS = 1_700_000_000_000_000_000


def values(signal: Signal, count: int, random: np.random.Generator) -> np.ndarray:
    """A plausible noisy history in quanta: random walks, and white noise where a sensor has it."""
    walk = np.cumsum(random.normal(size=count))
    if signal is rows.POWER:
        return (400_000 + 20_000 * np.sin(walk / 50) + random.normal(scale=5_000, size=count)).astype(np.int64)
    if signal is rows.MEMORY_USED:
        return np.repeat(random.integers(10_000, 80_000, count // HZ + 1), HZ)[:count]
    if signal is rows.TEMPERATURE:
        return (60 + 5 * np.sin(walk / 200)).astype(np.int64)
    if signal is rows.CLOCK_SM:
        return (1_980 - 15 * (random.random(count) < 0.05)).astype(np.int64)
    if signal.kind is Kind.COUNTER:
        mean = 4_000 if signal is rows.ENERGY else 5_000_000
        return np.cumsum(random.normal(mean, mean / 50, count).astype(np.int64))
    return np.clip(signal.limit * (0.7 + 0.2 * np.sin(walk / 20)) + random.normal(size=count), 0, signal.limit).astype(
        np.int64
    )


def measure(title: str, seconds: int, jitter_ns: int, step_ns: int, together: bool) -> None:
    """Write `seconds` of samples and print the size per hour. `together`: one time stamp for all signals of a tick."""
    random = np.random.default_rng(7)
    count = seconds * HZ
    ticks = START_NS + np.arange(count) * (10**9 // HZ)
    shared = ticks + random.integers(0, jitter_ns, count) // step_ns * step_ns
    stamps = {
        s: shared if together else ticks + random.integers(0, jitter_ns, count) // step_ns * step_ns for s in SIGNALS
    }
    columns = {s: values(s, count, random) for s in SIGNALS}
    with tempfile.TemporaryDirectory() as directory:
        before = time.process_time()
        with RecordingWriter(Path(directory)) as writer:
            writer.device(Device(UUID))
            for first in range(0, count, HZ):
                for signal in SIGNALS:
                    t_end = stamps[signal][first : first + HZ]
                    t_start = t_end - signal.window_ns
                    row = zip(
                        t_start.tolist(), t_end.tolist(), columns[signal][first : first + HZ].tolist(), strict=True
                    )
                    writer.samples("GPU-9f1c2f5e-6a0b-4c1d-8e2f-0123456789ab", (Sample(signal, *s) for s in row))
                writer.flush()
        written = time.process_time()
        recording = read_recording(Path(directory))
        read = time.process_time()
        assert not recording.problems
        size = writer.path.stat().st_size * 3600 / seconds / 1e6
    print(
        f"{title:55} {size:5.1f} MB per GPU-hour   write {(written - before) / seconds * 1e3:.2f} ms CPU per second"
        f"   read {(read - written) / seconds * 3600:.2f} s per hour"
    )


if __name__ == "__main__":
    length = int(sys.argv[1]) if len(sys.argv) > 1 else 3600
    measure("one stamp per tick, ns, 100 us jitter", length, 100_000, 1, True)
    measure("one stamp per signal, whole us, 100 us jitter", length, 100_000, 1_000, False)
    measure("one stamp per signal, ns, 1 ms jitter (worst)", length, 1_000_000, 1, False)

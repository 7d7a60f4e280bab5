"""Recordings of real GPUs: `tests/data/hardware`, described by a README for each."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpu_profile.analysis import analyse
from gpu_profile.calibration.load import Load
from gpu_profile.catalogue import signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.history.timeline import Floats, Ints, Timeline
from gpu_profile.join.summary import RegionSummary
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.timing.expected import DevicePrior
from gpu_profile.join.unmixing.windows.activities import DeviceExecution
from gpu_profile.recording import read_recording
from gpu_profile.regimes import Regime
from gpu_profile.units import NS_PER_S

DATA = Path(__file__).parents[1] / "data" / "hardware"
H200 = DATA / "h200"
H100 = DATA / "h100"
#: The program that `make gpu` runs.
KIT = Path(__file__).parents[1] / "gpu" / "run.py"
#: The kernels of `six_kernels.npz`, by number.
KERNELS = ("gemm_bf16", "gemm_fp32", "copy", "reduce", "tiny", "gather")
_POLL_NS = 50_000_000


class Sensors(NamedTuple):
    """Raw readings. Each array has one row per column of its table. Times are in ns after `base_ns`."""

    base_ns: int
    parts: tuple[str, ...]
    tables: dict[str, Ints]

    def first(self, seconds: float) -> "Sensors":
        """The readings of the first seconds."""
        until = round(seconds * NS_PER_S)
        return self._replace(tables={name: table[:, table[0] < until] for name, table in self.tables.items()})

    def load(self, first_kind: int) -> Load:
        """The work as a calibration load, in order and without overlaps. Level 0 is `first_kind`."""
        starts, ends, kinds, _, _ = self.tables["work"]
        # Successive pieces overlap by the error of the clocks' fit.
        starts = np.maximum(starts, np.maximum.accumulate(np.append(starts[:1], ends[:-1])))
        return Load(starts, np.maximum(ends, starts), kinds - first_kind)

    def buffered(self, name: str, unit: float) -> tuple[Ints, Floats]:
        """The stamps and values of samples that the driver buffers, without repetitions."""
        stamps, values = self.tables[name]
        return stamps, values * unit


def load(path: Path) -> Sensors:
    """Read a file of raw sensors."""
    with np.load(path) as file:
        tables = {name: np.cumsum(file[name], axis=1) for name in file.files if file[name].ndim == 2}
        return Sensors(int(file["base_ns"][0]), tuple(map(str, file["parts"])), tables)


@cache
def kernels_of(directory: Path) -> dict[str, tuple[RegionSummary, Regime]]:
    """Summary and regime of each kernel of a recorded program, from the regions `program.kernel`."""
    return {
        use.summary.region.partition(".")[2]: (use.summary, use.verdict.regime)
        for use in analyse(read_recording(directory)).regions
        if "." in use.summary.region
    }


def calibrated(part: str) -> tuple[Load, Callable[[str], tuple[Ints, Floats]]]:
    """The load that `gpu-profile calibrate` played on the H100 (`chips` or `loop`), and a function.

    The function returns a signal's buffered samples: stamps in ns after the start, and values in the base unit.
    """
    with np.load(H100 / f"calibrate_{part}.npz") as file:
        arrays = {name: file[name] for name in file.files}

    def drained(key: str) -> tuple[Ints, Floats]:
        _, stamps, values = np.cumsum(arrays[f"drained.{key}"], axis=1)
        return stamps, values * signal(key).quantum

    return Load(*arrays["load"]), drained


def pool_of(part: str, prior: DevicePrior | None = None) -> Pool:
    """The pool of a part of `six_kernels.npz`, with the kernels as regions.

    The energy counter is read every 50 ms. The driver's power samples are complete.
    """
    raw = load(H200 / "six_kernels.npz")
    starts, ends, kinds, parts, _ = raw.tables["work"]
    selected = parts == raw.parts.index(part)
    first, last = int(starts[selected].min()) - NS_PER_S, int(ends[selected].max()) + NS_PER_S
    # The driver stamps in whole microseconds.
    base = raw.base_ns - raw.base_ns % 1000
    before, after, mj = raw.tables["energy"]
    read = (before + after) // 2
    polled = np.flatnonzero(np.diff(read // _POLL_NS, prepend=0) > 0)
    samples = [
        Sample(rows.ENERGY, base + t, base + t, 1_000_000 + value)
        for t, value in zip(read[polled].tolist(), mj[polled].tolist(), strict=True)
    ]
    stamps, mw = raw.tables["power_samples"]
    stamps = base + stamps - stamps % 1000
    samples += [
        Sample(rows.POWER, max(a, b - NS_PER_S), b, value)
        for a, b, value in zip(stamps[:-1].tolist(), stamps[1:].tolist(), mw[1:].tolist(), strict=True)
    ]
    device = Device("GPU-h200", index=0, name="NVIDIA H200")
    timeline = Timeline(device, [rows.ENERGY, rows.POWER, rows.POWER_LIMIT], capacity=20_000)
    timeline.append([Sample(rows.POWER_LIMIT, base + first, base + first, 700_000)])
    inside = [sample for sample in samples if base + first < sample.t_end_ns < base + last]
    timeline.append(sorted(inside, key=lambda sample: sample[2]))
    pool = Pool(timeline, start_ns=base + first, prior=prior or DevicePrior.of_board(device.name))
    activities = [
        DeviceExecution(i, None, KERNELS[kind], base + start, base + end)
        for i, (start, end, kind) in enumerate(
            zip(starts[selected].tolist(), ends[selected].tolist(), kinds[selected].tolist(), strict=True)
        )
    ]
    for activity in activities:
        pool.count(activity.region, marked=1)
    pool.advance(activities, base + last, final=True)
    return pool
